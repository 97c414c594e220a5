"""Values of a column counted block by block, in memory that does not grow with the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.values import BOOLEANS, SLOTS

KEPT = 2**18  # different values, up to which their number is exact; beyond it is right within 1 %
PENDING = 2**20  # counted values that wait to be merged
SPILL = 2**19  # different values of a column that are held at once
CELLS = 64  # of values by their hash: one after the other is merged when counting ends


class Seen(NamedTuple):
    """What a block of a column adds to its :class:`Sketch`."""

    missing: int  # rows without a value
    hashes: NDArray[np.uint64]  # of the different values
    entries: int  # values in all rows
    longest: int = 1  # of the lists
    cut: int = 0  # lists of more than ``SLOTS`` values


@dataclass(frozen=True)
class Found:
    """What all rows have in a column."""

    name: str
    dtype: pl.DataType
    rows: int
    values: int  # different ones
    missing: float  # share of the rows
    entries: int  # values in all rows
    longest: int = 1  # of the lists
    cut: int = 0  # lists of more than ``SLOTS`` values


def holds_lists(dtype: pl.DataType) -> bool:
    """Whether values are lists of names: text, whole numbers or booleans.

    >>> [holds_lists(dtype) for dtype in (pl.List(pl.String), pl.Array(pl.Int8, 3), pl.List(pl.Float64), pl.String)]
    [True, True, False, False]
    """
    inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else pl.Float64()
    return inner.is_integer() or inner in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null)


def exploded(column: pl.Series, separator: str) -> tuple[pl.Series, NDArray[np.int64]]:
    """The values of lists one after the other, and the row of each; what is missing in a list is no value.

    >>> values, rows = exploded(pl.Series(["a| b|a", None, "", "c"]), "|")
    >>> values.to_list(), rows.tolist()
    (['a', ' b', 'a', 'c'], [0, 0, 0, 3])
    """
    dtype = column.dtype
    if isinstance(dtype, pl.Array):
        column = column.arr.to_list()
    elif not dtype.is_nested():
        _check_whole(column)
        column = (column if dtype == pl.String else names_of(column)).str.split(separator)
    if not isinstance(column.dtype, pl.List) or column.dtype.inner.is_nested():
        raise InputError(f"column {column.name!r} must hold lists of text or whole numbers, found {dtype}")
    lengths = column.list.len().fill_null(0).to_numpy()
    values = column.filter(lengths > 0).explode()
    there = values.is_not_null()
    _check_whole(values)
    if values.dtype == pl.String:
        there &= values.str.strip_chars() != ""
    elif values.dtype.is_float():
        there &= values.is_not_nan()
    return values.filter(there), np.repeat(np.arange(len(column)), lengths)[there.to_numpy()]


def _check_whole(values: pl.Series) -> None:
    """Raise where numbers have decimals; pandas writes whole ones so where some are missing."""
    if values.dtype.is_float() and len(odd := values.filter(values.is_finite() & (values != values.round()))):
        raise InputError(f"column {values.name!r} must hold lists of text or whole numbers, found {odd[0]}")


def seen(column: pl.Series, separator: str | None = None) -> Seen:
    """What is in a block of a column; with a ``separator`` its text is lists."""
    dtype = column.dtype
    missing = column.null_count()
    if separator is not None or holds_lists(dtype):
        values, rows = exploded(column, separator or "")
        lengths = np.bincount(rows, minlength=len(column))
        hashes = names_of(values.unique()).hash(seed=0).to_numpy()
        longest, cut = int(lengths.max(initial=0)), int((lengths > SLOTS).sum())
        return Seen(int((lengths == 0).sum()), hashes, len(values), longest, cut)
    if dtype.is_nested() or dtype in (pl.Object, pl.Binary):
        return Seen(missing, np.empty(0, np.uint64), 0)
    known = column.drop_nulls()
    if dtype.is_float():
        missing += int(known.is_nan().sum())
        known = known.drop_nans()
    elif dtype == pl.String:
        missing += int((known.str.strip_chars() == "").sum())
    elif dtype == pl.Categorical or isinstance(dtype, pl.Enum):
        known = known.cast(pl.String)  # codes are those of a block
    return Seen(missing, known.unique().hash(seed=0).to_numpy(), len(column) - missing)


class Sketch:
    """How many different values a column has: it keeps the ``KEPT`` smallest hashes. Of n values the k-th smallest is
    near k / n of the largest possible."""

    def __init__(self) -> None:
        self.missing = self.waiting = self.entries = self.longest = self.cut = 0
        self.hashes = [np.empty(0, np.uint64)]
        self.limit = np.uint64(2**64 - 1)

    def add(self, block: Seen) -> None:
        """Take in a block."""
        self.missing += block.missing
        self.entries += block.entries
        self.cut += block.cut
        self.longest = max(self.longest, block.longest)
        fresh = block.hashes[block.hashes <= self.limit]
        self.hashes.append(fresh)
        self.waiting += len(fresh)
        if self.waiting > KEPT:
            self._merge()

    def _merge(self) -> NDArray[np.uint64]:
        kept = np.unique(np.concatenate(self.hashes))[: KEPT + 1]
        self.hashes, self.waiting = [kept], 0
        if len(kept) > KEPT:
            self.limit = kept[-1]
        return kept

    def about(self, rows: int) -> dict[str, Any]:
        """What :class:`Found` has of a column of so many rows."""
        numbers = {name: getattr(self, name) for name in ("values", "entries", "longest", "cut")}
        return numbers | {"missing": self.missing / max(rows, 1)}

    @property
    def values(self) -> int:
        kept = self._merge()
        return len(kept) if len(kept) <= KEPT else round(KEPT / (float(kept[KEPT]) / 2.0**64))


def found(frame: pl.DataFrame) -> list[Found]:
    """What the columns of a frame have."""
    columns = []
    for column in frame:
        sketch = Sketch()
        sketch.add(seen(column))
        columns.append(Found(column.name, column.dtype, len(frame), **sketch.about(len(frame))))
    return columns


def names_of(column: pl.Series) -> pl.Series:
    """Values as text, the same for the same value however a file stored it and whatever stands in other rows.

    >>> [names_of(pl.Series(values)).to_list() for values in ([3.0, 2.5], [3.0], [3], [" 3.0"])]
    [['3', '2.5'], ['3'], ['3'], ['3']]
    """
    if column.dtype.is_float():
        column = column.cast(pl.Float64).fill_nan(None)
    text = column.cast(pl.String)
    if not column.dtype.is_integer():
        text = text.str.strip_chars().str.replace(r"^(-?\d+)\.0+$", "${1}").replace({"": None, **BOOLEANS})
    return text


def counted(column: pl.Series) -> pl.DataFrame:
    """The different names in a block, and how often each is there."""
    counts = column.alias("value").value_counts(name="count")
    named = counts.with_columns(names_of(counts["value"]).alias("value"), pl.col("count").cast(pl.UInt64))
    if named["value"].dtype == counts["value"].dtype and named["value"].equals(counts["value"]):
        return named.drop_nulls("value")  # no two became one
    return _summed([named])


def _summed(counts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    together = pl.concat(counts).drop_nulls("value").group_by("value")
    return together.agg(pl.col("count").cast(pl.UInt64).sum())


def count_ids(totals: NDArray[Any], ids: NDArray[np.int32], counts: NDArray[Any] | None = None) -> None:
    """Add to the total of every id how often it is there, or its ``counts``; totals of ids that are not there cost
    nothing, where they are the most."""
    if len(totals) > len(ids):
        np.add.at(totals, ids, 1 if counts is None else counts)
    else:
        totals += np.bincount(ids, counts, len(totals)).astype(totals.dtype)


class Tally:
    """How often each value of a column was seen. Beyond ``SPILL`` different ones counts go to the disk, by the hash of
    their value."""

    def __init__(self) -> None:
        self.counts = [pl.DataFrame(schema={"value": pl.String, "count": pl.UInt64})]
        self.waiting = 0
        self.folder: TemporaryDirectory[str] | None = None

    def add(self, counts: pl.DataFrame, work: Path | None = None) -> None:
        """Take in the counts of a block; ``work`` is the folder of what memory does not hold."""
        self.counts.append(counts)
        self.waiting += len(counts)
        if self.waiting < PENDING:
            return
        merged = _summed(self.counts)
        self.counts, self.waiting = [merged], 0
        if len(merged) > SPILL and work is not None:
            self.folder = self.folder or TemporaryDirectory(dir=work)
            self._write(merged, Path(self.folder.name))
            self.counts = [merged.clear()]

    def _write(self, merged: pl.DataFrame, folder: Path) -> None:
        number = len(list(folder.glob("0.*")))
        cells = merged.with_columns(pl.col("value").hash(seed=0).mod(CELLS).alias("cell"))
        for (cell,), part in cells.partition_by("cell", as_dict=True, include_key=False).items():
            part.write_ipc(folder / f"{cell}.{number}")

    def vocabulary(self, min_count: int) -> pl.Series:
        """Values seen often enough, the most frequent first."""
        return self.often(min_count)["value"]

    def often(self, min_count: int) -> pl.DataFrame:
        """Every ``value`` seen often enough with its ``count``, the most frequent first, ties by name: ids do not
        depend on the rows' order. It ends the counting."""
        often = pl.col("count") >= min_count
        if self.folder is None:
            kept = _summed(self.counts).filter(often)
        else:
            with self.folder as name:
                folder = Path(name)
                self._write(_summed(self.counts), folder)
                cells = [sorted(folder.glob(f"{cell}.*")) for cell in range(CELLS)]
                kept = pl.concat(_summed(map(pl.read_ipc, files)).filter(often) for files in cells if files)
        kept = kept.sort("value")  # one key after the other takes a sixth of the time of both
        return kept.sort("count", descending=True, maintain_order=True)
