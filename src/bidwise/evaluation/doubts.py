"""Doubts about an evaluation: copied rows, few clicks, models too good to be true, other units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from bidwise.checks import look_like_ctr
from bidwise.data.ad_table import AdTable
from bidwise.evaluation.metrics import ModelMetrics

_FEW = 100  # clicks, below which a metric of a model is hardly more than chance
TOO_GOOD = 0.99  # AUC of clicks
UNITS = {100: "per cent", 1_000: "per mille", 1_000_000: "per million"}  # of predictions that are too large
_NEAR = 1.5  # how far a model may be off when its units are guessed, and the weights of clicked and other ads
COPIES = 0.9  # share of rows with the same bid and predictions as a clicked one that are clicked too, if logged twice


@dataclass(frozen=True)
class Doubt:
    """A reason to check the table before the verdict is believed; ``kind`` has its sentence on the page."""

    kind: str
    model: str = ""
    other: str = ""  # another model, or a unit
    count: int = 0
    value: float = math.nan


def doubts_of(ads: AdTable, models: Mapping[str, ModelMetrics]) -> Iterator[Doubt]:
    """Every doubt about a table and the models that came with it."""
    clicks = int(np.count_nonzero(ads.clicks))
    if clicks < _FEW:
        yield Doubt("few_clicks", count=clicks)
    if copies := _copies(ads):
        yield Doubt("copies", count=copies)
    if ads.weights is not None and ads.auctions > 1 and 0 < clicks < ads.ads:
        ratio = float(ads.weights[ads.clicks == 0].mean() / ads.weights[ads.clicks > 0].mean())
        if ratio > _NEAR:
            yield Doubt("sampled", value=ratio)
    if ads.truth is not None and np.array_equal(ads.truth, ads.clicks):
        yield Doubt("truth_is_click")
    elif ads.truth is not None and ads.position is None:
        ratio = float(
            np.average(ads.truth, weights=ads.weights) / max(np.average(ads.clicks, weights=ads.weights), 1e-9)
        )
        if _off(ratio, clicks):
            yield Doubt("truth_off", value=ratio)
    seen: dict[bytes, str] = {}
    for model, metrics in models.items():
        ctr, ratio = ads.ctr[model], metrics.predicted_over_observed
        if metrics.auc > TOO_GOOD:
            yield Doubt("too_good", model, value=metrics.auc)
        if ctr.min() == ctr.max():
            yield Doubt("equal_bids" if ads.bids.min() == ads.bids.max() else "constant", model, value=float(ctr[0]))
        elif (same := seen.setdefault(ctr.tobytes(), model)) != model:
            yield Doubt("same", model, same)
        unit = next((words for factor, words in UNITS.items() if factor / _NEAR < ratio < factor * _NEAR), "")
        if unit:
            yield Doubt("units", model, unit, value=ratio)
        elif ctr.min() >= 0.5 and look_like_ctr(torch.logit(torch.from_numpy(ctr)), torch.from_numpy(ads.clicks)):
            yield Doubt("sigmoid_twice", model)
        elif _off(ratio, clicks):
            yield Doubt("off", model, value=ratio)


def _off(ratio: float, clicks: int) -> bool:
    """Whether so many times the observed clicks are far off, and not by chance."""
    return not 0.5 <= ratio <= 2 and abs(ratio - 1) * clicks > 4 * math.sqrt(max(ratio, 1) * clicks)


def _copies(ads: AdTable) -> int:
    """Rows that equal an earlier one of their auction in bid and predictions, if clicks came twice too.

    Equal predictions are usual if they are coarse, but then one is clicked and the other is not.
    """
    auction = np.repeat(np.arange(ads.auctions), np.diff(ads.offsets))
    columns = {str(at): column for at, column in enumerate((auction, ads.bids, *ads.ctr.values()))}
    hashes = np.asarray(pl.DataFrame(columns).hash_rows().to_numpy())
    ranked = np.sort(hashes)
    twice = ranked[1:][ranked[1:] == ranked[:-1]]
    if not len(twice):
        return 0
    some = np.isin(hashes, twice)
    rows = pl.DataFrame({name: column[some] for name, column in columns.items()} | {"click": ads.clicks[some] > 0})
    groups = rows.group_by(list(columns)).agg(pl.len().alias("rows"), pl.col("click").sum().alias("clicks"))
    clicked = groups.filter((pl.col("rows") > 1) & (pl.col("clicks") > 0))
    together = int(clicked["clicks"].sum()) >= COPIES * max(int(clicked["rows"].sum()), 1)
    return len(rows) - len(groups) if together and not ads.clicks.all() else 0
