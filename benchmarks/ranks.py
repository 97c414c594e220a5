"""Training on 1, 2 and 4 ranks of one machine: rows a second, and what a step sends.

python -m benchmarks.ranks          measures, then docs/results/benchmarks.md and docs/assets/scaling.svg

Every rank has one thread. The batch is that of all ranks together, so that more ranks do the same work. What the
machine could give at most is measured too: as many processes that train apart, each a model of its own.
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.style
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from matplotlib.figure import Figure

from benchmarks.categories import STEPS, cardinalities, drawn
from benchmarks.harness import DOCS, read, write
from benchmarks.table import write_page
from bidwise import distributed
from bidwise.models import DeepFM
from bidwise.report.drawing import COLOURS, SOFT, STYLE
from bidwise.training.arguments import Options
from bidwise.training.run import Run
from paper.dcn import DCN

RANKS = (1, 2, 4)
CASES = [(model, loss, batch) for model in (DeepFM, DCN) for batch in (256, 4096) for loss in ("log_loss", "log_plus")]
WAYS = ("together", "apart")
ROUNDS, SECONDS, VALUES, ADS = 3, 2.0, 100_000, 65_536
WARM = 2


class Wire:
    """What the ranks of this process hand over, and how long they wait for it."""

    def __init__(self) -> None:
        self.bytes, self.seconds = 0, 0.0
        dist.all_reduce, dist.all_gather = self._counted(dist.all_reduce, 0), self._counted(dist.all_gather, 1)

    def _counted(self, collective: Callable[..., Any], sent: int) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            start = time.perf_counter()
            found = collective(*given, **more)
            self.seconds += time.perf_counter() - start
            self.bytes += given[sent].numel() * given[sent].element_size()
            return found

        return call


def timed(run: Run, wire: Wire) -> dict[str, float]:
    """Milliseconds, kilobytes and share of waiting of a step, over some seconds."""
    run.model.train()
    for number in range(WARM):
        start = time.perf_counter()
        run.advance(number)
    steps = torch.tensor(SECONDS / (time.perf_counter() - start))
    steps = max(3, int(distributed.stacked(steps)[0] if distributed.count() > 1 else steps))  # as many on every rank
    batches = (run.shuffle.count - 1) // run.shuffle.batch_size  # the last one is smaller
    wire.bytes, wire.seconds, start = 0, 0.0, time.perf_counter()
    for number in range(steps):
        run.advance((WARM + number) % batches)
    spent = time.perf_counter() - start
    return {"ms": 1e3 * spent / steps, "kb": wire.bytes / steps / 1e3, "waiting": wire.seconds / spent}


def on_rank(rank: int, number: int, way: str, port: int, folder: str) -> None:
    if way == "together":
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(number), "MASTER_PORT": str(port)}
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)
    values = cardinalities(VALUES)
    ads, wire, found = drawn(values, ADS), Wire(), {}
    with distributed.launched("cpu"):
        for model, loss, batch in CASES:
            options = Options(1, batch, 1e-3, "constant", None, 1)
            found[model.__name__, loss, batch] = timed(Run(model(values), ads, None, STEPS[loss], {}, options, 0), wire)
    torch.save(found, f"{folder}/{rank}.pt")


def of_all(number: int, way: str) -> dict[tuple[str, str, int], dict[str, float]]:
    """What rank 0 measured; of processes apart a step that has the rows of all of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(on_rank, (number, way, port, folder), nprocs=number)
        found = [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(number)]
    if way == "together":
        return found[0]
    return {case: found[0][case] | {"ms": 1 / sum(1 / each[case]["ms"] for each in found)} for case in found[0]}


def measured() -> list[dict[str, object]]:
    """Numbers of ranks in turns, for ratios within one run; medians over the rounds."""
    kinds = [(number, way) for way in WAYS for number in RANKS if way == "together" or number > 1]
    parts: dict[Any, list[dict[str, float]]] = {}
    for turn in range(ROUNDS):
        for number, way in kinds[turn:] + kinds[:turn]:
            for case, found in of_all(number, way).items():
                parts.setdefault((number, way, case), []).append(found)
            print(f"round {turn + 1} of {ROUNDS}: {number} {way}", flush=True)
    rows: list[dict[str, object]] = []
    for model, loss, batch in CASES:
        rates = {}
        for number, way in kinds:
            found = parts[number, way, (model.__name__, loss, batch)]
            ms, kb, waiting = (statistics.median(each[key] for each in found) for key in ("ms", "kb", "waiting"))
            rates[number, way] = 1e3 * batch / ms
            row = {"model": model.__name__, "loss": loss, "batch": batch, "ranks": number, "way": way, "ms": ms}
            row |= {"ms_low": min(each["ms"] for each in found), "ms_high": max(each["ms"] for each in found)}
            row |= {"rows_per_second": rates[number, way], "kb_per_step": kb, "waiting": waiting}
            rows.append(row | {"efficiency": rates[number, way] / rates[1, "together"] / number})
    return rows


def figure(rows: list[dict[str, str]]) -> Path:
    """Rows a second by ranks, beside what as many cores would give."""
    path = DOCS / "assets" / "scaling.svg"
    with matplotlib.style.context(["default", {**STYLE, "svg.hashsalt": "scaling"}]):
        page = Figure(figsize=(7.2, 3.8), layout="constrained", facecolor="white")
        axes = page.subplots(1, 2, sharey=True)
        for at, batch in enumerate((256, 4096)):
            for colour, model in zip(COLOURS, ("DeepFM", "DCN"), strict=False):
                some = [row for row in rows if (row["model"], row["loss"]) == (model, "log_plus")]
                some = [row for row in some if row["batch"] == str(batch)]
                one = float(some[0]["rows_per_second"])
                for way, line, words in (("together", "-", "one model together"), ("apart", ":", "a model each")):
                    rates = {1: 1.0} | {
                        int(row["ranks"]): float(row["rows_per_second"]) / one for row in some if row["way"] == way
                    }
                    axes[at].plot(
                        list(rates), list(rates.values()), line, marker="o", color=colour, label=f"{model}, {words}"
                    )
            axes[at].plot(RANKS, RANKS, color=SOFT, linewidth=0.8, label="a core for every rank")
            title = f"batch of {batch:,}, {rows[0]['cores']} virtual cores"
            axes[at].set(title=title, xlabel="processes, one thread each", xticks=RANKS, ylim=(0, 2.2))
        axes[0].set_ylabel("rows a second, one process = 1")
        page.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
        page.savefig(path, metadata={"Date": None})
    return path


def main() -> None:
    write("ranks", measured(), threads=1, cores=os.cpu_count())
    figure(read("ranks"))
    write_page()


if __name__ == "__main__":
    main()
