"""On a GPU: steps and epochs of training, beside plain torch, and several trainings at once.

``python -m benchmarks.device steps`` runs one of these cases.
"""

from __future__ import annotations

import copy
import inspect
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise

import torch
from torch import Tensor, nn

from benchmarks.categories import cardinalities
from bidwise import fit
from bidwise.data import Ads
from bidwise.losses.named import named_loss
from bidwise.training.arguments import PRECISIONS, Options
from bidwise.training.run import Run
from paper.dcn import MODELS

Row = dict[str, object]
VOCABULARY, CRITEO = 1_100_000, 36_672_493
BATCHES = (256, 512, 4096, 10_000)
LOSSES = ("log_loss", "log_weighted", "log_teacher", "log_plus", "log_plus_teacher")
OVERHEAD = {256: 0.02, 10_000: 0.03}
MATMUL = {"float32": "highest", "mixed": "high"}  # what torch calls it
COLUMNS = ("features", "clicks", "bids", "teacher")
WHOLE = "the whole step, without a profiler"


def simulated(ads: int, vocabulary: int = VOCABULARY, device: str = "cuda") -> tuple[Ads, list[int]]:
    """Ads with as many values as Criteo has, about 1 / k as many of the k-th as of the first, on the device."""
    values = cardinalities(vocabulary)
    most = torch.tensor(values, dtype=torch.float64, device=device)
    features = torch.empty(ads, len(values), dtype=torch.int32, device=device)
    random = torch.Generator(device).manual_seed(0)
    for part in features.split(2**21):
        uniform = torch.rand(part.shape, generator=random, dtype=torch.float64, device=device)
        part.copy_(torch.minimum((most + 1) ** uniform - 1, most - 1))
    ctr, chance, bids = (torch.rand(ads, generator=random, device=device) for _ in range(3))
    return Ads(features, (chance < ctr / 2).float(), bids + 0.5, teacher=ctr / 2), values


class Steps:
    """Real steps of a run, on batches of the ads in turn."""

    def __init__(
        self, model: nn.Module, ads: Ads, batch: int, loss: nn.Module, precision: str, graph: bool | None = None
    ) -> None:
        options = Options(1, batch, 1e-3, "constant", None, 1, precision=precision)
        self.run = Run(copy.deepcopy(model).train(), ads, None, loss, {}, options, 0, graph)
        self.precision = MATMUL[precision]
        self.number = 0
        self.ms(10)

    def ms(self, steps: int) -> float:
        torch.set_float32_matmul_precision(self.precision)
        _wait(self.run.device)
        start = time.perf_counter()
        for _ in range(steps):
            self.run.advance(self.number)
            self.number = (self.number + 1) % (len(self.run.under_way.ends) - 1)
        _wait(self.run.device)
        return 1e3 * (time.perf_counter() - start) / steps


class Plain(nn.Module):
    """DeepFM as one would write it with torch alone."""

    def __init__(self, values: Sequence[int], embedding: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.register_buffer("starts", torch.tensor([0, *values[:-1]]).cumsum(0))
        self.linear, self.vectors = (nn.Embedding(sum(values), width) for width in (1, embedding))
        widths = [len(values) * embedding, *hidden]
        layers = [[nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)] for a, b in pairwise(widths)]
        self.deep = nn.Sequential(*(part for layer in layers for part in layer), nn.Linear(widths[-1], 1))

    def forward(self, features: Tensor) -> Tensor:
        rows = features + self.starts
        vectors = self.vectors(rows)
        crossed = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(-1)
        return self.linear(rows).sum((1, 2)) + crossed + self.deep(vectors.flatten(1)).squeeze(1)


class PlainSteps:
    """Steps of a loop over batches: gather, forward, log loss, backward, torch's fused Adam on all rows.

    ``graph``: as one CUDA graph. ``compiled``: model and loss through torch.compile, with their gradient.
    """

    def __init__(
        self, ads: Ads, values: Sequence[int], batch: int, precision: str, *, graph: bool, compiled: bool = False
    ) -> None:
        ours, device = MODELS["deepfm"], ads.features.device
        options = {key: inspect.signature(ours).parameters[key].default for key in ("embedding", "hidden", "dropout")}
        torch.manual_seed(0)
        self.model, self.ads = Plain(values, **options).to(device), ads
        self.optimizer = torch.optim.Adam(self.model.parameters(), fused=True, capturable=graph)
        self.order, self.at, self.precision = torch.randperm(len(ads), device=device), 0, MATMUL[precision]
        self.batch, self.last = self.order[:batch].clone(), torch.zeros((), device=device)
        self.loss = torch.compile(self._loss, dynamic=False) if compiled else self._loss
        self.advance: Callable[[], object] = self._step
        self.ms(3)
        if graph:
            self.advance = self._captured().replay

    def _loss(self, features: Tensor, clicks: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.model(features), clicks)

    def _step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(self.ads.features[self.batch], self.ads.clicks[self.batch])
        loss.backward()
        self.optimizer.step()
        self.last.copy_(loss.detach())

    def _captured(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # what is made once is made
            for _ in range(3):
                self._step()
        stream.synchronize()
        self.optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph

    def ms(self, steps: int) -> float:
        torch.set_float32_matmul_precision(self.precision)
        _wait(self.order.device)
        start = time.perf_counter()
        for _ in range(steps):
            self.batch.copy_(self.order[self.at : self.at + len(self.batch)])
            self.at = (self.at + len(self.batch)) % (len(self.ads) - len(self.batch))
            self.advance()
        _wait(self.order.device)
        return 1e3 * (time.perf_counter() - start) / steps


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def smoke() -> Iterator[Row]:
    """A few steps on a CPU: whether they run, ours, in plain torch and compiled, and their losses."""
    ads, values = simulated(2_000, vocabulary=2_000, device="cpu")
    ours = Steps(MODELS["deepfm"](values), ads, 64, named_loss("log_loss"), "float32")
    print(
        f"{'ours':22} {ours.ms(20):8.2f} ms, mean loss {float(ours.run.position.total) / ours.run.taken:.4f}",
        flush=True,
    )
    for compiled in (False, True):
        timed = PlainSteps(ads, values, 64, "float32", graph=False, compiled=compiled)
        ms = timed.ms(20)
        way = "plain torch, compiled" if compiled else "plain torch"
        print(f"{way:22} {ms:8.2f} ms, loss {float(timed.last):.4f}", flush=True)
        yield {"case": "smoke", "way": way, "ms": ms, "loss": float(timed.last)}


def without_graph() -> Iterator[Row]:
    """What a step of DeepFM takes called from Python and in a graph: in plain torch, and ours."""
    ads, values = simulated(4_000_000)
    model = MODELS["deepfm"](values).cuda()
    for batch in (256, 4096, 10_000, 65_536):
        for precision in PRECISIONS:
            log_loss = named_loss("log_loss")
            ways: dict[str, Steps | PlainSteps] = {
                "plain torch": PlainSteps(ads, values, batch, precision, graph=False),
                "plain torch, in a graph": PlainSteps(ads, values, batch, precision, graph=True),
                # the strongest that one could write in forty lines
                "compiled, in a graph": PlainSteps(ads, values, batch, precision, graph=True, compiled=True),
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


def profile() -> Iterator[Row]:
    """What the kernels of a step take, longest first, as torch's profiler has them."""
    ads, values = simulated(4_000_000)
    for model, batch in (("deepfm", 10_000), ("deepfm", 4096), ("dcnv2", 4096)):
        timed, count = Steps(MODELS[model](values).cuda(), ads, batch, named_loss("log_loss"), "mixed"), 20
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            timed.ms(count)
        for kernel in sorted(found.key_averages(), key=lambda each: -each.self_device_time_total):
            row: Row = {"case": "profile", "model": model, "batch": batch, "precision": "mixed", "loss": "log_loss"}
            row |= {"kernel": kernel.key, "launches": kernel.count / count}
            yield row | {"us": kernel.self_device_time_total / count}
        us = 1e3 * timed.ms(50)
        yield row | {"kernel": WHOLE, "launches": 1, "us": us}
        print(f"{model} {batch:6,} {us:8.1f} us a step", flush=True)


def steps() -> Iterator[Row]:
    """What a step takes by model, batch, precision and loss, in turns; what each loss adds to the log loss."""
    ads, values = simulated(4_000_000)
    for model in ("deepfm", "dcn"):
        untrained = MODELS[model](values).cuda()
        for batch in BATCHES:
            for precision in PRECISIONS:
                timed = {
                    name: Steps(untrained, ads, batch, named_loss(name, lam=3.0, sigma=3.0), precision)
                    for name in LOSSES
                }
                count = max(5, min(150, int(60 / timed["log_loss"].ms(10))))
                found: dict[str, list[float]] = {name: [] for name in LOSSES}
                for turn in range(9):
                    for name in islice(LOSSES * 2, turn % len(LOSSES), turn % len(LOSSES) + len(LOSSES)):
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
        ("dcn", 512, "mixed", "log_loss", ""),
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
