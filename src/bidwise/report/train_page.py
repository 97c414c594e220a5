"""A training run in words, tables and a page: what the table is taken for, what was chosen and why, the test."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from bidwise import distributed
from bidwise.data.columns import DROPPED
from bidwise.data.splits import AUCTIONS
from bidwise.evaluation.estimate import Outcome, signed
from bidwise.report.curves import epoch_panel, named_lines
from bidwise.report.drawing import Panel, Picture, Whisker, whiskers
from bidwise.report.evaluation_page import differences_section, models_section, notes_section
from bidwise.report.evaluation_sentences import AS_PREDICTIONS, IN_THE_AUCTION, headline, models_table, verdicts
from bidwise.report.formatting import NONE, change, counted, decimals, number
from bidwise.report.loss_styles import look_of, loss_called
from bidwise.report.sections import (
    Cell,
    Run,
    RunPage,
    Section,
    Table,
    TableRow,
    drawing,
    drawings,
    outcome_cell,
    setting,
)
from bidwise.study.compare import Choice, Power
from bidwise.study.recipe import BASELINE, EXACT, Recipe
from bidwise.study.search import FINALISTS, Attempt, Search, most_passes
from bidwise.table.config import REFRESHED, Config
from bidwise.table.leaks import TELLS, placements
from bidwise.table.plan import candidates, recipes
from bidwise.table.prepare import CAP, PREVIOUS, Prepared
from bidwise.table.results import FitResult, Refresh, TableFacts, TrainResult

SPLITS = {"train": "training", "valid": "validation", "test": "test"}
LITTLE = 1000  # test ads
PRINTED = ("welfare", "auc", "log_loss", "predicted_over_observed")


def train_page(run: Run, key: str) -> RunPage:
    """Which recipe was kept and why, how training went, what the test rows say, and what the columns were taken for."""
    result: TrainResult = run.result
    facts, evaluation, search = result.table, result.evaluation, result.search
    (outcome, leading), *sentences = verdict(result)
    lead = "Oldest to newest; auctions are never cut." if facts.timed else "At random; auctions are never cut."
    rare = f"Values seen less than {facts.min_count} times in training count as rare; numbers are cut into bins."
    auctions = ("all", "test auctions that could be drawn")
    if evaluation.auctions is not None:
        auctions = (f"{evaluation.auctions:,}", "test auctions")
    return RunPage(
        run.name,
        "A model trained on a table",
        leading,
        sentences,
        [
            (f"{facts.splits['train'].ads:,}", "training ads"),
            (f"{evaluation.ads:,}", "test ads"),
            auctions,
            (f"{len(result.fields)}", "columns that the model sees"),
            (f"{result.parameters:,}", "parameters"),
        ],
        [
            *([] if result.choice is None else [_choice(key, result.choice)]),
            *(
                []
                if search is None
                else [Section("The baseline", _search_lead(search), tables=[_search_table(search)])]
            ),
            _curves(key, result),
            _test(key, result),
            Section("Columns", rare, tables=[_columns_table(facts)]),
            Section("Splits", lead, tables=[_splits_table(facts)]),
            Section("The recipes", terms=[(loss, loss_called(loss).about) for loss in result.fits]),
            Section("Notes", points=list(notes(facts, result.settings))),
        ],
        outcome,
    )


def _choice(key: str, choice: Choice) -> Section:
    base, lines = choice.candidates[0].welfare, []
    unit = f"% of {choice.baseline}" if base > 0 else "per auction"
    for each in choice.candidates[1:]:
        look, scaled = look_of(each.name), 100 * each / base if base > 0 else each
        words = change(each, base).replace(" %", "")
        lines.append(Whisker.of(each.name, words, scaled, each.outcome, look.colour, look.marker))
    said = "; ".join(f"{line.name}: {line.words}" for line in lines)
    about = f"Difference of validation welfare to {choice.baseline} with corrected intervals, {unit}. {said}"
    panel = whiskers("Validation welfare", lines, f"difference of welfare, {unit}", about)
    figures = [drawing(f"{key}choice", panel)]
    return Section("Which recipe?", _choice_lead(choice), figures=figures, tables=[_choice_table(choice)])


def _curves(key: str, result: TrainResult) -> Section:
    metric, fits, chosen = result.settings.train.metric, result.fits, result.fits[result.chosen]
    words = metric.replace("_", " ")
    epochs, best = [each.epoch for each in chosen.history], chosen.best
    panels = [
        epoch_panel("loss", epochs, [each.loss for each in chosen.history], None),
        epoch_panel(metric, epochs, [each.value for each in chosen.history], (best.epoch, best.value)),
    ]
    lines = {loss: ([e.epoch for e in fit.history], [e.value for e in fit.history]) for loss, fit in fits.items()}

    def paint(axes: Axes) -> None:
        named_lines(axes, lines, {name: look_of(name) for name in lines})
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: signed(y, ".5g").removeprefix("+")))
        axes.set_ylabel(f"validation {words}")

    if len(fits) > 1:
        ends = "; ".join(f"{loss}: {values[-1]:.5g} at last" for loss, (_, values) in lines.items())
        about = f"Validation {words} over epochs. {ends}."
        panels.insert(0, Panel(f"Validation {words}, all recipes", about, 3.2, paint))
    rows = []
    for name, fit in fits.items():
        numbers = (f"{fit.best.epoch:g} of {fit.history[-1].epoch:g}", f"{fit.best.value:.5g}", f"{fit.recipe.members}")
        words_of = [Cell(_calibration(fit)), Cell(setting_words(fit.recipe), word=True)]
        rows.append((name, [*map(Cell, numbers), *words_of]))
    headings = [("Best epoch", ""), (f"Validation {words}", "Of the first model, before calibration.")]
    headings += [("Models", "Of several the first is shown."), ("Calibration", "On validation."), ("Settings", "")]
    return Section(
        "Over the epochs",
        f"The epoch is chosen by {words} on validation auctions. Loss and rings: {result.chosen}.",
        figures=drawings(key, Picture("epochs", tuple(panels))),
        tables=[Table("Trainings", "Recipe", headings, rows)],
    )


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


def described(prepared: Prepared, device: str) -> str:
    """The columns, the splits and the model, before anything is trained; what resumes, if something does."""
    facts, config, store = prepared.facts, prepared.planned, prepared.store
    ranks = f", {distributed.count()} ranks together" if distributed.count() > 1 else ""
    models = list(dict.fromkeys(each.model for each in candidates(config, facts.splits["train"].ads)))
    training = _planned(prepared)
    if (prepared.folder / "result.json").is_file():
        training = [f"Nothing is trained: the run in {prepared.folder} is finished, and this is what it found."]
    lines = [
        *_columns_table(facts).text(),
        "",
        *_splits_table(facts).text(),
        "",
        f"Model: {' or '.join(models)} over {len(store.fields)} columns, on {device}{ranks}",
        *training,
        *(f"Note: {note}" for note in notes(facts, config)),
    ]
    for metrics in sorted((prepared.folder / "fits").glob("*/metrics.jsonl")):
        if not metrics.with_name("result.json").is_file():
            last, name = metrics.read_text(encoding="utf-8").splitlines()[-1:], metrics.parent.name
            with suppress(LookupError, TypeError, ValueError):  # the checkpoint decides
                lines += [f"Training: {name} resumes after epoch {json.loads(entry)['epoch']:g}" for entry in last]
    return "\n".join(lines)


def _planned(prepared: Prepared) -> list[str]:
    """What is going to be trained, and at what cost."""
    config, ads = prepared.planned, prepared.facts.splits["train"].ads
    first, *others = tried = candidates(config, ads)
    plan = recipes(config, first, ads, searched=bool(others))
    names = [f"{name} of {each.members}" if each.members > 1 else name for name, each in plan.items()]
    lines = []
    if others:
        cost = f"as long as at most {most_passes(tried):g} epochs over {ads:,} ads; --budget N tries N settings"
        lines.append(f"Search: {len(tried)} settings of {names.pop(0)} are tried; it takes {cost}")
    if names:
        epochs = f"at most {counted(max(each.epochs for each in tried), 'epoch')}{' each' if len(names) > 1 else ''}"
        more = "; other recipes where validation ads can tell a gain" if config.train.contestants else ""
        words = "" if others else f" ({setting_words(first)})"
        lines.append(f"{'Then' if others else 'Training'}: {', '.join(names)}; {epochs}{words}{more}")
    return lines


def setting_words(recipe: Recipe) -> str:
    """What a model was trained with: ``deepfm, l2 0.001, 4 epochs, cosine, batch 256, rate 0.001``."""
    options = [f"{name} {setting(value)}" for name, value in recipe.options.items()]
    if recipe.embeddings == EXACT:
        return ", ".join([recipe.model, *options, f"l2 {recipe.l2:g}", "solved by L-BFGS"])
    numbers = [f"l2 {recipe.l2:g}", counted(recipe.epochs, "epoch"), recipe.schedule]
    return ", ".join([recipe.model, *options, *numbers, f"batch {recipe.batch_size}", f"rate {recipe.learning_rate:g}"])


def _search_table(search: Search) -> Table:
    """The settings of the baseline that were tried."""
    tried: dict[int, list[Attempt]] = {}
    for each in search.attempts:
        tried.setdefault(each.setting, []).append(each)
    stages = max(map(len, tried.values()))
    rows = []
    for at, attempts in tried.items():
        cells = [Cell(f"{each.value:.5g} ({counted(each.epochs, 'epoch')})") for each in attempts]
        cells += [Cell(NONE)] * (stages - len(cells))
        chosen = at == search.chosen
        rows.append(TableRow(setting_words(attempts[0].recipe), cells, tags=["chosen"] if chosen else [], best=chosen))
    metric = search.metric.replace("_", " ")
    headings = [(f"Validation {metric}, short", "After a quarter of the epochs."), (f"Validation {metric}", "In full.")]
    return Table("Settings of the baseline", "Setting", headings[-stages:], rows)


def _search_lead(search: Search) -> str:
    tried = len({each.setting for each in search.attempts})
    short = f"each for a quarter of its epochs and the best {FINALISTS} in full" if tried > FINALISTS else "in full"
    return (
        f"{tried} settings of {BASELINE} were compared on the same validation ads, {short}: {search.passes:g} epochs "
        "over the training ads. All recipes have the settings of the best."
    )


def _columns_table(facts: TableFacts) -> Table:
    rows = []
    for column in facts.columns:
        values = f"{column.values:,}" if column.values else NONE
        missing = f"{column.missing:.1%}" if column.missing else NONE
        cells = [Cell(column.use, word=True), Cell(values), Cell(missing), Cell(column.reason, word=True)]
        rows.append((column.name, cells))
    headings = [("Used as", ""), ("Values", "Different ones."), ("Missing", "Share of the rows."), ("Why", "")]
    return Table("What each column was taken for", "Column", headings, rows)


def _splits_table(facts: TableFacts) -> Table:
    rows = []
    for name, part in facts.splits.items():
        auctions = facts.auctions(name)
        pooled = NONE if facts.auction_size is None or name == "train" else f"all of {facts.auction_size}"
        words = pooled if auctions is None else f"{auctions:,}"
        times = [Cell(str(part.first)), Cell(str(part.last))] if facts.timed else []
        rows.append((SPLITS[name], [Cell(f"{part.ads:,}"), Cell(words), Cell(f"{part.click_rate:.2%}"), *times]))
    headings = [("Ads", ""), ("Auctions", ""), ("Clicked", ""), *([("From", ""), ("To", "")] if facts.timed else [])]
    return Table("Training, validation and test", "Split", headings, rows)


def _choice_table(choice: Choice) -> Table:
    """The baseline and the contestants compared on held-out validation auctions."""
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
    many, what = _size(choice)
    return (
        f"Every recipe trained a model on the same ads. Half of the validation {what} chose settings and epochs and "
        f"calibrated each model; the other {many:,} compared the recipes. Intervals hold all at once in 95 of 100 "
        f"runs; {choice.baseline} is kept unless one is above 0."
    )


def verdict(result: TrainResult) -> list[tuple[str, str]]:
    """What was chosen and why, then what the test rows say of it: outcomes and sentences, the headline first."""
    evaluation, fit = result.evaluation, result.fits[result.chosen]
    chosen = evaluation.models[result.chosen]
    kind = "realised" if evaluation.welfare_of == "clicks" else "expected"
    facts = [f"{kind} welfare {chosen.welfare:.5g} per auction"]
    facts += [] if math.isnan(chosen.auc) else [f"AUC {chosen.auc:.4f}"]
    facts.append(f"log loss {chosen.log_loss:.4f}")
    if not math.isnan(entropy := chosen.normalised_entropy):
        worse = "; it is worse than no model" if entropy > 1 else ""
        facts[-1] += f" ({entropy:.3f} of that of always predicting the mean{worse})"
    said = [_chosen(result)] if result.table.refresh is None else _refreshed(result, result.table.refresh)
    if result.search is not None:
        tried = len({each.setting for each in result.search.attempts})
        said.append(("", f"Settings, the best of {tried} on validation: {setting_words(fit.recipe)}."))
    if (fit.slope, fit.intercept) != (1, 0):
        said.append(("", f"Calibrated on validation ads: {_calibration(fit)}."))
    said += [("few", f"Doubt: {text}") for text in (*_too_good(result), *doubts(result.table))]
    many = f"{evaluation.ads:,} {'newest ads' if result.table.timed else 'ads'}, held out from all selection"
    said.append(("", f"On test ({many}): {', '.join(facts)}."))
    return said + [
        (sentence.outcome, f"On test: {sentence.text}")
        for sentence in verdicts(evaluation)
        if sentence.outcome is not None and result.chosen in (sentence.model, sentence.baseline)
    ]


NEWER = {
    Outcome.BETTER: "The refreshed model is better than that of {} on the newest ads",
    Outcome.WORSE: "The refreshed model is worse than that of {} on the newest ads: go on serving that one",
    Outcome.SAME: "The refreshed model shows the same ads as that of {}",
    Outcome.UNCLEAR: "The refreshed model cannot be distinguished from that of {} on the newest ads",
    Outcome.TOO_FEW: "The newest ads are too few to tell the refreshed model from that of {}",
}


def _refreshed(result: TrainResult, refresh: Refresh) -> list[tuple[str, str]]:
    """Which of the two models to serve, and what became of the older one."""
    pairs = result.evaluation.of_metric("welfare")
    outcome = next(each.outcome for each in pairs if (each.model, each.baseline) == (REFRESHED, PREVIOUS))
    new = sum(refresh.new.values())
    rows = f"{result.table.splits['train'].ads:,} new training ads, {refresh.ads:,} in all so far"
    told = f"Refresh {refresh.number} went on with {rows}; {counted(new, 'value')} got ids of their own."
    return [(outcome, f"{NEWER[outcome].format(refresh.run)}."), ("", told), _chosen(result)]


def _chosen(result: TrainResult) -> tuple[str, str]:
    choice, chosen, metric = result.choice, result.chosen, result.settings.train.metric.replace("_", " ")
    recipe, best = result.fits[chosen].recipe, result.fits[chosen].best.epoch
    when = f"validation {metric} was best after {counted(best, 'epoch')}"
    if best >= recipe.epochs and recipe.schedule == "constant":
        when += ", the last allowed (--set train.epochs=N allows more)"
    if result.power is not None and choice is None:
        many, what = _size(result.power)
        half = result.power.half_width
        told = f"could tell no gain below {100 * half:.2g} %"
        if math.isnan(half):
            told = "hold too few clicks, or auctions, in which two models would differ to tell a gain"
        return "few", (
            f"{chosen} is kept: {many:,} validation {what}, held out from all other choices, {told}, so no other "
            f"recipe was trained (--recipe distilled --budget {result.settings.train.budget} in another folder trains "
            f"one anyway); {when}."
        )
    if choice is None:
        who = f"{recipe.members} models, served as their mean logit, were" if recipe.members > 1 else "The model was"
        return "", f"{who} trained with {recipe.loss}; {when}."
    many, what = _size(choice)
    where = f"{many:,} validation {what}, held out from all other choices"
    baseline, *others = choice.candidates
    if chosen != choice.baseline:
        lift = change(next(each for each in others if each.name == chosen), baseline.welfare).replace("+", "")
        return "better", f"{chosen} is chosen: on {where}, it raises welfare by {lift} over {choice.baseline}; {when}."
    few = {each.outcome for each in others} <= {Outcome.TOO_FEW, Outcome.SAME}
    why = "too few to distinguish any other recipe from it" if few else "no other recipe is measurably better"
    return "few" if few else "unclear", f"{choice.baseline} is kept: on {where}, {why}; {when}."


def _calibration(fit: FitResult) -> str:
    """``logit × 0.931 − 0.120``."""
    return f"logit × {fit.slope:.3f} {'−' if fit.intercept < 0 else '+'} {abs(fit.intercept):.3f}"


def _size(compared: Choice | Power) -> tuple[int, str]:
    return (compared.ads, "ads") if compared.auctions is None else (compared.auctions, "auctions")


def notes(facts: TableFacts, config: Config) -> Iterator[str]:
    """What to know about the table."""
    left = [each for each in facts.columns if each.use == DROPPED and each.name not in config.data.ignore]
    if left:
        words = "; ".join(f"{column.name} ({column.reason})" for column in left)
        yield f"Columns that the model does not see: {words}."
    if not facts.timed:
        yield "The split is at random. Models serve the future: a split by time (--time) is the fairer test."
    if facts.cut == "auctions":
        yield "Some auctions last beyond the cut in time: each went, whole, to where its oldest ad belongs."
    if facts.cut == "time":
        yield "Ads of the same time stand on both sides of a cut: the times are coarse."
    if facts.auction_size is not None:
        fewer = ""
        if facts.auction_size < config.data.auction_size:
            fewer = f" (not {config.data.auction_size}: of these there would not be {AUCTIONS} in all)"
        yield (
            "The table names no auctions: training takes random batches of ads as auctions, validation and test "
            f"measure all auctions of {facts.auction_size} that could be drawn{fewer}."
        )
    if facts.sampled is not None:
        yield f"Bins of numbers and the median bid are those of {facts.sampled:,} training ads, evenly spaced."
    if config.data.sampling_rate is not None:
        yield (
            f"Every ad without a click stands for {1 / config.data.sampling_rate:g}, in training and in all measures. "
            "Auctions hold fewer rivals than they had: read welfare with care."
        )
    if facts.equal_bids:
        yield "All ads bid the same: auctions rank by CTR, and welfare is the clicks of the ads shown (--bid COLUMN)."
    if facts.capped_bids:
        yield (
            f"Bids are divided by {facts.mean_bid:.3g}, their mean up to a cap: {counted(facts.capped_bids, 'bid')} "
            f"above {CAP} times the median, {facts.median_bid:.3g} (largest {facts.largest_bid:.3g}), count as "
            f"{facts.bid_cap:.3g} in training and validation, in full in the test."
        )
    yield from doubts(facts)


def doubts(facts: TableFacts) -> Iterator[str]:
    """What may make a test look better than what is served: said before training, and again with the verdict."""
    for column, area in facts.leaks.items():
        yield (
            f"Column {column!r} alone predicts the clicks with an AUC of {area:.3f}. Is it known before the click? If "
            f"not, leave it out: --ignore {column}."
        )
    for column, value in facts.telling.items():
        yield (
            f"Of {value.ads:,} ads with {value.value}, {100 * value.click_rate:.4g} % are clicked, "
            f"{100 * value.others:.2g} % of all others. Is it known before the click? If not: --ignore {column}."
        )
    for column in placements(facts.columns):
        yield (
            f"Column {column!r} is named like a placement. Where an ad was shown is not known before the auction and "
            f"makes it clicked: --ignore {column}, or --position {column} --slots 1,0.8,0.6 to correct clicks for it."
        )
    if facts.duplicates:
        share = facts.duplicates / sum(part.ads for part in facts.splits.values())
        yield (
            f"{counted(facts.duplicates, 'row')} ({100 * share:.2g} % of all) equal an earlier one in all columns: "
            "were they logged twice? Without --auction and --time copies may stand in training and in the test."
        )
    for column, share in ({} if facts.refresh is None else facts.refresh.unknown).items():
        yield (
            f"{100 * share:.0f} % of the values of column {column!r} were unknown to the run before. Is it written "
            "otherwise now, with another separator or spelling?"
        )
    first, until = facts.splits["train"].first, None if facts.refresh is None else facts.refresh.until
    if first is not None and until is not None and not _later(first, until):
        yield (
            f"Rows from {first} on are older than the newest that the run before has seen, {until}: where they are the "
            "same rows, the test says more of both models than new rows would."
        )


def _later(one: str, other: str) -> bool:
    """Whether one time, as it is shown, is later than another."""
    try:
        return float(one) > float(other)
    except ValueError:
        return one > other


def _too_good(result: TrainResult) -> Iterator[str]:
    """A test that says more than clicks ever tell."""
    chosen, test = result.evaluation.models[result.chosen], result.table.splits["test"]
    if chosen.auc > TELLS:
        clicks = counted(round(test.ads * test.click_rate), "click")
        few = "so few say little" if test.ads < LITTLE else "clicks are hardly ever so predictable"
        yield (
            f"An AUC of {chosen.auc:.4f} on {test.ads:,} test ads with {clicks} is too good to be believed: {few}. "
            "Look for columns that are known only after the click."
        )


def summary(result: TrainResult) -> str:
    """The search, the comparison of recipes and the verdict, as they are printed at the end."""
    lines = [] if result.search is None else [*_search_table(result.search).text(), ""]
    if result.choice is not None:
        lines += [_choice_lead(result.choice), "", *_choice_table(result.choice).text(), ""]
    if len(result.evaluation.models) > 1:
        measures = {name: (IN_THE_AUCTION | AS_PREDICTIONS)[name] for name in PRINTED}
        lines += ["Test", "", *models_table("", measures, result.evaluation).text(), ""]
    return "\n".join([*lines, *(text for _, text in verdict(result))])
