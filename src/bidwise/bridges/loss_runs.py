"""Did the loss take part in training at all? A hook that a framework never calls is the quietest of bugs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def loss_runs(loss: nn.Module, least: int = 1) -> Iterator[None]:
    """Raise ``AssertionError`` at the end of the block unless ``loss`` was computed and its gradient used.

    Args:
        loss: a ``WelfareLoss``, an entry of ``LOSSES`` or any other module that returns a loss.
        least: how many times both must have happened.

    >>> import bidwise, torch
    >>> loss, logits = bidwise.LOSSES["log_plus"], torch.zeros(2, requires_grad=True)
    >>> with loss_runs(loss):
    ...     loss(logits, torch.tensor([0.0, 1.0]), torch.ones(2)).backward()
    >>> with loss_runs(loss):
    ...     value = loss(logits, torch.tensor([0.0, 1.0]), torch.ones(2))
    Traceback (most recent call last):
        ...
    AssertionError: the loss was computed 1 time but no gradient came back through it: call backward() on its value
    """
    computed = used = 0

    def count_use(gradient: Tensor) -> None:
        nonlocal used
        used += 1

    def count(module: nn.Module, inputs: Any, value: Any) -> None:
        nonlocal computed
        computed += 1
        if isinstance(value, Tensor) and value.requires_grad:
            value.register_hook(count_use)  # type: ignore[no-untyped-call]

    handle = loss.register_forward_hook(count)
    try:
        yield
    finally:
        handle.remove()
    if not computed:
        raise AssertionError("the loss was never computed: does the training step call it?")
    times = f"{computed} {'time' if computed == 1 else 'times'}"
    if not used:
        raise AssertionError(
            f"the loss was computed {times} but no gradient came back through it: call backward() on its value"
        )
    if min(computed, used) < least:
        raise AssertionError(f"the loss was computed {times} and its gradient used {used}, fewer than {least}")
