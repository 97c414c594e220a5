"""A training step as one CUDA graph: gather, forward, loss, backward and update are a single launch from Python."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch

from bidwise.kernels.triton_or_none import jit, tl, triton

if TYPE_CHECKING:
    from bidwise.training.run import Run

CAPTURE = threading.Lock()  # other threads keep training meanwhile


class Graph:
    """The step of a run on batches of one size. `advance` replays the recorded step on the next batch."""

    def __init__(self, run: Run, size: int) -> None:
        self.size, self.next = size, -1
        shuffle = run.shuffle
        self.at = torch.zeros(1, dtype=torch.int64, device=run.device)
        offsets = run.under_way.offsets_of(0)
        offsets = None if offsets is None else offsets.to(run.device)
        repeats, width, columns = len(run.under_way.order), shuffle.features.shape[1], shuffle.columns.shape[1]
        features = shuffle.features.new_empty(repeats * size, width)
        numbers = shuffle.columns.new_empty(columns, repeats * size)  # a column's numbers side by side: no one copies
        self.kept = (features, numbers, offsets)  # a graph stores addresses, not references
        ads = triton.next_power_of_2(max(1, min(64, 4096 // triton.next_power_of_2(width))))

        def fetch() -> None:
            _fetch[(triton.cdiv(size, ads), repeats)](
                *(shuffle.order, self.at, shuffle.features, shuffle.columns, features, numbers),
                *(
                    shuffle.order.shape[1],
                    size,
                    width,
                    columns,
                    ads,
                    triton.next_power_of_2(width),
                    triton.next_power_of_2(columns),
                ),
            )

        def step() -> None:
            fetch()
            loss = run.step(shuffle.gathered(features, numbers.t(), offsets))
            assert run.position.total is not None
            run.position.total.add_(loss)
            self.at += size

        fetch()  # compiled before it is captured
        self.graph = torch.cuda.CUDAGraph()
        stream = _stream(run.device, torch.cuda.current_stream(run.device).cuda_stream)
        # backward in this thread, the one that captures
        with CAPTURE, torch.autograd.set_multithreading_enabled(False), _nothing_freed():
            torch.cuda.synchronize(run.device)
            with torch.cuda.stream(stream):
                self.graph.capture_begin(capture_error_mode="thread_local")
                try:
                    step()
                finally:
                    self.graph.capture_end()

    def advance(self, start: int) -> None:
        """The step on the batch that begins at ``start`` in the order of the epoch."""
        if start != self.next:
            self.at.fill_(start)
        self.next = start + self.size
        self.graph.replay()


@cache
def _stream(device: torch.device, beside: int) -> torch.cuda.Stream:
    """The stream of captures ``beside`` another one, always the same.

    It is not the one stream that torch has for them: cuBLAS has a workspace for each, which graphs at once must not
    share. torch has 32 streams and hands them out in turn: a new one for every run would soon be the stream that
    another thread trains on, or captures. Streams of high priority are 32 more.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


@contextmanager
def _nothing_freed() -> Iterator[None]:
    """Cycles that Python frees while a graph is captured would break it; looking for them first takes 0.1 s."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def captured(run: Run, size: int) -> Graph | None:
    """The step of ``run`` as a graph; ``None``, with a warning, if it cannot be captured."""
    try:
        return Graph(run, size)
    except RuntimeError as error:
        run.optimizer.zero_grad()
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(
            f"graph: the step could not be captured ({reason}); training continues without it, more slowly. "
            "graph=False turns it off",
            stacklevel=2,
        )
        return None


@jit
def _fetch(
    order, at, features, columns, out_features, out_columns, count, size,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ADS: tl.constexpr, WIDE: tl.constexpr, BROAD: tl.constexpr,
):  # fmt: skip
    """Rows of both tables for some ads of a batch, the ones after ``at`` in the order of a repeat."""
    repeat = tl.program_id(1).to(tl.int64)
    ad = tl.program_id(0) * ADS + tl.arange(0, ADS)
    row = tl.load(order + repeat * count + tl.load(at) + ad, mask=ad < size, other=0)
    seat = repeat * size + ad
    column = tl.arange(0, WIDE)
    there = (ad < size)[:, None] & (column < WIDTH)[None, :]
    values = tl.load(features + row[:, None] * WIDTH + column[None, :], mask=there)
    tl.store(out_features + seat[:, None] * WIDTH + column[None, :], values, mask=there)
    column = tl.arange(0, BROAD)
    there = (ad < size)[:, None] & (column < COLUMNS)[None, :]
    numbers = tl.load(columns + row[:, None] * COLUMNS + column[None, :], mask=there)
    ads = size * tl.num_programs(1)
    tl.store(out_columns + column[None, :] * ads + seat[:, None], numbers, mask=there)
