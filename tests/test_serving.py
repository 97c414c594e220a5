"""Models outside of training: loaded once, traced by torch, exported to ONNX, scored without torch and polars."""

import csv
import json
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from run_helpers import ROOT, bidwise_command

import bidwise
from bidwise.bridges import onnx_export, scoring
from bidwise.data.columns import Bag, Categorical, Encoder, Numeric, read_numbers, spelled
from bidwise.models import MLP, DCNv2, DeepFM, Ensemble, LogisticRegression, SparseLogisticRegression
from bidwise.table import train
from bidwise.values import number_of, text_of
from paper.dcn import DCN

CARDINALITIES = [5, 40, 300]
EXACT = {"rtol": 0, "atol": 1e-5}


def ids(ads, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(0, values, (ads,), generator=random) for values in CARDINALITIES], dim=1)


def numbers(ads):
    return torch.randn(ads, 4, generator=torch.Generator().manual_seed(0))


def ensemble():
    models = [DCNv2(CARDINALITIES, hidden=(8,), std=0.3), DeepFM(CARDINALITIES, hidden=(8,), std=0.3, seed=1)]
    return Ensemble(models, slope=1.2, intercept=-0.4)


TRACED = {
    "sparse logistic regression": (lambda: SparseLogisticRegression(CARDINALITIES, std=0.3), ids),
    "logistic regression": (lambda: LogisticRegression(4), numbers),
    "mlp": (lambda: MLP(4), numbers),
    "deepfm": (lambda: DeepFM(CARDINALITIES, hidden=(8,), std=0.3), ids),
    "dcn": (lambda: DCN(CARDINALITIES, hidden=(8,), std=0.3), ids),
    "dcnv2": (lambda: DCNv2(CARDINALITIES, hidden=(8,), std=0.3), ids),
    "ensemble": (ensemble, ids),
}


@pytest.mark.parametrize("name", TRACED)
def test_models_can_be_exported_by_torch_for_any_number_of_ads(name):
    make, features = TRACED[name]
    model = make().eval()
    program = torch.export.export(model, (features(7),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    for ads in (1, 0, 50):
        torch.testing.assert_close(program.module()(features(ads)), model(features(ads)))


@pytest.mark.parametrize("name", TRACED)
def test_models_compile_to_one_graph(name):
    make, features = TRACED[name]
    model = make().eval()
    torch._dynamo.reset()
    backend = "aot_eager" if name == "dcn" else "eager"
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=True)
    for ads in (7, 50):
        torch.testing.assert_close(compiled(features(ads)), model(features(ads)))


def logged(ads=3000, seed=0):
    """Text, whole numbers that are names, numbers, booleans, dates, and some of all of them missing."""
    random = np.random.default_rng(seed)
    site, zone, age = random.integers(0, 8, ads), random.integers(0, 30, ads), random.normal(size=ads)
    logit = -1.5 + 0.3 * (site - 4) + 0.05 * (zone - 15) + 0.7 * age
    frame = pl.DataFrame(
        {
            "site": [f"s{k}" for k in site],
            "zone_id": zone * 11,
            "version": (zone % 7) / 2,
            "mobile": random.random(ads) < 0.5,
            "age": age,
            "depth": random.integers(0, 100_000, ads),
            "day": [date(2026, 1, 1) + timedelta(days=int(k)) for k in random.integers(0, 90, ads)],
            "bid": np.exp(0.4 * random.normal(size=ads)),
            "click": (random.random(ads) < 1 / (1 + np.exp(-logit))).astype(int),
        }
    )
    missing = {name: random.random(ads) < 0.03 for name in ("site", "zone_id", "mobile", "age", "depth")}
    return frame.with_columns(
        pl.when(pl.Series(gone)).then(None).otherwise(pl.col(name)).alias(name) for name, gone in missing.items()
    )


def unseen(ads=200):
    """New rows, some of them with values that training did not see."""
    odd = {"site": "s99", "zone_id": 12345, "version": 0.00001, "age": 1e9, "depth": -5}
    some = pl.int_range(pl.len()) % 9 == 0
    changes = [pl.when(some).then(pl.lit(value)).otherwise(pl.col(name)).alias(name) for name, value in odd.items()]
    return logged(ads, seed=1).with_columns(changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An ensemble, calibrated."""
    folder = tmp_path_factory.mktemp("serving") / "run"
    options = {"model": "dcnv2", "hidden": [16], "epochs": 2, "members": 2, "learning_rate": 0.02}
    named = {"categorical": ["site", "zone_id", "version", "mobile"], "numeric": ["age", "depth"]}
    train(logged(), out=folder, click="click", bid="bid", recipe="ensemble", **options, **named)
    return folder


@pytest.fixture(scope="module")
def file(run):
    path = run.parent / "exported" / "ctr.onnx"
    assert onnx_export.export_onnx(run, path).difference <= 1e-5
    return path


@pytest.fixture(scope="module")
def expected(run):
    ctr = bidwise.table.predict(run, unseen())["ctr"].to_numpy()
    assert ctr.std() > 0.02
    return ctr


def test_a_loaded_model_predicts_any_kind_of_table(run, expected, tmp_path):
    model, table = bidwise.load(run), unseen()
    assert model.columns == ["site", "zone_id", "version", "mobile", "age", "depth"]
    table.write_parquet(tmp_path / "new.parquet")
    table.write_csv(tmp_path / "new.csv")
    frames = [table, table.lazy(), table.to_dict(as_series=False), tmp_path / "new.parquet", str(tmp_path / "new.csv")]
    for given_table in [*frames, pd.DataFrame(table.to_dict(as_series=False))]:
        ctr = model.predict(given_table)
        assert ctr.dtype == np.float64
        np.testing.assert_allclose(ctr, expected, rtol=0, atol=1e-7)
    one_by_one = [float(model.predict(table[row])[0]) for row in range(20)]
    np.testing.assert_allclose(one_by_one, expected[:20], rtol=0, atol=1e-7)
    assert model.predict(table.clear()).shape == (0,)
    assert len(repr(model)) < 500, "no weights and no vocabulary"


def test_a_loaded_model_says_which_columns_are_missing_and_reads_no_others(run, expected):
    model, table = bidwise.load(run), unseen()
    with pytest.raises(bidwise.InputError, match="table has no column 'site', 'age'; did you mean 'sites'"):
        model.predict(table.rename({"site": "sites", "age": "years"}))
    with pytest.raises(bidwise.InputError, match="table has no column 'age'; it has"):
        model.predict(table.select("site", "zone_id", "version", "mobile", "depth").to_dict(as_series=False))
    odd, gone = ({**table.head(2).to_dict(as_series=False), "age": ["1", age]} for age in ("x", None))
    np.testing.assert_array_equal(model.predict(odd), model.predict(gone))
    with pytest.raises(bidwise.InputError, match="must be a file, a polars or pandas frame, or a mapping"):
        model.predict(3)
    np.testing.assert_array_equal(model.predict(table.with_columns(more=pl.lit(1))), expected)
    columns = table.to_dict(as_series=False)
    np.testing.assert_allclose(model.predict(columns | {"note": 3, "short": [1], "odd": [object()]}), expected, **EXACT)
    frame = pd.DataFrame(columns)
    frame[0] = [{"a": 1}, 2] * 100
    frame["unit"] = pd.Series([1 + 2j] * 200)
    np.testing.assert_allclose(model.predict(frame), expected, **EXACT)
    one, other = ({**table.head(1).to_dict(as_series=False), "site": [word]} for word in ("never", "nowhere"))
    assert model.predict(one) == model.predict(other)


def test_threads_share_a_model(run, file, expected):
    model, scorer, table = bidwise.load(run), scoring.Scorer(file), unseen()
    columns = table.to_dict(as_series=False)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: model.predict(table) if k % 2 else scorer.score(columns), range(32)))
    for ctr in found:
        np.testing.assert_allclose(ctr, expected, **EXACT)
    assert not model.network.training


ODD = st.one_of(
    st.none(),
    st.text(max_size=6),
    st.from_regex(r"\A[ ]?-?[0-9]{1,3}(\.0{0,3})?[ ]?\Z"),
    st.sampled_from(["\x1c7", "7\x1f", "\x1d", "\x1ea", "\xa07", "\x857\u3000", "\u200b7"]),
    st.sampled_from(["True", "TRUE", "true", "tRue", "", " ", "NaN", "7", "7.0", "1e-05", "inf"]),
)
KINDS = {
    "text": (ODD, pl.String),
    "whole": (st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), pl.Int64),
    "decimal": (st.one_of(st.none(), st.floats(), st.integers(-50, 50).map(float)), pl.Float64),
    "boolean": (st.one_of(st.none(), st.booleans()), pl.Boolean),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_values_one_by_one_have_the_names_that_polars_gives_them(kind, data):
    values, dtype = KINDS[kind]
    drawn = data.draw(st.lists(values, max_size=20))
    column = pl.Series(drawn, dtype=dtype)
    for spelling in ("text", "number"):
        assert [text_of(x, spelling == "number") for x in drawn] == spelled(column, spelling).to_list()
    np.testing.assert_array_equal([number_of(x) for x in drawn], read_numbers(column)[0])


def test_values_lose_the_spaces_that_polars_strips():
    letters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert [text_of(letter) is None for letter in letters] == spelled(pl.Series(letters)).is_null().to_list()


def test_a_scorer_has_the_ids_of_the_encoder():
    """Also of narrow numbers in arrays."""
    encoder = Encoder(
        (
            Categorical("a", ["7", "x"], "number"),
            Numeric("b", (0.1, 2.5)),
            Bag("c", ["7", "8"], "number", slots=2, separator=" "),
        )
    )
    scorer = scoring.Scorer.__new__(scoring.Scorer)
    scorer.crosses = []
    scorer.columns = {column["name"]: scoring._ids(column) for column in encoder.to_json()["columns"]}
    rows = {
        "a": ["7.0", "x", "?", "-", "y", "+7", ""],
        "b": ["0,1", "2.6", -1, "-1,0", "many", None, "1e400"],
        "c": ["7 8 7", "7.0 NA 8", "", None, "9", "8", "NA"],
    }
    expected = [encoder.encode(pl.DataFrame({name: map(str, [v]) if v is not None else [None] for name, v in
                zip(rows, row, strict=True)})).ids[0].tolist() for row in zip(*rows.values(), strict=True)]  # fmt: skip
    assert scorer.encode(rows).tolist() == expected
    narrow = np.array([0.1, 2.5, np.nan], dtype=np.float32)
    table = pl.DataFrame({"a": [7, 8, 7], "b": narrow, "c": [[7], [], [8, 9]]})
    given = {"a": np.array([7, 8, 7]), "b": narrow, "c": table["c"].to_list()}
    assert scorer.encode(given).tolist() == encoder.encode(table).ids.tolist()


def test_an_export_is_a_graph_and_its_encoder(file, run):
    about = json.loads(file.with_suffix(".json").read_text())
    assert about["format"] == "bidwise scorer"
    assert about["columns"] == bidwise.load(run).encoder.to_json()["columns"]
    assert about["model"] == {"members": ["dcnv2", "dcnv2"], "recipe": "ensemble", "loss": "log_loss"}
    assert list(about)[-1] == "checksum"
    assert 0 <= about["difference"] <= 1e-5
    session = scoring.Scorer(file).session
    assert [(x.name, x.shape, x.type) for x in session.get_inputs()] == [("ids", ["ads", 6], "tensor(int64)")]
    assert [(x.name, x.shape) for x in session.get_outputs()] == [("ctr", ["ads"])]
    page = (ROOT / "docs" / "guides" / "serving.md").read_text()
    assert [key for key in about if f"`{key}`" not in page] == []


def test_an_export_that_scores_otherwise_is_not_written(run, file, tmp_path, monkeypatch):
    wrong = scoring.Scorer.ctr
    graph = SimpleNamespace(save=lambda path, external_data: path.write_bytes(file.read_bytes()))
    monkeypatch.setattr(onnx_export, "_graph", lambda model: graph)
    monkeypatch.setattr(scoring.Scorer, "ctr", lambda self, ids: wrong(self, ids) + 2e-5)
    with pytest.raises(bidwise.InputError, match=r"must score in onnxruntime as in torch to 1e-05, found a CTR of"):
        onnx_export.export_onnx(run, tmp_path / "ctr.onnx")
    assert list(tmp_path.iterdir()) == []
    assert bidwise_command(monkeypatch, "export", run, "--onnx", tmp_path / "ctr.txt") == 2
    assert bidwise_command(monkeypatch, "export", tmp_path / "none", "--onnx", tmp_path / "ctr.onnx") == 2


def test_a_scorer_refuses_what_it_cannot_use(file, tmp_path):
    scorer, columns = scoring.Scorer(file), unseen(3).to_dict(as_series=False)
    for changed, words in (
        ({"sites": columns["site"]}, "has no column 'site'.*did you mean 'sites'"),
        ({**columns, "age": [1.0]}, "columns must be of one length, found site: 3"),
        ({**columns, "site": [b"a", b"b", b"c"]}, "column 'site': values must be text, numbers or booleans"),
        ({**columns, "site": np.array(["2026-01-01"] * 3, "datetime64[D]")}, "column 'site': must be a list or an arr"),
    ):
        with pytest.raises(bidwise.InputError, match=words):
            scorer.score(changed)
    assert scorer.score({name: [] for name in columns}).shape == (0,)
    for name in ("ctr.onnx", "ctr.json"):
        (tmp_path / name).write_bytes(file.with_name(name).read_bytes())
    about = json.loads((tmp_path / "ctr.json").read_text())
    del about["checksum"]
    onnx_export._write_encoder(tmp_path / "ctr.json", about | {"version": 9}, tmp_path / "ctr.onnx")
    with pytest.raises(bidwise.InputError, match="must be a scorer of version 4"):
        scoring.Scorer(tmp_path / "ctr.onnx")
    (tmp_path / "ctr.json").unlink()
    with pytest.raises(bidwise.InputError, match="file must be a model of bidwise export"):
        scoring.Scorer(tmp_path / "ctr.onnx")


@pytest.mark.parametrize("name", ["ctr.onnx", "ctr.json"])
def test_a_scorer_rejects_every_flipped_bit(file, tmp_path, name):
    for each in ("ctr.onnx", "ctr.json"):
        (tmp_path / each).write_bytes(file.with_name(each).read_bytes())
    content = (tmp_path / name).read_bytes()
    bits = random.Random(0).sample(range(8 * len(content)), 400)
    bits += range(8 * len(content) - 256, 8 * len(content))  # where the checksum is
    for bit in bits:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(bidwise.InputError, match=name):
            scoring.Scorer(tmp_path / "ctr.onnx")


def test_a_scorer_returns_no_ctr_that_is_not_finite(file):
    scorer = scoring.Scorer(file)
    scorer.session = SimpleNamespace(run=lambda *_: [np.array([0.1, np.nan, 0.2], np.float32)])
    with pytest.raises(bidwise.InputError, match="found nan in row 1"):
        scorer.ctr(np.zeros((3, 6), np.int64))


def test_a_scorer_takes_arrays_as_well_as_lists(file, expected):
    table = unseen()
    arrays = {name: table[name].to_numpy() for name in scoring.Scorer(file).columns}
    np.testing.assert_allclose(scoring.Scorer(file, threads=2).score(arrays), expected, **EXACT)


@pytest.mark.parametrize(
    ("column", "dtype"), [("site", "string"), ("site", "object"), ("age", "Float64"), ("age", "O")]
)
def test_a_scorer_takes_the_missing_values_of_pandas(run, file, column, dtype):
    plain = unseen(3).to_dict(as_series=False)
    given = plain | {column: pd.Series([pd.NA, *plain[column][1:]], dtype=dtype)}
    expected = scoring.Scorer(file).score(plain | {column: [None, *plain[column][1:]]})
    np.testing.assert_array_equal(scoring.Scorer(file).score(given), expected)
    np.testing.assert_array_equal(scoring.Scorer(file).score(given | {column: list(given[column])}), expected)
    np.testing.assert_allclose(bidwise.load(run).predict(given), expected, **EXACT)


def test_nullable_ids_keep_their_digits():
    ids = scoring._listed(pd.Series([2**53 + 1, None], dtype="Int64"))
    assert [text_of(each) for each in ids] == [str(2**53 + 1), None]


def test_scoring_needs_numpy_and_onnxruntime_alone(file, expected):
    blocked = ["torch", "polars", "pandas", "pyarrow", "onnx", "onnxscript", "matplotlib", "sklearn", "scipy"]
    code = f"""
import json, sys
sys.modules.update(dict.fromkeys({blocked}))
import bidwise
print(bidwise.Scorer({str(file)!r}).score(json.load(sys.stdin)).tolist())
print([name for name in {blocked} if sys.modules.get(name) is not None])
"""
    columns = json.dumps({name: unseen()[name].to_list() for name in scoring.Scorer(file).columns})
    done = subprocess.run([sys.executable, "-c", code], input=columns, capture_output=True, text=True, check=True)
    scores, imported = map(json.loads, done.stdout.splitlines())
    np.testing.assert_allclose(scores, expected, **EXACT)
    assert imported == []


def test_the_page_on_serving_quotes_the_benchmark():
    page = (ROOT / "docs" / "guides" / "serving.md").read_text()
    with (ROOT / "benchmarks" / "results" / "serving.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    many = {(row["method"], row["encoding"], row["model"]): row for row in rows if row["ads"] == "20000"}
    shown = [row for row in rows if row["ads"] == "100"]
    assert len(shown) == len(many) == 12
    for row in shown:
        rate = float(many[row["method"], row["encoding"], row["model"]]["rows_per_second"])
        numbers = f"{float(row['ms_p50']):.2f} | {float(row['ms_p99']):.2f} | {round(rate, -3):,.0f}"
        assert f"| {row['method']} | {row['model']} | {row['encoding']} | {numbers} |" in page


def test_the_page_on_serving_runs(run, file, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    unseen(50).write_csv("new.csv")
    page = (ROOT / "docs" / "guides" / "serving.md").read_text()
    names = {"new": unseen(50)}
    for language, block in re.findall(r"```(python|sh)\n(.*?)```", page, flags=re.DOTALL):
        if language == "python":
            exec(block, names)  # the documents are ours
        else:
            for line in block.splitlines():
                if line.startswith("bidwise "):
                    assert bidwise_command(monkeypatch, *line.split()[1:]) == 0
    np.testing.assert_allclose(names["ctr"], names["scores"], **EXACT)
    assert "scores differ from torch's by" in capsys.readouterr().out
