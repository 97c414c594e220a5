"""A training run in words, tables and a page: the types of columns, the choice and its reason, the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from bidwise import distributed
from bidwise.evaluation.estimate import signed
from bidwise.report.drawing import Panel, looks, shortened, ticks
from bidwise.report.evaluation_page import facts as test_facts
from bidwise.report.evaluation_page import welfare_drawing
from bidwise.report.evaluation_sentences import models_table
from bidwise.report.formatting import NONE, change, counted, decimals, number
from bidwise.report.sections import Cell, Run, RunPage, Section, Table, TableRow, drawing, outcome_cell
from bidwise.report.train_sentences import (
    ABOUT,
    MODELS_SHOWN,
    NO_WORDS,
    SOLVED_SHOWN,
    as_shown,
    calibration_words,
    setting_words,
    size_of,
    table_doubts,
    table_notes,
    train_verdict,
    untrained,
)
from bidwise.study.compare import Choice
from bidwise.study.recipe import BASELINE
from bidwise.study.search import Attempt, Search, budget
from bidwise.table.plan import candidates, recipes
from bidwise.table.prepare import Prepared
from bidwise.table.results import TableFacts, TrainResult

_SPLITS = {"train": "training", "valid": "validation", "test": "test"}
_COLUMNS = 10  # of a table
TEST = "The test in detail, with calibration curves, is in evaluation/report.html in the run folder."
_Rows = list[tuple[str, Sequence[Cell | str]]]


def train_page(run: Run, key: str) -> RunPage:
    """Which recipe was kept and why, the course of training, the test, and the types of columns."""
    result = as_shown(run.result)
    facts, evaluation = result.table, result.evaluation
    about = [ABOUT.get(name, NO_WORDS) for name in run.result.fits]
    (outcome, first), *lines = train_verdict(result)
    lead = "Oldest to newest; auctions are never cut." if facts.timed else "At random; auctions are never cut."
    rare = f"Values seen fewer than {facts.min_count} times in training count as rare; numbers are cut into bins."
    counts = [
        (f"{facts.splits['train'].ads:,}", "training ads"),
        *test_facts(evaluation),
        (f"{len(result.fields.keys() & {column.name for column in facts.columns})}", "columns"),
        (f"{result.parameters:,}", "parameters"),
    ]
    choices, searches = filter(None, [result.choice]), filter(None, [result.search])
    return RunPage(
        run.name,
        "A model trained on a table",
        first,
        lines,
        counts,
        [
            _importance(result),
            *[Section("Which recipe?", _choice_lead(each), tables=[_choice_table(each)]) for each in choices],
            *[Section("The baseline", _search_lead(each), tables=[_search_table(each)]) for each in searches],
            _curves(key, result),
            Section("Columns", rare, tables=[_columns_table(facts, result.fields)]),
            Section("Splits", lead, tables=[_splits_table(facts)]),
            Section("The recipes", terms=list(zip(result.fits, about, strict=True))),
            Section("Notes", points=[*table_notes(facts, result.settings), *untrained(result), TEST]),
        ],
        outcome,
        [welfare_drawing(evaluation, key, result.chosen)],
        [models_table(evaluation)],
    )


def _importance(result: TrainResult) -> Section:
    """The columns that matter most."""
    lead = (
        "How much the log loss of the model rises when the values of one column are shuffled among the test ads. "
        "Of two columns that say the same, each may seem to matter little."
    )
    rows: _Rows = [(name, [f"{rise:+.5f}"]) for name, rise in [*result.importance.items()][:_COLUMNS]]
    return Section("Which columns matter", lead, tables=[Table("Columns", "Column", [("Rise of log loss", "")], rows)])


def _curves(key: str, result: TrainResult) -> Section:
    words, fits = result.settings.train.metric.replace("_", " "), result.fits
    lines = {loss: ([e.epoch for e in fit.history], [e.value for e in fit.history]) for loss, fit in fits.items()}

    def paint(axes: Axes) -> None:
        for loss, look in looks(list(lines)).items():
            (line,) = axes.plot(*lines[loss], look.marker, color=look.colour, linestyle=look.dash)
            line.set_label(shortened(loss, 20))
        axes.legend(frameon=False, fontsize=8)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(ticks(6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: signed(y, ".5g").removeprefix("+")))
        axes.set_ylabel(f"validation {words}")

    ends = "; ".join(f"{loss}: {values[-1]:.5g} at last" for loss, (_, values) in lines.items())
    panel = Panel(f"Validation {words}", f"Validation {words} over epochs: {ends}", 3.2, paint)
    long = any(len(fit.history) > 1 for fit in fits.values())  # a solved regression has one point
    rows: _Rows = []
    for name, fit in fits.items():
        numbers = [f"{fit.best.epoch:g} of {fit.history[-1].epoch:g}", f"{fit.best.value:.5g}", f"{fit.recipe.members}"]
        rows.append((name, [*numbers, calibration_words(fit), Cell(setting_words(fit.recipe), word=True)]))
    headings = [("Best epoch", ""), (f"Validation {words}", "Of the first model, before calibration.")]
    headings += [("Models", "Of several the first is shown."), ("Calibration", "On validation."), ("Settings", "")]
    return Section(
        "Over the epochs",
        f"The epoch is chosen by {words} on validation auctions.",
        figures=[drawing(f"{key}epochs", panel)] if long else [],
        tables=[Table("Trainings", "Recipe", headings, rows)],
    )


def described(prepared: Prepared, device: str) -> str:
    """The columns, the splits and the model, before training; and the stages that resume, if any."""
    facts, config, store = prepared.facts, prepared.config, prepared.store
    ranks = f", {distributed.count()} ranks together" if distributed.count() > 1 else ""
    models = list(dict.fromkeys(each.model for each in candidates(config, facts.splits["train"].ads)))
    training = _planned(prepared)
    if (prepared.folder / "result.json").is_file():
        training = [f"The run in {prepared.folder} is already finished; this is its result."]
    lines = [
        *_columns_table(facts, {field.name: field.values for field in store.fields}).text(),
        "",
        *_splits_table(facts).text(),
        "",
        f"Model: {' or '.join(models)} over {prepared.plain or len(store.fields)} columns, on {device}{ranks}",
        *training,
        *(f"Note: {note}" for note in (*table_notes(facts, config), *table_doubts(facts))),
    ]
    if not (prepared.folder / "result.json").is_file():
        begun = [metrics.parent for metrics in sorted((prepared.folder / "fits").glob("*/metrics.jsonl"))]
        lines += [f"Training: {fit.name} resumes" for fit in begun if not (fit / "result.json").is_file()]
    return "\n".join(lines)


def _planned(prepared: Prepared) -> list[str]:
    """The planned trainings, and their cost."""
    config, ads = prepared.config, prepared.facts.splits["train"].ads
    first, *others = tried = candidates(config, ads)
    plan = recipes(config, first, searched=bool(others))
    kinds = {BASELINE: SOLVED_SHOWN if first.solved else MODELS_SHOWN[first.model]}
    names = [kinds.get(name, name) + (f" of {each.members}" if each.members > 1 else "") for name, each in plan.items()]
    lines = []
    if others:
        limit = config.train.budget_seconds or budget(ads, prepared.plain or len(prepared.store.fields))
        cost = f"in about {counted(round(limit), 'CPU second')}; --budget-seconds changes that"
        names.pop(0)
        lines.append(f"Search: up to {len(tried)} settings are tried, and the best two together, {cost}")
    if names:
        epochs = f"at most {counted(max(each.epochs for each in tried), 'epoch')}{' each' if len(names) > 1 else ''}"
        more = "; other recipes if validation ads can detect a gain" if config.train.contestants else ""
        words = "" if others else f" ({setting_words(first)})"
        lines.append(f"{'Then' if others else 'Training'}: {', '.join(names)}; {epochs}{words}{more}")
    return lines


def _search_table(search: Search) -> Table:
    """The settings of the baseline that were tried."""
    tried: dict[int, list[Attempt]] = {}
    for each in search.attempts:
        tried.setdefault(each.setting, []).append(each)
    rounds = sorted({each.full for each in search.attempts})
    rows = []
    for at, attempts in tried.items():
        words = {x.full: f"{x.value:.5g}" + f" ({counted(x.epochs, 'epoch')})" * bool(x.epochs) for x in attempts}
        cells, chosen = [Cell(words.get(full, NONE)) for full in rounds], at == search.chosen
        rows.append(TableRow(setting_words(attempts[0].recipe), cells, tags=["chosen"] if chosen else [], best=chosen))
    metric = search.metric.replace("_", " ")
    headings = [(f"Validation {metric}, short", "After a quarter of the epochs."), (f"Validation {metric}", "In full.")]
    return Table("Settings of the baseline", "Setting", headings[-len(rounds) :], rows)


def _search_lead(search: Search) -> str:
    tried, epochs = len({each.setting for each in search.attempts}), f"{sum(each.epochs for each in search.attempts):g}"
    return (
        f"{tried} settings were compared on the same validation ads, in {epochs} epochs over the training ads in all. "
        "All recipes have the chosen settings."
    )


def _columns_table(facts: TableFacts, fields: Mapping[str, int]) -> Table:
    """The columns of the table, and what was made of them for the regression."""
    rows: _Rows = []
    for column in facts.columns:
        values = f"{column.values:,}" if column.values else NONE
        missing = f"{column.missing:.1%}" if column.missing else NONE
        rows.append((column.name, [Cell(column.use, word=True), values, missing, Cell(column.reason, word=True)]))
    for name in [name for name in fields if name not in {column.name for column in facts.columns}]:
        why = "predicts clicks beyond its columns" if "×" in name else "neighbouring bins together"
        rows.append((name, [Cell("combination", word=True), f"{fields[name]:,}", NONE, Cell(why, word=True)]))
    headings = [("Used as", ""), ("Values", "Different ones."), ("Missing", "Share of the rows."), ("Why", "")]
    return Table("Types of columns", "Column", headings, rows)


def _splits_table(facts: TableFacts) -> Table:
    rows = []
    for name, part in facts.splits.items():
        auctions = facts.auctions(name)
        pooled = NONE if facts.auction_size is None or name == "train" else f"all of {facts.auction_size}"
        words = pooled if auctions is None else f"{auctions:,}"
        times = [str(part.first), str(part.last)] if facts.timed else []
        rows.append((_SPLITS[name], [f"{part.ads:,}", words, f"{part.click_rate:.2%}", *times]))
    headings = [("Ads", ""), ("Auctions", ""), ("Clicked", ""), *([("From", ""), ("To", "")] if facts.timed else [])]
    return Table("Training, validation and test", "Split", headings, rows)


def _choice_table(choice: Choice) -> Table:
    """The baseline and the other candidates, compared on held-out validation auctions."""
    base = choice.candidates[0].welfare
    places = decimals((each.welfare for each in choice.candidates), 5)
    rows = []
    for each in choice.candidates:
        welfare, chosen = Cell(number(each.welfare, places)), each.name == choice.chosen
        cells = [Cell(NONE), Cell("baseline", word=True)]
        if each.name != choice.baseline:
            cells = [Cell(change(each, base)), outcome_cell(each.outcome)]
        rows.append(TableRow(each.name, [welfare, *cells], tags=["chosen"] if chosen else [], best=chosen))
    headings = [("Welfare", "Mean per auction, from logged clicks.")]
    headings += [(f"Against {choice.baseline}", "With its corrected interval."), ("Outcome", "")]
    return Table("The recipes on validation auctions", "Recipe", headings, rows)


def _choice_lead(choice: Choice) -> str:
    many, what = size_of(choice)
    return (
        f"Every recipe had the same training ads; {many:,} further validation {what} compare them. "
        f"All intervals cover at once in 95 of 100 runs; {choice.baseline} is kept unless one is above 0."
    )


def train_summary(result: TrainResult) -> str:
    """The verdict, the models on the test ads, and the comparisons on the way, as printed at the end."""
    result = as_shown(result)
    lines = [*(line.text for line in train_verdict(result)), "", *models_table(result.evaluation).text(), ""]
    if result.search is not None:
        lines += [*_search_table(result.search).text(), ""]
    if result.choice is not None:
        lines += [_choice_lead(result.choice), "", *_choice_table(result.choice).text(), ""]
    lines += [f"Note: {note}" for note in untrained(result)]
    return "\n".join(lines).rstrip()
