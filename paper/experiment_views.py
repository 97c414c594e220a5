"""What a page shows of an experiment of the paper, all of one shape: comparisons, numbers, figures and facts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bidwise.evaluation.estimate import NONE, Estimate
from bidwise.report.drawing import COLOURS, Panel
from bidwise.report.formatting import number, per_cent
from bidwise.report.sections import OUTCOMES, Cell, Table, TableRow, as_cell
from bidwise.study.recipe import BASELINE
from paper.experiment_figures import Picture, errors, histogram, in_order, level, market_map, plus_minus, surrogates
from paper.recipes import RECIPES, RecipesResult
from paper.synthetic import PAPER
from paper.synthetic_results import CellGain, LossResult, MapResult, ReadingsResult, RegimesResult, SyntheticResult

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
WITH_ERRORS = "Mean welfare ± standard error of its difference to the average of the six, as the paper defines it."
AXES = {  # of the maps of markets
    "misspecification": "share of the logit’s variance that the student cannot represent",
    "correlation": "correlation between the weights of bid and CTR",
    "auction size": "ads in an auction",
    "bid spread": "standard deviation of log bids",
    "teacher": "who gives the soft labels",
}
CALIBRATED = "The same after Platt scaling of both models on validation clicks."


@dataclass(frozen=True)
class Comparison:
    """Candidates against one baseline on the same auctions; ``gains`` are shares."""

    title: str
    gains: Mapping[str, Estimate]
    tables: Sequence[Table] = ()
    tuned: bool = False


@dataclass(frozen=True)
class Figures:
    """A picture with the heading and the words above it, and tables of the same numbers."""

    title: str
    lead: str
    picture: Picture = Picture("", ())  # noqa: RUF009 (frozen)
    tables: Sequence[Table] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A result as the page of experiments shows it."""

    title: str
    unit: str  # of gains
    repeats: int
    ads: int | None = None  # to test on, where a run can have too few
    facts: Sequence[tuple[str, str]] = ()
    comparisons: Sequence[Comparison] = ()
    worlds: Mapping[str, Sequence[Estimate]] = field(default_factory=dict)  # gains of a candidate in each of many
    over: str = "worlds"  # what these are
    summary: Table | None = None  # over worlds
    forest: str = ""  # name of the picture of all gains
    figures: Sequence[Figures] = ()
    paper: Table | None = None
    how: Sequence[tuple[str, str]] = ()
    losses: Sequence[str] = ()
    notes: Sequence[str] = ()


def by_column(caption: str, first: str, columns: Sequence[Column], rows: Mapping[str, Any]) -> Table:
    """A table made from its columns; the meaning of its headings is listed below it."""
    headings = [(heading, meaning) for heading, meaning, _ in columns]
    lines = [TableRow(name, [as_cell(of(row)) for *_, of in columns]) for name, row in rows.items()]
    return Table(caption, first, headings, lines, explained=any(meaning for _, meaning in headings))


def gain_cell(gain: Estimate | None, *, narrow: bool = False) -> Cell:
    """A gain with its sign and interval; the baseline has none. A narrow one leaves the per cent to its caption."""
    if gain is None:
        return Cell("reference")
    if not math.isfinite(gain.difference):
        return Cell(NONE)
    size = f"{100 * gain:.2f}" if narrow else f"{gain:%}"
    return Cell(f"{OUTCOMES[gain.outcome][0]} {size}", gain.outcome)


def versus(heading: str, meaning: str, of: Callable[[Any], Estimate | None], unit: float = 1.0) -> Column:
    """A column of gains as shares of ``unit``."""
    return heading, meaning, lambda row: gain_cell(None if (gain := of(row)) is None else gain / unit)


def _lams(loss: Any) -> str:
    """``3 (0.3 to 10)``."""
    if not loss.lam:
        return ""
    middle = f"{sorted(loss.lam)[len(loss.lam) // 2]:g}"
    return middle if len(set(loss.lam)) == 1 else f"{middle} ({min(loss.lam):g} to {max(loss.lam):g})"


CHOSEN: list[Column] = [  # of tuned losses
    ("Epoch", "Selected on validation ads, mean over repeats.", lambda loss: number(loss.epoch, 2)),
    ("λ", "Selected: the median, and the range over repeats.", _lams),
]


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
    config, shapes = result.config, list[Panel]()
    for reading, world in result.worlds.items():
        shapes.append(histogram(f"CTR, {reading}", world.ctr, "CTR", COLOURS[0]))
        shapes.append(histogram(f"Bids, {reading}", world.log10_bid, "bid", powers=True))
    figure_2 = []
    for name, protocol in result.protocols.items():
        six = {loss: protocol.losses[loss] for loss in PAPER if loss in protocol.losses}
        if math.isfinite(six[BASELINE].error_to_average):
            means = {loss: (found.welfare, found.error_to_average) for loss, found in six.items()}
            figure_2.append(errors(PROTOCOLS[name], means))
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
            Figures("The paper’s Figure 2", WITH_ERRORS, Picture("figure2_with_errors", tuple(figure_2))),
            Figures("The worlds of ads", readings, Picture("figure4_distributions", tuple(shapes), across=2)),
            Figures("The paper’s Figure 1", "What replaces the indicator of a mistake.", surrogates()),
        ],
        how=protocol_terms(result.protocols, "expected welfare"),
        losses=config.losses,
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
        ("Welfare", "Bid × true CTR of the ad shown.", lambda loss: number(loss.welfare, 4)),
    ]
    if math.isfinite(base.error_to_average):
        meaning = "Welfare − mean of the paper’s six losses, ± standard error, as the paper defines it."
        columns.append(("To average", meaning, lambda x: plus_minus(x.difference_to_average, x.error_to_average)))
    columns += CHOSEN if name == "tuned" else []
    gains = {loss: found for loss, found in losses.items() if loss != BASELINE}
    return Comparison(PROTOCOLS[name], gains, [by_column(PROTOCOLS[name], "Loss", columns, losses)], name == "tuned")


def readings_view(result: ReadingsResult) -> Experiment:
    """The losses against log loss under every reading of what the paper leaves open."""
    config, readings = result.config, result.readings
    losses = in_order(next(iter(readings.values())))
    others = [loss for loss in losses if loss != BASELINE]
    gains = {loss: {name: found[loss] for name, found in readings.items()} for loss in others}

    def column(loss: str, cell: Callable[[LossResult], Cell | str]) -> Column:
        return loss, "", lambda found: cell(found[loss])

    reached = column(BASELINE, lambda loss: per_cent(loss.ratio))
    calibrated = [column(loss, lambda x: gain_cell(x.calibrated)) for loss in others]
    log_losses = [column(loss, lambda x: number(x.log_loss, 4)) for loss in losses]
    caption = f"What log loss reaches, in % {OPTIMUM}, and the others’ difference to it"
    return Experiment(
        title="The paper’s synthetic experiment under several readings",
        unit=OPTIMUM,
        repeats=config.repeats,
        comparisons=[Comparison(loss, some) for loss, some in gains.items()],
        worlds={loss: list(some.values()) for loss, some in gains.items()},
        over="readings",
        summary=by_column(caption, "Reading", [reached, *(column(loss, gain_cell) for loss in others)], readings),
        forest="readings_welfare",
        figures=[
            Figures(
                "More of the readings",
                CALIBRATED + " Log losses: those in the paper’s tables for Criteo are 0.47 to 0.49.",
                tables=[
                    by_column("The same, calibrated", "Reading", calibrated, readings),
                    by_column("Log loss on test ads", "Reading", log_losses, readings),
                ],
            )
        ],
        how=[
            ("Every reading", "The world plotted, means, 100 epochs, λ = 3, nothing selected, but for what it names."),
            ("best epoch", "By expected welfare on validation auctions; λ, if selected, of 0.3, 3, 30 and 300."),
        ],
        losses=losses,
        notes=[
            f"Intervals are Student’s t over {config.repeats} markets, the same ones but for bids and CTRs.",
            "log_weighted has the pair weights alone, log_teacher_unweighted the teacher alone, log_teacher both.",
        ],
    )


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
        comparisons=[
            Comparison(f"World {name}", {x: found.gain for x, found in world.recipes.items() if found.gain is not None})
            for name, world in result.worlds.items()
        ],
        worlds=gains,
        summary=Table(f"Gains by world, in % {OF_BASELINE}", "Recipe", headings, rows),
        forest="recipes_welfare",
        how=[(name, RECIPES[name]) for name in names],
        notes=[
            f"Each of {config.repeats} draws is a new world of its kind with {config.rows:,} ads.",
            "Intervals are Student’s t over draws. All models are calibrated.",
        ],
    )


def regimes_view(result: RegimesResult) -> Experiment:
    """Where which loss is better."""
    config, losses = result.config, in_order(result.summary)
    counts = {loss: (result.summary[loss], result.after_holm(loss)) for loss in losses}
    columns: list[Column] = [
        ("▲ Better", "Kinds of market in which the interval is above 0.", lambda row: f"{row[0].better}"),
        ("▼ Worse", "In which it is below.", lambda row: f"{row[0].worse}"),
        ("≈ Unclear", "In which it contains 0.", lambda row: f"{row[0].unclear}"),
        ("▲ Holm", "Better after Holm’s correction for their number.", lambda row: f"{row[1].better}"),
        ("▼ Holm", "Worse after it.", lambda row: f"{row[1].worse}"),
        ("Of", "", lambda row: f"{row[0].cells}"),
    ]
    figures = []
    for plot in result.maps:
        across, upwards = (AXES.get(axis.name, axis.name) for axis in (plot.x, plot.y))
        lead = f"Across: {across}. Upwards: {upwards}. Difference to log loss in % {OPTIMUM}, and its 95 % interval."
        tables = [
            _cells(plot, "in %", lambda cell: cell),
            _cells(plot, "in %, both models calibrated", lambda cell: cell.calibrated),
        ]
        figures.append(Figures(f"By {plot.x.name} and {plot.y.name}", lead, market_map(plot, across, upwards), tables))
    return Experiment(
        title="Where which loss is better",
        unit=OPTIMUM,
        repeats=config.repeats,
        worlds={loss: result.cells(loss) for loss in losses},
        summary=by_column("Kinds of market by outcome", "Loss", columns, counts),
        figures=figures,
        losses=losses,
        notes=[
            f"Every cell has {config.repeats} markets, its own epoch and its own λ.",
            "Cells share random numbers, so their errors go together.",
        ],
    )


def _cells(plot: MapResult, unit: str, gain: Callable[[CellGain], Estimate]) -> Table:
    rows = []
    for loss in in_order(plot.losses):
        for height, row in zip(plot.y.levels, plot.losses[loss], strict=True):
            rows.append((f"{loss}, {plot.y.name} {level(height)}", [gain_cell(gain(x), narrow=True) for x in row]))
    headings = [(f"{plot.x.name} {level(each)}", "") for each in plot.x.levels]
    return Table(f"By {plot.x.name} and {plot.y.name}, {unit}", "Loss", headings, rows, folded=True)
