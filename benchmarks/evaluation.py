"""Speed of metrics and of the whole `bidwise evaluate`, with scikit-learn beside it where it does the same.

python -m benchmarks.evaluation
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.harness import Timing, together, write
from benchmarks.table import write_page
from bidwise.evaluation import Metrics, auc

ADS, SIZE = 4_608_000, 256  # the paper's Criteo test set, in its auctions


def table(seed: int = 0) -> pl.DataFrame:
    """18,000 auctions of 256 ads and three models of different noise."""
    random = np.random.default_rng(seed)
    logit = random.normal(size=ADS) - 1.5
    columns = {
        "auction": np.repeat(np.arange(ADS // SIZE), SIZE),
        "bid": np.exp(0.5 * random.normal(size=ADS)),
        "click": (random.random(ADS) < 1 / (1 + np.exp(-logit))).astype(np.int8),
    }
    for name, noise in {"model_a": 0.6, "model_b": 0.5, "model_c": 0.4}.items():
        columns[name] = 1 / (1 + np.exp(-logit - noise * random.normal(size=ADS)))
    return pl.DataFrame(columns)


def row(case: str, method: str, ads: int, timing: Timing, **more: object) -> dict[str, object]:
    print(f"{case:28} {method:14} {ads:11,} ads {timing.ms:10.1f} ms", flush=True)
    times = {"ms": timing.ms, "ms_low": timing.ms_low, "ms_high": timing.ms_high, "runs": timing.runs}
    return {"case": case, "method": method, "ads": ads, **times, "peak_mb": math.nan, "cpu_s": math.nan} | more


def beside_sklearn(ads: pl.DataFrame) -> list[dict[str, object]]:
    """The same number from both, equal to 1e-9 before anything is timed."""
    ctr, clicks, weights = (ads[name].to_numpy() for name in ("model_a", "click", "bid"))
    clicks = clicks.astype(np.float64)
    offsets = np.arange(0, ADS + 1, SIZE)
    bids = ads["bid"].to_numpy()
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "AUC": (lambda: auc(ctr, clicks), lambda: roc_auc_score(clicks, ctr)),
        "weighted AUC": (
            lambda: auc(ctr, clicks, weights=weights),
            lambda: roc_auc_score(clicks, ctr, sample_weight=weights),
        ),
    }
    rows = []
    for case, (ours, theirs) in pairs.items():
        found, expected = float(ours()), float(theirs())  # type: ignore[arg-type]
        if abs(found - expected) > 1e-9 * max(1.0, abs(expected)):
            raise SystemExit(f"{case}: {found} against {expected}: not timed")
        timings = together({"bidwise": ours, "scikit-learn": theirs}, seconds=1.0)
        rows += [row(case, name, ADS, timing) for name, timing in timings.items()]
    timings = together(
        {
            "bidwise": lambda: Metrics(ctr, clicks, bids, offsets).compute(),
            "scikit-learn": lambda: (roc_auc_score(clicks, ctr), log_loss(clicks, ctr)),
        },
        seconds=1.0,
    )
    return rows + [row("all metrics (scikit-learn: 2)", name, ADS, timing) for name, timing in timings.items()]


def whole_command(ads: pl.DataFrame) -> list[dict[str, object]]:
    """`bidwise evaluate` from the shell: start, reading, three models, intervals and page, three times."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ads.parquet"
        ads.write_parquet(path)
        asked = f"evaluate {path} --ctr model_a model_b model_c --click click --bid bid".split()
        cases = {"real auctions": ["--auction", "auction"]}
        cases |= {f"all auctions of {size}": ["--auction-size", str(size)] for size in (32, 256)}
        for case, more in cases.items():
            out = ["--out", str(Path(folder) / case.replace(" ", "_"))]
            times, peaks, cpu = [], [], []
            for _ in range(3):
                start = time.perf_counter()
                process = subprocess.Popen(
                    [sys.executable, "-m", "bidwise", *asked, *more, *out], stdout=subprocess.DEVNULL
                )
                _, status, usage = os.wait4(process.pid, 0)
                times.append(1e3 * (time.perf_counter() - start))
                peaks.append(usage.ru_maxrss / 1024)
                cpu.append(usage.ru_utime + usage.ru_stime)
                if status:
                    raise SystemExit(f"evaluate failed with {status}")
            times.sort()
            timing = Timing(times[1], times[0], times[2], 3)
            rows.append(row("bidwise evaluate, 3 models", case, ADS, timing, peak_mb=max(peaks), cpu_s=min(cpu)))
            print(f"  peak memory {max(peaks):,.0f} MB, {min(cpu):.1f} CPU seconds")
    return rows


def main() -> None:
    ads = table()
    write("evaluation", [*beside_sklearn(ads), *whole_command(ads)])
    print(write_page())


if __name__ == "__main__":
    main()
