"""Differences with their intervals, one line each, with the words beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from bidwise.report.drawing import INK, SOFT, UNCLEAR, WIDTH, Panel, shortened, ticks


@dataclass(frozen=True)
class Row:
    """One line of a whisker figure; a row without ``words`` is the heading of those below it."""

    name: str
    words: str = ""
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    clear: bool = False  # the interval leaves out 0 and can be trusted
    colour: str = UNCLEAR
    marker: str = "o"
    fades: bool = True  # to grey where it is not clear


def whiskers(title: str, rows: Sequence[Row], label: str, about: str, width: float = WIDTH) -> Panel:
    """Differences with their intervals; full where 0 is outside, hollow (and grey, if a row fades) where it is not."""
    ends = [x for row in rows for x in (row.estimate, row.low, row.high) if x is not None]
    reach = max(map(abs, ends), default=0) or 1
    low, high = min(0, *ends, reach * -0.12), max(0, *ends, reach * 0.12)

    def paint(axes: Axes) -> None:
        across = axes.get_yaxis_transform()
        for y, row in enumerate(rows):
            if not row.words:
                axes.text(0, y + 0.25, shortened(row.name, 56), transform=across, color=SOFT, va="center", size=8.5)
                continue
            axes.text(0, y - 0.2, shortened(row.name, 26), transform=across, va="center", weight="bold")
            axes.text(1, y - 0.2, row.words, transform=across, va="center", ha="right")
            if ends:
                axes.plot([0, 0], [y, y + 0.42], color=INK, linewidth=0.9)  # not through the words above
            colour = row.colour if row.clear or not row.fades else UNCLEAR
            if row.low is not None and row.high is not None:
                axes.plot([row.low, row.high], [y + 0.2, y + 0.2], color=colour, marker="|", markersize=7)
            if row.estimate is not None:
                face = colour if row.clear else "white"
                axes.plot([row.estimate], [y + 0.2], row.marker, color=colour, markerfacecolor=face, markersize=6.5)
        axes.set_ylim(len(rows) - 0.4, -0.05)
        axes.set_xlim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        axes.yaxis.set_major_locator(NullLocator())
        axes.xaxis.set_major_locator(ticks(6) if ends else NullLocator())
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda x, _: "0" if abs(x) < 1e-9 else f"{x:+g}".replace("-", "−"))
        )
        axes.spines["left"].set_visible(False)
        axes.spines["bottom"].set_visible(bool(ends))
        axes.set_xlabel(label if ends else "")

    return Panel(title, about, 0.55 + 0.46 * len(rows), paint, width)
