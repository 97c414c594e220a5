"""Building blocks of pages: a page of a run has sections, and sections have figures, tables and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from markupsafe import Markup

from bidwise.report.drawing import NARROW, Panel, drawn
from bidwise.report.formatting import aligned

OUTCOMES = {  # outcome -> (sign, words): never shown only by colour
    "better": ("▲", "Better"),
    "worse": ("▼", "Worse"),
    "unclear": ("≈", "No measurable change"),
    "few": ("?", "Too little to tell"),
    "same": ("=", "Same ads shown"),
    "doubt": ("!", "Check this first"),
}


@dataclass(frozen=True)
class Run:
    """A run folder as pages take it: a result, and the files next to it."""

    name: str
    result: Any
    environment: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """A cell of a table; ``kind`` (better, worse, unclear, ...) colours words that say the same."""

    text: str
    kind: str = ""
    word: bool = False  # flush left


def as_cell(cell: Cell | str) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


class TableRow(NamedTuple):
    """A row with its name, which may stand for the rows below it too: they have ``lines`` 0."""

    name: str
    cells: Sequence[Cell]
    lines: int = 1
    tags: Sequence[str] = ()  # after the name; a row with tags in front stands out
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Headings with their meaning, and named rows; ``folded`` behind a click."""

    caption: str
    first: str
    headings: Sequence[tuple[str, str]]
    rows: Sequence[TableRow | tuple[str, Sequence[Cell | str]]]
    folded: bool = False
    explained: bool = False  # with an explanation of the headings below it
    wordy: bool = False  # sentences in its cells, not numbers

    @property
    def lines(self) -> list[TableRow]:
        """The rows, all of one type."""
        return [row if isinstance(row, TableRow) else TableRow(row[0], list(map(as_cell, row[1]))) for row in self.rows]

    def text(self) -> list[str]:
        """The table in lines for the terminal: words flush left, numbers flush right."""
        lines = [[heading for heading, _ in ((self.first, ""), *self.headings)]]
        lines += [[" · ".join([row.name, *row.tags]), *(cell.text for cell in row.cells)] for row in self.lines]
        words = [self.wordy or cell.word for cell in self.lines[0].cells] if self.rows else []
        return aligned(lines, right=[k for k, word in enumerate(words, 1) if not word])


@dataclass(frozen=True)
class Drawing:
    """A figure of the page."""

    title: str
    picture: Markup
    narrow: bool = False


@dataclass(frozen=True)
class Section:
    """A heading and its content, in this order."""

    title: str
    lead: str = ""
    legend: Sequence[tuple[str, str, str]] = ()  # words, colour, marker
    figures: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()
    terms: Sequence[tuple[str, str]] = ()
    points: Sequence[str] = ()

    @property
    def empty(self) -> bool:
        """Whether the section has only words about missing content, or tables without rows."""
        tables = [table for table in self.tables if table.rows]
        return not any((self.figures, tables, self.terms, self.points))


@dataclass(frozen=True)
class RunPage:
    """A run as a page shows it: in the first screen the verdict, a picture next to it and a table below."""

    name: str
    title: str  # kind of run, in words
    headline: str
    verdict: Sequence[tuple[str, str]] = ()  # outcome or "", sentence
    facts: Sequence[tuple[str, str]] = ()  # number, meaning
    sections: Sequence[Section] = ()
    outcome: str = ""  # of the headline
    pictures: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()


def outcome_cell(outcome: str) -> Cell:
    """An outcome as a cell: its sign, its words and its colour."""
    sign, words = OUTCOMES[outcome]
    return Cell(f"{sign} {words}", outcome, word=True)


def drawing(key: str, panel: Panel) -> Drawing:
    """A panel as a figure of a page; ``key`` distinguishes all figures of one page."""
    return Drawing(panel.title, drawn(key, panel), panel.width <= NARROW)


def setting(value: Any) -> str:
    """A setting as words."""
    return ", ".join(map(setting, value)) if isinstance(value, list | tuple) else str(value)
