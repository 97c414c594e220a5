"""Selection on validation: the best epoch, lam and setting by a metric, the first of those tied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from bidwise.training import METRICS

Candidate = TypeVar("Candidate")


def as_shown(value: float) -> float:
    """A validation metric to the digits that are shown: smaller differences select nothing.

    >>> as_shown(0.4512349) == as_shown(0.4512251), as_shown(0.45123) == as_shown(0.45124)
    (True, False)
    """
    return float(f"{value:.5g}")


def best(
    candidates: Iterable[Candidate], metric: str, value: Callable[[Candidate], float | None], *, exact: bool = True
) -> Candidate | None:
    """The candidate with the best value of a metric; the first of those tied, ``exact``ly or to the digits shown.

    >>> best(["a", "b", "c"], "log_loss", {"a": 0.3, "b": 0.2, "c": None}.get)
    'b'
    """
    sign = 1 if METRICS[metric].higher_is_better else -1
    known = [(x if exact else as_shown(x), each) for each in candidates if (x := value(each)) is not None]
    known = [pair for pair in known if math.isfinite(pair[0])]
    return max(known, key=lambda pair: sign * pair[0])[1] if known else None
