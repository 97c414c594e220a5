"""From a table to a store, and to the first training step: rows a second, and memory that the process holds.

python -m benchmarks.ingest 10000000          rows, of which each of 12 and 20 columns is measured
python -m benchmarks.ingest 100000000 --columns 20 --append
python -m benchmarks.ingest 50000000 --columns 12 --users 20000000 --append    one column more, of so many values

Users come back: training rows have each of the values of that column twice, and all have ids of their own. Each case
is a process of its own. Memory is what only the process holds (RssAnon): pages of mapped files are the system's to take
back. Tables are Parquet in parts of a million rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.harness import read, write

PART = 1_000_000
ADS = 8  # of an auction
ROLES = ("click", "bid", "auction", "time")
STEP = 7_654_321  # between users of neighbouring rows; no number of users here has a divisor in common with it


def make_table(folder: Path, rows: int, columns: int, users: int = 0) -> None:
    """Auctions of eight ads in the order of their time; text, whole numbers and decimals, some with many values; where
    there are ``users``, a column of their names, 16 letters each."""
    for part in range(-(-rows // PART)):
        random, count = np.random.default_rng(part), min(PART, rows - part * PART)
        row = part * PART + np.arange(count)
        table: dict[str, object] = {
            "click": (random.random(count) < 0.05).astype(np.int8),
            "bid": np.exp(random.normal(size=count)),
            "auction": row // ADS,
            "time": row // 50,
        }
        for at in range(columns - len(ROLES)):
            kind = at % 4
            if kind == 3:
                table[f"number{at}"] = random.normal(size=count).round(4)
            elif kind == 2:
                table[f"word{at}"] = pl.Series((random.pareto(1.0, count) * 100).astype(np.int64) % 2_000_000).cast(str)
            else:
                table[f"key{at}_id"] = random.integers(0, 10 ** (kind + 2), count)
        if users:
            table["user"] = pl.Series(row * STEP % users).cast(str).str.zfill(16)
        pl.DataFrame(table).write_parquet(folder / f"{part:04d}.parquet", row_group_size=250_000, compression="lz4")


def held() -> float:
    """MB that the process holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def measure(table: str, out: str, min_count: str) -> None:
    """Train until the first report of a step, and print what it took."""
    from bidwise.table.pipeline import train

    peak, began, before, found = 0.0, time.monotonic(), held(), dict[str, float]()

    def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, held())
            time.sleep(0.02)

    def progress(work: str, done: float, detail: str = "") -> None:
        if work == "reading" and done == 1.0:
            found.update(store_seconds=time.monotonic() - began, store_mb=peak, store_extra_mb=peak - before)
            found.update(store_cpu_seconds=sum(os.times()[:2]))  # of both cores, which others may keep busy
        if work == "training" and done > 0:
            found.update(first_step_seconds=time.monotonic() - began, first_step_mb=peak)
            print(json.dumps(found), flush=True)
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    options: dict[str, object] = {role: role for role in ROLES} | {"loss": "log_loss", "model": "deepfm"}
    train(table, out=out, **options, min_count=int(min_count) or None, progress=progress)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=int, nargs="*", default=[10_000_000])
    parser.add_argument("--columns", type=int, nargs="+", default=[12, 20])
    parser.add_argument("--append", action="store_true", help="keep rows that were measured before")
    parser.add_argument("--folder", help="where tables are made and kept [default: a temporary one]")
    parser.add_argument("--users", type=int, default=0, help="values of one column more; two fifths of the rows")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return
    before = read("ingest") if options.append else []
    found: list[dict[str, object]] = [{"case": "ingest", "rows": 0, "columns": 0, "users": 0} | row for row in before]
    for rows in options.rows:
        for columns in options.columns:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                table = Path(options.folder or folder) / f"{rows}x{columns}x{options.users}"
                if not table.is_dir():
                    table.mkdir()
                    make_table(table, rows, columns, options.users)
                load = os.getloadavg()[0]
                command = [sys.executable, "-m", "benchmarks.ingest", "--measure", str(table), f"{folder}/run"]
                command.append("2" if options.users else "0")
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            case = json.loads(said)
            rate = {"rows_per_second": float(round(rows / case["store_seconds"]))}
            sizes = {"rows": rows, "columns": columns, "users": options.users}
            found.append({"case": "ingest"} | sizes | rate | case | {"load_before": load})
            print(found[-1], flush=True)
    print(write("ingest", found))


if __name__ == "__main__":
    main()
