"""Hours of work in one process: commands one after the other, and what they leave in memory, descriptors and threads.

    python -m benchmarks.soak --minutes 30

Each round trains on a table (a model searched for, then one with a welfare loss), refreshes it, predicts and evaluates,
in folders that are gone afterwards. Growth is that of resident memory between the second and the last tenth
of the rounds; the first tenth fills caches.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import polars as pl
from matplotlib.figure import Figure

from benchmarks.harness import RESULTS, write
from bidwise.cli import app
from examples.own_table import main as write_tables

MOST_GROWTH = 0.02
ROLES = ("--click", "click", "--bid", "bid", "--auction", "auction", "--time", "time", "--truth", "truth")
SHORT = ("--set", "train.epochs=1", "--set", "train.batch_size=256")
Row = dict[str, object]


def commands(ads: Path, new: Path, folder: Path) -> Iterator[list[str]]:
    """What a round does."""
    searched, named = folder / "searched", folder / "named"
    yield ["train", str(ads), *ROLES, *SHORT, "--out", str(searched)]
    yield ["train", str(ads), *ROLES, *SHORT, "--model", "deepfm", "--loss", "log_plus", "--out", str(named)]
    yield ["train", str(new), "--continue", str(named), "--out", str(folder / "refreshed")]
    yield ["predict", str(searched), str(new), "--out", str(folder / "predicted.csv")]
    columns = ("--ctr", "log_loss", "truth", "--click", "click", "--bid", "bid", "--auction", "auction")
    yield ["evaluate", str(searched / "test.parquet"), *columns, "--out", str(folder / "evaluated")]


def state() -> Row:
    """Resident memory, open descriptors and threads of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return {
        "resident_mb": round(resident, 2),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def rounds(minutes: float, auctions: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as home:
        with contextlib.redirect_stdout(io.StringIO()):
            write_tables(home, auctions)
        ads, new = Path(home) / "ads.parquet", Path(home) / "tomorrow.parquet"
        pl.read_parquet(ads).with_columns(pl.col("time") + pl.duration(days=1)).write_parquet(new)
        began, number = time.monotonic(), 0
        while time.monotonic() - began < 60 * minutes:
            with tempfile.TemporaryDirectory(dir=home) as folder:
                for words in commands(ads, new, Path(folder)):
                    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                        app(words, exit_on_error=False, result_action="return_value")
            number += 1
            row: Row = {"case": "soak", "round": number, "seconds": round(time.monotonic() - began, 1), **state()}
            yield row
            print(row, flush=True)


def growth(rows: list[Row]) -> float:
    """Of resident memory, from the second tenth of the rounds to the last."""
    resident = [float(str(row["resident_mb"])) for row in rows]
    tenth = max(1, len(resident) // 10)
    return statistics.median(resident[-tenth:]) / statistics.median(resident[tenth : 2 * tenth]) - 1


def drawn(rows: list[Row], path: Path) -> None:
    """Memory over the minutes, as a figure."""
    matplotlib.rcParams["svg.hashsalt"] = "soak"
    figure = Figure(figsize=(6, 2.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([float(str(row["seconds"])) / 60 for row in rows], [float(str(row["resident_mb"])) for row in rows])
    axes.set(xlabel="minutes", ylabel="resident memory, MB", ylim=(0, None))
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--auctions", type=int, default=150)
    wanted = parser.parse_args()
    rows = list(rounds(wanted.minutes, wanted.auctions))
    if len(rows) < 20:
        raise SystemExit(f"20 rounds are needed to tell growth, found {len(rows)}; take more minutes")
    write("soak", rows)
    drawn(rows, RESULTS / "soak.svg")
    first, last, grown = rows[len(rows) // 10], rows[-1], growth(rows)
    print(f"{len(rows)} rounds in {wanted.minutes:g} minutes: memory grew by {100 * grown:.2f} %, at most 2 % may be")
    left = [f"{key} {first[key]} -> {last[key]}" for key in ("descriptors", "threads")]
    print("; ".join(left))
    if grown > MOST_GROWTH or any(int(str(last[key])) > int(str(first[key])) for key in ("descriptors", "threads")):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
