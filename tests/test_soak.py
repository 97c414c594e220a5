"""Commands one after the other in one process leave no descriptor and no thread behind; half an hour is recorded."""

import csv
import os
from pathlib import Path

import pytest

RECORDED = Path(__file__).parent.parent / "benchmarks" / "results" / "soak.csv"


def test_half_an_hour_was_recorded_and_grew_by_less_than_two_per_cent():
    from benchmarks.soak import MOST_GROWTH, growth

    with RECORDED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["seconds"]) >= 30 * 60
    assert growth(rows) < MOST_GROWTH
    assert all(int(row[key]) <= int(rows[0][key]) for row in rows for key in ("descriptors", "threads"))


@pytest.mark.skipif(os.environ.get("BIDWISE_LONG") != "1", reason="takes a minute: make test-long")
def test_rounds_leave_no_descriptor_and_no_thread():
    from benchmarks.soak import rounds

    found = list(rounds(minutes=1, auctions=150))
    assert len(found) >= 3
    assert all(row[key] <= found[0][key] for row in found for key in ("descriptors", "threads"))
