"""What each of several ranks does of the loss of one auction, beside what one process does.

python -m benchmarks.loss_work

CPU time of one thread, the least of several runs, one process and the ranks in turn; ranks are timed one after the
other, so nothing waits and nothing travels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import torch

from benchmarks.harness import write
from bidwise import LOSSES, distributed
from bidwise.losses.api import loss_and_gradient
from bidwise.losses.definition import Batch, PairOptions, Part
from bidwise.losses.dispatch import linear
from bidwise.losses.named import WelfareLoss

NAMES = ("log_plus", "log_plus_teacher", "ranknet", "hinge_plus_teacher", "log_teacher", "log")
SIZES, RANKS, RUNS = (1024, 4096, 16_384, 65_536), (2, 4), 15


def drawn(ads: int) -> Batch:
    """Ads of one auction, a quarter of them clicked."""
    random = torch.Generator().manual_seed(0)
    logits, logit, log_bid = (torch.randn(ads, generator=random) for _ in range(3))
    teacher = torch.sigmoid(logit - 1.4)
    clicks = (torch.rand(ads, generator=random) < teacher).float()
    return Batch(logits - 1.4, clicks, torch.exp(0.5 * log_bid), None, teacher)


Work = tuple[Batch, Part | None]


def work_of_ranks(batch: Batch, options: PairOptions, ranks: int) -> list[Work]:
    """What each rank is given: all ads, or its own where others need no more than sums over them."""
    ads = len(batch.logits)
    bounds = list(pairwise(ads * k // ranks for k in range(ranks + 1)))
    if not linear(options, ads, ranks):
        return [(batch, Part(*cut, ads, 1, k, ranks)) for k, cut in enumerate(bounds)]
    sizes = tuple(b - a for a, b in bounds)
    own = [Batch(*(None if x is None else x[a:b] for x in batch)) for a, b in bounds]  # type: ignore[arg-type]
    return [(some, Part(0, n, ads, 1, k, ranks, sizes)) for k, (some, n) in enumerate(zip(own, sizes, strict=True))]


def milliseconds(works: list[Work], options: PairOptions, lam: float) -> list[float]:
    """CPU time of each, the least of several rounds."""
    least = [float("inf")] * len(works)
    for _ in range(RUNS):
        for k, (batch, part) in enumerate(works):
            start = time.process_time()
            loss_and_gradient(batch, options, lam, True, part)
            least[k] = min(least[k], 1e3 * (time.process_time() - start))
    return least


def measured() -> Iterator[dict[str, object]]:
    for ads in SIZES:
        batch = drawn(ads)
        for name in NAMES:
            loss = LOSSES[name]
            assert isinstance(loss, WelfareLoss)
            works: list[Work] = [(batch, None)]
            for ranks in RANKS:
                works += work_of_ranks(batch, loss.options, ranks)
            alone, *each = milliseconds(works, loss.options, float(loss.lam))
            for ranks in RANKS:
                slowest, each = max(each[:ranks]), each[ranks:]
                row = {"case": "loss_work", "loss": name, "ads": ads, "ranks": ranks, "ms_alone": alone}
                yield row | {"ms_slowest": slowest, "share": slowest / alone, "of_equal_share": ranks * slowest / alone}


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.stacked = lambda local: local[None]  # type: ignore[assignment]  # nothing travels
    print(write("loss_work", list(measured()), threads=1))
