"""Criteo's raw text as a store: split, shuffled, integers as categories, vocabularies from the training ads.

The text is read three times: to count its lines, to count the values of the training ads, and to write ids. Every line
has a random key, and the order of the keys is that of the ads: the first ones are for training.
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
from bidwise.data.store import SCHEMA, SPLITS, Field, Store, StoreWriter
from bidwise.run_folder import LOCK, checksum, locked_folder, open_folder, read_array
from bidwise.values import FIRST, MISSING, RARE
from bidwise.workers import ahead, cores
from paper.bids import SOURCES, Bids, Progress, attach
from paper.criteo_text import CATEGORIES, INTEGERS, MAPS, NAMES, check_shares, split_sizes

ORDERS = ("random", "file")
ENDS = 2**20  # bytes at both ends of a file, enough to tell that it was changed
ABSENT = -(2**40)  # in place of a value that is missing
TYPES = {"label": pl.Int64} | dict.fromkeys(INTEGERS, pl.Int32)


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

    Args:
        raw: files in the challenge's layout, plain or gzip, one data set in order. A file ``RAW.ctr.npy`` beside each,
            one CTR for each line, becomes the column ``truth``.
        out: folder of the store, new or of the same options.
        bids: which bids the ads get; ``None``: none.
        progress: called with the work and the share of it that is done.
    """
    text = RawText.of([raw] if isinstance(raw, str | Path) else raw)
    if bids is not None and "truth" in SOURCES[bids.kind] and text.truth is None:
        raise InputError(f"bids of kind {bids.kind} need the true CTR, found no {text.files[0].name}.ctr.npy")
    if bids is not None and bids.kind == "residual":
        bids.column(NAMES)
    folder, config = Path(out), _config(text, options, bids)
    if folder.is_file():
        raise InputError(f"must be a folder, found the file {folder}; it is the last argument", argument="out")
    others = {path.name for path in folder.iterdir()} - {LOCK, *SPLITS} if folder.is_dir() else set()
    if "config.toml" in others:
        open_folder(folder, config)
    elif others - {"config.toml.part"}:
        raise InputError(f"must be a new folder, found {folder} with other files in it", argument="out")
    show = progress or (lambda work, share: None)
    with locked_folder(folder):
        store = Store(folder) if (folder / SCHEMA).is_file() else _written(text, folder, config, options, show)
        if bids is not None and not store.has("bids"):
            store = attach(store, bids, progress=progress)
        return store


@dataclass(frozen=True)
class Tokens:
    """Some lines: clicks ``(lines,)`` and tokens ``(lines, 39)``, ABSENT where missing; ``start`` is the first one."""

    start: int
    clicks: NDArray[np.int64]
    values: NDArray[np.int64]
    share: float

    @property
    def lines(self) -> slice:
        return slice(self.start, self.start + len(self.clicks))


@dataclass(frozen=True)
class RawText:
    """Files of lines, and the true CTR of every line where that is known."""

    files: list[Path]
    truth: list[NDArray[Any]] | None

    @classmethod
    def of(cls, raw: Sequence[str | Path]) -> RawText:
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
            return cls(files, None)
        if without:
            raise InputError(f"all raw files must have their CTR next to them or none, found none of {without[0]}")
        truth = [read_array(name) for name in named]
        for name, ctr in zip(named, truth, strict=True):
            if ctr.ndim != 1 or ctr.dtype.kind != "f":
                raise InputError(f"{name} must be floating point of shape (lines,), found {ctr.dtype} {ctr.shape}")
            wrong = np.flatnonzero(~((ctr >= 0) & (ctr <= 1)))
            if len(wrong):
                raise InputError(f"{name} must be between 0 and 1, found {ctr[wrong[0]]} for line {int(wrong[0]) + 1}")
        return cls(files, truth)

    def blocks(self, show: Progress, work: str) -> Iterator[tuple[int, table_files.Block]]:
        """Blocks of lines of all files, each with the number of its first line."""
        sizes, start = [path.stat().st_size for path in self.files], 0
        for at, path in enumerate(self.files):
            source = table_files.open_table(path, separator="\t", header=False)
            if len(source.columns) != 1 + len(NAMES):
                hint = (
                    " (is it test.txt, which has no labels? use train.txt)" if len(source.columns) == len(NAMES) else ""
                )
                expected = f"{1 + len(NAMES)} cells between tabs, a label, 13 integers and 26 categories"
                raise InputError(f"{path}, line 1: must have {expected}, found {len(source.columns)}{hint}")
            first = start
            for block in source.blocks():
                yield start, block
                start += len(block.frame)
                show(work, (sum(sizes[:at]) + block.share * sizes[at]) / sum(sizes))
            if self.truth is not None and len(self.truth[at]) != start - first:
                found = f"{len(self.truth[at]):,} for {start - first:,} lines"
                raise InputError(f"{path}.ctr.npy must have one CTR for each line of {path.name}, found {found}")

    def tokens(self, integers: str, show: Progress, work: str) -> Iterator[Tokens]:
        """All lines in order."""

        def read(numbered: tuple[int, table_files.Block]) -> Tokens:
            start, block = numbered
            table = _parsed(block)
            values = table.select(NAMES).fill_null(ABSENT).to_numpy(writable=True)
            counts = values[:, : len(INTEGERS)]
            known = counts != ABSENT
            counts[known] = MAPS[integers](counts[known])
            return Tokens(start, table["label"].to_numpy(), values, block.share)

        yield from ahead(read, self.blocks(show, work), min(cores(), 8))


def _parsed(block: table_files.Block) -> pl.DataFrame:
    """Numbers for all cells: the label, integers, and categories as the numbers that their hex digits write."""
    words = block.frame.rename(dict(zip(block.frame.columns, ("label", *NAMES), strict=True)))
    numbers = [pl.col(name).cast(kind, strict=False).cast(pl.Int64) for name, kind in TYPES.items()]
    digits = [pl.col(name).str.extract("^([0-9a-fA-F]{8})$") for name in CATEGORIES]
    table = words.select(*numbers, *(word.str.to_integer(base=16, dtype=pl.Int64) for word in digits))
    table = table.with_columns(pl.when(pl.col("label").is_in([0, 1])).then("label"))
    for name in table.columns:
        wrong = table[name].is_null() & (words[name].is_not_null() if name != "label" else True)
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            kind = (
                "0 or 1"
                if name == "label"
                else "empty or " + ("a whole number below 2^31" if name in INTEGERS else "8 hex digits")
            )
            word = words[name][row] or ""
            raise InputError(
                f"{block.where(row)}: {name} must be {kind}, found {word[:24]!r}{'...' * (len(word) > 24)}"
            )
    return table


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


def places(rows: int, seed: int | None) -> NDArray[np.int64]:
    """The place of every line among the ads: by random keys, or as they are without a seed.

    Every step of SplitMix64 can be undone, so different lines have different keys.

    >>> sorted(places(5, 0).tolist()), places(3, None).tolist()
    ([0, 1, 2, 3, 4], [0, 1, 2])
    """
    lines = np.arange(rows)
    if seed is None:
        return lines
    first = _mixed(np.array([(seed + 1) * 0x9E3779B97F4A7C15 & (2**64 - 1)], np.uint64))
    found = np.empty(rows, np.int64)
    found[np.argsort(_mixed(lines.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + first))] = lines
    return found


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return state ^ (state >> np.uint64(31))


def _written(text: RawText, folder: Path, config: dict[str, Any], options: Options, show: Progress) -> Store:
    rows = sum(len(block.frame) for _, block in text.blocks(show, "Counting lines"))
    sizes = dict(zip(SPLITS, split_sizes(rows, options.shares, "raw"), strict=True))
    place = places(rows, options.seed if options.order == "random" else None)
    counts = [Counts() for _ in NAMES]
    for block in text.tokens(options.integers, show, "Counting values"):
        train = block.values[place[block.lines] < sizes["train"]]
        for column, counted in zip(train.T, counts, strict=True):
            counted.add(column)
    least = [1 if name in INTEGERS else options.min_count for name in NAMES]
    vocabularies = [counted.vocabulary(count) for counted, count in zip(counts, least, strict=True)]
    writer, clicked = StoreWriter(folder, sizes), dict.fromkeys(sizes, 0)
    truth = None if text.truth is None else np.concatenate(text.truth)
    widths = {"features": len(NAMES), "clicks": None} | ({} if truth is None else {"truth": None})
    columns = {name: {x: writer.column(name, x, width=width) for x, width in widths.items()} for name in sizes}
    for block in text.tokens(options.integers, show, "Writing ads"):
        ids = np.stack([found.ids(column) for column, found in zip(block.values.T, vocabularies, strict=True)], axis=1)
        values: dict[str, NDArray[Any]] = {"features": ids, "clicks": block.clicks}
        if truth is not None:
            values["truth"] = truth[block.lines]
        begin = 0
        for name, size in sizes.items():
            to = place[block.lines] - begin
            inside = (to >= 0) & (to < size)
            for column, array in columns[name].items():
                array[to[inside]] = values[column][inside]
            clicked[name] += int(block.clicks[inside].sum())
            begin += size
    open_folder(folder, config)
    fields = dict(zip(NAMES, vocabularies, strict=True))
    return writer.finish(
        fields=[Field(name, FIRST + len(found.values)) for name, found in fields.items()],
        about={
            "source": "criteo",
            "raw": config["raw"],
            "options": asdict(options),
            "rows": rows,
            "click_rate": {name: clicked[name] / size for name, size in sizes.items()},
            "rare": {name: found.rare / sizes["train"] for name, found in fields.items()},
            "missing": {name: found.missing / sizes["train"] for name, found in fields.items()},
        },
    )


class Counts:
    """How often the values of a column were seen."""

    def __init__(self) -> None:
        self.parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    def add(self, column: NDArray[np.int64]) -> None:
        self.parts.append(np.unique(column, return_counts=True))
        if len(self.parts) == 64:
            self.parts = [self.total()]

    def total(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Every value once, and its count."""
        values, counts = (np.concatenate([part[at] for part in self.parts]) for at in (0, 1))
        distinct, at = np.unique(values, return_inverse=True)
        return distinct, np.bincount(at, counts, len(distinct)).astype(np.int64)

    def vocabulary(self, least: int) -> Vocabulary:
        """Values seen so often, the most frequent first, ties by value."""
        values, counts = self.total()
        known = values != ABSENT
        kept = known & (counts >= least)
        order = np.argsort(np.lexsort((values[kept], -counts[kept])))
        return Vocabulary(values[kept], order, int(counts[known & ~kept].sum()), int(counts[~known].sum()))


@dataclass(frozen=True)
class Vocabulary:
    """Values of a field in their order with the place of each; how many training ads have rare or missing ones."""

    values: NDArray[np.int64]
    order: NDArray[np.int64]
    rare: int
    missing: int

    def ids(self, tokens: NDArray[np.int64]) -> NDArray[np.int32]:
        """Ids of values: 0 for unknown ones, 1 where missing, then by frequency."""
        if not len(self.values):
            return np.where(tokens == ABSENT, MISSING, RARE).astype(np.int32)
        at = np.searchsorted(self.values, tokens).clip(max=len(self.values) - 1)
        ids = np.where(self.values[at] == tokens, self.order[at] + FIRST, RARE)
        return np.where(tokens == ABSENT, MISSING, ids).astype(np.int32)
