"""Preprocessing on a Ray cluster: the bytes of a single machine's store, its errors, and workers that die."""

import gzip
import importlib
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bidwise import ray_runner, runners
from bidwise.checks import InputError
from bidwise.cli import main
from bidwise.cli.data_command import prepare_criteo
from bidwise.data import blocks
from bidwise.data.bids import Bids
from bidwise.data.criteo_text import simulate
from bidwise.data.store import Store
from bidwise.paper import raw_text as criteo_files
from bidwise.paper import sorted_blocks as criteo_runs
from bidwise.paper.prepare_criteo import WORK, prepare
from bidwise.table.config import resolved
from bidwise.table.encode import prepare as prepare_table

ray = pytest.importorskip("ray")
pytestmark = [  # what Ray leaves to the garbage collector when it starts and ends its own processes
    pytest.mark.filterwarnings("ignore:unclosed file .*/dev/null:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(address="local", num_cpus=2, log_to_driver=False, include_dashboard=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Many blocks and ranges; workers are told where they end."""
    monkeypatch.setattr(criteo_files, "BLOCK", 30_000)
    monkeypatch.setattr(criteo_runs, "RANGE", 200)


@pytest.fixture
def raw(tmp_path):
    """Three files with their CTR, the second gzip, with malformed lines; the last line has no end."""
    files = []
    for seed, (name, rows) in enumerate({"a.txt": 700, "b.gz": 400, "c.txt": 300}.items()):
        made = simulate(tmp_path / "plain.txt", rows, seed=seed)
        lines = made.out.read_bytes().splitlines()
        lines[7] = lines[130] = b"not a line"
        lines[rows // 2 + seed] = b"7" + lines[rows // 2 + seed][1:]
        text = b"\n".join(lines) + b"\n" * (name != "c.txt")
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        made.truth.rename(tmp_path / f"{name}.ctr.npy")
        files.append(tmp_path / name)
    return files


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_file_of_the_store_is_the_same(tmp_path, raw):
    bars = {engine: {} for engine in runners.ENGINES}
    for engine, shown in bars.items():
        options = {"on_error": "skip", "min_count": 3, "seed": 5, "bids": Bids("ctr")}
        prepare(raw, tmp_path / engine, engine=engine, progress=shown.__setitem__, **options)
    found = contents(tmp_path / "local")
    assert {"store.json", "config.toml", "test/bids.npy", "valid/truth.npy"} <= {*found}
    assert Store(tmp_path / "ray").schema["skipped"]["lines"] == 9
    assert found == contents(tmp_path / "ray")
    assert bars["local"] == bars["ray"]
    assert set(bars["ray"].values()) == {1}


@pytest.fixture
def ads(tmp_path, monkeypatch):
    """A table of seven blocks."""
    monkeypatch.setattr(blocks, "ROWS", 300)
    random = np.random.default_rng(0)
    columns = {"query": random.integers(0, 200, 2000), "site": random.integers(0, 9, 2000).astype(str)}
    columns |= {"bid": random.uniform(1, 2, 2000), "click": random.integers(0, 2, 2000)}
    pl.DataFrame(columns).write_parquet(tmp_path / "ads.parquet")
    return tmp_path / "ads.parquet"


TABLE = {"data": {"click": "click", "bid": "bid", "auction": ["query"]}}


def test_a_table_becomes_the_same_store_on_a_cluster(tmp_path, ads):
    for engine in runners.ENGINES:
        prepare_table(ads, resolved(TABLE, {"train.loss": "log_loss"}), tmp_path / engine, engine=engine)
    assert contents(tmp_path / "local") == contents(tmp_path / "ray")


def test_a_table_becomes_the_same_store_when_workers_are_killed(tmp_path, ads, monkeypatch):
    config, killed = resolved(TABLE, {"train.loss": "log_loss"}), tmp_path / "killed"
    prepare_table(ads, config, tmp_path / "local")
    killed.mkdir()
    in_order, steps = ray_runner.Ray.in_order, []

    def deadly(work, step, task):
        """The task; a step's first worker is killed when it is done but has not said so."""
        first = not any(killed.glob(f"{step} *"))
        (killed / f"{step} {os.getpid()}").touch()
        found = work(task)
        if first:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    def deadly_in_order(engine, work, tasks, then):
        steps.append(work.func.__name__)
        in_order(engine, partial(deadly, work, steps[-1]), tasks, then)

    monkeypatch.setattr(ray_runner.Ray, "in_order", deadly_in_order)
    prepare_table(ads, config, tmp_path / "ray", engine="ray")
    assert steps == ["_checked", "_counted", "_encoded"]
    assert {path.name.split()[0] for path in killed.iterdir()} == {*steps}
    died = [int(path.name.split()[1]) for path in killed.iterdir()]
    assert len([process for process in died if not Path(f"/proc/{process}").exists()]) >= len(steps)
    assert contents(tmp_path / "local") == contents(tmp_path / "ray")


def test_the_command_trains_the_same_model_from_a_cluster(tmp_path, ads, monkeypatch, capsys):
    words = ["train", str(ads), "--click", "click", "--bid", "bid", "--auction", "query", "--loss", "log_loss"]
    words += ["--model", "deepfm", "--set", "train.epochs=1"]
    for engine in runners.ENGINES:
        monkeypatch.setattr(sys, "argv", ["bidwise", *words, "--engine", engine, "--out", str(tmp_path / engine)])
        main()
    stored = [contents(tmp_path / engine / "store") for engine in runners.ENGINES]
    assert stored[0] == stored[1]
    for name in ("encoder.json", "model.pt"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes()


def test_the_command_takes_paths_of_the_folder_it_is_in(tmp_path, raw, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = [Path(path.name) for path in raw]
    for engine in runners.ENGINES:
        prepare_criteo(*names, Path(engine), on_error="skip", engine=engine)
    assert contents(tmp_path / "local") == contents(tmp_path / "ray")
    assert "1,391 ads, with their true CTR" in capsys.readouterr().out


def damaged(raw):
    raw[1].write_bytes(raw[1].read_bytes()[:-3000])


def wrong_truth(raw):
    truth = np.load(f"{raw[2]}.ctr.npy")
    truth[250] = 1.5
    np.save(f"{raw[2]}.ctr.npy", truth)


def short_truth(raw):
    np.save(f"{raw[1]}.ctr.npy", np.zeros(399, np.float32))


FAULTS = {
    "line": (lambda raw: None, "strict", r"a\.txt:8: expected 40 fields"),
    "gzip": (damaged, "skip", "found one that is cut off after"),
    "ctr": (wrong_truth, "skip", "found 1.5 for line 251"),
    "ctrs": (short_truth, "skip", "for each of the 400 lines of .*b.gz, found 399"),
    "empty": (lambda raw: raw[2].write_bytes(b""), "skip", "found the empty .*c.txt"),
    "zip": (lambda raw: raw[0].write_bytes(b"PK\3\4"), "skip", "found a zip archive"),
    "no lines": (lambda raw: raw[0].write_bytes(b"x" * 50_000), "skip", "found 30,000 bytes without an end of line"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_are_those_of_a_single_machine(tmp_path, raw, fault):
    spoil, on_error, words = FAULTS[fault]
    spoil(raw)
    told = []
    for engine in runners.ENGINES:
        with pytest.raises(InputError, match=words) as error:
            prepare(raw, tmp_path / "out", on_error=on_error, engine=engine)
        told.append((type(error.value), str(error.value)))
        assert not (tmp_path / "out").exists()  # no task that is still at work writes there
    assert told[0] == told[1]
    assert "\n" not in told[0][1]


@pytest.mark.parametrize("stop", ["Reading lines", "Counting values", "Writing ads", "Drawing bids"])
@pytest.mark.parametrize("first", runners.ENGINES)
def test_what_one_engine_began_the_other_finishes(tmp_path, raw, first, stop):
    whole, out = tmp_path / "whole", tmp_path / "out"
    prepare(raw, whole, on_error="skip")

    def cut(work, share):
        if work == stop and share > 0.2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(raw, out, on_error="skip", engine=first, progress=cut)
    there = {path: path.stat().st_ino for path in (out / WORK).glob("*.run")}
    assert there or stop == "Drawing bids"
    kept = []

    def look(work, share):
        if work == "Writing ads":
            kept.append({path: path.stat().st_ino for path in there} == there)

    (second,) = {*runners.ENGINES} - {first}
    prepare(raw, out, on_error="skip", engine=second, progress=look)
    assert all(kept)  # none is parsed again
    assert contents(out) == contents(whole)


def test_a_task_whose_worker_is_killed_is_tried_again(tmp_path, raw, monkeypatch):
    whole = prepare(raw, tmp_path / "whole", on_error="skip").folder
    in_order, killed = ray_runner.Ray.in_order, tmp_path / "killed"
    killed.mkdir()

    def deadly(work, step, task):
        """The task; a step's first worker is killed when it has written a file but not named it, or has its result."""
        mark = killed / f"{step} {os.getpid()}"
        if any(killed.glob(f"{step} *")):
            return work(task)
        mark.touch()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "replace", lambda *names: os.kill(os.getpid(), signal.SIGKILL))
            work(task)
        os.kill(os.getpid(), signal.SIGKILL)

    steps = []

    def deadly_in_order(engine, work, tasks, then):
        steps.append(getattr(work, "func", work).__name__)
        in_order(engine, partial(deadly, work, steps[-1]), tasks, then)

    monkeypatch.setattr(ray_runner.Ray, "in_order", deadly_in_order)
    prepare(raw, tmp_path / "out", on_error="skip", engine="ray", progress=lambda work, share: None)
    assert steps == ["_run", "count_values", "encoded"]
    died = [int(path.name.split()[1]) for path in killed.iterdir()]
    assert {path.name.split()[0] for path in killed.iterdir()} == {*steps}
    assert not [process for process in died if Path(f"/proc/{process}").exists()]
    assert contents(tmp_path / "out") == contents(whole)


def test_a_task_whose_workers_all_die_ends_the_run_and_the_run_goes_on(tmp_path, raw, monkeypatch):
    whole = prepare(raw, tmp_path / "whole", on_error="skip").folder
    with monkeypatch.context() as patch:
        patch.setattr(ray_runner, "TRIES", 1)
        in_order = ray_runner.Ray.in_order

        def deadly(work, task):
            return os.kill(os.getpid(), signal.SIGKILL) if task == 9 else work(task)

        patch.setattr(
            ray_runner.Ray, "in_order", lambda engine, work, *rest: in_order(engine, partial(deadly, work), *rest)
        )
        with pytest.raises(OSError, match=r"it was killed 1 times; does it fit into memory.* the same command resumes"):
            prepare(raw, tmp_path / "out", on_error="skip", engine="ray")
    assert list((tmp_path / "out" / WORK).glob("*.run"))
    prepare(raw, tmp_path / "out", on_error="skip", engine="ray")
    assert contents(tmp_path / "out") == contents(whole)


KILLED = """
import os, signal, threading, time
from pathlib import Path
from bidwise import ray_runner
from bidwise.cli import main
from bidwise.paper import prepare_criteo
def slow(*words):
    time.sleep(60)
def name(process):
    return Path(f"/proc/{process}/comm").read_text().strip()
def started_ray(started=ray_runner.started_ray):
    ray = started()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (raylet,) = [process for process in children if name(process) == "raylet"]
    threading.Timer(2, os.kill, (int(raylet), signal.SIGKILL)).start()
    return ray
prepare_criteo._run, ray_runner.started_ray = slow, started_ray
main()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")
def test_a_raylet_that_dies_is_one_line(tmp_path, raw):
    words = ["prepare", "criteo", str(raw[0]), str(tmp_path / "out"), "--on-error", "skip", "--engine", "ray"]
    alone = os.environ | {"RAY_ADDRESS": "local"}
    found = subprocess.run(
        [sys.executable, "-c", KILLED, *words], capture_output=True, text=True, check=False, env=alone
    )
    assert found.returncode == 2
    told = [line for line in found.stderr.splitlines() if line.startswith("bidwise")]
    assert len(told) == 1
    assert "the raylet, has died; start the cluster again, and the same command resumes" in told[0]
    assert "Traceback" not in found.stderr


def test_a_broken_pipe_to_a_raylet_that_died_is_told_as_that(cluster, monkeypatch):
    def broken(value):
        raise BrokenPipeError("Broken pipe")

    engine = ray_runner.Ray()
    monkeypatch.setattr(engine.ray, "put", broken)
    with pytest.raises(BrokenPipeError):  # of something else
        engine.in_order(abs, range(3), print)
    monkeypatch.setattr(ray_runner, "_listens", lambda raylet: False)
    with pytest.raises(OSError, match="the raylet, has died; start the cluster again"):
        engine.in_order(abs, range(3), print)
    monkeypatch.setattr(engine.remote, "remote", lambda *words: broken(words))
    with pytest.raises(OSError, match="the raylet, has died; start the cluster again"):
        engine.execute(runners.Call("", abs), print)


def test_a_folder_that_a_worker_does_not_see_is_named(tmp_path, raw, monkeypatch):
    in_order = ray_runner.Ray.in_order

    def elsewhere(engine, work, tasks, then):
        tasks = list(tasks)
        (tmp_path / "out" / WORK).rmdir()
        in_order(engine, work, tasks, then)

    monkeypatch.setattr(ray_runner.Ray, "in_order", elsewhere)
    with pytest.raises(OSError, match=r"out must be on a file system that all machines .* found no .*out.* on"):
        prepare(raw, tmp_path / "out", on_error="skip", engine="ray")


def test_values_are_put_into_the_cluster_once_however_large(cluster):
    weights = np.arange(3_000_000.0)  # more than Ray lets a function hold
    found = []
    ray_runner.Ray().in_order(lambda at: float(weights[at]), range(40), found.append)
    assert found == list(map(float, range(40)))


def test_errors_of_a_later_task_wait_for_those_before(cluster):
    found = []

    def work(task):
        if task >= 3:
            raise InputError(f"found {task}")
        return task

    with pytest.raises(InputError, match=r"^found 3$"):
        ray_runner.Ray().in_order(work, range(10), found.append)
    assert found == [0, 1, 2]


class Unknown:
    """What workers of another version of bidwise cannot read."""

    def __reduce__(self):
        return importlib.import_module, ("bidwise.nothing",)


def test_workers_of_another_version_are_named(cluster):
    with pytest.raises(
        OSError, match=r"^all machines .* the same version of bidwise.*No module named 'bidwise.nothing'$"
    ):
        ray_runner.Ray().in_order(Unknown(), range(3), print)
