"""Maps of regimes: the difference to log loss over two properties of the world, one map for each loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from bidwise.report.drawing import COLOURS, INK, NARROW, SOFT, UNCLEAR, Panel, Picture
from bidwise.report.formatting import hundredths
from bidwise.report.loss_styles import in_order

Result = Mapping[str, Any]
BETTER, WORSE = COLOURS[0], COLOURS[1]
DEEPEST = 0.55  # opacity of the strongest colour: words on it stay readable, on light and dark
CAPS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100)  # per cent of the optimum at which the colour is strongest


def outcome(cell: Result) -> str:
    """What a cell says: better, worse, unclear (its interval holds 0), or none (nothing was measured).

    >>> outcome({"difference": 0.01, "ci_low": 0.002, "ci_high": 0.02})
    'better'
    """
    if cell["difference"] is None:
        return "none"
    if cell["ci_low"] is None or cell["ci_high"] is None or cell["ci_low"] <= 0 <= cell["ci_high"]:
        return "unclear"
    return "better" if cell["ci_low"] > 0 else "worse"


def regime_maps(result: Result) -> list[Picture]:
    """One picture for each pair of properties, with a panel for each loss and the scale of colours they share."""
    cap = strongest(result)
    return [
        Picture(f"regimes_{plot['name']}", (*(_map(name, plot, cap) for name in in_order(plot["losses"])), _scale(cap)))
        for plot in result["maps"]
    ]


def strongest(result: Result) -> float:
    """Per cent of the optimum at which colours are strongest: nine in ten of the clear cells are within."""
    cells = [cell for plot in result["maps"] for rows in plot["losses"].values() for row in rows for cell in row]
    clear = sorted(abs(100 * cell["difference"]) for cell in cells if outcome(cell) in ("better", "worse"))
    reach = clear[int(0.9 * (len(clear) - 1))] if clear else 1.0
    return next((cap for cap in CAPS if cap >= reach), CAPS[-1])


def _map(name: str, plot: Result, cap: float) -> Panel:
    columns, rows = plot["x"]["levels"], plot["y"]["levels"]
    cells = plot["losses"][name]
    told = [outcome(cell) for row in cells for cell in row]
    about = (
        f"{name}: difference to log loss over {plot['x']['about']} (across) and {plot['y']['about']} (upwards). "
        f"Better in {told.count('better')} cells, worse in {told.count('worse')}, unclear in {told.count('unclear')}."
    )
    big = 9.5 if len(columns) <= 4 else 8.0
    small = min(7.8, 30 / max(len(columns), 1))

    def paint(axes: Axes) -> None:
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                _cell(axes, x, y, cell, cap, big, small)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(-0.5, len(rows) - 0.5)
        axes.set_xticks(range(len(columns)), [level(each).replace(" ", "\n") for each in columns])
        axes.set_yticks(range(len(rows)), [level(each).replace(" ", "\n") for each in rows])
        axes.set_xlabel(plot["x"]["name"].replace("_", " "))
        axes.set_ylabel(plot["y"]["name"].replace("_", " "))
        axes.grid(False)
        axes.tick_params(length=0)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)

    return Panel(name, about, 0.7 + 0.56 * len(rows), paint, NARROW)


def _cell(axes: Axes, x: int, y: int, cell: Result, cap: float, big: float, small: float) -> None:
    """Colour, number, interval and sign; a cell without a sure sign has no colour, a dotted edge and a question."""
    told = outcome(cell)
    corner, side = (x - 0.48, y - 0.48), 0.96
    if told in ("better", "worse"):
        depth = DEEPEST * min(abs(100 * cell["difference"]) / cap, 1)
        fill = BETTER if told == "better" else WORSE
        axes.add_patch(Rectangle(corner, side, side, facecolor=fill, edgecolor="none", alpha=max(depth, 0.06)))
    else:
        axes.add_patch(Rectangle(corner, side, side, facecolor="none", edgecolor=UNCLEAR, linewidth=0.7, linestyle=":"))
    if told == "none":
        axes.text(x, y, "–", ha="center", va="center", color=SOFT)
        return
    sure = told != "unclear"
    sign = {"better": "▲", "worse": "▼", "unclear": "?"}[told]
    words = f"{hundredths(cell['difference'])} {sign}"
    axes.text(x, y + 0.16, words, ha="center", va="center", size=big, color=INK if sure else SOFT)
    if cell["ci_low"] is not None and cell["ci_high"] is not None:
        low, high = (hundredths(cell[end]) for end in ("ci_low", "ci_high"))
        axes.text(x, y - 0.2, f"{low}, {high}", ha="center", va="center", size=small, color=INK if sure else SOFT)


def _scale(cap: float) -> Panel:
    steps = [k / 4 for k in range(-4, 5)]

    def paint(axes: Axes) -> None:
        for k, step in enumerate(steps):
            if step:
                colour = BETTER if step > 0 else WORSE
                axes.add_patch(Rectangle((k, 0), 1, 1, facecolor=colour, edgecolor="none", alpha=DEEPEST * abs(step)))
            else:
                axes.add_patch(
                    Rectangle((k, 0.02), 1, 0.96, facecolor="none", edgecolor=UNCLEAR, linewidth=0.7, linestyle=":")
                )
                axes.text(k + 0.5, 0.5, "?", ha="center", va="center", color=SOFT)
        axes.set_xlim(0, len(steps))
        axes.set_ylim(0, 1)
        words = [f"−{cap:g} or less", f"−{cap / 2:g}", "unclear", f"+{cap / 2:g}", f"+{cap:g} or more"]
        axes.set_xticks([0.9, 2.5, 4.5, 6.5, 8.1], words)
        axes.yaxis.set_major_locator(NullLocator())
        axes.grid(False)
        axes.tick_params(length=0)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        axes.set_xlabel("difference to log loss, % of the optimal welfare")

    about = f"Scale of colours: orange for worse, blue for better, strongest from {cap:g} % of the optimal welfare on."
    return Panel("Scale of all maps", about, 0.85, paint, NARROW)


def level(value: Any) -> str:
    """A level of an axis as words."""
    return f"{value:g}".replace("-", "−") if isinstance(value, int | float) else str(value)
