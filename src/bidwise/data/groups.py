"""Auctions as people have them: ids or sizes to offsets, and loaders of torch that keep auctions whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Sampler

from bidwise import distributed
from bidwise.checks import InputError, check_offsets, check_seed, check_whole, derived_seed
from bidwise.values import is_na


def offsets(ids: Any = None, *, sizes: Any = None) -> Tensor:
    """Bounds of auctions, int64 ``(auctions + 1,)``, of the auction id of every ad or of the size of every auction.

    Every loss and metric takes this as ``offsets``: auction ``k`` is the rows ``offsets[k]:offsets[k + 1]``.

    Args:
        ids: one of any type for each ad, with the ads of an auction adjacent: a tensor, a list, a numpy array or a
            pandas or polars column.
        sizes: ads of each auction, in their order; 0 is an auction without ads.

    Returns:
        A tensor, on the device of the ids or sizes if these are tensors.

    >>> offsets(["monday", "monday", "friday"]), offsets(sizes=[2, 1])
    (tensor([0, 2, 3]), tensor([0, 2, 3]))
    """
    if (ids is None) == (sizes is None):
        found = "neither" if ids is None else "both"
        raise InputError(f"offsets needs ids, one for each ad, or sizes=, one for each auction, found {found}")
    given = sizes if ids is None else ids
    values = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    argument, what = ("sizes", "auction") if ids is None else ("ids", "ad")
    if values.ndim != 1:
        raise InputError(f"must have one value for each {what}, found shape {values.shape}", argument=argument)
    if isinstance(ids, list | tuple) and set(map(type, ids)) - set(map(type, values[:1].tolist())):
        values = np.empty(len(ids), dtype=object)  # numpy would make text of 1 and "1", and decimals of whole numbers
        values[:] = [each.item() if isinstance(each, Tensor) else each for each in ids]
    bounds = torch.from_numpy(_bounds_of_sizes(values) if ids is None else _bounds_of_ids(values, ids))
    return bounds.to(given.device) if isinstance(given, Tensor) else bounds


def _bounds_of_sizes(sizes: NDArray[Any]) -> NDArray[np.int64]:
    if len(sizes) and (sizes.dtype.kind not in "iuf" or (sizes < 0).any() or (sizes != np.floor(sizes)).any()):
        raise InputError(f"must be whole numbers, 0 or more, found {sizes.tolist()[:5]}", argument="sizes")
    if not sizes.sum(dtype=np.float64) < 2.0**63:
        raise InputError(f"must add up to less than 2^63 ads, found {sizes.max()}", argument="sizes")
    return np.append(0, np.cumsum(sizes.astype(np.int64)))


def _bounds_of_ids(values: NDArray[Any], ids: Any) -> NDArray[np.int64]:
    if hasattr(ids, "isna") or hasattr(ids, "is_null"):  # pandas has several words for a missing value, polars one
        missing = np.asarray(ids.isna() if hasattr(ids, "isna") else ids.is_null())
    else:
        missing = np.array(list(map(_is_missing, values))) if values.dtype.kind == "O" else np.zeros(len(values))
    missing = missing.astype(bool) | (values != values if values.dtype.kind in "fmM" else False)
    if missing.any():
        raise InputError(f"must name the auction of every ad, found none at row {missing.argmax()}", argument="ids")
    starts = np.append(True, values[1:] != values[:-1])[: len(values)].nonzero()[0]
    firsts = values[starts]
    different = len(set(firsts.tolist())) if values.dtype.kind == "O" else len(np.unique(firsts))
    if different < len(firsts):
        again, _ = Counter(firsts.tolist()).most_common(1)[0]
        raise InputError(
            f"must have the ads of an auction next to each other, found {again!r} again after other auctions; sort all "
            "columns first, by np.argsort(ids, kind='stable')",
            argument="ids",
        )
    return np.append(starts, len(values)).astype(np.int64)


def _is_missing(each: Any) -> bool:
    """None, the NA of pandas, or a value that differs from itself: NaN and NaT."""
    return each is None or is_na(each) or (not hasattr(each, "__len__") and bool(each != each))


def tensor_of(argument: str, values: Any) -> Tensor:
    """Numbers as a tensor: of numpy, pandas, polars or lists whole numbers as int64 and others as float32.

    >>> tensor_of("bids", [0.5, 1]), tensor_of("features", np.array([[1, 2]]))
    (tensor([0.5000, 1.0000]), tensor([[1, 2]]))
    """
    if isinstance(values, Tensor):
        return values
    array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    if array.dtype.kind == "O":  # columns of pandas that may lack values, or of several types
        with suppress(TypeError, ValueError):
            array = array.astype(np.float64)
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"must contain numbers, found {array.dtype}; bidwise.CTRClassifier and bidwise.table.train take text too",
            argument=argument,
        )
    return torch.from_numpy(np.array(array, dtype=np.float32 if array.dtype.kind == "f" else np.int64))


class AuctionBatchSampler(Sampler[list[int]]):
    """Batches of whole auctions for a ``DataLoader``, as its ``batch_sampler``: the rows of each.

    Args:
        offsets: bounds of the auctions over the rows of the data set, as :func:`bidwise.offsets` gives them.
        batch_size: ads of a batch, at most; an auction with more is a batch of its own.
        shuffle: draw an order of the auctions for each epoch, from ``seed`` and the epoch; call :meth:`set_epoch`.

    Of several ranks of torch.distributed each has its own batches and all have equally many, to which end the first
    ones may be repeated.

    >>> sampler = AuctionBatchSampler(offsets(sizes=[2, 1, 3]), batch_size=3, shuffle=False)
    >>> list(sampler)
    [[0, 1, 2], [3, 4, 5]]
    """

    def __init__(self, offsets: ArrayLike, batch_size: int, *, shuffle: bool = True, seed: int = 0) -> None:
        bounds = tensor_of("offsets", offsets).cpu()
        ads = int(bounds[-1]) if bounds.dim() == 1 and len(bounds) else 0
        sizes = check_offsets(bounds, ads, bounds.device, values=True).diff()
        if bool((sizes == 0).any()) and int(sizes.max()) <= 1:
            raise InputError(
                "offsets must bound auctions, found none of two ads; are these ids? Pass bidwise.offsets(ids)"
            )
        check_whole("batch_size", batch_size, 1)
        check_seed("seed", seed)
        self.rank, self.world = distributed.rank(), distributed.count()
        self.starts, self.sizes = bounds[:-1][sizes > 0], sizes[sizes > 0]
        self.batch_size, self.shuffle, self.seed, self.epoch = batch_size, shuffle, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch from now on."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order, cuts = self._order()
        for number in self._mine(len(cuts) - 1):
            some = order[cuts[number] : cuts[number + 1]]
            sizes = self.sizes[some]
            shift = self.starts[some] - sizes.cumsum(0) + sizes
            yield (torch.arange(int(sizes.sum())) + shift.repeat_interleave(sizes)).tolist()

    def __len__(self) -> int:
        """Batches of this epoch; it may change with the order if sizes differ."""
        return len(self._mine(len(self._order()[1]) - 1))

    def _order(self) -> tuple[Tensor, list[int]]:
        """The auctions in the order of this epoch, and the bounds of batches in it."""
        many = len(self.sizes)
        order = torch.arange(many)
        if self.shuffle:
            seed = derived_seed(self.seed, "auctions", self.epoch)
            order = torch.randperm(many, generator=torch.Generator().manual_seed(seed))
        ends = self.sizes[order].cumsum(0).numpy()
        cuts = [0]
        while cuts[-1] < many:
            before = ends[cuts[-1] - 1] if cuts[-1] else 0
            within = int(np.searchsorted(ends, before + self.batch_size, side="right"))
            cuts.append(max(within, cuts[-1] + 1))
        return order, cuts

    def _mine(self, batches: int) -> list[int]:
        """Batches of this rank: every ``world``-th, the first ones again if they do not divide evenly."""
        each = -(-batches // self.world)
        return [number % batches for number in range(self.rank, each * self.world, self.world)]
