"""On a GPU: loss kernels by size, steps and epochs of training; torch and numpy are all that is needed there.

python -m benchmarks.device            all cases
python -m benchmarks.device losses     one of them: losses, ragged, steps, without_graph, epoch, side_by_side
"""

from __future__ import annotations

import copy
import inspect
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import islice, pairwise

import torch
from torch import Tensor, nn

from benchmarks.categories import cardinalities
from benchmarks.harness import write
from bidwise import fit, pairwise_welfare_loss
from bidwise.data import Ads
from bidwise.losses import choice
from bidwise.losses.pairwise import pair_sum
from bidwise.losses.welfare_loss import named_loss
from bidwise.models import MODELS
from bidwise.training.precision import PRECISIONS
from bidwise.training.run import Options, Run

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
VOCABULARY, CRITEO = 1_100_000, 36_672_493
LOSSES = ("log_loss", "log_weighted", "log_teacher", "log_plus", "log_plus_teacher")
OVERHEAD = {256: 0.02, 10_000: 0.03}
MATMUL = {"float32": "highest", "mixed": "high"}  # what torch calls it
COLUMNS = ("features", "clicks", "bids", "teacher")


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
    before = {name: getattr(choice, name) for name in names}
    try:
        for name in names:
            setattr(choice, name, 1 << 40)
        return _ours(tensors, options, "triton", offsets)
    finally:
        for name, value in before.items():
            setattr(choice, name, value)


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


def simulated(ads: int) -> tuple[Ads, list[int]]:
    """Ads with as many values as Criteo has, about 1 / k as many of the k-th as of the first, on the device."""
    values = cardinalities(VOCABULARY)
    most = torch.tensor(values, dtype=torch.float64, device="cuda")
    features = torch.empty(ads, len(values), dtype=torch.int32, device="cuda")
    random = torch.Generator("cuda").manual_seed(0)
    for part in features.split(2**21):
        uniform = torch.rand(part.shape, generator=random, dtype=torch.float64, device="cuda")
        part.copy_(torch.minimum((most + 1) ** uniform - 1, most - 1))
    ctr, chance, bids = (torch.rand(ads, generator=random, device="cuda") for _ in range(3))
    return Ads(features, (chance < ctr / 2).float(), bids + 0.5, teacher=ctr / 2), values


class Steps:
    """Real steps of a run, on batches of the ads in turn."""

    def __init__(
        self, model: nn.Module, ads: Ads, batch: int, loss: nn.Module, precision: str, graph: bool | None = None
    ) -> None:
        options = Options(1, batch, 1e-3, "constant", None, 1, precision=precision)
        self.run = Run(copy.deepcopy(model).train(), ads, None, loss, {}, options, 0, graph)
        self.precision = MATMUL[precision]
        self.run.begin()
        self.number = 0
        self.ms(10)

    def ms(self, steps: int) -> float:
        torch.set_float32_matmul_precision(self.precision)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.run.advance(self.number)
            self.number = (self.number + 1) % (len(self.run.shuffle) - 1)
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start) / steps


class Plain(nn.Module):
    """DeepFM as one would write it with torch alone."""

    def __init__(self, values: Sequence[int], embedding: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.starts = torch.tensor([0, *values[:-1]], device="cuda").cumsum(0)
        self.linear, self.vectors = (nn.Embedding(sum(values), width, device="cuda") for width in (1, embedding))
        widths = [len(values) * embedding, *hidden]
        layers = [[nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)] for a, b in pairwise(widths)]
        self.deep = nn.Sequential(*(part for layer in layers for part in layer), nn.Linear(widths[-1], 1)).cuda()

    def forward(self, features: Tensor) -> Tensor:
        rows = features + self.starts
        vectors = self.vectors(rows)
        crossed = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(-1)
        return self.linear(rows).sum((1, 2)) + crossed + self.deep(vectors.flatten(1)).squeeze(1)


class PlainSteps:
    """Steps of a loop over batches: gather, forward, log loss, backward, torch's fused Adam."""

    def __init__(self, ads: Ads, values: Sequence[int], batch: int, precision: str) -> None:
        ours = MODELS["deepfm"]
        options = {key: inspect.signature(ours).parameters[key].default for key in ("embedding", "hidden", "dropout")}
        self.model, self.ads, self.batch = Plain(values, **options), ads, batch
        self.optimizer = torch.optim.Adam(self.model.parameters(), fused=True)
        self.order, self.at, self.precision = torch.randperm(len(ads), device="cuda"), 0, MATMUL[precision]
        self.ms(3)

    def ms(self, steps: int) -> float:
        torch.set_float32_matmul_precision(self.precision)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            some = self.order[self.at : self.at + self.batch]
            self.at = (self.at + self.batch) % (len(self.ads) - self.batch)
            self.optimizer.zero_grad()
            logits = self.model(self.ads.features[some])
            nn.functional.binary_cross_entropy_with_logits(logits, self.ads.clicks[some]).backward()
            self.optimizer.step()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start) / steps


def without_graph() -> Iterator[Row]:
    """What a step of DeepFM takes called from Python: in plain torch, and ours."""
    ads, values = simulated(4_000_000)
    model = MODELS["deepfm"](values).cuda()
    for batch in (256, 10_000):
        for precision in PRECISIONS:
            log_loss = named_loss("log_loss")
            ways: dict[str, Steps | PlainSteps] = {
                "plain torch": PlainSteps(ads, values, batch, precision),
                "ours, without a graph": Steps(model, ads, batch, log_loss, precision, graph=False),
                "ours": Steps(model, ads, batch, log_loss, precision),
            }
            found: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(5):
                for way, timed in ways.items():
                    found[way].append(timed.ms(40))
            for way, times in found.items():
                ms = statistics.median(times)
                row: Row = {"case": "without_graph", "model": "deepfm", "batch": batch, "precision": precision}
                row |= {"way": way, "ms": ms, "ms_low": min(times), "ms_high": max(times)}
                yield row | {"rows_per_second": 1e3 * batch / ms}
                print(f"{batch:6,} {precision:8} {way:22} {1e3 * ms:9.1f} us", flush=True)


def steps() -> Iterator[Row]:
    """What a step takes by model, batch, precision and loss, in turns; what each loss adds to the log loss."""
    ads, values = simulated(4_000_000)
    for model, batches, names in (("deepfm", (256, 4096, 10_000), LOSSES), ("dcn", (512, 4096, 10_000), LOSSES[:4:2])):
        untrained = MODELS[model](values).cuda()
        for batch in batches:
            for precision in PRECISIONS:
                timed = {
                    name: Steps(untrained, ads, batch, named_loss(name, lam=3.0, sigma=3.0), precision)
                    for name in names
                }
                count = max(5, min(150, int(60 / timed["log_loss"].ms(10))))
                found: dict[str, list[float]] = {name: [] for name in names}
                for turn in range(9):
                    for name in islice(names * 2, turn % len(names), turn % len(names) + len(names)):
                        found[name].append(timed[name].ms(count))
                for name, times in found.items():
                    ratios = [a / b - 1 for a, b in zip(times, found["log_loss"], strict=True)]
                    ms = statistics.median(times)
                    row: Row = {"case": "steps", "model": model, "batch": batch, "precision": precision, "loss": name}
                    row |= {
                        "graph": timed[name].run.graph is not None,
                        "ms": ms,
                        "ms_low": min(times),
                        "ms_high": max(times),
                    }
                    row |= {"overhead": statistics.median(ratios), "rows_per_second": 1e3 * batch / ms}
                    yield (
                        row | {"target": OVERHEAD.get(batch, "") if name != "log_loss" and model == "deepfm" else ""}
                    )
                    print(
                        f"{model:7} {batch:6,} {precision:8} {name:18} {1e3 * ms:9.1f} us {1e-3 * batch / ms:7.2f} M/s "
                        f"{100 * statistics.median(ratios):+.2f} %",
                        flush=True,
                    )
                del timed


def epoch() -> Iterator[Row]:
    """Whole epochs of `fit` over as many ads as Criteo's training split has: shuffling and all.

    Twenty steps are trained before, so that what a process compiles once is not part of the epoch.
    """
    ads, values = simulated(CRITEO)
    models = {name: MODELS[name](values).cuda() for name in ("deepfm", "dcn")}
    for name, batch, precision, loss, target in (
        ("deepfm", 256, "float32", "log_loss", 30.0),
        ("deepfm", 256, "mixed", "log_loss", ""),
        ("deepfm", 10_000, "mixed", "log_loss", ""),
        ("deepfm", 10_000, "float32", "log_loss", ""),
        ("deepfm", 10_000, "mixed", "log_teacher", ""),
        ("dcn", 10_000, "mixed", "log_loss", ""),
    ):
        seconds = []
        for some in (replace(ads, **{key: getattr(ads, key)[: 20 * batch] for key in COLUMNS}), ads):
            model = copy.deepcopy(models[name])
            torch.cuda.synchronize()
            start = time.perf_counter()
            options = {"loss": named_loss(loss, lam=3.0, sigma=3.0), "batch_size": batch, "precision": precision}
            fitted = fit(model, some, epochs=1, **options)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        first, whole = seconds
        row: Row = {"case": "epoch", "model": name, "ads": len(ads), "vocabulary": sum(values), "batch": batch}
        row |= {"precision": precision, "loss": loss, "seconds": whole, "rows_per_second": len(ads) / whole}
        row |= {"first_seconds": first, "training_loss": float(fitted.history[-1]["loss"])}
        yield row | {"target_seconds": target}
        print(
            f"epoch {name:7} {batch:6} {precision:8} {loss:12} {whole:7.1f} s {len(ads) / whole / 1e6:6.2f} M rows/s, "
            f"20 steps before {first:.1f} s",
            flush=True,
        )


def side_by_side() -> Iterator[Row]:
    """Several repeats on one GPU: threads, each with a stream of its own."""
    ads, values = simulated(2_000_000)

    def train(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            fit(MODELS["deepfm"](values, seed=seed).cuda(), ads, loss="log_plus", epochs=1, batch_size=256, seed=seed)
            stream.synchronize()  # not the whole GPU: another thread may be recording its graph

    torch.cuda.synchronize()  # the ads were made on another stream
    train(0)
    for together in (1, 2, 4, 8):
        threads = [threading.Thread(target=train, args=(seed,)) for seed in range(together)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - start
        row: Row = {"case": "side_by_side", "model": "deepfm", "batch": 256, "together": together, "seconds": seconds}
        yield row | {"rows_per_second": together * len(ads) / seconds}
        print(f"{together} at once {seconds:6.2f} s, {together * len(ads) / seconds / 1e6:.2f} M rows/s", flush=True)


CASES = {
    "losses": losses,
    "ragged": ragged,
    "steps": steps,
    "without_graph": without_graph,
    "epoch": epoch,
    "side_by_side": side_by_side,
}


def main(wanted: list[str]) -> None:
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
