"""Log loss, plain or weighted, on clicks or on soft labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from bidwise.checks import check_ads, check_between, check_logits, check_name, check_weights, warn_of_ctr
from bidwise.losses.definition import REDUCTIONS


def log_loss(logits: Tensor, clicks: Tensor, *, weights: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Cross entropy of clicks, -y log f - (1 - y) log(1 - f) with f = sigmoid(logits).

    ``clicks`` may be soft labels in [0, 1]: with a teacher's CTR this is distillation. ``weights`` multiply each
    ad's term (the bid, or its square root, gives the weighted baselines of the paper); ``mean`` divides by the number
    of ads, not by the sum of weights. Reductions go over the last dimension. Half precision is computed in
    float32. Computed by torch, to a rounding of the logit: in float32 the value of an ad with a CTR of 1e-7 has no
    correct digit, though its gradient does.

    >>> log_loss(torch.zeros(4), torch.tensor([0.0, 1.0, 1.0, 0.0]))
    tensor(0.6931)
    """
    logits = check_logits(logits)
    check_name("reduction", reduction, REDUCTIONS)
    clicks = check_ads("clicks", clicks, logits)
    if weights is not None:
        weights = check_ads("weights", weights, logits)
    if logits.device.type == "cpu" and not torch.compiler.is_compiling():
        check_between("clicks", clicks, 0, 1)
        warn_of_ctr(logits, clicks)
        if weights is not None:
            check_weights(weights)
    return cross_entropy(logits, clicks, weights, reduction)


def cross_entropy(logits: Tensor, clicks: Tensor, weights: Tensor | None, reduction: str) -> Tensor:
    """`log_loss` without its checks. Clicks and weights are constants to the gradient."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    z, y = logits.to(dtype), clicks.detach().to(dtype)
    weights = None if weights is None else weights.detach().to(dtype)
    over_ads = reduction if z.dim() == 1 and len(z) else "none"  # torch would also reduce leading dimensions
    loss = binary_cross_entropy_with_logits(z, y, weights, reduction=over_ads)
    if over_ads == reduction:
        return loss
    return loss.sum(-1) if reduction == "sum" else loss.sum(-1) / max(z.shape[-1], 1)
