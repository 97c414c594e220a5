"""Criteo's raw text as a store: split, shuffled, integers as categories, vocabularies from the training ads, bids.

The text is read three times: to count its lines, to count the values of the training ads, and to write ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from bidwise.checks import InputError, check_name, check_seed, check_whole
from bidwise.data import table_files
from bidwise.data.columns import Column, Encoder, Learner
from bidwise.data.store import SCHEMA, Store, StoreWriter
from bidwise.run_folder import checksum, locked_folder, open_folder, read_array
from bidwise.workers import Progress, ahead, cores
from paper.bids import Bids, drawn
from paper.criteo_text import CATEGORIES, INTEGERS, MAPS, NAMES, split_sizes

VALUES = {  # what each column contains
    "label": "0 or 1",
    **dict.fromkeys(INTEGERS, "empty or a whole number below 2^31"),
    **dict.fromkeys(CATEGORIES, "empty or 8 hex digits"),
}


@dataclass(frozen=True)
class Options:
    """What ads of a store depend on besides the text.

    Args:
        min_count: categories seen less often in the training ads count as rare.
        seed: of the random order and of the bids.
        integers: how integers become categories: winners, floor((ln x)^2) as the challenge's winners did, or printed,
            floor(log2 x) as the paper prints, which puts 3 with 1 and 4 to 7 with 2.
        bid_noise: standard deviation of the noise on log bids; the paper says 0.1 and 1.
    """

    min_count: int = 10
    seed: int = 0
    integers: str = "winners"
    bid_noise: float = Bids.noise

    def __post_init__(self) -> None:
        check_whole("min_count", self.min_count, 1)
        check_seed("seed", self.seed)
        check_name("integers", self.integers, MAPS)


def prepare(
    raw: str | Path,
    out: str | Path,
    options: Options = Options(),  # noqa: B008 (frozen)
    *,
    progress: Progress | None = None,
) -> Store:
    """Raw Criteo text as a store in ``out``; a store that is complete is left alone, another one is begun again.

    Args:
        raw: a file in the challenge's layout, plain or gzip. A file ``RAW.ctr.npy`` beside it, one CTR for each line,
            becomes the column ``truth``.
        out: folder of the store, new or of the same options.
        progress: called with the work and the share of it that is done.
    """
    raw, truth, bids = Path(raw), None, Bids(noise=options.bid_noise, seed=options.seed)
    if not raw.is_file():
        raise InputError(f"must be a file that exists, found no file {raw}", argument="raw")
    if (beside := raw.with_name(raw.name + ".ctr.npy")).is_file():
        truth = read_array(beside)
        if truth.ndim != 1 or not ((truth >= 0) & (truth <= 1)).all():
            raise InputError(f"{beside} must have a number between 0 and 1 for each line, found others")
    text = RawText(raw, truth, options, progress or (lambda work, share, detail="": None))
    config = {
        "experiment": "prepare criteo",
        "raw": raw.name,
        "raw_checksum": checksum(raw),
        "truth": None if truth is None else checksum(beside),
        **asdict(options),
    }
    with locked_folder(out) as folder:
        if (folder / "config.toml").is_file():
            open_folder(folder, config)
        return Store(folder) if (folder / SCHEMA).is_file() else _written(text, folder, config, bids)


@dataclass(frozen=True)
class RawText:
    """A file of lines, and the true CTR of every line where that is known."""

    path: Path
    truth: NDArray[Any] | None
    options: Options
    show: Progress

    def blocks(self, work: str) -> Iterator[tuple[slice, table_files.Block]]:
        """Some lines at a time, and which of all lines they are."""
        source, start = table_files.open_table(self.path, separator="\t", header=False), 0
        if len(source.columns) != len(VALUES):
            hint = " (is it test.txt, which has no labels? use train.txt)" if len(source.columns) == len(NAMES) else ""
            expected = f"{len(VALUES)} cells between tabs, a label, 13 integers and 26 categories"
            raise InputError(f"{self.path}, line 1: must have {expected}, found {len(source.columns)}{hint}")
        for block in source.blocks():
            yield slice(start, start + len(block.frame)), block
            start += len(block.frame)
            self.show(work, block.share)
        if self.truth is not None and len(self.truth) != start:
            found = f"{len(self.truth):,} for {start:,} lines"
            raise InputError(f"{self.path}.ctr.npy must have one CTR for each line of {self.path.name}, found {found}")

    def tables(self, work: str) -> Iterator[tuple[slice, pl.DataFrame]]:
        """All lines in order as columns: labels, tokens of integers, and categories in small letters."""
        return ahead(lambda lines: (lines[0], self._table(lines[1])), self.blocks(work), min(cores(), 8))

    def _table(self, block: table_files.Block) -> pl.DataFrame:
        words = block.frame.rename(dict(zip(block.frame.columns, VALUES, strict=True)))
        label, integers = pl.col("label").cast(pl.Int64, strict=False), pl.col(INTEGERS).cast(pl.Int32, strict=False)
        hexes = pl.col(CATEGORIES).cast(pl.String).str.extract("^([0-9a-fA-F]{8})$").str.to_lowercase()
        table = words.select(pl.when(label.is_in([0, 1])).then(label), integers.cast(pl.Int64), hexes)
        for name, expected in VALUES.items():
            wrong = table[name].is_null() & (words[name].is_not_null() | (name == "label"))
            if wrong.any():
                row = int(wrong.arg_max() or 0)
                word = words[name][row] or ""
                shown = f"{word[:24]!r}{'...' * (len(word) > 24)}"
                raise InputError(f"{block.where(row)}: {name} must be {expected}, found {shown}")
        mapped = MAPS[self.options.integers]
        return table.with_columns(
            pl.when(table[name].is_not_null()).then(pl.Series(name, mapped(table[name].fill_null(0).to_numpy())))
            for name in INTEGERS
        )


def _encoder(text: RawText, place: NDArray[Any], training: int) -> Encoder:
    """Integers with all of their values, categories with those that are not rare."""
    learners = [Learner([Column(name, "categorical", 0, 0.0, "") for name in some]) for some in (INTEGERS, CATEGORIES)]
    for lines, table in text.tables("Counting values"):
        train = table.filter(place[lines] < training)
        for learner in learners:
            learner.add(learner.counted(train))
    counts = (1, text.options.min_count)
    parts = [learner.encoder(min_count=count, bins=2) for learner, count in zip(learners, counts, strict=True)]
    return Encoder(tuple(column for part in parts for column in part.columns))


def _written(text: RawText, folder: Path, config: dict[str, Any], bids: Bids) -> Store:
    options = text.options
    rows = sum(len(block.frame) for _, block in text.blocks("Counting lines"))
    sizes = split_sizes(rows, "raw")
    place = np.random.default_rng(options.seed).permutation(rows)
    encoder = _encoder(text, place, sizes["train"])
    writer = StoreWriter(folder, sizes)
    widths = {"features": len(NAMES), "clicks": None} | ({} if text.truth is None else {"truth": None})
    arrays = {name: {x: writer.column(name, x, width=width) for x, width in widths.items()} for name in sizes}
    for lines, table in text.tables("Writing ads"):
        values = {"features": encoder.encode(table).ids, "clicks": table["label"].to_numpy()}
        if text.truth is not None:
            values["truth"] = text.truth[lines]
        begin = 0
        for name, size in sizes.items():
            to = place[lines] - begin
            inside = (to >= 0) & (to < size)
            for column, array in arrays[name].items():
                array[to[inside]] = values[column][inside]
            begin += size
    text.show("Drawing bids", 0.5)
    ids = {name: torch.from_numpy(columns["features"]) for name, columns in arrays.items()}
    made, about_bids = drawn(ids, {}, encoder.fields, bids)
    for name in sizes:
        writer.column(name, "bids")[:] = made[name].numpy()
    open_folder(folder, config)
    return writer.finish(
        fields=encoder.fields,
        about={
            "source": "criteo",
            "raw": config["raw"],
            "options": asdict(options),
            "rows": rows,
            "click_rate": {name: float(each["clicks"].mean()) for name, each in arrays.items()},
            "bids": about_bids,
        },
    )
