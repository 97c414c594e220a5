"""Where batches come from: tables on the device, or tables too long for it, a chunk at a time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from bidwise.kernels.gpu import side_stream
from bidwise.training.batches import Batch, Epoch, Shuffle

SHARE = 0.7  # of the GPU's free memory that tables may take
CHUNK = 2**18  # ads of every repeat that are gathered and copied at once


class Resident:
    """Both tables are where the model is."""

    def __init__(self, shuffle: Shuffle) -> None:
        self.shuffle = shuffle
        self.features, self.columns, self.count = shuffle.features, shuffle.columns, shuffle.count
        self.order: Tensor | None = None
        self.epoch: Epoch | None = None

    def begin(self, epoch: Epoch) -> None:
        """Begin ``epoch``; its order goes to where a graph looks for it."""
        if self.order is None or self.order.shape != epoch.order.shape:
            self.order = epoch.order.to(self.features.device)
        else:
            self.order.copy_(epoch.order)
        self.epoch = replace(epoch, order=self.order)

    def locate(self, number: int) -> int:
        """Where batch ``number`` begins in `order`."""
        assert self.epoch is not None
        return self.epoch.bounds(number)[0]

    def batch(self, number: int) -> Batch:
        """Batch ``number`` of the epoch."""
        assert self.epoch is not None
        return self.shuffle.batch(self.epoch, number)


class Streamed:
    """The tables stay in the memory of the host, or on its disk: while the GPU trains on a chunk of batches, the next
    one is gathered into pinned memory and copied, on a thread and a stream of their own.
    """

    def __init__(self, shuffle: Shuffle, device: torch.device) -> None:
        self.shuffle, self.device = shuffle, device
        self.epoch: Epoch | None = None
        self.features: Tensor = shuffle.features.new_empty(0)
        self.columns: Tensor = shuffle.columns.new_empty(0)
        self.order: Tensor | None = None
        self.count = 0
        self.thread = ThreadPoolExecutor(1, "bidwise-batches")
        self.stream = side_stream(device, "copy")
        self.coming: Future[tuple[Tensor, Tensor, torch.cuda.Event]] | None = None
        self.chunk = -1

    def begin(self, epoch: Epoch) -> None:
        """Begin ``epoch``."""
        self.epoch, self.chunk, self.coming = epoch, -1, None
        self.chunks = _chunks(epoch)  # first batch of each, and the end
        longest = max(self._bounds(k)[1] - self._bounds(k)[0] for k in range(len(self.chunks) - 1))
        if longest > self.count:
            repeats = len(epoch.order)
            self.count = longest
            self.features = self.shuffle.features.new_empty(
                repeats * longest, self.shuffle.features.shape[1], device=self.device
            )
            self.columns = self.shuffle.columns.new_empty(
                repeats * longest, self.shuffle.columns.shape[1], device=self.device
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
            features, columns, arrived = self.coming.result()
            arrived.wait()
            repeats = len(self.epoch.order)
            length = len(features) // repeats
            for table, fresh in ((self.features, features), (self.columns, columns)):
                table.view(repeats, self.count, -1)[:, :length].copy_(fresh.view(repeats, length, -1))
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
            self.chunk = wanted
            more = wanted + 2 < len(self.chunks)
            self.coming = self.thread.submit(self._fetch, wanted + 1, done) if more else None
        return self.epoch.bounds(number)[0] - self._bounds(self.chunk)[0]

    def batch(self, number: int) -> Batch:
        """Batch ``number`` of the epoch."""
        assert self.epoch is not None
        start = self.locate(number)
        begin, end = self.epoch.bounds(number)
        features, columns = (
            table.view(len(self.epoch.order), self.count, -1)[:, start : start + end - begin].flatten(0, 1)
            for table in (self.features, self.columns)
        )
        return self.shuffle.gathered(features, columns, self.epoch.offsets_of(number))

    def _fetch(self, chunk: int, after: torch.cuda.Event | None = None) -> tuple[Tensor, Tensor, torch.cuda.Event]:
        """The rows of a chunk on the device, and the event of their arrival; ``after`` frees the memory of the last."""
        assert self.epoch is not None
        start, stop = self._bounds(chunk)
        rows = self.epoch.order[:, start:stop].reshape(-1)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            if after is not None:
                after.wait()
            moved = []
            for table in (self.shuffle.features, self.shuffle.columns):
                pinned = torch.empty(len(rows), table.shape[1], dtype=table.dtype, pin_memory=True)
                torch.index_select(table, 0, rows, out=pinned)
                moved.append(pinned.to(self.device, non_blocking=True))
            arrived.record()
        return moved[0], moved[1], arrived


def _chunks(epoch: Epoch) -> list[int]:
    """Numbers of the batches that chunks begin with, and of the one after the last."""
    firsts, start = [0], 0
    for number, end in enumerate(epoch.ends):
        if end - start > CHUNK and number > firsts[-1]:
            firsts.append(number)
            start = epoch.bounds(number)[0]
    return [*firsts, len(epoch.ends)]


def source(shuffle: Shuffle, device: torch.device) -> Resident | Streamed:
    """The source of batches for a model on ``device``."""
    return Resident(shuffle) if shuffle.device == device else Streamed(shuffle, device)


def fits(tables: int, device: torch.device) -> bool:
    """Whether so many bytes of training ads fit on the device; memory that torch holds in reserve is free."""
    if device.type != "cuda":
        return True
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return tables <= SHARE * (torch.cuda.mem_get_info(device)[0] + kept)
