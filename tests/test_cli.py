"""The commands as a user types them: files in, a verdict and files out, and one-line errors."""

import gzip
import json
import pickle
import resource
import subprocess
import sys
from typing import get_args, get_type_hints

import numpy as np
import polars as pl
import pytest
from run_helpers import bidwise_command

import bidwise
from bidwise.cli import terminal
from bidwise.cli.train_command import TrainOptions
from bidwise.models import MODELS
from bidwise.table import config

WRITTEN = ["environment.json", "report.html", "result.json"]


def table_of(auctions=400, size=6, seed=0):
    random = np.random.default_rng(seed)
    ads = auctions * size
    logit = random.normal(size=ads) - 1
    ctr = {
        f"model_{name}": 1 / (1 + np.exp(-logit - x * random.normal(size=ads))) for name, x in (("a", 1.5), ("b", 0.1))
    }
    return pl.DataFrame(
        {
            "auction": np.repeat(np.arange(auctions), size),
            "bid": np.exp(0.5 * random.normal(size=ads)),
            "click": (random.random(ads) < 1 / (1 + np.exp(-logit))).astype(int),
            "slot": np.tile(np.arange(1, size + 1), auctions),
            "truth": 1 / (1 + np.exp(-logit)),
            **ctr,
        }
    )


@pytest.fixture
def ads(tmp_path):
    path = tmp_path / "ads.parquet"
    table_of().write_parquet(path)
    return path


def evaluate(monkeypatch, path, *words, ctr=("model_a", "model_b"), click="click", bid="bid"):
    asked = ["evaluate", path, "--ctr", *ctr, "--click", click, "--bid", bid]
    return bidwise_command(monkeypatch, *asked, *words)


def read(folder):
    return json.loads((folder / "result.json").read_text())


def test_evaluate_prints_a_verdict_and_writes_its_files(ads, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert evaluate(monkeypatch, ads, "--auction", "auction", "--out", out) in (0, None)
    printed = capsys.readouterr().out
    assert "model_b · ★ best" in printed
    assert "model_b raises welfare by " in printed
    assert f"{out / 'report.html'}" in printed
    assert read(out)["auctions"] == 400
    assert "model_b raises welfare" in (out / "report.html").read_text()
    made = json.loads((out / "environment.json").read_text())
    assert made["bidwise"] == bidwise.__version__
    assert made["command"].startswith("bidwise evaluate ")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert sorted(before) == WRITTEN
    assert evaluate(monkeypatch, ads, "--auction", "auction", "--out", out, ctr=["model_a", "model_z"]) == 2
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before  # an older result survives a failure


def test_the_command_is_the_copy_of_the_function(ads, tmp_path, monkeypatch):
    options = {"truth": "truth", "baseline": "model_b", "pricing": "vcg", "reserve": 0.5, "squash": 0.9}
    options |= {"position": "slot", "sampling_rate": 0.5, "weight": "bid"}
    options |= {"auction": "auction"}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    evaluate(monkeypatch, ads, *words, "--slots", "1,0.8,0.6,0.4,0.3,0.2", "--out", tmp_path / "out")
    options |= {"ctr": ["model_a", "model_b"], "click": "click", "bid": "bid", "slots": (1, 0.8, 0.6, 0.4, 0.3, 0.2)}
    found, written = json.loads(bidwise.evaluate(ads, **options).to_json()), read(tmp_path / "out")
    assert (written["models"], written["comparisons"]) == (found["models"], found["comparisons"])
    assert written["options"]["pricing"] == "vcg"


def test_every_possible_auction_of_a_gzipped_csv(tmp_path, monkeypatch, capsys):
    path = tmp_path / "ads.csv.gz"
    path.write_bytes(gzip.compress(table_of().write_csv().encode()))
    evaluate(monkeypatch, path, "--auction-size", "256", "--out", tmp_path / "out")
    result = read(tmp_path / "out")
    assert (result["auctions"], result["ads"]) == (None, 2400)
    table = table_of()
    for model in ("model_a", "model_b"):
        columns = (table[name].to_numpy() for name in (model, "click", "bid"))
        assert result["models"][model]["welfare"] == pytest.approx(bidwise.pooled_welfare(*columns, 256))
    assert "2,400 ads" in capsys.readouterr().out


REAL = ["--auction", "auction"]
TRAIN = ["train", "ads.parquet", "--click", "click", "--bid", "bid"]


# The wording of errors is tested here; other files test which argument they name.
@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({}, ["--auction", "acution"], "has no column 'acution'; did you mean 'auction'?"),
        ({"bid": [-1.0] + [1.0] * 2399}, REAL, "ads.parquet, row 0 (rows count from 0): column 'bid': found -1"),
        ({"click": [0, 3] * 1200}, REAL, "column 'click': found 3; a click must be"),
        ({"model_b": [0.5, None] * 1200}, REAL, "row 1 (rows count from 0): column 'model_b': found no value"),
        ({"model_b": [0.5, 1.01] * 1200}, REAL, "a CTR must be in [0, 1]; per cent? divide by 100"),
        ({"slot": [9] * 2400}, [*REAL, "--position", "slot"], "column 'slot': found 9"),
        ({"click": ["0", "maybe"] * 1200}, REAL, "found 'maybe', which is no number; clicks are 0 or 1"),
        ({}, ["--auction", "bid"], "bidwise: --auction must be a column of its own, not also --bid, found 'bid'"),
        ({}, [*REAL, "--ctr", "bid"], "bidwise: --bid must be a column of its own, not also --ctr, found 'bid'"),
        ({}, [*REAL, "--auction-size", "5"], "--auction cannot be combined with --auction-size"),
        ({}, ["--auction-size", "9999"], "--auction-size must be below the number of ads, 2,400, found 9,999"),
        ({}, [*REAL, "--slots", "1,2"], "--slots must be positive and must not rise"),
        ({}, [*REAL, "--slots", "1,x"], "--slots must be numbers such as 1,0.8,0.6, found '1,x'"),
        ({}, [*REAL, "--baseline", "c"], "--baseline must be one of the ctr columns"),
        ({}, [*REAL, "--pricing", "gps"], "bidwise: "),
    ],
)
def test_bad_input_of_evaluate_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys, change, words, message):
    path = tmp_path / "ads.parquet"
    table_of().with_columns(**{name: pl.Series(values) for name, values in change.items()}).write_parquet(path)
    assert evaluate(monkeypatch, path, *words, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate"], "TABLE is missing; see bidwise evaluate --help"),
        (["evaluate", "x.csv", "--ctr", "a"], "--click is missing; see bidwise evaluate --help"),
        (["evaluate", "none.csv", "--ctr", "a", "--click", "c", "--bid", "b"], "none.csv: no such file"),
        (["evaluate", "a.csv", "--clik", "y"], "Unknown option: --clik; did you mean --click?"),
        (["evaluate", "a.csv", "--ctr", "p", "--no-hedder"], "Unknown option: --no-hedder; did you mean --no-header?"),
        (["evaluate", "a.csv", "--zzz"], "Unknown option: --zzz; see bidwise evaluate --help"),
        (["train", "a.csv", "--epochs=5"], "Unknown option: --epochs; see bidwise train --help; settings without an "),
        (
            ["predict", "none", "ads.parquet"],
            "RUN must be the folder of a finished run of bidwise train, found no f",
        ),
        (
            ["predict", "ads.parquet", "ads.parquet"],
            "RUN must be the folder of a finished run of bidwise trai",
        ),
        (
            ["export", "folder"],
            "--out must be a file that ends in .onnx, found 'OUT'",
        ),
        (["train", "none.toml"], "none.toml: no such file"),
        (["train", "ads.parquet", "--click", "clik", "--bid", "bid"], "ads.parquet has no column 'clik'; did you mean"),
        (
            ["evaluate", "ads.parquet", "--ctr", "model_a", "--click", "click", "--bid", "bidd"],
            "ads.parquet has no column 'bidd'; did you mean 'bid'?",
        ),
        (
            [*TRAIN, "--continue", "none"],
            "--continue must be the folder of a finished run of bidwise trai",
        ),
        ([*TRAIN, "--recipe", "best"], 'Invalid value "best" for --recipe'),
        ([*TRAIN, "--model", "xgb"], 'Invalid value "xgb" for --model'),
        ([*TRAIN, "--metric", "f1"], 'Invalid value "f1" for --metric'),
        ([*TRAIN, "--device", "gpu"], "--device must be one of auto, cpu, cuda, found 'gpu'"),
        ([*TRAIN, "--set", "epochs=5"], "--set must be section.key=value, as train.learning_rate=3e-4, found "),
        ([*TRAIN, "--set", "trian.lam=5"], "the section of trian.lam must be one of data, model, train, found 'trian'"),
        ([*TRAIN, "--set", "train.seed=-3"], "train.seed must be at least 0, found -3"),
        ([*TRAIN, "--set", "data.bins=1"], "data.bins must be at least 2, found 1"),
        ([*TRAIN, "--seed", "-3"], "--seed must be at least 0, found -3"),
        ([*TRAIN, "--loss", "logplus"], "--loss must be one of log_loss, "),
        ([*TRAIN, "--slots", "1,x"], "--slots must be a number, found 'x'"),
        (["train", "seed.toml"], "train.seed must be at least 0, found -3"),
    ],
)
def test_errors_name_what_was_typed(ads, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    text = '[data]\ntable = "ads.parquet"\nclick = "click"\nbid = "bid"\n[train]\nseed = -3\n'
    (tmp_path / "seed.toml").write_text(text)
    (tmp_path / "folder").mkdir()
    typed = words if words[0] == "evaluate" and len(words) < 5 else [*words, "--out", "OUT"]
    assert bidwise_command(monkeypatch, *typed) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"bidwise: {message}")
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "OUT").exists()


def test_errors_keep_their_argument_between_processes():
    error = bidwise.InputError("needs {}, found none", argument="time_format", others=["time"])
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "time_format needs time, found none"
    assert again.spelled(str.upper) == "TIME_FORMAT needs TIME, found none"
    assert str(bidwise.InputError("{braces} stay")) == "{braces} stay"  # no argument is named


def test_a_reader_who_has_seen_enough_costs_nothing(ads, tmp_path):
    words = f"evaluate {ads} --ctr model_a model_b --click click --bid bid --auction auction --out {tmp_path / 'out'}"
    shell = f"set -o pipefail; {sys.executable} -m bidwise {words} | head -1"
    piped = subprocess.run(shell, shell=True, executable="/bin/bash", capture_output=True, check=True)
    assert piped.stderr == b""
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == WRITTEN


def test_the_result_is_shown_even_if_it_cannot_be_written(ads, tmp_path, monkeypatch, capsys):
    def full_disk(*_):
        raise OSError(28, "No space left on device", "out/result.json.part")

    monkeypatch.setattr("bidwise.evaluation.result.Evaluation.write", full_disk)
    assert evaluate(monkeypatch, ads, *REAL, "--out", tmp_path / "out") == 2
    printed = capsys.readouterr()
    assert "model_b raises welfare" in printed.out
    assert printed.err == "bidwise: out/result.json: No space left on device\n"


def test_help_answers_in_half_a_second_and_without_torch():
    """In time of the processor: the machine may be busy."""

    def used():
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    times, run = [], {"capture_output": True, "text": True, "check": True}
    for _ in range(3):
        start = used()
        shown = subprocess.run([sys.executable, "-m", "bidwise", "evaluate", "--help"], **run)
        times.append(used() - start)
    assert "--auction-size" in shown.stdout
    assert min(times) < 0.5
    loaded = "import sys, bidwise.cli; print(sorted({'torch', 'polars', 'matplotlib', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", loaded], **run).stdout.strip() == "[]"


def test_core_modules_need_torch_and_numpy_alone():
    """GPU machines often have nothing else. Nor do losses need the compiler of torch, which takes a second."""
    blocked = ["polars", "cyclopts", "rich", "matplotlib", "jinja2", "pandas", "sklearn", "scipy", "triton", "tomli_w"]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({blocked}))
import tempfile, torch, bidwise
bidwise.WelfareLoss()(torch.zeros(2, requires_grad=True), torch.eye(2)[0], torch.ones(2)).backward()
assert "torch._dynamo" not in sys.modules
bidwise.run_auction, bidwise.diagnose, bidwise.evaluation.Metrics, bidwise.fit, bidwise.models.MLP, bidwise.data.WORLDS
import bidwise.data.store, bidwise.kernels.adam_kernels, bidwise.kernels.graph
import paper.theory, paper.synthetic, paper.regimes, paper.criteo, paper.bids
from paper.criteo_device import simulated_ads
ads = simulated_ads(1000)
model = bidwise.models.DeepFM(ads.cardinalities, embedding=2, hidden=(4,))
bidwise.fit(model, ads.train, loss="log_plus", epochs=1, out=tempfile.mkdtemp())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there():
    assert [name for name in bidwise.__all__ if not hasattr(bidwise, name)] == []
    assert set(bidwise.__all__) <= set(dir(bidwise))
    with pytest.raises(AttributeError, match="module 'bidwise' has no attribute 'nothing'"):
        _ = bidwise.nothing


def test_a_log_file_gets_lines_of_progress(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "_SECONDS", 0)
    with terminal.Bars() as bars:
        bars.show("training", 0.0)
        bars.show("training", 0.4, "model 2 of 5")
    assert capsys.readouterr().err == "training: 0 %\ntraining: 40 %, model 2 of 5\n"


@pytest.mark.parametrize(("command", "words"), [("train", "the same command resumes it"), ("try", "no file was writ")])
def test_an_interrupted_command_says_what_became_of_it(command, words, ads, tmp_path, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("bidwise.table.train", stopped)
    monkeypatch.setattr("bidwise.fit", stopped, raising=False)
    typed = ["try"] if command == "try" else ["train", ads, "--click", "click", "--bid", "bid"]
    assert bidwise_command(monkeypatch, *typed, "--out", tmp_path / "out") == 130
    assert capsys.readouterr().err.startswith(f"bidwise: stopped; {words}")


@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_help_is_folded_where_it_is_shown_and_not_before(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "2000")
    bidwise_command(monkeypatch, command, "--help")
    described = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert len(described) > 5
    assert all("--" in line or line.startswith("│ *  ") for line in described)  # a line for each option


def test_evaluate_reads_text_of_any_separator_and_auctions_of_several_columns(ads, tmp_path, monkeypatch):
    table = pl.read_parquet(ads).with_columns(day=pl.col("auction") // 10, request=pl.col("auction") % 10)
    bare = table.select("model_a", "model_b", "click", "bid", "day", "request")
    bare.write_csv(tmp_path / "bare.csv", separator=";", include_header=False)
    words = ["--auction", "column_5", "column_6", "--separator", ";", "--no-header", "--out", tmp_path / "out"]
    columns = {"ctr": ("column_1", "column_2"), "click": "column_3", "bid": "column_4"}
    assert not evaluate(monkeypatch, tmp_path / "bare.csv", *words, **columns)
    found = read(tmp_path / "out")
    one = bidwise.evaluate(ads, ctr=["model_a", "model_b"], click="click", bid="bid", auction="auction")
    assert found["models"]["column_2"]["welfare"] == pytest.approx(one.models["model_b"].welfare, rel=1e-12)
    assert found["auctions"] == one.auctions
    asked = {"auction": ["column_5", "column_6"], "separator": ";", "header": False}
    assert {key: found["options"][key] for key in asked} == asked


def test_options_with_few_values_are_those_of_the_configuration():
    hints = get_type_hints(TrainOptions)
    named = {name: set(get_args(get_args(hints[name])[0])) for name in ("model", "recipe", "metric")}
    assert named == {"model": set(MODELS), "recipe": set(config.RECIPES), "metric": set(config.CRITERIA)}


def test_logs_without_bids_are_evaluated_by_their_clicks(ads, tmp_path, monkeypatch, capsys):
    words = ["evaluate", ads, "--ctr", "model_a", "model_b", "--click", "click", "--auction", "auction"]
    assert bidwise_command(monkeypatch, *words, "--out", tmp_path / "none") in (0, None)
    assert "All ads bid the same: auctions rank by CTR" in capsys.readouterr().out
    assert evaluate(monkeypatch, ads, "--auction", "auction", "--out", tmp_path / "one", bid="1") in (0, None)
    assert read(tmp_path / "none")["models"] == read(tmp_path / "one")["models"]


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_help_fits_two_screens_and_sets_rare_options_apart(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    bidwise_command(monkeypatch, command, "--help")
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 96
    assert shown.index("--click") < shown.index("─ Advanced ─") < shown.index("--separator")
