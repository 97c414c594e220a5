"""The page of an evaluation: models, differences, segments, calibration and every comparison, to look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from bidwise.evaluation.bins import Bin
from bidwise.evaluation.comparison import Comparison
from bidwise.evaluation.estimate import Estimate, Outcome
from bidwise.evaluation.result import Evaluation
from bidwise.report.drawing import INK, Look, Panel, Whisker, looks, ticks, whiskers
from bidwise.report.evaluation_sentences import (
    AS_PREDICTIONS,
    IN_THE_AUCTION,
    leading,
    models_table,
    notes,
    segment_tables,
    verdicts,
)
from bidwise.report.formatting import decimals, number, per_cent, signed
from bidwise.report.sections import Cell, Run, RunPage, Section, Table, TableRow, drawing

DRAWN = 7  # models in a figure of curves; more cannot be distinguished
OPEN = 40  # rows of comparisons that are shown without a click
METRICS = {"log_loss": "log loss", "auc": "AUC"}


def evaluation_page(run: Run, key: str) -> RunPage:
    """The verdict, and all numbers in figures and tables."""
    evaluation: Evaluation = run.result
    sentences = verdicts(evaluation)
    sentences.sort(key=lambda sentence: (sentence.model in evaluation.twins, sentence.baseline != evaluation.baseline))
    said = [("", text) for text in leading(evaluation)]
    said += [(sentence.outcome or "", sentence.text) for sentence in sentences]
    return RunPage(
        run.name,
        f"Evaluation of {', '.join(evaluation.originals)}",
        said[0][1],
        said[1:],
        _facts(evaluation),
        [
            models_section(evaluation),
            differences_section(evaluation, key),
            _segments(evaluation, key),
            _calibration(evaluation, key),
            _comparisons(evaluation),
            notes_section(evaluation),
        ],
        said[0][0],
    )


def _facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    auctions = evaluation.auctions
    size = evaluation.options["auction_size"] if auctions is None else f"{evaluation.ads / max(auctions, 1):.3g}"
    facts = [("all", "auctions that could be drawn") if auctions is None else (f"{auctions:,}", "auctions")]
    facts.append((f"{evaluation.ads:,}", f"ads, {size} in an auction"))
    facts += [(f"{evaluation.pools:,}", "pools inside which auctions are drawn")] if evaluation.pools else []
    facts += [(f"{evaluation.clusters:,}", "clusters that intervals are taken over")] if evaluation.clusters else []
    return facts


def models_section(evaluation: Evaluation) -> Section:
    """The metrics of all models, in the auction and as predictions."""
    captions = {"In the auction": IN_THE_AUCTION, "As predictions": AS_PREDICTIONS}
    tables = [models_table(caption, measures, evaluation) for caption, measures in captions.items()]
    lead = "Welfare, revenue and surplus are means per auction."
    if evaluation.optimal_welfare is not None:
        lead += f" The highest welfare that any prediction could reach is {evaluation.optimal_welfare:.5g}."
    return Section("Models", lead, tables=tables)


def differences_section(evaluation: Evaluation, key: str) -> Section:
    """Intervals of welfare and of revenue, in per cent; before and after calibration."""
    pairs, twins = evaluation.pairs, evaluation.twins
    groups = {
        f"against {evaluation.baseline}": [p for p in pairs if p[1] == evaluation.baseline and p[0] not in twins],
        "calibrated, each against itself before": [p for p in pairs if p[1] == twins.get(p[0])],
        "calibrated, against the baseline calibrated": [p for p in pairs if p[1] in twins],
    }
    style = _style(evaluation)
    drawings = []
    for metric in ("welfare", "revenue") if pairs else ():
        rows = []
        for heading, members in groups.items():
            rows += [Whisker(heading)] if members else []
            rows += [_whisker(pairs[p][metric], style[p[0]].colour) for p in members]
        said = "; ".join(f"{row.name}: {row.words}" for row in rows if row.words)
        about = f"Difference of {metric} with 95 % intervals, in per cent of the baseline. {said}"
        panel = whiskers(metric.capitalize(), rows, f"difference of {metric}, % of the baseline", about)
        drawings.append(drawing(key + metric, panel))
    lead = (
        "Dot: estimate; line: 95 % interval. Coloured and filled where the interval excludes 0, grey and hollow "
        "where it contains 0 or there is too little to tell."
    )
    return Section("Difference to the baseline", lead, figures=drawings)


def _style(evaluation: Evaluation) -> dict[str, Look]:
    style = looks(evaluation.originals)
    return style | {twin: style[model] for twin, model in evaluation.twins.items()}


def _whisker(comparison: Comparison, colour: str) -> Whisker:
    words = _interval(comparison.lift)
    if math.isnan(comparison.relative):
        words = "not defined: the baseline has none"
    elif comparison.outcome is Outcome.TOO_FEW and comparison.lift.known:
        words += ", too few"
    return Whisker.of(comparison.model, words, 100 * comparison.lift, comparison.outcome, colour)


def _interval(lift: Estimate) -> str:
    return f"{lift:%}" if lift.known else f"{lift:%}, no finite interval"


def _segments(evaluation: Evaluation, key: str) -> Section:
    """The comparisons by segment; figures leave out those with too little to tell, whose intervals hide the others."""
    tables, style, drawings = segment_tables(evaluation), _style(evaluation), []
    for at, table in enumerate(tables):
        rows = [
            replace(_whisker(each.welfare, style[each.welfare.model].colour), name=each.value)
            for each in evaluation.segments
            if f"{each.welfare.model} against {evaluation.baseline} by {each.column}" == table.caption
            and each.welfare.outcome is not Outcome.TOO_FEW
        ]
        if rows:
            said = "; ".join(f"{row.name}: {row.words}" for row in rows)
            axis = "difference of welfare, % of the baseline’s of these ads"
            panel = whiskers(table.caption, rows, axis, f"{table.caption}. {said}")
            drawings.append(drawing(f"{key}segment{at}", panel))
    lead = (
        "The welfare that the ads of each segment bring, in the auctions of all; all segments of a column add up to "
        "the whole. The 50 values with the most ads are shown. Intervals are corrected for their number: all hold at "
        "once in 95 of 100 data sets."
    )
    return Section("Segments", lead, figures=drawings, tables=tables)


def _calibration(evaluation: Evaluation, key: str) -> Section:
    """Calibration curves and ratios by bid, before and after calibration, of the models that there is room for."""
    models, originals, style = evaluation.models, evaluation.originals, _style(evaluation)
    ranked = sorted(originals, key=lambda m: (m != evaluation.baseline, m != evaluation.best, -models[m].welfare))
    kept = [model for model in originals if model in ranked[:DRAWN]]
    left_out = [model for model in originals if model not in kept]
    groups = {
        "as predicted": kept,
        "after calibration": [twin for twin, model in evaluation.twins.items() if model in kept],
    }
    every = [models[name] for names in groups.values() for name in names]
    rates = [x for each in every for part in each.calibration_curve for x in (part.predicted, part.observed)]
    ratios = [1.0, *(part.ratio for each in every for part in each.by_bid)]
    drawings = []
    for at, (when, names) in enumerate(groups.items()):
        suffix = f", {when}" if evaluation.twins else ""
        lines = {name: models[name].calibration_curve for name in names}
        if any(lines.values()):
            panel = _calibration_curves(f"Observed against predicted CTR{suffix}", lines, style, rates)
            drawings.append(drawing(f"{key}calibration{at}", panel))
        lines = {name: models[name].by_bid for name in names}
        if any(math.isfinite(part.ratio) for line in lines.values() for part in line):
            panel = _ratios_by_bid(f"Predicted / observed clicks by bid{suffix}", lines, style, ratios)
            drawings.append(drawing(f"{key}bids{at}", panel))
    lead = (
        "A model is right on the dashed line. It overrates below the diagonal of the curves (20 bins of equal mass), "
        "and above 1 in the figures by bid."
    )
    lead += f" Not drawn, to keep the lines apart: {', '.join(left_out)}." if left_out else ""
    legend = [(model, style[model].colour, style[model].marker) for model in kept]
    return Section("Calibration", lead, legend=legend, figures=drawings)


Lines = Mapping[str, Sequence[Bin]]


def _span(numbers: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest positive number, for figures that share a scale."""
    positive = [x for x in numbers if x > 0]
    return min(positive, default=1.0), max(positive, default=1.0)


def _calibration_curves(title: str, lines: Lines, style: Mapping[str, Look], rates: Sequence[float]) -> Panel:
    """Observed against predicted CTR per bin, on the diagonal where a model is right."""
    least, most = _span(rates)
    wide = most > 20 * least and any(part.observed > 0 for line in lines.values() for part in line)
    ends = (least / 1.4, most * 1.4) if wide else (0.0, most * 1.06)

    def paint(axes: Axes) -> None:
        axes.plot(ends, ends, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        for model, line in lines.items():  # log axes show 0 at their edge
            x, y = ([max(getattr(part, of), ends[0]) for part in line] for of in ("predicted", "observed"))
            _draw(axes, x, y, style[model])
        for axis, name in ((axes.xaxis, "predicted CTR"), (axes.yaxis, "observed CTR")):
            _scaled(axis, ends, wide, lambda x, _: f"{100 * x:.4g} %")
            axis.set_label_text(name + (" (log scale)" if wide else ""))

    return Panel(title, f"{title}: {', '.join(lines)}", 3.9, paint)


def _ratios_by_bid(title: str, lines: Lines, style: Mapping[str, Look], ratios: Sequence[float]) -> Panel:
    """Predicted / observed CTR along the bids: above 1 where a model overrates."""
    least, most = _span(ratios)
    wide, room = most > 4 * least, max(0.12 * (most - least), 0.02)
    ends = (least / 1.3, most * 1.3) if wide else (least - room, most + room)

    def paint(axes: Axes) -> None:
        axes.axhline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        for model, line in lines.items():
            _draw(axes, range(1, len(line) + 1), [part.ratio for part in line], style[model])
        _scaled(axes.yaxis, ends, wide, lambda x, _: f"{x:.4g}")
        axes.set_xlim(0.5, max(map(len, lines.values()), default=1) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.set_xlabel("tenth of the ads by bid (1 = lowest bids)")
        axes.set_ylabel("predicted / observed clicks")

    return Panel(title, f"{title}: {', '.join(lines)}", 3.9, paint)


def _draw(axes: Axes, x: Sequence[float], y: Sequence[float], look: Look) -> None:
    axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.dash, alpha=0.9)


def _scaled(axis: Axis, ends: tuple[float, float], wide: bool, words: Callable[[float, int], str]) -> None:
    """An axis from end to end, with a log scale where it is wide."""
    across = axis is axis.axes.xaxis
    if wide:
        (axis.axes.set_xscale if across else axis.axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ends[1] < 300 * ends[0] else (1.0,)))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(ticks(6))
    axis.set_major_formatter(FuncFormatter(words))
    (axis.axes.set_xlim if across else axis.axes.set_ylim)(*ends)


def _comparisons(evaluation: Evaluation) -> Section:
    places = {
        metric: decimals((x for c in evaluation.of_metric(metric) for x in (c.difference, c.ci_low, c.ci_high)), 3)
        for metric in dict.fromkeys(c.metric for c in evaluation.comparisons)
    }
    rows = []
    for (model, baseline), by in evaluation.pairs.items():
        for at, (metric, c) in enumerate(by.items()):
            relative = not math.isnan(c.relative)
            count = c.changed_auctions if c.effective_clicks is None else round(c.effective_clicks)
            cells = [
                Cell(METRICS.get(metric, metric), word=True),
                Cell(_finding(c), c.outcome, word=True),
                Cell(f"{signed(c.difference, f',.{places[metric]}f')} {c.unit.removeprefix('mean ')}"),
                Cell(_interval(c.lift) if relative else f"{c:.{places[metric]}f}" if c.known else "no finite interval"),
                Cell(f"{count:,}"),
                Cell(per_cent(c.relative_smallest_lift) if relative else number(c.smallest_lift, places[metric])),
            ]
            rows.append(TableRow(f"{model} against {baseline}", cells, lines=0 if at else len(by)))
    headings = [
        ("Metric", ""),
        ("Finding", ""),
        ("Difference", "Model − baseline on the same auctions."),
        ("Relative [95 % interval]", "In per cent of the baseline."),
        ("Changed auctions", "In which the metric differs.")
        if evaluation.auctions is not None
        else ("Effective clicks", "As many clicks of one weight (ads, for log loss and AUC) would make it up."),
        ("Smallest lift", "Found in 4 of 5 data sets like this one; a smaller one is easily missed."),
    ]
    caption = f"{len(evaluation.pairs)} {'pair' if len(evaluation.pairs) == 1 else 'pairs'} of models"
    table = Table(caption, "Comparison", headings, rows, folded=len(rows) > OPEN, explained=True)
    lead = (
        f"Intervals are Student’s t over {evaluation.units}. They cover what this data can say about ads like these, "
        "not about other markets."
    )
    return Section("All comparisons", lead, tables=[table])


def _finding(comparison: Comparison) -> str:
    """Which way a metric went; for log loss also whether that is good."""
    outcome = comparison.outcome
    if not outcome.clear:
        return {"unclear": "≈ not measurable", "few": "? too few", "same": "= unchanged"}[outcome]
    way = "▲ higher" if comparison.difference > 0 else "▼ lower"
    return way if comparison.higher_is_better else f"{way} ({outcome})"


def notes_section(evaluation: Evaluation) -> Section:
    """What a reader must know to read the numbers rightly."""
    return Section("Notes", points=notes(evaluation))
