"""Nothing is served from a run folder that is damaged, incomplete or mixed up: one line names the file."""

import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from run_helpers import bidwise_command, small_market

import bidwise
from bidwise import InputError
from bidwise.data.columns import ENCODER_FILES, Categorical, Encoder
from bidwise.run_folder import CHECKSUMS, checksum, load, save
from bidwise.table import predict, train
from bidwise.table.model import MODEL_FILES

ROLES = {"click": "click", "bid": "bid", "auction": "auction"}
SMALL = {"model": "deepfm", "loss": "log_loss", "epochs": 1, "settings": ["model.hidden=4", "model.embedding=2"]}
CONTINUED = (*MODEL_FILES, "optimizer.pt", "result.json")


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Two runs with the same columns and sizes, on other rows."""
    folder = tmp_path_factory.mktemp("days")
    for seed, day in enumerate(("monday", "tuesday")):
        train(small_market(300, seed), out=folder / day, **ROLES, **SMALL)
    return folder


@pytest.fixture
def run(days, tmp_path):
    shutil.copytree(days / "monday", tmp_path / "run")
    return tmp_path / "run"


def flipped(content, bit):
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


def record(run, *names):
    """Make the checksums of changed files fit again, as a careless repair would."""
    known = json.loads((run / CHECKSUMS).read_text())
    (run / CHECKSUMS).write_text(json.dumps(known | {name: checksum(run / name) for name in names}))


def rejected(name, call, *arguments, **options):
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_as_it_was_written_is_taken(days, run, tmp_path):
    table = small_market(20, 2)
    assert np.array_equal(bidwise.load(run).predict(table), bidwise.load(days / "monday").predict(table))
    assert set(json.loads((run / CHECKSUMS).read_text())) == set(CONTINUED)
    assert train(table, out=tmp_path / "next", continue_from=run).table.refresh.number == 1


@pytest.mark.parametrize("name", CONTINUED)
def test_predict_and_continue_reject_a_flipped_bit(run, tmp_path, name):
    path, table = run / name, small_market(20, 2)
    content = path.read_bytes()
    for bit in random.Random(1).sample(range(8 * len(content)), 3):
        path.write_bytes(flipped(content, bit))
        rejected(name, train, table, out=tmp_path / "next", continue_from=run)
        if name in MODEL_FILES:
            rejected(name, predict, run, table, out=tmp_path / "new.csv")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize("name", [CHECKSUMS, *CONTINUED])
def test_a_file_that_is_cut_off_empty_or_missing_is_named(run, tmp_path, name):
    path = run / name
    content = path.read_bytes()
    for left in (content[: len(content) // 2], b"", None):
        path.unlink() if left is None else path.write_bytes(left)
        rejected(name, train, small_market(20, 2), out=tmp_path / "next", continue_from=run)
        if name not in CONTINUED[-2:]:
            rejected(name, bidwise.load, run)


@pytest.mark.parametrize("change", ["more words", "fewer columns"])
def test_an_encoder_that_does_not_fit_the_model_is_rejected(run, change):
    encoder = Encoder.read(run)
    columns = list(encoder.columns[:-1])
    if change == "more words":
        columns = [
            replace(column, vocabulary=[*column.vocabulary, "new"]) if isinstance(column, Categorical) else column
            for column in encoder.columns
        ]
    Encoder(tuple(columns)).write(run)
    record(run, *ENCODER_FILES)
    assert "must fit model.json" in rejected("encoder.json", bidwise.load, run)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_rejected(run, value):
    weights = load(run / "model.pt")
    weights["models.0.bias"].fill_(value)
    save(run / "model.pt", weights)
    record(run, "model.pt")
    assert "must have finite weights, found others in models.0.bias" in rejected("model.pt", bidwise.load, run)


def test_weights_of_another_model_are_rejected(run):
    save(run / "model.pt", {"weight": torch.zeros(3)})
    record(run, "model.pt")
    rejected("model.pt", bidwise.load, run)


def test_a_model_of_an_older_version_is_rejected_with_the_fix(run):
    about = json.loads((run / "model.json").read_text())
    (run / "model.json").write_text(json.dumps(about | {"version": 1}))
    record(run, "model.json")
    assert "must be a model of version 3, found 1; train again" in rejected("model.json", bidwise.load, run)


def test_a_ctr_that_is_not_finite_is_never_written(run, tmp_path, monkeypatch, capsys):
    """Finite weights may overflow: infinity times a slope of 0 is no number."""
    table = small_market(20, 2)
    weights = load(run / "model.pt")
    site = bidwise.load(run).encoder.encode(table).ids[:, 0]
    weights["models.0.table.weight"][site[3], 0] = 3e38
    weights["models.0.bias"].fill_(3e38)
    weights["slope"].fill_(0)
    save(run / "model.pt", weights)
    record(run, "model.pt")
    row = int((site == site[3]).argmax())
    for call in (bidwise.load(run).predict, partial(predict, run), partial(predict, run, out=tmp_path / "new.csv")):
        assert f"row {row} (rows count from 0): column 'ctr': found nan" in rejected("ctr", call, table)
    table.write_parquet(tmp_path / "new.parquet")
    assert bidwise_command(monkeypatch, "predict", run, tmp_path / "new.parquet", "--out", tmp_path / "new.csv") == 2
    assert capsys.readouterr().err.startswith(f"bidwise: {tmp_path / 'new.parquet'}, row {row} ")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new.parquet", "run"]


def test_a_fork_of_the_process_that_loaded_a_model_is_told_to_load_it(run):
    """The threads of polars do not exist in a fork, so any work would hang there."""
    code = f"""
import os, bidwise
model = bidwise.load({str(run)!r})
if not os.fork():
    for use in (lambda: model.predict({{}}), lambda: bidwise.load({str(run)!r})):
        try:
            use()
        except bidwise.InputError as error:
            print(error, flush=True)
    os._exit(0)
os.wait()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.count("load the model in the child") == 2
