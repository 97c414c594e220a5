"""Signed and unweighted: the pair sum is a covariance."""

from __future__ import annotations

from bidwise.losses.pairwise import Ads, Family, PairSums
from bidwise.segments import Auctions


def covariance(ads: Ads, auctions: Auctions, family: Family, *, gradient: bool) -> PairSums:
    """The signed, unweighted logistic or hinge pair sum without pairs.

    softplus(-x) - softplus(x) = -x, so both orders of a pair add up to -sigma (v_i - v_j)(s_i - s_j): logistic and
    hinge are the same loss, minus sigma n^2 times the covariance of value and eCPM.
    """
    if auctions.size is not None:  # the same lines, without a copy per ad
        shape = (auctions.count, auctions.size)
        value, ecpm = ads.value.view(shape), ads.ecpm.view(shape)
        slope = (value - value.mean(-1, keepdim=True)).mul_(-family.sigma * auctions.size).view(-1)
        ecpm = (ecpm - ecpm.mean(-1, keepdim=True)).view(-1)
    else:
        sizes = auctions.spread(auctions.sizes.to(ads.value.dtype))
        slope = (ads.value - auctions.mean(ads.value)) * (-family.sigma * sizes)
        ecpm = ads.ecpm - auctions.mean(ads.ecpm)
    return slope * ecpm, slope if gradient else None  # uncentred sums would lose three digits in float32
