"""Rows in random order without holding them: blocks sorted by a random key, then read key range by key range.

Where a row goes depends on the seed and its line alone, never on blocks, threads or whether a run was cut off. All
reading and writing is in long stretches: scattering rows over large files costs a page of disk for every row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.run_folder import read_json, whole_file

FIELDS = 39
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
    first = _mixed_number((seed + 1) * 0x9E3779B97F4A7C15 & _WORD)
    state = np.arange(start, start + count, dtype=np.uint64)
    state *= np.uint64(0x9E3779B97F4A7C15)
    state += np.uint64(first)
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def _mixed_number(state: int) -> int:
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _WORD
    return state ^ state >> 31


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
    a run. Two attempts at once write the same bytes.

    Args:
        tokens: ``(39, rows)``.
        missing: ``(39, rows)``.
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
