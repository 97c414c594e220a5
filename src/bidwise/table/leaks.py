"""Columns that know too much: those that tell the clicks alone, those named like a placement, and copied rows."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
import polars as pl

from bidwise.auctions.columns import Floats
from bidwise.checks import InputError
from bidwise.data.encoding import Column, Encoder
from bidwise.data.store import StoreWriter
from bidwise.evaluation.auc import auc

LEAK = 0.95  # AUC of a single column, beyond what one learns of ads
TELLS = 0.99  # AUC of a single column that cannot but come from the click itself
CHANCE = 1e6  # orders of held-out ads, of which one is perfect: with fewer a column may be right by chance
PLACEMENT = re.compile(r"(?:^|[\W\d_])(?i:pos|position|rank|ranking|slot|placement)(?:$|[\W\d_])")
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def found_leaks(store: StoreWriter, encoder: Encoder, clicked: Floats, held_out: Floats) -> dict[str, float]:
    """Columns that predict the click all by themselves, often known only afterwards, with their AUC.

    A value's click rate is that of training rows; the AUC is that of validation rows.
    """
    seen, new = (store.written(name, "features") for name in ("train", "valid"))
    leaks = {}
    for at, field in enumerate(encoder.fields):
        count, clicks = (np.bincount(seen[:, at], w, field.values) for w in (None, clicked))
        rate = (clicks + clicked.mean()) / (count + 1)
        area = auc(rate[new[:, at]], held_out)
        if area > LEAK:
            leaks[field.name] = float(area)
    return leaks


def stop_at_leaks(leaks: Mapping[str, float], keep: Collection[str], held_out: Floats, folder: Path) -> None:
    """Raise where a column tells the clicks and may not be kept; ``folder`` is left as if nothing had begun.

    Of n held-out ads with k clicks, chance orders one column in n! / (k! (n - k)!) perfectly: where that is not rare
    enough the leak is said, and training goes on.
    """
    telling = [name for name, area in leaks.items() if area > TELLS and name not in keep]
    if not telling or math.comb(len(held_out), int((held_out > 0).sum())) < CHANCE:
        return
    shutil.rmtree(folder / "store", ignore_errors=True)
    for name in ("config.toml", "test.parquet"):
        (folder / name).unlink(missing_ok=True)
    first, many = telling[0], f" and {len(telling) - 1} more" if len(telling) > 1 else ""
    raise InputError(
        f"must name {first!r}{many} for training to go on: the column alone tells the clicks of held-out rows, AUC "
        f"{leaks[first]:.4f}. What is only known after the click must be left out (--ignore {first}); if it is known "
        f"before, --keep {first}",
        argument="keep",
    )


def placements(columns: Iterable[Column]) -> list[str]:
    """Features that are named like the place where an ad was shown.

    >>> names = ["adPosition", "slot_2", "rank", "composition", "positive"]
    >>> placements(Column(name, "numeric", 9, 0.0, "") for name in names)
    ['adPosition', 'slot_2', 'rank']
    """
    features = (column.name for column in columns if column.use in ("categorical", "numeric"))
    return [name for name in features if PLACEMENT.search(CAMEL.sub("_", name))]


def duplicated_rows(frame: pl.DataFrame) -> int:
    """Rows that are the same as an earlier one in all columns, by a hash of 64 bits.

    >>> duplicated_rows(pl.DataFrame({"a": [1, 1, 2, 1], "b": ["x", "x", "x", "y"]}))
    1
    """
    plain = frame.select(name for name, dtype in frame.schema.items() if dtype != pl.Object)
    return len(frame) - plain.hash_rows().n_unique() if plain.width else 0
