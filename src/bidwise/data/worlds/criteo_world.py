"""A world shaped like the Criteo Display Advertising Challenge whose true CTR is known, as raw text of any length.

    logit p = INTERCEPT + Σ_c w_c(x_c) + <Σ_{c in user} v_c(x_c), Σ_{c in ad} v_c(x_c)>,      click ~ Bernoulli(p)

Every column has an effect w of its own; columns that tell of the user and columns that tell of the ad also have vectors
v, whose inner product no sum over columns can represent. Both are fixed functions of column and value: files of
different seeds are samples of one world. Columns are correlated through a few hidden variables, values have power-law
frequencies, and a missing value has an effect too.
"""

from __future__ import annotations

import gzip
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import check_whole
from bidwise.data.worlds.criteo_columns import COUNTS, FIELDS, GROUPS, HIDDEN, NAMES, TIE, Category, Integer
from bidwise.data.worlds.criteo_text import lines, write_raw
from bidwise.urls import check_on_disk

Floats = NDArray[np.float64]

CHUNK = 2**16  # ads that are drawn together, from the seed and the number of the chunk alone
WORKERS = 4  # chunks in work at once, at most: each takes some 60 MB
FIRST = 16 * CHUNK  # ads whose clicks are handed back

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


@dataclass(frozen=True)
class Chunk:
    """Consecutive ads: what the raw file tells of them, and the CTR it does not tell."""

    clicks: NDArray[np.uint8]  # (ads,)
    integers: NDArray[np.int32]  # (ads, 13), 0 where missing
    categories: NDArray[np.uint32]  # (ads, 26), the rank of a value by frequency, from 0; 0 where missing
    missing: NDArray[np.bool_]  # (ads, 39), integers first
    ctr: NDArray[np.float32]  # (ads,)

    def lines(self) -> bytes:
        """The ads in the raw layout."""
        return lines(self.clicks, self.integers, self.categories, self.missing)


@dataclass(frozen=True)
class Simulated:
    """What was written."""

    out: Path
    truth: Path  # true CTR, float32, a number for each line of out
    rows: int
    click_rate: float
    first_clicks: NDArray[np.uint8]  # of the first million ads (2^20), or of all


def chunks(rows: int, seed: int = 0) -> Iterator[Chunk]:
    """``rows`` ads, a chunk at a time; a chunk depends on the seed and its number, never on ``rows``.

    >>> short, = chunks(3, seed=0)
    >>> longer, = chunks(5, seed=0)
    >>> bool((short.categories == longer.categories[:3]).all())
    True
    """
    check_whole("rows", rows, 1)
    check_whole("seed", seed, 0)
    return (_chunk(seed, number, rows - start) for number, start in enumerate(range(0, rows, CHUNK)))


def _chunk(seed: int, number: int, rows: int = CHUNK) -> Chunk:
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
    found: Floats = radius * np.cos(2 * np.pi * uniform[size:])
    return found.reshape(shape)


def simulate(
    out: str | Path, rows: int, *, seed: int = 0, progress: Callable[[str, float], None] | None = None
) -> Simulated:
    """Write ``rows`` ads to ``out`` in the raw layout, gzipped if it ends in .gz; their true CTR to ``out``.ctr.npy.

    A few chunks are in memory at a time, however many rows there are. The first lines of a longer file are those of a
    shorter one.

    Args:
        out: file to write; its folder is made.
        rows: how many ads.
        seed: of ads and clicks; what makes people click is the same for all seeds.
        progress: called with a word and the share that is done.
    """
    check_whole("rows", rows, 1)
    check_whole("seed", seed, 0)
    check_on_disk("out", out, "a file", "copy it afterwards")
    out = Path(out)
    clicks: list[int] = []
    first: list[NDArray[np.uint8]] = []

    def written() -> Iterator[tuple[bytes, NDArray[np.float32]]]:
        for number, (chunk, text) in enumerate(made):
            yield text, chunk.ctr
            clicks.append(int(chunk.clicks.sum()))
            if number < FIRST // CHUNK:
                first.append(chunk.clicks)
            if progress is not None:
                progress("simulating", min(1.0, (number + 1) * CHUNK / rows))

    with closing(_in_order(rows, seed, out.suffix == ".gz")) as made:
        truth = write_raw(out, rows, written())
    return Simulated(out, truth, rows, sum(clicks) / rows, np.concatenate(first))


def _in_order(rows: int, seed: int, compress: bool) -> Generator[tuple[Chunk, bytes], None, None]:
    """Chunks with their text; a few are in work at once, and handed on in order."""

    def work(number: int) -> tuple[Chunk, bytes]:
        chunk = _chunk(seed, number, rows - number * CHUNK)
        text = chunk.lines()
        return chunk, gzip.compress(text, 1, mtime=0) if compress else text

    workers = min(WORKERS, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[tuple[Chunk, bytes]]] = deque()
    try:
        for number in range(-(-rows // CHUNK)):
            waiting.append(pool.submit(work, number))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
