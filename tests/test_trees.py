"""LightGBM as a model of `bidwise train`: a module with all that networks have."""

import pickle
import sys

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score

import bidwise
from bidwise.bridges.onnx_export import export_onnx
from bidwise.data.ads import Ads
from bidwise.models import BoostedTrees, Ensemble
from bidwise.study.recipe import Recipe
from bidwise.study.served import trained
from bidwise.table import predict, train
from bidwise.training.trees import FOLDS, _Counts, fit_trees

pytest.importorskip("lightgbm")

SIZES = [6, 40, 3]


def some_ads(ads=3_000, seed=0):
    """Ads whose CTR depends on pairs of values."""
    random = np.random.default_rng(seed)
    ids = np.stack([random.integers(0, size, ads) for size in SIZES], axis=1)
    logit = -2.5 + 0.5 * ids[:, 0] + np.where(ids[:, 2] == 1, 1.5, 0.0) * (ids[:, 1] % 2)
    truth = 1 / (1 + np.exp(-logit))
    clicks = (random.random(ads) < truth).astype(np.float32)
    bids = np.exp(random.normal(0, 0.5, ads)).astype(np.float32)
    columns = (torch.from_numpy(x) for x in (ids, clicks, bids))
    return Ads(*columns, truth=torch.from_numpy(truth), auction_size=10)


def log_loss(model, ads):
    return float(bidwise.log_loss(model(ads.features), ads.clicks))


@pytest.mark.parametrize("loss", ["log_loss", "sqrt_bid_weighted", "log_plus"])
def test_trees_learn_what_networks_learn(loss):
    ads, held_out = some_ads(seed=0), some_ads(seed=1)
    model = BoostedTrees(SIZES, leaves=4, smooth=10)
    model.bias.data.fill_(float(torch.logit(ads.clicks.mean())))
    before = log_loss(model, held_out)
    told = {"valid": held_out, "metric": ["log_loss", "welfare"], "rounds": 60, "learning_rate": 0.1}
    fit = fit_trees(model, ads, loss=bidwise.LOSSES[loss], **told)
    assert log_loss(model, held_out) < 0.97 * before
    best = min(fit.history, key=lambda record: record["log_loss"])
    assert fit.best["log_loss"].epoch == best["epoch"]
    assert log_loss(model, held_out) == pytest.approx(float(best["log_loss"]), rel=1e-5)
    assert fit.history[-1]["loss"] < fit.history[0]["loss"]


def test_weights_of_a_model_are_all_of_it():
    ads = some_ads()
    model = BoostedTrees(SIZES, leaves=4)
    fit_trees(model, ads, loss=bidwise.LOSSES["log_loss"], rounds=20)
    again = BoostedTrees(SIZES)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(ads.features), model(ads.features))
    assert model(ads.features).std() > 0.1
    assert model(ads.features[:0]).shape == (0,)


def test_the_rate_of_an_ad_in_training_does_not_know_its_click():
    random = np.random.default_rng(0)
    codes, clicks = random.integers(0, 4, (40, 1)), random.integers(0, 2, 40).astype(float)
    fold = random.integers(0, FOLDS, 40)
    table = _Counts(codes, clicks, None, 4, 2.0).out_of_fold(fold)
    mean = clicks.mean()
    for ad in range(40):
        others = (codes[:, 0] == codes[ad, 0]) & (fold != fold[ad])
        assert table[ad, 0] == pytest.approx((clicks[others].sum() + 2 * mean) / (others.sum() + 2))


def test_an_ensemble_of_trees_is_calibrated_and_teaches():
    ads, held_out = some_ads(seed=0), some_ads(seed=1)
    trees = Recipe(model="lightgbm", members=2, epochs=40, learning_rate=0.1, options={"leaves": 4})
    teacher = trained(trees, ads, held_out, SIZES)
    assert isinstance(teacher.model, Ensemble)
    logits = [member.model(held_out.features) for member in teacher.fits]
    assert not torch.equal(*logits)
    mean = bidwise.predict(teacher.model, held_out).mean()
    assert float(mean) == pytest.approx(float(held_out.clicks.mean()), rel=1e-3)
    student = Recipe(loss="distilled", teacher="ensemble", epochs=5, learning_rate=0.02, model="logistic_regression")
    taught = trained(student, ads, held_out, SIZES, teacher=teacher.model)
    found = np.corrcoef(*(x.model(held_out.features).detach() for x in (teacher, taught)))[0, 1]
    assert found > 0.7


@pytest.fixture(scope="module")
def table():
    ads = some_ads(6_000)
    columns = {f"field{k}": ads.features[:, k].numpy().astype(str) for k in range(3)}
    return pl.DataFrame({**columns, "bid": ads.bids.numpy(), "click": ads.clicks.numpy().astype(int)})


def test_a_run_with_trees_predicts_what_it_was_tested_with(table, tmp_path):
    options = {"click": "click", "bid": "bid", "model": "lightgbm", "seed": 3}
    result = train(table, out=tmp_path / "run", recipe="auto", budget=3, settings=["train.epochs=60"], **options)
    assert {attempt.recipe.model for attempt in result.search.attempts} == {"lightgbm"}
    assert result.fits["log_loss"].recipe.options["leaves"] in (4, 8, 16)
    found = predict(tmp_path / "run", table)["ctr"].to_numpy()
    test = pl.read_parquet(tmp_path / "run" / "test.parquet")
    assert set(np.round(test[result.chosen].to_numpy(), 6)) <= set(np.round(found, 6))
    assert result.evaluation.models[result.chosen].auc > 0.65
    with pytest.raises(bidwise.InputError, match="must be of a network, found lightgbm"):
        export_onnx(tmp_path / "run", tmp_path / "trees.onnx")


def test_without_lightgbm_the_error_says_what_to_install(monkeypatch, table, tmp_path):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(bidwise.InputError, match=r"model must be installed.*pip install lightgbm"):
        train(table, out=tmp_path / "run", click="click", bid="bid", model="lightgbm", loss="log_loss")


def test_trees_are_a_classifier_that_can_be_pickled():
    random = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"site": random.integers(0, 20, 4000).astype(str), "brand": random.integers(0, 9, 4000).astype(str)}
    )
    clicks = (random.random(4000) < np.where(frame["brand"] == "3", 0.6, 0.1)).astype(int)
    fitted = bidwise.CTRClassifier(model="lightgbm", epochs=30).fit(frame, clicks)
    assert roc_auc_score(clicks, fitted.predict_proba(frame)[:, 1]) > 0.6
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(frame), fitted.predict_proba(frame))
