"""Forward and backward of the pairwise losses: ours against plain n x n torch and torch.compile of it.

python -m benchmarks.losses            all cases, then docs/results/benchmarks.md
python -m benchmarks.losses crossover  one of: memory, named, members, sizes, ragged, crossover
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch
from torch import Tensor

import bidwise
from benchmarks.harness import peak_mb, together, write
from bidwise.losses.definition import GAPS, SURROGATES
from bidwise.losses.named import unchecked
from paper.theory import gap_of

NAMED = {
    "log": {},
    "log_teacher": {"value": "teacher", "weighting": 3.0},
    "log_plus": {"gap": "positive"},
    "log_plus_teacher": {"gap": "positive", "value": "teacher"},
    "hinge_plus_teacher": {"gap": "positive", "surrogate": "hinge", "value": "teacher", "weighting": 3.0},
    "ranknet": {"gap": "order"},
}
POINTWISE = {
    "log_loss": ("clicks", 0.0),
    "bid_weighted": ("clicks", 1.0),
    "sqrt_bid_weighted": ("clicks", 0.5),
    "distilled": ("teacher", 0.0),
}
PAIRWISE = {
    "log": ("clicks", "signed", "logistic", None),
    "log_weighted": ("clicks", "signed", "logistic", 3.0),
    "hinge": ("clicks", "signed", "hinge", None),
    "ranknet": ("clicks", "order", "logistic", None),
    "log_teacher": ("teacher", "signed", "logistic", 3.0),
    "log_teacher_unweighted": ("teacher", "signed", "logistic", None),
    "hinge_plus_teacher": ("teacher", "positive", "hinge", 3.0),
    "log_plus": ("clicks", "positive", "logistic", None),
    "log_plus_teacher": ("teacher", "positive", "logistic", None),
}
PLAIN_UP_TO = 8192  # n x n of float32 with its gradient takes over 20 GB beyond
COMPILED_AT = (256, 1024, 4096)


@dataclass(frozen=True)
class Batch:
    logits: Tensor
    clicks: Tensor
    bids: Tensor
    teacher: Tensor
    offsets: Tensor | None = None

    @staticmethod
    def of(ads: int, offsets: Tensor | None = None, shift: float = -1.0) -> Batch:
        """Log-normal bids, CTR around 0.3 unless shifted: drawn once for all methods."""
        random = torch.Generator().manual_seed(ads)
        teacher = torch.sigmoid(torch.randn(ads, generator=random) + shift)
        logits = torch.logit(teacher) + 0.5 * torch.randn(ads, generator=random)
        clicks = (torch.rand(ads, generator=random) < teacher).float()
        bids = torch.exp(torch.randn(ads, generator=random))
        return Batch(logits.requires_grad_(), clicks, bids, teacher, offsets)


def ours(batch: Batch, options: dict, method: str = "auto") -> Tensor:
    return bidwise.pairwise_welfare_loss(
        batch.logits, batch.clicks, batch.bids, batch.offsets, teacher=batch.teacher, method=method, **options
    )


def plain(batch: Batch, options: dict) -> Tensor:
    """The loss as one would write it: all n x n pairs, autograd does the rest."""
    value = batch.clicks if options.get("value", "clicks") == "clicks" else batch.teacher
    return plain_pairs(
        batch.logits,
        value,
        batch.bids,
        batch.teacher,
        options.get("gap", "signed"),
        options.get("surrogate", "logistic"),
        options.get("weighting"),
    )


def plain_pairs(
    logits: Tensor, label: Tensor, bids: Tensor, teacher: Tensor, gap: str, surrogate: str, kappa: float | None
) -> Tensor:
    ecpm, value = bids * torch.sigmoid(logits), bids * label
    margin = ecpm[:, None] - ecpm[None, :]
    if surrogate == "logistic":
        phi = torch.nn.functional.softplus(-margin)
    elif surrogate == "hinge":
        phi = torch.relu(-margin)
    else:
        phi = (margin <= 0).to(margin.dtype)
    pairs = gap_of(value[:, None] - value[None, :], gap) * phi
    if kappa is not None:
        pairs = torch.sigmoid(kappa * bids * teacher)[:, None] * torch.sigmoid(kappa * ecpm)[None, :] * pairs
    return pairs.sum() / len(logits) ** 2


def step(batch: Batch, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """One forward and backward; forward alone where nothing depends on the logits (the plain indicator)."""

    def run() -> None:
        batch.logits.grad = None
        result = loss()
        if result.requires_grad:
            result.backward()

    return run


def without_graph(loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return loss()

    return run


def agree(losses: dict[str, Callable[[], Tensor]]) -> None:
    """Stop if two methods do not give the same loss."""
    (first, expected), *others = ((name, float(loss().detach())) for name, loss in losses.items())
    for name, found in others:
        if abs(found - expected) > 1e-4 * abs(expected) + 1e-7:
            raise SystemExit(f"{name} gives {found}, {first} gives {expected}: not timed")


def row(case: str, loss: str, method: str, auctions: int, ads: int, timing, base: float, of: str) -> dict[str, object]:
    print(
        f"{case:10} {loss:42} {ads:9,} ads {method:10} {timing.ms:10.3f} ms {timing.ms / base:8.4f} x {of}", flush=True
    )
    return {
        "case": case,
        "loss": loss,
        "method": method,
        "auctions": auctions,
        "ads": ads,
        "dtype": "float32",
        "ms": timing.ms,
        "ms_low": timing.ms_low,
        "ms_high": timing.ms_high,
        "times_plain": timing.ms / base,
        "runs": timing.runs,
    }


def timed(case: str, loss: str, batch: Batch, losses: dict[str, Callable[[], Tensor]], seconds: float = 1.0):
    """A row per method; the first one is the base of the ratios."""
    agree(losses)
    timings = together({name: step(batch, one) for name, one in losses.items()}, seconds=seconds)
    first = next(iter(losses))
    base = timings[first].ms
    auctions = 1 if batch.offsets is None else len(batch.offsets) - 1
    return [row(case, loss, name, auctions, len(batch.logits), timing, base, first) for name, timing in timings.items()]


def named() -> list[dict[str, object]]:
    """Every named loss at the paper's batch size on one thread, log loss included, at click rates of 0.25 and 0.03."""
    rows = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    batches = {0.25: Batch.of(256, shift=-1.3), 0.03: Batch.of(256, shift=-3.9)}
    for name, loss in bidwise.LOSSES.items():
        ways = {"plain": plain_named}
        if compiler_works():
            torch.compiler.reset()
            ways["compiled"] = torch.compile(plain_named)
        for rate, batch in batches.items():
            tensors = (batch.logits, batch.clicks, batch.bids, batch.teacher)
            losses = {way: lambda f=f, t=tensors, n=name: f(*t, n) for way, f in ways.items()}
            for method, ours in (("ours", loss), ("unchecked", unchecked(loss))):
                losses[method] = lambda b=batch, f=ours: f(b.logits, b.clicks, b.bids, None, b.teacher)
            rows += [row | {"click_rate": rate} for row in timed("named", name, batch, losses)]
    torch.set_num_threads(threads)
    return rows


def plain_named(logits: Tensor, clicks: Tensor, bids: Tensor, teacher: Tensor, name: str) -> Tensor:
    """A named loss as one would write it: torch's own cross entropy, and all n x n pairs."""
    if name in POINTWISE:
        value, power = POINTWISE[name]
        weight = None if power == 0 else bids if power == 1 else bids.sqrt()
        label = clicks if value == "clicks" else teacher
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, label, weight=weight)
    value, gap, surrogate, kappa = PAIRWISE[name]
    label = clicks if value == "clicks" else teacher
    if name.startswith("log_plus"):
        bids = bids / bids.mean()
    rank = plain_pairs(logits, label, bids, teacher, gap, surrogate, kappa)
    return rank + 3.0 * torch.nn.functional.binary_cross_entropy_with_logits(logits, clicks)


def members() -> list[dict[str, object]]:
    """Every member of the family at the paper's batch size."""
    rows = []
    batch = Batch.of(256)
    for value, gap, surrogate, kappa in product(("clicks", "teacher"), GAPS, SURROGATES, (None, 3.0)):
        options = {"value": value, "gap": gap, "surrogate": surrogate, "weighting": kappa}
        losses = {"plain": lambda o=options: plain(batch, o), "ours": lambda o=options: ours(batch, o)}
        if surrogate == "indicator" and kappa is None:  # no gradient to compute: forward against forward
            losses = {name: without_graph(loss) for name, loss in losses.items()}
        name = f"{value} {gap} {surrogate}" + (" weighted" if kappa else "")
        rows += timed("members", name, batch, losses)
    return rows


@cache
def compiler_works() -> bool:
    """Whether torch.compile finds the C++ compiler that it needs."""
    try:
        torch.compile(lambda x: x.exp() + 1)(torch.ones(3))
        return True
    except Exception as error:  # whatever it is, the other methods are still worth timing
        print(f"torch.compile is left out: {type(error).__name__}")
        return False


def sizes() -> list[dict[str, object]]:
    """One auction from 64 to 1,048,576 ads."""
    rows = []
    for ads, (name, options) in product([4**k for k in range(3, 11)] + [8192], NAMED.items()):
        batch = Batch.of(ads)
        losses = {"log loss": lambda b=batch: bidwise.log_loss(b.logits, b.clicks)}
        if ads <= PLAIN_UP_TO:
            losses = {"plain": lambda b=batch, o=options: plain(b, o)}
            if ads in COMPILED_AT and compiler_works():
                torch.compiler.reset()
                fused = torch.compile(plain_pairs)
                label = batch.teacher if options.get("value") == "teacher" else batch.clicks
                words = (options.get("gap", "signed"), options.get("surrogate", "logistic"), options.get("weighting"))
                losses["compiled"] = lambda b=batch, l=label, w=words, f=fused: f(b.logits, l, b.bids, b.teacher, *w)
        losses["ours"] = lambda b=batch, o=options: ours(b, o)
        if ads > PLAIN_UP_TO:  # the log loss is the base there, and of course another number
            rows += apart(name, batch, losses)
        else:
            rows += timed("sizes", name, batch, losses, seconds=0.5 if ads <= 1024 else 2.0)
    return rows


def apart(name: str, batch: Batch, losses: dict[str, Callable[[], Tensor]]) -> list[dict[str, object]]:
    """Where n x n cannot run: `fast` in float32 must agree with itself in float64, then it is timed."""
    exact = Batch(*(x.detach().double() for x in (batch.logits, batch.clicks, batch.bids, batch.teacher)))
    agree({"ours": losses["ours"], "float64": lambda: ours(exact, NAMED[name])})
    timings = together({key: step(batch, one) for key, one in losses.items()}, seconds=2.0)
    return [row("sizes", name, key, 1, len(batch.logits), t, float("nan"), "plain") for key, t in timings.items()]


def ragged() -> list[dict[str, object]]:
    """Many auctions at once against a Python loop over auctions of the plain loss."""
    random = torch.Generator().manual_seed(0)
    rows = []
    for counts in (torch.randint(2, 101, (1000,), generator=random), torch.full((10_000,), 30)):
        offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        batch = Batch.of(int(offsets[-1]), offsets)
        for name, options in NAMED.items():

            def loop(options=options, batch=batch, counts=counts) -> Tensor:
                parts = (
                    torch.split(x, counts.tolist()) for x in (batch.logits, batch.clicks, batch.bids, batch.teacher)
                )
                return torch.stack([plain(Batch(*one), options) for one in zip(*parts, strict=True)]).mean()

            losses = {"loop": loop, "ours": lambda o=options, b=batch: ours(b, o)}
            rows += timed("ragged", name, batch, losses, seconds=2.0)
    return rows


def crossover() -> list[dict[str, object]]:
    """`direct` against `fast`: what `auto` has to choose from, and what it chose."""
    rows = []
    for surrogate, gap, kappa in product(SURROGATES, GAPS, (None, 3.0)):
        options = {"gap": gap, "surrogate": surrogate, "weighting": kappa, "value": "teacher"}
        name = f"{gap} {surrogate}" + (" weighted" if kappa else "")
        for ads, count in [
            (64, 1),
            (256, 1),
            (512, 1),
            (1024, 1),
            (2048, 1),
            (4096, 1),
            (64, 64),
            (256, 32),
            (1024, 16),
        ]:
            offsets = ads * torch.arange(count + 1) if count > 1 else None
            batch = Batch.of(ads * count, offsets)
            losses = {m: lambda o=options, b=batch, m=m: ours(b, o, m) for m in ("direct", "fast", "auto")}
            rows += timed("crossover", name, batch, losses, seconds=0.1)
    random = torch.Generator().manual_seed(0)
    options = {"weighting": 3.0, "value": "teacher"}
    for least, most, count in [(2, 100, 1000), (100, 500, 60), (500, 1500, 20), (1000, 3000, 10)]:
        offsets = torch.nn.functional.pad(torch.randint(least, most + 1, (count,), generator=random).cumsum(0), (1, 0))
        batch = Batch.of(int(offsets[-1]), offsets)
        losses = {m: lambda b=batch, m=m: ours(b, options, m) for m in ("direct", "fast", "auto")}
        rows += timed("crossover", f"signed logistic weighted, {least} to {most} ads", batch, losses, seconds=0.3)
    return rows


def memory() -> list[dict[str, object]]:
    """Peak memory above the inputs, of one call with what earlier calls freed given back first."""
    rows = []
    for ads, (name, options) in product([4**k for k in range(6, 11)], NAMED.items()):
        batch = Batch.of(ads)
        peak = peak_mb(step(batch, lambda b=batch, o=options: ours(b, o)))
        print(f"memory     {name:42} {ads:9,} ads {peak:8.1f} MB", flush=True)
        rows.append({"case": "memory", "loss": name, "method": "ours", "auctions": 1, "ads": ads, "peak_mb": peak})
    return rows


CASES = {"memory": memory, "named": named, "members": members, "sizes": sizes, "ragged": ragged, "crossover": crossover}


def main(wanted: list[str]) -> None:
    from benchmarks.table import write_page

    if unknown := [name for name in wanted if name not in CASES]:
        raise SystemExit(f"unknown case {unknown[0]}; one of: {', '.join(CASES)}")
    for name in wanted or CASES:
        print(write(f"losses_{name}", CASES[name]()))
    print(write_page())


if __name__ == "__main__":
    main(sys.argv[1:])
