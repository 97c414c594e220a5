"""The one reader: tables of any kind as blocks of rows, text as text, and errors that name the file and the line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bidwise.errors import InputError

Table = Any  # a path, a URL, a Source, a polars or pandas frame, a LazyFrame, or a mapping of columns


class BadRow(InputError):
    """A value that cannot be used: `row` counts from 0, in the frame until `Block.located` or `Source.located` names
    the file and the line."""

    def __init__(self, column: str, row: int, found: str) -> None:
        super().__init__(f"column {column!r}, row {row}: found {found} (rows count from 0)")
        self.column, self.row, self.found = column, row, found


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table. Cells of text files are text, empty ones null, nothing trimmed."""

    frame: pl.DataFrame
    start: int  # row of the table that the block begins with, from 0
    share: float  # of the table that is read with this block, 0 to 1, for progress
    file: str  # as errors call it
    first: int  # row of the file that the block begins with, from 0; of text its line, from 1, as an editor counts
    text: bytes | None = None  # of text, the rows as they are written, with their line ends
    separator: str = ","  # of text

    def where(self, row: int) -> str:
        """The place of a row of the frame: ``ads.csv, line 17``, or ``ads.parquet, row 15 (rows count from 0)``."""
        raise NotImplementedError

    def located(self) -> AbstractContextManager[None]:
        """A BadRow raised inside, by a row of this frame, names the file and the line."""
        raise NotImplementedError

    def extended(self, cells: pl.Series) -> bytes:
        """Of text, the rows as they are written with one more cell each; line ends stay."""
        raise NotImplementedError


class Source:
    """A table that can be read more than once, in blocks or as a whole.

    Reading stops with an InputError that names the file, and of text the line: rows of another length, bytes that are
    not UTF-8, other columns than in the first file, libsvm rows.
    """

    name: str  # as errors call it; "table" for columns in memory
    columns: list[str]
    schema: pl.Schema  # of text all columns are pl.String
    text: bool  # whether it is text, of which all cells are pl.String
    files: list[Path]  # on this machine; none of a URL, a frame or a mapping
    separator: str | None = None  # of text
    header: bool = True  # of text, whether files begin with a line of names
    rows: int | None = None  # unknown of text until it has been read, and of a LazyFrame

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        """All rows, or these columns of them, in one pass; empty lines at the end of a text file are no rows.

        Without ``columns`` blocks of text have their text. Raises if there is no row.
        """
        raise NotImplementedError

    def frame(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """All rows in memory, or these columns of them."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Whether a table is the same: bytes of files, rows of anything else. Free after a whole pass over all columns
        of text; another pass otherwise."""
        raise NotImplementedError

    def header_line(self, column: str) -> bytes:
        """Of text with a header, its first line with one more name, as it is written; empty without a header."""
        raise NotImplementedError

    def reads(self, path: str | Path) -> bool:
        """Whether a file would be read by the same folder or pattern, or is read."""
        raise NotImplementedError

    def located(self) -> AbstractContextManager[None]:
        """A BadRow raised inside, by a row of the table, names the file and the line."""
        raise NotImplementedError


def open_table(
    table: Table, *, separator: str | None = None, header: bool | None = None, name: str = "table"
) -> Source:
    """A table, of which only the names of columns are read yet. A Source is returned as it is.

    Args:
        table: a Parquet or text file (.csv, .tsv, .txt, gzip, any other ending with a ``separator``), a folder, a
            pattern or a URL of such files, a polars or pandas frame, a LazyFrame, or a mapping of columns.
        separator: the character between cells of text; by default that of the ending.
        header: whether text begins with the names of columns; ``False``: they are column_1, column_2, ...
        name: what errors call a table in memory.
    """
    raise NotImplementedError


def check_readable(
    table: str, columns: Sequence[str], separator: str | None = None, header: bool | None = None
) -> None:
    """Raise unless a table on disk can be opened and has these columns; URLs are read later."""
    raise NotImplementedError


def check_columns(wanted: Sequence[str], there: Sequence[str], table: str) -> None:
    """Raise unless all columns are there; suggests the nearest."""
    raise NotImplementedError


def table_name(table: Table, name: str = "table") -> str:
    """What errors call a table, without opening it: a file or URL as it is shown, ``name`` for columns in memory."""
    raise NotImplementedError


def same_place(one: object, other: object) -> bool:
    """Whether two tables are the same file or URL."""
    raise NotImplementedError
