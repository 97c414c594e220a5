"""How good predicted CTRs are, as predictions and in the auction they decide: float64, exact, in pieces that merge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bidwise.auctions import Outcome, ad_numbers, auctions_of, run_auction
from bidwise.auctions.columns import Floats
from bidwise.checks import InputError, check_between, check_weights
from bidwise.evaluation.auc import auc, auction_auc, clicked_ads, rank_agreement
from bidwise.evaluation.bins import BidBin, CtrBin, binned, calibration_error, curve, equal_mass_bins
from bidwise.segments import Auctions

CTR_BINS = 20
BID_BINS = 10
SHARED = ("welfare", "revenue", "surplus", "log_loss", "weight", "ad_weight", "winners", "tied")


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
    auc_loss: float
    auc_in_auctions: float
    log_loss: float
    normalised_entropy: float
    brier: float
    calibration_error: float
    ecpm_calibration_error: float
    predicted_over_observed: float
    ecpm_predicted_over_observed: float
    winners_predicted_over_observed: float
    rank_agreement: float
    ads: int
    auctions: int
    clicks: int
    fill_rate: float
    clipped: int  # predictions of exactly 0 or 1
    by_bid: tuple[BidBin, ...] = ()
    calibration_curve: tuple[CtrBin, ...] = ()
    calibrated_from: str | None = None
    regret: float | None = None  # where the true CTR is known
    share_of_optimum: float | None = None
    difference_to_average: ToAverage | None = None  # among models that are not calibrated twins


class Metrics:
    """Metrics of one model's CTRs over auctions that come in any number of pieces.

    Exact AUC and bins of equal mass need every score, so the ctr, label (clicks / exposure), bid and weight of every
    ad are kept, 32 bytes an ad (24 without weights), and beside them a row of sums per auction. Pieces of a data set,
    on one machine or many, are measured apart and merged; the result is that of all at once.

    Args:
        slots: position multipliers of the auction that is run on the predictions.
        pricing: ``gsp``, ``vcg`` or ``first_price``.
        reserve: least price of a click.
        squash: exponent of the CTR in the ranking score.

    >>> metrics = Metrics().update([0.1, 0.4, 0.9], [0, 1, 1], [10.0, 2.0, 0.5], truth=[0.1, 0.4, 0.9])
    >>> result = metrics.compute()
    >>> result.welfare, result.auc, result.rank_agreement
    (1.0, 1.0, 1.0)
    """

    def __init__(
        self, *, slots: Sequence[float] = (1.0,), pricing: str = "gsp", reserve: float = 0.0, squash: float = 1.0
    ) -> None:
        self.auction: dict[str, Any] = {
            "slots": tuple(float(alpha) for alpha in slots),
            "pricing": pricing,
            "reserve": reserve,
            "squash": squash,
        }
        self._ads: list[_Ads] = []
        self._auctions: list[dict[str, NDArray[Any]]] = []
        self.update([], [], [], [0])  # no auctions: checks the options, and gives every column its shape

    def update(
        self,
        ctr: ArrayLike,
        clicks: ArrayLike,
        bids: ArrayLike,
        offsets: ArrayLike | None = None,
        *,
        truth: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> Metrics:
        """Add whole auctions; returns itself.

        Args:
            ctr: predicted CTR in [0, 1], ``(ads,)``.
            clicks: 0 or 1.
            bids: cost-per-click bids, above 0.
            offsets: bounds of the auctions, ``(auctions + 1,)``; ``None`` for a single auction.
            truth: true CTR in [0, 1]; what welfare, revenue, surplus and rank agreement go by, otherwise the label.
            exposure: position multiplier in (0, 1] of the slot the ad was logged in. The label is then
                clicks / exposure, whose mean is the CTR in the first slot; AUC takes the clicks as they are.
            weights: of the ads, no less than 0. An auction weighs the mean weight of its ads, and 1 without ads.
        """
        predicted = ad_numbers("ctr", ctr).cpu()
        clicked = clicked_ads(ad_numbers("clicks", clicks, like=predicted))
        bid = ad_numbers("bids", bids, like=predicted)
        label = torch.from_numpy(clicked.astype(np.float64))
        if exposure is not None:
            label /= _exposure(ad_numbers("exposure", exposure, like=predicted))
        worth = label
        if truth is not None:
            worth = ad_numbers("truth", truth, like=predicted)
            check_between("truth", worth, 0, 1)
        weight = None
        if weights is not None:
            weight = ad_numbers("weights", weights, like=predicted)
            check_weights(weight)
        sold = run_auction(predicted, bid, offsets, **self.auction)  # checks ctr, bids and offsets
        kept = None if weight is None else weight.numpy().copy()  # copies: the caller may reuse its arrays
        ads = _Ads(predicted.numpy().copy(), label.numpy(), bid.numpy().copy(), kept)
        self._auctions.append(_per_auction(ads, sold, auctions_of(predicted, offsets), worth))
        self._ads.append(ads)
        return self

    def merge(self, other: Metrics) -> Metrics:
        """Add all that ``other`` has seen, its auctions after these; returns itself."""
        if other.auction != self.auction:
            raise InputError(f"other must be of the same auction, {self.auction}, found {other.auction}")
        self._ads += other._ads
        self._auctions += other._auctions
        return self

    @property
    def per_auction(self) -> dict[str, NDArray[Any]]:
        """Columns with a row per auction, in the order they came.

        ``welfare, revenue, surplus``; ``log_loss``, the weighted sum over its ads; ``weight``; ``ad_weight``, the sum
        of its ads' weights; ``winners``, ``(auctions, slots)``, the place of the shown ad inside the auction or -1, and
        where ads tie a number for the set of them; ``tied``, whether any do.
        """
        auctions = self._joined()[1]
        return {name: auctions[name] for name in SHARED}

    def compute(self) -> ModelMetrics:
        """The metrics of all that was seen."""
        (ctr, label, bids, weights), auctions = self._joined()
        weight, ad_weight = auctions["weight"], auctions["ad_weight"]
        ecpm = bids * ctr
        log_loss = _ratio(float(auctions["log_loss"].sum()), float(ad_weight.sum()))
        ranked = ~np.isnan(auctions["auc"])
        area = auc(ctr, label > 0, weights=weights)
        ctr_bins, bid_bins = equal_mass_bins(ctr, CTR_BINS, weights), equal_mass_bins(bids, BID_BINS, weights)
        by_ctr, by_bid = binned(ctr_bins, ctr, label, weights), binned(bid_bins, ctr, label, weights)
        by_ecpm = binned(ctr_bins, ctr, label, ecpm if weights is None else ecpm * weights)
        return ModelMetrics(
            welfare=_mean(auctions["welfare"], weight),
            revenue=_mean(auctions["revenue"], weight),
            surplus=_mean(auctions["surplus"], weight),
            auc=area,
            auc_loss=1 - area,
            auc_in_auctions=_mean(auctions["auc"][ranked], ad_weight[ranked]),
            log_loss=log_loss,
            normalised_entropy=_ratio(log_loss, _entropy(_mean(label, weights))),
            brier=_mean(ctr * ctr + label * (1 - 2 * ctr), weights),
            calibration_error=calibration_error(by_ctr),
            ecpm_calibration_error=calibration_error(by_ecpm),
            predicted_over_observed=_ratio(_total(ctr, weights), _total(label, weights)),
            ecpm_predicted_over_observed=_ratio(_total(ecpm, weights), _total(bids * label, weights)),
            winners_predicted_over_observed=_ratio(
                _total(auctions["promised"], weight), _total(auctions["welfare"], weight)
            ),
            rank_agreement=_ratio(_total(auctions["agreeing"], weight), _total(auctions["pairs"], weight)),
            ads=len(ctr),
            auctions=len(weight),
            clicks=int(np.count_nonzero(label)),
            fill_rate=_mean(auctions["filled"], weight),
            clipped=int(np.count_nonzero(_clipped(ctr) != ctr)),
            by_bid=tuple(
                BidBin(bid_low=low, bid_high=high, **rest) for low, high, rest in curve(bid_bins, bids, by_bid)
            ),
            calibration_curve=tuple(
                CtrBin(low=low, high=high, **rest) for low, high, rest in curve(ctr_bins, ctr, by_ctr)
            ),
        )

    def _joined(self) -> tuple[_Ads, dict[str, NDArray[Any]]]:
        """All pieces as one, kept so: a second look costs nothing."""
        if len(self._ads) > 1:
            some = [ads for ads in self._ads if len(ads.ctr)] or self._ads[:1]
            weights = [ads.weights for ads in some]
            if any(column is not None for column in weights):
                weights = [np.ones(len(ads.ctr)) if ads.weights is None else ads.weights for ads in some]
            ctr, label, bids = (_join([ads[k] for ads in some]) for k in range(3))
            self._ads = [_Ads(ctr, label, bids, _join(weights))]
            names = self._auctions[0]
            self._auctions = [{name: _join([piece[name] for piece in self._auctions]) for name in names}]
        return self._ads[0], self._auctions[0]


class _Ads(NamedTuple):
    """What is kept of every ad."""

    ctr: Floats
    label: Floats
    bids: Floats
    weights: Floats | None


def _per_auction(ads: _Ads, sold: Outcome, auctions: Auctions, worth: Tensor) -> dict[str, NDArray[Any]]:
    """What is kept of every auction."""
    ctr, label, bids, weights = ads
    offsets, sizes = auctions.offsets, auctions.sizes.numpy()
    ad_weight = sizes.astype(np.float64) if weights is None else auctions.sum(torch.from_numpy(weights)).numpy()
    losses = log_losses(ctr, label)
    agreeing, pairs = rank_agreement(bids * ctr, bids * worth.numpy(), offsets)
    welfare, revenue = sold.welfare(worth, bids).numpy(), sold.revenue(worth).numpy()
    return {
        "welfare": welfare,
        "revenue": revenue,
        "surplus": welfare - revenue,
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


def _exposure(found: Tensor) -> Tensor:
    check_between("exposure", found, 0, 1)
    if not bool(found.all()):
        raise InputError(f"exposure must be above 0, found 0 at [{int(found.argmin())}]")
    return found


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
