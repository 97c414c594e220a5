"""Tables of experiments, made from their columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from bidwise.report.formatting import decimals, number
from bidwise.report.sections import Cell, Table, TableRow, as_cell

Column = tuple[str, str, Callable[[Any], Cell | str]]  # heading, meaning, and the cell for the subject of a row
Measure = tuple[str, str, int | None]  # heading, meaning and decimals, without which five digits


def by_column(
    caption: str,
    first: str,
    columns: Sequence[Column],
    rows: Mapping[str, Any],
    *,
    tags: Mapping[str, Sequence[str]] | None = None,
    best: str | None = None,
    **options: bool,
) -> Table:
    """A table made from its columns; the meaning of its headings is listed below it."""
    headings = [(heading, meaning) for heading, meaning, _ in columns]
    lines = [
        TableRow(name, [as_cell(of(row)) for *_, of in columns], tags=(tags or {}).get(name, ()), best=name == best)
        for name, row in rows.items()
    ]
    return Table(caption, first, headings, lines, explained=any(meaning for _, meaning in headings), **options)


def measure_columns(measures: Mapping[str, Measure], rows: Collection[Any]) -> list[Column]:
    """A column for each field that rows have."""
    columns: list[Column] = []
    for key, (heading, meaning, places) in measures.items():
        values = [x for row in rows if (x := getattr(row, key)) is not None and math.isfinite(x)]
        shown = decimals(values, 5) if places is None else places
        if values:
            columns.append((heading, meaning, partial(_number, key=key, places=shown)))
    return columns


def _number(row: Any, key: str, places: int) -> str:
    return number(getattr(row, key), places)
