"""Run folders: files are whole or absent, another configuration is refused, and a run says where it was made."""

import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import bidwise
from bidwise import InputError, run_folder
from bidwise.json_files import to_json
from bidwise.run_folder import locked_folder

WRITERS = {
    "text": lambda path, number: run_folder.write_text(path, str(number)),
    "json": lambda path, number: run_folder.write_json(path, {"number": number}),
    "tensors": lambda path, number: run_folder.save(path, {"number": torch.tensor(number)}),
}


class Full(OSError):
    pass


def only(folder, name):
    return os.listdir(folder) == [name]


# files


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_is_whole_or_absent_and_a_failing_write_leaves_the_old_one(tmp_path, writer, monkeypatch):
    path, seen, replace = tmp_path / "file", [], Path.replace
    WRITERS[writer](path, 1)
    before = path.read_bytes()

    def looked_at(part, target):
        seen.append((part.parent == tmp_path, path.read_bytes() == before, part.stat().st_size > 0))
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", looked_at)
    WRITERS[writer](path, 2)
    assert seen == [(True, True, True)]
    assert only(tmp_path, "file")
    if writer == "tensors":
        assert run_folder.load(path)["number"].item() == 2
    else:
        assert "2" in path.read_text()

    def full(_):
        raise Full("no space left on device")

    def half_a_file(_, file):
        file.write(b"ha")
        raise RuntimeError("PytorchStreamWriter failed writing file")

    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(torch, "save", half_a_file)
    with pytest.raises((OSError, RuntimeError), match=r"no space left|failed writing file"):
        WRITERS[writer](path, 3)
    assert path.read_bytes() == before
    assert only(tmp_path, "file")


def test_what_cannot_be_saved_leaves_no_file(tmp_path):
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
        run_folder.save(tmp_path / "file", {"function": lambda: None})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (torch.tensor([[1.0, math.nan], [math.inf, 2.0]], requires_grad=True), [[1.0, None], [None, 2.0]]),
        (torch.tensor(3), 3),
        (torch.tensor(math.inf), None),
        (np.array([1, 2], dtype=np.int32), [1, 2]),
        (np.array([math.nan, 1.0]), [None, 1.0]),
        (np.float32(0.5), 0.5),
        (np.float64(math.nan), None),
        (np.bool_(True), True),
        (-math.inf, None),
        ((1, (2, None)), [1, [2, None]]),
        ({1: {"a": torch.zeros(2)}}, {"1": {"a": [0.0, 0.0]}}),
        (Path("a/b"), "a/b"),
        (True, True),
        ("word", "word"),
    ],
)
def test_plain_values_are_what_json_can_hold(found, expected):
    value = to_json(found)
    assert value == expected
    assert type(value) is type(expected)
    assert json.loads(json.dumps(value, allow_nan=False)) == expected


# folders

CONFIG = {
    "loss": "log_plus",
    "rate": np.float64(1e-5),
    "epochs": np.int64(3),
    "nested": True,
    "seeds": (1, 2),
    "words": 'a "quoted" \\ word\nand ünïcode',
    "absent": None,
}


def test_a_folder_keeps_its_configuration(tmp_path):
    folder = run_folder.open_folder(tmp_path / "deep" / "run", CONFIG)
    text = (folder / "config.toml").read_text(encoding="utf-8")
    there = tomllib.loads(text)
    expected = {key: value for key, value in CONFIG.items() if value is not None} | {"seeds": [1, 2]}
    assert there == expected
    assert there["nested"] is True
    (folder / "kept").write_text("kept")
    assert run_folder.open_folder(folder, CONFIG) == folder
    assert (folder / "config.toml").read_text(encoding="utf-8") == text
    assert (folder / "kept").read_text() == "kept"


def test_a_configuration_is_the_same_where_there_are_torch_and_numpy_alone(tmp_path, monkeypatch):
    folder = run_folder.open_folder(tmp_path / "one", CONFIG)
    monkeypatch.setitem(sys.modules, "tomli_w", None)
    run_folder.open_folder(folder, CONFIG)
    there, here = (tomllib.loads(text) for text in ((folder / "config.toml").read_text(), run_folder.to_toml(CONFIG)))
    assert there == here
    with pytest.raises(ImportError):
        run_folder.to_toml({"section": {"key": 1}})


def test_tables_lists_and_odd_words_survive_toml():
    config = {"a": 1, "data": {"slots": (1.0, 0.5), "odd.key": "\x7f \t ' \"", "none": None, "few": []}, "empty": {}}
    expected = {"a": 1, "data": {"slots": [1.0, 0.5], "odd.key": "\x7f \t ' \"", "few": []}, "empty": {}}
    assert tomllib.loads(run_folder.to_toml(config)) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate": 2e-5}, "rate = 1e-05 there and 2e-05 here"),
        ({"seeds": (1, 3)}, r"seeds = \[1, 2\] there and \[1, 3\] here"),
        ({"absent": 1}, "absent = None there and 1 here"),
        ({"nested": None}, "nested = True there and None here"),
        ({"loss": "log", "epochs": 4}, "loss = 'log_plus' there and 'log' here, epochs = 3 there and 4 here"),
    ],
)
def test_another_configuration_is_rejected_by_its_difference(tmp_path, changes, words):
    run_folder.open_folder(tmp_path, CONFIG)
    before = (tmp_path / "config.toml").read_bytes()
    with pytest.raises(InputError, match=f" with {words}; choose another folder") as error:
        run_folder.open_folder(tmp_path, CONFIG | changes)
    assert error.value.argument == "out"
    assert (tmp_path / "config.toml").read_bytes() == before


def test_a_folder_is_none_that_is_a_file_and_its_configuration_readable(tmp_path):
    assert run_folder.check_writable(tmp_path / "new" / "run") == tmp_path / "new" / "run"
    assert os.listdir(tmp_path) == []
    file = tmp_path / "config.toml"
    file.write_text("loss = = log")
    with pytest.raises(InputError, match=r"config\.toml"):
        run_folder.open_folder(tmp_path, CONFIG)
    for out in (file, file / "run"):
        with pytest.raises(InputError, match=r"config\.toml$") as error:
            run_folder.check_writable(out)
        assert error.value.argument == "out"


# where a run was made


def test_environment_says_where_a_run_was_made(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/bidwise", "train", "ads.parquet"])
    found = run_folder.environment()
    assert list(found) == ["bidwise", "commit", "command", "machine", "cores", "threads", "python", "torch", "numpy"]
    known = {"bidwise": bidwise.__version__, "torch": torch.__version__, "numpy": np.__version__}
    known |= {"command": "bidwise train ads.parquet", "threads": torch.get_num_threads(), "cores": os.cpu_count()}
    assert found == found | known
    assert found["machine"]
    assert to_json(found) == found
    for program, name in (("/lab/paper/__main__.py", "python -m paper"), (str(Path.cwd() / "x.py"), "x.py")):
        monkeypatch.setattr(sys, "argv", [program])
        assert run_folder.environment()["command"] == name


def test_environment_shows_nobody_where_the_user_lives(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setattr(sys, "argv", ["/home/somebody/lab/train.py", "--out=/home/somebody/run", "/data/ads.parquet"])
    found = run_folder.environment()
    assert found["command"] == "~/lab/train.py --out=~/run /data/ads.parquet"
    assert "somebody" not in json.dumps(found)
    monkeypatch.setenv("HOME", "/")
    assert "/data/ads.parquet" in run_folder.environment()["command"]


def git(folder, *words):
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_that_of_the_sources(tmp_path, monkeypatch):
    for name in ("run_folder.py", "__init__.py"):
        shutil.copy(Path(run_folder.__file__).parent / name, tmp_path / name)
    monkeypatch.setattr(run_folder, "__file__", str(tmp_path / "run_folder.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert run_folder._commit() is None
    git(tmp_path, "init", "-q")
    (tmp_path / "other").write_text("")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-qm", "another project, with bidwise installed inside")
    assert run_folder._commit() is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "sources")
    clean = run_folder._commit()
    assert clean
    assert not clean.endswith("+")
    (tmp_path / "run_folder.py").write_text("")
    assert run_folder._commit() == clean + "+"


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "kept.pt"
    run_folder.save(path, {"numbers": torch.arange(5)})
    assert torch.equal(run_folder.load(path)["numbers"], torch.arange(5))
    whole = path.read_bytes()
    for damaged in (b"", b"junk", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"kept\.pt must be a file that bidwise wrote, found a damaged one"):
            run_folder.load(path)
    with pytest.raises(FileNotFoundError):
        run_folder.load(tmp_path / "nothing.pt")


def test_a_folder_is_written_by_one_run_at_a_time(tmp_path):
    out = tmp_path / "deep" / "run"
    with locked_folder(out):
        (out / "something").write_text("")
        with pytest.raises(InputError, match="in use by another run; wait"), locked_folder(out):
            pass
    with locked_folder(out):  # free again
        pass
    assert (out / "something").exists()


def test_the_lock_of_a_killed_run_is_gone(tmp_path):
    script = (
        "import sys, time\nfrom bidwise.run_folder import locked_folder\n"
        "with locked_folder(sys.argv[1]): print(1, flush=True); time.sleep(60)"
    )
    held = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert held.stdout.readline()
    with pytest.raises(InputError, match="in use by another run"), locked_folder(tmp_path):
        pass
    held.kill()
    held.wait()
    held.stdout.close()
    assert (tmp_path / ".lock").exists()
    with locked_folder(tmp_path):
        assert (tmp_path / ".lock").exists()
    assert not list(tmp_path.iterdir())


def test_a_lock_is_not_taken_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"), locked_folder(tmp_path / "run"):
        pass
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_folder_that_stays_empty_is_taken_away(tmp_path):
    with pytest.raises(InputError), locked_folder(tmp_path / "a" / "b"):
        raise InputError("nothing came of it")
    assert not (tmp_path / "a").exists()


def test_a_file_is_never_written_through_a_link(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    part, lock = tmp_path / "file.part", tmp_path / "file.lock"
    made = (os.link, part), (os.symlink, part), (lambda _, link: os.mkfifo(link), part), (os.link, lock)
    for make, link in made:
        make(outside, link)
        run_folder.write_text(tmp_path / "file", "ours")
        assert (outside.read_text(), (tmp_path / "file").read_text()) == ("mine", "ours")
        assert not link.exists()
