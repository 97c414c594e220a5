"""Which of several models to keep: a contest on auctions that nothing else was chosen by, with a baseline that stays
unless another is better beyond doubt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bidwise.checks import InputError, check_name, check_whole
from bidwise.evaluation.comparison import CHANGED
from bidwise.evaluation.intervals import Interval, auction_intervals

ERROR = 0.05  # chance that any candidate of no worth is taken for better


@dataclass(frozen=True)
class Entry:
    """A candidate against the baseline: difference of mean welfare per auction, with its corrected interval.

    ``outcome``: better, worse, unclear, few (auctions in which welfare differs), same (none differs) or baseline.
    """

    name: str
    welfare: float
    difference: float
    ci_low: float
    ci_high: float
    changed_auctions: int
    outcome: str


@dataclass(frozen=True)
class Choice:
    """The model that is kept, and why: an entry for each, the baseline's first."""

    chosen: str
    baseline: str
    auctions: int
    level: float  # of each interval, so that all of them hold at once in 95 of 100 contests
    entries: list[Entry]

    def to_dict(self) -> dict[str, Any]:
        """As ``result.json`` holds it."""
        return asdict(self)


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
    95 of 100 contests, however many there are. Where welfare differs in fewer than 30 auctions no interval is to be
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
    >>> found.chosen, [entry.outcome for entry in found.entries]
    ('good', ['baseline', 'unclear', 'better'])
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
    entries = [Entry(baseline, mean[baseline], 0.0, 0.0, 0.0, 0, "baseline")]
    if others:
        change = np.stack([columns[name] - base for name in others], axis=1) * w[:, None]
        intervals = auction_intervals(change, w, level=level, rounds=rounds, seed=seed)
        for name, d, interval in zip(others, change.T, intervals, strict=True):
            changed = int(np.count_nonzero(d))
            bounds = (interval.estimate, interval.low, interval.high)
            entries.append(Entry(name, mean[name], *bounds, changed, _outcome(interval, changed)))
    better = [entry for entry in entries if entry.outcome == "better"]
    chosen = max(better, key=lambda entry: entry.welfare).name if better else baseline
    return Choice(chosen, baseline, auctions, level, entries)


def _outcome(interval: Interval, changed: int) -> str:
    if not changed:
        return "same"
    if changed < CHANGED:
        return "few"
    return "better" if interval.low > 0 else "worse" if interval.high < 0 else "unclear"
