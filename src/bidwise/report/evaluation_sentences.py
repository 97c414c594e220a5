"""The sentences of an evaluation: doubts, the verdict, the table of models, notes. Every sentence has its own string.

`tests/test_sentences.py` finds the sentences of this package by their full stops and collects an example of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from bidwise.evaluation.comparison import CHANGED, DECISIVE, EFFECTIVE, Comparison
from bidwise.evaluation.estimate import NONE, Estimate, Outcome
from bidwise.evaluation.intervals import digits_of
from bidwise.evaluation.metrics import ModelMetrics, Reference
from bidwise.evaluation.result import AT_RANDOM, BEST, BY_BID, DETECTED, Evaluation, Segment
from bidwise.report.formatting import counted, decimals, number
from bidwise.report.sections import Cell, Table, TableRow, outcome_cell

FEW_CLUSTERS = 30
ABSURD = 100  # medians; the cap of bids in training too
SAME = 1e-9  # standard deviation of log bids that are equal, but for rounding
HEAVY = 1.5  # standard deviation of log bids; at 2, intervals covered the truth in 80 % of one simulated market
NAMED = 3  # models in a sentence
RANKINGS = {BY_BID: "ranking by the highest bid", AT_RANDOM: "showing random ads", BEST: "the best possible ranking"}
WITH_INTERVALS = {  # metric -> heading and meaning; each model has an interval
    "welfare": ("Welfare", "Bids of the ads shown times their clicks, mean per auction, ± half the 95 % interval."),
    "revenue": ("Revenue", "Payments for the ads shown, mean per auction."),
    "auc": ("AUC", "Probability that a clicked ad is predicted above an unclicked one."),
    "log_loss": ("Log loss", "Mean −log of the probability given to the outcome; lower is better."),
}
_SHORT: dict[str, tuple[str, str, int]] = {  # metric -> heading, meaning, decimals
    "normalised_entropy": (
        "Norm. entropy",
        "Log loss / log loss of always predicting the mean CTR; below 1 beats it.",
        3,
    ),
    "predicted_over_observed": ("Pred./obs.", "Predicted clicks / observed clicks; above 1 overestimates.", 3),
}
_MORE: dict[str, tuple[str, str, int | None]] = {  # without decimals: five digits of the largest
    "surplus": ("Surplus", "Welfare − revenue: the advertisers' part, mean per auction.", None),
    "winners_predicted_over_observed": (
        "Winners’ pred./obs.",
        "Predicted / observed clicks of the ads shown, weighted by bid: winning selects overestimates.",
        3,
    ),
    "auc_in_auctions": ("gAUC", "AUC inside each auction, averaged: ads that never compete do not count.", 4),
    "calibration_error": ("Calib. error", "Mean |predicted − observed CTR| over 20 bins of equal mass.", 4),
}
CHANGE = [("Change of welfare", "In per cent of the baseline's welfare of these ads."), ("Finding", "")]
FINDINGS = {
    Outcome.BETTER: "{} raises welfare by {} against {}.",
    Outcome.WORSE: "{} lowers welfare by {} against {}.",
    Outcome.UNCLEAR: "{} does not change welfare measurably: {} against {}.",
}


class Line(NamedTuple):
    """A line of a verdict; ``kind`` is an outcome, "doubt" or empty."""

    kind: str
    text: str


def summary(evaluation: Evaluation) -> str:
    """The verdict, the table of models and the notes, as the terminal shows them."""
    clicks = counted(evaluation.models[evaluation.baseline].clicks, "click")
    counts = f"{counted(evaluation.ads, 'ad')} with {clicks} in {auctions_counted(evaluation)}"
    lines = [*(line.text for line in verdict(evaluation)), "", counts, "", *models_table(evaluation).text(), ""]
    for table in chain(*breakdowns(evaluation)):
        lines += [table.caption, "", *table.text(), ""]
    return "\n".join([*lines, *(f"Note: {note}" for note in notes(evaluation))])


def models_table(evaluation: Evaluation) -> Table:
    """All models and references: welfare with its interval, the change against the baseline, predictions."""
    models, base = evaluation.models, evaluation.baseline
    rows: dict[str, ModelMetrics | Reference] = {**models, **evaluation.references}
    tags: dict[str, list[str]] = {base: ["baseline"]} if len(models) > 1 else {}
    if evaluation.best is not None:
        tags[evaluation.best] = ["★ best", *tags.get(evaluation.best, [])]
    headings = [*WITH_INTERVALS.values(), *((heading, meaning) for heading, meaning, _ in _SHORT.values())]
    headings.insert(1, (f"Against {base}", "Change of welfare in per cent, with its 95 % interval."))
    widest = {
        metric: max((x.intervals[metric].half for x in models.values()), default=0.0) for metric in WITH_INTERVALS
    }
    places = {metric: digits_of(half) for metric, half in widest.items() if half > 0}
    lines = []
    for name, row in rows.items():
        levels = {metric: interval.text(places.get(metric)) for metric, interval in row.intervals.items()}
        cells = [Cell(levels.get(metric, NONE)) for metric in WITH_INTERVALS]
        cells.insert(1, _against(evaluation, name))
        cells += [Cell(number(getattr(row, key, None), digits)) for key, (_, _, digits) in _SHORT.items()]
        shown = name if name in models else f"({name})"
        lines.append(TableRow(shown, cells, tags=tags.get(name, ()), best=name == evaluation.best))
    return Table("Models", "Model", headings, lines, explained=True)


def _against(evaluation: Evaluation, name: str) -> Cell:
    """The change of welfare of a model or a reference against the baseline, if they were compared."""
    found = evaluation.welfare_pairs.get((name, evaluation.baseline))
    if found is None:
        return Cell(NONE)
    return Cell(f"{found.lift:%}", found.outcome if found.outcome.clear and name in evaluation.models else "")


def more_table(evaluation: Evaluation) -> Table:
    """Further metrics of the models."""
    shown, rows = {}, evaluation.models
    for key, (heading, meaning, digits) in _MORE.items():
        values = [getattr(each, key) for each in rows.values()]
        if any(x is not None and math.isfinite(x) for x in values):
            places = decimals(values, 5) if digits is None else digits
            shown[heading, meaning] = [Cell(number(x, places)) for x in values]
    lines = [TableRow(name, [cells[at] for cells in shown.values()]) for at, name in enumerate(rows)]
    return Table("More about the models", "Model", list(shown), lines, explained=True)


def auctions_counted(evaluation: Evaluation) -> str:
    """The auctions: real ones, or every possible one of a size."""
    if evaluation.auctions is not None:
        return counted(evaluation.auctions, "auction")
    return f"every possible auction of {evaluation.options['auction_size']}"


def verdict(evaluation: Evaluation) -> list[Line]:
    """Doubts first; then how good the models are, against each other and against rankings without a model."""
    lines = [Line("doubt", text) for text in doubts(evaluation)]
    if evaluation.optimal_welfare:
        lines.append(Line("", share_of_optimum(evaluation)))
    if len(evaluation.models) > 2:
        lines.append(Line("", headline(evaluation)))
    lines += [*comparison_lines(evaluation), reference_line(evaluation, evaluation.baseline)]
    return lines + [Line("", text) for text in _sizes(evaluation)]


def reference_line(evaluation: Evaluation, model: str) -> Line:
    """The welfare of a model with its interval, against a ranking that needs no model."""
    reference = BY_BID if BY_BID in evaluation.references else AT_RANDOM
    found = evaluation.welfare_pairs[model, reference]
    if found.outcome is Outcome.SAME:
        return Line("same", f"{model} shows the same ads as {RANKINGS[reference]}.")
    level = str(evaluation.models[model].intervals["welfare"])
    if evaluation.models[model].welfare == found.difference == 0:
        return Line(found.outcome, f"No ad that {model} shows was clicked: its welfare is 0.")
    size, other = _size(found, sign=True), RANKINGS[reference]
    text = f"{model} brings a welfare of {level} per auction, {size} against {other}."
    if found.outcome is Outcome.TOO_FEW:
        what = "auctions" if found.effective_clicks is None else "clicks"
        text += f" This rests on too few {what}."
    return Line(found.outcome, text)


def comparison_lines(evaluation: Evaluation, *only: str) -> list[Line]:
    """A line for each model against the baseline, and for the best against the second."""
    models = evaluation.models
    leaders = set(sorted(models, key=lambda model: -models[model].welfare)[:2])
    lines = []
    for welfare, revenue in zip(evaluation.of_metric("welfare"), evaluation.of_metric("revenue"), strict=True):
        shown = evaluation.baseline == welfare.baseline or set(welfare.pair) == leaders
        if shown and (not only or set(only) & set(welfare.pair)):
            lines.append(Line(welfare.outcome, " ".join(_compared(welfare, revenue, evaluation))))
    return lines


def share_of_optimum(evaluation: Evaluation, model: str = "") -> str:
    """How near a model, or the best one and the baseline, come to the best possible ranking."""
    models, base = evaluation.models, evaluation.baseline
    best = model or max(models, key=lambda name: models[name].welfare)
    share = _share(evaluation.lift(best, BEST))
    if best == base or model:
        return f"{best} reaches {share} of the optimal welfare."
    other = _share(evaluation.lift(base, BEST))
    return f"{best} reaches {share} of the optimal welfare, {base} {other}."


def _share(lift: Estimate) -> str:
    """``97.5 % [96.9, 98.1]`` of a difference of −2.5 %."""
    places = max(lift.digits - 2, 1)
    numbers = [f"{100 * (1 + x):.{places}f}" for x in (lift.difference, lift.ci_low, lift.ci_high) if math.isfinite(x)]
    return f"{numbers[0]} % [{', '.join(numbers[1:])}]" if len(numbers) == 3 else f"{numbers[0]} %"


def doubts(evaluation: Evaluation) -> Iterator[str]:
    """Why the verdict may mislead, one line each."""
    if evaluation.concentrated:
        few, what = evaluation.concentration, "ad" if evaluation.auctions is None else "auction"
        share = f"{100 * few.share:.0f} %"
        brings, base = "brings" if few.count == 1 else "bring", evaluation.baseline
        ads = counted(few.count, what)
        yield f"{ads} {brings} {share} of the welfare of {base}, and the verdict rests on that."
        if evaluation.largest_bid > ABSURD:
            yield "Are some bids absurd? Remove their rows and compare again."
    options = evaluation.options
    if len(options["slots"]) > 1 and "position" not in options and evaluation.welfare_of == "clicks":
        yield "Clicks count as if all ads had been in the first slot: is --position missing?"
    for doubt in evaluation.doubts:
        yield DOUBTS[doubt.kind].format(
            model=doubt.model,
            other=doubt.other,
            value=f"{doubt.value:.4g}",
            missing="--weight" if doubt.value < 1 else "--sampling-rate",
            clicks=f"Only {counted(doubt.count, 'click')}" if doubt.count else "No click",
            rows=counted(doubt.count, "row"),
            ads=counted(evaluation.ads, "ad"),
            where="the table" if evaluation.auctions is None else "its auction",
        )


DOUBTS = {
    "few_clicks": "{clicks} in {ads}: too few to judge a model.",
    "copies": "{rows} repeat an earlier one of {where} in bid, click and predictions: were they logged twice?",
    "sampled": "Ads without a click weigh {value} times as much, so auctions lack rivals: leave --auction out.",
    "truth_is_click": "The true CTR equals the clicks: is it a probability?",
    "truth_off": "The true CTR adds up to {value} times the observed clicks: is it the right column?",
    "too_good": "{model} has an AUC of {value}, which is too good to be true: did it see these clicks?",
    "constant": "{model} predicts {value} for every ad: bids decide, and by GSP a winner pays the next bid.",
    "equal_bids": "{model} predicts {value} for every ad and all bid the same: winners are random and pay their bid.",
    "same": "{model} and {other} have the same predictions: is a column named twice?",
    "units": "{model} predicts {value} times the observed clicks: are its predictions {other}?",
    "off": "{model} predicts {value} times the observed clicks: is {missing} missing or wrong?",
    "sigmoid_twice": "{model} looks like the sigmoid of a CTR: was it applied twice?",
}


def headline(evaluation: Evaluation) -> str:
    """Which of several models leads, and which others cannot be distinguished from it."""
    models = evaluation.models
    best = max(models, key=lambda model: models[model].welfare)
    if all(each.welfare == models[best].welfare for each in models.values()):
        return "All models have the same welfare."
    lost = {each.worse for each in evaluation.of_metric("welfare") if best in each.pair} - {"", best}
    surely = listed([model for model in models if model in lost])
    maybe = listed([model for model in models if model not in lost | {best}])
    if not surely:
        return f"{best} has the highest welfare; {maybe} cannot be distinguished from it."
    if not maybe:
        return f"{best} has the highest welfare, measurably higher than {surely}."
    return f"{best} has the highest welfare, measurably higher than {surely}; {maybe} cannot be distinguished from it."


def _compared(welfare: Comparison, revenue: Comparison, evaluation: Evaluation) -> Iterator[str]:
    model, baseline, clicks = welfare.model, welfare.baseline, welfare.effective_clicks
    if welfare.outcome is Outcome.SAME:
        if clicks is None:
            yield f"{model} shows the same ads as {baseline} in every auction."
        else:
            yield f"{model} ranks all clicked ads as {baseline} does."
    elif welfare.outcome is Outcome.TOO_FEW and clicks is not None:
        few = f"{clicks:.1f}" if clicks < EFFECTIVE else "no"
        what = f"Too few clicks to compare {model} with {baseline}"
        yield f"{what}: the difference rests on {few} effective clicks, {EFFECTIVE} are needed."
    elif welfare.outcome is Outcome.TOO_FEW and (welfare.decisive_auctions or 0) < DECISIVE:
        few, what = f"{welfare.decisive_auctions:,}", f"Too few auctions to compare {model} with {baseline}"
        yield f"{what}: they show different ads in {few}, {DECISIVE} are needed."
    elif welfare.outcome is Outcome.TOO_FEW:
        few, what = f"{welfare.changed_auctions:,}", f"Too few clicks to compare {model} with {baseline}"
        yield f"{what}: welfare differs in {few} auctions, {CHANGED} are needed."
    else:
        yield FINDINGS[welfare.outcome].format(model, _size(welfare), baseline)
    if welfare.outcome is Outcome.TOO_FEW:
        return
    if revenue.outcome is Outcome.UNCLEAR:
        yield f"Revenue does not change measurably ({_size(revenue)})."
    elif revenue.outcome.clear:
        way = "rises" if revenue.difference > 0 else "falls"
        yield f"Revenue {way} by {_size(revenue)}."
    if welfare.outcome is Outcome.UNCLEAR and not evaluation.concentrated:
        share = welfare.relative_smallest_lift
        lift = f"{100 * share:.2f} %" if math.isfinite(share) else f"{welfare.smallest_lift:.3g} per auction"
        yield f"With this much data, a true change of {lift} would be detected 80 % of the time."


def _size(comparison: Comparison, *, sign: bool = False) -> str:
    """In per cent of the baseline, or in units if the baseline has none; without a ``sign`` if a verb has it."""
    share = math.isfinite(comparison.relative)
    estimate: Estimate = comparison.lift if share else comparison
    bare = comparison.outcome.clear and not sign
    if bare and comparison.difference < 0:
        estimate = -estimate
    text = f"{estimate:%}" if share else f"{estimate} per auction"
    return text.replace("+", "") if bare else text


def breakdowns(evaluation: Evaluation) -> tuple[list[Table], list[Table]]:
    """The models compared by size of the auction, if none was named, and by segment."""
    by_size, groups = [], dict[tuple[str, str], list[Segment]]()
    for at, first in enumerate(evaluation.sizes[0].comparisons if evaluation.sizes else ()):
        caption = f"{first.model} against {first.baseline} by size of the auction"
        rows = [
            (f"{size.ads} ads", [str(size.welfare[first.model]), *_change(size.comparisons[at])])
            for size in evaluation.sizes
        ]
        by_size.append(Table(caption, "Auctions of", [("Welfare", ""), *CHANGE], rows))
    for segment in evaluation.segments:
        groups.setdefault((segment.column, segment.welfare.model), []).append(segment)
    by_segment = []
    for (column, model), segments in groups.items():
        rows = [(each.value, [f"{each.ads:,}", f"{each.clicks:,}", *_change(each.welfare)]) for each in segments]
        caption = f"{model} against {evaluation.baseline} by {column}"
        by_segment.append(Table(caption, column, [("Ads", ""), ("Clicks", ""), *CHANGE], rows))
    return by_size, by_segment


def _change(comparison: Comparison) -> list[Cell | str]:
    return [f"{comparison.lift:%}" if comparison.lift.known else NONE, outcome_cell(comparison.outcome)]


def _sizes(evaluation: Evaluation) -> Iterator[str]:
    if not evaluation.sizes:
        return
    size = evaluation.options["auction_size"]
    yield f"The table names no auctions: every possible auction of {size} ads counts; --auction-size sets another size."
    judged = listed([str(each.ads) for each in evaluation.sizes if each.enough], most=len(evaluation.sizes))
    change = f"{100 * DETECTED:.0f} %"
    if all(each.outcome is Outcome.SAME for size in evaluation.sizes for each in size.comparisons):
        yield "The models rank all clicked ads alike in auctions of every size."
    elif judged:
        yield f"These ads can detect a change of {change} in auctions of {judged} ads."
    else:
        yield f"These ads are too few to detect a change of {change} in auctions of any size."


def notes(evaluation: Evaluation) -> list[str]:
    """Notes needed to read the numbers correctly."""
    return [*_notes_on_data(evaluation), *_notes_on_models(evaluation)]


def _notes_on_data(evaluation: Evaluation) -> Iterator[str]:
    options, size = evaluation.options, evaluation.options.get("auction_size")
    if evaluation.single_ads:
        many = f"{evaluation.single_ads:,} of {evaluation.auctions:,}"
        yield f"{many} auctions have one ad, which every model shows."
        if 2 * evaluation.single_ads > (evaluation.auctions or 0):
            yield "Does --auction name a column of impressions?"
    if size:
        yield f"The auctions are not real: every possible auction of {size} ads counts."
    if evaluation.clusters:
        few = ", which are few" if evaluation.clusters < FEW_CLUSTERS else ""
        yield f"Intervals are taken over {evaluation.clusters:,} clusters by {listed(options['cluster'])}{few}."
    if evaluation.welfare_of == "clicks":
        yield "Welfare and revenue count the logged clicks of the ads shown, with bids held fixed."
        yield "Ads that were never shown, and how advertisers would respond, are not in the data."
    else:
        yield "Welfare and revenue are expected under the true CTR, with bids held fixed."
    if "position" in options:
        yield "A click in a lower slot counts 1/alpha of its slot, except in AUC."
    if evaluation.options["calibrate"] != "none":
        yield "Models with +platt are calibrated on the ads they are judged by: two numbers each."
    if evaluation.bid_spread < SAME:
        yield "All ads bid the same: auctions rank by CTR, and welfare is the clicks of the ads shown times their bid."
    if evaluation.bid_spread > HEAVY and not evaluation.concentrated:
        spread = f"{evaluation.bid_spread:.1f}"
        yield f"Bids are very unequal (standard deviation of the logarithm: {spread}): intervals may be too narrow."
    if len(evaluation.models) > 2:
        pairs = len(evaluation.pairs)
        yield f"{pairs} pairs of models were compared; of equal models, 1 pair in 20 looks different by chance."


def _notes_on_models(evaluation: Evaluation) -> Iterator[str]:
    one = next(iter(evaluation.models.values()))
    if not 0 < one.clicks < one.ads:
        which = "All ads were" if one.clicks else "No ad was"
        yield f"{which} clicked, so AUC and normalised entropy are not defined."
    if all(numbers.fill_rate == 0 for numbers in evaluation.models.values()):
        yield "No ad is shown: no bid reaches the reserve."
    for model, numbers in evaluation.models.items():
        if numbers.clipped:
            ads = counted(numbers.clipped, "ad")
            yield f"{model} predicts exactly 0 or 1 for {ads}, which can dominate its log loss."


def listed(names: Sequence[str], most: int = NAMED) -> str:
    """``a, b and c``; of more than ``most`` the first and how many more."""
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
