"""Who is ranked highest: the best ads of each auction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bidwise.segments import Auctions

CHUNK = 1 << 18  # ads ranked at once, so that they stay in the processor's cache
CHUNK_ON_DEVICE = 1 << 26  # elsewhere: half a gigabyte


def power(ctr: Tensor, squash: float) -> Tensor:
    """ctr^squash, equal for equal CTRs."""
    if squash == 1:
        return ctr
    if ctr.device.type == "cpu":
        # torch rounds the last few numbers of a tensor differently from the rest: equal ads would no longer tie
        return torch.from_numpy(np.power(ctr.numpy(), float(squash)))
    return ctr**squash


def highest(score: Tensor, auctions: Auctions, places: int) -> tuple[Tensor, Tensor]:
    """Rows and scores of the ``places`` highest scores of each auction, ``(auctions, places)``, best first.

    Ties go to the lowest row; -1 and -inf after the last ad. An ad with the score -inf does not take part.

    >>> score = torch.tensor([1.0, 3.0, 2.0, 5.0, 5.0])
    >>> highest(score, Auctions.of(score, torch.tensor([0, 3, 4, 5])), 2)
    (tensor([[ 1,  2],
            [ 3, -1],
            [ 4, -1]]), tensor([[3., 2.],
            [5., -inf],
            [5., -inf]]))
    """
    best = score.new_full((auctions.count, places), -torch.inf)
    rows = torch.full_like(best, -1, dtype=torch.int64)
    for block in auctions.blocks():
        width = block.rows.shape[1]
        if width == 0:
            continue
        step = max((CHUNK if score.device.type == "cpu" else CHUNK_ON_DEVICE) // width, 1)
        for first in range(0, len(block.rows), step):
            chunk = slice(first, first + step)
            ads = block.rows[chunk]
            table = score[ads]
            if block.filled is not None:
                table.masked_fill_(~block.filled[chunk], -torch.inf)
            values, seats = _highest_in_rows(table, min(places, width))
            auction = torch.searchsorted(auctions.offsets, ads[:, 0].contiguous(), right=True) - 1
            best[auction, : values.shape[1]] = values
            rows[auction, : values.shape[1]] = ads.gather(1, seats)
    return rows.masked_fill_(best == -torch.inf, -1), best


def _highest_in_rows(table: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """The ``places`` highest numbers of each row and their columns, ties to the first; overwrites ``table``."""
    if places > 2 * table.shape[1].bit_length():  # a pass over a row costs half a level of sorting it, or less
        ranked = table.sort(dim=1, descending=True, stable=True)
        return ranked.values[:, :places], ranked.indices[:, :places]
    highest = [table.max(dim=1, keepdim=True)]  # the first of equals
    for _ in range(places - 1):
        table.scatter_(1, highest[-1].indices, -torch.inf)
        highest.append(table.max(dim=1, keepdim=True))
    return torch.cat([each.values for each in highest], dim=1), torch.cat([each.indices for each in highest], dim=1)


def ranked(keys: Sequence[Tensor], auctions: Auctions, some: Tensor) -> Tensor:
    """Rows of ``some`` ads, auction by auction, the highest first key first; equals by the next key, then by row.

    >>> score, bids = torch.tensor([1.0, 3.0, 3.0, 5.0, 5.0]), torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0])
    >>> ranked((score, bids), Auctions.of(score, torch.tensor([0, 3, 5])), score > 1)
    tensor([2, 1, 3, 4])
    """
    rows = some.nonzero().squeeze(1)
    for key in reversed(keys):
        rows = rows[key[rows].argsort(descending=True, stable=True)]
    return rows[auctions.of_ad[rows].argsort(stable=True)]
