"""The page of an evaluation: verdict and models, sizes, segments, calibration and every comparison, to look at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bidwise.evaluation.comparison import Comparison
from bidwise.evaluation.estimate import Estimate, Outcome
from bidwise.evaluation.metrics import ModelMetrics
from bidwise.evaluation.result import Evaluation
from bidwise.report.drawing import INK, Look, Panel, Whisker, looks, ticks, whiskers
from bidwise.report.evaluation_sentences import breakdowns, models_table, more_table, notes, verdict
from bidwise.report.formatting import decimals, number, per_cent, signed
from bidwise.report.sections import Cell, Drawing, Run, RunPage, Section, Table, TableRow, drawing

DRAWN = 7  # models in a figure of curves; more cannot be distinguished
SIZES = "Every possible auction of each size, with the same ads."
SEGMENTS = (
    "The welfare that the ads of each value bring, in the auctions of all ads. At most 50 values are shown. "
    "Intervals are corrected for their number: all cover at once in 95 of 100 data sets."
)
OPEN = 40  # rows of comparisons that are shown without a click
_METRICS = {"log_loss": "log loss", "auc": "AUC"}


def evaluation_page(run: Run, key: str) -> RunPage:
    """The verdict, one picture and the table of models; then all numbers in figures and tables."""
    evaluation: Evaluation = run.result
    (outcome, first), *lines = verdict(evaluation)
    by_size, by_segment = breakdowns(evaluation)
    return RunPage(
        run.name,
        f"Evaluation of {', '.join(evaluation.models)}",
        first,
        lines,
        facts(evaluation),
        [
            Section("Size of the auction", SIZES, tables=by_size),
            Section("Segments", SEGMENTS, tables=by_segment),
            _calibration(evaluation, key),
            _comparisons(evaluation),
            Section("Notes", points=notes(evaluation)),
        ],
        outcome,
        [welfare_drawing(evaluation, key)],
        [models_table(evaluation)],
    )


def facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    """How much was measured."""
    size = evaluation.options.get("auction_size") or f"{evaluation.ads / max(evaluation.auctions or 0, 1):.3g}"
    found = [("every", "possible auction") if evaluation.auctions is None else (f"{evaluation.auctions:,}", "auctions")]
    found += [(f"{evaluation.ads:,}", "ads"), (f"{size}", "ads in an auction")]
    found += [(f"{evaluation.clusters:,}", "clusters")] if evaluation.clusters else []
    return [*found, (f"{evaluation.models[evaluation.baseline].clicks:,}", "clicks")]


def welfare_drawing(evaluation: Evaluation, key: str, model: str = "") -> Drawing:
    """Intervals of welfare: models against the baseline; of a single model, against rankings that need none."""
    base, style = evaluation.baseline, looks(list(evaluation.models))
    if len(evaluation.models) > 1 and not model:
        against = [each for each in evaluation.of_metric("welfare") if each.baseline == base]
        rows = [Whisker(f"against {base}"), *(_whisker(each, style[each.model].colour) for each in against)]
    else:
        model = model or base
        against = [each for each in evaluation.against if each.model == model]
        rows = [replace(_whisker(each, style[model].colour), name=each.baseline) for each in against]
        rows.insert(0, Whisker(f"{model} against"))
    return drawing(key + "welfare", whiskers("Welfare", rows, "difference of welfare, %"))


def _whisker(comparison: Comparison, colour: str) -> Whisker:
    words = _interval(comparison.lift)
    if math.isnan(comparison.relative):
        words = "not defined: the baseline has none"
    elif comparison.outcome is Outcome.TOO_FEW and comparison.lift.known:
        words += ", too few"
    return Whisker.of(comparison.model, words, 100 * comparison.lift, comparison.outcome, colour)


def _interval(lift: Estimate) -> str:
    return f"{lift:%}" if lift.known else f"{lift:%}, no finite interval"


def _calibration(evaluation: Evaluation, key: str) -> Section:
    """Calibration curves of the models that there is room for."""
    models, style = evaluation.models, looks(list(evaluation.models))
    ranked = sorted(models, key=lambda m: (m != evaluation.baseline, m != evaluation.best, -models[m].welfare))
    kept = {name: each for name, each in models.items() if name in ranked[:DRAWN]}
    figures = []
    if any(each.calibration_curve for each in kept.values()):
        figures = [drawing(f"{key}calibration", _calibration_curves(kept, style))]
    lead = "A model is right on the dashed line, and overestimates below it."
    if len(models) > DRAWN:
        lead += f" {len(models) - DRAWN} models are not drawn, to keep the lines apart."
    legend = [(model, style[model].colour, style[model].marker) for model in kept]
    return Section("Calibration", lead, legend=legend, figures=figures)


def _calibration_curves(models: Mapping[str, ModelMetrics], style: Mapping[str, Look]) -> Panel:
    """Observed against predicted CTR per bin, on the diagonal if a model is right."""
    rates = [x for each in models.values() for b in each.calibration_curve for x in (b.predicted, b.observed)]
    least, most = min((x for x in rates if x > 0), default=1.0), max(rates)
    wide = most > 20 * least and any(part.observed > 0 for each in models.values() for part in each.calibration_curve)
    ends = (least / 1.4, most * 1.4) if wide else (0.0, most * 1.06)

    def paint(axes: Axes) -> None:
        axes.plot(ends, ends, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        for model, each in models.items():  # log axes show 0 at their edge
            x, y = ([max(getattr(b, of), ends[0]) for b in each.calibration_curve] for of in ("predicted", "observed"))
            look = style[model]
            axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.dash, alpha=0.9)
        for axis, name in ((axes.xaxis, "predicted CTR"), (axes.yaxis, "observed CTR")):
            axis.set_label_text(name + (" (log scale)" if wide else ""))
        if wide:
            axes.loglog()
        for axis in (axes.xaxis, axes.yaxis):
            subs = (1.0, 2.0, 5.0) if ends[1] < 300 * ends[0] else (1.0,)
            axis.set_major_locator(LogLocator(subs=subs) if wide else ticks(6))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:.4g} %"))
        axes.set(xlim=ends, ylim=ends)

    title = "Observed against predicted CTR"
    return Panel(title, f"{title}: {', '.join(models)}", 3.9, paint)


def _comparisons(evaluation: Evaluation) -> Section:
    """Every metric of every pair."""
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
                Cell(_METRICS.get(metric, metric), word=True),
                Cell(_finding(c), c.outcome, word=True),
                Cell(f"{signed(c.difference, f',.{places[metric]}f')} {c.unit.removeprefix('mean ')}"),
                Cell(_interval(c.lift) if relative else f"{c:.{places[metric]}f}" if c.known else "no finite interval"),
                Cell(f"{count:,}"),
                Cell(per_cent(c.relative_smallest_lift) if relative else number(c.smallest_lift, places[metric])),
            ]
            rows.append(TableRow(f"{model} against {baseline}", cells, lines=0 if at else len(by)))
    changed = ("Effective clicks", "Clicks of equal weight that would make it up; ads, for log loss and AUC.")
    if evaluation.auctions is not None:
        changed = ("Changed auctions", "Auctions in which the metric differs.")
    headings = [
        ("Metric", ""),
        ("Finding", ""),
        ("Difference", "Model − baseline on the same auctions."),
        ("Relative [95 % interval]", "In per cent of the baseline."),
        changed,
        ("Smallest lift", "A true change of this size would be detected 80 % of the time."),
    ]
    caption = f"{len(evaluation.pairs)} {'pair' if len(evaluation.pairs) == 1 else 'pairs'} of models"
    table = Table(caption, "Comparison", headings, rows, folded=len(rows) > OPEN, explained=True)
    lead = f"Intervals are Student’s t over {evaluation.units}, for ads like these."
    return Section("More measures", lead, tables=[more_table(evaluation), table])


def _finding(comparison: Comparison) -> str:
    """Which way a metric went; for log loss also whether that is good."""
    outcome = comparison.outcome
    if not outcome.clear:
        return {"unclear": "≈ not measurable", "few": "? too few", "same": "= unchanged"}[outcome]
    way = "▲ higher" if comparison.difference > 0 else "▼ lower"
    return way if comparison.higher_is_better else f"{way} ({outcome})"
