"""From a table to a store: columns checked and inferred, rows split, values turned into ids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from bidwise.auctions.columns import Floats
from bidwise.checks import InputError
from bidwise.data.ad_table import AdTable, auction_ids, read_ads
from bidwise.data.encoding import Encoder, inferred, least_count
from bidwise.data.read_table import Table, read_table, table_fingerprint, table_name
from bidwise.data.splits import Split, auction_size, split, times_of
from bidwise.data.store import SCHEMA, SPLITS, Store, StoreWriter
from bidwise.evaluation.auc import auc
from bidwise.run_folder import read_json, to_toml, whole_file, write_json, write_text
from bidwise.runners import Progress
from bidwise.table.config import AUTO, Config, nested, open_run
from bidwise.table.refresh import Previous, write_extension
from bidwise.table.results import SplitFacts, TableFacts
from bidwise.typed_json import from_json, to_json

PREVIOUS = "previous"  # the model that a refresh went on from, among the models of the evaluation
LEAK = 0.95  # AUC of a single column, beyond what one learns of ads
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
    def encoder(self) -> Encoder:
        """How columns became ids."""
        return Encoder.from_json(read_json(self.folder / "encoder.json"), str(self.folder / "encoder.json"))

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
    """Check the table, infer what its columns are, split it, and leave a store in ``out``.

    Whatever cannot be used is refused before anything is written. A folder that has the store of the same table
    already is taken as it is. Columns, bins, ids and units of bids are those of the ``previous`` run that this one goes
    on from.
    """
    show: Progress = progress or (lambda work, done, detail="": None)
    folder, name, data = open_run(out, config), table_name(table), config.data
    prepared = Prepared(folder, config)
    show("reading", 0.0)
    if (folder / "store" / SCHEMA).is_file() and (folder / "test.parquet").is_file():
        prepared.check_rows(table_fingerprint(table), name)
        return prepared
    frame = read_table(table)
    named = {"numeric": data.numeric, "categorical": data.categorical, "ignore": data.ignore}
    columns = (
        inferred(frame, data.roles, **named, name=name)
        if previous is None
        else previous.columns(frame, data.roles, name)
    )
    show("reading", 0.4)
    ads = _checked(config, frame, name)
    times = None if data.time is None else times_of(frame[data.time], name)
    auction = auction_ids(frame.select(cs.by_name(*data.auction)), name) if data.auction else None
    parts = split(len(frame), auction=auction, time=times, seed=config.train.seed, name=name)
    train, valid, test = (parts[name].rows for name in SPLITS)
    size = None if auction is not None else auction_size(data.auction_size, len(valid), len(test))
    _check_parts(config, parts, ads, size, name)
    min_count = data.min_count or least_count(len(train))
    show("reading", 0.6)
    kinds = {column.name: column.use for column in columns if column.use in ("categorical", "numeric")}
    features = frame.select(cs.by_name(*kinds))
    extension, refresh = None, None
    if previous is None:
        encoder = Encoder.fit(features[train], kinds, min_count=min_count, bins=data.bins)
    else:
        extension, refresh = previous.extended(features[train], min_count, config.train.forget_after)
        encoder = extension.encoder
    median_bid = float(np.median(ads.bids[train])) if previous is None else previous.facts.median_bid
    bid_cap = CAP * median_bid
    capped = replace(ads, bids=np.minimum(ads.bids, bid_cap))
    mean_bid = float(capped.bids[train].mean()) if previous is None else previous.facts.mean_bid
    arrays = _arrays(config, capped, mean_bid, train)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.toml").exists():
        write_text(folder / "config.toml", to_toml(nested(config.flat())))
    store = StoreWriter(folder / "store", {name: len(part.rows) for name, part in parts.items()})
    for at, (part, its) in enumerate(parts.items(), 1):
        store.column(part, "features", width=len(kinds))[:] = encoder.encode(features[its.rows])
        for column, values in arrays.items():
            store.column(part, column)[:] = values[its.rows]
        if its.offsets is not None:
            store.column(part, "offsets", length=len(its.offsets))[:] = its.offsets
        show("reading", 0.7 + 0.3 * at / len(SPLITS))
    names = frame[data.auction[0]] if len(data.auction) == 1 else auction
    more = {} if previous is None else {PREVIOUS: previous.predict(features[test])}
    _write_test(folder / "test.parquet", test, auction=names, ads=ads, arrays=arrays, more=more)
    facts = TableFacts(
        fingerprint=table_fingerprint(table, frame),
        columns=tuple(columns),
        splits={name: _facts(part, ads, times, config, frame) for name, part in parts.items()},
        auction_size=size,
        min_count=min_count,
        mean_bid=mean_bid,
        median_bid=median_bid,
        bid_cap=bid_cap,
        capped_bids=int((ads.bids > bid_cap).sum()),
        largest_bid=float(ads.bids.max()),
        cut=None if times is None else _on_both_sides(parts, times),
        leaks=_leaks(store, encoder, ads.clicks[train], ads.clicks[valid]),
        refresh=refresh,
    )
    if extension is not None:
        write_extension(folder, extension)
    write_json(folder / "encoder.json", encoder.to_json())
    store.finish(fields=encoder.fields, vocabulary={}, about={"rows": len(frame), "table": to_json(facts)})
    show("reading", 1.0)
    return prepared


def _checked(config: Config, frame: pl.DataFrame, name: str) -> AdTable:
    """The columns with a role, as `evaluate` checks them: all rows in their order."""
    data = config.data
    ads = read_ads(
        frame,
        ctr=[] if data.teacher is None else [data.teacher],
        click=data.click,
        bid=data.bid,
        truth=data.truth,
        position=data.position,
        weight=data.weight,
        slots=len(data.slots),
        name=name,
    )
    if (share := _one_kind(ads.clicks)) is not None:
        raise InputError(f"{name}: column {data.click!r} must have 0 and 1, found that {share} of the ads were clicked")
    return ads


def _one_kind(clicks: Floats) -> str | None:
    """``all`` or ``none`` where ads are clicked alike."""
    return None if 0 < clicks.sum() < len(clicks) else "all" if clicks.sum() else "none"


def _check_parts(config: Config, parts: dict[str, Split], ads: AdTable, size: int | None, name: str) -> None:
    """Raise unless there is something to learn from and to choose by."""
    for part, words in (("train", "training"), ("valid", "validation")):
        clicks = ads.clicks[parts[part].rows]
        if (share := _one_kind(clicks)) is not None:
            raise InputError(
                f"{name} must have clicks and other ads in its {words} rows, found that {share} of the {len(clicks):,} "
                "were clicked; look at the column of clicks, and with --time at the newest rows, or take more of them"
            )
    _, valid, _ = parts.values()
    auctions = len(valid.rows) // (size or 1) if valid.offsets is None else len(valid.offsets) - 1
    if config.train.recipe == AUTO and auctions < 4:
        raise InputError(
            f"recipe auto needs at least 4 validation auctions, two halves of two, found {auctions}; more rows are "
            "needed, or --recipe single"
        )


def _arrays(config: Config, ads: AdTable, mean_bid: float, train_rows: NDArray[np.int64]) -> dict[str, Floats]:
    """What the store holds beside the features, for all rows of the table.

    Bids are in units of their mean and weights on average 1 in training, so that learning rates and lam mean the same
    for every table. The bids of ``ads`` have a cap: a single one of 1e6 would make all others 0, or its own gradient
    would be all that Adam remembers. Where negatives were sampled each stands for 1 / rate of them.
    """
    data, weights = config.data, ads.weights
    if ads.bids.min() < LEAST_BID * mean_bid:
        words = f"found {ads.bids.min():g} to {ads.bids.max():g}"
        raise InputError(f"column {data.bid!r} must have bids that one model can learn from, {words}")
    if data.sampling_rate is not None:
        stands_for = np.where(ads.clicks == 1, 1.0, 1 / data.sampling_rate)
        weights = stands_for if weights is None else weights * stands_for
    columns = {
        "clicks": ads.clicks,
        "bids": ads.bids / mean_bid,
        "teacher": None if data.teacher is None else ads.ctr[data.teacher],
        "truth": ads.truth,
        "weights": None if weights is None else weights / weights[train_rows].mean(),
        "exposure": None if ads.position is None else np.asarray(data.slots)[ads.position - 1],
    }
    return {name: values for name, values in columns.items() if values is not None}


def _write_test(
    path: Path,
    rows: NDArray[np.int64],
    *,
    auction: Any,
    ads: AdTable,
    arrays: dict[str, Floats],
    more: dict[str, Floats],
) -> None:
    """The test ads as `evaluate` takes them, with ``more`` columns of them, before there are predictions."""
    columns = {
        "row": np.arange(ads.ads),
        "auction": auction,
        "click": ads.clicks.astype(np.int8),
        "bid": ads.bids,
        "weight": arrays.get("weights"),
        "position": ads.position,
        "truth": ads.truth,
        "teacher": arrays.get("teacher"),
    }
    write_parquet(path, pl.DataFrame({name: x[rows] for name, x in columns.items() if x is not None} | more))


def write_parquet(path: Path, frame: pl.DataFrame) -> None:
    """The frame at ``path``, whole or not at all."""
    with whole_file(path) as part:
        frame.write_parquet(part)


def _facts(part: Split, ads: AdTable, times: NDArray[Any] | None, config: Config, frame: pl.DataFrame) -> SplitFacts:
    rows, first, last = part.rows, None, None
    if times is not None:
        column = frame[config.data.time or ""]
        first, last = (str(column[int(rows[at])]) for at in (times[rows].argmin(), times[rows].argmax()))
    auctions = None if part.offsets is None else len(part.offsets) - 1
    return SplitFacts(len(rows), float(ads.clicks[rows].mean()), auctions, first, last)


def _on_both_sides(parts: dict[str, Split], times: NDArray[Any]) -> str | None:
    """What a cut in time goes through: auctions, which went, whole, to where their oldest ads belong, or times."""
    edges = [(times[parts[a].rows].max(), times[parts[b].rows].min()) for a, b in pairwise(SPLITS)]
    if any(before > after for before, after in edges):
        return "auctions"
    return "time" if any(before == after for before, after in edges) else None


def _leaks(store: StoreWriter, encoder: Encoder, clicked: Floats, clicks_of_new: Floats) -> dict[str, float]:
    """Features that predict the click all by themselves, often known only afterwards, with their AUC."""
    seen, new = (store.written(name, "features") for name in ("train", "valid"))
    leaks = {}
    for at, field in enumerate(encoder.fields):
        count, clicks = (np.bincount(seen[:, at], w, field.values) for w in (None, clicked))
        rate = (clicks + clicked.mean()) / (count + 1)
        area = auc(rate[new[:, at]], clicks_of_new)
        if area > LEAK:
            leaks[field.name] = float(area)
    return leaks
