"""Examples that stand for commands: tuning by Optuna. tests/test_ray_train.py runs that of Ray Train."""

import importlib.util
from pathlib import Path

import polars as pl
import pytest
from run_helpers import market

import bidwise
from bidwise.table import pipeline
from bidwise.table import prepare as prepare_module

pytest.importorskip("optuna")


@pytest.fixture
def example(monkeypatch):
    path = Path(__file__).parent.parent / "examples" / "tune.py"
    spec = importlib.util.spec_from_file_location("tune", path)
    tune = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tune)
    monkeypatch.setattr(tune, "MODEL", {"model": "logistic_regression", "loss": "log_loss"})
    monkeypatch.setattr(tune, "settings_of", lambda trial: {"l2": trial.suggest_float("l2", 1e-5, 1e-1, log=True)})
    return tune


def counted(monkeypatch, module, name):
    """How often a function is called."""
    calls, function = [], getattr(module, name)

    def counting(*words, **options):
        calls.append(words)
        return function(*words, **options)

    monkeypatch.setattr(module, name, counting)
    return calls


def test_trials_share_one_encoded_table(example, tmp_path, monkeypatch, capsys):
    table = tmp_path / "ads.parquet"
    market(300).write_parquet(table)
    encoded = counted(monkeypatch, prepare_module, "_build")
    trained = counted(monkeypatch, pipeline, "_trained")
    example.main(table, tmp_path / "runs", 2)
    said = capsys.readouterr().out
    assert (len(encoded), len(trained)) == (1, 3)
    assert [path.parent.name for path in (tmp_path / "runs").glob("*/store")] == ["default"]
    example.main(table, tmp_path / "runs", 2)  # the same trials, which are finished
    assert capsys.readouterr().out == said
    assert (len(encoded), len(trained)) == (1, 3)
    example.main(table, tmp_path / "runs", 3)
    assert (len(encoded), len(trained)) == (1, 4)


def test_a_trial_is_the_run_that_it_would_be_alone(example, tmp_path):
    table = tmp_path / "ads.parquet"
    market(300).write_parquet(table)
    example.main(table, tmp_path / "runs", 1)
    trial = bidwise.load(tmp_path / "runs" / "trial-0")
    text = (tmp_path / "runs" / "trial-0" / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(text)
    bidwise.train(config=tmp_path / "config.toml", out=tmp_path / "alone")
    assert (tmp_path / "alone" / "config.toml").read_text() == text
    for name in ("model.pt", "encoder.json", "vocabulary.parquet", "result.json", "test.parquet"):
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "runs" / "trial-0" / name).read_bytes()
    first = pl.read_parquet(tmp_path / "runs" / "default" / "test.parquet")["log_loss"]  # not written over
    rows = market(300)[pl.read_parquet(tmp_path / "runs" / "default" / "test.parquet")["row"].to_list()]
    assert first.to_list() == bidwise.load(tmp_path / "runs" / "default").predict(rows).tolist()
    assert first.to_list() != trial.predict(rows).tolist()
