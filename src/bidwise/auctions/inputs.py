"""Numbers per ad as users have them: tensors, arrays or anything numpy reads, as float64 tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bidwise.checks import InputError, check_offsets
from bidwise.segments import Auctions


def slot_multipliers(slots: Sequence[float]) -> Tensor:
    """``slots`` as a float64 tensor: alpha_1 = 1 >= alpha_2 >= ... > 0.

    >>> slot_multipliers([1.0, 0.5])
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    alpha = _tensor("slots", slots)
    if alpha.dim() != 1 or len(alpha) == 0:
        raise InputError(f"must have one multiplier per slot, found shape {tuple(alpha.shape)}", argument="slots")
    if alpha[0] != 1:
        raise InputError(f"must start with 1, found {alpha[0].item():g}", argument="slots")
    falling = bool((alpha.diff() <= 0).all())
    if not falling or not alpha[-1] > 0:
        raise InputError(f"must be positive and must not rise, found {tuple(alpha.tolist())}", argument="slots")
    return alpha


def ad_numbers(argument: str, values: ArrayLike, *, like: Tensor | None = None) -> Tensor:
    """``values`` as float64, one number per ad, ``(ads,)``; as many and on the same device as ``like``.

    >>> ad_numbers("bids", [1, 2])
    tensor([1., 2.], dtype=torch.float64)
    """
    numbers = _tensor(argument, values)
    if numbers.dim() != 1:
        raise InputError(f"must have shape (ads,), found {tuple(numbers.shape)}", argument=argument)
    if like is None:
        return numbers
    return one_per_ad(argument, numbers, len(like)).to(like.device)


def one_per_ad(argument: str, numbers: Tensor, ads: int) -> Tensor:
    if len(numbers) != ads:
        raise InputError(f"must have one number per ad, {ads}, found {len(numbers)}", argument=argument)
    return numbers


def _tensor(argument: str, values: ArrayLike) -> Tensor:
    if isinstance(values, Tensor):
        if values.is_complex():
            raise TypeError(f"{argument} must be real, found {values.dtype}")
        return values.detach().to(torch.float64)
    array = np.asarray(values)
    if array.dtype.kind not in "fiub" and array.size:
        raise TypeError(f"{argument} must contain numbers, found {array.dtype}")
    # no copy of arrays that torch can read in place: writable, in order, float64
    return torch.from_numpy(np.require(array, np.float64, ["C", "W"]))


def auctions_of(ctr: Tensor, offsets: ArrayLike | None) -> Auctions:
    """The auctions that ``offsets``, integers of any kind, cut the ads into; ``None`` for a single one.

    >>> auctions_of(torch.zeros(3), [0, 1, 3]).sizes
    tensor([1, 2])
    """
    if offsets is None:
        return Auctions.of(ctr, None)
    if not isinstance(offsets, Tensor):
        array = np.asarray(offsets)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"offsets must contain integers, found {array.dtype}; of ids, pass bidwise.offsets(ids)")
        offsets = torch.from_numpy(array.astype(np.int64 if array.dtype.kind in "iu" else array.dtype))
    if not (offsets.is_floating_point() or offsets.is_complex() or offsets.dtype == torch.bool):
        offsets = offsets.long()
    return Auctions.of(ctr, check_offsets(offsets.to(ctr.device), len(ctr), ctr.device, values=True))
