"""Sections 2 and 3: welfare is a matter of order, and what the losses on clicks say about it.

Throughout, v = b p is the true and s = b f the predicted eCPM; i* has the highest v, j* the highest s, and W
is the welfare. Expectations over clicks are exact: the losses are linear in them, so p takes their place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bidwise.auctions import slot_multipliers
from bidwise.checks import check_name, check_positive
from paper.theory.instance import Instance, Sides, bid_cap_of, tied

SURROGATES = ("logistic", "hinge")


def welfare_lost(instance: Instance) -> Sides:
    """Eq. 2: the welfare lost is the one pair (i*, j*) of a sum over pairs.

        W_* - W_f  ==  sum_ij (v_i - v_j) 1{i = i*} 1{j = j*} 1{s_i <= s_j}

    and its mean over j* where several ads have the highest s.

    >>> print(welfare_lost(Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6])))
    0.25 == 0.25: holds
    """
    shown = (instance.ecpm == instance.ecpm.max()).double()
    deciding = torch.zeros(len(instance), len(instance), dtype=torch.float64)
    deciding[instance.true_ecpm.argmax()] = shown / shown.sum()
    return Sides(instance.best_welfare() - instance.welfare(), instance.loss(weights=deciding), "==")


def truth_is_optimal(instance: Instance, slots: Sequence[float] = (1.0,)) -> Sides:
    """Prop. 2.2, second half: no prediction beats the true CTR.

        W_f  <=  W_*

    >>> print(truth_is_optimal(Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6])))
    0.25 <= 0.5: holds
    """
    return Sides(instance.welfare(slots), instance.best_welfare(slots), "<=")


def slot_order(instance: Instance, slots: Sequence[float]) -> Sides:
    """Lemma A.1: welfare over K slots is maximal exactly when every slot shows the ad it should.

        1{W_f = W_*}  ==  1{pi_f(k) = pi_*(k) for k = 1 .. K}

    Needs true eCPMs and multipliers without ties: two equal slots can be swapped at no cost.

    >>> swapped = Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6])
    >>> print(slot_order(swapped, slots=(1.0, 0.5)))
    0 == 0: holds
    >>> print(slot_order(swapped, slots=(1.0, 1.0)))
    1 == 0: fails (an instance with ties, which the statement excludes)
    """
    ecpm = instance.ecpm[_order(instance.true_ecpm)]
    highest_below = ecpm.flip(0).cummax(0).values.flip(0)[1:]
    in_place = bool((ecpm[:-1] > highest_below)[: len(slots)].all())  # and no tie could show another ad
    ties = tied(instance.true_ecpm) or tied(slot_multipliers(slots))
    return Sides(_is_best(instance, slots), float(in_place), "==", ties)


def single_slot_reduction(instance: Instance, slots: Sequence[float]) -> Sides:
    """Prop. 2.2: K slots are K auctions of one slot, each among the ads that belong below the last slot.

        1{W_f = W_* over K slots}  ==  1{W_f = W_* with one slot among S_k, for k = 0 .. K - 1}

    where S_0 is all ads and S_k = {i : v_i < v_pi_*(k)}. Needs what Lemma A.1 needs.

    >>> in_order = Instance([1.0, 2.0], truth=[0.5, 0.3], prediction=[0.1, 0.6])
    >>> print(single_slot_reduction(in_order, slots=(1.0, 0.5)))
    1 == 1: holds
    """
    true_ecpm = instance.true_ecpm
    below = [true_ecpm < true_ecpm[row] for row in _order(true_ecpm)[: len(slots) - 1]]
    auctions = [instance, *(instance.among(ads) for ads in below if ads.any())]
    ties = tied(true_ecpm) or tied(slot_multipliers(slots))
    return Sides(_is_best(instance, slots), min(_is_best(each) for each in auctions), "==", ties)


def ranking_minimises_risk(instance: Instance) -> Sides:
    """Prop. 3.1: the conditional risk is least exactly when every pair is in its true order.

        1{R(f) = min R}  ==  1{v_i >= v_j if and only if s_i >= s_j, for all i and j}

    Needs true eCPMs without ties: a pair of equals costs nothing in any order.

    >>> print(ranking_minimises_risk(Instance([1.0, 2.0], truth=[0.5, 0.3], prediction=[0.1, 0.6])))
    1 == 1: holds
    """
    true_order = instance.true_ecpm[:, None] >= instance.true_ecpm
    order = instance.ecpm[:, None] >= instance.ecpm
    least = Sides(instance.loss(), -instance.spread / 2, "<=", scale=0.0).holds
    return Sides(float(least), float(torch.equal(order, true_order)), "==", tied(instance.true_ecpm))


def least_risk(instance: Instance) -> Sides:
    """Prop. 3.1 and Thm. 3.2: the true CTR has the least conditional risk, and this is it.

        min_f R(f)  =  R(p)  ==  -1/2 sum_ij |v_i - v_j|

    >>> print(least_risk(Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6])))
    -0.25 == -0.25: holds
    """
    return Sides(instance.predicting(instance.truth).loss(), -instance.spread / 2, "==")


def risk_bounds_welfare(instance: Instance) -> Sides:
    """Thm. 3.2: a small conditional risk means high welfare.

        W_*  <=  W_f + 1/2 R(f) + 1/4 sum_ij |v_i - v_j|

    An equality for every minimiser of R. Tied predictions have no risk, so it needs ties broken at random: W_f is
    the mean. Where a tie shows the worse ad it fails, and :func:`mistakes_bound_welfare` survives.

    >>> print(risk_bounds_welfare(Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6])))
    0.5 <= 0.5: holds
    """
    right = instance.welfare() + instance.loss() / 2 + instance.spread / 4
    return Sides(instance.best_welfare(), right, "<=")


def mistakes_identity(instance: Instance) -> Sides:
    """The step behind Thm. 3.2: without ties, risk above its minimum is twice the mistakes, each at its cost.

        l^+(f)  ==  1/2 R(f) + 1/4 sum_ij |v_i - v_j|

    with l^+(f) = sum_ij (v_i - v_j)_+ 1{s_i <= s_j} (eq. 13).

    >>> print(mistakes_identity(Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6])))
    0.25 == 0.25: holds
    """
    right = instance.loss() / 2 + instance.spread / 4
    return Sides(instance.loss(gap="positive"), right, "==", tied(instance.ecpm))


def log_loss_risk(prediction: Tensor, truth: Tensor) -> float:
    """Expected log loss over clicks, summed over ads."""
    return float(-(torch.xlogy(truth, prediction) + torch.xlogy(1 - truth, 1 - prediction)).sum())


def composite_margin(
    instance: Instance, lam: float = 3.0, *, pointwise: Callable[[Tensor, Tensor], float] = log_loss_risk
) -> Sides:
    """Prop. 3.3: with the ranking loss added, the true CTR leads by no less than under the pointwise loss h.

        lam (h(f) - h(p))  <=  (R(f) + lam h(f)) - (R(p) + lam h(p))

    so p is the unique minimiser of R + lam h wherever it is that of h. ``pointwise`` is h(prediction, truth),
    the expectation over clicks. True of the indicator loss and, with a perfect teacher, of eq. 7; not of the signed
    surrogates, eq. 5 and 6.

    >>> composite_margin(Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6])).holds
    True
    """
    check_positive("lam", lam)
    true = instance.predicting(instance.truth)
    margin = pointwise(instance.prediction, instance.truth) - pointwise(instance.truth, instance.truth)
    return Sides(lam * margin, instance.loss() - true.loss() + lam * margin, "<=")


def surrogate_error(
    instance: Instance, surrogate: str, *, sigma: float | None = None, bid_cap: float | None = None
) -> Sides:
    """Thm. 3.4: the expected surrogate loss stays near the conditional risk; bids at most B = ``bid_cap``.

        |E l_sigma(f) - R(f)|  <=  1/2 max(1, sigma B - 1) sum_ij |v_i - v_j|

    for ``logistic`` (eq. 5) and ``hinge`` (eq. 6). The default sigma = 2 / B gives the theorem: its factor
    is 1. No R(f) is farther than that from 0, so a loss that is always 0 satisfies it too.

    >>> print(surrogate_error(Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6]), "hinge"))
    0 <= 0.25: holds
    """
    check_name("surrogate", surrogate, SURROGATES)
    cap = bid_cap_of([instance], bid_cap)
    slope = 2 / cap if sigma is None else sigma
    check_positive("sigma", slope)
    left = abs(instance.loss(surrogate=surrogate, sigma=slope) - instance.loss())
    return Sides(left, max(1.0, slope * cap - 1) * instance.spread / 2, "<=")


def covariance_form(instance: Instance, surrogate: str, *, sigma: float = 1.0) -> Sides:
    """Eq. 5 and 6 are one loss: both orders of a pair add up to a product.

        E l_sigma(f)  ==  -sigma n^2 Cov(v, s)

    >>> print(covariance_form(Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6]), "logistic"))
    0.125 == 0.125: holds
    """
    check_name("surrogate", surrogate, SURROGATES)
    centred = (instance.true_ecpm - instance.true_ecpm.mean()) * (instance.ecpm - instance.ecpm.mean())
    right = -sigma * len(instance) ** 2 * float(centred.mean())
    return Sides(instance.loss(surrogate=surrogate, sigma=sigma), right, "==")


def click_order_agreement(epsilon: float) -> Sides:
    """Prop. 3.5: for any 0 < epsilon < 1/2 there are two ads whose clicks almost never order them rightly.

        Pr(1{b_i y_i >= b_j y_j} = 1{b_i p_i >= b_j p_j})  ==  epsilon

    for the ads of :func:`misleading_pair`.

    >>> print(click_order_agreement(0.1))
    0.1 == 0.1: holds
    """
    return Sides(order_agreement(misleading_pair(epsilon)), epsilon, "==")


def misleading_pair(epsilon: float) -> Instance:
    """The two ads of Prop. 3.5: the first is worth twice as much and hardly ever clicked.

        p_j = 1 - epsilon / 2,   p_i = 1 - (1 - epsilon) / p_j,   b_i = 2 / p_i,   b_j = 1 / p_j

    >>> misleading_pair(0.4).truth
    tensor([0.2500, 0.8000], dtype=torch.float64)
    """
    if not 0 < epsilon < 0.5:
        raise ValueError(f"epsilon must be between 0 and 1/2, found {epsilon}")
    p_j = 1 - epsilon / 2
    p_i = (epsilon / 2) / p_j  # = 1 - (1 - epsilon) / p_j, without the cancellation
    return Instance([2 / p_i, 1 / p_j], truth=[p_i, p_j], prediction=[p_i, p_j])


def order_agreement(pair: Instance) -> float:
    """Pr(1{b_i y_i >= b_j y_j} = 1{b_i p_i >= b_j p_j}) for two ads, summed over the outcomes of their
    clicks.

    >>> order_agreement(Instance([2.0, 1.0], truth=[0.5, 0.5], prediction=[0.5, 0.5]))
    0.75
    """
    if len(pair) != 2:
        raise ValueError(f"pair must have 2 ads, found {len(pair)}")
    (b_i, b_j), (p_i, p_j) = pair.bids.tolist(), pair.truth.tolist()
    in_order = b_i * p_i >= b_j * p_j
    chances = [
        (p_i if y_i else 1 - p_i) * (p_j if y_j else 1 - p_j)
        for y_i, y_j in itertools.product((0, 1), repeat=2)
        if (b_i * y_i >= b_j * y_j) == in_order
    ]
    return float(sum(chances))


def _order(ecpm: Tensor) -> Tensor:
    return ecpm.argsort(descending=True, stable=True)


def _is_best(instance: Instance, slots: Sequence[float] = (1.0,)) -> float:
    """1 if the prediction's welfare is the maximum, 0 otherwise."""
    return float(instance.welfare(slots) >= instance.best_welfare(slots))  # the same sum where the order is the same
