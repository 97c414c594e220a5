"""How good predicted CTRs are, as predictions and in the auction they decide: float64 and exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bidwise.auctions import Outcome, ad_numbers, auctions_of, run_auction
from bidwise.auctions.ranking import power
from bidwise.checks import InputError, check_between, check_bids, check_weights, check_whole
from bidwise.evaluation.auc import auc_values, auction_auc, clicked_ads
from bidwise.evaluation.bins import Bin, binned, calibration_error, curve, equal_mass_bins
from bidwise.evaluation.pooled import Pool, Pooled, WeightedPool, check_closed_form, pool_of, ranking_score
from bidwise.values import Floats

CTR_BINS = 20
BID_BINS = 10
MEANS = {"welfare", "revenue"}  # of a unit; other columns are sums over its ads
KEPT = {"winners", "tied", "own_welfare", "own_revenue"}  # of auctions and ads, also where clusters are the units
MANY_POOLS = 30  # from which on pools, not ads, are what may be drawn anew


@dataclass(frozen=True, kw_only=True)
class ModelMetrics:
    """The metrics of one model; NaN where one is not defined, as AUC without clicks or anything without ads.

    Means over ads weigh ads, means over auctions weigh auctions. ``predicted_over_observed`` is sum ctr / sum label;
    ``winners_`` over the ads shown, both times slot and bid: above 1 where winning selects what was overrated, the
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
    tied: float | None = None  # share of the auctions that a tie decides; not known of weighted ads of no auctions
    clipped: int  # predictions of exactly 0 or 1
    by_bid: tuple[Bin, ...] = ()
    calibration_curve: tuple[Bin, ...] = ()
    calibrated_from: str | None = None
    share_of_optimum: float | None = None  # where the true CTR is known


class Metrics:
    """Metrics of one model's CTRs.

    Ads compete in the auctions they were logged in; or, with a ``size``, in all auctions of that many that could be
    drawn from them (:mod:`bidwise.evaluation.pooled`).

    Args:
        ctr: predicted CTR in [0, 1], ``(ads,)``.
        clicks: 0 or 1.
        bids: cost-per-click bids, above 0.
        offsets: bounds of the auctions, ``(auctions + 1,)``; ``None`` for a single auction, and with a size.
        truth: true CTR in [0, 1]; what welfare and revenue go by, otherwise the label.
        exposure: position multiplier in (0, 1] of the slot the ad was logged in. The label is then clicks / exposure,
            whose mean is the CTR in the first slot; AUC takes the clicks as they are.
        propensity: chance in (0, 1] that the ad was shown: welfare and revenue count a click 1 / propensity times.
        weights: of the ads, no less than 0. A weighted auction weighs the mean weight of its ads, and 1 without ads;
            with a size, an ad competes as often as it weighs.
        pools: whole numbers, with a size: ads compete inside a pool.
        clusters: whole numbers: ads of a cluster share their luck, so intervals draw clusters anew.
        size: ads of an auction, where the ads are not in real ones.
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
        truth: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        propensity: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        pools: ArrayLike | None = None,
        clusters: ArrayLike | None = None,
        size: int | None = None,
        slots: Sequence[float] = (1.0,),
        pricing: str = "gsp",
        reserve: float = 0.0,
        squash: float = 1.0,
    ) -> None:
        self.size, self.slots, self.pricing = size, tuple(float(alpha) for alpha in slots), pricing
        self.reserve, self.squash = reserve, squash
        predicted = ad_numbers("ctr", ctr).cpu()
        bid = ad_numbers("bids", bids, like=predicted)
        label = clicked_ads(ad_numbers("clicks", clicks, like=predicted)).double()
        if exposure is not None:
            label /= _share("exposure", ad_numbers("exposure", exposure, like=predicted))
        worth = label
        if truth is not None:
            worth = ad_numbers("truth", truth, like=predicted)
            check_between("truth", worth, 0, 1)
        elif propensity is not None:
            worth = label / _share("propensity", ad_numbers("propensity", propensity, like=predicted))
        self.weights: Floats | None = None
        if weights is not None:
            weight = ad_numbers("weights", weights, like=predicted)
            check_weights(weight)
            self.weights = weight.numpy()
        self.ctr, self.label, self.bids, self.worth = (x.numpy() for x in (predicted, label, bid, worth))
        self.pools, self.clusters = (None if x is None else np.asarray(x, np.int64) for x in (pools, clusters))
        if size is None:
            self.auctions = auctions_of(predicted, offsets)
            rules = {"slots": self.slots, "pricing": pricing, "reserve": reserve, "squash": squash}
            self.sold: Outcome = run_auction(predicted, bid, offsets, **rules)  # type: ignore[arg-type]
            return
        check_whole("auction_size", size, 1)
        check_closed_form(pricing, len(self.slots), reserve=reserve)
        check_between("ctr", predicted, 0, 1)
        check_bids(bid)
        if offsets is not None:
            raise InputError("must be None with a size: ads are drawn from all", argument="offsets")

    @cached_property
    def _weight(self) -> Floats:
        """Of every unit before clustering: of an auction or, with a size, of an ad."""
        if self.size is not None:
            return np.broadcast_to(1.0, len(self.ctr)) if self.weights is None else self.weights
        sizes = self.auctions.sizes.numpy()
        return np.where(sizes > 0, self._ad_weight / np.maximum(sizes, 1), 1.0)

    @cached_property
    def _ad_weight(self) -> Floats:
        """Of the ads of every unit."""
        return self._weight if self.size is not None else self._sum(np.ones_like(self.ctr))

    def _sum(self, per_ad: Floats) -> Floats:
        """Weighted sums of numbers per ad over the ads of each unit, before clustering."""
        weighted = per_ad if self.weights is None else per_ad * self.weights
        return weighted if self.size is not None else self.auctions.sum(torch.from_numpy(weighted)).numpy()

    @cached_property
    def _area(self) -> tuple[float, Floats]:
        return auc_values(self.ctr, self.label > 0, self.weights)

    @cached_property
    def per_unit(self) -> dict[str, NDArray[Any]]:
        """Columns with a row for each unit that may be drawn anew: auctions in the order they came; with a size ads,
        or pools if there are many; or clusters.

        ``welfare, revenue``, weighted by ``weight``, have the metric as their mean; ``log_loss, auc`` are sums over the
        ads of a unit, whose weights ``ad_weight`` adds up. Of auctions also ``winners``, ``(auctions, slots)``, the
        place of the shown ad inside the auction or -1, and where ads tie a number for the set of them, and ``tied``,
        whether any do; with a size ``own_welfare, own_revenue``, what each ad that is worth anything adds to the mean;
        of clusters ``own_`` columns with what each auction or ad in them adds.
        """
        units = self._welfare(self.worth)
        if self.size is None:
            units["revenue"] = self.sold.revenue(self.worth).numpy()
        else:
            worth, bids = torch.from_numpy(self.worth), torch.from_numpy(self.bids)
            paid = self.pool.revenue(worth, bids, self._quality, self.slots, self.pricing, self.reserve)
            units |= self._of_ads("revenue", paid, self.worth)
        units |= {"log_loss": self._sum(log_losses(self.ctr, self.label)), "auc": self._sum(self._area[1])}
        return self._clustered(units | {"ad_weight": self._ad_weight})

    def of_segment(self, mine: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """:attr:`per_unit` of the welfare that some of the ads bring, in the auctions of all."""
        return self._clustered(self._welfare(np.where(mine, self.worth, 0.0)))

    def _welfare(self, worth: Floats) -> dict[str, NDArray[Any]]:
        if self.size is not None:
            found = self.pool.welfare(self._shown_value(worth), self.slots)
            return {"weight": self._weight} | self._of_ads("welfare", found, worth)
        return {
            "weight": self._weight,
            "welfare": self.sold.welfare(worth, self.bids).numpy(),
            "winners": _shown(self.sold, self.auctions.offsets[:-1]).numpy(),
            "tied": self.sold.tied.numpy(),
        }

    def _of_ads(self, metric: str, found: Pooled, worth: Floats) -> dict[str, NDArray[Any]]:
        values, own = found.values.numpy(), found.own.numpy()
        if self._by_pool:  # a pool's ads have no values where it is a single auction, but what they add has a sum
            values = own * self._weight.sum() / self._weight
        return {metric: values, f"own_{metric}": own[worth > 0]}

    @property
    def _by_pool(self) -> bool:
        """Whether pools are what may be drawn anew."""
        return self.pools is not None and self.clusters is None and len(np.unique(self.pools)) >= MANY_POOLS

    @cached_property
    def _quality(self) -> Tensor:
        return power(torch.from_numpy(self.ctr), self.squash)

    def _shown_value(self, worth: Floats) -> Tensor:
        """b truth of ads that may be shown."""
        return torch.from_numpy(np.where(self.bids >= self.reserve, self.bids * worth, 0.0))

    @cached_property
    def pool(self) -> Pool | WeightedPool:
        """All ads, ranked; with a size."""
        if self.size is None or len(self.ctr) <= self.size:
            message = f"must be below the number of ads, {len(self.ctr):,}, found {self.size:,}"
            raise InputError(message, argument="auction_size")
        score = ranking_score(torch.from_numpy(self.bids), self._quality, self.reserve)
        pools, weights = (None if x is None else torch.from_numpy(x) for x in (self.pools, self.weights))
        return pool_of(score, self.size, len(self.slots) + 1, pools=pools, weights=weights)

    def _clustered(self, units: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Units of a cluster, or of one of many pools, as one."""
        clusters = self.pools if self._by_pool else self.clusters
        if clusters is None:
            return units
        if self.size is None:
            first = clusters[np.minimum(self.auctions.offsets[:-1].numpy(), len(clusters) - 1)]
            if not np.array_equal(np.repeat(first, self.auctions.sizes.numpy()), clusters):
                message = "must be the same for all ads of an auction; without real auctions ({}) ads may be clustered"
                raise InputError(message, argument="cluster", others=["auction_size"])
            clusters = first
        _, of_unit = np.unique(clusters, return_inverse=True)
        kept = {name: units[name] for name in units if name in KEPT}
        rest = {name: units[name] for name in units if name not in KEPT}
        weighted = {name: column * units["weight"] if name in MEANS else column for name, column in rest.items()}
        sums = {name: np.bincount(of_unit, column) for name, column in weighted.items()}
        weight = np.where(sums["weight"] > 0, sums["weight"], 1.0)
        own = {f"own_{name}": column for name, column in weighted.items() if name not in ("weight", "ad_weight")}
        return own | kept | sums | {name: sums[name] / weight for name in sums.keys() & MEANS}

    def compute(self) -> ModelMetrics:
        """All metrics."""
        ctr, label, weights, units = self.ctr, self.label, self.weights, self.per_unit
        log_loss = _ratio(float(units["log_loss"].sum()), float(units["ad_weight"].sum()))
        ctr_bins, bid_bins = equal_mass_bins(ctr, CTR_BINS, weights), equal_mass_bins(self.bids, BID_BINS, weights)
        by_ctr, by_bid = (binned(bins, ctr, label, weights) for bins in (ctr_bins, bid_bins))
        welfare, revenue = (_mean(units[name], units["weight"]) for name in ("welfare", "revenue"))
        promised, more = self._in_auctions() if self.size is None else self._in_a_pool()
        return ModelMetrics(
            welfare=welfare,
            revenue=revenue,
            surplus=welfare - revenue,
            auc=self._area[0],
            log_loss=log_loss,
            normalised_entropy=_ratio(log_loss, _entropy(_mean(label, weights))),
            calibration_error=calibration_error(by_ctr),
            predicted_over_observed=_ratio(_total(ctr, weights), _total(label, weights)),
            winners_predicted_over_observed=_ratio(promised, welfare),
            ads=len(ctr),
            clicks=int(np.count_nonzero(label)),
            clipped=int(np.count_nonzero(_clipped(ctr) != ctr)),
            by_bid=curve(bid_bins, self.bids, by_bid),
            calibration_curve=curve(ctr_bins, ctr, by_ctr),
            **more,
        )

    def _in_auctions(self) -> tuple[float, dict[str, Any]]:
        """Welfare as it was predicted, and what only real auctions have."""
        area = auction_auc(self.ctr, self.label > 0, self.auctions.offsets, weights=self.weights)
        ranked = ~np.isnan(area)
        return _mean(self.sold.welfare(self.ctr, self.bids).numpy(), self._weight), {
            "auc_in_auctions": _mean(area[ranked], self._ad_weight[ranked]),
            "fill_rate": _mean((self.sold.winners >= 0).numpy().mean(1), self._weight),
            "tied": _mean(self.sold.tied.numpy().astype(np.float64), self._weight),
        }

    def _in_a_pool(self) -> tuple[float, dict[str, Any]]:
        assert self.size is not None
        filled, shown = min(self.size / len(self.slots), 1.0), self.bids >= self.reserve
        if not shown.all():
            places = (1.0,) * len(self.slots)
            filled = self.pool.mean_welfare(torch.from_numpy(shown).double(), places) / len(places)
        tied = self.pool.tied_share() if isinstance(self.pool, Pool) else None
        return self.pool.mean_welfare(self._shown_value(self.ctr), self.slots), {"fill_rate": filled, "tied": tied}


def _shown(sold: Outcome, starts: Tensor) -> Tensor:
    """Who is shown, to compare two models by: equal where they show the same ad, or one of the same tied ads."""
    places = (sold.winners - starts[:, None]).where(sold.winners >= 0, -1).double()
    if sold.ties is None:
        return places
    inside = (sold.ties.rows - starts[sold.ties.slot[0]]).numpy()
    marks = np.random.default_rng(0).integers(2**32, 2**33, size=inside.max() + 1)  # whole, so that sums are exact
    return sold.ties.mean(torch.from_numpy(marks[inside]).double(), places)


def log_losses(ctr: Floats, label: Floats) -> Floats:
    """-(label ln p + (1 - label) ln(1 - p)) of every ad, p the CTR kept float64's epsilon away from 0 and 1.

    >>> log_losses(np.array([0.5, 1.0]), np.array([0.0, 1.0])).round(4)
    array([0.6931, 0.    ])
    """
    p = _clipped(ctr)
    losses = -np.log1p(-p)
    clicked = np.flatnonzero(label)
    label = label[clicked]
    losses[clicked] = (1 - label) * losses[clicked] - label * np.log(p[clicked])
    return losses


def _share(argument: str, numbers: Tensor) -> Tensor:
    check_between(argument, numbers, 0, 1)
    if not bool(numbers.all()):
        raise InputError(f"must be above 0, found 0 at [{int(numbers.argmin())}]", argument=argument)
    return numbers


def _total(numbers: NDArray[Any], weights: Floats | None) -> float:
    return float((numbers if weights is None else numbers * weights).sum())


def _mean(numbers: Floats, weights: Floats | None) -> float:
    return _ratio(_total(numbers, weights), _total(np.ones_like(numbers), weights))  # one rounding: a mean of ones is 1


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else math.nan


def _entropy(rate: float) -> float:
    """Log loss of always predicting the observed rate, the best a constant can do."""
    if not 0 < rate < 1:
        return math.nan
    return -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))


def _clipped(ctr: Floats) -> Floats:
    eps = float(np.finfo(np.float64).eps)
    return np.clip(ctr, eps, 1 - eps)
