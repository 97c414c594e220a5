"""A sweep in words, tables and a page: the choice by validation, the test of all settings, every trial, the grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bidwise.evaluation.estimate import Outcome
from bidwise.report.drawing import Whisker, whiskers
from bidwise.report.formatting import NONE, change, decimals, number
from bidwise.report.loss_styles import look_of, losses_section
from bidwise.report.sections import Cell, Run, RunPage, Section, Table, TableRow, drawing, outcome_cell
from bidwise.report.sections import setting as words_of
from bidwise.study.recipe import BASELINE, as_shown
from bidwise.table.config import METRICS
from bidwise.table.results import Mean, Setting, SweepResult

SHOWN = 30  # trials that are shown without a click
CALLED = {"welfare": "welfare", "log_loss": "log loss", "auc": "AUC", "predicted_over_observed": "pred./obs."}
BETTER = {"welfare": "higher is better", "log_loss": "lower is better", "auc": "higher is better"}
PLACES = {"log_loss": 4, "auc": 4, "predicted_over_observed": 3}  # decimals; others have five digits of the largest
CHEATING = (
    "Test numbers of all settings are shown, but choosing by them would be cheating: the best of many test numbers is "
    "partly luck, and no rows would be left to find out how much of it."
)


def sweep_page(run: Run, key: str) -> RunPage:
    """Which setting validation chooses, what the test says of all, and each trial."""
    result: SweepResult = run.result
    (outcome, leading), *sentences = verdict(result)
    losses = {name for trial in result.trials for name in (trial.kept, trial.loss)} - {"", "auto"}
    counts = {"settings": result.settings, "seeds": result.seeds, "trials": result.trials, "failed": result.failed}
    lead = f"The setting is chosen by validation {CALLED[result.by]} ({BETTER[result.by]}), the mean over seeds, alone."
    return RunPage(
        run.name,
        "A sweep over settings of training",
        leading,
        sentences,
        [(f"{len(things):,}", what) for what, things in counts.items() if things],
        [
            Section("Chosen by validation", lead, tables=[validation_table(result)]),
            _test(key, result),
            _failed(result),
            _trials(result),
            Section("The grid", terms=[(at, words_of(values)) for at, values in result.grid.items()]),
            losses_section(losses),
            Section("How to read this", points=list(notes(result))),
        ],
        outcome,
    )


def summary(result: SweepResult) -> str:
    """The settings and the verdict, as they are printed at the end."""
    lines = []
    for table in (validation_table(result), test_table(result)):
        lines += [table.caption, "", *table.text(), ""]
    return "\n".join([*lines, *(text for _, text in verdict(result)), CHEATING])


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
        against = []
        if result.baseline is not None:
            against = [Cell(NONE), Cell("baseline" if setting.name == result.baseline else NONE, word=True)]
        if setting.difference is not None:
            against = [Cell(_welfare_change(setting)), outcome_cell(setting.difference.welfare.outcome)]
        welfare, *others = _means(setting, result, "test", list(CALLED))
        rows.append(_row(setting, result, [welfare, *against, *others]))
    meaning = "In per cent, within seeds; the interval holds that over seeds and that over auctions."
    compared = [(f"Welfare against {result.baseline}", meaning), ("Outcome", "")] if result.baseline is not None else []
    headings = [("Welfare", "Mean per auction, mean over seeds."), *compared]
    headings += [(_title(metric), "") for metric in CALLED if metric != "welfare"]
    return Table(_caption("test", result), "Setting", headings, rows)


def _row(setting: Setting, result: SweepResult, cells: list[Cell]) -> TableRow:
    chosen = result.chosen is not None and setting.name == result.chosen.setting
    tags = [*(["chosen"] if chosen else []), *(["baseline"] if setting.name == result.baseline else [])]
    return TableRow(setting.name, cells, tags=tags, best=chosen)


def _means(setting: Setting, result: SweepResult, split: str, metrics: Sequence[str]) -> list[Cell]:
    return [Cell(_mean(getattr(getattr(setting, split), metric), _places(result, split, metric))) for metric in metrics]


def _mean(value: Mean, places: int) -> str:
    half = "" if math.isnan(value.ci_high) else f" ± {number(value.ci_high - value.mean, places)}"
    return number(value.mean, places) + half


def _title(metric: str) -> str:
    return CALLED[metric][0].upper() + CALLED[metric][1:]


def _caption(split: str, result: SweepResult) -> str:
    several = ", mean over seeds ± half of its 95 % interval" if len(result.seeds) > 1 else ""
    return f"Settings on {split} auctions{several}"


def _places(result: SweepResult, split: str, metric: str) -> int:
    values = (getattr(getattr(setting, split), metric).mean for setting in result.settings)
    return PLACES[metric] if metric in PLACES else decimals(values, 5)


def _welfare_change(setting: Setting) -> str:
    """The difference of test welfare to the baseline, in per cent where there is something to take them of."""
    assert setting.difference is not None
    return change(setting.difference.welfare, setting.difference.welfare.level)


def verdict(result: SweepResult) -> list[tuple[str, str]]:
    """The choice, then what the test says of it: outcomes and sentences, the headline first."""
    failed = []
    if result.failed:
        first, more = result.failed[0], f", and {len(result.failed) - 1} more" if len(result.failed) > 1 else ""
        many = f"{len(result.failed)} of {len(result.trials)} trials failed"
        failed = [("", f"{many}: {first.name} ({first.failed}){more}.")]
    best = None if result.chosen is None else result.setting(result.chosen.setting)
    if best is None:
        return [("", "No setting has finished with all of its seeds, so none is chosen."), *failed]
    metric, value = CALLED[result.by], getattr(best.validation, result.by).mean
    reached = f"{value:.5g}" + (f", the mean of {len(best.seeds)} seeds" if len(best.seeds) > 1 else "")
    shown = {each.name: as_shown(getattr(each.validation, result.by).mean) for each in result.settings if each.complete}
    tied = [name for name, mean in shown.items() if name != best.name and mean == shown[best.name]]
    if len(result.settings) == 1:
        text = f"{best.name} is the only setting: its validation {metric} is {reached}."
    elif tied:
        text = (
            f"{best.name} is chosen, but tied with {', '.join(tied)}: to the digits shown their validation {metric} is "
            f"the same, {reached}, and the first of the grid is taken."
        )
    else:
        text = f"{best.name} is chosen: its validation {metric} is the best of {len(result.settings)} settings, "
        text += f"{reached}."
    return [("", text), _tested(result, best), *failed]


def _no_baseline(result: SweepResult) -> str:
    """Why nothing is compared with the log loss."""
    if any(each.loss == BASELINE for each in result.settings):
        return f"No trial of {BASELINE} has finished to compare with."
    return f"The grid has no {BASELINE} to compare with."


def _tested(result: SweepResult, best: Setting) -> tuple[str, str]:
    welfare, baseline = f"{best.test.welfare.mean:.5g}", result.baseline
    if baseline is None:
        return "", f"On test it has welfare {welfare} per auction. {_no_baseline(result)}"
    if best.difference is None:
        return "", f"On test its welfare is {welfare} per auction."
    found, size = best.difference.welfare, _welfare_change(best)
    match found.outcome:
        case Outcome.BETTER | Outcome.WORSE:
            text = f"On test, held out from all selection, it changes welfare by {size} against {baseline}."
        case Outcome.SAME:
            text = f"On test it has the welfare of {baseline} in every auction."
        case Outcome.TOO_FEW:
            text = f"On test it changes welfare by {size} against {baseline}, in too few auctions or clicks to tell."
        case _:
            text = f"On test its welfare cannot be distinguished from that of {baseline}: {size}."
    if result.recommended == baseline:
        text += f" Keep {baseline}: nothing shows that another setting is better."
    return found.outcome, text


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
    yield (
        "Settings are compared within a seed, on the same ads and auctions, and the differences are averaged: "
        "what makes a seed's ads easy or hard cancels."
        if len(result.seeds) > 1
        else 'There is one seed: how much of a difference is luck is not known. Add seeds: "train.seed" = [0, 1, 2].'
    )
    baseline = result.setting(result.baseline)
    lacking = [seed for seed in result.seeds if baseline is not None and seed not in baseline.seeds]
    if lacking:
        seeds = f"seed{'s' if len(lacking) > 1 else ''} {', '.join(map(str, lacking))}"
        yield f"{result.baseline} lacks {seeds}, whose trials failed: differences to it are taken in the other seeds."
    compared = sum(each.difference is not None for each in result.settings)
    if compared > 1:
        yield (
            f"{compared} settings are compared with {result.baseline}, each with its own 95 % interval: of many "
            "settings with no effect about one in twenty looks better or worse by chance."
        )
    for key in result.grid:
        if all(key not in trial.settings for trial in result.trials):
            yield f"{key} means nothing to any loss or model of this grid: its values make no difference."


def _test(key: str, result: SweepResult) -> Section:
    lead = "Shown for information only: selecting by test numbers would reward luck. "
    short = labels([setting.name for setting in result.settings])
    lines = []
    for setting in result.settings:
        if setting.difference is not None:
            found, look = setting.difference.welfare, look_of(setting.loss)
            words = _welfare_change(setting)
            lines.append(
                Whisker.of(short[setting.name], words, 100 * found.lift, found.outcome, look.colour, look.marker)
            )
    figures = []
    if lines:
        lead += "A line is the 95 % interval; grey and hollow where it contains 0 or there are too few auctions."
        said = "; ".join(f"{line.name}: {line.words}" for line in lines)
        about = f"Difference of test welfare to {result.baseline} within seeds, in per cent. {said}"
        title, label = f"Test welfare, against {result.baseline}", f"difference of welfare, % of {result.baseline}"
        figures = [drawing(f"{key}test", whiskers(title, lines, label, about))]
    elif result.baseline is None:
        lead += _no_baseline(result)
    return Section("On test", lead, figures=figures, tables=[test_table(result)])


def _failed(result: SweepResult) -> Section:
    rows = [(trial.name, [str(trial.failed)]) for trial in result.failed]
    lead = "The same command tries them again, and each resumes. Settings that lack a seed cannot be chosen."
    return Section("Failed trials", lead, tables=[Table("Why", "Trial", [("Message", "")], rows, wordy=True)])


def _trials(result: SweepResult) -> Section:
    by, rows = result.by, []
    for trial in result.finished:
        numbers = [(getattr(trial.validation, by), _places(result, "validation", by))]
        numbers += [(getattr(trial.test, x), _places(result, "test", x)) for x in BETTER]
        took = "" if trial.seconds is None else f"{trial.seconds:.0f} s"
        cells = [Cell(f"{trial.seed}"), *(Cell(number(x, digits)) for x, digits in numbers), Cell(took)]
        chosen = result.chosen is not None and trial.name == result.chosen.trial
        rows.append(TableRow(trial.name, cells, tags=["chosen"] if chosen else [], best=chosen))
    headings = [
        ("Seed", ""),
        (f"Validation {CALLED[by]}", ""),
        *((f"Test {CALLED[x]}", "") for x in BETTER),
        ("Time", ""),
    ]
    lead = (
        "Each is a run folder of bidwise train, trials/NAME in the folder of the sweep, with a page of its own: "
        "report.html. Compare within a seed. bidwise predict takes any of them."
    )
    return Section("Trials", lead, tables=[Table("All trials", "Trial", headings, rows, folded=len(rows) > SHOWN)])


def labels(names: Sequence[str]) -> dict[str, str]:
    """What charts call settings: their names without what all of them share.

    >>> list(labels(["log_plus, lam 1, l2 0", "log_plus, lam 3, l2 0"]).values())
    ['lam 1', 'lam 3']
    """
    parts = {name: name.split(", ") for name in names}
    shared = set.intersection(*map(set, parts.values()))
    short = {name: ", ".join(word for word in words if word not in shared) or name for name, words in parts.items()}
    return short if len(set(short.values())) == len(short) else {name: name for name in names}
