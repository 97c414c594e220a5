"""Logistic regression to its optimum: scikit-learn's, a gradient of 0, the same however the ads are cut."""

import numpy as np
import pytest
import torch

from bidwise.data.ads import Ads
from bidwise.models.categorical import SparseLogisticRegression
from bidwise.study.recipe import EXACT, Recipe
from bidwise.training import exact

CARDINALITIES = [7, 5, 3]


@pytest.fixture
def ads():
    random = torch.Generator().manual_seed(0)
    features = torch.stack([torch.randint(0, n, (3000,), generator=random) for n in CARDINALITIES], dim=1).int()
    effects = [torch.randn(n, generator=random) for n in CARDINALITIES]
    logits = sum(effect[column.long()] for effect, column in zip(effects, features.T, strict=True)) - 1
    clicks = (torch.rand(3000, generator=random) < torch.sigmoid(logits)).float()
    bids = torch.rand(3000, generator=random) + 0.5
    weights, teacher = torch.rand(3000, generator=random) + 0.1, torch.rand(3000, generator=random)
    return Ads(features, clicks, bids, weights=weights, teacher=teacher)


def trained(ads, loss="log_loss", l2=1e-3, valid=None):
    model = SparseLogisticRegression(CARDINALITIES)
    recipe = Recipe(loss=loss, model="logistic_regression", l2=l2, embeddings=EXACT, epochs=1)
    return recipe.fit(model, ads, valid=valid, metric="log_loss")


def test_it_is_the_optimum_that_scikit_learn_finds(ads):
    from sklearn.linear_model import LogisticRegression

    rows = np.zeros((len(ads), sum(CARDINALITIES)))
    starts = np.cumsum([0, *CARDINALITIES[:-1]])
    np.put_along_axis(rows, ads.features.numpy() + starts, 1, axis=1)
    l2, weights = 1e-3, ads.weights.double().numpy()
    # ours divides by the number of ads, which are not all of weight 1; theirs is 1/2 w² + C Σ weight · loss
    theirs = LogisticRegression(C=1 / (2 * l2 * len(ads)), tol=1e-10, max_iter=10_000)
    theirs.fit(rows, ads.clicks.numpy(), sample_weight=weights)
    ours = trained(ads, l2=l2).model(ads.features).detach()
    np.testing.assert_allclose(ours, theirs.decision_function(rows), atol=2e-3)


@pytest.mark.parametrize("loss", ["log_loss", "bid_weighted", "sqrt_bid_weighted", "distilled"])
def test_nothing_is_left_to_gain(ads, loss):
    found = trained(ads, loss)
    model = found.model.double()
    function = Recipe(loss=loss).loss_function
    columns = [column.double() for column in (ads.clicks, ads.bids)]
    value = function(model(ads.features), *columns, None, ads.teacher.double(), ads.weights.double())
    (value + 1e-3 * model.table.weight.square().sum()).backward()
    assert max(float(parameter.grad.abs().max()) for parameter in model.parameters()) < 2e-5
    assert len(found.history) == 1


def test_it_takes_the_ads_in_parts(ads, monkeypatch):
    whole = trained(ads).last
    monkeypatch.setattr(exact, "CHUNK", 100)
    for name, parts in trained(ads).last.items():
        torch.testing.assert_close(parts, whole[name], rtol=1e-4, atol=1e-5)
    assert all(torch.equal(x, trained(ads).last[name]) for name, x in trained(ads).last.items())


def test_weights_that_are_far_off_and_flat_losses_are_no_error(ads):
    model = SparseLogisticRegression(CARDINALITIES)
    with torch.no_grad():
        model.bias.fill_(-900.0)
    nobody = Ads(ads.features, torch.zeros(len(ads)), ads.bids)
    found = Recipe(model="logistic_regression", embeddings=EXACT, epochs=1).fit(model, nobody, metric="log_loss")
    assert all(bool(torch.isfinite(x).all()) for x in found.last.values())


def test_validation_ads_are_measured_once(ads):
    found = trained(ads, valid=ads)
    assert float(found.best["log_loss"].value) == pytest.approx(float(found.history[0]["log_loss"]))
    assert int(found.best["log_loss"].epoch) == found.history[0]["epoch"] <= exact.PASSES


def test_what_has_no_single_optimum_or_too_many_weights_is_trained_in_batches(ads, monkeypatch):
    assert not exact.solvable(SparseLogisticRegression(CARDINALITIES), Recipe(loss="log_plus").loss_function)
    found = trained(ads, "log_plus")
    assert found.history[0]["epoch"] == 1  # an epoch of Adam
    monkeypatch.setattr(exact, "MOST", 10)
    assert trained(ads).history[0]["epoch"] == 1


def test_sampled_and_weighted_ads_count_as_the_rows_that_they_stand_for():
    """One of ten ads without a click, with weight 10: variances of columns, CTR and what is known are those of all."""
    random = torch.Generator().manual_seed(3)
    ids = torch.stack([torch.randint(2, n, (60_000,), generator=random) for n in (400, 30, 9)], dim=1).int()
    effects = [scale * torch.randn(n, generator=random) for n, scale in ((400, 0.5), (30, 0.8), (9, 0.0))]
    truth = torch.sigmoid(sum(effect[column.long()] for effect, column in zip(effects, ids.T, strict=True)) - 3.5)
    clicks = (torch.rand(len(ids), generator=random) < truth).float()
    kept = (clicks == 1) | (torch.rand(len(ids), generator=random) < 0.1)
    whole = Ads(ids, clicks, torch.ones(len(ids)))
    weights = torch.where(clicks == 1, 1.0, 10.0)[kept]
    sampled = Ads(ids[kept], clicks[kept], torch.ones(int(kept.sum())), weights=weights / weights.mean())
    fits, ctr = [], []
    for ads in (whole, sampled):
        model = SparseLogisticRegression([400, 30, 9], std=0.0)
        fits.append(exact.fit_exact(model, ads, loss=Recipe().loss_function, l2=None).prior)
        ctr.append(torch.sigmoid(model(whole.features)).detach())
    first = torch.tensor([0, 400, 430])  # no ad has these values: nothing is known but the variance of the column
    variances = [1 / fit.precision[first] for fit in fits]
    torch.testing.assert_close(variances[1][:2], variances[0][:2], rtol=0.25, atol=0)
    assert float(variances[1][2]) < 0.01
    known = [fit.precision[403:430].log().mean().exp() for fit in fits]
    # of all that is known; two ads without a click for each with one
    assert 0.65 < float(known[1] / known[0]) < 1
    errors = [float((x.logit() - truth.logit()).square().mean()) for x in ctr]
    assert errors[1] < 1.4 * errors[0]
    assert float(ctr[1].mean()) == pytest.approx(float(ctr[0].mean()), rel=0.1)
