"""The one reader: tables of any kind as blocks of rows, text as text, and errors that name the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import warnings
import weakref
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from glob import glob
from itertools import pairwise
from pathlib import Path
from shutil import copyfileobj, rmtree
from tempfile import mkdtemp
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from bidwise.errors import InputError
from bidwise.urls import WEB, scheme_of, shown, url_of

Table = Any  # a path, a URL, a Source, a polars or pandas frame, a LazyFrame, or a mapping of columns

ROWS = 2**17  # of a block that is no text
BYTES = 2**22  # of a block of text, about
UNCLOSED = 16  # blocks without a line end outside of quotes: a quote is not closed
QUOTE, NEWLINE, CARRIAGE = 34, 10, 13
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)  # panics are no Exceptions
BROKEN = (OSError, EOFError, zlib.error)
TIMES = ("D", "ms", "us", "ns")  # units of numpy's dates that polars has too
SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": ""}  # of .txt by its first line
ENDINGS = ".parquet, .csv, .tsv, .txt or one of the last three with .gz"
PATTERN = re.compile(r"[*[]")  # in the name of a table: several files
LIBSVM = re.compile(rb"\S+( +\d+:\S+)+\s*")
S3 = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL"
GOOGLE = "GOOGLE_SERVICE_ACCOUNT, the file of a key"
AZURE = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN"
KEYS = (  # schemes that polars reads, and the variables that it reads keys from
    {"s3": S3, "s3a": S3, "gs": GOOGLE, "gcs": GOOGLE}
    | dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), AZURE)
    | {"hf": "HF_TOKEN"}
    | dict.fromkeys(WEB)
)
SCHEMES = "s3://, gs://, az://, abfss://, hf://, http:// and https://"
REMOTE = re.compile("object-store error|error sending request")


_process: int | None = None  # that has used polars


def check_process() -> None:
    """Raise in a process forked from one that has used polars: its threads are gone there, and any work hangs."""
    global _process
    if _process not in (None, os.getpid()):
        raise InputError(
            "a process that reads tables must not be a fork of one that has read some, found such a fork; load the "
            "model in the child, which multiprocessing must start by spawn or forkserver"
        )
    _process = os.getpid()


class BadRow(InputError):
    """A value that cannot be used; `row` counts from 0 in its frame, until `Block.located` names file and line."""

    def __init__(self, column: str, row: int, found: str, place: str = "") -> None:
        super().__init__(f"{place or f'row {row} (rows count from 0)'}: column {column!r}: found {found}")
        self.column, self.row, self.found, self.place = column, row, found, place


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table. Cells of text files are text, empty ones null, untrimmed."""

    source: Source
    frame: pl.DataFrame
    start: int  # row of the table that the block begins with, from 0
    share: float = 1.0  # of the table that is read with this block, for progress
    file: str = ""  # of text, the file
    line: int = 0  # of text, the line that the block begins with, as an editor counts
    text: bytes | None = None  # of text, the unchanged rows with their line ends

    def where(self, row: int) -> str:
        """The place of a row of the frame: ``ads.csv, line 17``, or ``ads.parquet, row 15 (rows count from 0)``."""
        if self.text is None:
            return self.source.place(self.start + row)
        return f"{self.file}, line {self.line + _lines_before(self.text, row)}"

    @contextmanager
    def located(self) -> Iterator[None]:
        """A BadRow raised inside, by a row of this frame, names the file and the line."""
        try:
            yield
        except BadRow as error:
            raise BadRow(error.column, error.row, error.found, error.place or self.where(error.row)) from None

    def extended(self, cells: pl.Series) -> bytes:
        """Of text, the unchanged rows with one more cell each; line ends stay."""
        text = self.text or b""
        if b'"' in text:  # there may be line ends inside of quotes
            bounds = np.append(-1, _row_ends(text)).tolist()
            rows = pl.Series("row", [text[a + 1 : b].decode() for a, b in pairwise(bounds)])
        else:
            rows = pl.Series("row", [text.decode()]).str.split("\n").explode(empty_as_null=False)[:-1]
        frame = pl.DataFrame([rows, cells.cast(pl.String).alias("cell")])
        if b"\r" in text:
            ends = pl.when(pl.col("row").str.ends_with("\r")).then(pl.lit("\r")).otherwise(pl.lit(""))
            frame = frame.select(pl.col("row").str.strip_suffix("\r"), pl.concat_str("cell", ends))
        out = io.BytesIO()
        frame.write_csv(out, separator=self.source.separator or ",", include_header=False, quote_style="never")
        return out.getvalue()


class Source:
    """A table that can be read more than once, in blocks or as a whole.

    Reading stops with an InputError that names the file, and of text the line: rows of another length, bytes that are
    not UTF-8, other columns than in the first file, libsvm rows.
    """

    name: str  # as errors call it
    schema: pl.Schema  # of text all columns are pl.String
    text: bool = False  # whether it is text: all cells are pl.String
    files: Sequence[Path] = ()  # on this machine; none of a URL, a frame or a mapping
    separator: str | None = None  # of text
    header: bool = True  # of text, whether files begin with a line of names
    rows: int | None = None  # unknown of text until it has been read
    where: Path | None = None  # the folder or pattern of several files

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return self.schema.names()

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        """All rows, or these columns of them, in one pass; empty lines at the end of a text file are no rows.

        Raises if there is no row.
        """
        check_columns(columns or (), self.columns, self.name)
        rows = 0
        for block in self._blocks(None if columns is None else list(dict.fromkeys(columns))):
            rows += len(block.frame)
            yield block
        if not rows:
            raise InputError(f"{self.name} must contain ads, found no rows")
        self.rows = rows

    def _blocks(self, columns: list[str] | None) -> Iterator[Block]:
        raise NotImplementedError

    def frame(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """All rows in memory, or these columns of them."""
        return pl.concat([block.frame for block in self.blocks(columns)])

    def fingerprint(self) -> str:
        """Whether a table is the same: bytes of files, rows of anything else. Free after a whole pass over all columns
        of text; another pass otherwise."""
        frames = (block.frame.select(cs.all() - cs.object()) for block in self.blocks())
        total = sum(int(frame.hash_rows(seed=0).sum() or 0) for frame in frames if frame.width)
        return f"{total % 2**32:08x}"

    def local(self, folder: Path) -> Source:
        """The table if it can be read again at the same cost, else a Parquet copy of it in a folder."""
        return self

    def header_line(self, column: str) -> bytes:
        """Of text with a header, its first line with one more name; empty without a header."""
        return b""

    def reads(self, path: str | Path) -> bool:
        """Whether a file or folder is read, is in a folder that is read, or fits the pattern."""
        path = Path(path).resolve()
        if self.where is not None:
            folder = self.where.resolve()
            if folder in path.parents or fnmatch(str(path), str(folder)):
                return True
        return path in [file.resolve() for file in self.files]

    def place(self, row: int) -> str:
        """The place of a row of the table."""
        return f"{self.name}, row {row} (rows count from 0)"


class _Parquet(Source):
    """Parquet files, or a URL of some."""

    def __init__(
        self, name: str, lazy: pl.LazyFrame, *, files: Sequence[Path] = (), where: Path | None = None, url: str = ""
    ) -> None:
        self.name, self.lazy, self.files, self.where, self.url = name, lazy, files, where, url
        with self._readable():
            self.schema = lazy.collect_schema()
            self.rows: int = lazy.select(pl.len()).collect().item()

    def _blocks(self, columns: list[str] | None) -> Iterator[Block]:
        lazy, start = self.lazy if columns is None else self.lazy.select(cs.by_name(*columns)), 0
        with self._readable():
            # slices of files: batches of a query read far ahead, half a gigabyte of 20 columns
            parts = (lazy.slice(at, 2 * ROWS).collect(engine="streaming") for at in range(0, self.rows, 2 * ROWS))
            for frame in parts if self.files else lazy.collect_batches(chunk_size=ROWS, engine="streaming"):
                yield Block(self, frame, start, (start + len(frame)) / self.rows)
                start += len(frame)

    def fingerprint(self) -> str:
        from bidwise.run_folder import checksum  # late: torch takes a second

        return checksum(*self.files) if self.files else super().fingerprint()

    def local(self, folder: Path) -> Source:
        from bidwise.run_folder import whole_file

        if self.files:
            return self
        copy = folder / "rows.parquet"
        with self._readable(), whole_file(copy) as part:
            self.lazy.sink_parquet(part, row_group_size=ROWS, compression="lz4", engine="streaming")
        return _Parquet(self.name, pl.scan_parquet(copy, glob=False))

    def place(self, row: int) -> str:
        name = self.name
        for path in self.files if len(self.files) > 1 else ():
            name, rows = str(path), int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())
            if row < rows:
                break
            row -= rows
        return f"{name}, row {row} (rows count from 0)"

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except UNREADABLE as error:
            raise _unreadable(self.name, error, self.url) from None


class _Memory(Source):
    """Columns in memory; only those that are asked for become a polars frame."""

    def __init__(self, name: str, table: Any) -> None:
        self.name, self.table = name, table
        if not isinstance(table, Mapping) and not hasattr(table, "columns"):
            kind = type(table).__name__
            raise InputError(f"{name} must be a file, a polars or pandas frame, or a mapping of columns, found {kind}")
        names = list(table if isinstance(table, Mapping) else table.columns)
        check_once(list(map(str, names)), name)
        self.names = {str(column): column for column in names}
        self.whole = table if isinstance(table, pl.DataFrame) else None

    @property
    def schema(self) -> pl.Schema:  # type: ignore[override]
        return self._frame(None).schema

    @property
    def columns(self) -> list[str]:
        return list(self.names)

    def _frame(self, columns: list[str] | None) -> pl.DataFrame:
        if self.whole is not None:
            return self.whole if columns is None else self.whole.select(cs.by_name(*columns))
        wanted = self.names if columns is None else columns
        found = [_series(column, self.table[self.names[column]], self.name) for column in wanted]
        if len({len(column) for column in found}) > 1:
            lengths = ", ".join(f"{column.name}: {len(column)}" for column in found)
            raise InputError(f"{self.name} must have columns of one length, found {lengths}")
        frame = pl.DataFrame(found)
        if columns is None:
            self.whole = frame
        return frame

    def _blocks(self, columns: list[str] | None) -> Iterator[Block]:
        frame = self._frame(columns)
        self.rows, start = len(frame), 0
        for part in frame.iter_slices(ROWS):
            yield Block(self, part, start, (start + len(part)) / len(frame))
            start += len(part)

    def frame(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        check_columns(columns or (), self.columns, self.name)
        return self._frame(None if columns is None else list(dict.fromkeys(columns)))


class _Text(Source):
    """Text files with the same columns."""

    text = True

    def __init__(
        self,
        name: str,
        files: Mapping[str, Path],
        *,
        separator: str,
        header: bool = True,
        where: Path | None = None,
        scratch: str | None = None,
    ) -> None:
        self.name, self.paths, self.where, self.header = name, files, where, header
        self.files = list(files.values()) if scratch is None else ()
        if scratch is not None:  # copies, which are gone with the source
            weakref.finalize(self, rmtree, scratch, ignore_errors=True)
        self.crc: str | None = None
        self.size = max(1, sum(path.stat().st_size for path in files.values()))
        first, path = next(iter(files.items()))
        line = next(self._texts(first, path, size=2**16), (b"", 1, 0))[0]
        if not line:
            raise InputError(f"{first} must contain ads, found an empty file")
        self.separator = separator or ("\t" if b"\t" in line.partition(b"\n")[0] else ",")
        self.schema = pl.Schema(dict.fromkeys(self._names(first, line)[0], pl.String))
        if len(self.columns) == 1 and (mark := re.search("[,;\t|]", self.columns[0] if header else line.decode())):
            found = f"one column, {self.columns[0][:60]!r}" if header else "one column"
            raise InputError(
                f"{name} must have columns, found {found}; is it separated by {mark[0]!r}? Name it: --separator"
            )

    def _texts(self, name: str, path: Path, size: int | None = None) -> Iterator[tuple[bytes, int, int]]:
        """Whole rows of a file with the line that they begin with and the bytes read so far; no empty lines at the
        end."""
        rest, line, size = b"", 1, size or BYTES
        try:
            with path.open("rb") as raw:
                zipped = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                stream: Any = gzip.GzipFile(fileobj=raw) if zipped else raw
                start, more = True, b" "
                while more:
                    more = stream.read(size)
                    text = rest + more
                    if start:
                        if text[:2] in (b"\xff\xfe", b"\xfe\xff"):
                            raise InputError(
                                f"{name} must be UTF-8, found UTF-16; convert it: iconv -f utf-16 -t utf-8"
                            )
                        text, start = text.removeprefix(b"\xef\xbb\xbf"), False
                    cut = _cut(text, whole=not more)
                    rest, text = text[cut:], text[:cut]
                    if len(rest) > UNCLOSED * BYTES or (not more and rest.strip(b"\r\n")):
                        at = line + text.count(b"\n")
                        raise InputError(f"{name}, line {at} or later: found a quote that is opened and not closed")
                    if text:
                        yield text if text.endswith(b"\n") else text + b"\n", line, raw.tell()
                        line += text.count(b"\n")
        except BROKEN as error:
            raise _unreadable(name, error) from None

    def _names(self, file: str, text: bytes) -> tuple[list[str], int]:
        """The names of the columns of a file, and the start of its rows."""
        end = _first_row(text)
        first = text[:end]
        if LIBSVM.fullmatch(first):
            raise InputError(f"{file} must be a table with one cell for each column, found rows like libsvm's")
        if b"\0" in first:
            raise InputError(f"{file} must be text in UTF-8, found bytes that are 0; is it UTF-16? Convert it: iconv")
        if not first.strip():
            raise InputError(f"{file} must begin with the names of its columns, found an empty line")
        if b"\r" in first.rstrip(b"\r\n"):
            raise InputError(f"{file} must have lines that end in \\n or \\r\\n, found only \\r; convert it: mac2unix")
        _check_utf8(file, first, 1)
        cells = next(csv.reader(io.StringIO(first.decode(), newline=""), delimiter=self.separator or ","))
        if not self.header:
            return [f"column_{at}" for at in range(1, len(cells) + 1)], 0
        check_once(cells, file)
        return cells, end

    def _blocks(self, columns: list[str] | None) -> Iterator[Block]:
        start, crc, before = 0, 0, 0
        for name, path in self.paths.items():
            first = True
            for text, line, read in self._texts(name, path):
                crc = zlib.crc32(text, crc)
                if first:
                    names, end = self._names(name, text)
                    if names != self.columns:
                        self._other_columns(name, names)
                    line, text, first = line + text.count(b"\n", 0, end), text[end:], False
                if text:
                    frame = self._parsed(name, text, line, columns)
                    yield Block(self, frame, start, (before + read) / self.size, name, line, text)
                    start += len(frame)
            before += path.stat().st_size
        self.crc = f"{crc:08x}"

    def _other_columns(self, file: str, names: list[str]) -> None:
        other = next((x for x in names if x not in self.columns), None) or f"{len(names)} columns in another order"
        raise InputError(f"{file} must have the columns of {next(iter(self.paths))}, found {other!r}")

    def _parsed(self, file: str, text: bytes, line: int, columns: list[str] | None) -> pl.DataFrame:
        """The cells of rows that have one for each column."""
        if b"\0" in text:
            at = line + text.count(b"\n", 0, text.find(b"\0"))
            raise InputError(f"{file}, line {at}: found a byte that is 0; the file must be text in UTF-8")
        width, separator = len(self.columns), ord(self.separator or ",")
        array, places = np.frombuffer(text, np.uint8), None
        rows = int(np.count_nonzero(array == NEWLINE))
        # polars finds rows with too many cells when it reads all columns; with the right total none has too few
        total = rows * (width - 1) == np.count_nonzero(array == separator)
        if columns is not None or b'"' in text or not total:
            rows = _check_cells(file, text, line, width, separator)
            places = None if columns is None else [self.columns.index(column) for column in columns]
        try:
            frame = pl.read_csv(
                text, has_header=False, separator=self.separator or ",", infer_schema=False, columns=places
            )
        except pl.exceptions.PolarsError as error:
            _check_cells(file, text, line, width, separator)
            _check_utf8(file, text, line)
            raise _unreadable(file, error) from None
        frame.columns = self.columns if columns is None else columns
        if len(frame) != rows:
            raise InputError(f"{file}, line {line} or later: must have {rows:,} rows, found {len(frame):,}")
        return frame

    def fingerprint(self) -> str:
        if self.crc is None:
            crc = 0
            for name, path in self.paths.items():
                for text, _, _ in self._texts(name, path):
                    crc = zlib.crc32(text, crc)
            self.crc = f"{crc:08x}"
        return self.crc

    def header_line(self, column: str) -> bytes:
        if not self.header:
            return b""
        text = next(self._texts(*next(iter(self.paths.items())), size=2**16))[0]
        line = Block(self, pl.DataFrame(), 0, text=text[: _first_row(text)])
        written = io.StringIO()
        csv.writer(written, delimiter=self.separator or ",", lineterminator="").writerow([column])
        return line.extended(pl.Series([written.getvalue()]))

    def place(self, row: int) -> str:
        block = next(block for block in self.blocks(self.columns[:1]) if row < block.start + len(block.frame))
        return block.where(row - block.start)


def _cut(text: bytes, whole: bool) -> int:
    """The end of the last complete row: after the last line end outside of quotes on a line that is not empty.

    >>> _cut(b'1,"a', whole=False), _cut(b'1,2\\n3,"a\\nb', whole=False), _cut(b"1\\n\\n", whole=True)
    (0, 4, 2)
    """
    end, quotes = len(text), text.count(b'"')
    if not whole or quotes % 2:
        while (at := text.rfind(b"\n", 0, end)) >= 0:
            quotes -= text.count(b'"', at, end)
            end = at
            if quotes % 2 == 0:
                break
        end = at + 1
    written = len(text[:end].rstrip(b"\r\n"))
    if not written:
        return 0
    after = text.find(b"\n", written, end)
    return end if after < 0 else after + 1


def _first_row(text: bytes) -> int:
    """The end of the first row."""
    end = text.find(b"\n") + 1
    while text.count(b'"', 0, end) % 2:
        end = text.find(b"\n", end) + 1
    return end


def _inside(array: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether bytes are between quotes."""
    return np.asarray(np.logical_xor.accumulate(array == QUOTE))


def _row_ends(text: bytes) -> NDArray[np.int64]:
    """Places of the line ends outside of quotes."""
    array = np.frombuffer(text, np.uint8)
    ends = array == NEWLINE
    return np.flatnonzero(ends & ~_inside(array) if b'"' in text else ends)


def _lines_before(text: bytes, row: int) -> int:
    """Line ends before a row."""
    return text.count(b"\n", 0, int(_row_ends(text)[row - 1]) + 1) if row else 0


def _check_cells(file: str, text: bytes, line: int, width: int, separator: int) -> int:
    """The number of rows; raises unless each has ``width`` cells."""
    array = np.frombuffer(text, np.uint8)
    marks = (array == separator) | (array == NEWLINE)
    if b'"' in text:
        _check_quotes(file, array, text, line, separator)
        marks &= ~_inside(array)
    marks = np.flatnonzero(marks)
    ends = array[marks] == NEWLINE
    rows = len(marks) // width
    if len(marks) == rows * width and ends[width - 1 :: width].all() and np.count_nonzero(ends) == rows:
        return rows
    cells = np.diff(np.flatnonzero(ends), prepend=-1)
    row = int((cells != width).argmax())
    at = line + _lines_before(text, row)
    start = int(_row_ends(text)[row - 1]) + 1 if row else 0
    empty = not text[start : text.find(b"\n", start)].strip()
    found = "an empty line" if empty else str(cells[row])
    raise InputError(f"{file}, line {at}: must have {width} cells, as many as there are columns, found {found}")


def _check_quotes(file: str, array: NDArray[np.uint8], text: bytes, line: int, separator: int) -> None:
    """Raise if a quote is neither at an end of a cell nor doubled."""
    quotes = np.flatnonzero(array == QUOTE)
    padded = np.concatenate([[NEWLINE], array, [NEWLINE]])
    outside = np.array([separator, NEWLINE, CARRIAGE, QUOTE])
    bad = ~np.isin(padded[quotes[0::2]], outside), ~np.isin(padded[quotes[1::2] + 2], outside)
    stray = np.concatenate([quotes[0::2][bad[0]], quotes[1::2][bad[1]]])
    if len(stray):
        at = line + text.count(b"\n", 0, int(stray.min()))
        fix = 'quote the whole cell and double the quotes in it, as "5"" screen"'
        raise InputError(f"{file}, line {at}: found a quote inside of a cell; {fix}")


def _check_utf8(file: str, text: bytes, line: int) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        at = line + text.count(b"\n", 0, error.start)
        fix = f"if it is Latin-1, convert it: iconv -f latin1 -t utf-8 {file} > new.csv"
        words = f"{file}, line {at}: must be UTF-8, found the byte 0x{text[error.start]:02x}; {fix}"
        raise InputError(words) from None


def open_table(
    table: Table, *, separator: str | None = None, header: bool | None = None, name: str = "table"
) -> Source:
    """A table with only the names of columns read yet. A Source is returned unchanged.

    Args:
        table: a Parquet or text file (.csv, .tsv, .txt, gzip, any other ending with a ``separator``), a folder, a
            pattern or a URL of such files, a polars or pandas frame, a LazyFrame, or a mapping of columns.
        separator: the character between cells of text; by default inferred from the ending.
        header: whether text begins with the names of columns; ``False``: they are column_1, column_2, ...
        name: the name of a table in memory, for errors.

    >>> open_table({"a": [1, 2]}).columns
    ['a']
    """
    check_process()
    separator = "\t" if separator == "\\t" else separator  # as typed in a shell
    if separator is not None and (len(separator.encode()) != 1 or separator in '\r\n"'):
        raise InputError(f"must be one character, or \\t for a tab, found {separator!r}", argument="separator")
    asked = "separator" if separator is not None else None if header in (None, True) else "header"
    if isinstance(table, str | Path):
        return _opened(table, separator, header is not False, asked)
    if asked is not None and not isinstance(table, Source):
        raise InputError("is for files, found a table in memory", argument=asked)
    if isinstance(table, Source):
        return table
    return _Memory(name, table.collect(engine="streaming") if isinstance(table, pl.LazyFrame) else table)


def _opened(table: str | Path, separator: str | None, header: bool, asked: str | None) -> Source:
    """A file, a folder, a pattern or a URL."""
    name, scheme = shown(table), scheme_of(table)
    if scheme == "file":
        return _opened(Path(unquote(urlsplit(str(table)).path)), separator, header, asked)
    path, files = Path(table), []
    several = bool(PATTERN.search(name)) and not (scheme is None and path.exists())
    if scheme is not None:
        if scheme not in KEYS:
            raise InputError(f"{name} must be a file or a URL of a kind that can be read: {SCHEMES}; copy it to one")
        if scheme in WEB and "*" in name:
            raise InputError(f"{name} must be one file, found a pattern: {scheme}:// cannot list files")
        several, kind = several and scheme not in WEB, _kind(name, separator)
    elif path.is_dir():
        several, kind, files = True, *_in_folder(path, separator)
    else:
        files = sorted(map(Path, glob(str(path), recursive=True))) if several else [path] if path.exists() else []
        if not files:
            raise InputError(f"{path}: no {'file has such a name' if several else 'such file'}")
        kind = _kind(name, separator)
    if kind == ".parquet":
        if asked is not None:
            raise InputError(f"is for text, .csv or .tsv, found {name}", argument=asked)
        place: Any = files if scheme is None else url_of(table)
        warnings.filterwarnings("ignore", r"'\(default_\)region' not set", UserWarning)  # polars asks the bucket for it
        try:
            lazy = pl.scan_parquet(place, glob=several and scheme is not None, hive_partitioning=several)
        except UNREADABLE as error:
            raise _unreadable(name, error, "" if scheme is None else url_of(table)) from None
        inside = path if files and several else None
        return _Parquet(name, lazy, files=files, where=inside, url="" if files else place)
    separator = separator or SEPARATORS[kind]
    if scheme is None and all(file.is_file() for file in files):
        named = {str(file) if several else name: file for file in files}
        return _Text(name, named, separator=separator, header=header, where=path if several else None)
    scratch = mkdtemp(prefix="bidwise-")
    try:
        if scheme is None:  # a pipe, which can be read once
            copies = {name: Path(scratch) / "pipe"}
            with path.open("rb") as pipe, copies[name].open("wb") as copy:
                copyfileobj(pipe, copy, BYTES)
        else:
            copies = _downloaded(url_of(table), name, scratch)
        return _Text(name, copies, separator=separator, header=header, scratch=scratch)
    except BaseException:
        rmtree(scratch, ignore_errors=True)
        raise


def _downloaded(url: str, name: str, folder: str) -> dict[str, Path]:
    """Text at a URL as files on this machine."""
    copies: dict[str, Path] = {}
    warnings.filterwarnings("ignore", r"'\(default_\)region' not set", UserWarning)
    several = scheme_of(url) not in WEB and bool(PATTERN.search(name))
    try:
        pl.scan_csv(url, glob=several, has_header=False, infer_schema=False).collect_schema()  # knows empty files
        lines = pl.scan_lines(url, glob=several, include_file_paths="file")
        for block in lines.collect_batches(chunk_size=ROWS, engine="streaming"):
            for (file,), part in block.partition_by(
                "file", as_dict=True, include_key=False, maintain_order=True
            ).items():
                copy = copies.setdefault(shown(str(file)) if several else name, Path(folder) / str(len(copies)))
                with copy.open("ab") as out:
                    part.write_csv(out, include_header=False, separator="\x01", quote_style="never")
    except UNREADABLE as error:
        raise _unreadable(name, error, url) from None
    return copies


def _in_folder(folder: Path, separator: str | None) -> tuple[str, list[Path]]:
    """The kind of the files in a folder, and the files of that kind."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".", "_"))]
    kinds = {_ending(path.name) for path in files}
    known = sorted(kinds & {".parquet", ".csv", ".tsv"} or kinds & {".txt"} or (kinds if separator else set()))
    if len(known) != 1:
        found = " and ".join(known) or f"no file that ends in {ENDINGS}"
        fix = f"; select files of one kind by a pattern, {folder / '*.parquet'}" if known else ""
        raise InputError(f"{folder} must be a file, or a folder of files of one kind, found {found} in it{fix}")
    return known[0], sorted(path for path in files if _ending(path.name) == known[0])


def _kind(name: str, separator: str | None) -> str:
    if (kind := _ending(name)) in (".parquet", *SEPARATORS) or separator is not None:
        return kind
    several = f"; for all files of a folder name a pattern, {name}*.parquet" if name.endswith("/") else ""
    raise InputError(f"{name} must end in {ENDINGS}, or its separator be named (--separator){several}")


def _ending(name: str) -> str:
    lower = name.lower()
    ending = "." + lower.removesuffix(".gz").rpartition(".")[2]
    return "" if ending == ".parquet" and lower.endswith(".gz") else ending


def _unreadable(name: str, error: BaseException, url: str = "") -> InputError:
    """Why a table could not be read, in one line with a remedy and without passwords and signatures."""
    text = re.sub(r" \(location: .*?(?= \(path: |$)", "", " ".join(str(error).split()))  # with the signature
    if isinstance(error, pl.exceptions.NoDataError):
        return InputError(f"{name} must contain ads, found an empty file")
    if isinstance(error, FileNotFoundError) or "expanded paths were empty" in text:
        return InputError(f"{name}: no {'file has such a name' if PATTERN.search(name) else 'such file'}")
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if url:
        fix = ""
        if REMOTE.search(text):
            reason = (text.rpartition(" (path: ")[0] or text).rpartition(" - ")[2]
            reason = reason.removeprefix("object-store error: ")
            fix = f"; check the network, the URL and {KEYS[scheme_of(url) or ''] or 'its signature'}"
        reason = re.sub(r"[A-Za-z][\w+.-]+://\S+", "...", reason.replace(url, "...")) + fix
    return InputError(f"{name} cannot be read: {reason}")


def check_readable(
    table: str, columns: Sequence[str], separator: str | None = None, header: bool | None = None
) -> None:
    """Raise unless a table on disk can be opened and has these columns; URLs and pipes are read later."""
    if scheme_of(table) is None and not Path(table).is_fifo():
        check_columns(columns, open_table(table, separator=separator, header=header).columns, table)


def check_columns(wanted: Sequence[str], there: Sequence[str], table: str) -> None:
    """Raise unless all columns are there; suggests the nearest."""
    for column in wanted:
        if column in there:
            continue
        near = get_close_matches(column, map(str, there), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, there[:12]))}"
        if list(there) == ["column_1"]:
            hint = "is another character between the columns? Name it: --separator"
        elif "," in column and set(column.split(",")) <= set(there):
            hint = "separate columns by spaces"
        elif any(str(name).replace(".", "", 1).isdigit() for name in there):
            hint += "; is the first line no line of names? Say so: --no-header"
        raise InputError(f"{table} has no column {column!r}; {hint}")


def check_once(columns: Sequence[str], table: str) -> None:
    """Raise if a column is there twice."""
    for column, times in Counter(columns).items():
        if times > 1:
            raise InputError(f"{table} must have every column once, found {column!r} {times} times; rename one")


def table_name(table: Table, name: str = "table") -> str:
    """The name of a table in errors, without opening it: a file or URL, ``name`` for columns in memory."""
    if isinstance(table, Source):
        return table.name
    return shown(table) if isinstance(table, str | Path) else name


def same_place(one: object, other: object) -> bool:
    """Whether two tables are the same file or URL."""
    if not isinstance(one, str | Path) or not isinstance(other, str | Path):
        return one is other
    if scheme_of(one) or scheme_of(other):
        return url_of(one) == url_of(other)  # including the part after the question mark
    return Path(one).resolve() == Path(other).resolve()


def _series(column: str, values: Any, table: str) -> pl.Series:
    """A column of a pandas frame or of a mapping."""
    if isinstance(values, pl.Series):
        return values.alias(column)
    missing = values.isna() if hasattr(values, "isna") else None  # pandas has several words for a missing value
    dtype: Any = getattr(values, "dtype", None)
    if hasattr(dtype, "categories"):
        return _category(column, getattr(values, "array", values), table)
    if hasattr(dtype, "numpy_dtype") and dtype.kind in "iu":  # numpy would make decimals of them if one is missing
        whole = pl.Series(column, values.to_numpy(dtype=dtype.numpy_dtype, na_value=0))
        return whole.scatter(np.flatnonzero(values.isna()), None)
    if hasattr(values, "detach"):  # a tensor; numpy has no bfloat16
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    try:
        entries = values if isinstance(values, list | tuple) else np.asarray(values)
        if isinstance(entries, np.ndarray) and entries.ndim == 0:
            raise ValueError(f"the single value {values!r}")
        if isinstance(entries, np.ndarray) and entries.ndim == 1 and entries.dtype.kind == "O":
            missing = (
                [not hasattr(x, "__len__") and x != x for x in entries] if missing is None else missing
            )  # NaN, NaT
            plain = [x.tolist() if isinstance(x, np.ndarray) else x for x in entries.tolist()]  # lists, in pandas
            entries = [None if gone else x for x, gone in zip(plain, missing, strict=True)]
        elif isinstance(entries, np.ndarray) and entries.dtype.kind in "mM":
            unit = np.datetime_data(entries.dtype)[0]
            entries = entries if unit in TIMES else entries.astype(f"{entries.dtype.kind}8[us]")
        return pl.Series(column, entries, strict=False)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        words = str(error).strip().splitlines()[0]
        raise InputError(f"{table}: column {column!r} must have one value per ad, found: {words}") from None


def _category(column: str, values: Any, table: str) -> pl.Series:
    """A categorical column of pandas as text, for categories of any type."""
    words = _series(column, values.categories, table).cast(pl.String).to_list()
    return pl.Series(column, [None if code < 0 else words[code] for code in values.codes.tolist()], dtype=pl.String)
