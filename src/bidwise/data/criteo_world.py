"""A world shaped like the Criteo Display Advertising Challenge whose true CTR is known, chunk by chunk.

    logit p = INTERCEPT + Σ_c w_c(x_c) + <Σ_{c in user} v_c(x_c), Σ_{c in ad} v_c(x_c)>,      click ~ Bernoulli(p)

Every column has an effect w of its own; columns that tell of the user and columns that tell of the ad also have vectors
v, whose inner product no sum over columns can represent. Both are fixed functions of column and value: files of
different seeds are samples of one world. Columns are correlated through a few hidden variables, values have power-law
frequencies, and a missing value has an effect too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import check_seed, check_whole

Floats = NDArray[np.float64]

CHUNK = 2**16  # ads that are drawn together, from the seed and the number of the chunk alone

# The constants of the logit were fixed by the AUC of models trained on log loss alone, before any other loss met this
# world, and are not to be changed. With a million ads: logistic regression 0.767, factorisation machine 0.784, the same
# with a perceptron (DeepFM) 0.802, the truth 0.824.
WORLD = 20_140_624  # seed of all effects
INTERCEPT = -2.03  # for the click rate of the challenge, 25.6 %
EFFECT = 0.22  # standard deviation of a column's effect w
VECTOR = 0.41  # root mean square length of a column's vector v
DIMENSIONS = 2
HEAD = 1024  # values with an effect of their own; all rarer ones share one
FADE = 16.0  # effects shrink with the rank k of a value as (1 + k / FADE)^(-1/2)
LARGE = 2**16  # counts from here on share an effect

HIDDEN = 6  # hidden uniform variables that tie columns together: three of the user, three of the ad
TIE = 0.35  # share of ads whose value in a column is the hidden variable's, at the same quantile
GROUPS = 11  # of columns that are missing together; group 0 is never missing


class Integer(NamedTuple):
    """A column of counts, floor(scale (u / (1 - u))^shape - shift) for u uniform in [0, 1), at most ``most``.

    >>> Integer(4.0, 0.5, 100, 0.0, 0, 0).drawn(np.array([0.0, 0.5, 0.8]))
    array([0., 4., 8.])
    """

    scale: float  # median
    shape: float  # of the tail: P(x > t) ~ t^(-1 / shape)
    most: int
    missing: float
    group: int
    hidden: int
    vector: bool = False
    shift: float = 0.0

    def drawn(self, uniform: Floats) -> Floats:
        """The value at quantile ``uniform``."""
        with np.errstate(divide="ignore"):  # log 0 is right: the least value
            counts: Floats = self.scale * np.exp(self.shape * np.log(uniform / (1 - uniform))) - self.shift
        return np.minimum(np.floor(counts, out=counts), self.most, out=counts)

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

    def drawn(self, uniform: Floats) -> Floats:
        """The value at quantile ``uniform``."""
        rest = 1 - (self.values + 1) ** (1 - self.power)
        ranks: Floats = np.exp(np.log1p(-rest * uniform) / (1 - self.power))
        ranks = np.floor(ranks, out=ranks) - 1
        return np.clip(ranks, 0, self.values - 1, out=ranks)

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


@dataclass(frozen=True)
class Chunk:
    """Consecutive ads: what the raw file tells of them, and the CTR it does not tell."""

    clicks: NDArray[np.uint8]  # (ads,)
    integers: NDArray[np.int32]  # (ads, 13), 0 where missing
    categories: NDArray[np.uint32]  # (ads, 26), the rank of a value by frequency, from 0; 0 where missing
    missing: NDArray[np.bool_]  # (ads, 39), integers first
    ctr: NDArray[np.float32]  # (ads,)


def chunks(rows: int, seed: int = 0) -> Iterator[Chunk]:
    """``rows`` ads, a chunk at a time; a chunk depends on the seed and its number, never on ``rows``.

    >>> short, = chunks(3, seed=0)
    >>> longer, = chunks(5, seed=0)
    >>> bool((short.categories == longer.categories[:3]).all())
    True
    """
    check_whole("rows", rows, 1)
    check_seed("seed", seed)
    return (chunk_of(seed, number, rows - start) for number, start in enumerate(range(0, rows, CHUNK)))


def chunk_of(seed: int, number: int, rows: int = CHUNK) -> Chunk:
    """Chunk ``number`` of ``seed``, its first ``rows`` ads; it is always drawn and computed as a whole."""
    random = np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(number,))))
    hidden = random.random((HIDDEN, CHUNK))
    gaps = random.random((GROUPS, CHUNK))
    chance = random.random(CHUNK, dtype=np.float32)
    integers = np.empty((len(COUNTS), CHUNK), np.int32)
    categories = np.empty((len(NAMES), CHUNK), np.uint32)
    missing = np.empty((len(FIELDS), CHUNK), np.bool_)
    for index, field in enumerate(FIELDS):
        own = random.random(CHUNK)
        # tied to the hidden variable where own < TIE; what is left of own is uniform again
        uniform = np.where(own < TIE, hidden[field.hidden], (own - TIE) / (1 - TIE))
        np.less(gaps[field.group], field.missing, out=missing[index])
        values = field.drawn(uniform) * ~missing[index]
        if isinstance(field, Integer):
            integers[index] = values
        else:
            categories[index - len(COUNTS)] = values
    ctr = true_ctr(integers.T, categories.T, missing.T)
    clicks = (chance < ctr).astype(np.uint8)
    kept = slice(0, rows)
    return Chunk(clicks[kept], integers.T[kept], categories.T[kept], missing.T[kept], ctr[kept])


def true_ctr(
    integers: NDArray[np.int32], categories: NDArray[np.uint32], missing: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """CTR of any ads of this world, by the formula above.

    Args:
        integers: ``(ads, 13)``.
        categories: ``(ads, 26)``, ranks of values.
        missing: ``(ads, 39)``, where neither counts.
    """
    effects, vectors = world_effects()
    logit = np.full(len(integers), INTERCEPT)
    sides = np.zeros((2, len(integers), DIMENSIONS))
    for index, field in enumerate(FIELDS):
        if isinstance(field, Integer):
            token = buckets().take(np.clip(integers[:, index], -1, LARGE) + 1)
        else:
            token = np.minimum(categories[:, index - len(COUNTS)], HEAD - 1).astype(np.int64) + 1
        token = token * ~missing[:, index]
        logit += effects[index].take(token)
        if field.vector:
            sides[side_of(field)] += vectors[index].take(token, axis=0)
    user, ad = sides
    for dimension in range(DIMENSIONS):
        logit += user[:, dimension] * ad[:, dimension]
    ctr: NDArray[np.float32] = (1 / (1 + np.exp(-logit))).astype(np.float32)
    return ctr


def side_of(field: Integer | Category) -> int:
    """0 for the user's columns, 1 for the ad's."""
    return int(field.hidden >= HIDDEN // 2)


@lru_cache(maxsize=1)
def buckets() -> NDArray[np.int64]:
    """Token of the counts -1 (and below), 0, 1, ...: 1 for negative ones, then 2 + floor(2 log2(1 + count))."""
    return np.concatenate([[1], 2 + np.floor(2 * np.log2(np.arange(1, LARGE + 2))).astype(np.int64)])


@lru_cache(maxsize=1)
def world_effects() -> tuple[Floats, Floats]:
    """Effects ``(39, HEAD + 1)`` and vectors ``(39, HEAD + 1, DIMENSIONS)``, by token; token 0 is a missing value.

    Over values that are there, weighted by how often they are drawn, effects have mean 0 and standard deviation EFFECT,
    vectors mean 0 and root mean square length VECTOR: the inner product has no part that an effect could take.
    """
    random = _normal((len(FIELDS), HEAD + 1, 1 + DIMENSIONS))
    for index, field in enumerate(FIELDS):
        weights = _frequencies(field)[:, None]
        if isinstance(field, Integer):
            random[index, 1:] = np.cumsum(random[index, 1:], axis=0)  # neighbouring counts are alike
        else:
            random[index, 1:] *= (1 + np.arange(HEAD)[:, None] / FADE) ** -0.5
        random[index, 1:] -= (weights * random[index, 1:]).sum(0)
        random[index, 1:] /= np.sqrt((weights * np.square(random[index, 1:])).sum(0))
    effects, vectors = EFFECT * random[..., 0], VECTOR / np.sqrt(DIMENSIONS) * random[..., 1:]
    vectors[:, 0] = 0
    return effects, vectors


def _frequencies(field: Integer | Category) -> Floats:
    """How often tokens 1, 2, ... are drawn, ``(HEAD,)``."""
    least = np.arange(HEAD) if isinstance(field, Category) else np.flatnonzero(np.diff(buckets(), prepend=0)) - 1
    shares: Floats = np.diff(field.below(least), append=1.0)
    return np.pad(shares, (0, HEAD - len(shares)))


def _normal(shape: tuple[int, ...]) -> Floats:
    """Standard normal numbers as hashes of their places (SplitMix64, Box and Muller), the same in any numpy."""
    size = int(np.prod(shape))
    place = np.arange(2 * size, dtype=np.uint64) + np.uint64(WORLD * 2**32)
    mixed = place * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    uniform = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
    radius = np.sqrt(-2 * np.log1p(-uniform[:size]))
    normal: Floats = radius * np.cos(2 * np.pi * uniform[size:])
    return normal.reshape(shape)
