"""What a sweep says: which setting validation chooses, what the test says of it, all settings, and what to know."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bidwise.evaluation.comparison import Comparison
from bidwise.evaluation.estimate import Outcome
from bidwise.report.formatting import NONE, change, decimals, number
from bidwise.report.sections import Cell, Table, TableRow, outcome_cell
from bidwise.study.recipe import BASELINE, as_shown
from bidwise.table.config import METRICS
from bidwise.table.results import Mean, Setting, SweepResult

BETTER = {"welfare": "higher is better", "log_loss": "lower is better", "auc": "higher is better"}
PLACES = {"log_loss": 4, "auc": 4, "predicted_over_observed": 3}  # decimals; others have five digits of the largest
CHEATING = (
    "Test numbers of all settings are shown, but choosing by them would be cheating: the best of many test numbers is "
    "partly luck, and no rows would be left to find out how much of it."
)


def called(metric: str) -> str:
    """A metric in words: ``log_loss -> log loss``."""
    return "AUC" if metric == "auc" else metric.replace("_", " ")


def validation_table(result: SweepResult) -> Table:
    """All settings on validation auctions, by the metric that chooses first."""
    metrics = [result.by, *(metric for metric in METRICS if metric != result.by)]
    rows = [
        _row(setting, result, [Cell(f"{len(setting.seeds)}"), *_means(setting, result, "validation", metrics)])
        for setting in result.settings
    ]
    titles = [(_title(metric), f"Mean over seeds; {BETTER[metric]}.") for metric in metrics]
    return Table(_caption("validation", result), "Setting", [("Seeds", "That finished."), *titles], rows)


def test_table(result: SweepResult) -> Table:
    """All settings on test auctions, and against the baseline."""
    rows = []
    for setting in result.settings:
        against: list[Cell] = []
        if result.baseline is not None:
            against = [Cell(NONE), Cell("baseline" if setting.name == result.baseline else NONE, word=True)]
        if setting.difference is not None:
            against = [Cell(welfare_change(setting)), outcome_cell(setting.difference.welfare.outcome)]
        welfare, *others = _means(setting, result, "test", ["welfare", "log_loss", "auc", "predicted_over_observed"])
        rows.append(_row(setting, result, [welfare, *against, *others]))
    worth = "true CTR" if "data.truth" in result.config else "clicks"
    against_headings = [
        (
            f"Welfare against {result.baseline}",
            "In per cent, within seeds; the interval holds that over seeds and that over auctions.",
        ),
        ("Outcome", "Better or worse where the interval excludes 0."),
    ]
    headings = [
        ("Welfare", f"Bids of the ads shown times their {worth}, mean per auction, mean over seeds."),
        *(against_headings if result.baseline is not None else []),
        ("Log loss", "Lower is better."),
        ("AUC", "Higher is better."),
        ("Pred./obs.", "Predicted clicks / observed clicks; 1 is right."),
    ]
    return Table(_caption("test", result), "Setting", headings, rows)


def _row(setting: Setting, result: SweepResult, cells: list[Cell]) -> TableRow:
    chosen = result.chosen is not None and setting.name == result.chosen.setting
    tags = [*(["chosen"] if chosen else []), *(["baseline"] if setting.name == result.baseline else [])]
    return TableRow(setting.name, cells, tags=tags, best=chosen)


def _means(setting: Setting, result: SweepResult, split: str, metrics: Sequence[str]) -> list[Cell]:
    return [Cell(_mean(getattr(getattr(setting, split), metric), places(result, split, metric))) for metric in metrics]


def _mean(value: Mean, decimals: int) -> str:
    if math.isnan(value.ci_high):
        return number(value.mean, decimals)
    return f"{number(value.mean, decimals)} ± {number(value.ci_high - value.mean, decimals)}"


def _title(metric: str) -> str:
    return called(metric)[0].upper() + called(metric)[1:]


def _caption(split: str, result: SweepResult) -> str:
    several = ", mean over seeds ± half of its 95 % interval" if len(result.seeds) > 1 else ""
    return f"Settings on {split} auctions{several}"


def places(result: SweepResult, split: str, metric: str) -> int:
    """Decimals of a metric in tables."""
    values = (getattr(getattr(setting, split), metric).mean for setting in result.settings)
    return PLACES[metric] if metric in PLACES else decimals(values, 5)


def welfare_change(setting: Setting) -> str:
    """The difference of test welfare to the baseline, in per cent where there is something to take them of."""
    assert setting.difference is not None
    return change(setting.difference.welfare, setting.difference.welfare.level)


def verdict(result: SweepResult) -> list[tuple[str, str]]:
    """The choice, then what the test says of it: outcomes and sentences, the headline first."""
    best = None if result.chosen is None else result.setting(result.chosen.setting)
    if best is None:
        return [("", "No setting has finished with all of its seeds, so none is chosen."), *_failed(result)]
    metric, value = called(result.by), getattr(best.validation, result.by).mean
    reached = f"{value:.5g}" + (f", the mean of {len(best.seeds)} seeds" if len(best.seeds) > 1 else "")
    tied = _tied(result, best)
    if len(result.settings) == 1:
        text = f"{best.name} is the only setting: its validation {metric} is {reached}."
    elif tied:
        among = f"{', '.join(tied[:3])}{f' and {len(tied) - 3} more' if len(tied) > 3 else ''}"
        text = (
            f"{best.name} is chosen, but tied with {among}: to the digits shown their validation {metric} is the "
            f"same, {reached}, and the first of the grid is taken."
        )
    else:
        text = f"{best.name} is chosen: its validation {metric} is the best of {len(result.settings)} settings, "
        text += f"{reached}."
    return [("", text), _tested(result, best), *_failed(result)]


def _tied(result: SweepResult, best: Setting) -> list[str]:
    """The other settings that could be chosen as well."""
    shown = {each.name: as_shown(getattr(each.validation, result.by).mean) for each in result.settings if each.complete}
    return [name for name, mean in shown.items() if name != best.name and mean == shown[best.name]]


def no_baseline(result: SweepResult) -> str:
    """Why nothing is compared with the log loss."""
    if any(each.loss == BASELINE for each in result.settings):
        return f"No trial of {BASELINE} has finished to compare with."
    return f"The grid has no {BASELINE} to compare with."


def _lacking(result: SweepResult) -> list[int]:
    """Seeds that the baseline lacks: its differences are in the others alone."""
    baseline = result.setting(result.baseline)
    return [] if baseline is None else [seed for seed in result.seeds if seed not in baseline.seeds]


def _tested(result: SweepResult, best: Setting) -> tuple[str, str]:
    welfare, baseline = f"{best.test.welfare.mean:.5g}", result.baseline
    if baseline is None:
        return "", f"On test it has welfare {welfare} per auction. {no_baseline(result)}"
    if best.difference is None:
        if len(result.settings) == 1:
            return "", f"On test its welfare is {welfare} per auction."
        kind = "loss" if len({each.loss for each in result.settings}) > 1 else "setting"
        return "", f"No other {kind} was better on validation; on test its welfare is {welfare}."
    found, size = best.difference.welfare, welfare_change(best)
    tuned = sum(each.loss == BASELINE for each in result.settings) > 1
    against = baseline + (f", the best {BASELINE} by validation" if tuned else "")
    if _lacking(result):
        against += f" (in {_seed_words(best.difference.seeds)}, which both have)"
    match found.outcome:
        case Outcome.BETTER | Outcome.WORSE:
            text = f"On test, held out from all selection, it changes welfare by {size} against {against}."
        case Outcome.SAME:
            text = f"On test it has the welfare of {against} in every auction."
        case Outcome.TOO_FEW:
            text = f"On test it changes welfare by {size} against {against}, but {_rests_on(found.auctions)}: too few."
        case _:
            text = f"On test its welfare cannot be distinguished from that of {against}: {size}."
    if result.recommended == baseline:
        text += f" Keep {baseline}: nothing shows that another setting is better."
    return found.outcome, text


def _rests_on(test: Comparison) -> str:
    if test.effective_clicks is not None:
        return f"that rests on {test.effective_clicks:.1f} effective clicks of a seed"
    return f"shows other ads in only {test.decisive_auctions:,} of a seed's auctions"


def _failed(result: SweepResult) -> list[tuple[str, str]]:
    failed = result.failed
    if not failed:
        return []
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return [("", f"{len(failed)} of {len(result.trials)} trials failed: {failed[0].name} ({failed[0].failed}){more}.")]


def notes(result: SweepResult) -> Iterator[str]:
    """What a reader must know to read the numbers."""
    yield CHEATING
    parts = "the initial weights and the batches"
    yield (
        f"A seed decides {parts}; the split goes by time and is the same for all seeds, so an interval over seeds says "
        "nothing about other test ads, and that over test auctions does."
        if result.timed
        else f"A seed decides the random split into training, validation and test ads, {parts}. Splits of one table "
        "share most of their ads: an interval over seeds is narrower than one over new tables would be."
    )
    if _lacking(result):
        yield (
            f"{result.baseline} lacks {_seed_words(_lacking(result))}, whose trials failed: differences to it are "
            "taken in the other seeds alone. The same command tries them again."
        )
    yield (
        "Settings are compared within a seed, on the same ads and auctions, and the differences are averaged: "
        "what makes a seed's ads easy or hard cancels."
        if len(result.seeds) > 1
        else "There is one seed: how much of a difference is luck of the initial weights, and of the split where it is "
        'random, is not known. Add seeds: "train.seed" = [0, 1, 2].'
    )
    if result.by == "log_loss" and any(each.loss != BASELINE for each in result.settings):
        yield (
            "The choice is by validation log loss, which is what log_loss is trained for: it is at an advantage. "
            "--by welfare chooses by what auctions are for; with few validation auctions that is mostly chance."
        )
    compared = sum(each.difference is not None for each in result.settings)
    if compared > 1:
        yield (
            f"{compared} settings are compared with {result.baseline}, each with its own 95 % interval: of many "
            "settings with no effect about one in twenty looks better or worse by chance. The chosen one was chosen "
            "by validation alone."
        )
    for key in result.grid:
        if all(key not in trial.settings for trial in result.trials):
            yield f"{key} means nothing to any loss or model of this grid: its values make no difference."


def _seed_words(seeds: Sequence[int]) -> str:
    """``[0] -> "seed 0"``, ``[0, 2] -> "seeds 0, 2"``."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def summary(result: SweepResult) -> str:
    """The settings and the verdict, as they are printed at the end."""
    lines = []
    for table in (validation_table(result), test_table(result)):
        lines += [table.caption, "", *table.text(), ""]
    return "\n".join([*lines, *(text for _, text in verdict(result)), CHEATING])
