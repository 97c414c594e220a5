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
from bidwise.run_folder import read_json, whole_file, write_json
from bidwise.runners import Progress
from bidwise.table.config import AUTO, Config, begin, open_run
from bidwise.table.results import SplitFacts, TableFacts
from bidwise.typed_json import from_json, to_json

LEAK = 0.95  # AUC of a single column, beyond what one learns of ads
BIDS = (1e-30, 1e30)  # in units of their mean, what training can tell from 0 and from infinity
CAP = 100  # medians, the most that a bid counts in training: the largest of 300,000 log-normal bids with sigma 1


@dataclass(frozen=True)
class Prepared:
    """A run folder that is ready to train in."""

    folder: Path
    config: Config
    store: Store
    encoder: Encoder

    @cached_property
    def facts(self) -> TableFacts:
        """What was found in the table, which the store's schema holds."""
        return from_json(TableFacts, self.store.schema["table"], str(self.folder / "store" / SCHEMA))


def prepare(table: Table, config: Config, out: str | Path, *, progress: Progress | None = None) -> Prepared:
    """Check the table, infer what its columns are, split it, and leave a store in ``out``.

    Whatever cannot be used is refused before anything is written. A folder that has the store of the same table
    already is taken as it is.
    """
    show: Progress = progress or (lambda work, done, detail="": None)
    folder = open_run(out, config)
    show("reading", 0.0)
    if (folder / "store" / SCHEMA).is_file() and (folder / "test.parquet").is_file():
        return _again(table, config, folder)
    name = table_name(table)
    frame = read_table(table)
    data = config.data
    columns = inferred(
        frame, data.roles, numeric=data.numeric, categorical=data.categorical, ignore=data.ignore, name=name
    )
    show("reading", 0.4)
    ads = _checked(config, frame, name)
    times = None if data.time is None else times_of(frame[data.time], name)
    auction = auction_ids(frame.select(cs.by_name(*data.auction)), name) if data.auction else None
    parts = split(len(frame), auction=auction, time=times, seed=config.train.seed, name=name)
    train, valid, test = (parts[name] for name in SPLITS)
    size = None if auction is not None else auction_size(data.auction_size, len(valid.rows), len(test.rows))
    _check_parts(config, parts, ads, size, name)
    kinds = {column.name: column.use for column in columns if column.use in ("categorical", "numeric")}
    train_rows = train.rows
    min_count = data.min_count or least_count(len(train_rows))
    show("reading", 0.6)
    encoder = Encoder.fit(frame.select(cs.by_name(*kinds))[train_rows], kinds, min_count=min_count, bins=data.bins)
    median_bid = float(np.median(ads.bids[train_rows]))
    bid_cap = CAP * median_bid
    capped = replace(ads, bids=np.minimum(ads.bids, bid_cap))
    mean_bid = float(capped.bids[train_rows].mean())
    arrays = _arrays(config, capped, mean_bid, train_rows)
    begin(folder, config)
    store = StoreWriter(folder / "store", {name: len(part.rows) for name, part in parts.items()})
    _write_store(store, frame, encoder, parts, arrays, show)
    named = frame[data.auction[0]] if len(data.auction) == 1 else auction
    _write_test(folder / "test.parquet", config, named, ads, arrays, test)
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
        leaks=_leaks(store, encoder, ads.clicks[train_rows], ads.clicks[valid.rows]),
    )
    write_json(folder / "encoder.json", encoder.to_json())
    about = {"rows": len(frame), "table": to_json(facts)}
    finished = store.finish(fields=encoder.fields, vocabulary={}, about=about)
    show("reading", 1.0)
    return Prepared(folder, config, finished, encoder)


def _again(table: Table, config: Config, folder: Path) -> Prepared:
    """What an earlier run of the same configuration left, if the table is the same still."""
    prepared = prepared_before(config, folder)
    if table_fingerprint(table) != prepared.facts.fingerprint:
        raise InputError(
            f"must be a new folder or one of the same table, found {folder}, which began with other rows than "
            f"{table_name(table)} has now; choose another folder, or delete that one",
            argument="out",
        )
    return prepared


def prepared_before(config: Config, folder: Path) -> Prepared:
    """What :func:`prepare` left in a folder."""
    return Prepared(folder, config, Store(folder / "store"), Encoder.from_json(read_json(folder / "encoder.json")))


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
    clicks = int(ads.clicks.sum())
    if not 0 < clicks < ads.ads:
        share = "all" if clicks else "none"
        raise InputError(f"{name}: column {data.click!r} must have 0 and 1, found that {share} of the ads were clicked")
    return ads


def _check_parts(config: Config, parts: dict[str, Split], ads: AdTable, size: int | None, name: str) -> None:
    """Raise unless there is something to learn from and to choose by."""
    for split_name, words in (("train", "training"), ("valid", "validation")):
        clicks = ads.clicks[parts[split_name].rows]
        if not 0 < clicks.sum() < len(clicks):
            share = "all" if clicks.sum() else "none"
            raise InputError(
                f"{name} must have clicks and other ads in its {words} rows, found that {share} of the {len(clicks):,} "
                "were clicked; look at the column of clicks, and with --time at the newest rows, or take more of them"
            )
    _, valid, _ = parts.values()
    offsets = valid.offsets
    auctions = len(valid.rows) // size if size is not None else 0 if offsets is None else len(offsets) - 1
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
    data = config.data
    bids = ads.bids / mean_bid
    if bids.min() < BIDS[0] or bids.max() > BIDS[1]:
        raise InputError(
            f"column {data.bid!r} must have bids that one model can learn from, found {ads.bids.min():g} to "
            f"{ads.bids.max():g}"
        )
    columns = {"clicks": ads.clicks, "bids": bids}
    if data.teacher is not None:
        columns["teacher"] = ads.ctr[data.teacher]
    if ads.truth is not None:
        columns["truth"] = ads.truth
    weights = ads.weights
    if data.sampling_rate is not None:
        stands_for = np.where(ads.clicks == 1, 1.0, 1 / data.sampling_rate)
        weights = stands_for if weights is None else weights * stands_for
    if weights is not None:
        columns["weights"] = weights / weights[train_rows].mean()
    if ads.position is not None:
        columns["exposure"] = np.asarray(data.slots)[ads.position - 1]
    return columns


def _write_store(
    store: StoreWriter,
    frame: pl.DataFrame,
    encoder: Encoder,
    parts: dict[str, Split],
    arrays: dict[str, Floats],
    show: Progress,
) -> None:
    features = frame.select(cs.by_name(*encoder.names))
    for at, (name, part) in enumerate(parts.items()):
        store.column(name, "features", width=len(encoder.columns))[:] = encoder.encode(features[part.rows])
        for column, values in arrays.items():
            store.column(name, column)[:] = values[part.rows]
        if part.offsets is not None:
            store.column(name, "offsets", length=len(part.offsets))[:] = part.offsets
        show("reading", 0.7 + 0.3 * (at + 1) / len(SPLITS))


def _write_test(path: Path, config: Config, auction: Any, ads: AdTable, arrays: dict[str, Floats], part: Split) -> None:
    """The test ads as `evaluate` takes them, before there are predictions."""
    rows = part.rows
    columns: dict[str, Any] = {"row": rows}
    if auction is not None:
        columns["auction"] = auction[rows]
    columns |= {"click": ads.clicks[rows].astype(np.int8), "bid": ads.bids[rows]}
    if "weights" in arrays:
        columns["weight"] = arrays["weights"][rows]
    if ads.position is not None:
        columns["position"] = ads.position[rows]
    if ads.truth is not None:
        columns["truth"] = ads.truth[rows]
    if config.data.teacher is not None:
        columns["teacher"] = ads.ctr[config.data.teacher][rows]
    write_parquet(path, pl.DataFrame(columns))


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
