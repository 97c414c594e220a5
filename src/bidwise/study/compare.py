"""Models against a baseline on the same auctions: differences over repeats and over auctions, and which to keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from bidwise.checks import check_name
from bidwise.evaluation.comparison import AuctionEstimate, compared
from bidwise.evaluation.estimate import Estimate, Outcome
from bidwise.evaluation.intervals import unit_interval
from bidwise.evaluation.units import Units
from bidwise.values import Floats

ERROR = 0.05  # chance that any candidate of no worth is taken for better
#: What `train` compares with the baseline by default; all of them serve one model. ``distilled`` has an ensemble as
#: its teacher.
CONTESTANTS = ("distilled",)
WIDEST = 0.03  # half an interval, as a share of the welfare, beyond which no realistic gain can be told


@dataclass(frozen=True, kw_only=True)
class Difference(Estimate):
    """Model minus baseline with two sources of chance, and the interval that holds both of theirs.

    ``repeats``: another training, initial weights and order of the ads. ``auctions``: other ads.
    """

    repeats: Estimate
    auctions: Estimate
    few: bool = False  # the auctions cannot tell

    @classmethod
    def between(cls, repeats: Estimate, auctions: Estimate, few: bool = False) -> Difference:
        """Both sources; a single repeat has no interval of its own, and then nothing is clear."""
        low, high = min(repeats.ci_low, auctions.ci_low), max(repeats.ci_high, auctions.ci_high)
        known = repeats.known and auctions.known
        return cls(
            difference=repeats.difference,
            ci_low=low if known else math.nan,
            ci_high=high if known else math.nan,
            repeats=repeats,
            auctions=auctions,
            few=few,
        )

    def __mul__(self, factor: float) -> Self:
        """The same in other units, with both of its sources."""
        return replace(super().__mul__(factor), repeats=self.repeats * factor, auctions=self.auctions * factor)

    __rmul__ = __mul__

    @property
    def enough(self) -> bool:
        return not self.few


def paired(chosen: Sequence[Floats], baseline: Sequence[Floats]) -> Difference:
    """Mean welfare of the chosen models minus that of the baseline's, repeat by repeat over the same ads.

    Args:
        chosen, baseline: for each repeat a number for each group of test ads, ``(groups,)``, whose mean is the welfare.
    """
    changes = [a - b for a, b in zip(chosen, baseline, strict=True)]
    repeats = Estimate.over_repeats([float(change.mean()) for change in changes])
    return Difference.between(repeats, Estimate.of(unit_interval(np.mean(changes, axis=0))))


@dataclass(frozen=True, kw_only=True)
class Gain(Estimate):
    """A difference in shares of the optimal welfare over repeats; ``ratio`` is the share that the model reaches."""

    ratio: float

    @property
    def same(self) -> bool:
        """Whether nothing differs in any repeat."""
        return self.difference == self.ci_low == self.ci_high == 0


def points(estimate: Estimate) -> str:
    """A share of the optimal welfare in hundredths, with a third decimal where two would hide the sign of a bound.

    >>> points(Estimate(difference=0.0132, ci_low=0.01, ci_high=0.0164))
    '+1.32 [+1.00, +1.64]'
    >>> points(Estimate(difference=0.0021, ci_low=0.00003, ci_high=0.0042))
    '+0.210 [+0.003, +0.420]'
    """
    hundredths = 100 * estimate
    hidden = any(0 < abs(bound) < 0.005 for bound in (hundredths.ci_low, hundredths.ci_high))
    return f"{hundredths:.3f}" if hidden else f"{hundredths:.2f}"


def gain(welfare: Floats, baseline: Floats, optimal: Floats) -> Gain:
    """Share of the optimal welfare, and the paired difference to the baseline in its units, over repeats."""
    estimate = Estimate.over_repeats(((welfare - baseline) / optimal).tolist())
    return Gain(ratio=float((welfare / optimal).mean()), **vars(estimate))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over repeats with its standard error, NaN for one repeat."""
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(np.mean(values)), error


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
    level: float  # of each interval, so that all of them hold at once in 95 of 100 choices
    candidates: tuple[Candidate, ...]


def choose(seen: Mapping[str, Units], baseline: str, *, of: int | None = None, unit: float = 1.0) -> Choice:
    """The candidate with the highest welfare among those that are better than the baseline; the baseline if none is.

    Better: the interval of the paired difference is above 0. With k candidates beside the baseline each interval has
    level 1 - 0.05 / k (Bonferroni), so candidates that are nothing but noise are all refused in at least 95 of 100
    choices, however many there are. Where too few auctions or clicks make up a difference no interval is to be trusted,
    and the baseline is kept.

    Args:
        seen: ``Metrics.per_unit`` of each candidate, over the same auctions or ads.
        baseline: the name that is kept in doubt.
        of: how many candidates the intervals are to hold for at once; by default all that are there.
        unit: of bids, in which welfare is said.

    >>> import numpy as np
    >>> from bidwise.evaluation.units import Kind
    >>> random = np.random.default_rng(0)
    >>> base, noise = random.exponential(size=400), random.normal(size=400)
    >>> welfare = {"log_loss": base, "noise": base + noise, "good": base + 0.1}
    >>> one = {"kind": Kind.AUCTIONS, "shown": np.zeros((400, 1))}
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
    """What held-out ads can tell: half the interval of a comparable model's difference, as a share of the welfare."""

    half_width: float  # NaN where too few auctions or clicks make up the difference
    auctions: int | None  # real ones
    ads: int

    @property
    def enough(self) -> bool:
        """Whether a realistic gain could be told."""
        return self.half_width <= WIDEST


def power(baseline: Units, rival: Units, candidates: int) -> Power:
    """What a comparison of so many candidates with the baseline could tell, by that of a comparable model.

    >>> import numpy as np
    >>> from bidwise.evaluation.units import Kind
    >>> random = np.random.default_rng(0)
    >>> base, one = random.exponential(size=400), {"kind": Kind.AUCTIONS, "shown": np.zeros((400, 1))}
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
