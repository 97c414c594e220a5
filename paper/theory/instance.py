"""A finite instance, and the two sides of a statement about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bidwise.auctions import ad_numbers, welfare
from bidwise.checks import InputError, check_between, check_bids, check_name, check_positive
from bidwise.losses.definition import pair_sum

ROUNDING = 1e-9  # relative: what float64 sums over a few hundred pairs may lose, with room to spare


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
    scale: float = 1.0  # size of the numbers that went into the sides, for rounding

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
        check_bids(first)
        if len(first) == 0:
            raise ValueError("bids must have at least one ad, found none")
        object.__setattr__(self, "bids", first)
        for name, given in (("truth", truth), ("prediction", prediction), ("teacher", teacher)):
            numbers = None if given is None else ad_numbers(name, given, like=first)
            if numbers is not None:
                check_between(name, numbers, 0, 1)
            object.__setattr__(self, name, numbers)

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
    def teacher_error(self) -> Tensor:
        """The teacher's CTR less the true one."""
        return self.known_teacher - self.truth

    @property
    def known_teacher(self) -> Tensor:
        """The teacher's CTR, which must have been given."""
        if self.teacher is None:
            raise InputError("teacher must be given for statements about a teacher, found None")
        return self.teacher

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
        check_name("value", value, ("truth", "teacher"))
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
    """The teacher's epsilon, E (p-hat - p)^2: the mean over instances of the mean over ads.

    >>> squared_error([Instance([1.0, 1.0], truth=[0.5, 0.5], prediction=[0.5, 0.5], teacher=[0.75, 0.5])])
    0.03125
    """
    check_equal_sizes(instances)
    return mean([float(each.teacher_error.square().mean()) for each in instances])


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
    check_positive("bid_cap", bid_cap)
    if bid_cap < largest:
        raise ValueError(f"bid_cap must be at least the largest bid, {largest:g}, found {bid_cap:g}")
    return bid_cap


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
