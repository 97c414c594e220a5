"""Rank statistics of ragged auctions, exact: AUC over all ads, AUC inside auctions, agreement with the true order.

All of them sort and count; nothing holds a number per pair of ads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bidwise.auctions import ad_numbers, auctions_of
from bidwise.auctions.columns import Floats
from bidwise.checks import InputError, check_between, check_weights
from bidwise.segments import Auctions

Integers = NDArray[np.int64]

CHUNK = 2**17  # ads at a time: a few such columns stay in cache
NARROW = 256  # widest table whose inversions are counted pair by pair, in bytes


def auc(ctr: ArrayLike, clicks: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Chance that a clicked ad has a higher score than an unclicked one, ties one half; NaN without both kinds.

        AUC = sum_{y_i = 1, y_j = 0} w_i w_j (1{c_i > c_j} + 1/2 1{c_i = c_j}) / sum_{y_i = 1, y_j = 0} w_i w_j

    Without weights the pairs are counted in integers, so the result is exact, and on the device of ``ctr``.

    Args:
        ctr: predicted CTR or any other score, ``(ads,)``.
        clicks: 0 or 1.
        weights: of the ads, no less than 0.

    >>> auc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])
    0.875
    """
    if weights is not None:
        return float(auction_auc(ctr, clicks, None, weights=weights)[0])
    if isinstance(ctr, torch.Tensor) and ctr.device.type != "cpu":
        return _auc_on_device(ctr, clicks)
    score, clicked = _score_and_clicks(ctr, clicks)
    shown, passed = np.sort(score[clicked]), np.sort(score[~clicked])
    pairs = len(shown) * len(passed)
    if not pairs:
        return float("nan")
    below = int(np.searchsorted(passed, shown, side="left").sum())
    not_above = int(np.searchsorted(passed, shown, side="right").sum())
    return (below + not_above) / (2 * pairs)


def auc_values(ctr: Floats, clicked: NDArray[np.bool_], weights: Floats | None = None) -> tuple[float, Floats]:
    """The AUC and what every ad has to do with it: numbers whose weighted mean it is and whose spread is its error.

    With V of a clicked ad the chance that it is above an unclicked one, V of an unclicked ad that a clicked one is
    above it, and s the share (by weight) of its kind (DeLong, DeLong and Clarke-Pearson 1988):

        AUC + (V - AUC) / s

    >>> auc_values(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    (0.875, array([1.125, 0.625, 0.625, 1.125]))
    """
    order = np.argsort(ctr)
    ranked, mine = ctr[order], clicked[order]
    mass = np.broadcast_to(1.0, len(ctr)) if weights is None else weights[order]
    up, down = np.where(mine, mass, 0.0), np.where(mine, 0.0, mass)
    clicks, others = float(up.sum()), float(down.sum())
    if not clicks or not others:
        return float("nan"), np.full(len(ctr), np.nan)
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    values = np.where(mine, _below(down, starts) / others, 1 - _below(up, starts) / clicks)
    area = float(values @ up) / clicks
    values = area + (values - area) * np.where(mine, (clicks + others) / clicks, (clicks + others) / others)
    found = np.empty_like(values)
    found[order] = values
    return area, found


def _below(mass: Floats, starts: Integers) -> Floats:
    """Mass of smaller scores and half of that of equal ones, along the order of scores; runs begin at ``starts``."""
    sums = np.concatenate([[0.0], mass.cumsum()])
    if len(starts) == len(mass):
        return sums[:-1] + mass / 2
    ends = np.append(starts[1:], len(mass))
    middle: Floats = np.repeat((sums[starts] + sums[ends]) / 2, ends - starts)
    return middle


def _auc_on_device(ctr: torch.Tensor, clicks: ArrayLike) -> float:
    """:func:`auc` in torch: millions of numbers stay where they are. numpy sorts faster on a CPU.

    >>> _auc_on_device(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.875
    """
    score = ad_numbers("ctr", ctr)
    numbers = ad_numbers("clicks", clicks, like=score)
    check_between("ctr", score, -np.inf, np.inf)
    clicked = numbers == 1
    if bool((numbers[~clicked] != 0).any()):
        clicked_ads(numbers.cpu())  # names the first that is neither
    shown, passed = score[clicked], score[~clicked].sort().values
    pairs = len(shown) * len(passed)
    if not pairs:
        return float("nan")
    below, not_above = (int(torch.searchsorted(passed, shown, right=right).sum()) for right in (False, True))
    return (below + not_above) / (2 * pairs)


def auction_auc(
    ctr: ArrayLike, clicks: ArrayLike, offsets: ArrayLike | None, *, weights: ArrayLike | None = None
) -> Floats:
    """:func:`auc` inside each auction, ``(auctions,)``; NaN where no ad or every ad was clicked.

        AUC = 1/2 + (wins - losses) / (2 pairs)

    >>> auction_auc([0.1, 0.4, 0.3, 0.3, 0.9], [0, 1, 1, 0, 1], [0, 2, 4, 5])
    array([1. , 0.5, nan])
    """
    score, clicked = _score_and_clicks(ctr, clicks)
    auctions = auctions_of(torch.from_numpy(score), offsets)
    mass = np.ones(len(score)) if weights is None else _weights(weights, score)
    out = np.full(auctions.count, np.nan)
    for table in _tables(auctions):
        order, first = _sorted_runs(table.of(score, np.inf))
        weight = np.take_along_axis(table.of(mass, 0.0), order, 1)
        up = weight * np.take_along_axis(table.of(clicked, False), order, 1)
        down = weight - up
        wins = (up * _before(down, first)).sum(1)
        losses = (down * _before(up, first)).sum(1)
        pairs = up.sum(1) * down.sum(1)
        both = pairs > 0
        out[table.members[both]] = 0.5 + (wins - losses)[both] / (2 * pairs[both])
    return out


def rank_agreement(ecpm: ArrayLike, value: ArrayLike, offsets: ArrayLike | None) -> tuple[Floats, Integers]:
    """How many pairs of an auction the predicted eCPM orders as the value does, ties of eCPM one half.

        pairs M = |{i < j: v_i != v_j}|,   agreeing = M - D - T / 2

    with Kendall's counts: D pairs in opposite order and T pairs of different value with equal eCPM. In the order of
    (eCPM, value) D is the number of inversions of the value. Returns (agreeing, pairs), each ``(auctions,)``.

    Args:
        ecpm: predicted eCPM, finite.
        value: b times clicks or true CTR, finite.
        offsets: bounds of the auctions; ``None`` for a single auction.

    >>> rank_agreement([1.0, 2.0, 3.0, 3.0, 5.0], [0.0, 7.0, 1.0, 2.0, 2.0], [0, 3, 5])
    (array([2., 0.]), array([3, 0]))
    """
    scores, values = ad_numbers("ecpm", ecpm).cpu(), ad_numbers("value", value).cpu()
    greatest = np.finfo(np.float64).max
    check_between("ecpm", scores, -greatest, greatest)
    check_between("value", ad_numbers("value", values, like=scores), -greatest, greatest)
    auctions = auctions_of(scores, offsets)
    agreeing, pairs = np.zeros(auctions.count), np.zeros(auctions.count, np.int64)
    for table in _tables(auctions):
        score_rank, score_ties = _ranks(table.of(scores.numpy(), np.inf))
        value_rank, value_ties = _ranks(table.of(values.numpy(), np.inf))
        bits = value_rank.shape[1].bit_length()
        keys = np.sort((score_rank << bits) | value_rank, axis=1)  # by eCPM, then by value
        both_ties = _tied_pairs(_first_of_run(keys))
        ads, padding = table.ads, keys.shape[1] - table.ads
        different = ads * (ads - 1) // 2 - (value_ties - padding * (padding - 1) // 2)
        opposite = _inversions(keys & ((1 << bits) - 1))
        undecided = score_ties - both_ties
        pairs[table.members] = different
        agreeing[table.members] = different - opposite - 0.5 * undecided
    return agreeing, pairs


@dataclass(frozen=True)
class _Table:
    """Auctions of similar size as a rectangle of rows, a chunk at a time."""

    members: Integers  # which auctions, (k,)
    rows: Integers  # (k, width)
    filled: NDArray[np.bool_] | None

    @property
    def ads(self) -> Integers:
        """Ads of each auction, ``(k,)``."""
        return np.full(len(self.rows), self.rows.shape[1]) if self.filled is None else self.filled.sum(1)

    def of(self, per_ad: NDArray[Any], padding: float | bool) -> NDArray[Any]:
        """The column of these auctions, ``(k, width)``."""
        cells = per_ad[self.rows]
        return cells if self.filled is None else np.where(self.filled, cells, padding)


def _tables(auctions: Auctions) -> Iterator[_Table]:
    offsets = auctions.offsets.numpy()
    for block in auctions.blocks():
        rows, filled = block.rows.numpy(), None if block.filled is None else block.filled.numpy()
        if rows.size == 0:
            continue
        members = np.searchsorted(offsets, rows[:, 0], side="right") - 1  # past empty auctions at the same row
        step = max(1, CHUNK // rows.shape[1])
        for k in range(0, len(rows), step):
            part = slice(k, k + step)
            yield _Table(members[part], rows[part], None if filled is None else filled[part])


def _first_of_run(ordered: NDArray[Any]) -> Integers:
    """Where the run of equal numbers began, at every place of sorted rows: ``[[3, 3, 8]] -> [[0, 0, 2]]``."""
    place = np.broadcast_to(np.arange(ordered.shape[1]), ordered.shape).copy()
    place[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = 0
    return np.maximum.accumulate(place, axis=1)


def _sorted_runs(table: NDArray[Any]) -> tuple[Integers, Integers]:
    order = np.argsort(table, axis=1)
    return order, _first_of_run(np.take_along_axis(table, order, 1))


def _ranks(table: NDArray[Any]) -> tuple[Integers, Integers]:
    """How many of its row are smaller, for every number; and the pairs of equal numbers of every row."""
    order, first = _sorted_runs(table)
    ranks = np.empty_like(first)
    np.put_along_axis(ranks, order, first, 1)
    return ranks, _tied_pairs(first)


def _tied_pairs(first: Integers) -> Integers:
    """A run of c has c (c - 1) / 2 pairs: the sum of its places 0, 1, ..., c - 1."""
    width = first.shape[1]
    places: int = width * (width - 1) // 2
    tied: Integers = places - first.sum(1)
    return tied


def _before(mass: Floats, first: Integers) -> Floats:
    """Mass of the smaller scores: all that stands before the run of equal scores."""
    return np.take_along_axis(mass.cumsum(1) - mass, first, 1)


def _inversions(ranks: Integers) -> Integers:
    """Pairs of every row where the larger number comes first.

    Rows are cut into narrow pieces, counted pair by pair, then merged by twos: in each merge a number of the left
    piece is inverted with the numbers of the right piece that sort before it. O(n log^2 n).

    >>> _inversions(np.array([[2, 0, 1], [0, 1, 1]]))
    array([2, 0])
    """
    count, width = ranks.shape
    pieces = 1
    while width > NARROW * pieces:
        pieces *= 2
    piece = -(-width // pieces)
    padded = np.full((count, pieces * piece), width, np.int32 if width < 2**30 else np.int64)  # sorts last
    padded[:, :width] = ranks
    runs = padded.reshape(count * pieces, piece)
    total: Integers = _narrow_inversions(runs).reshape(count, pieces).sum(1)
    if pieces > 1:
        runs.sort(axis=1)
    while pieces > 1:
        pieces, piece = pieces // 2, piece * 2
        runs = 2 * runs.reshape(count * pieces, piece)
        runs[:, piece // 2 :] += 1  # the side, so that a left number sorts before its equals on the right
        runs.sort(axis=1)
        right = runs & 1
        total += (right.cumsum(1) * (1 - right)).reshape(count, -1).sum(1)
        runs >>= 1
    return total


def _narrow_inversions(ranks: NDArray[Any]) -> Integers:
    """Inversions of rows no wider than NARROW: one comparison of all neighbours at distance 1, 2, ..."""
    count, width = ranks.shape
    total = np.zeros(count, np.int64)
    dense = ranks if ranks.max() < 2**15 else _ranks(ranks)[0]
    step = max(1, 2**16 // width)
    for k in range(0, count, step):
        columns = np.ascontiguousarray(dense[k : k + step].T, dtype=np.int16)  # neighbours are whole rows of this
        after = np.zeros(columns.shape, np.uint8)  # later and smaller, at most width - 1
        larger = np.empty(columns.shape, np.bool_)
        for distance in range(1, width):
            here = slice(0, width - distance)
            np.greater(columns[here], columns[distance:], out=larger[here])
            after[here] += larger[here].view(np.uint8)
        total[k : k + step] = after.sum(0, dtype=np.int64)
    return total


def _score_and_clicks(ctr: ArrayLike, clicks: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    score = ad_numbers("ctr", ctr).cpu()
    check_between("ctr", score, -np.inf, np.inf)
    return score.numpy(), clicked_ads(ad_numbers("clicks", clicks, like=score))


def clicked_ads(clicks: torch.Tensor) -> NDArray[np.bool_]:
    """Which ads were clicked; raises where a click is not 0 or 1.

    >>> clicked_ads(torch.tensor([0.0, 1.0]))
    array([False,  True])
    """
    check_between("clicks", clicks, 0, 1)
    numbers = clicks.numpy()
    clicked = numbers > 0
    if not np.array_equal(numbers, clicked):
        at = int(np.argmax(numbers != clicked))
        raise InputError(f"clicks must be 0 or 1, found {numbers[at]:g} at [{at}]")
    return clicked


def _weights(weights: ArrayLike, score: Floats) -> Floats:
    numbers = ad_numbers("weights", weights, like=torch.from_numpy(score))
    check_weights(numbers)
    return numbers.numpy()
