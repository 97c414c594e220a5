"""A user's table of logged ads: read lazily, checked column by column, cut into auctions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray
from torch import Tensor

from bidwise.auctions.columns import Floats
from bidwise.checks import InputError
from bidwise.data.auction_cuts import AuctionCuts
from bidwise.data.locations import Location, location_of
from bidwise.urls import shown

Table = Any  # a path, a URL, a polars or pandas frame, or a mapping of columns

WORDS = {"true": "1", "false": "0"}  # what other tools write for a click
USUAL = (1e-100, 1e100)  # bids and weights; beyond, sums of squares overflow or vanish


@dataclass(frozen=True)
class AdTable:
    """Logged ads in the order of their auctions: ``offsets`` has the bounds, every column one number per ad."""

    ctr: dict[str, Floats]
    clicks: Floats
    bids: Floats
    offsets: NDArray[np.int64]
    truth: Floats | None = None
    position: NDArray[np.int64] | None = None
    weights: Floats | None = None
    left_out: int = 0
    scattered: bool = False  # whether auctions had to be brought together

    @property
    def ads(self) -> int:
        return len(self.clicks)

    @property
    def auctions(self) -> int:
        return len(self.offsets) - 1

    def rows(self, order: NDArray[np.int64], offsets: NDArray[np.int64], **changes: Any) -> AdTable:
        """The ads at ``order``, cut into auctions at ``offsets``."""
        per_ad = ("clicks", "bids", "truth", "position", "weights")
        taken: dict[str, Any] = {name: None if (x := getattr(self, name)) is None else x[order] for name in per_ad}
        ctr = {name: column[order] for name, column in self.ctr.items()}
        return replace(self, ctr=ctr, offsets=offsets, **taken, **changes)


def read_ads(
    table: Table,
    *,
    ctr: Sequence[str],
    click: str,
    bid: str | None = None,
    auction: str | None = None,
    truth: str | None = None,
    position: str | None = None,
    weight: str | None = None,
    slots: int | None = None,
    name: str = "table",
) -> AdTable:
    """The named columns of a table, checked; without ``bid`` all bids are 1, without ``auction`` all ads one auction.

    ``table`` is a Parquet, CSV or TSV file (also gzipped) or URL, a polars or pandas frame, or a mapping of columns.
    Auctions scattered over the table are brought together, in the order of their first ads, and ``scattered`` says so.

    >>> ads = read_ads({"a": [0.1, 0.2], "y": [0, 1], "b": [1.0, 2.0]}, ctr=["a"], click="y", bid="b")
    >>> ads.bids, ads.offsets
    (array([1., 2.]), array([0, 2]))
    """
    name = shown(table) if isinstance(table, str | Path) else name
    numeric = [*ctr, click, *(column for column in (bid, truth, position, weight) if column is not None)]
    for column in [*numeric, "" if auction is None else auction]:
        if not isinstance(column, str):
            raise InputError(f"columns must be named by text, found {type(column).__name__}")
    for role, own in {"click": click, "bid": bid}.items():
        if own in ctr or (role == "bid" and own == click):
            raise InputError(f"{role} must be a column of its own, found {own!r}, which also has another role")
    if not ctr:
        raise InputError("ctr must name at least one column of predictions")
    twice = {column for column in ctr if list(ctr).count(column) > 1}
    if twice:
        raise InputError(f"ctr must name every column once, found {sorted(twice)[0]!r} twice")
    if auction in numeric:
        raise InputError(f"auction must be a column of its own, found {auction!r}, which also holds numbers")
    frame = _columns(table, numeric, auction, name)
    if frame.is_empty():
        raise InputError(f"{name} must hold ads, found no rows")
    read = {column: _numbers(frame[column], name) for column in numeric}
    for column in ctr:
        found = read[column]
        hint = "; logits? apply the sigmoid first" if found.min() < 0 else "; per cent? divide by 100"
        _check(found, (found >= 0) & (found <= 1), column, f"a CTR must be in [0, 1]{hint}", name)
    _check(read[click], (read[click] == 0) | (read[click] == 1), click, "a click must be 0 or 1", name)
    if bid is not None:
        usual = (read[bid] >= USUAL[0]) & (read[bid] <= USUAL[1])
        _check(read[bid], usual, bid, "a bid must be above 0, from 1e-100 to 1e100; leave out ads without a bid", name)
    if truth is not None:
        _check(read[truth], (read[truth] >= 0) & (read[truth] <= 1), truth, "a true CTR must be in [0, 1]", name)
    if weight is not None:
        usual = (read[weight] >= USUAL[0]) & (read[weight] <= USUAL[1])
        _check(read[weight], usual, weight, "a weight must be above 0, from 1e-100 to 1e100", name)
    if position is not None:
        whole = (read[position] == np.floor(read[position])) & (read[position] >= 1)
        last = np.inf if slots is None else slots
        expected = f"a position must be a whole number from 1 to {last}, the number of slots: name more, as 1,0.8,0.6"
        _check(read[position], whole & (read[position] <= last), position, expected, name)
    ads = AdTable(
        ctr={column: read[column] for column in ctr},
        clicks=read[click],
        bids=np.ones(len(frame)) if bid is None else read[bid],
        offsets=np.array([0, len(frame)]),
        truth=None if truth is None else read[truth],
        position=None if position is None else read[position].astype(np.int64),
        weights=None if weight is None else read[weight] / read[weight].mean(),
    )
    return ads if auction is None else _gathered(ads, frame[auction], name)


def cut_auctions(ads: AdTable, size: int, *, seed: int = 0, cuts: int = 1) -> AdTable:
    """Auctions of ``size`` ads drawn at random: the rows are shuffled and cut, an incomplete last auction is left out.

    The paper does this once; ``cuts`` > 1 repeats it with other shuffles, so that each ad meets other rivals.

    >>> ads = read_ads({"a": [0.1] * 5, "y": [0] * 5, "b": [1.0] * 5}, ctr=["a"], click="y", bid="b")
    >>> cut_auctions(ads, 2, seed=0).offsets
    array([0, 2, 4])
    """
    found = AuctionCuts.at_random(ads.ads, size, cuts=cuts, seed=seed)
    assert isinstance(found.rows, Tensor)
    return ads.rows(found.rows.numpy(), found.offsets.numpy(), left_out=found.left_out)


def _gathered(ads: AdTable, auction: pl.Series, name: str) -> AdTable:
    if auction.dtype == pl.String:
        auction = auction.str.strip_chars().replace("", None)
    missing = auction.is_null() | auction.is_nan() if auction.dtype.is_float() else auction.is_null()
    if missing.any():
        row = int(missing.to_numpy().argmax())
        raise _bad_row(name, auction.name, row, "no value; every ad needs an auction")
    starts = (auction != auction.shift()).fill_null(True).arg_true().to_numpy().astype(np.int64)
    if len(starts) == auction.n_unique():
        return replace(ads, offsets=np.append(starts, len(auction)))
    rows = pl.DataFrame({"auction": auction}).with_row_index("row")
    first = rows.select(pl.col("row").min().over("auction")).to_series().to_numpy()
    order = np.argsort(first, kind="stable")
    starts = np.flatnonzero(np.diff(first[order], prepend=-1))
    return ads.rows(order, np.append(starts, len(auction)), scattered=True)


def _check(found: Floats, good: NDArray[np.bool_], column: str, expected: str, name: str) -> None:
    if good.all():
        return
    row = int(np.argmin(good))
    more = int((~good).sum()) - 1
    others = f", and {more:,} rows more" if more else ""
    raise _bad_row(name, column, row, f"{found[row]:g}; {expected}{others}")


def _bad_row(name: str, column: str, row: int, found: str) -> InputError:
    return InputError(f"{name}: column {column!r}, row {row}: found {found} (rows count from 0)")


def _numbers(column: pl.Series, name: str) -> Floats:
    """The column as float64; NaN and missing values are refused, with the first row that has one."""
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        read = text.str.to_lowercase().replace(WORDS).cast(pl.Float64, strict=False)
        bad = read.is_null() & text.is_not_null() & (text != "")
        if bad.any():
            row = int(bad.to_numpy().argmax())
            raise _bad_row(name, column.name, row, f"{column[row]!r}, which is not a number")
        column = read.alias(column.name)
    elif not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null)):
        raise InputError(f"{name}: column {column.name!r} must hold numbers, found {column.dtype}")
    if column.null_count():
        row = int(column.is_null().to_numpy().argmax())
        none = f"no value; {column.null_count():,} of {len(column):,} rows have none: fill them or drop the rows"
        raise _bad_row(name, column.name, row, none)
    numbers = column.cast(pl.Float64).to_numpy()
    if np.isnan(numbers).any():
        raise _bad_row(name, column.name, int(np.isnan(numbers).argmax()), "NaN; fill it or drop the row")
    return np.require(numbers, requirements="W")


def _columns(table: Table, numeric: Sequence[str], auction: str | None, name: str) -> pl.DataFrame:
    """The columns of a table in memory, and no others."""
    wanted = list(dict.fromkeys([*numeric, *([] if auction is None else [auction])]))
    if isinstance(table, str | Path):
        return _file_columns(location_of(table), wanted, numeric)
    if isinstance(table, pl.LazyFrame):
        _check_columns(wanted, table.collect_schema().names(), name)
        return table.select(cs.by_name(*wanted)).collect(engine="streaming")
    if not isinstance(table, Mapping | pl.DataFrame) and not hasattr(table, "columns"):
        raise InputError(
            f"{name} must be a file, a polars or pandas frame, or a mapping of columns, found {type(table).__name__}"
        )
    _check_columns(wanted, list(table) if isinstance(table, Mapping) else list(table.columns), name)
    columns = [_series(column, table[column]) for column in wanted]
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(f"{column.name}: {len(column)}" for column in columns)
        raise InputError(f"{name} must have columns of one length, found {lengths}")
    return pl.DataFrame(columns)


def _series(column: str, values: Any) -> pl.Series:
    if isinstance(values, pl.Series):
        return values.alias(column)
    if hasattr(values, "detach"):  # a tensor; bfloat16 is nothing numpy knows
        values = values.detach().cpu().double()
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"column {column!r} must have one value per ad, found shape {array.shape}")
    return pl.Series(column, array.tolist() if array.dtype.kind == "O" else array, strict=False)


def _file_columns(place: Location, wanted: Sequence[str], numeric: Sequence[str]) -> pl.DataFrame:
    try:
        if place.kind == ".parquet":
            return _selected(place.scan(), wanted, place.name)
        text = place.scan(infer_schema=False)  # column names alone; nothing is read yet
        names = text.collect_schema().names()
        _check_columns(wanted, names, place.name)
        twice = [column for column in wanted if f"{column}_duplicated_0" in names]
        if twice:
            raise InputError(f"{place.name} must have every column once, found {twice[0]!r} twice")
        types = {column: pl.Float64 if column in numeric else pl.String for column in wanted}
        try:
            frame = _selected(place.scan(schema_overrides=types), wanted, place.name)
        except pl.exceptions.ComputeError:  # some number is none: text tells where
            frame = _selected(text, wanted, place.name)
        return frame.head(len(frame) - _empty_last_lines(frame, text))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise place.error(error) from None


def _selected(scan: pl.LazyFrame, wanted: Sequence[str], name: str) -> pl.DataFrame:
    _check_columns(wanted, scan.collect_schema().names(), name)
    return scan.select(cs.by_name(*wanted)).collect(engine="streaming")


def _empty_last_lines(frame: pl.DataFrame, text: pl.LazyFrame) -> int:
    """How many lines at the end of the file are empty, in the columns that were not asked for as well."""
    empty = frame.select(pl.all_horizontal(pl.all().is_null())).to_series().to_numpy()
    used = np.flatnonzero(~empty)
    last = len(empty) - (int(used[-1]) + 1 if len(used) else 0)
    if last == 0:
        return 0
    whole = text.tail(last).select(pl.all_horizontal(pl.all().is_null())).collect().to_series()
    return last if whole.all() else 0


def _check_columns(wanted: Sequence[str], found: Sequence[str], name: str) -> None:
    for column in wanted:
        if column not in found:
            near = get_close_matches(column, map(str, found), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, found[:12]))}"
            if "," in column and set(column.split(",")) <= set(found):
                hint = "separate columns by spaces"
            if len(found) == 1 and any(mark in str(found[0]) for mark in ",;\t"):
                hint += "; is it separated by another character than its ending says? (.csv: comma, .tsv: tab)"
            raise InputError(f"{name} has no column {column!r}; {hint}")
