"""Tasks of preprocessing: blocks of lines, sorted runs and counts."""

import gzip
import random
import weakref
from pathlib import Path

import numpy as np
import pytest

from bidwise.paper import raw_text as criteo_files
from bidwise.paper import sorted_blocks as criteo_runs
from bidwise.paper.raw_text import blocks
from bidwise.paper.sorted_blocks import Tally


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def some_text(draw, size):
    """Lines of all lengths, some empty, with or without an end."""
    lines = [b"x" * draw.choice([0, 1, 5, 11]) for _ in range(draw.randrange(1, 9))]
    text = b"\n".join(lines)[: draw.choice([size, 2 * size, 3 * size, 100])]
    return (text or b"\n") + draw.choice([b"", b"\n"])


@pytest.mark.parametrize("seed", range(30))
def test_blocks_are_the_lines_of_all_files_in_order(tmp_path, monkeypatch, seed):
    draw = random.Random(seed)
    size = draw.randrange(12, 30)
    monkeypatch.setattr(criteo_files, "BLOCK", size)
    files, whole = [], []
    for number in range(4):
        text = some_text(draw, size)
        files.append(tmp_path / str(number))
        files[-1].write_bytes(gzip.compress(text) if draw.random() < 0.4 else text)
        whole.append(text if text.endswith(b"\n") else text + b"\n")
    found = list(blocks(files))
    assert [block.number for block in found] == list(range(len(found)))
    assert b"".join(block.text for block in found) == b"".join(whole)
    assert all(block.text.endswith(b"\n") for block in found)
    rows = np.cumsum([0, *(block.text.count(b"\n") for block in found)])
    assert [block.row for block in found] == rows[:-1].tolist()
    for path in files:
        own = [block for block in found if block.path == path]
        assert [block.row - own[0].row for block in own] == [block.line for block in own]
    shares = [block.share for block in found]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_two_attempts_at_one_run_do_not_disturb_each_other(tmp_path, monkeypatch):
    rows = 50
    columns = {
        "key": criteo_runs.keys(0, 0, rows),
        "clicks": np.ones(rows, np.uint8),
        "tokens": np.arange(39 * rows, dtype=np.uint32).reshape(39, rows),
        "missing": np.zeros((39, rows), np.bool_),
        "truth": None,
        "about": {"skipped": {}, "samples": []},
    }
    alone, both = tmp_path / "alone", tmp_path / "both"
    alone.mkdir()
    both.mkdir()
    criteo_runs.write_run(alone, 0, **columns)
    opened, nested = Path.open, []

    def open_twice(path, *mode, **options):
        file = opened(path, *mode, **options)
        if mode == ("wb",) and not nested:  # another attempt starts and ends while this one writes
            nested.append(path)
            criteo_runs.write_run(both, 0, **columns)
        return file

    monkeypatch.setattr(Path, "open", open_twice)
    criteo_runs.write_run(both, 0, **columns)
    assert nested
    assert contents(both) == contents(alone)


def test_counts_of_a_worker_are_let_go():
    values, tally = np.arange(5, dtype=np.uint32), Tally(np.uint32)
    counts, seen = np.full(5, 3), weakref.ref(values)
    tally.add(values, counts, 0)
    del values
    assert seen() is None
    assert tally.vocabulary(3).values.tolist() == [0, 1, 2, 3, 4]
