"""Commands that are killed, and disks that fail: samples of benchmarks/kills.py, and what its runs have found."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bidwise.checks import InputError
from bidwise.data.store import StoreWriter
from bidwise.run_folder import take_room, whole_file, write_text

LONG = "BIDWISE_LONG" in os.environ
long = pytest.mark.skipif(not LONG, reason="takes minutes: make test-long")
ALL = ("prepare", "train", "refresh", "reproduce", "evaluate", "predict", "report")


def campaign(*words):
    """What benchmarks.kills prints; it forks commands, so it has a process without threads."""
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-m", "benchmarks.kills", *words], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_commands_end_as_if_nothing_had_happened():
    """Those that users run daily; `make test-long` kills all of them, more often."""
    names = ("train", "refresh", "predict")
    printed = campaign("--kills", "1", "--points", "1", "--seed", "1", "--command", *names)
    assert printed.count("1 kills at work") == len(names)


@long
def test_more_kills():
    campaign("--kills", "5", "--points", "10", "--seed", "2", "--command", *ALL)


def check_disks(*words):
    printed = campaign("--trouble", *words)
    skipped = [line for line in printed.splitlines() if "left out" in line]
    stories = ("quota at", "two at once", *(() if skipped else ("full at", "read-only at")))
    assert [story for story in stories if story not in printed] == []
    if skipped:
        pytest.skip(skipped[0])


def test_failing_disks_are_one_line_and_cost_nothing():
    check_disks("0.5", "--command", "predict")


@long
def test_all_commands_survive_failing_disks():
    check_disks("0.3", "0.7", "--command", *ALL)


def test_a_file_has_one_writer_at_a_time(tmp_path):
    path = tmp_path / "page.html"
    with whole_file(path) as part:
        part.write_text("first")
        with pytest.raises(InputError, match=r"out must be a file that no other run writes to, found .*page\.html, "):
            write_text(path, "second")
    assert path.read_text() == "first"
    (tmp_path / "page.html.part").write_text("of a run that was killed, and longer")
    write_text(path, "second")
    assert path.read_text() == "second"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_store_does_not_bring_a_removed_folder_back(tmp_path):
    with pytest.raises(FileNotFoundError):
        StoreWriter(tmp_path / "removed", {"train": 5}).column("train", "clicks")
    assert list(tmp_path.iterdir()) == []


def test_mapped_files_have_their_room_before_they_are_written(tmp_path):
    np.memmap(tmp_path / "column", np.int64, "w+", shape=(100_000,))
    assert (tmp_path / "column").stat().st_blocks * 512 < 800_000
    take_room(tmp_path / "column")
    assert (tmp_path / "column").stat().st_blocks * 512 >= 800_000
