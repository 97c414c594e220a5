"""Tasks of the experiments: results that are kept, and errors."""

from functools import partial

import pytest
import torch

from bidwise.checks import InputError
from paper.tasks import Task, TaskCache, threads


def counted(show, folder, name, value):
    """A value, and a mark for every time that it is computed."""
    with (folder / name).open("a") as file:
        file.write("x")
    show(0.5)
    if value < 0:
        raise InputError(f"must be at least 0, found {value}", argument="value")
    return {"value": torch.tensor(value)}


def cached(folder, tasks, pool=None, progress=None):
    cache = TaskCache(folder, {}, progress=progress, expected=len(tasks))
    return cache, cache.all(tasks, pool)


def some_tasks(folder, key="of these ads", values=(0, 1, 2)):
    marks = folder / "marks"
    marks.mkdir(exist_ok=True)
    return [
        Task(f"task_{k}", partial(counted, folder=marks, name=str(k), value=value), key=key)
        for k, value in enumerate(values)
    ]


def computed(folder):
    return [len((folder / "marks" / str(k)).read_text()) for k in range(3)]


@pytest.mark.parametrize("pool", [lambda: None, lambda: threads(2)], ids=["inline", "threads"])
def test_a_cache_computes_once_and_again_if_a_file_is_damaged(tmp_path, pool):
    cache, values = cached(tmp_path, some_tasks(tmp_path), pool())
    assert [int(value["value"]) for value in values] == [0, 1, 2]
    cache.path("task_1").write_bytes(b"damaged")
    cache.path("task_2").unlink()
    assert cached(tmp_path, some_tasks(tmp_path), pool())[1] == values
    assert computed(tmp_path) == [1, 2, 2]
    cached(tmp_path, some_tasks(tmp_path, "of other ads"), pool())
    assert computed(tmp_path) == [2, 3, 3]


def test_a_cache_that_is_cut_off_keeps_finished_results(tmp_path):
    with pytest.raises(InputError) as error:
        cached(tmp_path, some_tasks(tmp_path, values=(0, -1, 2)))
    assert error.value.argument == "value"
    _, values = cached(tmp_path, some_tasks(tmp_path))
    assert [int(value["value"]) for value in values] == [0, 1, 2]
    assert computed(tmp_path) == [1, 2, 1]


def test_a_cache_shows_which_part_is_computed_and_never_goes_back(tmp_path):
    shown = []
    cached(tmp_path, some_tasks(tmp_path), progress=lambda work, done, detail="": shown.append((done, detail)))
    assert (0.5 / 3, "part 1 of 3") in shown
    shares = [done for done, _ in shown]
    assert shares == sorted(shares)
    assert shares[-1] == 1
