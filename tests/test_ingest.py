"""Tables of any size: blocks, passes and mapped columns give what one look at the whole table would."""

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import bidwise
from bidwise.data import table_files
from bidwise.table import prepare as prepare_module
from bidwise.table.config import resolved
from bidwise.table.prepare import TEST, prepare

LONG = "BIDWISE_LONG" in os.environ
ROLES = {"click": "click", "bid": "bid", "auction": ["query"], "time": "time", "bag": ["topics"]}
ROWS = 4000


def table_of(rows=ROWS, seed=0):
    """Ads whose auctions are scattered over the table, with gaps, blanks and numbers as text."""
    random = np.random.default_rng(seed)
    auction = random.integers(0, rows // 5, rows)
    site = random.integers(0, 60, rows)
    return pl.DataFrame(
        {
            "query": [f"q{each}" for each in auction],
            "time": auction // 7 + random.integers(0, 3, rows),
            "click": (random.random(rows) < 0.05 + 0.3 * (site % 4 == 0)).astype(np.int8),
            "bid": np.exp(random.normal(size=rows)),
            "site": [None if each > 57 else f"s{each}" for each in site],
            "user_id": random.zipf(1.3, rows) % 5000,
            "price": [None if each < 0.1 else round(each, 3) for each in random.random(rows).tolist()],
            "topics": ["| ".join(f"t{t % 40}" for t in random.zipf(1.5, n)) for n in random.integers(0, 5, rows)],
        }
    )


def config_of(**data):
    return resolved({"data": ROLES | data}, {"train.loss": "log_loss"})


def files_of(folder):
    """Everything that training reads, by name: bytes of columns and encoder, rows of the test."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("store/*/*.npy"))}
    return files | {
        "encoder": (folder / "store" / "encoder.json").read_bytes(),
        "vocabulary": pl.read_parquet(folder / "store" / "vocabulary.parquet").write_csv(),
        "test": pl.read_parquet(folder / "store" / TEST).write_csv(),
    }


@pytest.fixture
def small(monkeypatch):
    """Blocks so short that a small table has many."""
    monkeypatch.setattr(table_files, "ROWS", 333)
    monkeypatch.setattr(table_files, "BYTES", 20_000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The store of one file, read as one block."""
    folder = tmp_path_factory.mktemp("ingest")
    table = table_of()
    table.write_parquet(folder / "ads.parquet")
    prepare(folder / "ads.parquet", config_of(), folder / "run")
    return SimpleNamespace(table=table, path=folder / "ads.parquet", files=files_of(folder / "run"))


def parts_of(table, folder, ending):
    folder.mkdir()
    for at, rows in enumerate(np.array_split(np.arange(len(table)), 7)):
        part = table[rows.tolist()]
        write = part.write_parquet if ending == ".parquet" else part.write_csv
        write(folder / f"part{at}{ending}")
    return folder


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_a_folder_of_parts_in_short_blocks_is_the_same_store_as_one_file(whole, tmp_path, small, ending):
    folder = parts_of(whole.table, tmp_path / "ads", ending)
    prepare(folder, config_of(), tmp_path / "run")
    assert files_of(tmp_path / "run") == whole.files
    assert not (tmp_path / "run" / "unfinished").exists()
    prepare(folder / f"*{ending}", config_of(), tmp_path / "run")  # the same rows: nothing to do
    with pytest.raises(bidwise.InputError, match="began with other rows"):
        prepare(whole.table[:-1], config_of(), tmp_path / "run")


def test_a_frame_and_a_query_are_the_same_store(whole, tmp_path, small):
    for name, table in {"frame": whole.table, "query": whole.table.lazy()}.items():
        prepare(table, config_of(), tmp_path / name)
        assert files_of(tmp_path / name) == whole.files


def test_scattered_auctions_are_together_and_on_one_side(whole, tmp_path, small):
    store = prepare(whole.path, config_of(), tmp_path / "run").store
    sizes = Counter(whole.table["query"])
    test = pl.read_parquet(store.folder / TEST)
    names = whole.table["query"][test["row"].to_list()]
    runs = test["auction"].rle().struct.unnest()
    assert runs["value"].is_unique().all()
    assert runs["len"].to_list() == [sizes[each] for each in names.filter(test["auction"].rle_id().is_first_distinct())]
    assert np.array_equal(store.column("test", "offsets"), np.append(0, runs["len"].cum_sum()))
    assert sum(store.splits.values()) == ROWS
    oldest = whole.table.group_by("query").agg(pl.col("time").min())
    newest = oldest.filter(pl.col("query").is_in(names.to_list()))["time"].min()
    assert (oldest.filter(~pl.col("query").is_in(names.to_list()))["time"] <= newest).all()


def test_errors_name_the_row_of_the_table(tmp_path, small):
    bad = {"bid": (1234, -1.0), "click": (3999, 2), "time": (700, None), "query": (2000, " ")}
    for column, (row, value) in bad.items():
        values = table_of()[column].to_list()
        values[row] = value
        table = table_of().with_columns(pl.Series(column, values))
        with pytest.raises(bidwise.InputError, match=rf"^table, row {row} \(rows count from 0\): column '{column}'"):
            prepare(table, config_of(), tmp_path / "run")
        assert not (tmp_path / "run").exists() or not any((tmp_path / "run").glob("*"))


def test_errors_name_the_file_of_several_and_the_line_in_it(tmp_path, small):
    table = table_of().with_columns(bid=pl.when(pl.int_range(pl.len()) == 1234).then(-1.0).otherwise(pl.col("bid")))
    folder = parts_of(table, tmp_path / "ads", ".csv")
    row = 1234 - sum(len(part) for part in np.array_split(np.arange(ROWS), 7)[:2])
    for place in (folder, folder / "*.csv"):
        with pytest.raises(bidwise.InputError, match=rf"part2\.csv, line {row + 2}: column 'bid': found -1"):
            prepare(place, config_of(), tmp_path / "run")


def test_bins_of_long_tables_are_those_of_a_sample_that_is_said(whole, tmp_path, monkeypatch):
    assert prepare(whole.path, config_of(), tmp_path / "all").facts.sampled is None
    monkeypatch.setattr(prepare_module, "SAMPLE", 1000)
    facts = prepare(whole.path, config_of(), tmp_path / "some").facts
    assert facts.sampled == -(-facts.splits["train"].ads // 4)
    names = [file for file in whole.files if "clicks" in file or "offsets" in file or file == "test"]
    assert all(files_of(tmp_path / "some")[name] == whole.files[name] for name in names)


CUT = """
    import os, signal
    from bidwise.data import table_files
    from bidwise.table.config import resolved
    from bidwise.table.prepare import prepare
    table_files.ROWS = 333

    def cut(work, done, detail=""):
        if detail == {detail!r} and done > 0.45:
            os.kill(os.getpid(), signal.SIGKILL)

    prepare({path!r}, resolved({{"data": {data!r}}}, {{"train.loss": "log_loss"}}), {out!r}, progress=cut)
"""


@pytest.mark.parametrize(("detail", "data"), [("writing ids", {}), ("counting values", {"bins": 5})])
def test_a_store_is_whole_or_absent(whole, tmp_path, detail, data):
    """What a killed call left, of these options or of others, is made again."""
    out = tmp_path / "run"
    script = CUT.format(path=str(whole.path), data=ROLES | data, out=str(out), detail=detail)
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=120).returncode == -signal.SIGKILL
    assert [path.name for path in out.iterdir()] == ["unfinished"]
    prepare(whole.path, config_of(), out)
    assert files_of(out) == whole.files
    assert sorted(path.name for path in out.iterdir()) == ["config.toml", "store"]
