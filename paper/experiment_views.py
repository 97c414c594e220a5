"""What a page shows of an experiment of the paper, all of one shape: comparisons, numbers, figures and facts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bidwise.evaluation.estimate import NONE, Estimate
from bidwise.report.drawing import COLOURS, Panel
from bidwise.report.formatting import counted, number, per_cent
from bidwise.report.sections import OUTCOMES, Cell, Table, TableRow, as_cell, setting
from bidwise.study.recipe import BASELINE
from paper.experiment_figures import errors, histogram, level, market_map, surrogates
from paper.loss_styles import in_order
from paper.pictures import Picture
from paper.recipes_results import RECIPES, RecipesResult
from paper.synthetic import PAPER
from paper.synthetic_results import LossResult, MapResult, ReadingsResult, RegimesResult, SyntheticResult

PROTOCOLS = {
    "converged": "Converged (trained to the end)",
    "converged_sums": "Converged (literal sums)",
    "tuned": "Tuned (on validation auctions)",
}
Column = tuple[str, str, Callable[[Any], Cell | str]]  # heading, meaning, and the cell for the subject of a row
OPTIMUM, OF_BASELINE = "of the optimal welfare", "of the baseline’s welfare"
SAID = (
    "The paper’s text says that log, log_teacher and hinge_plus_teacher reach more welfare than log loss and than "
    "both of its weighted forms; its Figure 2 has no numbers."
)
AXES = {  # of the maps of markets
    "misspecification": "share of the logit’s variance that the student cannot represent",
    "correlation": "correlation between the weights of bid and CTR",
    "auction size": "ads in an auction",
    "bid spread": "standard deviation of log bids",
    "teacher": "who gives the soft labels",
}
WITH_ERRORS = (
    "Mean welfare, with the standard error of its difference to the average of the six, as the paper defines it."
)
CALIBRATED = "The same after Platt scaling of both models on validation clicks."


@dataclass(frozen=True)
class Comparison:
    """Candidates against one baseline on the same auctions; ``gains`` are shares, the first table is open."""

    title: str
    gains: Mapping[str, Estimate]
    tables: Sequence[Table]
    lams: Mapping[str, Sequence[float]] = field(default_factory=dict)  # selected, of each repeat
    tuned: bool = False


@dataclass(frozen=True)
class Figures:
    """A picture with the heading and the words above it, and tables of the same numbers."""

    title: str
    lead: str
    picture: Picture
    tables: Sequence[Table] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A result as the page of experiments shows it."""

    title: str
    unit: str  # of gains
    repeats: int
    ads: int | None = None  # to test on, where a run can have too few
    facts: Sequence[tuple[str, str]]
    comparisons: Sequence[Comparison] = ()
    worlds: Mapping[str, Sequence[Estimate]] = field(default_factory=dict)  # gains of a candidate in each of many
    over: str = "worlds"  # what these are
    summary: Table | None = None  # over worlds
    forest: str = ""  # name of the picture of all gains
    figures: Sequence[Figures] = ()
    paper: Table | None = None
    how: Sequence[tuple[str, str]] = ()
    losses: Sequence[str] = ()
    lams: Sequence[float] = ()  # the grid
    notes: Sequence[str] = ()


def by_column(
    caption: str, first: str, columns: Sequence[Column], rows: Mapping[str, Any], *, folded: bool = False
) -> Table:
    """A table made from its columns; the meaning of its headings is listed below it."""
    headings = [(heading, meaning) for heading, meaning, _ in columns]
    lines = [TableRow(name, [as_cell(of(row)) for *_, of in columns]) for name, row in rows.items()]
    return Table(caption, first, headings, lines, explained=any(meaning for _, meaning in headings), folded=folded)


def gain_cell(gain: Estimate | None, *, narrow: bool = False) -> Cell:
    """A gain with its sign and interval; the baseline has none. A narrow one leaves the per cent to its caption."""
    if gain is None or not math.isfinite(gain.difference):
        return Cell("reference" if gain is None else NONE)
    size = f"{100 * gain:.2f}" if narrow else f"{gain:%}"
    return Cell(f"{OUTCOMES[gain.outcome][0]} {size}", gain.outcome)


def versus(heading: str, meaning: str, of: Callable[[Any], Estimate | None]) -> Column:
    """A column of gains."""
    return heading, meaning, lambda row: gain_cell(of(row))


def tables_of(title: str, losses: Mapping[str, Any], columns: list[Column], more: list[Column]) -> list[Table]:
    """An open table, and a folded one with all measures that losses have."""
    if any(math.isfinite(loss.epoch or math.nan) for loss in losses.values()):
        more = [*more, ("Epoch", "Selected on validation ads, mean over repeats.", lambda loss: number(loss.epoch, 2))]
    if any(loss.lam for loss in losses.values()):
        more.append(("λ", "Selected: the median, and the range over repeats.", lambda loss: _range(loss.lam or ())))
    folded = by_column(f"{title}: other numbers", "Loss", more, losses, folded=True)
    return [by_column(title, "Loss", columns, losses), folded]


def _range(numbers: Sequence[float]) -> str:
    """``3 (0.3 to 10)``."""
    if len(set(numbers)) < 2:
        return f"{numbers[0]:g}" if numbers else ""
    return f"{sorted(numbers)[len(numbers) // 2]:g} ({min(numbers):g} to {max(numbers):g})"


def protocol_terms(names: Iterable[str], by: str) -> list[tuple[str, str]]:
    """What protocols do."""
    words = {
        "converged": "All epochs, λ = 3, the last weights: nothing is selected.",
        "converged_sums": "The same with sums over pairs and ads, as the paper prints them, in place of means.",
        "tuned": f"Each loss at the epoch and λ that {by} on validation ads selects; its teacher is the tuned log-loss "
        "model. Losses with λ have as many tries as there are λs, the others one.",
    }
    return [(PROTOCOLS[name], words[name]) for name in names]


def synthetic_view(result: SyntheticResult) -> Experiment:
    """The paper's synthetic experiment."""
    config = result.config
    shapes = []
    for reading, world in result.worlds.items():
        shapes.append(histogram(f"CTR, {reading}", world.ctr, "CTR", COLOURS[0]))
        shapes.append(histogram(f"Bids, {reading}", world.log10_bid, "bid", powers=True))
    readings = (
        "The paper’s Figure 4 in two readings of its constants: as printed, where bids span thirty orders of magnitude "
        "and decide most auctions, and plotted, a tenth of the printed weights, which is our choice."
    )
    return Experiment(
        title=f"The paper’s synthetic experiment, {config.reading} world",
        unit=OPTIMUM,
        repeats=config.repeats,
        facts=[
            (f"{config.repeats:,}", "repeats, each with its own market"),
            (f"{config.training_ads:,}", "training ads in each"),
            (f"{config.test_auctions:,}", f"test auctions of {config.auction_size} ads"),
            (number(result.optimal_welfare, 3), "optimal welfare of an auction: the true CTR decides"),
        ],
        comparisons=[_synthetic_comparison(result, name) for name in result.protocols],
        forest="figure2_welfare",
        figures=[
            Figures(
                "The paper’s Figure 2", WITH_ERRORS, Picture("figure2_with_errors", tuple(_figure_2_panels(result)))
            ),
            Figures("The worlds of ads", readings, Picture("figure4_distributions", tuple(shapes), across=2)),
            Figures("The paper’s Figure 1", "What replaces the indicator of a mistake.", surrogates()),
        ],
        how=protocol_terms(result.protocols, "expected welfare"),
        losses=config.losses,
        lams=config.lams,
        notes=[SAID, "Intervals are Student’s t over repeats."],
    )


def _synthetic_comparison(result: SyntheticResult, name: str) -> Comparison:
    losses = {loss: result.protocols[name].losses[loss] for loss in in_order(result.protocols[name].losses)}
    base = losses[BASELINE]
    columns: list[Column] = [
        ("Of the optimum", "Welfare / the most that any prediction could reach.", lambda loss: per_cent(loss.ratio)),
        versus("− log loss", f"In % {OPTIMUM}.", lambda loss: None if loss is base else loss),
        versus("Calibrated", CALIBRATED, lambda loss: None if loss is base else loss.calibrated),
        ("AUC", "", lambda loss: number(loss.auc, 4)),
        ("Log loss", "Lower is better.", lambda loss: number(loss.log_loss, 4)),
    ]
    more: list[Column] = [("Welfare", "Bid × true CTR of the ad shown.", lambda loss: number(loss.welfare, 4))]
    if base.by_clicks:
        meaning = "If clicks, all that a platform has, select epoch and λ; the teacher was selected by true CTR."
        more.append(versus("Selected by clicks", meaning, lambda loss: None if loss is base else loss.by_clicks))
    if math.isfinite(base.error_to_average):
        meaning = "Welfare − that of the paper’s six losses, ± standard error, as the paper draws it."
        more.append(("To average", meaning, lambda x: plus_minus(x.difference_to_average, x.error_to_average)))
    gains = {loss: found for loss, found in losses.items() if found is not base}
    lams = {loss: found.lam for loss, found in losses.items() if found.lam}
    return Comparison(PROTOCOLS[name], gains, tables_of(PROTOCOLS[name], losses, columns, more), lams, name == "tuned")


def readings_view(result: ReadingsResult) -> Experiment:
    """The losses against log loss under every reading of what the paper leaves open."""
    config, readings = result.config, result.readings
    losses = in_order(next(iter(readings.values())))
    others = [loss for loss in losses if loss != BASELINE]
    gains = {loss: {name: found[loss] for name, found in readings.items()} for loss in others}

    def table(title: str, names: Sequence[str], cell: Callable[[LossResult], Cell | str], *, first: bool) -> Table:
        rows = [(name, [cell(found[loss]) for loss in names]) for name, found in readings.items()]
        if first:
            rows = [(name, [per_cent(readings[name][BASELINE].ratio), *cells]) for name, cells in rows]
        headings = [(loss, "") for loss in names]
        return Table(title, "Reading", [("log_loss reaches", "")] * first + headings, rows, explained=True)

    return Experiment(
        title="The paper’s synthetic experiment under several readings",
        unit=OPTIMUM,
        repeats=config.repeats,
        facts=[
            (f"{len(readings)}", "readings of what the paper leaves open"),
            (f"{config.repeats}", "markets, the same for all readings but for their bids and CTRs"),
            (f"{config.test_auctions:,}", "test auctions of 50 ads in each"),
        ],
        comparisons=[Comparison(loss, some, []) for loss, some in gains.items()],
        worlds={loss: list(some.values()) for loss, some in gains.items()},
        over="readings",
        summary=table(f"Difference to log loss, in % {OPTIMUM}", others, gain_cell, first=True),
        forest="readings_welfare",
        figures=[
            Figures(
                "More of the readings",
                CALIBRATED + " Log losses: those in the paper’s tables for Criteo are 0.47 to 0.49.",
                Picture("", ()),
                [
                    table("The same, calibrated", others, lambda loss: gain_cell(loss.calibrated), first=False),
                    table("Log loss on test ads", losses, lambda loss: number(loss.log_loss, 4), first=False),
                ],
            )
        ],
        how=[
            ("Every reading", "The world plotted, means, 100 epochs, λ = 3, nothing selected, but for what it names."),
            ("best epoch", "By expected welfare on validation auctions; λ, if selected, of 0.3, 3, 30 and 300."),
        ],
        losses=losses,
        notes=[
            "Intervals are Student’s t over markets. log_weighted has the pair weights alone, "
            "log_teacher_unweighted the teacher alone, log_teacher both."
        ],
    )


def _figure_2_panels(result: SyntheticResult) -> Iterator[Panel]:
    """Welfare of the paper's six losses, its standard error that of the difference to their average."""
    for name, protocol in result.protocols.items():
        six = {loss: x for loss, x in protocol.losses.items() if loss in PAPER}
        if all(math.isfinite(x.error_to_average) for x in six.values()):
            yield errors(PROTOCOLS[name], {loss: (x.welfare, x.error_to_average) for loss, x in six.items()}, "welfare")


def plus_minus(value: float, error: float) -> str:
    """A mean with its standard error, where it has one.

    >>> plus_minus(1.23456, 0.012), plus_minus(1.2, math.nan)
    ('1.2346 ± 0.0120', '1.2000')
    """
    return number(value, 4) + (f" ± {error:.4f}" if math.isfinite(error) else "")


def recipes_view(result: RecipesResult) -> Experiment:
    """What raises welfare over the strongest baseline."""
    config = result.config
    names = list(next(iter(result.worlds.values())).recipes)
    each = {name: [world.recipes[name].gain for world in result.worlds.values()] for name in names}
    gains = {name: [gain for gain in some if gain is not None] for name, some in each.items() if None not in some}
    headings = [(world, "") for world in result.worlds]
    rows = [(name, [gain_cell(gain, narrow=True) for gain in some]) for name, some in gains.items()]
    return Experiment(
        title="What raises welfare over the strongest baseline",
        unit=OF_BASELINE,
        repeats=config.repeats,
        facts=[
            (f"{len(result.worlds)}", "worlds"),
            (f"{config.repeats}", "draws of each"),
            (f"{config.rows:,}", "ads in a draw"),
        ],
        comparisons=[_recipes_comparison(result, world) for world in result.worlds],
        worlds={f"{name} ({_cost(name)})": some for name, some in gains.items()},
        summary=Table(f"Gains by world, in % {OF_BASELINE}", "Recipe", headings, rows),
        forest="recipes_welfare",
        how=[(name, f"{RECIPES[name].about}; {_cost(name)}") for name in names],
        notes=[
            "Each draw is a new world of its kind; intervals are Student’s t over draws. All models are calibrated."
        ],
    )


def _recipes_comparison(result: RecipesResult, world: str) -> Comparison:
    numbers, title = result.worlds[world], f"World {world}"
    recipes = numbers.recipes
    columns: list[Column] = [
        ("Of the optimum", "Welfare / that of the true CTR.", lambda name: per_cent(numbers.share(name))),
        versus("− baseline", f"In % {OF_BASELINE}.", lambda name: recipes[name].gain),
        ("AUC", "", lambda name: number(float(np.mean(recipes[name].auc)), 4)),
        ("Log loss", "Lower is better.", lambda name: number(float(np.mean(recipes[name].log_loss)), 5)),
    ]
    chosen = [(name, [_settings(settings)]) for name, settings in numbers.tuned.chosen.items()]
    caption = f"{title}: settings, chosen on a draw of their own"
    tables = [
        by_column(title, "Recipe", columns, {name: name for name in recipes}),
        Table(caption, "Recipe", [("Settings", "")], chosen, folded=True, wordy=True),
    ]
    return Comparison(title, {name: x.gain for name, x in recipes.items() if x.gain is not None}, tables)


def _cost(name: str) -> str:
    cost = RECIPES[name]
    return f"{counted(cost.trainings, 'training')}, {counted(cost.serves, 'model')} served"


def _settings(settings: Mapping[str, Any]) -> str:
    flat = {**{key: x for key, x in settings.items() if key != "options"}, **settings.get("options", {})}
    return ", ".join(f"{'L2 × ads' if key == 'l2' else key} {setting(value)}" for key, value in flat.items())


def regimes_view(result: RegimesResult) -> Experiment:
    """Where which loss is better."""
    config, losses, rows = result.config, in_order(result.summary), []
    for loss in losses:
        counts, after = result.summary[loss], result.after_holm(loss)
        shown = (counts.better, counts.worse, counts.unclear, after.better, after.worse, counts.cells)
        rows.append((loss, [f"{count:,}" for count in shown]))
    headings = [("▲ Better", "Kinds of market in which the interval is above 0."), ("▼ Worse", "In which it is below.")]
    headings += [
        ("≈ Unclear", "In which it contains 0."),
        ("▲ Holm", "Better after Holm’s correction for their number."),
    ]
    headings += [("▼ Holm", "Worse after it."), ("Of", "")]
    figures = []
    for plot in result.maps:
        across, upwards = (AXES.get(axis.name, axis.name) for axis in (plot.x, plot.y))
        lead = f"Across: {across}. Upwards: {upwards}. Difference to log loss in % {OPTIMUM}, and its 95 % interval."
        tables = [_cells(plot, way) for way in ("", "calibrated", "by_clicks")]
        figures.append(Figures(f"By {plot.x.name} and {plot.y.name}", lead, market_map(plot, across, upwards), tables))
    return Experiment(
        title="Where which loss is better",
        unit=OPTIMUM,
        repeats=config.repeats,
        facts=[
            (f"{len(losses)}", "losses against a tuned log loss"),
            (f"{max(counts.cells for counts in result.summary.values())}", "kinds of market, or fewer, for each"),
            (f"{config.repeats:,}", "repeats in each"),
        ],
        worlds={loss: result.cells(loss) for loss in losses},
        summary=Table("Kinds of market by outcome", "Loss", headings, rows, explained=True),
        figures=figures,
        losses=losses,
        lams=config.lams,
        notes=["Epoch and λ are selected in each cell. Cells share random numbers, so their errors go together."],
    )


def _cells(plot: MapResult, way: str) -> Table:
    words = {"": "", "calibrated": ", both models calibrated", "by_clicks": ", epoch and λ selected by clicks"}[way]
    rows = []
    for loss in in_order(plot.losses):
        for height, row in zip(plot.y.levels, plot.losses[loss], strict=True):
            cells = [gain_cell(getattr(cell, way) if way else cell, narrow=True) for cell in row]
            rows.append((f"{loss}, {plot.y.name} {level(height)}", cells))
    headings = [(f"{plot.x.name} {level(each)}", "") for each in plot.x.levels]
    return Table(f"By {plot.x.name} and {plot.y.name}, in %{words}", "Loss", headings, rows, folded=True)
