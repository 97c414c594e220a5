"""Types of columns: facts of all rows, block by block, lead to the use of each column and a reason."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from operator import add
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise.data.columns import (
    DROPPED,
    KINDS,
    Column,
    Encoder,
    Numeric,
    exact,
    exploded,
    read_numbers,
    spelled,
    value_counts,
)
from bidwise.data.table_files import Source
from bidwise.errors import InputError
from bidwise.values import MISSING_WORDS, SLOTS, check_columns

_KEPT = 2**18  # different values, up to which their number is exact; beyond it is right within 1 %
FEW, ROWS_EACH = 1000, 20  # most different whole numbers with a bin each, and rows for each of them
COME_BACK = 0.01  # of the rows have a value that was there before, at least, or a category carries no information
NUMERIC = 0.99  # of the cells that are not missing are numbers in a numeric column
CODE = re.compile(
    r"(?:^|[\W\d_])(?i:ids?|codes?|zip|zipcode|postal|postcode|hash|key|type|category|class|group|segment)[\W\d_]*$"
    r"|[a-z](?:I[dD]|Code|Zip|Key|Type|Category|Class|Group|Segment)[\W\d_]*$"
)
CODES = 0.001  # of the numbers of a numeric column begin with a zero, at most
CODE_DIGITS = 5  # of numbers that look like codes, all of the same length
EPOCHS = (10, 13)  # digits of seconds and milliseconds since 1970
TIME = (
    r"^(?:[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9:.]+(?: ?(?:Z|UTC|[+-][0-9:]+))?)?|[0-9]{1,2}:[0-9]{2}(?::[0-9.]+)?"
    r"|[0-9]{1,2}([/.])[0-9]{1,2}[/.][0-9]{4}.*)$"
)


class Seen(NamedTuple):
    """Facts of a column in some rows: numbers of rows, and of values, by type; of a bag the values of all its lists
    count."""

    rows: int = 0
    missing: int = 0  # rows
    cut: int = 0  # lists of more than ``SLOTS`` values
    entries: int = 0  # values that are not missing
    numbers: int = 0  # of these, numbers
    decimals: int = 0  # of these, not whole
    codes: int = 0  # of these, in text with leading zeros
    hashlike: int = 0  # of these, in text such as 30903e74
    commas: int = 0  # not among these, with commas: 1,5 and 1,234.5
    times: int = 0  # in text
    longest: int = 1  # list
    fewest: int = 99  # digits of whole numbers
    most: int = 0
    bad: str = ""  # a value that is no number
    hashes: NDArray[np.uint64] = np.empty(0, np.uint64)  # of the different values

    def with_more(self, block: Seen) -> Seen:
        """The facts of these rows and of others, without hashes."""
        return Seen(*map(add, self[:10], block[:10]))._replace(
            longest=max(self.longest, block.longest),
            fewest=min(self.fewest, block.fewest),
            most=max(self.most, block.most),
            bad=min(filter(None, (self.bad, block.bad)), default=""),
        )


class Sketch:
    """Facts of a column in all rows. Of n different values the k-th smallest hash is near k / n of the largest
    possible: ``_KEPT`` of them tell their number."""

    def __init__(self) -> None:
        self.total = Seen()
        self.hashes, self.waiting, self.limit = [self.total.hashes], 0, np.uint64(2**64 - 1)

    def add(self, block: Seen) -> None:
        """Take in a block."""
        self.total, fresh = self.total.with_more(block), block.hashes[block.hashes <= self.limit]
        self.hashes.append(fresh)
        self.waiting += len(fresh)
        if self.waiting > _KEPT:
            self._merge()

    def _merge(self) -> NDArray[np.uint64]:
        kept = np.sort(np.concatenate(self.hashes))  # np.unique would hash them, ten times as slow
        kept = np.asarray(kept[np.append(True, kept[1:] != kept[:-1])[: len(kept)]][: _KEPT + 1], np.uint64)
        self.hashes, self.waiting = [kept], 0
        if len(kept) > _KEPT:
            self.limit = kept[-1]
        return kept

    @property
    def values(self) -> int:
        """Different values."""
        kept = self._merge()
        return len(kept) if len(kept) <= _KEPT else round(_KEPT / (float(kept[_KEPT]) / 2.0**64))


class Facts:
    """Facts of all columns of a table, block by block, in memory that does not grow with rows.

    >>> from bidwise.data.table_files import open_table
    >>> source = open_table({"y": [0, 1] * 40, "hour": [3, 4] * 40, "x": [0.5, 0.7] * 40, "site": ["a", "b"] * 40})
    >>> [(column.name, column.use) for column in Facts.of(source).columns([("click", "y")])]
    [('y', 'click'), ('hour', 'numeric'), ('x', 'numeric'), ('site', 'categorical')]

    Args:
        source: the table.
        bags: columns of text with several values, and the separator of each.
    """

    def __init__(self, source: Source, *, bags: Mapping[str, str] | None = None) -> None:
        self.source, self.bags = source, {**(bags or {})}
        self.schema = source.schema
        check_columns(list(self.bags), source.columns, source.name)
        self.sketches = {name: Sketch() for name in self.schema}

    @staticmethod
    def of(source: Source, **options: Any) -> Facts:
        """The facts of all rows."""
        facts = Facts(source, **options)
        for block in source.blocks():
            facts.add(facts.seen(block.frame))
        return facts

    def seen(self, frame: pl.DataFrame) -> list[Seen]:
        """The facts of a block; has no side effects, so that threads can call it."""
        return [self._seen(column.alias("value"), name) for name, column in frame.to_dict().items()]

    def add(self, seen: list[Seen]) -> None:
        """Take in a block."""
        for sketch, column in zip(self.sketches.values(), seen, strict=True):
            sketch.add(column)

    @property
    def rows(self) -> int:
        """Rows that were taken in."""
        return next(iter(self.sketches.values())).total.rows

    def _seen(self, column: pl.Series, name: str) -> Seen:
        dtype, rows = column.dtype, len(column)
        if name in self.bags or _lists(dtype):
            entries, row = exploded(column, self.bags.get(name, "|"))
            entries = spelled(entries)
            lengths = np.bincount(row[entries.is_not_null().to_numpy()], minlength=rows)
            values, count = value_counts(entries.drop_nulls())
            empty, cut = int((lengths == 0).sum()), int((lengths > SLOTS).sum())
            facts = Seen(rows, empty, cut, entries=int(count.sum()), longest=int(lengths.max(initial=0)))
            return _described(values, count, facts)
        if _odd(dtype):
            return Seen(rows, column.null_count())
        values, count = value_counts(column.drop_nulls())
        values = values.cast(pl.String) if dtype in (pl.Categorical, pl.Enum) else values  # codes are local to a block
        gone = np.zeros(len(values), bool)
        if values.dtype == pl.String:
            values = values.str.strip_chars()
            gone = values.is_in(MISSING_WORDS).to_numpy()
        elif dtype.is_numeric():
            gone = np.isnan(read_numbers(values)[0])
        known = int(count[~gone].sum())
        return _described(values.filter(~gone), count[~gone], Seen(rows, rows - known, entries=known))

    def columns(
        self,
        roles: Collection[tuple[str, str]],
        *,
        numeric: Collection[str] = (),
        categorical: Collection[str] = (),
        ignore: Collection[str] = (),
        previous: Encoder | None = None,
    ) -> list[Column]:
        """Every column with its use and the reason; columns with a role first. Raises if there is none to learn from.

        With ``previous``, types of columns come from that encoder; other columns are dropped.
        """
        name = self.source.name
        named = dict.fromkeys(self.bags, "bag") | dict.fromkeys(categorical, "categorical")
        named |= dict.fromkeys(numeric, "numeric")
        check_columns([*(column for _, column in roles), *named, *ignore], self.source.columns, name)
        if previous is not None:
            previous.check(self.source.columns, name)
        used: dict[str, str] = {}
        for role, column in roles:
            used[column] = f"{used[column]} and {role}" if column in used else role
        columns = [self._column(column, role, f"named as the {role}") for column, role in used.items()]
        for column in self.schema:
            if column in used:
                continue
            if column in ignore:
                columns.append(replace(self._column(column, DROPPED, "named to be ignored"), values=0))
            elif previous is not None:
                columns.append(self._as_before(column, previous))
            else:
                columns.append(self._feature(column, named.get(column)))
        if not any(column.use in KINDS for column in columns):
            why = "; ".join(f"{c.name!r}: {c.reason}" for c in columns if c.use == DROPPED)
            raise InputError(f"{name} must have columns to learn from, found none ({why or 'all columns have a role'})")
        return columns

    def _column(self, name: str, use: str, reason: str, **more: Any) -> Column:
        sketch = self.sketches[name]
        slots = min(max(sketch.total.longest, 1), SLOTS) if use == "bag" else 1
        missing = sketch.total.missing / max(self.rows, 1)
        more["separator"] = self.bags.get(name, "|")
        return Column(name, use, sketch.values, missing, reason, slots=slots, **more)

    def _as_before(self, name: str, previous: Encoder) -> Column:
        known = next((column for column in previous.columns if column.name == name), None)
        if known is None:
            return self._column(name, DROPPED, "not in the run before")
        how = {} if isinstance(known, Numeric) else {"spelling": known.spelling}
        return self._column(name, known.kind, "as in the run before", **how)

    def _feature(self, name: str, named: str | None) -> Column:
        dtype, seen, values = self.schema[name], self.sketches[name].total, self.sketches[name].values
        odd = _odd(dtype) and not (_lists(dtype) and named in (None, "bag"))
        if named and (odd or dtype.is_temporal()):
            kind = "lists of text or whole numbers, or text" if named == "bag" else "text or numbers"
            raise InputError(f"{self.source.name}: column {name!r} must contain {kind}, found {dtype}")
        dropped = partial(self._column, name, DROPPED)
        if odd:
            return dropped(f"neither text nor numbers: {dtype}")
        if not seen.entries:
            return dropped("missing in all rows")
        if values + (seen.missing > 0) < 2:
            return dropped("the same in all rows")
        column = self._decided(name, named)
        if column.use in ("categorical", "bag") and not named and (1 - COME_BACK) * seen.entries < values:
            return dropped("nearly every row has a value of its own")
        return column

    def _decided(self, name: str, named: str | None) -> Column:
        """A column with values to learn from: lists, categories, dates or numbers."""
        dtype, seen = self.schema[name], self.sketches[name].total
        alike = seen.numbers == seen.entries and not seen.codes and not seen.hashlike
        spelling = "number" if alike else "text"
        category = partial(self._column, name, "categorical", spelling=spelling)
        if named == "bag" or _lists(dtype):
            why = f"lists: {dtype}" if _lists(dtype) else "named as bag"
            why += f"; the first {SLOTS} values of {seen.cut:,} longer lists" if seen.cut else ""
            return self._column(name, "bag", why, spelling=spelling)
        if named == "categorical":
            return category("named as categorical")
        most, numbers = NUMERIC * seen.entries, seen.numbers
        if dtype.is_temporal() or seen.times >= most:
            return self._column(name, DROPPED, "a date or time; name it as --time to split by it")
        commas = numbers < most <= numbers + seen.commas
        if named == "numeric":
            if (2 * numbers < seen.entries or commas) and dtype != pl.Boolean:  # others are missing
                bad = self.sketches[name].total.bad
                odd = f"{seen.entries - numbers:,} of {seen.entries:,} that are not, such as {bad!r}"
                raise InputError(f"{self.source.name}: column {name!r} must contain numbers to be numeric, found {odd}")
            return self._numbers(name, "named as numeric")
        if commas:
            fix = "write decimals with a point, thousands without a comma, or name the column --categorical"
            return self._column(name, DROPPED, f"numbers with a comma; {fix}")
        if dtype == pl.Boolean:
            return category("true or false")
        numbers -= seen.hashlike if 2 * seen.decimals < numbers else 0
        if numbers < most or seen.codes > CODES * seen.entries:
            return category("text")
        if seen.decimals:
            return self._numbers(name, "numbers with decimals")
        if CODE.search(name):
            return category("whole numbers with a name of codes")
        values = self.sketches[name].values
        few = values * ROWS_EACH <= self.rows
        if seen.fewest == seen.most >= CODE_DIGITS and seen.fewest not in EPOCHS and few:
            return category(f"whole numbers of {seen.fewest} digits each look like codes")
        if dtype == pl.String and not self.source.text:
            return category("whole numbers as text")
        if values <= FEW and few:
            return self._numbers(name, f"{values:,} different whole numbers, a bin for each", steps="values")
        return self._numbers(name, f"{values:,} different whole numbers")

    def _numbers(self, name: str, reason: str, **more: Any) -> Column:
        """A column of numbers; the reason names the cells that are not."""
        seen, bad = self.sketches[name].total, self.sketches[name].total.bad
        if count := seen.entries - seen.numbers:
            reason += f"; {count:,} {'value is' if count == 1 else 'values are'} no number and missing, such as {bad!r}"
        return self._column(name, "numeric", reason, **more)


def _lists(dtype: pl.DataType) -> bool:
    """Whether values are lists of names: text, whole numbers or booleans."""
    inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else pl.Float64()
    return inner.is_integer() or inner in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null)


def _odd(dtype: pl.DataType) -> bool:
    """Whether values are neither text nor numbers nor dates."""
    return dtype.is_nested() or dtype in (pl.Object, pl.Binary)


def _described(values: pl.Series, count: NDArray[np.int64], facts: Seen) -> Seen:
    """Facts of different values, with how often each is there."""
    hashes, text = values.hash(seed=0).to_numpy(), values.dtype == pl.String
    if not text and not values.dtype.is_numeric():
        return facts._replace(hashes=hashes)

    def like(pattern: str, which: pl.Series = values, times: NDArray[np.int64] = count) -> int:
        return int(times[which.str.contains(pattern).to_numpy()].sum())

    numbers = (values.cast(pl.Float64, strict=False) if text else exact(values)).to_numpy()
    read, fraction = ~np.isnan(numbers), ~np.isfinite(numbers) | (numbers != np.round(numbers))
    found: dict[str, Any] = {"numbers": int(count[read].sum()), "decimals": int(count[read & fraction].sum())}
    if not fraction.all():
        sizes = np.abs(numbers[~fraction])
        found |= {"fewest": len(f"{sizes.min():.0f}"), "most": len(f"{sizes.max():.0f}")}
    if text:
        some = values.head(1000)
        if some.str.contains(TIME).any():
            found["times"] = like(TIME)
        if some.str.contains(",", literal=True).any():
            found["commas"] = like(r"^[+-]?(?:[0-9]+,)+[0-9]+(?:\.[0-9]*)?$")
        if read.any():
            some, times = values.filter(read), count[read]
            found["codes"] = like("^[+-]?0[0-9]", some, times)
            found["hashlike"] = like("^[0-9]+[eE][0-9]+$", some, times)
        if not read.all():
            found["bad"] = str(values.filter(~read).min())  # the same in blocks of any size
    return facts._replace(hashes=hashes, **found)
