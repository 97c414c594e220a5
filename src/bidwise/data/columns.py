"""The one encoder: what a column is, decided at training and stored, and its values as ids and dense numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise.data.store import Field
from bidwise.data.table_files import Block, Source
from bidwise.values import Floats

DROPPED = "dropped"  # the use of a column that is not learned from (LEFT_OUT before)
KINDS = ("categorical", "numeric", "bag")


# ---- 1. What a column is: facts of all rows, then a decision


@dataclass(frozen=True)
class Column:
    """A column of the table and its use; written to results."""

    name: str
    use: str  # its role, a kind of KINDS, or DROPPED
    values: int  # different ones
    missing: float  # share of the rows
    reason: str
    spelling: str = "text"  # of categories: "text" as it is written, "number" if 7, 7.0 and "7.0" are the same
    steps: str = "bins"  # of numbers: "bins" of equally many rows, or one for each of the "values"
    decimal: str = "."  # of numbers in text
    slots: int = 1  # of bags


class Seen:
    """Facts of one column in one block; opaque."""


class Facts:
    """Facts of all columns of a table, block by block. Memory does not grow with rows.

    >>> facts = Facts(source, bags={"tags": "|"}, missing=["unknown"])     # doctest: +SKIP
    >>> for block in source.blocks(): facts.add(facts.seen(block))        # doctest: +SKIP
    >>> columns = facts.columns([("click", "y")], numeric=["hour"])       # doctest: +SKIP
    """

    def __init__(self, source: Source, *, bags: Mapping[str, str] | None = None, missing: Sequence[str] = ()) -> None:
        """``bags``: columns of text with several values, and the separator of each; ``missing``: more words."""

    def seen(self, block: Block) -> list[Seen]:
        """What the block adds; changes nothing, so that threads can call it."""
        raise NotImplementedError

    def add(self, seen: list[Seen]) -> None:
        """Take in a block; the calls must be in the order of the blocks."""
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """Rows that were taken in."""
        raise NotImplementedError

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

        With ``previous`` kinds, spellings and separators are those of that encoder ("as in the run before"), columns
        that it does not have are dropped, and ones that it has must be there.
        """
        raise NotImplementedError


# ---- 2. Columns that are learned


@dataclass(frozen=True, eq=False)
class Categorical:
    """A column of categories: id 0 for rare or unseen values, 1 for missing ones, then the vocabulary."""

    name: str
    vocabulary: pl.Series
    spelling: str = "text"
    unknown: float = 0.0  # share of the training rows with a value whose id is 0

    @property
    def field(self) -> Field:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Bag(Categorical):
    """A column of lists of categories, or of text with a ``separator`` between them."""

    slots: int = 1
    separator: str = "|"


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: as bins (id 1 if missing, 2 + k above ``edges[k - 1]`` and up to ``edges[k]``) and as one
    dense value, the normal score of its rank in the training rows."""

    name: str
    edges: tuple[float, ...]
    knots: tuple[float, ...] = ()  # numbers in ascending order, at most 256, whose scores are
    scores: tuple[float, ...] = ()  # these; numbers between two are interpolated
    low: float = 0.0  # range of the training rows
    high: float = 0.0
    decimal: str = "."
    unknown: float = 0.0  # share of the training rows that are no numbers

    @property
    def field(self) -> Field:
        raise NotImplementedError


@dataclass(frozen=True)
class Encoded:
    """Rows as numbers."""

    ids: NDArray[np.int32]  # (rows, encoder.width)
    dense: NDArray[np.float32] | None  # (rows, numeric columns, 2): the score, and 1 if it is missing
    filled: NDArray[np.int64]  # of each column of the encoder, entries that are not missing
    unknown: NDArray[np.int64]  # and of these, unseen or rare values, numbers out of range and cells that are no number


@dataclass(frozen=True)
class Encoder:
    """How columns of a table become ids and dense numbers, in this order."""

    columns: tuple[Categorical | Numeric, ...]
    missing: tuple[str, ...] = ()  # words that mean missing, further to MISSING_WORDS

    @staticmethod
    def fit(
        table: Any, columns: Sequence[Column], *, min_count: int, bins: int, missing: Sequence[str] = ()
    ) -> Encoder:
        """Learn from a frame or any table, all rows of which are training rows (for tests and the estimator)."""
        raise NotImplementedError

    @property
    def names(self) -> list[str]:
        raise NotImplementedError

    @property
    def fields(self) -> list[Field]:
        raise NotImplementedError

    @property
    def spans(self) -> list[slice]:
        """Which columns of the ids each column has."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Columns of the ids."""
        raise NotImplementedError

    @property
    def numeric(self) -> list[Numeric]:
        """Columns with dense values, in their order."""
        raise NotImplementedError

    def check(self, columns: Sequence[str], table: str = "table") -> None:
        """Raise unless all columns are there."""
        raise NotImplementedError

    def encode(self, rows: pl.DataFrame, *, dense: bool = False) -> Encoded:
        """Ids of rows, dense values if wanted; no value is an error. Threads can call it."""
        raise NotImplementedError

    def extended(self, fitted: Encoder) -> Encoder:
        """This encoder with the words of one that was fitted to new rows after its own; all ids, bins and knots stay."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """As the scorer and a pickled estimator keep it, vocabularies included."""
        raise NotImplementedError

    @staticmethod
    def from_json(data: Any, name: str = "encoder") -> Encoder:
        raise NotImplementedError

    def write(self, folder: Path) -> None:
        """``encoder.json`` and ``vocabulary.parquet``."""
        raise NotImplementedError

    @staticmethod
    def read(folder: Path) -> Encoder:
        raise NotImplementedError


ENCODER_FILES = ("encoder.json", "vocabulary.parquet")


# ---- 3. Learning block by block


class Counts:
    """What one block of training rows adds; opaque."""


class Learner:
    """Vocabularies, bins and knots from training rows, block by block.

    >>> learner = Learner(columns, bag_separator="|", missing=())          # doctest: +SKIP
    >>> learner.add(learner.counted(frame_of_training_rows, sample))       # doctest: +SKIP
    >>> encoder = learner.encoder(min_count=5, bins=32)                    # doctest: +SKIP
    """

    def __init__(self, columns: Sequence[Column], *, bag_separator: str = "|", missing: Sequence[str] = ()) -> None:
        """``columns``: those of :meth:`Facts.columns`; others than features are skipped."""

    @property
    def names(self) -> list[str]:
        """The columns that frames need."""
        raise NotImplementedError

    def counted(self, rows: pl.DataFrame, sample: NDArray[np.bool_] | None = None) -> Counts:
        """What training rows add; bins and knots are of the rows in the ``sample``, by default all. Changes nothing."""
        raise NotImplementedError

    def add(self, counts: Counts) -> None:
        """Take in a block; the calls must be in the order of the blocks."""
        raise NotImplementedError

    def encoder(self, *, min_count: int, bins: int) -> Encoder:
        """What was learned: values seen less often than ``min_count`` are rare."""
        raise NotImplementedError


def least_count(rows: int) -> int:
    """How often a value must be seen to have an id of its own (as before)."""
    raise NotImplementedError


def count_ids(totals: NDArray[Any], ids: NDArray[np.int32], counts: NDArray[Any] | None = None) -> None:
    """As before (data.counting)."""
    raise NotImplementedError


# ---- 4. Values that every module spells and parses alike


def spelled(column: pl.Series, spelling: str = "text", missing: Sequence[str] = ()) -> pl.Series:
    """Values as text, trimmed, null if missing; also for ids of auctions."""
    raise NotImplementedError


def numbers_of(column: pl.Series, *, decimal: str = ".", missing: Sequence[str] = ()) -> Floats:
    """Values as float64, NaN if missing or no number."""
    raise NotImplementedError
