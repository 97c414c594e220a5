"""Columns that know too much: those that tell the clicks alone, those named like a placement, and copied rows."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.data.blocks import chunks
from bidwise.data.counting import count_ids
from bidwise.data.encoding import KINDS, Column, Encoder
from bidwise.data.store import StoreWriter
from bidwise.evaluation.auc import auc
from bidwise.models.bags import shares

LEAK = 0.95  # AUC of a single column, beyond what one learns of ads
TELLS = 0.99  # AUC of a single column that cannot but come from the click itself
CHANCE = 1e6  # orders of held-out ads, of which one is perfect: with fewer a column may be right by chance
PLACEMENT = re.compile(r"(?:^|[\W\d_])(?i:pos|position|rank|ranking|slot|placement)(?:$|[\W\d_])")
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def found_leaks(store: StoreWriter, encoder: Encoder, step: int) -> dict[str, float]:
    """Columns that predict the click all by themselves, often known only afterwards, with their AUC.

    A value's click rate is that of training rows, a bag's the mean over its values; the AUC is that of validation rows,
    one in ``step`` of them.
    """
    clicks = store.written("train", "clicks")
    # ads and clicks of every value; of a bag's, shares of them
    tables = [np.zeros((2, field.values), np.float64 if field.slots > 1 else np.uint32) for field in encoder.fields]
    for part in chunks(0, len(clicks)):
        features, clicked = store.written("train", "features")[part], clicks[part].astype(np.uint32)
        for at, table in zip(encoder.spans, tables, strict=True):
            ids = features[:, at]
            counts: tuple[Any, Any] = None, clicked
            if ids.shape[1] > 1:
                share = _shares(ids)
                counts = share.ravel(), (share * clicked[:, None]).ravel()
            for totals, each in zip(table, counts, strict=True):
                count_ids(totals, ids.ravel(), each)
    mean = int(clicks.sum(dtype=np.int64)) / len(clicks)
    new, held_out = (store.written("valid", name)[::step] for name in ("features", "clicks"))
    leaks = {}
    for at, field, table in zip(encoder.spans, encoder.fields, tables, strict=True):
        count, clicked = table[:, new[:, at]].astype(np.float64)
        rates = (clicked + mean) / (count + 1) * _shares(new[:, at])
        area = auc(rates.sum(1), held_out.astype(np.float64))
        if area > LEAK:
            leaks[field.name] = float(area)
    return leaks


def _shares(ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """What each slot of a field counts; all of one that is no bag."""
    return np.ones(ids.shape) if ids.shape[1] == 1 else shares(torch.tensor(ids), torch.float64).numpy()


def stop_at_leaks(leaks: Mapping[str, float], keep: Collection[str], held_out: NDArray[Any], folder: Path) -> None:
    """Raise where a column tells the clicks and may not be kept; ``folder`` then has no configuration to resume.

    Of n held-out ads with k clicks, chance orders one column in n! / (k! (n - k)!) perfectly: where that is not rare
    enough the leak is said, and training goes on.
    """
    telling = [name for name, area in leaks.items() if area > TELLS and name not in keep]
    if not telling or _orders(len(held_out), int((held_out > 0).sum())) < CHANCE:
        return
    (folder / "config.toml").unlink(missing_ok=True)
    first, many = telling[0], f" and {len(telling) - 1} more" if len(telling) > 1 else ""
    raise InputError(
        f"must name {first!r}{many} for training to go on: the column alone tells the clicks of held-out rows, AUC "
        f"{leaks[first]:.4f}. What is only known after the click must be left out (--ignore {first}); if it is known "
        f"before, --keep {first}",
        argument="keep",
    )


def _orders(ads: int, clicks: int) -> float:
    """In how many ways so many ads can have so many clicks, by logarithms: there may be millions of ads."""
    log = math.lgamma(ads + 1) - math.lgamma(clicks + 1) - math.lgamma(ads - clicks + 1)
    return math.exp(min(log, 700.0))


def placements(columns: Iterable[Column]) -> list[str]:
    """Features that are named like the place where an ad was shown.

    >>> names = ["adPosition", "slot_2", "rank", "composition", "positive"]
    >>> placements(Column(name, "numeric", 9, 0.0, "") for name in names)
    ['adPosition', 'slot_2', 'rank']
    """
    features = (column.name for column in columns if column.use in KINDS)
    return [name for name in features if PLACEMENT.search(CAMEL.sub("_", name))]


def row_hashes(frame: pl.DataFrame, share: float) -> NDArray[np.uint64]:
    """Of a ``share`` of the rows a hash of all columns: copies are in it together, or none of them is."""
    plain = frame.select(name for name, dtype in frame.schema.items() if dtype != pl.Object)
    hashes = plain.hash_rows(seed=0).to_numpy() if plain.width else np.arange(len(frame), dtype=np.uint64)
    return hashes if share == 1 else hashes[hashes < np.uint64(share * 2.0**64)]


def duplicated_rows(hashes: NDArray[np.uint64], share: float) -> int:
    """Rows that are the same as an earlier one in all columns; from a ``share`` of them, about so many.

    >>> duplicated_rows(row_hashes(pl.DataFrame({"a": [1, 1, 2, 1], "b": ["x", "x", "x", "y"]}), 1.0), 1.0)
    1
    """
    return round((len(hashes) - len(np.unique(hashes))) / share)
