"""The sentences of a training run: doubts, how good the model is, why it was chosen, the served model, next steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from bidwise.data.columns import DROPPED
from bidwise.data.splits import AUCTIONS
from bidwise.evaluation.estimate import Outcome
from bidwise.report.evaluation_sentences import Line, comparison_lines, reference_line, share_of_optimum
from bidwise.report.evaluation_sentences import doubts as test_doubts
from bidwise.report.formatting import change, counted
from bidwise.report.sections import setting
from bidwise.study.compare import Choice, Power
from bidwise.study.recipe import BASELINE, ROUGHLY, Recipe
from bidwise.table.config import REFRESHED, Config
from bidwise.table.leaks import placements
from bidwise.table.prepare import CAP, PREVIOUS
from bidwise.table.results import FitResult, Refresh, TableFacts, TrainResult

ABOUT = {  # recipe -> what it is
    "log_loss": "The usual way to train; all others are compared with it.",
    "bid_weighted": "Log loss in which an ad counts as much as it bids.",
    "sqrt_bid_weighted": "Log loss weighted by the square root of the bid.",
    "log": "Pairs of ads, logistic surrogate (equation 5), plus λ times the log loss.",
    "log_weighted": "The same with pairs weighted towards ads of high eCPM.",
    "hinge": "Hinge surrogate (equation 6): without weights the same as the logistic one.",
    "log_teacher": "log_weighted with the log-loss model’s CTR, a teacher, in place of clicks.",
    "hinge_plus_teacher": "Equation 7: hinge; only pairs in the wrong order; teacher, weights.",
    "log_plus": "Pairs, logistic surrogate, but a pair counts only with its better ad first.",
    "log_plus_teacher": "The same with the teacher’s CTR in place of clicks.",
    "ranknet": "Learning to rank: which ad of a pair is worth more, not how much.",
    "distilled": "Log loss on the teacher’s CTR: a teacher without pairs.",
    "refreshed": "The model of the run before, continued with new rows.",
    "previous": "The model of the run before, as it was.",
    "ensemble": "Several models that differ in their seeds, served as their mean logit.",
}
KNOWN = "If it is only known after the click, --ignore {}."
NO_WORDS = "A loss that this page has no words for."
MODELS_SHOWN = {"deepfm": "DeepFM", "dcnv2": "DCNv2", "logistic_regression": "logistic regression"}
SOLVED_SHOWN = "regression"  # as the reference of the test is called
NEWER = {
    Outcome.BETTER: "The refreshed model is better than the model of {} on the newest ads.",
    Outcome.WORSE: "The refreshed model is worse than the model of {} on the newest ads.",
    Outcome.SAME: "The refreshed model shows the same ads as the model of {}.",
    Outcome.UNCLEAR: "The refreshed model cannot be distinguished from the model of {} on the newest ads.",
    Outcome.TOO_FEW: "The newest ads are too few to compare the refreshed model with the model of {}.",
}


def as_shown(result: TrainResult) -> TrainResult:
    """The result with the model of the recipe log_loss called by its kind, such as DCNv2; other recipes keep names."""
    recipe = result.fits[BASELINE].recipe if BASELINE in result.fits else None
    kind = "" if recipe is None else SOLVED_SHOWN if recipe.solved else MODELS_SHOWN[recipe.model]
    kind += " + regression" if kind and recipe is not None and recipe.beside else ""
    if not kind or kind in result.evaluation.models:
        return result
    names, choice = {BASELINE: kind}, result.choice
    if choice is not None:
        candidates = tuple(replace(each, name=names.get(each.name, each.name)) for each in choice.candidates)
        choice = replace(choice, candidates=candidates, baseline=kind, chosen=names.get(choice.chosen, choice.chosen))
    return replace(
        result,
        fits={names.get(name, name): fit for name, fit in result.fits.items()},
        chosen=names.get(result.chosen, result.chosen),
        choice=choice,
        evaluation=result.evaluation.renamed(names),
    )


def train_verdict(result: TrainResult) -> list[Line]:
    """How good the model is, against references and with doubts; which it is and why; the served model; next steps."""
    result = as_shown(result)
    evaluation, chosen = result.evaluation, result.chosen
    lines = [Line("doubt", text) for text in (*test_doubts(evaluation), *table_doubts(result.table))]
    if useless(result):
        text = f"{chosen} is worse than no model: always predicting the mean CTR has a lower log loss."
        lines.insert(0, Line("worse", text))
    if evaluation.optimal_welfare:
        lines.append(Line("", share_of_optimum(evaluation, chosen)))
    if result.table.refresh is not None:
        lines += _refreshed(result, result.table.refresh)
    lines += [reference_line(evaluation, chosen), Line("", _as_predictions(result))]
    if result.table.refresh is None:
        lines += comparison_lines(evaluation, chosen)
    lines += [Line("", text) for text in (*_chosen(result), *_served(result), _next(result))]
    return lines


def useless(result: TrainResult) -> bool:
    """Whether always predicting the mean CTR of the test ads has a lower log loss."""
    return result.evaluation.models[result.chosen].normalised_entropy > 1


def _as_predictions(result: TrainResult) -> str:
    metrics, ads = result.evaluation.models[result.chosen], f"{result.evaluation.ads:,}"
    newest = "newest ads" if result.table.timed else "ads"
    loss = str(metrics.intervals["log_loss"])
    if math.isnan(metrics.auc):
        return f"On the {ads} {newest} of the test, its log loss is {loss}."
    area, entropy = str(metrics.intervals["auc"]), f"{metrics.normalised_entropy:.3f}"
    test = f"On the {ads} {newest} of the test"
    return f"{test}, its AUC is {area}, its log loss {loss}, {entropy} times the log loss of the mean CTR."


def _refreshed(result: TrainResult, refresh: Refresh) -> Iterator[Line]:
    """Which of the two models is better, and the state of the older one."""
    outcome = result.evaluation.welfare_pairs[REFRESHED, PREVIOUS].outcome
    yield Line(outcome, NEWER[outcome].format(refresh.run))
    yield from comparison_lines(result.evaluation, REFRESHED, PREVIOUS)
    rows, total = counted(result.table.splits["train"].ads, "new training ad"), f"{refresh.ads:,}"
    yield Line("", f"Refresh {refresh.number} continued with {rows}; the served model has seen {total} ads in all.")
    if new := sum(refresh.new.values()):
        yield Line("", f"{counted(new, 'value')} got ids of their own.")


def _chosen(result: TrainResult) -> Iterator[str]:
    """Which model it is, and why."""
    choice, chosen, fit = result.choice, result.chosen, result.fits[result.chosen]
    metric, recipe, settings = result.settings.train.metric.replace("_", " "), fit.recipe, setting_words(fit.recipe)
    if choice is not None:
        many, what = size_of(choice)
        ads = f"{many:,} validation {what}"
        baseline, *others = choice.candidates
        few = {each.outcome for each in others} <= {Outcome.TOO_FEW, Outcome.SAME}
        if chosen != choice.baseline:
            lift = change(next(each for each in others if each.name == chosen), baseline.welfare).replace("+", "")
            yield f"{chosen} was chosen: on {ads} it raises welfare by {lift} over {choice.baseline}."
        elif few:
            yield f"{choice.baseline} was kept: {ads} are too few to distinguish another recipe from it."
        else:
            yield f"{choice.baseline} was kept: on {ads} no other recipe is measurably better."
    elif recipe.members > 1:
        yield f"{recipe.members} models were trained with {recipe.loss}; their mean logit is served."
    tried = 0 if result.search is None else len({each.setting for each in result.search.attempts})
    if tried > 1 and result.search is not None and result.search.leads:
        yield f"Of {tried} settings, this one had the best validation {metric}: {settings}."
    else:
        if tried > 1:
            yield f"Too few validation clicks to tell {tried} settings apart, so the safer model was chosen."
        yield f"Its settings: {settings}."
    if fit.best.epoch >= recipe.epochs and recipe.schedule == "constant":
        yield f"Validation {metric} was best after the last epoch: --set train.epochs=N allows more."


def _served(result: TrainResult) -> Iterator[str]:
    """Which model `predict` serves: the one that was tested, or its recipe trained again on all rows."""
    fit = result.fits[result.chosen]
    calibration = "without calibration"
    if (fit.slope, fit.intercept) != (1, 0):
        calibration = f"calibrated on validation ads ({calibration_words(fit)})"
    if result.refit is None:
        yield f"The tested model is served, {calibration}."
    else:
        yield f"The same recipe, trained again on all {result.refit:,} ads, is served, {calibration}."
        yield "The test measured the model before that; the served one has not been tested."


def _next(result: TrainResult) -> str:
    against, refresh = reference_line(result.evaluation, result.chosen), result.table.refresh
    if useless(result) or against.kind == "worse":
        return "Next: do not serve this model; train on more rows or on other columns."
    if refresh is not None:
        outcome = result.evaluation.welfare_pairs[REFRESHED, PREVIOUS].outcome
        if outcome is Outcome.WORSE:
            return "Next: serve the older model, and refresh it with the next rows."
        if outcome is Outcome.TOO_FEW:
            return "Next: keep serving the older model until more rows can tell which is better."
    if against.kind != "better":
        return "Next: train on more rows; these do not show that the model beats a ranking without one."
    if any(table_doubts(result.table)) or result.evaluation.doubts:
        return "Next: check the doubts above before you serve this model."
    if refresh is not None:
        return "Next: serve this model, and refresh it with the next rows."
    return "Next: predict new rows with bidwise predict, and compare them with today’s model by bidwise evaluate."


def setting_words(recipe: Recipe) -> str:
    """The settings of a model: ``deepfm, l2 0.001, 4 epochs, cosine, batch 256, rate 0.001``."""
    options = [f"{name} {setting(value)}" for name, value in recipe.options.items()]
    found = "a penalty for each column" if recipe.solved else f"l2 {ROUGHLY:g} / ads"
    penalty = found if recipe.l2 is None else f"l2 {recipe.l2:g}"
    if recipe.solved:
        return ", ".join([recipe.model, *options, penalty, "solved by L-BFGS"])
    numbers = [penalty, counted(recipe.epochs, "epoch"), recipe.schedule, f"batch {recipe.batch_size}"]
    beside = ["next to the solved regression"] if recipe.beside else []
    return ", ".join([recipe.model, *options, *numbers, f"rate {recipe.learning_rate:g}", *beside])


def calibration_words(fit: FitResult) -> str:
    """``logit × 0.931 − 0.120``."""
    return f"logit × {fit.slope:.3f} {'−' if fit.intercept < 0 else '+'} {abs(fit.intercept):.3f}"


def size_of(compared: Choice | Power) -> tuple[int, str]:
    """How many auctions, or ads, recipes were compared on."""
    return (compared.ads, "ads") if compared.auctions is None else (compared.auctions, "auctions")


def table_notes(facts: TableFacts, config: Config) -> Iterator[str]:
    """Notes on the table."""
    dropped = [column for column in facts.columns if column.use == DROPPED and column.name not in config.data.ignore]
    for column in dropped:
        yield f"The model does not see column {column.name}: {column.reason}."
    if not facts.timed:
        yield "The split is at random; models serve the future, so a split by time (--time) is the fairer test."
    if facts.auction_size is not None:
        size = facts.auction_size
        yield f"The table names no auctions: validation and test measure every possible auction of {size} ads."
        if size < config.data.auction_size:
            wanted = config.data.auction_size
            yield f"Auctions of {wanted} ads would be fewer than {AUCTIONS}, so they have {size}."
    if config.data.sampling_rate is not None:
        rate = f"{1 / config.data.sampling_rate:g}"
        yield f"Every ad without a click counts {rate} times, in training and in all measures."
    if facts.equal_bids:
        yield "All ads bid the same (--bid COLUMN): auctions rank by CTR, and welfare counts clicks."
    if facts.capped_bids:
        bids, cap = counted(facts.capped_bids, "bid"), f"{facts.bid_cap:.3g}"
        yield f"{bids} above {CAP} times the median ({facts.median_bid:.3g}): {cap} counts in training and validation."
        yield f"The largest bid is {facts.largest_bid:.3g}; in the test every bid counts in full."


def untrained(result: TrainResult) -> Iterator[str]:
    """Why no recipe was compared with the baseline."""
    if (power := result.power) is None or result.choice is not None:
        return
    if power.enough:
        yield "No other recipe was trained: a solved regression is best here, and other recipes are of networks."
    else:
        many, what = size_of(power)
        gain = "a gain" if math.isnan(power.half_width) else f"a gain below {100 * power.half_width:.2g} %"
        yield f"No other recipe was trained: {many:,} validation {what} are too few to detect {gain}."


def table_doubts(facts: TableFacts) -> Iterator[str]:
    """Reasons why a test may look better than the served model: shown before training, and again with the verdict."""
    for column, area in facts.leaks.items():
        yield f"Column {column!r} by itself predicts the clicks with an AUC of {area:.3f}. {KNOWN.format(column)}"
    for column, value in facts.telling.items():
        clicked, others = f"{100 * value.click_rate:.4g} %", f"{100 * value.others:.2g} %"
        what = f"{value.ads:,} ads with {value.value}"
        yield f"{clicked} of {what} are clicked, {others} of all others. {KNOWN.format(column)}"
    for column in placements(facts.columns):
        yield f"Column {column!r} is named like a placement, which is not known before the auction: --ignore {column}."
        yield f"To correct clicks for their slot instead: --position {column} --slots 1,0.8,0.6."
    if facts.duplicates:
        share = f"{100 * facts.duplicates / sum(part.ads for part in facts.splits.values()):.2g} %"
        rows = counted(facts.duplicates, "row")
        yield f"{rows} ({share}) equal an earlier one in all columns: were they logged twice?"
        if not facts.timed:
            yield "Without --auction and --time, copies may be both in training and in the test."
    refresh = facts.refresh
    if refresh is None:
        return
    for column, share_unknown in refresh.unknown.items():
        unknown = f"{100 * share_unknown:.0f} %"
        yield f"The previous run had not seen {unknown} of the values of {column!r}: are units and spelling the same?"
    first, until = facts.splits["train"].first, refresh.until
    if first is not None and until is not None and not _later(first, until):
        yield f"Rows from {first} on are older than the newest of the run before, {until}: are they the same rows?"


def _later(one: str, other: str) -> bool:
    """Whether one displayed time is later than another."""
    try:
        return float(one) > float(other)
    except ValueError:
        return one > other
