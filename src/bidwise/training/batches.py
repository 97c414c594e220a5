"""Shuffled batches, of random ads as one auction or of whole auctions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bidwise import distributed
from bidwise.checks import InputError
from bidwise.data.ads import Ads

SHARE = 0.7  # of the GPU's free memory that tables may take


@dataclass(frozen=True)
class AdBatch:
    """A batch of ads of every repeat: features ``(*repeats, batch, width)``, the rest ``(*repeats, batch)``."""

    features: Tensor
    clicks: Tensor  # over the multiplier of their slot, if that is known
    bids: Tensor
    offsets: Tensor | None
    teacher: Tensor | None = None
    weights: Tensor | None = None


@dataclass(frozen=True)
class Pass:
    """A pass over the ads: its order, ``(repeats, ads)`` rows of the flat tables, and the ends of batches in it.

    ``offsets`` bound the auctions of the pass in that order, ``auctions`` how many of them end with each batch; without
    them a batch is one auction.
    """

    order: Tensor
    ends: list[int]
    offsets: Tensor | None = None
    auctions: list[int] | None = None

    def bounds(self, number: int, rank: int = 0, ranks: int = 1) -> tuple[int, int]:
        """First ad of batch ``number``, and the one after its last; of the part of a rank, which is as long as the
        others or has whole auctions."""
        if self.offsets is not None and ranks > 1:
            first, last = self.offsets[list(self._auctions(number, rank, ranks))].tolist()
            return first, last
        start, stop = (self.ends[number - 1] if number else 0), self.ends[number]
        first, last = (start + (stop - start) * part // ranks for part in (rank, rank + 1))
        return first, last

    def _auctions(self, number: int, rank: int, ranks: int) -> tuple[int, int]:
        """First auction of a rank's part of batch ``number``, and the one after its last."""
        assert self.offsets is not None
        assert self.auctions is not None
        first, last = (self.auctions[number - 1] if number else 0), self.auctions[number]
        start, stop = self.bounds(number)
        cuts = torch.tensor([start + (stop - start) * part // ranks for part in (rank, rank + 1)])
        begin, end = torch.searchsorted(self.offsets, cuts).clamp(first, last).tolist()
        return begin if rank else first, end if rank + 1 < ranks else last

    def offsets_of(self, number: int, rank: int = 0, ranks: int = 1) -> Tensor | None:
        """Bounds of the auctions of batch ``number``, or of a rank's part of it."""
        if self.offsets is None:
            start, stop = self.bounds(number)
            if stop - start > 1:
                return None
            # repeats of a single ad look like a column of logits: offsets say that they are not
            start, stop = self.bounds(number, rank, ranks)
            return torch.arange(stop - start + 1)
        first, last = self._auctions(number, rank, ranks)
        offsets = self.offsets[first : last + 1]
        return offsets - offsets[0]


class Shuffle:
    """Batches of ``ads`` in an order that each repeat's own generator draws again in every pass.

    Without offsets a batch is ``batch_size`` random ads, one auction (as in the paper); with offsets it is whole
    auctions, as many as begin within ``batch_size`` ads. The last batch of a pass is smaller. ``states`` belong to
    the generators before the pass that `next` gives. Batches are gathered where the ads are, and moved to ``device``.
    """

    def __init__(
        self, ads: Ads, batch_size: int, randoms: Sequence[torch.Generator], device: torch.device | None = None
    ) -> None:
        self.repeats, self.count, self.batch_size = ads.repeats, len(ads), batch_size
        number = ads.repeats.numel()
        if len(randoms) != number:
            raise InputError(f"seed must be one number or {number}, one per repeat, found {len(randoms)}")
        if not self.count:
            raise InputError("train must contain ads, found none")
        self.randoms, self.states = randoms, [random.get_state() for random in randoms]
        self.thread = ThreadPoolExecutor(1, "bidwise-order")
        self.coming: Future[Pass] | None = None
        # one table of rows each: a single look-up serves all repeats and columns
        self.features = ads.features.reshape(number * self.count, -1)
        named = {"clicks": ads.labels, "bids": ads.bids, "teacher": ads.teacher, "weights": ads.weights}
        columns = {name: column.reshape(-1) for name, column in named.items() if column is not None}
        dtype = torch.promote_types(ads.bids.dtype, torch.float32)
        self.names, self.columns = list(columns), torch.stack([x.to(dtype) for x in columns.values()], dim=-1)
        self.order = torch.empty(0, dtype=torch.int64, device=self.features.device)  # of the pass under way
        self.device = self.features.device if device is None else device
        self.part = distributed.rank(), distributed.count()
        self.offsets = None if ads.offsets is None else ads.offsets.cpu()
        self.size = None
        if self.offsets is not None:
            sizes = self.offsets.diff()
            self.size = int(sizes[0]) if bool((sizes == sizes[0]).all()) else None
            if self.size is None and number > 1:
                raise InputError("repeats with offsets must have auctions of one size, found different sizes")

    @property
    def whole(self) -> int | None:
        """Ads of every batch but the last, if that is known."""
        if self.offsets is None:
            return self.batch_size
        return None if not self.size else self.size * -(-self.batch_size // self.size)

    def __iter__(self) -> Iterator[AdBatch]:
        under_way = self.next()
        return (self.batch(under_way, number) for number in range(len(under_way.ends)))

    def next(self, *, ahead: bool = False) -> Pass:
        """The next pass, with its order in place of the last one's, where a graph reads it.

        With ``ahead`` the pass after it is drawn meanwhile, on a thread: the order of 37 million ads takes a second, in
        which a GPU trains half an epoch.
        """
        drawn = self._drawn() if self.coming is None else self.coming.result()
        self.states = [random.get_state() for random in self.randoms]
        self.coming = self.thread.submit(self._drawn) if ahead else None
        if self.order.shape == drawn.order.shape:
            self.order.copy_(drawn.order)
        else:
            self.order = drawn.order.to(self.order.device)
        return replace(drawn, order=self.order)

    def restart(self, states: Sequence[Tensor]) -> None:
        """Return to these states of the generators."""
        if self.coming is not None:
            self.coming.result()
            self.coming = None
        for random, state in zip(self.randoms, states, strict=True):
            random.set_state(state)
        self.states = list(states)

    def batch(self, under_way: Pass, number: int) -> AdBatch:
        """This rank's part of batch ``number``."""
        start, stop = under_way.bounds(number, *self.part)
        rows = under_way.order[:, start:stop].reshape(-1)
        features, columns = (table.index_select(0, rows).to(self.device) for table in (self.features, self.columns))
        return self.gathered(features, columns, under_way.offsets_of(number, *self.part))

    def gathered(self, features: Tensor, columns: Tensor, offsets: Tensor | None) -> AdBatch:
        """Rows of the tables as a batch."""
        named = dict(zip(self.names, columns.view(*self.repeats, -1, columns.shape[-1]).unbind(-1), strict=True))
        features = features.view(*self.repeats, -1, features.shape[-1])
        return AdBatch(features, offsets=None if offsets is None else offsets.to(features.device), **named)

    def _drawn(self) -> Pass:
        """The next pass, the same on every device."""
        things = self.count if self.offsets is None else len(self.offsets) - 1
        order = torch.stack([torch.randperm(things, generator=random, device="cpu") for random in self.randoms])
        starts = self.count * torch.arange(len(self.randoms), device="cpu")[:, None]
        if self.offsets is None:
            return Pass(order.add_(starts), [*range(self.batch_size, self.count, self.batch_size), self.count])
        sizes = self.offsets.diff()[order[0]]
        offsets, auctions = self._batches(sizes)
        shifts = self.offsets[order].sub_(offsets[:-1]).add_(starts).repeat_interleave(sizes, 1)
        return Pass(shifts.add_(torch.arange(self.count, device="cpu")), offsets[auctions].tolist(), offsets, auctions)

    def _batches(self, sizes: Tensor) -> tuple[Tensor, list[int]]:
        """Bounds of auctions of these sizes, and how many of them end with each batch."""
        offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        if self.size is not None:
            number, at_once = len(sizes), max(1, -(-self.batch_size // max(self.size, 1)))
            return offsets, [*range(at_once, number, at_once), number]
        begin = offsets[:-1].clamp(max=int(offsets[:-1][sizes > 0].max()))  # empty auctions at the end are no batch
        _, counts = torch.unique_consecutive(begin // self.batch_size, return_counts=True)
        return offsets, counts.cumsum(0).tolist()


def fits(ads: Ads, device: torch.device) -> bool:
    """Whether the tables of these ads fit on the device; memory that torch reserves is free."""
    if device.type != "cuda":
        return True
    # features, and clicks, bids, teacher and weights in float32
    tables = ads.features.numel() * ads.features.element_size() + 16 * len(ads) * ads.repeats.numel()
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return tables <= SHARE * (torch.cuda.mem_get_info(device)[0] + kept)
