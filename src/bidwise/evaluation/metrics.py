"""How good predicted CTRs are, as predictions and in the auction they decide: float64, exact, in pieces that merge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bidwise.auctions import Outcome, ad_numbers, auctions_of, run_auction
from bidwise.auctions.columns import Floats
from bidwise.auctions.ranking import power
from bidwise.checks import InputError, check_between, check_bids, check_weights, check_whole
from bidwise.evaluation.auc import auc_values, auction_auc, clicked_ads, rank_agreement
from bidwise.evaluation.bins import BidBin, CtrBin, binned, calibration_error, curve, equal_mass_bins
from bidwise.evaluation.pooled import Pool, Pooled, WeightedPool, check_closed_form, pool_of, ranking_score
from bidwise.segments import Auctions

CTR_BINS = 20
BID_BINS = 10
SHARED = ("welfare", "revenue", "log_loss", "weight", "ad_weight", "winners", "tied")
MEANS = {"welfare", "revenue"}  # of a unit; other columns are sums over its ads
MANY_POOLS = 30  # from which on pools, not ads, are what may be drawn anew


@dataclass(frozen=True, kw_only=True)
class ToAverage:
    """A model's welfare minus the mean welfare of all models, per auction: what all models share cancels."""

    welfare: float
    standard_error: float


@dataclass(frozen=True, kw_only=True)
class ModelMetrics:
    """The metrics of one model; NaN where one is not defined, as AUC without clicks or anything without ads.

    Means over ads weigh ads, means over auctions weigh auctions. ``predicted_over_observed`` is sum ctr / sum
    label; ``ecpm_`` the same with both times the bid; ``winners_`` over the ads shown, both times slot and bid:
    above 1 where winning selects what was overrated, the optimiser's curse. A calibration error is

        sum over bins |sum_i w_i (ctr_i - label_i)| / sum_i w_i

    over 20 bins of ctr with equal weight, equal scores together; for ``ecpm_`` w_i is b_i ctr_i times the weight.
    """

    welfare: float
    revenue: float
    surplus: float
    auc: float
    log_loss: float
    normalised_entropy: float
    brier: float
    calibration_error: float
    ecpm_calibration_error: float
    predicted_over_observed: float
    ecpm_predicted_over_observed: float
    winners_predicted_over_observed: float
    ads: int
    clicks: int
    fill_rate: float
    tied: float | None = None  # share of the auctions that a tie decides; not known of weighted ads of no auctions
    auctions: int | None = None  # these three of real auctions alone
    auc_in_auctions: float | None = None
    rank_agreement: float | None = None
    clipped: int  # predictions of exactly 0 or 1
    by_bid: tuple[BidBin, ...] = ()
    calibration_curve: tuple[CtrBin, ...] = ()
    calibrated_from: str | None = None
    regret: float | None = None  # where the true CTR is known
    share_of_optimum: float | None = None
    difference_to_average: ToAverage | None = None  # among models that are not calibrated twins


class Metrics:
    """Metrics of one model's CTRs over ads that come in any number of pieces.

    Ads compete in the auctions they were logged in; or, with a ``size``, in all auctions of that many that could be
    drawn from them (:mod:`bidwise.evaluation.pooled`). Exact AUC and bins of equal mass need every score, so the ctr,
    label (clicks / exposure), bid and weight of every ad are kept, 32 bytes an ad (24 without weights), and beside them
    a row of sums per auction. Pieces of a data set, on one machine or many, are measured apart and merged; the result
    is that of all at once.

    Args:
        slots: position multipliers of the auction that is run on the predictions.
        pricing: ``gsp``, ``vcg`` or ``first_price``.
        reserve: least price of a click.
        squash: exponent of the CTR in the ranking score.
        size: ads of an auction, where the ads are not in real ones.

    >>> metrics = Metrics().update([0.1, 0.4, 0.9], [0, 1, 1], [10.0, 2.0, 0.5], truth=[0.1, 0.4, 0.9])
    >>> result = metrics.compute()
    >>> result.welfare, result.auc, result.rank_agreement
    (1.0, 1.0, 1.0)
    """

    def __init__(
        self,
        *,
        slots: Sequence[float] = (1.0,),
        pricing: str = "gsp",
        reserve: float = 0.0,
        squash: float = 1.0,
        size: int | None = None,
    ) -> None:
        self.size = size
        self.auction: dict[str, Any] = {
            "slots": tuple(float(alpha) for alpha in slots),
            "pricing": pricing,
            "reserve": reserve,
            "squash": squash,
        }
        self._ads: list[_Ads] = []
        self._auctions: list[dict[str, NDArray[Any]]] = []
        self._units: dict[str, NDArray[Any]] | None = None
        self._pool: Pool | WeightedPool | None = None
        self._tied: float | None = None
        self._area = math.nan
        if size is not None:
            check_whole("auction_size", size, 1)
            check_closed_form(pricing, len(self.auction["slots"]), reserve=reserve)
        self.update([], [], [], None if size else [0])  # no auctions: checks the options, and gives columns their shape

    def update(
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
    ) -> Metrics:
        """Add whole auctions; returns itself.

        Args:
            ctr: predicted CTR in [0, 1], ``(ads,)``.
            clicks: 0 or 1.
            bids: cost-per-click bids, above 0.
            offsets: bounds of the auctions, ``(auctions + 1,)``; ``None`` for a single auction, and with a size.
            truth: true CTR in [0, 1]; what welfare, revenue, surplus and rank agreement go by, otherwise the label.
            exposure: position multiplier in (0, 1] of the slot the ad was logged in. The label is then
                clicks / exposure, whose mean is the CTR in the first slot; AUC takes the clicks as they are.
            propensity: chance in (0, 1] that the ad was shown: welfare and revenue count a click 1 / propensity times.
            weights: of the ads, no less than 0. A weighted auction weighs the mean weight of its ads, and 1 without
                ads; with a size, an ad competes as often as it weighs.
            pools: whole numbers, with a size: ads compete inside a pool.
            clusters: whole numbers: ads of a cluster share their luck, so intervals draw clusters anew.
        """
        predicted = ad_numbers("ctr", ctr).cpu()
        clicked = clicked_ads(ad_numbers("clicks", clicks, like=predicted))
        bid = ad_numbers("bids", bids, like=predicted)
        label = torch.from_numpy(clicked.astype(np.float64))
        if exposure is not None:
            label /= _share("exposure", ad_numbers("exposure", exposure, like=predicted))
        worth = None
        if truth is not None:
            worth = ad_numbers("truth", truth, like=predicted)
            check_between("truth", worth, 0, 1)
        elif propensity is not None:
            worth = label / _share("propensity", ad_numbers("propensity", propensity, like=predicted))
        weight = None
        if weights is not None:
            weight = ad_numbers("weights", weights, like=predicted)
            check_weights(weight)
        ads = _Ads(
            predicted.numpy().copy(),  # copies: the caller may reuse its arrays
            label.numpy(),
            bid.numpy().copy(),
            None if weight is None else weight.numpy().copy(),
            None if worth is None else worth.numpy().copy(),
            None if pools is None else np.asarray(pools, dtype=np.int64),
            None if clusters is None else np.asarray(clusters, dtype=np.int64),
        )
        if self.size is None:
            sold = run_auction(predicted, bid, offsets, **self.auction)  # checks ctr, bids and offsets
            auctions = auctions_of(predicted, offsets)
            self._auctions.append(_per_auction(ads, sold, auctions, label if worth is None else worth))
        else:
            check_between("ctr", predicted, 0, 1)
            check_bids(bid)
            if offsets is not None:
                raise InputError("must be None with a size: ads are drawn from all", argument="offsets")
        self._ads.append(ads)
        self._units = self._pool = None
        return self

    def merge(self, other: Metrics) -> Metrics:
        """Add all that ``other`` has seen, its auctions after these; returns itself."""
        mine, theirs = ({**each.auction, "size": each.size} for each in (self, other))
        if mine != theirs:
            raise InputError(f"other must be of the same auction, {mine}, found {theirs}")
        self._ads += other._ads
        self._auctions += other._auctions
        self._units = self._pool = None
        return self

    @property
    def per_unit(self) -> dict[str, NDArray[Any]]:
        """Columns with a row for each unit that may be drawn anew: auctions in the order they came; with a size ads,
        or pools if there are many; or clusters.

        ``welfare, revenue``, weighted by ``weight``, have the metric as their mean; ``log_loss, auc`` are sums over the
        ads of a unit, whose weights ``ad_weight`` adds up. Of auctions also ``winners``, ``(auctions, slots)``, the
        place of the shown ad inside the auction or -1, and where ads tie a number for the set of them, and ``tied``,
        whether any do; with a size ``own_welfare, own_revenue``, what each ad that is worth anything adds to the mean;
        of clusters ``own_`` columns with what each auction or ad in them adds.
        """
        if self._units is None:
            ads, auctions = self._joined()
            with ThreadPoolExecutor(1) as beside:  # two sorts that need not wait for each other
                ranked = beside.submit(auc_values, ads.ctr, ads.label > 0, ads.weights)
                units = {name: auctions[name] for name in SHARED} if self.size is None else self._pooled(ads)
                self._area, values = ranked.result()
            values = values if ads.weights is None else values * ads.weights
            if self.size is None:
                offsets = np.concatenate([[0], auctions["ads"].cumsum()])
                units["auc"] = np.diff(np.concatenate([[0.0], values.cumsum()])[offsets])
                self._units = _by_cluster(units, ads.clusters, offsets)
            else:
                own = {name: units.pop(name) for name in ("own_welfare", "own_revenue")}
                units["auc"] = values
                self._units = _by_cluster(units, ads.pools if ads.by_pool else ads.clusters) | own
        return self._units

    def _pooled(self, ads: _Ads) -> dict[str, NDArray[Any]]:
        assert self.size is not None
        if len(ads.ctr) <= self.size:
            message = f"must be below the number of ads, {len(ads.ctr):,}, found {self.size:,}"
            raise InputError(message, argument="auction_size")
        rules, slots = self.auction, self.auction["slots"]
        ctr, bids, worth = (torch.from_numpy(x) for x in (ads.ctr, ads.bids, ads.worth_or_label))
        shown, counts = bids >= rules["reserve"], worth.numpy() > 0
        weight = np.broadcast_to(1.0, len(ads.ctr)) if ads.weights is None else ads.weights
        pool = self.pool(ads)

        def parts(found: Pooled) -> tuple[Floats, Floats]:
            values, own = found.values.numpy(), found.own.numpy()
            if ads.by_pool:  # a pool's ads have no values where it is a single auction, but what they add has a sum
                values = own * weight.sum() / weight
            return values, own[counts]

        welfare, own_welfare = parts(pool.welfare((bids * worth).where(shown, 0.0), slots))
        quality = power(ctr, rules["squash"])
        revenue, own_revenue = parts(pool.revenue(worth, bids, quality, slots, rules["pricing"], rules["reserve"]))
        self._promised = pool.mean_welfare((bids * ctr).where(shown, 0.0), slots)
        self._filled = min(self.size / len(slots), 1.0)
        if not bool(shown.all()):
            self._filled = pool.mean_welfare(shown.double(), (1.0,) * len(slots)) / len(slots)
        self._tied = pool.tied_share() if isinstance(pool, Pool) else None
        del pool
        losses = log_losses(ads.ctr, ads.label)
        return {
            "welfare": welfare,
            "revenue": revenue,
            "own_welfare": own_welfare,
            "own_revenue": own_revenue,
            "log_loss": losses if ads.weights is None else losses * weight,
            "weight": weight,
            "ad_weight": weight,
        }

    def pool(self, ads: _Ads | None = None) -> Pool | WeightedPool:
        """All ads, ranked."""
        ads = self._joined()[0] if ads is None else ads
        assert self.size is not None
        quality = power(torch.from_numpy(ads.ctr), self.auction["squash"])
        score = ranking_score(torch.from_numpy(ads.bids), quality, self.auction["reserve"])
        pools, weights = (None if x is None else torch.from_numpy(x) for x in (ads.pools, ads.weights))
        return pool_of(score, self.size, len(self.auction["slots"]) + 1, pools=pools, weights=weights)

    def of_segment(self, mine: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """:attr:`per_unit` of the welfare that some of the ads bring, in the auctions of all."""
        ads, auctions = self._joined()
        worth = torch.from_numpy(np.where(mine, ads.worth_or_label, 0.0))
        bids, slots = torch.from_numpy(ads.bids), self.auction["slots"]
        if self.size is None:
            offsets = np.concatenate([[0], auctions["ads"].cumsum()])
            sold = run_auction(ads.ctr, ads.bids, offsets, **self.auction)
            units: dict[str, NDArray[Any]] = {name: auctions[name] for name in ("weight", "winners")}
            return _by_cluster(units | {"welfare": sold.welfare(worth, bids).numpy()}, ads.clusters, offsets)
        if self._pool is None:
            self._pool = self.pool(ads)
        found = self._pool.welfare((bids * worth).where(bids >= self.auction["reserve"], 0.0), slots)
        weight = np.broadcast_to(1.0, len(mine)) if ads.weights is None else ads.weights
        values, own = found.values.numpy(), found.own.numpy()
        units = {"welfare": own * weight.sum() / weight if ads.by_pool else values, "weight": weight}
        units = _by_cluster(units, ads.pools if ads.by_pool else ads.clusters)
        return units | {"own_welfare": own[worth.numpy() > 0]}

    def compute(self) -> ModelMetrics:
        """The metrics of all that was seen."""
        ads, auctions = self._joined()
        ctr, label, bids, weights, *_ = ads
        units = self.per_unit
        ecpm = bids * ctr
        log_loss = _ratio(float(units["log_loss"].sum()), float(units["ad_weight"].sum()))
        ctr_bins, bid_bins = equal_mass_bins(ctr, CTR_BINS, weights), equal_mass_bins(bids, BID_BINS, weights)
        by_ctr, by_bid = binned(ctr_bins, ctr, label, weights), binned(bid_bins, ctr, label, weights)
        by_ecpm = binned(ctr_bins, ctr, label, ecpm if weights is None else ecpm * weights)
        welfare, revenue = (_mean(units[name], units["weight"]) for name in ("welfare", "revenue"))
        return ModelMetrics(
            welfare=welfare,
            revenue=revenue,
            surplus=welfare - revenue,
            auc=self._area,
            log_loss=log_loss,
            normalised_entropy=_ratio(log_loss, _entropy(_mean(label, weights))),
            brier=_mean(ctr * ctr + label * (1 - 2 * ctr), weights),
            calibration_error=calibration_error(by_ctr),
            ecpm_calibration_error=calibration_error(by_ecpm),
            predicted_over_observed=_ratio(_total(ctr, weights), _total(label, weights)),
            ecpm_predicted_over_observed=_ratio(_total(ecpm, weights), _total(bids * label, weights)),
            ads=len(ctr),
            clicks=int(np.count_nonzero(label)),
            clipped=int(np.count_nonzero(_clipped(ctr) != ctr)),
            by_bid=tuple(
                BidBin(bid_low=low, bid_high=high, **rest) for low, high, rest in curve(bid_bins, bids, by_bid)
            ),
            calibration_curve=tuple(
                CtrBin(low=low, high=high, **rest) for low, high, rest in curve(ctr_bins, ctr, by_ctr)
            ),
            **(self._in_auctions(auctions) if self.size is None else self._in_a_pool(welfare)),
        )

    def _in_auctions(self, auctions: dict[str, NDArray[Any]]) -> dict[str, Any]:
        weight, ad_weight = auctions["weight"], auctions["ad_weight"]
        ranked = ~np.isnan(auctions["auc"])
        promised, observed = _total(auctions["promised"], weight), _total(auctions["welfare"], weight)
        return {
            "auc_in_auctions": _mean(auctions["auc"][ranked], ad_weight[ranked]),
            "winners_predicted_over_observed": _ratio(promised, observed),
            "rank_agreement": _ratio(_total(auctions["agreeing"], weight), _total(auctions["pairs"], weight)),
            "auctions": len(weight),
            "fill_rate": _mean(auctions["filled"], weight),
            "tied": _mean(auctions["tied"].astype(np.float64), weight),
        }

    def _in_a_pool(self, welfare: float) -> dict[str, Any]:
        return {
            "winners_predicted_over_observed": _ratio(self._promised, welfare),
            "fill_rate": self._filled,
            "tied": self._tied,
        }

    def _joined(self) -> tuple[_Ads, dict[str, NDArray[Any]]]:
        """All pieces as one, kept so: a second look costs nothing."""
        if len(self._ads) > 1:
            some = [ads for ads in self._ads if len(ads.ctr)] or self._ads[:1]
            weights = [ads.weights for ads in some]
            if any(column is not None for column in weights):
                weights = [np.ones(len(ads.ctr)) if ads.weights is None else ads.weights for ads in some]
            worth = [ads.worth for ads in some]
            if any(column is not None for column in worth):
                worth = [ads.worth_or_label for ads in some]
            ctr, label, bids, pools, clusters = (_join([ads[k] for ads in some]) for k in (0, 1, 2, 5, 6))
            self._ads = [_Ads(ctr, label, bids, _join(weights), _join(worth), pools, clusters)]
        if len(self._auctions) > 1:
            names = self._auctions[0]
            self._auctions = [{name: _join([piece[name] for piece in self._auctions]) for name in names}]
        return self._ads[0], self._auctions[0] if self._auctions else {}


class _Ads(NamedTuple):
    """What is kept of every ad."""

    ctr: Floats
    label: Floats
    bids: Floats
    weights: Floats | None
    worth: Floats | None  # what welfare goes by, if not the label
    pools: NDArray[np.int64] | None
    clusters: NDArray[np.int64] | None

    @property
    def worth_or_label(self) -> Floats:
        return self.label if self.worth is None else self.worth

    @property
    def by_pool(self) -> bool:
        """Whether pools are what may be drawn anew."""
        return self.pools is not None and self.clusters is None and len(np.unique(self.pools)) >= MANY_POOLS


def _by_cluster(
    units: dict[str, NDArray[Any]], clusters: NDArray[np.int64] | None, offsets: NDArray[np.int64] | None = None
) -> dict[str, NDArray[Any]]:
    """Units of a cluster as one; ``offsets``: the units are auctions, which lie inside a cluster."""
    if clusters is None:
        return units
    if offsets is not None:
        first = clusters[np.minimum(offsets[:-1], len(clusters) - 1)]
        if not np.array_equal(np.repeat(first, np.diff(offsets)), clusters):
            message = "must be the same for all ads of an auction; without real auctions ({}) ads may be clustered"
            raise InputError(message, argument="cluster", others=["auction_size"])
        clusters = first
    _, of_unit = np.unique(clusters, return_inverse=True)
    kept = {name: units[name] for name in units if name in ("winners", "tied")}
    weighted = {name: column * units["weight"] if name in MEANS else column for name, column in units.items()}
    sums = {name: np.bincount(of_unit, weighted[name]) for name in units.keys() - kept}
    weight = np.where(sums["weight"] > 0, sums["weight"], 1.0)
    own = {f"own_{name}": weighted[name] for name in sums.keys() - {"weight", "ad_weight"}}
    return kept | own | sums | {name: sums[name] / weight for name in sums.keys() & MEANS}


def _per_auction(ads: _Ads, sold: Outcome, auctions: Auctions, worth: Tensor) -> dict[str, NDArray[Any]]:
    """What is kept of every auction."""
    ctr, label, bids, weights, *_ = ads
    offsets, sizes = auctions.offsets, auctions.sizes.numpy()
    ad_weight = sizes.astype(np.float64) if weights is None else auctions.sum(torch.from_numpy(weights)).numpy()
    losses = log_losses(ctr, label)
    agreeing, pairs = rank_agreement(bids * ctr, bids * worth.numpy(), offsets)
    welfare, revenue = sold.welfare(worth, bids).numpy(), sold.revenue(worth).numpy()
    return {
        "welfare": welfare,
        "revenue": revenue,
        "ads": sizes,
        "promised": sold.welfare(ctr, bids).numpy(),
        "filled": (sold.winners >= 0).numpy().mean(1),
        "winners": _shown(sold, offsets[:-1]).numpy(),
        "tied": sold.tied.numpy(),
        "log_loss": auctions.sum(torch.from_numpy(losses if weights is None else losses * weights)).numpy(),
        "auc": auction_auc(ctr, label > 0, offsets, weights=weights),
        "agreeing": agreeing,
        "pairs": pairs,
        "weight": np.where(sizes > 0, ad_weight / np.maximum(sizes, 1), 1.0),
        "ad_weight": ad_weight,
    }


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


def _join(pieces: list[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 or pieces[0] is None else np.concatenate(pieces)


def _total(numbers: NDArray[Any], weights: Floats | None) -> float:
    return float(numbers.sum() if weights is None else numbers @ weights)


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
