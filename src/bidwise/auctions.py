"""Auctions: who is shown, and the welfare of showing them.

Numbers per ad are tensors, arrays or anything numpy reads; all arithmetic is float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bidwise.checks import check_between, check_bids, check_offsets
from bidwise.segments import Auctions


def welfare(
    ctr: ArrayLike,
    truth: ArrayLike,
    bids: ArrayLike,
    offsets: ArrayLike | None,
    *,
    slots: Sequence[float] = (1.0,),
) -> Tensor:
    """Welfare of every auction when ads are shown in the order of predicted eCPM, ``(auctions,)`` in float64.

        welfare = sum_k alpha_k b_i truth_i,   i = the ad with the k-th highest b_i ctr_i

    the objective of eq. 1 with the position multipliers it leaves out. Ties go to the lowest row; an auction
    with fewer ads than slots leaves the last ones empty.

    Args:
        ctr: predicted CTR in [0, 1], ``(ads,)``; decides who is shown.
        truth: clicks or true CTR in [0, 1]; decides what that is worth.
        bids: cost-per-click bids, above 0.
        offsets: bounds of the auctions, ``(auctions + 1,)``; ``None`` for a single auction.
        slots: position multipliers alpha, the first 1, then positive and never rising.

    >>> ctr, bids = [0.1, 0.4, 0.9], [10.0, 2.0, 0.5]  # Example 2.1
    >>> welfare(ctr, ctr, bids, None, slots=(1.0, 0.9))
    tensor([1.7200], dtype=torch.float64)
    """
    ctr = ad_numbers("ctr", ctr)
    truth = ad_numbers("truth", truth, like=ctr)
    bids = ad_numbers("bids", bids, like=ctr)
    check_between("ctr", ctr, 0, 1)
    check_between("truth", truth, 0, 1)
    check_bids(bids)
    auctions = _auctions(ctr, offsets)
    alpha = slot_multipliers(slots).to(ctr.device)
    rows = ranked_rows(bids * ctr, auctions)
    place = torch.arange(auctions.ads, device=ctr.device) - auctions.spread(auctions.offsets[:-1])
    below_the_slots = alpha.new_zeros(1)
    share = torch.cat([alpha, below_the_slots])[place.clamp(max=len(alpha))]
    return auctions.sum(share * (bids * truth)[rows])


def ranked_rows(ecpm: Tensor, auctions: Auctions) -> Tensor:
    """The rows of each auction from its highest eCPM to its lowest, ties to the lowest row.

    >>> ecpm = torch.tensor([1.0, 3.0, 2.0, 5.0, 5.0])
    >>> ranked_rows(ecpm, Auctions.of(ecpm, torch.tensor([0, 3, 5])))
    tensor([1, 2, 0, 3, 4])
    """
    rows = ecpm.argsort(descending=True, stable=True)
    return rows[auctions.of_ad[rows].argsort(stable=True)]


def slot_multipliers(slots: Sequence[float]) -> Tensor:
    """``slots`` as a float64 tensor: alpha_1 = 1 >= alpha_2 >= ... > 0.

    >>> slot_multipliers([1.0, 0.5])
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    alpha = _tensor("slots", slots)
    if alpha.dim() != 1 or len(alpha) == 0:
        raise ValueError(f"slots must have one multiplier per slot, found shape {tuple(alpha.shape)}")
    if alpha[0] != 1:
        raise ValueError(f"slots must start with 1, found {alpha[0].item():g}")
    falling = bool((alpha.diff() <= 0).all())
    if not falling or not alpha[-1] > 0:
        raise ValueError(f"slots must be positive and must not rise, found {tuple(alpha.tolist())}")
    return alpha


def ad_numbers(argument: str, found: ArrayLike, *, like: Tensor | None = None) -> Tensor:
    """``found`` as float64, one number per ad, ``(ads,)``; as many and on the same device as ``like``.

    >>> ad_numbers("bids", [1, 2])
    tensor([1., 2.], dtype=torch.float64)
    """
    numbers = _tensor(argument, found)
    if numbers.dim() != 1:
        raise ValueError(f"{argument} must have shape (ads,), found {tuple(numbers.shape)}")
    if like is None:
        return numbers
    if len(numbers) != len(like):
        raise ValueError(f"{argument} must have one number per ad, {len(like)}, found {len(numbers)}")
    return numbers.to(like.device)


def _tensor(argument: str, found: ArrayLike) -> Tensor:
    if isinstance(found, Tensor):
        if found.is_complex():
            raise TypeError(f"{argument} must be real, found {found.dtype}")
        return found.detach().to(torch.float64)
    array = np.asarray(found)
    if array.dtype.kind not in "fiub" and array.size:
        raise TypeError(f"{argument} must hold numbers, found {array.dtype}")
    return torch.from_numpy(array.astype(np.float64))  # a copy: the array may be read-only


def _auctions(ctr: Tensor, offsets: ArrayLike | None) -> Auctions:
    if offsets is None:
        return Auctions.of(ctr, None)
    bounds = offsets if isinstance(offsets, Tensor) else torch.tensor(np.asarray(offsets))
    return Auctions.of(ctr, check_offsets(bounds.to(ctr.device), len(ctr), ctr.device, values=True))
