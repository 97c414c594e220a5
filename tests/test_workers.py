"""Threads: order, errors, progress, and what is no longer wanted."""

import threading
import time

import pytest

from bidwise.checks import InputError
from bidwise.workers import Call, ahead, finished, threads


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
def test_values_come_in_the_order_of_tasks(workers):
    seen = set()

    def work(task):
        seen.add(threading.current_thread())
        time.sleep(0.001 * (task % 3))
        if task >= 40:
            raise InputError(f"found {task}")
        return task**2

    assert list(ahead(work, range(30), workers)) == [task**2 for task in range(30)]
    assert threading.current_thread() not in seen
    assert len(seen) <= workers
    values = ahead(work, range(50), workers)
    assert [next(values) for _ in range(40)] == [task**2 for task in range(40)]
    with pytest.raises(InputError, match=r"^found 40$"):
        next(values)


def test_no_more_values_wait_than_there_are_workers():
    begun, waiting = [], []
    for _ in ahead(begun.append, range(30), 3):
        time.sleep(0.005)
        waiting.append(len(begun) - len(waiting))
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
