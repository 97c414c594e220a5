"""The id of single values, in plain Python: what serves a few ads at a time, with no table library and no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.errors import InputError

Floats = NDArray[np.float64]
RARE, MISSING, FIRST = 0, 1, 2  # ids of every field: rare or unseen values, missing ones, the vocabulary from here on
SLOTS = 32  # values of a list that count, at most: the first ones
BOOLEANS = {"True": "true", "False": "false", "TRUE": "true", "FALSE": "false"}  # as other tools write them
WORDS = {"true": 1.0, "false": 0.0, "": math.nan}  # that count as numbers
SPACES = "".join(x for x in map(chr, range(0x3001)) if x.isspace() and x not in "\x1c\x1d\x1e\x1f")  # as polars has it
NUMBER = re.compile(r"[0-9A-Za-z.+-]+")  # Python reads 1_000 and digits of other scripts as well, and nobody else does
WHOLE = re.compile(r"(-?\d+)\.0+")  # a whole number that was stored as a decimal one


class Vocabulary:
    """Ids of the values of a column of names: those of the words in turn, from 2; no value has that of an empty word.

    >>> Vocabulary(["a", "7", "true"]).ids(["a", 7.0, True, " a ", "b", None, ""])
    [2, 3, 4, 2, 0, 1, 1]
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.known = {word: FIRST + at for at, word in enumerate(words) if word}

    def ids(self, values: Sequence[Any]) -> list[int]:
        """The id of every value; text that is in the vocabulary as it stands is found at once."""
        known = self.known
        return [known[x] if type(x) is str and x in known else self._other(x) for x in values]

    def _other(self, value: Any) -> int:
        text = text_of(value)
        return MISSING if text is None else self.known.get(text, RARE)


class Bag(Vocabulary):
    """Ids of the first ``slots`` values of lists, or of text with a ``separator`` between them, and 1 after the last.

    >>> Bag(["a", "7"], slots=2, separator="|").ids([["a", None, 7, "a"], "b| a", [], None])
    [[2, 0, 1, 1], [3, 2, 1, 1]]
    """

    def __init__(self, words: Sequence[str], slots: int, separator: str) -> None:
        super().__init__(words)
        self.slots, self.separator = slots, separator

    def ids(self, values: Sequence[Any]) -> list[Any]:
        """Of each slot, the id that every list has there."""
        rows = [[x for x in super(Bag, self).ids(self._listed(value)) if x != MISSING] for value in values]
        return [[row[slot] if slot < len(row) else MISSING for row in rows] for slot in range(self.slots)]

    def _listed(self, value: Any) -> Sequence[Any]:
        if hasattr(value, "__array__"):  # of numpy, polars or pandas
            value = np.asarray(value).tolist()
        if isinstance(value, list | tuple):
            return value
        text = text_of(value)
        return [] if text is None else text.split(self.separator)


def is_na(value: Any) -> bool:
    """Whether a value is the NA of pandas, which need not be installed."""
    return type(value).__name__ == "NAType"


def text_of(value: Any) -> str | None:
    """A value as vocabularies hold it, however it was stored; ``None`` where it is missing.

    >>> [text_of(value) for value in (3.0, 3, " 3.00", 2.5, 1e-7, True, "TRUE", "", float("nan"))]
    ['3', '3', '3', '2.5', '1e-7', 'true', 'true', None, None]
    """
    if value is None or isinstance(value, bool | np.bool_):
        return None if value is None else str(bool(value)).lower()
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, str):
        text = value.strip(SPACES)
    elif isinstance(value, float | np.floating):
        text = "" if math.isnan(value) else _decimal(float(value))
    elif is_na(value):
        return None
    else:
        raise InputError(f"values must be text, numbers or booleans, found {type(value).__name__}")
    whole = WHOLE.fullmatch(text)
    return whole[1] if whole else BOOLEANS.get(text, text) or None


def _decimal(value: float) -> str:
    """The shortest text of a number, as polars writes it: 0.00001 and 1e-6."""
    text = repr(value)
    return format(Decimal(text), "f") if text.endswith("e-05") else text.replace("e-0", "e-")


def number_of(value: Any) -> float:
    """A value as a number, NaN where it is missing.

    >>> [number_of(value) for value in (3, " 2.5", "TRUE", None, "")]
    [3.0, 2.5, 1.0, nan, nan]
    """
    if value is None or is_na(value):
        return math.nan
    try:
        if isinstance(value, str):
            text = value.strip(SPACES).lower()
            return WORDS[text] if text in WORDS else float(text if NUMBER.fullmatch(text) else "no number")
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"values must be numbers, found {value!r}") from None
