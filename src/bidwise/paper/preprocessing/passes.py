"""The three passes from raw text to a store: lines into sorted runs, counts of values, rows as ids in random order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import InputError, check_name, check_whole
from bidwise.data.store import StoreWriter
from bidwise.data.worlds.criteo_text import CATEGORIES, INTEGERS
from bidwise.paper.preprocessing.lines import faults, parse
from bidwise.paper.preprocessing.parts import check_seen, counted_parts
from bidwise.paper.preprocessing.raw_files import Block, Truth, blocks, check_packed
from bidwise.paper.preprocessing.sorted_blocks import CELLS, CLICKED, Runs, finished, keys, write_run
from bidwise.paper.preprocessing.tokens import MAPS, Tally, Vocabulary
from bidwise.run_folder import write_text
from bidwise.runners import Runner

NAMES = (*INTEGERS, *CATEGORIES)
KINDS = [np.int32 if name in INTEGERS else np.uint32 for name in NAMES]
ON_ERROR = ("strict", "skip")
SAMPLES = 10  # lines that were skipped, shown in full

Progress = Callable[[str, float], None]
Counts = tuple[list[tuple[NDArray[Any], NDArray[Any]]], list[int]]  # of values, and of missing ones, for each field
Ads = tuple[tuple[int, int], dict[str, NDArray[Any]]]  # a range of cells, and columns of its rows


@dataclass(frozen=True)
class Options:
    """What ads of a store depend on besides the files; see :func:`bidwise.paper.preprocessing.prepare_criteo`."""

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


def read_lines(
    files: list[Path], truth: list[Path], work: Path, options: Options, engine: Runner, show: Progress
) -> int:
    """First pass: lines into sorted runs; how many runs there are. Blocks with a run are not parsed again."""
    known = {path: Truth(beside) for path, beside in zip(files, truth, strict=False)}
    lines, runs = dict.fromkeys(files, 0), 0

    def tasks() -> Iterator[tuple[Iterable[Block], Truth | None]]:
        if not engine.shares_memory:
            for part in counted_parts(files, engine, show):
                lines[part.path] = part.line + part.lines
                yield part, known.get(part.path)
        else:
            for block in blocks(files):
                lines[block.path] = block.line + block.lines
                yield [block], known.get(block.path)

    def then(found: tuple[int, float]) -> None:
        nonlocal runs
        written, share = found
        runs += written
        show("Reading lines", share)

    engine.in_order(partial(_runs, work, options), tasks(), then)
    for path, found in known.items():
        if len(found.ctr) != lines[path]:
            raise InputError(
                f"{path.name}.ctr.npy must have one CTR for each of the {lines[path]:,} lines of {path}, "
                f"found {len(found.ctr):,}"
            )
    return runs


def _runs(work: Path, options: Options, task: tuple[Iterable[Block], Truth | None]) -> tuple[int, float]:
    """A run for each of some blocks of a file; how many, and the share of the last."""
    check_seen("out", work)
    some, known = task
    count, share = 0, 0.0
    for block in some:
        if not finished(work, block.number):
            _run(block, known, work, options)
        count, share = count + 1, block.share
    return count, share


def _run(block: Block, known: Truth | None, work: Path, options: Options) -> None:
    found = parse(block.text)
    bad = faults(block, found.good)
    if bad and options.on_error == "strict":
        check_packed(block.path)
        line, _, words = bad[0]
        raise InputError(f"{block.path}:{line}: {words}; mend the line, or leave such lines out with --on-error skip")
    truth = None if known is None else _truth(known.ctr, block, len(found.good))[found.good]
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


def count_values(
    runs: Runs, training: int, work: Path, min_count: int, engine: Runner, show: Progress
) -> list[Vocabulary]:
    """Second pass: how often each value is in the training ads, the first ``training`` in their random order."""
    kept = work / "vocabulary.npz"
    if kept.is_file():
        return Vocabulary.load(kept)
    tallies = [Tally(kind) for kind in KINDS]
    done = 0

    def then(found: Counts) -> None:
        nonlocal done
        for tally, counted, missing in zip(tallies, *found, strict=True):
            tally.add(*counted)
            tally.missing += missing
        done += 1
        show("Counting values", done / len(runs.paths))

    engine.in_order(partial(_counts, runs, runs.key(training)), range(len(runs.paths)), then)
    found = [tally.vocabulary(1 if name in INTEGERS else min_count) for name, tally in zip(NAMES, tallies, strict=True)]
    Vocabulary.save(kept, found)
    return found


def _counts(runs: Runs, limit: np.uint64, run: int) -> Counts:
    """Values of each field and how often a run has them in rows with smaller keys; how often they are missing."""
    rows = runs.below(run, limit)
    tokens = np.ascontiguousarray(rows["tokens"].T)
    flags = np.ascontiguousarray(rows["flags"])
    present = [(flags & np.uint64(1 << field)) == 0 for field in range(len(NAMES))]
    counted = [
        np.unique(tokens[field][present[field]].view(kind), return_counts=True) for field, kind in enumerate(KINDS)
    ]
    return counted, [int(len(rows) - found.sum()) for found in present]


def write_ads(
    runs: Runs,
    vocabularies: list[Vocabulary],
    work: Path,
    writer: StoreWriter,
    truth: bool,
    engine: Runner,
    show: Progress,
) -> None:
    """Third pass: rows in their random order as ids. A range that is written leaves a mark.

    Workers of a cluster hand ids back and only this process writes: on a network's file system two machines that write
    to one page of a file can undo each other.
    """
    columns = {"features": len(NAMES), "clicks": None} | ({"truth": None} if truth else {})
    opening = Lock()  # the head of a column is a line of Python, which 3.11 cannot parse in two threads at once
    left = [cells for cells in runs.ranges() if not _mark(work, cells).is_file()]
    if left:
        for name in writer.splits:
            for column, width in columns.items():
                writer.column(name, column, width=width)

    def write(ads: Ads) -> float:
        cells, found = ads
        start, begin = int(runs.cells[cells[0]]), 0
        for name, size in writer.splits.items():
            first, last = max(start, begin), min(start + len(found["clicks"]), begin + size)
            if first < last:
                for column, width in columns.items():  # opened for this range alone: pages are given back
                    with opening:
                        part = writer.column(name, column, width=width)
                    part[first - begin : last - begin] = found[column][first - start : last - start]
            begin += size
        _mark(work, cells).touch()
        return cells[1] / CELLS

    def shown(share: float) -> None:
        show("Writing ads", share)

    found = partial(_ads, runs, vocabularies, truth)
    if not engine.shares_memory:
        engine.in_order(found, left, lambda ads: shown(write(ads)))
    else:
        engine.in_order(lambda cells: write(found(cells)), left, shown)


def _mark(work: Path, cells: tuple[int, int]) -> Path:
    return work / f"{cells[0]}.written"


def _ads(runs: Runs, vocabularies: list[Vocabulary], truth: bool, cells: tuple[int, int]) -> Ads:
    """Columns of the rows in a range of cells."""
    rows = runs.gather(*cells)
    tokens, flags = np.ascontiguousarray(rows["tokens"].T), np.ascontiguousarray(rows["flags"])
    ids = np.empty(tokens.shape, np.int32)
    for field, vocabulary in enumerate(vocabularies):
        missing = (flags & np.uint64(1 << field)) != 0
        ids[field] = vocabulary.ids(tokens[field].view(vocabulary.values.dtype), missing)
    found = {"features": ids.T, "clicks": (flags & CLICKED) != 0}
    return cells, found | ({"truth": rows["truth"]} if truth else {})
