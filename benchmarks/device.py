"""On a GPU: loss kernels by size, steps and epochs of training; torch and numpy are all that is needed there.

python -m benchmarks.device            all cases
python -m benchmarks.device smoke      on a CPU: whether steps run, ours and in plain torch, compiled too
python -m benchmarks.device losses     one of: losses, ragged, steps, without_graph, epoch, profile, side_by_side
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

import torch
from torch import Tensor

from benchmarks.device_training import epoch, profile, side_by_side, smoke, steps, without_graph
from benchmarks.harness import write
from bidwise import pairwise_welfare_loss
from bidwise.losses import dispatch
from paper.theory import pair_sum

Row = dict[str, object]
SIZES = (256, 1024, 2048, 4096, 10_000, 16_384, 65_536, 262_144, 1_048_576)
MEMBERS: dict[str, dict[str, object]] = {
    "signed weighted logistic": {"value": "teacher", "weighting": 3.0, "sigma": 3.0},
    "signed logistic": {"sigma": 3.0},
    "positive logistic": {"gap": "positive", "sigma": 3.0},
    "positive logistic, teacher": {"value": "teacher", "gap": "positive", "sigma": 3.0},
    "positive weighted hinge, teacher": {"value": "teacher", "gap": "positive", "surrogate": "hinge", "weighting": 3.0},
}
PLAIN_TO, PAIRS_TO, TRUTH_TO = 10_000, 65_536, 65_536  # ads; more would not fit or take minutes
COMPILED = (("signed weighted logistic", 4096), ("positive logistic", 4096))  # each is compiled anew, for seconds
TARGETS = {
    ("signed weighted logistic", "auto", 256): 0.012,
    ("signed weighted logistic", "pairs", 65_536): 5.0,
    ("positive logistic", "pairs", 65_536): 5.0,
    ("positive logistic, teacher", "pairs", 65_536): 5.0,
    ("positive weighted hinge, teacher", "pairs", 65_536): 5.0,
    ("signed weighted logistic", "fast", 1_048_576): 3.0,
}


def columns(ads: int, seed: int = 0) -> list[Tensor]:
    """Logits, clicks, bids and a teacher's CTR."""
    random = torch.Generator("cuda").manual_seed(seed)
    normal = [torch.randn(ads, generator=random, device="cuda") for _ in range(3)]
    teacher = torch.sigmoid(normal[1] - 1)
    clicks = (torch.rand(ads, generator=random, device="cuda") < teacher).float()
    return [(normal[0] - 1).requires_grad_(), clicks, torch.exp(0.5 * normal[2]), teacher]


def plain(logits: Tensor, clicks: Tensor, bids: Tensor, teacher: Tensor, **options: object) -> Tensor:
    """The definition as one would write it: all n x n pairs, and autograd."""
    ecpm = bids * torch.sigmoid(logits)
    value = bids * (teacher if options.get("value") == "teacher" else clicks)
    kappa = options.get("weighting")
    weights = None
    if kappa is not None:
        weights = torch.sigmoid(kappa * bids * teacher)[:, None] * torch.sigmoid(kappa * ecpm)[None, :]
    named = {key: options[key] for key in ("gap", "surrogate", "sigma") if key in options}
    return pair_sum(ecpm, value, weights=weights, **named) / len(logits) ** 2


def in_a_graph(step: Callable[[], object], seconds: float = 0.1) -> tuple[float, float, bool]:
    """Milliseconds of a step (median of five rounds), peak megabytes above its inputs, and whether it is a graph."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    graph: torch.cuda.CUDAGraph | None = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            kept = step()  # noqa: F841 (its memory belongs to the graph)
        run = graph.replay
    except RuntimeError:  # it waits for the GPU
        graph, run = None, step
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    repeats = max(2, min(400, int(seconds / 5 / max(time.perf_counter() - start, 1e-6))))
    rounds = []
    for _ in range(5):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(repeats):
            run()
        last.record()
        torch.cuda.synchronize()
        rounds.append(first.elapsed_time(last) / repeats)
    return statistics.median(rounds), peak, graph is not None


def truth(tensors: Sequence[Tensor], options: dict[str, object], offsets: Tensor | None = None) -> Tensor:
    """The gradient in float64, from all pairs."""
    logits, clicks, bids, teacher = (x.detach().double() for x in tensors)
    logits.requires_grad_()
    loss = pairwise_welfare_loss(logits, clicks, bids, offsets, teacher=teacher, method="direct", **options)
    return torch.autograd.grad(loss, logits)[0]


def losses() -> Iterator[Row]:
    """Loss and gradient of one auction: plain torch, torch.compile, and ours."""
    compiled = torch.compile(plain)
    for member, options in MEMBERS.items():
        for ads in SIZES:
            tensors = columns(ads)
            exact = truth(tensors, options) if ads <= TRUTH_TO else None
            ways: dict[str, tuple[int, Callable[[], Tensor]]] = {
                "plain torch": (PLAIN_TO, lambda t=tensors, o=options: plain(*t, **o)),
                "torch.compile": (
                    ads if (member, ads) in COMPILED else 0,
                    lambda t=tensors, o=options: compiled(*t, **o),
                ),
            }
            ways["pairs"] = (PAIRS_TO, lambda t=tensors, o=options: _all_pairs(t, o))
            for method, most in (("direct", PLAIN_TO), ("fast", SIZES[-1]), ("auto", SIZES[-1])):
                ways[method] = (most, lambda t=tensors, o=options, m=method: _ours(t, o, m))
            for way, (most, loss) in ways.items():
                if ads > most:
                    continue

                def step(loss: Callable[[], Tensor] = loss, logits: Tensor = tensors[0]) -> tuple[Tensor, Tensor]:
                    found = loss()
                    return found, torch.autograd.grad(found, logits)[0]

                error = _error(step()[1], exact)
                ms, peak, graph = in_a_graph(step)
                row: Row = {"case": "losses", "member": member, "ads": ads, "way": way, "graph": graph, "ms": ms}
                row |= {"peak_mb": peak, "error": error, "target_ms": TARGETS.get((member, way, ads), "")}
                yield row
                print(
                    f"{member:34} {ads:9,} {way:14} {1e3 * ms:12,.1f} us {peak:8.1f} MB error {error:.1e}", flush=True
                )


def _error(found: Tensor, exact: Tensor | None) -> float:
    """Of a gradient, relative to its norm; what is wrong is not timed."""
    if exact is None:
        return float("nan")
    error = float((found - exact).norm() / exact.norm())
    if not error < 1e-5:
        raise SystemExit(f"a gradient is wrong by {error:.1e} of its norm")
    return error


def _ours(tensors: Sequence[Tensor], options: dict[str, object], method: str, offsets: Tensor | None = None) -> Tensor:
    logits, clicks, bids, teacher = tensors
    return pairwise_welfare_loss(logits, clicks, bids, offsets, teacher=teacher, method=method, **options)


def _all_pairs(tensors: Sequence[Tensor], options: dict[str, object], offsets: Tensor | None = None) -> Tensor:
    """All pairs in a kernel, however many there are."""
    names = ("PANELS_FROM", "CLICKS_FROM", "COVARIANCE_FROM")
    before = {name: getattr(dispatch, name) for name in names}
    try:
        for name in names:
            setattr(dispatch, name, 1 << 40)
        return _ours(tensors, options, "triton", offsets)
    finally:
        for name, value in before.items():
            setattr(dispatch, name, value)


def ragged() -> Iterator[Row]:
    """Batches of many auctions: of 30 ads each, and of one to 500."""
    random = torch.Generator().manual_seed(0)
    sizes = {
        "10,000 auctions of 30": torch.full((10_000,), 30),
        "10,000 auctions of 1 to 100": torch.randint(1, 101, (10_000,), generator=random),
        "1,000 auctions of 1 to 500": torch.randint(1, 501, (1_000,), generator=random),
        "64 auctions of 10,000": torch.full((64,), 10_000),
    }
    for name, found in sizes.items():
        offsets = torch.nn.functional.pad(found.cumsum(0), (1, 0)).cuda()
        tensors = columns(int(found.sum()))
        for member, options in MEMBERS.items():
            exact = truth(tensors, options, offsets) if int(found.max()) < 1000 else None
            for method in ("direct", "triton", "auto"):
                if int(found.max()) > 1000 and method == "direct":
                    continue

                def step(t: list[Tensor] = tensors, o: Tensor = offsets, m: str = method, options=options) -> object:
                    loss = _ours(t, options, m, o)
                    return loss, torch.autograd.grad(loss, t[0])[0]

                error = _error(step()[1], exact)
                ms, peak, graph = in_a_graph(step)
                row: Row = {"case": "ragged", "auctions": name, "member": member, "ads": int(found.sum())}
                yield row | {"way": method, "graph": graph, "ms": ms, "peak_mb": peak, "error": error}
                print(f"{name:30} {member:34} {method:8} {1e3 * ms:10,.1f} us error {error:.1e}", flush=True)


CASES = {
    "losses": losses,
    "ragged": ragged,
    "steps": steps,
    "without_graph": without_graph,
    "epoch": epoch,
    "profile": profile,
    "side_by_side": side_by_side,
}


def main(wanted: list[str]) -> None:
    if "--help" in wanted:
        print(__doc__)
        return
    if wanted == ["smoke"]:
        for _ in smoke():
            pass
        return
    if unknown := [name for name in wanted if name not in CASES]:
        raise SystemExit(f"unknown case {unknown[0]}; one of: {', '.join(CASES)}")
    if not torch.cuda.is_available():
        raise SystemExit("these cases need a GPU, found none")
    about = {"device": torch.cuda.get_device_name(), "triton": version("triton")}
    for name in wanted or CASES:
        rows: list[Row] = []
        for row in CASES[name]():
            rows.append(row)
            path = write(f"device_{name}", rows, **about)  # what was measured so far, should the rest be cut off
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
