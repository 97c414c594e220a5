"""Models against a baseline on the same auctions: which to keep, and whether the auctions can tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bidwise.checks import check_name
from bidwise.evaluation.comparison import AuctionEstimate, compared
from bidwise.evaluation.estimate import Outcome
from bidwise.evaluation.units import Units

ERROR = 0.05  # chance that any candidate of no worth is taken for better
#: Candidates that `train` compares with the baseline by default; each serves one model. The teacher of ``distilled``
#: is an ensemble.
CONTESTANTS = ("distilled",)
WIDEST = 0.03  # half an interval, as a share of the welfare, beyond which no realistic gain can be detected


@dataclass(frozen=True, kw_only=True)
class Candidate(AuctionEstimate):
    """A model against the baseline: mean welfare per auction, and the difference with its corrected interval."""

    name: str
    welfare: float


@dataclass(frozen=True)
class Choice:
    """The model that is kept, and why: all candidates, the baseline first, which equals itself."""

    chosen: str
    baseline: str
    auctions: int | None  # real ones
    ads: int
    level: float  # of each interval, so that all of them cover at once in 95 of 100 choices
    candidates: tuple[Candidate, ...]


def choose(seen: Mapping[str, Units], baseline: str, *, of: int | None = None, unit: float = 1.0) -> Choice:
    """The candidate with the highest welfare among those that are better than the baseline; the baseline if none is.

    Better: the interval of the paired difference is above 0. With k candidates besides the baseline each interval has
    level 1 - 0.05 / k (Bonferroni), so candidates that are pure noise are all rejected in at least 95 of 100
    choices, however many there are. If too few auctions or clicks make up a difference, no interval can be trusted,
    and the baseline is kept.

    Args:
        seen: ``Metrics.per_unit`` of each candidate, over the same auctions or ads.
        baseline: the name that is kept in doubt.
        of: how many candidates the intervals cover at once; by default all of them.
        unit: of bids and welfare.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> base, noise = random.exponential(size=400), random.normal(size=400)
    >>> welfare = {"log_loss": base, "noise": base + noise, "good": base + 0.1}
    >>> one = {"shown": np.zeros((400, 1))}
    >>> found = choose({name: Units(sums={"welfare": each}, **one) for name, each in welfare.items()}, "log_loss")
    >>> found.chosen, [each.outcome.value for each in found.candidates]
    ('good', ['same', 'unclear', 'better'])
    """
    check_name("baseline", baseline, seen)
    pairs = [(name, baseline) for name in seen if name != baseline]
    level = 1 - ERROR / max(of or len(pairs), 1)
    welfare = {name: unit * each.mean("welfare") for name, each in seen.items()}
    same = {"difference": 0, "ci_low": 0, "ci_high": 0, "changed_auctions": 0}
    candidates = [Candidate(name=baseline, welfare=welfare[baseline], **same)]
    for each in compared(seen, pairs, level=level, metrics=("welfare",)):
        counts = {name: getattr(each, name) for name in ("changed_auctions", "effective_clicks")}
        bounds = {name: getattr(each, name) * unit for name in ("difference", "ci_low", "ci_high")}
        candidates.append(Candidate(name=each.model, welfare=welfare[each.model], **bounds, **counts))
    better = [each for each in candidates if each.outcome is Outcome.BETTER]
    chosen = max(better, key=lambda each: each.welfare).name if better else baseline
    base = seen[baseline]
    return Choice(chosen, baseline, base.auctions, base.count, level, tuple(candidates))


@dataclass(frozen=True)
class Power:
    """The resolution of held-out ads: half the interval of a comparable model's difference, a share of the welfare."""

    half_width: float  # NaN if too few auctions or clicks make up the difference
    auctions: int | None  # real ones
    ads: int

    @property
    def enough(self) -> bool:
        """Whether a realistic gain could be detected."""
        return self.half_width <= WIDEST


def power(baseline: Units, rival: Units, candidates: int) -> Power:
    """The resolution of a comparison of so many candidates with the baseline, estimated from a comparable model.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> base, one = random.exponential(size=400), {"shown": np.zeros((400, 1))}
    >>> models = [Units(sums={"welfare": base + each}, **one) for each in (0, random.normal(size=400))]
    >>> found = power(*models, candidates=3)
    >>> round(found.half_width, 2), found.enough
    (0.11, False)
    """
    found = choose({"baseline": baseline, "rival": rival}, "baseline", of=candidates)
    base, other = found.candidates
    told = other.enough and base.welfare > 0
    half = (other.ci_high - other.ci_low) / (2 * base.welfare) if told else math.nan
    return Power(half, found.auctions, found.ads)
