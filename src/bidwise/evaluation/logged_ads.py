"""Logged ads, checked: the common part of the metrics of all models over them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bidwise.auctions import ad_numbers, auctions_of
from bidwise.checks import InputError, check_between, check_bids, check_weights
from bidwise.evaluation.auc import clicked_ads
from bidwise.segments import Auctions
from bidwise.values import Floats


class LoggedAds:
    """Columns in float64, with the arguments of :class:`bidwise.evaluation.Metrics`.

    Attributes:
        label: clicks, or clicks / exposure.
        worth: the basis of welfare and revenue: the label or the true CTR.
        auctions: that the ads were logged in, without a size; otherwise each ad is a unit.
    """

    def __init__(
        self,
        like: Tensor,
        clicks: ArrayLike,
        bids: ArrayLike,
        offsets: ArrayLike | None,
        size: int | None,
        *,
        truth: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        clusters: ArrayLike | None = None,
    ) -> None:
        bid = ad_numbers("bids", bids, like=like)
        label = clicked_ads(ad_numbers("clicks", clicks, like=like)).double()
        if exposure is not None:
            share = ad_numbers("exposure", exposure, like=like)
            check_between("exposure", share, 0, 1)
            if not bool(share.all()):
                raise InputError(f"must be above 0, found 0 at [{int(share.argmin())}]", argument="exposure")
            label /= share
        worth, self.truth_known = label, truth is not None
        if truth is not None:
            worth = ad_numbers("truth", truth, like=like)
            check_between("truth", worth, 0, 1)
        self.weights: Floats | None = None
        if weights is not None:
            weight = ad_numbers("weights", weights, like=like)
            check_weights(weight)
            self.weights = weight.numpy()
        self.label, self.bids, self.worth = (x.numpy() for x in (label, bid, worth))
        self.clusters = None if clusters is None else np.asarray(clusters, np.int64)
        self.auctions: Auctions | None = auctions_of(like, offsets) if size is None else None
        if size is not None:
            check_bids(bid)

    @cached_property
    def weight(self) -> Floats | None:
        """Of each auction, or each ad, in means per auction."""
        if self.auctions is None or self.weights is None or self.ad_weight is None:
            return self.weights
        sizes = self.auctions.sizes.numpy()
        return np.where(sizes > 0, self.ad_weight / np.maximum(sizes, 1), 1.0)

    @cached_property
    def ad_weight(self) -> Floats | None:
        """Of the ads of each auction, or of each ad."""
        return self.weights if self.auctions is None else self.sum(np.ones(len(self.bids)))

    def sum(self, per_ad: Floats) -> Floats:
        """Weighted sums over the ads of each auction; without auctions of each ad."""
        weighted = per_ad if self.weights is None else per_ad * self.weights
        return weighted if self.auctions is None else self.auctions.sum(torch.from_numpy(weighted)).numpy()

    @cached_property
    def groups(self) -> NDArray[np.int64] | None:
        """The cluster of each auction or ad, for intervals."""
        if self.clusters is None or self.auctions is None:
            return self.clusters
        first = self.clusters[np.minimum(self.auctions.offsets[:-1].numpy(), len(self.clusters) - 1)]
        if not np.array_equal(np.repeat(first, self.auctions.sizes.numpy()), self.clusters):
            message = "must be the same for all ads of an auction; without real auctions ({}) ads may be clustered"
            raise InputError(message, argument="cluster", others=["auction_size"])
        groups: NDArray[np.int64] = first
        return groups
