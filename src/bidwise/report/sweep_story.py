"""A sweep as a page tells it: the choice by validation, the test of all settings, every trial, and the grid."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bidwise.report.drawing import Picture, Whisker, whiskers
from bidwise.report.formatting import NONE, decimals, hundredths, number
from bidwise.report.loss_styles import in_order, look_of, loss_called
from bidwise.report.sections import OUTCOMES, Cell, Run, RunPage, Section, Table, drawings
from bidwise.report.sections import setting as words_of

Result = Mapping[str, Any]
SHOWN = 30  # trials that are shown without a click
LETTERS = {"name": 26, "heading": 56}  # of a line of a chart, uncut
METRICS = {"welfare": "welfare", "log_loss": "log loss", "auc": "AUC"}
TITLES = {"welfare": "Welfare", "log_loss": "Log loss", "auc": "AUC"}
BETTER = {"welfare": "higher is better", "log_loss": "lower is better", "auc": "higher is better"}


def sweep_story(run: Run, key: str) -> RunPage:
    """Which setting validation chooses, what the test says of all, and each trial."""
    name, result = run.name, run.result
    headline, *others = result["verdict"]
    sections = [
        _validation(key, result),
        _test(key, result),
        *_failed(result),
        _trials(result),
        Section("The grid", terms=[(at, words_of(values)) for at, values in result["grid"].items()]),
        Section("The losses", terms=[(x, loss_called(x).about) for x in _losses(result)]),
        Section("How to read this", points=result["notes"]),
    ]
    verdict = [(sentence["kind"], sentence["text"]) for sentence in others]
    return RunPage(name, "A sweep over settings of training", headline["text"], verdict, _facts(result), sections)


def _losses(result: Result) -> list[str]:
    kept = {trial.get("kept", trial["loss"]) for trial in result["trials"]}
    return in_order(kept | {trial["loss"] for trial in result["trials"] if trial["loss"] != "auto"})


def _facts(result: Result) -> list[tuple[str, str]]:
    failed = sum(trial["failed"] is not None for trial in result["trials"])
    auctions = sorted({trial["test_auctions"] for trial in result["trials"] if trial["failed"] is None})
    return [
        (f"{len(result['settings']):,}", "settings"),
        (f"{len(result['seeds']):,}", "seeds"),
        (f"{len(result['trials']):,}", "trials"),
        *([(f"{failed:,}", "failed")] if failed else []),
        *([(f"{auctions[0]:,}", "test auctions in each")] if auctions else []),
    ]


def _called(setting: Result, result: Result) -> str:
    """The setting, and what it is among the others."""
    chosen = result["chosen"] is not None and setting["name"] == result["chosen"]["setting"]
    roles = [*(["chosen"] if chosen else []), *(["baseline"] if setting["name"] == result["baseline"] else [])]
    return " · ".join([setting["name"], *roles])


def _validation(key: str, result: Result) -> Section:
    by, baseline = result["by"], result["baseline"]
    metric = METRICS[by]
    names = [by, *(other for other in ("welfare", "log_loss", "auc") if other != by)]
    rows = [
        (
            _called(setting, result),
            [
                Cell(f"{len(setting['seeds'])}"),
                *(Cell(_mean(setting["validation"][name], _places(result, "validation", name))) for name in names),
            ],
        )
        for setting in result["settings"]
    ]
    headings = [("Seeds", "That finished."), *((TITLES[x], f"Mean over seeds; {BETTER[x]}.") for x in names)]
    several = len(result["seeds"]) > 1
    table = Table("Settings on validation auctions" + _interval_words(several), "Setting", headings, rows)
    lead = f"The setting is chosen by validation {metric} ({BETTER[by]}), the mean over seeds, and by nothing else."
    figures, labels = [], _labels(result)
    lines = [
        _line(labels[setting["name"]], setting, setting["difference"]["validation"][by])
        for setting in result["settings"]
        if setting.get("difference") and setting["difference"]["validation"][by]["mean"] is not None
    ]
    if lines and several:
        said = "; ".join(f"{row.name}: {row.words}" for row in lines)
        about = f"Difference of validation {metric} to {baseline} inside of seeds, with 95 % intervals. {said}"
        label = f"difference of {metric}, {BETTER[by]}"
        panel = whiskers(f"Validation {metric}, against {baseline}", _uncut(lines), label, about)
        figures = drawings(key, Picture("validation", (panel,)))
        lead += (
            f" Differences are to {baseline} in the same seed; a line is their 95 % interval over seeds, and a mark is "
            "hollow where it holds 0."
        )
    return Section("Chosen by validation", lead, figures=figures, tables=[table])


def _test(key: str, result: Result) -> Section:
    baseline = result["baseline"]
    rows, lines, labels = [], [], _labels(result)
    for setting in result["settings"]:
        test, cells = setting["test"], []
        found = setting["difference"]["welfare"] if setting.get("difference") else None
        if baseline is not None:
            cells = [Cell(NONE), Cell("baseline" if setting["name"] == baseline else NONE)]
        if found is not None:
            change = _share(found)
            sign, words = OUTCOMES[found["outcome"]]
            kind = found["outcome"] if found["outcome"] in ("better", "worse") else "unclear"
            cells = [Cell(change), Cell(f"{sign} {words}", kind)]
            look = look_of(setting["loss"])
            ends: list[Any] = [None if found[end] is None else 100 * found[end] for end in ENDS]
            lines.append(
                Whisker(
                    labels[setting["name"]],
                    change,
                    ends[0],
                    ends[1],
                    ends[2],
                    kind != "unclear",
                    look.colour,
                    look.marker,
                )
            )
        welfare = Cell(_mean(test["welfare"], _places(result, "test", "welfare")))
        others = [
            Cell(_mean(test[x], _places(result, "test", x))) for x in ("log_loss", "auc", "predicted_over_observed")
        ]
        rows.append((_called(setting, result), [welfare, *cells, *others]))
    worth = "true CTR" if result["config"].get("data.truth") else "clicks"
    against = [
        (
            f"Welfare against {baseline}",
            "In per cent, inside of seeds; the interval holds that over seeds and that over auctions.",
        ),
        ("Outcome", "Better or worse where the interval leaves out 0."),
    ]
    headings = [
        ("Welfare", f"Bids of the ads shown times their {worth}, mean per auction, mean over seeds."),
        *(against if baseline is not None else []),
        ("Log loss", "Lower is better."),
        ("AUC", "Higher is better."),
        ("Pred./obs.", "Predicted clicks / observed clicks; 1 is right."),
    ]
    several = len(result["seeds"]) > 1
    table = Table("Settings on test auctions" + _interval_words(several), "Setting", headings, rows)
    lead = "For looking at: choosing by test numbers would be cheating, for the best of many is partly luck. "
    figures = []
    if lines:
        over = "over seeds and over test auctions, whichever reaches farther" if several else "over test auctions"
        lead += f"A line is the 95 % interval {over}; grey and hollow where it holds 0 or there are too few auctions."
        said = "; ".join(f"{row.name}: {row.words}" for row in lines)
        about = f"Difference of test welfare to {baseline} inside of seeds, in per cent. {said}"
        label = f"difference of welfare, % of {baseline}"
        panel = whiskers(f"Test welfare, against {baseline}", _uncut(lines), label, about)
        figures = drawings(key, Picture("test", (panel,)))
    elif baseline is None:
        there = any(setting["loss"] == "log_loss" for setting in result["settings"])
        lead += "No trial of log_loss has finished" if there else "The grid has no log_loss"
        lead += ", so there is no baseline to compare with."
    return Section("On test", lead, figures=figures, tables=[table])


ENDS = ("relative", "relative_ci_low", "relative_ci_high")


def _failed(result: Result) -> list[Section]:
    failed = [(trial["name"], [Cell(trial["failed"])]) for trial in result["trials"] if trial["failed"] is not None]
    if not failed:
        return []
    lead = "The same command tries them again, each from where it stopped. Settings that lack a seed cannot be chosen."
    return [Section("Failed trials", lead, tables=[Table("Why", "Trial", [("Message", "")], failed, wordy=True)])]


def _trials(result: Result) -> Section:
    by = result["by"]
    rows = []
    for trial in result["trials"]:
        if trial["failed"] is not None:
            continue
        numbers = [(trial["validation"][by], _places(result, "validation", by))]
        numbers += [(trial["test"][x], _places(result, "test", x)) for x in ("welfare", "log_loss", "auc")]
        took = "" if trial["seconds"] is None else f"{trial['seconds']:.0f} s"
        cells = [Cell(f"{trial['seed']}"), *(Cell(number(x, places)) for x, places in numbers), Cell(took)]
        mark = " · chosen" if result["chosen"] and trial["name"] == result["chosen"]["trial"] else ""
        rows.append((trial["name"] + mark, cells))
    headings = [("Seed", ""), (f"Validation {METRICS[by]}", "By which it is chosen."), ("Test welfare", "")]
    headings += [("Test log loss", ""), ("Test AUC", ""), ("Time", "")]
    lead = (
        "Each is a run folder of bidwise train, trials/NAME in the folder of the sweep, with a page of its own: "
        "report.html. Compare inside of a seed; other seeds have other luck. bidwise predict takes any of them."
    )
    return Section("Trials", lead, tables=[Table("All trials", "Trial", headings, rows, folded=len(rows) > SHOWN)])


def _places(result: Result, split: str, metric: str) -> int:
    if metric in ("log_loss", "auc"):
        return 4
    if metric == "predicted_over_observed":
        return 3
    return decimals((setting[split][metric]["mean"] for setting in result["settings"]), 5)


def _mean(found: Result, places: int) -> str:
    if found["mean"] is None or found["ci_low"] is None:
        return number(found["mean"], places)
    return f"{number(found['mean'], places)} ± {number(found['ci_high'] - found['mean'], places)}"


def _interval_words(several: bool) -> str:
    return ", mean over seeds ± half of its 95 % interval" if several else ""


def _labels(result: Result) -> dict[str, str]:
    """What charts call the settings: their names without what all of them share.

    >>> names = ["log_plus, lam 1, l2 0", "log_plus, lam 3, l2 0"]
    >>> list(_labels({"settings": [{"name": name} for name in names]}).values())
    ['lam 1', 'lam 3']
    """
    parts = {setting["name"]: setting["name"].split(", ") for setting in result["settings"]}
    shared = set.intersection(*map(set, parts.values()))
    labels = {name: ", ".join(x for x in words if x not in shared) or name for name, words in parts.items()}
    return labels if len(set(labels.values())) == len(labels) else {name: name for name in parts}


def _uncut(lines: Sequence[Whisker]) -> list[Whisker]:
    """Lines whose names are headings above them where one of them has no room, wrapped where one line has none."""
    if all(len(line.name) <= LETTERS["name"] for line in lines):
        return list(lines)
    found = []
    for line in lines:
        found += [Whisker(words) for words in textwrap.wrap(line.name, LETTERS["heading"], break_on_hyphens=False)]
        found.append(replace(line, name=""))
    return found


def _line(label: str, setting: Result, found: Result) -> Whisker:
    """A difference over seeds, as a line of a figure."""
    ends = [found[end] for end in ("mean", "ci_low", "ci_high")]
    places = decimals(ends, 2)
    centre, low, high = (number(x, places, sign=True) for x in ends)
    clear = found["ci_low"] is not None and not found["ci_low"] <= 0 <= found["ci_high"]
    look = look_of(setting["loss"])
    return Whisker(label, f"{centre} [{low}, {high}]", ends[0], ends[1], ends[2], clear, look.colour, look.marker)


def _share(found: Result) -> str:
    centre, low, high = (found[end] for end in ENDS)
    if centre is None:
        return NONE
    if low is None or high is None:
        return f"{hundredths(centre)} %, too few auctions for an interval"
    return f"{hundredths(centre)} % [{hundredths(low)}, {hundredths(high)}]"
