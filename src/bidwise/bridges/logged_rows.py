"""Rows of a user's frame with their other columns, checked: clicks, bids, auctions, weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.data.ad_table import auction_ids
from bidwise.data.ads import Ads
from bidwise.data.columns import Encoder
from bidwise.data.groups import offsets
from bidwise.data.table_files import open_table
from bidwise.table.prepare import CAP
from bidwise.values import Floats

LEAST = 10  # clicks, and other ads, that validation rows need


@dataclass(frozen=True)
class LoggedRows:
    """The columns of every row."""

    frame: pl.DataFrame
    clicks: Floats
    bids: Floats
    auctions: NDArray[np.int64] | None
    weights: Floats | None

    def split(self, rows: NDArray[Any], share: float, seed: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Rows to train on and to validate by, whole auctions; no validation rows if they would be too few."""
        groups = rows if self.auctions is None else self.auctions[rows]
        order = np.argsort(groups, kind="stable")
        rows, which = rows[order], np.unique(groups)
        some = np.random.default_rng(seed).permutation(which)[: round(share * len(which))]
        held_out = np.isin(groups[order], some)
        clicks, left = self.clicks[rows[held_out]], self.clicks[rows[~held_out]]
        if min(clicks.sum(), (1 - clicks).sum()) < LEAST or not 0 < left.sum() < len(left):
            return rows, None
        return rows[~held_out], rows[held_out]

    def ads(self, encoder: Encoder, rows: NDArray[Any]) -> Ads:
        """Some rows, with the rows of an auction adjacent."""
        more = {} if self.weights is None else {"weights": self.weights[rows]}
        features = torch.from_numpy(encoder.encode(self.frame[rows]).ids)
        bounds = None if self.auctions is None else offsets(self.auctions[rows])
        return Ads.of(features, self.clicks[rows], self.bids[rows], offsets=bounds, **more)


def with_parts_of_dates(frame: pl.DataFrame) -> pl.DataFrame:
    """Dates as their repeating parts, the day of the week and the hour; durations in seconds."""
    columns: list[pl.Series] = []
    for column in frame:
        name, dtype = column.name, column.dtype
        if dtype == pl.Duration:
            columns.append(column.dt.total_microseconds() / 1e6)
        elif dtype.is_temporal():
            columns += [column.dt.weekday().alias(f"{name} weekday")] if dtype != pl.Time else []
            columns += [column.dt.hour().alias(f"{name} hour")] if dtype != pl.Date else []
        else:
            columns.append(column)
    return pl.DataFrame(columns)


def bids_of(bid: Any, rows: int) -> Floats:
    """In units of their mean and with the cap of ``bidwise train``, so that learning rates suit all currencies."""
    bids = np.ones(rows) if bid is None else np.array(bid, dtype=np.float64)
    if bids.shape != (rows,):
        raise InputError(f"must be one number for each of the {rows:,} rows, found shape {bids.shape}", argument="bid")
    if not (np.isfinite(bids) & (bids > 0)).all():
        row = int(np.argmin(np.isfinite(bids) & (bids > 0)))
        raise InputError(f"must be finite and above 0, found {bids[row]:g} at row {row}", argument="bid")
    bids = np.minimum(bids, CAP * np.median(bids))
    return np.asarray(bids / bids.mean())


def auctions_of(auction: Any, rows: int) -> NDArray[np.int64] | None:
    """The auction of every row by number; of a frame all columns name it."""
    if auction is None:
        return None
    source = open_table(auction if hasattr(auction, "columns") else {"auction": auction}, name="auction")
    with source.located():
        ids = auction_ids(source.frame())
    if len(ids) != rows:
        raise InputError(f"must have an id for each of the {rows:,} rows, found {len(ids):,}", argument="auction")
    return ids
