"""What each of several ranks does of the loss of one auction, beside what one process does.

python -m benchmarks.loss_work

CPU time of one thread, the least of several runs: ranks are timed one after the other, so nothing waits and nothing
travels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import torch

from benchmarks.harness import write
from bidwise import LOSSES
from bidwise.losses.api import loss_and_gradient
from bidwise.losses.definition import Batch, PairOptions, Part
from bidwise.losses.named import WelfareLoss

NAMES = ("log_plus", "log_plus_teacher", "ranknet", "hinge_plus_teacher", "log_teacher", "log")
SIZES, RANKS, RUNS = (1024, 4096, 16_384, 65_536), (2, 4), 7


def drawn(ads: int) -> Batch:
    """Ads of one auction, a quarter of them clicked."""
    random = torch.Generator().manual_seed(0)
    logits, logit, log_bid = (torch.randn(ads, generator=random) for _ in range(3))
    teacher = torch.sigmoid(logit - 1.4)
    clicks = (torch.rand(ads, generator=random) < teacher).float()
    return Batch(logits - 1.4, clicks, torch.exp(0.5 * log_bid), None, teacher)


def milliseconds(batch: Batch, options: PairOptions, lam: float, part: Part | None) -> float:
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        loss_and_gradient(batch, options, lam, True, part)
        times.append(1e3 * (time.process_time() - start))
    return min(times)


def measured() -> Iterator[dict[str, object]]:
    for ads in SIZES:
        batch = drawn(ads)
        for name in NAMES:
            loss = LOSSES[name]
            assert isinstance(loss, WelfareLoss)
            alone = milliseconds(batch, loss.options, float(loss.lam), None)
            for ranks in RANKS:
                bounds = [ads * k // ranks for k in range(ranks + 1)]
                parts = [Part(*cut, ads, 1, k, ranks) for k, cut in enumerate(pairwise(bounds))]
                slowest = max(milliseconds(batch, loss.options, float(loss.lam), part) for part in parts)
                row = {"case": "loss_work", "loss": name, "ads": ads, "ranks": ranks, "ms_alone": alone}
                yield row | {"ms_slowest": slowest, "share": slowest / alone, "of_equal_share": ranks * slowest / alone}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(write("loss_work", list(measured()), threads=1))
