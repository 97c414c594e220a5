"""`predict` in blocks: constant memory, the same bytes after a kill, any kind and number of files."""

import os
import signal
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

import bidwise
from bidwise.data import read_table
from bidwise.table import model, predict, train

ROLES = {"click": "click", "bid": "bid", "loss": "log_loss", "model": "logistic_regression", "epochs": 1}
long = pytest.mark.skipif("BIDWISE_LONG" not in os.environ, reason="takes minutes: make test-long")


def ads(rows, seed=0):
    random = np.random.default_rng(seed)
    site = random.integers(0, 50, rows)
    return pl.DataFrame(
        {
            "site": [f"site_{k}" for k in site],
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
    monkeypatch.setattr(sys.modules["bidwise.table.predict"], "BLOCK", 4096)


KILLED = """
import os, signal, sys
import bidwise.table
predict = sys.modules["bidwise.table.predict"]
predict.BLOCK = 4096

def progress(work, done):
    if done > 0.5:
        os.kill(os.getpid(), signal.SIGKILL)

predict.predict(*sys.argv[1:3], out=sys.argv[3], progress=progress)
"""


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(run, tmp_path, small_blocks, monkeypatch, ending):
    table, out = tmp_path / "new.parquet", tmp_path / f"out{ending}"
    ads(30_000, 1).write_parquet(table)
    ended = subprocess.run([sys.executable, "-c", KILLED, run, table, out], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not out.exists()
    (kept,) = tmp_path.glob(f"out{ending}.*.ctr")
    assert kept.stat().st_size >= 8 * 4 * 4096
    predicted = []
    whole = model.Model.predict
    monkeypatch.setattr(model.Model, "predict", lambda self, rows: predicted.append(len(rows)) or whole(self, rows))
    assert predict(run, table, out=out) == 30_000
    assert sum(predicted) <= 30_000 - 4 * 4096  # what was known was read back
    assert predict(run, table, out=tmp_path / f"undisturbed{ending}") == 30_000
    assert out.read_bytes() == (tmp_path / f"undisturbed{ending}").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([table.name, out.name, f"undisturbed{ending}"])


def test_what_another_model_or_table_left_is_not_taken(run, tmp_path, small_blocks):
    table, out = tmp_path / "new.parquet", tmp_path / "out.parquet"
    ads(10_000, 1).write_parquet(table)

    def stop(work, done):
        if done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(run, table, out=out, progress=stop)
    assert list(tmp_path.glob("*.ctr"))
    new = ads(10_000, 2)
    new.write_parquet(table)
    predict(run, table, out=out)
    assert np.array_equal(pl.read_parquet(out)["ctr"], bidwise.load(run).predict(new))
    assert not list(tmp_path.glob("*.ctr"))


def test_rows_that_cannot_be_read_leave_nothing(run, tmp_path, small_blocks):
    age = pl.when(pl.int_range(pl.len()) == 9_000).then(pl.lit("x")).otherwise(pl.col("age").cast(pl.String))
    ads(10_000, 1).with_columns(age=age).write_parquet(tmp_path / "new.parquet")
    with pytest.raises(bidwise.InputError, match=r"new\.parquet: column 'age', row 9000: found 'x', which is not a n"):
        predict(run, tmp_path / "new.parquet", out=tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["new.parquet"]


def test_empty_lines_at_the_end_of_text_are_no_ads(run, tmp_path, small_blocks):
    text = ads(5000, 1).write_csv()
    (tmp_path / "new.csv").write_text(text)
    (tmp_path / "longer.csv").write_text(text + "\n\n\n")
    assert predict(run, tmp_path / "new.csv", out=tmp_path / "out.csv") == 5000
    assert predict(run, tmp_path / "longer.csv", out=tmp_path / "other.csv") == 5000
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "other.csv").read_bytes()
    assert len(bidwise.load(run).predict(tmp_path / "longer.csv")) == 5000


def test_types_of_text_that_change_after_the_sample(run, tmp_path, small_blocks, monkeypatch):
    """Whole numbers that become decimals or text, and truths that become text, as if all rows had been looked at."""
    monkeypatch.setattr(read_table, "SAMPLE", 100)
    at = pl.int_range(pl.len())
    rows = ads(9000, 1).with_columns(
        age=pl.when(at < 8000).then(at.cast(pl.String)).otherwise(pl.lit("0.5")),
        code=pl.when(at < 5000).then(at.cast(pl.String)).otherwise(pl.lit("x")),
        new=pl.when(at < 7000).then(pl.lit("true")).otherwise(pl.lit("perhaps")),
        whole=at,
    )
    rows.write_csv(tmp_path / "new.csv")
    predict(run, tmp_path / "new.csv", out=tmp_path / "out.parquet")
    found, expected = (
        pl.read_parquet(tmp_path / "out.parquet"),
        pl.read_csv(tmp_path / "new.csv", infer_schema_length=None),
    )
    assert found.drop("ctr").equals(expected)
    assert found.drop("ctr").schema == expected.schema
    assert np.array_equal(found["ctr"], bidwise.load(run).predict(expected))


def test_a_column_that_text_has_twice_is_refused(run, tmp_path):
    names, _, lines = ads(500).write_csv().partition("\n")
    for name, twice in (("click", names.replace("bid", "click")), ("site", names.replace("bid", "site"))):
        (tmp_path / "ads.csv").write_text(f"{twice}\n{lines}")
        words = rf"ads\.csv must have every column once, found '{name}' twice"
        with pytest.raises(bidwise.InputError, match=words):
            train(tmp_path / "ads.csv", out=tmp_path / "run", **ROLES | {"bid": "age"})
    with pytest.raises(bidwise.InputError, match="found 'site' twice"):
        predict(run, tmp_path / "ads.csv", out=tmp_path / "out.csv")


@pytest.mark.parametrize("last", ["1,2,3,4,5,6,7,8,9,10", '"a'])
def test_text_that_is_no_table_is_said_to_be(run, tmp_path, last):
    (tmp_path / "ads.csv").write_text(f"{ads(500).write_csv()}{last}\n")
    for out in (None, tmp_path / "out.csv"):
        with pytest.raises(bidwise.InputError, match=r"ads\.csv cannot be read"):
            predict(run, tmp_path / "ads.csv", out=out)
    assert not (tmp_path / "out.csv").exists()


def test_files_of_a_folder_are_one_table(run, tmp_path, small_blocks):
    rows, folder = ads(10_000, 1), tmp_path / "days"
    for day in range(2):
        (folder / f"day={day}").mkdir(parents=True)
        rows[5000 * day : 5000 * (day + 1)].write_parquet(folder / f"day={day}" / "ads.parquet")
    expected = bidwise.load(run).predict(rows)
    for table in (folder, str(folder / "*" / "*.parquet")):
        assert predict(run, table, out=tmp_path / "out.csv") == 10_000
        found = pl.read_csv(tmp_path / "out.csv")
        np.testing.assert_allclose(found["ctr"], expected, rtol=1e-12)
        assert found["day"].to_list() == [0] * 5000 + [1] * 5000


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
