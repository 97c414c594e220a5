"""Objectives and metrics for gradient boosting: derivatives by autograd and differences, and the real libraries."""

import itertools
import pickle

import numpy as np
import pytest
import torch

import bidwise
from bidwise.bridges.boosting import boosted_ctr, stakes_of, welfare_metric, welfare_objective

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

OFFSETS = np.array([0, 3, 3, 4, 40, 50, 60])
QUIET = {"verbose": -1, "num_threads": 1, "num_leaves": 4, "min_data_in_leaf": 5, "seed": 0}


class Ads:
    """Ads whose CTR depends on two numbers, in auctions of 10."""

    def __init__(self, ads=2_000, seed=0):
        random = np.random.default_rng(seed)
        self.x = random.normal(size=(ads, 2))
        self.truth = 1 / (1 + np.exp(2 - self.x[:, 0] - np.sin(2 * self.x[:, 1])))
        self.clicks = (random.random(ads) < self.truth).astype(float)
        self.bids = np.exp(random.normal(0, 0.5, ads))
        self.teacher = np.clip(self.truth * np.exp(random.normal(0, 0.3, ads)), 0, 1)
        self.scores = random.normal(-1, 1, ads)
        self.weights = random.choice([0.5, 1.0, 3.0], ads)
        self.offsets = np.arange(0, ads + 1, 10)

    def welfare(self, ctr):
        return bidwise.welfare(ctr, self.truth, self.bids, self.offsets).mean().item()


def autograd(loss, ads, scores, offsets, weights):
    """The gradient by torch, in float64."""
    logits = torch.tensor(scores, requires_grad=True)
    columns = [None if x is None else torch.tensor(x) for x in (ads.clicks, ads.bids, offsets, ads.teacher, weights)]
    return torch.autograd.grad(loss(logits, *columns), logits)[0].numpy()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offsets", [None, OFFSETS], ids=["one auction", "ragged"])
@pytest.mark.parametrize("name", bidwise.LOSSES)
def test_the_gradient_is_that_of_autograd(name, offsets, weighted):
    ads, weights = Ads(60), None
    if weighted:
        weights = ads.weights
    objective = welfare_objective(ads.bids, offsets, loss=name, teacher=ads.teacher)
    gradient, curvature = objective(ads.clicks, ads.scores, weights)
    expected = 60 * autograd(bidwise.LOSSES[name], ads, ads.scores, offsets, weights)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
    assert (curvature > 0).all()


@pytest.mark.parametrize(
    "options",
    [{"reduction": "sum"}, {"pair_mean": False}, {"method": "fast", "sigma": 20.0}, {"surrogate": "indicator"}],
)
def test_the_gradient_follows_the_options(options):
    ads = Ads(60)
    loss = bidwise.LOSSES["log_plus"].with_options(lam=0.1, **options)
    objective = welfare_objective(ads.bids, OFFSETS, loss="log_plus", lam=0.1, **options)
    scale = 1 if "reduction" in options else 60
    expected = scale * autograd(loss, ads, ads.scores, OFFSETS, None)
    np.testing.assert_allclose(objective(ads.clicks, ads.scores)[0], expected, rtol=1e-4, atol=1e-5)


UNWEIGHTED = ["log_loss", "sqrt_bid_weighted", "distilled", "log", "hinge", "ranknet", "log_plus", "log_plus_teacher"]


@pytest.mark.parametrize("sigma", [1.0, 30.0])
@pytest.mark.parametrize("name", UNWEIGHTED)
def test_the_curvature_is_no_less_than_the_second_derivative(name, sigma):
    ads, step = Ads(60), 1e-4
    loss = bidwise.LOSSES[name]
    if isinstance(loss, bidwise.WelfareLoss):
        loss = loss.with_options(sigma=sigma, lam=0.01)
    curvature = welfare_objective(ads.bids, OFFSETS, loss=loss, teacher=ads.teacher)(ads.clicks, ads.scores)[1]
    for ad in range(0, 60, 4):
        aside = step * (np.arange(60) == ad)
        high, low = (autograd(loss, ads, ads.scores + s * aside, OFFSETS, None)[ad] for s in (1, -1))
        second = 60 * (high - low) / (2 * step)
        assert curvature[ad] >= second - 1e-5 * max(1, abs(second))


def test_the_curvature_is_of_the_size_of_the_second_derivative():
    """Of a log loss it is the second derivative; of a rank term it is not far above what a leaf's scores feel."""
    ads = Ads(60)
    ctr = boosted_ctr(ads.scores)
    for name, weights in (("log_loss", 1), ("bid_weighted", ads.bids)):
        curvature = welfare_objective(ads.bids, loss=name)(ads.clicks, ads.scores)[1]
        np.testing.assert_allclose(curvature, weights * ctr * (1 - ctr))
    gradient, curvature = welfare_objective(ads.bids, loss="log", lam=0.0)(ads.clicks, ads.scores)
    assert np.all(
        curvature
        <= np.abs(gradient)
        + 1 / 60 * ads.bids * ctr * (1 - ctr) * np.abs((ads.bids * ads.clicks)[:, None] - ads.bids * ads.clicks).sum(1)
    )


@pytest.mark.parametrize("gap", ["positive", "order"])
def test_stakes_are_sums_over_pairs(gap):
    random = np.random.default_rng(1)
    value = random.integers(0, 4, 60).astype(float)
    up, down = stakes_of(value, OFFSETS, gap)
    for begin, end in itertools.pairwise(OFFSETS):
        difference = value[begin:end, None] - value[None, begin:end]
        pairs = np.maximum(difference, 0) if gap == "positive" else (difference > 0).astype(float)
        np.testing.assert_allclose(up[begin:end], pairs.sum(1), atol=1e-9)
        np.testing.assert_allclose(down[begin:end], pairs.sum(0), atol=1e-9)


def test_extreme_scores_have_finite_derivatives():
    ads = Ads(60)
    scores = np.tile([-800.0, 0.0, 800.0], 20)
    for name in bidwise.LOSSES:
        objective = welfare_objective(ads.bids, OFFSETS, loss=name, teacher=ads.teacher)
        gradient, curvature = objective(ads.clicks, scores)
        assert np.isfinite(gradient).all()
        assert np.isfinite(curvature).all()
        assert (curvature > 0).all()


def test_lightgbm_with_our_log_loss_is_lightgbm_with_its_own():
    ads = Ads()
    start = ads.clicks.mean()
    data = lightgbm.Dataset(ads.x, ads.clicks)
    ours = lightgbm.train(QUIET | {"objective": welfare_objective(ads.bids, loss="log_loss", start=start)}, data, 20)
    theirs = lightgbm.train(QUIET | {"objective": "binary"}, lightgbm.Dataset(ads.x, ads.clicks), 20)
    np.testing.assert_allclose(boosted_ctr(ours.predict(ads.x), start), theirs.predict(ads.x), rtol=1e-4)


@pytest.mark.parametrize("name", bidwise.LOSSES)
def test_every_loss_falls_in_every_round(name):
    ads = Ads()
    loss = bidwise.LOSSES[name]
    if isinstance(loss, bidwise.WelfareLoss):
        loss = loss.with_options(lam=0.03, sigma=5.0)
    start = ads.clicks.mean()
    found = []

    def record(env):
        scores = torch.tensor(env.model.predict(ads.x)) + np.log(start / (1 - start))
        columns = (torch.tensor(x) for x in (ads.clicks, ads.bids, ads.offsets, ads.teacher))
        found.append(loss(scores, *columns).item())

    objective = welfare_objective(ads.bids, ads.offsets, loss=loss, teacher=ads.teacher, start=start)
    data = lightgbm.Dataset(ads.x, ads.clicks, group=np.diff(ads.offsets))
    lightgbm.train(QUIET | {"objective": objective}, data, 30, callbacks=[record])
    assert (np.diff(found) < 1e-9).all()


def test_lightgbm_stops_by_our_metric():
    ads, held_out = Ads(seed=0), Ads(seed=1)
    start = ads.clicks.mean()
    objective = welfare_objective(ads.bids, ads.offsets, lam=0.1, start=start)
    metric = welfare_metric(held_out.bids, held_out.offsets, start=start)
    data = lightgbm.Dataset(ads.x, ads.clicks)
    valid = lightgbm.Dataset(held_out.x, held_out.clicks, reference=data)
    seen = {}
    callbacks = [lightgbm.early_stopping(10, verbose=False), lightgbm.record_evaluation(seen)]
    model = lightgbm.train(
        QUIET | {"objective": objective}, data, 300, valid_sets=[valid], feval=metric, callbacks=callbacks
    )
    best = max(seen["valid_0"]["welfare"])
    assert seen["valid_0"]["welfare"][model.best_iteration - 1] == best
    ctr = boosted_ctr(model.predict(held_out.x), start)
    found = bidwise.welfare(ctr, held_out.clicks, held_out.bids, held_out.offsets).mean().item()
    assert found == pytest.approx(best)


def test_xgboost_trains_and_measures():
    ads, held_out = Ads(seed=0), Ads(seed=1)
    data, valid = (xgboost.DMatrix(x.x, x.clicks) for x in (ads, held_out))
    start = {"objective": "binary:logistic", "base_score": ads.clicks.mean()}
    seen = {}
    model = xgboost.train(
        start | {"max_depth": 2, "nthread": 1},
        data,
        20,
        obj=welfare_objective(ads.bids, ads.offsets, lam=0.1),
        custom_metric=welfare_metric(held_out.bids, auction_size=10),
        evals=[(valid, "valid")],
        evals_result=seen,
        maximize=True,
        early_stopping_rounds=10,
        verbose_eval=False,
    )
    ctr = model.predict(valid)
    np.testing.assert_allclose(ctr, boosted_ctr(model.predict(valid, output_margin=True)), rtol=1e-5)
    found = bidwise.pooled_welfare(ctr, held_out.clicks, held_out.bids, 10)
    assert found == pytest.approx(seen["valid"]["welfare"][-1], rel=1e-4)
    assert held_out.welfare(ctr) > 1.2 * held_out.welfare(np.ones(2_000))


def test_wrappers_for_scikit_learn_take_both():
    ads = Ads()
    objective = welfare_objective(ads.bids, ads.offsets, lam=1.0)
    metric = welfare_metric(ads.bids, ads.offsets)
    trees = lightgbm.LGBMClassifier(objective=objective, n_estimators=20, verbose=-1, n_jobs=1)
    trees.fit(ads.x, ads.clicks, sample_weight=ads.weights, eval_X=ads.x, eval_y=ads.clicks, eval_metric=metric)
    others = xgboost.XGBClassifier(objective=objective, n_estimators=20, max_depth=3, n_jobs=1)
    others.fit(ads.x, ads.clicks, sample_weight=ads.weights)
    for scores in (trees.booster_.predict(ads.x), others.predict(ads.x, output_margin=True)):
        assert ads.welfare(boosted_ctr(scores)) > 1.2 * ads.welfare(np.ones(2_000))
    assert trees.evals_result_["valid_0"]["welfare"][-1] > trees.evals_result_["valid_0"]["welfare"][0]


def test_a_builtin_objective_is_measured_by_its_ctr():
    ads = Ads()
    metric = welfare_metric(ads.bids, ads.offsets, raw=False)
    data, seen = lightgbm.Dataset(ads.x, ads.clicks), {}
    model = lightgbm.train(
        QUIET | {"objective": "binary"},
        data,
        5,
        valid_sets=[data],
        feval=metric,
        callbacks=[lightgbm.record_evaluation(seen)],
    )
    found = bidwise.welfare(model.predict(ads.x), ads.clicks, ads.bids, ads.offsets).mean().item()
    assert seen["training"]["welfare"][-1] == pytest.approx(found)
    with pytest.raises(bidwise.InputError, match=r"raw must be True"):
        metric(ads.clicks, ads.scores)


def test_data_of_other_rows_are_refused():
    ads, held_out = Ads(), Ads(300)
    objective = welfare_objective(ads.bids, ads.offsets)
    with pytest.raises(bidwise.InputError, match=r"bids of 2000 rows, found data of 300"):
        lightgbm.train(QUIET | {"objective": objective}, lightgbm.Dataset(held_out.x, held_out.clicks), 1)
    with pytest.raises(bidwise.InputError, match=r"bids of 2000 rows, found data of 300"):
        welfare_metric(ads.bids, ads.offsets)(held_out.clicks, held_out.scores)
    other = lightgbm.Dataset(ads.x, ads.clicks, group=[1_000, 1_000])
    with pytest.raises(bidwise.InputError, match=r"other auctions than the groups"):
        lightgbm.train(QUIET | {"objective": objective}, other, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "logplus"}, r"did you mean 'log_plus'"),
        ({"loss": "log_loss", "lam": 1.0}, r"loss has no option lam"),
        ({"loss": torch.nn.BCELoss()}, r"must be a name, a WelfareLoss"),
        ({"loss": "log_teacher"}, r"teacher must be given"),
        ({"teacher": [2.0, 0.1]}, r"teacher must be in \[0, 1\]"),
        ({"auctions": [0, 3]}, r"offsets must rise from 0 to the number of ads, 2"),
        ({"start": 0.0}, r"start must be a CTR"),
        ({"bids": [1.0, -1.0]}, r"bids must be finite and above 0"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(options, message):
    with pytest.raises(bidwise.InputError, match=message):
        welfare_objective(**{"bids": [1.0, 2.0]} | options)


def test_a_metric_has_auctions_or_their_size():
    for options in ({}, {"auctions": [0, 2], "auction_size": 2}):
        with pytest.raises(bidwise.InputError, match="auction_size must be given exactly if auctions are not"):
            welfare_metric([1.0, 2.0], **options)


def test_an_objective_can_be_pickled():
    ads = Ads(60)
    objective = bidwise.welfare_objective(ads.bids, OFFSETS)
    again = pickle.loads(pickle.dumps(objective))
    for a, b in zip(objective(ads.clicks, ads.scores), again(ads.clicks, ads.scores), strict=True):
        np.testing.assert_array_equal(a, b)
