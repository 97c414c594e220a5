"""Tables of logged ads of our own making: categories with long tails, rare clicks, effects of two and three columns.

    logit = intercept + spread (w1 main + w2 pairs + w3 triples),    w1^2 + w2^2 + w3^2 = 1

Every value has an effect of its own; so does every pair of values of :data:`PAIRS` and every triple of :data:`TRIPLES`,
all normal and independent. Each of the three sums has variance 1 over the rows. Values of a column have frequencies
(rank + 3)^-tail; a creative belongs to one campaign, that to one advertiser, and so on (:data:`COLUMNS`). Numbers act
by a wave, and in pairs and triples by their eighth. The log bid is a normal of the advertiser plus one of the campaign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

# name: (values, the column whose value follows from this one's, weight of the main effect)
COLUMNS: dict[str, tuple[int, str | None, float]] = {
    "user": (20_000, None, 0.5),
    "city": (1_500, "country", 0.6),
    "country": (50, None, 0.7),
    "device": (400, "system", 0.6),
    "system": (6, None, 0.5),
    "mobile": (2, None, 0.4),
    "hour": (24, None, 0.4),
    "weekday": (7, None, 0.2),
    "page": (8_000, "site", 0.6),
    "site": (1_200, "topic", 1.0),
    "topic": (25, None, 0.6),
    "slot": (4, None, 0.7),
    "creative": (5_000, "campaign", 0.7),
    "campaign": (1_000, "advertiser", 0.8),
    "advertiser": (200, "category", 1.0),
    "category": (20, None, 0.6),
}
NUMBERS = ("age", "depth")  # of the creative in days, of the visit in pages: log-normal

PAIRS = (
    ("site", "advertiser"),
    ("topic", "category"),
    ("topic", "campaign"),
    ("system", "advertiser"),
    ("hour", "category"),
    ("country", "advertiser"),
    ("slot", "site"),
    ("user", "category"),
    ("city", "topic"),
    ("age", "advertiser"),
    ("mobile", "creative"),
    ("device", "topic"),
)
TRIPLES = (
    ("topic", "category", "system"),
    ("country", "category", "mobile"),
    ("site", "category", "slot"),
    ("topic", "advertiser", "mobile"),
    ("hour", "topic", "category"),
    ("system", "slot", "advertiser"),
    ("depth", "category", "topic"),
    ("country", "topic", "category"),
)


@dataclass(frozen=True)
class World:
    """One kind of table; ``shares`` of the variance of the logit are of main effects, pairs and triples."""

    rows: int
    shares: tuple[float, float, float]
    tail: float  # exponent of the frequencies
    spread: float  # standard deviation of the logit
    size: int  # ads of an auction
    rate: float = 0.03  # mean CTR
    bids: tuple[float, float] = (0.5, 0.3)  # standard deviations of log bids: over advertisers, over campaigns


WORLDS = {
    "mixed": World(rows=250_000, shares=(0.60, 0.25, 0.15), tail=1.2, spread=1.35, size=32),
    "triples": World(rows=300_000, shares=(0.50, 0.10, 0.40), tail=1.4, spread=1.35, size=32),
    "tail": World(rows=200_000, shares=(0.70, 0.20, 0.10), tail=0.9, spread=1.4, size=64),
}


def make_table(world: str, seed: int) -> pl.DataFrame:
    """The columns, then ``click``, ``bid`` and ``truth``, the true CTR; every seed has effects of its own.

    Pass on ``truth`` as such, or drop it: it is no feature.
    """
    settings, random = WORLDS[world], np.random.default_rng([seed, *world.encode()])
    codes = _codes(settings, random)
    numbers = {name: random.lognormal(2.0, 1.0, settings.rows) for name in NUMBERS}
    eighths = {name: np.argsort(np.argsort(x)) * 8 // len(x) for name, x in numbers.items()}
    main = sum(COLUMNS[name][2] * _effects([code], random) for name, code in codes.items())
    main = main + sum(0.4 * np.sin(1.5 * np.log(x) + random.uniform(0, 6)) for x in numbers.values())
    sums = [
        main,
        *(sum(_effects([(codes | eighths)[c] for c in g], random) for g in kind) for kind in (PAIRS, TRIPLES)),
    ]
    parts = [np.sqrt(share) * (x - x.mean()) / x.std() for share, x in zip(settings.shares, sums, strict=True)]
    truth = _with_mean(settings.spread * np.sum(parts, axis=0), settings.rate)
    over_advertisers, over_campaigns = settings.bids
    log_bid = over_advertisers * _effects([codes["advertiser"]], random)
    log_bid = log_bid + over_campaigns * _effects([codes["campaign"]], random)
    # "s12" for 12: a CSV file of them has text, too
    columns = {name: name[0] + pl.Series(code).cast(pl.String) for name, code in codes.items()}
    click = (random.random(settings.rows) < truth).astype(np.int8)
    return pl.DataFrame(columns | numbers | {"click": click, "bid": np.exp(log_bid), "truth": truth})


def _codes(world: World, random: np.random.Generator) -> dict[str, NDArray[np.int64]]:
    """The value of every row in every column, 0 the most frequent one of those drawn freely."""
    parents = {parent for _, parent, _ in COLUMNS.values() if parent}
    codes: dict[str, NDArray[np.int64]] = {}
    for name in COLUMNS:
        if name in parents:
            continue
        size, parent, _ = COLUMNS[name]
        code = _drawn(size, world.rows, world.tail, random)
        codes[name] = code
        while parent is not None:
            above = _drawn(COLUMNS[parent][0], size, world.tail, random)  # of each value
            code = codes[parent] = above[code]
            size, parent, _ = COLUMNS[parent]
    return {name: codes[name] for name in COLUMNS}


def _drawn(values: int, many: int, tail: float, random: np.random.Generator) -> NDArray[np.int64]:
    chances = (np.arange(values) + 4.0) ** -tail
    return random.choice(values, many, p=chances / chances.sum())


def _effects(codes: Sequence[NDArray[np.int64]], random: np.random.Generator) -> NDArray[np.float64]:
    """A standard normal for every combination of values that occurs."""
    joint = codes[0].astype(np.int64)
    for code in codes[1:]:
        joint = joint * (code.max() + 1) + code
    found, which = np.unique(joint, return_inverse=True)
    return random.standard_normal(len(found))[which]


def _with_mean(logits: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """CTR with this mean, by the intercept."""
    low, high = -20.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-logits - middle))).mean() < rate else (low, middle)
    return 1 / (1 + np.exp(-logits - low))
