"""AUC over all ads and inside auctions, exact: by sorting and counting, without a number per pair of ads."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bidwise.auctions import ad_numbers, auctions_of
from bidwise.auctions.outcome import CHUNK
from bidwise.checks import InputError, check_between, check_weights
from bidwise.segments import Auctions
from bidwise.values import Floats


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
    score, clicked = _score_and_clicks(ctr, clicks)
    if weights is not None:
        mass, order = _weights(weights, score.cpu()), np.argsort(score.cpu().numpy())
        return auc_values(score.cpu().numpy()[order], clicked.cpu().numpy()[order], mass[order])[0]
    shown, passed = _ascending(score[clicked]), _ascending(score[~clicked])
    pairs = len(shown) * len(passed)
    below, not_above = (int(torch.searchsorted(passed, shown, right=right).sum()) for right in (False, True))
    return (below + not_above) / (2 * pairs) if pairs else float("nan")


def auc_values(ctr: Floats, clicked: NDArray[np.bool_], weights: Floats | None = None) -> tuple[float, Floats]:
    """The AUC and the part of every ad in it: numbers with the AUC as weighted mean and its error as spread.

    Ads come in the order of their CTR. With V of a clicked ad the chance that it is above an unclicked one, V of an
    unclicked ad that a clicked one is above it, and s the share (by weight) of its kind (DeLong, DeLong and
    Clarke-Pearson 1988):

        AUC + (V - AUC) / s

    >>> auc_values(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    (0.875, array([1.125, 0.625, 0.625, 1.125]))
    """
    up = np.where(clicked, 1.0 if weights is None else weights, 0.0)
    down = np.where(clicked, 0.0, 1.0 if weights is None else weights)
    clicks, others = float(up.sum()), float(down.sum())
    if not clicks or not others:
        return float("nan"), np.full(len(ctr), np.nan)
    changes = ctr[1:] != ctr[:-1]
    starts = None if changes.all() else np.flatnonzero(np.append(True, changes))
    others_below = _below(down, starts)
    area, share = float((others_below * up).sum()) / (clicks * others), clicks / (clicks + others)
    of_clicked = area + (others_below / others - area) / share
    of_others = area + (1 - area - _below(up, starts) / clicks) / (1 - share)
    return area, np.where(clicked, of_clicked, of_others)


def _below(mass: Floats, starts: NDArray[np.int64] | None) -> Floats:
    """Mass of smaller scores and half of equal ones, along the order of scores; runs of equals, if any, begin at
    ``starts``."""
    sums: Floats = mass.cumsum()
    if starts is None:
        return sums - mass / 2
    ends = np.append(starts[1:], len(mass))
    middle: Floats = np.repeat((sums[starts] - mass[starts] + sums[ends - 1]) / 2, ends - starts)
    return middle


def auction_auc(
    ctr: ArrayLike, clicks: ArrayLike, offsets: ArrayLike | None, *, weights: ArrayLike | None = None
) -> Floats:
    """:func:`auc` inside each auction, ``(auctions,)``; NaN if no ad or every ad was clicked.

    >>> auction_auc([0.1, 0.4, 0.3, 0.3, 0.9], [0, 1, 1, 0, 1], [0, 2, 4, 5])
    array([1. , 0.5, nan])
    """
    scores, of_clicks = _score_and_clicks(ctr, clicks)
    scores, of_clicks = scores.cpu(), of_clicks.cpu()
    mass = None if weights is None else _weights(weights, scores)
    return auction_areas(scores.numpy(), of_clicks.numpy(), auctions_of(scores, offsets), mass)


def auction_areas(
    score: Floats, clicked: NDArray[np.bool_], auctions: Auctions, weights: Floats | None = None
) -> Floats:
    """:func:`auction_auc` of checked columns."""
    areas = np.full(auctions.count, np.nan)
    up = np.where(clicked, 1.0 if weights is None else weights, 0.0)
    down = np.where(clicked, 0.0, 1.0 if weights is None else weights)
    for block in auctions.blocks():
        width = block.rows.shape[1]
        step = max(CHUNK // max(width, 1), 1)
        for start in range(0, len(block.rows) if width else 0, step):
            rows = block.rows[start : start + step].numpy()
            outside = None if block.filled is None else ~block.filled[start : start + step].numpy()
            scores, clicks, others = score[rows], up[rows], down[rows]
            if outside is not None:
                scores[outside], clicks[outside], others[outside] = np.inf, 0, 0
            order = np.argsort(scores, axis=1)
            scores, clicks, others = (np.take_along_axis(x, order, axis=1) for x in (scores, clicks, others))
            below = others.cumsum(axis=1)
            if (same := scores[:, 1:] == scores[:, :-1]).any():
                # of equal scores: the least of the run and, from its end on, the greatest
                first, last = below - others, below.copy()
                first[:, 1:][same], last[:, :-1][same] = 0, np.inf
                first = np.maximum.accumulate(first, axis=1)
                below = (first + np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]) / 2
            pairs = clicks.sum(1) * others.sum(1)
            won = np.divide((clicks * below).sum(1), pairs, out=np.full(len(rows), np.nan), where=pairs > 0)
            areas[auctions.of_ad[rows[:, 0]].numpy()] = won
    return areas


def _ascending(numbers: Tensor) -> Tensor:
    """Sorted on their device; numpy sorts faster on a CPU."""
    return torch.from_numpy(np.sort(numbers.numpy())) if numbers.device.type == "cpu" else numbers.sort().values


def _score_and_clicks(ctr: ArrayLike, clicks: ArrayLike) -> tuple[Tensor, Tensor]:
    score = ad_numbers("ctr", ctr)
    check_between("ctr", score, -np.inf, np.inf)
    return score, clicked_ads(ad_numbers("clicks", clicks, like=score))


def clicked_ads(clicks: Tensor) -> Tensor:
    """Which ads were clicked; raises if a click is not 0 or 1.

    >>> clicked_ads(torch.tensor([0.0, 1.0]))
    tensor([False,  True])
    """
    check_between("clicks", clicks, 0, 1)
    clicked = clicks > 0
    wrong = clicks != clicked
    if bool(wrong.any()):
        at = int(wrong.int().argmax())
        raise InputError(f"clicks must be 0 or 1, found {float(clicks[at]):g} at [{at}]")
    return clicked


def _weights(weights: ArrayLike, score: Tensor) -> Floats:
    numbers = ad_numbers("weights", weights, like=score)
    check_weights(numbers)
    return numbers.numpy()
