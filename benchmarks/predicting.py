"""`bidwise predict`, Parquet to Parquet and CSV to CSV: DeepFM on one core and on two.

`bidwise train` trains it for one epoch on a made table. ``whole`` is `predict` from file to file in a process of its
own; ``text`` is the same from CSV to CSV, ``polars`` the time that polars takes to read and write that CSV; ``model``
is the network from ids to CTR in memory. CPU seconds are those of all threads: what idle cores would share. ``load``
is the load average of the machine when a measurement ended; wall seconds of a busy machine say little.

    python -m benchmarks.predicting [ROWS]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from itertools import product
from pathlib import Path

import polars as pl

from benchmarks.harness import write
from benchmarks.made_tables import make_table
from bidwise.table import train

ROWS = 2_000_000
MODEL = "deepfm 128, 128"
MEASURED = """
import json, os, resource, sys, time
import bidwise, bidwise.table
run, table, out, what, threads = sys.argv[1:]
os.sched_setaffinity(0, range(int(threads)))
model = bidwise.load(run)
if what == "model":
    import polars as pl
    ids = model.encoder.encode(pl.read_parquet(table)).ids
    model.ctr(ids[:50_000])
wall, cpu = time.perf_counter(), time.process_time()
if what == "polars":
    import polars as pl
    frame = pl.read_csv(table)
    rows = len(frame)
    frame.with_columns(ctr=pl.lit(0.123456)).write_csv(out)
else:
    rows = len(model.ctr(ids)) if what == "model" else bidwise.table.predict(run, table, out=out)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"rows": rows, "seconds": wall, "cpu_seconds": cpu, "peak_mb": peak, "load": os.getloadavg()[0]}))
"""


def measured(run: Path, table: Path) -> Iterator[dict[str, object]]:
    """The rows of the table."""
    for what, threads in product(("whole", "model", "text", "polars"), ("1", "2")):
        ending = ".csv" if what in ("text", "polars") else ".parquet"
        only = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS"), threads) | {"OMP_WAIT_POLICY": "passive"}
        typed = [
            sys.executable,
            "-c",
            MEASURED,
            str(run),
            str(table.with_suffix(ending)),
            str(table.with_name(f"out{ending}")),
            what,
            threads,
        ]
        said = json.loads(subprocess.check_output(typed, env=os.environ | only, text=True))
        row = {"model": MODEL, "what": what, "threads": threads, **said}
        row |= {f"rows_per_{of}": said["rows"] / said[f"{of}s"] for of in ("second", "cpu_second")}
        print(row, flush=True)
        yield row


def main(rows: int = ROWS) -> None:
    world = make_table("mixed", 0).drop("truth")
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder, table = Path(name), Path(name) / "new.parquet"
        copies = -(-rows // len(world))
        pl.concat([world.lazy()] * copies).head(rows).drop("click", "bid").sink_parquet(table)
        pl.scan_parquet(table).sink_csv(table.with_suffix(".csv"))
        train(
            world,
            out=folder / "run",
            click="click",
            bid="bid",
            recipe="single",
            budget_seconds=0.0,
            model="deepfm",
            epochs=1,
        )
        found += measured(folder / "run", table)
    write("predicting", found, polars=version("polars"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
