"""Raw Criteo text to a store: against plain loops, after a kill, and every way raw data can be wrong."""

import gzip
import math
import random
import subprocess
import sys

import numpy as np
import pytest
from paper_helpers import paper_command

from bidwise.checks import InputError
from bidwise.data import table_files
from paper.prepare_criteo import Options, prepare

COLUMNS = ("features", "clicks", "truth")
GOOD = "\t".join(["1", *["5"] * 13, *["0a1b2c3d"] * 26])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Many blocks, so that small files have what large ones have."""
    monkeypatch.setattr(table_files, "BYTES", 20_000)


def raw_lines(count, seed=0):
    """Lines with frequent, rare and missing values, negative and large integers."""
    draw = random.Random(seed)
    names = [[f"{draw.getrandbits(32):08x}" for _ in range(size)] for size in [3, 20, 300] * 9]
    lines = []
    for _ in range(count):
        integers = [str(draw.choice([-2, -1, 0, 1, 2, 3, 4, 7, 8, int(10 ** draw.uniform(0, 9))])) for _ in range(13)]
        categories = [names[column][min(int(draw.expovariate(0.2)), len(names[column]) - 1)] for column in range(26)]
        values = ["" if draw.random() < 0.1 else value for value in (*integers, *categories)]
        lines.append("\t".join([str(int(draw.random() < 0.25)), *values]))
    return lines


def write(path, lines, end="\n"):
    text = (end.join(lines) + end).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def shuffled(rows, seed=0):
    """The lines in the order of the ads."""
    return np.argsort(np.random.default_rng(seed).permutation(rows)).tolist()


def reference(lines, *, min_count=10, seed=0, integers="winners"):
    """The preprocessing in loops: ids, clicks and vocabularies of each split."""
    order = shuffled(len(lines), seed)
    valid = test = math.floor(len(lines) / 10 + 0.5)
    train = len(lines) - valid - test

    def token(column, word):
        if word == "" or column >= 13:
            return word
        x = int(word)
        if x <= 2:
            return str(x)
        return str(math.floor(math.log2(x)) if integers == "printed" else 3 + math.floor(math.log(x) ** 2))

    rows = [[token(column, word) for column, word in enumerate(lines[line].split("\t")[1:])] for line in order]
    vocabularies = []
    for column in range(39):
        counts = {}
        for row in rows[:train]:
            counts[row[column]] = counts.get(row[column], 0) + 1
        counts.pop("", None)
        kept = [value for value in counts if column < 13 or counts[value] >= min_count]
        vocabularies.append(sorted(kept, key=lambda value, counts=counts: (-counts[value], value)))
    found = {}
    for name, first, last in (("train", 0, train), ("valid", train, train + valid), ("test", train + valid, len(rows))):
        ids = [
            [
                1 if word == "" else vocabulary.index(word) + 2 if word in vocabulary else 0
                for word, vocabulary in zip(row, vocabularies, strict=True)
            ]
            for row in rows[first:last]
        ]
        found[name] = ids, [int(lines[line][0]) for line in order[first:last]]
    return found, vocabularies


def same(one, other):
    """Whether two stores have the same bytes."""
    assert one.splits == other.splits
    return all(
        np.array_equal(one.column(split, name), other.column(split, name))
        for split in one.splits
        for name in one.columns(split)
    )


@pytest.mark.parametrize(("integers", "min_count", "seed"), [("winners", 10, 0), ("printed", 3, 7)])
def test_a_store_is_what_plain_loops_make(tmp_path, integers, min_count, seed):
    lines = raw_lines(600)
    options = {"integers": integers, "min_count": min_count, "seed": seed}
    store = prepare(write(tmp_path / "raw.txt", lines), tmp_path / "out", Options(**options))
    expected, vocabularies = reference(lines, **options)
    assert store.splits == {"train": 480, "valid": 60, "test": 60}
    for split, (ids, clicks) in expected.items():
        assert store.column(split, "features").tolist() == ids
        assert store.column(split, "clicks").tolist() == clicks
    assert store.cardinalities == [len(values) + 2 for values in vocabularies]
    assert store.schema["click_rate"]["train"] == np.mean(expected["train"][1])
    assert {path.name for path in store.folder.iterdir()} == {
        "config.toml", "store.json", "train", "valid", "test"
    }  # fmt: skip


def test_every_split_has_an_ad(tmp_path):
    with pytest.raises(InputError, match=r"raw must be enough for every part of the split 8:1:1, found 4"):
        prepare(write(tmp_path / "raw.txt", raw_lines(4)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_that_training_ads_lack_are_rare(tmp_path):
    lines = raw_lines(300)
    before = prepare(write(tmp_path / "raw.txt", lines), tmp_path / "before")
    for line in shuffled(300)[240:]:  # validation and test ads get values of their own, many times
        lines[line] = "\t".join([*lines[line].split("\t")[:1], *["-77"] * 13, *["00000077"] * 26])
    after = prepare(write(tmp_path / "raw.txt", lines), tmp_path / "after")
    assert after.fields == before.fields
    assert np.array_equal(after.column("train", "features"), before.column("train", "features"))
    assert not after.column("valid", "features").any()
    assert not after.column("test", "features").any()


def test_packing_files_blocks_and_line_ends_change_nothing(tmp_path, monkeypatch):
    lines = raw_lines(500)
    whole = prepare(write(tmp_path / "raw.txt", lines), tmp_path / "whole")
    assert same(whole, prepare(write(tmp_path / "crlf.txt", lines, end="\r\n"), tmp_path / "crlf"))
    members = tmp_path / "members.txt"  # gzip without its ending, in several parts, filled up with zeros
    texts = ["\n".join(lines[:99]) + "\n", "\n".join(lines[99:]).upper()]  # no newline in the end, capital hex digits
    members.write_bytes(b"".join(gzip.compress(text.encode()) for text in texts) + b"\0" * 9)
    monkeypatch.setattr(table_files, "BYTES", 2**24)
    assert same(whole, prepare(members, tmp_path / "members"))


KILLED = """
import os, sys
from bidwise.data import table_files
from paper.prepare_criteo import prepare
table_files.BYTES = 20_000
prepare(sys.argv[1], sys.argv[2], progress=lambda work, share: work == sys.argv[3] and share > 0.4 and os._exit(9))
"""


@pytest.mark.parametrize("work", ["Counting values", "Writing ads", "Drawing bids"])
def test_after_a_kill_the_same_command_makes_the_same_store(tmp_path, work):
    raw = write(tmp_path / "raw.txt", raw_lines(700))
    words = [sys.executable, "-c", KILLED, str(raw), str(tmp_path / "out"), work]
    assert subprocess.run(words, check=False).returncode == 9
    assert same(prepare(raw, tmp_path / "whole"), prepare(raw, tmp_path / "out"))


def test_a_finished_store_is_left_alone_and_other_options_are_refused(tmp_path):
    raw = write(tmp_path / "raw.txt", raw_lines(100))
    prepare(raw, tmp_path / "out")
    stamp = (tmp_path / "out" / "store.json").stat().st_mtime_ns
    prepare(raw, tmp_path / "out")
    assert (tmp_path / "out" / "store.json").stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match="min_count = 10 there and 9 here"):
        prepare(raw, tmp_path / "out", Options(min_count=9))
    write(raw, raw_lines(100, seed=1))
    with pytest.raises(InputError, match="raw_checksum"):
        prepare(raw, tmp_path / "out")


def test_truth_stays_with_its_line(tmp_path):
    lines = raw_lines(400)
    truth = np.random.default_rng(0).random(400).astype(np.float32)
    for line in range(400):  # the click tells whether the CTR is above one half
        lines[line] = str(int(truth[line] > 0.5)) + lines[line][1:]
    raw = write(tmp_path / "raw.gz", lines)
    np.save(tmp_path / "raw.gz.ctr.npy", truth)
    store = prepare(raw, tmp_path / "out")
    for split in store.splits:
        assert np.array_equal(store.column(split, "truth") > 0.5, store.column(split, "clicks") == 1)
    found = np.concatenate([store.column(split, "truth") for split in store.splits])
    assert np.array_equal(np.sort(found), np.sort(truth))


FAULTY = {
    "fields": (GOOD + "\t1", "must have 40 cells.*found 41"),
    "no label": (GOOD[2:], "must have 40 cells.*found 39"),
    "empty": ("", "must have 40 cells.*found an empty line"),
    "label": ("2" + GOOD[1:], "label must be 0 or 1, found '2'"),
    "label missing": (GOOD[1:], "label must be 0 or 1, found ''"),
    "float": (GOOD.replace("5", "1.5", 1), r"I1 must be empty or a whole number below 2\^31, found '1\.5'"),
    "hex integer": (GOOD.replace("5", "1f", 1), "I1 must be"),
    "large": (GOOD.replace("5", "2147483648", 1), "I1 must be"),
    "very long": (GOOD.replace("5", "9" * 5000, 1), r"I1 must be .* found '9{24}'\.\.\."),
    "last integer": ("\t".join(["0", *["5"] * 12, "x", *[""] * 26]), "I13 must be"),
    "short category": (GOOD.replace("0a1b2c3d", "0a1b2c3", 1), "C1 must be empty or 8 hex digits, found '0a"),
    "long category": (GOOD.replace("0a1b2c3d", "0a1b2c3d4", 1), "C1 must be"),
    "no hex": (GOOD[:-1] + "g", "C26 must be empty or 8 hex digits, found '0a1b2c3g'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTY)
def test_a_malformed_line_is_named(tmp_path, kind):
    line, words = FAULTY[kind]
    lines = raw_lines(200)
    lines[140] = line
    raw = tmp_path / "raw.txt"
    raw.write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    with pytest.raises(InputError, match=rf"raw\.txt, line 141: {words}"):
        prepare(raw, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_that_cannot_be_used_are_named(tmp_path):
    lines = raw_lines(2000)
    raw, packed = write(tmp_path / "raw.txt", lines), write(tmp_path / "raw.gz", lines)
    whole, out = packed.read_bytes(), tmp_path / "out"

    def refused(file, words, out=out):
        with pytest.raises(InputError, match=words) as error:
            prepare(file, out)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out").exists()

    refused(tmp_path / "none.txt", "a file that exists, found no file .*none.txt")
    refused(tmp_path, "a file that exists")
    refused(raw, "out must be a folder, found the file", raw)
    (tmp_path / "empty").write_bytes(b"")
    refused(tmp_path / "empty", "found an empty file")
    for damaged in (whole[: len(whole) // 2], whole[:-2000] + b"garbage" * 9 + whole[-1937:], whole + b"garbage"):
        packed.write_bytes(damaged)
        refused(packed, "raw.gz")
    refused(write(tmp_path / "test.txt", [line[2:] for line in lines]), "is it test.txt, which has no labels")
    beside = tmp_path / "raw.txt.ctr.npy"
    for size in (1999, 2001):
        np.save(beside, np.full(size, 0.5, np.float32))
        refused(raw, f"raw.txt.ctr.npy must have one CTR for each line of raw.txt, found {size:,} for")
    for wrong in (1.5, np.nan):
        np.save(beside, np.append(np.full(1999, 0.5, np.float32), np.float32(wrong)))
        refused(raw, "between 0 and 1")
    beside.write_bytes(b"nothing")
    refused(raw, "must be a numpy file")


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"integers": "winner"}, "integers"),
        ({"min_count": 0}, "min_count"),
        ({"seed": -1}, "seed"),
    ],
)
def test_options_that_cannot_be_used_are_named(options, argument):
    with pytest.raises(InputError) as error:
        Options(**options)
    assert error.value.argument == argument


def test_the_command_prints_what_it_made_and_what_comes_next(tmp_path, monkeypatch, capsys):
    raw, out = write(tmp_path / "raw.txt", raw_lines(200)), tmp_path / "out"
    assert paper_command(monkeypatch, "prepare", raw, out, "--bid-noise", "0") == 0
    shown = capsys.readouterr().out
    for words in ("200 ads", "train           160 ads, click rate 0.", f"--data {out}"):
        assert words in shown
    assert np.load(out / "train" / "bids.npy").max() == pytest.approx(math.e)  # the paper's, without noise
    assert paper_command(monkeypatch, "prepare", raw, out) == 2
    assert "bid_noise = 0.0 there and 0.1 here" in capsys.readouterr().err
