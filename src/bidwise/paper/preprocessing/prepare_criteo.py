"""Criteo's raw text as a store: split, shuffled, integers as categories, vocabularies from the training ads."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import InputError, check_name, check_seed, check_whole
from bidwise.data.bids import SOURCES, Bids, attach
from bidwise.data.criteo_text import INTEGERS, MAPS, NAMES
from bidwise.data.store import SCHEMA, SPLITS, Field, Store, StoreWriter, split_sizes
from bidwise.paper.preprocessing.lines import faults, parse
from bidwise.paper.preprocessing.raw_text import (
    Block,
    Truth,
    blocks,
    check_seen,
    check_whole_gzip,
    counted_parts,
    ends,
    raw_files,
    truth_files,
)
from bidwise.paper.preprocessing.sorted_blocks import CELLS, CLICKED, Runs, finished, keys, write_run
from bidwise.paper.preprocessing.vocabulary import Vocabulary, count_values
from bidwise.run_folder import locked_folder, open_folder, write_text
from bidwise.runners import Runner, runner_of

WORK = "unfinished-2"  # folder inside OUT, gone in the end; another number wherever bounds of blocks or runs change
ON_ERROR = ("strict", "skip")
ORDERS = ("random", "file")
SAMPLES = 10  # lines that were skipped, shown in full

Progress = Callable[[str, float], None]
Ads = tuple[tuple[int, int], dict[str, NDArray[Any]]]  # a range of cells, and columns of its rows


@dataclass(frozen=True)
class Options:
    """What ads of a store depend on besides the files; see :func:`prepare`."""

    min_count: int
    split: tuple[int, ...]
    seed: int
    integers: str
    on_error: str
    order: str

    def __post_init__(self) -> None:
        check_whole("min_count", self.min_count, 1)
        check_seed("seed", self.seed)
        check_name("integers", self.integers, MAPS)
        check_name("on_error", self.on_error, ON_ERROR)
        check_name("order", self.order, ORDERS)
        if len(self.split) != 3:
            found = ",".join(map(str, self.split))
            raise InputError(f"must be three shares such as 8,1,1, found {found!r}", argument="split")
        for share in self.split:
            check_whole("split", share, 1)


def prepare(
    raw: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    min_count: int = 10,
    split: Sequence[int] = (8, 1, 1),
    order: str = "random",
    seed: int = 0,
    integers: str = "winners",
    on_error: str = "strict",
    bids: Bids | None = Bids(),  # noqa: B008 (frozen)
    engine: str = "local",
    progress: Progress | None = None,
) -> Store:
    """Raw Criteo text as a store in ``out``; a run that was cut off resumes.

    Three passes: lines are parsed block by block into runs sorted by a random key; training values are counted; runs
    are read key range by key range, which is the random order, and written as ids. Memory holds a few blocks and the
    vocabularies. The disk holds 176 bytes for each line besides the store (161 for each) until the end.

    Args:
        raw: files in the challenge's layout, plain or gzip, one data set in order. A file ``RAW.ctr.npy`` beside each,
            one CTR for each line, becomes the column ``truth``.
        out: folder of the store, new or of the same options.
        min_count: categories seen less often in the training ads are id 0, rare. Integers are not thinned out.
        split: shares of training, validation and test ads; sizes are exact.
        order: ``random``, or ``file``: ads stay in the order of their lines, so that the split is one by time.
        seed: of the random order of the ads. It depends on the seed and the number of a line alone.
        integers: how integers become categories, ``winners`` or ``printed``, see :mod:`bidwise.data.criteo_text`.
        on_error: ``strict`` raises at the first malformed line, ``skip`` leaves such lines out and counts them.
        bids: which bids the ads get; ``None``: none.
        engine: ``local``, threads of this process, or ``ray``, the machines of a Ray cluster, which must all see the
            same files. The store is the same to the byte, and one may finish what the other began.
        progress: called with the work and the share of it that is done.
    """
    files = raw_files([raw] if isinstance(raw, str | Path) else raw)
    options = Options(min_count, tuple(split), seed, integers, on_error, order)
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
    if folder.is_dir() and not (folder / "config.toml").is_file() and any(folder.iterdir()):
        raise InputError(
            f"must be a new folder or one of the same options, found {folder} with other files in it", argument="out"
        )
    ready, show = runner_of(engine), progress or (lambda work, share: None)
    with locked_folder(folder):
        open_folder(folder, _config(files, truth, options, bids))
        for other in folder.glob("unfinished*"):  # of earlier versions, whose runs hold other lines
            if other.name != WORK:
                shutil.rmtree(other, ignore_errors=True)
        if (folder / SCHEMA).is_file():
            store = Store(folder)
        else:
            try:
                store = _prepared(files, truth, folder, options, ready, show)
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
    ordered = asdict(options)
    if options.order == "random":  # stores that were made before there was a choice
        del ordered["order"]
    return {
        "experiment": "prepare criteo",
        "raw": [path.name for path in files],
        "raw_bytes": [path.stat().st_size for path in files],
        "raw_ends": [ends(path) for path in files],
        "truth": [ends(path) for path in truth],
        **ordered,
        **{"bids" if option == "kind" else f"bid_{option}": value for option, value in drawn.items()},
    }


def _withdraw(folder: Path) -> None:
    """Remove what an attempt left, and the folder if nothing else is in it."""
    for name in (WORK, *SPLITS):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("config.toml", "skipped.log", "vocabulary.json"):
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _prepared(
    files: list[Path], truth: list[Path], folder: Path, options: Options, engine: Runner, show: Progress
) -> Store:
    work = folder / WORK
    work.mkdir(exist_ok=True)
    runs = Runs(work, _read_lines(files, truth, work, options, engine, show))
    skipped = _skipped_lines(runs, folder)
    if not runs.rows:
        raise InputError(
            f"must have good lines, found {skipped['lines']:,} malformed ones and no other", argument="raw"
        )
    sizes = dict(zip(SPLITS, split_sizes(runs.rows, options.split), strict=True))
    if min(sizes.values()) < 1:
        shares = ",".join(map(str, options.split))
        raise InputError(
            f"must have lines enough for every part of the split {shares}, found {runs.rows:,}", argument="raw"
        )
    counted = count_values(runs, sizes["train"], work / "vocabulary.npz", options.min_count, engine, show)
    vocabularies = dict(zip(NAMES, counted, strict=True))
    writer = StoreWriter(folder, sizes)
    _write_ads(runs, counted, work, writer, bool(truth), engine, show)
    show("Checksums", 0.0)
    names = MAPS[options.integers].names
    store = writer.finish(
        fields=[Field(name, field.size) for name, field in vocabularies.items()],
        vocabulary=(
            (name, names(field.values) if name in INTEGERS else [f"{value:08x}" for value in field.values.tolist()])
            for name, field in vocabularies.items()
        ),
        about={
            "source": "criteo",
            "raw": [path.name for path in files],
            "options": asdict(options),
            "rows": runs.rows,
            "click_rate": {name: float(writer.written(name, "clicks").mean()) for name in sizes},
            "rare": {name: field.rare / sizes["train"] for name, field in vocabularies.items()},
            "missing": {name: field.missing / sizes["train"] for name, field in vocabularies.items()},
            "skipped": skipped,
        },
    )
    show("Checksums", 1.0)
    return store


def _read_lines(
    files: list[Path], truth: list[Path], work: Path, options: Options, engine: Runner, show: Progress
) -> int:
    """First pass: lines into sorted runs; how many runs there are. Blocks with a run are not parsed again."""
    known = {path: Truth(beside) for path, beside in zip(files, truth, strict=False)}
    lines, runs = dict.fromkeys(files, 0), 0

    parts = [] if engine.shares_memory else counted_parts(files, engine, show)

    def tasks() -> Iterator[tuple[Iterable[Block], Truth | None]]:
        if parts:
            for part in parts:
                lines[part.path] = part.line + part.lines
                yield part, known.get(part.path)
        else:
            for block in blocks(files):
                lines[block.path] = block.line + block.lines
                yield [block], known.get(block.path)

    def then(done: tuple[int, float]) -> None:
        nonlocal runs
        runs += done[0]
        show("Reading lines", done[1])

    engine.in_order(partial(_runs, work, options), tasks(), then)
    for path, beside in known.items():
        if len(beside.ctr) != lines[path]:
            raise InputError(
                f"{path.name}.ctr.npy must have one CTR for each of the {lines[path]:,} lines of {path}, "
                f"found {len(beside.ctr):,}"
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
    parsed = parse(block.text)
    bad = faults(block, parsed.good)
    if bad and options.on_error == "strict":
        check_whole_gzip(block.path)
        line, _, words = bad[0]
        raise InputError(f"{block.path}:{line}: {words}; fix the line, or leave such lines out with --on-error skip")
    truth = None if known is None else known.of(block, len(parsed.good))[parsed.good]
    tokens = np.concatenate([MAPS[options.integers].tokens(parsed.integers).view(np.uint32), parsed.categories])
    about = {
        "skipped": dict(Counter(kind for _, kind, _ in bad)),
        "samples": [f"{block.path.name}:{line}: {words}" for line, _, words in bad[:SAMPLES]],
    }
    key = keys(options.seed if options.order == "random" else None, block.row, len(parsed.good))[parsed.good]
    write_run(work, block.number, key, parsed.clicks, tokens, parsed.missing, truth, about)


def _skipped_lines(runs: Runs, folder: Path) -> dict[str, Any]:
    """Malformed lines: how many of each kind, and some of them, which also go into ``skipped.log``."""
    reasons: Counter[str] = Counter()
    for about in runs.about:
        reasons.update(about["skipped"])
    samples = [words for about in runs.about for words in about["samples"]][:SAMPLES]
    if reasons:
        counts = "".join(f"{kind}: {count:,} lines\n" for kind, count in sorted(reasons.items()))
        write_text(folder / "skipped.log", counts + "".join(f"{words}\n" for words in samples))
    return {"lines": reasons.total(), "reasons": dict(sorted(reasons.items())), "samples": samples}


def _write_ads(
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
        cells, values = ads
        start, begin = int(runs.cells[cells[0]]), 0
        for name, size in writer.splits.items():
            first, last = max(start, begin), min(start + len(values["clicks"]), begin + size)
            if first < last:
                for column, width in columns.items():  # opened for this range alone: pages are given back
                    with opening:
                        part = writer.column(name, column, width=width)
                    part[first - begin : last - begin] = values[column][first - start : last - start]
            begin += size
        _mark(work, cells).touch()
        return cells[1] / CELLS

    def shown(share: float) -> None:
        show("Writing ads", share)

    encode = partial(_ads, runs, vocabularies, truth)
    if not engine.shares_memory:
        engine.in_order(encode, left, lambda ads: shown(write(ads)))
    else:
        engine.in_order(lambda cells: write(encode(cells)), left, shown)


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
    columns = {"features": ids.T, "clicks": (flags & CLICKED) != 0}
    return cells, columns | ({"truth": rows["truth"]} if truth else {})
