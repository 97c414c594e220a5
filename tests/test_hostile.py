"""Files of strangers: a sample of the fuzzing, what it found, memory that stays bounded, and pages without scripts."""

import gzip
import io
import json
import os
import pickle
import re
import subprocess
import sys
import textwrap
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from markupsafe import Markup

import bidwise
from benchmarks.fuzz import HOSTILE, SHARES, Bench, check_page, fuzz, pwned, renamed, watched, words_of
from bidwise.bridges.scoring import Bins
from bidwise.claims import check_table_file
from bidwise.cli import main
from bidwise.cli.terminal import as_typed, say
from bidwise.data.read_table import read_table
from bidwise.data.store import Store, StoreWriter
from bidwise.plain_text import json_of, read_toml
from bidwise.report.build import KINDS, _page, read_run, runs_page, typed_result
from bidwise.report.sections import Run
from bidwise.run_folder import load, read_array, write_text
from bidwise.typed_json import from_json

ROOT = Path(__file__).parent.parent
SAMPLE = {"criteo": 200, "json": 1_000, "toml": 100, "run": 100, "store": 150, "checkpoint": 300, "model": 150}
SAMPLE |= {"table": 150, "scorer": 150, "report": 2}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench") / "files")


@pytest.mark.parametrize("target", SHARES)
def test_readers_take_a_file_or_refuse_it_in_words(bench, target):
    """Other inputs than those of the recorded runs (benchmarks/results/fuzz.log): the seed is another."""
    assert fuzz(bench, target, range(SAMPLE[target]), seed=7) == []
    assert sum(bench.outcomes[target].values()) == SAMPLE[target]


def test_the_watch_sees_what_is_forbidden(tmp_path):
    """Without this the test above would prove nothing."""
    for act in (
        lambda: pickle.loads(pickle.dumps(pwned)),
        lambda: (tmp_path.parent / "outside").write_text(""),
        lambda: os.symlink(tmp_path.parent / "outside", tmp_path / "link") or (tmp_path / "link").write_text(""),
        lambda: subprocess.run(["true"]),
    ):
        with pytest.raises(AssertionError), watched(tmp_path):
            act()


def test_the_recorded_runs_had_a_million_inputs_and_broke_no_rule():
    log = (ROOT / "benchmarks" / "results" / "fuzz.log").read_text()
    counts = re.findall(r"(?m)^(\w+) +([\d,]+) inputs +[\d.]+ s +\{.*\} +broken (\d+)$", log)
    assert {target for target, *_ in counts} == set(SHARES)
    assert {broken for *_, broken in counts} == {"0"}
    assert sum(int(count.replace(",", "")) for _, count, _ in counts) >= 1_000_000


# What the fuzzing found


def refuses(words, act, *arguments):
    with pytest.raises(bidwise.InputError, match=words):
        act(*arguments)


def test_json_is_neither_too_deep_nor_made_of_half_letters(tmp_path):
    for text in ("[" * 10**6, '{"a":' * 10**6, "[" * 900 + "]" * 900):
        with pytest.raises(ValueError, match="deep"):
            json_of(text)
    with pytest.raises(ValueError, match="surrogates"):
        json_of('["\\ud800"]')
    assert json_of('["\\ud83d\\ude00"]') == ["😀"]
    (tmp_path / "config.toml").write_text("a = " + "[" * 5000)
    refuses("config.toml must be .* deep", read_toml, tmp_path / "config.toml")
    (tmp_path / "config.toml").write_bytes(b"#" * 2**20 + b"\n")
    refuses("config.toml must be .* more than 1,048,576 bytes", read_toml, tmp_path / "config.toml")


def test_numbers_and_kinds_that_nothing_can_hold_are_refused():
    refuses("result must be of the kind float", from_json, float, 10**400)
    refuses(r"result\[0\] must be of the kind float", from_json, np.ndarray, ["1"])
    refuses(r"found kind \[\]", typed_result, {"kind": []})
    with pytest.raises(ValueError, match="shape"):
        Bins([[0.5]])


def test_a_run_folder_with_odd_files_beside_its_result_is_refused(tmp_path):
    (tmp_path / "result.json").write_text('{"kind": "fit", "epochs": 1}')
    for name, text in (("environment.json", "[1]"), ("metrics.jsonl", "3\n"), ("environment.json", '{"seconds": "x"}')):
        (tmp_path / name).write_text(text)
        refuses("must", lambda: runs_page([read_run(tmp_path)]))
        (tmp_path / name).unlink()


def test_a_store_names_no_file_outside_of_its_folder(tmp_path):
    (tmp_path / "store").mkdir()
    writer = StoreWriter(tmp_path / "store", {"train": 2, "valid": 2, "test": 2})
    for split in writer.splits:
        writer.column(split, "clicks")[:] = 1
    writer.finish(fields=[], vocabulary={}, about={})
    schema = tmp_path / "store" / "store.json"
    about = json.loads(schema.read_text())
    for key, changed in (
        ("files", about["files"] | {"../outside": {"bytes": 0, "crc32": "0"}}),
        ("files", about["files"] | {"/etc/passwd": {"bytes": 0, "crc32": "0"}}),
        ("files", {"train/clicks.npy": {"bytes": "many", "crc32": "0"}}),
        ("splits", {"../..": 2}),
        ("splits", {"train": -2}),
        ("fields", [{"name": "a", "values": 3, "more": 1}]),
    ):
        schema.write_text(json.dumps(about | {key: changed}))
        refuses(key, Store, tmp_path / "store")


def header(shape, kind="'|u1'"):
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        header("(10**12,)"),
        header("(1000000000000,)") + b"\0" * 8,
        header("(2,)", "'|O'") + pickle.dumps([pwned]),
        header("(((((((((", "'|u1'"),
        pickle.dumps(pwned),
        b"PK\3\4",
        b"",
    ],
    ids=range(7),
)
def test_arrays_are_numbers_that_the_file_holds(tmp_path, content):
    (tmp_path / "clicks.npy").write_bytes(content)
    refuses("clicks.npy must be a numpy file of numbers", read_array, tmp_path / "clicks.npy")


def test_links_that_a_stranger_left_are_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("kept")
    for part in ("result.json.part", "store/train/clicks.npy.part"):
        (tmp_path / "run" / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / part).symlink_to(mine)
    write_text(tmp_path / "run" / "result.json", "{}")
    StoreWriter(tmp_path / "run" / "store", {"train": 5}).column("train", "clicks")[:] = 1
    assert mine.read_text() == "kept"


class Evil:
    def __reduce__(self):
        return pwned, ()


def test_weights_run_no_code_and_unpack_to_no_more_than_the_file(tmp_path):
    torch.save({"model": torch.zeros(9)}, tmp_path / "good.pt")
    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Evil()))
    with zipfile.ZipFile(tmp_path / "good.pt") as old, zipfile.ZipFile(tmp_path / "bomb.pt", "w", 8) as new:
        for each in old.namelist():
            new.writestr(each, old.read(each))
    assert load(tmp_path / "good.pt")["model"].shape == (9,)
    for name in ("evil.pt", "old.pt", "bomb.pt"):
        with watched(tmp_path):
            refuses(f"{name} must be a file that bidwise wrote", load, tmp_path / name)


def test_a_checkpoint_of_something_else_is_named(tmp_path):
    from bidwise.data.ads import Ads
    from bidwise.models import LogisticRegression

    ads = Ads(torch.rand(64, 3), torch.ones(64), torch.ones(64))
    bidwise.fit(LogisticRegression(3), ads, epochs=1, out=tmp_path)
    (tmp_path / "result.json").unlink()
    for there in ([], {"model": {}}, {"model": LogisticRegression(3).state_dict(), "optimizer": 3}):
        torch.save(there, tmp_path / "checkpoint.pt")
        refuses("checkpoint of this training", lambda: bidwise.fit(LogisticRegression(3), ads, epochs=1, out=tmp_path))


def test_a_panic_of_the_table_reader_is_an_error_like_others(bench, tmp_path):
    forged(tmp_path / "one.parquet", rows=5000, groups=[3])
    refuses("one.parquet cannot be read", read_table, tmp_path / "one.parquet")


def test_names_cannot_speak_to_the_terminal(capsys):
    say("a\x1b]0;title\x07b\tc")
    assert capsys.readouterr().out == "a�]0;title�b\tc\n"
    assert as_typed(bidwise.InputError("found \x1b[2J"), None) == "found �[2J"


def test_the_shell_gets_one_line(bench, tmp_path, monkeypatch, capsys):
    (tmp_path / "result.json").write_text("[" * 10**5)
    forged(tmp_path / "billion.parquet", 10**9)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"click,bid\n1,1\n" * 99)[:-12])
    for words in (
        f"report {tmp_path} --out {tmp_path / 'page.html'}",
        f"predict {bench.trained} {tmp_path / 'billion.parquet'} --out {tmp_path / 'scored.csv'}",
        f"evaluate {tmp_path / 'cut.csv.gz'} --ctr bid --click click --bid bid",
        f"train {tmp_path / 'result.json'} --out {tmp_path / 'run'}",
    ):
        monkeypatch.setattr(sys, "argv", ["bidwise", *words.split()])
        with pytest.raises(SystemExit) as stop:
            main()
        said = capsys.readouterr().err
        assert (stop.value.code, said.count("\n"), said[:9]) == (2, 1, "bidwise: "), said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["billion.parquet", "cut.csv.gz", "result.json"]


# Memory


def varint(number):
    return (b"" if number < 128 else bytes([number & 127 | 128])) + (
        varint(number >> 7) if number >= 128 else bytes([number])
    )


def forged(path, rows, groups=(0, 1, 2, 3)):
    """A Parquet file of 1,000 rows whose footer claims others: in all (0), of its columns (1, 2), of its part (3)."""
    pl.DataFrame({"click": [0, 1] * 500, "bid": [1.0] * 1000}).write_parquet(made := io.BytesIO(), statistics=False)
    content = made.getvalue()
    length = int.from_bytes(content[-8:-4], "little")
    parts = content[-8 - length : -8].split(varint(2000))
    assert len(parts) == 5
    footer = parts[0] + b"".join(varint(2 * rows if at in groups else 2000) + part for at, part in enumerate(parts[1:]))
    path.write_bytes(content[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


BOUNDED = """
    import resource, sys
    from itertools import islice
    from pathlib import Path
    import bidwise
    from bidwise.data.read_table import read_table
    from bidwise.paper.raw_text import blocks, faults, parse
    from bidwise.run_folder import load, read_json

    def lines(path):
        for block in islice(blocks([path]), 3):
            skipped, samples = faults(block, parse(block.text).good)
        raise bidwise.InputError(f"{skipped}")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
    folder = Path(sys.argv[1])
    for name, read in {
        "line.csv": read_table, "line.txt": lines, "bomb.csv.gz": read_table, "bomb.txt.gz": lines,
        "billion.parquet": read_table, "parts.parquet": read_table, "deep.json": read_json, "huge.json": read_json,
    }.items():
        try:
            read(folder / name)
            print(name, "was read")
        except bidwise.InputError as error:
            print(name, "refused:", error)
    print("MB", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_memory_is_bounded_whatever_a_file_claims(tmp_path):
    """Lines of 10 GB, text that unpacks to 10 GB, a billion rows, a million levels: refused within a gigabyte."""
    for name in ("line.csv", "line.txt", "huge.json"):
        with (tmp_path / name).open("wb") as file:
            file.write(b"1")
            file.truncate(10 * 2**30)  # zeros that take no room
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"1,1\n" * 2**24, 6) * 160)
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"\n" * 2**26, 6) * 160)
    (tmp_path / "deep.json").write_text("[" * 10**6)
    forged(tmp_path / "billion.parquet", 10**9)
    forged(tmp_path / "parts.parquet", 10**9, groups=(1, 2, 3))
    command = [sys.executable, "-c", textwrap.dedent(BOUNDED), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert [line for line in said[:-1] if " refused: " not in line] == []
    assert int(said[-1].split()[1]) < 1_500, said


def test_honest_files_are_not_suspected(tmp_path):
    pl.DataFrame({"click": np.zeros(10**6, np.int8), "bid": np.ones(10**6)}).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("click,bid\n" + "0,1\n" * 10**6)
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress((tmp_path / "b.csv").read_bytes()) * 2)
    for name in ("a.parquet", "b.csv", "c.csv.gz"):
        check_table_file(tmp_path / name)


# Pages


def hostile_runs(bench, monkeypatch):
    """A run of every kind whose models, losses, columns and settings are scripts wherever a page takes them."""
    kinds = {tree["kind"]: tree for tree in sorted(bench.runs.values(), key=lambda tree: -len(json.dumps(tree)))}
    with monkeypatch.context() as patch:
        patch.setattr("bidwise.report.sections.drawn", lambda key, panel: Markup(""))
        for tree in kinds.values():
            for at, word in enumerate(sorted(words_of(tree))):
                changed = renamed(tree, word, f"{HOSTILE[at % 6]} {word}")
                with suppress(bidwise.InputError):
                    _page(hostile_run(changed), "")
                    tree = changed
            run = hostile_run(tree)
            yield run, runs_page([run])  # without figures


def hostile_run(tree):
    around = {"command": HOSTILE[0], "machine": HOSTILE[1]}, {"loss": HOSTILE[2]}, [{"epoch": 1, HOSTILE[3]: 0.5}]
    return Run(HOSTILE[1], typed_result(tree), *around)


def test_no_page_runs_a_script(bench, browser, tmp_path, monkeypatch):
    runs = list(hostile_runs(bench, monkeypatch))
    assert {run.result.kind for run, _ in runs} == set(KINDS)
    drawn = [runs_page([run]) for run, _ in runs if run.result.kind in ("evaluation", "train", "synthetic", "fit")]
    pages = [*(page for _, page in runs), *drawn]
    assert min(page.count("window.pwned") for page in pages) > 5
    tab, said = browser.new_page(), []
    tab.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    tab.on("request", lambda request: said.append(request.url))
    file = tmp_path / "page.html"
    for page in pages:
        check_page(page)
        file.write_text(page, encoding="utf-8")
        tab.goto(file.as_uri())
        assert tab.evaluate("[...document.querySelectorAll('*')].every(each => !each.onload && !each.onerror)")
        assert tab.evaluate("window.pwned") is None
    tab.close()
    assert set(said) <= {file.as_uri(), "data:,"}
