"""Which of several models to keep, by auctions held out from all other selection; the baseline stays in doubt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bidwise.checks import InputError, check_name, check_whole
from bidwise.evaluation.comparison import AuctionEstimate
from bidwise.evaluation.estimate import Estimate, Outcome
from bidwise.evaluation.intervals import auction_intervals

ERROR = 0.05  # chance that any candidate of no worth is taken for better


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
    auctions: int
    level: float  # of each interval, so that all of them hold at once in 95 of 100 choices
    candidates: tuple[Candidate, ...]


def choose(
    welfare: Mapping[str, ArrayLike],
    baseline: str,
    *,
    weights: ArrayLike | None = None,
    rounds: int = 1999,
    seed: int = 0,
) -> Choice:
    """The candidate with the highest welfare among those that are better than the baseline; the baseline if none is.

    Better: the interval of the paired difference over auctions is above 0. With k candidates beside the baseline each
    interval has level 1 - 0.05 / k (Bonferroni), so candidates that are nothing but noise are all refused in at least
    95 of 100 choices, however many there are. Where welfare differs in fewer than 30 auctions no interval is to be
    trusted, and the baseline is kept.

    Args:
        welfare: of each candidate, one number for each auction, the same auctions for all.
        baseline: the name that is kept in doubt.
        weights: how much each auction counts; alike by default.
        rounds: of the bootstrap.
        seed: of the bootstrap.

    >>> random = np.random.default_rng(0)
    >>> base = random.exponential(size=400)
    >>> found = choose({"log_loss": base, "noise": base + random.normal(size=400), "good": base + 0.1}, "log_loss")
    >>> found.chosen, [each.outcome.value for each in found.candidates]
    ('good', ['same', 'unclear', 'better'])
    """
    columns = {name: np.asarray(each, dtype=np.float64) for name, each in welfare.items()}
    check_name("baseline", baseline, columns)
    check_whole("rounds", rounds, 100)
    base = columns[baseline]
    auctions = len(base)
    w = np.ones(auctions) if weights is None else np.asarray(weights, dtype=np.float64)
    for name, column in {**columns, "weights": w}.items():
        if column.shape != (auctions,):
            raise InputError(f"{name} must have one number for each of {auctions} auctions, found shape {column.shape}")
        if not np.isfinite(column).all():
            raise InputError(f"{name} must be finite, found {(~np.isfinite(column)).sum()} numbers that are not")
    if not auctions or w.min() < 0 or not w.sum() > 0:
        raise InputError(f"welfare must be of auctions with weights above 0, found {auctions} with sum {w.sum():g}")
    others = [name for name in columns if name != baseline]
    level = 1 - ERROR / max(len(others), 1)
    mean = {name: float((column * w).sum() / w.sum()) for name, column in columns.items()}
    candidates = [
        Candidate(name=baseline, welfare=mean[baseline], difference=0, ci_low=0, ci_high=0, changed_auctions=0)
    ]
    if others:
        change = np.stack([columns[name] - base for name in others], axis=1) * w[:, None]
        intervals = auction_intervals(change, w, level=level, rounds=rounds, seed=seed)
        for name, d, interval in zip(others, change.T, intervals, strict=True):
            bounds = vars(Estimate.of(interval))
            changed = int(np.count_nonzero(d))
            candidates.append(Candidate(name=name, welfare=mean[name], changed_auctions=changed, **bounds))
    better = [each for each in candidates if each.outcome is Outcome.BETTER]
    chosen = max(better, key=lambda each: each.welfare).name if better else baseline
    return Choice(chosen, baseline, auctions, level, tuple(candidates))
