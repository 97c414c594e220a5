"""What a page of runs is made of: sections with figures, tables and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from bidwise.report.drawing import NARROW, Picture, drawn


@dataclass(frozen=True)
class Cell:
    """A cell of a table; ``kind`` (better, worse, unclear) colours words that say the same."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """Headings with their meaning, and named rows; ``folded`` behind a click."""

    caption: str
    first: str
    headings: Sequence[tuple[str, str]]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    folded: bool = False
    explained: bool = False  # a list of what the headings mean below it
    wordy: bool = False  # sentences in its cells, not numbers


@dataclass(frozen=True)
class Drawing:
    """A figure of the page."""

    title: str
    picture: Markup
    narrow: bool = False


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in this order."""

    title: str
    lead: str = ""
    paragraphs: Sequence[str] = ()
    legend: Sequence[tuple[str, str, str]] = ()  # words, colour, marker
    scale: Drawing | None = None  # above the figures, which share it
    figures: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()
    terms: Sequence[tuple[str, str]] = ()
    points: Sequence[str] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing below the heading but words about what would be there."""
        return not any((self.paragraphs, self.figures, self.tables, self.terms, self.points))


@dataclass(frozen=True)
class Story:
    """A run as a page tells it."""

    name: str
    what: str  # kind of run, in words
    headline: str
    verdict: Sequence[tuple[str, str]] = ()  # kind, sentence
    facts: Sequence[tuple[str, str]] = ()  # number, what it counts
    sections: Sequence[Section] = field(default=())


def drawings(key: str, picture: Picture) -> list[Drawing]:
    """The panels of a picture as figures of a page; ``key`` tells its runs apart."""
    return [
        Drawing(panel.title, drawn(f"{key}{picture.name}{at}", panel), panel.width <= NARROW)
        for at, panel in enumerate(picture.panels)
    ]
