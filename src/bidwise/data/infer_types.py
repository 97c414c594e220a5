"""What each column of a table is taken for, and why: roles, categories, numbers, or nothing to learn from."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import polars as pl

from bidwise.checks import InputError
from bidwise.data.read_table import check_columns, numbers_of

FEW = 1000  # different whole numbers, up to which they are names of something rather than amounts
ROWS_EACH = 20  # rows for each of them
UNIQUE = 0.5  # different values / rows, above which there is nothing to learn from a category
LEFT_OUT = "left out"


@dataclass(frozen=True)
class Column:
    """A column: ``use`` is its role, ``categorical``, ``numeric`` or ``left out``."""

    name: str
    use: str
    values: int
    missing: float  # share of the rows
    reason: str


def inferred(
    frame: pl.DataFrame,
    roles: Collection[tuple[str, str]],
    *,
    numeric: Collection[str] = (),
    categorical: Collection[str] = (),
    ignore: Collection[str] = (),
    name: str = "table",
) -> list[Column]:
    """Every column of the table with what it is taken for; columns with a role first.

    Text, booleans and categories are categorical; numbers with decimals are numeric; whole numbers are categorical up
    to 1,000 different values with 20 rows for each, or where their name ends in "id", and numeric otherwise. Dates,
    lists, constant columns and categories with more values than half the rows are left out.

    >>> frame = pl.DataFrame({"y": [0, 1] * 40, "b": [1.0, 2.5] * 40, "hour": [3, 4] * 40, "x": [0.5, 0.7] * 40})
    >>> [(column.name, column.use) for column in inferred(frame, [("click", "y"), ("bid", "b")])]
    [('y', 'click'), ('b', 'bid'), ('hour', 'categorical'), ('x', 'numeric')]

    Args:
        roles: roles with their columns.
        numeric, categorical: columns whose kind is not to be inferred.
        ignore: columns to leave out.
        name: what errors call the table.
    """
    check_columns([*(column for _, column in roles), *numeric, *categorical, *ignore], frame.columns, name)
    kinds = dict.fromkeys(categorical, "categorical") | dict.fromkeys(numeric, "numeric")
    used: dict[str, str] = {}
    for role, column in roles:
        used[column] = f"{used[column]} and {role}" if column in used else role
    columns = [_with_role(frame[column], role) for column, role in used.items()]
    columns += [
        Column(column, LEFT_OUT, 0, _missing(frame[column]), "named to be ignored")
        if column in ignore
        else _feature(frame[column], kinds.get(column), name)
        for column in frame.columns
        if column not in used
    ]
    if not any(column.use in ("categorical", "numeric") for column in columns):
        why = "; ".join(f"{c.name!r}: {c.reason}" for c in columns if c.use == LEFT_OUT)
        raise InputError(f"{name} must have columns to learn from, found none ({why or 'all columns have a role'})")
    return columns


def _with_role(column: pl.Series, role: str) -> Column:
    return Column(column.name, role, column.n_unique(), _missing(column), f"named as the {role}")


def _feature(column: pl.Series, named: str | None, table: str) -> Column:
    dtype = column.dtype
    missing = _missing(column)
    odd = dtype.is_nested() or dtype in (pl.Object, pl.Binary)
    if named and (odd or dtype.is_temporal()):
        raise InputError(f"{table}: column {column.name!r} must hold text or numbers, found {dtype}")
    if odd:
        return Column(column.name, LEFT_OUT, 0, missing, f"neither text nor numbers: {dtype}")
    known = column.drop_nulls().drop_nans() if dtype.is_float() else column.drop_nulls()
    values = known.n_unique()
    if values + (missing > 0) < 2:
        return Column(column.name, LEFT_OUT, values, missing, "the same in all rows")
    use, reason = (named, f"named as {named}") if named else _kind(column.name, dtype, values, len(column))
    if use == "numeric" and named:
        numbers_of(column, table)  # an error names the first value that is none
    if use == "categorical" and values > UNIQUE * len(column):
        if named:
            raise InputError(
                f"must name columns whose values come back, found {column.name!r} with {values:,} values "
                f"in {len(column):,} rows, more than the rows could teach; name it under ignore",
                argument="categorical",
            )
        return Column(column.name, LEFT_OUT, values, missing, "nearly every row has a value of its own")
    return Column(column.name, use, values, missing, reason)


def _kind(name: str, dtype: pl.DataType, values: int, rows: int) -> tuple[str, str]:
    """What a column is taken for, and why."""
    if dtype.is_temporal():
        return LEFT_OUT, "a date or time; name it as --time to split by it"
    if dtype.is_float() or dtype.is_decimal():
        return "numeric", "numbers with decimals"
    if dtype.is_integer():
        if _words(name)[-1:] == ["id"]:
            return "categorical", "whole numbers whose name says id"
        if values <= FEW and values * ROWS_EACH <= rows:
            return "categorical", f"{values:,} different whole numbers"
        return "numeric", f"{values:,} different whole numbers"
    return "categorical", "true or false" if dtype == pl.Boolean else "text"


def _words(name: str) -> list[str]:
    """The words of a name.

    >>> _words("campaign_id"), _words("campaignId"), _words("android")
    (['campaign', 'id'], ['campaign', 'id'], ['android'])
    """
    return [word.lower() for word in re.split(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])", name) if word]


def _missing(column: pl.Series) -> float:
    count = column.null_count()
    if column.dtype.is_float():
        count += int(column.is_nan().sum() or 0)
    elif column.dtype == pl.String:
        count += int((column.str.strip_chars() == "").sum() or 0)
    return count / max(len(column), 1)
