"""`evaluate`: which of several models makes the auction better, and how sure is that? Tables in, a verdict out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bidwise.auctions import slot_multipliers, welfare
from bidwise.auctions.columns import Floats
from bidwise.checks import InputError, check_name, check_seed, check_whole
from bidwise.data.ad_table import AdTable, cut_auctions, read_ads
from bidwise.data.locations import same_place, written_as
from bidwise.data.read_table import Table, table_name
from bidwise.evaluation.calibration import CALIBRATORS, calibrator, cross_fitted
from bidwise.evaluation.comparison import compared, pairs_of
from bidwise.evaluation.intervals import difference_to_average
from bidwise.evaluation.metrics import Metrics, ModelMetrics, ToAverage
from bidwise.evaluation.result import Evaluation, EvaluationOptions, check_folder

ADS_AT_ONCE = 2**20
Progress = Callable[[str, float], None]  # what is being done, and the share that is done


def evaluate(
    table: Table,
    *,
    ctr: str | Sequence[str],
    click: str,
    bid: str | float,
    auction: str | Sequence[str] | None = None,
    auction_size: int | None = None,
    seed: int = 0,
    resample: int = 1,
    truth: str | None = None,
    baseline: str | None = None,
    slots: Sequence[float] = (1.0,),
    pricing: str = "gsp",
    reserve: float = 0.0,
    squash: float = 1.0,
    calibrate: str = "none",
    calibration_table: Table | None = None,
    position: str | None = None,
    sampling_rate: float | None = None,
    weight: str | None = None,
    propensity: str | None = None,
    separator: str | None = None,
    header: bool = True,
    rounds: int = 999,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Welfare, revenue, AUC and calibration of several models' predictions, compared auction by auction.

    Args:
        table: Parquet, CSV or TSV file or URL, polars or pandas frame, or mapping of columns; one row per logged ad.
        ctr: the columns of predicted CTR, one per model.
        click, bid: columns of clicks (0 or 1) and cost-per-click bids; ``bid=1.0`` where there are none.
        auction: column, or several, that says which ads compete. Without one:
        auction_size: shuffles the ads (``seed``) and cuts them into auctions of this many, ``resample`` times.
        truth: column of true CTR, where it is known: welfare and revenue are then expected, not realised.
        baseline: the model that the others are compared with; the first of ``ctr`` by default.
        slots, pricing, reserve, squash: the auction, as in :func:`bidwise.run_auction`.
        calibrate: ``none``, ``platt``, ``isotonic`` or ``piecewise``; adds each model's calibrated twin, fitted on
            ``calibration_table`` or, without one, on the other auctions of ``table`` (5 folds).
        position: column of the slot an ad was logged in, from 1; a click in slot k then counts 1/alpha_k.
        sampling_rate: share of the negatives that the models were trained on; predictions are corrected for it.
        weight: column of weights of ads; an auction has the mean weight of its ads.
        propensity: column of the probability with which the log chose the ad.
        separator: between columns of a text file, by its ending by default.
        header: whether its first line names the columns; without, they are column_1, column_2 and so on.
        rounds: of the bootstrap behind the intervals.
        out: folder for ``result.json`` and ``report.html``.
        progress: called as ``progress("model_a", 0.4)`` during long work.

    >>> table = {"a": [0.5, 0.1] * 9, "b": [0.1, 0.5] * 9, "y": [1, 0] * 9, "bid": [1.0] * 18}
    >>> table["auction"] = [row // 2 for row in range(18)]
    >>> found = evaluate(table, ctr=["a", "b"], click="y", bid="bid", auction="auction")
    >>> found.models["a"].welfare, found.models["b"].welfare, found.comparisons[0].difference
    (1.0, 0.0, -1.0)
    """
    models = [ctr] if isinstance(ctr, str) else list(ctr)
    if not models:
        raise InputError("must name at least one column of predictions", argument="ctr")
    base = baseline or models[0]
    alpha = slot_multipliers(slots).numpy()
    rules: dict[str, Any] = {"slots": slots, "pricing": pricing, "reserve": reserve, "squash": squash}
    Metrics(**rules)  # a wrong rule is refused before the table is read
    _check_auctions(auction, auction_size, resample)
    _check_calibration(models, calibrate, table, calibration_table)
    _check_others(models, base, sampling_rate, rounds, seed, out)

    columns: dict[str, Any] = {"ctr": models, "click": click, "position": position, "weight": weight}
    columns |= {"propensity": propensity, "slots": len(alpha)}
    table = written_as(table, separator, header)
    calibration_table = None if calibration_table is None else written_as(calibration_table, separator, header)
    ads = _corrected(read_ads(table, bid=bid, auction=auction, truth=truth, **columns), sampling_rate)
    if auction_size is not None:
        ads = cut_auctions(ads, auction_size, seed=seed, cuts=resample)
    other = None
    if calibrate != "none":
        if calibration_table is None and ads.auctions < 2 * resample:
            message = "needs a {} or at least 2 auctions to learn from each other, found 1"
            raise InputError(message, argument="calibrate", others=["calibration_table"])
        if calibration_table is not None:
            other = _corrected(read_ads(calibration_table, name="calibration_table", **columns), sampling_rate)
        ads = _with_twins(ads, other, calibrate, alpha, seed, resample, progress)
    metrics = {model: metrics_of(model, ads, rules, progress) for model in ads.ctr}
    optimum = None
    if ads.truth is not None:
        best = welfare(ads.truth, ads.truth, ads.bids, ads.offsets, slots=slots, reserve=reserve).numpy()
        optimum = float(np.average(best, weights=metrics[models[0]].per_auction["weight"]))
    twins = {model: model.removesuffix(f"+{calibrate}") for model in ads.ctr if model not in models}
    comparisons = compared(
        {model: seen.per_auction for model, seen in metrics.items()},
        pairs_of(models, base, twins),
        rounds=rounds,
        seed=seed,
        cuts=resample,
        progress=None if progress is None else partial(progress, "intervals"),
    )
    evaluation = Evaluation(
        models=_numbers(metrics, twins, optimum, resample),
        comparisons=tuple(comparisons),
        auctions=ads.auctions // resample,
        ads=ads.ads // resample,
        cuts=resample,
        ads_left_out=ads.left_out,
        baseline=base,
        welfare_of="clicks" if truth is None else "truth",
        optimal_welfare=optimum,
        bid_spread=float(np.log(ads.bids).std()),
        scattered=ads.scattered,
        calibration_ads=None if other is None else other.ads,
        options=EvaluationOptions(
            table=_named(table),
            ctr=tuple(models),
            click=click,
            bid=str(bid),
            auction=auction if auction is None or isinstance(auction, str) else ", ".join(auction),
            auction_size=auction_size,
            seed=seed,
            resample=resample,
            truth=truth,
            baseline=baseline,
            slots=tuple(map(float, slots)),
            pricing=pricing,
            reserve=reserve,
            squash=squash,
            calibrate=calibrate,
            calibration_table=_named(calibration_table),
            position=position,
            sampling_rate=sampling_rate,
            weight=weight,
            propensity=propensity,
            separator=separator,
            header=header,
            rounds=rounds,
        ),
    )
    if out is not None:
        evaluation.write(out)
    return evaluation


def _check_auctions(auction: str | Sequence[str] | None, auction_size: int | None, resample: int) -> None:
    if (auction is None) == (auction_size is None):
        raise InputError(
            "or {} must say which ads compete: the column that names the auction, or a size to cut the ads at random "
            f"(the paper uses 256); found {'neither' if auction is None else 'both'}",
            argument="auction",
            others=["auction_size"],
        )
    check_whole("resample", resample, 1)
    if auction_size is None and resample != 1:
        message = f"needs {{}}: real auctions are not cut again; found {resample}"
        raise InputError(message, argument="resample", others=["auction_size"])


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
    models: list[str], baseline: str, sampling_rate: float | None, rounds: int, seed: int, out: str | Path | None
) -> None:
    if models and baseline not in models:
        raise InputError(
            f"must be one of the ctr columns, {', '.join(models)}, found {baseline!r}", argument="baseline"
        )
    if sampling_rate is not None and not 0 < sampling_rate <= 1:
        raise InputError(f"must be in (0, 1], found {sampling_rate}", argument="sampling_rate")
    check_whole("rounds", rounds, 100)
    check_seed("seed", seed)
    if out is not None:
        check_folder(out)


def _corrected(ads: AdTable, rate: float | None) -> AdTable:
    """Predictions of models whose negatives were sampled: q = p / (p + (1 - p) / rate)."""
    if rate is None:
        return ads
    return replace(ads, ctr={model: p / (p + (1 - p) / rate) for model, p in ads.ctr.items()})


def _exposure(ads: AdTable, alpha: Floats) -> Floats | None:
    return None if ads.position is None else alpha[ads.position - 1]


def _with_twins(
    ads: AdTable, other: AdTable | None, kind: str, alpha: Floats, seed: int, cuts: int, progress: Progress | None
) -> AdTable:
    """Every model together with its calibrated twin, ``model+kind``, fitted on ``other`` or on the other auctions.

    An ad is in each cut once, so folds are made inside a cut: none is calibrated by its own click.
    """

    def labels(of: AdTable) -> Floats:
        exposure = _exposure(of, alpha)
        return of.clicks if exposure is None else of.clicks / exposure

    def from_other_auctions(ctr: Floats) -> Floats:
        size, auctions = ads.ads // cuts, ads.auctions // cuts
        parts = []
        for cut in range(cuts):
            rows = slice(cut * size, (cut + 1) * size)
            offsets = ads.offsets[cut * auctions : (cut + 1) * auctions + 1] - cut * size
            weights = None if ads.weights is None else ads.weights[rows]
            parts.append(cross_fitted(kind, ctr[rows], labels(ads)[rows], offsets, weights=weights, seed=seed))
        return np.concatenate(parts)

    twins = {}
    for model, ctr in ads.ctr.items():
        if other is None:
            twins[f"{model}+{kind}"] = from_other_auctions(ctr)
        else:
            fitted = calibrator(kind, other.ctr[model], labels(other), weights=other.weights)
            twins[f"{model}+{kind}"] = fitted(ctr)
        if progress is not None:
            progress("calibration", len(twins) / len(ads.ctr))
    return replace(ads, ctr=ads.ctr | twins)


def metrics_of(model: str, ads: AdTable, rules: dict[str, Any], progress: Progress | None = None) -> Metrics:
    """One model's predictions in the auctions of a table, some auctions at a time."""
    seen = Metrics(**rules)
    exposure = _exposure(ads, slot_multipliers(rules["slots"]).numpy())
    bounds = ads.offsets
    cuts = np.unique(np.searchsorted(bounds, np.arange(0, ads.ads, ADS_AT_ONCE)))
    for first, last in zip(cuts, [*cuts[1:], ads.auctions], strict=True):
        rows = slice(bounds[first], bounds[last])
        seen.update(
            ads.ctr[model][rows],
            ads.clicks[rows],
            ads.bids[rows],
            bounds[first : last + 1] - bounds[first],
            truth=None if ads.truth is None else ads.truth[rows],
            exposure=None if exposure is None else exposure[rows],
            weights=None if ads.weights is None else ads.weights[rows],
        )
        if progress is not None:
            progress(model, float(bounds[last] / ads.ads))
    return seen


def _numbers(
    metrics: dict[str, Metrics], twins: dict[str, str], optimum: float | None, cuts: int
) -> dict[str, ModelMetrics]:
    """The numbers of every model: its metrics, and what only the others or the truth can tell."""
    originals = [model for model in metrics if model not in twins]
    weights = metrics[originals[0]].per_auction["weight"]
    shares = [metrics[model].per_auction["welfare"] * weights / weights.mean() for model in originals]
    to_average = {
        model: ToAverage(welfare=float(mean), standard_error=float(error) * math.sqrt(cuts))
        for model, mean, error in zip(originals, *difference_to_average(shares), strict=True)
    }
    found = {}
    for model, seen in metrics.items():
        numbers = seen.compute()
        found[model] = replace(  # ads are counted once, however often they were cut
            numbers,
            **{name: getattr(numbers, name) // cuts for name in ("ads", "auctions", "clicks", "clipped")},
            by_bid=tuple(replace(part, ads=part.ads // cuts) for part in numbers.by_bid),
            calibration_curve=tuple(replace(part, ads=part.ads // cuts) for part in numbers.calibration_curve),
            calibrated_from=twins.get(model),
            regret=None if optimum is None else optimum - numbers.welfare,
            share_of_optimum=None if optimum is None else numbers.welfare / optimum if optimum else math.nan,
            difference_to_average=to_average.get(model),
        )
    return found
