"""What a teacher of known accuracy certifies about a model's welfare."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike

from bidwise.theory.instance import Instance, bid_cap_of
from bidwise.theory.teacher import BoundTerms, teacher_hinge


@dataclass(frozen=True)
class Certificate:
    """How much welfare a model can lose in one auction; see :func:`welfare_certificate`. ``print`` it.

    Attributes:
        ads, bid_cap, epsilon: n, B and the teacher's mean squared error in this auction.
        teacher_best: the highest teacher eCPM, max_i b_i p-hat_i.
        teacher_shown: the teacher eCPM of the ad that the model shows, b_j* p-hat_j*.
        theorem: the loss that Thm. 4.4 allows.
    """

    ads: int
    bid_cap: float
    epsilon: float
    teacher_best: float
    teacher_shown: float
    theorem: float

    @property
    def theorem_is_vacuous(self) -> bool:
        """Whether Thm. 4.4 allows a loss of B, which no model exceeds: always so for two ads or more."""
        return self.theorem >= self.bid_cap

    @property
    def disagreement(self) -> float:
        """max_i b_i p-hat_i - b_j* p-hat_j*: what the model loses if the teacher is right."""
        return self.teacher_best - self.teacher_shown

    @property
    def largest_error(self) -> float:
        """B sqrt(n epsilon): no teacher eCPM is farther than this from the true one."""
        return self.bid_cap * math.sqrt(self.ads * self.epsilon)

    @property
    def lost_at_most(self) -> float:
        """max_i b_i p-hat_i - b_j* p-hat_j* + 2 B sqrt(n epsilon), a bound on W_* - W_f."""
        return self.disagreement + 2 * self.largest_error

    @property
    def lost_at_most_sharp(self) -> float:
        """The same with sqrt(2) for 2.

        Welfare is lost only where the best ad is not the one shown, and the errors of two different ads
        satisfy |e_i| + |e_j| <= sqrt(2 (e_i^2 + e_j^2)) <= sqrt(2 n epsilon).
        """
        return self.disagreement + math.sqrt(2) * self.largest_error

    @property
    def welfare_at_least(self) -> float:
        """b_j* p-hat_j* - B sqrt(n epsilon), or 0: a bound on W_f itself."""
        return max(0.0, self.teacher_shown - self.largest_error)

    @property
    def is_vacuous(self) -> bool:
        """Whether ``lost_at_most`` is no less than the best welfare could be."""
        return self.lost_at_most >= min(self.bid_cap, self.teacher_best + self.largest_error)

    @property
    def epsilon_needed(self) -> float:
        """The teacher's error has to be below this for ``lost_at_most`` to say something."""
        room = min(self.teacher_shown, (self.bid_cap - self.disagreement) / 2)
        return (room / self.bid_cap) ** 2 / self.ads

    def __str__(self) -> str:
        if self.ads == 1:
            return f"An auction of 1 ad: it is always shown. Its welfare is at least {self.welfare_at_least:.4g}."
        lines = [
            f"An auction of {self.ads} ads, bids up to {self.bid_cap:.4g}; the teacher's mean squared error is "
            f"{self.epsilon:.4g}.",
            f"The model loses at most {self.lost_at_most:.4g} of the best possible welfare:",
            f"  {self.disagreement:.4g} for showing another ad than the teacher would,",
            f"  {2 * self.largest_error:.4g} because the teacher may be wrong about both ads.",
            f"Its own welfare is at least {self.welfare_at_least:.4g}.",
        ]
        if self.is_vacuous:
            lines.append(
                "There is no more than that to lose, so this says nothing: the teacher's error "
                + (f"must be below {self.epsilon_needed:.4g}." if self.epsilon_needed else "cannot be small enough.")
            )
        lines.append(f"Theorem 4.4 of the paper allows a loss of {self.theorem:.4g}:")
        lines.append(
            f"  no welfare is above {self.bid_cap:.4g}, so it says nothing, as always for two ads or more."
            if self.theorem_is_vacuous
            else "  less than the largest bid."
        )
        return "\n".join(lines)


def welfare_certificate(
    ctr: ArrayLike,
    teacher: ArrayLike,
    bids: ArrayLike,
    *,
    epsilon: float,
    bid_cap: float | None = None,
    sigma: float | None = None,
) -> Certificate:
    """How much welfare a model can lose in an auction, given how accurate its teacher is.

        W_f  >=  W_*  -  (max_i b_i p-hat_i - b_j* p-hat_j*)  -  2 B sqrt(n epsilon),    j* = argmax_j b_j f_j

    where ``epsilon`` is the teacher's mean squared error over the n ads of this auction, or a bound on it,

        epsilon  =  1/n sum_i (p-hat_i - p_i)^2.

    One ad can carry all of it: no p-hat_i is off by more than sqrt(n epsilon), and neither of the two eCPMs
    compared by more than B times that. An epsilon that is an average over many auctions of n ads bounds the
    average of W_f by the averages of W_* and of the bracket, not each auction.

    Args:
        ctr: the model's CTR f for the ads of one auction.
        teacher: the teacher's CTR for them.
        bids: their bids.
        epsilon: the teacher's mean squared error.
        bid_cap: B, at least every bid; the largest bid if not given.
        sigma: slope of the hinge in Thm. 4.4; 2 / B if not given.

    >>> print(welfare_certificate([0.1, 0.4, 0.9], [0.1, 0.3, 0.8], [10.0, 2.0, 0.5], epsilon=1e-6))
    An auction of 3 ads, bids up to 10; the teacher's mean squared error is 1e-06.
    The model loses at most 0.03464 of the best possible welfare:
      0 for showing another ad than the teacher would,
      0.03464 because the teacher may be wrong about both ads.
    Its own welfare is at least 0.9827.
    Theorem 4.4 of the paper allows a loss of 30.12:
      no welfare is above 10, so it says nothing, as always for two ads or more.
    """
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must be in [0, 1], found {epsilon}")
    auction = Instance(bids, truth=teacher, prediction=ctr, teacher=teacher)  # the teacher stands for the truth
    terms = BoundTerms(len(auction), bid_cap_of([auction], bid_cap), epsilon)
    slope = 2 / terms.bid_cap if sigma is None else sigma
    return Certificate(
        ads=terms.ads,
        bid_cap=terms.bid_cap,
        epsilon=epsilon,
        teacher_best=auction.best_welfare(),
        teacher_shown=auction.welfare(),
        theorem=teacher_hinge(auction, slope) + terms.slack(slope) + terms.error(slope),
    )
