"""Threads: order and errors."""

import threading
import time

import pytest

from bidwise.checks import InputError
from bidwise.workers import ahead


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
