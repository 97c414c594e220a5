"""Argument checks: every error names the argument, what was expected and what was found."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from hashlib import blake2b
from numbers import Integral, Real
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bidwise.errors import InputError as InputError

ENOUGH = 100  # ads, to say of their logits that they look like CTRs
MOST_SEED = 2**63 - 1
PLAIN_SEEDS = 4000  # beyond, 1,000,003 times a seed is no longer below 2^32

Entry = TypeVar("Entry")


def check_name(argument: str, found: object, names: Collection[str]) -> None:
    """Raise unless ``found`` is one of ``names``; suggests the nearest."""
    if not (isinstance(found, str) and found in names):
        raise InputError(_unknown(found, names), argument)


def _unknown(found: object, names: Collection[str]) -> str:
    near = get_close_matches(str(found), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"must be one of {', '.join(names)}, found {found!r}{hint}"


class UnknownName(InputError, KeyError):
    """A name that is not in a table of names."""

    __str__ = InputError.__str__  # that of KeyError would put quotes around a sentence


class Named(dict[str, Entry]):
    """Things by name; asking for one that is not there suggests the nearest.

    >>> Named("loss", {"log_plus": 1})["logplus"]
    Traceback (most recent call last):
    bidwise.checks.UnknownName: loss must be one of log_plus, found 'logplus'; did you mean 'log_plus'?
    """

    def __init__(self, argument: str, things: Mapping[str, Entry]) -> None:
        super().__init__(things)
        self.argument = argument

    def __missing__(self, name: object) -> Entry:
        raise UnknownName(_unknown(name, self), self.argument)


def check_positive(argument: str, found: object, *, or_zero: bool = False) -> None:
    """Raise unless ``found`` is a finite number above 0, or 0 where that is allowed."""
    if isinstance(found, bool) or not isinstance(found, Real):
        raise TypeError(f"{argument} must be a number, found {type(found).__name__}")
    if not (0 < float(found) < float("inf") or (or_zero and found == 0)):
        raise InputError(
            f"must be finite and {'no less than' if or_zero else 'above'} 0, found {found}", argument=argument
        )


def check_whole(argument: str, found: object, least: int, most: int | None = None) -> None:
    """Raise unless ``found`` is a whole number, ``least`` or more and ``most`` at most."""
    if isinstance(found, bool) or not isinstance(found, Integral):
        raise InputError(f"must be a whole number, found {found!r}", argument=argument)
    if int(found) < least:
        raise InputError(f"must be at least {least}, found {found}", argument=argument)
    if most is not None and int(found) > most:
        raise InputError(f"must be at most {most}, found {found}", argument=argument)


def check_seed(argument: str, found: object) -> None:
    """Raise unless ``found`` is a whole number from 0 to 2^63 - 1."""
    check_whole(argument, found, 0, MOST_SEED)


def derived_seed(seed: int, *parts: int | str) -> int:
    """A seed for each purpose and repeat of a run, independent of those of other base seeds.

    torch's generator of the CPU reads the low 32 bits of a seed alone. Repeats, the last of ``parts``, are therefore
    counted from a hash rather than hashed themselves: no two of one run share those bits. Base seeds up to 4,000
    without a purpose have the numbers that they had before any number was allowed.

    >>> derived_seed(7, 0), derived_seed(7, 2)
    (7000021, 7000025)
    >>> derived_seed(2**62, 3) - derived_seed(2**62, 0)
    6
    >>> derived_seed(7, "bids", 0) != derived_seed(7, 0)
    True
    """
    check_seed("seed", seed)
    *purposes, repeat = parts if parts and isinstance(parts[-1], int) else (*parts, 0)
    if seed <= PLAIN_SEEDS and not purposes:
        return 1_000_003 * seed + 2 * int(repeat)
    text = repr((int(seed), *purposes)).encode()
    return (int.from_bytes(blake2b(text, digest_size=8).digest()) >> 2) + 2 * int(repeat)


def check_ads(argument: str, found: object, like: Tensor, of: str = "the shape of logits") -> Tensor:
    """``found`` as a tensor with one number per ad, shaped and placed as the logits (or what ``of`` says) are."""
    if not isinstance(found, Tensor):
        raise TypeError(f"{argument} must be a torch.Tensor, found {type(found).__name__}; use torch.as_tensor")
    if found.is_complex():
        raise TypeError(f"{argument} must be real, found {found.dtype}")
    if found.shape != like.shape:
        hint = ""
        if like.shape == (*found.shape, 1):
            hint = "; pass logits.squeeze(-1)"
        elif found.shape == like.shape[-1:]:
            hint = f"; for leading dimensions pass {argument}.expand_as(logits)"
        raise InputError(f"must have {of}, {tuple(like.shape)}, found {tuple(found.shape)}{hint}", argument=argument)
    if found.device != like.device:
        raise InputError(f"must be on the device of logits, {like.device}, found {found.device}", argument=argument)
    return found


def check_logits(found: object, offsets: object = None) -> Tensor:
    """``found`` as floating-point logits of shape ``(..., ads)``.

    A column ``(ads, 1)`` is what many models return; taken as repeats of one ad it would have no pairs and say nothing.
    """
    if not isinstance(found, Tensor):
        raise TypeError(f"logits must be a torch.Tensor, found {type(found).__name__}; use torch.as_tensor")
    if not found.is_floating_point():
        raise TypeError(f"logits must be floating point, found {found.dtype}")
    if found.dim() == 0:
        raise InputError("logits must have shape (..., ads), found a single number without dimensions")
    if offsets is None and found.dim() > 1 and found.shape[-1] == 1 and len(found) > 1:
        raise InputError(
            f"logits must have shape (ads,) or (repeats, ads), found a column {tuple(found.shape)}; "
            "pass logits.squeeze(-1)"
        )
    return found


def look_like_ctr(logits: Tensor, clicks: Tensor) -> bool:
    """Whether logits are CTRs: all in [0, 1], on average the click rate, and better at telling clicks as they stand.

    >>> ctr = torch.linspace(0.01, 0.2, 1000)
    >>> clicks = (torch.arange(1000) % 10 == 0).float()
    >>> look_like_ctr(ctr, clicks), look_like_ctr(torch.logit(ctr), clicks)
    (True, False)
    """
    if logits.numel() < ENOUGH:
        return False
    low, high = torch.aminmax(logits.detach())
    if not (bool(low >= 0) and bool(high <= 1) and bool(low < high)):
        return False
    z, y = logits.detach().double().reshape(-1), clicks.detach().double().reshape(-1)
    rate, ctr = float(y.mean()), z.clamp(1e-6, 1 - 1e-6)
    if abs(float(z.mean()) - rate) > max(0.2 * rate, 3 * (rate / len(y)) ** 0.5):
        return False
    gain = torch.lerp(ctr.neg().log1p(), ctr.log(), y) - torch.lerp(-softplus(z), -softplus(-z), y)  # log likelihoods
    return bool(gain.mean() > 4 * gain.std() / len(y) ** 0.5)


def warn_of_ctr(logits: Tensor, clicks: Tensor, what: str = "logits", fix: str = "pass torch.logit(ctr)") -> None:
    """A warning, once, where logits look like CTRs."""
    if look_like_ctr(logits, clicks):
        words = f"{what} must be logits, found {logits.numel():,} numbers in [0, 1] that are on average the click rate"
        warnings.warn(f"{words}: are they CTRs? If so, {fix}", stacklevel=3)


def check_between(argument: str, found: Tensor, low: float, high: float) -> None:
    """Raise unless every number is in ``[low, high]``; NaN is outside."""
    if found.dtype != torch.bool:
        _check_range(argument, found, f"in [{low:g}, {high:g}]", lambda x: (x >= low) & (x <= high))


def check_values(**columns: Tensor | None) -> None:
    """Raise unless ``bids`` are finite and above 0, and every other column, ``clicks`` or ``teacher``, is in [0, 1]."""
    for name, found in columns.items():
        if found is not None:
            check_bids(found) if name == "bids" else check_between(name, found, 0, 1)


def check_bids(found: Tensor) -> None:
    """Raise unless every bid is finite and above 0."""
    _check_range("bids", found, "finite and above 0", lambda x: (x > 0) & (x < float("inf")))


def check_weights(found: Tensor) -> None:
    """Raise unless every weight is finite and no less than 0."""
    check_not_negative("weights", found)


def check_not_negative(argument: str, found: Tensor) -> None:
    """Raise unless every number is finite and no less than 0."""
    _check_range(argument, found, "finite and no less than 0", lambda x: (x >= 0) & (x < float("inf")))


def _check_range(argument: str, found: Tensor, expected: str, inside: Callable[[Tensor], Tensor]) -> None:
    """Raise unless all numbers are ``inside`` a range; its ends alone are looked at where they are."""
    if found.numel() == 0 or bool(inside(torch.stack(torch.aminmax(found))).all()):
        return
    bad = ~inside(found)
    where = tuple(bad.nonzero()[0].tolist())
    others = int(bad.sum()) - 1
    more = f" and {others} more" if others else ""
    at = ", ".join(map(str, where))
    raise InputError(f"must be {expected}, found {found[where].item():g} at [{at}]{more}", argument=argument)


def check_offsets(found: object, ads: int, device: torch.device, *, values: bool) -> Tensor:
    """``found`` as auction bounds over ``ads`` ads; ``values=False`` checks the type and shape alone."""
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
        if found[0] != 0:
            raise InputError(f"offsets must start at 0, found {found[0].item()}{_ids_or_sizes(found, ads)}")
        if found[-1] != ads:
            hint = _ids_or_sizes(found, ads)
            raise InputError(f"offsets must end at the number of ads, {ads}, found {found[-1].item()}{hint}")
        falls = (found.diff() < 0).nonzero()
        if len(falls):
            at = int(falls[0]) + 1
            raise InputError(
                f"offsets must not decrease, found {found[at].item()} after {found[at - 1].item()} at {at}"
                f"{_ids_or_sizes(found, ads)}"
            )
    return found


def _ids_or_sizes(found: Tensor, ads: int) -> str:
    """A hint where offsets look like what people have in their place."""
    ids = "auction ids, one for each ad? Pass bidwise.offsets(ids)" if len(found) == ads else ""
    add_up = int(found.sum()) == ads and bool((found >= 0).all())
    sizes = "sizes of auctions, which add up to the ads? Pass bidwise.offsets(sizes=sizes)" if add_up else ""
    return "; are these " + ", or ".join(filter(None, (sizes, ids))) if ids or sizes else ""
