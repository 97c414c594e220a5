"""One harness for all benchmarks: inputs built once, agreement before timing, medians, quantiles and peak memory."""

from __future__ import annotations

import csv
import ctypes
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"


@dataclass(frozen=True)
class Machine:
    """Where the numbers come from; part of every row."""

    device: str = field(default_factory=lambda: _cpu())
    threads: int = field(default_factory=torch.get_num_threads)
    torch: str = torch.__version__
    python: str = platform.python_version()
    commit: str = field(default_factory=lambda: _commit())


@dataclass(frozen=True)
class Timing:
    ms: float  # median
    ms_low: float  # 10 % quantile
    ms_high: float  # 90 % quantile
    runs: int


def measure(step: Callable[[], object], *, seconds: float = 1.0, least: int = 3, most: int = 300) -> Timing:
    """Time ``step`` until ``seconds`` are spent, after a warm-up."""
    step()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < least or (len(times) < most and time.perf_counter() < until):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    times.sort()
    rank = len(times) - 1
    return Timing(times[rank // 2], times[rank // 10], times[rank - rank // 10], len(times))


def together(steps: dict[str, Callable[[], object]], *, seconds: float = 1.0) -> dict[str, Timing]:
    """Time several steps in turns: on a shared machine only ratios within one run can be trusted."""
    rounds = 5
    parts: dict[str, list[Timing]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            parts[name].append(measure(step, seconds=seconds / rounds, most=100))

    def middle(timings: list[Timing], of: str) -> float:
        return sorted(getattr(timing, of) for timing in timings)[rounds // 2]

    return {
        name: Timing(
            middle(timings, "ms"),
            min(timing.ms_low for timing in timings),
            max(timing.ms_high for timing in timings),
            sum(timing.runs for timing in timings),
        )
        for name, timings in parts.items()
    }


def write(name: str, rows: list[dict[str, object]], **about: object) -> Path:
    """Rows with the machine they were measured on, as ``results/NAME.csv``, written whole or not at all.

    ``about`` says more of the machine, or otherwise: what else but the CPU the rows were measured on. A row that
    says itself where it was measured keeps that.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    machine = asdict(Machine()) | about
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*(rows[0] | machine)])
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{x:.4g}" if isinstance(x, float) else x for key, x in (machine | row).items()})
    part.replace(path)
    return path


def read(name: str) -> list[dict[str, str]]:
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def peak_mb(step: Callable[[], object]) -> float:
    """Peak resident memory of one step above what was resident before (Linux; nan elsewhere)."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory that earlier steps freed would hide what this one takes
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _status("VmRSS")
        step()
        return max(0.0, _status("VmHWM") - before)
    except OSError:
        step()
        return float("nan")


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise OSError(key)


def _cpu() -> str:
    try:
        names = [
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ]
        return f"{names[0]}, {os.cpu_count()} cores"
    except (OSError, IndexError):
        return f"{platform.processor()}, {os.cpu_count()} cores"


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "src")
    return git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")
