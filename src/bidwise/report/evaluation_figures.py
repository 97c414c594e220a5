"""Figures of an evaluation's page: calibration, ratios by bid, and how the change spreads over auctions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from bidwise.report.drawing import INK, Look, svg, ticks


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
                axis.set_major_locator(ticks(5))
            axis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:.4g} %"))
        axes.set_xlim(bottom, top)
        axes.set_ylim(bottom, top)
        axes.set_xlabel("predicted CTR" + (" (log scale)" if wide else ""))
        axes.set_ylabel("observed CTR" + (" (log scale)" if wide else ""))

    return svg(key, 3.9, paint, about)


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
            axes.yaxis.set_major_locator(ticks(7))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.4g}"))
        parts = max(map(len, ratios.values()), default=1)
        axes.set_xlim(0.5, max(parts, 1) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.set_xlabel("tenth of the ads by bid (1 = lowest bids)")
        axes.set_ylabel("predicted / observed clicks")

    return svg(key, 3.9, paint, about)


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
        axes.xaxis.set_major_locator(ticks(7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+.4g}".replace("-", "−") if x else "0"))
        axes.set_xlabel("change of an auction's welfare")
        axes.set_ylabel("auctions (log scale)" if wide else "auctions")

    return svg(key, 2.7, paint, about)


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number
