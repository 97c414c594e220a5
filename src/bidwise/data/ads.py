"""Ads as models are trained on them: features, clicks, bids, what else is known of each, and how they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bidwise.checks import (
    InputError,
    check_ads,
    check_between,
    check_bids,
    check_offsets,
    check_seed,
    check_weights,
    check_whole,
)
from bidwise.run_folder import checksum

COLUMNS = ("clicks", "bids", "teacher", "truth", "weights", "exposure")  # one number per ad


@dataclass(frozen=True)
class Ads:
    """Ads of one data set, or of several repeats with leading dimensions.

    Args:
        features: what the model sees, ``(..., ads, width)``.
        clicks: 0 or 1, ``(..., ads)``.
        bids: cost-per-click bids, above 0.
        offsets: bounds of the auctions, int64 ``(auctions + 1,)``, the same for all repeats; ``None``: ads that were
            not in auctions, any of which may compete.
        teacher: another model's CTR of the same ads.
        truth: their true CTR, known in simulations alone.
        weights: how much each ad counts, above 0; ``None``: all alike.
        exposure: the multiplier of the slot an ad was logged in, in (0, 1]; a click then counts 1 / exposure.

    >>> ads = Ads(torch.zeros(3, 2), torch.tensor([1.0, 0.0, 0.0]), torch.ones(3))
    >>> len(ads), ads.width, ads.with_teacher(torch.full((3,), 0.5)).teacher
    (3, 2, tensor([0.5000, 0.5000, 0.5000]))
    """

    features: Tensor
    clicks: Tensor
    bids: Tensor
    offsets: Tensor | None = None
    teacher: Tensor | None = None
    truth: Tensor | None = None
    weights: Tensor | None = None
    exposure: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.features, Tensor):
            raise TypeError(
                f"features must be a torch.Tensor, found {type(self.features).__name__}; use torch.as_tensor"
            )
        if self.features.dim() < 2 or not self.features.shape[-1]:
            raise InputError(f"features must have shape (..., ads, width), found {tuple(self.features.shape)}")
        per_ad = self.features[..., 0]
        values = self.features.device.type == "cpu"
        for name, low, high in (("clicks", 0, 1), ("teacher", 0, 1), ("truth", 0, 1), ("exposure", 1e-6, 1)):
            column = getattr(self, name)
            if column is not None or name == "clicks":
                check_ads(name, column, per_ad, of="one number per ad as features have rows")
                if values:
                    check_between(name, column, low, high)
        check_ads("bids", self.bids, per_ad, of="one number per ad as features have rows")
        if self.weights is not None:
            check_ads("weights", self.weights, per_ad, of="one number per ad as features have rows")
        if values:
            check_bids(self.bids)
            if self.weights is not None:
                check_weights(self.weights)
        if self.offsets is not None:
            check_offsets(self.offsets, len(self), self.features.device, values=values)

    def __len__(self) -> int:
        return self.features.shape[-2]

    @property
    def width(self) -> int:
        """Numbers that the model sees of each ad."""
        return self.features.shape[-1]

    @property
    def repeats(self) -> torch.Size:
        """Leading dimensions: data sets side by side."""
        return self.features.shape[:-2]

    def with_teacher(self, teacher: Tensor) -> Ads:
        """The same ads with a teacher's CTR."""
        return replace(self, teacher=teacher)

    def take(self, rows: Tensor | slice, offsets: Tensor) -> Ads:
        """The ads at these rows, cut into auctions at ``offsets``."""
        columns: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else column[..., rows] for name in COLUMNS
        }
        offsets = offsets.to(self.features.device)
        return replace(self, features=self.features[..., rows, :], offsets=offsets, **columns)

    def to(self, where: torch.device | str | torch.dtype) -> Ads:
        """The same ads on another device or in another floating-point precision."""
        moved = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if isinstance(column, Tensor) and (not isinstance(where, torch.dtype) or column.is_floating_point()):
                moved[field.name] = column.to(where)
        return replace(self, **moved)


def stack(repeats: Sequence[Ads]) -> Ads:
    """Data sets of one size side by side, with a leading dimension: what a batched model trains on at once.

    >>> one = Ads(torch.zeros(3, 2), torch.zeros(3), torch.ones(3))
    >>> stack([one, one]).features.shape
    torch.Size([2, 3, 2])
    """
    if not repeats:
        raise InputError("repeats must hold at least one data set, found none")
    first = repeats[0]
    for ads in repeats:
        if ads.features.shape != first.features.shape:
            sizes = f"{tuple(first.features.shape)} and {tuple(ads.features.shape)}"
            raise InputError(f"repeats must have features of one size, found {sizes}")
    together: dict[str, Tensor | None] = {"offsets": first.offsets}
    for name in ("features", *COLUMNS):
        columns = [getattr(ads, name) for ads in repeats]
        if any((column is None) != (columns[0] is None) for column in columns):
            raise InputError(f"repeats must all have {name}, or none of them")
        together[name] = None if columns[0] is None else torch.stack(columns)
    for ads in repeats:
        same = ads.offsets is first.offsets or (
            ads.offsets is not None and first.offsets is not None and torch.equal(ads.offsets, first.offsets)
        )
        if not same:
            raise InputError("repeats must have the same offsets, found different ones")
    return Ads(**together)  # type: ignore[arg-type]


def fingerprint(ads: Ads, rows: int | None = None) -> str:
    """Shape and checksum of ads, by which a run knows that it resumes on the ads it began with.

    Args:
        rows: of each column, evenly spaced, that are enough to tell; ``None``: all.
    """
    step = 1 if rows is None else max(1, len(ads) // rows)
    per_ad = (ads.clicks, ads.bids, ads.teacher, ads.truth, ads.offsets, ads.weights, ads.exposure)
    sums = [int(checksum(ads.features[..., ::step, :]), 16)]
    sums += [0 if column is None else int(checksum(column[..., ::step]), 16) for column in per_ad]
    return f"{tuple(ads.features.shape)} ads, checksum {checksum(repr(sums))}"


@dataclass(frozen=True)
class AuctionCuts:
    """Rows of the ads, auction after auction and cut after cut; ads of an incomplete last auction are left out.

    >>> cuts = AuctionCuts.at_random(7, 3, cuts=2)
    >>> cuts.rows.shape, cuts.offsets, cuts.left_out
    (torch.Size([12]), tensor([ 0,  3,  6,  9, 12]), 1)
    >>> AuctionCuts.of_neighbours(7, 3).rows
    slice(0, 6, None)
    """

    rows: Tensor | slice  # to index any column of the ads by
    size: int
    auctions: int  # of all cuts together
    left_out: int  # ads, by each cut

    @staticmethod
    def at_random(ads: int, size: int, *, cuts: int = 1, seed: int = 0) -> AuctionCuts:
        """The ads shuffled and cut, ``cuts`` times, so that each ad meets other rivals; the same for all models."""
        check_whole("resample", cuts, 1)
        check_seed("seed", seed)
        auctions = _auctions(ads, size)
        random = np.random.default_rng(seed)
        rows = np.concatenate([random.permutation(ads)[: auctions * size] for _ in range(cuts)])
        return AuctionCuts(torch.from_numpy(rows), size, cuts * auctions, ads - auctions * size)

    @staticmethod
    def of_neighbours(ads: int, size: int, split: str | None = None) -> AuctionCuts:
        """Every ``size`` neighbours an auction; ``split`` is what an error calls the ads."""
        auctions = _auctions(ads, size, split)
        return AuctionCuts(slice(0, auctions * size), size, auctions, ads - auctions * size)

    @property
    def offsets(self) -> Tensor:
        """Bounds of the auctions, on the CPU, where a common size is looked for."""
        return self.size * torch.arange(self.auctions + 1)

    def of(self, ads: Ads) -> Ads:
        """The ads in these auctions."""
        return ads.take(self.rows, self.offsets)

    def to(self, device: torch.device | str) -> AuctionCuts:
        """The same rows on a device."""
        return replace(self, rows=self.rows.to(device)) if isinstance(self.rows, Tensor) else self


def _auctions(ads: int, size: int, split: str | None = None) -> int:
    check_whole("auction_size", size, 1)
    if size > ads:
        where = "" if split is None else f" of {split}"
        raise InputError(f"must be at most the {ads:,} ads{where}, found {size}", argument="auction_size")
    return ads // size
