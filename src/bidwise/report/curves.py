"""Curves over epochs, with the names of trainings next to their lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bidwise.report.drawing import Look, shortened, ticks
from bidwise.study.recipe import BASELINE

LABELS = 0.63  # end of the lines and start of the legend, as a share of the width


def named_lines(
    axes: Axes, lines: Mapping[str, tuple[Sequence[Any], Sequence[float]]], style: Mapping[str, Look]
) -> None:
    """Lines over epochs, and their names to the right of them in the order of their ends."""
    epochs = [x for xs, _ in lines.values() for x in xs]
    first, last = min(epochs, default=1), max(epochs, default=1)
    wide = last > 15 * first > 0
    late = [y for _, ys in lines.values() for y in ys[len(ys) // 8 :] if math.isfinite(y)] or [0.0]
    room = 0.06 * (max(late) - min(late)) or 0.5
    bottom, top = min(late) - room, max(late) + room
    end = first * (last / first) ** (1 / LABELS) if wide else first + (last - first) / LABELS
    ends = {name: next((y for y in reversed(ys) if math.isfinite(y)), -math.inf) for name, (_, ys) in lines.items()}
    handles = []
    for name in sorted(lines, key=lambda name: -ends[name]):
        look, thick = style[name], 2.2 if name == BASELINE else 1.5
        marker = look.marker if len(lines[name][0]) == 1 else ""
        handles += axes.plot(*lines[name], color=look.colour, linestyle=look.dash, linewidth=thick, marker=marker)
        handles[-1].set_label(shortened(name, 20))
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
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(LABELS, 0.5), frameon=False, fontsize=8)
