"""Bags: fields with several values per ad, such as keywords; their vector is the mean over those values. (A regression
may take the sum.)

A bag with room for L values takes L columns of the features, its slots, which share the ids of one field. Slots that
are not used contain the id of missing values: the ids show whether one counts, and no mask travels with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from bidwise.checks import check_whole
from bidwise.values import MISSING

_MOST_SLOTS = 1000  # slots of a bag: an ad has room for all of them in every batch
Values = int | tuple[int, int]  # values of a field, or values and slots of a bag


def values_and_slots(cardinalities: Sequence[Values]) -> tuple[list[int], list[int]]:
    """Values of each field, and the columns of features that it takes.

    >>> values_and_slots([50, (200, 8)])
    ([50, 200], [1, 8])
    """
    pairs = [tuple(each) if isinstance(each, tuple | list) else (each, 1) for each in cardinalities]
    for values, slots in pairs:
        check_whole("cardinalities", values, 1)
        check_whole("slots", slots, 1, _MOST_SLOTS)
    return [values for values, _ in pairs], [slots for _, slots in pairs]


def shares(ids: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight of each slot in the mean of its bag, ``(ads, slots)``: 0 if it is missing, unless all are.

    >>> shares(torch.tensor([[5, 7, 1, 1], [1, 1, 1, 1]]), torch.float32).tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
    """
    known = ids != MISSING
    counts = known | ~known.any(1, keepdim=True)
    return counts.to(dtype) / counts.sum(1, keepdim=True)


def folded(looked_up: Tensor, ids: Tensor, slots: Sequence[int]) -> Tensor:
    """Σ_k share_k x_k over the slots of each field: ``(ads, columns, width) -> (ads, fields, width)``.

    >>> folded(torch.tensor([[[4.0], [1.0], [2.0], [9.0]]]), torch.tensor([[3, 5, 7, 1]]), [1, 3])
    tensor([[[4.0000],
             [1.5000]]])
    """
    parts, end = [], 0
    for several, run in groupby(slots, lambda count: count > 1):
        for width in run if several else (len(list(run)),):  # neighbours that are no bags stay together
            begin, end = end, end + width
            part = looked_up[:, begin:end]
            if several:
                part = (part * shares(ids[:, begin:end], part.dtype)[..., None]).sum(1, keepdim=True)
            parts.append(part)
    return torch.cat(parts, 1)
