"""Values of Criteo's fields as ids: integers as categories, counts of values, vocabularies.

Integers become categories by one of two maps. Missing integers are id 1 in both; negative ones (there are some, -1 to
-3) are at most 2 and stay what they are, each with a token of its own.

* ``printed``, the paper's: x for x <= 2 and floor(log2 x) above. As printed, 3 becomes 1 and 4 to 7 become 2: they
  share the tokens of the values 1 and 2.
* ``winners``, of the challenge's winners, whom the paper follows: x for x <= 2 and floor((ln x)^2) above, with tokens
  of their own: 3 and 4 become ``ln2:1``, never the token of the value 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bidwise.data.store import FIRST, MISSING, RARE

ABOVE = 3  # first token of the winners' logarithms
PENDING = 2**20  # counted values that wait to be merged


def printed(x: NDArray[np.int64]) -> NDArray[np.int32]:
    """x for x <= 2, floor(log2 x) above.

    >>> printed(np.array([-2, 0, 2, 3, 4, 7, 8])).tolist()
    [-2, 0, 2, 1, 2, 2, 3]
    """
    exponent = np.frexp(np.maximum(x, 1).astype(np.float64))[1] - 1  # exact, where a logarithm is rounded
    return np.where(x <= 2, x, exponent).astype(np.int32)


def winners(x: NDArray[np.int64]) -> NDArray[np.int32]:
    """x for x <= 2, 3 + floor((ln x)^2) above: the 3 keeps the tokens apart.

    >>> winners(np.array([-2, 0, 2, 3, 4, 5, 100])).tolist()
    [-2, 0, 2, 4, 4, 5, 24]
    """
    logarithm = np.log(np.maximum(x, 1))
    return np.where(x <= 2, x, ABOVE + np.floor(logarithm * logarithm)).astype(np.int32)


class Map(NamedTuple):
    """Integers to tokens, and tokens as they are called in the vocabulary."""

    tokens: Callable[[NDArray[np.int64]], NDArray[np.int32]]
    names: Callable[[NDArray[Any]], list[str]]


MAPS = {
    "winners": Map(winners, lambda tokens: [str(t) if t < ABOVE else f"ln2:{t - ABOVE}" for t in tokens.tolist()]),
    "printed": Map(printed, lambda tokens: [str(t) for t in tokens.tolist()]),
}


class Tally:
    """How often each value was seen; counts of blocks are merged when they are as many as all before."""

    def __init__(self, kind: DTypeLike) -> None:
        self.type = np.dtype(kind)
        self.values: NDArray[Any] = np.empty(0, self.type)
        self.counts: NDArray[np.int64] = np.empty(0, np.int64)
        self.missing = 0
        self._pending: list[tuple[NDArray[Any], NDArray[np.int64]]] = []
        self._waiting = 0

    def add(self, values: NDArray[Any], counts: NDArray[np.int64]) -> None:
        self._pending.append((values.copy(), counts.copy()))  # they may lie in a worker's memory, which waits for it
        self._waiting += len(values)
        if self._waiting > max(PENDING, len(self.values)):
            self._merge()

    def _merge(self) -> None:
        values = np.concatenate([self.values, *(values for values, _ in self._pending)])
        counts = np.concatenate([self.counts, *(counts for _, counts in self._pending)])
        order = np.argsort(values, kind="stable")
        values = values[order]
        first = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
        self.values = values[first]
        self.counts = np.add.reduceat(counts[order], first) if len(first) else counts
        self._pending, self._waiting = [], 0

    def vocabulary(self, min_count: int) -> Vocabulary:
        """Values seen ``min_count`` times or more, the most frequent first, ties by value."""
        self._merge()
        kept = self.counts >= min_count
        values, counts = self.values[kept], self.counts[kept]
        order = np.lexsort((values, -counts))
        return Vocabulary(values[order], int(self.counts[~kept].sum()), self.missing)


@dataclass
class Vocabulary:
    """Values of a field in the order of their ids, from 2 on; how many training ads have rare or missing ones."""

    values: NDArray[Any]
    rare: int
    missing: int

    def __post_init__(self) -> None:
        """A hash table: values in the order of their places, four places or more for each, and where each place begins.

        Ids of all fields take 0.4 of the time of binary searches among a few thousand values each.
        """
        self._bits = max(4 * len(self.values), 2).bit_length()
        places = self._places(self.values)
        order = np.argsort(places)
        self._first = np.searchsorted(places[order], np.arange(2**self._bits)).astype(np.int32)
        self._steps = int(np.bincount(places, minlength=1).max())  # values that share a place
        order = np.append(order, order[-1:].repeat(self._steps))  # looking on from the last place finds the last again
        self._found, self._ids = self.values[order], (order + FIRST).astype(np.int32)

    def _places(self, tokens: NDArray[Any]) -> NDArray[np.int64]:
        mixed = tokens.astype(np.uint32) * np.uint32(0x9E3779B1)
        return (mixed >> np.uint32(32 - self._bits)).astype(np.int64)

    @property
    def size(self) -> int:
        """Ids, with those of rare and missing values."""
        return FIRST + len(self.values)

    def ids(self, tokens: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Ids of values: 0 for unknown ones, 1 where missing."""
        found = np.full(len(tokens), RARE, np.int32)
        at = self._first[self._places(tokens)].astype(np.int64)
        for _ in range(self._steps):
            np.copyto(found, self._ids[at], where=self._found[at] == tokens)
            at += 1
        found[missing] = MISSING
        return found

    @staticmethod
    def save(path: Path, vocabularies: Sequence[Vocabulary]) -> None:
        """All fields in one file, whole or not at all."""
        part = path.with_name(path.name + ".part")
        with part.open("wb") as file:
            seen = np.array([(found.rare, found.missing) for found in vocabularies], np.int64)
            values: dict[str, Any] = {f"{at:03d}": found.values for at, found in enumerate(vocabularies)}
            np.savez(file, seen=seen, **values)
        part.replace(path)

    @staticmethod
    def load(path: Path) -> list[Vocabulary]:
        """What :meth:`save` wrote."""
        with np.load(path) as found:
            return [Vocabulary(found[f"{at:03d}"], int(r), int(m)) for at, (r, m) in enumerate(found["seen"])]
