"""A table of any size as blocks of rows, and columns of all rows that lie on the disk: nothing here grows with rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import DTypeLike, NDArray

from bidwise.checks import InputError
from bidwise.data.read_table import (
    PLACES,
    UNREADABLE,
    Location,
    Table,
    _frame,
    check_once,
    location_of,
    table_error,
    table_name,
)
from bidwise.run_folder import FullDisk, checksum, named, take_room, whole_file

ROWS = 2**18  # of a block
CHUNK = 2**20  # numbers of a column on the disk that are worked on at once

Array = Callable[[str, DTypeLike, int], NDArray[Any]]  # an array to fill: name, type and length


def in_memory(name: str, dtype: DTypeLike, length: int) -> NDArray[Any]:
    """An array for a table that is in memory anyway."""
    return np.empty(length, dtype)


@dataclass(frozen=True)
class Scratch:
    """Arrays over files of a folder, which is gone in the end. Each is opened where it is used and let go after: pages
    that nobody holds are the system's to take back."""

    folder: Path

    def __call__(self, name: str, dtype: DTypeLike, length: int) -> NDArray[Any]:
        """The array of that name; made where there is none of that length."""
        path = self.folder / name
        size = np.dtype(dtype).itemsize * length
        there = path.is_file() and path.stat().st_size == size
        with named(path):
            mapped = np.memmap(path, dtype, "r+" if there else "w+", shape=(length,))
        if not there:
            take_room(path)
        return np.asarray(mapped)  # numpy shuffles a memmap slowly


def chunks(first: int, last: int) -> Iterator[slice]:
    """``first`` to ``last`` in stretches; the same ones however a table is cut into blocks.

    >>> list(chunks(0, 5))
    [slice(0, 5, None)]
    """
    return (slice(at, min(at + CHUNK, last)) for at in range(first, last, CHUNK))


@dataclass(frozen=True)
class Blocks:
    """The rows of a table in blocks of equal length.

    ``lazy`` can be read anywhere without reading what is before: a Parquet file, or a frame.
    """

    lazy: pl.LazyFrame
    rows: int
    place: Location | None
    length: int

    @property
    def schema(self) -> pl.Schema:
        return self.lazy.collect_schema()

    @property
    def starts(self) -> range:
        """First rows of the blocks."""
        return range(0, self.rows, self.length)

    def read(self, start: int, columns: Sequence[str] | None = None, rows: int | None = None) -> pl.DataFrame:
        """The block that begins at a row, or so many ``rows`` from there."""
        lazy = self.lazy if columns is None else self.lazy.select(cs.by_name(*columns))
        try:
            return lazy.slice(start, min(rows or self.length, self.rows - start)).collect(engine="streaming")
        except UNREADABLE as error:
            raise table_error(self.place, error) from None


def blocks_of(table: Table, work: Path, name: str = "table") -> Blocks:
    """A table as blocks. Text, URLs and queries are copied to one Parquet file in ``work`` first: they are read once,
    and stay as they were."""
    place = location_of(table) if isinstance(table, PLACES) else None
    try:
        if place is not None and place.kind == ".parquet" and isinstance(place.where, Path):
            lazy = place.scanned()
        elif place is not None or isinstance(table, pl.LazyFrame):
            if place is not None:
                names = place.scanned(infer_schema=False).collect_schema().names()
                check_once(names, names, place)
            copy = work / "rows.parquet"
            if not copy.is_file():
                with whole_file(copy) as part:
                    _copy(table if place is None else place, part)
            lazy = pl.scan_parquet(copy, glob=False)
        else:
            lazy = _frame(table, [], name).lazy()
        rows = int(lazy.select(pl.len()).collect().item())
        rows -= 0 if place is None else place.empty_lines(lazy, rows)
    except FullDisk:
        raise
    except UNREADABLE as error:
        raise table_error(table, error) from None
    if not rows:
        raise InputError(f"{table_name(table, name)} must hold ads, found no rows")
    return Blocks(lazy, rows, place, ROWS)


def _copy(table: Location | pl.LazyFrame, part: Path) -> None:
    """All rows as Parquet. Types of text are those of its first rows, wider where a later one does not fit."""
    options: dict[str, Any] = {"row_group_size": ROWS, "compression": "lz4", "engine": "streaming"}
    if isinstance(table, pl.LazyFrame):
        table.sink_parquet(part, **options)
    elif table.kind == ".parquet":
        table.scanned().sink_parquet(part, **options)
    else:
        table.typed(try_parse_dates=True).sink_parquet(part, **options)


def table_fingerprint(table: Table, blocks: Blocks | None = None) -> str:
    """Whether a run resumes on the table it began with: bytes of files, rows of anything else."""
    if isinstance(table, PLACES) and (files := location_of(table).files()):
        return checksum(*files)
    if blocks is None:
        with TemporaryDirectory() as folder:
            return table_fingerprint(table, blocks_of(table, Path(folder)))
    parts = (blocks.read(start).select(cs.all() - cs.object()) for start in blocks.starts)
    total = sum(int(part.hash_rows(seed=0).sum() or 0) for part in parts if part.width)
    return f"{total % 2**32:08x}"
