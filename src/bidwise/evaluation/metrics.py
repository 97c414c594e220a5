"""How good predicted CTRs are, as predictions and in the auction they decide: float64 and exact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bidwise.auctions import Outcome, ad_numbers, run_auction, slot_multipliers
from bidwise.auctions.outcome import quality_of
from bidwise.checks import InputError, check_between, check_whole
from bidwise.evaluation.auc import auc_values, auction_areas
from bidwise.evaluation.calibration import Bin, calibration_curve, calibration_error
from bidwise.evaluation.intervals import Interval
from bidwise.evaluation.logged_ads import LoggedAds
from bidwise.evaluation.pooled import Pool, Pooled, WeightedPool, check_closed_form, pool_of, ranking_score
from bidwise.evaluation.units import Units
from bidwise.values import Floats

EPSILON = float(np.finfo(np.float64).eps)  # predictions are kept so far from 0 and 1 for a log loss


@dataclass(frozen=True, kw_only=True)
class ModelMetrics:
    """The metrics of one model; NaN if one is not defined, such as AUC without clicks.

    Means over ads weigh ads, means over auctions weigh auctions. ``predicted_over_observed`` is sum ctr / sum label;
    ``winners_`` over the ads shown, both times slot and bid: above 1 if winning selects overrated ads, the
    optimiser's curse. The calibration error is

        sum over bins |sum_i w_i (ctr_i - label_i)| / sum_i w_i

    over 20 bins of ctr with equal weight, equal scores together.
    """

    welfare: float
    revenue: float
    surplus: float
    auc: float
    auc_in_auctions: float | None = None  # of real auctions
    log_loss: float
    normalised_entropy: float
    calibration_error: float
    predicted_over_observed: float
    winners_predicted_over_observed: float
    ads: int
    clicks: int
    fill_rate: float
    clipped: int  # predictions of exactly 0 or 1
    calibration_curve: tuple[Bin, ...] = ()
    intervals: dict[str, Interval] = field(default_factory=dict)  # of welfare, revenue, auc and log_loss


@dataclass(frozen=True)
class Reference:
    """The welfare of ranking without a model, or by the true CTR, in the same auctions."""

    welfare: float
    revenue: float  # NaN without a ranking, which means no price
    intervals: dict[str, Interval]

    @classmethod
    def of(cls, units: Units) -> Self:
        """The levels of the metrics that units have."""
        intervals = {metric: units.level(metric) for metric in units.sums}
        return cls(units.mean("welfare"), units.mean("revenue") if "revenue" in units.sums else math.nan, intervals)


class _Rules(NamedTuple):
    """Of an auction; ``size`` if all auctions of that many ads are measured."""

    size: int | None
    slots: tuple[float, ...]
    pricing: str
    reserve: float
    squash: float


class Metrics:
    """Metrics of one model's CTRs.

    Ads compete in the auctions they were logged in; or, with a ``size``, in all auctions of that many that could be
    drawn from them (:mod:`bidwise.evaluation.pooled`).

    Args:
        ctr: predicted CTR in [0, 1], ``(ads,)``.
        clicks: 0 or 1.
        bids: cost-per-click bids, above 0.
        offsets: bounds of the auctions, ``(auctions + 1,)``; ``None`` for a single auction, and with a size.
        truth: true CTR in [0, 1]; the basis of welfare and revenue, by default the label.
        exposure: position multiplier in (0, 1] of the slot the ad was logged in. The label is then clicks / exposure,
            with the CTR in the first slot as mean; AUC uses unchanged clicks.
        weights: of the ads, no less than 0. A weighted auction weighs the mean weight of its ads, and 1 without ads;
            with a size, an ad competes as often as it weighs.
        clusters: whole numbers: ads of a cluster share their luck, so intervals are taken over clusters.
        size: ads of an auction, without real ones.
        slots, pricing, reserve, squash: rules of the auction, as in :func:`bidwise.run_auction`.

    >>> metrics = Metrics([0.1, 0.4, 0.9], [0, 1, 1], [10.0, 2.0, 0.5], truth=[0.1, 0.4, 0.9]).compute()
    >>> metrics.welfare, metrics.auc
    (1.0, 1.0)
    """

    def __init__(
        self,
        ctr: ArrayLike,
        clicks: ArrayLike,
        bids: ArrayLike,
        offsets: ArrayLike | None = None,
        *,
        size: int | None = None,
        slots: Sequence[float] = (1.0,),
        pricing: str = "gsp",
        reserve: float = 0.0,
        squash: float = 1.0,
        **columns: ArrayLike | None,
    ) -> None:
        predicted = ad_numbers("ctr", ctr).cpu()
        self.rules = _Rules(size, tuple(float(alpha) for alpha in slots), pricing, reserve, squash)
        if size is not None:
            check_whole("auction_size", size, 1)
            check_closed_form(pricing, len(self.rules.slots))
            if offsets is not None:
                raise InputError("must be None with a size: ads are drawn from all", argument="offsets")
        self.log = LoggedAds(predicted, clicks, bids, offsets, size, **columns)
        self._predict(predicted)

    def of(self, ctr: ArrayLike | None = None, **rules: Any) -> Metrics:
        """The same ads ranked by other predictions or rules; parts that depend on neither are reused."""
        other = Metrics.__new__(Metrics)
        other.rules, other.log = self.rules._replace(**rules), self.log
        other._predict(torch.from_numpy(self.ctr) if ctr is None else ad_numbers("ctr", ctr, like=self._bids))
        return other

    @property
    def _bids(self) -> Tensor:
        return torch.from_numpy(self.log.bids)

    def _predict(self, ctr: Tensor) -> None:
        log, rules = self.log, self.rules
        self.ctr = ctr.numpy()
        if rules.size is not None:
            check_between("ctr", ctr, 0, 1)
            return
        auction = {"slots": rules.slots, "pricing": rules.pricing, "reserve": rules.reserve, "squash": rules.squash}
        assert log.auctions is not None
        self.sold: Outcome = run_auction(ctr, log.bids, log.auctions.offsets, **auction)  # type: ignore[arg-type]

    @cached_property
    def _in_auctions(self) -> Units:
        worth = self.log.worth
        return self._sold({"welfare": self._welfare(worth), "revenue": self._revenue()}, worth)

    @cached_property
    def sales(self) -> Units:
        """:attr:`per_unit` of welfare and revenue only."""
        return self._grouped(self._in_auctions)

    @cached_property
    def per_unit(self) -> Units:
        """The contribution of each unit of intervals to welfare, revenue, log loss and AUC: each auction, in the
        order they came; with a size each ad; or each cluster."""
        units = self._in_auctions
        per_ad = {"log_loss": log_losses(self.ctr, self.log.label), "auc": self._area[1]}
        sums = units.sums | {metric: self.log.sum(column) for metric, column in per_ad.items()}
        return self._grouped(replace(units, sums=sums))

    def of_segment(self, mine: NDArray[np.bool_]) -> Units:
        """:attr:`per_unit` of the welfare that some of the ads bring, in the auctions of all."""
        worth = np.where(mine, self.log.worth, 0.0)
        return self._grouped(self._sold({"welfare": self._welfare(worth)}, worth))

    def at_random(self) -> Units:
        """The welfare of showing random ads, those that bid less than the reserve excepted."""
        value, eligible = self._shown_value(self.log.worth), self._bids >= self.rules.reserve
        if self.log.auctions is None:
            pool = self._pool(torch.zeros_like(value).masked_fill(~eligible, -math.inf))
            return self._grouped(self._sold({"welfare": pool.welfare(value, self.rules.slots)}, self.log.worth))
        auctions, alpha = self.log.auctions, slot_multipliers(self.rules.slots)
        rivals = auctions.sum(eligible.double())
        filled = torch.arange(len(alpha)) < rivals[:, None]
        welfare = auctions.sum(value) / rivals.clamp(min=1) * (alpha * filled).sum(1)
        place = torch.arange(auctions.ads) - auctions.spread(auctions.offsets[:-1])
        one = auctions.sum(place.where(eligible, 0).double())
        any_of = auctions.sum(_marks(place).where(eligible, 0.0)) / rivals
        shown = one.where(rivals < 2, any_of)[:, None].where(filled, -1.0)
        return self._grouped(self._sold({"welfare": welfare}, self.log.worth, shown))

    def _welfare(self, worth: Floats) -> Tensor | Pooled:
        """Of each auction; with a size of each ad."""
        if self.rules.size is None:
            return self.sold.welfare(worth, self.log.bids)
        return self.pool.welfare(self._shown_value(worth), self.rules.slots)

    def _revenue(self) -> Tensor | Pooled:
        log, rules = self.log, self.rules
        if rules.size is None:
            return self.sold.revenue(log.worth)
        worth = torch.from_numpy(log.worth)
        return self.pool.revenue(worth, self._bids, self._quality, rules.slots, rules.pricing, rules.reserve)

    def _sold(self, found: Mapping[str, Tensor | Pooled], worth: Floats, shown: Tensor | None = None) -> Units:
        """The contribution of each auction, or each ad, to means per auction."""
        weight = self.log.weight
        sums, parts = {}, {}
        for metric, each in found.items():
            values = each.values if isinstance(each, Pooled) else each
            sums[metric] = values.numpy() if weight is None else values.numpy() * weight
            if isinstance(each, Pooled):
                parts[metric] = each.own.numpy()[worth > 0]
        if self.log.auctions is None:
            return Units(sums=sums, parts=parts, weight=weight, ad_weight=weight)
        shown = _shown(self.sold, self.log.auctions.offsets[:-1]) if shown is None else shown
        return Units(sums=sums, weight=weight, ad_weight=self.log.ad_weight, shown=shown.numpy())

    def _grouped(self, units: Units) -> Units:
        return units if self.log.groups is None else units.by(self.log.groups)

    @cached_property
    def _quality(self) -> Tensor:
        return quality_of(torch.from_numpy(self.ctr), self.rules.squash)

    def _shown_value(self, worth: Floats) -> Tensor:
        """b truth of ads that may be shown."""
        bids = self.log.bids
        return torch.from_numpy(np.where(bids >= self.rules.reserve, bids * worth, 0.0))

    @cached_property
    def pool(self) -> Pool | WeightedPool:
        """All ads, ranked; with a size."""
        return self._pool(ranking_score(self._bids, self._quality, self.rules.reserve))

    def _pool(self, score: Tensor) -> Pool | WeightedPool:
        log, size = self.log, self.rules.size
        if size is None or len(self.ctr) <= size:
            message = f"must be below the number of ads, {len(self.ctr):,}, found {size:,}"
            raise InputError(message, argument="auction_size")
        weights = None if log.weights is None else torch.from_numpy(log.weights)
        return pool_of(score, size, len(self.rules.slots) + 1, weights=weights)

    @cached_property
    def _ranked(self) -> tuple[NDArray[np.intp], Floats, Floats, Floats | None]:
        """The ads in the order of their CTR: rows, CTR, label and weights."""
        order, log = np.argsort(self.ctr), self.log
        return order, self.ctr[order], log.label[order], None if log.weights is None else log.weights[order]

    @cached_property
    def _area(self) -> tuple[float, Floats]:
        """The AUC and the part of every ad in it."""
        order, ctr, label, weights = self._ranked
        area, values = auc_values(ctr, label > 0, weights)
        of_ad = np.empty_like(values)
        of_ad[order] = values
        return area, of_ad

    def compute(self) -> ModelMetrics:
        """All metrics."""
        log, units = self.log, self.per_unit
        _, ctr, label, weights = self._ranked
        log_loss, welfare, revenue = (units.mean(metric) for metric in ("log_loss", "welfare", "revenue"))
        promised, more = self._of_auctions() if log.auctions is not None else self._of_a_pool()
        return ModelMetrics(
            welfare=welfare,
            revenue=revenue,
            surplus=welfare - revenue,
            auc=self._area[0],
            log_loss=log_loss,
            normalised_entropy=_ratio(log_loss, _entropy(_mean(log.label, log.weights))),
            calibration_error=calibration_error(ctr, label, weights),
            predicted_over_observed=_ratio(_mean(self.ctr, log.weights), _mean(log.label, log.weights)),
            winners_predicted_over_observed=_ratio(promised, welfare),
            ads=len(ctr),
            clicks=int(np.count_nonzero(label)),
            clipped=int(np.searchsorted(ctr, EPSILON) + len(ctr) - np.searchsorted(ctr, 1 - EPSILON, side="right")),
            calibration_curve=calibration_curve(ctr, label, weights),
            intervals={metric: units.level(metric) for metric in ("welfare", "revenue", "auc", "log_loss")},
            **more,
        )

    def _of_auctions(self) -> tuple[float, dict[str, Any]]:
        """Predicted welfare, and metrics that need real auctions."""
        log, sold = self.log, self.sold
        assert log.auctions is not None
        assert log.ad_weight is not None
        area = auction_areas(self.ctr, log.label > 0, log.auctions, log.weights)
        ranked = ~np.isnan(area)
        return _mean(sold.welfare(self.ctr, log.bids).numpy(), log.weight), {
            "auc_in_auctions": _mean(area[ranked], log.ad_weight[ranked]),
            "fill_rate": _mean((sold.winners >= 0).numpy().mean(1), log.weight),
        }

    def _of_a_pool(self) -> tuple[float, dict[str, Any]]:
        slots, shown = self.rules.slots, self.log.bids >= self.rules.reserve
        assert self.rules.size is not None
        filled = min(self.rules.size / len(slots), 1.0)
        if not shown.all():
            filled = self.pool.mean_welfare(torch.from_numpy(shown).double(), (1.0,) * len(slots)) / len(slots)
        return self.pool.mean_welfare(self._shown_value(self.ctr), slots), {"fill_rate": filled}


def _shown(sold: Outcome, starts: Tensor) -> Tensor:
    """The ads shown, to compare two models: equal if they show the same ad, or one of the same tied ads."""
    places = (sold.winners - starts[:, None]).where(sold.winners >= 0, -1).double()
    if sold.ties is None:
        return places
    inside = sold.ties.rows - starts[sold.ties.slot[0]]
    return sold.ties.mean(_marks(inside), places)


def _marks(place: Tensor) -> Tensor:
    """A random number for each place in an auction, whole so that sums are exact."""
    marks = np.random.default_rng(0).integers(2**32, 2**33, size=int(place.max()) + 1 if len(place) else 0)
    return torch.from_numpy(marks)[place].double()


def log_losses(ctr: Floats, label: Floats) -> Floats:
    """-(label ln p + (1 - label) ln(1 - p)) of every ad, p the CTR kept float64's epsilon away from 0 and 1.

    >>> log_losses(np.array([0.5, 1.0]), np.array([0.0, 1.0])).round(4)
    array([0.6931, 0.    ])
    """
    p = ctr.clip(EPSILON, 1 - EPSILON)
    losses: Floats = (label - 1) * np.log1p(-p) - label * np.log(p)
    return losses


def _mean(numbers: Floats, weights: Floats | None) -> float:
    total = len(numbers) if weights is None else float(weights.sum())
    return _ratio(float((numbers if weights is None else numbers * weights).sum()), total)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else math.nan


def _entropy(rate: float) -> float:
    """Log loss of always predicting the observed rate, the best a constant can do."""
    if not 0 < rate < 1:
        return math.nan
    return -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))
