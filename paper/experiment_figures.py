"""Figures of the paper's experiments: gains with intervals, lines over epochs or λ, histograms, maps of markets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bidwise.evaluation.estimate import NONE, Estimate, Outcome
from bidwise.report.drawing import COLOURS, INK, NARROW, SOFT, UNCLEAR, Panel, Whisker, ticks, whiskers
from bidwise.report.sections import OUTCOMES
from paper.comparisons import Difference, points
from paper.loss_styles import FAMILIES, family_of, in_order, look_of
from paper.pictures import Picture
from paper.synthetic_results import CellGain, Histogram, MapResult
from paper.theory import surrogate_of


def forest(title: str, gains: Mapping[str, Estimate], label: str, *, families: bool) -> Panel:
    """Gains over a baseline with their intervals, ``families`` of losses together; full marks where 0 is excluded.

    A difference with two sources of chance has its interval over repeats above the thinner one over auctions.
    """
    rows: list[Whisker] = []
    for name in in_order(gains) if families else gains:
        gain, family = 100 * gains[name], family_of(name) if families else FAMILIES["baseline"]
        if families and Whisker(family.title) not in rows:
            rows.append(Whisker(family.title))
        drawn, below = (gain.repeats, gain.auctions) if isinstance(gain, Difference) else (gain, None)
        row = Whisker.of(name, f"{OUTCOMES[gain.outcome][0]} {gain}", drawn, gain.outcome, family.colour, family.marker)
        rows.append(replace(row, fades=False, below=below))
    said = "; ".join(f"{row.name}: {row.words}" for row in rows if row.words)
    return whiskers(title, rows, label, f"{title}: {label}. {said}.", NARROW)


def errors(title: str, means: Mapping[str, tuple[float, float]], label: str) -> Panel:
    """Means of losses with one standard error to both sides, as the paper draws them."""

    def paint(axes: Axes) -> None:
        for at, (name, (mean, error)) in enumerate(means.items()):
            look = look_of(name)
            error = error if math.isfinite(error) else 0.0
            axes.errorbar([at], [mean], yerr=[error], color=look.colour, marker=look.marker, capsize=4)
        axes.set_xticks(range(len(means)), [name.replace("_", "\n") for name in means], fontsize=7.5)
        axes.set_xlim(-0.5, len(means) - 0.5)
        axes.yaxis.set_major_locator(ticks(5))
        axes.set_ylabel(label)

    said = "; ".join(f"{name} {mean:.4f} ± {error:.4f}" for name, (mean, error) in means.items())
    return Panel(title, f"{title}: {said}.", 2.6, paint, width=4.4)


def surrogates() -> Picture:
    """The paper's Figure 1: what replaces the indicator of a mistake, for several slopes σ."""
    margin = torch.linspace(-1, 1, 201, dtype=torch.float64)
    panels = []
    for name in ("logistic", "hinge"):
        lines = {f"σ = {sigma:g}": surrogate_of(margin, name, sigma) for sigma in (1.0, 3.0, 6.0)}

        def paint(axes: Axes, lines: Mapping[str, Any] = lines) -> None:
            axes.step(margin, margin <= 0, color=INK, linewidth=1.2, label="indicator")
            for colour, (label, values) in zip(COLOURS, lines.items(), strict=False):
                axes.plot(margin, values, color=colour, label=label)
            axes.set_xlabel("difference of predicted eCPM")
            axes.set_ylim(0, 3)
            axes.legend(frameon=False, fontsize=8)

        at = "; ".join(
            f"{label}: {values[50]:.3f} at −0.5, {values[150]:.3f} at 0.5" for label, values in lines.items()
        )
        panels.append(Panel(name.capitalize(), f"The {name} surrogate and the indicator. {at}.", 2.6, paint, width=4.4))
    return Picture("figure1_surrogates", tuple(panels), across=2)


def histogram(title: str, bins: Histogram, label: str, colour: str = COLOURS[2], *, powers: bool = False) -> Panel:
    """Shares of the ads between edges, which may be ``powers`` of 10; on a log scale where they are far apart."""
    edges = 10.0 ** np.array(bins.edges) if powers else np.array(bins.edges)
    shares = 100 * np.array(bins.counts) / (sum(bins.counts) or 1)
    wide = edges[0] > 0 and edges[-1] > 20 * edges[0]

    def paint(axes: Axes) -> None:
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.85, linewidth=0)
        if wide:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(numticks=6))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}".replace("-", "−")))
        axes.yaxis.set_major_locator(ticks(4))
        axes.set_xlabel(f"{label} (log scale)" if wide else label)
        axes.set_ylabel("% of the ads")

    about = f"Histogram, {title}: from {edges[0]:.3g} to {edges[-1]:.3g}, most often near {edges[shares.argmax()]:.3g}."
    return Panel(title, about, 2.2, paint)


def market_map(plot: MapResult, across: str, upwards: str) -> Picture:
    """Gains over two properties of the market, ``across`` and ``upwards``, a panel for each loss."""
    panels = [_map(name, plot, f"over {across} (across) and {upwards} (upwards)") for name in in_order(plot.losses)]
    return Picture(f"regimes_{plot.name}", tuple(panels))


def _map(name: str, plot: MapResult, axes_words: str) -> Panel:
    cells = plot.losses[name]
    outcomes = [cell.outcome for row in cells for cell in row]
    better, worse = outcomes.count(Outcome.BETTER), outcomes.count(Outcome.WORSE)
    about = (
        f"{name}: difference to log loss {axes_words}. "
        f"Better in {better} cells, worse in {worse}, unclear in {len(outcomes) - better - worse}."
    )

    def paint(axes: Axes) -> None:
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                _cell(axes, x, y, cell, small=min(7.8, 30 / len(row)))
        for axis, ends in ((plot.x, "x"), (plot.y, "y")):
            levels = [level(each).replace(" ", "\n") for each in axis.levels]
            axes.set(**{f"{ends}lim": (-0.5, len(levels) - 0.5), f"{ends}label": axis.name})
            axes.set(**{f"{ends}ticks": range(len(levels)), f"{ends}ticklabels": levels})
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)

    return Panel(name, about, 0.7 + 0.56 * len(plot.y.levels), paint, NARROW)


def _cell(axes: Axes, x: int, y: int, cell: CellGain, small: float) -> None:
    """Difference above its interval; blue for better, orange for worse, a dotted edge where that is unclear."""
    clear = cell.outcome.clear
    fill = {Outcome.BETTER: COLOURS[0], Outcome.WORSE: COLOURS[1]}.get(cell.outcome, "none")
    edge: dict[str, Any] = (
        {"edgecolor": "none", "alpha": 0.3} if clear else {"edgecolor": UNCLEAR, "linewidth": 0.7, "linestyle": ":"}
    )
    axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, facecolor=fill, **edge))
    centre, _, interval = points(cell).partition(" ")
    ink = INK if clear else SOFT
    sign = "" if centre == NONE else f" {OUTCOMES[cell.outcome][0]}"
    axes.text(x, y + 0.16, centre + sign, ha="center", va="center", size=9, color=ink)
    axes.text(x, y - 0.2, interval.strip("[]"), ha="center", va="center", size=small, color=ink)


def level(value: float | str) -> str:
    """A level of an axis as words."""
    return value if isinstance(value, str) else f"{value:g}".replace("-", "−")
