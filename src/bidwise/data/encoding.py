"""Columns of a table: what each is taken for, and its values as ids, learnt on training rows and applied to any."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise import json_files
from bidwise.checks import InputError, check_name, check_whole
from bidwise.data.counting import Found, Seen, Tally, counted, exploded, holds_lists, names_of, seen
from bidwise.data.counting import found as found
from bidwise.data.read_table import check_columns, check_flat, numbers_of
from bidwise.data.store import Field, spans
from bidwise.values import FIRST, MISSING, RARE, SLOTS, Floats, Vocabulary

FORMAT = "bidwise encoder"
VERSION = 1
PLAIN = (pl.String, pl.Boolean, pl.Float64, pl.Float32, pl.Null)
MANY = 0.25  # different values / rows, above which every row is looked up by itself
SHORT = 4000  # rows, up to which looking up one value after the other is faster
HELD = 2**18  # words, up to which they are held as Python's own text as well, of 100 bytes each
LEFT_OUT = "left out"
FEW = 1000  # different whole numbers, up to which they are names of something rather than amounts
ROWS_EACH = 20  # rows for each of them
COME_BACK = 0.01  # of the rows have a value that was there before, at least, or a category has nothing to teach


@dataclass(frozen=True, eq=False)
class Categorical:
    """A column of names: id 0 for rare or unseen values, 1 for missing ones, then the vocabulary.

    Words are a series, less than half the size of Python's own text: there may be tens of millions.
    """

    name: str
    vocabulary: pl.Series

    def __init__(self, name: str, vocabulary: pl.Series | Sequence[str]) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "vocabulary", pl.Series("word", vocabulary, dtype=pl.String))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Categorical) or type(other) is not type(self):
            return False
        return self.vocabulary.equals(other.vocabulary) and self._rest() == other._rest()

    def _rest(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "vocabulary"}

    def plain(self) -> dict[str, Any]:
        """What it is made of, as JSON holds it."""
        return {"name": self.name, "vocabulary": self.vocabulary.to_list()} | self._rest()

    @property
    def field(self) -> Field:
        """The column as models know it."""
        return Field(self.name, FIRST + len(self.vocabulary))

    @cached_property
    def lookup(self) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """Hashes of the words in ascending order, and the place of each in the vocabulary."""
        hashes = self.vocabulary.hash(seed=0)
        order = hashes.arg_sort().to_numpy().astype(np.int32)
        return hashes.to_numpy()[order], order

    @cached_property
    def _words(self) -> Vocabulary:
        return Vocabulary(self.vocabulary.to_list())

    def ids(self, column: pl.Series) -> NDArray[np.int32]:
        """The id of every value."""
        plain = column.dtype in PLAIN or column.dtype.is_integer()
        if plain and len(column) <= SHORT and len(self.vocabulary) <= HELD:
            return np.array(self._words.ids(column.to_list()), dtype=np.int32)
        check_flat(column, "table")
        column = column.fill_nan(None) if column.dtype.is_float() else column
        column = (column.cast(pl.String) if column.dtype == pl.Null else column).alias("value")
        values = column.unique()
        if len(values) > MANY * len(column):
            return self._found(names_of(column))
        known = pl.DataFrame({"value": values, "id": self._found(names_of(values))})
        rows = column.to_frame().join(known, on="value", how="left", nulls_equal=True, maintain_order="left")
        return np.array(rows["id"].to_numpy(), dtype=np.int32)

    def _found(self, text: pl.Series) -> NDArray[np.int32]:
        """The id of every text: that of the word with its hash, if it is the same word."""
        hashes, places = self.lookup
        found = np.full(len(text), RARE, np.int32)
        if len(hashes):
            wanted = text.hash(seed=0).to_numpy()
            order = np.argsort(wanted)  # neighbours are looked up one after the other: six times as fast
            at = np.empty(len(text), np.int32)
            at[order] = places[np.minimum(np.searchsorted(hashes, wanted[order]), len(hashes) - 1)]
            same = (self.vocabulary.gather(at) == text).fill_null(False).to_numpy()
            found[same] = at[same] + FIRST
        found[text.is_null().to_numpy()] = MISSING
        return found


def words_of(values: list[Any]) -> pl.Series:
    """Words as a series; a TypeError where one is no text."""
    words = pl.Series("word", values, dtype=pl.String)
    if words.null_count():
        raise TypeError("null")
    return words


@dataclass(frozen=True, eq=False)
class Bag(Categorical):
    """A column of lists of names, or of text with a ``separator`` between them: the ids of the first ``slots`` values,
    and 1 where there are fewer."""

    slots: int = 1
    separator: str = "|"

    def __init__(
        self, name: str, vocabulary: pl.Series | Sequence[str], slots: int = slots, separator: str = separator
    ) -> None:
        super().__init__(name, vocabulary)
        check_whole(f"slots of column {name!r}", slots, 1, SLOTS)
        if not separator:
            raise InputError(f"separator of column {name!r} must be one character or more, found none")
        object.__setattr__(self, "slots", slots)
        object.__setattr__(self, "separator", separator)

    @property
    def field(self) -> Field:
        """The column as models know it."""
        return Field(self.name, FIRST + len(self.vocabulary), self.slots)

    def ids(self, column: pl.Series) -> NDArray[np.int32]:
        """The ids of every list, ``(rows, slots)``."""
        values, row = exploded(column, self.separator)
        slot = np.arange(len(row)) - np.searchsorted(row, row)
        first = slot < self.slots
        ids = np.full((len(column), self.slots), MISSING, np.int32)
        ids[row[first], slot[first]] = super().ids(values.filter(pl.Series(first)))
        return ids


@dataclass(frozen=True)
class Numeric:
    """A column of numbers, cut into bins: id 1 for missing ones, 2 + k for numbers above ``edges[k - 1]`` and up to
    ``edges[k]``; 0 is not used."""

    name: str
    edges: tuple[float, ...]

    @property
    def field(self) -> Field:
        """The column as models know it."""
        return Field(self.name, FIRST + len(self.edges) + 1)

    def plain(self) -> dict[str, Any]:
        """What it is made of, as JSON holds it."""
        return {"name": self.name, "edges": list(self.edges)}

    def ids(self, column: pl.Series) -> NDArray[np.int32]:
        """The id of every number."""
        numbers = numbers_of(column)
        ids = (FIRST + np.searchsorted(np.asarray(self.edges, dtype=np.float64), numbers)).astype(np.int32)
        ids[np.isnan(numbers)] = MISSING
        return ids


KINDS: dict[str, type[Categorical | Numeric]] = {"categorical": Categorical, "numeric": Numeric, "bag": Bag}


@dataclass(frozen=True)
class Encoder:
    """How the columns of a table become features, in this order.

    >>> rows = pl.DataFrame({"site": ["a", "a", "b", "b", "c"], "age": [1.0, 2.0, 3.0, None, 5.0]})
    >>> encoder = Encoder.fit(rows, {"site": "categorical", "age": "numeric"}, min_count=2, bins=2)
    >>> encoder.encode(pl.DataFrame({"site": ["b", "?", None], "age": [0.0, 9.0, None]})).tolist()
    [[3, 2], [0, 3], [1, 1]]
    """

    columns: tuple[Categorical | Numeric, ...]

    @staticmethod
    def fit(rows: pl.DataFrame, kinds: Mapping[str, str], *, min_count: int, bins: int) -> Encoder:
        """Learn vocabularies and bins.

        Args:
            rows: training rows alone; what comes later must not be known.
            kinds: the columns to encode, each ``categorical``, ``numeric`` or ``bag``.
            min_count: values seen less often are rare.
            bins: most bins of a numeric column; they hold equally many training rows, as far as ties allow.
        """
        check_whole("min_count", min_count, 1)
        check_whole("bins", bins, 2)
        columns: list[Categorical | Numeric] = []
        for name, kind in kinds.items():
            check_name(f"the kind of column {name!r}", kind, KINDS)
            if kind == "numeric":
                columns.append(Numeric(name, edges(numbers_of(rows[name]), bins)))
                continue
            tally, bag = Tally(), kind == "bag"
            tally.add(counted(exploded(rows[name], Bag.separator)[0] if bag else rows[name]))
            words = tally.vocabulary(min_count)
            slots = slots_of(seen(rows[name], Bag.separator)) if bag else 1
            columns.append(Bag(name, words, slots) if bag else Categorical(name, words))
        return Encoder(tuple(columns))

    @property
    def names(self) -> list[str]:
        """The columns that a table must have."""
        return [column.name for column in self.columns]

    @property
    def fields(self) -> list[Field]:
        """What models are built for."""
        return [column.field for column in self.columns]

    @cached_property
    def spans(self) -> list[slice]:
        """Which columns of the features each column of the table has."""
        return spans([field.slots for field in self.fields])

    @property
    def width(self) -> int:
        """Columns of the features."""
        return max((int(at.stop) for at in self.spans), default=0)

    def check(self, columns: Iterable[str], table: str = "table") -> None:
        """Raise unless all columns are there; an error names every one that is not."""
        there = list(columns)
        missing = [name for name in self.names if name not in there]
        if missing:
            near = get_close_matches(missing[0], there, n=1)
            hint = f"is it {near[0]!r} now?" if near else f"the model needs {'it' if len(missing) == 1 else 'them'}"
            raise InputError(f"{table} has no column {', '.join(map(repr, missing))}; {hint}")

    def encode(self, rows: pl.DataFrame) -> NDArray[np.int32]:
        """Features of ads, ``(rows, columns)``; values that training did not see are rare."""
        self.check(rows.columns)
        features = np.empty((len(rows), self.width), dtype=np.int32)
        for at, column in zip(self.spans, self.columns, strict=True):
            features[:, at] = column.ids(rows[column.name]).reshape(len(rows), at.stop - at.start)
        return features

    def extended(self, fitted: Encoder) -> Encoder:
        """The encoder with the words of one that was fitted to new rows, after its own; all ids and bins stay.

        >>> old, new = (Encoder((Categorical("site", words),)) for words in (("a", "b"), ("b", "c", "d")))
        >>> old.extended(new).columns[0].vocabulary.to_list()
        ['a', 'b', 'c', 'd']
        """
        known, columns = {column.name: column for column in fitted.columns}, []
        for column in self.columns:
            if isinstance(column, Categorical):
                words, new = column.vocabulary, getattr(known[column.name], "vocabulary", column.vocabulary)
                new = new.filter(~new.is_in(words.implode()))
                column = replace(column, vocabulary=pl.concat([words, new.alias(words.name)]))
                if isinstance(column, Bag):  # lists may have become longer
                    column = replace(column, slots=max(column.slots, known[column.name].field.slots))
            columns.append(column)
        return Encoder(tuple(columns))

    def to_json(self) -> dict[str, Any]:
        """What :meth:`from_json` reads, as JSON holds it."""
        columns = [{"kind": kind_of(column), **column.plain()} for column in self.columns]
        return {"format": FORMAT, "version": VERSION, "columns": columns}

    @staticmethod
    def from_json(data: Any, name: str = "encoder.json") -> Encoder:
        """The encoder that :meth:`to_json` wrote."""
        if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
            raise InputError(f"{name} must be an encoder of version {VERSION} that bidwise wrote, found something else")
        try:
            columns = [{**column} for column in data["columns"]]
            for column in columns:
                if isinstance(words := column.get("vocabulary"), list):
                    column["vocabulary"] = words_of(words)
            made = [json_files.from_json(KINDS[column.pop("kind")], column, name) for column in columns]
        except (KeyError, TypeError) as error:
            raise InputError(f"{name} must be whole, found that {error!r} is missing or of no use") from None
        return Encoder(tuple(made))


def kind_of(column: Categorical | Numeric) -> str:
    """What a column is called: ``categorical``, ``numeric`` or ``bag``."""
    return next(name for name, kind in KINDS.items() if type(column) is kind)


def least_count(rows: int) -> int:
    """How often a value must be seen to have an id of its own: once for every 100,000 training rows, 2 to 10 times.

    Values seen once teach what to think of unseen ones, and an L2 penalty sees to the others.

    >>> least_count(5_000), least_count(500_000), least_count(5_000_000)
    (2, 5, 10)
    """
    return min(10, max(2, rows // 100_000))


def edges(numbers: Floats, bins: int) -> tuple[float, ...]:
    """Upper ends of all bins but the last: numbers of the column at its quantiles, each once."""
    known = np.sort(numbers[np.isfinite(numbers)])
    if not len(known):
        return ()
    values = np.unique(known)
    if len(values) <= bins:
        return tuple(values[:-1].tolist())
    at = np.ceil(np.arange(1, bins) * len(known) / bins).astype(int) - 1
    ends = np.unique(known[at])
    return tuple(ends[ends < values[-1]].tolist())


@dataclass(frozen=True)
class Column:
    """A column: ``use`` is its role, ``categorical``, ``numeric``, ``bag`` or ``left out``."""

    name: str
    use: str
    values: int
    missing: float  # share of the rows
    reason: str


def inferred(
    there: Sequence[Found],
    roles: Collection[tuple[str, str]],
    *,
    numeric: Collection[str] = (),
    categorical: Collection[str] = (),
    bag: Collection[str] = (),
    ignore: Collection[str] = (),
    name: str = "table",
) -> list[Column]:
    """Every column of the table with what it is taken for; columns with a role first.

    Text, booleans and categories are categorical; numbers with decimals are numeric; whole numbers are categorical up
    to 1,000 different values with 20 rows for each, or where their name ends in "id", and numeric otherwise. Lists of
    text, whole numbers or booleans are bags. Dates, other lists, constant columns and categories whose values do not
    come back are left out, unless they are named.

    >>> frame = pl.DataFrame({"y": [0, 1] * 40, "b": [1.0, 2.5] * 40, "hour": [3, 4] * 40, "x": [0.5, 0.7] * 40})
    >>> [(column.name, column.use) for column in inferred(found(frame), [("click", "y"), ("bid", "b")])]
    [('y', 'click'), ('b', 'bid'), ('hour', 'categorical'), ('x', 'numeric')]

    Args:
        there: what was found in the columns of the table.
        roles: roles with their columns.
        numeric, categorical, bag: columns whose kind is not to be inferred.
        ignore: columns to leave out.
        name: what errors call the table.
    """
    by_name = {each.name: each for each in there}
    check_columns([*(column for _, column in roles), *numeric, *categorical, *bag, *ignore], list(by_name), name)
    named = {"categorical": categorical, "numeric": numeric, "bag": bag}
    kinds = {column: kind for kind, its in named.items() for column in its}
    used: dict[str, str] = {}
    for role, column in roles:
        used[column] = f"{used[column]} and {role}" if column in used else role
    columns = [
        Column(column, role, by_name[column].values, by_name[column].missing, f"named as the {role}")
        for column, role in used.items()
    ]
    columns += [
        Column(each.name, LEFT_OUT, 0, each.missing, "named to be ignored")
        if each.name in ignore
        else _feature(each, kinds.get(each.name), name)
        for each in there
        if each.name not in used
    ]
    if not any(column.use in KINDS for column in columns):
        why = "; ".join(f"{c.name!r}: {c.reason}" for c in columns if c.use == LEFT_OUT)
        raise InputError(f"{name} must have columns to learn from, found none ({why or 'all columns have a role'})")
    return columns


def _feature(column: Found, named: str | None, table: str) -> Column:
    dtype, values, missing = column.dtype, column.values, column.missing
    lists = holds_lists(dtype) and named in (None, "bag")
    odd = (dtype.is_nested() and not lists) or dtype in (pl.Object, pl.Binary)
    if named and (odd or dtype.is_temporal()):
        kind = "lists of text or whole numbers, or text" if named == "bag" else "text or numbers"
        raise InputError(f"{table}: column {column.name!r} must hold {kind}, found {dtype}")
    if odd:
        return Column(column.name, LEFT_OUT, 0, missing, f"neither text nor numbers: {dtype}")
    if values + (missing > 0) < 2:
        return Column(column.name, LEFT_OUT, values, missing, "the same in all rows")
    use, reason = (named, f"named as {named}") if named else _kind(column.name, dtype, values, column.rows)
    if not column.entries:
        return Column(column.name, LEFT_OUT, values, missing, "missing in all rows")
    if use in ("categorical", "bag") and not named and (1 - COME_BACK) * column.entries < values:
        return Column(column.name, LEFT_OUT, values, missing, "nearly every row has a value of its own")
    return Column(column.name, use, values, missing, reason + cut_clause(column))


def cut_clause(column: Found) -> str:
    """How many lists are cut, if any are."""
    return f"; the first {SLOTS} values of {column.cut:,} longer lists" if column.cut else ""


def slots_of(column: Found | Seen) -> int:
    """Room for the longest list, up to ``SLOTS`` values."""
    return min(max(column.longest, 1), SLOTS)


def _kind(name: str, dtype: pl.DataType, values: int, rows: int) -> tuple[str, str]:
    """What a column is taken for, and why."""
    if holds_lists(dtype):
        return "bag", f"lists: {dtype}"
    if dtype.is_temporal():
        return LEFT_OUT, "a date or time; name it as --time to split by it"
    if dtype.is_float() or dtype.is_decimal():
        return "numeric", "numbers with decimals"
    if dtype.is_integer():
        if re.search(r"(^|[\W\d_])(?i:id)[\W\d_]*$|[a-z]I[dD][\W\d_]*$", name):
            return "categorical", "whole numbers whose name says id"
        if values <= FEW and values * ROWS_EACH <= rows:
            return "categorical", f"{values:,} different whole numbers"
        return "numeric", f"{values:,} different whole numbers"
    return "categorical", "true or false" if dtype == pl.Boolean else "text"
