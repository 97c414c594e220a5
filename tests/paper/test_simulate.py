"""``python -m paper simulate``: files that are whole or absent, in little memory, and bad input in one line."""

import resource

import pytest
from paper_helpers import chunks

from bidwise import InputError
from paper import __main__ as commands
from paper.criteo_text import simulate
from paper.criteo_world import CHUNK

SHORT = 5000


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
        with pytest.raises(OSError, match=r"File too large$"):
            simulate(tmp_path / "ads.tsv", SHORT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "rows", "seed", "argument"),
    [
        ("ads.tsv", 0, 0, "rows"),
        ("ads.tsv", 1.5, 0, "rows"),
        ("ads.tsv", 1, -1, "seed"),
        ("folder", 1, 0, "out"),
        ("/dev/null", 1, 0, "out"),
    ],
)
def test_bad_input_is_named(tmp_path, name, rows, seed, argument):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError) as error:
        simulate(tmp_path / name, rows, seed=seed)
    assert error.value.argument == argument
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_command_says_what_it_made(tmp_path, capsys):
    commands.simulate(tmp_path / "my ads.tsv", rows=SHORT, seed=4)
    said = capsys.readouterr().out
    (chunk,) = chunks(SHORT, 4)
    assert said == (
        f"5,000 ads, {chunk.clicks.mean():.2%} of them clicked\n"
        f"Written: {tmp_path / 'my ads.tsv'}; {tmp_path / 'my ads.tsv.ctr.npy'}, the true CTR of every line\n"
        f"Next: python -m paper prepare '{tmp_path / 'my ads.tsv'}' STORE\n"
    )
