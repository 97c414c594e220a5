"""Tasks of preprocessing: engines by name, and a stand-in that shares files but no memory with its tasks."""

import gzip
import pickle
import random
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from run_helpers import bidwise_command as typed
from run_helpers import market

from bidwise.checks import InputError
from bidwise.data.criteo_text import simulate
from bidwise.paper import prepare_criteo as criteo_prepare
from bidwise.paper import raw_text as criteo_files
from bidwise.paper import sorted_blocks as criteo_runs
from bidwise.paper.prepare_criteo import prepare
from bidwise.paper.raw_text import blocks
from bidwise.paper.sorted_blocks import Tally


class Apart:
    """Work, tasks and results are copies, as those of another machine are."""

    shares_memory = False

    def in_order(self, work, tasks, then):
        for task in tasks:
            then(copied(copied(work)(copied(task))))


def copied(found):
    return pickle.loads(pickle.dumps(found))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_an_engine_must_be_one_that_is_there(tmp_path, monkeypatch):
    raw = simulate(tmp_path / "raw.txt", 100).out
    with pytest.raises(InputError, match=r"^engine must be one of local, ray, found 'rya'; did you mean 'ray'\?$"):
        prepare(raw, tmp_path / "out", engine="rya")
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails
    words = r"^engine must be local here, found ray, which is not installed; pip install 'ray\[train\]'$"
    with pytest.raises(InputError, match=words):
        prepare(raw, tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


def test_a_run_that_was_cut_off_survives_an_engine_that_is_not_there(tmp_path, monkeypatch):
    raw = simulate(tmp_path / "raw.txt", 100).out

    def cut(work, share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(raw, tmp_path / "out", progress=cut)
    there = contents(tmp_path / "out")
    assert [name for name in there if name.endswith(".run")]
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="not installed"):
        prepare(raw, tmp_path / "out", engine="ray")
    assert contents(tmp_path / "out") == there


def test_the_command_calls_the_engine_as_it_is_typed(tmp_path, monkeypatch, capsys):
    raw = simulate(tmp_path / "raw.txt", 10).out
    monkeypatch.setitem(sys.modules, "ray", None)
    assert typed(monkeypatch, "prepare", "criteo", raw, tmp_path / "out", "--engine", "ray") == 2
    told = capsys.readouterr().err
    assert told.startswith("bidwise: --engine must be local here, found ray, which is not installed; pip")
    assert told.count("\n") == 1


def test_both_commands_refuse_another_engine_alike(tmp_path, monkeypatch, capsys):
    raw = simulate(tmp_path / "raw.txt", 10).out
    market(auctions=30).write_csv(tmp_path / "ads.csv")
    told = []
    for words in (
        ["prepare", "criteo", raw, tmp_path / "out"],
        ["train", tmp_path / "ads.csv", "--click", "click", "--bid", "bid", "--out", tmp_path / "out"],
    ):
        assert typed(monkeypatch, *words, "--engine", "spark") == 2
        told.append(capsys.readouterr().err)
    assert told == ["bidwise: --engine must be one of local, ray, found 'spark'\n"] * 2
    assert not (tmp_path / "out").exists()


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


def test_tasks_need_no_memory_of_the_process_that_asks(tmp_path, monkeypatch):
    monkeypatch.setattr(criteo_files, "BLOCK", 20_000)
    monkeypatch.setattr(criteo_runs, "RANGE", 90)
    monkeypatch.chdir(tmp_path)
    raw = [simulate(Path(name), 300, seed=seed).out for seed, name in enumerate(("a.txt", "b.txt.gz"))]
    prepare(raw, "local")
    monkeypatch.setattr(criteo_prepare, "runner_of", lambda name: Apart())
    prepare(raw, "apart")
    assert contents(tmp_path / "local") == contents(tmp_path / "apart")


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
