"""Welfare, regret, revenue and the advertisers' surplus of every auction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from bidwise.auctions.outcome import ad_numbers, auctions_of, highest, run_auction, slot_multipliers
from bidwise.checks import check_between, check_bids


def welfare(
    ctr: ArrayLike,
    truth: ArrayLike,
    bids: ArrayLike,
    offsets: ArrayLike | None,
    *,
    slots: Sequence[float] = (1.0,),
    reserve: float = 0.0,
    squash: float = 1.0,
) -> Tensor:
    """Welfare of every auction when ads are shown in the order of predicted eCPM, ``(auctions,)`` in float64.

        welfare = sum_k alpha_k b_i truth_i,   i = the ad with the k-th highest b_i ctr_i

    the objective of eq. 1 with the position multipliers it omits; the mean over all orders of ads of equal
    eCPM, here and in the other measures. An auction with fewer ads than slots leaves the last ones empty.

    Args:
        ctr: predicted CTR in [0, 1], ``(ads,)``; decides who is shown.
        truth: clicks or true CTR in [0, 1]; determines the welfare.
        bids: cost-per-click bids, above 0.
        offsets: bounds of the auctions, ``(auctions + 1,)``; ``None`` for a single auction.
        slots: position multipliers alpha, the first 1, then positive and never rising.
        reserve, squash: rules of the auction, no less than 0, as in :func:`run_auction`.

    >>> ctr, bids = [0.1, 0.4, 0.9], [10.0, 2.0, 0.5]  # Example 2.1
    >>> welfare(ctr, ctr, bids, None, slots=(1.0, 0.9))
    tensor([1.7200], dtype=torch.float64)
    """
    ctr, truth, bids = _columns(ctr, truth, bids)
    sold = run_auction(ctr, bids, offsets, slots=slots, pricing="first_price", reserve=reserve, squash=squash)
    return sold.welfare(truth, bids)


def optimal_welfare(
    truth: ArrayLike, bids: ArrayLike, offsets: ArrayLike | None, *, slots: Sequence[float] = (1.0,)
) -> Tensor:
    """The best :func:`welfare` any prediction could reach in every auction: the order of b_i truth_i.

    >>> optimal_welfare([0.1, 0.4, 0.9], [10.0, 2.0, 0.5], None)
    tensor([1.], dtype=torch.float64)
    """
    truth = ad_numbers("truth", truth)
    bids = ad_numbers("bids", bids, like=truth)
    check_between("truth", truth, 0, 1)
    check_bids(bids)
    alpha = slot_multipliers(slots).to(truth.device)
    best = highest(bids * truth, auctions_of(truth, offsets), len(alpha))[1]
    return (alpha * best.clamp(min=0)).sum(-1)


def regret(ctr: ArrayLike, truth: ArrayLike, bids: ArrayLike, offsets: ArrayLike | None, **rules: Any) -> Tensor:
    """Optimal welfare - :func:`welfare`: the loss of every auction due to the prediction and its rules.

    >>> regret([0.5, 0.1], [0.25, 0.5], [1.0, 1.0], None)
    tensor([0.2500], dtype=torch.float64)
    """
    reached = welfare(ctr, truth, bids, offsets, **rules)
    return optimal_welfare(truth, bids, offsets, slots=rules.get("slots", (1.0,))).to(reached.device) - reached


def revenue(ctr: ArrayLike, truth: ArrayLike, bids: ArrayLike, offsets: ArrayLike | None, **rules: Any) -> Tensor:
    """Payments of the advertisers of every auction to the platform; ``rules`` are the options of :func:`run_auction`.

        revenue = sum_k alpha_k truth_i price_i,   i = the ad in slot k, which pays price_i per click

    >>> ctr, bids = [0.1, 0.4, 0.9], [10.0, 2.0, 0.5]  # Example 2.1
    >>> revenue(ctr, ctr, bids, None, slots=(1.0, 0.9))
    tensor([1.2050], dtype=torch.float64)
    """
    ctr, truth, bids = _columns(ctr, truth, bids)
    return run_auction(ctr, bids, offsets, **rules).revenue(truth)


def surplus(ctr: ArrayLike, truth: ArrayLike, bids: ArrayLike, offsets: ArrayLike | None, **rules: Any) -> Tensor:
    """Welfare - :func:`revenue`: the advertisers' surplus in every auction, sum_k alpha_k truth_i (b_i - price_i).

    >>> ctr, bids = [0.1, 0.4, 0.9], [10.0, 2.0, 0.5]  # Example 2.1
    >>> surplus(ctr, ctr, bids, None, slots=(1.0, 0.9))
    tensor([0.5150], dtype=torch.float64)
    """
    ctr, truth, bids = _columns(ctr, truth, bids)
    return run_auction(ctr, bids, offsets, **rules).surplus(truth, bids)


def _columns(ctr: ArrayLike, truth: ArrayLike, bids: ArrayLike) -> tuple[Tensor, Tensor, Tensor]:
    ctr = ad_numbers("ctr", ctr)
    truth = ad_numbers("truth", truth, like=ctr)
    check_between("truth", truth, 0, 1)
    return ctr, truth, ad_numbers("bids", bids, like=ctr)
