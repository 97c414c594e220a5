"""Gradient boosting for welfare: an objective and a metric for LightGBM and XGBoost.

Neither library is imported here: both call the given function with the scores of all rows and their data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from bidwise.auctions import ad_numbers, auctions_of, welfare
from bidwise.checks import InputError, check_between, check_bids, check_whole, warn_of_ctr
from bidwise.evaluation.pooled import pooled_welfare
from bidwise.losses.definition import ctr_of
from bidwise.losses.named import BidWeightedLogLoss, WelfareLoss, needs_teacher, single_loss
from bidwise.values import Floats

Metric = Callable[..., tuple[str, float] | tuple[str, float, bool]]
_LEAST = 1e-16  # curvature of an ad with a CTR of 0 or 1 in floating point


def welfare_objective(
    bids: ArrayLike,
    auctions: ArrayLike | None = None,
    *,
    loss: str | nn.Module = "log_plus",
    teacher: ArrayLike | None = None,
    start: float = 0.5,
    **options: Any,
) -> WelfareObjective:
    """A loss of :data:`bidwise.LOSSES`, or any :class:`bidwise.WelfareLoss`, as the objective of boosted trees.

    LightGBM takes it as ``lightgbm.train({"objective": f, ...}, data)`` or ``LGBMClassifier(objective=f)`` and then
    predicts raw scores: :func:`boosted_ctr` makes CTR of them. XGBoost takes it as ``xgboost.train({"objective":
    "binary:logistic", "base_score": clicks.mean(), ...}, data, obj=f)`` or ``XGBClassifier(objective=f)`` and predicts
    CTR. Weights of the data count as they do in :class:`bidwise.WelfareLoss`.

    Args:
        bids: cost-per-click bids of the rows that are trained on, in their order. For ``unit="batch"``, as in the
            default, they are in units of their mean.
        auctions: offsets of the auctions, ``(auctions + 1,)``; rows of an auction stand together. ``None``: all rows
            compete with each other, in O(n log n).
        loss: a name or a loss; ``options`` replace some of a :class:`bidwise.WelfareLoss`'s, such as ``lam=0.1``.
        teacher: another model's CTR, for losses that need one.
        start: the CTR of score 0, at which LightGBM starts: the mean of the clicks saves rounds. XGBoost has its
            ``base_score`` for that.

    Gradients belong to the mean loss times the number of rows (for ``reduction="sum"``, to the sum), so that limits
    on the curvature of a leaf have the same scale as for a log loss.

    >>> objective = welfare_objective([1.0, 2.0, 0.5], loss="log_plus", lam=1.0)
    >>> gradient, curvature = objective(np.array([1, 0, 0]), np.zeros(3))  # clicks and scores, as scikit-learn passes
    >>> gradient.round(3)
    array([-0.564,  0.574,  0.514])
    """
    chosen = single_loss(loss)
    if options and not isinstance(chosen, WelfareLoss):
        raise InputError(f"has no option {', '.join(options)}, found {loss!r}; use a WelfareLoss", argument="loss")
    if isinstance(chosen, WelfareLoss):
        chosen = chosen.with_options(**options)
    worth, bounds = _columns(bids, auctions)
    taught = None if teacher is None else ad_numbers("teacher", teacher, like=worth)
    if taught is not None:
        check_between("teacher", taught, 0, 1)
    elif needs_teacher(chosen):
        raise InputError(f"must be given for {loss!r}, found None", argument="teacher")
    if isinstance(chosen, WelfareLoss):
        worth = worth / (worth.mean() if isinstance(chosen.unit, str) else chosen.unit)
    return WelfareObjective(chosen, worth.numpy(), bounds, None if taught is None else taught.numpy(), _logit(start))


def welfare_metric(
    bids: ArrayLike,
    auctions: ArrayLike | None = None,
    *,
    auction_size: int | None = None,
    raw: bool = True,
    start: float = 0.5,
    slots: Sequence[float] = (1.0,),
) -> Metric:
    """Welfare of the rows that are validated on, higher is better: ``feval`` of LightGBM, ``custom_metric`` of XGBoost.

    LightGBM and ``LGBMClassifier.fit(eval_metric=f)`` know that higher is better. For XGBoost, pass
    ``maximize=True`` to ``xgboost.train`` or its early stopping.

    Args:
        bids, auctions: as in :func:`welfare_objective`, of the validation rows: welfare is the mean over auctions.
        auction_size: without auctions, the mean over all auctions of this many rows (:func:`bidwise.pooled_welfare`).
        raw: whether predictions are scores, as with a custom objective; with ``binary`` and
            ``binary:logistic`` both libraries pass CTR: ``raw=False``.
        start: as in :func:`welfare_objective`.
        slots: position multipliers.

    >>> metric = welfare_metric([1.0, 2.0], [0, 2])
    >>> metric(np.array([1, 0]), np.array([0.5, -0.5]))
    ('welfare', 0.0, True)
    """
    if (auctions is None) == (auction_size is None):
        raise InputError("must be given exactly if auctions are not", argument="auction_size")
    if auction_size is not None:
        check_whole("auction_size", auction_size, 1)
    worth, bounds = _columns(bids, auctions)
    level = _logit(start)

    def metric(
        first: Any, second: Any, sample_weight: ArrayLike | None = None
    ) -> tuple[str, float] | tuple[str, float, bool]:
        """Predictions and a Dataset or DMatrix, or clicks and predictions; weights do not count."""
        rows = _Rows.of(first, second, sample_weight)
        rows.check("welfare_metric", worth.numpy(), bounds)
        ctr = _ctr(rows.scores + level) if raw else rows.scores
        if raw:
            warn_of_ctr(torch.from_numpy(rows.scores), torch.from_numpy(rows.clicks), "predictions", "pass raw=False")
        elif not (ctr.min(initial=0) >= 0 and ctr.max(initial=0) <= 1):
            raise InputError("must be True if predictions are scores: some are outside [0, 1]", argument="raw")
        if auction_size is None:
            found = welfare(ctr, rows.clicks, worth, bounds, slots=slots).mean().item()
        else:
            found = pooled_welfare(ctr, rows.clicks, worth, auction_size, slots=slots)
        return ("welfare", found) if rows.xgboost else ("welfare", found, True)

    return metric


def boosted_ctr(scores: ArrayLike, start: float = 0.5) -> Floats:
    """CTR of the raw scores that a booster with a :func:`welfare_objective` predicts.

    >>> boosted_ctr([0.0, 1.0], start=0.2).round(3)
    array([0.2  , 0.405])
    """
    return _ctr(np.asarray(scores, dtype=np.float64) + _logit(start))


def _ctr(logits: Floats) -> Floats:
    ctr: Floats = ctr_of(torch.from_numpy(logits)).numpy()
    return ctr


@dataclass(frozen=True, eq=False)
class WelfareObjective:
    """Gradient and curvature of a loss for every row, in O(n log n) if the loss is; by :func:`welfare_objective`."""

    loss: WelfareLoss | BidWeightedLogLoss
    bids: Floats  # in the unit of the loss
    offsets: NDArray[np.int64] | None
    teacher: Floats | None
    start: float  # the logit of score 0

    def __call__(self, first: Any, second: Any, sample_weight: ArrayLike | None = None) -> tuple[Floats, Floats]:
        """Scores and a Dataset or DMatrix, or clicks and scores as the wrappers for scikit-learn pass them."""
        rows, loss = _Rows.of(first, second, sample_weight), self.loss
        rows.check("welfare_objective", self.bids, self.offsets)
        check_between("label", torch.from_numpy(rows.clicks), 0, 1)
        logits, labels = rows.scores + self.start, rows.clicks
        ctr, mass = _ctr(logits), np.ones_like(logits) if rows.weights is None else rows.weights
        if isinstance(loss, WelfareLoss):
            mass = mass * loss.lam
        else:
            mass = mass * self.bids**loss.power
            if loss.value == "teacher" and self.teacher is not None:
                labels = self.teacher
        gradient, curvature = mass * (ctr - labels), mass * ctr * (1 - ctr)
        if isinstance(loss, WelfareLoss):
            slope = self._rank_slope(loss, logits, rows)
            gradient, curvature = gradient + slope, curvature + self._rank_curvature(loss, slope, ctr, rows)
        return gradient, np.maximum(curvature, _LEAST)

    def _rank_slope(self, loss: WelfareLoss, logits: Floats, rows: _Rows) -> Floats:
        """Derivative of the rank term for every logit, in float32."""
        columns = (logits, rows.clicks, self.bids, self.teacher, rows.weights)
        z, clicks, bids, teacher, weights = (None if x is None else torch.from_numpy(x).float() for x in columns)
        assert z is not None
        z.requires_grad_()
        offsets = None if self.offsets is None else torch.from_numpy(self.offsets)
        rank = loss.with_options(lam=0.0, unit=1.0, validate=False)
        slope: Floats = torch.autograd.grad(rank(z, clicks, bids, offsets, teacher, weights), z)[0].double().numpy()
        return slope * len(slope) if loss.options.reduction == "mean" else slope

    def _rank_curvature(self, loss: WelfareLoss, slope: Floats, ctr: Floats, rows: _Rows) -> Floats:
        """A curvature no less than the second derivative of the rank term for each score, and above 0.

        With eCPM s = b f and s' = ds/dz = b f (1 - f), pairs in which an ad is j push it down by P, those in which it
        is i pull it up by U, and s' (P - U) is its slope. The second derivative is s' (1 - 2 f) (P - U) + s'^2 B, with
        B = sum_j w gap phi'' over both. It is negative for most clicks, so each part is bounded:

        1. A log loss bounds the part that is linear in s: f >= f0 (1 + log f - log f0) gives
           -U b f <= -U b f0 log f + c, and the same of 1 - f bounds P b f. Curvature of the two: s' (f U + (1 - f) P).
           In a leaf with slopes that cancel both sides still count, as they do in a log loss.
        2. phi'' <= sigma^2 / 4 and phi'' <= sigma |phi'| give B <= sigma min(sigma / 4 stake, U + P), with the stake
           sum_j gap(v - v_j) + gap(v_j - v). The hinge has no phi''; pairs of the signed gap cancel.

        Each of U and P would take another pass over pairs. Their difference is known, and |phi'| <= sigma bounds each
        by sigma times its half of the stake; with clicks as values one half is nearly 0, and that is exact.
        Weights of pairs, at most 1, are held fixed.
        """
        options = loss.options
        if options.surrogate == "indicator":
            return np.zeros_like(ctr)
        ecpm_slope = self.bids * ctr * (1 - ctr)
        most_up, most_down = (options.sigma * ecpm_slope * stake for stake in self._stakes(loss, rows))
        pulled, pushed = np.maximum(-slope, 0), np.maximum(slope, 0)
        both = np.maximum(np.minimum(most_up - pulled, most_down - pushed), 0)
        pulled, pushed = pulled + both, pushed + both
        curvature = ctr * pulled + (1 - ctr) * pushed
        if options.surrogate == "logistic" and (options.gap != "signed" or options.weighting is not None):
            bend = np.minimum((most_up + most_down) / 4, pulled + pushed)
            curvature = curvature + options.sigma * ecpm_slope * bend
        return curvature

    def _stakes(self, loss: WelfareLoss, rows: _Rows) -> tuple[Floats, Floats]:
        """Both halves of the stake of every ad, as much as the reduction lets them count."""
        options, ads = loss.options, len(self.bids)
        offsets = np.array([0, ads]) if self.offsets is None else self.offsets
        labels = rows.clicks if options.value == "clicks" or self.teacher is None else self.teacher
        sizes = np.diff(offsets)
        share = np.ones(len(sizes))
        if rows.weights is not None:  # of an auction, the mean of its ads
            share = np.diff(np.concatenate([[0.0], np.cumsum(rows.weights)])[offsets]) / np.maximum(sizes, 1)
        if options.pair_mean:
            share = share / np.maximum(sizes, 1) ** 2
        if options.reduction == "mean":
            share = share * ads / max(len(sizes), 1)
        up, down = stakes_of(self.bids * labels, offsets, options.gap)
        return np.repeat(share, sizes) * up, np.repeat(share, sizes) * down


@dataclass(frozen=True, eq=False)
class _Rows:
    """The arguments of a library: scores or predictions of its rows, and its data."""

    scores: Floats
    clicks: Floats
    weights: Floats | None = None
    groups: NDArray[np.int64] | None = None  # sizes, if the data have groups
    xgboost: bool = False

    @classmethod
    def of(cls, first: Any, second: Any, sample_weight: ArrayLike | None) -> _Rows:
        if not hasattr(second, "get_label"):  # clicks and scores
            return cls(_floats(second), _floats(first), None if sample_weight is None else _floats(sample_weight))
        weights, groups = (None if x is None or not len(x) else x for x in (second.get_weight(), second.get_group()))
        return cls(
            _floats(first),
            _floats(second.get_label()),
            None if weights is None else _floats(weights),
            None if groups is None else np.asarray(groups, dtype=np.int64),
            hasattr(second, "num_row"),
        )

    def check(self, who: str, bids: Floats, offsets: NDArray[np.int64] | None) -> None:
        """Raise unless these are the rows that the bids and auctions are of, as far as can be seen."""
        if len(self.scores) != len(bids):
            raise InputError(f"{who} has the bids of {len(bids)} rows, found data of {len(self.scores)}; pass theirs")
        if self.groups is not None and offsets is not None and not np.array_equal(self.groups, np.diff(offsets)):
            raise InputError(f"{who} has other auctions than the groups of the data: their sizes differ")


def _columns(bids: ArrayLike, auctions: ArrayLike | None) -> tuple[torch.Tensor, NDArray[np.int64] | None]:
    """Bids, and offsets if there are auctions, both checked."""
    worth = ad_numbers("bids", bids).cpu()
    check_bids(worth)
    return worth, None if auctions is None else auctions_of(worth, auctions).offsets.numpy()


def _floats(values: Any) -> Floats:
    return np.require(values, np.float64, ["C", "W"])


def _logit(start: float) -> float:
    if not 0 < start < 1:
        raise InputError(f"must be a CTR between 0 and 1, found {start}", argument="start")
    return float(np.log(start) - np.log1p(-start))


def stakes_of(value: Floats, offsets: NDArray[np.int64], gap: str) -> tuple[Floats, Floats]:
    """sum_j gap(v - v_j) and sum_j gap(v_j - v) of every ad over its auction, by a sort; ``signed`` as ``positive``.

    >>> stakes_of(np.array([1.0, 3.0, 1.0, 5.0]), np.array([0, 3, 4]), "positive")
    (array([0., 4., 0., 0.]), array([2., 0., 2., 0.]))
    """
    sizes = np.diff(offsets)
    auction = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((value, auction))
    sorted_value = value[order]
    first, last = np.repeat(offsets[:-1], sizes), np.repeat(offsets[1:], sizes)
    if gap == "order":
        fresh = np.flatnonzero(np.diff(sorted_value, prepend=np.nan) != 0)
        fresh = np.union1d(fresh, offsets[:-1][sizes > 0])
        runs = np.diff(fresh, append=len(value))
        below = np.repeat(fresh, runs) - first
        above = last - np.repeat(fresh + runs, runs)
    else:
        sums = np.concatenate([[0.0], np.cumsum(sorted_value)])
        row = np.arange(len(value))
        below = (row - first) * sorted_value - (sums[:-1] - sums[first])
        above = (sums[last] - sums[:-1]) - (last - row) * sorted_value
    up, down = np.empty(len(value)), np.empty(len(value))
    up[order], down[order] = np.maximum(below, 0), np.maximum(above, 0)  # rounding may leave a negative number
    return up, down
