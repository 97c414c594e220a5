"""Criteo's raw text as a store: split, shuffled, integers as categories, vocabularies from the training ads.

The text is read three times: to count its lines, to count the values of the training ads, and to write ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise.checks import InputError, check_name, check_seed, check_whole
from bidwise.data import table_files
from bidwise.data.columns import Column, Encoder, Learner
from bidwise.data.store import SCHEMA, SPLITS, Store, StoreWriter
from bidwise.run_folder import LOCK, checksum, locked_folder, open_folder, read_array
from bidwise.values import MISSING, RARE
from bidwise.workers import ahead, cores
from paper.bids import SOURCES, Bids, Progress, attach
from paper.criteo_text import CATEGORIES, INTEGERS, MAPS, NAMES, split_sizes

ORDERS = ("random", "file")
ENDS = 2**20  # bytes at both ends of a file, enough to tell that it was changed
VALUES = {  # what each column contains
    "label": "0 or 1",
    **dict.fromkeys(INTEGERS, "empty or a whole number below 2^31"),
    **dict.fromkeys(CATEGORIES, "empty or 8 hex digits"),
}


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
    split: tuple[int, int, int] = (8, 1, 1)
    order: str = "random"
    seed: int = 0
    integers: str = "winners"

    def __post_init__(self) -> None:
        check_whole("min_count", self.min_count, 1)
        check_seed("seed", self.seed)
        check_name("integers", self.integers, MAPS)
        check_name("order", self.order, ORDERS)
        for share in self.split:
            check_whole("split", share, 1)


def prepare(
    raw: str | Path | Sequence[str | Path],
    out: str | Path,
    options: Options = Options(),  # noqa: B008 (frozen)
    *,
    bids: Bids | None = Bids(),  # noqa: B008 (frozen)
    progress: Progress | None = None,
) -> Store:
    """Raw Criteo text as a store in ``out``; a store that is complete is left alone, another one is begun again.

    Args:
        raw: files in the challenge's layout, plain or gzip, one data set in order. A file ``RAW.ctr.npy`` beside each,
            one CTR for each line, becomes the column ``truth``.
        out: folder of the store, new or of the same options.
        bids: which bids the ads get; ``None``: none.
        progress: called with the work and the share of it that is done.
    """
    text = RawText.of([raw] if isinstance(raw, str | Path) else raw, options, progress or (lambda work, share: None))
    if bids is not None and "truth" in SOURCES[bids.kind]:
        bids.column(NAMES)
        if text.truth is None:
            raise InputError(f"bids of kind {bids.kind} need the true CTR, found no {text.files[0].name}.ctr.npy")
    folder, config = Path(out), _config(text, options, bids)
    if folder.is_file():
        raise InputError(f"must be a folder, found the file {folder}; it is the last argument", argument="out")
    others = {path.name for path in folder.iterdir()} - {LOCK, *SPLITS} if folder.is_dir() else set()
    if "config.toml" in others:
        open_folder(folder, config)
    elif others - {"config.toml.part"}:
        raise InputError(f"must be a new folder, found {folder} with other files in it", argument="out")
    with locked_folder(folder):
        store = Store(folder) if (folder / SCHEMA).is_file() else _written(text, folder, config)
        if bids is not None and "bids" not in store.columns("train"):
            store = attach(store, bids, progress=progress)
        return store


@dataclass(frozen=True)
class RawText:
    """Files of lines, and the true CTR of every line where that is known."""

    files: list[Path]
    truth: list[NDArray[Any]] | None
    options: Options
    show: Progress

    @classmethod
    def of(cls, raw: Sequence[str | Path], options: Options, show: Progress) -> RawText:
        """The files of a data set, if they can be read."""
        files = [Path(path) for path in raw]
        if not files:
            raise InputError("must be at least one file, found none", argument="raw")
        for at, path in enumerate(files):
            if not path.is_file():
                raise InputError(f"must be files that exist, found no file {path}", argument="raw")
            if any(path.samefile(other) for other in files[:at]):
                raise InputError(f"must be different files, found {path} twice", argument="raw")
        named = [path.with_name(path.name + ".ctr.npy") for path in files]
        without = [path for path, name in zip(files, named, strict=True) if not name.is_file()]
        if len(without) == len(files):
            return cls(files, None, options, show)
        if without:
            raise InputError(f"all raw files must have their CTR next to them or none, found none of {without[0]}")
        truth = [read_array(name) for name in named]
        for name, ctr in zip(named, truth, strict=True):
            if ctr.ndim != 1 or ctr.dtype.kind != "f":
                raise InputError(f"{name} must be floating point of shape (lines,), found {ctr.dtype} {ctr.shape}")
            wrong = np.flatnonzero(~((ctr >= 0) & (ctr <= 1)))
            if len(wrong):
                raise InputError(f"{name} must be between 0 and 1, found {ctr[wrong[0]]} for line {int(wrong[0]) + 1}")
        return cls(files, truth, options, show)

    def blocks(self, work: str) -> Iterator[tuple[slice, table_files.Block]]:
        """Some lines at a time, and which of all lines they are."""
        start, sizes = 0, [path.stat().st_size for path in self.files]
        for at, path in enumerate(self.files):
            source = table_files.open_table(path, separator="\t", header=False)
            if len(source.columns) != len(VALUES):
                hint = (
                    " (is it test.txt, which has no labels? use train.txt)" if len(source.columns) == len(NAMES) else ""
                )
                expected = f"{len(VALUES)} cells between tabs, a label, 13 integers and 26 categories"
                raise InputError(f"{path}, line 1: must have {expected}, found {len(source.columns)}{hint}")
            first = start
            for block in source.blocks():
                yield slice(start, start + len(block.frame)), block
                start += len(block.frame)
                self.show(work, (sum(sizes[:at]) + block.share * sizes[at]) / sum(sizes))
            if self.truth is not None and len(self.truth[at]) != start - first:
                found = f"{len(self.truth[at]):,} for {start - first:,} lines"
                raise InputError(f"{path}.ctr.npy must have one CTR for each line of {path.name}, found {found}")

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


def _config(text: RawText, options: Options, bids: Bids | None) -> dict[str, Any]:
    """What must be the same for a store to be the same: options, and files by name, size and both ends."""
    bid_options = {"kind": "none"} if bids is None else asdict(bids)
    return {
        "experiment": "prepare criteo",
        "raw": [path.name for path in text.files],
        "raw_bytes": [path.stat().st_size for path in text.files],
        "raw_ends": [_ends(path) for path in text.files],
        "truth": [checksum(np.ascontiguousarray(ctr).tobytes()) for ctr in text.truth or ()],
        **asdict(options),
        **{"bids" if option == "kind" else f"bid_{option}": value for option, value in bid_options.items()},
    }


def _ends(path: Path) -> str:
    """Checksum of the first and the last megabyte."""
    with path.open("rb") as file:
        first = file.read(ENDS)
        file.seek(max(0, path.stat().st_size - ENDS))
        return checksum(first, file.read())


def _written(text: RawText, folder: Path, config: dict[str, Any]) -> Store:
    options = text.options
    rows = sum(len(block.frame) for _, block in text.blocks("Counting lines"))
    sizes = split_sizes(rows, options.split, "raw")
    place = np.random.default_rng(options.seed).permutation(rows) if options.order == "random" else np.arange(rows)
    learners = [Learner([Column(name, "categorical", 0, 0.0, "") for name in some]) for some in (INTEGERS, CATEGORIES)]
    for lines, table in text.tables("Counting values"):
        train = table.filter(place[lines] < sizes["train"])
        for learner in learners:
            learner.add(learner.counted(train))
    integers, categories = (
        learner.encoder(min_count=count, bins=2)
        for learner, count in zip(learners, (1, options.min_count), strict=True)
    )
    encoder = Encoder((*integers.columns, *categories.columns))
    writer = StoreWriter(folder, sizes)
    truth = None if text.truth is None else np.concatenate(text.truth)
    widths = {"features": len(NAMES), "clicks": None} | ({} if truth is None else {"truth": None})
    arrays = {name: {x: writer.column(name, x, width=width) for x, width in widths.items()} for name in sizes}
    shares = {id_: np.zeros(len(NAMES)) for id_ in (RARE, MISSING)}  # of the training ads
    for lines, table in text.tables("Writing ads"):
        values = {"features": encoder.encode(table).ids, "clicks": table["label"].to_numpy()}
        if truth is not None:
            values["truth"] = truth[lines]
        begin = 0
        for name, size in sizes.items():
            to = place[lines] - begin
            inside = (to >= 0) & (to < size)
            for column, array in arrays[name].items():
                array[to[inside]] = values[column][inside]
            begin += size
            if name == "train":
                for id_, share in shares.items():
                    share += (values["features"][inside] == id_).sum(0) / size
    open_folder(folder, config)
    return writer.finish(
        fields=encoder.fields,
        about={
            "source": "criteo",
            "raw": config["raw"],
            "options": asdict(options),
            "rows": rows,
            "click_rate": {name: float(each["clicks"].mean()) for name, each in arrays.items()},
            "rare": dict(zip(NAMES, shares[RARE].tolist(), strict=True)),
            "missing": dict(zip(NAMES, shares[MISSING].tolist(), strict=True)),
        },
    )
