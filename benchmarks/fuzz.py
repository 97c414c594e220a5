"""Files as a stranger would make them, by the hundred thousand: every reader takes them or refuses them in words.

Inputs are drawn by a seed from grammars and from mutations of files that bidwise wrote. Whatever a reader is given, it
returns or raises InputError, within seconds and a bounded memory; it runs nothing, connects to nothing, and writes
nothing outside of its folder, which Python's audit events tell. An input is drawn again by its number:
``--target store --first 17 --inputs 1``.

    python -m benchmarks.fuzz --inputs 1000000 --seed 0
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import bidwise
from benchmarks.harness import RESULTS, Machine
from bidwise.bridges.scoring import Scorer
from bidwise.data.ad_table import read_ads
from bidwise.data.ads import Ads
from bidwise.data.blocks import blocks_of
from bidwise.data.counting import found
from bidwise.data.encoding import inferred
from bidwise.data.store import Field, Store, StoreWriter
from bidwise.models import LogisticRegression, SparseLogisticRegression
from bidwise.paper.raw_text import Block, blocks, fault, faults, parse
from bidwise.plain_text import read_json
from bidwise.report.build import read_run, runs_page
from bidwise.run_folder import load as load_tensors
from bidwise.run_folder import open_folder, result_json
from bidwise.table import train
from bidwise.table.config import read_toml, resolved
from bidwise.table.grid import read_grid
from bidwise.table.results import Chosen, MeanScores, Scores, Setting, SweepResult, TrialResult

SHARES = {  # of all inputs, by how long they take: a page takes a thousand times as long as a word of JSON
    "json": 0.775,
    "criteo": 0.10,
    "toml": 0.05,
    "run": 0.015,
    "store": 0.012,
    "checkpoint": 0.02,
    "model": 0.01,
    "table": 0.013,
    "scorer": 0.00485,
    "report": 0.00015,
}
SECONDS = 20  # of a core, for one input: others may want the machine
MEMORY = 12 * 2**30  # addresses of this process
SCRIPT = "window.pwned=1"
HOSTILE = [
    f"<script>{SCRIPT}</script>",
    f'"><img src=x onerror={SCRIPT}>',
    f"' onmouseover='{SCRIPT}",
    f"</svg></style></title><script>{SCRIPT}</script>",
    f"javascript:{SCRIPT}",
    f"<svg/onload={SCRIPT}>",
    "<!--",
    "]]>",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{1}{0}$",
    "a\0b\x1b[31m\r",
    "\u202eetalp",
    "\ud800",
    "l" * 5_000,
    "../../../../tmp/outside",
    "/etc/passwd",
    "~/.bashrc",
    "http://localhost:1/a.csv",
    "",
    " ",
    "__class__",
    "%s%n{0}",
]
ODD = [None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 1e308, -1e-320, float("nan"), float("inf"), [], {}]
TOKENS = [
    b"\0",
    b"\xff\xfe",
    b"\t",
    b"\n",
    b"\r\n",
    b",",
    b'"',
    b"1e999",
    b"-",
    b"9" * 50,
    b"[",
    b"{",
    b"\\u",
    b"\xef\xbb\xbf",
]
BAD_TAGS = {"script", "img", "iframe", "object", "embed", "base", "form", "input", "a href"}


class Broken(AssertionError):
    """A rule that an input broke."""


# What may not happen


_watched: list[Path] = []  # the folder that may be written to, while a reader runs
_events: list[str] = []
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "socket.connect",
    "pickle.find_class",
)
WRITES = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "os.truncate",
    "os.chmod",
    "shutil.rmtree",
)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    if event in FORBIDDEN:
        _events.append(f"{event}{arguments!r:.200}")
    elif event in WRITES or (event == "open" and _writes(*arguments)):
        path = arguments[0]
        if isinstance(path, str | bytes | os.PathLike) and not _inside(os.fsdecode(path)):
            _events.append(f"{event} {path!r}")


def _writes(path: Any, mode: Any, flags: Any) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def _inside(path: str) -> bool:
    real = os.path.realpath(path)
    caches = ("__pycache__", "matplotlib")  # of Python and of fonts
    return real.startswith((str(_watched[0].resolve()) + os.sep, "/dev/")) or any(each in real for each in caches)


def pwned() -> None:
    """What a pickle would call."""
    _events.append("code from a file ran")


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Raise where code in here runs a program, connects, unpickles, or writes outside of the folder."""
    _events.clear()
    _watched.append(folder)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        _watched.clear()
    if _events:
        raise Broken("; ".join(_events))


def _late(*_: object) -> None:
    raise Broken(f"took more than {SECONDS} s")


# Inputs


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A few changes: bytes, tokens, parts twice, parts missing, the end cut off."""
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(6):
            case 0 if made:
                made[min(at, len(made) - 1)] ^= 1 << rng.randrange(8)
            case 1:
                made[at:at] = rng.choice(TOKENS) * rng.choice((1, 1, 3))
            case 2:
                del made[at : at + rng.choice((1, 4, 64))]
            case 3:
                made[at:at] = made[at : at + rng.choice((1, 16, 200))]
            case 4:
                made[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2**31 - 1, 2**32 - 1, rng.getrandbits(32))))
            case 5 if rng.random() < 0.2:
                del made[at:]
    return bytes(made)


def odd(rng: random.Random, depth: int = 0) -> Any:
    """A value that is seldom what is expected."""
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(ODD)
    if kind < 0.8:
        return rng.choice(HOSTILE)
    if kind < 0.82:
        return nested(rng.choice((3, 70, 900)))
    if depth > 2:
        return rng.uniform(-2, 2)
    inside = [odd(rng, depth + 1) for _ in range(rng.randrange(4))]
    return inside if kind < 0.9 else {rng.choice((*HOSTILE, "kind", "format")): each for each in inside}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def changed(tree: Any, rng: random.Random) -> Any:
    """JSON with one part replaced, renamed, dropped, doubled or taken apart."""
    if not isinstance(tree, dict | list) or not tree or rng.random() < 0.06:
        return odd(rng)
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    key, act = rng.choice(keys), rng.random()
    copy: Any = dict(tree) if isinstance(tree, dict) else list(tree)
    if act < 0.05:
        del copy[key]
    elif act < 0.1 and isinstance(copy, dict):
        copy[rng.choice(HOSTILE)] = copy.pop(key)
    elif act < 0.1:
        copy.insert(key, copy[key])
    elif act < 0.12 and isinstance(copy, dict):
        copy[rng.choice(HOSTILE)] = copy[key]
    else:
        copy[key] = changed(copy[key], rng)
    return copy


def json_bytes(tree: Any) -> bytes:
    try:
        return json.dumps(tree).encode()
    except RecursionError:
        return b"[" * 2_000


def criteo_text(rng: random.Random) -> bytes:
    """Lines of Criteo's layout, most of them right."""

    def value(column: int) -> bytes:
        right = str(rng.choice((0, 1, 2, -1, 7, 12345, 2**31 - 1))) if column < 13 else f"{rng.getrandbits(32):08x}"
        words = ["", right, right, right, right]
        if rng.random() < 0.01:
            words = ["-", "+1", "1_0", "٣", "1e3", "0x10", "9" * 60, "-0", "00", "abcdefgh", "ABCDEF01", " 1", "nan"]
        return rng.choice(words).encode()

    count = rng.randrange(1, 5)
    lines = [b"\t".join([rng.choice((b"0", b"1")), *(value(column) for column in range(39))]) for _ in range(count)]
    text = rng.choice((b"\n", b"\n", b"\r\n")).join(lines) + rng.choice((b"\n", b""))
    return mutated(text, rng) if rng.random() < 0.7 else text


def table_text(rng: random.Random, separator: str) -> bytes:
    names = rng.sample(["click", "bid", "site", "hour", "ctr", *HOSTILE[:16]], rng.randrange(2, 6))
    names[:2] = ["click", "bid"] if rng.random() < 0.9 else names[:2]
    words = ["0", "1", "1.5", "", "-2", "nan", "inf", "1e308", "true", "2024-05-01", '"a,b"', "ü", *HOSTILE]
    rows = [[rng.choice(words[: rng.choice((3, 9, 99))]) for _ in names] for _ in range(rng.randrange(0, 9))]
    text = "\n".join(separator.join(row) for row in [names, *rows]) + rng.choice(("\n", ""))
    return mutated(text.encode("utf-8", "replace"), rng) if rng.random() < 0.6 else text.encode("utf-8", "replace")


class _Calls:
    def __reduce__(self) -> tuple[Any, ...]:
        return self.what  # type: ignore[no-any-return, attr-defined]


def bad_pickle(rng: random.Random) -> bytes:
    """A pickle that would run code where it is read as Python reads pickles."""
    calls = _Calls()
    calls.what = rng.choice(  # type: ignore[attr-defined]
        [
            (pwned, ()),
            (os.system, ("true",)),
            (eval, ("__import__('benchmarks.fuzz').fuzz.pwned()",)),
            (exec, ("import os; os.mkdir('/tmp/outside')",)),
            (__import__, ("antigravity",)),
            (open, ("/tmp/outside", "w")),
        ]
    )
    return pickle.dumps(rng.choice([calls, {"model": calls}, [calls], {"of": calls, "found": 1}]), rng.randrange(2, 6))


# Readers


@dataclass
class Bench:
    """A folder with a file of every kind as bidwise writes it, and the readers that are given others."""

    folder: Path
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)  # results by name
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("trained", "fitted", "judged", "store", "scorer", "made"):
            (self.folder / name).mkdir(parents=True)
        draw = np.random.default_rng(0)
        table: dict[str, Any] = {"site": draw.integers(0, 5, 400).astype(str), "age": draw.random(400)}
        table["bid"] = draw.uniform(0.5, 2, 400)
        table["click"] = (draw.random(400) < 0.3).astype(int)
        self.table = pl.DataFrame(table)
        self.table.write_parquet(buffer := io.BytesIO())
        self.parquet = buffer.getvalue()
        options: dict[str, Any] = {"click": "click", "bid": "bid", "model": "logistic_regression", "loss": "log_loss"}
        self.trained = self.folder / "trained"
        train(self.table, out=self.trained, **options, epochs=1)
        predictions = table | {"first": draw.random(400), "second": draw.random(400), "auction": np.arange(400) // 4}
        columns: dict[str, Any] = {"ctr": ["first", "second"], "click": "click", "bid": "bid", "auction": "auction"}
        bidwise.evaluate(predictions, **columns, rounds=100, out=self.folder / "judged")
        ads = Ads(torch.rand(64, 3), torch.ones(64), torch.ones(64))
        bidwise.fit(LogisticRegression(3), ads, epochs=1, out=self.folder / "fitted")
        committed = sorted((RESULTS.parent.parent / "docs" / "results").glob("*/result.json"))
        for path in [*self.folder.glob("*/result.json"), *committed]:
            self.runs[path.parent.name] = json.loads(path.read_text())
        self.runs["swept"] = result_json(swept())
        self.config = (self.trained / "config.toml").read_bytes()
        writer = StoreWriter(self.folder / "store", {"train": 6, "valid": 4, "test": 4})
        for split, rows in writer.splits.items():
            writer.column(split, "features", width=2)[:] = draw.integers(0, 3, (rows, 2))
            for name in ("clicks", "bids"):
                writer.column(split, name)[:] = 1
        self.store = writer.finish(fields=[Field("a", 3), Field("b", 3)], vocabulary={}, about={})
        self.kept = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        torch.save({"of": "x", "model": {"w": torch.ones(3)}, "history": [{"epoch": 1}]}, buffer := io.BytesIO())
        self.tensors = buffer.getvalue()
        self.onnx = onnx_bytes()

    def place(self, name: str, content: bytes) -> Path:
        path = self.folder / "made" / name
        path.write_bytes(content)
        return path

    @contextmanager
    def instead(self, path: Path, content: bytes) -> Iterator[None]:
        """A file of the bench with other content, for a while."""
        path.write_bytes(content)
        try:
            yield
        finally:
            path.write_bytes(self.kept[path])

    def tried(self, target: str, rng: random.Random) -> str:
        """How a reader took an input: ``read`` or ``refused``; anything else is raised."""
        reader: Callable[[random.Random], Callable[[], Any]] = getattr(self, f"_{target}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy and matplotlib tell of infinities
            try:
                reader(rng)
                outcome = "read"
            except bidwise.InputError as error:
                str(error).encode("utf-8", "strict" if "\\ud" not in repr(error) else "replace")
                outcome = "refused"
        self.outcomes.setdefault(target, Counter())[outcome] += 1
        return outcome

    def _criteo(self, rng: random.Random) -> None:
        text = criteo_text(rng)
        if rng.random() < 0.1:
            packed = gzip.compress(text, 1)
            path = self.place("raw.txt", rng.choice((text, packed, mutated(packed, rng))))
            np.save(buffer := io.BytesIO(), np.full(text.count(b"\n"), 0.5, np.float32))
            beside = self.place("raw.txt.ctr.npy", rng.choice((buffer.getvalue(), mutated(buffer.getvalue(), rng))))
            with watched(path.parent):
                for block in blocks([path], rng.choice(([], [beside]))):
                    faults(block, parse(block.text).good)
            return
        text = text if text.endswith(b"\n") else text + b"\n"
        with watched(self.folder / "made"):
            found = parse(text)
            kinds, samples = faults(Block(0, Path("raw.txt"), 0, 0, text, None, 1.0), found.good)
        right = [_is_right(line) for line in text[:-1].split(b"\n")]
        if right != found.good.tolist() or sum(kinds.values()) != right.count(False) or len(found.clicks) != sum(right):
            raise Broken("the parser and the words about a line disagree")
        if len(samples) != min(10, right.count(False)):
            raise Broken("not all faults are shown")

    def _json(self, rng: random.Random) -> None:
        content = json_bytes(changed({"kind": "fit", "epochs": 2, "best": {"auc": {"epoch": 1, "value": 0.5}}}, rng))
        path = self.place("result.json", mutated(content, rng) if rng.random() < 0.5 else content)
        with watched(path.parent):
            read_json(path) if rng.random() < 0.5 else read_run(path.parent)

    def _toml(self, rng: random.Random) -> None:
        grid = rng.random() < 0.2
        content = self.config + (b"[sweep]\n'train.loss' = ['log_loss', 'log_plus']\n" if grid else b"")
        lines = content.split(b"\n")
        for _ in range(rng.randrange(3)):
            key = rng.choice([*lines[1:], b"[train]", b"a.b.c = 1", b"epochs = 1e400"]).partition(b"=")[0]
            strange = [b"1979-05-27T07:32:00Z", b"0x" + b"f" * 400, b"[" * 900, b"inf", b"'''"]
            worth = rng.choice([json_bytes(odd(rng)), *strange])
            lines.insert(rng.randrange(len(lines)), key + b" = " + worth)
        content = b"\n".join(lines)
        path = self.place("config.toml", mutated(content, rng) if rng.random() < 0.5 else content)
        with watched(path.parent):
            if grid:
                read_grid(path, ()).trials()
            elif rng.random() < 0.1:
                open_folder(path.parent, {"experiment": "x"})
            else:
                resolved(read_toml(path), {}, [rng.choice(HOSTILE)] if rng.random() < 0.1 else [])

    def _run(self, rng: random.Random) -> None:
        folder = self.folder / "made"
        name = rng.choice(["trained", "fitted", "judged"] * 3 + list(self.runs))
        tree = self.runs[name]
        for _ in range(rng.choice((1, 1, 2, 5))):
            tree = changed(tree, rng)
        self.place("result.json", json_bytes(tree))
        beside = {
            "environment.json": json_bytes(changed({"command": "x", "seconds": 1.0}, rng)),
            "metrics.jsonl": mutated(b'{"epoch": 1, "loss": 0.5}\n{"epoch": 2, "loss": 0.4}\n', rng),
            "config.toml": mutated(self.config, rng),
        }
        made = [self.place(file, content) for file, content in beside.items() if rng.random() < 0.2]
        try:
            with watched(folder):
                read_run(folder)
        finally:
            for path in made:
                path.unlink()

    def _store(self, rng: random.Random) -> None:
        folder, schema = self.folder / "store", self.folder / "store" / "store.json"
        about = json.loads(self.kept[schema])
        if rng.random() < 0.5:
            about = changed(about, rng)
            if rng.random() < 0.3 and isinstance(about, dict) and isinstance(about.get("files"), dict):
                about["files"][rng.choice(HOSTILE)] = {"bytes": rng.choice([1, 4096]), "crc32": "0"}
            with self.instead(schema, json_bytes(about)):
                self._open_store(folder)
            return
        name = rng.choice([name for name in about["files"] if name.endswith(".npy")])
        content = npy(rng, self.kept[folder / name])
        about["files"][name]["bytes"] = len(content)
        with self.instead(schema, json_bytes(about)), self.instead(folder / name, content):
            self._open_store(folder)

    def _open_store(self, folder: Path) -> None:
        with watched(folder):
            store = Store(folder, verify=False)
            for split in store.splits:
                ads = store.ads(split)
                SparseLogisticRegression([min(9, values) for values in store.cardinalities])(ads.features[:2])

    def _checkpoint(self, rng: random.Random) -> None:
        if rng.random() < 0.4:
            content = bad_pickle(rng)
            if rng.random() < 0.7:
                content = self._with_pickle(content)
        else:
            content = mutated(self.tensors, rng)
        path = self.place("checkpoint.pt", content)
        with watched(path.parent):
            load_tensors(path)

    def _with_pickle(self, content: bytes) -> bytes:
        made = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(self.tensors)) as old, zipfile.ZipFile(made, "w") as new:
            for each in old.infolist():
                new.writestr(each.filename, content if each.filename.endswith("data.pkl") else old.read(each))
        return made.getvalue()

    def _model(self, rng: random.Random) -> None:
        file = self.trained / rng.choice(("model.json", "model.json", "encoder.json", "model.pt", "config.toml"))
        content = self.kept[file]
        if file.suffix == ".json" and rng.random() < 0.8:
            content = json_bytes(changed(json.loads(content), rng))
        else:
            content = self._with_pickle(bad_pickle(rng)) if rng.random() < 0.1 else mutated(content, rng)
        with self.instead(file, content), watched(self.trained):
            bidwise.load(self.trained).predict(self.table.head(3))

    def _table(self, rng: random.Random) -> None:
        kind = rng.choice((".csv", ".csv", ".tsv", ".csv.gz", ".parquet"))
        if kind == ".parquet":
            content = mutated(self.parquet, rng)
        else:
            content = table_text(rng, "\t" if kind == ".tsv" else ",")
            if kind == ".csv.gz":
                content = gzip.compress(content, 1)
                content = mutated(content, rng) if rng.random() < 0.5 else content
        path = self.place(f"table{kind}", content)
        work = path.parent / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        with watched(path.parent), quiet():
            if rng.random() < 0.5:
                rows = blocks_of(path, work).read(0)
                inferred(found(rows), [("click", "click"), ("bid", "bid")])
            else:
                read_ads(path, ctr=[], click="click", bid="bid", auction=rng.choice((None, "site")))

    def _scorer(self, rng: random.Random) -> None:
        graph = self.onnx if rng.random() < 0.5 else mutated(self.onnx, rng)
        columns: list[Any] = [{"kind": "categorical", "name": "site", "vocabulary": ["a"]}]
        columns += [{"kind": "numeric", "name": "age", "edges": [0.5]}]
        about: Any = {"format": "bidwise scorer", "version": 2}
        about |= {"columns": columns}
        about = changed(about, rng) if rng.random() < 0.7 else about
        file, text = self.place("ctr.onnx", graph), json_bytes(about).rstrip(b"} \n") + b', "checksum": '
        crc = zlib.crc32(text.rpartition(b'"checksum"')[0], zlib.crc32(graph))
        self.place("ctr.json", text + b'"%08x"}' % crc)
        with watched(file.parent), quiet():
            Scorer(file).score({"site": ["a", "b"], "age": [0.1, 0.9]})

    def _report(self, rng: random.Random) -> None:
        folder, tree = self.folder / "made", hostile_words(self.runs[rng.choice(list(self.runs))], rng)
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            tree = changed(tree, rng)
        self.place("result.json", json_bytes(tree))
        with watched(folder):
            page = runs_page([read_run(folder)])
        check_page(page)


def swept() -> SweepResult:
    """A sweep of two settings, with a trial that failed."""
    scores = MeanScores.over([Scores(welfare=1.0, log_loss=0.5)] * 2)
    shared: dict[str, Any] = {"complete": True, "seeds": (0, 1), "validation": scores, "test": scores}
    settings = tuple(
        Setting(name=name, loss=name, trials=(f"{name}-1",), **shared) for name in ("log_loss", "log_plus")
    )
    trial = TrialResult(name="log_plus-1", setting="log_plus", settings={"data.bid": "b"}, loss="log_plus", seed=1)
    return SweepResult(
        settings=settings,
        chosen=Chosen("log_plus", "log_plus-1"),
        baseline="log_loss",
        by="log_loss",
        seeds=(0, 1),
        timed=False,
        trials=(trial, replace(trial, name="log_loss-1", setting="log_loss", failed="a table that is gone")),
        grid={"train.loss": ["log_loss", "log_plus"]},
        config={"data.table": "ads.csv", "data.click": "click"},
    )


def words_of(tree: Any) -> set[str]:
    """All text of a tree, keys too."""
    if isinstance(tree, dict):
        return set(tree).union(*map(words_of, tree.values()))
    return set().union(*map(words_of, tree)) if isinstance(tree, list) else {tree} if isinstance(tree, str) else set()


def renamed(tree: Any, old: str, new: str) -> Any:
    """The tree with one word called otherwise wherever it stands: a model, a loss, a column."""
    if isinstance(tree, dict):
        return {new if key == old else key: renamed(each, old, new) for key, each in tree.items()}
    if isinstance(tree, list):
        return [renamed(each, old, new) for each in tree]
    return new if isinstance(tree, str) and tree == old else tree


def hostile_words(tree: Any, rng: random.Random) -> Any:
    """JSON with a tenth of its free text replaced by scripts."""
    if isinstance(tree, dict):
        return {key: each if key in ("kind", "format") else hostile_words(each, rng) for key, each in tree.items()}
    if isinstance(tree, list):
        return [hostile_words(each, rng) for each in tree]
    return rng.choice(HOSTILE) if isinstance(tree, str) and rng.random() < 0.1 else tree


class _Page(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.faults += [tag] if tag in BAD_TAGS else []
        for name, value in attributes:
            leads = name in ("href", "xlink:href", "src") and not (value or "").startswith(("#", "data:,"))
            self.faults += [f"{tag} {name}={value!r:.80}"] if name.startswith("on") or leads else []


def check_page(page: str) -> None:
    """Raise where a page has a script, a handler, or anything from elsewhere."""
    if found := _Page(page).faults:
        raise Broken(f"a page with {found[:3]}")
    page.encode("utf-8")


def npy(rng: random.Random, content: bytes) -> bytes:
    """A numpy file with another header, or a pickle in its place."""
    if rng.random() < 0.1:
        np.save(made := io.BytesIO(), np.array([_Calls], dtype=object), allow_pickle=True)
        return rng.choice((made.getvalue(), bad_pickle(rng)))
    if rng.random() < 0.4:
        return mutated(content, rng)
    shape = rng.choice(
        ["(6, 2)", "(10**12,)", "(1000000000000, 2)", "(-6,)", "(2**63,)", "()", "(True, 6)", "((6,),)", "[6]"]
    )
    descr = rng.choice(
        ["'<i4'", "'|O'", "'<f4'", "[('a', '<i4')]", "'<i999'", "None", "'" + "(" * 300 + "'", "'|V0'", "'<U1'"]
    )
    head = f"{{'descr': {descr}, 'fortran_order': {rng.choice(['False', 'True', '1'])}, 'shape': {shape}, }}"
    head = rng.choice((head, "(" * 500, head + "\t\t('", "{'shape': __import__('os')}"))
    text = head.encode() + b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * rng.choice((0, 48))


def onnx_bytes() -> bytes:
    """ids (ads, 2) -> ctr (ads,), a sum of weights."""
    from onnx import TensorProto, checker, helper

    weights = helper.make_tensor("w", TensorProto.FLOAT, [8], np.linspace(-1, 1, 8, dtype=np.float32))
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["looked"]),
        helper.make_node("ReduceSum", ["looked", "axis"], ["logit"], keepdims=0),
        helper.make_node("Sigmoid", ["logit"], ["ctr"]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["ads", 2])
    ctr = helper.make_tensor_value_info("ctr", TensorProto.FLOAT, ["ads"])
    graph = helper.make_graph(nodes, "scorer", [ids], [ctr], [weights, axis])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def _is_right(line: bytes) -> bool:
    try:
        fault(line)
    except AssertionError:
        return True
    return False


@contextmanager
def quiet() -> Iterator[None]:
    """Without what libraries write themselves, such as the stacks of Rust's panics."""
    sys.stdout.flush()
    kept, nowhere = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        yield
    finally:
        sys.stdout.flush()
        for stream, before in enumerate(kept, 1):
            os.dup2(before, stream)
            os.close(before)
        os.close(nowhere)


def fuzz(bench: Bench, target: str, inputs: range, seed: int = 0) -> list[str]:
    """Give a reader inputs; the rules that were broken, with the number of the input that draws it again."""
    broken = []
    before = signal.signal(signal.SIGPROF, _late)
    try:
        for number in inputs:
            try:
                bench.tried(target, random.Random(f"{seed} {target} {number}"))
            except (Exception, pl.exceptions.PanicException) as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(where.filename).name}:{where.lineno}"
                broken.append(f"{target} {number}: {type(error).__name__} at {place}: {error!s:.200}")
    finally:
        signal.signal(signal.SIGPROF, before)
    return broken


sys.addaudithook(_audit)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=SHARES, default=None)
    parser.add_argument("--first", type=int, default=0, help="number of the first input, to draw one again")
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    machine, began = Machine(), time.monotonic()
    print(f"{' '.join(['python -m benchmarks.fuzz', *sys.argv[1:]])}\n{machine}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="fuzz", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    faulty = 0
    try:
        bench = Bench(folder)
        for target, share in SHARES.items() if asked.target is None else [(asked.target, 1.0)]:
            count, start = round(share * asked.inputs), time.monotonic()
            broken = fuzz(bench, target, range(asked.first, asked.first + count), asked.seed)
            faulty += len(broken)
            took, kinds = time.monotonic() - start, dict(bench.outcomes.get(target, {}))
            print(f"{target:<12}{count:>9,} inputs  {took:8.1f} s  {kinds}  broken {len(broken)}", flush=True)
            print("\n".join(f"    {line}" for line in broken[:20]), end="\n" if broken else "", flush=True)
    finally:
        shutil.rmtree(folder)
    total = sum(sum(each.values()) for each in bench.outcomes.values()) + faulty
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    took = time.monotonic() - began
    print(f"{total:,} inputs, {faulty} broken, {took:.0f} s, at most {peak:,.0f} MB of memory", flush=True)
    raise SystemExit(faulty > 0)


if __name__ == "__main__":
    main()
