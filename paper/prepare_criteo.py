"""Criteo's raw text as a store: split, shuffled, integers as categories, vocabularies from the training ads."""

from __future__ import annotations

import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import InputError, check_name, check_seed, check_whole
from bidwise.data.store import SCHEMA, SPLITS, Field, Store, StoreWriter, check_shares, split_sizes
from bidwise.run_folder import LOCK, locked_folder, open_folder
from bidwise.workers import cores, in_order
from paper import sorted_blocks
from paper.bids import SOURCES, Bids, attach
from paper.criteo_text import INTEGERS, MAPS, NAMES
from paper.raw_text import Block, blocks, check_whole_file, ends, faults, parse, raw_files, truth_files
from paper.sorted_blocks import CELLS, Counts, Runs, Tally, Vocabulary, count_values, encoded

WORK = "unfinished-3"  # folder inside OUT, gone in the end; another number wherever bounds of blocks or runs change
SAMPLES = 10  # lines that were skipped, shown in full
ON_ERROR = ("strict", "skip")
ORDERS = ("random", "file")

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Options:
    """What ads of a store depend on besides the files.

    Args:
        min_count: categories seen less often in the training ads are id 0, rare. Integers are not thinned out.
        split: shares of training, validation and test ads; sizes are exact.
        order: ``random``, or ``file``: ads stay in the order of their lines, so that the split is one by time.
        seed: of the random order of the ads. It depends on the seed and the number of a line alone.
        integers: how integers become categories, ``winners`` or ``printed``, see :mod:`paper.criteo_text`.
        on_error: ``strict`` raises at the first malformed line, ``skip`` leaves such lines out and counts them.
    """

    min_count: int = 10
    split: tuple[int, ...] = (8, 1, 1)
    seed: int = 0
    integers: str = "winners"
    on_error: str = "strict"
    order: str = "random"

    def __post_init__(self) -> None:
        check_whole("min_count", self.min_count, 1)
        check_seed("seed", self.seed)
        check_name("integers", self.integers, MAPS)
        check_name("on_error", self.on_error, ON_ERROR)
        check_name("order", self.order, ORDERS)
        check_shares(self.split, least=1)


def prepare(
    raw: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    bids: Bids | None = Bids(),  # noqa: B008 (frozen)
    progress: Progress | None = None,
    **options: Any,
) -> Store:
    """Raw Criteo text as a store in ``out``; a run that was cut off resumes.

    Three passes: lines are parsed block by block into runs sorted by a random key; training values are counted; runs
    are read key range by key range, which is the random order, and written as ids. Memory holds a few blocks and the
    vocabularies. The disk holds 176 bytes for each line besides the store (161 for each) until the end.

    Args:
        raw: files in the challenge's layout, plain or gzip, one data set in order. A file ``RAW.ctr.npy`` beside each,
            one CTR for each line, becomes the column ``truth``.
        out: folder of the store, new or of the same options.
        bids: which bids the ads get; ``None``: none.
        progress: called with the work and the share of it that is done.
        options: see :class:`Options`.
    """
    chosen = Options(**{**options, "split": tuple(options.get("split", Options.split))})
    files = raw_files([raw] if isinstance(raw, str | Path) else raw)
    truth = truth_files(files)
    if bids is not None and "truth" in SOURCES[bids.kind] and not truth:
        raise InputError(
            f"bids of kind {bids.kind} need the true CTR, found no {files[0].name}.ctr.npy beside {files[0]}"
        )
    if bids is not None and bids.kind in ("advertiser", "residual"):
        bids.column(NAMES)
    folder = Path(out)
    if folder.is_file():
        raise InputError(f"must be a folder, found the file {folder}; it is the last argument", argument="out")
    others = {path.name for path in folder.iterdir()} - {LOCK, "config.toml.part"} if folder.is_dir() else ()
    if others and not (folder / "config.toml").is_file():
        raise InputError(
            f"must be a new folder or one of the same options, found {folder} with other files in it", argument="out"
        )
    show = progress or (lambda work, share: None)
    with locked_folder(folder):
        open_folder(folder, _config(files, truth, chosen, bids))
        if (folder / SCHEMA).is_file():
            store = Store(folder)
        else:
            try:
                store = _prepared(files, truth, folder, chosen, show)
            except InputError:  # the user will change the files or the options: nothing of this attempt is of use
                _withdraw(folder)
                raise
        shutil.rmtree(folder / WORK, ignore_errors=True)
        if bids is not None and not store.has("bids"):
            store = attach(store, bids, progress=progress)
        return store


def _config(files: list[Path], truth: list[Path], options: Options, bids: Bids | None) -> dict[str, Any]:
    """What must be the same for a store to be the same: options, and files by name, size and both ends."""
    drawn = {"kind": "none"} if bids is None else asdict(bids)
    return {
        "experiment": "prepare criteo",
        "raw": [path.name for path in files],
        "raw_bytes": [path.stat().st_size for path in files],
        "raw_ends": [ends(path) for path in files],
        "truth": [ends(path) for path in truth],
        **asdict(options),
        **{"bids" if option == "kind" else f"bid_{option}": value for option, value in drawn.items()},
    }


def _withdraw(folder: Path) -> None:
    """Remove what an attempt left, and the folder if nothing else is in it."""
    for name in (WORK, *SPLITS):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "config.toml").unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _prepared(files: list[Path], truth: list[Path], folder: Path, options: Options, show: Progress) -> Store:
    work = folder / WORK
    work.mkdir(exist_ok=True)
    runs = Runs(work, _read_lines(files, truth, work, options, show))
    reasons = sum((Counter(about["skipped"]) for about in runs.about), Counter[str]())
    if not runs.rows:
        raise InputError(f"must have good lines, found {reasons.total():,} malformed ones and no other", argument="raw")
    sizes = dict(zip(SPLITS, split_sizes(runs.rows, options.split, "raw"), strict=True))
    counted = _vocabularies(runs, sizes["train"], options.min_count, show)
    vocabularies = dict(zip(NAMES, counted, strict=True))
    writer = StoreWriter(folder, sizes)
    _write_ads(runs, counted, work, writer, bool(truth), show)
    show("Checksums", 0.0)
    store = writer.finish(
        fields=[Field(name, field.size) for name, field in vocabularies.items()],
        about={
            "source": "criteo",
            "raw": [path.name for path in files],
            "options": asdict(options),
            "rows": runs.rows,
            "click_rate": {name: float(writer.written(name, "clicks").mean()) for name in sizes},
            "rare": {name: field.rare / sizes["train"] for name, field in vocabularies.items()},
            "missing": {name: field.missing / sizes["train"] for name, field in vocabularies.items()},
            "skipped": {
                "lines": reasons.total(),
                "reasons": dict(sorted(reasons.items())),
                "samples": [words for about in runs.about for words in about["samples"]][:SAMPLES],
            },
        },
    )
    show("Checksums", 1.0)
    return store


def _read_lines(files: list[Path], truth: list[Path], work: Path, options: Options, show: Progress) -> int:
    """First pass: lines into sorted runs; how many runs there are. Blocks with a run are not parsed again."""
    runs = 0

    def tasks() -> Iterator[Block]:
        nonlocal runs
        for block in blocks(files, truth):
            runs += 1
            if sorted_blocks.finished(work, block.number):
                show("Reading lines", block.share)
            else:
                yield block

    in_order(partial(_run, work, options), tasks(), partial(show, "Reading lines"), min(cores(), 8))
    return runs


def _run(work: Path, options: Options, block: Block) -> float:
    """The run of a block; returns its share."""
    if not work.exists():
        raise OSError(
            "out must be on a file system that all machines of the cluster share, under the same path, "
            f"found no {work} on {socket.gethostname()}"
        )
    parsed = parse(block.text)
    skipped, samples = faults(block, parsed.good)
    if samples and options.on_error == "strict":
        check_whole_file(block.path)
        line, words = samples[0]
        raise InputError(f"{block.path}:{line}: {words}; fix the line, or leave such lines out with --on-error skip")
    about = {
        "skipped": skipped,
        "samples": [f"{block.path.name}:{line}: {words}" for line, words in samples],
    }
    key = sorted_blocks.keys(options.seed if options.order == "random" else None, block.row, len(parsed.good))[
        parsed.good
    ]
    tokens = np.concatenate([MAPS[options.integers](parsed.integers).view(np.uint32), parsed.categories])
    truth = None if block.truth is None else block.truth[parsed.good]
    sorted_blocks.write_run(work, block.number, key, parsed.clicks, tokens, parsed.missing, truth, about)
    return block.share


def _vocabularies(runs: Runs, training: int, min_count: int, show: Progress) -> list[Vocabulary]:
    """Second pass: values of the training ads, the first ``training`` in random order."""
    tallies, done = [Tally(kind) for kind in sorted_blocks.KINDS], 0

    def then(counted: list[Counts]) -> None:
        nonlocal done
        for tally, counts in zip(tallies, counted, strict=True):
            tally.add(*counts)
        done += 1
        show("Counting values", done / len(runs.paths))

    in_order(partial(count_values, runs, runs.key(training)), range(len(runs.paths)), then, min(cores(), 8))
    return [tally.vocabulary(1 if name in INTEGERS else min_count) for name, tally in zip(NAMES, tallies, strict=True)]


def _write_ads(
    runs: Runs,
    vocabularies: Sequence[Vocabulary],
    work: Path,
    writer: StoreWriter,
    truth: bool,
    show: Progress,
) -> None:
    """Third pass: rows in their random order as ids. A range that is written leaves a mark.

    Workers hand ids back and only this process writes: on a network's file system two machines that write to one page
    of a file can undo each other.
    """
    columns = {"features": len(NAMES), "clicks": None} | ({"truth": None} if truth else {})
    left = [cells for cells in runs.ranges() if not _mark(work, cells).is_file()]
    if left:
        for name in writer.splits:
            for column, width in columns.items():
                writer.column(name, column, width=width)
    waiting = iter(left)

    def write(values: dict[str, NDArray[Any]]) -> None:
        cells = next(waiting)
        start, begin = int(runs.cells[cells[0]]), 0
        for name, size in writer.splits.items():
            first, last = max(start, begin), min(start + len(values["clicks"]), begin + size)
            if first < last:
                for column, width in columns.items():  # opened for this range alone: pages are given back
                    part = writer.column(name, column, width=width)
                    part[first - begin : last - begin] = values[column][first - start : last - start]
            begin += size
        _mark(work, cells).touch()
        show("Writing ads", cells[1] / CELLS)

    in_order(partial(encoded, runs, vocabularies), left, write, min(cores(), 8))


def _mark(work: Path, cells: tuple[int, int]) -> Path:
    return work / f"{cells[0]}.written"
