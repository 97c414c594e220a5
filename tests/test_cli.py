"""The command as a user types it: files in, a verdict and two files out, and one-line errors."""

import gzip
import json
import pickle
import resource
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
from run_helpers import bidwise_command

import bidwise
from bidwise.cli import reproduce_command, terminal


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


def evaluate(monkeypatch, path, *words, ctr=("model_a", "model_b")):
    asked = ["evaluate", path, "--ctr", *ctr, "--click", "click", "--bid", "bid"]
    return bidwise_command(monkeypatch, *asked, *words)


def test_evaluate_prints_a_verdict_and_writes_its_files(ads, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert evaluate(monkeypatch, ads, "--auction", "auction", "--out", out) in (0, None)
    printed = capsys.readouterr().out
    assert "model_b · ★ highest welfare" in printed
    assert "model_b raises welfare by " in printed
    assert f"{out / 'report.html'}" in printed
    result = json.loads((out / "result.json").read_text())
    assert result["auctions"] == 400
    assert "model_b raises welfare" in (out / "report.html").read_text()
    assert sorted(path.name for path in out.iterdir()) == [
        "environment.json",
        "report.html",
        "result.json",
    ]


def test_the_command_is_the_twin_of_the_function(ads, tmp_path, monkeypatch):
    words = ["--auction", "auction", "--truth", "truth", "--baseline", "model_b", "--slots", "1,0.8,0.6,0.4,0.3,0.2"]
    words += ["--pricing", "vcg", "--reserve", "0.5", "--squash", "0.9", "--calibrate", "platt", "--position", "slot"]
    words += ["--sampling-rate", "0.5", "--weight", "bid"]
    evaluate(monkeypatch, ads, *words, "--out", tmp_path / "out")
    found = bidwise.evaluate(
        ads,
        ctr=["model_a", "model_b"],
        click="click",
        bid="bid",
        auction="auction",
        truth="truth",
        baseline="model_b",
        slots=(1, 0.8, 0.6, 0.4, 0.3, 0.2),
        pricing="vcg",
        reserve=0.5,
        squash=0.9,
        calibrate="platt",
        position="slot",
        sampling_rate=0.5,
        weight="bid",
    )
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    assert written["models"] == json.loads(found.to_json())["models"]
    assert written["comparisons"] == json.loads(found.to_json())["comparisons"]
    assert written["options"]["pricing"] == "vcg"


def test_all_auctions_that_could_be_drawn_from_a_gzipped_csv(tmp_path, monkeypatch, capsys):
    path = tmp_path / "ads.csv.gz"
    path.write_bytes(gzip.compress(table_of().write_csv().encode()))
    evaluate(monkeypatch, path, "--auction-size", "256", "--out", tmp_path / "out")
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["auctions"], result["ads"], result["ads_left_out"]) == (None, 2400, 0)
    table = table_of()
    for model in ("model_a", "model_b"):
        columns = (table[name].to_numpy() for name in (model, "click", "bid"))
        assert result["models"][model]["welfare"] == pytest.approx(bidwise.pooled_welfare(*columns, 256))
    assert "2,400 ads in all auctions of 256 that could be drawn from them" in capsys.readouterr().out


def test_calibration_table(ads, tmp_path, monkeypatch):
    other = tmp_path / "validation.csv"
    table_of(seed=5).write_csv(other)
    words = ["--auction", "auction", "--calibrate", "isotonic", "--calibration-table", other, "--out", tmp_path / "out"]
    evaluate(monkeypatch, ads, *words)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert list(result["models"]) == ["model_a", "model_b", "model_a+isotonic", "model_b+isotonic"]


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({}, ["--auction", "acution"], "has no column 'acution'; did you mean 'auction'?"),
        (
            {"bid": pl.Series([-1.0] + [1.0] * 2399)},
            ["--auction", "auction"],
            "column 'bid', row 0: found -1; a bid must be",
        ),
        (
            {"click": pl.Series([0, 3] * 1200)},
            ["--auction", "auction"],
            "column 'click', row 1: found 3, and 1,199 more rows like it; a click must be 0 or 1",
        ),
        (
            {"model_b": pl.Series([0.5, None] * 1200)},
            ["--auction", "auction"],
            "column 'model_b', row 1: found no value",
        ),
        (
            {"model_b": pl.Series([0.5, 1.01] * 1200)},
            ["--auction", "auction"],
            "row 1: found 1.01, and 1,199 more rows like it; a CTR must be in [0, 1]; per cent? divide by 100",
        ),
        (
            {"slot": pl.Series([9] * 2400)},
            ["--auction", "auction", "--position", "slot"],
            "column 'slot', row 0: found 9",
        ),
        (
            {"click": pl.Series(["0", "maybe"] * 1200)},
            ["--auction", "auction"],
            "column 'click', row 1: found 'maybe', which is not a number; clicks are 0 or 1",
        ),
        ({}, ["--auction", "bid"], "bidwise: --auction must be a column of its own, not that of --bid, found 'bid'"),
        (
            {},
            ["--auction", "auction", "--ctr", "bid"],
            "bidwise: --bid must be a column of its own, not that of --ctr, found 'bid'",
        ),
        ({}, [], "--auction or --auction-size must say which ads compete"),
        ({}, ["--auction-size", "9999"], "--auction-size must be below the number of ads, 2,400, found 9,999"),
        ({}, ["--auction", "auction", "--slots", "1,2"], "--slots must be positive and must not rise"),
        ({}, ["--auction", "auction", "--slots", "1,x"], "--slots must be numbers such as 1,0.8,0.6, found '1,x'"),
        ({}, ["--auction", "auction", "--baseline", "c"], "--baseline must be one of the ctr columns"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys, change, words, message):
    path = tmp_path / "ads.parquet"
    table_of().with_columns(**change).write_parquet(path)
    assert evaluate(monkeypatch, path, *words, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "x.csv", "--ctr", "a"],
        ["evaluate", "--nothing"],
        ["evaluate", "x.csv", "--ctr", "a", "--click", "c", "--bid", "b", "--out", "o", "--pricing", "gps"],
    ],
)
def test_wrong_words_end_with_code_2(monkeypatch, capsys, words):
    assert bidwise_command(monkeypatch, *words) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("bidwise: ")
    assert len(error.splitlines()) == 1


CRITEO = ["reproduce", "criteo", "--out", "OUT"]
TRAIN = ["train", "ads.parquet", "--click", "click", "--bid", "bid", "--out", "OUT"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*CRITEO, "--repeats", "1001"], "--repeats must be at most 1000, found 1001"),
        ([*CRITEO, "--repeats", "2", "--lam-repeats", "3"], "--lam-repeats must be at most --repeats, 2, found 3"),
        ([*CRITEO, "--lams", "0"], "--lams must be finite and above 0, found 0"),
        ([*CRITEO, "--models", ","], "--models must be names, separated by commas or spaces, found none"),
        ([*CRITEO, "--losses", ","], "--losses must be names, separated by commas or spaces, found none"),
        (CRITEO, "--data must be a store that bidwise prepare criteo wrote, or --rows the number of ads"),
        (
            [*CRITEO, "--data", "{x}", "--rows", "99"],
            "--data must be a store that bidwise prepare criteo wrote, or --",
        ),
        (["prepare", "criteo", "lines.txt", "OUT", "--split", "8,2"], "--split must be three shares such as 8,1,1"),
        (["prepare", "criteo", "none.txt", "OUT"], "RAW must be files that exist, found no none.txt"),
        (["prepare", "criteo", "folder", "OUT"], "RAW must be files, found the folder folder"),
        (["prepare", "criteo", "lines.txt", "lines.txt", "OUT"], "RAW must be different files, found lines.txt twice"),
        (["prepare", "criteo", "empty.txt", "OUT"], "RAW must be files with lines, found the empty empty.txt"),
        (["prepare", "criteo", "lines.txt", "ads.parquet"], "OUT must be a folder, found the file ads.parquet"),
        (["prepare", "criteo", "lines.txt", "folder"], "OUT must be a new folder or one of the same options"),
        (["simulate", "criteo", "folder", "--rows", "1"], "OUT must be a file to write, found the folder folder"),
        (["simulate", "criteo", "lines.txt/x", "--rows", "1"], "OUT must be in a folder, found the file "),
        (["simulate", "criteo", "OUT", "--rows", str(10**15)], "--rows must fit on the disk, found 1,000,000,000,000"),
        (
            [*TRAIN, "--set", "epochs=5"],
            "--set must be section.key=value, as train.learning_rate=3e-4, found ",
        ),
        ([*TRAIN, "--set", "trian.lam=5"], "the section of trian.lam must be one of data, model, train, found 'trian'"),
        ([*TRAIN, "--set", "train.seed=-3"], "train.seed must be at least 0, found -3"),
        ([*TRAIN, "--set", "data.bins=1"], "data.bins must be at least 2, found 1"),
        ([*TRAIN, "--seed", "-3"], "--seed must be at least 0, found -3"),
        ([*TRAIN, "--loss", "logplus"], "--loss must be one of log_loss, "),
        ([*TRAIN, "--model", "deepfn"], "--model must be one of "),
        ([*TRAIN, "--slots", "1,x"], "--slots must be a number, found 'x'"),
        (["train", "seed.toml", "--out", "OUT"], "train.seed must be at least 0, found -3"),
    ],
)
def test_errors_name_what_was_typed(ads, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    data = '[data]\ntable = "ads.parquet"\nclick = "click"\nbid = "bid"\n'
    texts = {"lines.txt": "0\n", "empty.txt": "", "folder/other.txt": ""}
    texts |= {"seed.toml": f"{data}[train]\nseed = -3\n"}
    (tmp_path / "folder").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert bidwise_command(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"bidwise: {message}")
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "OUT").exists()


def test_names_of_files_are_left_as_they_are(ads, tmp_path, monkeypatch, capsys):
    words = ["--auction", "auction", "--calibrate", "platt", "--calibration-table", "calibration_table.csv"]
    assert evaluate(monkeypatch, ads, *words, "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err == "bidwise: calibration_table.csv: no such file\n"
    assert evaluate(monkeypatch, ads, "--auction", "auction_size", "--out", tmp_path / "out") == 2
    assert "no column 'auction_size'" in capsys.readouterr().err
    assert bidwise_command(monkeypatch, "evaluate") == 2
    assert capsys.readouterr().err == "bidwise: TABLE is missing; see bidwise evaluate --help\n"


def test_a_missing_option_is_named(monkeypatch, capsys):
    assert bidwise_command(monkeypatch, "evaluate", "x.csv", "--ctr", "a") == 2
    assert capsys.readouterr().err == "bidwise: --click is missing; see bidwise evaluate --help\n"


def test_positional_arguments_are_called_as_the_help_calls_them(ads, monkeypatch, capsys, tmp_path):
    assert bidwise_command(monkeypatch, "predict", tmp_path / "none", ads, "--out", tmp_path / "y.csv") == 2
    assert capsys.readouterr().err.startswith("bidwise: RUN must be a folder of bidwise train, found nothing at ")


def test_errors_keep_their_argument_between_processes():
    error = bidwise.InputError("needs {}, found none", argument="pool_by", others=["auction_size"])
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "pool_by needs auction_size, found none"
    assert again.spelled(str.upper) == "POOL_BY needs AUCTION_SIZE, found none"
    assert str(bidwise.InputError("{braces} stay where no argument is named")) == (
        "{braces} stay where no argument is named"
    )


def test_nothing_but_the_error_goes_to_the_error_stream(ads, tmp_path):
    words = [sys.executable, "-m", "bidwise", "evaluate", ads, "--ctr", "model_a", "--click", "click", "--bid", "bid"]
    failed = subprocess.run(
        [*words, "--auction", "nothing", "--out", tmp_path / "out"], capture_output=True, check=False
    )
    assert failed.returncode == 2
    assert failed.stderr.startswith(b"bidwise: ")
    assert failed.stderr.count(b"\n") == 1


def test_a_reader_who_has_seen_enough_costs_nothing(ads, tmp_path):
    words = f"evaluate {ads} --ctr model_a model_b --click click --bid bid --auction auction --out {tmp_path / 'out'}"
    piped = subprocess.run(
        f"set -o pipefail; {sys.executable} -m bidwise {words} | head -1",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        check=True,
    )
    assert piped.stderr == b""
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "environment.json",
        "report.html",
        "result.json",
    ]


def test_the_result_is_shown_even_if_it_cannot_be_written(ads, tmp_path, monkeypatch, capsys):
    def full_disk(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("bidwise.evaluation.result.Evaluation.write", full_disk)
    assert evaluate(monkeypatch, ads, "--auction", "auction", "--out", tmp_path / "out") == 2
    printed = capsys.readouterr()
    assert "model_b raises welfare" in printed.out
    assert printed.err == "bidwise: No space left on device\n"


def test_an_unreadable_file_is_named(tmp_path, monkeypatch, capsys):
    assert evaluate(monkeypatch, tmp_path / "none.csv", "--auction", "auction", "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err.strip() == f"bidwise: {tmp_path / 'none.csv'}: no such file"


def test_an_older_result_survives_a_failed_run(ads, tmp_path, monkeypatch):
    out = tmp_path / "out"
    evaluate(monkeypatch, ads, "--auction", "auction", "--out", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert evaluate(monkeypatch, ads, "--auction", "auction", "--out", out, ctr=["model_a", "model_z"]) == 2
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_help_answers_in_half_a_second_and_without_torch():
    """In time of the processor: the machine may be busy."""

    def used():
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    times = []
    for _ in range(3):
        start = used()
        shown = subprocess.run(
            [sys.executable, "-m", "bidwise", "evaluate", "--help"], capture_output=True, text=True, check=True
        )
        times.append(used() - start)
    assert "--auction-size" in shown.stdout
    assert min(times) < 0.5
    loaded = "import sys, bidwise.cli; print(sorted({'torch', 'polars', 'matplotlib', 'numpy'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.strip()
        == "[]"
    )


def test_core_modules_need_torch_and_numpy_alone():
    """GPU machines often have nothing else."""
    blocked = ["polars", "cyclopts", "rich", "matplotlib", "jinja2", "pandas", "sklearn", "scipy", "triton"]
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked}))\nimport bidwise\n"
    code += "bidwise.WelfareLoss, bidwise.run_auction, paper.theory, bidwise.diagnose, bidwise.evaluation.Metrics\n"
    code += "bidwise.fit, bidwise.models.MLP, bidwise.data.WORLDS\n"
    code += "import paper.synthetic, paper.regimes, paper.criteo\n"
    code += "import bidwise.data.store, paper.bids, bidwise.kernels.adam_kernels\n"
    code += "import bidwise.kernels.graph, bidwise.kernels.fused_panels\n"
    code += "from paper.criteo_device import simulated_ads\n"
    code += "ads = simulated_ads(1000)\n"
    code += "model = bidwise.models.DeepFM(ads.cardinalities, embedding=2, hidden=(4,))\n"
    code += "bidwise.fit(model, ads.train, loss='log_plus', epochs=1)\n"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there():
    assert [name for name in bidwise.__all__ if not hasattr(bidwise, name)] == []
    assert set(bidwise.__all__) <= set(dir(bidwise))
    with pytest.raises(AttributeError, match="module 'bidwise' has no attribute 'nothing'"):
        _ = bidwise.nothing


def test_a_log_file_gets_lines_of_progress(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "SECONDS", 0)
    with terminal.Bars() as bars:
        bars.show("training", 0.0)
        bars.started["training"] = (time.monotonic() - 400, 0.0)
        bars.show("training", 0.4, "model 2 of 5")
    assert capsys.readouterr().err == "training: 0 %\ntraining: 40 %, model 2 of 5, about 10 min left\n"


def test_a_run_that_resumes_says_so(tmp_path, capsys, monkeypatch):
    for name in ("write_page", "build.write_figures", "experiment_page.experiment_summary"):
        monkeypatch.setattr(f"bidwise.report.{name}", lambda *given: None)
    (tmp_path / "pieces").mkdir()

    def run(show):
        (tmp_path / "result.json").write_text("{}")

    for number, words in ((0, None), (1, "Resuming after 1 part of"), (2, "Resuming after 2 parts of")):
        (tmp_path / "result.json").unlink(missing_ok=True)
        if number:
            (tmp_path / "pieces" / f"{number}.pt").touch()
        reproduce_command._experiment(run, tmp_path)
        told = capsys.readouterr().out
        assert (words in told) if words else ("Resuming" not in told)
    reproduce_command._experiment(run, tmp_path)  # finished: nothing resumes
    assert "Resuming" not in capsys.readouterr().out


def assert_same_json(found, expected, rel=1e-9):
    """Equal but for rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same_json(found[key], expected[key], rel)
    elif isinstance(expected, list):
        for pair in zip(found, expected, strict=True):
            assert_same_json(*pair, rel)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=rel, abs=1e-12, nan_ok=True)
    else:
        assert found == expected


def test_evaluate_does_not_depend_on_the_order_of_rows(tmp_path, monkeypatch):
    """Rounded models and bids, so that ads tie; the log lists clicked ads first, then last, then anywhere."""
    random, auctions, size = np.random.default_rng(0), 300, 6
    truth = random.beta(2, 6, auctions * size)
    table = pl.DataFrame(
        {
            "auction": np.repeat(np.arange(auctions), size),
            "bid": random.integers(1, 3, auctions * size),
            "click": (random.random(auctions * size) < truth).astype(int),
            "anywhere": random.random(auctions * size),
            "coarse": truth.round(1),
            "blurred": np.clip(truth + 0.05 * random.normal(size=len(truth)), 0.01, 0.99).round(1),
            "constant": np.full(len(truth), 0.25),
        }
    )
    found = []
    for key, falling in (("click", True), ("click", False), ("anywhere", False)):
        name = f"{key}{falling}"
        table.sort("auction", key, descending=[False, falling]).write_csv(tmp_path / "ads.csv")
        words = ["--auction", "auction", "--slots", "1,0.6", "--out", tmp_path / name]
        assert evaluate(monkeypatch, tmp_path / "ads.csv", *words, ctr=("coarse", "blurred", "constant")) in (0, None)
        found.append(json.loads((tmp_path / name / "result.json").read_text()))
    for other in found[1:]:
        assert_same_json(other, found[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "a.csv", "--clik", "y"], "--clik. Did you mean --click?"),
        (["evaluate", "a.csv", "--ctr", "p", "--no-hedder"], "--no-hedder. Did you mean --no-header?"),
        (["evaluate", "a.csv", "--zzz"], "--zzz. See bidwise evaluate --help"),
        (["train", "a.csv", "--out", "run", "--epochs=5"], "--epochs. Did you mean --set train.epochs=VALUE?"),
        (["train", "a.toml", "--learning-rat", "1"], "--learning-rat. Did you mean --set train.learning_rate=VALUE?"),
        (["reproduce", "synthetic", "--out", "run", "--sedes", "3"], "--sedes. Did you mean --seed?"),
    ],
)
def test_an_option_that_there_is_not_gets_the_one_that_may_be_meant(words, message, monkeypatch, capsys):
    assert bidwise_command(monkeypatch, *words) == 2
    assert capsys.readouterr().err == f"bidwise: Unknown option: {message}\n"


@pytest.mark.parametrize("command", [["evaluate"], ["train"], ["reproduce", "criteo"], ["prepare", "criteo"]])
def test_help_is_folded_where_it_is_shown_and_not_before(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "2000")
    bidwise_command(monkeypatch, *command, "--help")
    described = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert len(described) > 5
    assert all("--" in line or line.startswith(("│ *  ", "│ PATHS")) for line in described)  # a line for each option


def test_an_evaluation_says_where_it_was_made(ads, tmp_path, monkeypatch):
    evaluate(monkeypatch, ads, "--auction", "auction", "--out", tmp_path / "out")
    made = json.loads((tmp_path / "out" / "environment.json").read_text())
    assert made["bidwise"] == bidwise.__version__
    assert made["command"].startswith("bidwise evaluate ")


def test_evaluate_reads_text_of_any_separator_and_auctions_of_several_columns(ads, tmp_path, monkeypatch):
    table = pl.read_parquet(ads).with_columns(day=pl.col("auction") // 10, request=pl.col("auction") % 10)
    bare = table.select("model_a", "model_b", "click", "bid", "day", "request")
    bare.write_csv(tmp_path / "bare.csv", separator=";", include_header=False)
    words = ["--ctr", "column_1", "column_2", "--click", "column_3", "--bid", "column_4", "--out", tmp_path / "out"]
    words += ["--auction", "column_5", "column_6", "--separator", ";", "--no-header"]
    assert not bidwise_command(monkeypatch, "evaluate", tmp_path / "bare.csv", *words)
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    one = bidwise.evaluate(ads, ctr=["model_a", "model_b"], click="click", bid="bid", auction="auction")
    assert found["models"]["column_2"]["welfare"] == pytest.approx(one.models["model_b"].welfare, rel=1e-12)
    assert found["auctions"] == one.auctions
    assert found["options"]["auction"] == ["column_5", "column_6"]
    assert (found["options"]["separator"], found["options"]["header"]) == (";", False)


def test_all_ads_may_bid_the_same(ads, tmp_path, monkeypatch):
    words = ["--ctr", "model_a", "--click", "click", "--bid", "2", "--auction", "auction", "--out", tmp_path / "out"]
    assert not bidwise_command(monkeypatch, "evaluate", ads, *words)
    table = pl.read_parquet(ads).with_columns(bid=pl.lit(2.0))
    same = bidwise.evaluate(table, ctr="model_a", click="click", bid="bid", auction="auction")
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["models"]["model_a"]["welfare"] == same.models["model_a"].welfare
