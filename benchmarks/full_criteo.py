"""Criteo's size from raw text to test welfare: simulate, prepare, one epoch of DeepFM; torch and numpy alone.

    python -m benchmarks.full_criteo FOLDER [--rows 45840617] [--stages simulate prepare train]

Needs about 35 GB of disk at the challenge's size. Prints a line for each stage; FOLDER/run is what training found.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import time
from pathlib import Path

import torch

from bidwise.json_files import read_json
from paper.criteo import run
from paper.criteo_results import CriteoConfig
from paper.criteo_text import simulate
from paper.prepare_criteo import prepare

ROWS = 45_840_617
STAGES = ("simulate", "prepare", "train")
BATCH = 10_000


def stage(name: str, folder: Path, rows: int) -> dict[str, object]:
    """Carry out a stage and say what it took."""
    raw, store, out = folder / "raw.tsv", folder / "store", folder / "run"
    found: dict[str, object] = {}
    start = time.perf_counter()
    if name == "simulate":
        simulate(raw, rows)
    elif name == "prepare":
        prepare(raw, store)
        raw.unlink()
    else:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        config = CriteoConfig(
            models=("deepfm",), losses=("log_loss",), protocol="tuned", repeats=1, epochs=1, every=1, batch_size=BATCH,
            precision="mixed", schedule="cosine", l2=3e3 / (0.8 * rows),
        )  # fmt: skip
        result = run(config, store, out, device=device)
        tuned = result.models["deepfm"].protocols["tuned"].losses["log_loss"]
        share = tuned.expected_welfare / result.data.optimal_welfare
        found = {
            "auc": tuned.auc,
            "share_of_optimum": share,
            "seconds_of_trial": read_json(out / "environment.json")["seconds"],
        }
    seconds = time.perf_counter() - start
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    return {
        "stage": name,
        "rows": rows,
        "seconds": seconds,
        "rows_per_second": rows / seconds,
        "peak_mb": peak,
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--stages", nargs="*", default=STAGES, choices=STAGES)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(asked.folder).free
    print(f"{free / 1e9:.0f} GB of disk", flush=True)
    for name in asked.stages:
        found = stage(name, asked.folder, asked.rows)
        print("  ".join(f"{k} {x:,.4g}" if isinstance(x, float) else f"{k} {x}" for k, x in found.items()), flush=True)


if __name__ == "__main__":
    main()
