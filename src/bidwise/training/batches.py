"""Shuffled batches, of random ads as one auction or of whole auctions, and where their rows come from.

Tables lie on the device of the model or, where they are too long for it, come to it a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bidwise.checks import InputError
from bidwise.data.ads import Ads
from bidwise.kernels.gpu import side_stream
from bidwise.training import mixing
from bidwise.training.mixing import Mixed
from bidwise.training.permutation import NEEDED, permutations

SHARE = 0.7  # of the GPU's free memory that tables may take
CHUNK = 2**18  # ads of every repeat that are gathered and copied at once


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
        return self.clicks.shape[-1]


@dataclass(frozen=True)
class Epoch:
    """The order of a pass: rows of the flat tables, repeat after repeat, ``(repeats, ads)``, and where batches end.

    ``offsets`` bound the auctions of the pass in that order, ``auctions`` how many of them end with each batch; without
    them a batch is one auction. The order of a pass too long to hold is empty, and ``draw`` finds any stretch of it.
    """

    order: Tensor
    ends: list[int]
    offsets: Tensor | None = None
    auctions: list[int] | None = None
    draw: Callable[[int, int], Tensor] | None = None

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the ads from ``start`` to ``stop``, ``(repeats, ads)``."""
        return self.order[:, start:stop] if self.draw is None else self.draw(start, stop)

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
        offsets, auctions = None, None
        if self.offsets is not None:
            first, last = (torch.searchsorted(self.offsets, at.contiguous()) for at in (begins, ends))
            counts = last - first
            until = counts.cumsum(0)
            own = torch.arange(int(until[-1]), device="cpu") + (first - until + counts).repeat_interleave(counts)
            offsets, auctions = torch.nn.functional.pad(self.offsets.diff()[own].cumsum(0), (1, 0)), until.tolist()
        if self.draw is not None:
            draw = partial(self._some, begins, there - sizes)
            return Epoch(self.order, there.tolist(), offsets, auctions, draw)
        rows = torch.arange(int(there[-1]), device="cpu") + (begins - there + sizes).repeat_interleave(sizes)
        return Epoch(self.order.index_select(1, rows.to(self.order.device)), there.tolist(), offsets, auctions)

    def _some(self, begins: Tensor, there: Tensor, start: int, stop: int) -> Tensor:
        """Rows of one rank, whose part of each batch begins at ``begins`` in all and at ``there`` in its own."""
        if start == stop:
            return torch.empty(len(self.order), 0, dtype=torch.int64)
        places = torch.arange(start, stop, device="cpu")
        batch = torch.searchsorted(there, places, right=True) - 1
        places += (begins - there)[batch]
        return self.rows(int(places[0]), int(places[-1]) + 1)[:, places - places[0]]

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
    auctions, as many as begin within ``batch_size`` ads. The last batch of an epoch is smaller. ``device`` may draw
    the order, wherever the ads are.
    """

    def __init__(
        self, ads: Ads, batch_size: int, randoms: Sequence[torch.Generator], device: torch.device | None = None
    ) -> None:
        self.repeats, self.count, self.batch_size = ads.repeats, len(ads), batch_size
        number = ads.repeats.numel()
        if len(randoms) != number:
            raise InputError(f"seed must be one number or {number}, one per repeat, found {len(randoms)}")
        if not self.count:
            raise InputError("train must hold ads, found none")
        self.randoms = randoms
        columns = Columns(ads)
        self.names = columns.names
        # one table of rows each: a single look-up serves all repeats and columns
        self.features = ads.features.reshape(number * self.count, -1)
        self.device = ads.features.device
        self.draws_on = device or self.device
        self.columns: Any = columns.index_select(0) if self.device.type == "cuda" else columns
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
        # a bound where sizes differ: an auction longer than a batch may fill several
        return max(1, -(-self.count // (self.whole or self.batch_size)))

    def __iter__(self) -> Iterator[Batch]:
        epoch, source = self.epoch(), Resident(self)
        source.begin(epoch)
        return (source.batch(number) for number in range(len(epoch.ends)))

    def gathered(self, features: Tensor, columns: Tensor, offsets: Tensor | None) -> Batch:
        """Rows of the tables as a batch."""
        named = dict(zip(self.names, columns.view(*self.repeats, -1, columns.shape[-1]).unbind(-1), strict=True))
        features = features.view(*self.repeats, -1, features.shape[-1])
        return Batch(features, offsets=None if offsets is None else offsets.to(features.device), **named)

    def epoch(self) -> Epoch:
        """The next pass, the same on every device."""
        if self.count > mixing.LARGE:
            return self._mixed()
        if self.offsets is None:
            ends = list(range(self.batch_size, self.count, self.batch_size))
            roomy = self.draws_on.type == "cuda" and fits(NEEDED * self.count, self.draws_on)
            where = self.draws_on if roomy else torch.device("cpu")
            order = permutations(self.count, self.randoms, where)
            return Epoch(order if self.device.type == "cuda" else order.cpu(), [*ends, self.count])
        things = len(self.offsets) - 1
        order = torch.stack([torch.randperm(things, generator=random, device="cpu") for random in self.randoms])
        starts = self.count * torch.arange(len(self.randoms), device="cpu")[:, None]
        if self.size is not None:
            rows = self.offsets[order].unsqueeze(-1) + torch.arange(self.size, device="cpu") + starts.unsqueeze(-1)
            offsets, auctions = self._batches(order[0])
            return Epoch(rows.flatten(1), [self.size * end for end in auctions], offsets, auctions)
        sizes = self.offsets.diff()[order[0]]
        offsets, auctions = self._batches(sizes)
        shift = (self.offsets[order[0]] - offsets[:-1]).repeat_interleave(sizes)
        rows = torch.arange(self.count, device="cpu") + shift
        return Epoch(rows[None], offsets[auctions].tolist(), offsets, auctions)

    def _mixed(self) -> Epoch:
        """The next pass over more ads than are shuffled at once: see :mod:`bidwise.training.mixing`."""
        things = self.count if self.offsets is None else len(self.offsets) - 1
        each = max(1, mixing.BLOCK * things // self.count)
        ahead = [None if self.offsets is not None else partial(self._read, at) for at in range(len(self.randoms))]
        orders = [Mixed(things, each, random, read) for read, random in zip(ahead, self.randoms, strict=True)]
        starts, nothing = self.count * torch.arange(len(orders), device="cpu")[:, None], torch.empty(len(orders), 0)
        if self.offsets is None:
            ends = [*range(self.batch_size, self.count, self.batch_size), self.count]

            def ads(start: int, stop: int) -> Tensor:
                return torch.stack([order(start, stop) for order in orders]) + starts

            return Epoch(nothing, ends, draw=ads)
        order = torch.stack([order(0, things) for order in orders])
        offsets, auctions = self._batches(self.offsets.diff()[order[0]])
        shift = self.offsets[order].sub_(offsets[:-1]).add_(starts)

        def of_auctions(start: int, stop: int) -> Tensor:
            first = int(torch.searchsorted(offsets, start, right=True)) - 1
            some = offsets[first : int(torch.searchsorted(offsets, stop)) + 1].clamp(start, stop)
            return torch.arange(start, stop) + shift[:, first : first + len(some) - 1].repeat_interleave(some.diff(), 1)

        return Epoch(nothing, offsets[auctions].tolist(), offsets, auctions, of_auctions)

    def _batches(self, sizes: Tensor) -> tuple[Tensor, list[int]]:
        """Bounds of auctions of these sizes, and how many of them end with each batch."""
        if self.size is not None:
            number, at_once = len(sizes), max(1, -(-self.batch_size // max(self.size, 1)))
            return self.size * torch.arange(number + 1, device="cpu"), [*range(at_once, number, at_once), number]
        offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        begin = offsets[:-1].clamp(max=int(offsets[:-1][sizes > 0].max()))  # empty auctions at the end are no batch
        _, counts = torch.unique_consecutive(begin // self.batch_size, return_counts=True)
        return offsets, counts.cumsum(0).tolist()

    def _read(self, repeat: int, things: Tensor) -> None:
        """Look at the features of ads that are wanted soon: the system reads them from the disk where it has to."""
        rows = things if self.offsets is None else self.offsets[things]
        if not self.features.is_cuda:
            self.features[:, 0].index_select(0, rows + repeat * self.count).sum()


class Columns:
    """Numbers of ads, one column for each of ``names``: what is asked for is put side by side, the rest stays where it
    is."""

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


class Orders:
    """The epochs of a shuffle, one after the other; the next one may be drawn on a thread while the last is used.

    The order of 37 million ads takes a quarter of a second, in which a GPU makes a seventh of an epoch.
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


class Resident:
    """Both tables are where the model is."""

    def __init__(self, shuffle: Shuffle) -> None:
        self.shuffle = shuffle
        self.features, self.columns, self.count = shuffle.features, shuffle.columns, shuffle.count
        self.order: Tensor = torch.empty(0)
        self.epoch: Epoch | None = None

    def begin(self, epoch: Epoch) -> None:
        """Begin ``epoch``; its order goes to where a graph looks for it."""
        order = epoch.order
        if epoch.draw is not None and self.features.is_cuda:  # whose memory has room for it
            order = epoch.rows(0, epoch.ends[-1])
        if self.order.shape != order.shape:
            self.order = order.to(self.features.device)
        else:
            self.order.copy_(order)
        if order.is_cuda:  # made on another stream, by which its memory must not be used again too early
            order.record_stream(torch.cuda.current_stream(order.device))
        self.epoch = replace(epoch, order=self.order)

    def locate(self, number: int) -> int:
        """Where batch ``number`` begins in `order`."""
        assert self.epoch is not None
        return self.epoch.bounds(number)[0]

    def batch(self, number: int) -> Batch:
        assert self.epoch is not None
        first, (start, stop) = self.locate(number), self.epoch.bounds(number)
        rows = self.order[:, first : first + stop - start] if self.order.numel() else self.epoch.rows(start, stop)
        rows = rows.reshape(-1)
        features, columns = self.features.index_select(0, rows), self.columns.index_select(0, rows)
        return self.shuffle.gathered(features, columns, self.epoch.offsets_of(number))


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
        self.chunk = -1

    def begin(self, epoch: Epoch) -> None:
        """Begin ``epoch``."""
        self.epoch, self.chunk, self.coming = epoch, -1, None
        self.chunks = _chunks(epoch)  # first batch of each, and the end
        longest = max(self._bounds(k)[1] - self._bounds(k)[0] for k in range(len(self.chunks) - 1))
        if longest > self.count:
            repeats, self.count = len(epoch.order), longest
            self.features, self.columns = (
                torch.empty(repeats * longest, table.shape[1], dtype=table.dtype, device=self.device)
                for table in (self.shuffle.features, self.shuffle.columns)
            )
            self.order = torch.arange(repeats * longest, device=self.device).view(repeats, longest)

    def _bounds(self, chunk: int) -> tuple[int, int]:
        assert self.epoch is not None
        first, last = self.chunks[chunk], self.chunks[chunk + 1] - 1
        return self.epoch.bounds(first)[0], self.epoch.bounds(last)[1]

    def locate(self, number: int) -> int:
        """Where batch ``number`` begins in `order`, after its chunk has arrived."""
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
            more = wanted + 2 < len(self.chunks)
            self.coming = self.thread.submit(self._fetch, wanted + 1, done) if more else None
        return self.epoch.bounds(number)[0] - self._bounds(self.chunk)[0]

    def _fetch(self, chunk: int, after: torch.cuda.Event | None = None) -> tuple[list[Tensor], torch.cuda.Event]:
        """The rows of a chunk on the device, and the event of their arrival; ``after`` frees the memory of the last."""
        assert self.epoch is not None
        start, stop = self._bounds(chunk)
        rows = self.epoch.rows(start, stop).reshape(-1)
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


def source(shuffle: Shuffle, device: torch.device) -> Resident | Streamed:
    return Resident(shuffle) if shuffle.device == device else Streamed(shuffle, device)


def fits(tables: int, device: torch.device) -> bool:
    """Whether so many bytes of training ads fit on the device; memory that torch holds in reserve is free."""
    if device.type != "cuda":
        return True
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return tables <= SHARE * (torch.cuda.mem_get_info(device)[0] + kept)
