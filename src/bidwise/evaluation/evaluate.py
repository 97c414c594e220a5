"""`evaluate`: which of several models makes the auction better, and how sure is that? Tables in, a verdict out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bidwise.auctions import slot_multipliers
from bidwise.checks import InputError, check_name, check_whole
from bidwise.data.ad_table import AdTable, read_ads
from bidwise.data.table_files import Table, open_table, table_name
from bidwise.evaluation.calibration import Platt
from bidwise.evaluation.comparison import compared, pairs_of
from bidwise.evaluation.doubts import doubts_of
from bidwise.evaluation.intervals import LEVEL
from bidwise.evaluation.metrics import Metrics, Reference
from bidwise.evaluation.pooled import check_closed_form
from bidwise.evaluation.result import AT_RANDOM, BEST, BY_BID, AuctionSize, Evaluation, Segment, check_folder
from bidwise.evaluation.units import Units
from bidwise.evaluation_options import EvaluationOptions
from bidwise.json_files import to_json
from bidwise.values import Floats

_SIZES = (2, 8, 32, 256)  # of auctions, if none is named
_SEGMENTS = 50  # of a column, those with the most ads
_BY = "by "  # before the name of a column of segments, which may be "cluster"
_Progress = Callable[[str, float], None]  # the current step, and the share that is done


def evaluate(
    table: Table, *, out: str | Path | None = None, progress: _Progress = lambda work, done: None, **options: Any
) -> Evaluation:
    """Welfare, revenue, AUC and calibration of several models' predictions, compared on the same ads.

    Args:
        table: Parquet, CSV or TSV file or URL, polars or pandas frame, or mapping of columns; one row per logged ad.
        out: folder for ``result.json`` and ``report.html``.
        progress: called as ``progress("model_a", 0.4)`` during long work.
        options: ``ctr``, ``click`` and the other fields of :class:`bidwise.evaluation_options.EvaluationOptions`.

    >>> table = {"a": [0.5, 0.1] * 9, "b": [0.1, 0.5] * 9, "y": [1, 0] * 9, "bid": [1.0] * 18}
    >>> table["auction"] = [row // 2 for row in range(18)]
    >>> found = evaluate(table, ctr=["a", "b"], click="y", bid="bid", auction="auction")
    >>> found.models["a"].welfare, found.models["b"].welfare, found.comparisons[0].difference
    (1.0, 0.0, -1.0)
    """
    asked = EvaluationOptions(**options)
    models, by = asked.columns("ctr"), asked.columns("by")
    base = asked.baseline or next(iter(models), "")
    _check(asked, models, base)
    if out is not None:
        check_folder(out)
    auction, cluster = asked.columns("auction"), asked.columns("cluster")
    keys = ({"cluster": cluster} if cluster else {}) | {_BY + column: [column] for column in by}
    ads = _read(table, asked, keys=keys, auction=auction or None, bid=asked.bid, truth=asked.truth)
    sizes: tuple[AuctionSize, ...] = ()
    if not auction and asked.auction_size is None:
        sizes = tuple(_by_size(ads, asked.rules, models, base))
        asked = replace(asked, auction_size=max((each.ads for each in sizes if each.enough), default=sizes[0].ads))
    if asked.calibrate != "none":
        ads = _with_copies(ads, asked)
    rules = asked.rules
    pairs = pairs_of(list(ads.ctr), base)
    metrics = None
    units, numbers = {}, {}
    for model, column in ads.ctr.items():
        progress(model, 0.0)
        metrics = _metrics(column, ads, rules) if metrics is None else metrics.of(column)
        numbers[model] = metrics.compute()
        units[model] = metrics.per_unit
        progress(model, 1.0)
    assert metrics is not None
    references = _references(metrics)
    units |= references
    among = [(model, name) for name in references for model in numbers] + [(name, base) for name in references]
    against = [(model, other) for model, other in pairs if other == base]
    evaluation = Evaluation(
        models=numbers,
        comparisons=tuple(compared(units, pairs)),
        references={name: Reference.of(each) for name, each in references.items()},
        against=tuple(compared(units, among, metrics=("welfare",))),
        sizes=sizes,
        doubts=tuple(doubts_of(ads, {model: numbers[model] for model in models})),
        auctions=ads.auctions if auction else None,
        ads=ads.ads,
        clusters=len(np.unique(ads.groups["cluster"])) if cluster else None,
        single_ads=int((np.diff(ads.offsets) == 1).sum()) if auction else 0,
        baseline=base,
        welfare_of="clicks" if asked.truth is None else "truth",
        bid_spread=float(np.log(ads.bids).std()),
        largest_bid=float(ads.bids.max() / np.median(ads.bids)),
        concentration=units[base].concentration(),
        segments=_segments(ads, by, against, rules),
        options=_recorded(asked, table),
    )
    if out is not None:
        evaluation.write(out)
    return evaluation


def _check(asked: EvaluationOptions, models: list[str], base: str) -> None:
    """Reject wrong arguments before the table is read."""
    size = asked.auction_size
    if not models:
        raise InputError("must name at least one column of predictions", argument="ctr")
    Metrics([], [], [], None if size else [0], **asked.rules)
    if asked.auction and size is not None:
        message = "cannot be combined with {}: the log has real auctions, or every possible one is measured"
        raise InputError(message, argument="auction", others=["auction_size"])
    if not asked.auction:
        check_whole("auction_size", _SIZES[0] if size is None else size, 2)  # one ad competes with nobody
        check_closed_form(asked.pricing, len(asked.multipliers))
    if base not in models:
        raise InputError(f"must be one of the ctr columns, {', '.join(models)}, found {base!r}", argument="baseline")
    check_name("calibrate", asked.calibrate, ["none", "platt"])
    if asked.sampling_rate is not None and not 0 < asked.sampling_rate <= 1:
        raise InputError(f"must be in (0, 1], found {asked.sampling_rate}", argument="sampling_rate")


def _read(table: Table, asked: EvaluationOptions, **roles: Any) -> AdTable:
    """The ads of a table; predictions are corrected for sampled negatives, q = p / (p + (1 - p) / rate)."""
    columns: dict[str, Any] = {"ctr": asked.columns("ctr"), "click": asked.click, "slots": len(asked.multipliers)}
    columns |= {"position": asked.position, "weight": asked.weight, "name": "table"}
    source, rate = open_table(table, separator=asked.separator, header=asked.header, name="table"), asked.sampling_rate
    ads = read_ads(source, **roles, **columns)
    return ads if rate is None else replace(ads, ctr={m: p / (p + (1 - p) / rate) for m, p in ads.ctr.items()})


def _with_copies(ads: AdTable, asked: EvaluationOptions) -> AdTable:
    """Every model together with its calibrated copy, ``model+platt``: one line for all ads, which cannot change who
    wins if all bid the same."""
    exposure = _exposure(ads, asked.multipliers)
    labels = ads.clicks if exposure is None else ads.clicks / exposure
    copies = {f"{model}+platt": Platt.fit(ctr, labels, weights=ads.weights)(ctr) for model, ctr in ads.ctr.items()}
    if named := [name for name in copies if name in ads.ctr]:
        raise InputError(f"must not name {named[0]}, the name of a calibrated copy", argument="ctr")
    return replace(ads, ctr=ads.ctr | copies)


def _recorded(asked: EvaluationOptions, table: Table) -> dict[str, Any]:
    """The options as JSON has them; tables by name, if they have one."""
    options = {"table": table_name(table, "") or None} | vars(asked) | {"slots": asked.multipliers}
    options |= {role: asked.columns(role) for role in ("ctr", "auction", "cluster", "by")}
    return {name: value for name, value in to_json(options).items() if value not in (None, [])}


def _exposure(ads: AdTable, slots: Sequence[float]) -> Floats | None:
    return None if ads.position is None else slot_multipliers(slots).numpy()[ads.position - 1]


def _metrics(ctr: Floats, ads: AdTable, rules: dict[str, Any]) -> Metrics:
    """One model's predictions in the auctions of a table, or in every possible one."""
    return Metrics(
        ctr,
        ads.clicks,
        ads.bids,
        ads.offsets if rules.get("size") is None else None,
        truth=ads.truth,
        exposure=_exposure(ads, rules["slots"]),
        weights=ads.weights,
        clusters=ads.groups.get("cluster"),
        **rules,
    )


def _references(metrics: Metrics) -> dict[str, Units]:
    """Rankings that need no model, and the best if the true CTR is known; if all bid the same, the ranking by bid is a
    random one."""
    bids = metrics.log.bids
    found = {BY_BID: metrics.of(squash=0.0).sales} if bids.min() < bids.max() else {}
    found[AT_RANDOM] = metrics.at_random()
    if metrics.log.truth_known:
        found[BEST] = metrics.of(metrics.log.worth, squash=1.0).sales
    return found


def _by_size(ads: AdTable, rules: dict[str, Any], models: list[str], base: str) -> Iterator[AuctionSize]:
    """The models against the baseline in auctions of several sizes; a single one against random ads."""
    if ads.ads <= _SIZES[0]:
        raise InputError(f"must have more than {_SIZES[0]} ads, found {ads.ads}", argument="table")
    metrics = _metrics(ads.ctr[base], ads, rules | {"size": _SIZES[0]})
    pairs = [(model, base) for model in models if model != base] or [(base, AT_RANDOM)]
    for size in _SIZES:
        if size < ads.ads:
            units = {model: metrics.of(column, size=size).sales for model, column in ads.ctr.items()}
            levels = {model: each.level("welfare") for model, each in units.items()}
            if len(units) == 1:
                units[AT_RANDOM] = metrics.of(size=size).at_random()
            yield AuctionSize(size, levels, tuple(compared(units, pairs, metrics=("welfare",))))


def _segments(
    ads: AdTable, by: Sequence[str], pairs: list[tuple[str, str]], rules: dict[str, Any]
) -> tuple[Segment, ...]:
    """The models compared by the welfare that the ads of each segment bring.

    The welfare of all segments of a column adds up to the whole. Intervals are simultaneous over the segments of a
    column (Bonferroni).
    """
    models = dict.fromkeys(model for pair in pairs for model in pair)
    metrics = {model: _metrics(ads.ctr[model], ads, rules) for model in models} if by else {}
    found = []
    for column in by if pairs else ():
        ids, labels = ads.groups[_BY + column], ads.labels[_BY + column]
        counts = np.bincount(ids)
        largest = np.lexsort((np.array(labels), -counts))[:_SEGMENTS]  # of equals by name, not by row
        level = 1 - (1 - LEVEL) / len(largest)
        for segment in largest.tolist():
            mine = ids == segment
            welfare = {model: each.of_segment(mine) for model, each in metrics.items()}
            for each in compared(welfare, pairs, level=level, metrics=("welfare",)):
                each = replace(each, decisive_auctions=None)  # of all ads, not of these
                clicks = int(ads.clicks[mine].sum())
                found.append(Segment(column, labels[segment], int(counts[segment]), clicks, each))
    return tuple(found)
