"""Curves over epochs: one training with its best epoch, or several as lines with their names at their ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bidwise.report.drawing import COLOURS, SOFT, Look, Panel, shortened, ticks
from bidwise.report.formatting import counted
from bidwise.study.recipe import BASELINE

LABELS = 0.63  # where lines end and their names begin, as a share of the width


def named_lines(
    axes: Axes, lines: Mapping[str, tuple[Sequence[Any], Sequence[float]]], style: Mapping[str, Look]
) -> None:
    """Lines over epochs, each with its name at its end; names are moved apart and lead back to their lines."""
    epochs = [x for xs, _ in lines.values() for x in xs]
    first, last = min(epochs, default=1), max(epochs, default=1)
    wide = last > 15 * first > 0
    late = [y for _, ys in lines.values() for y in ys[len(ys) // 8 :] if math.isfinite(y)] or [0.0]
    room = 0.06 * (max(late) - min(late)) or 0.5
    bottom, top = min(late) - room, max(late) + room
    end = first * (last / first) ** (1 / LABELS) if wide else first + (last - first) / LABELS
    for name, (xs, ys) in lines.items():
        thick = 2.2 if name == BASELINE else 1.5
        axes.plot(xs, ys, color=style[name].colour, linestyle=style[name].dash, linewidth=thick)
        if len(xs) == 1:
            axes.plot(xs, ys, color=style[name].colour, marker=style[name].marker)
    if wide:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        steps = [step * 10**power for power in range(6) for step in (1, 2, 5)]
        axes.xaxis.set_major_locator(FixedLocator([x for x in steps if first <= x <= last]))
    else:
        axes.xaxis.set_major_locator(FixedLocator([x for x in ticks(6).tick_values(first, last) if first <= x <= last]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.set_xlim(first, max(end, first + 1))
    axes.set_ylim(bottom, top)
    axes.spines["bottom"].set_bounds(first, last)
    axes.yaxis.set_major_locator(ticks(6))
    axes.set_xlabel("epoch (log scale)" if wide else "epoch", x=LABELS / 2)
    ends = {name: next((y for y in reversed(ys) if math.isfinite(y)), None) for name, (_, ys) in lines.items()}
    label_ends(axes, ends, style)


def label_ends(axes: Axes, ends: Mapping[str, float | None], style: Mapping[str, Look]) -> None:
    """Names to the right of where lines end, moved apart, each led back to its line."""
    bottom, top = axes.get_ylim()
    heights = {name: (y - bottom) / (top - bottom) for name, y in ends.items() if y is not None}
    for name, (height, place) in apart(heights):
        leader = ([LABELS + 0.004, LABELS + 0.035], [height, place])
        axes.plot(*leader, transform=axes.transAxes, color=style[name].colour, linewidth=0.9)
        axes.text(LABELS + 0.045, place, shortened(name, 20), transform=axes.transAxes, va="center", size=8)


def apart(heights: Mapping[str, float], gap: float = 0.07) -> list[tuple[str, tuple[float, float]]]:
    """Heights in [0, 1], and places near them that are ``gap`` apart, from the top down.

    >>> [(name, round(place, 3)) for name, (_, place) in apart({"a": 0.5, "b": 0.5}, gap=0.1)]
    [('a', 0.55), ('b', 0.45)]
    """
    groups: list[list[str]] = []  # neighbours that touch; each stands around the mean of its members, inside the axes

    def centre(members: list[str]) -> float:
        half = gap * (len(members) - 1) / 2 + 0.02
        mean = sum(min(max(heights[name], 0.0), 1.0) for name in members) / len(members)
        return min(max(mean, half), max(1 - half, 0.5))

    for name in sorted(heights, key=lambda name: -heights[name]):
        groups.append([name])
        while len(groups) > 1:
            above, below = groups[-2:]
            if centre(above) - centre(below) >= gap * (len(above) + len(below)) / 2:
                break
            groups[-2:] = [above + below]
    return [
        (name, (heights[name], centre(members) + gap * ((len(members) - 1) / 2 - k)))
        for members in groups
        for k, name in enumerate(members)
    ]


def epoch_panel(name: str, epochs: Sequence[float], values: Sequence[float], best: tuple[float, float] | None) -> Panel:
    """A metric of a training over its epochs; a ring at the ``best`` epoch and its value."""
    words = name.replace("_", " ")
    about = f"{words} over {counted(len(epochs), 'evaluated epoch')}"
    if best is not None:
        about += f", best after epoch {best[0]:g}: {best[1]:.5g}"

    def paint(axes: Axes) -> None:
        axes.plot(epochs, values, color=COLOURS[0], marker="o" if len(epochs) < 3 else "")
        if best is not None:
            axes.plot(*([x] for x in best), "o", color=COLOURS[1], markerfacecolor="white", markersize=7)
        axes.xaxis.set_major_locator(ticks(6))
        axes.yaxis.set_major_locator(ticks(6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.5g}".replace("-", "−")))
        axes.set_xlabel("epoch")
        axes.set_ylabel(words, color=SOFT)

    return Panel(f"{words.capitalize()} over epochs", about + ".", 2.7, paint)
