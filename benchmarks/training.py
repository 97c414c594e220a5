"""Thirty repeats trained at once by `fit`, against one after the other in an ordinary torch loop.

python -m benchmarks.training           all losses, then docs/results/benchmarks.md
python -m benchmarks.training log_plus  some of them, printed and not written
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from benchmarks.harness import write
from benchmarks.losses import plain_pairs
from benchmarks.table import write_page
from bidwise.data import WORLDS, Ads, stack
from bidwise.models import MLP
from bidwise.training import fit

REPEATS, ADS, BATCH, HIDDEN, LAM = 30, 10_000, 256, 50, 3.0
ALONE = 3  # repeats that the ordinary loop is timed on in each round; its time is scaled to all
ROUNDS, EPOCHS = 5, 3  # the first epoch, which warms up, is not counted

PlainLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # logits, clicks, bids, teacher


def pairs(value: str, gap: str, surrogate: str, kappa: float | None) -> PlainLoss:
    """The rank term with all n x n pairs and autograd, plus lam times torch's log loss."""

    def loss(logits: Tensor, clicks: Tensor, bids: Tensor, teacher: Tensor) -> Tensor:
        label = teacher if value == "teacher" else clicks
        return plain_pairs(logits, label, bids, teacher, gap, surrogate, kappa) + LAM * cross_entropy(logits, clicks)

    return loss


PLAIN: dict[str, PlainLoss] = {
    "log_loss": lambda z, y, b, p: cross_entropy(z, y),
    "bid_weighted": lambda z, y, b, p: cross_entropy(z, y, weight=b),
    "sqrt_bid_weighted": lambda z, y, b, p: cross_entropy(z, y, weight=b.sqrt()),
    "distilled": lambda z, y, b, p: cross_entropy(z, p),
    "log": pairs("clicks", "signed", "logistic", None),
    "log_teacher": pairs("teacher", "signed", "logistic", 3.0),
    "hinge_plus_teacher": pairs("teacher", "positive", "hinge", 3.0),
    "ranknet": pairs("clicks", "order", "logistic", None),
    "log_plus": pairs("clicks", "positive", "logistic", None),
    "log_plus_teacher": pairs("teacher", "positive", "logistic", None),
}
TARGETS = dict.fromkeys(PLAIN, 4.0) | dict.fromkeys(("log_loss", "bid_weighted", "sqrt_bid_weighted"), 8.0)
TARGETS |= {"distilled": 8.0, "log": 8.0}


def repeats() -> list[Ads]:
    """The paper's world as plotted, drawn anew for each repeat; the teacher is a blurred truth."""
    drawn = []
    for seed in range(REPEATS):
        random = torch.Generator().manual_seed(seed)
        ads = WORLDS["plotted"].market(random).ads(ADS, random)
        assert ads.truth is not None
        blur = 0.5 * torch.randn(ADS, generator=random)
        drawn.append(ads.with_teacher(torch.sigmoid(torch.logit(ads.truth) + blur)))
    return drawn


def ordinary(seed: int) -> nn.Sequential:
    """The paper's network in torch's own layers, with the weights that `MLP` starts from."""
    model = nn.Sequential(nn.Linear(50, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    with torch.no_grad():
        for layer, ours in zip((model[0], model[2]), MLP(50, (HIDDEN,), seed=seed).layers, strict=True):
            layer.weight.copy_(ours.weight.mT)
            layer.bias.copy_(ours.bias[0])
    return model


def batches(ads: Ads, random: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
    """Shuffled batches as one takes them from tensors in memory: faster than torch's DataLoader."""
    assert ads.teacher is not None
    for rows in torch.split(torch.randperm(len(ads), generator=random), BATCH):
        yield ads.features[rows], ads.clicks[rows], ads.bids[rows], ads.teacher[rows]


def alone(ads: Ads, loss: PlainLoss, seed: int, epochs: int) -> tuple[nn.Sequential, list[float]]:
    """The ordinary loop for one repeat: a model, Adam, batches, autograd; and the milliseconds of every epoch."""
    model, random = ordinary(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ends = [time.perf_counter()]
    for _ in range(epochs):
        for features, clicks, bids, teacher in batches(ads, random):
            optimizer.zero_grad()
            loss(model(features).squeeze(-1), clicks, bids, teacher).backward()
            optimizer.step()
        ends.append(time.perf_counter())
    return model, [1e3 * (b - a) for a, b in pairwise(ends)]


def at_once(together: Ads, loss: str, epochs: int) -> tuple[MLP, list[float]]:
    """All repeats by `fit`, and the milliseconds of every epoch."""
    seeds = list(range(REPEATS))
    model = MLP(50, (HIDDEN,), members=(REPEATS,), seed=seeds)
    ends = [time.perf_counter()]
    options = {"epochs": epochs, "batch_size": BATCH, "learning_rate": 1e-3, "seed": seeds}
    fit(model, together, loss=loss, progress=lambda _: ends.append(time.perf_counter()), **options)
    return model, [1e3 * (b - a) for a, b in pairwise(ends)]


def agree(name: str, drawn: list[Ads], together: Ads) -> None:
    """Weights after an epoch from the same weights and batches, to 1e-4."""
    ours, _ = at_once(together, name, 1)
    for k in range(ALONE):
        model, _ = alone(drawn[k], PLAIN[name], k, 1)
        for layer, mine in zip((model[0], model[2]), ours.layers, strict=True):
            for theirs, batched in ((layer.weight.mT, mine.weight[k]), (layer.bias, mine.bias[k, 0])):
                worst = (theirs - batched).abs().max().item()
                if not worst < 1e-4:
                    raise SystemExit(f"{name}: weights of repeat {k} differ by {worst:.2g}: not timed")


def measured(name: str, drawn: list[Ads], together: Ads) -> list[dict[str, object]]:
    """Milliseconds per epoch of all repeats by both, in turns."""
    agree(name, drawn, together)
    times: dict[str, list[float]] = {"one after the other": [], "at once": []}
    for turn in range(ROUNDS):
        some = [(ALONE * turn + k) % REPEATS for k in range(ALONE)]
        taken = [statistics.median(alone(drawn[k], PLAIN[name], k, EPOCHS)[1][1:]) for k in some]
        times["one after the other"].append(REPEATS * statistics.mean(taken))
        times["at once"].append(statistics.median(at_once(together, name, EPOCHS)[1][1:]))
    ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
    rows = []
    for method, found in times.items():
        timed = ALONE if method == "one after the other" else REPEATS  # in a round
        print(f"{name:20} {method:20} {statistics.median(found):9.1f} ms an epoch of {REPEATS} repeats", flush=True)
        row = {"case": "training", "loss": name, "method": method, "repeats": REPEATS, "repeats_timed": timed}
        row |= {"ads": ADS, "batch": BATCH, "dtype": "float32", "ms": statistics.median(found)}
        row |= {"ms_low": min(found), "ms_high": max(found), "runs": ROUNDS, "faster": ratio, "target": TARGETS[name]}
        rows.append(row)
    print(f"{name:20} {ratio:.1f} times as fast, target {TARGETS[name]:g}", flush=True)
    return rows


def main(wanted: list[str]) -> None:
    if unknown := [name for name in wanted if name not in PLAIN]:
        raise SystemExit(f"unknown loss {unknown[0]}; one of: {', '.join(PLAIN)}")
    drawn = repeats()
    together = stack(drawn)
    rows = [row for name in wanted or PLAIN for row in measured(name, drawn, together)]
    if not wanted:
        print(write("training", rows))
        print(write_page())


if __name__ == "__main__":
    main(sys.argv[1:])
