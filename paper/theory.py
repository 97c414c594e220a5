"""The paper's statements on finite instances: each function returns both sides of one of them.

An :class:`Instance` is one auction whose true CTR is known. A statement is a function of it that returns
:class:`Sides`, two numbers and the relation claimed between them: to be checked, plotted or broken. Statements about
expectations take a list of instances, each as likely as the others.

Throughout, v = b p is the true, t = b p-hat the teacher's and s = b f the predicted eCPM; i* has the highest v, j* the
highest s; W is the welfare, and no bid is above B = ``bid_cap``. Expectations over clicks are exact: the signed losses
are linear in them, so p takes their place.

>>> auction = Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6])
>>> print(welfare_lost(auction), risk_bounds_welfare(auction), sep="; ")
0.25 == 0.25: holds; 0.5 <= 0.5: holds
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bidwise.auctions import ad_numbers, slot_multipliers, welfare
from bidwise.checks import InputError
from bidwise.losses.definition import pair_sum

ROUNDING = 1e-12  # of the scale of an instance: what float64 sums over a few hundred pairs may lose, with room to spare


@dataclass(frozen=True)
class Sides:
    """Both sides of a statement, ``left relation right``, with the relation ``<=`` or ``==``.

    Statements about properties have sides 0 or 1 (false or true): there ``==`` is "if and only if".
    ``ties`` says that the instance has ties which the statement excludes; then it claims nothing.

    >>> print(Sides(0.25, 0.5, "<="))
    0.25 <= 0.5: holds
    """

    left: float
    right: float
    relation: str
    ties: bool = False
    scale: float = field(default=0.0, compare=False)  # size of the numbers that went into the sides, for rounding

    @property
    def holds(self) -> bool:
        """Whether the relation is true of the two numbers, up to rounding."""
        rounding = ROUNDING * max(self.scale, abs(self.left), abs(self.right))
        if self.relation == "<=":
            return self.left <= self.right + rounding
        return self.left == self.right or abs(self.left - self.right) <= rounding

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "fails"
        excused = " (an instance with ties, which the statement excludes)" if self.ties else ""
        return f"{self.left:.6g} {self.relation} {self.right:.6g}: {verdict}{excused}"


@dataclass(frozen=True, init=False, eq=False)
class Instance:
    """One auction in which everything is known: bids b, true CTR p, predicted CTR f and a teacher's CTR.

    Every argument is one number per ad, a tensor, an array or a list; kept in float64.

    >>> auction = Instance([10.0, 2.0, 0.5], truth=[0.1, 0.4, 0.9], prediction=[0.1, 0.6, 0.9])
    >>> auction.best_welfare(), auction.welfare()
    (1.0, 0.8)
    """

    bids: Tensor
    truth: Tensor
    prediction: Tensor
    teacher: Tensor | None

    def __init__(
        self, bids: ArrayLike, truth: ArrayLike, prediction: ArrayLike, teacher: ArrayLike | None = None
    ) -> None:
        first = ad_numbers("bids", bids)
        object.__setattr__(self, "bids", first)
        for name, given in (("truth", truth), ("prediction", prediction), ("teacher", teacher)):
            object.__setattr__(self, name, None if given is None else ad_numbers(name, given, like=first))

    def __len__(self) -> int:
        return len(self.bids)

    @property
    def ecpm(self) -> Tensor:
        """Predicted eCPM, b f."""
        return self.bids * self.prediction

    @property
    def true_ecpm(self) -> Tensor:
        """b p: what showing an ad is worth."""
        return self.bids * self.truth

    @property
    def teacher_ecpm(self) -> Tensor:
        """The teacher's guess of the true eCPM."""
        return self.bids * self.known_teacher

    @property
    def known_teacher(self) -> Tensor:
        """The teacher's CTR, which must have been given."""
        if self.teacher is None:
            raise InputError("teacher must be given for statements about a teacher, found None")
        return self.teacher

    def sides(self, left: float, right: float, relation: str, *, sigma: float = 0.0, ties: bool = False) -> Sides:
        """Sides that are sums over pairs, of surrogates with slope ``sigma``: none is above n^2 B (1 + sigma B)."""
        cap = float(self.bids.max())
        return Sides(left, right, relation, ties, len(self) ** 2 * cap * (1 + sigma * cap))

    @property
    def spread(self) -> float:
        """sum_ij |b_i p_i - b_j p_j| over ordered pairs."""
        return float((self.true_ecpm[:, None] - self.true_ecpm).abs().sum())

    def welfare(self, slots: Sequence[float] = (1.0,)) -> float:
        """Welfare when the prediction decides."""
        return float(welfare(self.prediction, self.truth, self.bids, None, slots=slots))

    def best_welfare(self, slots: Sequence[float] = (1.0,)) -> float:
        """Welfare when the true CTR decides."""
        return self.predicting(self.truth).welfare(slots)

    def loss(
        self,
        value: str = "truth",
        *,
        gap: str = "signed",
        surrogate: str = "indicator",
        sigma: float = 1.0,
        weights: Tensor | None = None,
    ) -> float:
        """A pairwise loss of the prediction, valued by the ``truth`` or by the ``teacher``.

        With a signed gap and the truth it is the expectation of the loss on clicks, which is linear in
        them. The defaults give the conditional risk R of eq. 4.

        >>> Instance([1.0, 1.0], truth=[0.5, 0.2], prediction=[0.1, 0.6]).loss()
        0.3
        """
        worth = self.true_ecpm if value == "truth" else self.teacher_ecpm
        return float(pair_sum(self.ecpm, worth, gap=gap, surrogate=surrogate, sigma=sigma, weights=weights))

    def predicting(self, prediction: ArrayLike) -> Instance:
        """The same auction under another model."""
        return Instance(self.bids, self.truth, prediction, self.teacher)

    def among(self, rows: Tensor) -> Instance:
        """The auction held among some of the ads: ``rows`` is an index or a mask."""
        teacher = None if self.teacher is None else self.teacher[rows]
        return Instance(self.bids[rows], self.truth[rows], self.prediction[rows], teacher)


def tied(numbers: Tensor) -> bool:
    return len(torch.unique(numbers)) < len(numbers)


def squared_error(instances: Sequence[Instance]) -> float:
    """The teacher's epsilon, E (p-hat - p)^2: the mean over instances of the mean over ads."""
    check_equal_sizes(instances)
    return mean([float((each.known_teacher - each.truth).square().mean()) for each in instances])


def check_equal_sizes(instances: Sequence[Instance]) -> int:
    """Ads of every instance; raises unless there are instances and they agree."""
    sizes = sorted({len(each) for each in instances})
    if len(sizes) != 1:
        raise ValueError(f"instances must be at least one, all with as many ads, found sizes {sizes}")
    return sizes[0]


def bid_cap_of(instances: Sequence[Instance], bid_cap: float | None) -> float:
    """B, no bid is above it: ``bid_cap``, or the largest bid."""
    largest = max(float(each.bids.max()) for each in instances)
    if bid_cap is None:
        return largest
    if bid_cap < largest:
        raise ValueError(f"bid_cap must be at least the largest bid, {largest:g}, found {bid_cap:g}")
    return bid_cap


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


# Sections 2 and 3: welfare is a matter of order, and what the losses on clicks say about it


def welfare_lost(instance: Instance) -> Sides:
    """Eq. 2: the welfare lost is the one pair (i*, j*) of a sum over pairs.

        W_* - W_f  ==  sum_ij (v_i - v_j) 1{i = i*} 1{j = j*} 1{s_i <= s_j}

    and its mean over j* where several ads have the highest s.
    """
    shown = (instance.ecpm == instance.ecpm.max()).double()
    deciding = torch.zeros(len(instance), len(instance), dtype=torch.float64)
    deciding[instance.true_ecpm.argmax()] = shown / shown.sum()
    return instance.sides(instance.best_welfare() - instance.welfare(), instance.loss(weights=deciding), "==")


def truth_is_optimal(instance: Instance, slots: Sequence[float] = (1.0,)) -> Sides:
    """Prop. 2.2, second half: no prediction beats the true CTR.

    W_f  <=  W_*
    """
    return instance.sides(instance.welfare(slots), instance.best_welfare(slots), "<=")


def slot_order(instance: Instance, slots: Sequence[float]) -> Sides:
    """Lemma A.1: welfare over K slots is maximal exactly when every slot shows the ad it should.

        1{W_f = W_*}  ==  1{pi_f(k) = pi_*(k) for k = 1 .. K}

    Needs true eCPMs and multipliers without ties: two equal slots can be swapped at no cost.
    """
    ecpm = instance.ecpm[instance.true_ecpm.argsort(descending=True, stable=True)]
    highest_below = ecpm.flip(0).cummax(0).values.flip(0)[1:]
    in_place = bool((ecpm[:-1] > highest_below)[: len(slots)].all())  # and no tie could show another ad
    ties = tied(instance.true_ecpm) or tied(slot_multipliers(slots))
    return Sides(_is_best(instance, slots), float(in_place), "==", ties)


def single_slot_reduction(instance: Instance, slots: Sequence[float]) -> Sides:
    """Prop. 2.2: K slots are K auctions of one slot, each among the ads that belong below the last slot.

        1{W_f = W_* over K slots}  ==  1{W_f = W_* with one slot among S_k, for k = 0 .. K - 1}

    where S_0 is all ads and S_k = {i : v_i < v_pi_*(k)}. Needs what Lemma A.1 needs.
    """
    true_ecpm = instance.true_ecpm
    below = [true_ecpm < worth for worth in true_ecpm.sort(descending=True).values[: len(slots) - 1]]
    auctions = [instance, *(instance.among(ads) for ads in below if ads.any())]
    ties = tied(true_ecpm) or tied(slot_multipliers(slots))
    return Sides(_is_best(instance, slots), min(_is_best(each) for each in auctions), "==", ties)


def ranking_minimises_risk(instance: Instance) -> Sides:
    """Prop. 3.1: the conditional risk is least exactly when every pair is in its true order.

        1{R(f) = min R}  ==  1{v_i >= v_j if and only if s_i >= s_j, for all i and j}

    Needs true eCPMs without ties: a pair of equals costs nothing in any order.
    """
    true_order = instance.true_ecpm[:, None] >= instance.true_ecpm
    order = instance.ecpm[:, None] >= instance.ecpm
    gaps = instance.true_ecpm[:, None] - instance.true_ecpm
    excess = gaps * (instance.ecpm[:, None] <= instance.ecpm) + gaps.abs() / 2  # R(f) - min R, a pair in two places
    least = not (excess + excess.T).any()  # exact: both places of a pair add up to 0, or to its cost
    return Sides(float(least), float(torch.equal(order, true_order)), "==", tied(instance.true_ecpm))


def least_risk(instance: Instance) -> Sides:
    """Prop. 3.1 and Thm. 3.2: the true CTR has the least conditional risk, and this is it.

    min_f R(f)  =  R(p)  ==  -1/2 sum_ij |v_i - v_j|
    """
    return instance.sides(instance.predicting(instance.truth).loss(), -instance.spread / 2, "==")


def risk_bounds_welfare(instance: Instance) -> Sides:
    """Thm. 3.2: a small conditional risk means high welfare.

        W_*  <=  W_f + 1/2 R(f) + 1/4 sum_ij |v_i - v_j|

    An equality for every minimiser of R. Tied predictions have no risk, so it needs ties broken at random: W_f is
    the mean. Where a tie shows the worse ad it fails, and :func:`mistakes_bound_welfare` survives.
    """
    right = instance.welfare() + instance.loss() / 2 + instance.spread / 4
    return instance.sides(instance.best_welfare(), right, "<=")


def mistakes_identity(instance: Instance) -> Sides:
    """The step behind Thm. 3.2: without ties, risk above its minimum is twice the mistakes, each at its cost.

        l^+(f)  ==  1/2 R(f) + 1/4 sum_ij |v_i - v_j|

    with l^+(f) = sum_ij (v_i - v_j)_+ 1{s_i <= s_j} (eq. 13).
    """
    right = instance.loss() / 2 + instance.spread / 4
    return instance.sides(instance.loss(gap="positive"), right, "==", ties=tied(instance.ecpm))


def log_loss_risk(prediction: Tensor, truth: Tensor) -> float:
    """Expected log loss over clicks, summed over ads."""
    return float(-(torch.xlogy(truth, prediction) + torch.xlogy(1 - truth, 1 - prediction)).sum())


def squared_error_risk(prediction: Tensor, truth: Tensor) -> float:
    """Expected squared error over clicks, summed over ads, less what no prediction changes."""
    return float((prediction - truth).square().sum())


def composite_margin(
    instance: Instance, lam: float = 3.0, *, pointwise: Callable[[Tensor, Tensor], float] = log_loss_risk
) -> Sides:
    """Prop. 3.3: with the ranking loss added, the true CTR leads by no less than under the pointwise loss h.

        lam (h(f) - h(p))  <=  (R(f) + lam h(f)) - (R(p) + lam h(p))

    so p is the unique minimiser of R + lam h wherever it is that of h. ``pointwise`` is h(prediction, truth),
    the expectation over clicks. True of the indicator loss and, with a perfect teacher, of eq. 7; not of the signed
    surrogates, eq. 5 and 6.
    """
    true = instance.predicting(instance.truth)
    margin = pointwise(instance.prediction, instance.truth) - pointwise(instance.truth, instance.truth)
    return instance.sides(lam * margin, instance.loss() - true.loss() + lam * margin, "<=")


def surrogate_error(
    instance: Instance, surrogate: str, *, sigma: float | None = None, bid_cap: float | None = None
) -> Sides:
    """Thm. 3.4: the expected surrogate loss stays near the conditional risk; bids at most B = ``bid_cap``.

        |E l_sigma(f) - R(f)|  <=  1/2 max(1, sigma B - 1) sum_ij |v_i - v_j|

    for ``logistic`` (eq. 5) and ``hinge`` (eq. 6). The default sigma = 2 / B gives the theorem: its factor
    is 1. No R(f) is farther than that from 0, so a loss that is always 0 satisfies it too.
    """
    cap = bid_cap_of([instance], bid_cap)
    slope = 2 / cap if sigma is None else sigma
    left = abs(instance.loss(surrogate=surrogate, sigma=slope) - instance.loss())
    return instance.sides(left, max(1.0, slope * cap - 1) * instance.spread / 2, "<=")


def covariance_form(instance: Instance, surrogate: str, *, sigma: float = 1.0) -> Sides:
    """Eq. 5 and 6 are one loss: both orders of a pair add up to a product.

    E l_sigma(f)  ==  -sigma n^2 Cov(v, s)
    """
    centred = (instance.true_ecpm - instance.true_ecpm.mean()) * (instance.ecpm - instance.ecpm.mean())
    right = -sigma * len(instance) ** 2 * float(centred.mean())
    return instance.sides(instance.loss(surrogate=surrogate, sigma=sigma), right, "==", sigma=sigma)


def click_variance(instance: Instance, *, sigma: float = 1.0) -> Sides:
    """Section 4: the variance of eq. 5 over clicks grows with the squares of the bids; a teacher's CTR has none.

        Var_y l^log_sigma(f)  ==  sigma^2 n^2 sum_i b_i^2 p_i (1 - p_i) (s_i - mean s)^2

    The left side goes through all click vectors, so an auction must be small.
    """
    b, p, ads = instance.bids, instance.truth, len(instance)
    clicks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=ads)), dtype=torch.float64)
    chances = torch.where(clicks > 0, p, 1 - p).prod(1)
    losses = torch.stack([pair_sum(instance.ecpm, b * y, sigma=sigma) for y in clicks])
    left = float(chances @ losses.square() - (chances @ losses).square())
    centred, cap = instance.ecpm - instance.ecpm.mean(), float(b.max())
    right = (sigma * ads) ** 2 * float((b.square() * p * (1 - p) * centred.square()).sum())
    return Sides(left, right, "==", scale=float(losses.abs().max()) * ads**2 * cap * (1 + sigma * cap))


def click_order_agreement(epsilon: float) -> Sides:
    """Prop. 3.5: for any 0 < epsilon < 1/2 there are two ads whose clicks almost never order them rightly.

        Pr(1{b_i y_i >= b_j y_j} = 1{b_i p_i >= b_j p_j})  ==  epsilon

    for the ads of :func:`misleading_pair`.
    """
    return Sides(order_agreement(misleading_pair(epsilon)), epsilon, "==", scale=1.0)


def misleading_pair(epsilon: float) -> Instance:
    """The two ads of Prop. 3.5: the first is worth twice as much and hardly ever clicked.

    p_j = 1 - epsilon / 2,   p_i = 1 - (1 - epsilon) / p_j,   b_i = 2 / p_i,   b_j = 1 / p_j
    """
    p_j = 1 - epsilon / 2
    p_i = (epsilon / 2) / p_j  # = 1 - (1 - epsilon) / p_j, without the cancellation
    return Instance([2 / p_i, 1 / p_j], truth=[p_i, p_j], prediction=[p_i, p_j])


def order_agreement(pair: Instance) -> float:
    """Pr(1{b_i y_i >= b_j y_j} = 1{b_i p_i >= b_j p_j}) for two ads, over the outcomes of their clicks."""
    (b_i, b_j), (p_i, p_j) = pair.bids.tolist(), pair.truth.tolist()
    in_order = b_i * p_i >= b_j * p_j
    chances = [
        (p_i if y_i else 1 - p_i) * (p_j if y_j else 1 - p_j)
        for y_i, y_j in itertools.product((0, 1), repeat=2)
        if (b_i * y_i >= b_j * y_j) == in_order
    ]
    return float(sum(chances))


def _is_best(instance: Instance, slots: Sequence[float] = (1.0,)) -> float:
    """1 if the prediction's welfare is the maximum, 0 otherwise."""
    return float(instance.welfare(slots) >= instance.best_welfare(slots))  # the same sum where the order is the same


# Section 4: losses that put a teacher's CTR p-hat in the place of clicks
#
# How the paper's expectations are read: D is uniform over a finite list of instances with n ads each, and an ad x is
# drawn by drawing an instance, then one of its ads. So epsilon = E (p-hat(x) - p(x))^2 is `squared_error`, and each
# theorem is an exact statement about the list. It is true of every instance alone, with that instance's epsilon;
# Jensen's inequality does the rest.


@dataclass(frozen=True)
class BoundTerms:
    """What the bounds of Section 4 are made of: n ads an auction, bids at most B, the teacher's epsilon."""

    ads: int
    bid_cap: float
    epsilon: float = 0.0

    @staticmethod
    def of(instances: Sequence[Instance], bid_cap: float | None) -> BoundTerms:
        """The terms that a list of instances gives, with the epsilon that it has."""
        ads = check_equal_sizes(instances)
        return BoundTerms(ads, bid_cap_of(instances, bid_cap), squared_error(instances))

    def sides(self, left: float, right: float, sigma: float = 0.0) -> Sides:
        """``left <= right``, of sums over pairs."""
        return Sides(left, right, "<=", scale=self.ads**2 * self.bid_cap * (1 + sigma * self.bid_cap))

    @property
    def pairs(self) -> int:
        """Ordered pairs of different ads."""
        return self.ads * (self.ads - 1)

    def slack(self, sigma: float) -> float:
        """n (n - 1) / 2 B max(1, sigma B - 1): what Thm. 4.4 pays for the hinge."""
        return self.pairs / 2 * self.bid_cap * max(1.0, sigma * self.bid_cap - 1)

    def error(self, sigma: float) -> float:
        """n (n - 1) sigma B^2 sqrt(epsilon): what Thm. 4.4 pays for the teacher."""
        return self.pairs * sigma * self.bid_cap**2 * math.sqrt(self.epsilon)


def teacher_risk_error(instances: Sequence[Instance], *, bid_cap: float | None = None) -> Sides:
    """Thm. 4.1: the indicator loss on the teacher's CTR stays near the conditional risk.

    E |l-hat(f) - R(f)|  <=  n (n - 1) B sqrt(epsilon),    l-hat(f) = sum_ij (t_i - t_j) 1{s_i <= s_j}
    """
    terms = BoundTerms.of(instances, bid_cap)
    left = mean([abs(each.loss("teacher") - each.loss()) for each in instances])
    return terms.sides(left, terms.pairs * terms.bid_cap * math.sqrt(terms.epsilon))


def teacher_surrogate_error(
    instances: Sequence[Instance], surrogate: str, *, sigma: float = 1.0, bid_cap: float | None = None
) -> Sides:
    """Eq. 5 and 6 with a teacher's CTR for clicks stay near the conditional risk: Thm. 3.4 and the teacher's error.

        E |l-hat_sigma(f) - R(f)|  <=  1/2 max(1, sigma B - 1) E sum_ij |v_i - v_j| + n (n - 1) sigma B^2 sqrt(epsilon)

    As a pair costs -sigma (t_i - t_j)(s_i - s_j) / 2 with either surrogate, and no |s_i - s_j| is above B.
    """
    terms = BoundTerms.of(instances, bid_cap)
    left = mean([abs(each.loss("teacher", surrogate=surrogate, sigma=sigma) - each.loss()) for each in instances])
    near = max(1.0, sigma * terms.bid_cap - 1) / 2 * mean([each.spread for each in instances])
    return terms.sides(left, near + terms.error(sigma), sigma)


def calibration(
    loss: Callable[[Instance], float],
    instances: Sequence[Instance],
    hypotheses: Sequence[Sequence[Sequence[float]]],
    *,
    epsilon: float = 0.0,
) -> Sides:
    """Def. 4.3: is the true CTR within epsilon of the best hypothesis? Def. 4.2 is epsilon = 0.

        E loss(p) - min_f E loss(f)  <=  epsilon

    A hypothesis f is given by its predictions, one list per instance; p always belongs to them.
    """
    truth = mean([loss(each.predicting(each.truth)) for each in instances])
    others = [
        mean([loss(each.predicting(ctr)) for each, ctr in zip(instances, predictions, strict=True)])
        for predictions in hypotheses
    ]
    scale = max(len(instances[0]) ** 2 * bid_cap_of(instances, None), *map(abs, (truth, *others)))
    return Sides(truth - min([truth, *others]), epsilon, "<=", scale=scale)


def teacher_bounds_welfare(instances: Sequence[Instance], *, sigma: float = 1.0, bid_cap: float | None = None) -> Sides:
    """Thm. 4.4, first half: a small hinge loss on the teacher's CTR (eq. 7) means high welfare.

        E W_*  <=  E W_f + E l-hat^hinge+(f)
                   + n (n - 1) / 2 B max(1, sigma B - 1) + n (n - 1) sigma B^2 sqrt(epsilon)

    Says nothing for n >= 2: the third term alone is at least B, and no welfare is above B.
    """
    terms = BoundTerms.of(instances, bid_cap)
    reached = mean([each.welfare() + positive_hinge(each, sigma) for each in instances])
    best = mean([each.best_welfare() for each in instances])
    return terms.sides(best, reached + terms.slack(sigma) + terms.error(sigma), sigma)


def teacher_calibration(
    instances: Sequence[Instance],
    hypotheses: Sequence[Sequence[Sequence[float]]],
    *,
    sigma: float = 1.0,
    bid_cap: float | None = None,
) -> Sides:
    """Thm. 4.4, second half: the hinge loss on the teacher's CTR (eq. 7) is approximately calibrated.

        E l-hat^hinge+(p) - min_f E l-hat^hinge+(f)  <=  n (n - 1) sigma B^2 sqrt(epsilon)

    The left side is even at most sigma n^2 B^2 epsilon / 4, of order epsilon and not its root: a pair costs
    sigma |t_i - t_j| |v_i - v_j| where teacher and truth order it differently, and nothing elsewhere.
    """
    error = BoundTerms.of(instances, bid_cap).error(sigma)
    return calibration(lambda each: positive_hinge(each, sigma), instances, hypotheses, epsilon=error)


def positive_parts(a: float, b: float) -> Sides:
    """Prop. A.2: positive and negative parts share the distance of two numbers.

    |a_+ - b_+| + |(-a)_+ - (-b)_+|  ==  |a - b|
    """
    left = abs(max(a, 0.0) - max(b, 0.0)) + abs(max(-a, 0.0) - max(-b, 0.0))
    return Sides(left, abs(a - b), "==", scale=max(abs(a), abs(b)))


def mistakes_bound_welfare(instance: Instance) -> Sides:
    """Prop. A.3: the welfare lost is at most the sum of all mistakes, each at its cost; ties do no harm.

        W_*  <=  W_f + l^+(f),    l^+(f) = sum_ij (v_i - v_j)_+ 1{s_i <= s_j}   (eq. 13)

    An equality for every minimiser of l^+, as its minimum is 0.
    """
    return instance.sides(instance.best_welfare(), instance.welfare() + instance.loss(gap="positive"), "<=")


def teacher_hinge_error(instances: Sequence[Instance], *, sigma: float = 1.0, bid_cap: float | None = None) -> Sides:
    """Eq. 19: teacher's and true CTR give nearly the same positive-part hinge loss.

    E |l-hat^hinge+(f) - l^hinge+(f)|  <=  n (n - 1) sigma B^2 sqrt(epsilon)
    """
    left = mean([abs(positive_hinge(each, sigma) - positive_hinge(each, sigma, "truth")) for each in instances])
    terms = BoundTerms.of(instances, bid_cap)
    return terms.sides(left, terms.error(sigma), sigma)


def hinge_mistakes_error(
    instance: Instance, *, sigma: float = 1.0, bid_cap: float | None = None
) -> tuple[Sides, Sides]:
    """The two steps from the positive-part hinge loss to l^+ in the proof of Thm. 4.4.

    |l^hinge+(f) - l^+(f)|  <=  1/2 max(1, sigma B - 1) sum_ij |v_i - v_j|
                            <=  n (n - 1) / 2 B max(1, sigma B - 1)
    """
    cap = bid_cap_of([instance], bid_cap)
    left = abs(positive_hinge(instance, sigma, "truth") - instance.loss(gap="positive"))
    middle = max(1.0, sigma * cap - 1) * instance.spread / 2
    far = BoundTerms(len(instance), cap, epsilon=0.0).slack(sigma)
    return instance.sides(left, middle, "<=", sigma=sigma), instance.sides(middle, far, "<=", sigma=sigma)


def teacher_mistakes_error(instances: Sequence[Instance], *, sigma: float = 1.0, bid_cap: float | None = None) -> Sides:
    """The last step in the proof of Thm. 4.4, as it is printed.

        E |l-hat^hinge+(f) - l^+(f)|  <=  n (n - 1) / 2 B (2 sqrt(epsilon) + max(1, sigma B - 1))

    The steps before it give 2 sigma B sqrt(epsilon) in the bracket. The printed line is true nevertheless:
    pair by pair, sigma B |t_i - t_j| - |v_i - v_j| <= (sigma B - 1) B + |(t_i - t_j) - (v_i - v_j)|.
    """
    terms = BoundTerms.of(instances, bid_cap)
    left = mean([abs(positive_hinge(each, sigma) - each.loss(gap="positive")) for each in instances])
    error = terms.pairs * terms.bid_cap * math.sqrt(terms.epsilon)
    return terms.sides(left, error + terms.slack(sigma), sigma)


def positive_hinge(instance: Instance, sigma: float, value: str = "teacher") -> float:
    """l-hat^hinge+ of eq. 7; of the ``truth`` l^hinge+, with the true CTR in the teacher's place."""
    return instance.loss(value, gap="positive", surrogate="hinge", sigma=sigma)


def welfare_certificate(instances: Sequence[Instance], *, bid_cap: float | None = None) -> Sides:
    """What Thm. 4.4 is after, and not vacuous: a model near its teacher loses little; j* = argmax_j s_j.

        E W_*  <=  E W_f + E [max_i t_i - t_j*] + 2 B sqrt(n epsilon)

    The bracket is what the model loses if the teacher is right. One ad can carry all of the error: no p-hat_i is off
    by more than sqrt(n epsilon_auction), and neither of the two eCPMs compared by more than B times that. As they are
    of different ads wherever welfare is lost, |e_i| + |e_j| <= sqrt(2 (e_i^2 + e_j^2)), and sqrt(2) can replace 2.
    """
    terms = BoundTerms.of(instances, bid_cap)
    by_teacher = [Instance(each.bids, each.known_teacher, each.prediction) for each in instances]
    bracket = mean([each.best_welfare() - each.welfare() for each in by_teacher])
    reached, best = (mean([w(each) for each in instances]) for w in (Instance.welfare, Instance.best_welfare))
    right = reached + bracket + 2 * terms.bid_cap * math.sqrt(terms.ads * terms.epsilon)
    return terms.sides(best, right)
