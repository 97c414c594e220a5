"""Signed and unweighted: the pair sum is a covariance."""

from __future__ import annotations

from torch import Tensor

from bidwise.losses.definition import Ads, Family, PairSums
from bidwise.segments import Auctions


def covariance(ads: Ads, auctions: Auctions, family: Family, *, gradient: bool) -> PairSums:
    """The signed, unweighted logistic or hinge pair sum without pairs.

    softplus(-x) - softplus(x) = -x, so both orders of a pair add up to -sigma (v_i - v_j)(s_i - s_j): logistic and
    hinge are the same loss, minus sigma n^2 times the covariance of value and eCPM.
    """
    if auctions.count == 1:  # the lines below without a mean per ad: a third of the time for a batch of 256
        value, ecpm = ads.value - ads.value.mean(), ads.ecpm - ads.ecpm.mean()
        sizes: int | Tensor = auctions.ads
    else:
        value, ecpm = ads.value - auctions.mean(ads.value), ads.ecpm - auctions.mean(ads.ecpm)
        sizes = auctions.spread(auctions.sizes.to(ecpm.dtype))
    slope = value * (-family.sigma * sizes)
    return slope * ecpm, slope if gradient else None  # centred: plain sums lose three digits in float32
