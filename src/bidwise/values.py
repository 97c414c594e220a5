"""Ids and numbers of single values in plain Python, for a few ads at a time: without polars and without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.errors import InputError

Floats = NDArray[np.float64]
RARE, MISSING, FIRST = 0, 1, 2  # ids of every field: rare or unseen values, missing ones, the vocabulary from here on
SLOTS = 32  # values of a list that count, at most: the first ones
MISSING_WORDS = frozenset(("", "-", "NA", "N/A", "<NA>", "null", "NULL", "None", "nan", "NaN", "\\N"))
BOOLEANS = {"True": "true", "False": "false", "TRUE": "true", "FALSE": "false"}  # as other tools write them
TRUTHS = {"true": 1.0, "false": 0.0}  # words that count as numbers
SPACES = "".join(x for x in map(chr, range(0x3001)) if x.isspace() and x not in "\x1c\x1d\x1e\x1f")  # as polars has it
NUMBER = re.compile(r"[0-9A-Za-z.+-]+")  # Python also reads 1_000 and digits of other scripts
PLAIN = r"^[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"  # a number without leading zeros
WHOLE = r"^\+?(-?(?:0|[1-9][0-9]*))(?:\.0*)?$"
WHOLE_BELOW = 2.0**63  # whole numbers below it are written with all digits
_PLAIN, _WHOLE = re.compile(PLAIN), re.compile(WHOLE)


class Vocabulary:
    """Ids of the values of a categorical column: words count from 2. Missing values have 1, all others 0.

    >>> Vocabulary(["a", "7", "true"]).ids(["a", 7.0, True, " a ", "b", None, "", "NA"])
    [2, 3, 4, 2, 0, 1, 1, 1]
    """

    def __init__(self, words: Sequence[str], spelling: str = "text") -> None:
        self.number = spelling == "number"
        self.known = {word: FIRST + at for at, word in enumerate(words)}

    def ids(self, values: Sequence[Any]) -> list[int]:
        """The id of every value; text that is in the vocabulary as it stands is found at once."""
        known = self.known
        return [known[x] if type(x) is str and x in known else self._other(x) for x in values]

    def _other(self, value: Any) -> int:
        text = text_of(value, self.number)
        return MISSING if text is None else self.known.get(text, RARE)


class ListVocabulary(Vocabulary):
    """Ids of the first ``slots`` values of lists, or of text with a ``separator`` between them, and 1 after the last.

    >>> ListVocabulary(["a", "7"], slots=2, separator="|").ids([["a", None, 7, "a"], "b| a", [], None])
    [[2, 0, 1, 1], [3, 2, 1, 1]]
    """

    def __init__(self, words: Sequence[str], spelling: str = "text", *, slots: int, separator: str) -> None:
        super().__init__(words, spelling)
        self.slots, self.separator = slots, separator

    def ids(self, values: Sequence[Any]) -> list[Any]:
        """Of each slot, the id that every list has there."""
        rows = [[x for x in super(ListVocabulary, self).ids(self._listed(value)) if x != MISSING] for value in values]
        return [[row[slot] if slot < len(row) else MISSING for row in rows] for slot in range(self.slots)]

    def _listed(self, value: Any) -> Sequence[Any]:
        if hasattr(value, "__array__"):  # of numpy, polars or pandas
            value = np.asarray(value).tolist()
        if isinstance(value, list | tuple):
            return value
        text = text_of(value)
        return [] if text is None else text.split(self.separator)


class Numbers:
    """Ids of a numeric column: 2 + k for numbers above ``edges[k - 1]`` and up to ``edges[k]``.

    >>> Numbers([1.0, 2.0]).ids([0, "1.5", 9, None, "many"])
    [2, 3, 4, 1, 1]
    """

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = np.array(edges, dtype=np.float64)

    def ids(self, values: Sequence[Any]) -> list[int]:
        """The id of every value."""
        numbers = np.array([number_of(x) for x in values], dtype=np.float64)
        ids = FIRST + np.searchsorted(self.edges, numbers)
        listed: list[int] = np.where(np.isnan(numbers), MISSING, ids).tolist()
        return listed


class Combinations:
    """Ids of combinations of columns, from the ids of the columns: words, which are such ids as one number, count from
    2, and all others have 0. Bins of numbers are joined into ``groups`` of neighbours, if these are not 0.

    Ids of a column are ``(rows,)``, of a bag ``(slots, rows)``: then each of its values is combined, and slots without
    one have 1.

    >>> Combinations([7, 3], sizes=(2, 4), groups=(0, 0)).ids([np.array([1, 0, 1, 9]), np.array([3, 3, 2, 3])]).tolist()
    [2, 3, 0, 3]
    """

    def __init__(self, words: Any, sizes: Sequence[int], groups: Sequence[int]) -> None:
        numbers = np.array(words, dtype=np.int64)
        self.places = np.argsort(numbers)
        self.known, self.sizes, self.groups = numbers[self.places], sizes, groups

    def keys(self, parts: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """The ids of every row as one number, -1 in slots without a value; ids that came later than the words are
        rare."""
        keys = np.zeros(1, np.int64)
        for part, size, groups in zip(parts, self.sizes, self.groups, strict=True):
            ids = np.where(part < size, part, RARE).astype(np.int64)
            if groups:
                ids = np.where(ids < FIRST, ids, FIRST + (ids - FIRST) * groups // (size - FIRST))
            keys = keys * size + ids
        for part in parts:
            keys = np.where(part == MISSING, -1, keys) if part.ndim > 1 else keys
        return keys

    def ids(self, parts: Sequence[NDArray[Any]]) -> NDArray[np.int32]:
        """The id of every row, or of each of its slots."""
        keys = self.keys(parts)
        found = np.where(keys < 0, MISSING, RARE)
        if len(self.known):
            at = np.minimum(np.searchsorted(self.known, keys), len(self.known) - 1)
            found = np.where(self.known[at] == keys, FIRST + self.places[at], found)
        return found.astype(np.int32)


def check_columns(wanted: Iterable[str], columns: Iterable[str], table: str) -> None:
    """Raise unless a table has all columns; an error names every one that is missing, and suggests the nearest."""
    there = list(map(str, columns))
    missing = [name for name in wanted if name not in there]
    if missing:
        near = get_close_matches(missing[0], there, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, there[:12]))}"
        if any(name.replace(".", "", 1).isdigit() for name in there):
            hint += "; is the first line no line of names? Use --no-header"
        raise InputError(f"{table} has no column {', '.join(map(repr, missing))}; {hint}")


def is_na(value: Any) -> bool:
    """Whether a value is the NA of pandas, which need not be installed."""
    return type(value).__name__ == "NAType"


def text_of(value: Any, number: bool = False) -> str | None:
    """A value as vocabularies spell it, ``None`` if it is missing. Text is trimmed; with ``number`` text that is a
    number is spelled like the number.

    >>> [text_of(value) for value in (3.0, 3, " 3.00", 2.5, 1e-7, True, "TRUE", "", "NA", float("nan"))]
    ['3', '3', '3.00', '2.5', '1e-7', 'true', 'true', None, None, None]
    >>> [text_of(value, number=True) for value in (" 3.00", "+3", "1e5", "007")]
    ['3', '3', '100000', '007']
    """
    if value is None or is_na(value):
        return None
    if isinstance(value, bool | np.bool_):
        text = str(bool(value)).lower()
    elif isinstance(value, int | np.integer):
        text = str(int(value))
    elif isinstance(value, str):
        text = value.strip(SPACES)
        if number:
            text = _number_text(text)
        text = BOOLEANS.get(text, text)
    elif isinstance(value, float | np.floating | Decimal):
        text = _float_text(_float(value))
    else:
        raise InputError(f"values must be text, numbers or booleans, found {type(value).__name__}")
    return None if text in MISSING_WORDS else text


def _number_text(text: str) -> str:
    if whole := _WHOLE.fullmatch(text):
        return "0" if whole[1] == "-0" else whole[1]
    return _float_text(float(text)) if _PLAIN.fullmatch(text) else text


def _float(value: Any) -> float:
    """A number with decimals as text files have it: 0.1 for the nearest number of 32 bits too."""
    return float(value) if isinstance(value, float) else float(str(value))


def _float_text(value: float) -> str:
    """The shortest text of a number, as polars writes it: 7, 0.00001 and 1e-6."""
    if math.isfinite(value) and value == round(value) and abs(value) < WHOLE_BELOW:
        return str(int(value))
    text = repr(value)
    return format(Decimal(text), "f") if text.endswith("e-05") else text.replace("e-0", "e-")


def number_of(value: Any) -> float:
    """A value as a number, NaN if it is missing or none.

    >>> [number_of(value) for value in (3, " 2.5", "TRUE", None, "", "many")]
    [3.0, 2.5, 1.0, nan, nan, nan]
    """
    if type(value) is float:
        return value
    if value is None or is_na(value):
        return math.nan
    try:
        if isinstance(value, str):
            text = value.strip(SPACES)
            return float(text) if NUMBER.fullmatch(text) else math.nan
        return _float(value) if isinstance(value, np.floating | Decimal) else float(value)
    except (TypeError, ValueError):
        return TRUTHS.get(text.lower(), math.nan) if isinstance(value, str) else math.nan
