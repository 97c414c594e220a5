"""`sweep` on a Ray cluster of this machine: the same numbers as in processes, also where a worker is killed."""

import json
import os

import pytest
from run_helpers import Killer, sections_of, small_market, without_times

import bidwise
from bidwise.ray_runner import device_on_ray
from bidwise.table import sweep as sweep_module
from bidwise.table.sweep import sweep

pytest.importorskip("ray")
pytestmark = [  # what Ray leaves to the garbage collector when it starts and ends its own processes
    pytest.mark.filterwarnings("ignore:unclosed file .*/dev/null:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
LISTS = {"train.loss": ["log_loss", "log_plus"], "train.seed": [0, 1]}


@pytest.fixture(scope="module")
def cluster():
    """Ray with two cores, shut down in the end with all of its processes."""
    import ray

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, configure_logging=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "ads.parquet"
    small_market().write_parquet(path)
    return path


@pytest.fixture(scope="module")
def local(table, tmp_path_factory):
    return sweep(sections_of(table, LISTS), out=tmp_path_factory.mktemp("local") / "out", workers=2)


def test_ray_finds_the_numbers_of_local_to_the_last_digit(cluster, table, local, tmp_path):
    lines = []
    found = sweep(sections_of(table, LISTS), out=tmp_path / "out", engine="ray", say=lines.append)
    assert without_times(found) == without_times(local)
    assert len(lines) == 5
    environment = json.loads((tmp_path / "out" / "trials" / "log_loss-seed_0" / "environment.json").read_text())
    assert "default_worker" not in environment["command"]  # the command of the sweep, not that of Ray's worker


def test_a_killed_worker_is_tried_again_and_the_sweep_ends_well(cluster, table, local, tmp_path):
    killer = Killer(tmp_path / "out" / "trials" / "log_plus-seed_1")
    killer.start()
    found = sweep(sections_of(table, LISTS), out=tmp_path / "out", engine="ray", workers=1)
    killer.join()
    assert len(killer.killed) == 1
    assert without_times(found) == without_times(local)


def test_a_worker_that_is_always_killed_costs_only_its_trial(cluster, table, tmp_path):
    killer = Killer(tmp_path / "out" / "trials" / "log_loss-seed_0", times=3)
    killer.start()
    found = sweep(sections_of(table, LISTS), out=tmp_path / "out", engine="ray")
    killer.join()
    assert len(killer.killed) == 3
    assert [(trial.name, "killed 3 times" in trial.failed) for trial in found.failed] == [("log_loss-seed_0", True)]


def test_a_failing_trial_does_not_end_the_others(cluster, table, tmp_path):
    lists = {"data.categorical": [["site"], ["sight"]]}
    found = sweep(sections_of(table, lists, loss="log_loss"), out=tmp_path / "out", engine="ray")
    assert found.trials[0].failed is None
    assert "did you mean 'site'" in found.trials[1].failed


def test_a_cluster_without_gpus_trains_on_its_cores(cluster):
    assert device_on_ray("auto") == device_on_ray("cpu") == "cpu"
    with pytest.raises(bidwise.InputError, match="the Ray cluster has no GPU"):
        device_on_ray("cuda")


def test_a_device_that_the_cluster_does_not_have_is_refused_before_anything_is_written(cluster, table, tmp_path):
    with pytest.raises(bidwise.InputError, match="the Ray cluster has no GPU"):
        sweep(sections_of(table, LISTS), out=tmp_path / "out", engine="ray", device="cuda")
    assert not (tmp_path / "out").exists()


def test_what_a_task_raises_is_told_in_plain_words(cluster, table, tmp_path, monkeypatch):
    def broken(show, **options):
        raise TypeError("no such\nthing")

    monkeypatch.setattr(sweep_module, "run_trial", broken)
    found = sweep(sections_of(table, {"train.loss": ["log_loss"]}), out=tmp_path / "out", engine="ray")
    assert [trial.failed for trial in found.trials] == ["TypeError: no such thing"]
    assert "\\u001b" not in (tmp_path / "out" / "result.json").read_text()
