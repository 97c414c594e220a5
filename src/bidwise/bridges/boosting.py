"""Gradient boosting for welfare: an objective and a metric for LightGBM and XGBoost.

Neither library is imported here: both call what they are given with the scores of all rows and their data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from bidwise.auctions import ad_numbers, auctions_of, welfare
from bidwise.checks import InputError, check_between, check_bids, check_whole, warn_of_ctr
from bidwise.evaluation.pooled import pooled_welfare
from bidwise.losses import WelfareLoss
from bidwise.losses.curvature import Derivatives, sigmoid
from bidwise.losses.named import needs_teacher, single_loss
from bidwise.values import Floats


def welfare_objective(
    bids: ArrayLike,
    auctions: ArrayLike | None = None,
    *,
    loss: str | nn.Module = "log_plus",
    teacher: ArrayLike | None = None,
    start: float = 0.5,
    **options: Any,
) -> WelfareObjective:
    """A loss of :data:`bidwise.LOSSES`, or any :class:`bidwise.WelfareLoss`, as what boosted trees minimise.

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
        start: the CTR of score 0, where LightGBM starts: the mean of the clicks saves rounds. XGBoost has its
            ``base_score`` for that.

    Gradients are those of the mean loss times the number of rows (of ``reduction="sum"``, of the sum), so that limits
    on the curvature of a leaf mean what they mean for a log loss.

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
    taught = None if teacher is None else ad_numbers("teacher", teacher, like=worth).numpy()
    if taught is not None:
        check_between("teacher", torch.from_numpy(taught), 0, 1)
    elif needs_teacher(chosen):
        raise InputError(f"must be given for {loss!r}, found None", argument="teacher")
    return WelfareObjective(Derivatives(chosen, worth.numpy(), bounds, taught), _logit(start))


def welfare_metric(
    bids: ArrayLike,
    auctions: ArrayLike | None = None,
    *,
    auction_size: int | None = None,
    raw: bool = True,
    start: float = 0.5,
    slots: Sequence[float] = (1.0,),
) -> WelfareMetric:
    """Welfare of the rows that are validated on, higher is better: ``feval`` of LightGBM, ``custom_metric`` of XGBoost.

    LightGBM and ``LGBMClassifier.fit(eval_metric=f)`` are told that higher is better. XGBoost is not: pass
    ``maximize=True`` to ``xgboost.train`` or its early stopping.

    Args:
        bids, auctions: as in :func:`welfare_objective`, of the validation rows: welfare is the mean over auctions.
        auction_size: without auctions, the mean over all auctions of this many rows (:func:`bidwise.pooled_welfare`).
        raw: whether predictions are scores, as they are with an objective of one's own; with ``binary`` and
            ``binary:logistic`` both libraries pass CTR: ``raw=False``.
        start: as in :func:`welfare_objective`.
        slots: position multipliers.

    >>> metric = welfare_metric([1.0, 2.0], [0, 2])
    >>> metric(np.array([1, 0]), np.array([0.5, -0.5]))
    ('welfare', 0.0, True)
    """
    if (auctions is None) == (auction_size is None):
        raise InputError("must be given where auctions are not, and only there", argument="auction_size")
    if auction_size is not None:
        check_whole("auction_size", auction_size, 1)
    worth, bounds = _columns(bids, auctions)
    return WelfareMetric(worth.numpy(), bounds, auction_size, _logit(start) if raw else None, tuple(slots))


def boosted_ctr(scores: ArrayLike, start: float = 0.5) -> Floats:
    """CTR of the raw scores that a booster with a :func:`welfare_objective` predicts.

    >>> boosted_ctr([0.0, 1.0], start=0.2).round(3)
    array([0.2  , 0.405])
    """
    return sigmoid(np.asarray(scores, dtype=np.float64) + _logit(start))


@dataclass(frozen=True, eq=False)
class WelfareObjective:
    """Gradient and curvature of a loss for every row; made by :func:`welfare_objective`."""

    derivatives: Derivatives
    start: float  # the logit of score 0

    def __call__(self, first: Any, second: Any, sample_weight: ArrayLike | None = None) -> tuple[Floats, Floats]:
        """Scores and a Dataset or DMatrix, or clicks and scores as the wrappers for scikit-learn pass them."""
        rows = _Rows.of(first, second, sample_weight)
        rows.check("welfare_objective", self.derivatives.bids, self.derivatives.offsets)
        check_between("label", torch.from_numpy(rows.clicks), 0, 1)
        return self.derivatives(rows.scores + self.start, rows.clicks, rows.weights)


@dataclass(frozen=True, eq=False)
class WelfareMetric:
    """Welfare of a booster's predictions; made by :func:`welfare_metric`."""

    bids: Floats
    offsets: NDArray[np.int64] | None
    auction_size: int | None
    start: float | None  # the logit of score 0; None where predictions are CTR
    slots: tuple[float, ...]

    def __call__(
        self, first: Any, second: Any, sample_weight: ArrayLike | None = None
    ) -> tuple[str, float] | tuple[str, float, bool]:
        """Predictions and a Dataset or DMatrix, or clicks and predictions; weights do not count."""
        rows = _Rows.of(first, second, sample_weight)
        rows.check("welfare_metric", self.bids, self.offsets)
        ctr = rows.scores if self.start is None else sigmoid(rows.scores + self.start)
        if self.start is None and not (ctr.min(initial=0) >= 0 and ctr.max(initial=0) <= 1):
            raise InputError("must be True where predictions are scores: some are outside [0, 1]", argument="raw")
        if self.start is not None:
            warn_of_ctr(torch.from_numpy(rows.scores), torch.from_numpy(rows.clicks), "predictions", "pass raw=False")
        if self.auction_size is None:
            found = welfare(ctr, rows.clicks, self.bids, self.offsets, slots=self.slots).mean().item()
        else:
            found = pooled_welfare(ctr, rows.clicks, self.bids, self.auction_size, slots=self.slots)
        return ("welfare", found) if rows.xgboost else ("welfare", found, True)


@dataclass(frozen=True, eq=False)
class _Rows:
    """What a library passes: the scores or predictions of its rows, and what its data say of them."""

    scores: Floats
    clicks: Floats
    weights: Floats | None = None
    groups: NDArray[np.int64] | None = None  # sizes, where the data have groups
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
            raise InputError(
                f"{who} has the bids of {len(bids)} rows, found data of {len(self.scores)}; "
                "an objective takes bids of the training rows, a metric those of the one set it is evaluated on"
            )
        if self.groups is not None and offsets is not None and not np.array_equal(self.groups, np.diff(offsets)):
            raise InputError(f"{who} has other auctions than the groups of the data: their sizes differ")


def _columns(bids: ArrayLike, auctions: ArrayLike | None) -> tuple[torch.Tensor, NDArray[np.int64] | None]:
    """Bids, and offsets where there are auctions, both checked."""
    worth = ad_numbers("bids", bids).cpu()
    check_bids(worth)
    return worth, None if auctions is None else auctions_of(worth, auctions).offsets.numpy()


def _floats(values: Any) -> Floats:
    return np.require(values, np.float64, ["C", "W"])


def _logit(start: float) -> float:
    if not 0 < start < 1:
        raise InputError(f"must be a CTR between 0 and 1, found {start}", argument="start")
    return float(np.log(start) - np.log1p(-start))
