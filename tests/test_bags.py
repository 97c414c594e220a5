"""Bags: columns of lists are the mean of their values' embeddings, from the file to the served model."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import bidwise
from bidwise.bridges.onnx_export import export_onnx
from bidwise.bridges.scoring import Scorer
from bidwise.cli import app
from bidwise.data import Ads
from bidwise.data.columns import Bag, Categorical, Encoder
from bidwise.data.kinds import Facts
from bidwise.data.store import Store
from bidwise.data.table_files import open_table
from bidwise.losses.named import LOSSES
from bidwise.models import MODELS, DeepFM, SparseLogisticRegression
from bidwise.models.embeddings import folded
from bidwise.report.train_sentences import table_doubts
from bidwise.table import train
from bidwise.table.model import Drift
from bidwise.training.exact import fit_exact
from bidwise.values import SLOTS

ROLES = {"click": "click", "bid": "bid", "auction_size": 8}
FAST = {"loss": "log_loss", "epochs": 4, "batch_size": 128, "learning_rate": 0.02}
SMALL = {"deepfm": {"embedding": 4, "hidden": (8,)}, "dcn": {"hidden": (8,), "cross": 1}}
SMALL |= {"dcnv2": {"hidden": (8,), "cross": 1, "embedding": 4}}


def logged(rows=1500, seed=0, first=0):
    """Ads whose clicks depend on the mean taste of their readers' interests."""
    random = np.random.default_rng(seed)
    taste = np.random.default_rng(9).normal(0, 2.5, 40)
    lists = [(first + random.integers(0, 12, n)).tolist() for n in random.integers(0, 5, rows)]
    logit = np.array([taste[each].mean() if each else -1.0 for each in lists]) - 0.5
    interests = [None if at % 50 == 0 and not x else [f"i{k}" for k in x] for at, x in enumerate(lists)]
    return pl.DataFrame(
        {
            "interests": interests,
            "codes": [[*x, None] for x in lists],
            "site": random.choice(["a", "b", "c"], rows),
            "bid": random.lognormal(0, 0.5, rows),
            "click": (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(int),
        },
        schema_overrides={"interests": pl.List(pl.String), "codes": pl.List(pl.Int64)},
    )


def as_text(table, separator="|"):
    """The same rows as a text file has them."""
    return table.with_columns(pl.col("interests", "codes").cast(pl.List(pl.String)).list.join(separator))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bags")
    logged().write_parquet(folder / "ads.parquet")
    train(folder / "ads.parquet", out=folder / "run", model="deepfm", **ROLES, **FAST, settings=["model.hidden=8"])
    return folder / "run"


def in_pandas(table):
    """As pandas reads lists from a file: arrays of numpy."""
    lists = {"interests", "codes"}
    read = {name: [x if x is None or name not in lists else np.array(x) for x in table[name]] for name in table.columns}
    return pd.DataFrame(read)


def mean_of(vectors, ids):
    """The definition, value by value."""
    values = [x for x in ids if x != 1] or [1]
    return [sum(vectors[x][k] for x in values) / len(values) for k in range(len(vectors[0]))]


# the mean


def test_the_vector_of_a_bag_is_the_mean_of_its_values_and_so_is_its_gradient():
    ids = torch.tensor([[0, 3, 5, 5, 1], [2, 1, 1, 1, 1], [1, 1, 4, 1, 0]])
    bag = DeepFM([3, (6, 4)], embedding=2, hidden=(), std=1.0, seed=3).double().table
    vectors = bag(ids)
    table = bag.weight[3:].tolist()
    expected = [mean_of(table, row[1:]) for row in ids.tolist()]
    torch.testing.assert_close(vectors[:, 1], torch.tensor(expected, dtype=torch.float64))
    assert torch.equal(vectors[:, 0], bag.weight[ids[:, 0]])
    torch.autograd.gradcheck(lambda x: folded(x, ids, [1, 4]), torch.randn(3, 5, 2).double().requires_grad_())
    vectors[:, 1].sum().backward()
    share = torch.zeros(6, dtype=torch.float64)  # value by value: 3, 5, 5; nothing; 4 and a rare one
    for row in ids[:, 1:].tolist():
        values = [x for x in row if x != 1] or [1]
        for x in values:
            share[x] += 1 / len(values)
    torch.testing.assert_close(bag.weight.grad[3:], share[:, None].expand(6, 3))


@pytest.mark.parametrize("name", MODELS)
def test_a_bag_of_one_value_is_a_category(name):
    """In one slot and in four, to the last bit; the order of several changes nothing."""
    options = {**SMALL.get(name, {}), "std": 0.3, "seed": 1}
    plain, one, four = (MODELS[name](c, **options).eval() for c in ([5, 30], [5, (30, 1)], [5, (30, 4)]))
    random = torch.Generator().manual_seed(0)
    ids = torch.stack([torch.randint(0, n, (64,), generator=random) for n in (5, 30)], 1)
    assert torch.equal(plain(ids), one(ids))
    assert torch.equal(plain(ids), four(torch.cat([ids, torch.ones(64, 3, dtype=ids.dtype)], 1)))
    bags = torch.randint(0, 30, (64, 4), generator=random)
    shuffled = torch.stack([row[torch.randperm(4, generator=random)] for row in bags])
    first, second = (four(torch.cat([ids[:, :1], each], 1)) for each in (bags, shuffled))
    torch.testing.assert_close(first, second)
    assert (first - plain(ids)).abs().max() > 1e-3


def test_ids_and_slots_that_no_bag_has_are_refused():
    model = DeepFM([5, (30, 4)], embedding=2, hidden=())
    with pytest.raises(bidwise.InputError, match=r"\(ads, 5\), found \(1, 2\)"):
        model(torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(bidwise.InputError, match=r"below 30 in field 3, found 30 at \[0, 3\]"):
        model(torch.tensor([[0, 0, 0, 30, 0]]))
    with pytest.raises(bidwise.InputError, match="slots must be at most 1000"):
        DeepFM([5, (30, 1001)])


def bag_ads(ads=3000, seed=0):
    random = torch.Generator().manual_seed(seed)
    bags = torch.randint(2, 14, (ads, 3), generator=random)
    bags[torch.rand(ads, 3, generator=random) < 0.4] = 1
    taste = 2 * torch.randn(14, generator=torch.Generator().manual_seed(7))
    ctr = torch.sigmoid(torch.tensor([mean_of(taste[:, None].tolist(), row)[0] for row in bags.tolist()]))
    features = torch.cat([torch.randint(0, 4, (ads, 1), generator=random), bags], 1).int()
    return Ads.of(features, (torch.rand(ads, generator=random) < ctr).double(), torch.ones(ads).double()), ctr


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_a_regression_adds_up_the_values_of_a_bag_or_averages_them(power):
    model = SparseLogisticRegression([4, (14, 3)], std=1.0).double()
    model.power.fill_(power)
    ids = torch.tensor([[0, 3, 5, 5], [2, 4, 1, 1], [3, 1, 1, 1], [1, 1, 0, 9]])
    weights = model.table.weight[:, 0].tolist()
    bags = [[3, 5, 5], [4], [1], [0, 9]]  # without a value that of missing ones
    sums = [sum(weights[4 + x] for x in bag) / len(bag) ** power for bag in bags]
    expected = [weights[first] + part for first, part in zip([0, 2, 3, 1], sums, strict=True)]
    torch.testing.assert_close(model(ids), model.bias + torch.tensor(expected, dtype=torch.float64))
    ads = Ads(ids.repeat(500, 1).int(), (torch.arange(2000) % 3 == 0).float(), torch.ones(2000))
    fit_exact(model, ads, loss=LOSSES["log_loss"], l2=1e-3)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ads.features), ads.labels.double())
    (loss + 1e-3 * model.table.weight.square().sum()).backward()
    assert max(p.grad.abs().max() for p in model.parameters()) < 1e-5


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_whether_values_add_up_is_found_from_clicks(power):
    random = torch.Generator().manual_seed(1)
    ads, _ = bag_ads(20_000)
    known = ads.features[:, 1:] != 1
    taste = torch.randn(14, generator=random)[ads.features[:, 1:]] * known
    logits = (1 + power) * taste.sum(1) / known.sum(1).clamp(min=1) ** power - 1
    clicks = (torch.rand(len(ads), generator=random) < torch.sigmoid(logits)).float()
    model = SparseLogisticRegression([4, (14, 3)])
    fit_exact(model, Ads(ads.features, clicks, ads.bids), loss=LOSSES["log_loss"], l2=None)
    assert float(model.power) == power


# columns


def test_lists_of_names_are_bags_and_other_lists_are_left_out():
    rows = 200
    table = pl.DataFrame(
        {
            "words": [["a", "b"][: 1 + at % 2] for at in range(rows)],
            "codes": [[at % 3, 7] for at in range(rows)],
            "flags": [[at % 2 == 0] for at in range(rows)],
            "pair": pl.Series([[at % 3, 7] for at in range(rows)], dtype=pl.Array(pl.Int64, 2)),
            "vector": [[0.5, at / 7] for at in range(rows)],
            "deep": [[["a"]]] * rows,
            "struct": [[{"a": at}] for at in range(rows)],
            "same": [["x"] * (1 + at % 3) for at in range(rows)],
            "empty": [[], None] * (rows // 2),
            "own": [[f"u{at}", f"v{at}"] for at in range(rows)],
            "long": [["x", "y"] * (SLOTS if at < 5 else 1) for at in range(rows)],
        }
    )
    columns = {each.name: each for each in Facts.of(open_table(table)).columns([])}
    uses = {name: each.use for name, each in columns.items()}
    bags = ("words", "codes", "flags", "pair", "long")
    assert uses == {name: "bag" if name in bags else "dropped" for name in table.columns}
    assert columns["own"].reason == "nearly every row has a value of its own"
    assert columns["same"].reason == "the same in all rows"
    assert (columns["empty"].missing, columns["words"].values) == (1.0, 2)
    assert columns["long"].reason.endswith(f"; the first {SLOTS} values of 5 longer lists")
    with pytest.raises(bidwise.InputError, match="'words' must contain text or numbers"):
        Facts.of(open_table(table)).columns([], categorical=["words"])


def test_ids_of_lists_keep_repeats_and_drop_what_is_missing():
    bag = Bag("x", ("a", "7", "true"), "number", slots=3)
    lists = [["a", "a", None, " "], [" 7.0", "b", "a", "a"], [], None, [None]]
    expected = [[2, 2, 1], [3, 0, 2], [1, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert bag.ids(pl.Series("x", lists)).tolist() == expected
    assert bag.ids(pl.Series("x", ["a|a| ", "7| b |a|a", "", None, "|"])).tolist() == expected
    assert bag.ids(pl.Series("x", [[7, 8], [7]])).tolist() == [[3, 0, 1], [3, 1, 1]]
    assert bag.ids(pl.Series("x", [[7.0, float("nan")]])).tolist() == [[3, 1, 1]]
    assert bag.ids(pl.Series("x", [7, None])).tolist() == [[3, 1, 1], [1, 1, 1]]
    assert bag.ids(pl.Series("x", [[True]])).tolist() == [[4, 1, 1]]
    assert bag.ids(pl.Series("x", [None, None])).tolist() == [[1, 1, 1]] * 2
    assert bag.ids(pl.Series("x", [], dtype=pl.List(pl.String))).shape == (0, 3)
    encoder = Encoder((Categorical("s", ("u",)), bag))
    assert Encoder.from_json(encoder.to_json()).to_json() == encoder.to_json()
    assert encoder.encode(pl.DataFrame({"s": ["u"], "x": [["a"]]})).ids.tolist() == [[2, 2, 1, 1]]
    spoilt = encoder.to_json()
    spoilt["columns"][1]["slots"] = 10**9
    with pytest.raises(bidwise.InputError, match="slots of column 'x' must be at most"):
        Encoder.from_json(spoilt)


# runs


def test_a_store_has_a_column_for_each_slot(run):
    store = Store(run / "store")
    assert [(field.name, field.slots) for field in store.fields] == [("interests", 4), ("codes", 4), ("site", 1)]
    assert store.column("train", "features").shape == (1200, 9)
    rows = pl.read_parquet(run / "test.parquet")["row"].to_list()
    table = logged()[rows]
    encoder = Encoder.read(store.folder)  # of the tested model
    assert np.array_equal(encoder.encode(table).ids, store.column("test", "features"))
    words = encoder.columns[0].vocabulary.to_list()
    for row, ids in zip(table["interests"].to_list(), store.column("test", "features")[:, :4].tolist(), strict=True):
        known = [2 + words.index(x) for x in row or []]
        assert ids == (known + [1] * 4)[:4]


def test_text_is_the_same_as_lists(run, tmp_path, capsys):
    as_text(logged(), ";").write_csv(tmp_path / "ads.csv")
    words = "--click click --bid bid --auction-size 8 --bag interests codes --model deepfm --loss log_loss --device cpu"
    command = ["train", str(tmp_path / "ads.csv"), *words.split(), "--out", str(tmp_path / "run")]
    command += ["--set", "model.hidden=8", "data.bag_separator=;"]
    command += [f"train.{key}={FAST[key]}" for key in ("epochs", "batch_size", "learning_rate")]
    app(command, result_action="return_value")
    assert "named as bag" in capsys.readouterr().out
    ours, theirs = (Store(folder / "store").column("train", "features") for folder in (run, tmp_path / "run"))
    assert np.array_equal(ours, theirs)
    ctr = bidwise.load(tmp_path / "run").predict(tmp_path / "ads.csv")
    np.testing.assert_allclose(ctr, bidwise.load(run).predict(logged()), rtol=1e-6)


def test_predictions_agree_wherever_they_are_made(run, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    new = logged(700, seed=5).with_columns(
        interests=pl.when(pl.arange(0, 700) == 3).then([f"i{k}" for k in range(9)]).otherwise("interests")
    )
    new.write_parquet(tmp_path / "new.parquet")
    bidwise.table.predict(run, tmp_path / "new.parquet", out=tmp_path / "ctr.parquet")
    expected = pl.read_parquet(tmp_path / "ctr.parquet")["ctr"].to_numpy()
    model = bidwise.load(run)
    columns = {name: new[name].to_list() for name in model.columns}
    same = {"rtol": 0, "atol": 1e-5}
    for rows in (new, in_pandas(new), columns, as_text(new)):
        np.testing.assert_allclose(model.predict(rows), expected, **same)
    export_onnx(run, tmp_path / "ctr.onnx")
    scorer = Scorer(tmp_path / "ctr.onnx")
    for rows in (columns, new, in_pandas(new), as_text(new)):
        np.testing.assert_allclose(scorer.score({name: rows[name] for name in columns}), expected, **same)
    with pytest.raises(bidwise.InputError, match=r"one length, found interests: 700, codes: 700, site: 1"):
        scorer.score(columns | {"site": ["a"]})


def test_lists_where_there_were_none_are_unknown_values(run, tmp_path):
    lists = pl.concat([logged(20)] * 300).with_columns(site=pl.col("interests"))
    drift = Drift(bidwise.load(run).encoder)
    bidwise.load(run).predict(lists, drift=drift)
    assert drift.columns == {"site": 1.0}
    with pytest.raises(bidwise.InputError, match=r"out must end in .parquet, found 'ctr.csv'.*'interests'"):
        bidwise.table.predict(run, logged(20), out=tmp_path / "ctr.csv")


def test_a_refresh_knows_new_values_and_longer_lists(run, tmp_path):
    today = logged(seed=3, first=20).with_columns(
        interests=pl.when(pl.arange(0, 1500) % 100 == 7).then([f"i{k}" for k in range(20, 26)]).otherwise("interests")
    )
    result = train(today, out=tmp_path / "run", continue_from=run)
    old, new = bidwise.load(run), bidwise.load(tmp_path / "run")
    before, after = (model.encoder.columns[0] for model in (old, new))
    assert after.vocabulary[: len(before.vocabulary)].equals(before.vocabulary)
    assert {f"i{20 + k}" for k in range(12)} <= set(after.vocabulary[len(before.vocabulary) :])
    assert result.table.refresh.new["interests"] == len(after.vocabulary) - len(before.vocabulary)
    assert (before.slots, after.slots) == (4, 6)
    as_text(today).write_csv(tmp_path / "today.csv")
    train(tmp_path / "today.csv", out=tmp_path / "text", continue_from=run)
    again = bidwise.load(tmp_path / "text").encoder
    assert again.to_json()["columns"][0] == new.encoder.to_json()["columns"][0]
    assert result.table.refresh.unknown.keys() == {"interests", "codes"}  # all of which are new
    commas = as_text(logged(seed=4), ", ")
    other = train(commas, out=tmp_path / "commas", continue_from=run).table
    assert other.refresh.unknown["interests"] > 0.5
    assert any("of the values of 'interests'" in words for words in table_doubts(other))
    with pytest.raises(bidwise.InputError, match="out must be another folder than the run to continue"):
        train(today, out=run, continue_from=run)
    test = pl.read_parquet(tmp_path / "run" / "test.parquet")
    np.testing.assert_allclose(test["previous"], old.predict(today[test["row"].to_list()]), rtol=1e-6)
    assert result.evaluation.models["refreshed"].log_loss < result.evaluation.models["previous"].log_loss - 0.02


def test_a_bag_that_tells_the_clicks_is_found(tmp_path):
    table = logged().with_columns(
        after=pl.when(pl.col("click") == 1).then(pl.lit(["bought", "seen"])).otherwise(pl.lit(["seen", "left"]))
    )
    with pytest.raises(bidwise.InputError, match=r"'after'.*AUC 1\.0000"):
        train(table, out=tmp_path / "run", **ROLES, **FAST)


def test_the_estimator_takes_frames_with_lists():
    pytest.importorskip("sklearn")
    table = logged()
    rows, clicks = in_pandas(table)[["interests", "site"]], table["click"].to_numpy()
    options = {"epochs": 6, "random_state": 0}
    with_bag = bidwise.CTRClassifier("logistic_regression", **options).fit(rows, clicks)
    without = bidwise.CTRClassifier("logistic_regression", **options).fit(rows[["site"]], clicks)
    assert with_bag.columns_["interests"].startswith("bag")
    held_out = logged(seed=8)
    new = in_pandas(held_out)
    with_bag = pickle.loads(pickle.dumps(with_bag))
    losses = []
    for model, part in ((with_bag, new[["interests", "site"]]), (without, new[["site"]])):
        ctr = model.predict_proba(part)[:, 1]
        losses.append(-np.log(np.where(held_out["click"] == 1, ctr, 1 - ctr)).mean())
    assert losses[0] < losses[1] - 0.05
