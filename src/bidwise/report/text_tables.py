"""Tables of pages as text, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bidwise.report.sections import Table


def text_table(table: Table, marks: Mapping[str, str]) -> str:
    """A table of a page as aligned text; ``marks`` stand before the names of rows."""
    headings = [heading for heading, _ in table.headings]
    rows = [[f"{marks.get(row.name, ' ')} {row.name}", *(cell.text for cell in row.cells)] for row in table.lines]
    return "\n".join(aligned([table.first, *headings], rows))


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need to be, the first to the left, after two letters for a mark."""
    lines = [[f"  {headings[0]}", *headings[1:]], *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in lines
    ]
