"""`bidwise verify`: a run folder as it was left matches, and every change of a file is named."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from run_helpers import sections_of, small_market

import bidwise
from bidwise import InputError, fit
from bidwise.cli import main
from bidwise.data import Ads
from bidwise.models import LogisticRegression
from bidwise.run_folder import CHECKED, load, save, write_last
from bidwise.runners import Runner
from bidwise.table import sweep as sweep_module
from bidwise.table import train
from bidwise.table.sweep import sweep
from bidwise.table.verify import verify

RESULTS = Path(__file__).parent.parent / "docs" / "results"

OF_ALL = list(CHECKED)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of every kind; experiments as the repository has them."""
    folder = tmp_path_factory.mktemp("made")
    small_market(400).write_parquet(folder / "ads.parquet")
    roles = {"click": "click", "bid": "bid", "auction": "auction"}
    quick = {"model": "logistic_regression", "loss": "log_loss", "epochs": 1}
    train(folder / "ads.parquet", out=folder / "train", **roles, **quick)
    table = pl.read_parquet(folder / "train" / "test.parquet")
    table.write_parquet(folder / "test.parquet")
    columns = {"click": "click", "bid": "bid", "auction": "auction", "ctr": ["log_loss"]}
    bidwise.evaluate(folder / "test.parquet", **columns, out=folder / "evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_module, "Processes", lambda workers, say: Runner())
        sweep(
            sections_of(folder / "ads.parquet", {"train.loss": ["log_loss"], "train.seed": [0, 1]}),
            out=folder / "sweep",
        )
    random = torch.Generator().manual_seed(0)
    ads = Ads(torch.randn(200, 3, generator=random), torch.arange(200) % 2.0, torch.ones(200), auction_size=10)
    fit(LogisticRegression(3), ads, valid=ads, epochs=2, out=folder / "fit")
    shutil.copytree(RESULTS / "plotted", folder / "reproduce")
    write_last(folder / "reproduce", json.loads((RESULTS / "plotted" / "result.json").read_text()))
    return folder


@pytest.fixture
def copied(made, tmp_path):
    def copy(kind):
        shutil.copytree(made / kind, tmp_path / kind)
        return tmp_path / kind

    return copy


def wrong(folder):
    return {check.name: check.words for check in verify(folder) if check.holds is False}


@pytest.mark.parametrize("kind", ["train", "evaluate", "sweep", "fit", "reproduce"])
def test_a_folder_as_it_was_left_matches(made, kind):
    checks = verify(made / kind)
    assert not wrong(made / kind)
    assert sum(check.holds is True for check in checks) >= 4


def test_a_train_folder_can_be_checked_to_the_last_file(made):
    checks = verify(made / "train")
    assert all(check.holds for check in checks)
    names = {check.name for check in checks}
    assert names >= {*OF_ALL, "result.json", "evaluation/result.json", "metrics of test.parquet", "predictions"}


def test_a_folder_that_moved_matches(copied):
    assert not wrong(copied("train"))


@pytest.mark.parametrize("name", [*OF_ALL, "result.json", "evaluation/result.json", "evaluation/environment.json"])
def test_every_file_that_is_changed_or_gone_is_named(copied, name):
    folder = copied("train")
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert name in wrong(folder)
    if name != "result.json":
        path.unlink()
        assert "no file" in wrong(folder)[name]


def without_checksums(folder):
    """As someone would leave it who knows of them."""
    (folder / "checksums.json").unlink()
    return folder


def test_other_settings_are_seen_without_checksums(copied):
    folder = without_checksums(copied("train"))
    path = folder / "config.toml"
    path.write_text(path.read_text().replace("epochs = 1", "epochs = 2"))
    assert wrong(folder) == {"config.toml": "differs from result.json in train"}


def test_other_metrics_are_seen_without_checksums(copied):
    folder = without_checksums(copied("train"))
    path = folder / "result.json"
    result = json.loads(path.read_text())
    result["evaluation"]["models"]["log_loss"]["welfare"] *= 1.001
    path.write_text(json.dumps(result))
    assert list(wrong(folder)) == ["metrics of test.parquet"]
    assert "welfare of log_loss is" in wrong(folder)["metrics of test.parquet"]


def test_other_predictions_are_seen_without_checksums(copied):
    folder = without_checksums(copied("train"))
    table = pl.read_parquet(folder / "test.parquet")
    table.with_columns(log_loss=pl.col("log_loss") ** 1.01).write_parquet(folder / "test.parquet")
    assert set(wrong(folder)) == {"metrics of test.parquet", "predictions"}


def test_another_model_is_seen_without_checksums(copied):
    folder = without_checksums(copied("train"))
    state = load(folder / "model.pt")
    save(folder / "model.pt", {key: x + 0.01 if x.is_floating_point() else x for key, x in state.items()})
    assert list(wrong(folder)) == ["predictions"]
    assert "the model predicts" in wrong(folder)["predictions"]


def test_another_encoder_or_store_is_seen(copied):
    folder = copied("train")
    path = folder / "store" / "test" / "features.npy"
    values = np.load(path)
    values[0, 0] ^= 1
    np.save(path, values)
    assert "checksum" in wrong(folder)["predictions"]
    shutil.rmtree(folder / "store")
    checks = {check.name: check for check in verify(folder)}
    assert checks["predictions"].holds is None
    assert checks["predictions"].words == "the store is gone"
    assert checks["store/store.json"].holds is False


def test_an_evaluation_is_made_again_where_its_table_is(made, copied):
    folder = without_checksums(copied("evaluate"))
    path = folder / "result.json"
    result = json.loads(path.read_text())
    result["models"]["log_loss"]["auc"] += 1e-6
    path.write_text(json.dumps(result))
    assert "auc of log_loss" in wrong(folder)["metrics"]
    result["options"]["table"] = str(made / "nowhere.parquet")
    path.write_text(json.dumps(result))
    (check,) = [check for check in verify(folder) if check.name == "metrics"]
    assert check.holds is None
    assert "is not there" in check.words


def test_an_evaluation_writes_nothing_wherever_its_options_point(copied, tmp_path):
    folder = without_checksums(copied("evaluate"))
    path = folder / "result.json"
    result = json.loads(path.read_text())
    result["options"] |= {"out": str(tmp_path / "elsewhere"), "nonsense": 1}
    path.write_text(json.dumps(result))
    assert "nonsense" in wrong(folder)["metrics"]
    assert not (tmp_path / "elsewhere").exists()


def test_a_trial_of_a_sweep_is_named(made, copied):
    folder = copied("sweep")
    trial = sorted((folder / "trials").glob("*/result.json"))[0].parent
    test = pl.read_parquet(trial / "test.parquet")
    test.with_columns(log_loss=pl.col("log_loss") ** 1.01).write_parquet(trial / "test.parquet")
    assert set(wrong(folder)) == {
        f"{trial.name}/{x}" for x in ("test.parquet", "metrics of test.parquet", "predictions")
    }
    shutil.rmtree(trial)
    assert wrong(folder) == {trial.name: "no such folder"}


def test_a_sweep_with_other_numbers_than_its_trials_is_seen(copied):
    folder = without_checksums(copied("sweep"))
    path = folder / "result.json"
    result = json.loads(path.read_text())
    result["trials"][0]["test"]["welfare"] += 0.1
    path.write_text(json.dumps(result))
    assert list(wrong(folder).values()) == ["the sweep has other numbers than it"]


def test_the_curve_and_the_weights_of_a_fit_are_checked(copied):
    folder = without_checksums(copied("fit"))
    result = json.loads((folder / "result.json").read_text())
    result["best"]["welfare"]["value"] += 0.5
    (folder / "result.json").write_text(json.dumps(result))
    save(folder / "model.pt", {"weight": torch.tensor([float("nan")])})
    assert set(wrong(folder)) == {"metrics.jsonl", "model.pt"}


def test_settings_of_an_experiment_are_compared(copied):
    folder = without_checksums(copied("reproduce"))
    path = folder / "config.toml"
    path.write_text(path.read_text().replace("repeats = ", "repeats = 1"))
    assert "differs from result.json in repeats" in wrong(folder)["config.toml"]


def test_damaged_files_are_lines_not_crashes(copied, tmp_path):
    folder = copied("train")
    for name in ("result.json", "checksums.json"):
        (folder / name).write_text("{")
    assert set(wrong(folder)) == {"checksums.json", "result.json"}
    (folder / "checksums.json").write_text(json.dumps({"../../secret": "00000000"}))
    assert wrong(folder)["checksums.json"] == "it lists other files"
    with pytest.raises(InputError, match=r"run must be a folder of a finished run, found no result\.json"):
        verify(tmp_path)


def test_the_command_ends_with_1_where_something_differs(copied, monkeypatch, capsys):
    folder = copied("train")
    monkeypatch.setattr("sys.argv", ["bidwise", "verify", str(folder)])
    main()
    said = capsys.readouterr().out
    assert "matches: predictions, the model gives them again for" in said
    assert said.endswith("checks: nothing differs\n")
    (folder / "model.json").unlink()
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "DIFFERS: model.json, checksum" in said
    assert "checks: 2 differ" in said
