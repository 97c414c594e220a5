"""Figures of the Criteo experiment: welfare against log loss, the weight of the log loss, learning curves, bids."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bidwise.evaluation.estimate import signed
from bidwise.report.criteo_sentences import MODELS
from bidwise.report.curves import LABELS, label_ends, named_lines
from bidwise.report.drawing import COLOURS, INK, NARROW, SOFT, Panel, Picture, Whisker, ticks, whiskers
from bidwise.report.formatting import counted, number
from bidwise.report.loss_styles import PROTOCOLS, family_of, in_order, look_of
from bidwise.report.sections import OUTCOMES, Run
from bidwise.study.criteo_results import CriteoResult, Curve, ModelResult, Protocol
from bidwise.study.recipe import BASELINE

MEASURES = {  # key -> title, of what is drawn by lam and over epochs
    "expected_welfare": "Expected welfare",
    "welfare": "Realised welfare",
    "auc": "AUC",
    "log_loss": "Log loss, lower is better",
}
MARKS = {"0.01": "1 %", "0.5": "median", "0.99": "99 %"}


def criteo_pictures(run: Run) -> list[Picture]:
    """Every picture of a run, for files; those that have nothing to show have no panels."""
    result: CriteoResult = run.result
    return [welfare(result), lam_grid(result), curves(result), bids(result)]


def welfare(result: CriteoResult) -> Picture:
    """Differences to log loss with both intervals: a panel for each model and protocol, a row for each loss."""
    panels = [_differences(f"{MODELS[model]}. {PROTOCOLS[name]}", found) for model, name, found in result.protocols]
    return Picture("criteo_welfare", tuple(panels), across=len(result.config.protocols))


def _differences(title: str, protocol: Protocol) -> Panel:
    rows, said = [], []
    for name in in_order(protocol.losses):
        family = family_of(name)
        if name == BASELINE:
            row = Whisker(name, "reference", 0.0, clear=True, colour=family.colour, marker=family.marker)
        else:
            gain = 100 * protocol.gain(name)
            words = f"{signed(gain.difference)} % {OUTCOMES[gain.outcome][0]}"
            row = Whisker.of(name, words, gain.repeats, gain.outcome, family.colour, family.marker)
            row = replace(row, fades=False, below=gain.auctions)
        rows.append(row)
        said.append(f"{name}: {row.words}")
    about = f"{title}: test welfare of each loss against log loss. {'; '.join(said)}."
    return whiskers(title, rows, "difference to log loss, % of its welfare", about)


def lam_grid(result: CriteoResult) -> Picture:
    """Test welfare, AUC and log loss by lam: a row of panels for each model, a line for each loss."""
    main = "expected_welfare" if result.data.known_ctr else "welfare"
    models = [(MODELS[name], model) for name, model in result.models.items() if model.grid]
    panels = [_by_lam(name, measure, model) for name, model in models for measure in (main, "auc", "log_loss")]
    return Picture("criteo_lambda", tuple(panels))


def _by_lam(name: str, measure: str, model: ModelResult) -> Panel:
    title = f"{name}. {MEASURES[measure]}"
    assert model.grid_log_loss is not None
    level: float = getattr(model.grid_log_loss, measure)
    lines = {
        loss: [
            (at.lam, y, error if math.isfinite(error) else 0.0)
            for at in model.grid[loss]
            for y, error in [(getattr(at, measure), getattr(at, f"{measure}_error"))]
            if math.isfinite(y)
        ]
        for loss in in_order(model.grid)
    }
    lams = sorted({at.lam for rows in model.grid.values() for at in rows})
    bottom, top = _frame(lines.values(), level)

    def paint(axes: Axes) -> None:
        first, last = lams[0], max(lams[-1], lams[0] * 1.5)
        axes.set_xscale("log")
        axes.set_xlim(first * 0.93, first * (last / first) ** (1 / LABELS))
        axes.set_ylim(bottom, top)
        heights = {}
        if math.isfinite(level):
            axes.plot([first, last], [level, level], color=look_of(BASELINE).colour, linewidth=2.2)
            heights[BASELINE] = level
        for loss, line in lines.items():
            if line:
                look, (xs, ys, errors) = look_of(loss), zip(*line, strict=True)
                axes.plot(xs, ys, color=look.colour, linestyle=look.dash, marker=look.marker)
                axes.errorbar(xs, ys, errors, color=look.colour, linewidth=0, elinewidth=0.9)
                heights[loss] = ys[-1]
        label_ends(axes, heights, {loss: look_of(loss) for loss in heights})
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(FixedLocator(lams))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.spines["bottom"].set_bounds(first, last)
        _level_ticks(axes)
        axes.set_xlabel("λ, the weight of the log loss (log scale)", x=LABELS / 2)

    said = [f"{loss}: " + ", ".join(f"{y:.4f} at {x:g}" for x, y, _ in line) for loss, line in lines.items()]
    said += [f"the model trained with log loss: {level:.4f}"] if math.isfinite(level) else []
    return Panel(title, f"{title} on test auctions by λ. {'; '.join(said)}.", 2.9, paint, NARROW)


def _frame(lines: Iterable[Sequence[tuple[float, float, float]]], level: float) -> tuple[float, float]:
    """Lowest and highest of a panel: all points with their errors, but for the smallest lam where it dwarfs the rest.

    >>> [round(x, 2) for x in _frame([[(0.1, 9.0, 0.0), (1.0, 0.5, 0.0), (3.0, 0.4, 0.0)]], 0.4)]
    [0.39, 0.58]
    """
    points = [point for line in lines for point in line]
    least = min((lam for lam, _, _ in points), default=0.0)
    base = [level] if math.isfinite(level) else []
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


def curves(result: CriteoResult) -> Picture:
    """Validation welfare and log loss over the epochs: a row of panels for each model."""
    measures = ("welfare", *(["expected_welfare"] if result.data.known_ctr else []), "log_loss")
    models = [(MODELS[name], model.curves) for name, model in result.models.items() if model.curves]
    return Picture(
        "criteo_curves", tuple(_curve(name, measure, found) for name, found in models for measure in measures)
    )


def _curve(name: str, measure: str, found: Mapping[str, Curve]) -> Panel:
    title = f"{name}. {MEASURES[measure]}"
    lines: dict[str, tuple[Sequence[float], Sequence[float]]] = {
        loss: (found[loss].epoch, getattr(found[loss], measure)) for loss in in_order(found)
    }
    said = []
    for loss, (xs, ys) in lines.items():
        points = [(y, x) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
        if points:
            best, when = min(points) if measure == "log_loss" else max(points)
            said.append(f"{loss}: best {best:.4f} after {counted(when, 'epoch')}, {points[-1][0]:.4f} at last")

    def paint(axes: Axes) -> None:
        named_lines(axes, lines, {loss: look_of(loss) for loss in lines})
        _level_ticks(axes)

    return Panel(title, f"{title} on validation auctions over the epochs. {'; '.join(said)}.", 3.4, paint, width=4.4)


def _level_ticks(axes: Axes) -> None:
    """Ticks on the left, all with as many decimals as their steps need."""
    locator = ticks(5)
    steps = locator.tick_values(*axes.get_ylim())
    places = max(0, -math.floor(math.log10(steps[1] - steps[0]) + 1e-9))
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: number(y, places)))


def bids(result: CriteoResult) -> Picture:
    """How bids are distributed, on a logarithmic axis, with the middle and the ends marked."""
    drawn = result.data.bids
    if drawn is None:
        return Picture("criteo_bids", ())
    edges, counts = drawn.histogram.edges, drawn.histogram.counts
    marks = {words: x for key, words in MARKS.items() if math.isfinite(x := drawn.quantiles.get(key, math.nan))}

    def paint(axes: Axes) -> None:
        heights = [100 * count / (sum(counts) or 1) for count in counts]
        axes.stairs(heights, edges, fill=True, color=COLOURS[2], alpha=0.85, linewidth=0)
        top = 1.18 * (max(heights) or 1)
        axes.set_xscale("log")
        axes.set_ylim(0, top)
        for words, x in marks.items():
            axes.plot([x, x], [0, 0.9 * top], color=INK, linewidth=0.9, linestyle="--")
            axes.text(x, 0.97 * top, words, ha="center", va="center", size=8, color=SOFT)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(FixedLocator(_steps(edges[0], edges[-1])))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.yaxis.set_major_locator(ticks(4))
        axes.set_xlabel("bid (log scale)")
        axes.set_ylabel("% of the ads")

    said = [f"from {edges[0]:.3g} to {edges[-1]:.3g}", *(f"{words} {x:.3g}" for words, x in marks.items())]
    about = f"Histogram of bids on a logarithmic scale, {', '.join(said)}."
    return Picture("criteo_bids", (Panel("Bids of all ads", about, 2.6, paint),))


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
