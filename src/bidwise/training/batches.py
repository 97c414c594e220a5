"""Shuffled batches: random ads as one auction, or whole auctions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from bidwise.checks import InputError
from bidwise.data.ads import Ads


@dataclass(frozen=True)
class Batch:
    """A batch of ads of every repeat: features ``(*repeats, batch, width)``, the rest ``(*repeats, batch)``."""

    features: Tensor
    clicks: Tensor  # over the multiplier of the slot they were made in, where that is known
    bids: Tensor
    offsets: Tensor | None
    teacher: Tensor | None = None
    weights: Tensor | None = None

    @property
    def ads(self) -> int:
        """Ads of every repeat."""
        return self.clicks.shape[-1]


@dataclass(frozen=True)
class Epoch:
    """The order of a pass: rows of the flat tables, repeat after repeat, ``(repeats, ads)``, and where batches end.

    It is drawn on the CPU, so that every device has the same.

    ``offsets`` bound the auctions of the pass in that order, ``auctions`` how many of them end with each batch; without
    them a batch is one auction.
    """

    order: Tensor
    ends: list[int]
    offsets: Tensor | None = None
    auctions: list[int] | None = None

    def bounds(self, number: int) -> tuple[int, int]:
        """First ad of batch ``number``, and the one after its last."""
        return (self.ends[number - 1] if number else 0), self.ends[number]

    def cuts(self, ranks: int) -> Tensor:
        """Where the parts of ranks begin in every batch, and the end, ``(batches, ranks + 1)``: equally many ads, or
        whole auctions."""
        ends = torch.tensor(self.ends, device="cpu")
        begins = torch.nn.functional.pad(ends[:-1], (1, 0))
        at = begins[:, None] + (ends - begins)[:, None] * torch.arange(ranks + 1, device="cpu") // ranks
        return at if self.offsets is None else self.offsets[torch.searchsorted(self.offsets, at)]

    def part(self, begins: Tensor, ends: Tensor) -> Epoch:
        """The ads from ``begins`` to ``ends`` of every batch, as a pass of one rank."""
        sizes = ends - begins
        there = sizes.cumsum(0)
        rows = torch.arange(int(there[-1]), device="cpu") + (begins - there + sizes).repeat_interleave(sizes)
        return Epoch(self.order.index_select(1, rows), there.tolist())

    def offsets_of(self, number: int) -> Tensor | None:
        """Bounds of the auctions of batch ``number``."""
        if self.offsets is None or self.auctions is None:
            start, stop = self.bounds(number)
            # repeats of a single ad look like a column of logits: offsets say that they are not
            return torch.tensor([0, 1]) if stop - start == 1 else None
        first = self.auctions[number - 1] if number else 0
        offsets = self.offsets[first : self.auctions[number] + 1]
        return offsets - offsets[0]


class Shuffle:
    """Batches of ``ads`` in an order that each repeat's own generator draws anew in every epoch.

    Without offsets a batch is ``batch_size`` random ads, one auction (as in the paper); with offsets it is whole
    auctions, as many as begin within ``batch_size`` ads. The last batch of an epoch is smaller.
    """

    def __init__(self, ads: Ads, batch_size: int, randoms: Sequence[torch.Generator]) -> None:
        self.repeats, self.count, self.batch_size = ads.repeats, len(ads), batch_size
        number = ads.repeats.numel()
        if len(randoms) != number:
            raise InputError(f"seed must be one number or {number}, one per repeat, found {len(randoms)}")
        if not self.count:
            raise InputError("train must hold ads, found none")
        self.randoms = randoms
        named = {"clicks": ads.labels, "bids": ads.bids, "teacher": ads.teacher, "weights": ads.weights}
        columns = [column for column in named.values() if column is not None]
        self.names = [name for name, column in named.items() if column is not None]
        dtype = torch.promote_types(ads.bids.dtype, torch.float32)
        # one table of rows each: a single look-up serves all repeats and columns
        self.features = ads.features.reshape(number * self.count, -1)
        self.columns = torch.stack([column.to(dtype) for column in columns], dim=-1).view(number * self.count, -1)
        self.device = ads.features.device
        self.offsets = None if ads.offsets is None else ads.offsets.cpu()
        self.size = None
        if self.offsets is not None:
            sizes = self.offsets.diff()
            if len(sizes) == 0:
                raise InputError("offsets must hold at least one auction, found none")
            self.size = int(sizes[0]) if bool((sizes == sizes[0]).all()) else None
            if self.size is None and number > 1:
                raise InputError("repeats with offsets must have auctions of one size, found different sizes")

    @property
    def whole(self) -> int | None:
        """Ads of every batch but the last, where that is known."""
        if self.offsets is None:
            return self.batch_size
        return None if not self.size else self.size * -(-self.batch_size // self.size)

    def __len__(self) -> int:
        """Batches of an epoch."""
        # a bound where sizes differ: an auction longer than a batch may fill several
        return max(1, -(-self.count // (self.whole or self.batch_size)))

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch()
        return (self.batch(epoch, number) for number in range(len(epoch.ends)))

    def batch(self, epoch: Epoch, number: int) -> Batch:
        """Batch ``number`` of ``epoch``."""
        start, stop = epoch.bounds(number)
        offsets = epoch.offsets_of(number)
        rows = epoch.order[:, start:stop].reshape(-1).to(self.device)
        return self.gathered(self.features.index_select(0, rows), self.columns.index_select(0, rows), offsets)

    def gathered(self, features: Tensor, columns: Tensor, offsets: Tensor | None) -> Batch:
        """Rows of the tables as a batch."""
        named = dict(zip(self.names, columns.view(*self.repeats, -1, columns.shape[-1]).unbind(-1), strict=True))
        features = features.view(*self.repeats, -1, features.shape[-1])
        return Batch(features, offsets=None if offsets is None else offsets.to(features.device), **named)

    def epoch(self) -> Epoch:
        """The next pass."""
        things = self.count if self.offsets is None else len(self.offsets) - 1
        order = torch.stack([torch.randperm(things, generator=random, device="cpu") for random in self.randoms])
        starts = self.count * torch.arange(len(self.randoms), device="cpu")[:, None]
        if self.offsets is None:
            ends = list(range(self.batch_size, self.count, self.batch_size))
            return Epoch(order + starts, [*ends, self.count])
        if self.size is not None:
            return self._equal_auctions(order, starts)
        sizes = self.offsets.diff()[order[0]]
        offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        begin = offsets[:-1].clamp(max=int(offsets[:-1][sizes > 0].max()))  # empty auctions at the end are no batch
        _, counts = torch.unique_consecutive(begin // self.batch_size, return_counts=True)
        auctions = counts.cumsum(0).tolist()
        shift = (self.offsets[order[0]] - offsets[:-1]).repeat_interleave(sizes)
        rows = torch.arange(self.count, device="cpu") + shift
        return Epoch(rows[None], offsets[auctions].tolist(), offsets, auctions)

    def _equal_auctions(self, order: Tensor, starts: Tensor) -> Epoch:
        assert self.offsets is not None
        assert self.size is not None
        number = order.shape[1]
        rows = self.offsets[order].unsqueeze(-1) + torch.arange(self.size, device="cpu") + starts.unsqueeze(-1)
        at_once = max(1, -(-self.batch_size // max(self.size, 1)))
        auctions = [*range(at_once, number, at_once), number]
        offsets = self.size * torch.arange(number + 1, device="cpu")
        return Epoch(rows.flatten(1), [self.size * end for end in auctions], offsets, auctions)


class Orders:
    """The epochs of a shuffle, one after the other; the next one may be drawn on a thread while the last is used.

    A permutation of 37 million ads takes a CPU a second, in which a GPU makes a third of an epoch.
    """

    def __init__(self, shuffle: Shuffle) -> None:
        self.shuffle = shuffle
        self.states = self._states()  # of the generators, before the epoch that `next` gives
        self.thread = ThreadPoolExecutor(1, "bidwise-order")
        self.coming: Future[Epoch] | None = None

    def next(self, *, ahead: bool) -> Epoch:
        """The next epoch; with ``ahead`` the one after it is drawn meanwhile."""
        epoch = self.shuffle.epoch() if self.coming is None else self.coming.result()
        self.states = self._states()
        self.coming = self.thread.submit(self.shuffle.epoch) if ahead else None
        return epoch

    def restart(self, states: Sequence[Tensor]) -> None:
        """Return to where the generators had these states."""
        if self.coming is not None:
            self.coming.result()
            self.coming = None
        for random, state in zip(self.shuffle.randoms, states, strict=True):
            random.set_state(state)
        self.states = list(states)

    def _states(self) -> list[Tensor]:
        return [random.get_state() for random in self.shuffle.randoms]
