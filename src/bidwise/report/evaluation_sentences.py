"""What an evaluation says in words: the table, the headline, a sentence for every comparison that matters, notes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bidwise.evaluation.comparison import CHANGED, DECISIVE, EFFECTIVE, Comparison
from bidwise.evaluation.estimate import NONE, Outcome
from bidwise.evaluation.result import Evaluation, Segment
from bidwise.evaluation.units import Kind
from bidwise.report.formatting import counted, number
from bidwise.report.sections import Cell, Measure, Table, by_column, measure_columns, outcome_cell

FEW_CLUSTERS = 30
ABSURD = 100  # medians; the cap of bids in training too
SAME = 1e-9  # standard deviation of log bids that are equal, but for rounding
HEAVY = 1.5  # standard deviation of log bids; at 2, intervals covered the truth in 80 % of one simulated market
IN_THE_AUCTION: dict[str, Measure] = {  # metric -> heading, meaning, decimals (None: five digits of the largest)
    "welfare": (
        "Welfare",
        "Bids of the ads shown times their clicks, mean per auction: what ranking by eCPM is for.",
        None,
    ),
    "revenue": ("Revenue", "What the advertisers of the shown ads pay, mean per auction.", None),
    "surplus": ("Surplus", "Welfare − revenue: what is left to the advertisers, mean per auction.", None),
    "share_of_optimum": ("Share of optimum", "Welfare / the most that any prediction could reach.", 4),
    "winners_predicted_over_observed": (
        "Winners’ pred./obs.",
        "Predicted / observed clicks of the ads shown, weighted by bid: winning selects what was overrated.",
        3,
    ),
}
AS_PREDICTIONS: dict[str, Measure] = {
    "auc": ("AUC", "Chance that a clicked ad is predicted above an unclicked one, over all ads.", 4),
    "auc_in_auctions": ("gAUC", "AUC inside each auction, averaged: ads that never compete do not count.", 4),
    "log_loss": ("Log loss", "Mean −log of the probability given to what happened; lower is better.", 4),
    "normalised_entropy": ("Norm. entropy", "Log loss / that of always predicting the mean CTR; below 1 beats it.", 4),
    "calibration_error": ("Calib. error", "Mean |predicted − observed CTR| over 20 bins of equal mass.", 4),
    "predicted_over_observed": ("Pred./obs.", "Predicted clicks / observed clicks; above 1 overrates.", 3),
}
PRINTED = ("welfare", "revenue", "auc", "auc_in_auctions", "log_loss", "predicted_over_observed", "calibration_error")


class Sentence(NamedTuple):
    """What one comparison says; without an outcome there is nothing to compare."""

    model: str
    baseline: str
    outcome: Outcome | None
    text: str


def summary(evaluation: Evaluation) -> str:
    """The table of models, then the verdict and the notes."""
    measures = {name: (IN_THE_AUCTION | AS_PREDICTIONS)[name] for name in PRINTED}
    kind = "realised" if evaluation.welfare_of == "clicks" else "expected"
    counts = f"{counted(evaluation.ads, 'ad')} in {drawn(evaluation)}; {kind} welfare and revenue per auction"
    segments = [line for table in segment_tables(evaluation) for line in (table.caption, "", *table.text(), "")]
    lines = [counts, "", *models_table("", measures, evaluation).text(), "", *leading(evaluation)]
    lines += [*(sentence.text for sentence in verdicts(evaluation)), "", *segments]
    return "\n".join([*lines, *(f"Note: {note}" for note in notes(evaluation))])


def models_table(caption: str, measures: Mapping[str, Measure], evaluation: Evaluation) -> Table:
    """All models by some of their metrics."""
    tags: dict[str, list[str]] = {evaluation.baseline: ["baseline"]} if len(evaluation.models) > 1 else {}
    if (best := evaluation.best) is not None and len(evaluation.models) > 1:
        tags[best] = ["★ highest welfare", *tags.get(best, [])]
    models = evaluation.models
    return by_column(caption, "Model", measure_columns(measures, models.values()), models, tags=tags, best=best)


def drawn(evaluation: Evaluation) -> str:
    """The auctions: real ones, or all that could be drawn."""
    if evaluation.auctions is not None:
        return counted(evaluation.auctions, "auction")
    words = f"all auctions of {evaluation.options['auction_size']} that could be drawn from them"
    if evaluation.pools is None:
        return words
    return f"{words}, inside {counted(evaluation.pools, 'pool')} by {_list(evaluation.options['pool_by'])}"


def leading(evaluation: Evaluation) -> list[str]:
    """What is said before the verdict of each model: that few ads hold most of the welfare, and who leads."""
    return [*filter(None, (concentrated(evaluation), headline(evaluation)))]


def concentrated(evaluation: Evaluation) -> str:
    """That a handful of ads holds most of the welfare, where it does."""
    if not evaluation.concentrated:
        return ""
    few, what = evaluation.concentration, "ad" if evaluation.auctions is None else "auction"
    hold, them = ("holds", "it") if few.count == 1 else ("hold", "them")
    text = f"{counted(few.count, what)} {hold} {100 * few.share:.0f} % of the welfare of {evaluation.baseline}: what "
    text += f"follows hangs on {them}."
    hint = " Are some bids absurd? Remove their rows and compare again."
    return text + hint if evaluation.largest_bid > ABSURD else text


def segment_tables(evaluation: Evaluation) -> list[Table]:
    """For every column of --by and every model, the segments."""
    groups: dict[tuple[str, str], list[Segment]] = {}
    for segment in evaluation.segments:
        groups.setdefault((segment.column, segment.welfare.model), []).append(segment)
    meaning = "In per cent of the baseline's welfare of these ads; intervals hold for all rows at once."
    headings = [("Ads", ""), ("Clicks", ""), ("Change of welfare", meaning), ("Finding", "")]
    tables = []
    for (column, model), segments in groups.items():
        rows = []
        for each in segments:
            size = f"{each.welfare.lift:%}" if each.welfare.lift.known else NONE
            cells = [Cell(f"{each.ads:,}"), Cell(f"{each.clicks:,}"), Cell(size), outcome_cell(each.welfare.outcome)]
            rows.append((each.value, cells))
        tables.append(Table(f"{model} against {evaluation.baseline} by {column}", column, headings, rows))
    return tables


def verdicts(evaluation: Evaluation) -> list[Sentence]:
    """A sentence for each model against the baseline, for the best against the second, and for each calibrated twin."""
    if not evaluation.comparisons:
        text = "There is only one model, so there is nothing to compare it with."
        return [Sentence(evaluation.baseline, evaluation.baseline, None, text)]
    originals = evaluation.originals
    leaders = sorted(originals, key=lambda model: -evaluation.models[model].welfare)[:2]
    return [
        Sentence(each.model, each.baseline, each.outcome, _sentence(each, revenue, evaluation))
        for each, revenue in zip(evaluation.of_metric("welfare"), evaluation.of_metric("revenue"), strict=True)
        if each.baseline == evaluation.baseline
        or each.model not in originals
        or {each.model, each.baseline} == set(leaders)
    ]


def headline(evaluation: Evaluation) -> str:
    """Who leads, and from whom the leader can be distinguished; empty where a single sentence says it already."""
    originals = evaluation.originals
    if len(originals) < 3:
        return ""
    best = max(originals, key=lambda model: evaluation.models[model].welfare)
    if all(evaluation.models[model].welfare == evaluation.models[best].welfare for model in originals):
        return "All models have the same welfare."
    surely: list[str] = []
    maybe: list[str] = []
    for each in evaluation.of_metric("welfare"):
        other = each.baseline if each.model == best else each.model
        if best in (each.model, each.baseline) and other in originals:
            won = Outcome.BETTER if each.model == best else Outcome.WORSE
            (surely if each.outcome is won else maybe).append(other)
    text = f"{best} has the highest welfare" + (f", measurably higher than {_list(surely)}" if surely else "")
    text += f"; {_list(maybe)} cannot be distinguished from it" if maybe else ""
    return f"Before calibration, {text}." if evaluation.twins else f"{text}."


def notes(evaluation: Evaluation) -> list[str]:
    """What a reader must know to read the numbers rightly."""
    return [*_notes_on_data(evaluation), *_notes_on_models(evaluation)]


def _notes_on_data(evaluation: Evaluation) -> Iterator[str]:
    options, size = evaluation.options, evaluation.options.get("auction_size")
    if evaluation.single_ads:
        hint = ": is this column an impression?" if 2 * evaluation.single_ads > (evaluation.auctions or 0) else "."
        many = f"{evaluation.single_ads:,} of {evaluation.auctions:,}"
        yield f"{many} auctions have one ad, which every model shows{hint}"
    if size:
        yield f"The auctions are not real: every auction of {size} ads that could be drawn counts, in closed form."
    if evaluation.ads_left_out:
        left = f"{counted(evaluation.ads_left_out, 'ad')} of pools with no more than {size} ads"
        yield f"{left} were left out: no two auctions can be drawn there."
    if evaluation.clusters:
        few = ": few, and intervals are wide for that" if evaluation.clusters < FEW_CLUSTERS else ""
        yield f"Intervals are taken over {evaluation.clusters:,} clusters by {_list(options['cluster'])}{few}."
    elif evaluation.pools:
        what = "pools" if evaluation.units is Kind.POOLS else "ads of the same pools"
        yield f"Intervals say what other {what} would show."
    if (found := evaluation.exploration) is not None:
        cut = f" {found.clipped:,} of them would have counted more often." if found.clipped else ""
        yield (
            f"Clicks count 1 / {options['propensity']}, at most {found.most:.0f} times;{cut} together they are worth "
            f"{found.effective_clicks:,.0f} clicks of one weight."
        )
    if evaluation.twins:
        source = "calibration_table" if "calibration_table" in options else "other ads or auctions of the table"
        yield f"Models with +{options['calibrate']} are calibrated, each ad by a fit on the {source}."
    if evaluation.welfare_of == "clicks":
        yield (
            "Welfare and revenue are realised on logged ads: they count the clicks of ads that were shown, with bids "
            "held fixed. Ads that were never shown, and how advertisers would respond, are not in the data."
        )
    else:
        yield "Welfare and revenue are expected under the true CTR that the table holds, with bids held fixed."
    if "position" in options:
        yield "Clicks in lower slots count 1/alpha of their slot, except in AUC, which takes them as they are."
    if evaluation.bid_spread < SAME:
        yield "All ads bid the same: auctions rank by CTR, and welfare is the clicks of the ads shown times their bid."
    if evaluation.bid_spread > HEAVY and not evaluation.concentrated:
        yield (
            "Bids are very heavy-tailed (the standard deviation of their logarithm is "
            f"{evaluation.bid_spread:.1f}): a few auctions decide welfare, and intervals may be too narrow."
        )
    if len(evaluation.originals) > 2:
        pairs = len(evaluation.pairs)
        yield f"{pairs} pairs of models were compared; of equal models, 1 pair in 20 looks different by chance."


def _notes_on_models(evaluation: Evaluation) -> Iterator[str]:
    one = next(iter(evaluation.models.values()))
    if not 0 < one.clicks < one.ads:
        which = "all" if one.clicks else "none"
        yield f"AUC and normalised entropy are not defined: {which} of the ads were clicked."
    if all(numbers.fill_rate == 0 for numbers in evaluation.models.values()):
        yield "No ad is shown: no bid reaches the reserve."
    for model, numbers in evaluation.models.items():
        if numbers.tied and numbers.tied >= 0.0005 and model not in evaluation.twins:
            share = f"{100 * numbers.tied:.2g} %"
            yield f"A tie decides {share} of the auctions of {model}: all tied ads are equally likely to be shown."
        if numbers.clipped:
            yield f"{model} predicts exactly 0 or 1 for {numbers.clipped:,} ads, which can dominate its log loss."
        ratio = numbers.predicted_over_observed
        if ratio < 0.5 or ratio > 2:  # and not where it is undefined
            yield (
                f"{model} predicts {ratio:.2g} times the clicks that were observed: calibrate it, or check the "
                "sampling rate of its training data."
            )


def _sentence(welfare: Comparison, revenue: Comparison, evaluation: Evaluation) -> str:
    model, baseline, clicks = welfare.model, welfare.baseline, welfare.effective_clicks
    if welfare.outcome is Outcome.SAME:
        same = "chooses the same ads as" if clicks is None else "ranks the clicked ads as well as"
        return f"{model} {same} {baseline} in every auction; revenue {_change(revenue)}."
    if welfare.outcome is Outcome.TOO_FEW:
        said = "" if revenue.outcome is Outcome.TOO_FEW else f" Revenue {_change(revenue)}."
        return f"{model} against {baseline}: too few {_too_few(welfare)}.{said}"
    made_of = (
        f"{clicks:,.0f} effective clicks make up the difference."
        if clicks is not None
        else f"They show different ads in {welfare.decisive_auctions:,} auctions; welfare differs in "
        f"{welfare.changed_auctions:,}."
    )
    text = f"{model} {_change(welfare, 'welfare')} against {baseline}; revenue {_change(revenue)}. {made_of}"
    if welfare.outcome is Outcome.UNCLEAR and not evaluation.concentrated:
        share = welfare.relative_smallest_lift
        lift = f"{100 * share:.2f} %" if math.isfinite(share) else f"{welfare.smallest_lift:.3g} per auction"
        text += f" A change of {lift} would have been seen in 4 of 5 data sets like this"
        size, what = (evaluation.ads, "ads") if evaluation.auctions is None else (evaluation.auctions, "auctions")
        needed = welfare.needed * size
        seen = f"; one of {_size(welfare).split(' [')[0]} takes about {number(needed, 0)} {what}"
        text += f"{seen if needed < 1e12 else ''}."
    return text


def _too_few(welfare: Comparison) -> str:
    """Of what, and how many would be needed."""
    if welfare.effective_clicks is not None:
        found = f"{welfare.effective_clicks:.1f}" if welfare.effective_clicks < EFFECTIVE else "no"
        return f"clicks to tell (the difference rests on {found} effective clicks; about {EFFECTIVE} are needed)"
    decisive = welfare.decisive_auctions or 0
    few = f"{decisive:,} where they show different ads; about {DECISIVE} are needed"
    if decisive >= DECISIVE:
        few = f"they show different ads in {decisive:,}, but welfare differs in {welfare.changed_auctions} only; "
        few += f"{CHANGED} are needed"
    return f"decisive auctions to tell ({few})"


def _change(comparison: Comparison, noun: str = "") -> str:
    """``raises welfare by 1.3 % [0.4, 2.2]``, or that nothing can be seen; without a noun, ``rises by ...``."""
    change = f"change {noun}".strip()
    if comparison.outcome is Outcome.SAME:
        return f"does not {change} at all"
    if comparison.outcome is Outcome.TOO_FEW:
        what = "auctions" if comparison.effective_clicks is None else "clicks"
        return f"does not {change} in enough {what} to tell"
    if comparison.outcome is Outcome.UNCLEAR:
        return f"does not {change} measurably ({_size(comparison)})"
    up = comparison.difference > 0
    verb = ("raises" if up else "lowers") if noun else ("rises" if up else "falls")
    return f"{f'{verb} {noun}'.strip()} by {_size(comparison, up=up).replace('+', '')}"


def _size(comparison: Comparison, *, up: bool = True) -> str:
    """In per cent of the baseline, or as it is where the baseline has nothing; of a fall, by how much."""
    if math.isfinite(comparison.relative):
        return f"{comparison.lift if up else -comparison.lift:%}"
    return f"{comparison if up else -comparison} per auction"


def _list(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
