"""How losses are explained and drawn on the pages of experiments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bidwise.report.drawing import COLOURS, SOFT, UNCLEAR, Look
from bidwise.report.sections import Section
from bidwise.report.train_sentences import ABOUT, NO_WORDS

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


LINES = {  # loss -> family, colour and dash of its line
    "log_loss": ("baseline", BLACK, "-"),
    "bid_weighted": ("baseline", SKY, "--"),
    "sqrt_bid_weighted": ("baseline", BLUE, "--"),
    "log": ("paper", VERMILION, "-"),
    "log_weighted": ("paper", VERMILION, "--"),
    "hinge": ("paper", PINK, "--"),
    "log_teacher_unweighted": ("paper", ORANGE, "--"),
    "log_teacher": ("paper", ORANGE, "-"),
    "hinge_plus_teacher": ("paper", PINK, "-"),
    "log_plus": ("ours", GREEN, "-"),
    "log_plus_teacher": ("ours", GREEN, "--"),
    "ranknet": ("control", UNCLEAR, ":"),
    "distilled": ("control", SOFT, "-."),
    "ensemble": ("control", SKY, ":"),
}
OTHER = ("other", UNCLEAR, "-.")
ABOUT_TEACHER = "log with a teacher’s CTR for clicks and no pair weights."


def family_of(name: str) -> Family:
    return FAMILIES[LINES.get(name, OTHER)[0]]


def look_of(name: str) -> Look:
    _, colour, dash = LINES.get(name, OTHER)
    return Look(colour, family_of(name).marker, dash)


def in_order(names: Iterable[str]) -> list[str]:
    """Families together, and within them the order of :data:`LINES`.

    >>> in_order(["mine", "log", "log_loss"])
    ['log_loss', 'log', 'mine']
    """
    families, known = list(FAMILIES), list(LINES)
    return sorted(
        names,
        key=lambda name: (families.index(LINES.get(name, OTHER)[0]), known.index(name) if name in LINES else 0, name),
    )


def losses_section(names: Iterable[str]) -> Section:
    """The losses of a run."""
    about = ABOUT | {"log_teacher_unweighted": ABOUT_TEACHER}
    return Section("The losses", terms=[(name, about.get(name, NO_WORDS)) for name in in_order(names)])
