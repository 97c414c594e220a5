"""Columns that give the click away, columns named like a placement, and copied rows."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.data.columns import KINDS, Categorical, Column, Encoder, Numeric
from bidwise.evaluation.auc import auc
from bidwise.models.embeddings import shares
from bidwise.values import FIRST, MISSING, RARE

LEAK = 0.95  # AUC of a single column that no honest column reaches
TELLS = 0.99  # AUC of a single column that cannot but come from the click itself
_ADS = 200  # with a value, nearly all of them clicked: no ad is as good as that
CLICKED = 0.95  # share of them, if
OTHERS = 0.5  # the others are clicked no more often
EXPECTED = 300  # clicks of a value that has none, had it the click rate of the others
CHANCE = 1e6  # possible orders of held-out ads: with fewer, a column may be perfect by chance
PLACEMENT = re.compile(r"(?:^|[\W\d_])(?i:pos|position|rank|ranking|slot|placement)(?:$|[\W\d_])")
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True)
class Telling:
    """A value, or a bin of numbers, with all of its ads clicked, or none."""

    value: str
    ads: int
    click_rate: float
    others: float  # click rate of all other ads


@dataclass(frozen=True)
class Leaks:
    """Columns that are often known only after the click."""

    areas: dict[str, float] = field(default_factory=dict)  # AUC of columns that predict the clicks by themselves
    values: dict[str, Telling] = field(default_factory=dict)  # of the other columns, the most telling value
    certain: tuple[str, ...] = ()  # columns that training stops for

    def stop(self, keep: Collection[str]) -> None:
        """Raise if a column cannot but come from the click, and is not among those to ``keep``."""
        telling = [name for name in self.certain if name not in keep]
        if not telling:
            return
        first, many = telling[0], f" and {len(telling) - 1} more" if len(telling) > 1 else ""
        words = f"the column by itself predicts the clicks of held-out rows, AUC {self.areas.get(first, 0):.4f}"
        if first not in self.areas:
            value = self.values[first]
            words = (
                f"{100 * value.click_rate:.4g} % of {value.ads:,} ads with {value.value} are clicked, "
                f"{100 * value.others:.2g} % of all others"
            )
        raise InputError(
            f"must name {first!r}{many} to train on {'them' if many else 'it'}: {words}. Drop what is only known after "
            f"the click (--ignore {first}); if it is known before, --keep {first}",
            argument="keep",
        )


def find_leaks(
    encoder: Encoder, ids: NDArray[np.int32], clicks: NDArray[Any], new: NDArray[np.int32], held_out: NDArray[Any]
) -> Leaks:
    """Columns that predict the click by themselves: click rates of values of some ads, and the AUC that ``held_out``
    ads have by them. The rate of a bag is the mean over its values.

    Of n held-out ads with k clicks, chance orders one column in n! / (k! (n - k)!) perfectly: only if that is rare
    enough, a leak is certain.
    """
    mean = float(clicks.mean())
    areas, values, certain = dict[str, float](), dict[str, Telling](), []
    sure = _orders(len(held_out), int((held_out > 0).sum())) >= CHANCE
    for at, column in zip(encoder.spans, encoder.columns, strict=True):
        counts = _counts(ids[:, at], clicks, column.field.values)
        count, clicked = counts[:, new[:, at]]
        area = auc(((clicked + mean) / (count + 1) * _shares(new[:, at])).sum(1), held_out.astype(np.float64))
        telling = _telling(column, counts + _counts(new[:, at], held_out, column.field.values))
        if area > LEAK:
            areas[column.name] = float(area)
        elif telling is not None:
            values[column.name] = telling
        if sure and (area > TELLS or (telling is not None and telling.click_rate >= CLICKED)):
            certain.append(column.name)
    return Leaks(areas, values, tuple(certain))


def _counts(ids: NDArray[np.int32], clicks: NDArray[Any], values: int) -> NDArray[np.float64]:
    """Ads and clicks of every value; of a bag's, shares of them."""
    share = _shares(ids)
    return np.array([np.bincount(ids.ravel(), x.ravel(), values) for x in (share, share * clicks[:, None])])


def _telling(column: Categorical | Numeric, counts: NDArray[np.float64]) -> Telling | None:
    """The value with the most ads of those that are nearly all clicked, or never; the last is to have any value."""
    counts = np.column_stack([counts, counts.sum(1) - counts[:, MISSING]])
    (ads, clicked), (all_ads, all_clicked) = counts, counts[:, :-1].sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate, others = clicked / ads, (all_clicked - clicked) / (all_ads - ads)
        always = (ads >= _ADS) & (rate >= CLICKED) & (others <= OTHERS)
        never = (clicked == 0) & (ads * others >= EXPECTED)
    found = always if always.any() else never
    if not found.any():
        return None
    best = int(np.where(found, ads, 0).argmax())
    return Telling(_called(column, best), round(float(ads[best])), float(rate[best]), float(others[best]))


def _called(column: Categorical | Numeric, value: int) -> str:
    """The value of an id, for errors."""
    if value < FIRST or value == column.field.values:
        return f"{column.name!r} {({MISSING: 'missing', RARE: 'rare'}).get(value, 'filled in')}"
    if isinstance(column, Categorical):
        return f"{column.name} = {column.vocabulary[value - FIRST]!r}"
    ends = [-math.inf, *column.edges, math.inf]
    return f"{column.name} above {ends[value - FIRST]:g} and up to {ends[value - FIRST + 1]:g}"


def _shares(ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """The weight of each slot of a field; 1 for a field that is no bag."""
    return np.ones(ids.shape) if ids.shape[1] == 1 else shares(torch.tensor(ids), torch.float64).numpy()


def _orders(ads: int, clicks: int) -> float:
    """In how many ways so many ads can have so many clicks, by logarithms: there may be millions of ads."""
    log = math.lgamma(ads + 1) - math.lgamma(clicks + 1) - math.lgamma(ads - clicks + 1)
    return math.exp(min(log, 700.0))


def placements(columns: Iterable[Column]) -> list[str]:
    """Features with a name like a placement.

    >>> names = ["adPosition", "slot_2", "rank", "composition", "positive"]
    >>> placements(Column(name, "numeric", 9, 0.0, "") for name in names)
    ['adPosition', 'slot_2', 'rank']
    """
    features = (column.name for column in columns if column.use in KINDS)
    return [name for name in features if PLACEMENT.search(CAMEL.sub("_", name))]


def row_hashes(frame: pl.DataFrame) -> NDArray[np.uint64]:
    """A hash of every row, of the columns that have one."""
    plain = frame.select(name for name, dtype in frame.schema.items() if dtype != pl.Object)
    return plain.hash_rows(seed=0).to_numpy() if plain.width else np.arange(len(frame), dtype=np.uint64)


def copies(hashes: NDArray[np.uint64]) -> int:
    """How many rows are the same as an earlier one.

    >>> copies(row_hashes(pl.DataFrame({"a": [1, 1, 2, 1], "b": ["x", "x", "x", "y"]})))
    1
    """
    hashes = np.sort(hashes)  # much faster than np.unique, which hashes
    return int((hashes[1:] == hashes[:-1]).sum())
