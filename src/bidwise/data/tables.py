"""A user's table of logged ads: read lazily, checked column by column, cut into auctions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise.checks import InputError

Array = NDArray[np.float64]
Table = Any  # a path, a polars or pandas frame, or a mapping of columns

SEPARATORS = {".csv": ",", ".tsv": "\t"}
WORDS = {"true": "1", "false": "0"}  # what other tools write for a click


@dataclass(frozen=True)
class AdTable:
    """Logged ads in the order of their auctions: ``offsets`` has the bounds, every column one number per ad."""

    ctr: dict[str, Array]
    clicks: Array
    bids: Array
    offsets: NDArray[np.int64]
    truth: Array | None = None
    position: NDArray[np.int64] | None = None
    weights: Array | None = None
    left_out: int = 0
    notes: list[str] = field(default_factory=list)

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

    ``table`` is a Parquet, CSV or TSV file (also gzipped), a polars or pandas frame, or a mapping of columns. Auctions
    scattered over the table are brought together, in the order of their first ads, and ``notes`` says so.

    >>> ads = read_ads({"a": [0.1, 0.2], "y": [0, 1], "b": [1.0, 2.0]}, ctr=["a"], click="y", bid="b")
    >>> ads.bids, ads.offsets
    (array([1., 2.]), array([0, 2]))
    """
    name = str(table) if isinstance(table, str | Path) else name
    numeric = [*ctr, click, *(column for column in (bid, truth, position, weight) if column is not None)]
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
        _check(read[column], (read[column] >= 0) & (read[column] <= 1), column, "a CTR must be in [0, 1]", name)
    _check(read[click], (read[click] == 0) | (read[click] == 1), click, "a click must be 0 or 1", name)
    if bid is not None:
        _check(read[bid], (read[bid] > 0) & np.isfinite(read[bid]), bid, "a bid must be finite and above 0", name)
    if truth is not None:
        _check(read[truth], (read[truth] >= 0) & (read[truth] <= 1), truth, "a true CTR must be in [0, 1]", name)
    if weight is not None:
        good = (read[weight] > 0) & np.isfinite(read[weight])
        _check(read[weight], good, weight, "a weight must be finite and above 0", name)
    if position is not None:
        whole = (read[position] == np.floor(read[position])) & (read[position] >= 1)
        last = np.inf if slots is None else slots
        expected = f"a position must be a whole number, from 1 for the first of the slots to {last} for the last"
        _check(read[position], whole & (read[position] <= last), position, expected, name)
    ads = AdTable(
        ctr={column: read[column] for column in ctr},
        clicks=read[click],
        bids=np.ones(len(frame)) if bid is None else read[bid],
        offsets=np.array([0, len(frame)]),
        truth=None if truth is None else read[truth],
        position=None if position is None else read[position].astype(np.int64),
        weights=None if weight is None else read[weight],
    )
    return ads if auction is None else _gathered(ads, frame[auction], name)


def cut_auctions(ads: AdTable, size: int, *, seed: int = 0, cuts: int = 1) -> AdTable:
    """Auctions of ``size`` ads drawn at random: the rows are shuffled and cut, an incomplete last auction is left out.

    The paper does this once; ``cuts`` > 1 repeats it with other shuffles, so that each ad meets other rivals.

    >>> ads = read_ads({"a": [0.1] * 5, "y": [0] * 5, "b": [1.0] * 5}, ctr=["a"], click="y", bid="b")
    >>> cut_auctions(ads, 2, seed=0).offsets
    array([0, 2, 4])
    """
    if size < 1:
        raise InputError(f"auction_size must be at least 1, found {size}")
    if cuts < 1:
        raise InputError(f"resample must be at least 1, found {cuts}")
    if size > ads.ads:
        raise InputError(f"auction_size must be at most the number of ads, {ads.ads}, found {size}")
    random = np.random.default_rng(seed)
    kept = ads.ads // size * size
    order = np.concatenate([random.permutation(ads.ads)[:kept] for _ in range(cuts)])
    left_out = ads.ads - kept
    again = f", {cuts} times over" if cuts > 1 else ""
    note = (
        f"The auctions are not real: the ads were shuffled (seed {seed}) and cut into auctions of {size}{again}; "
        f"{left_out:,} ads of an incomplete last auction were left out{' each time' if cuts > 1 else ''}."
    )
    return ads.rows(order, size * np.arange(len(order) // size + 1), left_out=left_out, notes=[*ads.notes, note])


def _gathered(ads: AdTable, auction: pl.Series, name: str) -> AdTable:
    missing = auction.is_null()
    if missing.any():
        raise InputError(
            f"{name}: column {auction.name!r}, row {missing.arg_max()}: found no value; every ad needs an auction"
        )
    starts = (auction != auction.shift()).fill_null(True).arg_true().to_numpy().astype(np.int64)
    if len(starts) == auction.n_unique():
        return replace(ads, offsets=np.append(starts, len(auction)))
    rows = pl.DataFrame({"auction": auction}).with_row_index("row")
    first = rows.select(pl.col("row").min().over("auction")).to_series().to_numpy()
    order = np.argsort(first, kind="stable")
    starts = np.flatnonzero(np.diff(first[order], prepend=-1))
    note = f"The ads of an auction were not next to each other: sorted by {auction.name!r}, in the order of first ads."
    return ads.rows(order, np.append(starts, len(auction)), notes=[*ads.notes, note])


def _check(found: Array, good: NDArray[np.bool_], column: str, expected: str, name: str) -> None:
    if good.all():
        return
    row = int(np.argmin(good))
    more = int((~good).sum()) - 1
    others = f" (and {more:,} rows more)" if more else ""
    raise InputError(f"{name}: column {column!r}, row {row}: found {found[row]:g}; {expected}{others}")


def _numbers(column: pl.Series, name: str) -> Array:
    """The column as float64; NaN and missing values are refused, with the first row that has one."""
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        read = text.str.to_lowercase().replace(WORDS).cast(pl.Float64, strict=False)
        bad = read.is_null() & text.is_not_null() & (text != "")
        if bad.any():
            row = int(bad.to_numpy().argmax())
            raise InputError(f"{name}: column {column.name!r}, row {row}: found {column[row]!r}, which is not a number")
        column = read.alias(column.name)
    elif not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null)):
        raise InputError(f"{name}: column {column.name!r} must hold numbers, found {column.dtype}")
    if column.null_count():
        raise InputError(
            f"{name}: column {column.name!r}, row {column.is_null().arg_max()}: found no value "
            f"({column.null_count():,} rows have none); fill them or drop the rows"
        )
    numbers = column.cast(pl.Float64).to_numpy()
    if np.isnan(numbers).any():
        raise InputError(f"{name}: column {column.name!r}, row {int(np.isnan(numbers).argmax())}: found NaN")
    return np.require(numbers, requirements="W")


def _columns(table: Table, numeric: Sequence[str], auction: str | None, name: str) -> pl.DataFrame:
    """The columns of a table in memory, and no others."""
    wanted = list(dict.fromkeys([*numeric, *([] if auction is None else [auction])]))
    if isinstance(table, str | Path):
        return _file_columns(Path(table), wanted, numeric)
    if isinstance(table, pl.LazyFrame):
        _check_columns(wanted, table.collect_schema().names(), name)
        return table.select(wanted).collect(engine="streaming")
    if not isinstance(table, Mapping | pl.DataFrame) and not hasattr(table, "columns"):
        raise InputError(
            f"{name} must be a file, a polars or pandas frame, or a mapping of columns, found {type(table).__name__}"
        )
    _check_columns(wanted, list(table) if isinstance(table, Mapping) else list(table.columns), name)
    lengths = {column: len(table[column]) for column in wanted}
    if len(set(lengths.values())) > 1:
        raise InputError(f"{name} must have columns of one length, found {lengths}")
    return pl.DataFrame([_series(column, table[column]) for column in wanted])


def _series(column: str, values: Any) -> pl.Series:
    if isinstance(values, pl.Series):
        return values.alias(column)
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"column {column!r} must have one value per ad, found shape {array.shape}")
    return pl.Series(column, array.tolist() if array.dtype.kind == "O" else array, strict=False)


def _file_columns(path: Path, wanted: Sequence[str], numeric: Sequence[str]) -> pl.DataFrame:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if not path.exists() and "*" not in path.name:
        raise InputError(f"{path}: no such file")
    try:
        if plain.suffix == ".parquet" and plain == path:
            return _selected(pl.scan_parquet(path), wanted, path)
        if plain.suffix not in SEPARATORS:
            raise InputError(f"{path} must end in .parquet, .csv, .tsv, .csv.gz or .tsv.gz")
        separator = SEPARATORS[plain.suffix]
        text = pl.scan_csv(path, separator=separator, infer_schema=False)  # column names alone; nothing is read yet
        _check_columns(wanted, text.collect_schema().names(), str(path))
        types = {column: pl.Float64 if column in numeric else pl.String for column in wanted}
        try:
            return _selected(pl.scan_csv(path, separator=separator, schema_overrides=types), wanted, path)
        except pl.exceptions.ComputeError:  # some number is none: text tells where
            return _selected(text, wanted, path)
    except pl.exceptions.NoDataError:
        raise InputError(f"{path} must hold ads, found an empty file") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{path} cannot be read: {reason}") from None


def _selected(scan: pl.LazyFrame, wanted: Sequence[str], path: Path) -> pl.DataFrame:
    _check_columns(wanted, scan.collect_schema().names(), str(path))
    return scan.select(wanted).collect(engine="streaming")


def _check_columns(wanted: Sequence[str], found: Sequence[str], name: str) -> None:
    for column in wanted:
        if column not in found:
            near = get_close_matches(column, found, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, found[:12]))}"
            raise InputError(f"{name} has no column {column!r}; {hint}")
