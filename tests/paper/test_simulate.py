"""``bidwise simulate``: files that are whole or absent, in little memory, and bad input in one line."""

import resource
import tracemalloc

import pytest
from paper.data_commands import simulate_criteo
from paper_helpers import chunks

from bidwise import InputError
from paper.criteo_text import chunk_of, lines, simulate
from paper.criteo_world import CHUNK

SHORT = 5000


def test_memory_does_not_grow_with_rows():
    def peak(rows):
        tracemalloc.start()
        for number in range(rows // CHUNK):
            chunk = chunk_of(0, number, rows)
            lines(chunk.clicks, chunk.values, chunk.missing)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    once = peak(CHUNK)
    assert once < 150e6
    assert peak(4 * CHUNK) < 1.6 * once


def test_what_is_cut_off_leaves_nothing(tmp_path):
    def stop(work, done):
        raise KeyboardInterrupt

    (tmp_path / "old.tsv").write_text("old")
    for name in ("new.tsv", "old.tsv", "new.tsv.gz"):
        with pytest.raises(KeyboardInterrupt):
            simulate(tmp_path / name, 3 * CHUNK, progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["old.tsv"]
    assert (tmp_path / "old.tsv").read_text() == "old"


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**5, hard))
    try:
        with pytest.raises(OSError, match=r"ads.tsv could not be written: File too large$"):
            simulate(tmp_path / "ads.tsv", SHORT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "rows", "seed", "message"),
    [
        ("ads.tsv", 0, 0, "rows must be at least 1, found 0"),
        ("ads.tsv", 1.5, 0, "rows must be a whole number, found 1.5"),
        ("ads.tsv", 1, -1, "seed must be at least 0, found -1"),
        ("folder", 1, 0, "out must be a file to write, found the folder .*folder; add a name, such as .*ads.tsv"),
        ("file/ads.tsv", 1, 0, "out must be in a folder, found the file .*file"),
        ("/dev/null", 1, 0, "out must be a file to write, found /dev/null"),
    ],
)
def test_bad_input_is_said_in_one_line(tmp_path, name, rows, seed, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=message) as error:
        simulate(tmp_path / name, rows, seed=seed)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_the_folder_must_be_writable(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match="out must be in a folder that can be written to"):
        simulate(tmp_path / "deep" / "ads.tsv", 1)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_made(tmp_path, capsys):
    simulate_criteo(tmp_path / "my ads.tsv", rows=SHORT, seed=4)
    said = capsys.readouterr().out
    (chunk,) = chunks(SHORT, 4)
    assert said == (
        f"5,000 ads, {chunk.clicks.mean():.2%} of them clicked\n"
        f"Written: {tmp_path / 'my ads.tsv'}; {tmp_path / 'my ads.tsv.ctr.npy'}, the true CTR of every line\n"
        f"Next: bidwise prepare criteo '{tmp_path / 'my ads.tsv'}' STORE\n"
    )
