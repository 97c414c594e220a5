"""`evaluate`: which of several models makes the auction better, and how sure is that? Tables in, a verdict out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bidwise.auctions import slot_multipliers
from bidwise.auctions.columns import Floats
from bidwise.checks import InputError, check_name, check_seed, check_whole
from bidwise.data.ad_table import AdTable, read_ads
from bidwise.data.read_table import Table, same_place, table_name, written_as
from bidwise.evaluation.calibration import CALIBRATORS, calibrator, cross_fitted
from bidwise.evaluation.comparison import Comparison, Units, compared, concentration, effective, pairs_of
from bidwise.evaluation.intervals import LEVEL, difference_to_average, effective_units, unit_interval
from bidwise.evaluation.metrics import Metrics, ModelMetrics, ToAverage
from bidwise.evaluation.pooled import check_closed_form
from bidwise.evaluation.result import (
    ClippedBids,
    Evaluation,
    EvaluationOptions,
    Exploration,
    Segment,
    check_folder,
)

ADS_AT_ONCE = 2**20
SEGMENTS = 50  # of a column, those with the most ads
BY = "by "  # before the name of a column of segments, which may be "pool"
Progress = Callable[[str, float], None]  # what is being done, and the share that is done
Columns = str | Sequence[str]


def evaluate(
    table: Table,
    *,
    ctr: Columns,
    click: str,
    bid: str | float,
    auction: Columns | None = None,
    auction_size: int | None = None,
    pool_by: Columns = (),
    cluster: Columns = (),
    by: Columns = (),
    seed: int = 0,
    truth: str | None = None,
    baseline: str | None = None,
    slots: Sequence[float] = (1.0,),
    pricing: str = "gsp",
    reserve: float = 0.0,
    squash: float = 1.0,
    calibrate: str = "none",
    calibration_table: Table | None = None,
    position: str | None = None,
    propensity: str | None = None,
    sampling_rate: float | None = None,
    weight: str | None = None,
    clip_bids: float | None = None,
    separator: str | None = None,
    header: bool = True,
    rounds: int = 999,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Welfare, revenue, AUC and calibration of several models' predictions, compared on the same ads.

    Args:
        table: Parquet, CSV or TSV file or URL, polars or pandas frame, or mapping of columns; one row per logged ad.
        ctr: the columns of predicted CTR, one per model.
        click, bid: columns of clicks (0 or 1) and cost-per-click bids; a number is the bid of all ads.
        auction: column, or columns, that say which ads compete. Without one:
        auction_size: all auctions of this many ads that could be drawn (:func:`bidwise.pooled_welfare`).
        pool_by: columns inside whose values auctions are drawn, with ``auction_size``.
        cluster: columns whose values share their luck (an advertiser, a day): intervals draw clusters anew.
        by: columns in each of whose values the models are compared.
        seed: of the folds of ``calibrate``, and of the bootstrap over real auctions.
        truth: column of true CTR, where it is known: welfare and revenue are then expected, not realised.
        baseline: the model that the others are compared with; the first of ``ctr`` by default.
        slots, pricing, reserve, squash: the auction, as in :func:`bidwise.run_auction`.
        calibrate: ``none``, ``platt``, ``isotonic`` or ``piecewise``; adds each model's calibrated twin, fitted on
            ``calibration_table`` or, without one, on the other auctions (ads) of ``table`` (5 folds).
        position: column of the slot an ad was logged in, from 1; a click in slot k then counts 1/alpha_k.
        propensity: column of the chance that the ad was shown, of exploration logs; a click then counts 1/propensity
            times, at most as often as the square root of the number of ads.
        sampling_rate: share of the negatives that the models were trained on; predictions are corrected for it.
        weight: column of weights of ads; an auction has the mean weight of its ads; with ``auction_size`` an ad
            competes as often as it weighs.
        clip_bids: quantile of the bids, such as 0.999; welfare with higher bids cut down to it is shown beside.
        separator: between columns of a text file, by its ending by default.
        header: whether its first line names the columns; without, they are column_1, column_2 and so on.
        rounds: of the bootstrap over real auctions.
        out: folder for ``result.json`` and ``report.html``.
        progress: called as ``progress("model_a", 0.4)`` during long work.

    >>> table = {"a": [0.5, 0.1] * 9, "b": [0.1, 0.5] * 9, "y": [1, 0] * 9, "bid": [1.0] * 18}
    >>> table["auction"] = [row // 2 for row in range(18)]
    >>> found = evaluate(table, ctr=["a", "b"], click="y", bid="bid", auction="auction")
    >>> found.models["a"].welfare, found.models["b"].welfare, found.comparisons[0].difference
    (1.0, 0.0, -1.0)
    """
    given = locals()
    asked = {field.name: given[field.name] for field in fields(EvaluationOptions)}
    models, auctions, pool_by, cluster, by = map(_names, (ctr, auction, pool_by, cluster, by))
    if not models:
        raise InputError("must name at least one column of predictions", argument="ctr")
    base = baseline or models[0]
    alpha = slot_multipliers(slots).numpy()
    lists = {"ctr": models, "auction": auctions, "pool_by": pool_by, "cluster": cluster, "by": by}
    asked |= {name: tuple(each) for name, each in lists.items()} | {"slots": tuple(map(float, slots))}
    asked |= {"table": _named(table), "calibration_table": _named(calibration_table)}
    rules: dict[str, Any] = {"slots": slots, "pricing": pricing, "reserve": reserve, "squash": squash}
    rules["size"] = auction_size
    Metrics(**rules)  # a wrong rule is refused before the table is read
    _check_auctions(auctions, auction_size, pool_by)
    _check_calibration(models, calibrate, table, calibration_table)
    _check_others(models, base, sampling_rate, clip_bids, rounds, seed, out)
    if auction_size is not None:
        check_closed_form(pricing, len(alpha), reserve=reserve, weighted=weight is not None)
    if truth is not None and propensity is not None:
        raise InputError("needs clicks: with {} welfare does not go by them", argument="propensity", others=["truth"])

    columns: dict[str, Any] = {"ctr": models, "click": click, "position": position, "weight": weight}
    columns["slots"] = len(alpha)
    keys = {name: each for name, each in (("pool", pool_by), ("cluster", cluster)) if each}
    keys |= {BY + column: [column] for column in by}
    table = written_as(table, separator, header)
    calibration_table = None if calibration_table is None else written_as(calibration_table, separator, header)
    ads = read_ads(table, bid=bid, auction=auctions or None, truth=truth, propensity=propensity, keys=keys, **columns)
    ads, pools_left_out = _large_pools(_corrected(ads, sampling_rate), auction_size)
    exploration = None
    if ads.propensity is not None:
        exploration, least = _exploration(ads.propensity, ads.clicks)
        ads = replace(ads, propensity=np.maximum(ads.propensity, least))
    other = None
    if calibrate != "none":
        if calibration_table is None and auctions and ads.auctions < 2:
            message = "needs a {} or at least 2 auctions to learn from each other, found 1"
            raise InputError(message, argument="calibrate", others=["calibration_table"])
        if calibration_table is not None:
            other = _corrected(read_ads(calibration_table, name="calibration_table", **columns), sampling_rate)
        ads = _with_twins(ads, other, calibrate, alpha, seed, bool(auctions), progress)
    twins = {model: model.removesuffix(f"+{calibrate}") for model in ads.ctr if model not in models}
    pairs = pairs_of(models, base, twins)
    settings: dict[str, Any] = {"rounds": rounds, "seed": seed}

    def compare(seen: Mapping[str, Units]) -> tuple[Comparison, ...]:
        show = None if progress is None else partial(progress, "intervals")
        return tuple(compared(seen, pairs, **settings, progress=show))

    units, numbers = {}, {}
    for model in ads.ctr:
        metrics = metrics_of(model, ads, rules, progress)
        numbers[model], units[model] = metrics.compute(), metrics.per_unit  # all that is kept of a model's ads
    del metrics
    comparisons = compare(units)
    if cluster and auction_size is not None:
        comparisons = _with_errors_over_ads(comparisons, ads, rules)
    optimum = None
    if ads.truth is not None:
        best = metrics_of("truth", replace(ads, ctr={"truth": ads.truth}), rules | {"squash": 1.0})
        optimum = best.compute().welfare
    clipped = None
    if clip_bids is not None:
        most = float(np.quantile(ads.bids, clip_bids))
        tame = replace(ads, bids=np.minimum(ads.bids, most))
        again = compare({model: metrics_of(model, tame, rules, progress).per_unit for model in ads.ctr})
        kept = tuple(replace(each, distribution=None) for each in again if each.metric in ("welfare", "revenue"))
        clipped = ClippedBids(clip_bids, most, int((ads.bids > most).sum()), kept)
    cluster_sizes = (
        np.unique(ads.groups["cluster"], return_counts=True)[1].astype(np.float64) if cluster else np.ones(1)
    )
    evaluation = Evaluation(
        models=_numbers(numbers, units, twins, optimum),
        comparisons=comparisons,
        auctions=ads.auctions if auctions else None,
        ads=ads.ads,
        pools=len(np.unique(ads.groups["pool"])) if pool_by else None,
        clusters=len(cluster_sizes) if cluster else None,
        effective_clusters=effective_units(cluster_sizes) if cluster else None,
        ads_left_out=ads.left_out,
        single_ads=int((np.diff(ads.offsets) == 1).sum()) if auctions else 0,
        pools_left_out=pools_left_out,
        baseline=base,
        welfare_of="clicks" if truth is None else "truth",
        optimal_welfare=optimum,
        bid_spread=float(np.log(ads.bids).std()),
        median_bid=float(np.median(ads.bids)),
        largest_bid=float(ads.bids.max()),
        concentration=concentration(units[base]),
        clipped_bids=clipped,
        exploration=exploration,
        segments=_segments(ads, by, [pair for pair in pairs if pair[1] == base and pair[0] in models], rules, settings),
        segments_left_out={
            column: many - SEGMENTS for column in by if (many := len(np.unique(ads.groups[BY + column]))) > SEGMENTS
        },
        scattered=ads.scattered,
        calibration_ads=None if other is None else other.ads,
        options=EvaluationOptions(**asked),
    )
    if out is not None:
        evaluation.write(out)
    return evaluation


def _names(columns: Columns | None) -> list[str]:
    return [] if columns is None else [columns] if isinstance(columns, str) else list(columns)


def _check_auctions(auction: list[str], auction_size: int | None, pool_by: list[str]) -> None:
    if (not auction) == (auction_size is None):
        raise InputError(
            "or {} must say which ads compete: the column that names the auction, or how many ads an auction has, to "
            f"measure all that could be drawn (the paper uses 256); found {'both' if auction else 'neither'}",
            argument="auction",
            others=["auction_size"],
        )
    if auction_size is not None:
        check_whole("auction_size", auction_size, 2)  # one ad competes with nobody
    if pool_by and auction_size is None:
        raise InputError("needs {}: real auctions are pools already", argument="pool_by", others=["auction_size"])


def _check_calibration(models: list[str], calibrate: str, table: Table, calibration_table: Table | None) -> None:
    check_name("calibrate", calibrate, ["none", *CALIBRATORS])
    if calibrate == "none" and calibration_table is not None:
        message = "needs {}: platt, isotonic or piecewise; found none"
        raise InputError(message, argument="calibration_table", others=["calibrate"])
    if same_place(calibration_table, table):
        raise InputError(
            "must not be the table itself: without one, auctions are calibrated by others", argument="calibration_table"
        )
    for model in models:
        if f"{model}+{calibrate}" in models:
            raise InputError(
                f"must not name {model}+{calibrate}, which is what the calibrated {model} is called", argument="ctr"
            )


def _named(table: Table | None) -> str | None:
    """What a table is called in a result; a frame has no name."""
    return table_name(table, "") or None


def _check_others(
    models: list[str],
    baseline: str,
    sampling_rate: float | None,
    clip_bids: float | None,
    rounds: int,
    seed: int,
    out: str | Path | None,
) -> None:
    if models and baseline not in models:
        raise InputError(
            f"must be one of the ctr columns, {', '.join(models)}, found {baseline!r}", argument="baseline"
        )
    if sampling_rate is not None and not 0 < sampling_rate <= 1:
        raise InputError(f"must be in (0, 1], found {sampling_rate}", argument="sampling_rate")
    if clip_bids is not None and not 0 < clip_bids < 1:
        raise InputError(f"must be a quantile between 0 and 1, such as 0.999, found {clip_bids}", argument="clip_bids")
    check_whole("rounds", rounds, 100)
    check_seed("seed", seed)
    if out is not None:
        check_folder(out)


def _corrected(ads: AdTable, rate: float | None) -> AdTable:
    """Predictions of models whose negatives were sampled: q = p / (p + (1 - p) / rate)."""
    if rate is None:
        return ads
    return replace(ads, ctr={model: p / (p + (1 - p) / rate) for model, p in ads.ctr.items()})


def _large_pools(ads: AdTable, size: int | None) -> tuple[AdTable, int]:
    """The ads of pools with more than ``size`` of them; the others are left out and counted."""
    if "pool" not in ads.groups:
        return ads, 0
    assert size is not None
    pools = ads.groups["pool"]
    sizes = np.bincount(pools, ads.weights)
    kept = np.flatnonzero(sizes[pools] > size)
    if not len(kept):
        largest = math.floor(sizes.max())
        message = f"must be below the size of some pool of {{}}: the largest has {largest:,} ads, found {size:,}"
        raise InputError(message, argument="auction_size", others=["pool_by"])
    if len(kept) < ads.ads:
        ads = ads.rows(kept, np.array([0, len(kept)]), left_out=ads.ads - len(kept))
    return ads, int(((sizes > 0) & (sizes <= size)).sum())


def _exploration(propensity: Floats, clicks: Floats) -> tuple[Exploration, float]:
    """What clicks weighted by 1 / propensity are worth together, and the least propensity that is believed."""
    least = 1 / math.sqrt(len(propensity))
    clipped = int(((propensity < least) & (clicks > 0)).sum())
    return Exploration(clipped, 1 / least, effective(clicks / np.maximum(propensity, least))), least


def _exposure(ads: AdTable, alpha: Floats) -> Floats | None:
    return None if ads.position is None else alpha[ads.position - 1]


def _with_twins(
    ads: AdTable, other: AdTable | None, kind: str, alpha: Floats, seed: int, real: bool, progress: Progress | None
) -> AdTable:
    """Every model together with its calibrated twin, ``model+kind``, fitted on ``other`` or on the other auctions, or
    ads where auctions are not ``real``: none is calibrated by its own click."""

    def labels(of: AdTable) -> Floats:
        exposure = _exposure(of, alpha)
        return of.clicks if exposure is None else of.clicks / exposure

    offsets = ads.offsets if real else np.arange(ads.ads + 1)
    twins = {}
    for model, ctr in ads.ctr.items():
        if other is None:
            twin = cross_fitted(kind, ctr, labels(ads), offsets, weights=ads.weights, seed=seed)
        else:
            twin = calibrator(kind, other.ctr[model], labels(other), weights=other.weights)(ctr)
        twins[f"{model}+{kind}"] = twin
        if progress is not None:
            progress("calibration", len(twins) / len(ads.ctr))
    return replace(ads, ctr=ads.ctr | twins)


def metrics_of(model: str, ads: AdTable, rules: dict[str, Any], progress: Progress | None = None) -> Metrics:
    """One model's predictions in the auctions of a table, some auctions at a time, or in all that could be drawn."""
    seen = Metrics(**rules)
    exposure = _exposure(ads, slot_multipliers(rules["slots"]).numpy())
    bounds = ads.offsets
    cuts = np.unique(np.searchsorted(bounds, np.arange(0, ads.ads, ADS_AT_ONCE)))
    if seen.size is not None:
        cuts = cuts[:1]
    per_ad = {
        "truth": ads.truth,
        "exposure": exposure,
        "propensity": ads.propensity,
        "weights": ads.weights,
        "clusters": ads.groups.get("cluster"),
        "pools": ads.groups.get("pool"),
    }
    for first, last in zip(cuts, [*cuts[1:], ads.auctions], strict=True):
        rows = slice(bounds[first], bounds[last])
        seen.update(
            ads.ctr[model][rows],
            ads.clicks[rows],
            ads.bids[rows],
            bounds[first : last + 1] - bounds[first] if seen.size is None else None,
            **{name: None if column is None else column[rows] for name, column in per_ad.items()},
        )
        if progress is not None:
            progress(model, float(bounds[last] / ads.ads))
    return seen


def _with_errors_over_ads(
    comparisons: tuple[Comparison, ...], ads: AdTable, rules: dict[str, Any]
) -> tuple[Comparison, ...]:
    """Welfare's comparisons with the standard error that they would have if ads were independent."""
    alone = replace(ads, groups={name: ids for name, ids in ads.groups.items() if name != "cluster"})
    values = {model: metrics_of(model, alone, rules).per_unit for model in ads.ctr}
    return tuple(
        replace(each, error_over_ads=_error(values[each.model], values[each.baseline]))
        if each.metric == "welfare"
        else each
        for each in comparisons
    )


def _error(mine: Units, base: Units) -> float:
    weights = base["weight"]
    return unit_interval((mine["welfare"] - base["welfare"]) * weights, weights).standard_error


def _segments(
    ads: AdTable, by: list[str], pairs: list[tuple[str, str]], rules: dict[str, Any], settings: dict[str, Any]
) -> tuple[Segment, ...]:
    """The models compared by the welfare that the ads of each segment bring.

    The welfare of all segments of a column adds up to the whole. Intervals are simultaneous over the segments of a
    column (Bonferroni).
    """
    models = dict.fromkeys(model for pair in pairs for model in pair)
    metrics = {model: metrics_of(model, ads, rules) for model in models} if by and pairs else {}
    found = []
    for column in by if metrics else ():
        ids, labels = ads.groups[BY + column], ads.labels[BY + column]
        counts = np.bincount(ids)
        largest = np.lexsort((np.array(labels), -counts))[:SEGMENTS]  # of equals by name, not by row
        for segment in largest.tolist():
            mine = ids == segment
            welfare = {model: each.of_segment(mine) for model, each in metrics.items()}
            level = 1 - (1 - LEVEL) / len(largest)
            for each in compared(welfare, pairs, level=level, **settings, metrics=("welfare",)):
                name, clicks = labels[segment], int(ads.clicks[mine].sum())
                each = replace(each, distribution=None, decisive_auctions=None)  # of all ads, not of these
                found.append(Segment(column, name, int(counts[segment]), clicks, each))
    return tuple(found)


def _numbers(
    numbers: Mapping[str, ModelMetrics], units: Mapping[str, Units], twins: dict[str, str], optimum: float | None
) -> dict[str, ModelMetrics]:
    """The numbers of every model: its metrics, and what only the others or the truth can tell."""
    originals = [model for model in numbers if model not in twins]
    weights = units[originals[0]]["weight"]
    shares = [units[model]["welfare"] * (weights / weights.mean()) for model in originals]
    to_average = {
        model: ToAverage(welfare=float(mean), standard_error=float(error))
        for model, mean, error in zip(originals, *difference_to_average(shares), strict=True)
    }
    return {
        model: replace(
            each,
            calibrated_from=twins.get(model),
            regret=None if optimum is None else optimum - each.welfare,
            share_of_optimum=None if optimum is None else each.welfare / optimum if optimum else math.nan,
            difference_to_average=to_average.get(model),
        )
        for model, each in numbers.items()
    }
