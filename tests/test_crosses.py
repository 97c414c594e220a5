"""Combinations of columns: found where clicks depend on them, kept by validation, and the same ids on every way to a
prediction; and the chosen recipe trained again on all rows."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch

import bidwise
from bidwise.data.ads import Ads
from bidwise.data.columns import Encoder
from bidwise.data.kinds import Facts
from bidwise.data.store import Store
from bidwise.data.table_files import open_table
from bidwise.table import crosses
from bidwise.table.crosses import relearned, with_crosses
from bidwise.training import exact
from bidwise.values import Combinations

SITES, ADS, SLOTS = 12, 10, 3


def table(rows=12_000, seed=0, *, pair=1.6, triple=0.0):
    """Clicks that depend on site and ad each, and on the two or three together."""
    random = np.random.default_rng(seed)
    site, ad, slot = (random.integers(0, count, rows) for count in (SITES, ADS, SLOTS))
    effects = np.random.default_rng(99)
    logit = effects.normal(size=SITES)[site] * 0.5 + effects.normal(size=ADS)[ad] * 0.5 - 1.0
    logit = logit + pair * effects.normal(size=(SITES, ADS))[site, ad]
    logit = logit + triple * effects.normal(size=(SITES, ADS, SLOTS))[site, ad, slot]
    truth = 1 / (1 + np.exp(-logit))
    names = {"site": "s" + pl.Series(site).cast(pl.String), "ad": "a" + pl.Series(ad).cast(pl.String)}
    more = {"slot": "t" + pl.Series(slot).cast(pl.String), "noise": random.normal(size=rows)}
    click = (random.random(rows) < truth).astype(np.int8)
    return pl.DataFrame(names | more | {"click": click, "bid": random.uniform(0.5, 2, rows), "truth": truth})


def found_in(rows=12_000, **options):
    """The encoder with all combinations that are found."""
    train, valid = table(rows, **options), table(6_000, 1, **options)
    source = open_table(train)
    roles = [(name, name) for name in ("click", "bid", "truth")]
    encoder = Encoder.fit(source, Facts.of(source).columns(roles), min_count=2, bins=32)

    def encoded(frame):
        ids = encoder.encode(frame).ids
        clicks = torch.from_numpy(frame["click"].to_numpy().astype(np.float32))
        return Ads(torch.from_numpy(ids), clicks, torch.ones(len(ids)))

    return with_crosses(encoder, encoded(train), encoded(valid), 2)


def test_combinations_have_ids_of_their_own():
    random = np.random.default_rng(0)
    sizes, groups = (7, 34, 5), (0, 8, 0)
    parts = [random.integers(0, size + 3, 500).astype(np.int32) for size in sizes]

    def one(row):
        joined = [ids[row] if ids[row] < size else 0 for ids, size in zip(parts, sizes, strict=True)]
        if joined[1] >= 2:
            joined[1] = 2 + (joined[1] - 2) * 8 // 32
        return (joined[0] * 34 + joined[1]) * 5 + joined[2]

    keys = [one(row) for row in range(500)]
    words = sorted(set(keys[:100]), key=keys.index)
    expected = [words.index(key) + 2 if key in words else 0 for key in keys]
    assert Combinations(words, sizes, groups).ids(parts).tolist() == expected
    assert set(Combinations([], sizes, groups).ids(parts).tolist()) == {0}


def test_a_pair_and_a_triple_that_matter_are_found_and_nothing_else():
    names = [cross.name for cross in found_in(pair=1.6).crosses]
    assert names == ["noise / 8", "noise / 24", "site × ad"]
    names = [cross.name for cross in found_in(rows=60_000, pair=0.8, triple=1.5).crosses]
    assert {"site × ad", "site × ad × slot"} <= set(names)
    assert not [name for name in names if "noise ×" in name or "× noise" in name]
    assert [cross.name for cross in found_in(pair=0.0).crosses] == ["noise / 8", "noise / 24"]


def smooth(rows, seed):
    """Clicks that depend on two of three numbers together, without an effect of any by itself."""
    random = np.random.default_rng(seed)
    x, y, noise = random.normal(size=(3, rows))
    truth = 1 / (1 + np.exp(1.5 - 1.2 * np.sin(1.5 * x + 1.2 * y)))
    click = (random.random(rows) < truth).astype(np.int8)
    return pl.DataFrame({"x": x, "y": y, "noise": noise, "click": click, "bid": np.ones(rows), "truth": truth})


def test_numbers_are_combined_in_coarse_and_in_fine_cells(tmp_path, monkeypatch):
    new, errors = smooth(20_000, 1), {}
    options = {"click": "click", "bid": "bid", "truth": "truth", "model": "logistic_regression", "refit": False}
    for name, finer in {"fine": {2: (16,)}, "both": crosses.FINER}.items():
        monkeypatch.setattr(crosses, "FINER", finer)
        bidwise.train(smooth(12_000, 0), out=tmp_path / name, **options)
        model = bidwise.load(tmp_path / name)
        errors[name] = np.mean((model.predict(new) - new["truth"].to_numpy()) ** 2)
        assert [cross.name for cross in model.encoder.crosses if len(cross.of) > 1] == [
            f"x × y / {groups}" for groups in finer[2]
        ]
    assert errors["both"] < 0.8 * errors["fine"]


def test_words_of_combinations_can_be_learned_from_other_rows():
    encoder = found_in(pair=1.6)
    rows = table(300, 5)
    ids = encoder.plain.encode(rows).ids
    again = relearned(encoder.plain, encoder.crosses, ids, 2)
    assert [cross.of for cross in again.crosses] == [cross.of for cross in encoder.crosses]
    assert len(again.crosses[-1].vocabulary) < len(encoder.crosses[-1].vocabulary)
    np.testing.assert_array_equal(again.encode(rows).ids, again.crossed(again.encode(rows).ids))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crosses")
    options = {"click": "click", "bid": "bid", "truth": "truth", "model": "logistic_regression"}
    train = partial(bidwise.train, **options)
    results = {
        name: train(table(), out=folder / name, **more)
        for name, more in {"run": {}, "tested": {"refit": False}, "plain": {"crosses": False}}.items()
    }
    return folder, results


def test_combinations_raise_the_welfare_of_the_test(run):
    _, results = run
    losses = {name: result.evaluation.models["log_loss"].log_loss for name, result in results.items()}
    assert losses["run"] < 0.97 * losses["plain"]
    assert any(name == "site × ad" for name in results["run"].fields)
    assert not any("×" in name for name in results["plain"].fields)


def test_a_regression_with_too_many_weights_to_be_solved_is_trained_in_batches(run, tmp_path, monkeypatch):
    for module in (exact, crosses):
        monkeypatch.setattr(module, "MOST", 10)
    options = {"click": "click", "bid": "bid", "truth": "truth"}
    rough = bidwise.train(table(), out=tmp_path / "run", model="logistic_regression", **options)
    assert len(rough.fits["log_loss"].history) > 1  # passes of Adam
    losses = [each.evaluation.models["log_loss"].log_loss for each in (rough, run[1]["plain"])]
    assert losses[0] < 1.01 * losses[1]
    new = table(5_000, 11)
    ctr, clicks = bidwise.load(tmp_path / "run").predict(new), new["click"].to_numpy()  # trained again on all rows
    assert -np.log(np.where(clicks == 1, ctr, 1 - ctr)).mean() < 1.03 * losses[1]
    searched = bidwise.train(table(3_000), out=tmp_path / "search", **options, budget_seconds=1.0)
    assert searched.evaluation.models[searched.chosen].normalised_entropy < 1


def test_a_row_is_the_same_alone_in_a_file_and_without_torch(run, tmp_path):
    folder, _ = run
    model, rows = bidwise.load(folder / "run"), table(400, 7)
    ctr = model.predict(rows)
    shuffled = rows.sample(fraction=1.0, shuffle=True, seed=0).with_row_index()
    rows.write_csv(tmp_path / "rows.csv")
    np.testing.assert_array_equal(model.predict(tmp_path / "rows.csv"), ctr)
    for row in range(5):
        assert model.predict(rows[row : row + 1])[0] == ctr[row]
    assert sorted(model.predict(shuffled)) == sorted(ctr)
    pytest.importorskip("onnxruntime")
    from bidwise.bridges.onnx_export import export_onnx

    export_onnx(folder / "run", tmp_path / "ctr.onnx")
    scorer = bidwise.Scorer(tmp_path / "ctr.onnx")
    np.testing.assert_allclose(
        scorer.score(rows.select("site", "ad", "slot", "noise").to_dict(as_series=False)), ctr, rtol=1e-5
    )


def test_what_is_served_has_seen_all_rows(run):
    folder, results = run
    assert results["run"].refit == 12_000
    assert results["tested"].refit is None
    stores = [Store(folder / name / "store") for name in ("run", "tested")]
    assert Store(stores[0].folder / "full").splits == {"train": 12_000, "valid": 0, "test": 0}
    assert not (stores[1].folder / "full").exists()
    np.testing.assert_array_equal(stores[0].column("test", "features"), stores[1].column("test", "features"))
    one, other = (results[name].evaluation.models["log_loss"] for name in ("run", "tested"))
    assert one.log_loss == other.log_loss  # the test is of the same model
    new, truth = table(20_000, 11), table(20_000, 11)["truth"].to_numpy()
    errors = [np.mean((bidwise.load(folder / name).predict(new) - truth) ** 2) for name in ("run", "tested")]
    assert errors[0] < errors[1]


def test_a_refresh_keeps_combinations_and_what_is_known(run, tmp_path):
    folder, _ = run
    result = bidwise.train(table(3_000, 21), out=tmp_path / "next", continue_from=folder / "run")
    assert result.evaluation.models["refreshed"].log_loss < 1.02 * result.evaluation.models["previous"].log_loss
    new, truth = table(20_000, 12), table(20_000, 12)["truth"].to_numpy()
    runs = (folder / "run", tmp_path / "next")
    before, after = (np.mean((bidwise.load(path).predict(new) - truth) ** 2) for path in runs)
    assert after < before


def test_a_default_run_has_an_early_model_resumes_and_can_be_repeated_from_its_files(tmp_path):
    rows, options = table(3_000), {"click": "click", "bid": "bid", "budget_seconds": 1.0}
    early = []

    def predicted(work, done, detail=""):
        if work == "reading" and "best so far: logistic_regression, validation log_loss 0." in detail:
            early.append(bidwise.load(tmp_path / "run" / "early").predict(rows))

    first = bidwise.train(rows, out=tmp_path / "run", **options, progress=predicted)
    assert first.search is not None
    assert len(early) == 1
    assert np.corrcoef(early[0], bidwise.load(tmp_path / "run").predict(rows))[0, 1] > 0.9
    assert not (tmp_path / "run" / "early").exists()
    (tmp_path / "run" / "model.pt").unlink()
    again = bidwise.train(rows, out=tmp_path / "run", **options)
    assert again.evaluation.models == first.evaluation.models
    repeated = bidwise.train(rows, config=tmp_path / "run" / "config.toml", out=tmp_path / "repeated")
    assert [each.value for each in repeated.search.attempts] == [each.value for each in first.search.attempts]


def test_a_column_called_like_a_combination_is_a_column(tmp_path):
    rows = table(6_000).rename({"noise": "site × ad"})
    bidwise.train(rows, out=tmp_path / "run", click="click", bid="bid", truth="truth", model="logistic_regression")
    model = bidwise.load(tmp_path / "run")
    assert [cross.name for cross in model.encoder.crosses][-1] == "site × ad combined"
    assert model.predict(rows[:1])[0] == model.predict(rows)[0]


def test_members_of_an_ensemble_are_networks(tmp_path):
    options = {"click": "click", "bid": "bid", "recipe": "ensemble", "members": 2, "budget_seconds": 1.0}
    result = bidwise.train(table(2_000), out=tmp_path / "run", **options)
    assert not result.fits["ensemble"].recipe.solved


def test_values_of_a_bag_are_combined_with_other_columns(tmp_path):
    """In a run, for a row by itself, without torch, and in a refresh whose lists are longer."""

    def rows(count, seed, longest=3):
        random = np.random.default_rng(seed)
        words = [sorted({*random.integers(0, 8, random.integers(0, longest + 1))}) for _ in range(count)]
        site, effects = random.integers(0, 6, count), np.random.default_rng(5).normal(size=(8, 6))
        logit = [1.5 * sum(effects[word, at] for word in each) - 1 for each, at in zip(words, site, strict=True)]
        columns = {"words": [[f"w{word}" for word in each] for each in words], "site": [f"s{at}" for at in site]}
        columns |= {"click": (random.random(count) < 1 / (1 + np.exp(-np.array(logit)))).astype(int)}
        return pl.DataFrame(columns | {"bid": random.uniform(0.5, 2, count)})

    options = {"click": "click", "bid": "bid", "model": "logistic_regression"}
    losses = [
        bidwise.train(rows(12_000, 0), out=tmp_path / name, **options, crosses=name == "run")
        .evaluation.models["log_loss"]
        .log_loss
        for name in ("run", "plain")
    ]
    assert losses[0] < 0.9 * losses[1]
    model, new = bidwise.load(tmp_path / "run"), rows(300, 1)
    (cross,) = model.encoder.crosses
    assert (cross.of, cross.slots) == (("words", "site"), 3)
    ids = model.encoder.encode(new).ids
    at = model.encoder.spans[-1]
    for bag, site, crossed in zip(ids[:, :3], ids[:, 3], ids[:, at], strict=True):
        words = [f"{word * cross.sizes[1] + site}" for word in bag if word != 1]
        expected = [2 + cross.vocabulary.to_list().index(word) for word in words]
        assert crossed.tolist() == [*expected, 1, 1, 1][:3]
    ctr = model.predict(new)
    assert [model.predict(new[row : row + 1])[0] for row in range(5)] == ctr[:5].tolist()
    bidwise.train(rows(3_000, 2, longest=5), out=tmp_path / "next", continue_from=tmp_path / "run")
    refreshed = bidwise.load(tmp_path / "next")
    assert refreshed.encoder.crosses[0].slots == refreshed.encoder.columns[0].slots == 5
    for each, name in ((model, "run"), (refreshed, "next")):
        pytest.importorskip("onnxruntime")
        from bidwise.bridges.onnx_export import export_onnx

        export_onnx(tmp_path / name, tmp_path / f"{name}.onnx")
        scores = bidwise.Scorer(tmp_path / f"{name}.onnx").score(new.select("words", "site").to_dict(as_series=False))
        np.testing.assert_allclose(scores, each.predict(new), rtol=1e-4)
