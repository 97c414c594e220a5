"""Tasks of the experiments: results that are kept, and processes that end."""

import multiprocessing
import os
import signal
import time

import pytest
import torch

from bidwise.checks import InputError
from bidwise.workers import threads
from paper.tasks import Task, TaskCache, here, processes


def counted(show, folder, name, value):
    """A value, and a mark for every time that it is computed."""
    with (folder / name).open("a") as file:
        file.write("x")
    show(0.5)
    if value < 0:
        raise InputError(f"must be at least 0, found {value}", argument="value")
    return {"value": torch.tensor(value)}


def die(show):
    os.kill(os.getpid(), signal.SIGKILL)


def wait_forever(show, folder):
    (folder / "begun").touch()
    time.sleep(600)


def cached(folder, tasks, pool=None, way=here, progress=None):
    cache = TaskCache(folder, progress, expected=len(tasks))
    return cache, cache.all(tasks, pool, way)


def some_tasks(folder, key="of these ads", values=(0, 1, 2)):
    marks = folder / "marks"
    marks.mkdir(exist_ok=True)
    return [
        Task(f"task_{k}", counted, {"folder": marks, "name": str(k), "value": value}, key=key, epochs=4)
        for k, value in enumerate(values)
    ]


def computed(folder):
    return [len((folder / "marks" / str(k)).read_text()) for k in range(3)]


def check_cache(folder, pool=lambda: None, way=here):
    cache, values = cached(folder, some_tasks(folder), pool(), way)
    assert [int(value["value"]) for value in values] == [0, 1, 2]
    assert cache.computed
    cache.path("task_1").write_bytes(b"damaged")
    cache.path("task_2").unlink()
    assert cached(folder, some_tasks(folder), pool(), way)[1] == values
    assert computed(folder) == [1, 2, 2]
    assert not cached(folder, some_tasks(folder), pool(), way)[0].computed
    cached(folder, some_tasks(folder, "of other ads"), pool(), way)
    assert computed(folder) == [2, 3, 3]


@pytest.mark.parametrize("pool", [lambda: None, lambda: threads(2)], ids=["inline", "threads"])
def test_a_cache_computes_once_and_again_if_a_file_is_damaged(tmp_path, pool):
    check_cache(tmp_path, pool)


@pytest.mark.usefixtures("quick_processes")
def test_processes_fill_a_cache_and_end(tmp_path):
    with processes(2) as way:
        check_cache(tmp_path, lambda: threads(2), way)
    assert multiprocessing.active_children() == []


def test_a_cache_that_is_cut_off_keeps_finished_results(tmp_path):
    with pytest.raises(InputError) as error:
        cached(tmp_path, some_tasks(tmp_path, values=(0, -1, 2)))
    assert error.value.argument == "value"
    _, values = cached(tmp_path, some_tasks(tmp_path))
    assert [int(value["value"]) for value in values] == [0, 1, 2]
    assert computed(tmp_path) == [1, 2, 1]


def test_a_cache_shows_which_model_trains_and_never_goes_back(tmp_path):
    shown = []
    cached(tmp_path, some_tasks(tmp_path), progress=lambda work, done, detail="": shown.append((done, detail)))
    assert (0.5 / 3, "model 1 of 3, epoch 2.0 of 4") in shown
    shares = [done for done, _ in shown]
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.usefixtures("quick_processes")
def test_a_killed_process_ends_the_run_with_one_line(tmp_path):
    with processes(1) as way, pytest.raises(OSError, match="use fewer --workers"):
        cached(tmp_path, [Task("doomed", die)], threads(1), way)
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("quick_processes")
def test_an_interruption_ends_processes(tmp_path):
    def interrupted(work, done, detail=""):
        raise KeyboardInterrupt

    endless = Task("endless", wait_forever, {"folder": tmp_path})
    with pytest.raises(KeyboardInterrupt), processes(2) as way:
        cached(tmp_path, [endless, *some_tasks(tmp_path)], threads(2), way, interrupted)
    assert multiprocessing.active_children() == []
