"""AUC over all ads and inside auctions, exact: by sorting and counting, without a number per pair of ads."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bidwise.auctions import ad_numbers, auctions_of
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
    ups, downs = np.flatnonzero(clicked), np.flatnonzero(~clicked)
    mass = np.ones(len(ctr)) if weights is None else weights
    starts = np.flatnonzero(np.append(True, ctr[1:] != ctr[:-1])) if len(ctr) else ups
    clicks, others = float(mass[ups].sum()), float(mass[downs].sum())
    others_below = _below(np.where(clicked, 0.0, mass), starts)[ups]
    clicked_below = _below(np.where(clicked, mass, 0.0), starts)[downs]
    values = np.full(len(ctr), np.nan)
    if not clicks or not others:
        return float("nan"), values
    area = float((others_below if weights is None else others_below * weights[ups]).sum()) / (clicks * others)
    share = clicks / (clicks + others)
    values[ups] = area + (others_below / others - area) / share
    values[downs] = area + (1 - area - clicked_below / clicks) / (1 - share)
    return area, values


def _below(mass: Floats, starts: NDArray[np.int64]) -> Floats:
    """Mass of smaller scores and half of equal ones, along the order of scores; runs begin at ``starts``."""
    sums = np.append(0.0, mass.cumsum())
    ends = np.append(starts[1:], len(mass))
    middle: Floats = np.repeat((sums[starts] + sums[ends]) / 2, ends - starts)
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
    of_ad = auctions.of_ad.numpy()
    key = of_ad * len(score)
    key[np.argsort(score)] += np.arange(len(score))
    order = np.argsort(key)  # auction by auction in the order of scores: two sorts of one column, which are vectorised
    score, clicked = score[order], clicked[order]
    mass = np.ones(len(score)) if weights is None else weights[order]
    runs = np.append(True, (score[1:] != score[:-1]) | (of_ad[1:] != of_ad[:-1]))[: len(score)]
    up, down = mass * clicked, mass * ~clicked
    before = auctions.prefix(torch.from_numpy(down)).numpy()
    starts = np.flatnonzero(runs)
    ends, auction = np.append(starts[1:], len(score))[: len(starts)], of_ad[starts]  # their sums have one place more
    middle = np.repeat((before[starts + auction] + before[ends + auction]) / 2, ends - starts)
    won, clicks, others = (auctions.sum(torch.from_numpy(x)).numpy() for x in (up * middle, up, down))
    pairs = clicks * others
    areas: Floats = np.divide(won, pairs, out=np.full(auctions.count, np.nan), where=pairs > 0)
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
