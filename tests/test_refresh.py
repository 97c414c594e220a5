"""`train --continue`: old ids and predictions stay, new values learn, and both models are tested on the newest rows."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import bidwise
from bidwise.cli import app
from bidwise.data import Ads
from bidwise.data.store import Store
from bidwise.models import MODELS
from bidwise.models.embeddings import widened, widened_adam
from bidwise.report.train_sentences import table_doubts, train_verdict
from bidwise.run_folder import load
from bidwise.table import train
from bidwise.training import Adam, fit
from bidwise.training.loop import adam_of

ROLES = {"click": "click", "bid": "bid", "time": "time", "auction_size": 8}
FAST = {"model": "logistic_regression", "loss": "log_loss", "epochs": 4, "batch_size": 64, "learning_rate": 0.03}


def day(number, rows=1200, seed=0):
    """Ads of a day: those of day k are on site_k and, more often, on site_(k + 1)."""
    random = np.random.default_rng([seed, number])
    site = number + (random.random(rows) < 0.6)
    logit = np.where(site % 2, 1.0, -2.0)
    return pl.DataFrame(
        {
            "site": [f"site_{k}" for k in site],
            "size": random.choice(["a", "b"], rows),
            "age": random.exponential(1.0, rows),
            "time": rows * number + np.arange(rows),
            "bid": random.lognormal(number / 4, 0.3, rows),
            "click": (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(int),
        }
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first") / "run"
    train(day(0), out=folder, **ROLES, **FAST)
    return folder


def vocabulary(run, column="site"):
    return next(tuple(c.vocabulary) for c in bidwise.load(run).encoder.columns if c.name == column)


def test_new_values_get_ids_after_the_old_ones_which_stay(first, tmp_path):
    result = train(day(1), out=tmp_path / "run", continue_from=first)
    old, new = bidwise.load(first).encoder, bidwise.load(tmp_path / "run").encoder
    assert vocabulary(tmp_path / "run") == (*vocabulary(first), "site_2")
    assert result.table.refresh.new == {"site": 1}
    rows = day(0)
    assert np.array_equal(old.encode(rows).ids, new.encode(rows).ids)
    assert old.columns[2] == new.columns[2]  # bins of ages


def test_bids_keep_their_units(first, tmp_path):
    before = bidwise.run_folder.read_result(first, bidwise.table.results.TrainResult).table
    after = train(day(4), out=tmp_path / "run", continue_from=first).table  # whose bids are e times as high
    assert (after.mean_bid, after.median_bid, after.bid_cap) == (before.mean_bid, before.median_bid, before.bid_cap)
    store = bidwise.data.store.Store(tmp_path / "run" / "store")
    assert store.column("train", "bids").mean() > 2


@pytest.mark.parametrize("name", MODELS)
def test_a_widened_model_predicts_what_the_old_one_did(name):
    before, after = [5, 3, 200], [9, 3, 260]
    old, model = MODELS[name](before, seed=0), MODELS[name](after, seed=1)
    with torch.no_grad():
        for parameter in old.parameters():
            parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    model.load_state_dict(widened(model, old.state_dict(), before))
    ids = torch.stack(
        [torch.randint(0, values, (300,), generator=torch.Generator().manual_seed(0)) for values in after], 1
    )
    known = (ids < torch.tensor(before)).all(1)
    assert known.sum() > 50
    assert torch.equal(model.eval()(ids[known]), old.eval()(ids[known]))
    initial = MODELS[name](after, seed=1).state_dict()
    for key in (key for key, value in initial.items() if value.shape != old.state_dict()[key].shape):
        assert any(map(torch.equal, model.state_dict()[key], initial[key]))  # of a new value


def test_the_state_of_adam_moves_with_its_rows():
    ids = torch.tensor([[0, 0], [2, 1], [2, 0], [1, 1]])
    ads = Ads(ids, torch.tensor([0.0, 1, 1, 0]), torch.ones(4))
    old = MODELS["deepfm"]([3, 2], hidden=(4,), embedding=2)
    adam = Adam(old, lr=0.01, l2=0.1)
    for _ in range(3):
        adam.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(old(ads.features), ads.clicks).backward()
        adam.step()
    model = MODELS["deepfm"]([5, 2], hidden=(4,), embedding=2)
    state = widened_adam(model, adam.state_dict(), [3, 2], [torch.full((5,), 0.5), torch.ones(2)])
    restored = Adam(model, lr=0.01, l2=0.1)
    restored.load_state_dict(state)
    there, here = adam.state[old.table.weight], restored.state[model.table.weight]
    for key in ("exp_avg", "exp_avg_sq", "seen"):
        assert torch.equal(here[key][[0, 1, 2, 5, 6]], there[key])
    assert not here["exp_avg"][3:5].any()
    assert not here["exp_avg_sq"][3:5].any()
    assert here["seen"][3:5].tolist() == [1.5, 1.5]  # half of three steps
    assert torch.equal(restored.state[model.last]["exp_avg"], adam.state[old.last]["exp_avg"])


@pytest.mark.parametrize("name", ["logistic_regression", "deepfm"])
def test_a_training_cut_in_two_is_the_same_training(name, tmp_path):
    """With a constant rate, a pass that goes on from another is the second pass of one training, batch by batch."""
    random = torch.Generator().manual_seed(0)
    ads = Ads(
        torch.randint(0, 6, (640, 3), generator=random), torch.rand(640, generator=random).round(), torch.ones(640)
    )
    options = {"batch_size": 64, "l2": 0.01, "learning_rate": 0.01}
    short = {"hidden": (8,), "dropout": 0.0} if name == "deepfm" else {}
    whole = fit(MODELS[name]([6, 6, 6], **short), ads, epochs=2, seed=1, **options, out=tmp_path / "whole")
    half = fit(MODELS[name]([6, 6, 6], **short), ads, epochs=1, seed=1, **options, out=tmp_path / "half")
    again = MODELS[name]([6, 6, 6], **short)
    again.load_state_dict(half.model.state_dict())
    orders = torch.Generator().manual_seed(1)
    torch.randperm(640, generator=orders)  # the order of the first pass
    second = ads.take(
        torch.randperm(640, generator=orders)[torch.randperm(640, generator=torch.Generator().manual_seed(2)).argsort()]
    )
    rest = fit(again, second, epochs=1, seed=2, adam=adam_of(half), **options)
    for key, value in whole.model.state_dict().items():
        torch.testing.assert_close(rest.model.state_dict()[key], value)
    fresh = MODELS[name]([6, 6, 6], **short)
    fresh.load_state_dict(half.model.state_dict())
    forgot = fit(fresh, second, epochs=1, seed=2, **options)
    assert any(
        not torch.allclose(forgot.model.state_dict()[key], value) for key, value in whole.model.state_dict().items()
    )


def test_both_models_are_tested_on_the_newest_rows_and_the_verdict_says_which_is_better(first, tmp_path, capsys):
    table = tmp_path / "day.parquet"
    day(1, 4000).write_parquet(table)
    out = tmp_path / "run"
    words = ["train", str(table), "--continue", str(first), "--no-refit", "--out", str(out)]
    app(words, result_action="return_value")
    said = capsys.readouterr().out
    assert "The refreshed model is better than the model of run on the newest ads." in said
    assert "1 value got ids of their own" in said
    assert "refreshed raises welfare by" in said
    assert "is better than the model of run" in (out / "report.html").read_text()
    test = pl.read_parquet(out / "test.parquet")
    rows = day(1, 4000)[test["row"].to_numpy()]
    assert np.array_equal(test["previous"].to_numpy(), bidwise.load(first).predict(rows))
    np.testing.assert_allclose(test["refreshed"].to_numpy(), bidwise.load(out).predict(rows), atol=1e-6)


def test_what_is_next_follows_the_outcome_and_the_doubts(first, tmp_path):
    result = train(day(1, 4000), out=tmp_path / "run", continue_from=first)
    surely = {"ci_low": 1.0, "ci_high": 2.0, "effective_clicks": 500.0}

    known, unknown = (replace(result.table.refresh, unknown=values) for values in ({}, {"site": 0.9}))

    def following(refresh=known, **changes):
        pairs = tuple(replace(each, **surely | changes) for each in result.evaluation.comparisons)
        against = tuple(replace(each, **surely) for each in result.evaluation.against)
        evaluation = replace(result.evaluation, comparisons=pairs, against=against, doubts=())
        said = train_verdict(replace(result, evaluation=evaluation, table=replace(result.table, refresh=refresh)))
        return said[-1].text

    assert following() == "Next: serve this model, and refresh it with the next rows."
    assert following(ci_low=-2.0, ci_high=-1.0).startswith("Next: serve the older model")
    few = "Next: keep serving the older model until more rows can tell which is better."
    assert following(effective_clicks=3.0) == few
    assert following(unknown) == "Next: check the doubts above before you serve this model."


def test_settings_are_those_of_the_run_with_fewer_and_smaller_steps(first, tmp_path):
    one = train(day(1), out=tmp_path / "1", continue_from=first).fits["refreshed"].recipe
    old = bidwise.run_folder.read_result(first, bidwise.table.results.TrainResult).fits["log_loss"].recipe
    assert one == replace(old, epochs=2, learning_rate=0.1 * old.learning_rate, l2=old.l2 / 2, options={"std": 1e-4})
    two = train(day(2), out=tmp_path / "2", continue_from=tmp_path / "1", l2=0.5)
    assert two.fits["refreshed"].recipe == replace(one, l2=0.5)
    assert (two.table.refresh.number, two.table.refresh.new) == (2, {"site": 1})
    sites = ("site_1", "site_0", "site_2", "site_3")
    assert [vocabulary(run) for run in (first, tmp_path / "1", tmp_path / "2")] == [sites[:n] for n in (2, 3, 4)]


def test_every_member_of_an_ensemble_goes_on(tmp_path):
    options = {**ROLES, **FAST, "recipe": "ensemble", "members": 2, "model": "dcnv2", "epochs": 1}
    train(day(0), out=tmp_path / "0", **options, settings=["model.hidden=4", "model.cross=1"])
    result = train(day(1), out=tmp_path / "1", continue_from=tmp_path / "0")
    assert result.fits["refreshed"].recipe.members == 2
    old, new = (bidwise.load(tmp_path / name).network for name in "01")
    assert len(new.models) == 2
    assert float(old.slope) != float(new.slope)
    weights = [model.table.weight for model in new.models]
    assert not torch.equal(*weights)
    assert len(load(tmp_path / "1" / "optimizer.pt")) == 2


def test_a_solved_logistic_regression_continues_from_what_is_known_of_its_weights(tmp_path):
    train(day(0), out=tmp_path / "0", **ROLES, model="logistic_regression", loss="log_loss")
    result = train(day(1), out=tmp_path / "1", continue_from=tmp_path / "0")
    assert result.fits["refreshed"].recipe.solved
    known = [load(tmp_path / name / "optimizer.pt")[0]["precision"] for name in "01"]
    assert known[1].sum() > known[0].sum()
    site = tuple(bidwise.load(tmp_path / "1").encoder.columns[0].vocabulary)
    assert site[:2] == tuple(bidwise.load(tmp_path / "0").encoder.columns[0].vocabulary)[:2]


def test_a_run_of_other_text_goes_on_with_a_frame_and_says_that_a_column_is_empty(tmp_path):
    day(0).write_csv(tmp_path / "day.csv", separator=";")
    options = {"model": "logistic_regression", "crosses": False, "refit": False}
    train(tmp_path / "day.csv", out=tmp_path / "old", **ROLES, **options, separator=";")
    empty = day(1).with_columns(site=pl.lit(None, pl.String))
    result = train(empty, out=tmp_path / "new", continue_from=tmp_path / "old")
    assert result.table.refresh.unknown["site"] == 1.0


def test_what_cannot_go_on_is_refused(first, tmp_path):
    cases = [
        ({"continue_from": tmp_path / "none"}, "continue_from must be the folder of a finished run of bidwise train"),
        ({"continue_from": first, "model": "deepfm"}, "must be a run of the same model"),
        ({"continue_from": first, "recipe": "ensemble"}, "must be a run of the same model, found 1"),
        ({"continue_from": first, "recipe": "auto"}, "recipe cannot be combined with --continue"),
        ({"continue_from": first, "crosses": False}, "crosses cannot be combined with --continue"),
        ({"continue_from": first, "loss": "distilled"}, "loss must need no teacher"),
    ]
    for options, words in cases:
        with pytest.raises(bidwise.InputError, match=words):
            train(day(1), out=tmp_path / "run", **options)
    with pytest.raises(bidwise.InputError, match="no column 'site'"):
        train(day(1).drop("site"), out=tmp_path / "run", continue_from=first)


def test_what_options_would_change_of_the_columns_is_refused(first, tmp_path):
    for option, value in (("ignore", ["age"]), ("categorical", ["age"]), ("numeric", ["size"]), ("bins", 4)):
        with pytest.raises(bidwise.InputError, match="cannot be changed with --continue"):
            train(day(1), out=tmp_path / "no", continue_from=first, **{option: value})
    with pytest.raises(bidwise.InputError, match="weight must not name a feature of the run to continue, found 'age'"):
        train(day(1), out=tmp_path / "no", continue_from=first, weight="age")


def test_columns_are_what_they_were(first, tmp_path):
    """Numbers in text are numbers; a cell that is none is missing."""
    age = pl.when(pl.int_range(pl.len()) == 777).then(pl.lit("old")).otherwise(pl.col("age").cast(pl.String))
    nothing = pl.when(pl.int_range(pl.len()) == 777).then(None).otherwise(pl.col("age"))
    stores = []
    for name, column in {"text": age, "numbers": nothing}.items():
        train(day(1).with_columns(age=column), out=tmp_path / name, continue_from=first)
        stores.append(Store(tmp_path / name / "store"))
    for part in stores[0].splits:
        assert np.array_equal(*(store.column(part, "features") for store in stores))


def test_rows_that_the_run_before_has_seen_are_noticed(first, tmp_path):
    with pytest.raises(bidwise.InputError, match="must have new rows"):
        train(day(0), out=tmp_path / "same", continue_from=first)
    both = pl.concat([day(0), day(1)])
    found = train(both, out=tmp_path / "both", continue_from=first)
    assert any(text.startswith("Rows from 0 on are older than") for text in table_doubts(found.table))
    later = train(day(1), out=tmp_path / "later", continue_from=first)
    assert not any("older than" in text for text in table_doubts(later.table))
