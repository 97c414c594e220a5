"""Broken and hostile files: one clear error, no code is run, no link is followed, and pages have no scripts."""

import gzip
import json
import pickle
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from markupsafe import Markup
from run_helpers import ROOT, Page, bidwise_command

import bidwise
from bidwise.cli.terminal import say
from bidwise.data.ads import Ads
from bidwise.data.store import StoreWriter
from bidwise.data.table_files import open_table
from bidwise.evaluation.result import Evaluation
from bidwise.json_files import read_json, read_object, read_toml
from bidwise.models import LogisticRegression
from bidwise.report.build import PAGES, runs_page
from bidwise.report.sections import Run
from bidwise.run_folder import load, read_array, result_from_json, write_text
from bidwise.table import train
from bidwise.table.results import TrainResult
from paper import pages as paper_pages

RESULTS = paper_pages.RESULTS | {kind.kind: kind for kind in (Evaluation, TrainResult)}
ALL_PAGES = PAGES | dict.fromkeys(paper_pages.VIEWS, paper_pages.experiment_page)
SCRIPT = "window.pwned=1"
HOSTILE = (
    f"<script>{SCRIPT}</script>",
    f'"><img src=x onerror={SCRIPT}>',
    f"' onmouseover='{SCRIPT}",
    f"</svg></style></title><script>{SCRIPT}</script>",
    f"javascript:{SCRIPT}",
    f"<svg/onload={SCRIPT}>",
)
BAD_TAGS = {"script", "img", "iframe", "object", "embed", "base", "form", "input"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a trained model and an evaluation."""
    folder = tmp_path_factory.mktemp("runs")
    draw = np.random.default_rng(0)
    table = {"site": draw.integers(0, 5, 400).astype(str), "age": draw.random(400), "bid": draw.uniform(0.5, 2, 400)}
    table["click"] = (draw.random(400) < 0.3).astype(int)
    options = {"model": "logistic_regression", "loss": "log_loss", "epochs": 1}
    train(pl.DataFrame(table), out=folder / "trained", click="click", bid="bid", **options)
    table |= {"first": draw.random(400), "second": draw.random(400), "auction": np.arange(400) // 4}
    columns = {"ctr": ["first", "second"], "click": "click", "bid": "bid", "auction": "auction"}
    bidwise.evaluate(table, **columns, out=folder / "judged")
    return folder


def rejects(words, act, *arguments):
    with pytest.raises(bidwise.InputError, match=words):
        act(*arguments)


BROKEN = {
    "a.json": b'{"kind": ',
    "deep.json": b"[" * 10**5,
    "latin.json": b'{"name": "\xe9"}',
    "a.toml": b"a = [1,",
    "latin.toml": b"a = '\xe9'",
    "a.parquet": b"PAR1 and nothing else PAR1",
    "a.csv.gz": gzip.compress(b"click,bid\n1,1\n" * 99)[:-12],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_in_one_line(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BROKEN[name])
    with pytest.raises(bidwise.InputError) as caught:
        {".json": read_json, ".toml": read_toml}.get(path.suffix, lambda path: open_table(path).frame())(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_of_another_shape_are_rejected(tmp_path):
    (tmp_path / "environment.json").write_text("[1]")
    rejects("environment.json must be a JSON object", read_object, tmp_path / "environment.json")
    for data in ([], {"format": 99}, {"format": 1}, {"format": "5"}):
        rejects("result.json must be ", result_from_json, Evaluation, data)


def header(shape, kind="'|u1'"):
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        header("(10**12,)"),
        header("(1000000000000,)") + b"\0" * 8,
        header("(2,)", "'|O'") + pickle.dumps([Path()]),
        header("(((((((((", "'|u1'"),
        pickle.dumps(Path()),
        b"PK\3\4",
        b"",
    ],
    ids=range(7),
)
def test_arrays_are_numbers_that_the_file_holds(tmp_path, content):
    (tmp_path / "clicks.npy").write_bytes(content)
    rejects("clicks.npy must be a numpy file of numbers", read_array, tmp_path / "clicks.npy")


def test_links_that_a_stranger_left_are_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("kept")
    for part in ("result.json.part", "store/train/clicks.npy"):
        (tmp_path / "run" / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / part).symlink_to(mine)
    write_text(tmp_path / "run" / "result.json", "{}")
    StoreWriter(tmp_path / "run" / "store", {"train": 5}).column("train", "clicks")[:] = 1
    assert mine.read_text() == "kept"


class Evil:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return Path.mkdir, (Path("pwned"),)


def test_weights_run_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": torch.zeros(9)}, tmp_path / "good.pt")
    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Evil()))
    assert load(tmp_path / "good.pt")["model"].shape == (9,)
    for name in ("evil.pt", "old.pt"):
        rejects(f"{name} must be a file that bidwise wrote", load, tmp_path / name)
    assert not (tmp_path / "pwned").exists()


def test_a_checkpoint_of_something_else_is_named(tmp_path):
    ads = Ads(torch.rand(64, 3), torch.ones(64), torch.ones(64))
    bidwise.fit(LogisticRegression(3), ads, epochs=1, out=tmp_path)
    for there in ([], {"model": {}}, {"model": LogisticRegression(3).state_dict(), "optimizer": 3}):
        torch.save(there, tmp_path / "checkpoint.pt")
        rejects("checkpoint of this training", lambda: bidwise.fit(LogisticRegression(3), ads, epochs=1, out=tmp_path))


def test_names_cannot_control_the_terminal(capsys, monkeypatch):
    say("a\x1b]0;title\x07b\tc")
    assert capsys.readouterr().out == "a�]0;title�b\tc\n"
    bidwise_command(monkeypatch, "evaluate", "\x1b2J.csv", "--ctr", "a", "--click", "b", "--bid", "c", "--out", "d")
    assert capsys.readouterr().err == "bidwise: �2J.csv: no such file\n"


# Pages


def faults_of(page):
    """Scripts, handlers and anything that a page would load from elsewhere."""
    for tag, attributes in Page(page).elements:
        if tag in BAD_TAGS:
            yield tag
        for name, value in attributes.items():
            leads = name in ("href", "xlink:href", "src") and not (value or "").startswith(("#", "data:,"))
            if name.startswith("on") or leads:
                yield f"{tag} {name}={value}"


def words_of(tree):
    """All text of a tree, including keys."""
    if isinstance(tree, dict):
        return set(tree).union(*map(words_of, tree.values()))
    return set().union(*map(words_of, tree)) if isinstance(tree, list) else {tree} if isinstance(tree, str) else set()


def renamed(tree, old, new):
    """The tree with one word replaced everywhere: a model, a loss, a column."""
    if isinstance(tree, dict):
        return {new if key == old else key: renamed(entry, old, new) for key, entry in tree.items()}
    if isinstance(tree, list):
        return [renamed(entry, old, new) for entry in tree]
    return new if isinstance(tree, str) and tree == old else tree


def hostile_runs(folder, monkeypatch):
    """A run of every kind, with scripts in place of models, losses, columns and settings."""
    paths = [*folder.glob("*/result.json"), *(ROOT / "docs" / "results").glob("*/result.json")]
    trees = sorted((json.loads(path.read_text()) for path in paths), key=lambda tree: -len(json.dumps(tree)))
    with monkeypatch.context() as patch:
        patch.setattr("bidwise.report.sections.drawn", lambda key, panel: Markup(""))
        for tree in {tree["kind"]: tree for tree in trees}.values():
            tree = poisoned(tree, sorted(words_of(tree) - {"kind", tree["kind"]}))
            run = hostile_run(tree)
            yield run, runs_page([run], ALL_PAGES)  # without figures


def poisoned(tree, words):
    """The tree with scripts in place of these words, but for those without which it is no result."""
    changed = tree
    for at, word in enumerate(words):
        changed = renamed(changed, word, f"{HOSTILE[at % 6]} {word}")
    with suppress(bidwise.InputError, LookupError):
        ALL_PAGES[tree["kind"]](hostile_run(changed), "")
        return changed
    half = len(words) // 2
    return poisoned(poisoned(tree, words[:half]), words[half:]) if half else tree


def hostile_run(tree):
    result = result_from_json(RESULTS[tree["kind"]], tree)
    return Run(HOSTILE[1], result, {"command": HOSTILE[0], "machine": HOSTILE[1]}, {"loss": HOSTILE[2]})


def test_no_page_runs_a_script(runs, browser, tmp_path, monkeypatch):
    made = list(hostile_runs(runs, monkeypatch))
    assert {run.result.kind for run, _ in made} == set(ALL_PAGES)
    pages = [*(page for _, page in made), *(runs_page([run]) for run, _ in made if run.result.kind in PAGES)]
    assert min(page.count("window.pwned") for page in pages) > 5
    tab, said = browser.new_page(), []
    tab.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    tab.on("request", lambda request: said.append(request.url))
    file = tmp_path / "page.html"
    for page in pages:
        assert list(faults_of(page)) == []
        file.write_text(page, encoding="utf-8")
        tab.goto(file.as_uri())
        assert tab.evaluate("[...document.querySelectorAll('*')].every(each => !each.onload && !each.onerror)")
        assert tab.evaluate("window.pwned") is None
    tab.close()
    assert set(said) <= {file.as_uri(), "data:,"}
