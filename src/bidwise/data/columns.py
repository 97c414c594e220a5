"""The one encoder: values of columns as ids, learned from training rows and stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise import json_files
from bidwise.data.store import Field
from bidwise.data.table_files import open_table
from bidwise.errors import InputError, check_name, check_whole
from bidwise.run_folder import whole_file, write_json
from bidwise.values import (
    BOOLEANS,
    FIRST,
    MISSING,
    MISSING_WORDS,
    PLAIN,
    RARE,
    SLOTS,
    TRUTHS,
    WHOLE,
    WHOLE_BELOW,
    Combinations,
    Floats,
    Vocabulary,
    check_columns,
)

_FORMAT = "bidwise encoder"
_VERSION = 3
ENCODER_FILES = ("encoder.json", "vocabulary.parquet")
DROPPED = "dropped"  # the use of a column that is not learned from
SPELLINGS = ("text", "number")
SERVED = (pl.String, pl.Boolean, pl.Float64, pl.Null)  # and whole numbers: types that plain Python spells alike
_SHORT = 4000  # rows, up to which looking up one value after the other is faster
KEPT_WORDS = 2**18  # words, up to which they are kept as Python's own text as well, of 100 bytes each
_MANY = 0.25  # different values / rows, above which every row is looked up by itself
PENDING = 2**20  # counted values that wait to be merged


# Values as text and as numbers


def spelled(column: pl.Series, spelling: str = "text") -> pl.Series:
    """Values as text, null if they are missing: the same text for the same value in any file.

    >>> [spelled(pl.Series(values)).to_list() for values in ([3.0, 2.5], [3], [" 3.0", "NA"], [True])]
    [['3', '2.5'], ['3'], ['3.0', None], ['true']]
    >>> spelled(pl.Series(["3.0", "007", "1e5"]), "number").to_list()
    ['3', '007', '100000']
    """
    column = column.alias("value")  # polars takes a name such as ^a.*$ for a pattern
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    dtype = column.dtype
    if dtype.is_float() or dtype.is_decimal():
        text = _float_text(exact(column).fill_nan(None))
    elif dtype == pl.String:
        text = column.str.strip_chars()
        text = _number_text(text) if spelling == "number" else text
    else:
        text = column.cast(pl.String)
    return text.replace(dict.fromkeys(MISSING_WORDS) | BOOLEANS)


def exact(column: pl.Series) -> pl.Series:
    """Numbers as float64, with decimals as text files have them: 0.1 for the nearest number of 32 bits too."""
    narrow = column.dtype.is_decimal() or (column.dtype.is_float() and column.dtype != pl.Float64)
    return (column.cast(pl.String) if narrow else column).cast(pl.Float64)


def value_counts(column: pl.Series) -> tuple[pl.Series, NDArray[np.int64]]:
    """The different values of a column, in any order, and how often each is there."""
    counts = column.alias("value").value_counts(name="count")  # polars takes a name such as ^a.*$ for a pattern
    return counts["value"], counts["count"].to_numpy().astype(np.int64)


def _float_text(numbers: pl.Series) -> pl.Series:
    whole = (numbers == numbers.round()) & (numbers.abs() < WHOLE_BELOW)
    text = numbers.cast(pl.String)
    return text.zip_with(~whole.fill_null(False), numbers.cast(pl.Int64, strict=False).cast(pl.String))


def _number_text(text: pl.Series) -> pl.Series:
    """Numbers in text, such as 7.0 and 1e5, like the number."""
    whole = text.str.extract(WHOLE).replace("-0", "0")
    plain = whole.is_null() & text.str.contains(PLAIN).fill_null(False)
    return whole.fill_null(text).scatter(plain.arg_true(), _float_text(text.filter(plain).cast(pl.Float64)))


def read_numbers(column: pl.Series) -> tuple[Floats, pl.Series]:
    """Values as float64, NaN if they are missing or no numbers, and which are no numbers."""
    column, dtype = column.alias("value"), column.dtype
    bad = pl.Series([False]).new_from_index(0, len(column))
    if dtype == pl.Categorical or isinstance(dtype, pl.Enum):
        column, dtype = column.cast(pl.String), pl.String()
    if dtype == pl.String:
        text = column.str.strip_chars()
        read = text.cast(pl.Float64, strict=False)
        if read.null_count() > text.null_count():
            truths = text.str.to_lowercase().replace_strict(TRUTHS, default=None, return_dtype=pl.Float64)
            read = read.fill_null(truths)
            bad = read.is_null() & text.is_not_null() & ~text.is_in(MISSING_WORDS)
    elif dtype.is_numeric() or dtype in (pl.Boolean, pl.Null):
        read = exact(column)
    else:
        read, bad = pl.Series([None], dtype=pl.Float64).new_from_index(0, len(column)), column.is_not_null()
    return read.to_numpy(writable=True), bad  # null becomes NaN


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
    slots: int = 1  # of bags
    separator: str = "|"  # of bags in text


# Columns that are learned


@dataclass(frozen=True, eq=False)
class Categorical:
    """A column of categories: id 0 for rare or unseen values, 1 for missing ones, then the vocabulary.

    Words are a series, less than half the size of Python's own text: there may be tens of millions.
    """

    kind: ClassVar = "categorical"
    slots = 1  # ids of a row; bags and their crosses have several
    name: str
    vocabulary: pl.Series
    spelling: str = "text"
    unknown: float = 0.0  # share of the training rows' values that have id 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", pl.Series("word", self.vocabulary, dtype=pl.String))
        check_name(f"spelling of column {self.name!r}", self.spelling, SPELLINGS)

    @property
    def field(self) -> Field:
        """The column as models know it."""
        return Field(self.name, FIRST + len(self.vocabulary), self.slots)

    @cached_property
    def lookup(self) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """Hashes of the words in ascending order, and the place of each in the vocabulary."""
        hashes = self.vocabulary.hash(seed=0)
        order = hashes.arg_sort().to_numpy().astype(np.int32)
        return hashes.to_numpy()[order], order

    @cached_property
    def _words(self) -> Vocabulary:
        return Vocabulary(self.vocabulary.to_list(), self.spelling)

    def ids(self, column: pl.Series) -> NDArray[np.int32]:
        """The id of every value."""
        plain = column.dtype in SERVED or column.dtype.is_integer()
        if plain and len(column) <= _SHORT and len(self.vocabulary) <= KEPT_WORDS:
            return np.array(self._words.ids(column.to_list()), dtype=np.int32)
        if column.dtype.is_nested() or column.dtype in (pl.Object, pl.Binary):
            return np.where(column.is_null().to_numpy(), MISSING, RARE).astype(np.int32)
        column = (column.cast(pl.String) if column.dtype == pl.Null else column).alias("value")
        values = column.unique()
        if len(values) > _MANY * len(column):
            return self._found(spelled(column, self.spelling))
        known = pl.DataFrame({"value": values, "id": self._found(spelled(values, self.spelling))})
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

    kind: ClassVar = "bag"
    slots: int = 1
    separator: str = "|"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(f"slots of column {self.name!r}", self.slots, 1, SLOTS)
        if not self.separator:
            raise InputError(f"separator of column {self.name!r} must be one character or more, found none")

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
    """A column of numbers, as bins in their order.

    Id 1 is for missing numbers, 2 + k for those above ``edges[k - 1]`` and up to ``edges[k]``; 0 is not used.
    """

    kind: ClassVar = "numeric"
    name: str
    edges: tuple[float, ...]
    low: float = 0.0  # the range of the training rows
    high: float = 0.0
    unknown: float = 0.0  # share of the training rows' values that are no numbers

    @property
    def field(self) -> Field:
        """The column as models know it."""
        return Field(self.name, FIRST + len(self.edges) + 1)

    def ids(self, numbers: Floats) -> NDArray[np.int32]:
        """The id of every number."""
        ids = (FIRST + np.searchsorted(np.asarray(self.edges, dtype=np.float64), numbers)).astype(np.int32)
        ids[np.isnan(numbers)] = MISSING
        return ids


@dataclass(frozen=True, eq=False)
class Cross(Categorical):
    """A combination of one to three other columns; its words are the ids of their values, as one number: id 0 for
    those rarely or never seen together. Bins of numbers are joined into ``groups`` of neighbours. With a bag among them
    it is one too, of its values with those of the other columns."""

    kind: ClassVar = "cross"
    of: tuple[str, ...] = ()  # names of the columns
    sizes: tuple[int, ...] = ()  # ids of each when the words were learned; later ones are rare
    groups: tuple[int, ...] = ()  # of each; 0: unchanged ids
    slots: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("of", "sizes", "groups"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @cached_property
    def table(self) -> Combinations:
        """The look-up of rows."""
        return Combinations(self.vocabulary.cast(pl.Int64).to_numpy(), self.sizes, self.groups)


KINDS: dict[str, type[Categorical | Numeric]] = {kind.kind: kind for kind in (Categorical, Bag, Numeric, Cross)}


@dataclass(frozen=True)
class Encoded:
    """Rows as numbers."""

    ids: NDArray[np.int32]  # (rows, encoder.width)
    filled: NDArray[np.int64]  # of each column, values that are not missing
    unknown: NDArray[np.int64]  # of these, rare or unseen, out of the range of training, or no number


@dataclass(frozen=True)
class Encoder:
    """How columns of a table become ids, in this order.

    >>> rows = pl.DataFrame({"site": ["a", "a", "b", "b", "c"], "age": [1.5, 2.0, 3.0, None, 5.0]})
    >>> columns = [Column("site", "categorical", 3, 0.0, ""), Column("age", "numeric", 4, 0.2, "")]
    >>> encoder = Encoder.fit(rows, columns, min_count=2, bins=2)
    >>> encoder.encode(pl.DataFrame({"site": ["b", "?", None], "age": ["0", "9.0", "old"]})).ids.tolist()
    [[3, 2], [0, 3], [1, 1]]
    """

    columns: tuple[Categorical | Numeric, ...]

    @staticmethod
    def fit(table: Any, columns: Sequence[Column], *, min_count: int, bins: int) -> Encoder:
        """Learn from a table of training rows only."""
        learner = Learner(columns)
        learner.add(learner.counted(open_table(table).frame(learner.names)))
        return learner.encoder(min_count=min_count, bins=bins)

    @property
    def plain(self) -> Encoder:
        """The same without crosses, which come last."""
        return Encoder(tuple(column for column in self.columns if not isinstance(column, Cross)))

    @property
    def crosses(self) -> list[Cross]:
        """Combinations of columns."""
        return [column for column in self.columns if isinstance(column, Cross)]

    @property
    def names(self) -> list[str]:
        """The columns that a table must have."""
        return [column.name for column in self.columns if not isinstance(column, Cross)]

    @property
    def fields(self) -> list[Field]:
        """The columns as models know them."""
        return [column.field for column in self.columns]

    @cached_property
    def spans(self) -> list[slice]:
        """Which columns of the ids each column of the table has."""
        slots = [field.slots for field in self.fields]
        return [slice(end - count, end) for count, end in zip(slots, accumulate(slots), strict=True)]

    @property
    def width(self) -> int:
        """Columns of the ids."""
        return sum(field.slots for field in self.fields)

    def check(self, columns: Sequence[str], table: str = "table") -> None:
        """Raise unless all columns are there."""
        check_columns(self.names, columns, table)

    def encode(self, rows: pl.DataFrame) -> Encoded:
        """Ids of rows; no value is an error."""
        self.check(rows.columns)
        ids = np.empty((len(rows), self.width), dtype=np.int32)
        filled, unknown = np.zeros((2, len(self.columns)), dtype=np.int64)
        for number, (at, column) in enumerate(zip(self.spans, self.columns, strict=True)):
            if isinstance(column, Numeric):
                numbers, bad = read_numbers(rows[column.name])
                ids[:, at.start] = column.ids(numbers)
                outside = (numbers < column.low) | (numbers > column.high)
                odd = int(bad.sum() or 0)
                filled[number] = len(rows) - np.isnan(numbers).sum() + odd
                unknown[number] = outside.sum() + odd
            elif not isinstance(column, Cross):
                found = column.ids(rows[column.name]).reshape(len(rows), at.stop - at.start)
                ids[:, at] = found
                filled[number], unknown[number] = (found != MISSING).sum(), (found == RARE).sum()
        return Encoded(self.crossed(ids), filled, unknown)

    def parts(self, ids: NDArray[np.int32], cross: Cross) -> list[NDArray[np.int32]]:
        """The ids of the columns that a cross combines: of all rows, or of all rows for each slot."""
        places = {column.name: at for column, at in zip(self.plain.columns, self.spans, strict=False)}
        parts = [ids[:, places[name]].T for name in cross.of]
        return [part if len(part) > 1 else part[0] for part in parts]

    def crossed(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """The same array, with the ids of all crosses computed from the plain columns."""
        for column, at in zip(self.columns, self.spans, strict=True):
            if isinstance(column, Cross):
                ids[:, at] = np.atleast_2d(column.table.ids(self.parts(ids, column))).T
        return ids

    def extended(self, fitted: Encoder) -> Encoder:
        """The encoder with the words of one that was fitted to new rows, after its own; all ids and bins stay.

        >>> old, new = (Encoder((Categorical("site", words),)) for words in (["a", "b"], ["b", "c", "d"]))
        >>> old.extended(new).columns[0].vocabulary.to_list()
        ['a', 'b', 'c', 'd']
        """
        known, columns = {column.name: column for column in fitted.columns}, list[Categorical | Numeric]()
        for column in self.columns:
            new = None if isinstance(column, Cross) else known[column.name]
            if isinstance(column, Categorical) and isinstance(new, Categorical):
                words = column.vocabulary
                more = new.vocabulary.filter(~new.vocabulary.is_in(words.implode()))
                column = replace(column, vocabulary=pl.concat([words, more]), unknown=new.unknown)
                if isinstance(column, Bag):  # lists may have become longer
                    column = replace(column, slots=max(column.slots, new.field.slots))
            if isinstance(column, Cross):
                column = replace(column, slots=max(x.field.slots for x in columns if x.name in column.of))
            columns.append(column)
        return Encoder(tuple(columns))

    def to_json(self, *, words: bool = True) -> dict[str, Any]:
        """As JSON; without ``words`` each vocabulary is the number of its words."""
        columns = []
        for column in self.columns:
            plain = {each.name: getattr(column, each.name) for each in fields(column) if each.name != "vocabulary"}
            if isinstance(column, Categorical):
                plain["vocabulary"] = column.vocabulary.to_list() if words else len(column.vocabulary)
            columns.append({"kind": column.kind, **json_files.to_json(plain)})
        return {"format": _FORMAT, "version": _VERSION, "columns": columns}

    @staticmethod
    def from_json(data: Any, name: str = "encoder", words: pl.Series | None = None) -> Encoder:
        """The encoder that :meth:`to_json` wrote, with the ``words`` of all columns if it has only their numbers."""
        if not isinstance(data, dict) or data.get("format") != _FORMAT or data.get("version") != _VERSION:
            raise InputError(
                f"{name} must be an encoder of version {_VERSION} that bidwise wrote, found something else"
            )
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


class Learner:
    """Vocabularies and bins from training rows, block by block.

    ``columns`` are as :meth:`bidwise.data.kinds.Facts.columns` found them; roles and dropped ones are skipped.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        features = [column for column in columns if column.use in KINDS]
        self.learning = [(_Numbers if column.use == "numeric" else _Words)(column) for column in features]

    @property
    def names(self) -> list[str]:
        """The columns that frames need."""
        return [each.column.name for each in self.learning]

    def counted(self, rows: pl.DataFrame, sample: NDArray[np.bool_] | None = None) -> list[Any]:
        """The facts of training rows; bins use rows in the ``sample``, by default all. No side effects,
        so that threads can call it."""
        return [each.counted(rows[each.column.name], sample) for each in self.learning]

    def add(self, counts: list[Any]) -> None:
        """Take in a block."""
        for each, its in zip(self.learning, counts, strict=True):
            each.add(its)

    def encoder(self, *, min_count: int, bins: int) -> Encoder:
        """The learned encoder; it ends the learning.

        Args:
            min_count: values seen less often are rare.
            bins: most bins of a numeric column that has not one for each value; they have equally many training rows,
                as far as ties allow.
        """
        check_whole("min_count", min_count, 1)
        check_whole("bins", bins, 2)
        return Encoder(tuple(each.learned(min_count, bins) for each in self.learning))


class _Words:
    """How often each value of a column was seen."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.counts = [pl.DataFrame(schema={"value": pl.String, "count": pl.Int64})]
        self.waiting = 0

    def counted(self, values: pl.Series, sample: NDArray[np.bool_] | None) -> pl.DataFrame:
        if self.column.use == "bag":
            values = exploded(values, self.column.separator)[0]
        values, count = value_counts(values)
        text = spelled(values, self.column.spelling)
        return pl.DataFrame({"value": text, "count": count}).drop_nulls("value")

    def add(self, counts: pl.DataFrame) -> None:
        self.counts.append(counts)
        self.waiting += len(counts)
        if self.waiting > max(PENDING, len(self.counts[0])):
            self.counts, self.waiting = [self._summed()], 0

    def _summed(self) -> pl.DataFrame:
        return pl.concat(self.counts).group_by("value").agg(pl.col("count").sum())

    def learned(self, min_count: int, bins: int) -> Categorical:
        """Values seen often enough, the most frequent first, ties by name: ids do not depend on the order of rows."""
        counts = self._summed()
        self.counts.clear()
        kept = counts.filter(pl.col("count") >= min_count).sort("value")  # one key after the other is faster than both
        total, common = int(counts["count"].sum()), int(kept["count"].sum())
        words = kept.sort("count", descending=True, maintain_order=True)["value"]
        learned = (self.column.name, words, self.column.spelling, 1 - common / max(total, 1))
        if self.column.use == "categorical":
            return Categorical(*learned)
        return Bag(*learned, slots=self.column.slots, separator=self.column.separator)


class _Numbers:
    """A sample of the numbers of a column, and the range of all."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.sample, self.low, self.high, self.filled, self.bad = list[Floats](), np.inf, -np.inf, 0, 0

    def counted(self, values: pl.Series, sample: NDArray[np.bool_] | None) -> tuple[Floats, float, float, int, int]:
        numbers, odd = read_numbers(values)
        known, bad = numbers[~np.isnan(numbers)], int(odd.sum() or 0)
        some = known if sample is None else numbers[sample & ~np.isnan(numbers)]
        return some, known.min(initial=np.inf), known.max(initial=-np.inf), len(known) + bad, bad

    def add(self, counts: tuple[Floats, float, float, int, int]) -> None:
        sample, low, high, filled, bad = counts
        self.sample.append(sample)
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        self.filled, self.bad = self.filled + filled, self.bad + bad

    def learned(self, min_count: int, bins: int) -> Numeric:
        numbers = np.sort(np.concatenate(self.sample))
        self.sample.clear()
        some = self.low <= self.high
        return Numeric(
            self.column.name,
            edges_of_values(numbers, min_count) if self.column.steps == "values" else edges(numbers, bins),
            low=self.low if some else np.nan,
            high=self.high if some else np.nan,
            unknown=self.bad / max(self.filled, 1),
        )


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
