"""Checks of tensors: every error names the argument, the expectation and the value found."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bidwise.errors import InputError as InputError
from bidwise.errors import Named as Named
from bidwise.errors import UnknownName as UnknownName
from bidwise.errors import check_name as check_name
from bidwise.errors import check_positive as check_positive
from bidwise.errors import check_seed as check_seed
from bidwise.errors import check_whole as check_whole
from bidwise.errors import derived_seed as derived_seed

_ENOUGH = 100  # ads, to say of their logits that they look like CTRs
_LEAST, _MOST = 5e-324, sys.float_info.max  # the finite numbers above 0


def check_ads(argument: str, found: object, like: Tensor, of: str = "the shape of logits") -> Tensor:
    """``found`` as a tensor with one number per ad, shaped and placed like the logits (or the tensor named ``of``)."""
    if not isinstance(found, Tensor):
        raise TypeError(f"{argument} must be a torch.Tensor, found {type(found).__name__}; use torch.as_tensor")
    if found.shape == like.shape and found.device == like.device and not found.is_complex():
        return found
    if found.is_complex():
        raise TypeError(f"{argument} must be real, found {found.dtype}")
    if found.shape == like.shape:
        raise InputError(f"must be on the device of logits, {like.device}, found {found.device}", argument=argument)
    hint = ""
    if like.shape == (*found.shape, 1):
        hint = "; pass logits.squeeze(-1)"
    elif found.shape == like.shape[-1:]:
        hint = f"; for leading dimensions pass {argument}.expand_as(logits)"
    raise InputError(f"must have {of}, {tuple(like.shape)}, found {tuple(found.shape)}{hint}", argument=argument)


def check_logits(found: object, offsets: object = None) -> Tensor:
    """``found`` as floating-point logits of shape ``(..., ads)``.

    A column ``(ads, 1)`` is a common output of models; taken as repeats of one ad it would have no pairs and no effect.
    """
    if not isinstance(found, Tensor):
        raise TypeError(f"logits must be a torch.Tensor, found {type(found).__name__}; use torch.as_tensor")
    if not found.is_floating_point():
        raise TypeError(f"logits must be floating point, found {found.dtype}")
    if found.dim() == 0:
        raise InputError("logits must have shape (..., ads), found a single number without dimensions")
    if offsets is None and found.dim() > 1 and found.shape[-1] == 1 and len(found) > 1:
        shape = tuple(found.shape)
        raise InputError(f"logits must be (ads,) or (repeats, ads), found a column {shape}; pass logits.squeeze(-1)")
    return found


def look_like_ctr(logits: Tensor, clicks: Tensor) -> bool:
    """Whether logits are CTRs: all in [0, 1], on average the click rate, and better at telling clicks as they stand.

    >>> ctr = torch.linspace(0.01, 0.2, 1000)
    >>> clicks = (torch.arange(1000) % 10 == 0).float()
    >>> look_like_ctr(ctr, clicks), look_like_ctr(torch.logit(ctr), clicks)
    (True, False)
    """
    if logits.numel() < _ENOUGH or logits.detach().min().item() < 0:
        return False
    low, high = torch.aminmax(logits.detach())
    if not low < high <= 1:
        return False
    z, y = logits.detach().double().reshape(-1), clicks.detach().double().reshape(-1)
    rate, ctr = float(y.mean()), z.clamp(1e-6, 1 - 1e-6)
    if abs(float(z.mean()) - rate) > max(0.2 * rate, 3 * (rate / len(y)) ** 0.5):
        return False
    gain = torch.lerp(ctr.neg().log1p(), ctr.log(), y) - torch.lerp(-softplus(z), -softplus(-z), y)  # log likelihoods
    return bool(gain.mean() > 4 * gain.std() / len(y) ** 0.5)


def warn_of_ctr(logits: Tensor, clicks: Tensor, what: str = "logits", fix: str = "pass torch.logit(ctr)") -> None:
    """A warning, once, if logits look like CTRs."""
    if look_like_ctr(logits, clicks):
        words = f"{what} must be logits, found {logits.numel():,} numbers in [0, 1] that are on average the click rate"
        warnings.warn(f"{words}: are they CTRs? If so, {fix}", stacklevel=3)


def check_between(argument: str, found: Tensor, low: float, high: float, words: str = "") -> None:
    """Raise unless every number is in ``[low, high]``; NaN is outside. ``words`` describe the range in the error."""
    if not found.numel():
        return
    least, greatest = torch.aminmax(found)  # both NaN if any number is
    if low <= least.item() and greatest.item() <= high:
        return
    numbers = found.double()
    bad = ~((numbers >= low) & (numbers <= high))
    where = tuple(bad.nonzero()[0].tolist())
    others = int(bad.sum()) - 1
    more = f" and {others} more" if others else ""
    at, words = ", ".join(map(str, where)), words or f"in [{low:g}, {high:g}]"
    raise InputError(f"must be {words}, found {found[where].item():g} at [{at}]{more}", argument=argument)


def check_bids(found: Tensor, argument: str = "bids") -> None:
    """Raise unless every bid is finite and above 0."""
    check_between(argument, found, _LEAST, _MOST, "finite and above 0")


def check_weights(found: Tensor) -> None:
    """Raise unless every weight is finite and no less than 0."""
    check_not_negative("weights", found)


def check_not_negative(argument: str, found: Tensor) -> None:
    """Raise unless every number is finite and no less than 0."""
    check_between(argument, found, 0, _MOST, "finite and no less than 0")


def check_offsets(found: object, ads: int, device: torch.device, *, values: bool) -> Tensor:
    """``found`` as auction bounds over ``ads`` ads; ``values=False`` checks only the type and shape."""
    if not isinstance(found, Tensor):
        made = "bidwise.offsets(ids) makes them of ids of auctions, bidwise.offsets(sizes=...) of their sizes"
        raise TypeError(f"offsets must be a torch.Tensor or None, found {type(found).__name__}; {made}")
    if found.dtype != torch.int64:
        hint = "bidwise.offsets(ids) makes them of ids, and a teacher is passed as teacher="
        hint = hint if found.is_floating_point() else "use offsets.long()"
        raise TypeError(f"offsets must be torch.int64, found {found.dtype}; {hint}")
    if found.dim() != 1 or len(found) == 0:
        raise InputError(f"offsets must have shape (auctions + 1,), found {tuple(found.shape)}")
    if found.device != device:
        raise InputError(f"offsets must be on the device of logits, {device}, found {found.device}")
    if values:
        falls = (found.diff() < 0).nonzero()
        if found[0] != 0 or found[-1] != ads or len(falls):
            worst = (found[falls[0, 0] :][:2] if len(falls) else found[[0, -1]]).tolist()
            made = "bidwise.offsets(ids) makes them of auction ids, bidwise.offsets(sizes=sizes) of sizes"
            raise InputError(f"offsets must rise from 0 to the number of ads, {ads}, found {worst}; {made}")
    return found


def no_second_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass that raises an error for ``create_graph=True``: its gradient would silently be a constant."""

    @wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("rank losses, batch norm, kernels and exchanges between ranks have no second derivative")
        return backward(ctx, *gradients)

    return checked
