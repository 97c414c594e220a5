"""What an evaluation says in words: the table, the headline, a sentence for every comparison that matters, notes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from bidwise.evaluation.comparison import CHANGED, DECISIVE, EFFECTIVE, Comparison
from bidwise.evaluation.estimate import NONE, Outcome
from bidwise.evaluation.metrics import MANY_POOLS
from bidwise.evaluation.result import Evaluation, Segment
from bidwise.report.formatting import aligned, decimals, number
from bidwise.report.sections import Cell, Table, outcome_cell

FEW_CLUSTERS = 30
ABSURD = 100  # times the median bid
WIDER = 1.5  # times the standard error over ads, that is worth a word
HEAVY = 1.5  # standard deviation of log bids; at 2, intervals held the truth in 85 % of one simulated world
COLUMNS = {  # heading -> (metric, decimals; None: five digits of the largest)
    "welfare": ("welfare", None),
    "revenue": ("revenue", None),
    "AUC": ("auc", 4),
    "gAUC": ("auc_in_auctions", 4),
    "log loss": ("log_loss", 4),
    "pred/obs": ("predicted_over_observed", 3),
    "calib. error": ("calibration_error", 4),
}


class Sentence(NamedTuple):
    """What one comparison says; without an outcome there is nothing to compare."""

    model: str
    baseline: str
    outcome: Outcome | None
    text: str


def summary(evaluation: Evaluation) -> str:
    """The table of models, best welfare marked with ``*``, then the verdict and the notes."""
    columns = [
        ["  model", *(f"* {model}" if model == evaluation.best else f"  {model}" for model in evaluation.models)]
    ]
    for heading, (metric, places) in COLUMNS.items():
        values = [getattr(numbers, metric) for numbers in evaluation.models.values()]
        if all(value is None for value in values):
            continue
        columns.append([heading, *(number(x, decimals(values, 5) if places is None else places) for x in values)])
    lines = aligned(list(zip(*columns, strict=True)))
    kind = "realised" if evaluation.welfare_of == "clicks" else "expected"
    counts = f"{_count(evaluation.ads, 'ad')} in {drawn(evaluation)}"
    counts += f"; {kind} welfare and revenue per auction" + ("; * highest welfare" if evaluation.best else "")
    first = [*filter(None, [concentrated(evaluation), headline(evaluation)])]
    sentences = [*first, *(sentence.text for sentence in verdicts(evaluation)), *clipped(evaluation)]
    segments = [line for table in segment_tables(evaluation) for line in (table.caption, "", *table.text(), "")]
    return "\n".join(
        [counts, "", *lines, "", *sentences, "", *segments, *(f"Note: {note}" for note in notes(evaluation))]
    )


def drawn(evaluation: Evaluation) -> str:
    """The auctions: real ones, or all that could be drawn."""
    if evaluation.auctions is not None:
        return _count(evaluation.auctions, "auction")
    words = f"all auctions of {evaluation.options.auction_size} that could be drawn from them"
    if evaluation.pools is None:
        return words
    words += f", inside {_count(evaluation.pools, 'pool')} by {_list(list(evaluation.options.pool_by))}"
    if not evaluation.ads_left_out:
        return words
    return f"{words} ({_count(evaluation.ads_left_out, 'ad')} of {evaluation.pools_left_out:,} smaller pools left out)"


def concentrated(evaluation: Evaluation) -> str:
    """That a handful of ads holds most of the welfare, where it does."""
    if not evaluation.concentrated:
        return ""
    few, what = evaluation.concentration, "ad" if evaluation.auctions is None else "auction"
    one = few.count == 1
    text = f"{_count(few.count, what)} {'holds' if one else 'hold'} {100 * few.share:.0f} % of the welfare of "
    text += f"{evaluation.baseline}: what follows hangs on {'it' if one else 'them'}."
    if evaluation.largest_bid > ABSURD * evaluation.median_bid:
        text += f" The largest bid is {evaluation.largest_bid:.4g}, the median {evaluation.median_bid:.4g}."
        hint = " Are some bids absurd? --clip-bids 0.999 shows the comparison with higher bids cut down."
        return text if evaluation.clipped_bids else text + hint
    if evaluation.options.auction_size:
        text += " There are few clicks for auctions of this size: smaller ones (--auction-size) rest on more of them."
    return text


def clipped(evaluation: Evaluation) -> list[str]:
    """What the comparisons say with the highest bids cut down."""
    cut = evaluation.clipped_bids
    if cut is None or not cut.bids:
        return [] if cut is None else [f"No bid is above {cut.most:.4g}, the quantile {cut.quantile:g} of --clip-bids."]
    welfare, revenue = ([c for c in cut.comparisons if c.metric == metric] for metric in ("welfare", "revenue"))
    shown = {(sentence.model, sentence.baseline) for sentence in verdicts(evaluation)}
    many = f"{_count(cut.bids, 'bid')} above {cut.most:.4g}"
    return [
        f"With {many} cut down to it: {_sentence(each, paid, evaluation)}"
        for each, paid in zip(welfare, revenue, strict=True)
        if (each.model, each.baseline) in shown
    ]


def segment_tables(evaluation: Evaluation) -> list[Table]:
    """For every column of --by and every model, the segments."""
    groups: dict[tuple[str, str], list[Segment]] = {}
    for segment in evaluation.segments:
        groups.setdefault((segment.column, segment.welfare.model), []).append(segment)
    headings = [
        ("Ads", ""),
        ("Clicks", ""),
        (
            "Change of welfare",
            "In per cent of the baseline's welfare of these ads; intervals hold for all rows at once.",
        ),
        ("Finding", ""),
    ]
    tables = []
    for (column, model), segments in groups.items():
        rows = []
        for each in segments:
            change = each.welfare
            size = f"{change.lift:%}" if change.lift.known else NONE
            cells = [f"{each.ads:,}", f"{each.clicks:,}", size]
            rows.append((each.value, [*map(Cell, cells), outcome_cell(change.outcome)]))
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
    return [*_notes_on_data(evaluation), *_notes_on_numbers(evaluation)]


def _notes_on_data(evaluation: Evaluation) -> Iterator[str]:
    options = evaluation.options
    if evaluation.scattered:
        columns = ", ".join(map(repr, options.auction))
        yield f"The ads of an auction were not next to each other in the table: they were sorted by {columns}."
    if evaluation.single_ads:
        hint = ": is this column an impression?" if 2 * evaluation.single_ads > (evaluation.auctions or 0) else "."
        yield (
            f"{evaluation.single_ads:,} of {evaluation.auctions:,} auctions have one ad, which every model shows{hint}"
        )
    if options.auction_size:
        yield (
            f"The auctions are not real: every auction of {options.auction_size} ads that could be drawn counts, in "
            "closed form; no seed decides anything."
        )
    if evaluation.ads_left_out:
        yield (
            f"{_count(evaluation.ads_left_out, 'ad')} of {_count(evaluation.pools_left_out, 'pool')} with no more than "
            f"{options.auction_size} ads were left out: no two auctions can be drawn there."
        )
    if evaluation.pools is not None and not evaluation.clusters:
        what = "pools" if evaluation.pools >= MANY_POOLS else "ads of the same pools"
        yield f"Intervals say what other {what} would show."
    if evaluation.clusters:
        yield from _note_on_clusters(evaluation)
    if evaluation.exploration is not None:
        found = evaluation.exploration
        cut = f" {found.clipped:,} of them would have counted more often." if found.clipped else ""
        yield (
            f"Clicks count 1 / {options.propensity}, at most {found.most:.0f} times;{cut} together they are worth "
            f"{found.effective_clicks:,.0f} clicks of one weight."
        )
    for model, numbers in evaluation.models.items():
        if numbers.tied and numbers.tied >= 0.0005 and model not in evaluation.twins:
            share = f"{100 * numbers.tied:.2g} %"
            yield f"A tie decides {share} of the auctions of {model}: all tied ads are equally likely to be shown."
    for column, more in evaluation.segments_left_out.items():
        yield f"Of {column} the values with the most ads are shown; {more:,} more are not."
    if not evaluation.concentrated and evaluation.largest_bid > ABSURD * evaluation.median_bid:
        yield (
            f"The largest bid is {evaluation.largest_bid:.4g}, the median {evaluation.median_bid:.4g}: where such an "
            "ad is clicked it decides, and where it is not it hides others (--clip-bids)."
        )
    if options.sampling_rate is not None:
        yield f"Predictions were corrected for negatives sampled at {options.sampling_rate:g}."
    if evaluation.twins:
        kind = options.calibrate
        source = f"the other {'ads' if evaluation.auctions is None else 'auctions'}, in 5 folds"
        if evaluation.auctions is not None and evaluation.auctions < 5:
            source = f"the other auctions, in {evaluation.auctions} folds"
        source = source if evaluation.calibration_ads is None else f"{evaluation.calibration_ads:,} other ads"
        yield f"Models with +{kind} are calibrated ({kind}, fitted on {source})."
    if evaluation.welfare_of == "clicks":
        yield (
            "Welfare and revenue are realised on logged ads: they count the clicks of ads that were shown, with bids "
            "held fixed. Ads that were never shown, and how advertisers would respond, are not in the data."
        )
    else:
        yield "Welfare and revenue are expected under the true CTR that the table holds, with bids held fixed."
    if options.position is not None:
        yield "Clicks in lower slots count 1/alpha of their slot, except in AUC, which takes them as they are."


def _note_on_clusters(evaluation: Evaluation) -> Iterator[str]:
    assert evaluation.clusters is not None
    alike = evaluation.effective_clusters or evaluation.clusters
    few = f", worth {alike:.3g} of one size" if alike < 0.9 * evaluation.clusters else ""
    few += ": few, and intervals are wide for that" if alike < FEW_CLUSTERS else ""
    yield f"Intervals draw {evaluation.clusters:,} clusters by {_list(list(evaluation.options.cluster))} anew{few}."
    for each in evaluation.of_metric("welfare"):
        if each.error_over_ads and each.standard_error > WIDER * each.error_over_ads:
            yield (
                f"{each.model} against {each.baseline}: the standard error over clusters is "
                f"{each.standard_error / each.error_over_ads:.1f} times that over ads, which share their luck."
            )


def _notes_on_numbers(evaluation: Evaluation) -> Iterator[str]:
    one = next(iter(evaluation.models.values()))
    if not 0 < one.clicks < one.ads:
        yield (
            f"AUC and normalised entropy are not defined: {'all' if one.clicks else 'none'} of the ads were clicked."
        )
    for model, numbers in evaluation.models.items():
        if numbers.clipped:
            yield (
                f"{model} predicts exactly 0 or 1 for {numbers.clipped:,} ads. Log loss takes 2.2e-16 for 0: a few "
                "such ads that were clicked can dominate it."
            )
        ratio = numbers.predicted_over_observed
        if ratio < 0.5 or ratio > 2:  # and not where it is undefined
            yield (
                f"{model} predicts {ratio:.2g} times the clicks that were observed: calibrate it, or check the "
                "sampling rate of its training data."
            )
    if all(numbers.fill_rate == 0 for numbers in evaluation.models.values()):
        yield "No ad is shown: no bid reaches the reserve."
    if evaluation.bid_spread > HEAVY and not evaluation.concentrated:
        yield (
            "Bids are very heavy-tailed (the standard deviation of their logarithm is "
            f"{evaluation.bid_spread:.1f}): a few auctions decide welfare, and intervals may be too narrow."
        )
    if len(evaluation.originals) > 2:
        pairs = len(evaluation.pairs)
        yield f"{pairs} pairs of models were compared; of equal models, 1 pair in 20 looks different by chance."


def _sentence(welfare: Comparison, revenue: Comparison, evaluation: Evaluation) -> str:
    model, baseline = welfare.model, welfare.baseline
    if welfare.outcome is Outcome.SAME:
        same = (
            "chooses the same ads as" if welfare.decisive_auctions is not None else "ranks the clicked ads as well as"
        )
        return f"{model} {same} {baseline} in every auction; revenue {_change(revenue)}."
    if welfare.outcome is Outcome.TOO_FEW:
        said = "" if revenue.outcome is Outcome.TOO_FEW else f" Revenue {_change(revenue)}."
        return f"{model} against {baseline}: too few {_too_few(welfare)}.{said}"
    text = f"{model} {_change(welfare, 'welfare')} against {baseline}; revenue {_change(revenue)}. {_decided(welfare)}"
    if welfare.outcome is Outcome.UNCLEAR and not evaluation.concentrated:
        share = welfare.relative_smallest_lift
        lift = f"{100 * share:.2f} %" if math.isfinite(share) else f"{welfare.smallest_lift:.3g} per auction"
        text += f" A change of {lift} would have been seen in 4 of 5 data sets like this"
        size, what = (evaluation.ads, "ads") if evaluation.auctions is None else (evaluation.auctions, "auctions")
        needed = welfare.needed * size
        text += (
            f"; one of {_size(welfare).split(' [')[0]} takes about {number(needed, 0)} {what}."
            if needed < 1e12
            else "."
        )
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


def _decided(welfare: Comparison) -> str:
    """What the difference is made of."""
    if welfare.effective_clicks is not None:
        return f"{welfare.effective_clicks:,.0f} effective clicks make up the difference."
    return (
        f"They show different ads in {welfare.decisive_auctions:,} auctions; welfare differs in "
        f"{welfare.changed_auctions:,}."
    )


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


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
