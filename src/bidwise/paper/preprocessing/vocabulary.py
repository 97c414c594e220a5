"""How often values occur in the training ads, and the ids that they get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bidwise.data.criteo_text import INTEGERS, NAMES
from bidwise.data.store import FIRST, MISSING, RARE
from bidwise.paper.preprocessing.sorted_blocks import Runs
from bidwise.run_folder import whole_file
from bidwise.runners import Runner

KINDS = [np.int32 if name in INTEGERS else np.uint32 for name in NAMES]
PENDING = 2**20  # counted values that wait to be merged

Counts = tuple[list[tuple[NDArray[Any], NDArray[Any]]], list[int]]  # of values, and of missing ones, for each field


def count_values(
    runs: Runs, training: int, kept: Path, min_count: int, engine: Runner, show: Callable[[str, float], None]
) -> list[Vocabulary]:
    """Vocabularies of the training ads, the first ``training`` in random order; ``kept`` holds them once counted."""
    if kept.is_file():
        return Vocabulary.load(kept)
    tallies = [Tally(kind) for kind in KINDS]
    done = 0

    def then(counts: Counts) -> None:
        nonlocal done
        for tally, counted, missing in zip(tallies, *counts, strict=True):
            tally.add(*counted)
            tally.missing += missing
        done += 1
        show("Counting values", done / len(runs.paths))

    engine.in_order(partial(_counts, runs, runs.key(training)), range(len(runs.paths)), then)
    counted = [
        tally.vocabulary(1 if name in INTEGERS else min_count) for name, tally in zip(NAMES, tallies, strict=True)
    ]
    Vocabulary.save(kept, counted)
    return counted


def _counts(runs: Runs, limit: np.uint64, run: int) -> Counts:
    """Values of each field and how often a run has them in rows with smaller keys; how often they are missing."""
    rows = runs.below(run, limit)
    tokens, flags = np.ascontiguousarray(rows["tokens"].T), np.ascontiguousarray(rows["flags"])
    counted, missing = [], []
    for field, kind in enumerate(KINDS):
        present = (flags & np.uint64(1 << field)) == 0
        counted.append(np.unique(tokens[field][present].view(kind), return_counts=True))
        missing.append(int(len(rows) - present.sum()))
    return counted, missing


class Tally:
    """How often each value was seen; counts of blocks are merged when they are as many as all before."""

    def __init__(self, kind: DTypeLike) -> None:
        self.values: NDArray[Any] = np.empty(0, kind)
        self.counts: NDArray[np.int64] = np.empty(0, np.int64)
        self.missing = 0
        self._pending: list[tuple[NDArray[Any], NDArray[np.int64]]] = []

    def add(self, values: NDArray[Any], counts: NDArray[np.int64]) -> None:
        self._pending.append((values.copy(), counts.copy()))  # they may lie in a worker's memory, which waits for it
        if sum(len(values) for values, _ in self._pending) > max(PENDING, len(self.values)):
            self._merge()

    def _merge(self) -> None:
        values, counts = (np.concatenate(x) for x in zip((self.values, self.counts), *self._pending, strict=True))
        order = np.argsort(values, kind="stable")
        values = values[order]
        first = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
        self.values = values[first]
        self.counts = np.add.reduceat(counts[order], first) if len(first) else counts
        self._pending = []

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
        with whole_file(path) as part, part.open("wb") as file:
            seen = np.array([(field.rare, field.missing) for field in vocabularies], np.int64)
            values: dict[str, Any] = {f"{at:03d}": field.values for at, field in enumerate(vocabularies)}
            np.savez(file, seen=seen, **values)

    @staticmethod
    def load(path: Path) -> list[Vocabulary]:
        """What :meth:`save` wrote."""
        with np.load(path) as there:
            return [Vocabulary(there[f"{at:03d}"], int(r), int(m)) for at, (r, m) in enumerate(there["seen"])]
