"""`predict`: the CTR of a row is its own, other columns stay as they are, and drift is noticed."""

import csv
import gzip
import logging
import os
import signal
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from run_helpers import bidwise_command

import bidwise
from bidwise.data import table_files
from bidwise.table import predict, train
from bidwise.table.model import Drift

ROLES = {"click": "click", "bid": "bid", "loss": "log_loss", "model": "deepfm", "epochs": 1}
long = pytest.mark.skipif("BIDWISE_LONG" not in os.environ, reason="takes minutes: make test-long")


def ads(rows, seed=0):
    random = np.random.default_rng(seed)
    site = random.integers(0, 50, rows)
    return pl.DataFrame(
        {
            "site": [f"site_{k}" for k in site],
            "zip": [f"{k:05d}" for k in random.integers(0, 40, rows)],
            "age": random.exponential(1.0, rows),
            "bid": random.lognormal(0, 0.3, rows),
            "click": (random.random(rows) < 0.02 * (site % 10 + 1)).astype(int),
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    train(ads(2000), out=folder, **ROLES)
    return folder


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(table_files, "ROWS", 1000)
    monkeypatch.setattr(table_files, "BYTES", 50_000)


@pytest.mark.parametrize("out", ["out.parquet", "out.csv"])
def test_every_kind_of_file_has_the_same_ctr(run, tmp_path, small_blocks, out):
    table = ads(5000, 1)
    expected = bidwise.load(run).predict(table)
    table.write_parquet(tmp_path / "new.parquet")
    table.write_csv(tmp_path / "new.csv")
    table.write_csv(tmp_path / "new.tsv", separator="\t")
    (tmp_path / "zipped.csv.gz").write_bytes(gzip.compress((tmp_path / "new.csv").read_bytes()))
    for new in ("new.parquet", "new.csv", "new.tsv", "zipped.csv.gz"):
        assert predict(run, tmp_path / new, out=tmp_path / out) == len(table)
        read = pl.read_parquet(tmp_path / out) if out.endswith(".parquet") else pl.read_csv(tmp_path / out)
        assert np.array_equal(read["ctr"], expected)
        assert read.columns == [*table.columns, "ctr"]
        assert np.array_equal(predict(run, tmp_path / new)["ctr"], expected)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_cells_of_text_keep_their_text(run, tmp_path, small_blocks, end):
    """Codes, spaces, quotes and line ends in cells, in columns of the model and in others."""
    rows = [["site", "note", "zip", "age", "bid", "id,"]]
    for row, (site, code, age) in enumerate(ads(3000, 2).select("site", "zip", "age").iter_rows()):
        note = ("plain", "with, comma", 'two "quotes"', "", "line\nend")[row % 5]
        rows.append([f"{site} ", note, code, f"{age:.4f}", "1.50", ("007", "1e3", " 0x1", "NA")[row % 4]])
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator=end).writerows(rows)
    assert predict(run, tmp_path / "new.csv", out=tmp_path / "out.csv") == 3000
    with (tmp_path / "out.csv").open(newline="") as file:
        written = list(csv.reader(file))
    assert [row[:-1] for row in written] == rows
    assert written[0][-1] == "ctr"
    assert all(0 < float(row[-1]) < 1 for row in written[1:])


def test_separators_and_headers_stay(run, tmp_path):
    table = ads(500, 1).drop("zip").with_columns(zip=pl.lit("x"))
    table.write_csv(tmp_path / "new.csv", separator=";")
    predict(run, tmp_path / "new.csv", separator=";", out=tmp_path / "out.csv")
    assert pl.read_csv(tmp_path / "out.csv", separator=";").drop("ctr").equals(table)
    predict(run, tmp_path / "new.csv", separator=";", out=tmp_path / "out.tsv")
    assert pl.read_csv(tmp_path / "out.tsv", separator="\t").drop("ctr").equals(table)


def test_other_columns_of_parquet_keep_their_types(run, tmp_path):
    table = ads(200, 1).with_columns(day=pl.lit(19_000).cast(pl.Date), tags=pl.lit([[1, 2]]), code=pl.lit("000017"))
    table.write_parquet(tmp_path / "new.parquet")
    predict(run, tmp_path / "new.parquet", out=tmp_path / "out.parquet")
    assert pl.read_parquet(tmp_path / "out.parquet").drop("ctr").equals(table)
    with pytest.raises(bidwise.InputError) as error:
        predict(run, tmp_path / "new.parquet", out=tmp_path / "out.csv")
    assert error.value.argument == "out"


KILLED = """
import os, signal, sys
import bidwise.table
from bidwise.data import table_files
table_files.ROWS = 4096

def progress(work, done):
    if done > 0.5:
        os.kill(os.getpid(), signal.SIGKILL)

bidwise.table.predict(*sys.argv[1:3], out=sys.argv[3], progress=progress)
"""


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_a_killed_call_leaves_no_half_file(run, tmp_path, ending):
    table, out = tmp_path / "new.parquet", tmp_path / f"out{ending}"
    ads(30_000, 1).write_parquet(table)
    ended = subprocess.run([sys.executable, "-c", KILLED, run, table, out], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not out.exists()
    assert predict(run, table, out=out) == 30_000
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([table.name, out.name])


@pytest.mark.parametrize("last", ["1,2,3,4,5,6,7,8,9,10", "a,b", '"a'])
def test_text_that_is_no_table_leaves_nothing(run, tmp_path, last):
    (tmp_path / "ads.csv").write_text(f"{ads(500).write_csv()}{last}\n")
    for out in (None, tmp_path / "out.csv", tmp_path / "out.parquet"):
        with pytest.raises(bidwise.InputError, match=r"ads\.csv, line 50[12]"):
            predict(run, tmp_path / "ads.csv", out=out)
    assert [path.name for path in tmp_path.iterdir()] == ["ads.csv"]


def test_files_of_a_folder_are_one_table(run, tmp_path, small_blocks):
    rows, folder = ads(10_000, 1), tmp_path / "days"
    for day in range(2):
        (folder / f"day={day}").mkdir(parents=True)
        rows[5000 * day : 5000 * (day + 1)].write_parquet(folder / f"day={day}" / "ads.parquet")
    expected = bidwise.load(run).predict(rows)
    for table in (folder, str(folder / "*" / "*.parquet")):
        assert predict(run, table, out=tmp_path / "out.csv") == 10_000
        found = pl.read_csv(tmp_path / "out.csv")
        assert np.array_equal(found["ctr"], expected)
        assert found["day"].to_list() == [0] * 5000 + [1] * 5000
    for out in ("out.parquet", "out.csv", "day=2/out.tsv"):  # of another kind they would stop the next reading
        with pytest.raises(bidwise.InputError) as error:
            predict(run, folder, out=folder / out)
        assert error.value.argument == "out"
    with pytest.raises(bidwise.InputError) as error:
        train(folder, out=folder / "run", **ROLES)
    assert error.value.argument == "out"
    assert sorted(path.name for path in folder.iterdir()) == ["day=0", "day=1"]


CHANGES = {
    "units": {"age": pl.col("age") * 100},
    "upper case": {"site": pl.col("site").str.to_uppercase()},
    "swapped columns": {"site": pl.col("zip"), "zip": pl.col("site")},
    "a failed join": {"age": pl.lit(None, pl.Float64)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_drift_is_noticed(run, tmp_path, caplog, monkeypatch, capsys, change):
    new = ads(1000, 1).with_columns(**CHANGES[change])
    model, drift = bidwise.load(run), Drift(bidwise.load(run).encoder)
    caplog.set_level(logging.WARNING, "bidwise")
    model.predict(new, drift=drift)
    assert set(drift.columns) == set(CHANGES[change])
    assert not caplog.records
    model.predict(new)
    new.write_csv(tmp_path / "new.csv")
    predict(run, tmp_path / "new.csv", out=tmp_path / "out.csv")
    assert [all(repr(name) in each.message for name in drift.columns) for each in caplog.records] == [True, True]
    words = ("predict", run, tmp_path / "new.csv", "--out", tmp_path / "strict.csv")
    assert bidwise_command(monkeypatch, *words, "--strict") == 2
    assert not (tmp_path / "strict.csv").exists()
    assert not bidwise_command(monkeypatch, *words)


def test_rows_like_those_of_training_are_no_drift(run, caplog):
    drift = Drift(bidwise.load(run).encoder)
    bidwise.load(run).predict(ads(1000, 1), drift=drift)
    assert drift.columns == {}
    assert set(drift.shares) == {"site", "zip", "age"}
    bidwise.load(run).predict(ads(5, 1).with_columns(site=pl.lit("new")))  # too few to tell
    assert not caplog.records


PEAK = """
import resource, sys
from bidwise.table import predict
rows = predict(*sys.argv[1:3], out=sys.argv[3])
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@long
@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_memory_does_not_grow_with_the_table(run, tmp_path, ending):
    """Peaks, in MB, of 4 and of 24 million rows."""
    block, peaks = ads(1_000_000, 1), []
    for millions in (4, 24):
        table = tmp_path / f"{millions}{ending}"
        every = pl.concat([block.lazy()] * millions)
        every.sink_parquet(table) if ending == ".parquet" else every.sink_csv(table)
        said = subprocess.check_output([sys.executable, "-c", PEAK, run, table, tmp_path / "out.parquet"], text=True)
        count, peak = said.split()
        assert int(count) == 1_000_000 * millions
        peaks.append(float(peak))
    assert peaks[1] < 1.25 * peaks[0] + 50, peaks
