"""The examples run, on less data. tests/test_ray_train.py runs the one of Ray Train, and tests/test_documents.py the
commands that documents show."""

import re

import polars as pl
import pytest
from run_helpers import market, program

import bidwise
from bidwise.table import pipeline

QUICK = {"model": "logistic_regression", "loss": "log_loss"}


def test_two_models_are_trained_and_written_for_evaluate(monkeypatch, capsys, tmp_path):
    example = program("examples/two_models.py")
    for name, small in {"TRAIN": 2000, "AUCTIONS": 40, "EPOCHS": 1}.items():
        monkeypatch.setattr(example, name, small)
    example.main(tmp_path)
    printed = capsys.readouterr().out
    assert len(re.findall(r"^  log_(?:loss|plus) +\d+\.\d\d%$", printed, flags=re.MULTILINE)) == 2
    columns = {"ctr": ["log_loss", "log_plus"], "click": "click", "bid": "bid", "auction": "auction"}
    assert bidwise.evaluate(tmp_path / "predictions.parquet", **columns).ads == 40 * example.SIZE


def test_the_table_of_the_example_can_be_trained_on(tmp_path):
    program("examples/own_table.py").main(tmp_path, auctions=300)
    roles = {"click": "click", "bid": "bid", "auction": "auction", "time": "time", "truth": "truth"}
    found = bidwise.table.train(tmp_path / "ads.parquet", out=tmp_path / "run", **roles, **QUICK, epochs=1)
    assert {column.name for column in found.table.columns} >= {"site", "device", "brand_id", "age_days", "price"}
    assert len(bidwise.table.predict(tmp_path / "run", tmp_path / "new_ads.parquet")) > 0


def test_a_model_is_refreshed_every_night(monkeypatch, capsys, tmp_path):
    example = program("examples/daily_refresh.py")
    for name, small in {"DAYS": 2, "AUCTIONS": 60, "MODEL": QUICK | {"epochs": 1}}.items():
        monkeypatch.setattr(example, name, small)
    example.main(tmp_path)
    printed = capsys.readouterr().out
    assert "night 2: refreshed" in printed
    assert len(re.findall(r"^ +[23] +(?:\d+\.\d\d% *){3}$", printed, flags=re.MULTILINE)) == 2


def test_lists_of_interests_are_worth_something(capsys, tmp_path):
    program("examples/interests.py").main(tmp_path, auctions=60, epochs=1, hidden=[4], embedding=2)
    assert capsys.readouterr().out.count("% of the optimum") == 3


def test_torchrec_trains_on_one_rank(capsys):
    pytest.importorskip("torchrec", reason="TorchRec is not installed: see examples/torchrec_shards.py")
    program("examples/torchrec_shards.py").main()
    assert capsys.readouterr().out.count("1 rank(s)") == 8


@pytest.fixture
def tune(monkeypatch):
    pytest.importorskip("optuna")
    example = program("examples/tune.py")
    monkeypatch.setattr(example, "MODEL", QUICK)
    monkeypatch.setattr(example, "settings_of", lambda trial: {"l2": trial.suggest_float("l2", 1e-5, 1e-1, log=True)})
    return example


def test_trials_resume(tune, tmp_path, monkeypatch, capsys):
    table, trained, train_once = tmp_path / "ads.parquet", [], pipeline._trained
    market(300).write_parquet(table)
    monkeypatch.setattr(pipeline, "_trained", lambda *words, **more: trained.append(1) or train_once(*words, **more))
    tune.main(table, tmp_path / "runs", 2)
    printed = capsys.readouterr().out
    assert len(trained) == 3
    tune.main(table, tmp_path / "runs", 2)  # the same trials, which are finished
    assert capsys.readouterr().out == printed
    assert len(trained) == 3


def test_a_trial_is_the_run_that_it_would_be_by_itself(tune, tmp_path):
    table, runs = tmp_path / "ads.parquet", tmp_path / "runs"
    market(300).write_parquet(table)
    tune.main(table, runs, 1)
    text = (runs / "trial-0" / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(text)
    bidwise.train(config=tmp_path / "config.toml", out=tmp_path / "alone")
    for name in ("config.toml", "model.pt", "encoder.json", "result.json", "test.parquet"):
        assert (tmp_path / "alone" / name).read_bytes() == (runs / "trial-0" / name).read_bytes()
    first = pl.read_parquet(runs / "default" / "test.parquet")  # not written over
    trial = pl.read_parquet(runs / "trial-0" / "test.parquet")
    assert first["row"].to_list() == trial["row"].to_list()
    assert first["log_loss"].to_list() != trial["log_loss"].to_list()
