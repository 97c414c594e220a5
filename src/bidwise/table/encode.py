"""From a table to a store: columns checked and inferred, rows split, values turned into ids."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.data.blocks import Blocks, blocks_of, chunks, table_fingerprint
from bidwise.data.encoder_file import write_encoder
from bidwise.data.encoding import KINDS, inferred, least_count, slots_of
from bidwise.data.read_table import PLACES, Table, location_of, table_name
from bidwise.data.splits import UNFINISHED, Split, auction_size
from bidwise.data.store import SCHEMA, SPLITS, Store, StoreWriter
from bidwise.json_files import from_json, read_json, to_json
from bidwise.run_folder import check_same, to_toml, whole_file, write_json, write_text
from bidwise.table.config import AUTO, Config, nested, open_run
from bidwise.table.leaks import found_leaks, stop_at_leaks
from bidwise.table.passes import Passes, every
from bidwise.table.refresh import Previous
from bidwise.table.results import SplitFacts, TableFacts
from bidwise.values import Floats
from bidwise.workers import Progress

WORK = UNFINISHED  # folder of a run until its store is there
BESIDE = 120  # bytes of a row on the disk beside its ids: numbers of the store, and columns that are kept until the end
PREVIOUS = "previous"  # the model that a refresh went on from, among the models of the evaluation
LEAST_BID = 1e-30  # in units of their mean, what training can tell from 0
CAP = 100  # medians, the most that a bid counts in training: the largest of 300,000 log-normal bids with sigma 1


@dataclass(frozen=True)
class Prepared:
    """A run folder that is ready to train in."""

    folder: Path
    config: Config

    @cached_property
    def store(self) -> Store:
        """The ads, split and encoded."""
        return Store(self.folder / "store")

    @cached_property
    def planned(self) -> Config:
        """The configuration, with the L2 penalty of a refresh that is told none."""
        refresh, train = self.facts.refresh, self.config.train
        known = refresh is None or train.l2 is not None
        return self.config if known else replace(self.config, train=replace(train, l2=refresh.l2))  # type: ignore[union-attr]

    @cached_property
    def facts(self) -> TableFacts:
        """What was found in the table, which the store's schema holds."""
        return from_json(TableFacts, self.store.schema["table"], str(self.folder / "store" / SCHEMA))

    def check_rows(self, fingerprint: str, name: str) -> None:
        """Raise unless the store was made of rows with this fingerprint."""
        if fingerprint != self.facts.fingerprint:
            raise InputError(
                f"must be a new folder or one of the same table, found {self.folder}, which began with other rows than "
                f"{name} has now; choose another folder, or delete that one",
                argument="out",
            )


def prepare(
    table: Table,
    config: Config,
    out: str | Path,
    *,
    previous: Previous | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Check the table, infer what its columns are, split it, and leave a store in ``out``, in memory that does not grow
    with the table.

    Whatever cannot be used is refused and leaves nothing. A run that was cut off goes on after its last whole pass, or
    block of the last one. If the folder has a store of the same table, also one copied from another run with the
    same data section and seed, it is used unchanged. Columns, bins, ids and units of bids are those of the
    ``previous`` run, where this one goes on from it.
    """
    show: Progress = progress or (lambda work, done, detail="": None)
    folder, name = open_run(out, config), table_name(table)
    prepared, work = Prepared(folder, config), folder / WORK
    show("reading", 0.0)
    if (folder / "store" / SCHEMA).is_file() and (folder / "test.parquet").is_file():
        prepared.check_rows(table_fingerprint(table), name)
        if not (folder / "config.toml").exists():  # the store is another run's
            check_same(folder, prepared.store.schema.get("config", {}), _encoding(config))
            _write_config(folder, config)
    else:
        try:
            _prepared(table, config, folder, previous, show)
        except InputError:  # the user will change the table or the options: nothing of this attempt is of use
            for left in (work, folder / "store"):
                shutil.rmtree(left, ignore_errors=True)
            raise
    for left in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    return prepared


def _prepared(table: Table, config: Config, folder: Path, previous: Previous | None, show: Progress) -> None:
    data, work, name = config.data, folder / WORK, table_name(table)
    blocks, fingerprint = _opened(table, config, folder)
    if previous is not None:
        previous.check_data(data)
        if fingerprint == previous.facts.fingerprint:
            words = f"must have new rows, found in {name} those of the run that it goes on from"
            raise InputError(words, argument="table")
    _check_room(folder, blocks, len(blocks.schema))
    passes = Passes(blocks, data, work, name)
    named = {name: getattr(data, name) for name in ("numeric", "categorical", "bag", "ignore")}
    numeric, lists = ([], []) if previous is None else (previous.numeric, previous.bags)
    found = passes.columns(lambda done: show("reading", 0.3 * done, "checking columns"), numeric, lists)
    columns = (
        inferred(found, data.roles, **named, name=name) if previous is None else previous.columns(found, data, name)
    )
    bags = {column.name for column in columns if column.use == "bag"}
    _check_room(folder, blocks, sum(slots_of(each) if each.name in bags else 1 for each in found))
    if (share := _one_kind(passes.numbers("click"))) is not None:
        raise InputError(f"{name}: column {data.click!r} must have 0 and 1, found that {share} of the ads were clicked")
    show("reading", 0.3, "splitting")
    parts = passes.split(config.train.seed)
    sizes = {part: len(each.rows) for part, each in parts.items()}
    size = None if data.auction else auction_size(data.auction_size, sizes["valid"], sizes["test"])
    _check_parts(config, parts, passes, size)
    numbers = _Numbers.of(config, passes, parts["train"].rows, None if previous is None else previous.facts)
    min_count = data.min_count or least_count(sizes["train"])
    kinds = {column.name: column.use for column in columns if column.use in KINDS}
    counting = partial(_share, show, 0.4, 0.6, "counting values")
    encoder = passes.encoder(kinds, sizes["train"], min_count, data.bins, counting)
    encoder = encoder if previous is None else previous.model.encoder.extended(encoder)
    if not (folder / "config.toml").exists():
        _write_config(folder, config)
    (folder / "store").mkdir(exist_ok=True)
    store = StoreWriter(folder / "store", sizes)
    passes.write(encoder, store, partial(_share, show, 0.6, 0.9, "writing ids"))
    for part, its in parts.items():
        for rows in chunks(0, len(its.rows)):
            for column, values in numbers.columns(its.rows[rows]).items():
                store.column(part, column)[rows] = values
        if its.offsets is not None:
            store.column(part, "offsets", length=len(its.offsets))[:] = its.offsets
    show("reading", 0.92, "looking for leaks")
    leaks = found_leaks(store, encoder, every(sizes["valid"]))
    stop_at_leaks(leaks, data.keep, store.written("valid", "clicks"), folder)
    step = every(sizes["train"])
    facts = TableFacts(
        fingerprint=fingerprint,
        columns=tuple(columns),
        splits={part: _facts(each, passes, store.written(part, "clicks")) for part, each in parts.items()},
        auction_size=size,
        min_count=min_count,
        mean_bid=numbers.mean_bid,
        median_bid=numbers.median_bid,
        bid_cap=numbers.bid_cap,
        capped_bids=numbers.capped_bids,
        largest_bid=numbers.largest_bid,
        cut=None if passes.times is None else _on_both_sides(parts, passes.times),
        leaks=leaks,
        duplicates=passes.duplicates,
        sampled=None if step == 1 else -(-sizes["train"] // step),
    )
    ctr = None if previous is None else previous.ctr(encoder, store.written("test", "features"))
    _write_test(folder, passes, parts, numbers, {} if ctr is None else {PREVIOUS: ctr})
    if previous is not None:
        facts = replace(facts, refresh=previous.refreshed(encoder, store.written("train", "features")))
    write_encoder(folder / "encoder.json", encoder)
    show("reading", 0.96, "checksums")
    about = {"rows": blocks.rows, "config": _encoding(config), "table": to_json(facts)}
    store.finish(fields=encoder.fields, about=about)
    show("reading", 1.0)


def _write_config(folder: Path, config: Config) -> None:
    write_text(folder / "config.toml", to_toml(nested(config.flat())))


def _encoding(config: Config) -> dict[str, Any]:
    """The settings that a store depends on."""
    values = {key: value for key, value in config.flat().items() if key.startswith("data.") and key != "data.table"}
    return values | {"train.seed": config.train.seed}


def _share(show: Progress, first: float, last: float, words: str, done: float) -> None:
    show("reading", first + (last - first) * done, words)


def _opened(table: Table, config: Config, folder: Path) -> tuple[Blocks, str]:
    """The table as blocks, and its fingerprint. What an attempt on other rows or with other options left is removed."""
    work, name = folder / WORK, table_name(table)
    files = location_of(table).files() if isinstance(table, PLACES) else []
    there = isinstance(table, PLACES | pl.LazyFrame)
    blocks = None if there else blocks_of(table, work)
    known = table_fingerprint(table, blocks) if files or blocks else name
    begun = {"rows": known, "config": to_json(config.flat() | {"data.table": None})}
    path = work / "begun.json"
    if not path.is_file() or read_json(path) != begun or isinstance(table, pl.LazyFrame):
        for left in (work, folder / "store"):
            shutil.rmtree(left, ignore_errors=True)
        work.mkdir(parents=True)
        write_json(path, begun)
    blocks = blocks or blocks_of(table, work)
    return blocks, known if files or not there else table_fingerprint(table, blocks)


def _check_room(folder: Path, blocks: Blocks, columns: int) -> None:
    """Raise unless the disk has room for so many ``columns`` of ids, and for what lies beside them until the end."""
    needed = blocks.rows * (4 * columns + BESIDE)
    there = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(folder).free + there
    if free < needed:
        needed_mb, free_mb = needed / 1e6, free / 1e6
        words = f"must have {needed_mb:,.1f} MB free for {blocks.rows:,} rows, found {free_mb:,.1f} MB at {folder}"
        raise InputError(words, argument="out")


def _one_kind(clicks: NDArray[Any]) -> str | None:
    """``all`` or ``none`` where ads are clicked alike."""
    total = int(clicks.sum(dtype=np.int64))
    return None if 0 < total < len(clicks) else "all" if total else "none"


def _check_parts(config: Config, parts: dict[str, Split], passes: Passes, size: int | None) -> None:
    """Raise unless there is something to learn from and to choose by."""
    for part, words in (("train", "training"), ("valid", "validation")):
        clicks = passes.numbers("click")[parts[part].rows]
        if (share := _one_kind(clicks)) is not None:
            raise InputError(
                f"{passes.name} must have clicks and other ads in its {words} rows, found that {share} of the "
                f"{len(clicks):,} were clicked; look at the column of clicks, and with --time at the newest rows, or "
                "take more of them"
            )
    _, valid, _ = parts.values()
    auctions = len(valid.rows) // (size or 1) if valid.offsets is None else len(valid.offsets) - 1
    if config.train.recipe == AUTO and auctions < 4:
        raise InputError(
            f"recipe auto needs at least 4 validation auctions, two halves of two, found {auctions}; more rows are "
            "needed, or --recipe single"
        )


@dataclass(frozen=True)
class _Numbers:
    """What the store holds beside the features.

    Bids are in units of their mean and weights on average 1 in training, so that learning rates and lam mean the same
    for every table. Bids have a cap: a single one of 1e6 would make all others 0, or its own gradient would be all that
    Adam remembers. Where negatives were sampled each stands for 1 / rate of them.
    """

    passes: Passes
    median_bid: float
    mean_bid: float = 1.0
    largest_bid: float = 0.0
    capped_bids: int = 0
    raw_weight: float = 1.0  # mean of all rows
    mean_weight: float = 1.0  # of training rows, after that

    @property
    def bid_cap(self) -> float:
        return CAP * self.median_bid

    @staticmethod
    def of(config: Config, passes: Passes, train: NDArray[np.int64], known: TableFacts | None) -> _Numbers:
        """Means over training rows, which ``train`` are; units of bids are those of a table that is ``known``."""
        rows = passes.blocks.rows
        sample = passes.numbers("bid")[train[:: every(len(train))]]
        made = _Numbers(passes, float(np.median(sample)) if known is None else known.median_bid)
        if passes.has("weight"):
            raw = _mean(lambda part: passes.numbers("weight")[part], rows)
            made = replace(made, raw_weight=raw)
        smallest, largest, capped = np.inf, 0.0, 0
        for part in chunks(0, rows):
            bids = passes.numbers("bid")[part]
            smallest, largest = min(smallest, bids.min()), max(largest, bids.max())
            capped += int((bids > made.bid_cap).sum())
        mean_bid = _mean(lambda part: np.minimum(passes.numbers("bid")[train[part]], made.bid_cap), len(train))
        mean_bid = mean_bid if known is None else known.mean_bid
        if min(smallest, made.bid_cap) < LEAST_BID * mean_bid:
            words = f"found {min(smallest, made.bid_cap):g} to {min(largest, made.bid_cap):g}"
            raise InputError(f"column {config.data.bid!r} must have bids that one model can learn from, {words}")
        made = replace(made, mean_bid=mean_bid, largest_bid=float(largest), capped_bids=capped)
        if passes.has("weight") or passes.has("sampling_rate"):
            made = replace(made, mean_weight=_mean(lambda part: made.weights(train[part]), len(train)))
        return made

    def weights(self, rows: NDArray[np.int64]) -> Floats | None:
        """How much ads count, where they do not all count alike."""
        weights, rate = None, self.passes.data.sampling_rate
        if self.passes.has("weight"):
            weights = self.passes.numbers("weight")[rows] / self.raw_weight
        if rate is not None:
            stands_for = np.where(self.passes.numbers("click")[rows] == 1, 1.0, 1 / rate)
            weights = stands_for if weights is None else weights * stands_for
        return None if weights is None else weights / self.mean_weight

    def columns(self, rows: NDArray[np.int64]) -> dict[str, Floats]:
        """Columns of the store by name, of some rows of the table."""
        passes, data = self.passes, self.passes.data

        def taken(role: str) -> Floats | None:
            return passes.numbers(role)[rows] if passes.has(role) else None

        position = taken("position")
        columns = {
            "clicks": taken("click"),
            "bids": np.minimum(passes.numbers("bid")[rows], self.bid_cap) / self.mean_bid,
            "teacher": taken("teacher"),
            "truth": taken("truth"),
            "weights": self.weights(rows),
            "exposure": None if position is None else np.asarray(data.slots)[position.astype(np.int64) - 1],
        }
        return {name: values for name, values in columns.items() if values is not None}


def _mean(values: Callable[[slice], Any], count: int) -> float:
    """The mean of so many numbers, summed in stretches that no block size changes."""
    return float(sum(values(part).sum() for part in chunks(0, count)) / count)


def _write_test(
    folder: Path, passes: Passes, parts: dict[str, Split], numbers: _Numbers, known: dict[str, Floats]
) -> None:
    """The test ads as `evaluate` takes them, with ``known`` predictions alone: in stretches, then as one file."""
    rows, files = parts["test"].rows, []
    for part in chunks(0, len(rows)):
        taken = numbers.columns(rows[part])
        position = passes.numbers("position")[rows[part]].astype(np.int64) if passes.has("position") else None
        columns = {
            "row": rows[part],
            "auction": passes.auctions_of_test(parts, part),
            "click": taken["clicks"].astype(np.int8),
            "bid": passes.numbers("bid")[rows[part]],
            "weight": taken.get("weights"),
            "position": position,
            "truth": taken.get("truth"),
            "teacher": taken.get("teacher"),
        }
        columns |= {name: ctr[part] for name, ctr in known.items()}
        files.append(passes.work / f"test-{part.start:012d}.parquet")
        write_parquet(files[-1], pl.DataFrame({name: x for name, x in columns.items() if x is not None}))
    with whole_file(folder / "test.parquet") as whole:
        pl.scan_parquet(files).sink_parquet(whole)


def write_parquet(path: Path, frame: pl.DataFrame) -> None:
    """The frame at ``path``, whole or not at all."""
    with whole_file(path) as part:
        frame.write_parquet(part)


def _facts(part: Split, passes: Passes, clicks: NDArray[Any]) -> SplitFacts:
    first, last, times = None, None, passes.times
    if times is not None:
        oldest, newest = (_row(part.rows, times, pick) for pick in (np.argmin, np.argmax))
        first, last = (str(passes.blocks.read(row, [passes.data.time or ""], 1).item()) for row in (oldest, newest))
    auctions = None if part.offsets is None else len(part.offsets) - 1
    return SplitFacts(len(part.rows), int(clicks.sum(dtype=np.int64)) / len(clicks), auctions, first, last)


def _row(rows: NDArray[np.int64], times: NDArray[Any], pick: Callable[[Any], Any]) -> int:
    """The row with the least or the greatest time, the first of them where there are several."""
    best = np.array([some[pick(times[some])] for some in (rows[part] for part in chunks(0, len(rows)))])
    return int(best[pick(times[best])])


def _on_both_sides(parts: dict[str, Split], times: NDArray[Any]) -> str | None:
    """What a cut in time goes through: auctions, which went, whole, to where their oldest ads belong, or times."""
    newest, oldest = (
        [times[_row(parts[name].rows, times, pick)] for name in SPLITS] for pick in (np.argmax, np.argmin)
    )
    edges = list(zip(newest, oldest[1:], strict=False))
    if any(before > after for before, after in edges):
        return "auctions"
    return "time" if any(before == after for before, after in edges) else None
