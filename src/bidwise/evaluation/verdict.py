"""What an evaluation says in words: the table, and a sentence for every comparison that matters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from bidwise.evaluation.comparison import CHANGED, DECISIVE

if TYPE_CHECKING:
    from bidwise.data.ad_table import AdTable
    from bidwise.evaluation.result import Evaluation

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


def summary(found: Evaluation) -> str:
    """The table of models, best welfare marked with ``*``, then the verdict and the notes."""
    columns = [["  model", *(f"* {model}" if model == found.best else f"  {model}" for model in found.models)]]
    for heading, (metric, decimals) in COLUMNS.items():
        values = [numbers[metric] for numbers in found.models.values()]
        largest = max((abs(x) for x in values if defined(x) and x), default=1.0)
        places = max(0, 4 - math.floor(math.log10(largest))) if decimals is None else decimals
        columns.append([heading, *(f"{x:,.{places}f}" if defined(x) else "–" for x in values)])
    widths = [max(map(len, column)) for column in columns]
    aligned = [[cell.rjust(width) for cell in column] for column, width in zip(columns, widths, strict=True)]
    aligned[0] = [cell.ljust(widths[0]) for cell in columns[0]]
    lines = ["  ".join(row) for row in zip(*aligned, strict=True)]
    kind = "realised" if found.welfare_of == "clicks" else "expected"
    counts = f"{_count(found.ads, 'ad')} in {_count(found.auctions, 'auction')}"
    counts += f", cut {found.cuts} times" if found.cuts > 1 else ""
    counts += f"; {kind} welfare and revenue per auction" + ("; * highest welfare" if found.best else "")
    said = [*([found.headline] if found.headline else []), *(sentence["text"] for sentence in found.verdict)]
    return "\n".join([counts, "", *lines, "", *said, "", *(f"Note: {note}" for note in found.notes)])


def verdicts(found: Evaluation) -> list[dict[str, str]]:
    """A sentence for each model against the baseline, for the best against the second, and for each calibrated twin."""
    by_pair: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for comparison in found.comparisons:
        by_pair.setdefault((comparison["model"], comparison["baseline"]), {})[comparison["metric"]] = comparison
    if not by_pair:
        text = "There is one model, so there is nothing to compare it with."
        return [{"model": found.baseline, "baseline": found.baseline, "outcome": "alone", "text": text}]
    originals = [model for model, numbers in found.models.items() if numbers["calibrated_from"] is None]
    leaders = sorted(originals, key=lambda model: -found.models[model]["welfare"])[:2]
    return [
        {
            "model": model,
            "baseline": baseline,
            "outcome": compared["welfare"]["outcome"],
            "text": _sentence(model, baseline, compared),
        }
        for (model, baseline), compared in by_pair.items()
        if baseline == found.baseline or model not in originals or {model, baseline} == set(leaders)
    ]


def headline(found: Evaluation) -> str:
    """Who leads, and from whom the leader can be told; empty where a single sentence says it already."""
    originals = [model for model, numbers in found.models.items() if numbers["calibrated_from"] is None]
    if len(originals) < 3:
        return ""
    best = max(originals, key=lambda model: found.models[model]["welfare"])
    if all(found.models[model]["welfare"] == found.models[best]["welfare"] for model in originals):
        return "All models have the same welfare."
    surely: list[str] = []
    maybe: list[str] = []
    for one in found.comparisons:
        if one["metric"] == "welfare" and best in (one["model"], one["baseline"]):
            other = one["baseline"] if one["model"] == best else one["model"]
            if other in originals:
                (surely if one["outcome"] == ("better" if one["model"] == best else "worse") else maybe).append(other)
    before = "before calibration, " if len(originals) < len(found.models) else ""
    parts = [
        f"{before}{best} has the highest welfare" + (f", measurably higher than {_list(surely)}" if surely else "")
    ]
    parts += [f"{_list(maybe)} cannot be told from it"] if maybe else []
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:] if before else text


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def notes(
    ads: AdTable, found: dict[str, dict[str, Any]], models: list[str], comparisons: list[dict[str, Any]]
) -> Iterator[str]:
    """What a reader must know to read the numbers rightly."""
    if ads.truth is None:
        yield (
            "Welfare and revenue are realised on logged ads: they count the clicks of ads that were shown, with bids "
            "held fixed. Ads that were never shown, and how advertisers would answer, are not in the data."
        )
    else:
        yield "Welfare and revenue are expected under the true CTR that the table holds, with bids held fixed."
    if ads.position is not None:
        yield "Clicks in lower slots count 1/alpha of their slot, except in AUC, which takes them as they are."
    if not 0 < ads.clicks.sum() < ads.ads:
        share = "all" if ads.clicks.any() else "none"
        yield f"AUC and normalised entropy are not defined: {share} of the ads were clicked."
    for model, numbers in found.items():
        if numbers["clipped"]:
            yield (
                f"{model} predicts exactly 0 or 1 for {numbers['clipped']:,} ads. Log loss takes 2.2e-16 for 0: a few "
                "such ads that were clicked can spoil it."
            )
        ratio = numbers["predicted_over_observed"]
        if ratio < 0.5 or ratio > 2:  # and not where it is undefined
            yield (
                f"{model} predicts {ratio:.2g} times the clicks that were observed: calibrate it, or check the "
                "sampling rate of its training data."
            )
    if all(numbers["fill_rate"] == 0 for numbers in found.values()):
        yield "No ad is shown: no bid reaches the reserve."
    heavy = float(np.log(ads.bids).std())
    if heavy > HEAVY:
        yield (
            f"Bids are very heavy-tailed (the standard deviation of their logarithm is {heavy:.1f}): a few auctions "
            "decide welfare, and intervals may be too narrow."
        )
    if len(models) > 2:
        pairs = len({(comparison["model"], comparison["baseline"]) for comparison in comparisons})
        yield f"{pairs} pairs of models were compared; of equal models, 1 pair in 20 looks different by chance."


def defined(number: float | None) -> bool:
    """Whether there is a number to show."""
    return number is not None and math.isfinite(number)


def _sentence(model: str, baseline: str, compared: dict[str, dict[str, Any]]) -> str:
    welfare, revenue = compared["welfare"], compared["revenue"]
    decisive = welfare["decisive_auctions"]
    if decisive == 0:
        return f"{model} chooses the same ads as {baseline} in every auction; revenue {_change(revenue)}."
    if welfare["outcome"] == "few":
        few = f"{decisive:,} where they show different ads; about {DECISIVE} are needed"
        if decisive >= DECISIVE:
            changed = welfare["changed_auctions"]
            few = (
                f"they show different ads in {decisive:,}, but welfare differs in {changed} only; {CHANGED} are needed"
            )
        return f"{model} against {baseline}: too few decisive auctions to tell ({few})."
    change = _change(welfare, "welfare")
    text = f"{model} {change} against {baseline}; revenue {_change(revenue)}. {decisive:,} auctions are decisive."
    if welfare["outcome"] == "unclear":
        lift = _per_cent(welfare, "smallest_lift")
        text += f" A change of {lift} would have been seen in 4 of 5 data sets like this."
    return text


def _change(comparison: dict[str, Any], noun: str = "") -> str:
    """``raises welfare by 1.3 % [0.4, 2.2]``, or that nothing can be seen; without a noun, ``rises by ...``."""
    change = f"change {noun}".strip()
    if comparison["outcome"] == "same":
        return f"does not {change} at all"
    if comparison["outcome"] == "few":
        return f"does not {change} in enough auctions to tell"
    size, low, high = (_per_cent(comparison, name) for name in ("difference", "ci_low", "ci_high"))
    bounds = [low.removesuffix(" %"), high.removesuffix(" %")]
    if comparison["outcome"] == "unclear":
        return f"does not {change} measurably ({size} [{', '.join(bounds)}])"
    up = comparison["difference"] > 0
    verb = ("raises" if up else "lowers") if noun else ("rises" if up else "falls")
    if not up:  # by how much it falls, from the least to the most
        size, bounds = size.removeprefix("−"), [bound.removeprefix("−") for bound in reversed(bounds)]
    return f"{f'{verb} {noun}'.strip()} by {size} [{', '.join(bounds)}]"


def _per_cent(comparison: dict[str, Any], name: str) -> str:
    """In per cent of the baseline, or as it is where the baseline has nothing."""
    share = comparison["relative" if name == "difference" else f"relative_{name}"]
    if defined(share):
        text = f"{100 * share:.2f} %" if abs(share) >= 1e-4 or share == 0 else f"{100 * share:.2g} %"
    else:
        text = f"{comparison[name]:.3g}" + (" per auction" if name in ("difference", "smallest_lift") else "")
    return text.replace("-", "−")
