"""Raw Criteo text to a store: against plain loops, cut off and gone on, and every way raw data can be wrong."""

import contextlib
import gzip
import math
import random
import subprocess
import sys

import numpy as np
import pytest

from bidwise.checks import InputError
from bidwise.data.store import Store, split_sizes
from paper import __main__ as commands
from paper import prepare_criteo as criteo_prepare
from paper import raw_text as criteo_files
from paper import sorted_blocks as criteo_runs
from paper.prepare_criteo import WORK, prepare
from paper.raw_text import parse
from paper.sorted_blocks import Vocabulary

COLUMNS = ("features", "clicks", "truth")
GOOD = "\t".join(["1", *["5"] * 13, *["0a1b2c3d"] * 26])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Many blocks and ranges, so that small files have what large ones have."""
    monkeypatch.setattr(criteo_files, "BLOCK", 20_000)
    monkeypatch.setattr(criteo_files, "AT_ONCE", 7_000)
    monkeypatch.setattr(criteo_runs, "RANGE", 90)


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


def mixed(state):
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return state ^ state >> 31


def reference(lines, *, min_count=10, split=(8, 1, 1), seed=0, integers="winners"):
    """The preprocessing in loops: ids, clicks and vocabularies of each split."""
    start = mixed((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    order = sorted(range(len(lines)), key=lambda line: mixed((start + line * 0x9E3779B97F4A7C15) % 2**64))
    valid, test = (math.floor(len(lines) * share / sum(split) + 0.5) for share in split[1:])
    train = len(lines) - valid - test

    def token(column, word):
        if word == "" or column >= 13:
            return word
        x = int(word)
        if x <= 2:
            return str(x)
        return str(math.floor(math.log2(x))) if integers == "printed" else f"ln2:{math.floor(math.log(x) ** 2)}"

    rows = [[token(column, word) for column, word in enumerate(lines[line].split("\t")[1:])] for line in order]
    vocabularies = []
    for column in range(39):
        counts = {}
        for row in rows[:train]:
            counts[row[column]] = counts.get(row[column], 0) + 1
        counts.pop("", None)
        kept = [value for value in counts if column < 13 or counts[value] >= min_count]

        def place(value, counts=counts, column=column):
            number = int(value, 16) if column >= 13 else int(value.removeprefix("ln2:")) + 3 * value.startswith("ln2")
            return (-counts[value], number)

        vocabularies.append(sorted(kept, key=place))
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
    assert one.schema["files"] == other.schema["files"]
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
    store = prepare(write(tmp_path / "raw.txt", lines), tmp_path / "out", bids=None, **options)
    expected, vocabularies = reference(lines, **options)
    assert store.splits == {"train": 480, "valid": 60, "test": 60}
    for split, (ids, clicks) in expected.items():
        assert store.column(split, "features").tolist() == ids
        assert store.column(split, "clicks").tolist() == clicks
    assert store.cardinalities == [len(values) + 2 for values in vocabularies]
    for column, field in enumerate(store.fields):
        train = np.array(expected["train"][0])[:, column]
        assert store.schema["rare"][field.name] == np.mean(train == 0)
        assert store.schema["missing"][field.name] == np.mean(train == 1)
    assert store.schema["click_rate"]["train"] == np.mean(expected["train"][1])
    assert store.schema["skipped"]["lines"] == 0
    assert {path.name for path in store.folder.iterdir()} == {
        "config.toml", "store.json", "train", "valid", "test"
    }  # fmt: skip


def test_splits_have_exact_sizes():
    assert split_sizes(45_840_617, (8, 1, 1)) == [36_672_493, 4_584_062, 4_584_062]
    assert split_sizes(5, (8, 1, 1)) == [3, 1, 1]
    for rows in range(10, 60):
        assert sum(split_sizes(rows, (7, 2, 1))) == rows


def test_every_split_has_an_ad(tmp_path):
    with pytest.raises(InputError, match=r"raw must be enough for every part of the split 8,1,1, found 4"):
        prepare(write(tmp_path / "raw.txt", raw_lines(4)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_that_training_ads_lack_are_rare(tmp_path):
    lines = raw_lines(300)
    before = prepare(write(tmp_path / "raw.txt", lines), tmp_path / "before", bids=None)
    start = mixed(0x9E3779B97F4A7C15)
    order = sorted(range(300), key=lambda line: mixed((start + line * 0x9E3779B97F4A7C15) % 2**64))
    for line in order[240:]:  # validation and test ads get values of their own, many times
        lines[line] = "\t".join([*lines[line].split("\t")[:1], *["-77"] * 13, *["00000077"] * 26])
    after = prepare(write(tmp_path / "raw.txt", lines), tmp_path / "after", bids=None)
    assert after.fields == before.fields
    assert np.array_equal(after.column("train", "features"), before.column("train", "features"))
    assert not after.column("valid", "features").any()
    assert not after.column("test", "features").any()


def test_packing_files_blocks_and_line_ends_change_nothing(tmp_path, monkeypatch):
    lines = raw_lines(500)
    whole = prepare(write(tmp_path / "raw.txt", lines), tmp_path / "whole", bids=None)
    first, second = write(tmp_path / "a.txt", lines[:180], end="\r\n"), write(tmp_path / "b.gz", lines[180:])
    assert same(whole, prepare([first, second], tmp_path / "parts", bids=None))
    members = tmp_path / "members.txt"  # gzip without its ending, in several parts, filled up with zeros
    texts = ["\n".join(lines[:99]) + "\n", "\n".join(lines[99:]).upper()]  # no newline in the end, capital hex digits
    members.write_bytes(b"".join(gzip.compress(text.encode()) for text in texts) + b"\0" * 9)
    monkeypatch.setattr(criteo_files, "BLOCK", 2**24)
    monkeypatch.setattr(criteo_files, "AT_ONCE", 2**22)
    assert same(whole, prepare(members, tmp_path / "members", bids=None))


def cut_after(calls):
    """A progress callback that stops the run when it is called once more."""
    left = iter(range(calls))

    def progress(work, share):
        if next(left, None) is None:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("suffix", ["txt", "gz"])
def test_a_run_that_was_cut_off_goes_on(tmp_path, monkeypatch, suffix):
    raw = write(tmp_path / f"raw.{suffix}", raw_lines(700))
    np.save(tmp_path / f"raw.{suffix}.ctr.npy", np.linspace(0, 1, 700, dtype=np.float32))
    whole = prepare(raw, tmp_path / "whole")
    parsed = []
    monkeypatch.setattr(criteo_prepare, "parse", lambda text: (parsed.append(text), parse(text))[1])
    calls = []
    prepare(raw, tmp_path / "counted", progress=lambda work, share: calls.append(work))
    blocks = len(parsed)
    parsed.clear()
    assert blocks > 5
    assert len(set(calls)) > 5
    stops = 0
    for stop in range(len(calls)):  # the same folder, cut off later and later
        with contextlib.suppress(KeyboardInterrupt):
            prepare(raw, tmp_path / "out", progress=cut_after(stop))
            break
        stops += 1
    assert stops > blocks
    store = prepare(raw, tmp_path / "out")
    assert len(parsed) == blocks  # none twice
    assert same(whole, store)
    assert not (tmp_path / "out" / WORK).exists()


KILLED = """
import os, sys
from paper import raw_text as criteo_files
from paper.prepare_criteo import prepare
criteo_files.BLOCK = 20_000
prepare(sys.argv[1], sys.argv[2], progress=lambda work, share: share > 0.4 and os._exit(9))
"""


def test_a_process_that_was_killed_goes_on(tmp_path):
    raw = write(tmp_path / "raw.txt", raw_lines(700))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(raw), str(tmp_path / "out")], check=False)
    assert killed.returncode == 9
    assert list((tmp_path / "out" / WORK).glob("*.run"))
    assert same(prepare(raw, tmp_path / "whole"), prepare(raw, tmp_path / "out"))


def test_a_store_cut_off_while_files_got_their_names_goes_on(tmp_path, monkeypatch):
    raw = write(tmp_path / "raw.txt", raw_lines(100))
    whole = prepare(raw, tmp_path / "whole", bids=None)
    named = []

    def twice(folder, name):
        if len(named) == 2:
            raise KeyboardInterrupt
        named.append(name)
        (folder / f"{name}.part").replace(folder / name)

    with monkeypatch.context() as patch:
        patch.setattr("bidwise.data.store._named", twice)
        with pytest.raises(KeyboardInterrupt):
            prepare(raw, tmp_path / "out", bids=None)
    with pytest.raises(InputError, match=r"found no store\.json"):
        Store(tmp_path / "out")
    assert same(whole, prepare(raw, tmp_path / "out", bids=None))


def test_a_finished_store_is_left_alone_and_other_options_are_refused(tmp_path):
    raw = write(tmp_path / "raw.txt", raw_lines(100))
    prepare(raw, tmp_path / "out", bids=None)
    stamp = (tmp_path / "out" / "store.json").stat().st_mtime_ns
    prepare(raw, tmp_path / "out", bids=None)
    assert (tmp_path / "out" / "store.json").stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match="min_count = 10 there and 9 here"):
        prepare(raw, tmp_path / "out", min_count=9, bids=None)
    write(raw, raw_lines(100, seed=1))
    with pytest.raises(InputError, match="raw_ends"):
        prepare(raw, tmp_path / "out", bids=None)


def test_truth_stays_with_its_line(tmp_path):
    lines = raw_lines(400)
    truth = np.random.default_rng(0).random(400).astype(np.float32)
    lines[17] = "not a line"
    for line in range(400):
        if line != 17:  # the click tells whether the CTR is above one half
            lines[line] = str(int(truth[line] > 0.5)) + lines[line][1:]
    raw = [write(tmp_path / "a.txt", lines[:150]), write(tmp_path / "b.gz", lines[150:])]
    np.save(tmp_path / "a.txt.ctr.npy", truth[:150])
    np.save(tmp_path / "b.gz.ctr.npy", truth[150:])
    store = prepare(raw, tmp_path / "out", on_error="skip", bids=None)
    for split in store.splits:
        assert np.array_equal(store.column(split, "truth") > 0.5, store.column(split, "clicks") == 1)
    found = np.concatenate([store.column(split, "truth") for split in store.splits])
    assert np.array_equal(np.sort(found), np.sort(np.delete(truth, 17)))


FAULTY = {
    "fields": (GOOD + "\t1", "expected 40 fields between tabs.*found 41"),
    "no label": (GOOD[2:], "expected 40 fields.*found 39 .is it test.txt"),
    "empty": ("", "expected 40 fields.*found 1"),
    "label": ("2" + GOOD[1:], "expected the label 0 or 1, found '2'"),
    "wide label": ("01" + GOOD[1:], "expected the label 0 or 1, found '01'"),
    "float": (GOOD.replace("5", "1.5", 1), r"expected I1 to be empty or a whole number below 2\^31, found '1\.5'"),
    "hex integer": (GOOD.replace("5", "1f", 1), "expected I1"),
    "minus": (GOOD.replace("5", "-", 1), "expected I1"),
    "minus inside": (GOOD.replace("5", "1-2", 1), "expected I1"),
    "plus": (GOOD.replace("5", "+1", 1), "expected I1"),
    "large": (GOOD.replace("5", "2147483648", 1), "expected I1"),
    "very long": (GOOD.replace("5", "9" * 5000, 1), r"expected I1 .* found '9{24}\.\.\.'"),
    "last integer": ("\t".join(["0", *["5"] * 12, "x", *[""] * 26]), "expected I13"),
    "short category": (GOOD.replace("0a1b2c3d", "0a1b2c3", 1), "expected C1 to be empty or 8 hex digits, found '0a"),
    "long category": (GOOD.replace("0a1b2c3d", "0a1b2c3d4", 1), "expected C1"),
    "no hex": (GOOD[:-1] + "g", "expected C26 to be empty or 8 hex digits, found '0a1b2c3g'"),
    "return inside": (GOOD.replace("0a1b2c3d", "0a1b2c3\r", 1), "expected C1"),
    "not utf-8": (GOOD[:-1] + "ÿ", "expected C26"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTY)
def test_a_malformed_line_is_named(tmp_path, kind):
    line, words = FAULTY[kind]
    lines = raw_lines(200)
    lines[140] = line
    other = write(tmp_path / "other.txt", raw_lines(30))
    raw = tmp_path / "raw.txt"
    raw.write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    with pytest.raises(InputError, match=rf"raw\.txt:141: {words}"):
        prepare([other, raw], tmp_path / "out", bids=None)
    assert not (tmp_path / "out").exists()
    store = prepare([other, raw], tmp_path / "out", on_error="skip", bids=None)
    assert store.schema["rows"] == 229
    assert store.schema["skipped"]["lines"] == 1
    assert store.schema["skipped"]["samples"][0].startswith("raw.txt:141: expected")


def test_skipped_lines_are_counted_by_kind_and_leave_the_others_as_they_were(tmp_path):
    lines = raw_lines(400)
    bad = {3: "", 5: "x", 77: "7" + GOOD[1:], 200: GOOD[:-1], 399: GOOD.replace("5", "?", 1)}
    marked = [bad.get(line, text) for line, text in enumerate(lines)]
    store = prepare(write(tmp_path / "raw.txt", marked), tmp_path / "out", on_error="skip", bids=None)
    assert store.schema["skipped"]["lines"] == 5
    assert store.schema["skipped"]["reasons"] == {"category": 1, "fields": 2, "integer": 1, "label": 1}
    assert store.schema["skipped"]["samples"][0].startswith("raw.txt:4: expected 40 fields")
    assert sum(store.splits.values()) == 395
    with pytest.raises(InputError, match="found 2 malformed ones and no other"):
        prepare(write(tmp_path / "bad.txt", ["a", "b"]), tmp_path / "none", on_error="skip", bids=None)


@pytest.mark.parametrize("size", [0, 1, 2, 50, 3000])
@pytest.mark.parametrize("kind", [np.uint32, np.int32])
def test_a_vocabulary_finds_its_values_and_no_others(size, kind):
    draw = np.random.default_rng(size)
    span = np.iinfo(kind)
    everything = np.unique(np.append(draw.integers(span.min, span.max, 2 * size, kind), np.arange(-5, 5).astype(kind)))
    draw.shuffle(everything)
    values = everything[:size] if 0 in everything[:size] or not size else np.append(everything[: size - 1], kind(0))
    place = {value: number + 2 for number, value in enumerate(values.tolist())}
    tokens, missing = np.tile(everything, 2), np.arange(2 * len(everything)) >= len(everything)
    found = Vocabulary(values, 0, 0).ids(tokens, missing)
    assert found[~missing].tolist() == [place.get(token, 0) for token in everything.tolist()]
    assert (found[missing] == 1).all()


def test_integers_of_every_length_are_read():
    draw = random.Random(0)
    numbers = [sign * draw.randrange(10 ** (digits - 1), 10**digits) for digits in range(1, 10) for sign in (1, -1)]
    numbers += [0, 2**31 - 1, -(2**31) + 1]
    text = "".join("\t".join(["0", *[str(number)] * 13, *[""] * 26]) + "\n" for number in numbers)
    found = parse(text.encode())
    assert found.good.all()
    assert (found.integers == numbers).all()
    assert found.missing[13:].all()


def test_files_that_cannot_be_used_are_named(tmp_path):
    lines = raw_lines(2000)
    raw, packed = write(tmp_path / "raw.txt", lines), write(tmp_path / "raw.gz", lines)
    whole = packed.read_bytes()
    out = tmp_path / "out"

    def refused(files, words, **options):
        with pytest.raises(InputError, match=words) as error:
            prepare(files, options.pop("out", out), **({"bids": None} | options))
        assert "\n" not in str(error.value)
        assert not out.exists()

    refused([], "at least one file")
    refused(tmp_path / "none.txt", "files that exist, found no .*none.txt")
    refused(tmp_path, "raw must be files, found the folder")
    refused([raw, tmp_path / "." / "raw.txt"], "twice")
    refused(raw, "out must be a folder, found the file .*; it is the last argument", out=raw)
    refused(tmp_path, "found the folder", out=tmp_path / "inside")
    refused(raw, "with other files in it", out=tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.toml.part").touch()  # of a run that was killed
    (tmp_path / "own" / ".lock").touch()
    prepare(raw, tmp_path / "own", bids=None)
    (tmp_path / "empty").write_bytes(b"")
    refused([raw, tmp_path / "empty"], "the empty .*empty")
    (tmp_path / "hollow.gz").write_bytes(gzip.compress(b""))
    refused(tmp_path / "hollow.gz", "the empty")
    packed.write_bytes(whole[: len(whole) // 2])
    refused(packed, r"raw\.gz must be a whole gzip file, found one that is cut off after [\d,]+ bytes")
    packed.write_bytes(whole[: len(whole) // 2] + b"garbage" * 9 + whole[len(whole) // 2 + 63 :])
    refused(packed, r"raw\.gz must be a whole gzip file, found damage after")
    packed.write_bytes(whole + b"garbage")
    refused(packed, "found damage after")
    (tmp_path / "raw.zip").write_bytes(b"PK\3\4" + whole)
    refused(tmp_path / "raw.zip", "found a zip archive; unpack it first")
    (tmp_path / "one").write_bytes(b"x" * 50_000)
    refused(tmp_path / "one", "without an end of line")
    refused(raw, "integers must be one of winners, printed", integers="winner")
    refused(raw, "on_error must be one of", on_error="ignore")
    refused(raw, "split must be three shares such as 8,1,1", split=(8, 2))
    refused(raw, "split must be at least 1", split=(8, 2, 0))
    refused(raw, "min_count must be at least 1", min_count=0)


def test_truth_that_does_not_fit_is_refused(tmp_path):
    raw = [write(tmp_path / f"{name}.txt", raw_lines(50)) for name in "ab"]
    beside = [tmp_path / f"{name}.txt.ctr.npy" for name in "ab"]

    def refused(words):
        with pytest.raises(InputError, match=words):
            prepare(raw, tmp_path / "out", bids=None)
        assert not (tmp_path / "out").exists()

    np.save(beside[0], np.full(50, 0.5, np.float32))
    refused(r"all raw files must have their CTR beside them or none, found .*a\.txt\.ctr\.npy but no .*b\.txt")
    for size in (49, 51):
        np.save(beside[1], np.full(size, 0.5, np.float32))
        refused(f"one CTR for each of the 50 lines of .*b.txt, found {size}")
    np.save(beside[1], np.append(np.full(49, 0.5, np.float32), np.float32(1.5)))
    refused("between 0 and 1, found 1.5 for line 50")
    np.save(beside[1], np.append(np.full(49, 0.5, np.float32), np.float32("nan")))
    refused("between 0 and 1, found nan for line 50")
    np.save(beside[1], np.zeros((50, 1), np.float32))
    refused("floating point of shape")
    beside[1].write_bytes(b"nothing")
    refused("must be a numpy file")


def test_the_command_says_what_it_made_and_what_comes_next(tmp_path, capsys):
    lines = raw_lines(200)
    lines[1] = "bad"
    raw, out = write(tmp_path / "raw.txt", lines), tmp_path / "out"
    commands.prepare(raw, out, on_error="skip")
    shown = capsys.readouterr().out
    for words in ("199 ads", "train           159 ads, click rate 0.", "1 malformed lines", "bids deepfm: mean"):
        assert words in shown
    assert f"python -m paper criteo --data {out} --models deepfm --repeats 3 --out runs/criteo" in shown
    commands.prepare(raw, out, on_error="skip")
    assert "is complete already" in capsys.readouterr().out
    with pytest.raises(InputError, match="bids = 'deepfm' there and 'none' here"):
        commands.prepare(raw, out, on_error="skip", bids="none")
    with pytest.raises(InputError, match="RAW and OUT are needed"):
        commands.prepare(raw)
    with pytest.raises(InputError, match="split must be whole numbers such as 8,1,1"):
        commands.prepare(raw, out, split="8:1:1")
