"""A user's table as it is read for training and for prediction: any file, URL or frame, all columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from bidwise.checks import InputError
from bidwise.data.fingerprint import checksum
from bidwise.data.locations import Location, location_of
from bidwise.data.read_table import Table
from bidwise.urls import shown


def name_of(table: Table) -> str:
    """How errors call a table."""
    return shown(table) if isinstance(table, str | Path) else "table"


def scan(table: Table, *, dates: bool = False) -> pl.LazyFrame:
    """The table without reading more of it than its columns and their types; with ``dates``, text that is one is."""
    if isinstance(table, str | Path):
        return _scan_file(location_of(table), dates)
    if isinstance(table, pl.LazyFrame):
        return table
    if isinstance(table, pl.DataFrame):
        return table.lazy()
    try:
        if isinstance(table, Mapping):
            return pl.DataFrame({str(name): values for name, values in table.items()}, strict=False).lazy()
        if hasattr(table, "columns"):  # pandas; column by column, which needs no other package
            return pl.DataFrame([_series(str(name), table[name]) for name in table.columns]).lazy()
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise InputError(f"table must have columns of one length, found: {_first_line(error)}") from None
    raise InputError(
        f"table must be a file, a polars or pandas frame, or a mapping of columns, found {type(table).__name__}"
    )


def read(table: Table) -> pl.DataFrame:
    """The whole table in memory, without empty lines at its end."""
    try:
        frame = scan(table, dates=True).collect(engine="streaming")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise unreadable(table, error) from None
    if isinstance(table, str | Path) and location_of(table).kind != ".parquet" and frame.width:
        used = frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series().arg_true()
        frame = frame.head(int(used[-1]) + 1 if len(used) else 0)
    if frame.is_empty():
        raise InputError(f"{name_of(table)} must hold ads, found no rows")
    return frame


def unreadable(table: Table, error: Exception) -> InputError:
    """What kept a table from being read."""
    if isinstance(table, str | Path):
        return location_of(table).error(error)
    return InputError(f"table cannot be read: {_first_line(error)}")


def fingerprint(table: Table, frame: pl.DataFrame | None = None) -> str:
    """Whether a run goes on with the table it began with: bytes of a file, rows of anything else."""
    if isinstance(table, str | Path) and location_of(table).is_file:
        return checksum(Path(location_of(table).where))
    frame = read(table) if frame is None else frame
    return f"{int(frame.hash_rows(seed=0).sum() or 0) % 2**32:08x}"


def _scan_file(place: Location, dates: bool) -> pl.LazyFrame:
    try:
        found = place.scan(try_parse_dates=dates, infer_schema_length=None)
        names = found.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise place.error(error) from None
    if len(names) == 1 and any(mark in names[0] for mark in ",;\t"):
        raise InputError(
            f"{place.name} must have columns, found one, {names[0][:60]!r}; is it separated by another character than "
            "its ending says? (.csv: comma, .tsv: tab)"
        )
    return found


def _series(name: str, values: Any) -> pl.Series:
    if str(values.dtype) in ("object", "str", "string", "category"):
        return pl.Series(name, [None if v is None or v != v else v for v in values.tolist()], strict=False)
    return pl.Series(name, values.to_numpy())


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
