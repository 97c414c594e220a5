"""How losses are explained and drawn on pages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bidwise.report.drawing import COLOURS, SOFT, UNCLEAR, Look
from bidwise.report.sections import Section

BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK = COLOURS


@dataclass(frozen=True)
class Family:
    """Losses that are drawn alike where there is a line for each."""

    title: str
    colour: str
    marker: str


FAMILIES = {
    "baseline": Family("baselines", BLUE, "o"),
    "paper": Family("the paper’s losses", VERMILION, "s"),
    "ours": Family("ours", GREEN, "D"),
    "control": Family("controls", PINK, "^"),
    "other": Family("others", UNCLEAR, "v"),
}


@dataclass(frozen=True)
class Loss:
    """A loss on a page."""

    family: str
    about: str
    colour: str
    dash: str = "-"


LOSSES = {
    "log_loss": Loss("baseline", "Log loss: the usual way to train, and what all others are compared with.", BLACK),
    "bid_weighted": Loss("baseline", "Log loss in which an ad counts as much as it bids.", SKY, "--"),
    "sqrt_bid_weighted": Loss(
        "baseline", "Log loss in which an ad counts as much as the square root of its bid.", BLUE, "--"
    ),
    "log": Loss("paper", "Pairs of ads, logistic surrogate (equation 5), plus λ times the log loss.", VERMILION),
    "log_weighted": Loss(
        "paper",
        "Equation 5 as the paper uses it on Criteo: pairs of ads, logistic surrogate, pairs weighted towards ads whose "
        "eCPM is high (by the teacher for the one, by the model itself for the other), plus λ times the log loss.",
        VERMILION,
        "--",
    ),
    "hinge": Loss(
        "paper",
        "Pairs of ads, hinge surrogate (equation 6): up to rounding the same as the logistic one where pairs have "
        "no weights.",
        PINK,
        "--",
    ),
    "log_teacher": Loss(
        "paper",
        "Pairs of ads with a teacher’s CTR in place of clicks, weighted towards high eCPM, plus λ times the log loss. "
        "The teacher is the model trained with log loss.",
        ORANGE,
    ),
    "hinge_plus_teacher": Loss(
        "paper", "Equation 7: hinge surrogate; only pairs in the wrong order count; teacher and weights as above.", PINK
    ),
    "log_plus": Loss(
        "ours",
        "Pairs of ads, logistic surrogate, but a pair counts only with its better ad first: little is gained by "
        "widening a margin that is right already.",
        GREEN,
    ),
    "log_plus_teacher": Loss("ours", "The same with the teacher’s CTR in place of clicks.", GREEN, "--"),
    "ranknet": Loss(
        "control", "Plain learning to rank: which ad of a pair is worth more, but not how much.", UNCLEAR, ":"
    ),
    "distilled": Loss(
        "control", "Log loss on the teacher’s CTR: shows what a teacher gives without any pairs.", SOFT, "-."
    ),
    "ensemble": Loss("control", "Several models that differ in their seeds, served as their mean logit.", SKY, ":"),
}
UNKNOWN = Loss("other", "A loss that this page has no words for.", UNCLEAR, "-.")


def loss_called(name: str) -> Loss:
    """The loss of that name; runs may hold losses that a page has never heard of."""
    return LOSSES.get(name, UNKNOWN)


def family_of(name: str) -> Family:
    return FAMILIES[loss_called(name).family]


def look_of(name: str) -> Look:
    loss = loss_called(name)
    return Look(loss.colour, FAMILIES[loss.family].marker, loss.dash)


def in_order(names: Iterable[str]) -> list[str]:
    """Families together, and within them the order of :data:`LOSSES`.

    >>> in_order(["mine", "log", "log_loss"])
    ['log_loss', 'log', 'mine']
    """
    families, known = list(FAMILIES), list(LOSSES)
    return sorted(
        names,
        key=lambda name: (families.index(loss_called(name).family), known.index(name) if name in LOSSES else 0, name),
    )


def losses_section(names: Iterable[str]) -> Section:
    """What the losses of a run are."""
    return Section("The losses", terms=[(name, loss_called(name).about) for name in in_order(names)])
