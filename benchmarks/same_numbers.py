"""Compare the numbers of two run folders, before and after a change that must not move them.

    python -m benchmarks.same_numbers BEFORE AFTER [--tolerance 1e-9]

Every number that stands in both ``result.json`` under the same keys is compared; names of keys that only one has are
counted and listed, so that a number which moved to another place is seen and not taken for the same. Exit code 1 where
a number differs by more than the tolerance, relative to the larger.
"""

import argparse
import json
import math
from pathlib import Path

TIMES = ("seconds", "sd", "relative_sd", "runtime")  # of a machine, not of a result


def numbers(value, at=()):
    """Place -> number, for every number in nested JSON."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in numbers(part, (*at, key)).items()}
    if isinstance(value, list):
        return {k: v for key, part in enumerate(value) for k, v in numbers(part, (*at, key)).items()}
    return {at: value} if isinstance(value, int | float) and not isinstance(value, bool) else {}


def compare(before, after, tolerance):
    """(compared, differing places, places in one alone)."""
    there, here = (
        {place: x for place, x in numbers(each).items() if not set(map(str, place)) & set(TIMES)}
        for each in (before, after)
    )
    both = there.keys() & here.keys()
    moved = [p for p in both if not math.isclose(there[p], here[p], rel_tol=tolerance, abs_tol=1e-12)]
    return len(both), sorted(moved, key=str), sorted(there.keys() ^ here.keys(), key=str)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-9)
    asked = parser.parse_args()
    before, after = (json.loads((folder / "result.json").read_text()) for folder in (asked.before, asked.after))
    count, moved, alone = compare(before, after, asked.tolerance)
    print(f"{count:,} numbers in both, {len(moved):,} differ, {len(alone):,} in one alone")
    for place in moved[:20]:
        print("differs:", ".".join(map(str, place)))
    tops = sorted({".".join(str(part) for part in place if not isinstance(part, int)) for place in alone})
    for place in tops[:40]:
        print("in one alone:", place)
    raise SystemExit(bool(moved or not count))


if __name__ == "__main__":
    main()
