"""Training, validation and test rows: by time or at random, and never inside of an auction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from bidwise.checks import InputError
from bidwise.data.ads import Ads
from bidwise.data.columns import spelled
from bidwise.data.store import SPLITS
from bidwise.data.table_files import BadRow

_SHARES = (0.8, 0.1, 0.1)
_LEAST = 20  # auctions, or pairs of rows: two for each tenth
ISO = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d", "%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%d %H:%M%#z")
DATED = re.compile("%[-_0]?[YyGgCsDFcxv+]")  # in a format with a year
_SECONDS = (1e8, 4e9)  # since 1970, of the years 1973 to 2096
AUCTIONS = 100  # to cut validation and test rows into, at least, if the table names none


@dataclass(frozen=True)
class Split:
    """Rows of the table, the ads of an auction next to each other; ``offsets`` if the table has auctions."""

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64] | None

    @staticmethod
    def joined(parts: Mapping[str, Split]) -> Split:
        """The rows of all parts, one part after the other."""
        rows, bounds = np.concatenate([part.rows for part in parts.values()]), [np.zeros(1, np.int64)]
        for part in parts.values():
            bounds += [] if part.offsets is None else [part.offsets[1:] + bounds[-1][-1]]
        return Split(rows, np.concatenate(bounds) if len(bounds) > 1 else None)


def split(
    rows: int, *, auction: NDArray[np.int64] | None, time: NDArray[Any] | None, seed: int, name: str = "table"
) -> dict[str, Split]:
    """The oldest 80 % of the ads, the next 10 % and the newest 10 %; without ``time`` a random 80, 10 and 10 %.

    ``auction`` numbers the auction of every row, from 0 in the order of their first rows. Auctions stay whole: one goes
    with its oldest ad. Without auctions validation and test rows are in random order, ready to be cut into auctions.

    >>> parts = split(120, auction=np.arange(120) // 3, time=np.arange(120), seed=0)
    >>> {name: (len(part.rows), len(part.offsets) - 1) for name, part in parts.items()}
    {'train': (96, 32), 'valid': (12, 4), 'test': (12, 4)}
    """
    random = np.random.default_rng(seed)
    sizes = np.ones(rows, np.int64) if auction is None else np.bincount(auction)
    groups, what, least = len(sizes), *(("rows", 2 * _LEAST) if auction is None else ("auctions", _LEAST))
    if groups < least:
        found = f"{groups}" if auction is None or groups > 1 else "one: their id is the same in all rows"
        words = f"must have at least {least} {what} to be split into training, validation and test"
        raise InputError(f"{name} {words}, found {found}")
    if time is None:
        order = np.arange(groups)
        random.shuffle(order)
    else:
        oldest = time if auction is None else np.full(groups, time.max(), time.dtype)
        if auction is not None:
            np.minimum.at(oldest, auction, time)
        order = np.argsort(oldest, kind="stable")
    ends = np.cumsum(sizes[order])  # of auctions, in their new order
    tenth = max(2, groups // 100)  # of groups: each part has some, however large the largest is
    first = int(np.clip(np.searchsorted(ends, _SHARES[0] * rows) + 1, tenth, groups - 2 * tenth))
    second = int(np.clip(np.searchsorted(ends, sum(_SHARES[:2]) * rows) + 1, first + tenth, groups - tenth))
    bounds = list(pairwise([0, first, second, groups]))
    if auction is None:
        order[:first].sort()
        for begin, end in bounds[1:]:
            random.shuffle(order[begin:end])
        return {part: Split(order[a:b], None) for part, (a, b) in zip(SPLITS, bounds, strict=True)}
    place = np.empty(groups, np.int64)
    place[order] = np.arange(groups)
    placed = np.argsort(place[auction], kind="stable")  # auctions in their new order, ads in the table's order
    ends = np.append(0, ends)
    return {
        part: Split(placed[ends[a] : ends[b]], ends[a : b + 1] - ends[a])
        for part, (a, b) in zip(SPLITS, bounds, strict=True)
    }


def times_of(column: pl.Series, time_format: str | None = None) -> pl.Series:
    """Times of some rows: dates, or numbers that sort. Every ad needs one.

    Args:
        column: dates, numbers, or text: ISO dates such as 2024-05-01 13:00, numbers, or in ``time_format``.
        time_format: of text, such as ``%d/%m/%Y %H:%M``.
    """
    dtype = column.dtype
    if dtype in (pl.Time, pl.Duration) or not (dtype == pl.String or dtype.is_numeric() or dtype.is_temporal()):
        what = "a time of day" if dtype == pl.Time else str(dtype)
        raise InputError(f"column {column.name!r} must contain dates with or without a time of day, found {what}")
    if dtype == pl.String:
        if time_format is not None and not DATED.search(time_format):
            raise InputError(f"must have a year, found {time_format!r}: a time of day has no order", "time_format")
        text = spelled(column)
        times = text.cast(pl.Float64, strict=False) if time_format is None else pl.Series([None] * len(text))
        if times.null_count() > text.null_count():
            times = _parsed(text, time_format)
        bad = times.is_null() & text.is_not_null()
        if bad.any():
            row = int(bad.arg_max() or 0)
            expected = "must begin with the year, as in 2024-05-01 13:00, or have a --time-format, such as %d/%m/%Y"
            expected = expected if time_format is None else f"must be in the format {time_format}"
            raise BadRow(column.name, row, f"{column[row]!r}; a time {expected}")
        column = times.alias(column.name)
    elif dtype.is_temporal():
        column = column.cast(pl.Datetime("us"))
    if (gone := column.is_null() | (column.is_nan() if column.dtype.is_float() else False)).any():
        raise BadRow(column.name, int(gone.arg_max() or 0), "no value; every ad needs a time")
    return column


def _parsed(text: pl.Series, time_format: str | None) -> pl.Series:
    """Text as dates, those with an offset in UTC; null if it is none."""
    formats = [time_format] if time_format is not None else ISO
    if time_format is None:
        text = text.str.replace(r"^([0-9]{4})[/.]([0-9]{1,2})[/.]", "${1}-${2}-").str.replace("T", " ", literal=True)
        text = text.str.replace(r" ?(?:Z|UTC)$", "")
    dates = pl.Series([None], dtype=pl.Datetime("us")).new_from_index(0, len(text))
    for form in formats:
        left = (dates.is_null() & text.is_not_null()).arg_true()
        if len(left):
            zone = "UTC" if form.endswith("z") else None
            read = text.gather(left).str.to_datetime(form, strict=False, time_unit="us", time_zone=zone)
            dates = dates.scatter(left, read.dt.replace_time_zone(None))
    return dates


def shown_times(times: pl.Series) -> pl.Series:
    """Times as text, also numbers that are seconds or milliseconds since 1970.

    >>> shown_times(pl.Series([1_700_000_000])).to_list(), shown_times(pl.Series([20_240_501])).to_list()
    (['2023-11-14 22:13:20'], ['20240501'])
    """
    if times.dtype.is_numeric() and len(times):
        low, high = float(times.min()), float(times.max())  # type: ignore[arg-type]
        for least, most, unit in (
            (_SECONDS[0], _SECONDS[1], 1_000_000),
            (1000 * _SECONDS[0], 1000 * _SECONDS[1], 1000),
        ):
            if least <= low and high <= most:
                times = (times.cast(pl.Float64) * unit).cast(pl.Int64).cast(pl.Datetime("us"))
    if times.dtype.is_temporal():
        return times.dt.to_string("%Y-%m-%d %H:%M:%S")
    return spelled(times)


def auction_size(most: int, *rows: int) -> int:
    """Ads of an auction if the table has no ids: ``most``, fewer if validation or test would have fewer than 100.

    >>> auction_size(256, 100_000, 100_000), auction_size(256, 1_000, 1_200), auction_size(256, 40, 40)
    (256, 10, 2)
    """
    return max(2, min(most, min(rows) // AUCTIONS))


def halves(ads: Ads, seed: int) -> tuple[Ads, Ads]:
    """The auctions, or ads without auctions, in two random halves: a choice on one is unknown to the other."""
    order = np.random.default_rng(seed).permutation(len(ads) if ads.offsets is None else len(ads.offsets) - 1)
    first, second = (_some(ads, torch.from_numpy(np.sort(part))) for part in np.array_split(order, 2))
    return first, second


def _some(ads: Ads, which: Tensor) -> Ads:
    """Some auctions of ``ads``, or some ads without auctions."""
    if ads.offsets is None:
        return ads.take(which)
    sizes = ads.offsets.diff()[which]
    bounds = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    rows = torch.arange(int(bounds[-1])) + (ads.offsets[which] - bounds[:-1]).repeat_interleave(sizes)
    return ads.take(rows, bounds)
