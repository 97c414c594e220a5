"""Which method computes a member of the family: the one asked for, or the faster one."""

from __future__ import annotations

from dataclasses import dataclass

from bidwise.losses.closed_form import covariance
from bidwise.losses.dominance import dominance
from bidwise.losses.linear_time import signed_sums
from bidwise.losses.pairwise import Family, Method, direct
from bidwise.segments import Auctions

METHODS = ("auto", "direct", "fast", "triton")


@dataclass(frozen=True)
class Speed:
    """What `direct` takes per pair, and `fast` per call and per ad, in nanoseconds."""

    pair: float
    call: float
    ad: float


# Fitted to benchmarks/results/losses_crossover.csv by `python -m benchmarks.crossover`, on two cores.
SPEEDS = {
    ("signed", "logistic"): Speed(pair=1.8, call=3.5e05, ad=2.3e02),
    ("positive", "logistic"): Speed(pair=2.7, call=4e06, ad=1.6e03),
    ("order", "logistic"): Speed(pair=2.8, call=3.6e06, ad=1.7e03),
    ("signed", "hinge"): Speed(pair=0.93, call=5.4e05, ad=1.3e02),
    ("positive", "hinge"): Speed(pair=1.7, call=3.1e06, ad=1.1e03),
    ("order", "hinge"): Speed(pair=0.99, call=2.8e06, ad=9.9e02),
    ("signed", "indicator"): Speed(pair=0.48, call=4.1e05, ad=93),
    ("positive", "indicator"): Speed(pair=0.63, call=2.3e06, ad=9.6e02),
    ("order", "indicator"): Speed(pair=1.3, call=2.4e06, ad=1.1e03),
}
RAGGED = Speed(pair=1.8, call=0, ad=4e02)  # signed logistic where sizes differ: no auction gets one panel


def choose(method: str, family: Family, weighted: bool, auctions: Auctions) -> Method:
    """The function behind ``method`` for auctions of these sizes."""
    if method == "triton":
        raise ValueError("method='triton' is not available in this version; use 'auto', 'direct' or 'fast'")
    if method == "direct":
        return direct
    fast = sub_quadratic(family, weighted)
    if method == "fast" or fast is covariance:
        return fast
    speed = SPEEDS[family.gap, family.surrogate]
    if fast is signed_sums and family.surrogate == "logistic" and auctions.size is None:
        speed = RAGGED
    return fast if speed.pair * auctions.pairs() > speed.call + speed.ad * auctions.ads else direct


def sub_quadratic(family: Family, weighted: bool) -> Method:
    """The method without pairs; every member has one."""
    if family.gap != "signed":
        return dominance
    if family.surrogate != "indicator" and not weighted:
        return covariance
    return signed_sums
