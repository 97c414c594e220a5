"""Section 4: losses that put a teacher's CTR p-hat in the place of clicks.

How the paper's expectations are read: D is uniform over a finite list of instances with n ads each, and an
ad x is drawn by drawing an instance, then one of its ads. So epsilon = E (p-hat(x) - p(x))^2 is
`squared_error`, and each theorem is an exact statement about the list. It is true of every instance alone,
with that instance's epsilon; Jensen's inequality does the rest.

Throughout, v = b p is the true, t = b p-hat the teacher's and s = b f the predicted eCPM, and no bid is above
B = ``bid_cap``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bidwise.checks import check_positive
from paper.theory.instance import Instance, Sides, bid_cap_of, check_equal_sizes, mean, squared_error


@dataclass(frozen=True)
class BoundTerms:
    """What the bounds of Section 4 are made of: n ads an auction, bids at most B, the teacher's epsilon."""

    ads: int
    bid_cap: float
    epsilon: float

    @staticmethod
    def of(instances: Sequence[Instance], bid_cap: float | None) -> BoundTerms:
        """The terms that a list of instances gives, with the epsilon that it has."""
        ads = check_equal_sizes(instances)
        return BoundTerms(ads, bid_cap_of(instances, bid_cap), squared_error(instances))

    @property
    def pairs(self) -> int:
        """Ordered pairs of different ads."""
        return self.ads * (self.ads - 1)

    def slack(self, sigma: float) -> float:
        """n (n - 1) / 2 B max(1, sigma B - 1): what Thm. 4.4 pays for the hinge."""
        check_positive("sigma", sigma)
        return self.pairs / 2 * self.bid_cap * max(1.0, sigma * self.bid_cap - 1)

    def error(self, sigma: float) -> float:
        """n (n - 1) sigma B^2 sqrt(epsilon): what Thm. 4.4 pays for the teacher."""
        check_positive("sigma", sigma)
        return self.pairs * sigma * self.bid_cap**2 * math.sqrt(self.epsilon)


def teacher_risk_error(instances: Sequence[Instance], *, bid_cap: float | None = None) -> Sides:
    """Thm. 4.1: the indicator loss on the teacher's CTR stays near the conditional risk.

        E |l-hat(f) - R(f)|  <=  n (n - 1) B sqrt(epsilon),    l-hat(f) = sum_ij (t_i - t_j) 1{s_i <= s_j}

    >>> auction = Instance([1.0, 1.0], truth=[0.5, 0.3], prediction=[0.9, 0.1], teacher=[0.6, 0.2])
    >>> print(teacher_risk_error([auction]))
    0.2 <= 0.2: holds
    """
    terms = BoundTerms.of(instances, bid_cap)
    left = mean([abs(each.loss("teacher") - each.loss()) for each in instances])
    return Sides(left, terms.pairs * terms.bid_cap * math.sqrt(terms.epsilon), "<=")


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

    >>> auction = Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.5, 0.25])
    >>> bolder = [[1.0, 0.0]]  # the right order, with a larger margin
    >>> print(calibration(lambda each: each.loss(), [auction], [bolder]))
    0 <= 0: holds
    >>> print(calibration(lambda each: each.loss(surrogate="logistic"), [auction], [bolder]))
    0.1875 <= 0: fails
    """
    truth = mean([loss(each.predicting(each.truth)) for each in instances])
    others = [
        mean([loss(each.predicting(ctr)) for each, ctr in zip(instances, predictions, strict=True)])
        for predictions in hypotheses
    ]
    return Sides(truth - min([truth, *others]), epsilon, "<=")


def teacher_bounds_welfare(instances: Sequence[Instance], *, sigma: float = 1.0, bid_cap: float | None = None) -> Sides:
    """Thm. 4.4, first half: a small hinge loss on the teacher's CTR (eq. 7) means high welfare.

        E W_*  <=  E W_f + E l-hat^hinge+(f)
                   + n (n - 1) / 2 B max(1, sigma B - 1) + n (n - 1) sigma B^2 sqrt(epsilon)

    Says nothing for n >= 2: the third term alone is at least B, and no welfare is above B.

    >>> auction = Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6], teacher=[0.5, 0.25])
    >>> print(teacher_bounds_welfare([auction]))
    0.5 <= 1.375: holds
    """
    terms = BoundTerms.of(instances, bid_cap)
    reached = mean([each.welfare() + teacher_hinge(each, sigma) for each in instances])
    best = mean([each.best_welfare() for each in instances])
    return Sides(best, reached + terms.slack(sigma) + terms.error(sigma), "<=")


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

    >>> auction = Instance([1.0, 1.0], truth=[0.5, 0.3], prediction=[0.9, 0.1], teacher=[0.3, 0.5])
    >>> print(teacher_calibration([auction], [[[0.1, 0.9]]]))
    0.04 <= 0.4: holds
    """
    error = BoundTerms.of(instances, bid_cap).error(sigma)
    return calibration(lambda each: teacher_hinge(each, sigma), instances, hypotheses, epsilon=error)


def positive_parts(a: float, b: float) -> Sides:
    """Prop. A.2: positive and negative parts share the distance of two numbers.

        |a_+ - b_+| + |(-a)_+ - (-b)_+|  ==  |a - b|

    >>> print(positive_parts(2.0, -1.0))
    3 == 3: holds
    """
    left = abs(max(a, 0.0) - max(b, 0.0)) + abs(max(-a, 0.0) - max(-b, 0.0))
    return Sides(left, abs(a - b), "==")


def mistakes_bound_welfare(instance: Instance) -> Sides:
    """Prop. A.3: the welfare lost is at most the sum of all mistakes, each at its cost; ties do no harm.

        W_*  <=  W_f + l^+(f),    l^+(f) = sum_ij (v_i - v_j)_+ 1{s_i <= s_j}   (eq. 13)

    An equality for every minimiser of l^+, as its minimum is 0.

    >>> print(mistakes_bound_welfare(Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6])))
    0.5 <= 0.5: holds
    """
    return Sides(instance.best_welfare(), instance.welfare() + instance.loss(gap="positive"), "<=")


def teacher_hinge_error(instances: Sequence[Instance], *, sigma: float = 1.0, bid_cap: float | None = None) -> Sides:
    """Eq. 19: teacher's and true CTR give nearly the same positive-part hinge loss.

        E |l-hat^hinge+(f) - l^hinge+(f)|  <=  n (n - 1) sigma B^2 sqrt(epsilon)

    >>> auction = Instance([1.0, 1.0], truth=[0.5, 0.3], prediction=[0.0, 1.0], teacher=[0.6, 0.2])
    >>> print(teacher_hinge_error([auction]))
    0.2 <= 0.2: holds
    """
    left = mean([abs(teacher_hinge(each, sigma) - _hinge(each, sigma)) for each in instances])
    return Sides(left, BoundTerms.of(instances, bid_cap).error(sigma), "<=")


def hinge_mistakes_error(
    instance: Instance, *, sigma: float = 1.0, bid_cap: float | None = None
) -> tuple[Sides, Sides]:
    """The two steps from the positive-part hinge loss to l^+ in the proof of Thm. 4.4.

        |l^hinge+(f) - l^+(f)|  <=  1/2 max(1, sigma B - 1) sum_ij |v_i - v_j|
                                <=  n (n - 1) / 2 B max(1, sigma B - 1)

    >>> near, far = hinge_mistakes_error(Instance([1.0, 1.0], truth=[0.5, 0.25], prediction=[0.1, 0.6]))
    >>> print(near, far, sep=" and ")
    0.125 <= 0.25: holds and 0.25 <= 1: holds
    """
    cap = bid_cap_of([instance], bid_cap)
    left = abs(_hinge(instance, sigma) - instance.loss(gap="positive"))
    middle = max(1.0, sigma * cap - 1) * instance.spread / 2
    far = BoundTerms(len(instance), cap, epsilon=0.0).slack(sigma)
    return Sides(left, middle, "<="), Sides(middle, far, "<=")


def teacher_mistakes_error(instances: Sequence[Instance], *, sigma: float = 1.0, bid_cap: float | None = None) -> Sides:
    """The last step in the proof of Thm. 4.4, as it is printed.

        E |l-hat^hinge+(f) - l^+(f)|  <=  n (n - 1) / 2 B (2 sqrt(epsilon) + max(1, sigma B - 1))

    The steps before it give 2 sigma B sqrt(epsilon) in the bracket. The printed line is true nevertheless:
    pair by pair, sigma B |t_i - t_j| - |v_i - v_j| <= (sigma B - 1) B + |(t_i - t_j) - (v_i - v_j)|.

    >>> auction = Instance([1.0, 1.0], truth=[0.9, 0.1], prediction=[0.0, 1.0], teacher=[1.0, 0.0])
    >>> print(teacher_mistakes_error([auction], sigma=10.0))
    9.2 <= 9.2: holds
    """
    terms = BoundTerms.of(instances, bid_cap)
    left = mean([abs(teacher_hinge(each, sigma) - each.loss(gap="positive")) for each in instances])
    error = terms.pairs * terms.bid_cap * math.sqrt(terms.epsilon)
    return Sides(left, error + terms.slack(sigma), "<=")


def _hinge(instance: Instance, sigma: float) -> float:
    """The same with the true CTR in the teacher's place."""
    return instance.loss(gap="positive", surrogate="hinge", sigma=sigma)


def teacher_hinge(instance: Instance, sigma: float) -> float:
    """l-hat^hinge+ of eq. 7."""
    return instance.loss("teacher", gap="positive", surrogate="hinge", sigma=sigma)


def welfare_certificate(instances: Sequence[Instance], *, bid_cap: float | None = None) -> Sides:
    """What Thm. 4.4 is after, and not vacuous: a model near its teacher loses little; j* = argmax_j s_j.

        E W_*  <=  E W_f + E [max_i t_i - t_j*] + 2 B sqrt(n epsilon)

    The bracket is what the model loses if the teacher is right. One ad can carry all of the error: no p-hat_i is off
    by more than sqrt(n epsilon_auction), and neither of the two eCPMs compared by more than B times that. As they are
    of different ads wherever welfare is lost, |e_i| + |e_j| <= sqrt(2 (e_i^2 + e_j^2)), and sqrt(2) can replace 2.

    >>> auction = Instance([1.0, 1.0], truth=[0.75, 0.25], prediction=[0.0, 1.0], teacher=[0.75, 0.25])
    >>> print(welfare_certificate([auction]))
    0.75 <= 0.75: holds
    """
    terms = BoundTerms.of(instances, bid_cap)
    by_teacher = [Instance(each.bids, each.known_teacher, each.prediction) for each in instances]
    bracket = mean([each.best_welfare() - each.welfare() for each in by_teacher])
    reached, best = (mean([w(each) for each in instances]) for w in (Instance.welfare, Instance.best_welfare))
    return Sides(best, reached + bracket + 2 * terms.bid_cap * math.sqrt(terms.ads * terms.epsilon), "<=")
