"""`sweep` at its edges: URLs, trials that fail, words that must be told apart."""

import math
import re
import shutil
import threading
from http.server import ThreadingHTTPServer

import pytest
from run_helpers import SECRET, Bucket, sections_of, small_market, toml_of, without_times
from run_helpers import bidwise_command as typed

import bidwise
from bidwise.report.sweep_page import labels, notes, verdict
from bidwise.run_folder import read_result
from bidwise.runners import Runner
from bidwise.table import predict
from bidwise.table import sweep as sweep_module
from bidwise.table.grid import read_grid
from bidwise.table.results import Chosen, MeanScores, Scores, Setting, SweepResult, TrainResult
from bidwise.table.sweep import TrialFailed, best_setting, run_trial, sweep

SHARED = {"data": {"click": "y", "bid": "b"}}
LOSSES = {"train.loss": ["log_loss", "log_plus"]}


@pytest.fixture(autouse=True)
def inline(monkeypatch):
    """Trials run in this process, which takes less time; processes have tests of their own."""
    monkeypatch.setattr(sweep_module, "Processes", lambda workers, say: Runner())


def grid_of(lists, **sections):
    return read_grid({**SHARED, **sections, "sweep": lists})


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "ads.parquet"
    small_market().write_parquet(path)
    return path


@pytest.fixture
def host(table, monkeypatch):
    """A web server of this machine that has the table."""
    monkeypatch.setattr(Bucket, "objects", {"ads/log.parquet": table.read_bytes()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def trial_of(table, folder):
    (trial,) = read_grid(sections_of(table, {"train.loss": ["log_loss"]})).trials()
    return {"table": str(table), "config": trial.config, "folder": folder, "device": "cpu", "command": ["bidwise"]}


def test_a_table_by_url_is_read_and_its_signature_is_written_nowhere(host, tmp_path):
    url = f"{host}/ads/log.parquet?{SECRET}"
    sections = sections_of(url, {"train.loss": ["log_loss"], "train.seed": [0, 1]})
    found = sweep(sections, out=tmp_path / "out")
    assert [trial.failed for trial in found.trials] == [None, None]
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
    assert found.config["data.table"] == f"{host}/ads/log.parquet"
    lines = []
    sweep(sections, out=tmp_path / "out", say=lines.append)
    assert lines[-1] == "2 of 2 trials are finished already"


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"model.dropout": [0.1, math.nan]}, "model.dropout must be finite, found nan"),
        ({"model.dropout": [1.5]}, r"dropout must be in \[0, 1\), found 1.5"),
        ({"model.embedding": [4, -3]}, "embedding must be at least 1, found -3"),
        ({"train.seed": [99999999999999999999]}, "train.seed must be at most 9223372036854775807"),
    ],
)
def test_what_no_trial_could_do_is_refused_before_anything_runs(table, tmp_path, lists, message):
    sections = sections_of(table, lists)
    del sections["model"]
    with pytest.raises(bidwise.InputError, match=message):
        sweep(sections, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_settings_of_the_same_words_are_told_apart():
    found = grid_of({"data.ignore": [["u v"], ["u", "v"], ["u,v"]], "train.seed": [0, 1]}).trials()
    assert [trial.setting for trial in found][::2] == ["ignore u v", "ignore u,v", "ignore u,v-2"]


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (MemoryError(), "MemoryError"),
        (SystemExit(3), "SystemExit: 3"),
        (RuntimeError("\x1b[36mtwo\x1b[39m\nlines"), "RuntimeError: two lines"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_a_trial_says_what_was_raised(table, tmp_path, monkeypatch, raised, words):
    def fail(*args, **options):
        raise raised

    monkeypatch.setattr(sweep_module, "run", fail)
    with pytest.raises(TrialFailed, match=f"^{re.escape(words)}$"):
        run_trial(print, **trial_of(table, tmp_path / "trial"))


def test_a_stopped_trial_is_no_failed_one(table, tmp_path, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep_module, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        run_trial(print, **trial_of(table, tmp_path / "trial"))


def test_a_table_for_a_configuration_and_a_grid_for_a_training_are_refused_with_what_to_do(
    table, tmp_path, monkeypatch, capsys
):
    (tmp_path / "sweep.toml").write_text(toml_of(sections_of(table)))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for words, message in (
        (["sweep", table], "must be a TOML file, found: "),
        (["sweep", tmp_path / "binary.toml"], "must be a TOML file, found: "),
        (["train", tmp_path / "sweep.toml"], "use bidwise sweep"),
    ):
        assert typed(monkeypatch, *words, "--out", tmp_path / "out") == 2
        assert message in " ".join(capsys.readouterr().err.split())


def made(name, mean=0.5):
    """A setting of two seeds."""
    scores = MeanScores.over([Scores(welfare=1.0, log_loss=mean)] * 2)
    shared = {"complete": True, "seeds": (0, 1), "trials": (), "validation": scores, "test": scores}
    return Setting(name=name, loss=name.split(",")[0], **shared)


def result_of(settings, chosen, baseline=None):
    return SweepResult(
        settings=tuple(settings),
        chosen=Chosen(chosen, chosen),
        baseline=baseline,
        by="log_loss",
        seeds=(0, 1),
        timed=False,
        trials=(),
        grid={},
        config={},
    )


def test_ties_are_called_ties_and_the_first_of_the_grid_is_taken():
    settings = [made("log_loss", 0.6), made("log, lam 1", 0.5000004), made("log, lam 3", 0.5)]
    assert best_setting(settings, "log_loss").name == "log, lam 1"
    assert verdict(result_of(settings, "log, lam 1"))[0][1] == (
        "log, lam 1 is chosen, but tied with log, lam 3: to the digits shown their validation log loss is the same, "
        "0.5, the mean of 2 seeds, and the first of the grid is taken."
    )


def test_one_setting_alone_is_not_compared():
    assert [text for _, text in verdict(result_of([made("log_loss")], "log_loss", "log_loss"))] == [
        "log_loss is the only setting: its validation log loss is 0.5, the mean of 2 seeds.",
        "On test its welfare is 1 per auction.",
    ]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_log_loss_that_lacks_seeds_is_not_called_absent(table, tmp_path, monkeypatch, failing):
    """Its trials of the last seeds fail; what is left of it is the baseline."""
    lists = LOSSES | {"train.seed": [0, 1]}

    def some_fail(show, folder, **options):
        if folder.name in ("log_loss-seed_1", "log_loss-seed_0")[:failing]:
            raise TrialFailed("out of luck")
        run_trial(show, folder=folder, **options)

    monkeypatch.setattr(sweep_module, "run_trial", some_fail)
    found = sweep(sections_of(table, lists), out=tmp_path / "out")
    said = " ".join([*(text for _, text in verdict(found)), *notes(found)])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The grid has no log_loss" not in said + page
    if failing == 1:
        assert found.baseline == "log_loss"
        assert found.settings[1].difference.seeds == (0,)
        assert "log_loss lacks seed 1, whose trials failed" in said
    else:
        assert found.baseline is None
        assert "No trial of log_loss has finished" in said
        assert "No trial of log_loss has finished" in page


def test_recipes_are_settings_like_others_and_nothing_is_searched(table, tmp_path):
    found = sweep(sections_of(table, {"train.recipe": ["ensemble", "single"]}, members=2), out=tmp_path / "out")
    assert [trial.loss for trial in found.trials] == ["ensemble", "log_loss"]
    assert found.baseline == "single"
    for trial in found.trials:
        result = read_result(tmp_path / "out" / "trials" / trial.name, TrainResult)
        assert (result.search, result.chosen, trial.kept) == (None, trial.loss, trial.loss)
    (trial,) = grid_of({"train.l2": [0.1]}).trials()
    assert (trial.config.train.recipe, trial.config.train.budget) == ("single", 1)


def test_a_sweep_of_which_every_trial_fails_has_a_page(table, tmp_path, monkeypatch):
    def fail(show, **options):
        raise TrialFailed("out of luck")

    monkeypatch.setattr(sweep_module, "run_trial", fail)
    found = sweep(sections_of(table, LOSSES), out=tmp_path / "out")
    assert [trial.failed for trial in found.trials] == ["out of luck"] * 2
    page = (tmp_path / "out" / "report.html").read_text()
    assert "out of luck" in page
    assert "All trials" not in page  # a table without rows


def test_labels_of_charts_are_short_and_different(table, tmp_path):
    names = [f"log_plus, lam {lam}, learning_rate {rate}, l2 0" for lam in (1, 3, 10) for rate in (0.001, 0.003)]
    short = labels(names)
    assert short[names[1]] == "lam 1, learning_rate 0.003"
    sections = sections_of(
        table, LOSSES | {"train.lam": [1, 3], "train.learning_rate": [0.01, 0.02], "train.schedule": ["constant"]}
    )
    sweep(sections, out=tmp_path / "out", settings=["train.epochs=0.5"])
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("lam 3, learning_rate 0.02") > 1


def test_stores_of_finished_trials_may_be_deleted(table, tmp_path):
    out = tmp_path / "out"
    before = sweep(sections_of(table, {"train.loss": ["log_loss"]}), out=out)
    store = out / "trials" / "log_loss" / "store"

    shutil.rmtree(store)
    assert len(predict(out / "trials" / "log_loss", table)) == len(small_market())
    grown = sweep(sections_of(table, LOSSES), out=out)
    assert without_times(grown.trials[0]) == without_times(before.trials[0])
    assert grown.trials[1].failed is None
