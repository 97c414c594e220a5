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
from fnmatch import fnmatch
from glob import glob
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import polars as pl
import polars.selectors as cs

from bidwise.errors import InputError
from bidwise.urls import WEB, scheme_of, shown, url_of
from bidwise.values import check_columns

Table = Any  # a path, a URL, a Source, a polars or pandas frame, a LazyFrame, or a mapping of columns

ROWS = 2**17  # of a block that is no text
BYTES = 2**22  # of a block of text, about
UNCLOSED = 16  # blocks without a line end outside of quotes: a quote is not closed
QUOTE, NEWLINE = 34, 10
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)  # panics are no Exceptions
TIMES = ("D", "ms", "us", "ns")  # units of numpy's dates that polars has too
SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": ""}  # of .txt by its first line
ENDINGS = ".parquet, .csv, .tsv, .txt or one of the last three with .gz"
PATTERN = re.compile(r"[*[]")  # in the name of a table: several files
CLOUD = ("s3", "s3a", "gs", "gcs", "az", "azure", "adl", "abfs", "abfss", "hf")  # schemes that polars reads
SCHEMES = "s3://, gs://, az://, abfss://, hf://, http:// and https://"
REMOTE = re.compile("object-store error|error sending request")
ACCESS = "check the network, the URL and the credentials (https://docs.pola.rs/user-guide/io/cloud-storage)"


_process: int | None = None  # that has used polars


def check_process() -> None:
    """Raise in a fork of a process that has used polars: its threads are gone there, and any work would hang."""
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
    text: bytes = b""  # of text, the rows as they are in the file

    def where(self, row: int) -> str:
        """The place of a row of the frame: ``ads.csv, line 17``, or ``ads.parquet, row 15 (rows count from 0)``."""
        if not self.text:
            return f"{self.source.name}, row {self.start + row} (rows count from 0)"
        text = np.frombuffer(self.text, np.uint8)
        ends = np.flatnonzero((text == NEWLINE) & ~np.logical_xor.accumulate(text == QUOTE))
        end = int(ends[row - 1]) + 1 if row else 0
        line = self.line + self.text.count(b"\n", 0, end)
        return f"{self.file}, line {line}"

    @contextmanager
    def located(self) -> Iterator[None]:
        """A BadRow raised inside, by a row of this frame, names the file and the line."""
        try:
            yield
        except BadRow as error:
            raise BadRow(error.column, error.row, error.found, error.place or self.where(error.row)) from None


class Source:
    """A table that can be read more than once, in blocks or as a whole.

    Reading stops with an InputError that names the file, and of text the line: rows of another length, bytes that are
    not UTF-8, other columns than in the first file.
    """

    name: str  # as errors call it
    schema: pl.Schema  # of text all columns are pl.String
    text: bool = False  # whether it is text: all cells are pl.String
    files: Sequence[Path] = ()  # on this machine; none of a URL, a frame or a mapping
    separator: str = ","  # of text
    header: bool = True  # of text, whether files begin with a line of names
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
        empty = True
        for block in self._blocks(None if columns is None else list(dict.fromkeys(columns))):
            empty = False
            yield block
        if empty:
            raise InputError(f"{self.name} must contain ads, found no rows")

    def _blocks(self, columns: list[str] | None) -> Iterator[Block]:
        raise NotImplementedError

    def frame(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """All rows in memory, or these columns of them."""
        return pl.concat([block.frame for block in self.blocks(columns)])

    def fingerprint(self) -> str:
        """Whether a table is the same: bytes of files, rows of anything else."""
        from bidwise.run_folder import checksum  # late: torch takes a second

        if self.files:
            return checksum(*self.files)
        frames = (block.frame.select(cs.all() - cs.object()) for block in self.blocks())
        total = sum(int(frame.hash_rows(seed=0).sum() or 0) for frame in frames if frame.width)
        return f"{total % 2**32:08x}"

    def local(self, folder: Path) -> Source:
        """The table if it can be read again at the same cost, else a Parquet copy of it in a folder."""
        return self

    def reads(self, path: str | Path) -> bool:
        """Whether a file or folder is read, is in a folder that is read, or fits the pattern."""
        path = Path(path).resolve()
        if self.where is not None:
            folder = self.where.resolve()
            if folder in path.parents or fnmatch(str(path), str(folder)):
                return True
        return path in [file.resolve() for file in self.files]


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

    def local(self, folder: Path) -> Source:
        if self.files:
            return self
        copy = folder / "rows.parquet"
        with self._readable():
            self.lazy.sink_parquet(copy, row_group_size=ROWS, compression="lz4", engine="streaming")
        return _Parquet(self.name, pl.scan_parquet(copy, glob=False))

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
        start = 0
        for part in frame.iter_slices(ROWS):
            yield Block(self, part, start, (start + len(part)) / len(frame))
            start += len(part)

    def frame(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        check_columns(columns or (), self.columns, self.name)
        return self._frame(None if columns is None else list(dict.fromkeys(columns)))


class _Text(Source):
    """Text files with the same columns: read in blocks of whole rows, whose cells polars parses."""

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
        self.name, self.paths, self.files = name, files, list(files.values())
        self.where, self.header = where, header
        if scratch is not None:  # of copies, which are gone with the source
            weakref.finalize(self, rmtree, scratch, ignore_errors=True)
        first, path = next(iter(files.items()))
        text = next(self._texts(first, path), (b"",))[0]
        if not text:
            raise InputError(f"{first} must contain ads, found an empty file")
        self.separator = separator or ("\t" if b"\t" in text.partition(b"\n")[0] else ",")
        names = self._names(first, text)[0]
        self.schema = pl.Schema(dict.fromkeys(names, pl.String))
        line = names[0] if header else text.partition(b"\n")[0].decode()
        if len(names) == 1 and (mark := re.search("[,;\t|]", line)):
            raise InputError(
                f"{name} must have columns, found one column, {line[:60]!r}; is it separated by {mark[0]!r}? Name it: "
                "--separator"
            )

    def _texts(self, name: str, path: Path) -> Iterator[tuple[bytes, int, int]]:
        """Whole rows of a file with the line that they begin with and the bytes read so far; no empty lines at the
        end."""
        rest, line = b"", 1
        try:
            with path.open("rb") as raw:
                zipped = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                stream: Any = gzip.GzipFile(fileobj=raw) if zipped else raw
                while more := stream.read(BYTES):
                    if len(rest) > UNCLOSED * BYTES:
                        raise InputError(f"{name}, line {line} or later: found a quote that is opened and not closed")
                    text = rest + more
                    cut = text.rfind(b"\n", 0, len(text.rstrip(b"\r\n"))) + 1
                    quotes = text.count(b'"', 0, cut)
                    while quotes % 2:  # the line end is in a cell
                        before = text.rfind(b"\n", 0, cut - 1) + 1
                        quotes -= text.count(b'"', before, cut)
                        cut = before
                    text, rest = text[:cut], text[cut:]
                    if text:
                        yield text.removeprefix(b"\xef\xbb\xbf") if line == 1 else text, line, raw.tell()
                        line += text.count(b"\n")
                if text := rest.rstrip(b"\r\n"):
                    yield (text.removeprefix(b"\xef\xbb\xbf") if line == 1 else text) + b"\n", line, raw.tell()
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(name, error) from None

    def _names(self, file: str, text: bytes) -> tuple[list[str], int]:
        """The names of the columns of a file, and the start of its rows."""
        lines = io.BytesIO(text)
        try:
            cells = next(csv.reader((line.decode() for line in lines), delimiter=self.separator), [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise self._fault(file, text, 1, error) from None
        if not cells or "\0" in cells[0]:
            found = "bytes that are 0; is it UTF-16? Convert it: iconv" if cells else "an empty line"
            raise InputError(f"{file} must begin with the names of its columns in UTF-8, found {found}")
        if not self.header:
            return [f"column_{at}" for at in range(1, len(cells) + 1)], 0
        check_once(cells, file)
        return cells, lines.tell()

    def _blocks(self, columns: list[str] | None) -> Iterator[Block]:
        start, before, size = 0, 0, sum(path.stat().st_size for path in self.files)
        for name, path in self.paths.items():
            for at, (text, line, read) in enumerate(self._texts(name, path)):
                if at == 0:
                    names, end = self._names(name, text)
                    if names != self.columns:
                        other = next((repr(x) for x in names if x not in self.columns), "them in another order")
                        raise InputError(f"{name} must have the columns of {next(iter(self.paths))}, found {other}")
                    line, text = line + text.count(b"\n", 0, end), text[end:]
                if text:
                    frame = self._parsed(name, text, line)
                    frame = frame if columns is None else frame.select(cs.by_name(*columns))
                    yield Block(self, frame, start, (before + read) / size, name, line, text)
                    start += len(frame)
            before += path.stat().st_size

    def _parsed(self, file: str, text: bytes, line: int) -> pl.DataFrame:
        """The cells of rows. polars fills short rows with nulls: the separators outside of quotes must be as many as
        the cells need."""
        width, separator = len(self.columns), self.separator.encode()
        try:
            plain = _outside(text, separator)
            rows, marks = plain.count(b"\n"), plain.count(separator)
            frame = pl.read_csv(text, has_header=False, separator=self.separator, infer_schema=False)
        except (*UNREADABLE, csv.Error) as error:
            raise self._fault(file, text, line, error) from None
        if frame.shape != (rows, width) or marks != rows * (width - 1):
            raise self._fault(file, text, line, ValueError("its rows have different numbers of cells"))
        frame.columns = self.columns
        return frame

    def _fault(self, file: str, text: bytes, line: int, error: BaseException) -> InputError:
        """What is wrong with text that polars cannot read, with the line if it can be found."""
        lines, begin = io.BytesIO(text), 0
        rows = csv.reader((row.decode() for row in lines), delimiter=self.separator, strict=True)
        at, width = line, len(getattr(self, "schema", ()))
        try:
            for cells in rows:
                row, begin = text[begin : lines.tell()], lines.tell()
                if width and len(cells or [""]) != width:
                    found = "an empty line" if not cells else str(len(cells))
                    words = f"must have {width} cells, as many as there are columns"
                    return InputError(f"{file}, line {at}: {words}, found {found}")
                _outside(row, self.separator.encode())
                at = line + rows.line_num
        except UnicodeDecodeError as wrong:
            fix = f"if it is Latin-1, convert it: iconv -f latin1 -t utf-8 {file} > new.csv"
            byte = wrong.object[wrong.start]
            return InputError(f"{file}, line {line + rows.line_num}: must be UTF-8, found the byte 0x{byte:02x}; {fix}")
        except csv.Error:
            fix = 'quote the whole cell and double the quotes in it, as "5"" screen"'
            return InputError(f"{file}, line {at}: found a quote that is not closed, or inside of a cell; {fix}")
        return _unreadable(f"{file}, line {line} or later", error)


def _outside(text: bytes, separator: bytes) -> bytes:
    """Text without all that is between quotes; raises if a quote is neither at an end of a cell nor doubled.

    >>> _outside(b'1,"a, b"\\n', b",")
    b'1,\\n'
    """
    if b'"' not in text:
        return text
    array = np.frombuffer(b"\n" + text + b"\n", np.uint8)
    quotes = np.flatnonzero(array == QUOTE)
    near = np.concatenate([array[quotes[0::2] - 1], array[quotes[1::2] + 1]])
    if len(quotes) % 2 or not np.isin(near, np.frombuffer(b'"\r\n' + separator, np.uint8)).all():
        raise csv.Error
    return b"".join(text.split(b'"')[::2])


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
        if scheme not in (*CLOUD, *WEB):
            raise InputError(f"{name} must be a file or a URL of a kind that can be read: {SCHEMES}; copy it to one")
        if scheme in WEB and "*" in name:
            raise InputError(f"{name} must be one file, found a pattern: {scheme}:// cannot list files")
        several, kind = several and scheme not in WEB, _kind(name, separator)
        warnings.filterwarnings("ignore", r"'\(default_\)region' not set", UserWarning)  # polars asks the bucket for it
    elif path.is_dir():
        several, kind, files = True, *_in_folder(path, separator)
    else:
        files = sorted(map(Path, glob(str(path), recursive=True))) if several else [path] if path.is_file() else []
        if not files:
            raise InputError(f"{path}: no {'file has such a name' if several else 'such file'}")
        kind = _kind(name, separator)
    if kind == ".parquet":
        if asked is not None:
            raise InputError(f"is for text, .csv or .tsv, found {name}", argument=asked)
        url = "" if scheme is None else url_of(table)
        try:
            lazy = pl.scan_parquet(url or files, glob=several and scheme is not None, hive_partitioning=several)
        except UNREADABLE as error:
            raise _unreadable(name, error, url) from None
        return _Parquet(name, lazy, files=files, where=path if files and several else None, url=url)
    separator = separator or SEPARATORS[kind]
    if scheme is None:
        named = {str(file) if several else name: file for file in files}
        return _Text(name, named, separator=separator, header=header, where=path if several else None)
    scratch = mkdtemp(prefix="bidwise-")
    try:
        copies = _downloaded(url_of(table), name, several, Path(scratch))
        return _Text(name, copies, separator=separator, header=header, scratch=scratch)
    except BaseException:
        rmtree(scratch, ignore_errors=True)
        raise


def _downloaded(url: str, name: str, several: bool, folder: Path) -> dict[str, Path]:
    """Text at a URL as files on this machine."""
    copies: dict[str, Path] = {}
    try:
        pl.scan_csv(url, glob=several, has_header=False, infer_schema=False).collect_schema()  # knows empty files
        lines = pl.scan_lines(url, glob=several, include_file_paths="file")
        for block in lines.collect_batches(chunk_size=ROWS, engine="streaming"):
            for (file,), part in block.group_by("file", maintain_order=True):
                copy = copies.setdefault(shown(str(file)) if several else name, folder / str(len(copies)))
                with copy.open("ab") as out:
                    part.drop("file").write_csv(out, include_header=False, separator="\x01", quote_style="never")
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
    reason = (
        (str(error).strip() or type(error).__name__).splitlines()[0].partition(", consider")[0]
    )  # options of polars
    if url:
        fix = ""
        if REMOTE.search(text):
            reason = (text.rpartition(" (path: ")[0] or text).rpartition(" - ")[2]
            reason = reason.removeprefix("object-store error: ")
            fix = f"; {ACCESS}"
        reason = re.sub(r"[A-Za-z][\w+.-]+://\S+", "...", reason.replace(url, "...")) + fix
    return InputError(f"{name} cannot be read: {reason}")


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
