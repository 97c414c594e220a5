"""What a click costs the ad that is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Sale(NamedTuple):
    """What prices are made of; tables are ``(auctions, slots)``."""

    bid: Tensor
    quality: Tensor  # ctr^squash of the ad in slot k
    rival: Tensor  # score of the ad in slot k + 1, 0 below the last
    alpha: Tensor
    reserve: float


def _enough(rival: Tensor, quality: Tensor, reserve: float) -> Tensor:
    """t_l: the bid that reaches the score ``rival``, and the reserve."""
    return (rival / quality).where(quality > 0, 0.0).clamp(min=reserve)


def _gsp(sale: Sale) -> Tensor:
    return _enough(sale.rival, sale.quality, sale.reserve)


def _vcg(sale: Sale) -> Tensor:
    total = torch.zeros_like(sale.bid)
    drops = sale.alpha - torch.nn.functional.pad(sale.alpha[1:], (0, 1))
    for l, drop in enumerate(drops, start=1):  # paid by the ads of slots 1 .. l
        total[:, :l] += drop * _enough(sale.rival[:, l - 1 : l], sale.quality[:, :l], sale.reserve)
    return (total / sale.alpha).clamp(min=sale.reserve)  # which rounding can undercut


def _first_price(sale: Sale) -> Tensor:
    return sale.bid


PRICINGS: dict[str, Callable[[Sale], Tensor]] = {"gsp": _gsp, "vcg": _vcg, "first_price": _first_price}
