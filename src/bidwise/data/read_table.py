"""A user's table: any file, URL or frame, all its columns or some, and errors that say where a value stands."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from glob import glob
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import polars as pl
import polars.selectors as cs

from bidwise.errors import InputError
from bidwise.urls import WEB, scheme_of, shown, url_of
from bidwise.values import Floats

Table = Any  # a path, a URL, a Location, a polars or pandas frame, or a mapping of columns

WORDS = {"true": "1", "false": "0"}  # what other tools write for a click
INFERRED = {"infer_schema_length": None}  # types of columns by all rows, which are held for it
SAMPLE = 2**20  # rows of text that types of columns are inferred from, unless a later row does not fit
ROWS = 2**18  # of text that are looked at together
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)  # panics are no Exceptions
TIMES = ("D", "ms", "us", "ns")  # units of numpy's dates that polars knows
SEPARATORS = {".csv": ",", ".tsv": "\t"}
ENDINGS = ".parquet, .csv, .tsv, .csv.gz or .tsv.gz"
PATTERN = re.compile(r"[*[]")  # in the name of a table: several files
S3 = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL"
GOOGLE = "GOOGLE_SERVICE_ACCOUNT, the file of a key"
AZURE = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN"
KEYS = (  # schemes that polars reads, and what it looks for in the environment
    {"s3": S3, "s3a": S3, "gs": GOOGLE, "gcs": GOOGLE}
    | dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), AZURE)
    | {"hf": "HF_TOKEN"}
    | dict.fromkeys(WEB)
)
SCHEMES = "s3://, gs://, az://, abfss://, hf://, http:// and https://"
FROM_AFAR = re.compile("object-store error|error sending request")


@dataclass(frozen=True)
class Location:
    """A table outside of memory: ``name`` as errors call it, ``where`` as polars does."""

    name: str
    where: str | Path
    kind: str
    several: bool = False
    separator: str | None = None  # of text; by the ending, where it is None
    header: bool = True  # whether the first line of text has the names of columns

    def scan(self, **options: Any) -> pl.LazyFrame:
        """The table, not read yet; ``options`` are those of text. Folders such as ``day=7`` are columns of Parquet."""
        warnings.filterwarnings("ignore", r"'\(default_\)region' not set", UserWarning)  # polars asks the bucket for it
        where: Any = self.files() if isinstance(self.where, Path) and self.where.is_dir() else self.where
        several = self.several and where is self.where  # by a pattern
        if self.kind == ".parquet":
            return pl.scan_parquet(where, glob=several, hive_partitioning=self.several)
        written: dict[str, Any] = {"separator": self.separator or SEPARATORS[self.kind], "has_header": self.header}
        if not self.header:  # polars counts them from 0 or 1, by its version
            written["with_column_names"] = lambda names: [f"column_{at}" for at in range(1, len(names) + 1)]
        return pl.scan_csv(where, glob=several, **written, **options)

    def scanned(self, **options: Any) -> pl.LazyFrame:
        """:meth:`scan`, of which columns are known: an error says what is wrong with the file."""
        try:
            lazy = self.scan(**options)
            names = lazy.collect_schema().names()
        except UNREADABLE as error:
            raise self.error(error) from None
        if len(names) == 1 and any(mark in names[0] for mark in ",;\t"):
            raise InputError(
                f"{self.name} must have columns, found one, {names[0][:60]!r}; is it separated by another character "
                "than its ending says (.csv: comma, .tsv: tab)? Name it: --separator"
            )
        return lazy

    def typed(self, **options: Any) -> pl.LazyFrame:
        """:meth:`scanned`, with types of columns that fit all rows, none of which is held."""
        if self.kind == ".parquet":
            return self.scanned()
        lazy = self.scanned(infer_schema_length=SAMPLE, **options)
        try:
            lazy.select(pl.all().null_count()).collect(engine="streaming")
        except pl.exceptions.ComputeError:
            return self.scan(schema_overrides=self.wider_types(lazy.collect_schema()), **options)
        return lazy

    def wider_types(self, types: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        """Types that fit all rows of text, given those that fit the first: whole numbers become decimals, and the
        rest text."""
        wider = {**types}
        for rows in self.scan(infer_schema=False).collect_batches(chunk_size=ROWS, engine="streaming"):
            for column in rows:
                known, first = column.replace("", None), wider[column.name]
                fitting = (dtype for dtype in (first, pl.Float64(), pl.String()) if _fits(known, dtype))
                wider[column.name] = next(fitting)
        return wider

    def files(self) -> list[Path]:
        """The files on this machine's disk, in the order of their names; none of a URL."""
        if isinstance(self.where, str):
            return []
        if self.where.is_dir():
            inside = (path for path in self.where.rglob("*") if path.is_file() and not path.name.startswith((".", "_")))
            return sorted(path for path in inside if _ending(path.name) == self.kind)
        return sorted(map(Path, glob(str(self.where), recursive=True))) if self.several else [self.where]

    def empty_lines(self, lazy: pl.LazyFrame, rows: int) -> int:
        """Lines at the end of a text file that are empty, in columns that are not among those read as well."""
        if self.kind == ".parquet" or not rows:
            return 0
        nothing, last, used = pl.all_horizontal(pl.all().is_null()), 1, pl.Series(dtype=pl.UInt32)
        while last < 16 * rows and not len(used):
            used, last = lazy.tail(last).select(~nothing).collect(engine="streaming").to_series().arg_true(), 16 * last
        last //= 16
        empty = min(last, rows) - (int(used[-1]) + 1 if len(used) else 0)
        lines = self.scan(infer_schema=False).tail(empty) if empty else None
        return 0 if lines is None or not lines.select(nothing).collect(engine="streaming").to_series().all() else empty

    def error(self, error: BaseException) -> InputError:
        """What went wrong, in one line that says what to do and has no password and no signature."""
        text = re.sub(r" \(location: .*?(?= \(path: |$)", "", " ".join(str(error).split()))  # with the signature
        if isinstance(error, pl.exceptions.NoDataError):
            return InputError(f"{self.name} must hold ads, found an empty file")
        there = isinstance(self.where, Path) and self.where.exists()  # then a copy of it is missing
        if (isinstance(error, FileNotFoundError) and not there) or "expanded paths were empty" in text:
            return InputError(f"{self.name}: no {'file has such a name' if self.several else 'such file'}")
        reason = str(error).strip().splitlines()[0]
        if isinstance(self.where, str):
            fix = ""
            if FROM_AFAR.search(text):
                reason = (text.rpartition(" (path: ")[0] or text).rpartition(" - ")[2]
                reason = reason.removeprefix("object-store error: ")
                fix = f"; check the network, the URL and {KEYS[scheme_of(self.where) or ''] or 'its signature'}"
            reason = re.sub(r"[A-Za-z][\w+.-]+://\S+", "...", reason.replace(self.where, "...")) + fix
        return InputError(f"{self.name} cannot be read: {reason}")


def _fits(text: pl.Series, dtype: pl.DataType) -> bool:
    if dtype == pl.Boolean:
        return bool(text.is_in(["true", "false"]).all())
    return text.cast(dtype, strict=False).null_count() == text.null_count()


PLACES = str | Path | Location


def location_of(table: str | Path | Location) -> Location:
    """The place of a table; what is no file and no URL is refused, whether a URL has anything is seen when it is read.

    >>> location_of("s3://bucket/day=*/a.csv.gz").kind
    '.csv'
    """
    if isinstance(table, Location):
        return table
    name, scheme = shown(table), scheme_of(table)
    if scheme == "file":
        return location_of(Path(unquote(urlsplit(str(table)).path)))
    if scheme is not None:
        if scheme not in KEYS:
            raise InputError(f"{name} must be a file or a URL of a kind that can be read: {SCHEMES}; copy it to one")
        if scheme in WEB and "*" in name:
            raise InputError(f"{name} must be one file, found a pattern: {scheme}:// cannot list files")
        return Location(name, url_of(table), _kind(name), scheme not in WEB and bool(PATTERN.search(name)))
    path = Path(table)
    if path.is_dir():
        kinds = {_ending(each.name) for each in path.rglob("*") if each.is_file() and each.name[0] not in "._"}
        if len(known := sorted(kinds & {".parquet", *SEPARATORS})) != 1:
            found = " and ".join(known) or f"no file that ends in {ENDINGS}"
            fix = f"; name those of one kind by a pattern, {path / '*.parquet'}" if known else ""
            raise InputError(f"{path} must be a file, or a folder of files of one kind, found {found} in it{fix}")
        return Location(name, path, known[0], several=True)
    several = not path.exists() and bool(PATTERN.search(name))
    if not path.exists() and not several:
        raise InputError(f"{path}: no such file")
    return Location(name, path, _kind(name), several)


def written_as(table: Any, separator: str | None = None, header: bool | None = None) -> Any:
    """A table whose text has another separator than its ending says, or no line of names (``header=False``): columns
    are then called column_1, column_2 and so on. ``None`` is what the ending says, and a header.

    >>> written_as("s3://bucket/ads.csv", separator=";").separator
    ';'
    """
    if separator == "\\t":  # as it is typed in a shell
        separator = "\t"
    if separator is not None and (len(separator.encode()) != 1 or separator in '\r\n"'):
        raise InputError(f"must be one character, or \\t for a tab, found {separator!r}", argument="separator")
    if separator is None and header in (None, True):
        return table
    argument = "header" if separator is None else "separator"
    if not isinstance(table, PLACES):
        raise InputError("is for files, found a table in memory", argument=argument)
    place = location_of(table)
    if place.kind == ".parquet":
        raise InputError(f"is for text, .csv or .tsv, found {place.name}", argument=argument)
    return replace(place, separator=separator, header=header is not False)


def same_place(one: object, other: object) -> bool:
    """Whether two tables are the same file or URL."""
    one, other = (each.where if isinstance(each, Location) else each for each in (one, other))
    if not isinstance(one, str | Path) or not isinstance(other, str | Path):
        return one is other
    if scheme_of(one) or scheme_of(other):
        return url_of(one) == url_of(other)  # with what is asked for after the question mark
    return Path(one).resolve() == Path(other).resolve()


def _kind(name: str) -> str:
    if (kind := _ending(name)) in (".parquet", *SEPARATORS):
        return kind
    several = f"; for all files of a folder name a pattern, {name}*.parquet" if name.endswith("/") else ""
    raise InputError(f"{name} must end in {ENDINGS}{several}")


def _ending(name: str) -> str:
    lower = name.lower()
    ending = "." + lower.removesuffix(".gz").rpartition(".")[2]
    return "" if ending == ".parquet" and lower.endswith(".gz") else ending


def table_name(table: Table, name: str = "table") -> str:
    """What errors call a table: a file or URL as it is shown, ``name`` for columns in memory."""
    if isinstance(table, Location):
        return table.name
    return shown(table) if isinstance(table, str | Path) else name


def table_error(table: Table, error: BaseException) -> InputError:
    """What kept a table from being read."""
    if isinstance(table, PLACES):
        return location_of(table).error(error)
    return InputError(f"cannot be read: {str(error).strip().splitlines()[0]}", argument="table")


def scan_table(table: Table) -> pl.LazyFrame:
    """The table without its rows in memory, without empty lines at its end; of text types and lines are looked at."""
    if isinstance(table, PLACES):
        place = location_of(table)
        lazy = place.typed()
        if place.kind == ".parquet":
            return lazy
        rows = row_count(lazy)
        return lazy.head(rows - place.empty_lines(lazy, rows))
    return table if isinstance(table, pl.LazyFrame) else _frame(table, [], "table").lazy()


def read_table(
    table: Table, *, numeric: Sequence[str] = (), text: Sequence[str] = (), name: str = "table"
) -> pl.DataFrame:
    """The table in memory, without empty lines at its end.

    Where columns are named they alone are read, from text files ``numeric`` ones as numbers and others as they are
    written; otherwise all columns are, with types that fit all rows.
    """
    wanted = list(dict.fromkeys([*numeric, *text]))
    try:
        if isinstance(table, PLACES):
            frame = _file(location_of(table), wanted, numeric)
        elif isinstance(table, pl.LazyFrame):
            check_columns(wanted, table.collect_schema().names(), name)
            frame = (table.select(cs.by_name(*wanted)) if wanted else table).collect(engine="streaming")
        else:
            frame = _frame(table, wanted, name)
    except UNREADABLE as error:
        raise table_error(table, error) from None
    if frame.is_empty():
        raise InputError(f"{table_name(table, name)} must hold ads, found no rows")
    return frame


def row_count(lazy: pl.LazyFrame) -> int:
    """Rows of a table, of which text is read in blocks: polars alone would map all of a file."""
    first = cs.first()
    return int(lazy.select(first.count() + first.null_count()).collect(engine="streaming").item())


def column_names(table: Table) -> list[str]:
    """The columns of a table, without reading its rows."""
    if isinstance(table, PLACES):
        return location_of(table).scanned(infer_schema=False).collect_schema().names()
    return table.collect_schema().names() if isinstance(table, pl.LazyFrame) else list(map(str, _names(table)))


def numbers_of(column: pl.Series, table: str = "table", start: int = 0) -> Floats:
    """Values as float64, NaN where they are missing; an error where they are no numbers."""
    return _number_series(column, table, start=start).fill_null(float("nan")).to_numpy()


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


def check_readable(
    table: str, columns: Sequence[str], separator: str | None = None, header: bool | None = None
) -> None:
    """Raise unless there is such a file with these columns, if any: commands check before they import torch. URLs are
    read later."""
    if scheme_of(table) is None:
        place = location_of(table)
        check_columns(columns, column_names(written_as(place, separator, header)) if columns else [], table)


def check_once(wanted: Sequence[str], there: Sequence[str], table: Table) -> None:
    """Raise where a column of a text file is there twice: polars calls the second otherwise."""
    text = isinstance(table, PLACES) and location_of(table).kind != ".parquet"
    for column in wanted if text else ():
        if f"{column}_duplicated_0" in there:
            raise InputError(f"{table_name(table)} must have every column once, found {column!r} twice; rename one")


def check_known(column: pl.Series, table: str, expected: str, start: int = 0) -> None:
    """Raise if a value is missing; ``start`` is the row of the table that the column begins with."""
    missing = column.is_null() | column.is_nan() if column.dtype.is_float() else column.is_null()
    if missing.any():
        raise BadRow(table, column.name, start + int(missing.to_numpy().argmax()), f"no value; {expected}")


class BadRow(InputError):
    """An error that says where the value stands."""

    def __init__(self, table: str, column: str, row: int, found: str) -> None:
        super().__init__(f"{table}: column {column!r}, row {row}: found {found} (rows count from 0)")
        self.table, self.column, self.row, self.found = table, column, row, found

    def of(self, place: Location) -> BadRow:
        """The same error, which names the one of several files that the row stands in, and its row there."""
        row = self.row
        for path in place.files() if place.several else []:
            rows = int(replace(place, where=path, several=False).scan().select(pl.len()).collect().item())
            if row < rows:
                return BadRow(str(path), self.column, row, self.found)
            row -= rows
        return self


def known_numbers(column: pl.Series, table: str, hint: str = "", start: int = 0) -> Floats:
    """The column as float64; NaN and missing values are refused, with the first row that has one.

    ``hint`` is added where text is no number; ``start`` is the row of the table that the column begins with.
    """
    column = _number_series(column, table, hint, start)
    if count := column.null_count():
        rows = f"{count:,} of {'the first ' if start else ''}{start + len(column):,} rows have none"
        check_known(column, table, f"{rows}: fill them or drop the rows", start)
    numbers = column.to_numpy()
    if np.isnan(numbers).any():
        raise BadRow(table, column.name, start + int(np.isnan(numbers).argmax()), "NaN; fill it or drop the row")
    return np.require(numbers, requirements="W")


def _number_series(column: pl.Series, table: str, hint: str = "", start: int = 0) -> pl.Series:
    dtype = column.dtype
    if dtype in (pl.String, pl.Categorical) or isinstance(dtype, pl.Enum):
        text = column.cast(pl.String).str.strip_chars()
        read = text.str.to_lowercase().replace(WORDS).cast(pl.Float64, strict=False)
        bad = read.is_null() & text.is_not_null() & (text != "")
        if bad.any():
            row = int(bad.to_numpy().argmax())
            raise BadRow(table, column.name, start + row, f"{column[row]!r}, which is not a number{hint}")
        return read.alias(column.name)
    check_flat(column, table)
    if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)):
        raise InputError(f"{table}: column {column.name!r} must hold numbers, found {dtype}")
    return column.cast(pl.Float64)


def check_flat(column: pl.Series, table: str) -> None:
    """Raise if values are lists or structs."""
    if column.dtype.is_nested():
        raise InputError(f"{table}: column {column.name!r} must have one value per ad, found {column.dtype}")


def _frame(table: Table, wanted: Sequence[str], name: str) -> pl.DataFrame:
    """Columns in memory as a frame: all of them, or those that are wanted."""
    if isinstance(table, pl.DataFrame):
        check_columns(wanted, table.columns, name)
        return table.select(cs.by_name(*wanted)) if wanted else table
    names = _names(table, name)
    check_columns(wanted, names, name)
    columns = [_series(str(column), table[column], name) for column in wanted or names]
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(f"{column.name}: {len(column)}" for column in columns)
        raise InputError(f"{name} must have columns of one length, found {lengths}")
    return pl.DataFrame(columns)


def _names(table: Table, name: str = "table") -> list[Any]:
    if not isinstance(table, Mapping) and not hasattr(table, "columns"):
        raise InputError(
            f"{name} must be a file, a polars or pandas frame, or a mapping of columns, found {type(table).__name__}"
        )
    return list(table) if isinstance(table, Mapping) else list(table.columns)


def _series(column: str, values: Any, table: str) -> pl.Series:
    if isinstance(values, pl.Series):
        return values.alias(column)
    missing = values.isna() if hasattr(values, "isna") else None  # pandas has several words for a missing value
    dtype: Any = getattr(values, "dtype", None)
    if hasattr(dtype, "categories"):
        return _category(column, getattr(values, "array", values), table)
    if hasattr(dtype, "numpy_dtype") and dtype.kind in "iu":  # numpy would make decimals of them where one is missing
        whole = pl.Series(column, values.to_numpy(dtype=dtype.numpy_dtype, na_value=0))
        return whole.scatter(np.flatnonzero(values.isna()), None)
    if hasattr(values, "detach"):  # a tensor; bfloat16 is nothing numpy knows
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
    """A categorical column of pandas as text, whatever its categories are."""
    words = _series(column, values.categories, table).cast(pl.String).to_list()
    return pl.Series(column, [None if code < 0 else words[code] for code in values.codes.tolist()], dtype=pl.String)


def _file(place: Location, wanted: Sequence[str], numeric: Sequence[str]) -> pl.DataFrame:
    """A file: all columns with inferred types, or those that are wanted."""
    if not wanted:
        frame = place.scanned(**INFERRED, try_parse_dates=True).collect(engine="streaming")
        return frame.head(len(frame) - place.empty_lines(frame.lazy(), len(frame)))
    written = place.scanned(infer_schema=False)  # everything as text; nothing is read yet
    names = written.collect_schema().names()
    check_columns(wanted, names, place.name)
    check_once(wanted, names, place)
    typed = place.scan(schema_overrides={column: pl.Float64 if column in numeric else pl.String for column in wanted})
    try:
        frame = typed.select(cs.by_name(*wanted)).collect(engine="streaming")
    except pl.exceptions.ComputeError:  # some number is none: text tells where
        frame = written.select(cs.by_name(*wanted)).collect(engine="streaming")
    return frame.head(len(frame) - place.empty_lines(frame.lazy(), len(frame)))
