"""`sweep` at its edges: URLs, defaults that a grid grows from, trials that fail, words that must be told apart."""

import math
import shutil
import signal
import sys
import threading
from http.server import ThreadingHTTPServer

import pytest
from sweep_helpers import LISTS, market, told, toml_of, without_times
from test_cli import bidwise_command as typed
from test_urls import SECRET, Bucket

import bidwise
from bidwise.report.drawing import Whisker
from bidwise.report.sweep_story import _labels, _uncut
from bidwise.table import predict, trials
from bidwise.table import sweep as sweep_module
from bidwise.table.compare import best_of
from bidwise.table.grid import read_grid
from bidwise.table.sweep import sweep
from bidwise.table.sweep_sentences import verdict

SHARED = {"data": {"click": "y", "bid": "b"}}
LOSSES = {"train.loss": ["log_loss", "log_plus"]}


def grid_of(lists, **sections):
    return read_grid({**SHARED, **sections, "sweep": lists})


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "ads.parquet"
    market().write_parquet(path)
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


def job_of(table, folder):
    (trial,) = read_grid(told(table, {"train.loss": ["log_loss"]})).trials()
    return trials.Job(trial, str(table), folder, "cpu", ["bidwise"])


def test_a_table_by_url_is_read_and_its_signature_is_written_nowhere(host, tmp_path):
    url = f"{host}/ads/log.parquet?{SECRET}"
    sections = told(url, {"train.loss": ["log_loss"], "train.seed": [0, 1]})
    found = sweep(sections, out=tmp_path / "out")
    assert [trial["failed"] for trial in found["trials"]] == [None, None]
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
    assert found["config"]["data.table"] == f"{host}/ads/log.parquet"
    lines = []
    sweep(sections, out=tmp_path / "out", say=lines.append)
    assert lines[-1] == "2 of 2 trials are finished already"


def test_a_grid_grows_from_defaults_that_nobody_said(table, tmp_path):
    out = tmp_path / "out"
    sweep(told(table, LOSSES), out=out)
    (out / "trials" / "log_plus" / "validation.json").unlink()  # it is run again, in its own words
    lines = []
    grown = LOSSES | {"train.lam": [3, 10], "train.sigma": [1.0], "train.precision": ["float32"], "model.std": [1e-4]}
    found = sweep(told(table, grown), out=out, say=lines.append)
    assert [(trial["name"], trial["failed"]) for trial in found["trials"]] == [
        ("log_loss", None),
        ("log_plus", None),
        ("log_plus-lam_10-sigma_1-precision_float32-std_0.0001", None),
    ]
    assert "1 of 3 trials are finished already" in lines


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"model.dropout": [0.1, math.nan]}, "model.dropout must be finite, found nan"),
        ({"model.dropout": [1.5]}, r"model.dropout must be in \[0, 1\), found 1.5, in deepfm"),
        ({"model.embedding": [4, -3]}, "model.embedding must be at least 1, found -3, in deepfm"),
        ({"model.hidden": [[10**12]]}, "must be a model that can be built, found deepfm with hidden = 1000000000000"),
        ({"train.seed": [99999999999999999999]}, r"train.seed must be below 2\^63"),
    ],
)
def test_what_no_trial_could_do_is_refused_before_anything_runs(table, tmp_path, lists, message):
    sections = told(table, lists)
    del sections["model"]
    with pytest.raises(bidwise.InputError, match=message):
        sweep(sections, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_whose_trials_have_no_result_may_be_taken_out(table, tmp_path):
    lists = {"data.categorical": [["site"], ["sight"]]}
    found = sweep(told(table, lists, loss="log_loss"), out=tmp_path / "out")
    assert found["trials"][1]["failed"]
    found = sweep(told(table, {"data.categorical": [["site"]]}, loss="log_loss"), out=tmp_path / "out")
    assert [trial["failed"] for trial in found["trials"]] == [None]
    with pytest.raises(bidwise.InputError, match="may grow but not shrink"):
        sweep(told(table, {"data.categorical": [["brand"]]}, loss="log_loss"), out=tmp_path / "out")


def test_settings_of_the_same_words_are_told_apart():
    found = grid_of({"data.ignore": [["u v"], ["u", "v"]], "train.seed": [0, 1]}).trials()
    assert [trial.setting for trial in found] == ["ignore u v"] * 2 + ['ignore ["u", "v"]'] * 2


def test_the_trials_are_counted_with_the_reason():
    for lists, words in (
        (LISTS, "6 trials, not 8: lam means nothing to log_loss"),
        ({"train.seed": [0]}, "1 trial"),
        ({"model.name": ["logistic_regression", "deepfm"], "model.embedding": [4, 8]}, None),
    ):
        grid = grid_of(lists)
        words = words or "3 trials, not 4: embedding means nothing to logistic_regression"
        assert grid.counted(grid.trials()) == words


def full(*args):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (MemoryError(), "MemoryError"),
        (SystemExit(3), "SystemExit: 3"),
        (RuntimeError("\x1b[36mtwo\x1b[39m\nlines"), "RuntimeError: two lines"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_a_trial_says_what_was_raised_even_on_a_full_disk(table, tmp_path, monkeypatch, raised, words):
    def fail(*args, **options):
        raise raised

    monkeypatch.setattr(trials, "prepare", fail)
    monkeypatch.setattr(sys, "argv", sys.argv)
    job = job_of(table, tmp_path / "trial")
    there = "" if isinstance(raised, OSError) else f"; see {tmp_path / 'trial' / 'error.txt'}"
    assert trials.run(job, 1) == words + there
    monkeypatch.setattr(trials, "write_text", full)
    assert trials.run(job, 1) == words


def test_a_stopped_trial_is_no_failed_one(table, tmp_path, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "prepare", stop)
    monkeypatch.setattr(sys, "argv", sys.argv)
    with pytest.raises(KeyboardInterrupt):
        trials.run(job_of(table, tmp_path / "trial"), 1)


def test_only_what_was_killed_is_called_so():
    assert "does it fit into the memory" in trials.killed(3)
    assert trials.killed(3, -signal.SIGSEGV) == "its process was ended 3 times, by SIGSEGV"
    assert trials.killed(3, 1) == "its process ended 3 times, with exit code 1"


def test_a_table_for_a_configuration_and_a_grid_for_a_training_are_refused_with_what_to_do(
    table, tmp_path, monkeypatch, capsys
):
    (tmp_path / "sweep.toml").write_text(toml_of(told(table)))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for words, message in (
        (["sweep", table], "CONFIG must be a TOML file with a section [sweep], found the table"),
        (["sweep", tmp_path / "binary.toml"], "must be a TOML file, found one that is no text"),
        (["train", tmp_path / "sweep.toml"], "use bidwise sweep"),
    ):
        assert typed(monkeypatch, *words, "--out", tmp_path / "out") == 2
        assert message in " ".join(capsys.readouterr().err.split())


def made(names, by=0.5, seeds=(0, 1)):
    """Settings as `settings_of` makes them, all alike."""
    validation = {"log_loss": {"mean": by, "ci_low": None, "ci_high": None}}
    test = {"welfare": {"mean": 1.0}}
    shared = {"complete": True, "seeds": list(seeds), "validation": validation, "test": test, "difference": None}
    return [shared | {"name": name, "loss": name.split(",")[0]} for name in names]


def result_of(settings, chosen, baseline=None, seeds=(0, 1)):
    return {
        "settings": settings,
        "chosen": {"setting": chosen, "trial": chosen},
        "baseline": baseline,
        "by": "log_loss",
        "seeds": list(seeds),
        "trials": [],
        "grid": {},
        "config": {},
    }


def test_ties_are_called_ties_and_the_first_of_the_grid_is_taken():
    settings = made(["log_loss", "log, lam 1", "log, lam 3"])
    for setting, mean in zip(settings, (0.6, 0.5000004, 0.5), strict=True):
        setting["validation"] = {"log_loss": {"mean": mean}}
    assert best_of(settings, "log_loss")["name"] == "log, lam 1"
    assert verdict(result_of(settings, "log, lam 1"))[0]["text"] == (
        "log, lam 1 is chosen, but tied with log, lam 3: to the digits shown their validation log loss is the same, "
        "0.5, the mean of 2 seeds, and the first of the grid is taken."
    )


def test_one_setting_alone_is_not_compared():
    texts = [each["text"] for each in verdict(result_of(made(["log_loss"]), "log_loss", "log_loss"))]
    assert texts == [
        "log_loss is the only setting: its validation log loss is 0.5, the mean of 2 seeds.",
        "On test its welfare is 1 per auction.",
    ]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_log_loss_that_lacks_seeds_is_not_called_absent(table, tmp_path, monkeypatch, failing):
    """Its trials of the last seeds fail; what is left of it is the baseline."""
    lists = LOSSES | {"train.seed": [0, 1]}

    def some_fail(jobs, workers, say):
        for job in jobs:
            bad = job.trial.name in ("log_loss-seed_1", "log_loss-seed_0")[:failing]
            yield job, "out of luck" if bad else trials.run(job, 1)

    monkeypatch.setattr(sweep_module, "in_processes", some_fail)
    monkeypatch.setattr(sys, "argv", sys.argv)
    found = sweep(told(table, lists), out=tmp_path / "out")
    said = " ".join([*(each["text"] for each in found["verdict"]), *found["notes"]])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The grid has no log_loss" not in said + page
    if failing == 1:
        assert found["baseline"] == "log_loss"
        assert found["settings"][1]["difference"]["seeds"] == [0]
        assert "(in seed 0, which both have)" in said
        assert "log_loss lacks seed 1, whose trials failed" in said
    else:
        assert found["baseline"] is None
        assert "No trial of log_loss has finished" in said
        assert "No trial of log_loss has finished" in page


def test_labels_of_charts_are_whole_and_different(table, tmp_path):
    names = [f"log_plus, lam {lam}, learning_rate {rate}, l2 0" for lam in (1, 3, 10) for rate in (0.001, 0.003)]
    labels = _labels({"settings": [{"name": name} for name in names]})
    assert labels[names[1]] == "lam 1, learning_rate 0.003"
    long = [f"log_plus_teacher, {label}, weights of ads that are long to tell of" for label in labels.values()]
    rows = _uncut([Whisker(name, "+1 %") for name in long])
    assert all(len(row.name) <= (26 if row.words else 56) for row in rows)
    drawn = " ".join(row.name for row in rows if not row.words)
    assert all(name in drawn for name in long)
    sections = told(
        table, LOSSES | {"train.lam": [1, 3], "train.learning_rate": [0.01, 0.02], "train.schedule": ["constant"]}
    )
    sweep(sections, out=tmp_path / "out", settings=["train.epochs=0.5"])
    page = (tmp_path / "out" / "report.html").read_text()
    assert ">log_plus, lam 3, learning_rate 0.02</text>" in page
    assert "…" not in page


def test_stores_of_finished_trials_may_be_deleted(table, tmp_path):
    out = tmp_path / "out"
    before = sweep(told(table, {"train.loss": ["log_loss"]}), out=out)
    store = out / "trials" / "log_loss" / "store"

    shutil.rmtree(store)
    assert len(predict(out / "trials" / "log_loss", table)) == len(market())
    grown = sweep(told(table, LOSSES), out=out)
    assert without_times(grown["trials"][0]) == without_times(before["trials"][0])
    assert grown["trials"][1]["failed"] is None
