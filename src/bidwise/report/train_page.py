"""The page of a training run: the choice, learning curves, the test, what the columns were taken for."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from bidwise.report.curves import named_lines
from bidwise.report.drawing import Panel, Picture, Whisker, whiskers
from bidwise.report.evaluation_page import differences_section, models_section, notes_section
from bidwise.report.evaluation_sentences import headline
from bidwise.report.fit_page import BestEpoch, fit_curves
from bidwise.report.formatting import change, signed
from bidwise.report.loss_styles import look_of, loss_called
from bidwise.report.sections import Cell, Run, RunPage, Section, Table, drawings
from bidwise.report.train_sentences import (
    calibration_words,
    choice_lead,
    choice_table,
    columns_table,
    notes,
    search_lead,
    search_table,
    setting_words,
    splits_table,
    verdict,
)
from bidwise.study.compare import Choice
from bidwise.table.results import FitResult, TrainResult


def train_page(run: Run, key: str) -> RunPage:
    """Which recipe was kept and why, how training went, what the test rows say, and what the columns were taken for."""
    result: TrainResult = run.result
    facts, evaluation = result.table, result.evaluation
    (outcome, leading), *sentences = verdict(result)
    lead = "Oldest to newest; auctions are never cut." if facts.timed else "At random; auctions are never cut."
    rare = (
        f"Values seen less than {facts.min_count} times in training count as rare; numbers are cut into bins of "
        "equally many training ads."
    )
    return RunPage(
        run.name,
        "A model trained on a table",
        leading,
        sentences,
        [
            (f"{facts.splits['train'].ads:,}", "training ads"),
            (f"{evaluation.ads:,}", "test ads"),
            ("all", "test auctions that could be drawn")
            if evaluation.auctions is None
            else (f"{evaluation.auctions:,}", "test auctions"),
            (f"{len(result.fields)}", "columns that the model sees"),
            (f"{result.parameters:,}", "parameters"),
        ],
        [
            *([] if result.choice is None else [_choice(key, result.choice)]),
            *([] if result.search is None else [_search(result)]),
            _curves(key, result),
            _test(key, result),
            Section("Columns", rare, tables=[columns_table(facts, result.fields)]),
            Section("Splits", lead, tables=[splits_table(facts)]),
            Section("The recipes", terms=[(loss, loss_called(loss).about) for loss in result.fits]),
            Section("Notes", points=list(notes(facts, result.settings))),
        ],
        outcome,
    )


def _choice(key: str, choice: Choice) -> Section:
    baseline, *others = choice.candidates
    base = baseline.welfare
    unit = f"% of {choice.baseline}" if base > 0 else "per auction"
    lines = []
    for each in others:
        look = look_of(each.name)
        scaled = 100 * each / base if base > 0 else each
        lines.append(
            Whisker.of(each.name, change(each, base).replace(" %", ""), scaled, each.outcome, look.colour, look.marker)
        )
    said = "; ".join(f"{line.name}: {line.words}" for line in lines)
    about = f"Difference of validation welfare to {choice.baseline} with corrected intervals, {unit}. {said}"
    panel = whiskers("Validation welfare", lines, f"difference of welfare, {unit}", about)
    figures = drawings(key, Picture("choice", (panel,)))
    return Section("Which recipe?", choice_lead(choice), figures=figures, tables=[choice_table(choice)])


def _search(result: TrainResult) -> Section:
    assert result.search is not None
    lead = search_lead(result.search, result.table.splits["train"].ads)
    return Section("The baseline", lead, tables=[search_table(result.search)])


def _curves(key: str, result: TrainResult) -> Section:
    metric, fits = result.settings.train.metric, result.fits
    words, chosen = metric.replace("_", " "), fits[result.chosen]
    history = [{"epoch": each.epoch, "loss": each.loss, metric: each.value} for each in chosen.history]
    panels = fit_curves(history, {metric: BestEpoch(chosen.best.epoch, chosen.best.value)}).panels
    if len(fits) > 1:
        panels = (_together(words, fits), *panels)
    rows = []
    for name, fit in fits.items():
        epochs = (f"{fit.best.epoch:g}", f"{fit.history[-1].epoch:g}")
        numbers = (*epochs, f"{fit.best.value:.5g}", f"{fit.recipe.members}", calibration_words(fit))
        rows.append((name, [*map(Cell, numbers), Cell(setting_words(fit.recipe), word=True)]))
    headings = [
        ("Best epoch", ""),
        ("Epochs trained", ""),
        (f"Validation {words}", "Of the first model at its best epoch, before calibration."),
    ]
    headings += [("Models", "Of several the first is shown."), ("Calibration", "On validation."), ("Settings", "")]
    in_bids = "; bids are in units of their mean" if metric == "welfare" else ""
    return Section(
        "Over the epochs",
        f"The epoch is chosen by {words} on validation auctions{in_bids}. Loss and rings: {result.chosen}.",
        figures=drawings(key, Picture("epochs", panels)),
        tables=[Table("Trainings", "Recipe", headings, rows)],
    )


def _together(words: str, fits: Mapping[str, FitResult]) -> Panel:
    """The metric of all models over their epochs."""
    lines = {loss: ([e.epoch for e in fit.history], [e.value for e in fit.history]) for loss, fit in fits.items()}
    ends = "; ".join(f"{loss}: {fit.history[-1].value:.5g} at last" for loss, fit in fits.items())

    def paint(axes: Axes) -> None:
        named_lines(axes, lines, {name: look_of(name) for name in lines})
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: signed(y, ".5g").removeprefix("+")))
        axes.set_ylabel(f"validation {words}")

    return Panel(f"Validation {words}, all recipes", f"Validation {words} over epochs. {ends}.", 3.2, paint)


def _test(key: str, result: TrainResult) -> Section:
    """The evaluation in short; its own page has more."""
    found = result.evaluation
    parts = [models_section(found), differences_section(found, f"{key}test-"), notes_section(found)]
    return Section(
        "On test ads",
        f"{headline(found)} More, with calibration curves, on evaluation/report.html in the run folder.".strip(),
        figures=[figure for part in parts for figure in part.figures],
        tables=[table for part in parts for table in part.tables],
        points=[point for part in parts for point in part.points],
    )
