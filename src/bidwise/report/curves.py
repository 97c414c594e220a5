"""Curves over epochs: validation welfare by loss, and the metrics of a single training run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bidwise.report.drawing import COLOURS, SOFT, Look, Panel, Picture, shortened, ticks
from bidwise.report.loss_styles import PROTOCOLS, in_order, look_of

Result = Mapping[str, Any]
BAND = 0.4  # share of the height: wider bands would cover each other, and are left out
LABELS = 0.63  # where lines end and their names begin, as a share of the width


def learning_curves(result: Result) -> Picture:
    """Validation welfare over epochs, by loss: where each is best, and what becomes of it later."""
    panels = []
    for protocol in PROTOCOLS:
        curves = result["curves"].get(protocol)
        if curves:
            series = {name: curves[name] for name in in_order(curves)}
            panels.append(_curves(PROTOCOLS[protocol], series))
    return Picture("learning_curves", tuple(panels))


def _curves(title: str, curves: Mapping[str, Mapping[str, Sequence[Any]]]) -> Panel:
    said = []
    for name, curve in curves.items():
        known = [(y, x) for x, y in zip(curve["epoch"], curve["ratio"], strict=True) if y is not None]
        if known:
            best, when = max(known)
            said.append(f"{name}: highest {100 * best:.2f} % after {when:g} epochs, {100 * known[-1][0]:.2f} % at last")
    about = f"{title}: validation welfare as a share of the optimum over epochs. {'; '.join(said)}."

    def paint(axes: Axes) -> None:
        lines = {name: (curve["epoch"], [_percent(y) for y in curve["ratio"]]) for name, curve in curves.items()}
        named_lines(axes, lines, {name: look_of(name) for name in lines})
        bottom, top = axes.get_ylim()
        bands = {
            name: tuple([_percent(y) for y in curve.get(end) or ()] for end in ("low", "high"))
            for name, curve in curves.items()
        }
        pairs = [(low[-1], high[-1]) for low, high in bands.values() if low and high]
        widths = [high - low for low, high in pairs if high - low == high - low]  # early stopping leaves ends unknown
        if widths and sorted(widths)[len(widths) // 2] < BAND * (top - bottom):
            for name, (low, high) in bands.items():
                colour = look_of(name).colour
                axes.fill_between(curves[name]["epoch"], low, high, color=colour, alpha=0.1, linewidth=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g} %"))
        axes.set_ylabel("welfare, % of the optimum")

    return Panel(title, about, 3.6, paint, width=4.4)  # narrower lines cannot be told apart, wider words not read


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
        thick = 2.2 if name == "log_loss" else 1.5
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
    for name, (height, place) in apart({n: (y - bottom) / (top - bottom) for n, y in ends.items() if y is not None}):
        axes.plot(
            [LABELS + 0.004, LABELS + 0.035],
            [height, place],
            transform=axes.transAxes,
            color=style[name].colour,
            linewidth=0.9,
        )
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


def fit_curves(metrics: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> Picture:
    """The loss and every metric of a training run over its epochs; a ring where the metric is best."""
    names = [name for name in (metrics[0] if metrics else {}) if name != "epoch"]
    panels = []
    for name in names:
        xs = [entry["epoch"] for entry in metrics]
        ys = [mean_of(entry.get(name)) for entry in metrics]
        when, value = (mean_of((best.get(name) or {}).get(key)) for key in ("epoch", "value"))
        panels.append(_fit_panel(name, xs, ys, when, value))
    return Picture("fit", tuple(panels))


def _fit_panel(name: str, xs: list[float], ys: list[float | None], when: float | None, value: float | None) -> Panel:
    words = name.replace("_", " ")
    about = f"{words} over {len(xs)} evaluated epochs"
    if when is not None and value is not None:
        about += f", best after epoch {when:g}: {value:.5g}"

    def paint(axes: Axes) -> None:
        axes.plot(xs, [math.nan if y is None else y for y in ys], color=COLOURS[0], marker="o" if len(xs) < 3 else "")
        if when is not None and value is not None:
            axes.plot([when], [value], "o", color=COLOURS[1], markerfacecolor="white", markersize=7)
        axes.xaxis.set_major_locator(ticks(6))
        axes.yaxis.set_major_locator(ticks(6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.5g}".replace("-", "−")))
        axes.set_xlabel("epoch")
        axes.set_ylabel(words, color=SOFT)

    return Panel(f"{words.capitalize()} over epochs", about + ".", 2.7, paint)


def mean_of(value: Any) -> float | None:
    """A number, or the mean of the numbers in nested lists: runs of many models have one for each.

    >>> mean_of([[1.0, 3.0], [None, 2.0]]), mean_of(None), mean_of(4)
    (2.0, None, 4.0)
    """
    if isinstance(value, list):
        inside = [x for x in map(mean_of, value) if x is not None]
        return sum(inside) / len(inside) if inside else None
    return None if value is None else float(value)


def _percent(share: float | None) -> float:
    return math.nan if share is None else 100 * share
