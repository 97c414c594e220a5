"""Figures of the report: matplotlib straight to SVG for a page, without pyplot, a display or anything left behind."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.style
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

INK, FAINT, UNCLEAR = "#1f2933", "#d5dae0", "#8a939e"
WIDTH = 4.8  # inches: on a phone the text is then still as large as print
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a name may hold dollars
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": UNCLEAR,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e9ecef",
    "grid.linewidth": 0.7,
    "xtick.color": UNCLEAR,
    "ytick.color": UNCLEAR,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
# Okabe and Ito's colours, which most colour-blind readers tell apart, without the yellow that white swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = {  # marker -> its shape around (15, 6), for legends outside of figures
    "o": "M15 2a4 4 0 1 0 .01 0z",
    "s": "M11 2h8v8h-8z",
    "^": "M15 1l5 9h-10z",
    "D": "M15 1l5 5-5 5-5-5z",
    "v": "M15 11l5-9h-10z",
    "P": "M13 1.5h4v2.5h2.5v4H17v2.5h-4V8h-2.5V4H13z",
    "X": "M11 3.5l2-2 2 2 2-2 2 2-2 2.5 2 2.5-2 2-2-2-2 2-2-2 2-2.5z",
}


@dataclass(frozen=True)
class Look:
    """How a model is drawn in every figure."""

    colour: str
    marker: str
    dash: str


def looks(models: Sequence[str]) -> dict[str, Look]:
    """A colour and a marker per model; from the eighth on the line is dashed.

    >>> looks(["a", "b"])["b"]
    Look(colour='#D55E00', marker='s', dash='-')
    """
    n, markers = len(COLOURS), list(MARKERS)
    return {m: Look(COLOURS[k % n], markers[k % n], "-" if k < n else "--") for k, m in enumerate(models)}


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


def whiskers(key: str, rows: Sequence[Row], label: str, about: str) -> Markup:
    """Differences with their intervals; full and coloured where 0 is outside, hollow and grey where it is not."""
    ends = [x for row in rows for x in (row.estimate, row.low, row.high) if x is not None]
    reach = max(map(abs, ends), default=0) or 1
    low, high = min(0, *ends, reach * -0.12), max(0, *ends, reach * 0.12)

    def paint(axes: Axes) -> None:
        across = axes.get_yaxis_transform()
        for y, row in enumerate(rows):
            if not row.words:
                axes.text(
                    0, y + 0.25, shortened(row.name, 56), transform=across, color="#52606d", va="center", size=8.5
                )
                continue
            axes.text(0, y - 0.2, shortened(row.name, 26), transform=across, va="center", weight="bold")
            axes.text(1, y - 0.2, row.words, transform=across, va="center", ha="right")
            if ends:
                axes.plot([0, 0], [y, y + 0.42], color=INK, linewidth=0.9)  # not through the words above
            colour = row.colour if row.clear else UNCLEAR
            if row.low is not None and row.high is not None:
                axes.plot([row.low, row.high], [y + 0.2, y + 0.2], color=colour, marker="|", markersize=7)
            if row.estimate is not None:
                face = colour if row.clear else "white"
                axes.plot([row.estimate], [y + 0.2], "o", color=colour, markerfacecolor=face, markersize=6.5)
        axes.set_ylim(len(rows) - 0.4, -0.05)
        axes.set_xlim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        axes.yaxis.set_major_locator(NullLocator())
        axes.xaxis.set_major_locator(_ticks(6) if ends else NullLocator())
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda x, _: "0" if abs(x) < 1e-9 else f"{x:+g}".replace("-", "−"))
        )
        axes.spines["left"].set_visible(False)
        axes.spines["bottom"].set_visible(bool(ends))
        axes.set_xlabel(label if ends else "")

    return _svg(key, 0.55 + 0.46 * len(rows), paint, about)


def span(bins: Iterable[Mapping[str, Any]], *keys: str) -> tuple[float, float]:
    """The smallest and the largest positive number under the keys, for figures that share a scale.

    >>> span([{"ratio": 0.8}, {"ratio": None}, {"ratio": 1.2}], "ratio")
    (0.8, 1.2)
    """
    positive = [part[key] for part in bins for key in keys if (part[key] or 0) > 0]
    return min(positive, default=1.0), max(positive, default=1.0)


def calibration_curves(
    key: str,
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    style: Mapping[str, Look],
    scale: tuple[float, float],
    about: str,
) -> Markup:
    """Observed against predicted CTR per bin, on the diagonal where a model is right."""
    points = {
        model: [(p["predicted"], p["observed"]) for p in curve if None not in (p["predicted"], p["observed"])]
        for model, curve in curves.items()
    }
    least, most = scale
    wide = most > 20 * least and any(observed > 0 for curve in points.values() for _, observed in curve)
    bottom, top = (least / 1.4, most * 1.4) if wide else (0.0, most * 1.06)

    def paint(axes: Axes) -> None:
        axes.plot([bottom, top], [bottom, top], color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        for model, curve in points.items():
            look = style[model]
            x, y = ([max(pair[at], bottom) for pair in curve] for at in (0, 1))  # log axes show 0 at their edge
            axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.dash, alpha=0.9)
        for axis in (axes.xaxis, axes.yaxis):
            if wide:
                (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if top < 300 * bottom else (1.0,)))
                axis.set_minor_formatter(NullFormatter())
                axis.set_minor_locator(NullLocator())
            else:
                axis.set_major_locator(_ticks(5))
            axis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:.4g} %"))
        axes.set_xlim(bottom, top)
        axes.set_ylim(bottom, top)
        axes.set_xlabel("predicted CTR" + (" (log scale)" if wide else ""))
        axes.set_ylabel("observed CTR" + (" (log scale)" if wide else ""))

    return _svg(key, 3.9, paint, about)


def ratios_by_bid(
    key: str,
    bins: Mapping[str, Sequence[Mapping[str, Any]]],
    style: Mapping[str, Look],
    scale: tuple[float, float],
    about: str,
) -> Markup:
    """Predicted / observed CTR along the bids: above 1 where a model overrates."""
    ratios = {model: [_or_nan(part["ratio"]) for part in parts] for model, parts in bins.items()}
    least, most = min(scale[0], 1.0), max(scale[1], 1.0)
    wide = most > 4 * least

    def paint(axes: Axes) -> None:
        axes.axhline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        for model, series in ratios.items():
            look = style[model]
            places = range(1, len(series) + 1)
            axes.plot(places, series, color=look.colour, marker=look.marker, linestyle=look.dash, alpha=0.9)
        if wide:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if most < 300 * least else (1.0,)))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.set_ylim(least / 1.3, most * 1.3)
        else:
            room = max(0.12 * (most - least), 0.02)
            axes.set_ylim(least - room, most + room)
            axes.yaxis.set_major_locator(_ticks(7))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.4g}"))
        parts = max(map(len, ratios.values()), default=1)
        axes.set_xlim(0.5, max(parts, 1) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.set_xlabel("tenth of the ads by bid (1 = lowest bids)")
        axes.set_ylabel("predicted / observed clicks")

    return _svg(key, 3.9, paint, about)


def distribution(key: str, edges: Sequence[float], auctions: Sequence[int], look: Look, about: str) -> Markup:
    """How many auctions gain and lose how much welfare."""
    most = max(auctions)
    wide = most > 30

    def paint(axes: Axes) -> None:
        foot = 0.7 if wide else 0.0
        axes.stairs(auctions, edges, baseline=foot, fill=True, color=look.colour, alpha=0.85, linewidth=0)
        axes.axvline(0, color=INK, linewidth=0.9)
        if wide:
            axes.set_yscale("log")
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_locator(LogLocator())
            axes.set_ylim(foot, most * 1.6)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.xaxis.set_major_locator(_ticks(7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+.4g}".replace("-", "−") if x else "0"))
        axes.set_xlabel("change of an auction's welfare")
        axes.set_ylabel("auctions (log scale)" if wide else "auctions")

    return _svg(key, 2.7, paint, about)


def shortened(name: str, most: int) -> str:
    """A name on one line, without its middle if it is long.

    >>> shortened("click_model_of_last_tuesday", 12)
    'click_…esday'
    """
    name = " ".join(name.split())
    tail = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - tail]}…{name[-tail:]}"


def _ticks(most: int) -> MaxNLocator:
    return MaxNLocator(most, steps=[1, 2, 5, 10])


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number


def _svg(key: str, height: float, paint: Callable[[Axes], None], about: str) -> Markup:
    """The painted axes as an ``<svg>`` element for the inside of a page; the same bytes for the same picture.

    ``key`` tells figures of one page apart: every id that is left in the element depends on it.
    """
    with matplotlib.style.context(["default", {**STYLE, "svg.hashsalt": key}]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the reader's browser has more letters than our font
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure.add_subplot())
        text = io.StringIO()
        figure.savefig(text, format="svg")
    whole = text.getvalue()
    size = re.search(r'viewBox="[^"]*"', whole)
    assert size is not None
    inside = whole[whole.index(">", size.start()) + 1 :]
    # Metadata has the date, and a style inside of a page is one for all of it.
    inside = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", inside, count=2, flags=re.DOTALL)
    inside = re.sub(r'<g id="[^"]*"', "<g", inside)  # nothing refers to groups, and each figure numbers them from 1
    inside = re.sub(r">\s+<", ">\n<", inside)
    return Markup(f'<svg role="img" aria-label="{escape(about)}" {size[0]}>') + Markup(inside)
