"""The page of an evaluation: models, differences, calibration and every comparison, for people to look at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from markupsafe import Markup

from bidwise.evaluation.comparison import Comparison
from bidwise.evaluation.estimate import NONE, Estimate, Outcome
from bidwise.evaluation.result import Evaluation
from bidwise.report import evaluation_figures as figures
from bidwise.report.drawing import Look, Whisker, looks, whiskers
from bidwise.report.evaluation_sentences import clipped, concentrated, headline, notes, segment_tables, verdicts
from bidwise.report.formatting import decimals, number, per_cent, signed
from bidwise.report.sections import Cell, Drawing, Run, RunPage, Section, Table, TableRow, drawing

DRAWN = 7  # models in a figure of curves; more cannot be distinguished
OPEN = 40  # rows of comparisons that are shown without a click
METRICS = {"welfare": "welfare", "revenue": "revenue", "surplus": "surplus", "log_loss": "log loss", "auc": "AUC"}


class Column(NamedTuple):
    """A column of the table of models: ``digits`` significant ones of its largest number, or fixed ``decimals``."""

    key: str
    heading: str
    meaning: str
    decimals: int | None = None
    digits: int = 5


IN_THE_AUCTION = (
    Column(
        "welfare", "Welfare", "Bids of the ads shown times their clicks, mean per auction: what ranking by eCPM is for."
    ),
    Column("revenue", "Revenue", "What the advertisers of the shown ads pay, mean per auction."),
    Column("surplus", "Surplus", "Welfare − revenue: what is left to the advertisers, mean per auction."),
    Column("share_of_optimum", "Share of optimum", "Welfare / the most that any prediction could reach."),
    Column("regret", "Regret", "Welfare that the best prediction would add, mean per auction.", digits=4),
    Column(
        "winners_predicted_over_observed",
        "Winners’ pred./obs.",
        "Predicted / observed clicks of the ads shown, weighted by bid: winning selects what was overrated.",
        3,
    ),
    Column(
        "rank_agreement",
        "Rank agreement",
        "Share of pairs inside auctions that predicted eCPM orders as their value.",
        4,
    ),
)
AS_PREDICTIONS = (
    Column("auc", "AUC", "Chance that a clicked ad is predicted above an unclicked one, over all ads.", 4),
    Column("auc_in_auctions", "gAUC", "AUC inside each auction, averaged: ads that never compete do not count.", 4),
    Column("log_loss", "Log loss", "Mean −log of the probability given to what happened; lower is better.", 4),
    Column(
        "normalised_entropy", "Norm. entropy", "Log loss / that of always predicting the mean CTR; below 1 beats it.", 4
    ),
    Column("brier", "Brier", "Mean squared error of the predicted CTR; lower is better.", digits=4),
    Column(
        "calibration_error", "Calib. error", "Mean |predicted − observed CTR| over 20 bins of equal mass.", digits=3
    ),
    Column("predicted_over_observed", "Pred./obs.", "Predicted clicks / observed clicks; above 1 overrates.", 3),
)
TO_AVERAGE = "Welfare − mean welfare of all models, per auction, ± its standard error: what all models share cancels."


def evaluation_page(run: Run, key: str) -> RunPage:
    """The verdict, and all numbers in figures and tables."""
    evaluation: Evaluation = run.result
    sentences = verdicts(evaluation)
    sentences.sort(key=lambda sentence: (sentence.model in evaluation.twins, sentence.baseline != evaluation.baseline))
    first = [("", text) for text in (concentrated(evaluation), headline(evaluation)) if text]
    said: list[tuple[str, str]] = [*first, *((sentence.outcome or "", sentence.text) for sentence in sentences)]
    (outcome, leading), verdict = said[0], said[1:]
    verdict += [("", text) for text in clipped(evaluation)]
    style = looks(evaluation.originals)
    style |= {twin: style[model] for twin, model in evaluation.twins.items()}
    return RunPage(
        run.name,
        f"Evaluation of {', '.join(evaluation.originals)}",
        leading,
        verdict,
        _facts(evaluation),
        [
            models_section(evaluation),
            differences_section(evaluation, key),
            segments_section(evaluation, key),
            _calibration(evaluation, key, style),
            _distributions(evaluation, key, style),
            _comparisons(evaluation),
            notes_section(evaluation),
            _method(evaluation),
        ],
        outcome,
    )


def _against_baseline(evaluation: Evaluation) -> list[Comparison]:
    return [each for each in evaluation.of_metric("welfare") if each.baseline == evaluation.baseline]


def _facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    first = _against_baseline(evaluation)
    made_of = [c for c in first if c.model not in evaluation.twins] or first
    counts = sorted({round(c.effective_clicks or c.decisive_auctions or 0) for c in made_of})
    span = "–".join(f"{n:,}" for n in dict.fromkeys((*counts[:1], *counts[-1:])))
    auctions, size = evaluation.auctions, evaluation.options.auction_size
    decisive = "effective clicks that decide" if auctions is None else "auctions where the models show different ads"
    each = f"{evaluation.ads / max(auctions, 1):.3g} in an auction" if auctions is not None else f"{size} in an auction"
    return [
        *([(f"{auctions:,}", "auctions")] if auctions is not None else [("all", "auctions that could be drawn")]),
        (f"{evaluation.ads:,}", f"ads, {each}"),
        *([(span, decisive)] if span else []),
        *([(f"{evaluation.pools:,}", "pools inside which auctions are drawn")] if evaluation.pools else []),
        *([(f"{evaluation.clusters:,}", "clusters that intervals draw anew")] if evaluation.clusters else []),
        *([(f"{evaluation.ads_left_out:,}", "ads left out")] if evaluation.ads_left_out else []),
        *(
            [("realised", "welfare and revenue: from logged clicks")]
            if evaluation.welfare_of == "clicks"
            else [("expected", "welfare and revenue: under the true CTR")]
        ),
    ]


def models_section(evaluation: Evaluation) -> Section:
    """The metrics of all models, in the auction and as predictions."""
    to_average = (
        [("Difference to average", TO_AVERAGE, _to_average(evaluation))] if len(evaluation.originals) > 1 else []
    )
    lead = "Welfare, revenue and surplus are means per auction."
    if evaluation.optimal_welfare is not None:
        lead += f" The highest welfare that any prediction could reach is {evaluation.optimal_welfare:.5g}."
    tables = [
        _models_table(evaluation, "In the auction", [*map(partial(_column, evaluation), IN_THE_AUCTION), *to_average]),
        _models_table(evaluation, "As predictions", [*map(partial(_column, evaluation), AS_PREDICTIONS)]),
    ]
    return Section("Models", lead, tables=tables)


def _models_table(evaluation: Evaluation, caption: str, columns: list[tuple[str, str, list[str]]]) -> Table:
    columns = [column for column in columns if any(column[2])]
    rows = []
    for at, model in enumerate(evaluation.models):
        best = model == evaluation.best and len(evaluation.models) > 1
        tags = [*(["★ highest welfare"] if best else []), *(["baseline"] if model == evaluation.baseline else [])]
        rows.append(TableRow(model, [Cell(cells[at]) for _, _, cells in columns], tags=tags, best=best))
    return Table(caption, "Model", [(title, meaning) for title, meaning, _ in columns], rows, explained=True)


def _column(evaluation: Evaluation, column: Column) -> tuple[str, str, list[str]]:
    """Heading, meaning and cells, with as many decimals as the largest number needs; empty where none has a number."""
    values = [getattr(each, column.key) for each in evaluation.models.values()]
    places = decimals(values, column.digits) if column.decimals is None else column.decimals
    cells = [per_cent(x) if column.key == "share_of_optimum" else number(x, places) for x in values]
    return column.heading, column.meaning, cells if any(x is not None for x in values) else []


def _to_average(evaluation: Evaluation) -> list[str]:
    gaps = [each.difference_to_average for each in evaluation.models.values()]
    places = decimals((x for gap in gaps if gap for x in (gap.welfare, gap.standard_error)), 3)
    cells = []
    for gap in gaps:
        error = "" if gap is None or math.isnan(gap.standard_error) else f" ± {number(gap.standard_error, places)}"
        cells.append("" if gap is None else number(gap.welfare, places, sign=True) + error)
    return cells


def differences_section(evaluation: Evaluation, key: str) -> Section:
    """Intervals of welfare and of revenue, in per cent; before and after calibration."""
    pairs, twins = evaluation.pairs, evaluation.twins
    groups = {
        f"against {evaluation.baseline}": [p for p in pairs if p[1] == evaluation.baseline and p[0] not in twins],
        "calibrated, each against itself before": [p for p in pairs if p[1] == twins.get(p[0])],
        "calibrated, against the baseline calibrated": [p for p in pairs if p[1] in twins],
    }
    style = looks(evaluation.originals)
    drawings = []
    for metric in ("welfare", "revenue") if pairs else ():
        rows = []
        for heading, members in groups.items():
            rows += [Whisker(heading)] if members else []
            rows += [_whisker(pairs[p][metric], style[twins.get(p[0], p[0])].colour) for p in members]
        said = "; ".join(f"{row.name}: {row.words}" for row in rows if row.words)
        about = f"Difference of {metric} with 95 % intervals, in per cent of the baseline. {said}"
        panel = whiskers(metric.capitalize(), rows, f"difference of {metric}, % of the baseline", about)
        drawings.append(drawing(key + metric, panel))
    return Section(
        "Difference to the baseline",
        "Dot: estimate; line: 95 % interval. Coloured and filled where the interval excludes 0, grey and hollow "
        "where it contains 0 or there is too little to tell.",
        figures=drawings,
        tables=[_calibrated(evaluation)] if twins else [],
    )


def segments_section(evaluation: Evaluation, key: str) -> Section:
    """The comparisons by segment, as figures and tables."""
    drawings, style = [], looks(evaluation.originals)
    for at, table in enumerate(segment_tables(evaluation)):
        rows = [
            replace(_whisker(each.welfare, style[each.welfare.model].colour), name=each.value)
            for each in evaluation.segments
            if f"{each.welfare.model} against {evaluation.baseline} by {each.column}" == table.caption
        ]
        rows = [
            row for row in rows if not row.words.endswith("too few")
        ] or rows  # their intervals would hide the others
        said = "; ".join(f"{row.name}: {row.words}" for row in rows)
        axis = "difference of welfare, % of the baseline’s of these ads"
        drawings.append(drawing(f"{key}segment{at}", whiskers(table.caption, rows, axis, f"{table.caption}. {said}")))
    lead = (
        "The welfare that the ads of each segment bring, in the auctions of all; all segments of a column add up to "
        "the whole. The figure leaves out segments with too little to tell. Intervals are corrected for the number of "
        "segments: all hold at once in 95 of 100 data sets."
    )
    return Section("Segments", lead, figures=drawings, tables=segment_tables(evaluation))


def _whisker(comparison: Comparison, colour: str) -> Whisker:
    words = _interval(comparison.lift)
    if math.isnan(comparison.relative):
        words = "not defined: the baseline has none"
    elif comparison.outcome is Outcome.TOO_FEW and comparison.lift.known:
        words += ", too few"
    return Whisker.of(comparison.model, words, 100 * comparison.lift, comparison.outcome, colour)


def _interval(lift: Estimate) -> str:
    return f"{lift:%}" if lift.known else f"{lift:%}, no finite interval"


def _calibrated(evaluation: Evaluation) -> Table:
    """Before and after calibration: per metric a line for each model."""
    rows = []
    for metric, heading in (("welfare", "Welfare"), ("revenue", "Revenue"), ("calibration_error", "Calibration error")):
        values = {model: getattr(each, metric) for model, each in evaluation.models.items()}
        places = decimals(values.values(), 5)
        for at, (twin, model) in enumerate(evaluation.twins.items()):
            before, after = values[model], values[twin]
            comparison = evaluation.pairs[twin, model].get(metric)
            change = per_cent((after - before) / before, sign=True) if before else NONE
            cells = [
                Cell(model, word=True),
                *(Cell(number(x, places)) for x in (before, after)),
                Cell(change if comparison is None or math.isnan(comparison.relative) else _interval(comparison.lift)),
            ]
            rows.append(TableRow(heading, cells, lines=0 if at else len(evaluation.twins)))
    headings = [("Model", ""), ("Before", ""), ("After", ""), ("Change [95 % interval]", "")]
    return Table("Before and after calibration", "Metric", headings, rows)


def _calibration(evaluation: Evaluation, key: str, style: Mapping[str, Look]) -> Section:
    """Calibration curves and ratios by bid, before and after calibration, of the models that there is room for."""
    models, originals = evaluation.models, evaluation.originals
    ranked = sorted(originals, key=lambda m: (m != evaluation.baseline, m != evaluation.best, -models[m].welfare))
    kept = [model for model in originals if model in ranked[:DRAWN]]
    left_out = [model for model in originals if model not in kept]
    groups = {
        "as predicted": kept,
        "after calibration": [twin for twin, model in evaluation.twins.items() if model in kept],
    }
    drawn_models = [name for names in groups.values() for name in names]
    curves = [part for name in drawn_models for part in models[name].calibration_curve]
    bids = [part for name in drawn_models for part in models[name].by_bid]
    calibration = figures.span(x for part in curves for x in (part.predicted, part.observed))
    ratios = figures.span(part.ratio for part in bids)
    drawings = []
    for at, (when, names) in enumerate(groups.items()):
        suffix = f", {when}" if evaluation.twins else ""
        if any(models[name].calibration_curve for name in names):
            by_ctr = {name: models[name].calibration_curve for name in names}
            title = f"Observed against predicted CTR{suffix}"
            panel = figures.calibration_curves(title, by_ctr, style, calibration)
            drawings.append(drawing(f"{key}calibration{at}", panel))
        if any(math.isfinite(part.ratio) for name in names for part in models[name].by_bid):
            by_bid = {name: models[name].by_bid for name in names}
            panel = figures.ratios_by_bid(f"Predicted / observed clicks by bid{suffix}", by_bid, style, ratios)
            drawings.append(drawing(f"{key}bids{at}", panel))
    lead = (
        "A model is right on the dashed line. It overrates below the diagonal of the curves (20 bins of equal mass), "
        "and above 1 in the figures by bid."
    )
    lead += f" Not drawn, to keep the lines apart: {', '.join(left_out)}." if left_out else ""
    legend = [(model, style[model].colour, style[model].marker) for model in kept]
    return Section("Calibration", lead, legend=legend, figures=drawings)


def _distributions(evaluation: Evaluation, key: str, style: Mapping[str, Look]) -> Section:
    what = "auctions" if evaluation.auctions is not None else "clicks"
    lead = (
        f"The change of welfare by {what}, where there is one. A mean that rests on a few {what} far out is not to be "
        "trusted."
    )
    drawings = [
        _distribution(f"{key}spread{at}", comparison, style[comparison.model], what)
        for at, comparison in enumerate(_against_baseline(evaluation))
        if comparison.distribution is not None
    ]
    return Section("Where the difference comes from", lead, figures=drawings)


def _distribution(key: str, comparison: Comparison, look: Look, what: str) -> Drawing:
    """One comparison's histogram over auctions or clicks, and what it says in words."""
    spread = comparison.distribution
    assert spread is not None
    moved, same = sum(spread.auctions), spread.unchanged
    text = f"Welfare is the same in {same:,} of {same + moved:,} auctions"
    if what == "clicks":
        text = f"{same:,} of {same + moved:,} clicks count the same"
    title = f"{comparison.model} against {comparison.baseline}"
    if not moved or spread.edges[0] >= spread.edges[-1]:
        return Drawing(title, Markup(), text=f"{text}.")
    lost = sum(n for n, end in zip(spread.auctions, spread.edges[1:], strict=True) if end <= 0)
    won = sum(n for n, start in zip(spread.auctions, spread.edges[:-1], strict=True) if start >= 0)
    near = moved - lost - won
    if what == "clicks":
        text += f", {lost:,} count less and {won:,} more" + (f", {near:,} barely differ." if near else ".")
    else:
        text += f", lower in {lost:,} and higher in {won:,}" + (f", barely changed in {near:,}." if near else ".")
    about = f"Distribution over {what} of the change of welfare, {title}. {text}"
    return drawing(key, figures.distribution(title, about, spread, look, what), text)


def _comparisons(evaluation: Evaluation) -> Section:
    pairs = evaluation.pairs
    of_metric = {m: [by[m] for by in pairs.values() if m in by] for m in METRICS}
    places = {
        m: decimals((x for c in own for x in (c.difference, c.ci_low, c.ci_high)), 3) for m, own in of_metric.items()
    }
    rows = []
    for (model, baseline), by in pairs.items():
        for at, (metric, c) in enumerate(by.items()):
            show = partial(signed, spec=f",.{places[metric]}f")
            relative = not math.isnan(c.relative)
            lift = per_cent(c.relative_smallest_lift) if relative else number(c.smallest_lift, places[metric])
            cells = [
                Cell(METRICS.get(metric, metric), word=True),
                Cell(_finding(c), c.outcome, word=True),
                Cell(f"{show(c.difference)} {c.unit.removeprefix('mean ')}"),
                Cell(_interval(c.lift) if relative else f"{c:.{places[metric]}f}" if c.known else "no finite interval"),
                *(Cell(f"{n:,}") for n in (c.decisive_auctions, c.changed_auctions) if n is not None),
                *([] if c.effective_clicks is None else [Cell(f"{c.effective_clicks:,.0f}")]),
                *([] if evaluation.concentrated else [Cell(lift)]),
            ]
            rows.append(TableRow(f"{model} against {baseline}", cells, lines=0 if at else len(by)))
    headings = [
        ("Metric", ""),
        ("Finding", ""),
        ("Difference", "Model − baseline on the same auctions."),
        ("Relative [95 % interval]", "In per cent of the baseline."),
        *(
            [("Decisive auctions", "The two show different ads."), ("Changed auctions", "The metric differs.")]
            if evaluation.auctions is not None
            else [("Effective clicks", "As many clicks of one weight (ads, for log loss and AUC) would make it up.")]
        ),
        *([] if evaluation.concentrated else [("Smallest lift", "Found in 4 of 5 data sets like this one.")]),
    ]
    caption = f"{len(pairs)} {'pair' if len(pairs) == 1 else 'pairs'} of models"
    table = Table(caption, "Comparison", headings, rows, folded=len(rows) > OPEN, explained=True)
    return Section("All comparisons", tables=[table] if rows else [])


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


def _method(evaluation: Evaluation) -> Section:
    how = (
        "Every model’s predictions ran the same auctions. Intervals are 95 % intervals by the symmetric studentised "
        "bootstrap over auctions: auctions are drawn anew, and the difference of two models is measured against its "
        "own standard error each time."
        if evaluation.auctions is not None
        else "Welfare and revenue are means over every auction that could be drawn from the ads, computed in closed "
        "form from the ranks of their eCPM. Intervals are 95 % intervals by the jackknife: how much the difference "
        "would change without each ad, or without each pool or cluster."
    )
    paragraphs = [
        f"{how} An interval holds what this data can say about ads like these; it knows nothing of other weeks or "
        "other markets. Of ads with the same eCPM each is as likely to be shown.",
        "The smallest lift is the difference that would have been found in 4 of 5 data sets like this one. A true "
        "difference below it can easily be missed.",
    ]
    return Section("How this was made", paragraphs=paragraphs if evaluation.comparisons else [])
