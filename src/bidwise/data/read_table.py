"""A user's table: any file, URL or frame, all its columns or some, and errors that say where a value stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from bidwise.auctions.columns import Floats
from bidwise.checks import InputError
from bidwise.data.locations import Location, location_of
from bidwise.run_folder import checksum
from bidwise.urls import shown

Table = Any  # a path, a URL, a Location, a polars or pandas frame, or a mapping of columns
PLACES = str | Path | Location

WORDS = {"true": "1", "false": "0"}  # what other tools write for a click
INFERRED = {"infer_schema_length": None}  # types of columns by all rows
UNREADABLE = (pl.exceptions.PolarsError, OSError)


def table_name(table: Table, name: str = "table") -> str:
    """What errors call a table: a file or URL as it is shown, ``name`` for columns in memory."""
    if isinstance(table, Location):
        return table.name
    return shown(table) if isinstance(table, str | Path) else name


def table_error(table: Table, error: Exception) -> InputError:
    """What kept a table from being read."""
    if isinstance(table, PLACES):
        return location_of(table).error(error)
    return InputError(f"cannot be read: {str(error).strip().splitlines()[0]}", argument="table")


def table_fingerprint(table: Table, frame: pl.DataFrame | None = None) -> str:
    """Whether a run resumes on the table it began with: bytes of a file, rows (``frame``) of anything else."""
    if isinstance(table, PLACES) and location_of(table).is_file:
        return checksum(Path(location_of(table).where))
    frame = read_table(table) if frame is None else frame
    return f"{int(frame.hash_rows(seed=0).sum() or 0) % 2**32:08x}"


def scan_table(table: Table, *, dates: bool = False) -> pl.LazyFrame:
    """The table without reading more of it than columns and their types; with ``dates``, text that is one is."""
    if isinstance(table, PLACES):
        return _scan_file(location_of(table), **INFERRED, try_parse_dates=dates)
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


def column_names(table: Table) -> list[str]:
    """The columns of a table, without reading its rows."""
    if isinstance(table, PLACES):
        return _scan_file(location_of(table), infer_schema=False).collect_schema().names()
    return table.collect_schema().names() if isinstance(table, pl.LazyFrame) else list(map(str, _names(table)))


def group_ids(keys: pl.DataFrame, table: str = "table") -> tuple[NDArray[np.int64], list[str]]:
    """The group of every row, rows with the same values in all columns, and what groups are called.

    Groups count from 0 in the order of their first rows; missing values are a group of their own.

    >>> group_ids(pl.DataFrame({"keyword": ["a", "b", "a"], "day": [2, 1, 2]}))
    (array([0, 1, 0]), ['a, 2', 'b, 1'])
    """
    for column in keys:
        _check_flat(column, table)
    keys = keys.with_columns(cs.string().str.strip_chars().replace("", None), cs.float().fill_nan(None))
    keys = keys.rename(dict(zip(keys.columns, map(str, range(keys.width)), strict=True)))
    changes = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in keys.columns)
    starts = np.array(keys.select(changes).to_series())  # of runs: ads of an auction are often together
    starts[:1] = True
    runs = keys.filter(starts)
    first = runs.with_row_index("row").select(pl.col("row").min().over(keys.columns)).to_series().to_numpy()
    new = first == np.arange(len(first))
    ids = (np.cumsum(new) - 1)[first][np.cumsum(starts) - 1]
    words = cs.float().cast(pl.String).str.strip_suffix(".0"), (~cs.float()).cast(pl.String)
    labels = runs.filter(new).with_columns(*words).fill_null("(missing)")
    return ids, labels.select(pl.concat_str(labels.columns, separator=", ")).to_series().to_list()


def auction_ids(keys: pl.DataFrame, table: str = "table") -> NDArray[np.int64]:
    """:func:`group_ids` of columns that name the auction; missing values are refused."""
    for column in keys:
        known = column.str.strip_chars().replace("", None) if column.dtype == pl.String else column
        check_known(known, table, "every ad needs an auction")
    return group_ids(keys, table)[0]


def auction_rows(auction: NDArray[np.int64]) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
    """Rows that put the ads of each auction together, auctions (:func:`auction_ids`) in their order, and their bounds.

    The rows are ``None`` where the ads are together already.

    >>> auction_rows(np.array([0, 1, 0]))
    (array([0, 2, 1]), array([0, 2, 3]))
    """
    offsets = np.append(0, np.cumsum(np.bincount(auction)))
    together = bool((np.diff(auction) >= 0).all())
    return None if together else np.argsort(auction, kind="stable"), offsets


def numbers_of(column: pl.Series, table: str = "table") -> Floats:
    """Values as float64, NaN where they are missing; an error where they are no numbers."""
    return _number_series(column, table).fill_null(float("nan")).to_numpy()


def check_columns(wanted: Sequence[str], there: Sequence[str], table: str) -> None:
    """Raise unless all columns are there; suggests the nearest."""
    for column in wanted:
        if column not in there:
            near = get_close_matches(column, map(str, there), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, there[:12]))}"
            if list(there) == ["column_1"]:
                hint = "is another character between the columns? Name it: --separator"
            elif any(str(name).replace(".", "", 1).isdigit() for name in there):
                hint += "; is the first line no line of names? Say so: --no-header"
            if "," in column and set(column.split(",")) <= set(there):
                hint = "separate columns by spaces"
            raise InputError(f"{table} has no column {column!r}; {hint}")


def check_known(column: pl.Series, table: str, expected: str) -> None:
    """Raise if a value is missing."""
    missing = column.is_null() | column.is_nan() if column.dtype.is_float() else column.is_null()
    if missing.any():
        raise bad_row(table, column.name, int(missing.to_numpy().argmax()), f"no value; {expected}")


def bad_row(table: str, column: str, row: int, found: str) -> InputError:
    """An error that says where the value stands."""
    return InputError(f"{table}: column {column!r}, row {row}: found {found} (rows count from 0)")


def known_numbers(column: pl.Series, table: str, hint: str = "") -> Floats:
    """The column as float64; NaN and missing values are refused, with the first row that has one.

    ``hint`` is added where text is no number.
    """
    column = _number_series(column, table, hint)
    if count := column.null_count():
        check_known(column, table, f"{count:,} of {len(column):,} rows have none: fill them or drop the rows")
    numbers = column.to_numpy()
    if np.isnan(numbers).any():
        raise bad_row(table, column.name, int(np.isnan(numbers).argmax()), "NaN; fill it or drop the row")
    return np.require(numbers, requirements="W")


def _number_series(column: pl.Series, table: str, hint: str = "") -> pl.Series:
    dtype = column.dtype
    if dtype in (pl.String, pl.Categorical) or isinstance(dtype, pl.Enum):
        text = column.cast(pl.String).str.strip_chars()
        read = text.str.to_lowercase().replace(WORDS).cast(pl.Float64, strict=False)
        bad = read.is_null() & text.is_not_null() & (text != "")
        if bad.any():
            row = int(bad.to_numpy().argmax())
            raise bad_row(table, column.name, row, f"{column[row]!r}, which is not a number{hint}")
        return read.alias(column.name)
    _check_flat(column, table)
    if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)):
        raise InputError(f"{table}: column {column.name!r} must hold numbers, found {dtype}")
    return column.cast(pl.Float64)


def _check_flat(column: pl.Series, table: str) -> None:
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
    if hasattr(values, "detach"):  # a tensor; bfloat16 is nothing numpy knows
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    try:
        entries = values if isinstance(values, list | tuple) else np.asarray(values)
        if isinstance(entries, np.ndarray) and entries.ndim == 0:
            raise ValueError(f"the single value {values!r}")
        if isinstance(entries, np.ndarray) and entries.ndim == 1 and entries.dtype.kind == "O":
            missing = [isinstance(x, float) and x != x for x in entries] if missing is None else missing
            entries = [None if gone else x for x, gone in zip(entries.tolist(), missing, strict=True)]
        return pl.Series(column, entries, strict=False)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        words = str(error).strip().splitlines()[0]
        raise InputError(f"{table}: column {column!r} must have one value per ad, found: {words}") from None


def _scan_file(place: Location, **options: Any) -> pl.LazyFrame:
    try:
        lazy = place.scan(**options)
        names = lazy.collect_schema().names()
    except UNREADABLE as error:
        raise place.error(error) from None
    if len(names) == 1 and any(mark in names[0] for mark in ",;\t"):
        raise InputError(
            f"{place.name} must have columns, found one, {names[0][:60]!r}; is it separated by another character than "
            "its ending says (.csv: comma, .tsv: tab)? Name it: --separator"
        )
    return lazy


def _file(place: Location, wanted: Sequence[str], numeric: Sequence[str]) -> pl.DataFrame:
    """A file: all columns with inferred types, or those that are wanted."""
    if not wanted:
        return _trimmed(_scan_file(place, **INFERRED, try_parse_dates=True).collect(engine="streaming"), place)
    written = _scan_file(place, infer_schema=False)  # everything as text; nothing is read yet
    names = written.collect_schema().names()
    check_columns(wanted, names, place.name)
    twice = [column for column in wanted if place.kind != ".parquet" and f"{column}_duplicated_0" in names]
    if twice:
        raise InputError(f"{place.name} must have every column once, found {twice[0]!r} twice")
    typed = place.scan(schema_overrides={column: pl.Float64 if column in numeric else pl.String for column in wanted})
    try:
        frame = typed.select(cs.by_name(*wanted)).collect(engine="streaming")
    except pl.exceptions.ComputeError:  # some number is none: text tells where
        frame = written.select(cs.by_name(*wanted)).collect(engine="streaming")
    return _trimmed(frame, place)


def _trimmed(frame: pl.DataFrame, place: Location) -> pl.DataFrame:
    """Without lines at the end of a text file that are empty, in columns that were not asked for as well."""
    if place.kind == ".parquet" or not frame.width:
        return frame
    nothing = pl.all_horizontal(pl.all().is_null())
    used = frame.select(~nothing).to_series().arg_true()
    last = len(frame) - (int(used[-1]) + 1 if len(used) else 0)
    if last and place.scan(infer_schema=False).tail(last).select(nothing).collect().to_series().all():
        return frame.head(len(frame) - last)
    return frame
