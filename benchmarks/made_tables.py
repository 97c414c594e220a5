"""Tables of logged ads of our own making, with the true CTR of every row.

    logit = intercept + spread (w1 main + w2 pairs + w3 triples + w4 noise),    w1^2 + ... + w4^2 = 1

Every value has an effect of its own; so does every pair of values of ``Kind.pairs`` and every triple of
``Kind.triples``, all normal and independent. Each of the four sums has variance 1 over the rows; no column shows the
noise. Values of a column have frequencies (rank + 3)^-tail; a creative belongs to one campaign, that to one advertiser,
and so on (``Kind.columns``). Numbers act by the curve in :data:`CURVES`; of a bag, a list of values, all effects add
up. With ``Kind.days`` rows are in the order of a column ``time``, effects drift from day to day, and new values arrive.
The log bid is a sum of normals: of two columns and of the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]

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
NUMBERS = {"age": "wave", "depth": "wave"}  # of the creative in days, of the visit in pages: log-normal; their curves

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

CURVES = {  # effect of a number, by its standardised logarithm and a phase in [0, 6]
    "wave": lambda z, phase: np.sin(1.5 * (z + 2) + phase),
    "line": lambda z, phase: z * np.sign(phase - 3),
    "hump": lambda z, phase: -((z + phase / 3 - 1) ** 2) / 2,
    "step": lambda z, phase: np.tanh(4 * (z + phase / 3 - 1)),
}


@dataclass(frozen=True)
class Kind:
    """One kind of table; ``shares`` of the variance of the logit are of main effects, pairs, triples and noise."""

    shares: tuple[float, float, float, float]
    rows: int = 250_000
    tail: float = 1.2  # exponent of the frequencies
    spread: float = 1.35  # standard deviation of the logit
    size: int = 32  # ads of an auction
    rate: float = 0.03  # mean CTR
    bids: tuple[float, float, float] = (0.5, 0.3, 0.0)  # standard deviations of log bids: over two columns, over rows
    bidders: tuple[str, ...] = ("advertiser", "campaign")  # the two columns
    columns: Mapping[str, tuple[int, str | None, float]] = field(default_factory=lambda: COLUMNS)
    numbers: Mapping[str, str] = field(default_factory=lambda: NUMBERS)
    bags: Mapping[str, tuple[int, int, float]] = field(default_factory=dict)  # values, mean number in a row, weight
    pairs: tuple[tuple[str, ...], ...] = PAIRS
    triples: tuple[tuple[str, ...], ...] = TRIPLES
    smooth: bool = (
        False  # in pairs and triples numbers act by a wave of their own for every value, else by their eighth
    )
    factors: int = 0  # effects of pairs are products of vectors of so many normals, else independent
    boxes: int = 0  # in place of triples: effects of boxes, one to four numbers each above or below a bound of its own
    days: int = 0  # 0: no times
    drift: float = 0.0  # share of the variance of main effects that walks from day to day
    arriving: tuple[str, ...] = ()  # columns whose values are born and die
    life: float = 1.0  # of those values, in the mean, as a share of all days


ADDITIVE = {f"c{i}": (values, None, 0.5) for i, values in enumerate((2, 3, 5, 8, 15, 25, 40, 60, 100, 180, 300, 500))}
ADDITIVE |= {f"d{i}": (values, None, 0.5) for i, values in enumerate((900, 1_500, 4_000, 12_000))}

DELIVERY = {
    "ad": (6_000, "campaign", 0.6),
    "campaign": (900, "advertiser", 0.8),
    "advertiser": (150, None, 0.7),
    "placement": (5_000, "site", 0.5),
    "site": (1_200, "topic", 0.8),
    "topic": (24, None, 0.5),
    "city": (800, "country", 0.4),
    "country": (30, None, 0.5),
    "device": (250, "system", 0.4),
    "system": (5, None, 0.5),
    "format": (6, None, 0.6),
    "segment": (40, None, 0.5),
    "hour": (24, None, 0.3),
    "weekday": (7, None, 0.2),
}
ARRIVING = {
    "creative": (12_000, "order", 0.4),
    "order": (4_000, "brand", 0.5),
    "brand": (400, "sector", 0.7),
    "sector": (15, None, 0.5),
    "page": (15_000, "section", 0.4),
    "section": (3_000, "publisher", 0.5),
    "publisher": (300, "market", 0.7),
    "market": (12, None, 0.5),
    "slot": (8, None, 0.6),
    "system": (6, None, 0.4),
    "hour": (24, None, 0.3),
    "weekday": (7, None, 0.2),
}
CONTEXT = {
    name: COLUMNS[name]
    for name in (
        "country",
        "system",
        "hour",
        "weekday",
        "site",
        "topic",
        "creative",
        "campaign",
        "advertiser",
        "category",
    )
}
DELIVERED = Kind(
    shares=(0.62, 0.24, 0.10, 0.04),
    tail=1.1,
    columns=DELIVERY,
    numbers={"age": "hump", "depth": "step", "price": "line", "reads": "wave", "pause": "hump", "length": "line"},
    pairs=(
        ("topic", "advertiser"),
        ("segment", "advertiser"),
        ("format", "site"),
        ("country", "advertiser"),
        ("system", "format"),
        ("segment", "topic"),
        ("hour", "segment"),
        ("age", "segment"),
        ("depth", "format"),
        ("price", "reads"),
    ),
    triples=(
        ("system", "format", "topic"),
        ("country", "segment", "format"),
        ("depth", "system", "format"),
    ),
    smooth=True,
    days=15,
    arriving=("ad",),
)

KINDS = {
    "mixed": Kind((0.60, 0.25, 0.15, 0)),
    "triples": Kind((0.50, 0.10, 0.40, 0), rows=300_000, tail=1.4),
    "tail": Kind((0.70, 0.20, 0.10, 0), rows=200_000, tail=0.9, spread=1.4, size=64),
    "b": Kind(
        shares=(0.8, 0, 0, 0.2),
        rate=0.02,
        tail=1.1,
        spread=1.1,
        bids=(0.3, 0.2, 0.6),
        bidders=("d0", "d2"),
        columns=ADDITIVE,
        numbers={"n0": "line", "n1": "line", "n2": "hump", "n3": "wave"},
        pairs=(),
        triples=(),
        days=10,
    ),
    "c1": replace(DELIVERED, rate=0.01, tail=1.3, drift=0.05),
    "c15": replace(DELIVERED, rate=0.15, drift=0.3),
    "c15_long": replace(DELIVERED, rate=0.15, drift=0.3, rows=1_250_000),
    "arrivals": Kind(
        shares=(0.85, 0.10, 0, 0.05),
        columns=ARRIVING,
        numbers={"age": "line"},
        pairs=(("brand", "publisher"), ("slot", "brand")),
        triples=(),
        bidders=("brand", "order"),
        bids=(0.4, 0.4, 0.2),
        days=20,
        drift=0.1,
        arriving=("creative", "page"),
        life=0.3,
    ),
    "numbers": Kind(
        shares=(0.45, 0.35, 0.15, 0.05),
        rate=0.08,
        columns={},
        numbers={f"x{i}": ("wave", "line", "hump", "step")[i % 4] for i in range(20)},
        pairs=tuple((f"x{i}", f"x{(3 * i + 7) % 20}") for i in range(0, 20, 2)),
        triples=tuple((f"x{i}", f"x{i + 5}", f"x{i + 10}") for i in range(1, 9, 2)),
        bids=(0, 0, 0.7),
        bidders=(),
        smooth=True,
        days=7,
    ),
    "bags": Kind(
        shares=(0.60, 0.30, 0.05, 0.05),
        rate=0.05,
        columns=CONTEXT,
        numbers={"recency": "line", "visits": "step"},
        bags={"interests": (400, 6, 1.0), "words": (3_000, 4, 0.8)},
        pairs=(("interests", "category"), ("words", "category"), ("interests", "topic"), ("hour", "category")),
        triples=(("topic", "category", "system"),),
        days=14,
    ),
}

KINDS |= {  # drawn when all settings had been chosen, and measured once
    "boxes": Kind(
        shares=(0.1, 0, 0.85, 0.05),
        rate=0.08,
        columns={},
        numbers=dict.fromkeys((f"x{i}" for i in range(20)), "step"),
        pairs=(),
        triples=(),
        bids=(0, 0, 0.7),
        bidders=(),
        boxes=30,
    ),
    "tastes": Kind(
        shares=(0.45, 0.5, 0, 0.05),
        rate=0.05,
        columns={"reader": (4_000, "town", 0.6), "town": (200, None, 0.4), "article": (1_500, "author", 0.8)}
        | {"author": (150, None, 0.6), "weekday": (7, None, 0.2), "system": (5, None, 0.3)},
        numbers={"age": "hump"},
        pairs=(("reader", "article"), ("town", "author")),
        triples=(),
        bids=(0.4, 0.3, 0.2),
        bidders=("article", "author"),
        days=10,
        factors=4,
    ),
    "idle": Kind(
        shares=(0.7, 0.2, 0, 0.1),
        rows=75_000,
        columns={f"c{i}": (4 + 60 * i, None, 0.6 if i % 5 == 0 else 0.0) for i in range(30)},
        numbers={"n0": "wave", "n1": "line"},
        pairs=(("c0", "c5"), ("c5", "c10")),
        triples=(),
        bids=(0.3, 0, 0.4),
        bidders=("c25",),
        days=7,
    ),
}


def make_table(kind: str, seed: int) -> pl.DataFrame:
    """The features, then ``click``, ``bid``, ``truth``, the true CTR, and ``time``; every seed has effects of its own.

    Pass on ``truth`` as such, or drop it: it is no feature.
    """
    settings, random = KINDS[kind], np.random.default_rng([seed, *kind.encode()])
    none = np.zeros(settings.rows)
    times = np.sort(random.random(settings.rows)) * settings.days * 86_400 if settings.days else none
    ads = Ads.drawn(settings, times.astype(np.int64), random)
    sums = [ads.main(random)]
    sums += [sum((ads.joint(g, random) for g in groups), none) for groups in (settings.pairs, settings.triples)]
    if settings.boxes:
        sums[2] = ads.boxed(random)
    sums += [random.standard_normal(settings.rows) if settings.shares[3] else none]
    parts = [np.sqrt(share) * (x - x.mean()) / x.std() for share, x in zip(settings.shares, sums, strict=True) if share]
    truth = _with_mean(settings.spread * np.sum(parts, axis=0), settings.rate)
    *spreads, spread = settings.bids
    over = zip(spreads, settings.bidders, strict=False)
    log_bid = sum((over_values * ads.effects((name,), random) for over_values, name in over), none)
    log_bid = log_bid + (spread * random.standard_normal(settings.rows) if spread else none)
    roles = {"click": (random.random(settings.rows) < truth).astype(np.int8), "bid": np.exp(log_bid), "truth": truth}
    if settings.days:
        roles["time"] = 1_700_000_000 + times.astype(np.int64)
    return ads.frame().with_columns(**{name: pl.Series(x) for name, x in roles.items()})


@dataclass(frozen=True)
class Ads:
    """The features of the rows."""

    kind: Kind
    day: Codes
    codes: dict[str, Codes]  # 0 the most frequent value of those drawn freely
    numbers: dict[str, Floats]  # standardised
    bags: dict[str, tuple[Codes, Codes]]  # the row and the value of each entry

    @classmethod
    def drawn(cls, kind: Kind, times: Codes, random: np.random.Generator) -> Ads:
        day, rows = times // 86_400, len(times)
        codes = _codes(kind, day, random)
        if kind.days and "hour" in codes:
            codes |= {"hour": times // 3600 % 24, "weekday": day % 7}
        numbers = {name: random.standard_normal(rows) for name in kind.numbers}
        bags = {}
        for name, (values, mean, _) in kind.bags.items():
            row = np.repeat(np.arange(rows), random.poisson(mean, rows))
            entries = np.unique(row * values + _drawn(values, len(row), kind.tail, random))
            bags[name] = entries // values, entries % values
        return cls(kind, day, codes, numbers, bags)

    def frame(self) -> pl.DataFrame:
        # "s12" for 12: a CSV file of them has text, too
        text = {name: name[0] + pl.Series(code).cast(pl.String) for name, code in self.codes.items()}
        frame = pl.DataFrame(text | {name: np.exp(2 + z) for name, z in self.numbers.items()})
        for name, (row, value) in self.bags.items():
            ends = np.bincount(row, minlength=len(self.day)).cumsum()[:-1]
            frame = frame.with_columns(
                pl.Series(name, [[f"{name[0]}{x}" for x in part] for part in np.split(value, ends)], pl.List(pl.String))
            )
        return frame

    def main(self, random: np.random.Generator) -> Floats:
        """The sum of the effects of single values and numbers."""
        drift, days, total = self.kind.drift, self.kind.days, np.zeros(len(self.day))
        for name, (_, _, weight) in self.kind.columns.items():
            effect = self.effects((name,), random)
            if drift:
                walk = random.standard_normal((self.codes[name].max() + 1, days)).cumsum(axis=1) / np.sqrt(days / 2)
                effect = np.sqrt(1 - drift) * effect + np.sqrt(drift) * walk[self.codes[name], self.day]
            total += weight * effect
        for name, curve in self.kind.numbers.items():
            total += 0.4 * CURVES[curve](self.numbers[name], random.uniform(0, 6))
        for name, (_, _, weight) in self.kind.bags.items():
            total += weight * self.effects((name,), random)
        return total

    def joint(self, group: tuple[str, ...], random: np.random.Generator) -> Floats:
        """The effect of a pair or triple."""
        numbers = [name for name in group if name in self.numbers]
        if not (numbers and self.kind.smooth):
            return self.effects(group, random)
        phase = 3 * self.effects(tuple(name for name in group if name not in numbers), random)
        return np.sqrt(2) * np.sin(phase + sum(random.uniform(0.7, 2) * self.numbers[name] for name in numbers))

    def boxed(self, random: np.random.Generator) -> Floats:
        """The sum of the effects of all boxes that a row is in."""
        total, names = np.zeros(len(self.day)), [*self.numbers]
        for _ in range(self.kind.boxes):
            inside = np.ones(len(total), bool)
            for name in random.choice(names, random.integers(1, 5), replace=False):
                inside &= (self.numbers[name] > random.normal(0, 0.7)) == (random.random() < 0.5)
            total += random.standard_normal() * inside
        return total

    def effects(self, group: tuple[str, ...], random: np.random.Generator) -> Floats:
        """A standard normal for every combination of values that occurs, added up over the values of a bag."""
        if self.kind.factors and len(group) == 2:
            vectors = [
                random.standard_normal((self.codes[x].max() + 1, self.kind.factors))[self.codes[x]] for x in group
            ]
            return (vectors[0] * vectors[1]).sum(1) / np.sqrt(self.kind.factors)
        rows, bag = np.arange(len(self.day)), next((name for name in group if name in self.bags), None)
        joint = np.zeros(len(rows), dtype=np.int64)
        if bag:
            rows, joint = self.bags[bag]
        for name in group:
            if name != bag:
                code = self.codes[name] if name in self.codes else _eighths(self.numbers[name])
                joint = joint * (code.max() + 1) + code[rows]
        found, which = np.unique(joint, return_inverse=True)
        effects = random.standard_normal(len(found))[which]
        if bag:
            effects = np.bincount(rows, effects, len(self.day)) / np.sqrt(self.kind.bags[bag][1])
        return effects


def _eighths(number: Floats) -> Codes:
    return np.argsort(np.argsort(number)) * 8 // len(number)


def _codes(kind: Kind, day: Codes, random: np.random.Generator) -> dict[str, Codes]:
    """The value of every row in every column, 0 the most frequent one of those drawn freely."""
    parents = {parent for _, parent, _ in kind.columns.values() if parent}
    codes: dict[str, Codes] = {}
    for name, (size, parent, _) in kind.columns.items():
        if name in parents:
            continue
        if name in kind.arriving:
            code = _arriving(size, day, kind, random)
        else:
            code = _drawn(size, len(day), kind.tail, random)
        codes[name] = code
        while parent is not None:
            above = _drawn(kind.columns[parent][0], size, kind.tail, random)  # of each value
            code = codes[parent] = above[code]
            size, parent, _ = kind.columns[parent]
    return {name: codes[name] for name in kind.columns}


def _drawn(values: int, many: int, tail: float, random: np.random.Generator) -> Codes:
    chances = (np.arange(values) + 4.0) ** -tail
    return random.choice(values, many, p=chances / chances.sum())


def _arriving(values: int, day: Codes, kind: Kind, random: np.random.Generator) -> Codes:
    """As :func:`_drawn`, but a value is shown only from its first day to its last."""
    first = random.uniform(-1, 1, values) * kind.days
    last = first + random.exponential(kind.life * kind.days, values)
    code = np.empty_like(day)
    for today in range(kind.days):
        chances = (np.arange(values) + 4.0) ** -kind.tail * ((first <= today) & (today <= last))
        code[day == today] = random.choice(values, int((day == today).sum()), p=chances / chances.sum())
    return code


def _with_mean(logits: Floats, rate: float) -> Floats:
    """CTR with this mean, by the intercept."""
    low, high = -20.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-logits - middle))).mean() < rate else (low, middle)
    return 1 / (1 + np.exp(-logits - low))
