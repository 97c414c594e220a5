"""Figures of the synthetic benchmark: surrogates, welfare by loss, welfare over epochs, and the worlds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from bidwise.report.curves import named_lines
from bidwise.report.drawing import COLOURS, INK, NARROW, Panel, Picture, Whisker, ticks, whiskers
from bidwise.report.formatting import NONE, counted, number, per_cent
from bidwise.report.loss_styles import PROTOCOLS, family_of, in_order, look_of
from bidwise.report.sections import Run
from bidwise.study.compare import points
from bidwise.study.recipe import BASELINE
from bidwise.study.synthetic_results import Curve, Histogram, LossResult, SyntheticResult, WorldShape

SIGMAS = (1, 3, 10)
BAND = 0.4  # share of the height: wider bands would cover each other, and are left out


def synthetic_pictures(run: Run) -> list[Picture]:
    """All figures, in the order of the paper's."""
    result: SyntheticResult = run.result
    return [surrogates(), welfare_by_loss(result), distributions(result), learning_curves(result)]


def surrogates() -> Picture:
    """Figure 1 of the paper: the indicator, and what is put in its place to have a gradient."""
    margin = np.linspace(-1.0, 1.0, 401)
    top = 4.0

    def panel(name: str, formula: str, surrogate: Callable[[float], Any]) -> Panel:

        def paint(axes: Axes) -> None:
            axes.plot([-1, 0, 0, 1], [1, 1, 0, 0], color=INK, linewidth=2.2)
            axes.text(0.03, 1.0, "indicator", va="center")
            for sigma, colour, dash in zip(SIGMAS, COLOURS, ("-", "--", "-."), strict=False):
                values = surrogate(sigma)
                axes.plot(margin, values, color=colour, linestyle=dash)
                inside = int(np.argmax(values <= top * 0.93))
                at = (margin[inside], values[inside])
                axes.annotate(f"σ = {sigma}", at, (5, 7), textcoords="offset points", va="center")
            axes.set_xlim(-1, 1)
            axes.set_ylim(-0.08, top)
            axes.xaxis.set_major_locator(ticks(5))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}".replace("-", "−")))
            axes.set_xlabel("x = eCPM of the ad that should win − eCPM of the other")

        about = (
            f"{name} surrogate {formula} for sigma 1, 3 and 10 against the margin x, beside the indicator, "
            "which is 1 up to x = 0 and 0 beyond. The larger sigma, the steeper the surrogate rises to the left."
        )
        return Panel(f"{name}: {formula}", about, 3.0, paint)

    return Picture(
        "figure1_surrogates",
        (
            panel("Logistic", "log(1 + exp(−σx))", lambda sigma: np.logaddexp(0.0, -sigma * margin)),
            panel("Hinge", "max(−σx, 0)", lambda sigma: np.maximum(-sigma * margin, 0.0)),
        ),
    )


def welfare_by_loss(result: SyntheticResult) -> Picture:
    """Figure 2 of the paper, as differences to the log loss: what the models share cancels."""
    panels = []
    for name, protocol in result.protocols.items():
        rows: list[Whisker] = []
        for loss in in_order(protocol.losses):
            family = family_of(loss)
            if Whisker(family.title) not in rows:
                rows.append(Whisker(family.title))
            rows.append(_welfare_row(loss, protocol.losses[loss]))
        title = PROTOCOLS.get(name, name)
        values = "; ".join(f"{row.name}: {row.words}" for row in rows if row.words)
        about = f"{title}: test welfare by loss, share of the optimum and difference to log loss. {values}"
        panels.append(whiskers(title, rows, "difference to log loss, % of the optimal welfare", about, NARROW))
    return Picture("figure2_welfare", tuple(panels))


def _welfare_row(name: str, loss: LossResult) -> Whisker:
    family, share = family_of(name), per_cent(loss.ratio)
    if name == BASELINE:
        return Whisker(name, f"{share}, reference", 0.0, clear=True, colour=family.colour, marker=family.marker)
    words = f"{share}\u2003{points(loss)}"
    row = Whisker.of(name, words, 100 * loss, loss.outcome, family.colour, family.marker)
    return replace(row, fades=False)


def learning_curves(result: SyntheticResult) -> Picture:
    """Validation welfare over epochs, by loss: where each is best, and what becomes of it later."""
    panels = [
        _curves(PROTOCOLS.get(name, name), {loss: protocol.curves[loss] for loss in in_order(protocol.curves)})
        for name, protocol in result.protocols.items()
    ]
    return Picture("learning_curves", tuple(panels))


def _curves(title: str, curves: Mapping[str, Curve]) -> Panel:
    values = []
    for name, curve in curves.items():
        known = [(y, x) for x, y in zip(curve.epoch, curve.ratio, strict=True) if math.isfinite(y)]
        if known:
            best, when = max(known)
            values.append(
                f"{name}: highest {100 * best:.2f} % after {counted(when, 'epoch')}, "
                f"{100 * known[-1][0]:.2f} % at the end"
            )
    about = f"{title}: validation welfare as a share of the optimum over epochs. {'; '.join(values)}."

    def paint(axes: Axes) -> None:
        lines = {name: (curve.epoch, [100 * y for y in curve.ratio]) for name, curve in curves.items()}
        named_lines(axes, lines, {name: look_of(name) for name in lines})
        bottom, top = axes.get_ylim()
        widths = sorted(
            100 * (curve.high[-1] - curve.low[-1])
            for curve in curves.values()
            if curve.low and math.isfinite(curve.high[-1] - curve.low[-1])  # early stopping leaves ends unknown
        )
        if widths and widths[len(widths) // 2] < BAND * (top - bottom):
            for name, curve in curves.items():
                low, high = ([100 * y for y in end] for end in (curve.low, curve.high))
                axes.fill_between(curve.epoch, low, high, color=look_of(name).colour, alpha=0.1, linewidth=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g} %"))
        axes.set_ylabel("welfare, % of the optimum")

    return Panel(title, about, 3.6, paint, width=4.4)  # narrower lines run together, wider words are too small to read


def distributions(result: SyntheticResult) -> Picture:
    """Figure 4 of the paper, for every reading of how its ads come about."""
    panels = []
    for reading, world in result.worlds.items():
        about = f"Histogram of the CTR of ads, {reading} reading. {_shape_words(world)}"
        panels.append(_histogram(f"CTR, {reading}", world.ctr, "CTR", about, COLOURS[0]))
        about = (
            f"Histogram of bids on a logarithmic scale, {reading} reading: from {bid(world.lowest_bid)} "
            f"to {bid(world.highest_bid)}."
        )
        panels.append(
            _histogram(f"Bids, {reading}", world.log10_bid, "bid (log scale)", about, COLOURS[2], decades=True)
        )
    return Picture("figure4_distributions", tuple(panels), across=2)


def _histogram(title: str, bins: Histogram, label: str, about: str, colour: str, *, decades: bool = False) -> Panel:
    total = sum(bins.counts) or 1

    def paint(axes: Axes) -> None:
        shares = [100 * count / total for count in bins.counts]
        axes.stairs(shares, bins.edges, fill=True, color=colour, alpha=0.85, linewidth=0)
        axes.set_xlabel(label)
        axes.set_ylabel("% of the ads")
        axes.yaxis.set_major_locator(ticks(4))
        axes.xaxis.set_major_locator(ticks(6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: bid(10**x) if decades else f"{x:g}"))

    return Panel(title, about, 2.2, paint)


def _shape_words(world: WorldShape) -> str:
    """Whether CTRs are in the middle or at the ends, which the two readings differ by."""
    edges, counts = world.ctr.edges, world.ctr.counts
    ends = sum(n for n, low, high in zip(counts, edges, edges[1:], strict=False) if high <= 0.1001 or low >= 0.8999)
    share = 100 * ends / (sum(counts) or 1)
    return f"Mean {number(world.mean_ctr, 3)}; {share:.0f} % of the ads are below 0.1 or above 0.9."


def bid(value: float) -> str:
    """A bid in few digits.

    >>> bid(0.0123), bid(250.0), bid(3e16), bid(math.nan)
    ('0.012', '250', '3e16', '–')
    """
    if not math.isfinite(value):
        return NONE
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e−").replace("e+", "e").replace("e-", "e−")
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"
