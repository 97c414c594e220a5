"""The page of a sweep: the choice by validation, the test of all settings, every trial, and the grid."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from bidwise.evaluation.estimate import Estimate, Outcome
from bidwise.report.drawing import Picture, Whisker, whiskers
from bidwise.report.formatting import number
from bidwise.report.loss_styles import look_of, losses_section
from bidwise.report.sections import Cell, Drawing, Run, RunPage, Section, Table, TableRow, drawings
from bidwise.report.sections import setting as words_of
from bidwise.report.sweep_sentences import (
    BETTER,
    called,
    no_baseline,
    notes,
    places,
    test_table,
    validation_table,
    verdict,
    welfare_change,
)
from bidwise.table.results import Setting, SweepResult

SHOWN = 30  # trials that are shown without a click
LETTERS = {"name": 26, "heading": 56}  # of a line of a chart, uncut


def sweep_page(run: Run, key: str) -> RunPage:
    """Which setting validation chooses, what the test says of all, and each trial."""
    result: SweepResult = run.result
    (outcome, leading), *sentences = verdict(result)
    losses = {name for trial in result.trials for name in (trial.kept, trial.loss)} - {"", "auto"}
    return RunPage(
        run.name,
        "A sweep over settings of training",
        leading,
        sentences,
        _facts(result),
        [
            _validation(result),
            _test(key, result),
            _failed(result),
            _trials(result),
            Section("The grid", terms=[(at, words_of(values)) for at, values in result.grid.items()]),
            losses_section(losses),
            Section("How to read this", points=list(notes(result))),
        ],
        outcome,
    )


def _facts(result: SweepResult) -> list[tuple[str, str]]:
    return [
        (f"{len(result.settings):,}", "settings"),
        (f"{len(result.seeds):,}", "seeds"),
        (f"{len(result.trials):,}", "trials"),
        *([(f"{len(result.failed):,}", "failed")] if result.failed else []),
    ]


def _validation(result: SweepResult) -> Section:
    metric = called(result.by)
    lead = f"The setting is chosen by validation {metric} ({BETTER[result.by]}), the mean over seeds, and nothing else."
    return Section("Chosen by validation", lead, tables=[validation_table(result)])


def _test(key: str, result: SweepResult) -> Section:
    lead = "Shown for information only: selecting by test numbers would reward luck. "
    compared = [(setting, setting.difference.welfare) for setting in result.settings if setting.difference]
    lines = [
        _line(setting, result, welfare_change(setting), 100 * found.lift, found.outcome) for setting, found in compared
    ]
    figures = []
    if lines:
        several = len(result.seeds) > 1
        over = "over seeds and over test auctions, whichever reaches farther" if several else "over test auctions"
        lead += (
            f"A line is the 95 % interval {over}; grey and hollow where it contains 0 or there are too few auctions."
        )
        title, about = f"Test welfare, against {result.baseline}", f"Difference of test welfare to {result.baseline} "
        about += "within seeds, in per cent."
        figures = _figure(f"{key}test", title, lines, f"difference of welfare, % of {result.baseline}", about)
    elif result.baseline is None:
        lead += no_baseline(result)
    return Section("On test", lead, figures=figures, tables=[test_table(result)])


def _failed(result: SweepResult) -> Section:
    rows = [(trial.name, [Cell(str(trial.failed))]) for trial in result.failed]
    lead = "The same command tries them again, and each resumes. Settings that lack a seed cannot be chosen."
    table = Table("Why", "Trial", [("Message", "")], rows, wordy=True)
    return Section("Failed trials", lead, tables=[table])


def _trials(result: SweepResult) -> Section:
    by = result.by
    rows = []
    for trial in result.finished:
        numbers = [(getattr(trial.validation, by), places(result, "validation", by))]
        numbers += [(getattr(trial.test, x), places(result, "test", x)) for x in ("welfare", "log_loss", "auc")]
        took = "" if trial.seconds is None else f"{trial.seconds:.0f} s"
        cells = [Cell(f"{trial.seed}"), *(Cell(number(x, digits)) for x, digits in numbers), Cell(took)]
        chosen = result.chosen is not None and trial.name == result.chosen.trial
        rows.append(TableRow(trial.name, cells, tags=["chosen"] if chosen else [], best=chosen))
    headings = [("Seed", ""), (f"Validation {called(by)}", "By which it is chosen."), ("Test welfare", "")]
    headings += [("Test log loss", ""), ("Test AUC", ""), ("Time", "")]
    lead = (
        "Each is a run folder of bidwise train, trials/NAME in the folder of the sweep, with a page of its own: "
        "report.html. Compare within a seed. bidwise predict takes any of them."
    )
    return Section("Trials", lead, tables=[Table("All trials", "Trial", headings, rows, folded=len(rows) > SHOWN)])


def _figure(key: str, title: str, lines: Sequence[Whisker], label: str, about: str) -> list[Drawing]:
    said = "; ".join(f"{line.name}: {line.words}" for line in lines)
    return drawings(key, Picture("", (whiskers(title, uncut(lines), label, f"{about} {said}"),)))


def _line(setting: Setting, result: SweepResult, words: str, estimate: Estimate, outcome: Outcome) -> Whisker:
    look = look_of(setting.loss)
    label = labels([each.name for each in result.settings])[setting.name]
    return Whisker.of(label, words, estimate, outcome, look.colour, look.marker)


def labels(names: Sequence[str]) -> dict[str, str]:
    """What charts call settings: their names without what all of them share.

    >>> list(labels(["log_plus, lam 1, l2 0", "log_plus, lam 3, l2 0"]).values())
    ['lam 1', 'lam 3']
    """
    parts = {name: name.split(", ") for name in names}
    shared = set.intersection(*map(set, parts.values()))
    short = {name: ", ".join(word for word in words if word not in shared) or name for name, words in parts.items()}
    return short if len(set(short.values())) == len(short) else {name: name for name in names}


def uncut(lines: Sequence[Whisker]) -> list[Whisker]:
    """Lines whose names are headings above them where one of them has no room, wrapped where one line has none."""
    if all(len(line.name) <= LETTERS["name"] for line in lines):
        return list(lines)
    wrapped = []
    for line in lines:
        wrapped += [Whisker(words) for words in textwrap.wrap(line.name, LETTERS["heading"], break_on_hyphens=False)]
        wrapped.append(replace(line, name=""))
    return wrapped
