"""Ads as training data: features, clicks, bids, and further columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from bidwise.checks import InputError, check_ads, check_between, check_bids, check_offsets, check_weights, check_whole
from bidwise.data.groups import offsets, tensor_of
from bidwise.run_folder import checksum

_COLUMNS = ("clicks", "bids", "teacher", "truth", "weights", "exposure")  # one number per ad


@dataclass(frozen=True)
class Ads:
    """Ads of one data set, or of several repeats with leading dimensions.

    Args:
        features: the input of the model, ``(..., ads, width)``.
        clicks: 0 or 1, ``(..., ads)``.
        bids: cost-per-click bids, above 0.
        offsets: bounds of the auctions, int64 ``(auctions + 1,)``, the same for all repeats; ``None``: ads that were
            not in auctions: any of them may compete.
        teacher: another model's CTR of the same ads.
        truth: their true CTR, known only in simulations.
        weights: how much each ad counts, above 0; ``None``: all alike.
        exposure: the multiplier of the slot an ad was logged in, in (0, 1]; a click then counts 1 / exposure.
        auction_size: of ads that were not in auctions, how many compete: validation measures all auctions of this many
            that could be drawn.

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
    auction_size: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.features, Tensor):
            raise TypeError(
                f"features must be a torch.Tensor, found {type(self.features).__name__}; use torch.as_tensor"
            )
        if self.features.dim() < 2 or not self.features.shape[-1]:
            raise InputError(f"features must have shape (..., ads, width), found {tuple(self.features.shape)}")
        per_ad = self.features[..., 0]
        values = self.features.device.type == "cpu"
        for name in _COLUMNS:
            if (column := getattr(self, name)) is not None or name in ("clicks", "bids"):
                check_ads(name, column, per_ad, of="one number per ad as features have rows")
                if values and name == "bids":
                    check_bids(column)
                elif values and name == "weights":
                    check_weights(column)
                elif values:
                    check_between(name, column, 1e-6 if name == "exposure" else 0, 1)
        if self.offsets is not None:
            check_offsets(self.offsets, len(self), self.features.device, values=values)
        if self.auction_size is not None:
            check_whole("auction_size", self.auction_size, 1)
            if self.offsets is not None:
                raise InputError(
                    "must be None for ads in auctions: their {} are known", argument="auction_size", others=["offsets"]
                )
            if self.auction_size > len(self):
                raise InputError(
                    f"must be at most the {len(self):,} ads, found {self.auction_size}", argument="auction_size"
                )

    @staticmethod
    def of(features: Any, clicks: Any, bids: Any, *, auction: Any = None, **columns: Any) -> Ads:
        """Ads of numpy arrays, pandas or polars columns (of features also frames) or lists; numbers are copied.

        Args:
            auction: the id of each ad's auction, in place of ``offsets``; see :func:`bidwise.offsets`.
            columns: the other arguments of :class:`Ads`.

        >>> Ads.of([[0, 1], [2, 1], [2, 0]], [1, 0, 0], [0.5, 1.0, 2.0], auction=["a", "a", "b"]).offsets
        tensor([0, 2, 3])
        """
        if auction is not None and columns.get("offsets") is not None:
            raise InputError("must be None if {} are given, found both", argument="auction", others=["offsets"])
        size = columns.pop("auction_size", None)
        given = {"clicks": clicks, "bids": bids, **{name: each for name, each in columns.items() if each is not None}}
        tensors: dict[str, Any] = {name: tensor_of(name, each) for name, each in given.items()}
        for name in _COLUMNS:
            if name in tensors and not tensors[name].is_floating_point():
                tensors[name] = tensors[name].float()
        if auction is not None:
            tensors["offsets"] = offsets(auction)
        return Ads(tensor_of("features", features), **tensors, auction_size=size)

    @property
    def labels(self) -> Tensor:
        """Clicks, over the multiplier of their slot if that is known."""
        return self.clicks if self.exposure is None else self.clicks / self.exposure

    def __len__(self) -> int:
        return self.features.shape[-2]

    @property
    def width(self) -> int:
        """Numbers that the model sees of each ad."""
        return self.features.shape[-1]

    def first(self, width: int) -> Ads:
        """The same ads with so many of their features, the first ones."""
        return self if width == self.width else replace(self, features=self.features[..., :width])

    @property
    def repeats(self) -> torch.Size:
        """Leading dimensions: data sets side by side."""
        return self.features.shape[:-2]

    def with_teacher(self, teacher: Tensor) -> Ads:
        """The same ads with a teacher's CTR."""
        return replace(self, teacher=teacher)

    def take(self, rows: Tensor | slice, offsets: Tensor | None = None) -> Ads:
        """The ads at these rows, in auctions that end at ``offsets``."""
        columns: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else column[..., rows] for name in _COLUMNS
        }
        offsets = None if offsets is None else offsets.to(self.features.device)
        return replace(self, features=self.features[..., rows, :], offsets=offsets, **columns)

    def to(self, where: torch.device | str | torch.dtype) -> Ads:
        """The same ads on another device or in another floating-point precision."""
        moved: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if isinstance(column, Tensor) and (not isinstance(where, torch.dtype) or column.is_floating_point()):
                moved[field.name] = column.to(where)
        return replace(self, **moved)


def stack(repeats: Sequence[Ads]) -> Ads:
    """Data sets of one size in parallel, with a leading dimension: a batched model trains on all at once.

    >>> one = Ads(torch.zeros(3, 2), torch.zeros(3), torch.ones(3))
    >>> stack([one, one]).features.shape
    torch.Size([2, 3, 2])
    """
    first, together = repeats[0], dict[str, Any]()
    for name in ("features", *_COLUMNS, "offsets"):
        columns = [getattr(ads, name) for ads in repeats]
        together[name] = None if columns == [None] * len(columns) else torch.stack(columns)
    if first.offsets is not None and bool((together["offsets"] != first.offsets).any()):
        raise InputError("repeats must have the same offsets, found different ones")
    return Ads(**{**together, "offsets": first.offsets, "auction_size": first.auction_size})


def fingerprint(ads: Ads, rows: int | None = None) -> str:
    """Shape and checksum of ads, by which a run knows that it resumes on the ads it began with.

    With ``rows``, so many of each column, evenly spaced, are enough to tell.
    """
    step = 1 if rows is None else max(1, len(ads) // rows)
    per_ad = (ads.clicks, ads.bids, ads.teacher, ads.truth, ads.offsets, ads.weights, ads.exposure)
    sums = [int(checksum(ads.features[..., ::step, :]), 16)]
    sums += [0 if column is None else int(checksum(column[..., ::step]), 16) for column in per_ad]
    sums += [] if ads.auction_size is None else [ads.auction_size]
    return f"{tuple(ads.features.shape)} ads, checksum {checksum(repr(sums))}"
