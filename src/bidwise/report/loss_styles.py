"""How losses are explained and drawn on pages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bidwise.report.drawing import COLOURS, SOFT, UNCLEAR, Look
from bidwise.report.sections import Section

BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK = COLOURS


@dataclass(frozen=True)
class Family:
    """Losses that are drawn alike in charts with a line for each."""

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
    "log_loss": Loss("baseline", "The usual way to train; all others are compared with it.", BLACK),
    "bid_weighted": Loss("baseline", "Log loss in which an ad counts as much as it bids.", SKY, "--"),
    "sqrt_bid_weighted": Loss("baseline", "Log loss weighted by the square root of the bid.", BLUE, "--"),
    "log": Loss("paper", "Pairs of ads, logistic surrogate (equation 5), plus λ times the log loss.", VERMILION),
    "log_weighted": Loss("paper", "The same with pairs weighted towards ads of high eCPM.", VERMILION, "--"),
    "hinge": Loss("paper", "Hinge surrogate (equation 6): without weights the same as the logistic one.", PINK, "--"),
    "log_teacher_unweighted": Loss("paper", "log with a teacher’s CTR for clicks and no pair weights.", ORANGE, "--"),
    "log_teacher": Loss("paper", "log_weighted with the log-loss model’s CTR, a teacher, in place of clicks.", ORANGE),
    "hinge_plus_teacher": Loss("paper", "Equation 7: hinge; only pairs in the wrong order; teacher, weights.", PINK),
    "log_plus": Loss("ours", "Pairs, logistic surrogate, but a pair counts only with its better ad first.", GREEN),
    "log_plus_teacher": Loss("ours", "The same with the teacher’s CTR in place of clicks.", GREEN, "--"),
    "ranknet": Loss("control", "Learning to rank: which ad of a pair is worth more, not how much.", UNCLEAR, ":"),
    "distilled": Loss("control", "Log loss on the teacher’s CTR: a teacher without pairs.", SOFT, "-."),
    "refreshed": Loss("ours", "The model of the run before, continued with new rows.", GREEN),
    "previous": Loss("baseline", "The model of the run before, as it was.", BLACK),
    "ensemble": Loss("control", "Several models that differ in their seeds, served as their mean logit.", SKY, ":"),
}
UNKNOWN = Loss("other", "A loss that this page has no words for.", UNCLEAR, "-.")


def loss_called(name: str) -> Loss:
    """The loss of that name; runs may contain losses unknown to a page."""
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
    """The losses of a run."""
    return Section("The losses", terms=[(name, loss_called(name).about) for name in in_order(names)])
