"""Which method computes a loss: the one asked for, or the fastest."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bidwise.checks import InputError
from bidwise.kernels import available
from bidwise.losses.all_pairs import direct
from bidwise.losses.definition import Method, PairInputs, PairOptions
from bidwise.losses.without_pairs import covariance, dominance, signed_sums
from bidwise.segments import Auctions


class Speed(NamedTuple):
    """Time of `direct` per pair, and of `fast` per call and per ad, in nanoseconds."""

    pair: float
    call: float
    ad: float


# Fitted to benchmarks/results/losses_crossover.csv by `python -m benchmarks.crossover`, on two cores.
SPEEDS = {
    ("signed", "logistic"): Speed(pair=1.7, call=1.1e06, ad=1.4e02),
    ("positive", "logistic"): Speed(pair=2.7, call=4e06, ad=1.6e03),
    ("order", "logistic"): Speed(pair=2.8, call=3.6e06, ad=1.7e03),
    ("signed", "hinge"): Speed(pair=0.93, call=5.4e05, ad=1.3e02),
    ("positive", "hinge"): Speed(pair=1.7, call=3.1e06, ad=1.1e03),
    ("order", "hinge"): Speed(pair=0.99, call=2.8e06, ad=9.9e02),
    ("signed", "indicator"): Speed(pair=0.48, call=4.1e05, ad=93),
    ("positive", "indicator"): Speed(pair=0.63, call=2.3e06, ad=9.6e02),
    ("order", "indicator"): Speed(pair=1.3, call=2.4e06, ad=1.1e03),
}

# Ads of an auction from which kernels without pairs are faster on a GPU, and to which all pairs are better than `fast`
PANELS_FROM = 2048
CLICKS_FROM = 5120
COVARIANCE_FROM = 2048
QUADRATIC_TO = 262_144
CLICKS_TO = 1_048_576  # as many pairs as QUADRATIC_TO if one ad in four was clicked


def on_kernels(logits: Tensor, method: str = "auto") -> bool:
    """Whether Triton kernels take these logits: for ``triton`` they must, for other methods if there is a GPU."""
    if method != "triton" and logits.device.type != "cuda":
        return False
    ready = available(logits.device) and logits.dtype != torch.float64 and logits.numel() < 1 << 29
    if method == "triton" and not ready:
        needs = "triton (pip install triton), a GPU and fewer than 2^29 logits in float32 or half precision"
        found = f"{logits.numel()} logits in {logits.dtype} on {logits.device.type}"
        raise InputError(f"method='triton' needs {needs}, found {found}; use 'auto', 'direct' or 'fast'")
    return ready


def kernel_stage(options: PairOptions, logits: Tensor, offsets: Tensor | None) -> str | None:
    """The source of pair sums for the kernels of `fused_pairs`; ``None``: `method_for` has a method for this call.

    Shapes decide, so that a GPU need not be waited for.
    """
    method, member = options.method, (options.gap, options.surrogate)
    if method == "direct" or not on_kernels(logits, method):
        return None
    auctions = 1 if offsets is None else max(len(offsets) - 1, 1)
    usual = logits.shape[-1] // auctions
    if sub_quadratic(options) is covariance:
        if auctions == 1 and (method == "fast" or usual >= COVARIANCE_FROM):
            return "covariance"
    elif member == ("signed", "logistic") and (method == "fast" or usual >= PANELS_FROM):
        return "panels"
    few = member == ("positive", "logistic") and options.value == "clicks" and usual >= CLICKS_FROM
    if method == "fast" or (method == "auto" and usual > (CLICKS_TO if few else QUADRATIC_TO)):
        return None
    return "clicks" if few else "pairs"


def method_for(options: PairOptions, ads: PairInputs, auctions: Auctions) -> Method:
    """The function behind the method, one that is no kernel, for these ads."""
    if options.method == "direct":
        return direct
    fast = sub_quadratic(options)
    if options.method == "fast" or fast is covariance:
        return fast
    speed = SPEEDS[options.gap, options.surrogate]
    time, limit = speed.pair * auctions.pairs(), speed.call + speed.ad * auctions.ads
    if time > limit and fast is dominance and options.value == "clicks" and ads.value.device.type == "cpu":
        time *= int(ads.value.count_nonzero()) / auctions.ads  # `direct` skips ads i without a click
    return fast if time > limit else direct


def sub_quadratic(options: PairOptions) -> Method:
    """The method without pairs; every loss of the family has one."""
    if options.gap != "signed":
        return dominance
    if options.surrogate != "indicator" and options.weighting is None:
        return covariance
    return signed_sums
