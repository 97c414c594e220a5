"""Criteo's raw text as a store: split, shuffled, integers as categories, vocabularies from the training ads.

Lines become rows of files in a scratch folder, one file for each range of a random key. Sorted by key, file after file,
they are the ads in random order, and no row is ever looked up: the first ones are for training.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise.checks import InputError, check_name, check_seed, check_whole
from bidwise.data.store import (
    FIRST,
    MISSING,
    RARE,
    SCHEMA,
    SPLITS,
    Field,
    Store,
    StoreWriter,
    check_shares,
    split_sizes,
)
from bidwise.run_folder import LOCK, checksum, locked_folder, open_folder
from bidwise.workers import cores, in_order
from paper.bids import SOURCES, Bids, attach
from paper.criteo_text import CATEGORIES, INTEGERS, MAPS, NAMES
from paper.raw_text import Block, Malformed, blocks, fault, parse, raw_files, true_ctrs

SCRATCH = "unfinished"  # folder inside OUT, gone in the end
ORDERS = ("random", "file")
ENDS = 2**20  # bytes at both ends of a file, enough to tell that it was changed
RANGE_BITS = 6  # of a random key: 64 ranges
ROWS = 2**18  # of a range where the lines keep their order
FIELDS = len(NAMES)
KINDS = [np.int32 if name in INTEGERS else np.uint32 for name in NAMES]  # of values
ROW = np.dtype([("key", "<u8"), ("truth", "<f4"), ("click", "u1"), ("missing", "u1", 5), ("tokens", "<u4", FIELDS)])

Progress = Callable[[str, float], None]
Counts = tuple[NDArray[Any], NDArray[np.int64], int]  # values, how often each was seen, how often one is missing


@dataclass(frozen=True)
class Options:
    """What ads of a store depend on besides the files.

    Args:
        min_count: categories seen less often in the training ads count as rare.
        split: shares of training, validation and test ads.
        order: random, or file: the first lines are for training and the last for test, a split by time.
        seed: of the random order and of the bids.
        integers: how integers become categories: winners, floor((ln x)^2) as the challenge's winners did, or printed,
            floor(log2 x) as the paper prints, which puts 3 with 1 and 4 to 7 with 2.
    """

    min_count: int = 10
    split: str = "8,1,1"
    order: str = "random"
    seed: int = 0
    integers: str = "winners"

    def __post_init__(self) -> None:
        check_whole("min_count", self.min_count, 1)
        check_seed("seed", self.seed)
        check_name("integers", self.integers, MAPS)
        check_name("order", self.order, ORDERS)
        check_shares(self.shares, least=1)

    @property
    def shares(self) -> tuple[int, ...]:
        """``split`` as numbers."""
        try:
            return tuple(map(int, self.split.split(",")))
        except ValueError:
            raise InputError(f"must be whole numbers such as 8,1,1, found {self.split!r}", argument="split") from None


def prepare(
    raw: str | Path | Sequence[str | Path],
    out: str | Path,
    options: Options = Options(),  # noqa: B008 (frozen)
    *,
    bids: Bids | None = Bids(),  # noqa: B008 (frozen)
    progress: Progress | None = None,
) -> Store:
    """Raw Criteo text as a store in ``out``; a store that is complete is left alone, another one is begun again.

    The disk holds 176 bytes for each line besides the store (161 for each) until the end.

    Args:
        raw: files in the challenge's layout, plain or gzip, one data set in order. A file ``RAW.ctr.npy`` beside each,
            one CTR for each line, becomes the column ``truth``.
        out: folder of the store, new or of the same options.
        bids: which bids the ads get; ``None``: none.
        progress: called with the work and the share of it that is done.
    """
    files = raw_files([raw] if isinstance(raw, str | Path) else raw)
    truth = true_ctrs(files)
    if bids is not None and "truth" in SOURCES[bids.kind] and not truth:
        raise InputError(f"bids of kind {bids.kind} need the true CTR, found no {files[0].name}.ctr.npy")
    if bids is not None and bids.kind in ("advertiser", "residual"):
        bids.column(NAMES)
    folder, config = Path(out), _config(files, truth, options, bids)
    if folder.is_file():
        raise InputError(f"must be a folder, found the file {folder}; it is the last argument", argument="out")
    others = {path.name for path in folder.iterdir()} - {LOCK, SCRATCH, *SPLITS} if folder.is_dir() else set()
    if "config.toml" in others:
        open_folder(folder, config)
    elif others - {"config.toml.part"}:
        raise InputError(f"must be a new folder, found {folder} with other files in it", argument="out")
    show = progress or (lambda work, share: None)
    with locked_folder(folder):
        if (folder / SCHEMA).is_file():
            shutil.rmtree(folder / SCRATCH, ignore_errors=True)  # of a run that was killed at its very end
            store = Store(folder)
        else:
            with _scratch(folder / SCRATCH) as scratch:
                ranges = _ranges(files, truth, scratch, options, show)
                store = _written(ranges, folder, config, options, bool(truth), show)
        if bids is not None and not store.has("bids"):
            store = attach(store, bids, progress=progress)
        return store


def _config(files: list[Path], truth: dict[Path, NDArray[Any]], options: Options, bids: Bids | None) -> dict[str, Any]:
    """What must be the same for a store to be the same: options, and files by name, size and both ends."""
    bid_options = {"kind": "none"} if bids is None else asdict(bids)
    return {
        "experiment": "prepare criteo",
        "raw": [path.name for path in files],
        "raw_bytes": [path.stat().st_size for path in files],
        "raw_ends": [_ends(path) for path in files],
        "truth": [checksum(np.ascontiguousarray(ctr).tobytes()) for ctr in truth.values()],
        **asdict(options),
        **{"bids" if option == "kind" else f"bid_{option}": value for option, value in bid_options.items()},
    }


def _ends(path: Path) -> str:
    """Checksum of the first and the last megabyte."""
    with path.open("rb") as file:
        first = file.read(ENDS)
        file.seek(max(0, path.stat().st_size - ENDS))
        return checksum(first, file.read())


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """An empty folder that is removed at the end; one of a run that was killed is emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keys(seed: int | None, start: int, count: int) -> NDArray[np.uint64]:
    """Random keys of the lines from ``start`` on, by which rows are sorted; without a seed the numbers of the lines.

    Every step of SplitMix64 can be undone, so different lines have different keys.

    >>> keys(0, 0, 3)[1] == keys(0, 1, 1)[0]
    np.True_
    """
    lines = np.arange(start, start + count, dtype=np.uint64)
    if seed is None:
        return lines
    first = _mixed(np.array([(seed + 1) * 0x9E3779B97F4A7C15 & (2**64 - 1)], np.uint64))
    return _mixed(lines * np.uint64(0x9E3779B97F4A7C15) + first)


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return state ^ (state >> np.uint64(31))


@dataclass(frozen=True)
class Range:
    """Rows of neighbouring keys, in a file of their own; ``start`` is the place of the first among all."""

    path: Path
    start: int
    stop: int

    def read(self, before: int | None = None) -> NDArray[Any]:
        """The rows by key, or those with a place before the one given."""
        rows = np.fromfile(self.path, ROW)
        ordered: NDArray[Any] = rows[np.argsort(rows["key"])[: None if before is None else max(0, before - self.start)]]
        return ordered


def _ranges(
    files: list[Path], truth: dict[Path, NDArray[Any]], scratch: Path, options: Options, show: Progress
) -> list[Range]:
    """First pass: every line as a row in the file of its range."""
    seed = options.seed if options.order == "random" else None
    rows_of: dict[int, int] = {}

    def parsed(block: Block) -> tuple[float, list[tuple[int, NDArray[Any]]]]:
        rows = _rows(block, seed, options.integers)
        numbers = rows["key"] // np.uint64(ROWS) if seed is None else rows["key"] >> np.uint64(64 - RANGE_BITS)
        order = np.argsort(numbers, kind="stable")
        found, first = np.unique(numbers[order], return_index=True)
        return block.share, list(zip(found.tolist(), np.split(rows[order], first[1:]), strict=True))

    with ExitStack() as stack:
        opened: dict[int, BinaryIO] = {}

        def write(found: tuple[float, list[tuple[int, NDArray[Any]]]]) -> None:
            for number, rows in found[1]:
                if number not in opened:
                    opened[number] = stack.enter_context((scratch / f"{number}.rows").open("wb"))
                rows.tofile(opened[number])
                rows_of[number] = rows_of.get(number, 0) + len(rows)
            show("Reading lines", found[0])

        in_order(parsed, blocks(files, truth), write, min(cores(), 8))
    numbers = sorted(rows_of)
    ends = list(accumulate(rows_of[number] for number in numbers))
    return [Range(scratch / f"{n}.rows", end - rows_of[n], end) for n, end in zip(numbers, ends, strict=True)]


def _rows(block: Block, seed: int | None, integers: str) -> NDArray[Any]:
    try:
        lines = parse(block.text)
    except Malformed:
        for number, line in enumerate(block.text.split(b"\n"), block.line + 1):
            if words := fault(line):
                raise InputError(f"{block.path}:{number}: {words}") from None
        raise
    rows = np.empty(len(lines), ROW)
    rows["key"] = keys(seed, block.row, len(rows))
    rows["truth"] = 0 if block.truth is None else block.truth
    rows["click"] = lines["label"]
    rows["missing"] = np.packbits(lines.select(pl.col(*NAMES).is_null()).to_numpy(), axis=1)
    filled = lines.select(pl.col(*NAMES).fill_null(0))
    rows["tokens"][:, : len(INTEGERS)] = MAPS[integers](filled.select(INTEGERS).to_numpy()).view(np.uint32)
    rows["tokens"][:, len(INTEGERS) :] = filled.select(CATEGORIES).to_numpy()
    return rows


def _columns(rows: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[np.bool_]]]:
    """Values of each field and where they are missing."""
    tokens = np.ascontiguousarray(rows["tokens"].T)
    missing = np.unpackbits(rows["missing"], axis=1, count=FIELDS).astype(bool)
    for at, kind in enumerate(KINDS):
        yield tokens[at].view(kind), np.ascontiguousarray(missing[:, at])


def _written(
    ranges: list[Range], folder: Path, config: dict[str, Any], options: Options, truth: bool, show: Progress
) -> Store:
    """Second pass: values of the training ads. Third: all ads as ids, in the order of their keys."""
    sizes = dict(zip(SPLITS, split_sizes(ranges[-1].stop, options.shares, "raw"), strict=True))
    vocabularies = _vocabularies(ranges, sizes["train"], options.min_count, show)
    writer, clicked = StoreWriter(folder, sizes), dict.fromkeys(sizes, 0)
    widths = {"features": FIELDS, "clicks": None} | ({"truth": None} if truth else {})
    columns = {name: {x: writer.column(name, x, width=width) for x, width in widths.items()} for name in sizes}

    def encoded(part: Range) -> tuple[Range, dict[str, NDArray[Any]]]:
        rows = part.read()
        ids = [found.ids(*column) for found, column in zip(vocabularies, _columns(rows), strict=True)]
        return part, {"features": np.stack(ids).T, "clicks": rows["click"], "truth": rows["truth"]}

    def write(found: tuple[Range, dict[str, NDArray[Any]]]) -> None:
        (part, values), begin = found, 0
        for name, size in sizes.items():
            first, last = max(part.start, begin), min(part.stop, begin + size)
            if first < last:
                for column, array in columns[name].items():
                    array[first - begin : last - begin] = values[column][first - part.start : last - part.start]
                clicked[name] += int(values["clicks"][first - part.start : last - part.start].sum())
            begin += size
        show("Writing ads", part.stop / ranges[-1].stop)

    in_order(encoded, ranges, write, min(cores(), 8))
    open_folder(folder, config)
    fields = dict(zip(NAMES, vocabularies, strict=True))
    return writer.finish(
        fields=[Field(name, FIRST + len(found.values)) for name, found in fields.items()],
        about={
            "source": "criteo",
            "raw": config["raw"],
            "options": asdict(options),
            "rows": sum(sizes.values()),
            "click_rate": {name: clicked[name] / size for name, size in sizes.items()},
            "rare": {name: found.rare / sizes["train"] for name, found in fields.items()},
            "missing": {name: found.missing / sizes["train"] for name, found in fields.items()},
        },
    )


def _vocabularies(ranges: list[Range], training: int, min_count: int, show: Progress) -> list[Vocabulary]:
    """Values seen ``min_count`` times or more, the most frequent first, ties by value; all integers."""
    totals: list[Counts] = [(np.empty(0, kind), np.empty(0, np.int64), 0) for kind in KINDS]

    def counted(part: Range) -> tuple[float, list[Counts]]:
        columns = _columns(part.read(before=training))
        counts = [(*np.unique(values[~gaps], return_counts=True), int(gaps.sum())) for values, gaps in columns]
        return min(1.0, part.stop / training), counts

    def add(found: tuple[float, list[Counts]]) -> None:
        totals[:] = map(_merged, totals, found[1])
        show("Counting values", found[0])

    in_order(counted, [part for part in ranges if part.start < training], add, min(cores(), 8))
    vocabularies = []
    for name, (values, counts, missing) in zip(NAMES, totals, strict=True):
        kept = counts >= (1 if name in INTEGERS else min_count)
        order = np.lexsort((values[kept], -counts[kept]))
        vocabularies.append(Vocabulary(values[kept][order], int(counts[~kept].sum()), missing))
    return vocabularies


def _merged(before: Counts, more: Counts) -> Counts:
    values, counts = (np.concatenate([before[at], more[at]]) for at in (0, 1))
    order = np.argsort(values, kind="stable")
    values = values[order]
    first = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    return values[first], np.add.reduceat(counts[order], first) if len(first) else counts, before[2] + more[2]


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

    def ids(self, tokens: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Ids of values: 0 for unknown ones, 1 where missing."""
        found = np.full(len(tokens), RARE, np.int32)
        at = self._first[self._places(tokens)].astype(np.int64)
        for _ in range(self._steps):
            np.copyto(found, self._ids[at], where=self._found[at] == tokens)
            at += 1
        found[missing] = MISSING
        return found
