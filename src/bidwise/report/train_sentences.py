"""What a training run says: what it takes the table for before it trains, what it chose and why, and what to know."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from bidwise import distributed
from bidwise.data.encoding import LEFT_OUT
from bidwise.data.splits import AUCTIONS
from bidwise.evaluation.estimate import Outcome
from bidwise.report.evaluation_sentences import drawn, verdicts
from bidwise.report.formatting import NONE, change, counted, decimals, number
from bidwise.report.sections import Cell, Table, TableRow, outcome_cell, setting
from bidwise.study.keep_best import Choice, Power
from bidwise.study.recipe import BASELINE, Recipe
from bidwise.study.search import FINALISTS, Attempt, Search, most_passes
from bidwise.table.config import Config
from bidwise.table.encode import CAP, Prepared
from bidwise.table.plan import candidates, recipes
from bidwise.table.results import FitResult, TableFacts, TrainResult

SPLITS = {"train": "training", "valid": "validation", "test": "test"}


def described(prepared: Prepared, device: str) -> str:
    """The columns, the splits and the model, before anything is trained; what resumes, if something does."""
    facts, config, store = prepared.facts, prepared.config, prepared.store
    ranks = f", {distributed.count()} ranks together" if distributed.count() > 1 else ""
    tried = candidates(config, facts.splits["train"].ads)
    models = list(dict.fromkeys(each.model for each in tried))
    built = [each.build(store.cardinalities, config.train.seed) for each in tried[: len(models) == 1]]
    parameters = [f", {sum(each.numel() for each in model.parameters()):,} parameters" for model in built]
    training = planned(prepared)
    if (prepared.folder / "result.json").is_file():
        training = [f"Nothing is trained: the run in {prepared.folder} is finished, and this is what it found."]
    lines = [
        *columns_table(facts).text(),
        "",
        *splits_table(facts).text(),
        "",
        f"Model: {' or '.join(models)} over {len(store.fields)} columns{''.join(parameters)}, on {device}{ranks}",
        *training,
        f"Categories seen less than {facts.min_count} times in training count as rare.",
        *([] if facts.capped_bids else [bids_line(facts)]),  # else a note
        *(f"Note: {note}" for note in notes(facts, config)),
    ]
    for metrics in sorted((prepared.folder / "fits").glob("*/metrics.jsonl")):
        if not metrics.with_name("result.json").is_file():
            last, name = metrics.read_text(encoding="utf-8").splitlines()[-1:], metrics.parent.name
            lines += [f"Training: {name} resumes after epoch {json.loads(entry)['epoch']:g}" for entry in last]
    return "\n".join(lines)


def planned(prepared: Prepared) -> list[str]:
    """What is going to be trained, and at what cost."""
    config, number = prepared.config, prepared.facts.splits["train"].ads
    ads = f"{number:,} training ads"
    first, *others = tried = candidates(config, number)
    plan = recipes(config, first, number, searched=bool(others))
    names = [f"{name} of {each.members}" if each.members > 1 else name for name, each in plan.items()]
    lines = []
    if others:
        passes = f"at most {most_passes(tried):g} passes over {ads} (--budget N tries N settings)"
        lines.append(f"Search: {len(tried)} settings of {names.pop(0)}, {passes}")
    if names:
        epochs = f"at most {counted(max(each.epochs for each in tried), 'epoch')}{' each' if len(names) > 1 else ''}"
        more = "; other recipes where validation ads can tell a gain" if config.train.contestants else ""
        if others:
            lines.append(f"Then: {', '.join(names)}; {epochs}{more}")
        else:
            lines.append(f"Training: {', '.join(names)}; {epochs} ({setting_words(first)}){more}")
    return lines


def setting_words(recipe: Recipe) -> str:
    """What a model was trained with: ``deepfm, l2 0.001, 4 epochs, cosine, batch 256, rate 0.001``."""
    options = [f"{name} {setting(value)}" for name, value in recipe.options.items()]
    numbers = [f"l2 {recipe.l2:g}", counted(recipe.epochs, "epoch"), recipe.schedule]
    return ", ".join([recipe.model, *options, *numbers, f"batch {recipe.batch_size}", f"rate {recipe.learning_rate:g}"])


def search_table(search: Search) -> Table:
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


def search_lead(search: Search, ads: int) -> str:
    """How the settings were chosen."""
    tried = len({each.setting for each in search.attempts})
    short = f"each for a quarter of its epochs and the best {FINALISTS} in full" if tried > FINALISTS else "in full"
    return (
        f"{tried} settings of {BASELINE} were compared on the same validation ads, {short}: {search.passes:g} passes "
        f"over {ads:,} training ads. All recipes have the settings of the best."
    )


def bids_line(facts: TableFacts) -> str:
    """What bids are in training."""
    line = f"Bids are divided by their mean, {facts.mean_bid:.3g}."
    if facts.capped_bids:
        above = f"{counted(facts.capped_bids, 'bid')} above {CAP} times the median, {facts.median_bid:.3g}"
        line = (
            f"Bids are divided by {facts.mean_bid:.3g}, their mean up to a cap: {above} (largest "
            f"{facts.largest_bid:.3g}), count as {facts.bid_cap:.3g} in training and validation, in full in the test."
        )
    return line


def columns_table(facts: TableFacts, ids: dict[str, int] | None = None) -> Table:
    """What each column was taken for; ``ids`` is how many the model has for a column."""
    rows = []
    for column in facts.columns:
        cells = [
            Cell(column.use, word=True),
            Cell(f"{column.values:,}" if column.values else NONE),
            Cell(f"{column.missing:.1%}" if column.missing else NONE),
            *([] if ids is None else [Cell(f"{ids[column.name]:,}" if column.name in ids else NONE)]),
            Cell(column.reason, word=True),
        ]
        rows.append((column.name, cells))
    headings = [
        ("Used as", ""),
        ("Values", "Different values in the table."),
        ("Missing", "Share of the rows without a value."),
        *([] if ids is None else [("Ids", "What the model distinguishes: rare, missing, each frequent value or bin.")]),
        ("Why", ""),
    ]
    return Table("What each column was taken for", "Column", headings, rows)


def splits_table(facts: TableFacts) -> Table:
    """Training, validation and test ads."""
    rows = []
    for name, part in facts.splits.items():
        auctions = facts.auctions(name)
        pooled = NONE if facts.auction_size is None or name == "train" else f"all of {facts.auction_size}"
        words = pooled if auctions is None else f"{auctions:,}"
        times = [Cell(str(part.first)), Cell(str(part.last))] if facts.timed else []
        rows.append((SPLITS[name], [Cell(f"{part.ads:,}"), Cell(words), Cell(f"{part.click_rate:.2%}"), *times]))
    headings = [("Ads", ""), ("Auctions", ""), ("Clicked", ""), *([("From", ""), ("To", "")] if facts.timed else [])]
    return Table("Training, validation and test", "Split", headings, rows)


def choice_table(choice: Choice) -> Table:
    """The baseline and the contestants compared on held-out validation auctions."""
    base = choice.candidates[0].welfare
    places = decimals((each.welfare for each in choice.candidates), 5)
    rows = []
    for each in choice.candidates:
        welfare, chosen = Cell(number(each.welfare, places)), each.name == choice.chosen
        cells = [Cell(NONE), Cell(NONE), Cell("baseline", word=True)]
        if each.name != choice.baseline:
            clicks = each.effective_clicks
            counts = f"{each.changed_auctions:,}" if clicks is None else f"{clicks:,.1f}"
            cells = [Cell(change(each, base)), Cell(counts), outcome_cell(each.outcome)]
        rows.append(TableRow(each.name, [welfare, *cells], tags=["chosen"] if chosen else [], best=chosen))
    headings = [
        ("Welfare", "Mean per auction, from logged clicks."),
        (f"Against {choice.baseline}", "With its corrected interval."),
        ("Auctions that differ", "Auctions in which the two models have different welfare.")
        if choice.auctions is not None
        else ("Effective clicks", "As many clicks of one weight would make up the difference."),
        ("Outcome", ""),
    ]
    return Table("The recipes on validation auctions", "Recipe", headings, rows)


def choice_lead(choice: Choice) -> str:
    """How the recipes were compared."""
    many, what = _size(choice)
    return (
        f"Every recipe trained a model on the same ads. Half of the validation {what} chose settings and epochs and "
        f"calibrated each model; the other {many:,} compared the recipes. "
        f"Each interval has level {100 * choice.level:.4g} %, so that "
        f"all hold at once in 95 of 100 runs; {choice.baseline} is kept unless an interval is above 0."
    )


def verdict(result: TrainResult) -> list[tuple[str, str]]:
    """What was chosen and why, then what the test rows say of it: outcomes and sentences, the headline first."""
    evaluation = result.evaluation
    chosen = evaluation.models[result.chosen]
    kind = "realised" if evaluation.welfare_of == "clicks" else "expected"
    facts = [f"{kind} welfare {chosen.welfare:.5g} per auction"]
    facts += [] if math.isnan(chosen.auc) else [f"AUC {chosen.auc:.4f}"]
    facts.append(f"log loss {chosen.log_loss:.4f}")
    if not math.isnan(entropy := chosen.normalised_entropy):
        worse = "; it is worse than no model" if entropy > 1 else ""
        facts[-1] += f" ({entropy:.3f} of that of always predicting the mean{worse})"
    if not math.isnan(chosen.predicted_over_observed):
        facts.append(f"{chosen.predicted_over_observed:.3f} predicted clicks for each observed one")
    when = "newest ads" if result.table.timed else "ads"
    many = f"{evaluation.ads:,} {when}, held out from all selection"
    return [
        _chosen(result),
        *_served(result),
        ("", f"On test ({many}): {', '.join(facts)}."),
        *(
            (sentence.outcome, f"On test: {sentence.text}")
            for sentence in verdicts(evaluation)
            if sentence.outcome is not None and result.chosen in (sentence.model, sentence.baseline)
        ),
    ]


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
        budget = result.settings.train.budget
        return "few", (
            f"{chosen} is kept: {many:,} validation {what}, held out from all other choices, {told}, so no other "
            f"recipe was trained (--recipe distilled --budget {budget} in another folder trains one anyway); "
            f"{when}.{_needed(half, many, what)}"
        )
    if choice is None:
        who = f"{recipe.members} models, served as their mean logit, were" if recipe.members > 1 else "The model was"
        return "", f"{who} trained with {recipe.loss}; {when}."
    many, what = _size(choice)
    where = f"{many:,} validation {what}, held out from all other choices"
    baseline, *others = choice.candidates
    if chosen != choice.baseline:
        entry = next(each for each in others if each.name == chosen)
        lift = change(entry, baseline.welfare).replace("+", "")
        return "better", f"{chosen} is chosen: on {where}, it raises welfare by {lift} over {choice.baseline}; {when}."
    outcomes = {each.outcome for each in others}
    few = outcomes <= {Outcome.TOO_FEW, Outcome.SAME}
    why = "too few to distinguish any other recipe from it" if few else "no other recipe is measurably better"
    if outcomes == {Outcome.SAME}:
        why = "all recipes have the same welfare in every auction"
    half = max((each.ci_high - each.ci_low) / (2 * baseline.welfare or 1) for each in others)
    needed = "" if few else _needed(half, many, what)
    return "few" if few else "unclear", f"{choice.baseline} is kept: on {where}, {why}; {when}.{needed}"


def _served(result: TrainResult) -> Iterator[tuple[str, str]]:
    """The settings, where they were searched for, and the calibration."""
    fit, search = result.fits[result.chosen], result.search
    if search is not None:
        tried = len({each.setting for each in search.attempts})
        yield "", f"Settings, the best of {tried} on validation: {setting_words(fit.recipe)}."
    if (fit.slope, fit.intercept) != (1, 0):
        yield "", f"Calibrated on validation ads: {calibration_words(fit)}."


def calibration_words(fit: FitResult) -> str:
    """``logit × 0.931 − 0.120``."""
    return f"logit × {fit.slope:.3f} {'−' if fit.intercept < 0 else '+'} {abs(fit.intercept):.3f}"


def _size(compared: Choice | Power) -> tuple[int, str]:
    return (compared.ads, "ads") if compared.auctions is None else (compared.auctions, "auctions")


def _needed(half: float, many: int, what: str) -> str:
    """How many auctions or ads would narrow the intervals to 1 % of the welfare; that goes with the root of it."""
    if not half > 0.01:
        return ""
    needed = many * (half / 0.01) ** 2
    digits = 10 ** max(0, math.floor(math.log10(needed)) - 1)
    rounded = math.ceil(needed / digits) * digits
    return f" Intervals are about ± {100 * half:.2g} % wide; ± 1 % would take about {rounded:,} such {what}."


def notes(facts: TableFacts, config: Config) -> Iterator[str]:
    """What to know about the table."""
    left = [each for each in facts.columns if each.use == LEFT_OUT and each.name not in config.data.ignore]
    if left:
        words = "; ".join(f"{column.name} ({column.reason})" for column in left)
        yield f"Columns that the model does not see: {words}."
    if not facts.timed:
        yield (
            "Without a time column the split is at random. Models serve the future: a split by time (--time) is the "
            "fairer test."
        )
    if facts.cut == "auctions":
        yield "Some auctions last beyond the cut in time: each went, whole, to where its oldest ad belongs."
    if facts.cut == "time":
        yield "Ads of the same time stand on both sides of a cut: the times are coarse."
    if facts.auction_size is not None:
        yield (
            "The table names no auctions: training takes random batches of ads as auctions, "
            f"validation and test measure all auctions of {facts.auction_size} that could be drawn"
            + (
                f" (not {config.data.auction_size}: of these there would not be {AUCTIONS} in all)."
                if facts.auction_size < config.data.auction_size
                else "."
            )
        )
    if config.data.sampling_rate is not None:
        yield (
            f"Every ad without a click stands for {1 / config.data.sampling_rate:g}, in training and in all measures, "
            "so predictions are on the scale of the full data. Auctions hold fewer rivals than they had: read welfare "
            "with care."
        )
    if facts.capped_bids:
        yield bids_line(facts)
    for column, area in facts.leaks.items():
        yield (
            f"Column {column!r} alone predicts the clicks with an AUC of {area:.3f}. Is it known before the click? If "
            f"not, leave it out: --ignore {column}."
        )


def summary(result: TrainResult) -> str:
    """The search, the comparison of recipes and the verdict, as they are printed at the end."""
    lines = [] if result.search is None else [*search_table(result.search).text(), ""]
    if result.choice is not None:
        lines += [choice_lead(result.choice), "", *choice_table(result.choice).text(), ""]
    if len(result.evaluation.models) > 1:
        lines += [*test_table(result).text(), ""]
    return "\n".join([*lines, *(text for _, text in verdict(result))])


def test_table(result: TrainResult) -> Table:
    """The test in short."""
    evaluation = result.evaluation
    places = decimals((each.welfare for each in evaluation.models.values()), 5)
    rows = []
    for name, each in evaluation.models.items():
        numbers = ((each.welfare, places), (each.auc, 4), (each.log_loss, 4), (each.predicted_over_observed, 3))
        tags = ["chosen"] if name == result.chosen else []
        rows.append(TableRow(name, [Cell(number(*pair)) for pair in numbers], tags=tags))
    kind = "realised" if evaluation.welfare_of == "clicks" else "expected"
    headings = [(f"{kind.capitalize()} welfare", ""), ("AUC", ""), ("Log loss", ""), ("Pred./obs.", "")]
    caption = f"{evaluation.ads:,} test ads in {drawn(evaluation)}"
    return Table(caption, caption, headings, rows)
