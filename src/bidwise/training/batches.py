"""Shuffled batches, of random ads as one auction or of whole auctions, and the source of their rows.

Tables are on the device of the model or, if they are too long for it, arrive a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from bidwise import distributed
from bidwise.checks import InputError
from bidwise.data.ads import Ads
from bidwise.kernels.gpu import side_stream
from bidwise.training import mixing
from bidwise.training.mixing import Mixed

SHARE = 0.7  # of the GPU's free memory that tables may take
CHUNK = 2**18  # ads of every repeat that are gathered and copied at once


@dataclass(frozen=True)
class Batch:
    """A batch of ads of every repeat: features ``(*repeats, batch, width)``, the rest ``(*repeats, batch)``."""

    features: Tensor
    clicks: Tensor  # over the multiplier of their slot, if that is known
    bids: Tensor
    offsets: Tensor | None
    teacher: Tensor | None = None
    weights: Tensor | None = None

    @property
    def ads(self) -> int:
        return self.clicks.shape[-1]


@dataclass(frozen=True)
class Epoch:
    """The order of a pass: rows of the flat tables, repeat after repeat, ``(repeats, ads)``, and the ends of batches.

    ``offsets`` bound the auctions of the pass in that order, ``auctions`` how many of them end with each batch; without
    them a batch is one auction. The order of a pass too long for memory is empty, and ``draw`` finds any stretch of it.
    """

    order: Tensor
    ends: list[int]
    offsets: Tensor | None = None
    auctions: list[int] | None = None
    draw: Callable[[int, int], Tensor] | None = None

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the ads from ``start`` to ``stop``, ``(repeats, ads)``."""
        return self.order[:, start:stop] if self.draw is None else self.draw(start, stop)

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
    """Batches of ``ads`` in an order that each repeat's own generator draws again in every epoch.

    Without offsets a batch is ``batch_size`` random ads, one auction (as in the paper); with offsets it is whole
    auctions, as many as begin within ``batch_size`` ads. The last batch of an epoch is smaller. ``states`` belong to
    the generators before the epoch that `next` gives.
    """

    def __init__(self, ads: Ads, batch_size: int, randoms: Sequence[torch.Generator]) -> None:
        self.repeats, self.count, self.batch_size = ads.repeats, len(ads), batch_size
        number = ads.repeats.numel()
        if len(randoms) != number:
            raise InputError(f"seed must be one number or {number}, one per repeat, found {len(randoms)}")
        if not self.count:
            raise InputError("train must contain ads, found none")
        self.randoms, self.states = randoms, [random.get_state() for random in randoms]
        self.thread = ThreadPoolExecutor(1, "bidwise-order")
        self.coming: Future[Epoch] | None = None
        columns = Columns(ads)
        self.names = columns.names
        # one table of rows each: a single look-up serves all repeats and columns
        self.features = ads.features.reshape(number * self.count, -1)
        self.device = ads.features.device
        self.columns: Any = columns.index_select(0) if self.device.type == "cuda" else columns
        self.offsets = None if ads.offsets is None else ads.offsets.cpu()
        self.size = None
        if self.offsets is not None:
            sizes = self.offsets.diff()
            if len(sizes) == 0:
                raise InputError("offsets must contain at least one auction, found none")
            self.size = int(sizes[0]) if bool((sizes == sizes[0]).all()) else None
            if self.size is None and number > 1:
                raise InputError("repeats with offsets must have auctions of one size, found different sizes")

    @property
    def whole(self) -> int | None:
        """Ads of every batch but the last, if that is known."""
        if self.offsets is None:
            return self.batch_size
        return None if not self.size else self.size * -(-self.batch_size // self.size)

    def __iter__(self) -> Iterator[Batch]:
        epoch, source = self.epoch(), Resident(self)
        source.begin(epoch)
        return (source.batch(number) for number in range(len(epoch.ends)))

    def next(self, *, ahead: bool = False) -> Epoch:
        """The next epoch; with ``ahead`` the one after it is drawn meanwhile, on a thread.

        The order of 37 million ads takes a second, in which a GPU trains half an epoch.
        """
        epoch = self.epoch() if self.coming is None else self.coming.result()
        self.states = [random.get_state() for random in self.randoms]
        self.coming = self.thread.submit(self.epoch) if ahead else None
        return epoch

    def restart(self, states: Sequence[Tensor]) -> None:
        """Return to these states of the generators."""
        if self.coming is not None:
            self.coming.result()
            self.coming = None
        for random, state in zip(self.randoms, states, strict=True):
            random.set_state(state)
        self.states = list(states)

    def gathered(self, features: Tensor, columns: Tensor, offsets: Tensor | None) -> Batch:
        """Rows of the tables as a batch."""
        named = dict(zip(self.names, columns.view(*self.repeats, -1, columns.shape[-1]).unbind(-1), strict=True))
        features = features.view(*self.repeats, -1, features.shape[-1])
        return Batch(features, offsets=None if offsets is None else offsets.to(features.device), **named)

    def epoch(self) -> Epoch:
        """The next pass, the same on every device; a long one is mixed (:mod:`bidwise.training.mixing`)."""
        things = self.count if self.offsets is None else len(self.offsets) - 1
        starts = self.count * torch.arange(len(self.randoms), device="cpu")[:, None]
        long, order = self.count > mixing.LARGE, torch.empty(len(self.randoms), 0, dtype=torch.int64)
        if long:
            read = [None if self.offsets is not None else partial(self._read, at) for at in range(len(self.randoms))]
            each = max(1, mixing.BLOCK * things // self.count)
            mixed = [Mixed(things, each, random, ahead) for random, ahead in zip(self.randoms, read, strict=True)]
        else:
            drawn = torch.stack([torch.randperm(things, generator=random, device="cpu") for random in self.randoms])

        def some(start: int, stop: int) -> Tensor:
            return torch.stack([each(start, stop) for each in mixed]) if long else drawn[:, start:stop]

        if self.offsets is None:
            ends = [*range(self.batch_size, self.count, self.batch_size), self.count]
            if long:
                return Epoch(order, ends, draw=lambda start, stop: some(start, stop) + starts)
            return Epoch(drawn.add_(starts), ends)
        order_of_auctions = some(0, things)
        offsets, auctions = self._batches(self.offsets.diff()[order_of_auctions[0]])
        shift = self.offsets[order_of_auctions].sub_(offsets[:-1]).add_(starts)

        def rows(start: int, stop: int) -> Tensor:
            first = int(torch.searchsorted(offsets, start, right=True)) - 1
            bounds = offsets[first : int(torch.searchsorted(offsets, stop)) + 1].clamp(start, stop)
            shifts = shift[:, first : first + len(bounds) - 1].repeat_interleave(bounds.diff(), 1)
            return torch.arange(start, stop, device="cpu") + shifts

        ends = offsets[auctions].tolist()
        return (
            Epoch(order, ends, offsets, auctions, rows) if long else Epoch(rows(0, ends[-1]), ends, offsets, auctions)
        )

    def _batches(self, sizes: Tensor) -> tuple[Tensor, list[int]]:
        """Bounds of auctions of these sizes, and how many of them end with each batch."""
        offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        if self.size is not None:
            number, at_once = len(sizes), max(1, -(-self.batch_size // max(self.size, 1)))
            return offsets, [*range(at_once, number, at_once), number]
        begin = offsets[:-1].clamp(max=int(offsets[:-1][sizes > 0].max()))  # empty auctions at the end are no batch
        _, counts = torch.unique_consecutive(begin // self.batch_size, return_counts=True)
        return offsets, counts.cumsum(0).tolist()

    def _read(self, repeat: int, rows: Tensor) -> None:
        """Look at the features of ads that are wanted soon: the system reads them from the disk if necessary."""
        if not self.features.is_cuda:
            self.features[:, 0].index_select(0, rows + repeat * self.count).sum()


class Columns:
    """Numbers of ads, one column for each of ``names``: requested columns are copied side by side, the rest stays
    in place."""

    def __init__(self, ads: Ads) -> None:
        named = {"clicks": ads.clicks, "bids": ads.bids, "teacher": ads.teacher, "weights": ads.weights}
        self.columns = {name: column.reshape(-1) for name, column in named.items() if column is not None}
        self.names = list(self.columns)
        self.exposure = None if ads.exposure is None else ads.exposure.reshape(-1)
        self.dtype = torch.promote_types(ads.bids.dtype, torch.float32)
        self.shape = (len(self.columns["bids"]), len(self.columns))

    def index_select(self, dim: int, rows: Tensor | None = None) -> Tensor:
        """The numbers at ``rows``, or all, ``(rows, columns)``."""

        def taken(column: Tensor) -> Tensor:
            return column if rows is None else column.index_select(dim, rows)

        found = {name: taken(column) for name, column in self.columns.items()}
        if self.exposure is not None:
            found["clicks"] = found["clicks"] / taken(self.exposure)
        return torch.stack([column.to(self.dtype) for column in found.values()], dim=-1)


class Resident:
    """Both tables are on the model's device."""

    def __init__(self, shuffle: Shuffle) -> None:
        self.shuffle = shuffle
        self.features, self.columns, self.count = shuffle.features, shuffle.columns, shuffle.count
        self.order: Tensor = torch.empty(0)
        self.epoch: Epoch | None = None
        self.part = distributed.rank(), distributed.count()

    def begin(self, epoch: Epoch) -> None:
        """Begin ``epoch``; its order goes where a graph reads it."""
        order = epoch.order
        if epoch.draw is not None and self.features.is_cuda:  # it has room
            order = epoch.rows(0, epoch.ends[-1])
        if self.order.shape != order.shape:
            self.order = order.to(self.features.device)
        else:
            self.order.copy_(order)
        self.epoch = replace(epoch, order=self.order)

    def locate(self, number: int) -> int:
        """The start of this rank's part of batch ``number`` in `order`."""
        assert self.epoch is not None
        return self.epoch.bounds(number, *self.part)[0]

    def batch(self, number: int) -> Batch:
        """This rank's part of batch ``number``."""
        assert self.epoch is not None
        first, (start, stop) = self.locate(number), self.epoch.bounds(number, *self.part)
        rows = self.order[:, first : first + stop - start] if self.order.numel() else self.epoch.rows(start, stop)
        rows = rows.reshape(-1)
        features, columns = self.features.index_select(0, rows), self.columns.index_select(0, rows)
        return self.shuffle.gathered(features, columns, self.epoch.offsets_of(number, *self.part))


class Streamed(Resident):
    """The tables stay in the memory of the host, or on its disk: while the GPU trains on a chunk of batches, the next
    one is gathered into pinned memory and copied, on a thread and a stream of their own.
    """

    def __init__(self, shuffle: Shuffle, device: torch.device) -> None:
        super().__init__(shuffle)
        self.device, self.count = device, 0
        self.thread = ThreadPoolExecutor(1, "bidwise-batches")
        self.stream = side_stream(device, "copy")
        self.coming: Future[tuple[list[Tensor], torch.cuda.Event]] | None = None
        self.chunks: list[int] = []
        self.chunk, self.places = -1, [0]

    def begin(self, epoch: Epoch) -> None:
        """Begin ``epoch``."""
        self.epoch, self.chunk, self.coming = epoch, -1, None
        self.chunks = _chunks(epoch)  # first batch of each, and the end
        ends = [epoch.ends[number - 1] if number else 0 for number in self.chunks]
        longest = max(stop - start for start, stop in pairwise(ends))
        if longest > self.count:
            repeats, self.count = len(epoch.order), longest
            self.features, self.columns = (
                torch.empty(repeats * longest, table.shape[1], dtype=table.dtype, device=self.device)
                for table in (self.shuffle.features, self.shuffle.columns)
            )
            self.order = torch.arange(repeats * longest, device=self.device).view(repeats, longest)

    def _bounds(self, chunk: int) -> list[tuple[int, int]]:
        """Bounds of this rank's part of every batch of a chunk."""
        assert self.epoch is not None
        return [self.epoch.bounds(number, *self.part) for number in range(*self.chunks[chunk : chunk + 2])]

    def locate(self, number: int) -> int:
        """The start of batch ``number`` in `order`, after its chunk has arrived."""
        assert self.epoch is not None
        if self.chunk < 0 or not self.chunks[self.chunk] <= number < self.chunks[self.chunk + 1]:
            wanted = next(k for k in range(len(self.chunks) - 1) if self.chunks[k + 1] > number)
            if self.coming is None or wanted != self.chunk + 1:
                self.coming = self.thread.submit(self._fetch, wanted)
            moved, arrived = self.coming.result()
            arrived.wait()
            repeats = len(self.epoch.order)
            for table, fresh in zip((self.features, self.columns), moved, strict=True):
                length = len(fresh) // repeats
                table.view(repeats, self.count, -1)[:, :length].copy_(fresh.view(repeats, length, -1))
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
            self.chunk = wanted
            self.places = list(accumulate((stop - start for start, stop in self._bounds(wanted)), initial=0))
            more = wanted + 2 < len(self.chunks)
            self.coming = self.thread.submit(self._fetch, wanted + 1, done) if more else None
        return self.places[number - self.chunks[self.chunk]]

    def _fetch(self, chunk: int, after: torch.cuda.Event | None = None) -> tuple[list[Tensor], torch.cuda.Event]:
        """The rows of a chunk on the device, and the event of their arrival; ``after`` frees the memory of the last."""
        assert self.epoch is not None
        bounds = self._bounds(chunk)
        if self.part[1] == 1:
            bounds = [(bounds[0][0], bounds[-1][1])]
        rows = torch.cat([self.epoch.rows(*part) for part in bounds], 1).reshape(-1)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            if after is not None:
                after.wait()
            moved = []
            for table in (self.shuffle.features, self.shuffle.columns):
                pinned = torch.empty(len(rows), table.shape[1], dtype=table.dtype, pin_memory=True)
                if isinstance(table, Tensor):
                    torch.index_select(table, 0, rows, out=pinned)
                else:
                    pinned.copy_(table.index_select(0, rows))
                moved.append(pinned.to(self.device, non_blocking=True))
            arrived.record()
        return moved, arrived


def _chunks(epoch: Epoch) -> list[int]:
    """Numbers of the batches that chunks begin with, and of the one after the last."""
    firsts, start = [0], 0
    for number, end in enumerate(epoch.ends):
        if end - start > CHUNK and number > firsts[-1]:
            firsts.append(number)
            start = epoch.bounds(number)[0]
    return [*firsts, len(epoch.ends)]


def fits(ads: Ads, device: torch.device) -> bool:
    """Whether the tables of these ads fit on the device; memory that torch reserves is free."""
    if device.type != "cuda":
        return True
    # features, and clicks, bids, teacher and weights in float32
    tables = ads.features.numel() * ads.features.element_size() + 16 * len(ads) * ads.repeats.numel()
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return tables <= SHARE * (torch.cuda.mem_get_info(device)[0] + kept)
