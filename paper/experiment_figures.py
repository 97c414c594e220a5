"""Figures of the paper's experiments: gains with intervals, means with errors, histograms, maps of markets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bidwise.evaluation.estimate import Estimate, Outcome
from bidwise.losses.definition import surrogate_of
from bidwise.report.drawing import COLOURS, GRID, INK, NARROW, SOFT, Panel, Whisker, style, ticks, whiskers
from bidwise.report.formatting import number
from bidwise.report.sections import OUTCOMES, Drawing, drawing
from bidwise.run_folder import whole_file
from paper.comparisons import Difference
from paper.synthetic_results import CellGain, Histogram, MapResult

BLUE, VERMILION, GREEN, PINK, *_ = COLOURS
PAPER = ("log", "log_weighted", "hinge", "log_teacher_unweighted", "log_teacher", "hinge_plus_teacher")

FAMILIES = {  # losses that are drawn alike, in their order, with colour and marker
    "baselines": (BLUE, "o", ("log_loss", "bid_weighted", "sqrt_bid_weighted")),
    "the paper’s losses": (VERMILION, "s", PAPER),
    "ours": (GREEN, "D", ("log_plus", "log_plus_teacher")),
    "controls": (PINK, "^", ("ranknet", "distilled")),
}
LOOKS = {loss: (colour, marker) for colour, marker, losses in FAMILIES.values() for loss in losses}
ORDER = list(LOOKS)


def in_order(names: Iterable[str]) -> list[str]:
    """Families together, and others after them.

    >>> in_order(["mine", "log", "log_loss"])
    ['log_loss', 'log', 'mine']
    """
    return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


@dataclass(frozen=True)
class Picture:
    """Panels that belong together: one file, ``across`` of them in a row."""

    name: str
    panels: tuple[Panel, ...]
    across: int = 3

    def drawings(self, key: str) -> list[Drawing]:
        """The panels as figures of a page; ``key`` distinguishes its runs."""
        return [drawing(f"{key}{self.name}{at}", panel) for at, panel in enumerate(self.panels)]

    def write(self, folder: Path) -> None:
        """The picture as SVG, on white; the same bytes every time."""
        rows = [self.panels[k : k + self.across] for k in range(0, len(self.panels), self.across)]
        heights = [max(panel.height for panel in row) + 0.3 for row in rows]
        across, width = max(map(len, rows)), max(panel.width for panel in self.panels)
        with style(self.name), whole_file(folder / f"{self.name}.svg") as part:
            figure = Figure(figsize=(width * across, sum(heights)), layout="constrained", facecolor="white")
            grid = figure.add_gridspec(len(rows), across, height_ratios=heights)
            figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)  # type: ignore[union-attr, call-arg]
            for at, panel in enumerate(self.panels):
                axes = figure.add_subplot(grid[at // self.across, at % self.across])
                panel.paint(axes)
                axes.set_title(panel.title, loc="left", weight="bold", size=10, pad=14)  # above a first row's name
            figure.savefig(part, format="svg", metadata={"Date": None})


def forest(title: str, gains: Mapping[str, Estimate], label: str) -> Panel:
    """Gains over a baseline with their intervals, families of losses together; full marks where 0 is excluded.

    A difference with two sources of chance has its interval over repeats above the thinner one over auctions.
    """
    families = FAMILIES if set(gains) <= set(ORDER) else {"": (BLUE, "o", tuple(gains))}
    rows: list[Whisker] = []
    for title_of_family, (colour, marker, members) in families.items():
        some = [name for name in members if name in gains]
        rows += [Whisker(title_of_family)] if some and title_of_family else []
        for name in some:
            gain = 100 * gains[name]
            drawn, below = (gain.repeats, gain.auctions) if isinstance(gain, Difference) else (gain, None)
            row = Whisker.of(name, f"{OUTCOMES[gain.outcome][0]} {gain}", drawn, gain.outcome, colour, marker)
            rows.append(replace(row, fades=False, below=below))
    said = "; ".join(f"{row.name}: {row.words}" for row in rows if row.words)
    return whiskers(title, rows, label, f"{title}: {label}. {said}.", NARROW)


def errors(title: str, means: Mapping[str, tuple[float, float]]) -> Panel:
    """Means of losses with one standard error to both sides, as the paper defines them."""

    def paint(axes: Axes) -> None:
        for at, (loss, (mean, error)) in enumerate(means.items()):
            colour, marker = LOOKS[loss]
            axes.errorbar([at], [mean], yerr=[error], color=colour, marker=marker, capsize=4)
        axes.set_xticks(range(len(means)), [loss.replace("_", "\n") for loss in means], fontsize=7.5)
        axes.set_xlim(-0.5, len(means) - 0.5)
        axes.yaxis.set_major_locator(ticks(5))

    said = "; ".join(f"{loss} {plus_minus(*mean)}" for loss, mean in means.items())
    return Panel(title, f"{title}: {said}.", 2.6, paint, NARROW)


def plus_minus(value: float, error: float) -> str:
    """A mean with its standard error, where it has one.

    >>> plus_minus(1.23456, 0.012), plus_minus(1.2, math.nan)
    ('1.2346 ± 0.0120', '1.2000')
    """
    return number(value, 4) + (f" ± {error:.4f}" if math.isfinite(error) else "")


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

        about = f"The {name} surrogate and the indicator, for {', '.join(lines)}."
        panels.append(Panel(name.capitalize(), about, 2.6, paint, width=4.4))
    return Picture("figure1_surrogates", tuple(panels), across=2)


def histogram(title: str, bins: Histogram, label: str, colour: str = COLOURS[2], *, powers: bool = False) -> Panel:
    """Shares of the ads between edges, or between ``powers`` of 10 on a log scale."""
    edges = 10.0 ** np.array(bins.edges) if powers else np.array(bins.edges)
    shares = 100 * np.array(bins.counts) / (sum(bins.counts) or 1)

    def paint(axes: Axes) -> None:
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.85, linewidth=0)
        if powers:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(numticks=6))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}".replace("-", "−")))
        axes.yaxis.set_major_locator(ticks(4))
        axes.set_xlabel(f"{label} (log scale)" if powers else label)
        axes.set_ylabel("% of the ads")

    about = f"Histogram, {title}: from {edges[0]:.3g} to {edges[-1]:.3g}, most often near {edges[shares.argmax()]:.3g}."
    return Panel(title, about, 2.2, paint)


def market_map(plot: MapResult, across: str, upwards: str) -> Picture:
    """Gains over two properties of the market, ``across`` and ``upwards``, a panel for each loss."""
    about = f"difference to log loss over {across} (across) and {upwards} (upwards); a table below has the numbers."
    return Picture(f"regimes_{plot.name}", tuple(_map(name, plot, about) for name in in_order(plot.losses)))


def _map(name: str, plot: MapResult, about: str) -> Panel:
    def paint(axes: Axes) -> None:
        for y, row in enumerate(plot.losses[name]):
            for x, cell in enumerate(row):
                _cell(axes, x, y, cell, small=min(7.8, 30 / len(row)))
        for axis, ends in ((plot.x, "x"), (plot.y, "y")):
            levels = [level(each).replace(" ", "\n") for each in axis.levels]
            axes.set(**{f"{ends}lim": (-0.5, len(levels) - 0.5), f"{ends}label": axis.name})
            axes.set(**{f"{ends}ticks": range(len(levels)), f"{ends}ticklabels": levels})
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)

    return Panel(name, f"{name}: {about}", 0.7 + 0.56 * len(plot.y.levels), paint, NARROW)


def _cell(axes: Axes, x: int, y: int, cell: CellGain, small: float) -> None:
    """Difference above its interval; on blue if better, on orange if worse, on white if that is unclear."""
    fill = {Outcome.BETTER: COLOURS[0], Outcome.WORSE: COLOURS[1]}.get(cell.outcome, "none")
    axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, facecolor=fill, edgecolor=GRID, alpha=0.3))
    centre, _, interval = f"{100 * cell:.2f}".partition(" ")
    ink: dict[str, Any] = {"ha": "center", "va": "center", "color": INK if cell.outcome.clear else SOFT}
    axes.text(x, y + 0.16, f"{centre} {OUTCOMES[cell.outcome][0]}", size=9, **ink)
    axes.text(x, y - 0.2, interval.strip("[]"), size=small, **ink)


def level(value: float | str) -> str:
    """A level of an axis as words."""
    return value if isinstance(value, str) else f"{value:g}".replace("-", "−")
