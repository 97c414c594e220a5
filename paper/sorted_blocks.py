"""Rows in random order without holding them: blocks sorted by a random key, then read key range by key range.

Where a row goes depends on the seed and its line alone, never on blocks, threads or whether a run was cut off. All
reading and writing is in long stretches: scattering rows over large files costs a page of disk for every row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.data.store import FIRST, MISSING, RARE
from bidwise.json_files import read_json
from bidwise.run_folder import whole_file
from paper.criteo_text import INTEGERS, NAMES

FIELDS = len(NAMES)
KINDS = [np.int32 if name in INTEGERS else np.uint32 for name in NAMES]  # of values
ROW = np.dtype(
    [
        ("key", "<u8"),
        ("flags", "<u8"),  # bit of each missing field; clicked
        ("truth", "<f4"),
        ("tokens", "<u4", FIELDS),
    ]
)
CLICKED = np.uint64(1 << FIELDS)
CELLS = 2**12  # equal ranges of keys; a run tells where each begins
CELL_BITS = np.uint64(64 - 12)
MOST_IN_ORDER = 2**28  # lines that can keep their order
RANGE = 2**18  # rows put in order at a time
PENDING = 2**20  # counted values that wait to be merged
_WORD = 2**64 - 1


def keys(seed: int | None, start: int, count: int) -> NDArray[np.uint64]:
    """Random keys of the lines from ``start`` on; no two lines share one. Rows are shuffled by sorting them.

    Every step of SplitMix64 can be undone, so different lines have different keys. Without a seed, keys keep the order
    of the lines, 65,536 of them in a cell.

    >>> keys(0, 0, 3)[1] == keys(0, 1, 1)[0]
    np.True_
    """
    if seed is None:
        if start + count > MOST_IN_ORDER:
            raise InputError(f"must be random for more than {MOST_IN_ORDER:,} lines, found file", argument="order")
        return np.arange(start, start + count, dtype=np.uint64) << np.uint64(36)
    first = _mixed(np.array([(seed + 1) * 0x9E3779B97F4A7C15 & _WORD], np.uint64))
    return _mixed(np.arange(start, start + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + first)


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return state ^ (state >> np.uint64(31))


def write_run(
    work: Path,
    number: int,
    key: NDArray[np.uint64],
    clicks: NDArray[Any],
    tokens: NDArray[np.uint32],
    missing: NDArray[np.bool_],
    truth: NDArray[np.float32] | None,
    about: Mapping[str, Any],
) -> None:
    """Rows of a block, sorted by key, as ``NUMBER.run``; ``about`` as ``NUMBER.json`` before it: it counts only beside
    a run. ``tokens`` and ``missing`` are ``(39, rows)``. Two attempts at once write the same bytes.
    """
    order = np.argsort(key)
    rows = np.empty(len(key), ROW)
    rows["key"] = key[order]
    flags = np.where(clicks, CLICKED, np.uint64(0))
    for field in range(FIELDS):
        flags |= missing[field].astype(np.uint64) << np.uint64(field)
    rows["flags"] = flags[order]
    rows["truth"] = 0 if truth is None else truth[order]
    rows["tokens"] = tokens[:, order].T
    index = np.searchsorted(rows["key"] >> CELL_BITS, np.arange(CELLS + 1, dtype=np.uint64))
    with whole_file(work / f"{number:06d}.json", scratch=True) as part:
        part.write_text(json.dumps(about), encoding="utf-8")
    with whole_file(work / f"{number:06d}.run", scratch=True) as part, part.open("wb") as file:
        index.astype("<i8").tofile(file)
        rows.tofile(file)


def finished(work: Path, number: int) -> bool:
    """Whether a block's rows are there already."""
    return (work / f"{number:06d}.run").is_file()


class Runs:
    """The sorted runs of a folder, as one shuffled table: row 0 has the smallest key."""

    def __init__(self, work: Path, count: int) -> None:
        self.paths = [work / f"{number:06d}.run" for number in range(count)]
        self.about = [read_json(path.with_suffix(".json")) for path in self.paths]
        heads = [np.fromfile(path, "<i8", CELLS + 1) for path in self.paths]
        for path, head in zip(self.paths, heads, strict=True):
            size = len(head) == CELLS + 1 and 8 * len(head) + ROW.itemsize * int(head[-1])
            if path.stat().st_size != size:
                raise OSError(f"{path} is damaged; delete {work.parent} and prepare the data again")
        self.index = np.stack(heads)  # (runs, cells + 1)
        self.cells = self.index.sum(0)  # rows before each cell
        self.rows = int(self.cells[-1])

    def read(self, run: int, first: int, last: int) -> NDArray[Any]:
        """Rows of one run in the cells from ``first`` to before ``last``."""
        start, stop = (int(self.index[run, cell]) for cell in (first, last))
        return np.fromfile(self.paths[run], ROW, stop - start, offset=8 * (CELLS + 1) + ROW.itemsize * start)

    def gather(self, first: int, last: int) -> NDArray[Any]:
        """All rows in the cells from ``first`` to before ``last``, in their order: rows ``cells[first]`` and on."""
        rows = np.concatenate([self.read(run, first, last) for run in range(len(self.paths))])
        ordered: NDArray[Any] = rows[np.argsort(rows["key"])]
        return ordered

    def key(self, row: int) -> np.uint64:
        """The key of a row of the shuffled table."""
        cell = int(np.searchsorted(self.cells, row, side="right")) - 1
        found: np.uint64 = self.gather(cell, cell + 1)["key"][row - int(self.cells[cell])]
        return found

    def below(self, run: int, key: np.uint64) -> NDArray[Any]:
        """Rows of one run with smaller keys."""
        rows = self.read(run, 0, int(key >> CELL_BITS) + 1)
        found: NDArray[Any] = rows[: np.searchsorted(rows["key"], key)]
        return found

    def ranges(self) -> list[tuple[int, int]]:
        """Cells in stretches of about ``RANGE`` rows."""
        found, first = [], 0
        for cell in range(1, CELLS + 1):
            if cell == CELLS or self.cells[cell + 1] - self.cells[first] > RANGE:
                found.append((first, cell))
                first = cell
        return found


Counts = tuple[NDArray[Any], NDArray[np.int64], int]  # values, how often each was seen, how often one is missing


def columns_of(rows: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[np.bool_]]]:
    """Values of each field and where they are missing."""
    tokens, flags = np.ascontiguousarray(rows["tokens"].T), np.ascontiguousarray(rows["flags"])
    return [(tokens[at].view(kind), (flags & np.uint64(1 << at)) != 0) for at, kind in enumerate(KINDS)]


def count_values(runs: Runs, limit: np.uint64, run: int) -> list[Counts]:
    """What each field has in the rows of a run with keys below ``limit``."""
    return [
        (*np.unique(values[~missing], return_counts=True), int(missing.sum()))
        for values, missing in columns_of(runs.below(run, limit))
    ]


class Tally:
    """Counts of one field; those of runs are merged when they are as many as all before."""

    def __init__(self, kind: Any) -> None:
        self.counted: list[tuple[NDArray[Any], NDArray[np.int64]]] = [(np.empty(0, kind), np.empty(0, np.int64))]
        self.missing = 0

    def add(self, values: NDArray[Any], counts: NDArray[np.int64], missing: int) -> None:
        self.counted.append((values.copy(), counts.copy()))  # they may lie in a worker's memory, which waits for it
        self.missing += missing
        if sum(len(values) for values, _ in self.counted[1:]) > max(PENDING, len(self.counted[0][0])):
            self._merge()

    def _merge(self) -> None:
        values, counts = (np.concatenate(parts) for parts in zip(*self.counted, strict=True))
        order = np.argsort(values, kind="stable")
        values = values[order]
        first = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
        self.counted = [(values[first], np.add.reduceat(counts[order], first) if len(first) else counts)]

    def vocabulary(self, min_count: int) -> Vocabulary:
        """Values seen ``min_count`` times or more, the most frequent first, ties by value."""
        self._merge()
        ((values, counts),) = self.counted
        kept = counts >= min_count
        order = np.lexsort((values[kept], -counts[kept]))
        return Vocabulary(values[kept][order], int(counts[~kept].sum()), self.missing)


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


def encoded(runs: Runs, vocabularies: Sequence[Vocabulary], cells: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """Columns of the rows in a range of cells, in their order."""
    rows = runs.gather(*cells)
    ids = np.empty((FIELDS, len(rows)), np.int32)
    for at, (vocabulary, column) in enumerate(zip(vocabularies, columns_of(rows), strict=True)):
        ids[at] = vocabulary.ids(*column)
    return {"features": ids.T, "clicks": (rows["flags"] & CLICKED) != 0, "truth": rows["truth"]}
