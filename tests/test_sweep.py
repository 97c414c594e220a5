"""`sweep`: which trials a grid has, what goes on after a kill, what may grow, and what the report says."""

import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from run_helpers import LISTS, Killer, at_work_in, check_in_a_browser, sections_of, small_market, toml_of, without_times

import bidwise
from bidwise.cli import app
from bidwise.json_files import to_json
from bidwise.report.build import report
from bidwise.report.sweep_page import notes, verdict
from bidwise.run_folder import result_json
from bidwise.runners import Runner
from bidwise.table import predict, train
from bidwise.table import sweep as sweep_module
from bidwise.table.grid import read_grid
from bidwise.table.results import Chosen, Mean, MeanScores, Scores, Setting
from bidwise.table.sweep import best_setting, sweep

SHARED = {"data": {"click": "y", "bid": "b"}}
COUNTED = "6 trials, not 8: what means nothing to a loss or model is left out"


def names(lists, **train):
    return [trial.name for trial in read_grid({**SHARED, "train": train, "sweep": lists}).trials()]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "ads.parquet"
    small_market().write_parquet(path)
    return path


@pytest.fixture(scope="module")
def swept(table, tmp_path_factory):
    """A finished sweep of three settings and two seeds, in two processes."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    lines = []
    result = sweep(sections_of(table), out=out, workers=2, say=lines.append)
    return SimpleNamespace(out=out, result=result, lines=lines)


@pytest.fixture
def inline(monkeypatch):
    """Trials run in this process, which takes less time."""
    monkeypatch.setattr(sweep_module, "Processes", lambda workers, say: Runner())


def until(found, seconds=20):
    """What ``found`` finds, as soon as it finds something."""
    end = time.monotonic() + seconds
    while not (now := found()) and time.monotonic() < end:
        time.sleep(0.05)
    return now


def copy_of(swept, tmp_path):
    return shutil.copytree(swept.out, tmp_path / "out")


def test_the_grid_is_the_product_of_its_lists():
    found = names({"train.loss": ["log_plus", "log"], "train.sigma": [0.5, 2], "train.seed": [0, 1, 2]})
    assert len(found) == len(set(found)) == 12
    assert found[0] == "log_plus-sigma_0.5-seed_0"
    assert found[-1] == "log-sigma_2-seed_2"


def test_lam_of_losses_without_one_collapses_into_one_trial():
    assert names({"train.loss": ["log_loss", "log_plus"], "train.lam": [1, 3], "train.sigma": [1, 2]}) == [
        "log_loss",
        *(f"log_plus-lam_{lam}-sigma_{sigma}" for lam in (1, 3) for sigma in (1, 2)),
    ]
    assert names({"train.lam": [1, 3]}, loss="log_loss") == ["log_loss"]
    assert names({"train.loss": ["log_loss", "log_plus"]}, lam=0.1) == ["log_loss", "log_plus"]
    assert names({"train.lam": [1, 1.0, 3]}, loss="log") == ["lam_1", "lam_3"]


def test_options_of_models_without_them_collapse_too():
    lists = {"model.name": ["logistic_regression", "deepfm"], "model.hidden": [[8], [16, 8]]}
    assert names(lists) == ["logistic_regression", "deepfm-hidden_8", "deepfm-hidden_16_8"]
    lists = {"train.recipe": ["single", "ensemble"], "train.members": [2, 3]}
    assert names(lists) == ["single", "ensemble-members_2", "ensemble-members_3"]


def test_names_are_safe_and_different():
    found = names({"data.ignore": [["a/b"], ["a b"], ["../.."], ["ü" * 300]]})
    assert len({name.lower() for name in found}) == 4
    for name in found:
        assert "/" not in name
        assert not name.startswith(".")
        assert len(name.encode()) < 120


@pytest.mark.parametrize(
    ("sections", "settings", "message"),
    [
        ({"sweep": {"train.loss": ["log_los"]}}, [], "did you mean 'log_loss'"),
        ({"sweep": {"train.lamb": [1]}}, [], r"key of \[train\] must be one of .* did you mean 'lam'"),
        ({"sweep": {"trian.lam": [1]}}, [], "did you mean 'train'"),
        ({"sweep": {"lam": [1]}}, [], "must be section.key, as 'train.lam', found 'lam'; did you mean 'train.lam'"),
        ({"sweep": {"train.lam": 3}}, [], "train.lam in .sweep. must be a list of values"),
        ({"sweep": {"train.lam": []}}, [], "must be a list of values"),
        ({"sweep": {"train.lam": [1, "much"]}}, [], "train.lam must be a number, found 'much'"),
        ({"sweep": {"train.lam": [1, -1], "train.loss": ["log"]}}, [], "train.lam must be finite and no less than 0"),
        ({"sweep": {"data.time": ["t"]}}, [], "same rows and auctions, found data.time"),
        ({"sweep": {"train.seed": list(range(200)), "train.epochs": list(range(1, 99))}}, [], "at most 10,000"),
        ({"sweep": {}}, [], r"must have a section \[sweep\] with lists"),
        ({}, [], r"must have a section \[sweep\] with lists"),
        ({"sweeep": {"train.lam": [1]}}, [], "did you mean 'sweep'"),
        ({"sweep": {"train.lam": [1]}}, ["train.lam=3"], "settings must not name what .sweep. has a list of"),
        ({"sweep": {"train.seed": [1]}}, ["train.epoch=3"], "did you mean 'epochs'"),
        ({"model": {"name": "dcn"}, "sweep": {"model.hidden": [[0]]}, "train": {"batch_size": 0}}, [], "batch_size"),
    ],
)
def test_every_value_is_checked_before_anything_runs(table, tmp_path, sections, settings, message):
    shared = {"data": {"click": "click", "bid": "bid", "table": str(table)}}
    with pytest.raises(bidwise.InputError, match=message):
        sweep({**shared, **sections}, out=tmp_path / "out", settings=settings)
    assert not (tmp_path / "out").exists()


def test_other_arguments_are_checked_too(table, tmp_path):
    for options, message in (
        ({"engine": "rey"}, "did you mean 'ray'"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"by": "regret"}, "by must be one of welfare, log_loss, auc"),
    ):
        with pytest.raises(bidwise.InputError, match=message):
            sweep(sections_of(table), out=tmp_path / "out", **options)
    with pytest.raises(bidwise.InputError, match="no such file"):
        sweep(sections_of(tmp_path / "none.parquet"), out=tmp_path / "out")
    without = sections_of(table)
    del without["data"]["table"]
    with pytest.raises(bidwise.InputError, match="must name the table to train on"):
        sweep(without, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_ray_nothing_is_written(table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(bidwise.InputError, match="engine must be local here, found ray, which is not installed"):
        sweep(sections_of(table), out=tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


def test_keys_need_no_quotes_and_the_written_file_gives_the_same_grid(swept):
    told_so = tomllib.loads('[sweep]\ntrain.loss = ["log"]\ntrain.lam = [1, 3]\ntrain.seed = [0, 1]')
    assert len(read_grid({**SHARED, **told_so}).trials()) == 4
    again = read_grid(swept.out / "config.toml")
    assert [trial.name for trial in again.trials()] == [trial.name for trial in swept.result.trials]


def test_trials_are_run_folders_of_train(swept, table, tmp_path):
    trials = swept.out / "trials"
    expected = {f"{loss}-seed_{seed}" for loss in ("log_loss", "log_plus-lam_1", "log_plus-lam_10") for seed in (0, 1)}
    assert {path.name for path in trials.iterdir()} == expected
    alone = train(table, out=tmp_path / "run", config=trials / "log_plus-lam_10-seed_1" / "config.toml")
    there = json.loads((trials / "log_plus-lam_10-seed_1" / "result.json").read_text())
    assert to_json(alone.evaluation.models) == there["evaluation"]["models"]
    assert there["config"]["train.lam"] == 10
    assert "train.lam" not in json.loads((trials / "log_loss-seed_0" / "result.json").read_text())["config"]
    assert len(predict(trials / "log_loss-seed_0", table)) == len(small_market())
    report([swept.out, trials / "log_loss-seed_0"], tmp_path / "both.html")
    assert f"{swept.result.chosen.setting} is chosen" in (tmp_path / "both.html").read_text()


def test_means_and_paired_differences_are_those_of_the_trials(swept):
    found = {(trial.setting, trial.seed): trial for trial in swept.result.trials}
    setting = swept.result.setting("log_plus, lam 1")
    changes = [found["log_plus, lam 1", seed].test.welfare - found["log_loss", seed].test.welfare for seed in (0, 1)]
    assert swept.result.baseline == "log_loss"
    difference = setting.difference.welfare
    assert difference.repeats.difference == pytest.approx(np.mean(changes), abs=1e-12)
    half = 12.706 * np.std(changes, ddof=1) / np.sqrt(2)  # Student's t of one degree of freedom
    assert difference.repeats.ci_high - np.mean(changes) == pytest.approx(half, rel=1e-4, abs=1e-12)
    values = [found["log_plus, lam 1", seed].validation.log_loss for seed in (0, 1)]
    assert setting.validation.log_loss.mean == pytest.approx(np.mean(values))
    sources = (difference.repeats, difference.auctions)
    if all(each.known for each in sources):
        assert difference.ci_low == min(each.ci_low for each in sources)
        assert difference.ci_high == max(each.ci_high for each in sources)
    else:
        assert not difference.known


def test_paired_differences_over_auctions_are_those_of_evaluate(swept):
    """One seed alone: the predictions of two trials side by side in one table."""
    folders = [swept.out / "trials" / f"{name}-seed_0" for name in ("log_loss", "log_plus-lam_1")]
    base, mine = (pl.read_parquet(folder / "test.parquet") for folder in folders)
    both = base.with_columns(mine["log_plus"])
    roles = {"click": "click", "bid": "bid", "auction": "auction"}
    expected = bidwise.evaluate(both, ctr=["log_loss", "log_plus"], **roles).comparisons[0].difference
    trials = {trial.name: trial for trial in swept.result.trials}
    changed = trials["log_plus-lam_1-seed_0"].test.welfare - trials["log_loss-seed_0"].test.welfare
    assert changed == pytest.approx(expected, abs=1e-12)


def test_nothing_is_recommended_whose_interval_holds_0(swept):
    """The chosen setting where its test interval against the baseline is above 0; in doubt the baseline."""
    result = swept.result
    other = next(each for each in result.settings if each.difference is not None)
    welfare = other.difference.welfare

    def with_bounds(low, high):
        enough = replace(welfare.auctions, effective_clicks=None, decisive_auctions=900, changed_auctions=900)
        found = replace(welfare, ci_low=low, ci_high=high, difference=(low + high) / 2, auctions=enough)
        setting = replace(other, difference=replace(other.difference, welfare=found))
        settings = tuple(setting if each is other else each for each in result.settings)
        return replace(result, settings=settings, chosen=Chosen(other.name, other.trials[0]))

    assert with_bounds(0.1, 0.3).recommended == other.name
    for bounds in ((-0.1, 0.3), (-0.3, -0.1)):
        assert with_bounds(*bounds).recommended == result.baseline
        assert f"Keep {result.baseline}" in " ".join(text for _, text in verdict(with_bounds(*bounds)))
    assert replace(with_bounds(-0.1, 0.3), baseline=None).recommended == other.name
    assert result_json(result)["recommended"] == result.recommended


def test_the_setting_is_chosen_by_validation_and_never_by_test(swept):
    best = min(swept.result.settings, key=lambda each: each.validation.log_loss.mean)
    assert swept.result.chosen.setting == best.name
    assert swept.result.chosen.trial in best.trials

    def made(name, validation, test):
        scores = [MeanScores.over([Scores(welfare=x, log_loss=x)]) for x in (validation, test)]
        shared = {"loss": name, "complete": True, "seeds": (0,), "trials": (name,)}
        return Setting(name=name, validation=scores[0], test=scores[1], **shared)

    some = [made("a", 1.0, 9.0), made("b", 2.0, 0.0), made("d", float("nan"), 5.0)]
    assert best_setting(some, "welfare").name == "b"
    assert best_setting(some, "log_loss").name == "a"
    assert best_setting(some[2:], "welfare") is None
    assert np.isnan(Mean.over([]).mean)


def test_a_finished_sweep_trains_nothing_and_says_the_same(swept, table):
    before = {path: path.stat().st_mtime_ns for path in (swept.out / "trials").rglob("*")}
    lines = []
    again = sweep(sections_of(table), out=swept.out, say=lines.append)
    assert to_json(again) == to_json(swept.result)
    assert lines == [COUNTED, "6 of 6 trials are finished already"]
    assert {path: path.stat().st_mtime_ns for path in (swept.out / "trials").rglob("*")} == before


def test_another_metric_chooses_again_without_training(swept, table, tmp_path):
    out = copy_of(swept, tmp_path)
    found = sweep(sections_of(table), out=out, by="welfare")
    best = max(found.settings, key=lambda each: each.validation.welfare.mean)
    assert (found.by, found.chosen.setting) == ("welfare", best.name)


def test_longer_lists_train_only_what_is_new(swept, table, tmp_path, inline):
    out = copy_of(swept, tmp_path)
    with pytest.raises(bidwise.InputError, match=r"log_loss-seed_0 with train.epochs = 1 there and 2 here"):
        sweep(sections_of(table, epochs=2), out=out)
    assert "train.epochs" not in read_grid(out / "config.toml").lists
    lines = []
    found = sweep(sections_of(table, LISTS | {"train.lam": [10, 1, 3]}), out=out, say=lines.append)
    assert len([trial.name for trial in found.trials if "lam_3" in trial.name]) == 2
    assert lines[0].startswith("8 trials, not 12")
    assert lines[1] == "6 of 8 trials are finished already"
    assert len(lines) == 4
    assert {path.name for path in (out / "trials").iterdir()} == {trial.name for trial in found.trials}
    fewer = sweep(sections_of(table, LISTS | {"train.lam": [3]}), out=out)
    assert [trial.name for trial in fewer.trials] == names(LISTS | {"train.lam": [3]})


def test_folders_and_tables_of_something_else_are_refused(swept, table, tmp_path):
    with pytest.raises(bidwise.InputError, match="which has a run of another kind"):
        sweep(sections_of(table), out=swept.out / "trials" / "log_loss-seed_0")
    other = tmp_path / "ads.parquet"
    small_market(seed=1).write_parquet(other)
    with pytest.raises(bidwise.InputError, match="began with other rows"):
        sweep(sections_of(other), out=swept.out)
    moved = tmp_path / "moved.parquet"
    shutil.copy(table, moved)
    out = copy_of(swept, tmp_path)
    assert to_json(sweep(sections_of(moved), out=out).settings) == to_json(swept.result.settings)


@pytest.mark.usefixtures("quick_processes")
def test_a_killed_process_is_tried_again_and_ends_as_if_nothing_had_happened(swept, table, tmp_path):
    out = tmp_path / "out"
    killer = Killer(out / "trials" / "log_plus-lam_1-seed_0")
    killer.start()
    lines = []
    found = sweep(sections_of(table), out=out, workers=2, say=lines.append)
    killer.join()
    assert len(killer.killed) == 1
    assert "log_plus-lam_1-seed_0 was killed; it resumes in a new process, try 2 of 3" in lines
    assert without_times(found) == without_times(swept.result)


@pytest.mark.usefixtures("quick_processes")
def test_a_trial_that_is_always_killed_costs_only_itself(table, tmp_path):
    out = tmp_path / "out"
    killer = Killer(out / "trials" / "log_plus-seed_0", times=3, patience=300)
    killer.start()
    lists = {"train.loss": ["log_loss", "log_plus"], "train.seed": [0, 1]}
    sections = sections_of(table, lists, epochs=10, patience=10)  # long enough to be killed
    found = sweep(sections, out=out)
    killer.join()
    assert [trial.name for trial in found.failed] == ["log_plus-seed_0"]
    assert "it was killed 3 times; does it fit into memory?" in found.failed[0].failed
    assert len(killer.killed) == 3
    incomplete = next(each for each in found.settings if not each.complete)
    assert incomplete.seeds == incomplete.difference.seeds == (1,)
    assert found.chosen.setting != incomplete.name
    assert sweep(sections, out=out).failed == []


def test_a_failing_trial_is_told_in_the_end_and_the_others_are_kept(table, tmp_path, capsys, monkeypatch, inline):
    (tmp_path / "sweep.toml").write_text(toml_of(sections_of(table, {"data.categorical": [["site"], ["sight"]]})))
    words = ["bidwise", "sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    words += ["--set", "train.loss=log_loss"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        bidwise.cli.main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert "did you mean 'site'" in printed.err
    assert "1 of 2 trials failed, as categorical_sight" in printed.err
    assert "[2/2] categorical_sight: failed:" in printed.out
    assert "Next: bidwise predict" in printed.out
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [trial["failed"] is None for trial in result["trials"]] == [True, False]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Failed trials" in page
    assert "did you mean" in page


@contextmanager
def endless_sweep(table, folder):
    """The command at work in a trial that never ends, after one that has; and the folder of that trial."""
    sections = sections_of(table, {"train.epochs": [1, 1_000_000]}, loss="log_loss", patience=1_000_000, every=1_000)
    (folder / "sweep.toml").write_text(toml_of(sections))
    words = [
        sys.executable,
        "-m",
        "bidwise",
        "sweep",
        folder / "sweep.toml",
        "--out",
        folder / "out",
        "--device",
        "cpu",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as running:
        try:
            assert running.stdout.readline() == "2 trials\n"
            assert running.stdout.readline().startswith("[1/2] epochs_1: validation log loss")
            endless = folder / "out" / "trials" / "epochs_1000000"
            assert until(lambda: at_work_in(endless))
            yield running, endless
        finally:
            running.kill()


def test_a_sweep_that_is_killed_leaves_no_process_and_what_is_finished(table, tmp_path):
    with endless_sweep(table, tmp_path) as (running, endless):
        running.kill()
        assert until(lambda: not at_work_in(endless))
    assert (tmp_path / "out" / "trials" / "epochs_1" / "result.json").is_file()


def test_a_sweep_that_is_stopped_says_how_to_go_on(table, tmp_path):
    """By SIGTERM; a training is stopped by SIGINT."""
    with endless_sweep(table, tmp_path) as (running, endless):
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=20)
        assert running.returncode == 143
        assert said == "bidwise: stopped; the same command resumes it\n"
        assert not at_work_in(endless)


def test_the_command_says_what_it_found(swept, table, tmp_path, capsys):
    out = copy_of(swept, tmp_path)
    (tmp_path / "sweep.toml").write_text(toml_of(sections_of(table)))
    words = ["sweep", str(tmp_path / "sweep.toml"), "--out", str(out), "--by", "welfare", "--device", "cpu"]
    app(words, exit_on_error=False, result_action="return_value")
    said = capsys.readouterr().out
    for expected in ("Settings on validation auctions", "log_plus, lam 10", "choosing by them would be cheating"):
        assert expected in said
    assert f"Next: bidwise predict {out / 'trials'}" in said


def test_the_page_says_what_seeds_are_and_that_choosing_by_test_is_cheating(swept, table, tmp_path):
    page = (swept.out / "report.html").read_text()
    for words in (
        "choosing by them would be cheating",
        "A seed decides the random split",
        "Settings are compared within a seed",
        "log_plus-lam_10-seed_1",
    ):
        assert words in page
    timed = replace(swept.result, timed=True, seeds=(0,))
    assert any("the split goes by time" in note for note in notes(timed))
    assert any("There is one seed" in note for note in notes(timed))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_the_page_in_a_browser(swept, browser, width, scheme):
    check_in_a_browser(browser, swept.out / "report.html", width, scheme)


def test_a_grid_without_log_loss_has_no_baseline(table, tmp_path, inline):
    found = sweep(sections_of(table, {"train.lam": [1, 10]}, loss="log_plus"), out=tmp_path / "out")
    assert found.baseline is None
    assert "The grid has no log_loss to compare with" in verdict(found)[1][1]
    assert "The grid has no log_loss to compare with" in (tmp_path / "out" / "report.html").read_text()
