"""Threads: order, errors, progress, and what is no longer wanted."""

import threading
import time

import pytest

from bidwise.checks import InputError
from bidwise.workers import Call, finished, in_order, threads


def square(show, number):
    show(0.5)
    if number < 0:
        raise InputError(f"must be at least 0, found {number}", argument="number")
    return number**2


def calls(*numbers):
    return [Call(str(number), square, {"number": number}) for number in numbers]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_every_call_ends_with_its_value_or_the_first_error(workers):
    pool = threads(workers) if workers else None
    assert {call.name: value for call, value in finished(calls(1, 2, 3), pool)} == {"1": 1, "2": 4, "3": 9}
    with pytest.raises(InputError) as error:
        list(finished(calls(1, -2, 3), threads(workers) if workers else None))
    assert error.value.argument == "number"


@pytest.mark.parametrize("workers", [1, 4])
def test_values_come_in_the_order_of_tasks_to_the_thread_that_asked(workers):
    found, seen = [], set()

    def then(value):
        found.append(value)
        seen.add(threading.current_thread())

    def work(task):
        time.sleep(0.001 * (task % 3))
        if task >= 40:
            raise InputError(f"found {task}")
        return task**2

    in_order(work, range(30), then, workers)
    assert found == [task**2 for task in range(30)]
    assert seen == {threading.current_thread()}
    found.clear()
    with pytest.raises(InputError, match=r"^found 40$"):
        in_order(work, range(50), then, workers)
    assert found == [task**2 for task in range(40)]


def test_no_more_values_wait_than_there_are_workers():
    begun, waiting = [], []

    def then(value):
        time.sleep(0.005)
        waiting.append(len(begun) - len(waiting))

    in_order(begun.append, range(30), then, 3)
    assert max(waiting) <= 4


def test_progress_arrives_with_its_call_and_leaving_early_ends_what_is_under_way():
    shown, ended = set(), threading.Event()

    def endless(show):
        try:
            while True:
                show(0.5)
                time.sleep(0.01)
        finally:
            ended.set()

    def slow(show):
        while ("endless", 0.5) not in shown:
            time.sleep(0.01)

    for call, _ in finished(
        [Call("endless", endless), Call("slow", slow)], threads(2), lambda c, x: shown.add((c.name, x))
    ):
        assert call.name == "slow"
        break
    assert ended.wait(10)
