"""From a table to a store: columns checked, rows split, values encoded; the store is whole or absent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import torch
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.data.ad_table import auction_keys, checked_numbers, column_or_number, number_auctions
from bidwise.data.ads import Ads
from bidwise.data.columns import Encoder, Learner, least_count
from bidwise.data.kinds import Facts, Seen
from bidwise.data.splits import Split, auction_size, shown_times, split, times_of
from bidwise.data.store import SCHEMA, SPLITS, Store, StoreWriter
from bidwise.data.table_files import Block, Source, Table
from bidwise.json_files import from_json
from bidwise.run_folder import to_toml, whole_file, write_text
from bidwise.table.config import AUTO, FEATURES, Config, Data, nested, open_run
from bidwise.table.crosses import ROWS, First, relearned, with_crosses
from bidwise.table.leaks import copies, find_leaks, row_hashes
from bidwise.table.model import opened
from bidwise.table.plan import combines
from bidwise.table.refresh import Previous
from bidwise.table.results import SplitFacts, TableFacts
from bidwise.values import check_columns
from bidwise.workers import Progress, ahead, cores

ROLES = ("click", "bid", "teacher", "truth", "weight", "position")  # columns of numbers
SAMPLE = 2**20  # training rows that bins, the median bid and leaks are taken from, evenly spaced
_LABELS = ("clicks", "weights", "exposure")  # the input of a regression without bids
_UNFINISHED = "unfinished"  # in a run folder, a store that is being made
_STRETCH = 2**17  # rows per batch of crosses
_FULL = "full"  # in the folder of a store, another one with all rows for training
PREVIOUS = "previous"  # the model that a refresh continues from, among the models of the evaluation
LEAST_BID = 1e-30  # in units of their mean: the least that training can distinguish from 0
CAP = 100  # medians, the most that a bid counts in training: the largest of 300,000 log-normal bids with sigma 1
THREADS = 8  # at most
TEST = "test/ads.parquet"  # of a store: the test ads without predictions


def every(rows: int) -> int:
    """One of how many rows is in the sample: all are, up to ``SAMPLE`` of them."""
    return -(-rows // SAMPLE)


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
    def encoder(self) -> Encoder:
        """The encoder of the store."""
        return Encoder.read(self.store.folder)

    @property
    def plain(self) -> int:
        """How many fields are no combinations of others."""
        return len(self.encoder.names)

    @cached_property
    def full(self) -> Store | None:
        """All rows for training, if the chosen recipe is to be trained again on them."""
        return Store(self.store.folder / _FULL) if self.config.train.refit else None

    @cached_property
    def facts(self) -> TableFacts:
        """Facts of the table, stored in the schema."""
        return from_json(TableFacts, self.store.schema["table"], str(self.store.folder / SCHEMA))


def prepare(
    table: Table,
    config: Config,
    out: str | Path,
    *,
    previous: Previous | None = None,
    progress: Progress | None = None,
    first: First = lambda *_: None,
) -> Prepared:
    """Check the table, decide the types of its columns, split it, and write a store to ``out``.

    Columns with a role are in memory, about 41 bytes a row, all others in blocks. A table that cannot be used leaves
    nothing; a store that is there already is used. Columns, bins, ids and units of bids come from the ``previous`` run
    if this one continues it. ``first`` as in :func:`with_crosses`.
    """
    show: Progress = progress or (lambda work, done, detail="": None)
    folder = open_run(out, config)
    show("reading", 0.0)
    source = opened(table, config.data.separator, config.data.header, inherited=previous is not None)
    if source.reads(folder):
        words = f"must be outside of the folder that is read, or its files be part of the table, found {folder}"
        raise InputError(words, argument="out")
    prepared = Prepared(folder, config)
    if not (folder / "config.toml").exists() or not (folder / "store" / SCHEMA).is_file():
        _build(source, config, folder, previous, show, first)
        write_text(folder / "config.toml", to_toml(nested(config.flat())))
    elif source.fingerprint() != prepared.facts.fingerprint:
        raise InputError(
            f"must be a new folder or one of the same table, found {folder}, which began with other rows than "
            f"{source.name} has now; choose another folder, or delete that one",
            argument="out",
        )
    show("reading", 1.0)
    return prepared


def _build(
    source: Source, config: Config, folder: Path, previous: Previous | None, show: Progress, first: First
) -> None:
    """The store of a table."""
    data = replace(config.data, bid=column_or_number(source.columns, config.data.bid)[0])
    config = replace(config, data=data)
    if previous is not None:
        previous.check_data(data)
    named = [column for option in (*FEATURES, "keep") for column in getattr(data, option)]
    check_columns([*(column for _, column in data.roles), *named], source.columns, source.name)
    work = folder / _UNFINISHED
    shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
    try:
        work.mkdir(parents=True)
        _fill(work / "store", source.local(work), config, previous, show, first)
        shutil.rmtree(folder / "store", ignore_errors=True)
        (work / "store").rename(folder / "store")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _fill(
    folder: Path, source: Source, config: Config, previous: Previous | None, show: Progress, first: First
) -> None:
    """Three passes: roles and facts of all rows, vocabularies of training rows, ids."""
    data = config.data
    bags = dict.fromkeys(data.bag, data.bag_separator) if previous is None else previous.bags
    name, facts = source.name, Facts(source, bags=bags)
    known, hashes = list[dict[str, Any]](), list[NDArray[np.uint64]]()
    for block, (seen, roles, row_hash) in _passed(source, None, partial(_checked, data, facts)):
        facts.add(seen)
        known.append(roles)
        hashes.append(row_hash)
        show("reading", 0.3 * block.share, "checking columns")
    rows = _Rows(data, known)
    known.clear()
    fingerprint = source.fingerprint()
    if previous is not None and fingerprint == previous.facts.fingerprint:
        raise InputError(f"must have new rows, found in {name} the rows of the run to continue", argument="table")
    given = {kind: getattr(data, kind) for kind in ("numeric", "categorical", "ignore")}
    columns = facts.columns(data.roles, **given, previous=None if previous is None else previous.model.encoder)
    show("reading", 0.3, "splitting")
    parts = rows.split(config.train.seed, name)
    sizes = {part: len(each.rows) for part, each in parts.items()}
    size = None if data.auction else auction_size(data.auction_size, sizes["valid"], sizes["test"])
    _check_parts(config, parts, rows["click"], size, name)
    rows.scale(parts["train"].rows, None if previous is None else previous.facts)
    place = np.empty(facts.rows, np.int64)  # of every row of the table, among the rows of all parts
    place[np.concatenate([each.rows for each in parts.values()])] = np.arange(facts.rows)

    step, count = every(sizes["train"]), facts.rows if config.train.refit else 0  # rows that the second one learns from
    learners = [(Learner(columns), size) for size in (sizes["train"], count) if size]
    for block, counted in _passed(source, learners[0][0].names, partial(_counted, learners, place, step)):
        for (learner, _), counts in zip(learners, counted, strict=True):
            learner.add(counts)
        show("reading", 0.3 + 0.3 * block.share, "counting values")
    min_count = data.min_count or least_count(sizes["train"])
    encoders = [learner.encoder(min_count=min_count, bins=data.bins) for learner, _ in learners]
    encoders = encoders if previous is None else [previous.model.encoder.extended(each) for each in encoders]

    folder.mkdir()
    store = StoreWriter(folder, sizes)
    stores = [store]
    if config.train.refit:
        (folder / _FULL).mkdir()
        stores.append(StoreWriter(folder / _FULL, {"train": facts.rows, "valid": 0, "test": 0}))
    _write_features(stores, source, encoders, place, show)
    whole = Split.joined(parts)
    for writer, some in zip(stores, (parts, {"train": whole}), strict=False):
        for part, each in some.items():
            for column, values in rows.stored(each.rows).items():
                writer.column(part, column)[:] = values
            if each.offsets is not None:
                writer.column(part, "offsets", length=len(each.offsets))[:] = each.offsets
    show("reading", 0.8, "looking for leaks")
    sample = ((store.written(part, x)[:: every(sizes[part])] for x in ("features", "clicks")) for part in SPLITS[:2])
    leaks = find_leaks(encoders[0], *(values for part in sample for values in part))
    leaks.stop(data.keep)
    refresh = None
    if previous is not None:
        refresh = previous.refreshed(encoders[0], store.written("train", "features"), count)
    elif combines(config):
        show("reading", 0.85, "looking for combinations of columns")
        train, valid = (_sampled(store, part, rows, parts[part].rows) for part in SPLITS[:2])
        crosses = with_crosses(encoders[0], train, valid, min_count, first).crosses
        for at, writer in enumerate(stores):
            encoders[at] = relearned(encoders[at], crosses, writer.written("train", "features"), min_count)
            _widen(writer, encoders[at])
    table = TableFacts(
        fingerprint=fingerprint,
        columns=tuple(columns),
        splits={part: _split_facts(each, rows) for part, each in parts.items()},
        auction_size=size,
        min_count=min_count,
        mean_bid=rows.mean_bid,
        median_bid=rows.median_bid,
        bid_cap=rows.bid_cap,
        capped_bids=int((rows["bid"] > rows.bid_cap).sum()),
        largest_bid=float(rows["bid"].max()),
        equal_bids=data.bid is None,
        leaks=leaks.areas,
        telling=leaks.values,
        certain=leaks.certain,
        duplicates=copies(np.concatenate(hashes)),
        sampled=None if step == 1 else -(-sizes["train"] // step),
        refresh=refresh,
    )
    test = rows.test_ads(parts["test"])
    if previous is not None:
        test = test.with_columns(pl.Series(PREVIOUS, previous.ctr(encoders[0], store.written("test", "features"))))
    write_parquet(folder / TEST, test)
    for writer, encoder in zip(stores, encoders, strict=True):
        encoder.write(writer.folder)
        writer.finish(fields=encoder.fields, about={"table": table})


def _passed(source: Source, columns: list[str] | None, work: Any) -> Iterator[tuple[Block, Any]]:
    """Blocks of a table with the result of ``work`` on each, in threads; text is parsed completely anyway."""

    def both(block: Block) -> tuple[Block, Any]:
        return block, work(block)

    blocks = source.blocks(None if source.text or columns is None else columns)
    yield from ahead(both, blocks, min(cores(), THREADS))


def _checked(data: Data, facts: Facts, block: Block) -> tuple[list[Seen], dict[str, Any], NDArray[np.uint64]]:
    """The facts of all columns of a block, its columns with a role, checked, and a hash of every row."""
    frame, known = block.frame, dict[str, Any]()
    with block.located():
        roles = {role: getattr(data, role) for role in ROLES if role != "teacher"}
        teacher = [] if data.teacher is None else [data.teacher]
        numbers = checked_numbers(frame, teacher, roles, slots=len(data.slots))
        for role in ROLES:
            if (column := getattr(data, role)) is not None:
                known[role] = numbers[column].astype(np.uint8 if role == "click" else np.float64)
        if data.time is not None:
            known["time"] = times_of(frame[data.time], data.time_format)
        if data.auction:
            known["auction"] = auction_keys(frame.select(cs.by_name(*data.auction)))
    return facts.seen(frame), known, row_hashes(frame)


def _counted(learners: list[tuple[Learner, int]], place: NDArray[np.int64], step: int, block: Block) -> Any:
    """Values of the first rows of a block, as many as each learner has; of numbers those in the sample."""
    here = place[block.start : block.start + len(block.frame)]
    known = ((learner, here < rows) for learner, rows in learners)
    return [learner.counted(block.frame.filter(inside), here[inside] % step == 0) for learner, inside in known]


def _encoded(encoders: list[Encoder], place: NDArray[np.int64], block: Block) -> Any:
    """Destinations of the rows of a block, in that order, and their ids by every encoder."""
    here = place[block.start : block.start + len(block.frame)]
    order = np.argsort(here)
    return here[order], [encoder.encode(block.frame).ids[order] for encoder in encoders]


def _write_features(
    stores: list[StoreWriter], source: Source, encoders: list[Encoder], place: NDArray[np.int64], show: Progress
) -> None:
    """The rows as ids, each in its place in every store."""
    columns = [
        {part: store.column(part, "features", width=encoder.width) for part in SPLITS}
        for store, encoder in zip(stores, encoders, strict=True)
    ]
    for block, (here, ids) in _passed(source, encoders[0].names, partial(_encoded, encoders, place)):
        for store, features, values in zip(stores, columns, ids, strict=True):
            begin = 0
            for part, size in store.splits.items():
                some = slice(*np.searchsorted(here, [begin, begin + size]))
                at = here[some] - begin
                if len(at):
                    together = at[-1] - at[0] == len(at) - 1
                    features[part][slice(at[0], at[-1] + 1) if together else at] = values[some]
                begin += size
        show("reading", 0.6 + 0.2 * block.share, "writing ids")


def _sampled(store: StoreWriter, part: str, rows: _Rows, which: NDArray[np.int64]) -> Ads:
    """A sample of the rows of a part, with ids of plain columns."""
    step = -(-len(which) // ROWS)
    features = np.array(store.written(part, "features")[::step])
    columns = {name: values for name, values in rows.stored(which[::step]).items() if name in _LABELS}
    labels: dict[str, Any] = {name: torch.from_numpy(values.astype(np.float32)) for name, values in columns.items()}
    return Ads(torch.from_numpy(features), bids=torch.ones(len(features)), **labels)


def _widen(store: StoreWriter, encoder: Encoder) -> None:
    """Ids of crosses next to the ids of plain columns."""
    for part in SPLITS:
        plain = store.written(part, "features")
        features = store.column(part, "features", width=encoder.width)
        for start in range(0, len(plain), _STRETCH):
            some = slice(start, start + _STRETCH)
            ids = np.zeros((len(plain[some]), encoder.width), np.int32)
            ids[:, : plain.shape[1]] = plain[some]
            features[some] = encoder.crossed(ids)


def _check_parts(config: Config, parts: dict[str, Split], clicks: NDArray[Any], size: int | None, name: str) -> None:
    """Raise unless there is something to learn from and to choose by."""
    for part, words in (("train", "training"), ("valid", "validation")):
        rows = parts[part].rows
        if not 0 < (clicked := int(clicks[rows].sum(dtype=np.int64))) < len(rows):
            raise InputError(
                f"{name} must have clicks and other ads in its {words} rows, found that {'all' if clicked else 'none'} "
                f"of the {len(rows):,} were clicked; look at the column of clicks, and with --time at the newest rows, "
                "or take more of them"
            )
    valid = parts["valid"]
    auctions = len(valid.rows) // (size or 1) if valid.offsets is None else len(valid.offsets) - 1
    if config.train.recipe == AUTO and auctions < 4:
        raise InputError(
            f"recipe auto needs at least 4 validation auctions, two halves of two, found {auctions}; more rows are "
            "needed, or --recipe single"
        )


class _Rows:
    """Columns with a role, all rows in memory; then, once :meth:`scale` knows the training rows, columns of the store.

    Bids are in units of their mean and weights on average 1 in training, so that learning rates and lam mean the same
    for every table. Bids have a cap: a single one of 1e6 would make all others 0, or its own gradient would be all that
    Adam remembers. If negatives were sampled each stands for 1 / rate of them.
    """

    median_bid: float
    mean_bid: float
    bid_cap: float
    mean_weight: float

    def __init__(self, data: Data, known: list[dict[str, Any]]) -> None:
        self.data = data
        blocks = {role: [block[role] for block in known] for role in known[0]}
        times = blocks.pop("time", None)
        self.times = None if times is None else pl.concat(times, how="vertical")
        self.columns: dict[str, NDArray[Any]] = {role: np.concatenate(parts) for role, parts in blocks.items()}
        if data.bid is None:
            self.columns["bid"] = np.broadcast_to(1.0, len(self.columns["click"]))

    def __getitem__(self, role: str) -> NDArray[Any]:
        return self.columns[role]

    @property
    def order(self) -> NDArray[Any]:
        """The times as numbers that sort."""
        assert self.times is not None
        return np.asarray(self.times.to_physical())

    def split(self, seed: int, name: str) -> dict[str, Split]:
        """Rows of training, validation and test; auctions are then known by their bounds."""
        keys = self.columns.pop("auction", None)
        auction = None if keys is None else number_auctions(keys)
        time = None if self.times is None else self.order
        return split(len(self["click"]), auction=auction, time=time, seed=seed, name=name)

    def scale(self, train: NDArray[np.int64], known: TableFacts | None) -> None:
        """Units of bids and weights, by the training rows; those of bids by a table that is ``known``."""
        bids = self["bid"]
        median = float(np.median(bids[train[:: every(len(train))]])) if known is None else known.median_bid
        self.median_bid, self.bid_cap = median, CAP * median
        mean = float(np.minimum(bids[train], self.bid_cap).mean()) if known is None else known.mean_bid
        self.mean_bid, least = mean, min(bids.min(), self.bid_cap)
        if least < LEAST_BID * mean:
            words = f"found {least:g} to {min(bids.max(), self.bid_cap):g}"
            raise InputError(f"column {self.data.bid!r} must have bids that one model can learn from, {words}")
        weights, rate = self.columns.get("weight"), self.data.sampling_rate
        if rate is not None:
            clicked = self["click"] == 1
            if weights is not None and np.isclose(weights[~clicked].mean(), weights[clicked].mean() / rate, rtol=0.02):
                words = f"is already corrected for by column {self.data.weight!r}; remove one of the two"
                raise InputError(words, argument="sampling_rate")
            weights = np.where(clicked, 1.0, 1 / rate) * (1.0 if weights is None else weights)
        if weights is not None:
            self.columns["weight"], self.mean_weight = weights, float(weights[train].mean())

    def stored(self, part: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Columns of the store by name, of some rows of the table."""
        known = {role: values[part] for role, values in self.columns.items()}
        columns = {"clicks": known["click"], "bids": np.minimum(known["bid"], self.bid_cap) / self.mean_bid}
        columns |= {role: known[role] for role in ("teacher", "truth") if role in known}
        if "weight" in known:
            columns["weights"] = known["weight"] / self.mean_weight
        if "position" in known:
            columns["exposure"] = np.asarray(self.data.slots)[known["position"].astype(np.int64) - 1]
        return columns

    def test_ads(self, part: Split) -> pl.DataFrame:
        """The test ads as `evaluate` takes them, with bids in full; auctions are numbers."""
        auctions = None
        if part.offsets is not None:
            auctions = np.repeat(np.arange(len(part.offsets) - 1), np.diff(part.offsets))
        types = {"click": np.int8, "position": np.int64}
        columns = {"row": part.rows, "auction": auctions} | {
            role: self[role][part.rows].astype(types.get(role, np.float64))
            for role in ("click", "bid", "weight", "position", "truth", "teacher")
            if role in self.columns
        }
        return pl.DataFrame({name: values for name, values in columns.items() if values is not None})


def write_parquet(path: Path, frame: pl.DataFrame) -> None:
    """The frame at ``path``, whole or not at all."""
    with whole_file(path) as part:
        frame.write_parquet(part)


def _split_facts(part: Split, rows: _Rows) -> SplitFacts:
    first, last = None, None
    if rows.times is not None:
        ends = [int(part.rows[pick(rows.order[part.rows])]) for pick in (np.argmin, np.argmax)]
        first, last = shown_times(rows.times.gather(ends)).to_list()
    auctions = None if part.offsets is None else len(part.offsets) - 1
    return SplitFacts(len(part.rows), float(rows["click"][part.rows].mean()), auctions, first, last)
