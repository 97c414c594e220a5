"""Runners: order, errors, processes that are killed or no longer wanted, progress, and results that are kept."""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import closing

import pytest
import torch

from bidwise.checks import InputError
from bidwise.runners import Call, Killed, Processes, Runner, Task, TaskCache, Threads

RUNNERS = [Runner(), Runner(3), Threads(3), Processes(2)]


def square(show, number):
    show(0.5)
    if number < 0:
        raise InputError(f"number must be at least 0, found {number}")
    return number**2


def die(show, folder, times, number=signal.SIGKILL):
    """Ends its process, as often as it is told to."""
    tries = len(list(folder.iterdir()))
    (folder / str(tries)).touch()
    if tries < times:
        os.kill(os.getpid(), number)
    return tries


def wait_forever(show, folder):
    (folder / str(os.getpid())).touch()
    while True:
        show(0.5)
        time.sleep(0.01)


def calls(*numbers):
    return [Call(str(number), square, {"number": number}) for number in numbers]


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


@pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: f"{type(runner).__name__} {runner.workers}")
def test_every_call_ends_with_its_value_or_its_error(runner):
    ended = {call.name: future for call, future in runner.run(calls(1, -2, 3))}
    assert ended["1"].result() == 1
    assert ended["3"].result() == 9
    with pytest.raises(InputError, match=r"^number must be at least 0, found -2$"):
        ended["-2"].result()
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: f"{type(runner).__name__} {runner.workers}")
def test_ordered_calls_come_in_their_order(runner):
    assert [future.result() for _, future in runner.run(calls(*range(9)), ordered=True)] == [k**2 for k in range(9)]


def test_results_come_in_the_order_of_tasks_to_the_thread_that_asked():
    found, threads = [], set()

    def then(result):
        found.append(result)
        threads.add(threading.current_thread())

    Runner(4).in_order(lambda task: task**2, range(50), then)
    assert found == [task**2 for task in range(50)]
    assert threads == {threading.current_thread()}
    found.clear()

    def work(task):
        if task >= 3:
            raise InputError(f"found {task}")
        return task

    with pytest.raises(InputError, match=r"^found 3$"):
        Runner(4).in_order(work, range(50), then)
    assert found == [0, 1, 2]


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize("runner", [Runner(), Processes(1)], ids=lambda runner: type(runner).__name__)
def test_progress_arrives_with_its_call(runner):
    shown = []
    patient = [Call("slow", slow, {})]
    for _ in runner.run(patient, show=lambda call, share: shown.append((call.name, share))):
        pass
    assert ("slow", 0.5) in shown


def slow(show):
    show(0.5)
    time.sleep(1)


def test_a_killed_process_is_started_again(tmp_path):
    lines = []
    ((_, future),) = Processes(1, lines.append).run([Call("trial", die, {"folder": tmp_path, "times": 2})])
    assert future.result() == 2
    assert lines == [f"trial was killed; it resumes in a new process, try {k} of 3" for k in (2, 3)]


@pytest.mark.usefixtures("quick_processes")
def test_a_process_that_is_always_killed_costs_only_its_call(tmp_path):
    doomed = Call("doomed", die, {"folder": tmp_path, "times": 9})
    ended = {call.name: future for call, future in Processes(1).run([doomed, *calls(4)])}
    assert ended["4"].result() == 16
    with pytest.raises(Killed, match=r"it was killed 3 times; does it fit into memory\?"):
        ended["doomed"].result()


@pytest.mark.usefixtures("quick_processes")
def test_only_what_was_killed_is_called_so(tmp_path):
    call = Call("crash", die, {"folder": tmp_path, "times": 9, "number": signal.SIGABRT})
    ((_, future),) = Processes(1).run([call])
    assert str(future.exception()) == "its process ended 3 times, with exit code -6"


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize("raised", [KeyboardInterrupt, InputError])
def test_leaving_early_ends_what_is_under_way(tmp_path, raised):
    endless = Call("endless", wait_forever, {"folder": tmp_path})

    def leave_early():
        with closing(Processes(2).run([endless, *calls(3)])) as ended:
            for _ in ended:
                assert until(lambda: list(tmp_path.iterdir()))
                raise raised("enough")

    with pytest.raises(raised):
        leave_early()
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("quick_processes")
def test_what_cannot_travel_is_an_error_and_not_the_end():
    ended = {call.name: future for call, future in Processes(1).run([Call("lambda", odd, {}), *calls(2)])}
    assert "lambda" in str(ended["lambda"].exception())
    assert ended["2"].result() == 4


def odd(show):
    return lambda: None


def cached(folder, tasks, runner=None, progress=None):
    cache = TaskCache(folder, progress, expected=len(tasks))
    return cache, cache.all(tasks, runner)


def counted(show, folder, name, value):
    """A value, and a mark for every time that it is computed."""
    with (folder / name).open("a") as file:
        file.write("x")
    show(0.5)
    return {"value": torch.tensor(value)}


def some_tasks(folder, key="of these ads"):
    marks = folder / "marks"
    marks.mkdir(exist_ok=True)
    return [
        Task(f"task_{k}", counted, {"folder": marks, "name": str(k), "value": k}, key=key, epochs=4) for k in range(3)
    ]


def computed(folder):
    return [len((folder / "marks" / str(k)).read_text()) for k in range(3)]


def test_threads_that_share_the_cores_have_one_of_torchs_threads_each():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        calls = [Call(str(number), torch_threads) for number in range(3)]
        assert [future.result() for _, future in Threads(2, torch_threads=1).run(calls)] == [1, 1, 1]
        assert torch.get_num_threads() == 2
        assert [future.result() for _, future in Threads(2).run(calls)] == [2, 2, 2]
    finally:
        torch.set_num_threads(before)


def torch_threads(show):
    return torch.get_num_threads()


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize("runner", [None, Threads(2), Processes(2)], ids=["inline", "threads", "processes"])
def test_a_cache_computes_once_and_again_where_a_file_is_damaged(tmp_path, runner):
    cache, values = cached(tmp_path, some_tasks(tmp_path), runner)
    assert [int(value["value"]) for value in values] == [0, 1, 2]
    assert cache.computed
    cache.path("task_1").write_bytes(b"damaged")
    cache.path("task_2").unlink()
    _, again = cached(tmp_path, some_tasks(tmp_path), runner)
    assert again == values
    assert computed(tmp_path) == [1, 2, 2]
    cache, _ = cached(tmp_path, some_tasks(tmp_path), runner)
    assert not cache.computed
    cached(tmp_path, some_tasks(tmp_path, "of other ads"), runner)
    assert computed(tmp_path) == [2, 3, 3]


def test_a_cache_that_is_cut_off_keeps_what_is_finished(tmp_path):
    tasks = some_tasks(tmp_path)
    failing = Task("task_1", square, {"number": -1})
    with pytest.raises(InputError, match="at least 0"):
        cached(tmp_path, [tasks[0], failing, tasks[2]])
    _, values = cached(tmp_path, tasks)
    assert [int(value["value"]) for value in values] == [0, 1, 2]
    assert computed(tmp_path) == [1, 1, 1]


def test_a_cache_shows_which_model_trains_and_never_goes_back(tmp_path):
    shown = []
    cached(tmp_path, some_tasks(tmp_path), progress=lambda work, done, detail="": shown.append((done, detail)))
    assert (0.5 / 3, "model 1 of 3, epoch 2.0 of 4") in shown
    shares = [done for done, _ in shown]
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.usefixtures("quick_processes")
def test_a_cache_says_that_fewer_workers_may_fit(tmp_path):
    (tmp_path / "tries").mkdir()
    doomed = Task("doomed", die, {"folder": tmp_path / "tries", "times": 9})
    with pytest.raises(InputError, match="workers must fit into memory, found that 2 do not; use fewer") as error:
        cached(tmp_path, [doomed], Processes(2))
    assert error.value.argument == "workers"
