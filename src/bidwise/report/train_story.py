"""A model trained on a user's table, as a page tells it: choice, columns, learning curves, test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from bidwise.evaluation.result import Evaluation
from bidwise.report.curves import named_lines
from bidwise.report.drawing import Panel, Picture, Whisker, whiskers
from bidwise.report.evaluation_page import differences_section, models_section
from bidwise.report.evaluation_sentences import headline, notes, verdicts
from bidwise.report.fit_page import BestEpoch, fit_curves, mean_of
from bidwise.report.formatting import NONE, decimals, number, signed
from bidwise.report.loss_styles import look_of, loss_called
from bidwise.report.sections import OUTCOMES, Cell, Run, RunPage, Section, Table, drawings
from bidwise.typed_json import from_json

Result = Mapping[str, Any]
SPLITS = {"train": "training", "valid": "validation", "test": "test"}
KINDS = {"better": "better", "worse": "worse"}  # outcome -> colour of its cell; all others are unclear


def train_story(run: Run, key: str) -> RunPage:
    """Which loss was kept and why, what the columns were taken for, how training went, and what the test rows say."""
    name, result = run.name, run.result
    headline, *others = result["verdict"]
    told = [(sentence["kind"], sentence["text"]) for sentence in others]
    sections = [
        *([_contest(key, result)] if result["contest"] else []),
        _curves(key, result),
        _test(key, result),
        _columns(result),
        _splits(result),
        Section("The losses", terms=[(loss, loss_called(loss).about) for loss in result["fits"]]),
    ]
    if result["notes"]:
        sections.append(Section("Notes", points=result["notes"]))
    return RunPage(name, "A model trained on a table", headline["text"], told, _facts(result), sections)


def _facts(result: Result) -> list[tuple[str, str]]:
    return [
        (f"{result['splits']['train']['ads']:,}", "training ads"),
        (f"{result['evaluation']['ads']:,}", "test ads"),
        (f"{result['evaluation']['auctions']:,}", "test auctions"),
        (f"{len(result['fields'])}", "columns that the model sees"),
        (f"{result['parameters']:,}", "parameters"),
    ]


def _contest(key: str, result: Result) -> Section:
    contest = result["contest"]
    base = contest["candidates"][0]["welfare"]
    scale = 100 / base if base else 1.0
    unit = f"% of {contest['baseline']}" if base else "per auction"
    places = decimals((entry["welfare"] for entry in contest["candidates"]), 5)
    lines, rows = [], []
    for entry in contest["candidates"]:
        mark = ", chosen" if entry["name"] == result["chosen"] else ""
        if entry["name"] == contest["baseline"]:
            rows.append(
                (entry["name"] + mark, [Cell(number(entry["welfare"], places)), *[Cell(NONE)] * 2, Cell("baseline")])
            )
            continue
        centre, low, high = (_scaled(entry[end], scale) for end in ("difference", "ci_low", "ci_high"))
        words, look = _interval(centre, low, high), look_of(entry["name"])
        sign, outcome = OUTCOMES[entry["outcome"]]
        clear = entry["outcome"] in KINDS
        lines.append(Whisker(entry["name"], words, centre, low, high, clear, look.colour, look.marker))
        cells = [Cell(number(entry["welfare"], places)), Cell(words), Cell(f"{entry['changed_auctions']:,}")]
        rows.append((entry["name"] + mark, [*cells, Cell(f"{sign} {outcome}", KINDS.get(entry["outcome"], "unclear"))]))
    said = "; ".join(f"{row.name}: {row.words}" for row in lines)
    about = f"Difference of validation welfare to {contest['baseline']} with corrected intervals, {unit}. {said}"
    panel = whiskers("Validation welfare", lines, f"difference of welfare, {unit}", about)
    headings = [
        ("Welfare", "Mean per auction, from logged clicks."),
        (f"Against {contest['baseline']}, {unit}", "With its corrected interval."),
        ("Auctions that differ", "Auctions in which the two models have different welfare."),
        ("Outcome", ""),
    ]
    lead = (
        f"Every loss trained a model on the same ads. Half of the validation auctions chose each model’s epoch; the "
        f"other {contest['auctions']:,} compared the losses. Each interval has level {100 * contest['level']:.4g} %, "
        f"so that all hold at once in 95 of 100 contests; {contest['baseline']} is kept unless an interval is above 0."
    )
    table = Table("The contest of losses, on validation auctions", "Loss", headings, rows)
    return Section("Which loss?", lead, figures=drawings(key, Picture("contest", (panel,))), tables=[table])


def _scaled(number: float | None, scale: float) -> float | None:
    return None if number is None else scale * number


def _interval(centre: float | None, low: float | None, high: float | None) -> str:
    if centre is None:
        return NONE
    if low is None or high is None:
        return f"{signed(centre)}, no finite interval"
    return f"{signed(centre)} [{signed(low)}, {signed(high)}]"


def _curves(key: str, result: Result) -> Section:
    metric, fits = result["metric"], result["fits"]
    panels: tuple[Panel, ...] = ()
    if len(fits) > 1:
        panels = (_together(metric, fits),)
    chosen = fits[result["chosen"]]
    panels += fit_curves(chosen["history"], {name: BestEpoch(**found) for name, found in chosen["best"].items()}).panels
    rows = []
    for name, found in fits.items():
        best = found["best"][metric]
        reached, epoch = mean_of(best["value"]), mean_of(best["epoch"])
        rows.append((name, [Cell(f"{epoch:g}"), Cell(f"{found['epochs']:g}"), Cell(f"{reached:.5g}")]))
    words = metric.replace("_", " ")
    in_bids = "; bids are in units of their mean" if metric == "welfare" else ""
    headings = [("Best epoch", ""), ("Epochs trained", ""), (f"Validation {words}", "At the best epoch.")]
    return Section(
        "Over the epochs",
        f"The epoch is chosen by {words} on validation auctions{in_bids}. Loss and rings: {result['chosen']}.",
        figures=drawings(key, Picture("epochs", panels)),
        tables=[Table("Best epochs", "Loss", headings, rows)],
    )


def _together(metric: str, fits: Mapping[str, Result]) -> Panel:
    """The metric of all models over their epochs."""
    words = metric.replace("_", " ")
    lines = {}
    for name, found in fits.items():
        values = [mean_of(entry.get(metric)) for entry in found["history"]]
        lines[name] = ([entry["epoch"] for entry in found["history"]], [math.nan if y is None else y for y in values])
    ends = "; ".join(f"{name}: {ys[-1]:.5g} at last" for name, (_, ys) in lines.items() if ys)

    def paint(axes: Axes) -> None:
        named_lines(axes, lines, {name: look_of(name) for name in lines})
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.5g}".replace("-", "−")))
        axes.set_ylabel(f"validation {words}")

    return Panel(f"Validation {words}, all losses", f"Validation {words} over epochs. {ends}.", 3.2, paint)


def _test(key: str, result: Result) -> Section:
    """The evaluation in short; its own page has more."""
    found = from_json(Evaluation, result["evaluation"])
    differences = differences_section(found, f"{key}test-")
    told = headline(found) or verdicts(found)[0].text
    lead = f"{told} More, with calibration curves, on evaluation/report.html in the run folder."
    tables = [*models_section(found).tables, *differences.tables]
    return Section("On test ads", lead, figures=differences.figures, tables=tables, points=notes(found))


def _columns(result: Result) -> Section:
    rows = []
    for column in result["columns"]:
        ids = result["fields"].get(column["name"])
        cells = [
            Cell(column["use"]),
            Cell(f"{column['values']:,}" if column["values"] else NONE),
            Cell(f"{column['missing']:.1%}" if column["missing"] else NONE),
            Cell(NONE if ids is None else f"{ids:,}"),
            Cell(column["reason"]),
        ]
        rows.append((column["name"], cells))
    headings = [
        ("Used as", ""),
        ("Values", "Different values in the table."),
        ("Missing", "Share of the rows without a value."),
        ("Ids", "What the model tells apart: rare, missing, and each frequent value or bin."),
        ("Why", ""),
    ]
    lead = (
        f"Values seen less than {result['min_count']} times in training count as rare; numbers are cut into bins of "
        "equally many training ads."
    )
    return Section(
        "Columns", lead, tables=[Table("What each column was taken for", "Column", headings, rows, wordy=True)]
    )


def _splits(result: Result) -> Section:
    timed = "from" in result["splits"]["train"]
    rows = []
    for name, part in result["splits"].items():
        size = result["auction_size"]
        auctions = part["auctions"] if size is None or name == "train" else part["ads"] // size
        cells = [
            Cell(f"{part['ads']:,}"),
            Cell(NONE if auctions is None else f"{auctions:,}"),
            Cell(f"{part['click_rate']:.2%}"),
            *([Cell(part["from"]), Cell(part["to"])] if timed else []),
        ]
        rows.append((SPLITS.get(name, name), cells))
    headings = [("Ads", ""), ("Auctions", ""), ("Clicked", ""), *([("From", ""), ("To", "")] if timed else [])]
    lead = "Oldest to newest; auctions are never cut." if timed else "At random; auctions are never cut."
    return Section("Splits", lead, tables=[Table("Training, validation and test", "Split", headings, rows)])
