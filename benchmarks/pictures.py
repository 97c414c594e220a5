"""The drawings of the documentation, from committed results: ``python -m benchmarks.pictures``."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.crosses import ORIGINS
from benchmarks.harness import DOCS, RESULTS, read
from benchmarks.rivals import METHODS, compared
from bidwise.report.drawing import COLOURS, SOFT, STYLE, UNCLEAR

# Letters are shapes and the ground is white: readable on a dark page, without our fonts, and in print.
LOOK: list[str | dict[str, Any]] = [
    "default",
    STYLE | {"svg.fonttype": "path", "svg.hashsalt": "bidwise", "figure.facecolor": "white"},
]


def losses() -> Figure:
    """The gaps and surrogates of the family."""
    x = np.linspace(-3, 3, 601)
    gaps = {"signed": x, "positive": np.maximum(x, 0), "order": np.where(x > 0, 1.0, 0.0)}
    surrogates = {"logistic": np.logaddexp(0, -x), "hinge": np.maximum(-x, 0), "indicator": np.where(x <= 0, 1.0, 0.0)}
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, curves in ((left, gaps), (right, surrogates)):
        for (label, y), colour, line in zip(curves.items(), COLOURS, ("-", "--", ":"), strict=False):
            axes.plot(x, y, line, color=colour, label=label, linewidth=2)
        axes.legend(frameon=False)
    left.set(title="gap: what is at stake", xlabel="difference of values, v_i − v_j")
    right.set(title="surrogate, σ = 1: how far from the right order", xlabel="margin, s_i − s_j")
    return figure


def rivals() -> Figure:
    """Welfare of `bidwise train` and of other methods on kinds of simulated tables: means, and one dot a table."""
    rows = compared(read("rivals"))
    names = [name for name in METHODS if any(row["method"] == name for row in rows)]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    lines = -(-len(kinds) // 5)
    figure = Figure(figsize=(8, 0.4 + lines * (0.7 + 0.28 * len(names))), layout="constrained")
    panels = figure.subplots(lines, -(-len(kinds) // lines), sharey=True, squeeze=False).ravel()
    for axes, kind in zip(panels, kinds, strict=False):
        here = {name: [float(r["welfare"]) for r in rows if (r["kind"], r["method"]) == (kind, name)] for name in names}
        for place, (name, welfare) in enumerate(reversed(here.items())):
            colour = COLOURS[1] if name == "bidwise" else COLOURS[0]
            axes.plot(welfare, [place] * len(welfare), "o", color=colour, alpha=0.35, markersize=3.5)
            if welfare:
                axes.plot(statistics.mean(welfare), place, "|", color=colour, markersize=13, markeredgewidth=2.5)
        axes.set_yticks(range(len(here)), [METHODS[name].title.replace("`", "") for name in reversed(here)])
        axes.set_title(kind)
        axes.locator_params(axis="x", nbins=3)
    for axes in panels[len(kinds) :]:
        axes.remove()
    figure.supxlabel("welfare, % of the optimum: mean (bar) and tables (dots)", fontsize=9)
    return figure


def coverage() -> Figure:
    """Coverage of 95 % intervals of the difference in welfare, over real auctions and over every possible auction."""
    parts = {
        "real auctions": [(r["world"], r["covered"], float(r["too_few"])) for r in read("coverage")],
        "every possible auction": [
            (r["world"], r["covered"], float(r["too_few"])) for r in read("pooled") if float(r["covered"] or 0)
        ],
    }
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    for axes, (title, rows) in zip(figure.subplots(1, 2), parts.items(), strict=True):
        for place, (_, covered, few) in enumerate(reversed(rows)):
            style = {"color": UNCLEAR, "fillstyle": "none"} if few > 0.5 else {"color": COLOURS[0]}
            axes.plot(100 * float(covered), place, "o", **style)
        axes.axvspan(93, 97, color=COLOURS[2], alpha=0.15, linewidth=0)
        axes.axvline(95, color=SOFT, linewidth=0.8)
        axes.set_yticks(range(len(rows)), [name for name, *_ in reversed(rows)], fontsize=7)
        axes.set(title=title, xlabel="covered, % of 2,000 data sets")
    figure.supxlabel("hollow: the verdict is usually “too few”; shaded: 93 to 97 %", fontsize=8)
    return figure


def power() -> Figure:
    """How often the better model is found: every possible auction against random cuts into auctions."""
    rows = [row for row in read("pooled") if float(row["true_difference"])]
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    ways = {
        "power_pooled": "every possible auction",
        "power_cuts": "mean of 20 random cuts",
        "power_one_cut": "one random cut",
    }
    for (key, label), marker, colour in zip(ways.items(), "oxs", COLOURS, strict=False):
        axes.plot(
            [100 * float(row[key]) for row in reversed(rows)], range(len(rows)), marker, color=colour, label=label
        )
    axes.set_yticks(range(len(rows)), [row["world"] for row in reversed(rows)], fontsize=8)
    axes.set(xlabel="better model detected, % of 2,000 data sets", xlim=(0, 102))
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def loss_scaling() -> Figure:
    """Forward and backward of one auction by its size: ours, and the n x n pairs of plain torch."""
    rows = read("losses_sizes")
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes: Axes = figure.subplots()
    for colour, loss in zip(COLOURS, ("log", "log_teacher", "log_plus", "log_plus_teacher"), strict=False):
        for method, line in (("ours", "-"), ("plain", ":")):
            some = [row for row in rows if (row["loss"], row["method"]) == (loss, method)]
            some.sort(key=lambda row: int(row["ads"]))
            label = loss if method == "ours" else None
            axes.plot(
                [int(r["ads"]) for r in some],
                [float(r["ms"]) for r in some],
                line,
                color=colour,
                label=label,
                marker=".",
            )
    axes.plot([], [], ":", color=SOFT, label="all pairs in plain torch")
    axes.set(xscale="log", yscale="log", xlabel="ads in the auction", ylabel="ms, two cores")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(fontsize=8)
    return figure


def crosses() -> Figure:
    """Combinations that the search of `bidwise train` finds in three tables, in its order, and those that it misses."""
    rows = read("crosses")
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(kinds)), kinds, strict=True):
        here = [row for row in reversed(rows) if row["kind"] == kind]
        for place, row in enumerate(here):
            colour = (COLOURS[0], COLOURS[1], SOFT)[ORIGINS.index(row["origin"])]
            axes.plot(0, place, "o", color=colour, fillstyle="full" if row["place"] else "none", clip_on=False)
        axes.set_yticks(range(len(here)), [row["combination"] for row in here], fontsize=7)
        axes.set(title=kind, xticks=[], xlim=(0, 1))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.grid(False)
    for colour, label in zip((COLOURS[0], COLOURS[1], SOFT), ORIGINS, strict=True):
        axes.plot([], [], "o", color=colour, label=f"found: {label}")
    axes.plot([], [], "o", color=COLOURS[0], fillstyle="none", label="missed")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure


PICTURES = (losses, coverage, power, loss_scaling, crosses)
MEASURED = {rivals: "rivals"}  # drawn once there are results


def draw(folder: Path = DOCS / "assets") -> list[Path]:
    """Write all pictures into ``folder``."""
    paths = []
    later = [picture for picture, name in MEASURED.items() if (RESULTS / f"{name}.csv").exists()]
    for picture in (*PICTURES, *later):
        with matplotlib.style.context(LOOK):
            paths.append(folder / f"{picture.__name__}.svg")
            picture().savefig(paths[-1], metadata={"Date": None})
    return paths


if __name__ == "__main__":
    print(*draw(), sep="\n")
