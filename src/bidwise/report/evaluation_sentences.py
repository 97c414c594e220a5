"""What an evaluation says in words: the table, the headline, a sentence for every comparison that matters, notes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from bidwise.evaluation.comparison import CHANGED, DECISIVE, Comparison
from bidwise.evaluation.estimate import Outcome
from bidwise.evaluation.result import Evaluation
from bidwise.report.formatting import aligned, decimals, number

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
        columns.append([heading, *(number(x, decimals(values, 5) if places is None else places) for x in values)])
    lines = aligned(list(zip(*columns, strict=True)))
    kind = "realised" if evaluation.welfare_of == "clicks" else "expected"
    counts = f"{_count(evaluation.ads, 'ad')} in {_count(evaluation.auctions, 'auction')}"
    counts += f", cut {evaluation.cuts} times" if evaluation.cuts > 1 else ""
    counts += f"; {kind} welfare and revenue per auction" + ("; * highest welfare" if evaluation.best else "")
    sentences = [*filter(None, [headline(evaluation)]), *(sentence.text for sentence in verdicts(evaluation))]
    return "\n".join([counts, "", *lines, "", *sentences, "", *(f"Note: {note}" for note in notes(evaluation))])


def verdicts(evaluation: Evaluation) -> list[Sentence]:
    """A sentence for each model against the baseline, for the best against the second, and for each calibrated twin."""
    if not evaluation.comparisons:
        text = "There is only one model, so there is nothing to compare it with."
        return [Sentence(evaluation.baseline, evaluation.baseline, None, text)]
    originals = evaluation.originals
    leaders = sorted(originals, key=lambda model: -evaluation.models[model].welfare)[:2]
    return [
        Sentence(each.model, each.baseline, each.outcome, _sentence(each, revenue))
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
        yield (
            f"The ads of an auction were not next to each other in the table: they were sorted by {options.auction!r}."
        )
    if options.auction_size:
        again = f", {evaluation.cuts} times over" if evaluation.cuts > 1 else ""
        rest = (
            f"; {evaluation.ads_left_out:,} ads of an incomplete last auction were left out"
            if evaluation.ads_left_out
            else ""
        )
        each = " each time" if rest and evaluation.cuts > 1 else ""
        yield (
            f"The auctions are not real: the ads were shuffled (seed {options.seed}) and cut into auctions of "
            f"{options.auction_size}{again}{rest}{each}."
        )
    if options.sampling_rate is not None:
        yield f"Predictions were corrected for negatives sampled at {options.sampling_rate:g}."
    if evaluation.twins:
        kind = options.calibrate
        source = f"the other auctions, in {min(5, evaluation.auctions)} folds"
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
    if evaluation.bid_spread > HEAVY:
        yield (
            "Bids are very heavy-tailed (the standard deviation of their logarithm is "
            f"{evaluation.bid_spread:.1f}): a few auctions decide welfare, and intervals may be too narrow."
        )
    if len(evaluation.originals) > 2:
        pairs = len(evaluation.pairs)
        yield f"{pairs} pairs of models were compared; of equal models, 1 pair in 20 looks different by chance."


def _sentence(welfare: Comparison, revenue: Comparison) -> str:
    model, baseline, decisive = welfare.model, welfare.baseline, welfare.decisive_auctions
    if decisive == 0:
        return f"{model} chooses the same ads as {baseline} in every auction; revenue {_change(revenue)}."
    if welfare.outcome is Outcome.TOO_FEW:
        few = f"{decisive:,} where they show different ads; about {DECISIVE} are needed"
        if decisive >= DECISIVE:
            few = f"they show different ads in {decisive:,}, but welfare differs in {welfare.changed_auctions} only; "
            few += f"{CHANGED} are needed"
        said = "" if revenue.outcome is Outcome.TOO_FEW else f" Revenue {_change(revenue)}."
        return f"{model} against {baseline}: too few decisive auctions to tell ({few}).{said}"
    change = _change(welfare, "welfare")
    text = f"{model} {change} against {baseline}; revenue {_change(revenue)}. {decisive:,} auctions are decisive."
    if welfare.outcome is Outcome.UNCLEAR:
        share = welfare.relative_smallest_lift
        lift = f"{100 * share:.2f} %" if math.isfinite(share) else f"{welfare.smallest_lift:.3g} per auction"
        text += f" A change of {lift} would have been seen in 4 of 5 data sets like this."
    return text


def _change(comparison: Comparison, noun: str = "") -> str:
    """``raises welfare by 1.3 % [0.4, 2.2]``, or that nothing can be seen; without a noun, ``rises by ...``."""
    change = f"change {noun}".strip()
    if comparison.outcome is Outcome.SAME:
        return f"does not {change} at all"
    if comparison.outcome is Outcome.TOO_FEW:
        return f"does not {change} in enough auctions to tell"
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
