"""Figures of an evaluation: calibration, ratios by bid, and how the change spreads over auctions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from bidwise.evaluation.bins import BidBin, CtrBin
from bidwise.evaluation.comparison import Distribution
from bidwise.evaluation.estimate import signed
from bidwise.report.drawing import INK, Look, Panel, ticks

HEIGHT = 3.9


def span(numbers: Iterable[float]) -> tuple[float, float]:
    """The smallest and the largest positive number, for figures that share a scale.

    >>> span([0.8, float("nan"), 1.2])
    (0.8, 1.2)
    """
    positive = [x for x in numbers if x > 0]
    return min(positive, default=1.0), max(positive, default=1.0)


def calibration_curves(
    title: str, curves: Mapping[str, Sequence[CtrBin]], style: Mapping[str, Look], scale: tuple[float, float]
) -> Panel:
    """Observed against predicted CTR per bin, on the diagonal where a model is right."""
    least, most = scale
    wide = most > 20 * least and any(part.observed > 0 for curve in curves.values() for part in curve)
    bottom, top = (least / 1.4, most * 1.4) if wide else (0.0, most * 1.06)

    def paint(axes: Axes) -> None:
        axes.plot([bottom, top], [bottom, top], color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        for model, curve in curves.items():
            x = [max(part.predicted, bottom) for part in curve]  # log axes show 0 at their edge
            y = [max(part.observed, bottom) for part in curve]
            _line(axes, x, y, style[model])
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

    return Panel(title, f"{title}: {', '.join(curves)}", HEIGHT, paint)


def ratios_by_bid(
    title: str, bins: Mapping[str, Sequence[BidBin]], style: Mapping[str, Look], scale: tuple[float, float]
) -> Panel:
    """Predicted / observed CTR along the bids: above 1 where a model overrates."""
    least, most = min(scale[0], 1.0), max(scale[1], 1.0)
    wide = most > 4 * least

    def paint(axes: Axes) -> None:
        axes.axhline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        for model, parts in bins.items():
            _line(axes, range(1, len(parts) + 1), [part.ratio for part in parts], style[model])
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
        axes.set_xlim(0.5, max(map(len, bins.values()), default=1) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.set_xlabel("tenth of the ads by bid (1 = lowest bids)")
        axes.set_ylabel("predicted / observed clicks")

    return Panel(title, f"{title}: {', '.join(bins)}", HEIGHT, paint)


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], look: Look) -> None:
    axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.dash, alpha=0.9)


def distribution(title: str, about: str, spread: Distribution, look: Look, what: str) -> Panel:
    """How many auctions, or clicks, gain and lose how much welfare."""
    most = max(spread.auctions)
    wide = most > 30

    def paint(axes: Axes) -> None:
        foot = 0.7 if wide else 0.0
        axes.stairs(spread.auctions, spread.edges, baseline=foot, fill=True, color=look.colour, alpha=0.85, linewidth=0)
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
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: signed(x, ".4g")))
        axes.set_xlabel("change of an auction's welfare" if what == "auctions" else "change of what a click is worth")
        axes.set_ylabel(f"{what} (log scale)" if wide else what)

    return Panel(title, about, 2.7, paint)
