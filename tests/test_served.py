"""A recipe from the first batch to what is served: members, teachers, calibration, and resuming."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import bidwise
from bidwise.data.ads import Ads
from bidwise.evaluation.calibration import shrunk_line
from bidwise.models import MODELS, Ensemble, SparseLogisticRegression
from bidwise.report.train_sentences import train_verdict
from bidwise.study import search as search_module
from bidwise.study.recipe import SOLVED, Recipe
from bidwise.study.search import affordable, budget, searched, seconds
from bidwise.study.served import calibrated, trained
from bidwise.training import METRICS
from bidwise.training.validation import logits_of, predict

VALUES = [6, 5]
PLAIN = Recipe(model="logistic_regression", epochs=3, batch_size=32, learning_rate=0.05)
DEEP = replace(PLAIN, model="deepfm", options={"embedding": 2, "hidden": [4], "dropout": 0.0, "std": 0.1})


def ads_of(count=600, seed=0, **columns):
    """Clicks that depend on both fields."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randint(0, values, (count,), generator=random) for values in VALUES], dim=1)
    ctr = torch.sigmoid(ids[:, 0] * 0.6 - ids[:, 1] * 0.4 - 1.5)
    clicks = (torch.rand(count, generator=random) < ctr).float()
    return Ads(ids, clicks, torch.rand(count, generator=random) + 0.5, truth=ctr, **columns)


@pytest.fixture(scope="module")
def ads():
    return ads_of()


@pytest.fixture(scope="module")
def valid():
    return ads_of(500, seed=1)


class Constant(nn.Module):
    """A model whose logits are all one number."""

    def __init__(self, logit):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(logit))

    def forward(self, features):
        return self.bias.expand(len(features))


def test_a_regression_is_not_solved_for_a_loss_over_pairs():
    assert not replace(SOLVED, loss="log_plus").solved
    assert replace(SOLVED, loss="bid_weighted").solved


def test_an_ensemble_serves_the_calibrated_mean_logit():
    models = [SparseLogisticRegression(VALUES, std=1.0, seed=seed) for seed in range(3)]
    ids = ads_of(50).features
    mean = torch.stack([model(ids) for model in models]).mean(0)
    torch.testing.assert_close(Ensemble(models)(ids), mean)
    torch.testing.assert_close(Ensemble(models, slope=0.5, intercept=-2.0)(ids), 0.5 * mean - 2)
    assert torch.equal(Ensemble(models[:1])(ids), models[0](ids))  # one as it is, to the last bit
    mixed = Ensemble([*models, Constant(2.0)])  # half each: three of one class, one of another
    torch.testing.assert_close(mixed(ids), mean / 2 + 1)
    with pytest.raises(bidwise.InputError, match="models must contain at least one model, found none"):
        Ensemble([])


def test_a_recipe_of_one_member_is_the_first_of_several(ads, valid):
    one, three = (trained(Recipe(**vars(PLAIN) | {"members": k}), ads, valid, VALUES, seed=4) for k in (1, 3))
    states = [fit.model.state_dict() for fit in three.fits]
    assert all(torch.equal(tensor, states[0][name]) for name, tensor in one.fits[0].model.state_dict().items())
    assert not torch.equal(states[0]["table.weight"], states[1]["table.weight"])
    assert not torch.equal(states[1]["table.weight"], states[2]["table.weight"])


def test_what_is_served_is_calibrated_on_validation(ads, valid):
    quick = Recipe(**vars(PLAIN) | {"epochs": 1, "learning_rate": 1e-3})  # hardly trained: far too flat
    raw, served = (trained(quick, ads, valid, VALUES, calibrate=calibrate).model for calibrate in (False, True))
    assert served.slope > 1.5
    assert float(predict(served, valid).mean()) == pytest.approx(float(valid.clicks.mean()), rel=0.02)
    losses = [float(METRICS["log_loss"].of(logits_of(model, valid.features), valid)) for model in (raw, served)]
    assert losses[1] < losses[0]


def test_calibration_counts_weights_and_exposure(valid):
    model = Ensemble([Constant(0.0)])
    weights = torch.where(valid.clicks == 1, 3.0, 1.0)
    exposed = torch.full_like(valid.clicks, 0.5)
    clicked = valid.clicks.mean()
    for more, rate in (
        ({"weights": weights}, 3 * clicked / (3 * clicked + 1 - clicked)),
        ({"exposure": exposed}, 2 * clicked),
    ):
        ads = Ads(valid.features, valid.clicks, valid.bids, **more)
        assert abs(float(predict(calibrated(model, ads), ads)[0]) - float(rate)) < 0.25 * abs(0.5 - float(rate))


@pytest.mark.parametrize(("clicks", "most"), [(5, 0.7), (5_000, 0.01)])
def test_few_clicks_hardly_move_a_calibration(clicks, most):
    """A model that predicts half of the clicks: the line is that of a prior, then that of the data."""
    random = np.random.default_rng(0)
    logits = random.normal(-3, 1, clicks * 20)
    labels = (random.random(len(logits)) < 1 / (1 + np.exp(-logits - np.log(2)))).astype(float)
    slope, intercept = shrunk_line(logits, labels)
    right = np.log(2) + (slope - 1) * 2.5  # where most clicks are
    assert abs(intercept - right) < most + 0.1
    assert (abs(intercept - right) > 0.3) == (clicks == 5)


def test_sampled_and_weighted_ads_calibrate_as_the_rows_that_they_stand_for():
    random = np.random.default_rng(2)
    logits = random.normal(-4, 1, 20_000)
    labels = (random.random(len(logits)) < 1 / (1 + np.exp(-logits - 0.5))).astype(float)
    kept = (labels == 1) | (random.random(len(labels)) < 0.1)
    weights = np.where(labels == 1, 1.0, 10.0)[kept]
    lines = [shrunk_line(logits, labels)]
    lines += [shrunk_line(logits[kept], labels[kept], scale * weights) for scale in (1.0, 0.1)]
    assert lines[0][1] > 0.3
    np.testing.assert_allclose(lines[1], lines[0], atol=0.1)
    np.testing.assert_allclose(lines[2], lines[1])


def test_a_calibration_that_helps_no_other_ads_is_not_made():
    random = np.random.default_rng(1)
    logits = random.normal(-2, 1, 4_000)
    labels = (random.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(float)
    slope, intercept = shrunk_line(logits, labels)
    assert abs(slope - 1) < 0.05
    assert abs(intercept) < 0.1


def test_a_line_that_would_level_all_ctrs_is_not_taken(valid):
    backwards = Ensemble([SparseLogisticRegression(VALUES)])
    with torch.no_grad():
        backwards.models[0].table.weight[:6, 0] = -torch.arange(6.0)
    found = calibrated(backwards, valid)
    assert (float(found.slope), float(found.intercept)) == (1, 0)


def test_a_student_learns_its_teachers_ctr(ads, valid):
    """Of a teacher that knows nothing of the clicks a student has that teacher's CTR; of half clicks half of it."""
    rate = float(ads.clicks.mean())
    for share, expected in ((0.0, 0.9), (0.5, 0.45 + rate / 2)):
        recipe = Recipe(**vars(PLAIN) | {"loss": "distilled", "click_share": share, "epochs": 12})
        served = trained(recipe, ads, None, VALUES, teacher=Constant(float(np.log(9))))
        assert float(predict(served.model, valid).mean()) == pytest.approx(expected, abs=0.03)


def test_an_ensemble_that_is_cut_off_resumes(ads, valid, tmp_path):
    recipe = Recipe(**vars(PLAIN) | {"members": 2})

    class Stop(Exception):
        pass

    shares = []

    def stop(share):
        shares.append(share)
        if share > 0.6:
            raise Stop

    with pytest.raises(Stop):
        trained(recipe, ads, valid, VALUES, out=tmp_path / "ensemble", show=stop)
    assert {path.name for path in tmp_path.iterdir()} == {"ensemble", "ensemble-2"}
    assert shares == sorted(shares)
    resumed = trained(recipe, ads, valid, VALUES, out=tmp_path / "ensemble", show=shares.append)
    assert shares[-1] == 1
    whole = trained(recipe, ads, valid, VALUES)
    assert torch.equal(logits_of(resumed.model, valid.features), logits_of(whole.model, valid.features))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_starts_from_the_mean_ctr(name, ads):
    options = {"hidden": (4,)} if name != "logistic_regression" else {}
    recipe = Recipe(model=name, options=options, epochs=0.01, learning_rate=1e-9)
    served = trained(recipe, ads, None, VALUES)
    assert float(predict(served.model, ads).mean()) == pytest.approx(float(ads.clicks.mean()), abs=0.01)


@pytest.mark.parametrize("metric", ["log_loss", "auc"])
def test_a_search_trains_the_best_network_in_full(ads, valid, metric):
    rates = [1e-9, 0.05, 1e-8, 0.01]  # the first and the third learn nothing
    recipes = [replace(DEEP, learning_rate=rate, epochs=4, every=0.5) for rate in rates]
    shares = []
    search, (first, _) = searched(recipes, ads, valid, VALUES, metric=metric, show=shares.append)
    assert [(each.setting, each.epochs) for each in search.attempts[:4]] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert {(each.setting, each.epochs) for each in search.attempts[4:]} == {(2, 4), (4, 4)}
    assert recipes[search.chosen - 1] == first.recipe
    logits = logits_of(first.model, valid.features)  # as it is served
    values = {each.setting: each.value for each in search.attempts[4:]}
    assert values[search.chosen] == pytest.approx(float(METRICS[metric].of(logits, valid)))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    alone = trained(first.recipe, ads, valid, VALUES, metric=metric)
    assert torch.equal(logits_of(alone.model, valid.features), logits_of(first.model, valid.features))


def test_a_network_is_also_tried_beside_the_solved_regression(ads, valid, monkeypatch):
    monkeypatch.setattr(search_module, "SOME", 0)
    network = replace(DEEP, learning_rate=0.05, epochs=2)
    recipes = [network, SOLVED]
    search, served = searched(recipes, ads, valid, VALUES)
    assert [each.setting for each in search.attempts] == [2, 1, 3]
    both = next(each for each in search.attempts if each.recipe.beside)
    alone = [trained(recipe, ads, valid, VALUES, calibrate=False).model for recipe in (network, SOLVED)]
    mean = sum(logits_of(model, valid.features) for model in alone) / 2
    made = trained(both.recipe, ads, valid, VALUES, calibrate=False)
    assert len(made.fits) == 2
    torch.testing.assert_close(logits_of(made.model, valid.features), mean)
    values = [each.value for each in search.attempts]
    assert search.attempts[values.index(min(values))].setting == search.chosen
    assert len(served) == 2


def test_with_few_clicks_the_solved_regression_is_taken(ads, valid, monkeypatch):
    lazy = replace(PLAIN, learning_rate=1e-9, epochs=4)  # learns nothing
    network = replace(DEEP, learning_rate=0.05, epochs=4)
    monkeypatch.setattr(search_module, "FEW", 10**6)
    assert searched([lazy, replace(SOLVED, l2=10.0), network], ads, valid, VALUES)[0].chosen == 2
    monkeypatch.setattr(search_module, "FEW", 0)
    monkeypatch.setattr(search_module, "SOME", int(valid.clicks.sum()))  # enough of them
    assert searched([replace(SOLVED, l2=10.0), network], ads, valid, VALUES)[0].chosen != 1


def test_with_some_clicks_the_mean_of_both_is_taken_unless_another_is_better_beyond_doubt(ads, valid, monkeypatch):
    network = replace(DEEP, learning_rate=0.05, epochs=4)
    monkeypatch.setattr(search_module, "_as_good", lambda *_: True)
    search, (first, *_) = searched([replace(DEEP, learning_rate=1e-9), SOLVED], ads, valid, VALUES)
    assert (search.chosen, first.recipe.beside) == (3, True)
    monkeypatch.setattr(search_module, "_as_good", lambda *_: False)
    for recipes in ([network, replace(SOLVED, l2=1e4)], [replace(network, learning_rate=1e-9), SOLVED]):
        assert searched(recipes, ads, valid, VALUES)[0].leads
    monkeypatch.setattr(search_module, "SOME", 0)
    recipes = [replace(network, learning_rate=0.02), replace(SOLVED, l2=1e4)]  # the network alone has the least loss
    for doubted, chosen in ((True, 3), (False, 1)):
        monkeypatch.setattr(search_module, "_as_good", lambda *_, doubted=doubted: doubted)
        assert searched(recipes, ads, valid, VALUES)[0].chosen == chosen


def test_a_search_stays_within_its_budget():
    fields, ads = [50] * 20, 160_000
    networks = [Recipe(model=model, epochs=8) for model in ("dcnv2", "deepfm")]
    costs = [seconds(recipe, ads, fields) for recipe in networks]
    assert costs[0] > costs[1]
    assert seconds(networks[0], 2 * ads, fields) == pytest.approx(2 * costs[0])
    tried = {limit: [number for number, _ in affordable([SOLVED, *networks], ads, fields, limit)] for limit in (0, 1e9)}
    assert tried == {0: [1, 3], 1e9: [1, 2, 3]}
    assert budget(2_000_000, 20) == pytest.approx(10 * budget(200_000, 20))


def test_of_settings_that_are_tied_the_first_is_taken(ads, valid):
    search, served = searched([DEEP, DEEP, DEEP], ads, valid, VALUES)
    assert (search.chosen, [each.setting for each in search.attempts[3:]], len(served)) == (1, [1, 2], 2)
    only, (one,) = searched([PLAIN], ads, valid, VALUES)
    assert ([each.epochs for each in only.attempts], one.recipe) == ([3], PLAIN)


@pytest.mark.parametrize("clicks", [5, 20, 60])
def test_a_model_of_few_clicks_that_is_worse_than_their_rate_is_called_so_first(clicks, tmp_path):
    random = np.random.default_rng(1)
    rows, last = 1500, max(1, clicks // 10)  # clicks of the validation rows, and of the test rows after them
    bounds = ((0, 1200, clicks - 2 * last), (1200, 1350, last), (1350, 1500, last))
    at = np.concatenate([random.choice(np.arange(*ends), many, replace=False) for *ends, many in bounds])
    columns = {"site": random.integers(0, 20, rows), "user": random.integers(0, 500, rows), "age": random.random(rows)}
    columns |= {"time": np.arange(rows), "bid": random.uniform(0.5, 2, rows), "click": np.isin(np.arange(rows), at) * 1}
    options = {"click": "click", "bid": "bid", "time": "time", "categorical": ["site", "user"], "budget_seconds": 1.0}
    result = bidwise.train(pl.DataFrame(columns), out=tmp_path / "run", **options)
    test = pl.read_parquet(tmp_path / "run" / "test.parquet")
    clicked, ctr = test["click"].to_numpy(), test[result.chosen].to_numpy()
    losses = [-np.log(np.where(clicked == 1, x, 1 - x)).mean() for x in (ctr, clicked.mean())]
    assert losses[0] < 1.5 * losses[1]
    assert (train_verdict(result)[0].kind == "worse") == (losses[0] > losses[1])
    fit = result.fits[result.chosen]
    assert abs(fit.slope - 1) < 0.2
    assert abs(fit.intercept) < 0.2
