"""The one encoder: the type of a column, decided at training and stored, and its values as ids and dense numbers.

Facts of all rows lead to a :class:`Column`, training rows to an :class:`Encoder`. Later steps do not guess.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise import json_files
from bidwise.data.store import Field, spans
from bidwise.data.table_files import Block, Source, check_columns, open_table
from bidwise.errors import InputError, check_name, check_whole
from bidwise.run_folder import whole_file, write_json
from bidwise.values import (
    BOOLEANS,
    EXACT,
    FIRST,
    MISSING,
    MISSING_WORDS,
    PLAIN,
    RARE,
    SLOTS,
    TRUTHS,
    WHOLE,
    Floats,
    Vocabulary,
    missing_numbers,
)

FORMAT = "bidwise encoder"
VERSION = 2
ENCODER_FILES = ("encoder.json", "vocabulary.parquet")
DROPPED = "dropped"  # the use of a column that is not learned from
SPELLINGS = ("text", "number")
SERVED = (pl.String, pl.Boolean, pl.Float64, pl.Null)  # and whole numbers: types that plain Python spells alike
SHORT = 4000  # rows, up to which looking up one value after the other is faster
KEPT_WORDS = 2**18  # words, up to which they are kept as Python's own text as well, of 100 bytes each
MANY = 0.25  # different values / rows, above which every row is looked up by itself
KEPT = 2**18  # different values, up to which their number is exact; beyond it is right within 1 %
PENDING = 2**20  # counted values that wait to be merged
FEW, ROWS_EACH = 1000, 20  # most different whole numbers with a bin each, and rows for each of them
COME_BACK = 0.01  # of the rows have a value that was there before, at least, or a category carries no information
NUMERIC = 0.99  # of the cells that are not missing are numbers in a numeric column
KNOTS = 256
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


# Values as text and as numbers


def spelled(column: pl.Series, spelling: str = "text", missing: Collection[str] = ()) -> pl.Series:
    """Values as text, null if they are missing: the same text for the same value in any file.

    >>> [spelled(pl.Series(values)).to_list() for values in ([3.0, 2.5], [3], [" 3.0", "NA"], [True])]
    [['3', '2.5'], ['3'], ['3.0', None], ['true']]
    >>> spelled(pl.Series(["3.0", "007", "1e5"]), "number").to_list()
    ['3', '007', '100000']
    """
    column, dtype = column.alias("value"), column.dtype  # polars takes a name such as ^a.*$ for a pattern
    if dtype.is_float() or dtype.is_decimal():
        text = _float_text(_exact(column).fill_nan(None))
    elif dtype == pl.String:
        text = column.str.strip_chars()
        text = _number_text(text) if spelling == "number" else text
    else:
        text = column.cast(pl.String)
    return text.replace(dict.fromkeys([*MISSING_WORDS, *missing]) | BOOLEANS)


def _exact(column: pl.Series) -> pl.Series:
    """Numbers with decimals as text files have them: 0.1 for the nearest number of 32 bits too."""
    return column if column.dtype == pl.Float64 else column.cast(pl.String).cast(pl.Float64)


def _float_text(numbers: pl.Series) -> pl.Series:
    whole = (numbers == numbers.round()) & (numbers.abs() < EXACT)
    text = numbers.cast(pl.String)
    return text.zip_with(~whole.fill_null(False), numbers.cast(pl.Int64, strict=False).cast(pl.String))


def _number_text(text: pl.Series) -> pl.Series:
    """Numbers in text, such as 7.0 and 1e5, like the number."""
    whole = text.str.extract(WHOLE).replace("-0", "0")
    rest = text.filter(whole.is_null() & text.is_not_null())
    plain = rest.str.contains(PLAIN)
    number = _float_text(rest.filter(plain).cast(pl.Float64))
    found = whole.fill_null(text)
    places = (whole.is_null() & text.is_not_null()).arg_true().filter(plain)
    return found.scatter(places, number) if len(places) else found


def read_numbers(column: pl.Series, decimal: str = ".", missing: Collection[str] = ()) -> tuple[Floats, pl.Series]:
    """Values as float64, NaN if they are missing or no numbers, and which are no numbers."""
    column, dtype = column.alias("value"), column.dtype
    bad = pl.Series([False]).new_from_index(0, len(column))
    if dtype == pl.Categorical or isinstance(dtype, pl.Enum):
        column, dtype = column.cast(pl.String), pl.String()
    if dtype == pl.String:
        read = column.cast(pl.Float64, strict=False)
        if read.null_count() > column.null_count():  # the rest is trimmed, a word, or no number
            places = (read.is_null() & column.is_not_null()).arg_true()
            text = column.gather(places).str.strip_chars()
            rest = (text if decimal == "." else text.str.replace(decimal, ".", literal=True)).cast(
                pl.Float64, strict=False
            )
            rest = rest.fill_null(text.str.to_lowercase().replace_strict(TRUTHS, default=None, return_dtype=pl.Float64))
            odd = rest.is_null() & ~text.is_in([*MISSING_WORDS, *missing])
            read, bad = read.scatter(places, rest), bad.scatter(places, odd)
    elif dtype.is_numeric() or dtype in (pl.Boolean, pl.Null):
        read = _exact(column) if dtype.is_float() or dtype.is_decimal() else column.cast(pl.Float64)
    else:
        read, bad = pl.Series([None], dtype=pl.Float64).new_from_index(0, len(column)), column.is_not_null()
    numbers: Floats = read.to_numpy(writable=True)  # null becomes NaN
    if len(words := missing_numbers(missing)):
        numbers[np.isin(numbers, words)] = np.nan
    return numbers, bad


def _lists(dtype: pl.DataType) -> bool:
    """Whether values are lists of names: text, whole numbers or booleans."""
    inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else pl.Float64()
    return inner.is_integer() or inner in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null)


def exploded(column: pl.Series, separator: str) -> tuple[pl.Series, NDArray[np.int64]]:
    """The values of lists one after the other, and the row of each.

    >>> values, rows = exploded(pl.Series(["a| b|a", None, "c"]), "|")
    >>> values.to_list(), rows.tolist()
    (['a', ' b', 'a', 'c'], [0, 0, 0, 2])
    """
    column = column.alias("value")
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    elif not isinstance(column.dtype, pl.List):
        column = (column if column.dtype == pl.String else spelled(column)).str.split(separator)
    lengths = column.list.len().fill_null(0).to_numpy()
    return column.filter(lengths > 0).explode(), np.repeat(np.arange(len(column)), lengths)


# Types of columns


@dataclass(frozen=True)
class Column:
    """A column of the table and its use."""

    name: str
    use: str  # its role, a kind of KINDS, or DROPPED
    values: int  # different ones
    missing: float  # share of the rows
    reason: str
    spelling: str = "text"  # of categories: "text" as written, "number" if 7, 7.0 and "7.0" are the same
    steps: str = "bins"  # of numbers: "bins" of equally many rows, or one for each of the "values"
    decimal: str = "."  # of numbers in text
    slots: int = 1  # of bags


class Seen(NamedTuple):
    """Facts of a column in a block."""

    hashes: NDArray[np.uint64]  # of the different values
    rows: int
    missing: int  # rows
    entries: int  # values that are not missing; of a bag, of all its lists
    numbers: int = 0  # of these, numbers
    decimals: int = 0  # of these, not whole
    codes: int = 0  # of these, in text with leading zeros
    hashlike: int = 0  # of these, in text such as 30903e74
    commas: int = 0  # numbers with a decimal comma
    thousands: int = 0  # of these, with three digits behind it
    times: int = 0  # in text
    digits: tuple[int, int] = (99, 0)  # of whole numbers, fewest and most
    longest: int = 1  # list
    cut: int = 0  # lists of more than ``SLOTS`` values
    bad: tuple[str, ...] = ()  # a value that is no number, with its place


SUMMED = (
    "rows",
    "missing",
    "entries",
    "numbers",
    "decimals",
    "codes",
    "hashlike",
    "commas",
    "thousands",
    "times",
    "cut",
)


class Sketch:
    """Facts of a column in all rows. Of n different values the k-th smallest hash is near k / n of the largest
    possible: ``KEPT`` of them tell their number."""

    def __init__(self) -> None:
        self.total = Seen(np.empty(0, np.uint64), 0, 0, 0)
        self.hashes, self.waiting, self.limit = [self.total.hashes], 0, np.uint64(2**64 - 1)

    def add(self, block: Seen) -> None:
        """Take in a block."""
        total = self.total
        summed = {name: getattr(total, name) + getattr(block, name) for name in SUMMED}
        self.total = total._replace(
            **summed,
            digits=(min(total.digits[0], block.digits[0]), max(total.digits[1], block.digits[1])),
            longest=max(total.longest, block.longest),
            bad=(total.bad + block.bad)[:3],
        )
        fresh = block.hashes[block.hashes <= self.limit]
        self.hashes.append(fresh)
        self.waiting += len(fresh)
        if self.waiting > KEPT:
            self._merge()

    def _merge(self) -> NDArray[np.uint64]:
        kept = np.sort(np.concatenate(self.hashes))  # np.unique would hash them, ten times as slow
        kept = np.asarray(kept[np.append(True, kept[1:] != kept[:-1])[: len(kept)]][: KEPT + 1], np.uint64)
        self.hashes, self.waiting = [kept], 0
        if len(kept) > KEPT:
            self.limit = kept[-1]
        return kept

    @property
    def values(self) -> int:
        """Different values."""
        kept = self._merge()
        return len(kept) if len(kept) <= KEPT else round(KEPT / (float(kept[KEPT]) / 2.0**64))


class Facts:
    """Facts of all columns of a table, block by block, in memory that does not grow with rows.

    >>> source = open_table({"y": [0, 1] * 40, "hour": [3, 4] * 40, "x": [0.5, 0.7] * 40, "site": ["a", "b"] * 40})
    >>> [(column.name, column.use) for column in Facts.of(source).columns([("click", "y")])]
    [('y', 'click'), ('hour', 'numeric'), ('x', 'numeric'), ('site', 'categorical')]

    Args:
        source: the table.
        bags: columns of text with several values, and the separator of each.
        missing: words that mean missing, further to ``MISSING_WORDS``.
    """

    def __init__(self, source: Source, *, bags: Mapping[str, str] | None = None, missing: Sequence[str] = ()) -> None:
        self.source, self.bags, self.missing = source, {**(bags or {})}, tuple(missing)
        self.schema = source.schema
        check_columns(list(self.bags), source.columns, source.name)
        self.sketches = {name: Sketch() for name in self.schema}

    @staticmethod
    def of(source: Source, **options: Any) -> Facts:
        """The facts of all rows."""
        facts = Facts(source, **options)
        for block in source.blocks():
            facts.add(facts.seen(block))
        return facts

    def seen(self, block: Block) -> list[Seen]:
        """The facts of a block; has no side effects, so that threads can call it."""
        return [self._seen(column, block) for column in block.frame]

    def add(self, seen: list[Seen]) -> None:
        """Take in a block."""
        for sketch, column in zip(self.sketches.values(), seen, strict=True):
            sketch.add(column)

    @property
    def rows(self) -> int:
        """Rows that were taken in."""
        return next(iter(self.sketches.values())).total.rows

    def _seen(self, column: pl.Series, block: Block) -> Seen:
        dtype = column.dtype
        if column.name in self.bags or _lists(dtype):
            return self._seen_lists(column)
        if dtype.is_nested() or dtype in (pl.Object, pl.Binary):
            return Seen(np.empty(0, np.uint64), len(column), column.null_count(), 0)
        counts = column.alias("value").value_counts(name="count")
        values, count = counts["value"], counts["count"].to_numpy().astype(np.int64)
        if dtype == pl.String:
            values = values.str.strip_chars()
            values = values.set(values.is_in([*MISSING_WORDS, *self.missing]), None)
        elif dtype == pl.Categorical or isinstance(dtype, pl.Enum):
            values = values.cast(pl.String)  # codes are local to a block
        elif dtype.is_numeric():
            number = pl.Series(read_numbers(values, missing=self.missing)[0]).fill_nan(None)
            values = values.set(number.is_null(), None)
        known = values.is_not_null()
        values, count = values.filter(known), count[known.to_numpy()]
        entries = int(count.sum())
        found = Seen(values.hash(seed=0).unique().to_numpy(), len(column), len(column) - entries, entries)
        if values.dtype == pl.String:
            return self._seen_text(found, values, count, column, block)
        if not dtype.is_numeric():
            return found
        return _seen_numbers(found, _exact(values) if dtype.is_float() or dtype.is_decimal() else values, count)

    def _seen_lists(self, column: pl.Series) -> Seen:
        values, rows = exploded(column, self.bags.get(column.name, "|"))
        text = spelled(values, missing=self.missing)
        lengths = np.bincount(rows[text.is_not_null().to_numpy()], minlength=len(column))
        longest, cut = int(lengths.max(initial=0)), int((lengths > SLOTS).sum())
        counts = text.drop_nulls().alias("value").value_counts(name="count")
        values, missing = counts["value"], int((lengths == 0).sum())
        found = Seen(values.hash(seed=0).to_numpy(), len(column), missing, int(lengths.sum()), longest=longest, cut=cut)
        return self._seen_text(found, values, counts["count"].to_numpy(), None, None)

    def _seen_text(
        self, found: Seen, values: pl.Series, count: NDArray[np.int64], column: pl.Series | None, block: Block | None
    ) -> Seen:
        """Facts of different texts with their counts."""

        def total(which: pl.Series) -> int:
            return int(count[which.to_numpy()].sum())

        numbers = values.cast(pl.Float64, strict=False).fill_nan(None)
        read = numbers.is_not_null()
        some = values.head(1000)
        times = total(values.str.contains(TIME)) if some.str.contains(TIME).any() else 0
        commas = thousands = 0
        if some.str.contains(",", literal=True).any():
            comma = values.str.contains(r"^[+-]?[0-9]*,[0-9]+$")
            commas, thousands = total(comma), total(comma & values.str.contains(r"^[+-]?[1-9][0-9]{0,2},[0-9]{3}$"))
        bad: tuple[str, ...] = ()
        if block is not None and column is not None and read.any() and not read.all():
            column, odd = column.alias("value"), values.filter(~read)
            odd = odd if 2 * total(read) > found.entries else odd.sort()[:1]  # all of a few, one of many
            row = int(column.str.strip_chars().is_in(odd.implode()).fill_null(False).arg_max() or 0)
            bad = (
                f"{column[row].strip()!r} in {block.where(row).rpartition('/')[2]}",
            )  # runs are passed on: no folders
        found = found._replace(times=times, commas=commas, thousands=thousands, bad=bad)
        if not read.any():
            return found
        text, numbers, count = values.filter(read), numbers.filter(read), count[read.to_numpy()]
        zeros = text.str.contains("^[+-]?0[0-9]")
        hashlike = text.str.contains("(?i)e") & text.str.contains("^[0-9]+[eE][0-9]+$")
        found = _seen_numbers(found, numbers, count)
        return found._replace(codes=total(zeros), hashlike=total(hashlike))

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
        return Column(name, use, sketch.values, sketch.total.missing / max(self.rows, 1), reason, **more)

    def _as_before(self, name: str, previous: Encoder) -> Column:
        known = next((column for column in previous.columns if column.name == name), None)
        if known is None:
            return self._column(name, DROPPED, "not in the run before")
        more: dict[str, Any] = (
            {"decimal": known.decimal} if isinstance(known, Numeric) else {"spelling": known.spelling}
        )
        if isinstance(known, Bag):
            more["slots"] = min(max(self.sketches[name].total.longest, 1), SLOTS)
        return self._column(name, kind_of(known), "as in the run before", **more)

    def _feature(self, name: str, named: str | None) -> Column:
        dtype, seen, values = self.schema[name], self.sketches[name].total, self.sketches[name].values
        lists = _lists(dtype) and named in (None, "bag")
        odd = (dtype.is_nested() and not lists) or dtype in (pl.Object, pl.Binary)
        if named and (odd or dtype.is_temporal()):
            kind = "lists of text or whole numbers, or text" if named == "bag" else "text or numbers"
            raise InputError(f"{self.source.name}: column {name!r} must contain {kind}, found {dtype}")
        if odd:
            return self._column(name, DROPPED, f"neither text nor numbers: {dtype}")
        if not seen.entries:
            return self._column(name, DROPPED, "missing in all rows")
        if values + (seen.missing > 0) < 2:
            return self._column(name, DROPPED, "the same in all rows")
        use, reason, more = self._kind(name, dtype, seen, values, named)
        if use in ("categorical", "bag") and not named and (1 - COME_BACK) * seen.entries < values:
            return self._column(name, DROPPED, "nearly every row has a value of its own")
        return self._column(name, use, reason, **more)

    def _kind(
        self, name: str, dtype: pl.DataType, seen: Seen, values: int, named: str | None
    ) -> tuple[str, str, dict[str, Any]]:
        """The use of a column, the reason, and further stored facts."""
        entries, plain = seen.entries, seen.numbers
        alike = plain == entries and not seen.codes and not seen.hashlike
        spelling = {"spelling": "number" if alike else "text"}
        if named == "bag" or _lists(dtype):
            cut = f"; the first {SLOTS} values of {seen.cut:,} longer lists" if seen.cut else ""
            slots = min(max(seen.longest, 1), SLOTS)
            return "bag", (f"lists: {dtype}" if _lists(dtype) else "named as bag") + cut, spelling | {"slots": slots}
        if named == "categorical":
            return "categorical", "named as categorical", spelling
        if dtype.is_temporal() or seen.times >= NUMERIC * entries:
            return DROPPED, "a date or time; name it as --time to split by it", {}
        comma = seen.commas and seen.commas + plain >= NUMERIC * entries
        if named != "numeric":
            plain -= seen.hashlike if 2 * seen.decimals < plain else 0
            plain *= seen.codes <= CODES * entries
            if seen.commas == seen.thousands and comma:
                fix = "write them without it, or name the column --numeric if it is a decimal one"
                return DROPPED, f"numbers with a comma that may separate thousands, such as 1,234; {fix}", {}
            if dtype == pl.Boolean or (plain < NUMERIC * entries and not comma):
                return "categorical", "true or false" if dtype == pl.Boolean else "text", spelling
        elif plain < NUMERIC * entries and not comma and dtype != pl.Boolean:
            found = f"such as {seen.bad[0]}" if seen.bad else "such as text"
            share = f"{entries - plain:,} of {entries:,} that are not, {found}"
            raise InputError(f"{self.source.name}: column {name!r} must contain numbers to be numeric, found {share}")
        count = entries - seen.numbers - seen.commas
        odd = ("s are" if count > 1 else " is") + f" no number and missing, {'such as ' if count > 1 else ''}"
        bad = f"; {count:,} value{odd}{', '.join(seen.bad)}" if count and seen.bad else ""
        more = {"decimal": "," if comma else "."}
        if named == "numeric":
            return "numeric", "named as numeric" + bad, more
        if seen.decimals or comma:
            return "numeric", f"numbers with {'a decimal comma' if comma else 'decimals'}" + bad, more
        if CODE.search(name):
            return "categorical", "whole numbers with a name of codes", spelling
        few = values * ROWS_EACH <= self.rows
        digits = seen.digits[0] if seen.digits[0] == seen.digits[1] else 0
        if digits >= CODE_DIGITS and digits not in EPOCHS and few:
            return "categorical", f"whole numbers of {digits} digits each look like codes", spelling
        if dtype == pl.String and not self.source.text:
            return "categorical", "whole numbers as text", spelling
        if values <= FEW and few:
            return "numeric", f"{values:,} different whole numbers, a bin for each" + bad, more | {"steps": "values"}
        return "numeric", f"{values:,} different whole numbers" + bad, more


def _seen_numbers(found: Seen, numbers: pl.Series, count: NDArray[np.int64]) -> Seen:
    """Facts of different numbers with their counts."""
    fractions = np.zeros(len(numbers), bool)
    if numbers.dtype.is_float():
        fractions = ~(numbers == numbers.round()).to_numpy() | numbers.is_infinite().to_numpy()
    digits, whole = (99, 0), numbers.filter(~fractions)
    if len(whole):
        sizes = whole.cast(pl.Float64).abs().to_numpy()
        digits = (len(f"{sizes.min():.0f}"), len(f"{sizes.max():.0f}"))
    return found._replace(numbers=int(count.sum()), decimals=int(count[fractions].sum()), digits=digits)


# Columns that are learned


@dataclass(frozen=True, eq=False)
class Categorical:
    """A column of categories: id 0 for rare or unseen values, 1 for missing ones, then the vocabulary.

    Words are a series, less than half the size of Python's own text: there may be tens of millions.
    """

    name: str
    vocabulary: pl.Series
    spelling: str = "text"
    unknown: float = 0.0  # share of the training rows' values that have id 0
    missing: tuple[str, ...] = ()  # words, further to MISSING_WORDS

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", pl.Series("word", self.vocabulary, dtype=pl.String))
        object.__setattr__(self, "missing", tuple(self.missing))
        check_name(f"spelling of column {self.name!r}", self.spelling, SPELLINGS)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Categorical) or type(other) is not type(self):
            return False
        return self.vocabulary.equals(other.vocabulary) and self.plain() == other.plain()

    def plain(self) -> dict[str, Any]:
        """Everything but the vocabulary."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "vocabulary"}

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
        return Vocabulary(self.vocabulary.to_list(), self.spelling, self.missing)

    def ids(self, column: pl.Series) -> NDArray[np.int32]:
        """The id of every value."""
        plain = column.dtype in SERVED or column.dtype.is_integer()
        if plain and len(column) <= SHORT and len(self.vocabulary) <= KEPT_WORDS:
            return np.array(self._words.ids(column.to_list()), dtype=np.int32)
        if column.dtype.is_nested() or column.dtype in (pl.Object, pl.Binary):
            return np.where(column.is_null().to_numpy(), MISSING, RARE).astype(np.int32)
        column = (column.cast(pl.String) if column.dtype == pl.Null else column).alias("value")
        values = column.unique()
        if len(values) > MANY * len(column):
            return self._found(spelled(column, self.spelling, self.missing))
        known = pl.DataFrame({"value": values, "id": self._found(spelled(values, self.spelling, self.missing))})
        rows = column.to_frame().join(known, on="value", how="left", nulls_equal=True, maintain_order="left")
        return np.array(rows["id"].to_numpy(), dtype=np.int32)

    def _found(self, text: pl.Series) -> NDArray[np.int32]:
        """The id of every text: the id of the word with its hash, if it is the same word."""
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


@dataclass(frozen=True, eq=False)
class Bag(Categorical):
    """A column of lists of categories, or of text with a ``separator`` between them: the ids of the first ``slots``
    values, and 1 if there are fewer."""

    slots: int = 1
    separator: str = "|"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(f"slots of column {self.name!r}", self.slots, 1, SLOTS)
        if not self.separator:
            raise InputError(f"separator of column {self.name!r} must be one character or more, found none")

    @property
    def field(self) -> Field:
        """The column as models know it."""
        return Field(self.name, FIRST + len(self.vocabulary), self.slots)

    def ids(self, column: pl.Series) -> NDArray[np.int32]:
        """The ids of every list, ``(rows, slots)``."""
        values, row = exploded(column, self.separator)
        found = super().ids(values)
        found, row = found[found != MISSING], row[found != MISSING]
        slot = np.arange(len(row)) - np.searchsorted(row, row)
        first = slot < self.slots
        ids = np.full((len(column), self.slots), MISSING, np.int32)
        ids[row[first], slot[first]] = found[first]
        return ids


@dataclass(frozen=True)
class Numeric:
    """A column of numbers, as bins and as one dense value.

    Id 1 is for missing numbers, 2 + k for those above ``edges[k - 1]`` and up to ``edges[k]``; 0 is not used. The dense
    value is the normal score of a number's rank among the training rows, interpolated between ``knots``.
    """

    name: str
    edges: tuple[float, ...]
    knots: tuple[float, ...] = (0.0,)
    scores: tuple[float, ...] = (0.0,)  # of the knots
    low: float = 0.0  # the range of the training rows
    high: float = 0.0
    decimal: str = "."
    unknown: float = 0.0  # share of the training rows' values that are no numbers
    missing: tuple[str, ...] = ()  # words, further to MISSING_WORDS

    @property
    def field(self) -> Field:
        """The column as models know it."""
        return Field(self.name, FIRST + len(self.edges) + 1)

    def ids(self, numbers: Floats) -> NDArray[np.int32]:
        """The id of every number."""
        ids = (FIRST + np.searchsorted(np.asarray(self.edges, dtype=np.float64), numbers)).astype(np.int32)
        ids[np.isnan(numbers)] = MISSING
        return ids

    def dense(self, numbers: Floats) -> NDArray[np.float32]:
        """The score of every number, and 1 if it is missing: ``(rows, 2)``."""
        missing = np.isnan(numbers)
        scores = np.interp(np.where(missing, 0.0, numbers), self.knots, self.scores)
        return np.stack([np.where(missing, 0.0, scores), missing], axis=1).astype(np.float32)


KINDS: dict[str, type[Categorical | Numeric]] = {"categorical": Categorical, "numeric": Numeric, "bag": Bag}


def kind_of(column: Categorical | Numeric) -> str:
    """The kind of a column: ``categorical``, ``numeric`` or ``bag``."""
    return next(name for name, kind in KINDS.items() if type(column) is kind)


@dataclass(frozen=True)
class Encoded:
    """Rows as numbers."""

    ids: NDArray[np.int32]  # (rows, encoder.width)
    dense: NDArray[np.float32] | None  # (rows, numeric columns, 2): the score, and 1 if it is missing
    filled: NDArray[np.int64]  # of each column, values that are not missing
    unknown: NDArray[np.int64]  # of these, rare or unseen, out of the range of training, or no number


@dataclass(frozen=True)
class Encoder:
    """How columns of a table become ids and dense numbers, in this order.

    >>> rows = pl.DataFrame({"site": ["a", "a", "b", "b", "c"], "age": [1.5, 2.0, 3.0, None, 5.0]})
    >>> columns = [Column("site", "categorical", 3, 0.0, ""), Column("age", "numeric", 4, 0.2, "")]
    >>> encoder = Encoder.fit(rows, columns, min_count=2, bins=2)
    >>> encoder.encode(pl.DataFrame({"site": ["b", "?", None], "age": ["0", "9.0", "old"]})).ids.tolist()
    [[3, 2], [0, 3], [1, 1]]
    """

    columns: tuple[Categorical | Numeric, ...]

    @staticmethod
    def fit(table: Any, columns: Sequence[Column], *, min_count: int, bins: int, **options: Any) -> Encoder:
        """Learn from a table of training rows only; ``options`` as in :class:`Learner`."""
        learner = Learner(columns, **options)
        learner.add(learner.counted(open_table(table).frame(learner.names)))
        return learner.encoder(min_count=min_count, bins=bins)

    @property
    def names(self) -> list[str]:
        """The columns that a table must have."""
        return [column.name for column in self.columns]

    @property
    def fields(self) -> list[Field]:
        """The columns as models know them."""
        return [column.field for column in self.columns]

    @cached_property
    def spans(self) -> list[slice]:
        """Which columns of the ids each column of the table has."""
        return spans([field.slots for field in self.fields])

    @property
    def width(self) -> int:
        """Columns of the ids."""
        return max((int(at.stop) for at in self.spans), default=0)

    @property
    def numeric(self) -> list[Numeric]:
        """Columns with dense values, in their order."""
        return [column for column in self.columns if isinstance(column, Numeric)]

    def check(self, columns: Sequence[str], table: str = "table") -> None:
        """Raise unless all columns are there; an error names every one that is not."""
        missing = [name for name in self.names if name not in columns]
        if missing:
            near = get_close_matches(missing[0], columns, n=1)
            hint = f"is it {near[0]!r} now?" if near else f"the model needs {'it' if len(missing) == 1 else 'them'}"
            raise InputError(f"{table} has no column {', '.join(map(repr, missing))}; {hint}")

    def encode(self, rows: pl.DataFrame, *, dense: bool = False) -> Encoded:
        """Ids of rows, and dense values if wanted; no value is an error."""
        self.check(rows.columns)
        ids = np.empty((len(rows), self.width), dtype=np.int32)
        scores: list[NDArray[np.float32]] = []
        filled, unknown = np.zeros((2, len(self.columns)), dtype=np.int64)
        for number, (at, column) in enumerate(zip(self.spans, self.columns, strict=True)):
            if isinstance(column, Numeric):
                numbers, bad = read_numbers(rows[column.name], column.decimal, column.missing)
                ids[:, at.start] = column.ids(numbers)
                outside = (numbers < column.low) | (numbers > column.high)
                odd = int(bad.sum() or 0)
                filled[number] = len(rows) - np.isnan(numbers).sum() + odd
                unknown[number] = outside.sum() + odd
                if dense:
                    scores.append(column.dense(numbers))
            else:
                found = column.ids(rows[column.name]).reshape(len(rows), at.stop - at.start)
                ids[:, at] = found
                filled[number], unknown[number] = (found != MISSING).sum(), (found == RARE).sum()
        together = np.stack(scores, axis=1) if scores else np.empty((len(rows), 0, 2), np.float32)
        return Encoded(ids, together if dense else None, filled, unknown)

    def extended(self, fitted: Encoder) -> Encoder:
        """The encoder with the words of one that was fitted to new rows, after its own; all ids, bins and knots stay.

        >>> old, new = (Encoder((Categorical("site", words),)) for words in (["a", "b"], ["b", "c", "d"]))
        >>> old.extended(new).columns[0].vocabulary.to_list()
        ['a', 'b', 'c', 'd']
        """
        known, columns = {column.name: column for column in fitted.columns}, []
        for column in self.columns:
            new = known[column.name]
            if isinstance(column, Categorical) and isinstance(new, Categorical):
                words = column.vocabulary
                more = new.vocabulary.filter(~new.vocabulary.is_in(words.implode()))
                column = replace(column, vocabulary=pl.concat([words, more]), unknown=new.unknown)
                if isinstance(column, Bag):  # lists may have become longer
                    column = replace(column, slots=max(column.slots, new.field.slots))
            columns.append(column)
        return Encoder(tuple(columns))

    def to_json(self, *, words: bool = True) -> dict[str, Any]:
        """The input of :meth:`from_json`; without ``words`` each vocabulary is the number of its words."""
        columns = []
        for column in self.columns:
            plain = json_files.to_json(column.plain() if isinstance(column, Categorical) else column)
            if isinstance(column, Categorical):
                plain["vocabulary"] = column.vocabulary.to_list() if words else len(column.vocabulary)
            columns.append({"kind": kind_of(column), **plain})
        return {"format": FORMAT, "version": VERSION, "columns": columns}

    @staticmethod
    def from_json(data: Any, name: str = "encoder", words: pl.Series | None = None) -> Encoder:
        """The encoder that :meth:`to_json` wrote, with the ``words`` of all columns if it has only their numbers."""
        if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
            raise InputError(f"{name} must be an encoder of version {VERSION} that bidwise wrote, found something else")
        made, start = [], 0
        try:
            for column in [{**column} for column in data["columns"]]:
                if (vocabulary := column.get("vocabulary")) is not None and words is not None:
                    column["vocabulary"] = words[start : start + vocabulary]
                    start += vocabulary
                elif vocabulary is not None:
                    column["vocabulary"] = pl.Series("word", vocabulary, dtype=pl.String)
                made.append(json_files.from_json(KINDS[column.pop("kind")], column, name))
        except (KeyError, TypeError) as error:
            raise InputError(f"{name} must be whole, found that {error!r} is missing or of no use") from None
        if words is not None and start != len(words):
            raise InputError(f"{name} must fit {ENCODER_FILES[1]}, found {start:,} words and {len(words):,} there")
        return Encoder(tuple(made))

    def write(self, folder: Path) -> None:
        """Write ``encoder.json`` and ``vocabulary.parquet`` into a folder."""
        words = [
            column.vocabulary.to_frame().select(pl.lit(column.name).cast(pl.Categorical).alias("column"), "word")
            for column in self.columns
            if isinstance(column, Categorical)
        ]
        with whole_file(folder / ENCODER_FILES[1]) as part:
            pl.concat([pl.DataFrame(schema={"column": pl.Categorical, "word": pl.String}), *words]).write_parquet(part)
        write_json(folder / ENCODER_FILES[0], self.to_json(words=False))

    @staticmethod
    def read(folder: Path) -> Encoder:
        """The encoder in a folder."""
        path, vocabulary = (folder / name for name in ENCODER_FILES)
        data = json_files.read_json(path)
        try:
            words = pl.read_parquet(vocabulary, columns=["word"], glob=False)["word"]
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InputError(f"{vocabulary} must be a vocabulary that bidwise wrote, found: {error}") from None
        return Encoder.from_json(data, str(path), words)


# Learning block by block


class Counts(NamedTuple):
    """A column in a block of training rows."""

    words: pl.DataFrame | None = None  # of categories: value and count
    sample: Floats | None = None  # of numbers
    low: float = np.inf
    high: float = -np.inf
    filled: int = 0
    bad: int = 0


class Learner:
    """Vocabularies, bins and knots from training rows, block by block.

    Args:
        columns: as :meth:`Facts.columns` found them; roles and dropped ones are skipped.
        bags: separators, as in :class:`Facts`.
        missing: words that mean missing, further to ``MISSING_WORDS``.
    """

    def __init__(
        self, columns: Sequence[Column], *, bags: Mapping[str, str] | None = None, missing: Sequence[str] = ()
    ) -> None:
        self.columns = [column for column in columns if column.use in KINDS]
        self.bags, self.missing = {**(bags or {})}, tuple(missing)
        self.words = {column.name: Tally() for column in self.columns if column.use != "numeric"}
        self.numbers: dict[str, list[Counts]] = {c.name: [] for c in self.columns if c.use == "numeric"}

    @property
    def names(self) -> list[str]:
        """The columns that frames need."""
        return [column.name for column in self.columns]

    def counted(self, rows: pl.DataFrame, sample: NDArray[np.bool_] | None = None) -> list[Counts]:
        """The facts of training rows; bins and knots use rows in the ``sample``, by default all. No side effects."""
        return [self._counted(column, rows[column.name], sample) for column in self.columns]

    def _counted(self, column: Column, values: pl.Series, sample: NDArray[np.bool_] | None) -> Counts:
        if column.use == "numeric":
            numbers, bad = read_numbers(values, column.decimal, self.missing)
            known = numbers[~np.isnan(numbers)]
            odd = int(bad.sum() or 0)
            some = numbers if sample is None else numbers[sample]
            low, high = float(known.min(initial=np.inf)), float(known.max(initial=-np.inf))
            return Counts(None, some[~np.isnan(some)], low, high, len(known) + odd, odd)
        if column.use == "bag":
            values = exploded(values, self.bags.get(column.name, "|"))[0]
        return Counts(_counted(values, column.spelling, self.missing))

    def add(self, counts: list[Counts]) -> None:
        """Take in a block."""
        for column, its in zip(self.columns, counts, strict=True):
            if its.words is None:
                self.numbers[column.name].append(its)
            else:
                self.words[column.name].add(its.words)

    def encoder(self, *, min_count: int, bins: int) -> Encoder:
        """The learned encoder; it ends the learning.

        Args:
            min_count: values seen less often are rare.
            bins: most bins of a numeric column that has not one for each value; they have equally many training rows,
                as far as ties allow.
        """
        check_whole("min_count", min_count, 1)
        check_whole("bins", bins, 2)
        return Encoder(tuple(self._learned(column, min_count, bins) for column in self.columns))

    def _learned(self, column: Column, min_count: int, bins: int) -> Categorical | Numeric:
        if column.use != "numeric":
            words, unknown = self.words.pop(column.name).vocabulary(min_count)
            named = (column.name, words, column.spelling, unknown, self.missing)
            if column.use == "categorical":
                return Categorical(*named)
            return Bag(*named, slots=column.slots, separator=self.bags.get(column.name, "|"))
        counts = self.numbers.pop(column.name)
        numbers = np.sort(np.concatenate([np.empty(0), *(its.sample for its in counts if its.sample is not None)]))
        by_value = column.steps == "values"
        knots, scores = normal_scores(numbers)
        filled = sum(its.filled for its in counts)
        low, high = min((its.low for its in counts), default=np.inf), max((its.high for its in counts), default=-np.inf)
        return Numeric(
            column.name,
            edges_of_values(numbers, min_count) if by_value else edges(numbers, bins),
            knots,
            scores,
            low=low if low <= high else np.nan,
            high=high if low <= high else np.nan,
            decimal=column.decimal,
            unknown=sum(its.bad for its in counts) / max(filled, 1),
            missing=self.missing,
        )


def _counted(column: pl.Series, spelling: str, missing: Collection[str]) -> pl.DataFrame:
    """The different values in a block, and how often each is there."""
    counts = column.alias("value").value_counts(name="count")
    text = spelled(counts["value"], spelling, missing)
    return pl.DataFrame([text.alias("value"), counts["count"].cast(pl.Int64)]).drop_nulls("value")


class Tally:
    """How often each value of a column was seen."""

    def __init__(self) -> None:
        self.counts = [pl.DataFrame(schema={"value": pl.String, "count": pl.Int64})]
        self.waiting = 0

    def add(self, counts: pl.DataFrame) -> None:
        """Take in the counts of a block."""
        self.counts.append(counts)
        self.waiting += len(counts)
        if self.waiting > max(PENDING, len(self.counts[0])):
            self.counts, self.waiting = [self._summed()], 0

    def _summed(self) -> pl.DataFrame:
        return pl.concat(self.counts).group_by("value").agg(pl.col("count").sum())

    def vocabulary(self, min_count: int) -> tuple[pl.Series, float]:
        """Values seen often enough, the most frequent first, ties by name: ids do not depend on the order of rows. And
        the share of all others."""
        counts = self._summed()
        kept = counts.filter(pl.col("count") >= min_count).sort("value")  # one key after the other is faster than both
        total, common = int(counts["count"].sum()), int(kept["count"].sum())
        return kept.sort("count", descending=True, maintain_order=True)["value"], 1 - common / max(total, 1)


def least_count(rows: int) -> int:
    """How often a value must be seen to have an id of its own: once for every 100,000 training rows, 2 to 10 times.

    Values seen once show how unseen ones will behave.

    >>> least_count(5_000), least_count(500_000), least_count(5_000_000)
    (2, 5, 10)
    """
    return min(10, max(2, rows // 100_000))


def edges(numbers: Floats, bins: int) -> tuple[float, ...]:
    """Upper ends of all bins but the last: sorted numbers at their quantiles, each once."""
    known = numbers[np.isfinite(numbers)]
    values = np.unique(known)
    if len(values) <= bins:
        return tuple(values[:-1].tolist())
    at = np.ceil(np.arange(1, bins) * len(known) / bins).astype(int) - 1
    ends = np.unique(known[at])
    return tuple(ends[ends < values[-1]].tolist())


def edges_of_values(numbers: Floats, min_count: int) -> tuple[float, ...]:
    """Upper ends of all bins but the last: one bin for each value, or for neighbours with ``min_count`` rows together.

    >>> edges_of_values(np.array([1.0, 1.0, 2.0, 3.0, 3.0, 9.0]), 2)
    (1.0, 3.0)
    """
    values, counts = np.unique(numbers[np.isfinite(numbers)], return_counts=True)
    ends, waiting = [], 0
    for value, count in zip(values[:-1].tolist(), counts[:-1].tolist(), strict=True):
        waiting += count
        if waiting >= min_count:
            ends.append(value)
            waiting = 0
    return tuple(ends)


def normal_scores(numbers: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """At most ``KNOTS`` of sorted numbers, and the normal score of the rank of each, the middle one of equal numbers.

    >>> normal_scores(np.array([1.0, 2.0, 3.0]))[1]
    (-0.9674215661017014, 0.0, 0.9674215661017014)
    """
    known = numbers[np.isfinite(numbers)]
    values, first, counts = np.unique(known, return_index=True, return_counts=True)
    if not len(values):
        return (0.0,), (0.0,)
    if len(values) > KNOTS:
        at = np.unique(np.searchsorted(values, known[np.linspace(0, len(known) - 1, KNOTS).round().astype(int)]))
        values, first, counts = values[at], first[at], counts[at]
    ranks = (first + counts / 2) / len(known)
    return tuple(values.tolist()), tuple(NormalDist().inv_cdf(rank) for rank in ranks.tolist())


def count_ids(totals: NDArray[Any], ids: NDArray[np.int32], counts: NDArray[Any] | None = None) -> None:
    """Add to the total of every id how often it is there, or its ``counts``; most totals may be of other ids."""
    if len(totals) > len(ids):
        np.add.at(totals, ids, 1 if counts is None else counts)
    else:
        totals += np.bincount(ids, counts, len(totals)).astype(totals.dtype)
