"""Shuffled batches: random ads as one auction, or whole auctions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from bidwise.checks import InputError
from bidwise.data.ads import Ads


@dataclass(frozen=True)
class Batch:
    """Some ads of every repeat: features ``(*repeats, batch, width)``, the rest ``(*repeats, batch)``."""

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
        clicks = ads.clicks if ads.exposure is None else ads.clicks / ads.exposure
        named = {"clicks": clicks, "bids": ads.bids, "teacher": ads.teacher, "weights": ads.weights}
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

    def __len__(self) -> int:
        """Batches of an epoch."""
        if self.offsets is None:
            return -(-self.count // self.batch_size)
        if self.size is not None:
            per_batch = max(1, -(-self.batch_size // max(self.size, 1)))
            return -(-(len(self.offsets) - 1) // per_batch)
        return -(-self.count // self.batch_size)  # a bound: an auction longer than a batch may fill several

    def __iter__(self) -> Iterator[Batch]:
        return self.after(0)

    def after(self, batches: int) -> Iterator[Batch]:
        """The batches of an epoch but for its first ones, which a run that is resumed has seen."""
        for rows, offsets in islice(self._rows(), batches, None):
            columns = self.columns.index_select(0, rows).view(*self.repeats, -1, self.columns.shape[-1]).unbind(-1)
            features = self.features.index_select(0, rows).view(*self.repeats, -1, self.features.shape[-1])
            yield Batch(features, offsets=offsets, **dict(zip(self.names, columns, strict=True)))

    def _rows(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Rows of the flat tables, repeat after repeat, and the offsets inside of a repeat."""
        starts = self.count * torch.arange(len(self.randoms), device="cpu")[:, None]
        if self.offsets is None:
            order = torch.stack([torch.randperm(self.count, generator=random, device="cpu") for random in self.randoms])
            for rows in torch.split((order + starts).to(self.device), self.batch_size, dim=1):
                # repeats of a single ad look like a column of logits: offsets say that they are not
                yield rows.reshape(-1), torch.tensor([0, 1], device=self.device) if rows.shape[1] == 1 else None
            return
        auctions = len(self.offsets) - 1
        order = torch.stack([torch.randperm(auctions, generator=random, device="cpu") for random in self.randoms])
        if self.size is not None:
            inside = torch.arange(self.size, device="cpu")
            per_batch = max(1, -(-self.batch_size // max(self.size, 1)))
            for some in torch.split(order, per_batch, dim=1):
                rows = self.offsets[some].unsqueeze(-1) + inside + starts.unsqueeze(-1)
                offsets = self.size * torch.arange(some.shape[1] + 1, device="cpu")
                yield rows.reshape(-1).to(self.device), offsets.to(self.device)
            return
        sizes = self.offsets.diff()[order[0]]
        begin = sizes.cumsum(0) - sizes
        begin = begin.clamp(max=int(begin[sizes > 0].max()))  # empty auctions at the end are no batch of their own
        _, counts = torch.unique_consecutive(begin // self.batch_size, return_counts=True)
        for some, some_sizes in zip(*(torch.split(x, counts.tolist()) for x in (order[0], sizes)), strict=True):
            offsets = torch.nn.functional.pad(some_sizes.cumsum(0), (1, 0))
            shift = (self.offsets[some] - offsets[:-1]).repeat_interleave(some_sizes)
            rows = torch.arange(int(offsets[-1]), device="cpu") + shift
            yield rows.to(self.device), offsets.to(self.device)
