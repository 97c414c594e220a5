"""Training, validation and test rows: by time or at random, and never inside of an auction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from bidwise.checks import InputError
from bidwise.data.ads import COLUMNS, Ads
from bidwise.data.blocks import Array, chunks, in_memory
from bidwise.data.read_table import BadRow, check_known
from bidwise.data.store import SPLITS
from bidwise.run_folder import take_room

SHARES = (0.8, 0.1, 0.1)
UNFINISHED = "unfinished"  # what folders inside a run folder begin with that the next start removes
LEAST = 20  # auctions, or pairs of rows: two for each tenth
SORTED = 2**22  # numbers that are put in order at once
AUCTIONS = 100  # to cut validation and test rows into, at least, where the table names none


@dataclass(frozen=True)
class Split:
    """Rows of the table, the ads of an auction next to each other; ``offsets`` where the table has auctions."""

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64] | None


def split(
    rows: int,
    *,
    auction: NDArray[np.int64] | None,
    time: NDArray[Any] | None,
    seed: int,
    name: str = "table",
    array: Array = in_memory,
) -> dict[str, Split]:
    """The oldest 80 % of the ads, the next 10 % and the newest 10 %; without ``time`` a random 80, 10 and 10 %.

    ``auction`` numbers the auction of every row, from 0 in the order of their first rows. Auctions stay whole: one goes
    where its oldest ad does. Without auctions validation and test rows are in random order, ready to be cut into
    auctions. Whatever is as long as the table is an ``array`` of its own.

    >>> parts = split(120, auction=np.arange(120) // 3, time=np.arange(120), seed=0)
    >>> {name: (len(part.rows), len(part.offsets) - 1) for name, part in parts.items()}
    {'train': (96, 32), 'valid': (12, 4), 'test': (12, 4)}
    """
    random = np.random.default_rng(seed)
    groups = rows if auction is None else 1 + max(int(auction[part].max()) for part in chunks(0, rows))
    what, least = ("rows", 2 * LEAST) if auction is None else ("auctions", LEAST)
    if auction is not None and groups == 1:
        raise InputError(f"{name} must have several auctions, found one: what names them is the same in all rows")
    if groups < least:
        raise InputError(
            f"{name} must have at least {least} {what} to be split into training, validation and test, found {groups}"
        )
    order = array("order", np.int64, groups)
    sizes, oldest = (None, time) if auction is None else _sizes(auction, time, groups, array)
    if oldest is None:
        for part in chunks(0, groups):
            order[part] = np.arange(part.start, part.stop)
        random.shuffle(order)
    else:
        sort(oldest, order)
    ends = array("ends", np.int64, groups)  # of auctions, in their new order
    total = 0
    for part in chunks(0, groups):
        ends[part] = total + np.cumsum(
            np.ones(part.stop - part.start, np.int64) if sizes is None else sizes[order[part]]
        )
        total = int(ends[part.stop - 1])
    tenth = max(2, groups // 100)  # of groups: each part has some, however large the largest is
    first = int(np.clip(np.searchsorted(ends, SHARES[0] * rows) + 1, tenth, groups - 2 * tenth))
    second = int(np.clip(np.searchsorted(ends, sum(SHARES[:2]) * rows) + 1, first + tenth, groups - tenth))
    bounds = list(pairwise([0, first, second, groups]))
    if auction is None or sizes is None:
        order[:first].sort()
        for begin, end in bounds[1:]:
            random.shuffle(order[begin:end])
        return {part: Split(order[a:b], None) for part, (a, b) in zip(SPLITS, bounds, strict=True)}
    placed = _members(auction, sizes, order, ends, array)
    parts = {}
    for part_name, (begin, end) in zip(SPLITS, bounds, strict=True):
        offsets = array(f"offsets.{part_name}", np.int64, end - begin + 1)
        start = int(ends[begin - 1]) if begin else 0
        offsets[0] = 0
        for part in chunks(begin, end):
            offsets[part.start - begin + 1 : part.stop - begin + 1] = ends[part] - start
        parts[part_name] = Split(placed[start : int(ends[end - 1])], offsets)
    return parts


def _sizes(
    auction: NDArray[np.int64], time: NDArray[Any] | None, groups: int, array: Array
) -> tuple[NDArray[np.int64], NDArray[Any] | None]:
    """The ads of every auction, and the time of its oldest."""
    sizes, oldest = array("sizes", np.int64, groups), None
    sizes[:] = 0
    if time is not None:
        oldest = array("oldest", time.dtype, groups)
        oldest[:] = np.inf if time.dtype.kind == "f" else np.iinfo(time.dtype).max
    for part in chunks(0, len(auction)):
        np.add.at(sizes, auction[part], 1)
        if time is not None and oldest is not None:
            np.minimum.at(oldest, auction[part], time[part])
    return sizes, oldest


def _members(
    auction: NDArray[np.int64],
    sizes: NDArray[np.int64],
    order: NDArray[np.int64],
    ends: NDArray[np.int64],
    array: Array,
) -> NDArray[np.int64]:
    """Rows of the table, auctions in their new order and the ads of each in that of the table."""
    free = array("free", np.int64, len(order))  # where the next ad of an auction goes
    for part in chunks(0, len(order)):
        free[order[part]] = ends[part] - sizes[order[part]]
    placed = array("placed", np.int64, len(auction))
    for part in chunks(0, len(auction)):
        ids, which, counts = np.unique(auction[part], return_inverse=True, return_counts=True)
        rows = np.argsort(which, kind="stable")
        inside = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        placed[np.repeat(free[ids], counts) + inside] = part.start + rows
        free[ids] += counts
    return placed


def sort(values: NDArray[Any], order: NDArray[np.int64]) -> None:
    """Fill ``order`` with the stable order of ``values``: of many a range of values at a time, equal ones together."""
    cuts: list[Any] = [None, None]
    if len(values) > SORTED:
        sample = np.sort(values[:: len(values) // SORTED])
        cuts[1:1] = np.unique(sample[:: max(1, len(sample) * SORTED // len(values))])[1:]
    done = 0
    for low, high in pairwise(cuts):
        inside = []
        for part in chunks(0, len(values)):
            some, here = values[part], np.ones(part.stop - part.start, bool)
            here &= True if low is None else some >= low
            here &= True if high is None else some < high
            inside.append(part.start + np.flatnonzero(here))
        rows = np.concatenate(inside)
        order[done : done + len(rows)] = rows[np.argsort(values[rows], kind="stable")]
        done += len(rows)


def places(parts: Mapping[str, Split], where: NDArray[np.int64]) -> None:
    """Fill ``where`` with the place of every row of the table among those of all parts, one after the other."""
    begin = 0
    for each in parts.values():
        for part in chunks(0, len(each.rows)):
            where[each.rows[part]] = np.arange(begin + part.start, begin + part.stop)
        begin += len(each.rows)


def times_of(column: pl.Series, name: str = "table", start: int = 0) -> NDArray[Any]:
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
            raise BadRow(name, column.name, start + row, f"{column[row]!r}; a time must be {expected}")
        column = read.alias(column.name)
    elif not (column.dtype.is_numeric() or column.dtype.is_temporal()):
        raise InputError(f"{name}: column {column.name!r} must hold times that can be sorted, found {column.dtype}")
    check_known(column, name, "every ad needs a time", start)
    return column.to_physical().to_numpy()


def auction_size(most: int, *rows: int) -> int:
    """Ads of an auction where the table names none: ``most``, fewer where validation or test would have fewer than 100.

    >>> auction_size(256, 100_000, 100_000), auction_size(256, 1_000, 1_200), auction_size(256, 40, 40)
    (256, 10, 2)
    """
    return max(2, min(most, min(rows) // AUCTIONS))


def halves(ads: Ads, seed: int, folder: Path | None = None) -> tuple[Ads, Ads]:
    """The auctions, or ads that are in none, in two random halves: what one chooses is not known to the other.

    With a ``folder`` their columns are files in it, without a name, that end with their last use.
    """
    order = np.random.default_rng(seed).permutation(len(ads) if ads.offsets is None else len(ads.offsets) - 1)
    first, second = (_some(ads, torch.from_numpy(np.sort(part)), folder) for part in np.array_split(order, 2))
    return first, second


def _some(ads: Ads, which: Tensor, folder: Path | None) -> Ads:
    """Some auctions of ``ads``, or some ads where there are none."""
    rows, bounds = which, None
    if ads.offsets is not None:
        sizes = ads.offsets.diff()[which]
        bounds = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        rows = torch.arange(int(bounds[-1])) + (ads.offsets[which] - bounds[:-1]).repeat_interleave(sizes)
    if folder is None:
        return ads.take(rows, bounds)
    with TemporaryDirectory(dir=folder, prefix=UNFINISHED, ignore_cleanup_errors=True) as name:
        columns = {key: getattr(ads, key) for key in ("features", *COLUMNS) if getattr(ads, key) is not None}
        taken: dict[str, Any] = {key: _mapped(column, rows, f"{name}/{key}") for key, column in columns.items()}
    return replace(ads, offsets=bounds, **taken)


def _mapped(column: Tensor, rows: Tensor, path: str) -> Tensor:
    """Rows of a column as a file."""
    shape = (len(rows), *column.shape[1:])
    file = torch.from_file(path, shared=True, size=math.prod(shape), dtype=column.dtype)
    take_room(Path(path))
    return torch.index_select(column, 0, rows, out=file.view(shape))
