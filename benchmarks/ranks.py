"""Training on 1, 2 and 4 ranks of one machine: rows a second, and what a step sends.

python -m benchmarks.ranks          measures, then docs/benchmarks.md and docs/scaling.svg

Every rank has one thread. The batch is that of all ranks together, so that more ranks do the same work.
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
from bidwise import ranks
from bidwise.models import DCN, DeepFM
from bidwise.report.drawing import COLOURS, SOFT, STYLE
from bidwise.training.run import Options, Run

RANKS = (1, 2, 4)
CASES = [(model, loss, batch) for model in (DeepFM, DCN) for batch in (256, 4096) for loss in ("log_loss", "log_plus")]
ROUNDS, SECONDS, VALUES, ADS = 3, 4.0, 100_000, 65_536
WARM = 3


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
    """Milliseconds, kilobytes and share of waiting of a step, over some seconds that all ranks agree on."""
    run.begin()
    run.model.train()
    for number in range(WARM):
        run.advance(number)
    wire.bytes, wire.seconds, start, steps = 0, 0.0, time.perf_counter(), 0
    while steps + WARM < len(run.shuffle) - 1:
        run.advance(steps + WARM)
        steps += 1
        late = torch.tensor(float(steps % 8 == 0 and time.perf_counter() - start > SECONDS))
        if steps % 8 == 0 and float(ranks.stacked(late).max() if ranks.count() > 1 else late):
            break
    spent = time.perf_counter() - start
    return {"ms": 1e3 * spent / steps, "kb": wire.bytes / steps / 1e3, "waiting": wire.seconds / spent}


def on_rank(rank: int, number: int, port: int, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    values = cardinalities(VALUES)
    ads, wire, found = drawn(values, ADS), Wire(), {}
    with ranks.launched("cpu"):
        for model, loss, batch in CASES:
            options = Options(1, batch, 1e-3, "constant", None, 1)
            found[model.__name__, loss, batch] = timed(Run(model(values), ads, None, STEPS[loss], {}, options, 0), wire)
    if rank == 0:
        torch.save(found, f"{folder}/{number}.pt")


def measured() -> list[dict[str, object]]:
    """Ranks in turns, for ratios within one run; medians over the rounds."""
    parts: dict[tuple[int, Any], list[dict[str, float]]] = {}
    for turn in range(ROUNDS):
        for number in RANKS[turn:] + RANKS[:turn]:
            with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
                free.close()
                multiprocessing.spawn(on_rank, (number, port, folder), nprocs=number)
                for case, found in torch.load(f"{folder}/{number}.pt", weights_only=False).items():
                    parts.setdefault((number, case), []).append(found)
            print(f"round {turn + 1} of {ROUNDS}, {number} ranks", flush=True)
    rows: list[dict[str, object]] = []
    for case in [(model.__name__, loss, batch) for model, loss, batch in CASES]:
        rates = {}
        for number in RANKS:
            found = parts[number, case]
            ms, kb, waiting = (statistics.median(each[key] for each in found) for key in ("ms", "kb", "waiting"))
            rates[number] = 1e3 * case[2] / ms
            row = {"model": case[0], "loss": case[1], "batch": case[2], "ranks": number, "ms": ms}
            row |= {"ms_low": min(each["ms"] for each in found), "ms_high": max(each["ms"] for each in found)}
            row |= {"rows_per_second": rates[number], "kb_per_step": kb, "waiting": waiting}
            rows.append(row | {"efficiency": rates[number] / rates[1] / number})
    return rows


def figure(rows: list[dict[str, str]]) -> Path:
    """Rows a second by ranks, beside what as many cores would give."""
    cores = int(rows[0]["cores"])
    path = DOCS / "scaling.svg"
    with matplotlib.style.context(["default", {**STYLE, "svg.hashsalt": "scaling"}]):
        page = Figure(figsize=(7.2, 3.4), layout="constrained", facecolor="white")
        axes = page.subplots(1, 2, sharey=True)
        for at, batch in enumerate((256, 4096)):
            best = [min(number, cores) for number in RANKS]
            axes[at].plot(RANKS, best, color=SOFT, linestyle=":", label=f"as many as the {cores} cores allow")
            for colour, model in zip(COLOURS, ("DeepFM", "DCN"), strict=False):
                for loss, line in (("log_loss", "--"), ("log_plus", "-")):
                    some = [r for r in rows if (r["model"], r["loss"], r["batch"]) == (model, loss, str(batch))]
                    rates = [float(row["rows_per_second"]) for row in some]
                    ratio = [rate / rates[0] for rate in rates]
                    axes[at].plot(RANKS, ratio, line, marker="o", color=colour, label=f"{model}, {loss}")
            axes[at].set(title=f"batch of {batch:,}", xlabel="ranks, one thread each", xticks=RANKS, ylim=(0, None))
        axes[0].set_ylabel("rows a second, one rank = 1")
        axes[0].legend(fontsize=7)
        page.savefig(path, metadata={"Date": None})
    return path


def main() -> None:
    write("ranks", measured(), threads=1, cores=os.cpu_count())
    figure(read("ranks"))
    write_page()


if __name__ == "__main__":
    main()
