"""Combinations of columns that `bidwise train` finds in made tables, next to those that the tables were made with.

python -m benchmarks.crosses [KINDS] [SEED]      # such as: c15,numbers 20
"""

from __future__ import annotations

import sys
import tempfile

from benchmarks.harness import write
from benchmarks.made_tables import KINDS, make_table
from bidwise.table.config import resolved
from bidwise.table.prepare import prepare

ORIGINS = ("made with it", "related", "other")  # related: the same with parents of columns, or part of another


def found_in(kind: str, seed: int) -> list[dict[str, object]]:
    """One row for each combination: those found, in their order, then those missed."""
    made = KINDS[kind]
    data = {"click": "click", "bid": "bid"} | ({"time": "time"} if made.days else {})
    with tempfile.TemporaryDirectory() as folder:
        encoder = prepare(make_table(kind, seed).drop("truth"), resolved({"data": data}), f"{folder}/run").encoder
    assert encoder is not None
    found = dict.fromkeys(frozenset(cross.of) for cross in encoder.crosses if len(cross.of) > 1)
    true = [frozenset(group) for group in (*made.pairs, *made.triples)]

    def topmost(column: str) -> str:
        parent = made.columns[column][1] if column in made.columns else None
        return column if parent is None else topmost(parent)

    def origin(group: frozenset[str]) -> str:
        if group in true:
            return ORIGINS[0]
        general = set(map(topmost, group))
        return (
            ORIGINS[1] if any(general <= (x := {*map(topmost, each)}) or x <= general for each in true) else ORIGINS[2]
        )

    places: dict[frozenset[str], object] = {group: place for place, group in enumerate(found, 1)}
    return [
        {
            "kind": kind,
            "seed": seed,
            "combination": " × ".join(sorted(group)),
            "origin": origin(group),
            "place": places.get(group, ""),
        }
        for group in (*found, *(group for group in true if group not in found))
    ]


if __name__ == "__main__":
    kinds, seed = [*sys.argv[1:], *("c15,numbers,bags", "20")[len(sys.argv) - 1 :]]
    write("crosses", [row for kind in kinds.split(",") for row in found_in(kind, int(seed))])
