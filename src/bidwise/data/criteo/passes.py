"""The three passes from raw text to a store: lines into sorted runs, counts of values, rows as ids in random order."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import InputError, check_name, check_whole
from bidwise.data.criteo.files import Block, blocks, check_packed, load_truth
from bidwise.data.criteo.lines import faults, parse
from bidwise.data.criteo.raw import CATEGORIES, INTEGERS
from bidwise.data.criteo.runs import CLICKED, Runs, finished, keys, write_run
from bidwise.data.criteo.tokens import MAPS, Tally, Vocabulary
from bidwise.data.store import create
from bidwise.runs import write_text

NAMES = (*INTEGERS, *CATEGORIES)
ON_ERROR = ("strict", "skip")
SAMPLES = 10  # lines that were skipped, shown in full

Progress = Callable[[str, float], None]
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Options:
    """What ads of a store depend on besides the files; see :func:`bidwise.data.criteo.prepare`."""

    min_count: int
    split: tuple[int, ...]
    seed: int
    integers: str
    on_error: str

    def __post_init__(self) -> None:
        check_whole("min_count", self.min_count, 1)
        check_whole("seed", self.seed, 0)
        check_name("integers", self.integers, MAPS)
        check_name("on_error", self.on_error, ON_ERROR)
        if len(self.split) != 3:
            raise InputError(f"split must be three shares such as 8,1,1, found {','.join(map(str, self.split))!r}")
        for share in self.split:
            check_whole("split", share, 1)


def read_lines(files: list[Path], truth: list[Path], work: Path, options: Options, show: Progress) -> int:
    """First pass: lines into sorted runs; how many runs there are. Blocks with a run are not parsed again."""
    known = {path: load_truth(found) for path, found in zip(files, truth, strict=False)}
    lines = dict.fromkeys(files, 0)

    def tasks() -> Iterable[Block]:
        for block in blocks(files):
            lines[block.path] = block.line + block.lines
            yield block

    def one(block: Block) -> float:
        if not finished(work, block.number):
            _run(block, known.get(block.path), work, options)
        return block.share

    total = _in_order(one, tasks(), lambda share: show("Reading lines", share))
    for path, ctr in known.items():
        if len(ctr) != lines[path]:
            raise InputError(
                f"{path.name}.ctr.npy must have one CTR for each of the {lines[path]:,} lines of {path}, "
                f"found {len(ctr):,}"
            )
    return total


def _run(block: Block, known: NDArray[Any] | None, work: Path, options: Options) -> None:
    found = parse(block.text)
    bad = faults(block, found.good)
    if bad and options.on_error == "strict":
        check_packed(block.path)
        line, _, words = bad[0]
        raise InputError(f"{block.path}:{line}: {words}; mend the line, or leave such lines out with --on-error skip")
    truth = None if known is None else _truth(known, block, len(found.good))[found.good]
    tokens = np.empty((len(NAMES), len(found.clicks)), np.uint32)
    tokens[: len(INTEGERS)] = MAPS[options.integers].tokens(found.integers).view(np.uint32)
    tokens[len(INTEGERS) :] = found.categories
    about = {
        "skipped": dict(Counter(kind for _, kind, _ in bad)),
        "samples": [f"{block.path.name}:{line}: {words}" for line, _, words in bad[:SAMPLES]],
    }
    key = keys(options.seed, block.row, len(found.good))[found.good]
    write_run(work, block.number, key, found.clicks, tokens, found.missing, truth, about)


def _truth(known: NDArray[Any], block: Block, lines: int) -> NDArray[np.float32]:
    """The CTR of a block's lines; where numbers are missing zeros, for the error is raised when lines are counted."""
    truth = np.zeros(lines, np.float32)
    there = known[block.line : block.line + lines]
    truth[: len(there)] = there
    wrong = np.flatnonzero(~((truth >= 0) & (truth <= 1)))
    if len(wrong):
        line = block.line + int(wrong[0]) + 1
        raise InputError(f"{block.path}.ctr.npy must be between 0 and 1, found {truth[wrong[0]]} for line {line}")
    return truth


def skipped_lines(runs: Runs, folder: Path) -> dict[str, Any]:
    """Malformed lines: how many of each kind, and some of them, which also go into ``skipped.log``."""
    reasons: Counter[str] = Counter()
    for about in runs.about:
        reasons.update(about["skipped"])
    samples = [words for about in runs.about for words in about["samples"]][:SAMPLES]
    if reasons:
        counts = "".join(f"{kind}: {count:,} lines\n" for kind, count in sorted(reasons.items()))
        write_text(folder / "skipped.log", counts + "".join(f"{words}\n" for words in samples))
    return {"lines": reasons.total(), "reasons": dict(sorted(reasons.items())), "samples": samples}


def count_values(runs: Runs, training: int, work: Path, min_count: int, show: Progress) -> list[Vocabulary]:
    """Second pass: how often each value is in the training ads, the first ``training`` in their random order."""
    kept = work / "vocabulary.npz"
    if kept.is_file():
        return Vocabulary.load(kept)
    limit = runs.key(training)
    tallies = [Tally(np.int32 if name in INTEGERS else np.uint32) for name in NAMES]

    def one(run: int) -> tuple[list[tuple[NDArray[Any], NDArray[Any]]], list[int]]:
        rows = runs.below(run, limit)
        tokens = np.ascontiguousarray(rows["tokens"].T)
        flags = np.ascontiguousarray(rows["flags"])
        present = [(flags & np.uint64(1 << field)) == 0 for field in range(len(NAMES))]
        counted = [
            np.unique(tokens[field][present[field]].view(tally.type), return_counts=True)
            for field, tally in enumerate(tallies)
        ]
        return counted, [int(len(rows) - found.sum()) for found in present]

    done = 0

    def then(found: tuple[list[tuple[NDArray[Any], NDArray[Any]]], list[int]]) -> None:
        nonlocal done
        for tally, counted, missing in zip(tallies, *found, strict=True):
            tally.add(*counted)
            tally.missing += missing
        done += 1
        show("Counting values", done / len(runs.paths))

    _in_order(one, range(len(runs.paths)), then)
    found = [tally.vocabulary(1 if name in INTEGERS else min_count) for name, tally in zip(NAMES, tallies, strict=True)]
    Vocabulary.save(kept, found)
    return found


def write_ads(
    runs: Runs,
    vocabularies: list[Vocabulary],
    work: Path,
    folder: Path,
    sizes: dict[str, int],
    truth: bool,
    show: Progress,
) -> None:
    """Third pass: rows in their random order as ids. A range that is written leaves a mark."""
    columns = {"features": len(NAMES), "clicks": None} | ({"truth": None} if truth else {})
    ranges = runs.ranges()
    marks = [work / f"{first}.written" for first, _ in ranges]
    if not all(mark.is_file() for mark in marks):
        for name, size in sizes.items():
            for column, fields in columns.items():
                create(folder, name, column, size, fields)

    def one(number: int) -> float:
        if not marks[number].is_file():
            rows = runs.gather(*ranges[number])
            found = {"clicks": (rows["flags"] & CLICKED) != 0, "truth": rows["truth"], "features": ids(rows)}
            start, begin = int(runs.cells[ranges[number][0]]), 0
            for name, size in sizes.items():
                first, last = max(start, begin), min(start + len(rows), begin + size)
                if first < last:
                    for column, fields in columns.items():  # opened for this range alone: pages are given back
                        part = create(folder, name, column, size, fields)
                        part[first - begin : last - begin] = found[column][first - start : last - start]
                begin += size
            marks[number].touch()
        return (number + 1) / len(ranges)

    def ids(rows: NDArray[Any]) -> NDArray[np.int32]:
        tokens, flags = np.ascontiguousarray(rows["tokens"].T), np.ascontiguousarray(rows["flags"])
        found = np.empty(tokens.shape, np.int32)
        for field, vocabulary in enumerate(vocabularies):
            missing = (flags & np.uint64(1 << field)) != 0
            found[field] = vocabulary.ids(tokens[field].view(vocabulary.values.dtype), missing)
        return found.T

    _in_order(one, range(len(ranges)), lambda share: show("Writing ads", share))


def _in_order(work: Callable[[Task], Result], tasks: Iterable[Task], then: Callable[[Result], None]) -> int:
    """``then(work(task))`` in the order of the tasks, with a few under way at once; how many there were."""
    count, under_way = 0, deque[Future[Result]]()
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)
    with ThreadPoolExecutor(workers) as pool:  # numpy and zlib let other threads work
        try:
            for task in tasks:
                under_way.append(pool.submit(work, task))
                count += 1
                if len(under_way) > workers:
                    then(under_way.popleft().result())
            while under_way:
                then(under_way.popleft().result())
        finally:
            for future in under_way:
                future.cancel()
    return count
