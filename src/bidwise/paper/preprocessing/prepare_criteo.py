"""Criteo's raw text as a store: split, shuffled, integers as categories, vocabularies from the training ads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bidwise.checks import InputError
from bidwise.data.bids import Bids, attach
from bidwise.data.store import SCHEMA, SPLITS, Field, Store, StoreWriter
from bidwise.data.worlds.criteo_text import INTEGERS
from bidwise.paper.preprocessing.passes import (
    NAMES,
    Options,
    Progress,
    count_values,
    read_lines,
    skipped_lines,
    write_ads,
)
from bidwise.paper.preprocessing.raw_files import ends, raw_files, truth_files
from bidwise.paper.preprocessing.sorted_blocks import Runs
from bidwise.paper.preprocessing.tokens import MAPS
from bidwise.run_folder import locked_folder, open_folder
from bidwise.runners import Runner, runner_of

WORK = "unfinished-2"  # folder inside OUT, gone in the end; another number wherever bounds of blocks or runs change
OLD_WORK = "unfinished"  # of earlier versions, whose runs hold other lines


def prepare(
    raw: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    min_count: int = 10,
    split: Sequence[int] = (8, 1, 1),
    seed: int = 0,
    integers: str = "winners",
    on_error: str = "strict",
    bids: Bids | None = Bids(),  # noqa: B008 (frozen)
    engine: str = "local",
    progress: Progress | None = None,
) -> Store:
    """Raw Criteo text as a store in ``out``; one that was cut off goes on where it stopped.

    Three passes: lines are parsed block by block into runs sorted by a random key; training values are counted; runs
    are read key range by key range, which is the random order, and written as ids. Memory holds a few blocks and the
    vocabularies. The disk holds 176 bytes for each line besides the store (161 for each) until the end.

    Args:
        raw: files in the challenge's layout, plain or gzip, one data set in order. A file ``RAW.ctr.npy`` beside each,
            one CTR for each line, becomes the column ``truth``.
        out: folder of the store, new or of the same options.
        min_count: categories seen less often in the training ads are id 0, rare. Integers are not thinned out.
        split: shares of training, validation and test ads; sizes are exact, see :func:`split_sizes`.
        seed: of the order of the ads. It depends on the seed and the number of a line alone.
        integers: how integers become categories, ``winners`` or ``printed``, see `tokens`.
        on_error: ``strict`` raises at the first malformed line, ``skip`` leaves such lines out and counts them.
        bids: which bids the ads get; ``None``: none.
        engine: ``local``, threads of this process, or ``ray``, the machines of a Ray cluster, which must all see the
            same files. The store is the same to the byte, and one may finish what the other began.
        progress: called with the work and the share of it that is done.
    """
    files = raw_files([raw] if isinstance(raw, str | Path) else raw)
    options = Options(min_count, tuple(split), seed, integers, on_error)
    truth = truth_files(files)
    if bids is not None and bids.kind == "ctr" and not truth:
        raise InputError(f"bids of kind ctr need the true CTR, found no {files[0].name}.ctr.npy beside {files[0]}")
    if bids is not None and bids.kind == "advertiser":
        bids.column(NAMES)
    folder = _checked_out(Path(out))
    ready = runner_of(engine)
    with locked_folder(folder):
        return _in_folder(folder, files, truth, options, bids, ready, progress)


def _in_folder(
    out: Path,
    files: list[Path],
    truth: list[Path],
    options: Options,
    bids: Bids | None,
    engine: Runner,
    progress: Progress | None,
) -> Store:
    folder = open_folder(out, _config(files, truth, options, bids))
    shutil.rmtree(folder / OLD_WORK, ignore_errors=True)
    show = progress or (lambda work, share: None)
    if (folder / SCHEMA).is_file():
        store = Store(folder)
    else:
        try:
            store = _prepared(files, truth, folder, options, engine, show)
        except InputError:  # the user will change the files or the options: nothing of this attempt is of use
            _withdraw(folder)
            raise
    shutil.rmtree(folder / WORK, ignore_errors=True)
    if bids is not None and not store.has("bids"):
        store = attach(store, bids, progress=progress)
    return store


def split_sizes(rows: int, split: Sequence[int]) -> list[int]:
    """Ads of training, validation and test: the last two rounded to the nearest, training has the rest.

    >>> split_sizes(45_840_617, (8, 1, 1))
    [36672493, 4584062, 4584062]
    """
    sizes = sizes_of(rows, split)
    if min(sizes) < 1:
        raise InputError(
            f"raw must have lines enough for every part of the split {','.join(map(str, split))}, found {rows:,}"
        )
    return sizes


def sizes_of(rows: int, split: Sequence[int]) -> list[int]:
    """:func:`split_sizes` whether or not there are ads for every part."""
    total = sum(split)
    others = [(2 * rows * share + total) // (2 * total) for share in split[1:]]
    return [rows - sum(others), *others]


def _prepared(
    files: list[Path], truth: list[Path], folder: Path, options: Options, engine: Runner, show: Progress
) -> Store:
    work = folder / WORK
    work.mkdir(exist_ok=True)
    runs = Runs(work, read_lines(files, truth, work, options, engine, show))
    skipped = skipped_lines(runs, folder)
    if not runs.rows:
        raise InputError(f"raw must have good lines, found {skipped['lines']:,} malformed ones and no other")
    sizes = dict(zip(SPLITS, split_sizes(runs.rows, options.split), strict=True))
    vocabularies = count_values(runs, sizes["train"], work, options.min_count, engine, show)
    writer = StoreWriter(folder, sizes)
    write_ads(runs, vocabularies, work, writer, bool(truth), engine, show)
    show("Checksums", 0.0)
    clicks = {name: float(writer.written(name, "clicks").mean()) for name in sizes}
    names = MAPS[options.integers].names
    store = writer.finish(
        fields=[Field(name, found.size) for name, found in zip(NAMES, vocabularies, strict=True)],
        vocabulary=(
            (name, names(found.values) if name in INTEGERS else [f"{value:08x}" for value in found.values.tolist()])
            for name, found in zip(NAMES, vocabularies, strict=True)
        ),
        about={
            "source": "criteo",
            "raw": [path.name for path in files],
            "options": asdict(options),
            "rows": runs.rows,
            "click_rate": clicks,
            "rare": {name: found.rare / sizes["train"] for name, found in zip(NAMES, vocabularies, strict=True)},
            "missing": {name: found.missing / sizes["train"] for name, found in zip(NAMES, vocabularies, strict=True)},
            "skipped": skipped,
        },
    )
    show("Checksums", 1.0)
    return store


def _checked_out(out: Path) -> Path:
    if out.is_file():
        raise InputError(f"out, the last argument, must be a folder, found the file {out}")
    if out.is_dir() and not (out / "config.toml").is_file() and any(out.iterdir()):
        raise InputError(f"out must be a new folder or one of the same options, found {out} with other files in it")
    return out


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
    """Take away what an attempt left, and the folder if nothing else is in it."""
    for name in (WORK, *SPLITS):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("config.toml", "skipped.log", "vocabulary.json"):
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
