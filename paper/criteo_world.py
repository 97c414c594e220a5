"""Worlds shaped like the Criteo Display Advertising Challenge whose true CTR is known.

    logit p = intercept + Σ_c w_c(x_c) + Σ_d U_d A_d + three_way Σ_d U_d A_d X_d,      click ~ Bernoulli(p)
    U, A, X = Σ_c v_c(x_c) over columns of the user, of the ad, of the context

Every column has an effect w of its own; some columns also have vectors v, whose products no sum over columns can
represent. Both are fixed functions of column and value: files of different seeds are samples of one world. Columns are
correlated through a few hidden variables, values have power-law frequencies, and a missing value has an effect too.
:class:`CriteoWorld` is what worlds differ in. Text and devices draw ads with the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bidwise.checks import Named, check_whole
from bidwise.values import Floats
from paper.bids import Bids

CHUNK = 2**16  # ads that are drawn together, from the seed and the number of the chunk alone

WORLD = 20_140_624  # seed of all effects, unless they are drawn anew
DIMENSIONS = 2
HEAD = 1024  # values with an effect of their own; all rarer ones share one, unless the world has a tail
FADE = 16.0  # effects shrink with the rank k of a value as (1 + k / FADE)^(-1/2)
LARGE = 2**16  # counts from here on share an effect
TURN, TAIL = 2**20, 2**31  # where the hashes of a world's second effects and of its tail begin

HIDDEN = 6  # hidden uniform variables that tie columns together: three of the user, three of the ad
TIE = 0.35  # share of ads whose value in a column is the hidden variable's, at the same quantile
GROUPS = 11  # of columns that are missing together; group 0 is never missing


class Integer(NamedTuple):
    """A column of counts, floor(scale (u / (1 - u))^shape - shift) for u uniform in [0, 1), at most ``most``.

    >>> Integer(4.0, 0.5, 100, 0.0, 0, 0).drawn(torch.tensor([0.1, 0.5, 0.8]))
    tensor([1., 4., 8.])
    """

    scale: float  # median
    shape: float  # of the tail: P(x > t) ~ t^(-1 / shape)
    most: int
    missing: float
    group: int
    hidden: int
    vector: bool = False
    shift: float = 0.0

    def drawn(self, uniform: Tensor) -> Tensor:
        """The value at quantile ``uniform``."""
        counts = self.scale * (self.shape * (uniform / (1 - uniform)).log()).exp() - self.shift
        return counts.floor().clamp(max=self.most)

    def below(self, count: NDArray[Any]) -> Floats:
        """P(x < count), for whole counts from 0 on; nothing is below -1, which stands for all negative ones."""
        odds = (np.where(count < 0, 0.0, count + self.shift) / self.scale) ** (1 / self.shape)
        share: Floats = np.where(count > self.most, 1.0, odds / (1 + odds))
        return share


class Category(NamedTuple):
    """A column of names, numbered k = 0 ... values - 1 from the most frequent on: a power law, cut off at its end.

        P(k < rank) = (1 - (rank + 1)^(1 - power)) / (1 - (values + 1)^(1 - power))

    >>> Category(1000, 2.0, 0).below(np.array([0, 1, 3])).round(3)
    array([0.   , 0.5  , 0.751])
    """

    values: int
    power: float
    hidden: int
    vector: bool = False
    missing: float = 0.0
    group: int = 0

    def drawn(self, uniform: Tensor) -> Tensor:
        """The value at quantile ``uniform``."""
        rest = 1 - (self.values + 1) ** (1 - self.power)
        ranks: Tensor = ((-rest * uniform).log1p() / (1 - self.power)).exp()
        return (ranks.floor() - 1).clamp(0, self.values - 1)

    def below(self, rank: NDArray[Any]) -> Floats:
        """P(k < rank), for ranks from 0 on."""
        share: Floats = (1 - np.minimum(rank + 1.0, self.values + 1) ** (1 - self.power)) / (
            1 - (self.values + 1) ** (1 - self.power)
        )
        return share


# Missing rates, largest integers and numbers of values as publicly known of the challenge's 45.8 million ads.
COUNTS = (
    Integer(1.4, 0.75, 5_775, 0.45, 1, 0),
    Integer(4.0, 0.95, 257_675, 0.0, 0, 1, shift=1.2),
    Integer(7.0, 0.80, 65_535, 0.21, 2, 2),
    Integer(5.0, 0.55, 969, 0.22, 2, 0),
    Integer(2_800.0, 0.90, 23_159_456, 0.026, 3, 1, True),
    Integer(32.0, 0.80, 431_037, 0.22, 2, 2, True),
    Integer(3.5, 0.75, 56_311, 0.043, 4, 0, True),
    Integer(8.0, 0.50, 6_047, 0.0005, 5, 1),
    Integer(38.0, 0.65, 29_019, 0.043, 4, 2),
    Integer(0.9, 0.40, 11, 0.45, 1, 0),
    Integer(1.8, 0.55, 231, 0.043, 4, 1, True),
    Integer(0.5, 0.75, 4_008, 0.765, 6, 2),
    Integer(4.5, 0.55, 7_393, 0.22, 2, 0),
)
NAMES = (
    Category(1_460, 1.9, 3, True),
    Category(583, 1.35, 4, True),
    Category(10_131_227, 1.12, 5, False, 0.034, 7),
    Category(2_202_608, 1.15, 3, False, 0.034, 7),
    Category(305, 2.2, 0, True),
    Category(24, 1.5, 1, True, 0.12, 8),
    Category(12_517, 1.08, 2),
    Category(633, 2.1, 0, True),
    Category(3, 3.0, 1),
    Category(93_145, 1.25, 3),
    Category(5_683, 1.05, 4),
    Category(8_351_593, 1.12, 5, False, 0.034, 7),
    Category(3_194, 1.06, 4, True),
    Category(27, 1.6, 5, True),
    Category(14_992, 1.1, 3),
    Category(5_461_306, 1.13, 4, False, 0.034, 7),
    Category(10, 1.7, 2, True),
    Category(5_652, 1.2, 5, True),
    Category(2_173, 1.3, 0, False, 0.44, 9),
    Category(4, 1.4, 1, False, 0.44, 9),
    Category(7_046_547, 1.12, 5, False, 0.034, 7),
    Category(18, 1.8, 2, False, 0.76, 10),
    Category(15, 1.6, 3, True),
    Category(286_181, 1.18, 4, False, 0.034, 7),
    Category(105, 1.5, 5, False, 0.44, 9),
    Category(142_572, 1.2, 3, False, 0.44, 9),
)
FIELDS: tuple[Integer | Category, ...] = (*COUNTS, *NAMES)
CONTEXT = (3, 7, 8, 12, 21, 32)  # I4, I8, I9, I13, C9, C20


@dataclass(frozen=True)
class CriteoWorld:
    """What makes people click; the formula is above.

    Args:
        intercept: which sets the click rate.
        effect: standard deviation of a column's effect w.
        vector: root mean square length of a column's vector v.
        three_way: weight of the products of three.
        tail: 0 where all values from rank 1,023 on share one effect and vector. Otherwise each has its own, uniform,
            with ``tail`` times the standard deviation that the column's have.
        drift: radians. Effects and vectors of the ad at share t of the rows are cos(drift t) w + sin(drift t) w',
            where w' are independent of w and as large; those of a tail stay.
        hidden: columns, from 0, that make people click but are empty in the data.
        bids: that belong to the world.
        seed: of effects and vectors.
    """

    intercept: float
    effect: float = 0.22
    vector: float = 0.41
    three_way: float = 0.0
    tail: float = 0.0
    drift: float = 0.0
    hidden: tuple[int, ...] = ()
    bids: Bids = Bids()  # noqa: RUF009 (frozen)
    seed: int = WORLD

    def redrawn(self, seed: int) -> CriteoWorld:
        """The world with other effects and bids; its intercept moves so that the click rate stays."""
        check_whole("world_seed", seed, 0, 2**31 - 1)
        if seed == self.seed:
            return self
        other = replace(self, intercept=0.0, bids=replace(self.bids, seed=seed), seed=seed)
        values, missing, _ = drawn(numpy_uniform(0, 0), CHUNK)
        time = torch.arange(CHUNK, dtype=torch.float64) / CHUNK
        before, after = (logits(world, values, missing, time) for world in (self, other))
        low, high, rate = -40.0, 40.0, before.sigmoid().mean()
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if (after + middle).sigmoid().mean() > rate else (middle, high)
        return replace(other, intercept=round(low, 6))


_ADVERTISERS = Bids("residual", noise=0.0, field="C2")

#: Worlds by name. Their constants were fixed by click rate and AUC of the true CTR (of the first, by log-loss models),
#: before any other loss met them, and are not to be changed.
CRITEO_WORLDS = Named(
    "world",
    {
        "shared_tail": CriteoWorld(-2.03),
        "own_tail": CriteoWorld(-2.16, tail=2.0),
        "threeway": CriteoWorld(-2.03, three_way=2.0, bids=_ADVERTISERS),
        "threeway_5": CriteoWorld(-4.48, vector=0.35, three_way=2.0),
        "threeway_05": CriteoWorld(-6.98, vector=0.32, three_way=2.0),
        "drift": CriteoWorld(-2.28, drift=1.0, hidden=tuple(range(1, 36, 3))),
    },
)
SHARED_TAIL = CRITEO_WORLDS["shared_tail"]


class Sample(NamedTuple):
    """Consecutive ads: what the raw file tells of them, and the CTR it does not tell."""

    values: Tensor  # (39, ads) int32: counts, then ranks of categories by frequency, from 0; 0 where missing
    missing: Tensor  # (39, ads) bool; columns that the world hides are
    clicks: Tensor  # (ads,) bool
    ctr: Tensor  # (ads,) float32


def sampled(world: CriteoWorld, uniform: Callable[..., Tensor], time: Tensor) -> Sample:
    """An ad of a world for each ``time``, the share of the rows before it; ``uniform(*shape, dtype=)`` draws."""
    values, missing, chance = drawn(uniform, len(time))
    ctr = logits(world, values, missing, time).sigmoid().float()
    hidden = list(world.hidden)
    values[hidden], missing[hidden] = 0, True
    return Sample(values, missing, chance < ctr, ctr)


def numpy_uniform(seed: int, number: int) -> Callable[..., Tensor]:
    """Uniform numbers of chunk ``number`` of ``seed``, the same with any torch."""
    random = np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(number,))))
    kinds: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
    return lambda *shape, dtype: torch.from_numpy(random.random(shape, kinds[dtype]))


def drawn(uniform: Callable[..., Tensor], rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values and gaps as in :class:`Sample`, with nothing hidden, and uniform numbers: a click where below the CTR."""
    hidden, gaps = (uniform(number, rows, dtype=torch.float64) for number in (HIDDEN, GROUPS))
    chance = uniform(rows, dtype=torch.float32)
    values, missing = [], []
    for field in FIELDS:
        own = uniform(rows, dtype=torch.float64)
        # tied to the hidden variable where own < TIE; what is left of own is uniform again
        quantile = torch.where(own < TIE, hidden[field.hidden], (own - TIE) / (1 - TIE))
        missing.append(gaps[field.group] < field.missing)
        values.append((field.drawn(quantile) * ~missing[-1]).int())
    return torch.stack(values), torch.stack(missing), chance


@lru_cache(maxsize=8)
def tables(world: CriteoWorld, device: torch.device) -> tuple[Tensor, Tensor]:
    """On a device :func:`world_effects`, two turns of them if the world drifts, and :func:`buckets`."""
    effects = np.stack([world_effects(world, turn) for turn in range(2 if world.drift else 1)])
    return torch.from_numpy(effects).to(device), torch.from_numpy(buckets()).to(device)


def logits(world: CriteoWorld, values: Tensor, missing: Tensor, time: Any = 0.0) -> Tensor:
    """The formula above for any ads of a world, ``(ads,)`` float64.

    Args:
        values: ``(39, ads)``, counts and ranks of categories.
        missing: ``(39, ads)``, where they do not count.
        time: share of the rows before each ad, which a world that drifts depends on.
    """
    effects, tokens = tables(world, values.device)
    angle = world.drift * torch.as_tensor(time, dtype=torch.float64, device=values.device)
    now, later = angle.cos(), angle.sin()
    total = torch.full(values.shape[1:], world.intercept, dtype=torch.float64, device=values.device)
    sides: list[list[Any]] = [[0.0] * DIMENSIONS for _ in range(3)]  # user, ad, context
    for index, field in enumerate(FIELDS):
        if isinstance(field, Integer):
            token = tokens[values[index].clamp(-1, LARGE).long() + 1]
        else:
            token = values[index].clamp(0, HEAD - 1).long() + 1
        token = token * ~missing[index]
        side = int(field.hidden >= HIDDEN // 2) if field.vector else 2 if world.three_way and index in CONTEXT else None
        for part in range(1 if side is None else 1 + DIMENSIONS):
            turns = [turn[index, part][token] for turn in effects]
            effect = turns[0] * now + turns[1] * later if world.drift else turns[0]
            if world.tail and isinstance(field, Category) and field.values > HEAD:
                place = TAIL + ((1 + DIMENSIONS) * index + part) * 2**24 + values[index].long()
                spread = world.tail * (world.vector / DIMENSIONS**0.5 if part else world.effect)
                effect = torch.where(token == HEAD, spread * 12**0.5 * (_uniform(world.seed, place) - 0.5), effect)
            if side is None or not part:
                total += effect
            else:
                sides[side][part - 1] += effect
    for user, ad, context in zip(*sides, strict=True):
        total += user * ad * (1 + world.three_way * context) if world.three_way else user * ad
    return total


@lru_cache(maxsize=1)
def buckets() -> NDArray[np.int64]:
    """Token of the counts -1 (and below), 0, 1, ...: 1 for negative ones, then 2 + floor(2 log2(1 + count))."""
    return np.concatenate([[1], 2 + np.floor(2 * np.log2(np.arange(1, LARGE + 2))).astype(np.int64)])


def world_effects(world: CriteoWorld = SHARED_TAIL, turn: int = 0) -> Floats:
    """Effects and vectors, ``(39, 1 + DIMENSIONS, HEAD + 1)``, by token; token 0 is a missing value. ``turn`` 1: w'.

    Over values that are there, weighted by how often they are drawn, effects have mean 0 and standard deviation
    ``effect``, vectors mean 0 and root mean square length ``vector``: products have no part that an effect could take.
    """
    random = _normal(world.seed, turn * TURN, (len(FIELDS), HEAD + 1, 1 + DIMENSIONS))
    for index, field in enumerate(FIELDS):
        weights = _frequencies(field)[:, None]
        if isinstance(field, Integer):
            random[index, 1:] = np.cumsum(random[index, 1:], axis=0)  # neighbouring counts are alike
        else:
            random[index, 1:] *= (1 + np.arange(HEAD)[:, None] / FADE) ** -0.5
        random[index, 1:] -= (weights * random[index, 1:]).sum(0)
        random[index, 1:] /= np.sqrt((weights * np.square(random[index, 1:])).sum(0))
    random[..., 0] *= world.effect
    random[..., 1:] *= world.vector / np.sqrt(DIMENSIONS)
    random[:, 0, 1:] = 0
    return np.ascontiguousarray(random.swapaxes(1, 2))


def _frequencies(field: Integer | Category) -> Floats:
    """How often tokens 1, 2, ... are drawn, ``(HEAD,)``."""
    least = np.arange(HEAD) if isinstance(field, Category) else np.flatnonzero(np.diff(buckets(), prepend=0)) - 1
    shares: Floats = np.diff(field.below(least), append=1.0)
    return np.pad(shares, (0, HEAD - len(shares)))


def _normal(seed: int, start: int, shape: tuple[int, ...]) -> Floats:
    """Standard normal numbers as hashes of their places (Box and Muller), the same in any numpy."""
    size = int(np.prod(shape))
    uniform = _uniform(seed, start + torch.arange(2 * size)).numpy()
    radius = np.sqrt(-2 * np.log1p(-uniform[:size]))
    normal: Floats = radius * np.cos(2 * np.pi * uniform[size:])
    return normal.reshape(shape)


def _uniform(seed: int, place: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) as hashes of places below 2^32 (SplitMix64), in int64, which wraps and has a sign."""
    mixed = (place + seed * 2**32) * (0x9E3779B97F4A7C15 - 2**64)
    mixed = (mixed ^ ((mixed >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    mixed = (mixed ^ ((mixed >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    mixed = (mixed ^ ((mixed >> 31) & (2**33 - 1))) >> 11 & (2**53 - 1)
    return mixed.double() * 2.0**-53
