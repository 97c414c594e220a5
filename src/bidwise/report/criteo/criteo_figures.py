"""Figures of the Criteo experiment: welfare against log loss, the weight of the log loss, learning curves, bids."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bidwise.report.criteo.findings import (
    estimate,
    finding,
    grid_log_loss,
    known,
    model_called,
    percentage,
    protocols_of,
    reference,
    share,
    shares,
)
from bidwise.report.curves import LABELS, apart, named_lines
from bidwise.report.drawing import COLOURS, INK, NARROW, SOFT, WIDTH, Look, Panel, Picture, shortened, ticks
from bidwise.report.formatting import number
from bidwise.report.loss_styles import PROTOCOLS, family_of, in_order, look_of
from bidwise.report.sections import Run

Result = Mapping[str, Any]
SIGNS = {"better": "▲", "worse": "▼", "unclear": "≈", "none": " "}
MEASURES = {  # key -> title, of what is drawn by lam and over epochs
    "expected_welfare": "Expected welfare",
    "welfare": "Realised welfare",
    "auc_loss": "AUC loss, lower is better",
    "log_loss": "Log loss, lower is better",
}


def criteo_pictures(run: Run) -> list[Picture]:
    """Every picture of a run, for files; those that have nothing to show have no panels."""
    return [draw(run.result) for draw in (welfare, lam_grid, curves, bids)]


def welfare(result: Result) -> Picture:
    """Differences to log loss with both intervals: a panel for each model and protocol, a row for each loss."""
    panels = [
        _differences(f"{model_called(name)}. {PROTOCOLS.get(protocol, protocol)}", losses)
        for name, model in result["models"].items()
        for protocol, losses in protocols_of(model).items()
    ]
    across = max((len(protocols_of(model)) for model in result["models"].values()), default=1)
    return Picture("criteo_welfare", tuple(panels), across=max(across, 1))


def _differences(title: str, losses: Mapping[str, Result]) -> Panel:
    rows, said = [], []
    for name in in_order(losses):
        found = losses[name]["difference"]
        base = reference(losses, found)
        centre = share(estimate(found), base)
        intervals = [shares(found, base, source) for source in ("repeats", "auctions")]
        kind = finding(found)
        words = f"{percentage(centre)} {SIGNS[kind]}" if name != "log_loss" else "reference"
        rows.append((name, words, 0.0 if name == "log_loss" else centre, intervals, kind))
        said.append(f"{name}: {percentage(centre)}, {kind}" if name != "log_loss" else f"{name}: reference")
    ends = [100 * x for _, _, centre, found, _ in rows for pair in (found, [(centre, centre)]) for x in _flat(pair)]
    reach = max(map(abs, ends), default=0) or 1
    low, high = min(*ends, -0.12 * reach, 0), max(*ends, 0.12 * reach, 0)

    def paint(axes: Axes) -> None:
        across = axes.get_yaxis_transform()
        for y, (name, words, centre, (repeats, auctions), kind) in enumerate(rows):
            family = family_of(name)
            axes.text(0, y - 0.2, shortened(name, 26), transform=across, va="center", weight="bold")
            axes.text(1, y - 0.2, words, transform=across, va="center", ha="right")
            axes.plot([0, 0], [y, y + 0.55], color=INK, linewidth=0.9)  # not through the words above
            lines = [(repeats, y + 0.14, 2.0, 6.5), (auctions, y + 0.4, 1.0, 4.5)]
            for found, at, wide, cap in lines:
                if found is not None:
                    xs = [100 * x for x in found]
                    axes.plot(xs, [at, at], color=family.colour, linewidth=wide, marker="|", markersize=cap)
            if centre is not None:
                face = family.colour if kind in ("better", "worse") or name == "log_loss" else "white"
                place = y + (0.4 if repeats is None and auctions is not None else 0.14)
                point = ([100 * centre], [place])
                axes.plot(*point, family.marker, color=family.colour, markerfacecolor=face, markersize=6.5)
        axes.set_ylim(len(rows) - 0.25, -0.5)
        axes.set_xlim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        axes.yaxis.set_major_locator(NullLocator())
        axes.xaxis.set_major_locator(ticks(6))
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda x, _: "0" if abs(x) < 1e-9 else f"{x:+g}".replace("-", "−"))
        )
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("difference to log loss, % of its welfare")

    about = f"{title}: test welfare of each loss against log loss. {'; '.join(said)}."
    return Panel(title, about, 0.6 + 0.52 * len(rows), paint, WIDTH)


def _flat(pairs: Sequence[tuple[float | None, float | None] | None]) -> list[float]:
    return [x for pair in pairs if pair is not None for x in pair if x is not None]


def lam_grid(result: Result) -> Picture:
    """Test welfare, AUC loss and log loss by lam: a row of panels for each model, a line for each loss."""
    panels = []
    for name, model in result["models"].items():
        grid = {loss: rows for loss, rows in (model.get("grid") or {}).items() if rows}
        if grid:
            base = grid_log_loss(model)
            measures = ("expected_welfare" if _has(grid, "expected_welfare") else "welfare", "auc_loss", "log_loss")
            panels += [_by_lam(model_called(name), measure, grid, base) for measure in measures]
    return Picture("criteo_lambda", tuple(panels))


def _has(grid: Mapping[str, Sequence[Result]], measure: str) -> bool:
    return any(row.get(measure) is not None for rows in grid.values() for row in rows)


def _by_lam(model: str, measure: str, grid: Mapping[str, Sequence[Result]], base: Result) -> Panel:
    title = f"{model}. {MEASURES[measure]}"
    lams = sorted({row["lam"] for rows in grid.values() for row in rows})
    level = known(base.get(measure))
    lines = {}
    for name in in_order(grid):
        rows = sorted(grid[name], key=lambda row: row["lam"])
        values = [known(row.get(measure)) for row in rows]
        lines[name] = [
            (row["lam"], y, known(row.get(f"{measure}_error")) or 0.0)
            for row, y in zip(rows, values, strict=True)
            if y is not None
        ]
    bottom, top = _frame(lines.values(), level)

    def paint(axes: Axes) -> None:
        first, last = lams[0], max(lams[-1], lams[0] * 1.5)
        axes.set_xscale("log")
        axes.set_xlim(first * 0.93, first * (last / first) ** (1 / LABELS))
        axes.set_ylim(bottom, top)
        places = {}
        if level is not None:
            axes.plot([first, last], [level, level], color=look_of("log_loss").colour, linewidth=2.2)
            places["log_loss"] = level
        for name, line in lines.items():
            look = look_of(name)
            xs, ys, errors = ([entry[k] for entry in line] for k in range(3))
            if not line:
                continue
            axes.plot(xs, ys, color=look.colour, linestyle=look.dash, marker=look.marker)
            axes.vlines(xs, _added(ys, errors, -1), _added(ys, errors, 1), color=look.colour, linewidth=0.9)
            places[name] = ys[-1]
        _names(axes, {name: (y - bottom) / (top - bottom) for name, y in places.items()})
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(FixedLocator(lams))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.spines["bottom"].set_bounds(first, last)
        _level_ticks(axes)
        axes.set_xlabel("λ, the weight of the log loss (log scale)", x=LABELS / 2)

    said = "; ".join(f"{name}: " + ", ".join(f"{y:.4f} at {x:g}" for x, y, _ in line) for name, line in lines.items())
    said += "" if level is None else f"; the model trained with log loss: {level:.4f}"
    return Panel(title, f"{title} on test auctions by λ. {said}.", 2.9, paint, NARROW)


def _frame(lines: Iterable[Sequence[tuple[float, float, float]]], level: float | None) -> tuple[float, float]:
    """Lowest and highest of a panel: all points with their errors, but for the smallest lam where it dwarfs the rest.

    >>> [round(x, 2) for x in _frame([[(0.1, 9.0, 0.0), (1.0, 0.5, 0.0), (3.0, 0.4, 0.0)]], 0.4)]
    [0.39, 0.58]
    """
    points = [point for line in lines for point in line]
    least = min((lam for lam, _, _ in points), default=0.0)
    base = [] if level is None else [level]
    every = [y + side for _, y, error in points for side in (-error, error)] + base or [0.0]
    late = [y + side for lam, y, error in points if lam > least for side in (-error, error)] + base or [0.0]
    low, high = min(late), max(late)
    if max(every) - min(every) > 4 * (high - low) > 0:
        room = 0.7 * (high - low)
        low, high = max(low - room, min(every)), min(high + room, max(every))
    else:
        low, high = min(every), max(every)
    room = 0.07 * (high - low) or 0.5
    return low - room, high + room


def _added(values: Sequence[float], errors: Sequence[float], sign: int) -> list[float]:
    return [value + sign * error for value, error in zip(values, errors, strict=True)]


def _names(axes: Axes, heights: Mapping[str, float]) -> None:
    """Names to the right of where lines end, moved apart, each led back to its line."""
    for name, (height, place) in apart(heights):
        ends = ([LABELS + 0.01, LABELS + 0.05], [height, place])
        axes.plot(*ends, transform=axes.transAxes, color=look_of(name).colour, linewidth=0.9)
        axes.text(LABELS + 0.06, place, shortened(name, 20), transform=axes.transAxes, va="center", size=8)


def curves(result: Result) -> Picture:
    """Validation welfare and log loss over the epochs: a row of panels for each model."""
    panels = [
        _curve(model_called(name), measure, found)
        for name, model in result["models"].items()
        for found in [model.get("curves") or {}]
        for measure in ("welfare", "expected_welfare", "log_loss")
        if any(line.get(measure) for line in found.values())
    ]
    return Picture("criteo_curves", tuple(panels))


def _curve(model: str, measure: str, found: Mapping[str, Mapping[str, Sequence[Any]]]) -> Panel:
    title = f"{model}. {MEASURES[measure]}"
    lines = {
        name: (found[name]["epoch"], [math.nan if known(y) is None else y for y in found[name][measure]])
        for name in in_order(found)
        if found[name].get(measure)
    }
    said = []
    for name, (xs, ys) in lines.items():
        points = [(y, x) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
        if points:
            best, when = min(points) if measure == "log_loss" else max(points)
            said.append(f"{name}: best {best:.4f} after {when:g} epochs, {points[-1][0]:.4f} at last")

    def paint(axes: Axes) -> None:
        looks: dict[str, Look] = {name: look_of(name) for name in lines}
        named_lines(axes, lines, looks)
        _level_ticks(axes)

    return Panel(title, f"{title} on validation auctions over the epochs. {'; '.join(said)}.", 3.4, paint, width=4.4)


def _level_ticks(axes: Axes) -> None:
    """Ticks on the left, all with as many decimals as their steps need."""
    locator = ticks(5)
    steps = locator.tick_values(*axes.get_ylim())
    places = max(0, -math.floor(math.log10(steps[1] - steps[0]) + 1e-9))
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: number(y, places)))


def bids(result: Result) -> Picture:
    """How bids are distributed, on a logarithmic axis, with the middle and the ends marked."""
    found = result["data"].get("bids") or {}
    bins = found.get("histogram")
    if not bins or not bins.get("counts"):
        return Picture("criteo_bids", ())
    edges, total = bins["edges"], sum(bins["counts"]) or 1
    quantiles = {key: known(x) for key, x in (found.get("quantiles") or {}).items()}
    marks = {key: x for key in ("0.01", "0.5", "0.99") if (x := quantiles.get(key)) is not None}

    def paint(axes: Axes) -> None:
        heights = [100 * count / total for count in bins["counts"]]
        axes.stairs(heights, edges, fill=True, color=COLOURS[2], alpha=0.85, linewidth=0)
        top = 1.18 * (max(heights) or 1)
        axes.set_xscale("log")
        axes.set_ylim(0, top)
        for key, x in marks.items():
            axes.plot([x, x], [0, 0.9 * top], color=INK, linewidth=0.9, linestyle="--")
            axes.text(x, 0.97 * top, MARKS[key], ha="center", va="center", size=8, color=SOFT)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(FixedLocator(_steps(edges[0], edges[-1])))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.yaxis.set_major_locator(ticks(4))
        axes.set_xlabel("bid (log scale)")
        axes.set_ylabel("% of the ads")

    said = ", ".join(f"{MARKS[key]} {x:.3g}" for key, x in marks.items())
    about = f"Histogram of bids on a logarithmic scale, from {edges[0]:.3g} to {edges[-1]:.3g}"
    return Picture("criteo_bids", (Panel("Bids of all ads", f"{about}; {said}." if said else f"{about}.", 2.6, paint),))


MARKS = {"0.01": "1 %", "0.5": "median", "0.99": "99 %"}


def _steps(low: float, high: float) -> list[float]:
    """Round numbers between two bids, at most about eight of them.

    >>> _steps(0.8, 3.4), _steps(0.011, 90.0)
    ([1.0, 1.5, 2.0, 3.0], [0.1, 1.0, 10.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
        rounds = [float(f"{step}e{power}") for power in powers for step in steps]
        found = [x for x in rounds if low <= x <= high]
        if len(found) <= 8:
            break
    return found
