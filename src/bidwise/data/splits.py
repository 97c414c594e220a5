"""Training, validation and test rows: by time or at random, and never inside of an auction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from bidwise.checks import InputError
from bidwise.data.ad_table import auction_rows
from bidwise.data.ads import Ads
from bidwise.data.read_table import bad_row, check_known
from bidwise.data.store import SPLITS

SHARES = (0.8, 0.1, 0.1)
LEAST = 20  # auctions, or pairs of rows: two for each tenth
AUCTIONS = 100  # to cut validation and test rows into, at least, where the table names none


@dataclass(frozen=True)
class Split:
    """Rows of the table, the ads of an auction next to each other; ``offsets`` where the table has auctions."""

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64] | None


def split(
    rows: int, *, auction: NDArray[np.int64] | None, time: NDArray[Any] | None, seed: int, name: str = "table"
) -> dict[str, Split]:
    """The oldest 80 % of the ads, the next 10 % and the newest 10 %; without ``time`` a random 80, 10 and 10 %.

    ``auction`` numbers the auction of every row. Auctions stay whole: one goes where its oldest ad does. Without
    auctions validation and test rows are in random order, ready to be cut into auctions.

    >>> parts = split(120, auction=np.arange(120) // 3, time=np.arange(120), seed=0)
    >>> {name: (len(part.rows), len(part.offsets) - 1) for name, part in parts.items()}
    {'train': (96, 32), 'valid': (12, 4), 'test': (12, 4)}
    """
    random = np.random.default_rng(seed)
    members, sizes = _groups(rows, auction, name)
    least = LEAST if auction is not None else 2 * LEAST
    if len(sizes) < least:
        what = "auctions" if auction is not None else "rows"
        raise InputError(
            f"{name} must have at least {least} {what} to be split into training, validation and test, "
            f"found {len(sizes)}"
        )
    starts = np.cumsum(sizes) - sizes
    if time is None:
        order = random.permutation(len(sizes))
    else:
        oldest = np.minimum.reduceat(time[members], starts)
        order = np.argsort(oldest, kind="stable")
    ends = np.cumsum(sizes[order])
    tenth = max(2, len(sizes) // 100)  # of groups: each part has some, however large the largest is
    first = int(np.clip(np.searchsorted(ends, SHARES[0] * rows) + 1, tenth, len(sizes) - 2 * tenth))
    second = int(np.clip(np.searchsorted(ends, sum(SHARES[:2]) * rows) + 1, first + tenth, len(sizes) - tenth))
    parts = {}
    for split_name, some in zip(SPLITS, np.split(order, [first, second]), strict=True):
        offsets = np.concatenate([[0], np.cumsum(sizes[some])])
        inside = np.arange(offsets[-1]) + np.repeat(starts[some] - offsets[:-1], sizes[some])
        taken = members[inside]
        if auction is None:
            taken = random.permutation(taken) if split_name != "train" else np.sort(taken)
        parts[split_name] = Split(taken, None if auction is None else offsets)
    return parts


def _groups(rows: int, auction: NDArray[np.int64] | None, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows in the order of their auctions, each in that of its first row, and the size of every auction."""
    if auction is None:
        return np.arange(rows), np.ones(rows, dtype=np.int64)
    members, offsets = auction_rows(auction)
    sizes = np.diff(offsets)
    if len(sizes) == 1:
        raise InputError(f"{name} must have several auctions, found one: what names them is the same in all rows")
    return np.arange(rows) if members is None else members, sizes


def times_of(column: pl.Series, name: str = "table") -> NDArray[Any]:
    """Times as numbers that sort: of numbers, dates, or text such as 2024-05-01 13:00."""
    if column.dtype == pl.String:
        try:
            text = column.str.strip_chars()
            # a year first: 01/02/2026 is January in one country and February in another
            read = text.set(~text.str.contains(r"^\d{4}").fill_null(True), None).str.to_datetime(strict=False)
        except pl.exceptions.PolarsError:
            read = pl.Series([None], dtype=pl.Datetime).new_from_index(0, len(column))
        bad = read.is_null() & column.is_not_null() & (column != "")
        if bad.any():
            row = int(bad.to_numpy().argmax())
            expected = "a number, a date or text that begins with the year, such as 2024-05-01 13:00:00"
            raise bad_row(name, column.name, row, f"{column[row]!r}; a time must be {expected}")
        column = read.alias(column.name)
    elif not (column.dtype.is_numeric() or column.dtype.is_temporal()):
        raise InputError(f"{name}: column {column.name!r} must hold times that can be sorted, found {column.dtype}")
    check_known(column, name, "every ad needs a time")
    return column.to_physical().to_numpy()


def auction_size(most: int, *rows: int) -> int:
    """Ads of an auction where the table names none: ``most``, fewer where validation or test would have fewer than 100.

    >>> auction_size(256, 100_000, 100_000), auction_size(256, 1_000, 1_200), auction_size(256, 40, 40)
    (256, 10, 2)
    """
    return max(2, min(most, min(rows) // AUCTIONS))


def halves(ads: Ads, seed: int) -> tuple[Ads, Ads]:
    """The auctions, or ads that are in none, in two random halves: what one chooses is not known to the other."""
    order = np.random.default_rng(seed).permutation(len(ads) if ads.offsets is None else len(ads.offsets) - 1)
    first, second = (_some(ads, torch.from_numpy(np.sort(part))) for part in np.array_split(order, 2))
    return first, second


def _some(ads: Ads, which: Tensor) -> Ads:
    """Some auctions of ``ads``, or some ads where there are none."""
    if ads.offsets is None:
        return ads.take(which)
    sizes = ads.offsets.diff()[which]
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    rows = torch.arange(int(offsets[-1])) + (ads.offsets[which] - offsets[:-1]).repeat_interleave(sizes)
    return ads.take(rows, offsets)
