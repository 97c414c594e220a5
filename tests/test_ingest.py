"""Tables of any size: blocks, passes and mapped columns give what one look at the whole table would."""

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import bidwise
from bidwise.data import ad_table, blocks, counting, encoding, read_table, splits, store
from bidwise.data.ad_table import auction_ids, group_ids
from bidwise.data.blocks import Scratch
from bidwise.data.counting import Sketch, Tally, counted, found, seen
from bidwise.data.encoding import Categorical
from bidwise.data.splits import split
from bidwise.table import encode, passes
from bidwise.table.config import resolved
from bidwise.table.encode import prepare

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
        "encoder": (folder / "encoder.json").read_bytes(),
        "test": pl.read_parquet(folder / "test.parquet").write_csv(),
    }


@pytest.fixture
def small(monkeypatch):
    """Every stretch so short that a small table has many."""
    for module, name, value in (
        (blocks, "ROWS", 333),
        (splits, "SORTED", 500),
        (ad_table, "GROUPED", 200),
        (counting, "PENDING", 100),
        (counting, "SPILL", 300),
    ):
        monkeypatch.setattr(module, name, value)


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
    test = pl.read_parquet(tmp_path / "run" / "test.parquet")
    runs = test["auction"].rle().struct.unnest()
    assert runs["value"].is_unique().all()
    assert runs["len"].to_list() == [sizes[each] for each in runs["value"]]
    assert np.array_equal(store.column("test", "offsets"), np.append(0, runs["len"].cum_sum()))
    assert test["auction"].equals(whole.table["query"][test["row"].to_list()])
    assert sum(store.splits.values()) == ROWS
    oldest = whole.table.group_by("query").agg(pl.col("time").min())
    newest = test.join(oldest, left_on="auction", right_on="query")["time"].min()
    assert (oldest.filter(~pl.col("query").is_in(test["auction"].to_list()))["time"] <= newest).all()


def test_auctions_and_splits_on_the_disk_are_those_in_memory(tmp_path, small, monkeypatch):
    monkeypatch.setattr(blocks, "CHUNK", 101)
    random = np.random.default_rng(1)
    keys = pl.DataFrame({"a": random.integers(0, 300, 2000), "b": random.integers(0, 3, 2000)})
    ids = auction_ids(keys)
    assert np.array_equal(ids, group_ids(keys)[0])
    for auction in (None, ids):
        for time in (None, random.integers(0, 50, 2000), random.random(2000), np.arange(2000)):
            scratch = Scratch(tmp_path)
            there = split(2000, auction=auction, time=time, seed=5, array=scratch)
            monkeypatch.setattr(splits, "SORTED", 2**22)
            here = split(2000, auction=auction, time=time, seed=5)
            monkeypatch.setattr(splits, "SORTED", 500)
            for name, part in here.items():
                assert np.array_equal(part.rows, there[name].rows)
                assert (part.offsets is None) or np.array_equal(part.offsets, there[name].offsets)


def test_errors_name_the_row_of_the_table(tmp_path, small):
    bad = {
        "bid": (1234, -1.0, r"column 'bid', row 1234: found -1; a bid must be above 0"),
        "click": (3999, 2, r"column 'click', row 3999: found 2; a click must be 0 or 1"),
        "time": (700, None, r"column 'time', row 700: found no value; every ad needs a time"),
        "query": (2000, " ", r"column 'query', row 2000: found no value; every ad needs an auction"),
    }
    for column, (row, value, message) in bad.items():
        values = table_of()[column].to_list()
        values[row] = value
        table = table_of().with_columns(pl.Series(column, values))
        with pytest.raises(bidwise.InputError, match=message):
            prepare(table, config_of(), tmp_path / "run")
        assert not any((tmp_path / "run").glob("*"))
    with pytest.raises(bidwise.InputError, match=r"'site', row 0: found 's\d+', which is not a number"):
        prepare(table_of(), config_of(numeric=["site"]), tmp_path / "run")


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_errors_name_the_file_of_several_and_the_row_in_it(tmp_path, small, ending):
    table = table_of().with_columns(bid=pl.when(pl.int_range(pl.len()) == 1234).then(-1.0).otherwise(pl.col("bid")))
    folder = parts_of(table, tmp_path / "ads", ending)
    row = 1234 - sum(len(part) for part in np.array_split(np.arange(ROWS), 7)[:2])
    for place in (folder, folder / f"*{ending}"):
        with pytest.raises(bidwise.InputError, match=rf"part2\{ending}: column 'bid', row {row}: found -1"):
            prepare(place, config_of(), tmp_path / "run")


def test_types_of_text_that_change_after_the_sample(tmp_path, small, monkeypatch):
    monkeypatch.setattr(read_table, "SAMPLE", 100)
    table = table_of().with_columns(code=pl.Series([str(at % 50) for at in range(ROWS - 500)] + ["x"] * 500))
    table.write_csv(tmp_path / "ads.csv")
    text = (tmp_path / "ads.csv").read_text()
    (tmp_path / "ads.csv").write_text(text + "\n\n\n")  # empty lines at the end are no ads
    facts = prepare(tmp_path / "ads.csv", config_of(), tmp_path / "run").facts
    assert {column.name: column.use for column in facts.columns}["code"] == "categorical"
    assert sum(part.ads for part in facts.splits.values()) == ROWS


def test_a_full_disk_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(encode.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(bidwise.InputError, match=r"out must have 0\.6 MB free for 4,000 rows, found 0\.0 MB"):
        prepare(table_of(), config_of(), tmp_path / "run")


def test_bins_of_long_tables_are_those_of_a_sample_that_is_said(whole, tmp_path, monkeypatch):
    assert prepare(whole.path, config_of(), tmp_path / "all").facts.sampled is None
    monkeypatch.setattr(passes, "SAMPLE", 1000)
    facts = prepare(whole.path, config_of(), tmp_path / "some").facts
    assert facts.sampled == -(-facts.splits["train"].ads // 4)
    names = [file for file in whole.files if "clicks" in file or "offsets" in file or file == "test"]
    assert all(files_of(tmp_path / "some")[name] == whole.files[name] for name in names)


CUT = """
    import os, signal, sys
    from bidwise.data import blocks
    from bidwise.table.config import resolved
    from bidwise.table.encode import prepare
    blocks.ROWS = 333

    def cut(work, done, detail=""):
        if detail == {detail!r} and done > {share}:
            os.kill(os.getpid(), signal.SIGKILL)

    prepare({path!r}, resolved({sections!r}, {{"train.loss": "log_loss"}}), {out!r}, progress=cut)
"""


@pytest.mark.parametrize("detail", ["counting values", "writing ids"] if LONG else ["writing ids"])
def test_a_run_that_was_killed_resumes_to_the_same_bytes(whole, tmp_path, small, monkeypatch, detail):
    out = tmp_path / "run"
    told = {"path": str(whole.path), "sections": {"data": ROLES}, "out": str(out), "detail": detail, "share": 0.45}
    script = textwrap.dedent(CUT.format(**told))
    done = subprocess.run([sys.executable, "-c", script], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert (out / "unfinished").is_dir()
    assert not (out / "encoder.json").exists()
    written = len(list((out / "unfinished").glob("*.written")))
    encoded = []
    work = passes._encoded
    monkeypatch.setattr(passes, "_encoded", lambda *task: encoded.append(task[-1]) or work(*task))
    prepare(whole.path, config_of(), out)
    assert files_of(out) == whole.files
    assert not (out / "unfinished").exists()
    assert len(encoded) == -(-ROWS // 333) - written
    assert (written > 0) == (detail == "writing ids")


class Cut(Exception):
    """Ends a run where a kill would."""


@pytest.mark.parametrize("names", [1, 3, 9])
def test_a_run_cut_off_while_its_columns_get_their_names_keeps_them(whole, tmp_path, monkeypatch, names):
    name, left = store._named, [None] * names

    def cut(*words):
        if not left:
            raise Cut
        left.pop()
        name(*words)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_named", cut)
        with pytest.raises(Cut):
            prepare(whole.path, config_of(), tmp_path / "run")
    (tmp_path / "run" / "unfinished1234").mkdir()  # of another kill
    prepare(whole.path, config_of(), tmp_path / "run")
    assert files_of(tmp_path / "run") == whole.files
    assert not list((tmp_path / "run").glob("unfinished*"))


def test_what_other_rows_or_options_left_is_not_taken(whole, tmp_path, small):
    out = tmp_path / "run"
    sections = {"data": ROLES | {"bins": 5}}
    told = {"path": str(whole.path), "sections": sections, "out": str(out), "detail": "counting values", "share": 0.45}
    subprocess.run([sys.executable, "-c", textwrap.dedent(CUT.format(**told))], timeout=120)
    assert (out / "unfinished" / "columns.json").is_file()
    prepare(whole.path, config_of(), out)
    assert files_of(out) == whole.files


def test_values_are_counted_exactly_however_many_there_are(tmp_path):
    """Two million different values, most of which do not fit into memory at once; a Counter knows better."""
    random = np.random.default_rng(0)
    tally, sketch, count = Tally(), Sketch(), np.zeros(2_000_000, np.int64)
    for _ in range(6):
        values = random.integers(0, len(count), 500_000)
        count += np.bincount(values, minlength=len(count))
        column = pl.Series(values)
        tally.add(counted(column), tmp_path)
        sketch.add(seen(column))
    assert any(tmp_path.iterdir())  # memory did not hold them all
    words = tuple(tally.vocabulary(5))
    assert not any(tmp_path.iterdir())
    often = np.flatnonzero(count >= 5)
    assert words == tuple(sorted(map(str, often.tolist()), key=lambda word: (-count[int(word)], word)))
    assert sketch.values == pytest.approx((count > 0).sum(), rel=0.01)
    ids = Categorical("user", words).ids(pl.Series(np.arange(300_000)))
    place = {int(word): at + 2 for at, word in enumerate(words)}
    assert ids.tolist() == [place.get(each, 0) for each in range(300_000)]


def test_long_vocabularies_are_not_held_as_text(tmp_path, monkeypatch):
    """A table of many users whose last block is short: ids, and the file, are those of a short vocabulary."""
    random = np.random.default_rng(0)
    words = [f"user {each}" for each in random.permutation(3000)]
    column, some = Categorical("user", words), pl.Series([*words[:50], None, " user 7 ", "nobody", ""])
    expected = [*range(2, 52), 1, words.index("user 7") + 2, 0, 1]
    assert column.ids(some).tolist() == expected
    monkeypatch.setattr(encoding, "HELD", 1000)
    again = Categorical("user", words)
    assert again.ids(some).tolist() == expected
    assert "_words" not in again.__dict__
    assert again.ids(pl.Series(words * 3)).tolist() == [*range(2, 3002)] * 3


def test_few_values_are_counted_exactly():
    frame = pl.DataFrame(
        {"a": ["x", "y", None, " "], "b": [1.0, float("nan"), None, 2.0], "c": [[1], [2, 1], [], None]}
    )
    assert [(each.values, each.missing) for each in found(frame)] == [(3, 0.5), (2, 0.5), (2, 0.5)]


def test_ids_of_long_columns_are_those_of_short_ones():
    words = ("a", "7", "true", "2.5")
    column = Categorical("x", words)
    for values in (["a", "7.0", " a", "b", None, ""], [7.0, 2.5, float("nan"), 1.0], [True, False, None], [7, 8, None]):
        series = pl.Series(values * 2000)
        assert column.ids(series).tolist() == column.ids(series[: len(values)]).tolist() * 2000
    assert set(column.ids(pl.Series([None] * 9000))) == {1}


MEMORY = """
    import sys, threading, time
    import numpy as np, polars as pl
    from bidwise.table.config import resolved
    from bidwise.table.encode import prepare

    peak = 0
    def held():
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) // 1024
    def watch():
        global peak
        while True:
            peak = max(peak, held())
            time.sleep(0.02)
    threading.Thread(target=watch, daemon=True).start()
    folder, rows, values = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for part in range(rows // 1_000_000):
        random = np.random.default_rng(part)
        pl.DataFrame({
            "click": (random.random(1_000_000) < 0.1).astype(np.int8),
            "bid": np.exp(random.normal(size=1_000_000)),
            "query": random.integers(0, rows // 8, 1_000_000),
            "user_id": random.integers(0, values, 1_000_000),
            "price": random.normal(size=1_000_000),
        }).write_parquet(f"{folder}/{part:03d}.parquet", row_group_size=250_000)
    roles = {"click": "click", "bid": "bid", "auction": ["query"]}
    before, peak = held(), 0
    settings = {"train.loss": "log_loss"} | ({} if len(sys.argv) < 5 else {"data.min_count": int(sys.argv[4])})
    prepared = prepare(folder, resolved({"data": roles}, settings), folder + "/../run" + str(rows))
    print(peak - before, prepared.store.fields[0].values)
"""


def memory_of(folder, rows, values, *min_count):
    folder.mkdir(parents=True)
    script = [sys.executable, "-c", textwrap.dedent(MEMORY), *map(str, (folder, rows, values, *min_count))]
    said = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    return map(int, said.split())


@pytest.mark.skipif(not LONG, reason="takes minutes: BIDWISE_LONG=1")
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_table(tmp_path):
    """Auctions scattered over all of it, in MB beyond what the libraries take."""
    (few, _), (many, _) = (memory_of(tmp_path / str(rows), rows, 10_000) for rows in (4_000_000, 24_000_000))
    assert many < 700
    assert many < few + 250


@pytest.mark.skipif(not LONG, reason="takes minutes: BIDWISE_LONG=1")
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from /proc")
def test_a_column_of_twenty_million_values(tmp_path):
    held, values = memory_of(tmp_path / "ads", 50_000_000, 20_000_000)
    assert held < 1500
    assert values < 20_000


@pytest.mark.skipif(not LONG, reason="takes minutes: BIDWISE_LONG=1")
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from /proc")
def test_twenty_million_values_with_ids_of_their_own(tmp_path):
    """MB beyond what the libraries take; Python's own text alone would be 1,500 of them."""
    held, values = memory_of(tmp_path / "ads", 50_000_000, 20_000_000, 1)
    assert held < 3000
    assert values > 17_000_000  # of 40 million training rows
