"""`train` and `predict` on tables whose true CTR is known: what is learnt, what is split, what is refused."""

import json
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from run_helpers import SMALL, market

import bidwise
from bidwise.cli import app
from bidwise.data.splits import auction_size, halves, split
from bidwise.evaluation.auc import auc
from bidwise.report.build import run_of, runs_page
from bidwise.report.train_page import described, train_summary
from bidwise.report.train_sentences import table_notes, train_verdict, untrained
from bidwise.run_folder import read_result, to_toml
from bidwise.study import compare, search
from bidwise.study.compare import CONTESTANTS, Power
from bidwise.table import predict, train
from bidwise.table.config import nested, resolved
from bidwise.table.plan import candidates, recipes
from bidwise.table.results import TrainResult

ROLES = {"click": "click", "bid": "bid"}

AUTO = {"recipe": "auto", "model": "logistic_regression", "epochs": 2, "learning_rate": 0.02, "members": 2}
AUTO |= {"ignore": ["truth", "auction", "time"], "refit": False}
FITS = {"search-1", "search-2", "search-1-short", "search-2-short"}
SMALL = SMALL | {"refit": False}
TAUGHT = SMALL | {"loss": "log_plus_teacher", "epochs": 4, "learning_rate": 0.05}


@pytest.fixture(scope="module", autouse=True)
def tried():
    """A short list of settings, whatever that of users is."""
    rest = {"epochs": 4, "learning_rate": 0.004}
    linear = [{"model": "logistic_regression", "l2": l2, **rest} for l2 in (0.1, 1.0)]  # over the ads
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "SETTINGS", ({"model": "deepfm", "l2": 10.0, **rest}, *linear))
        yield


@pytest.fixture(scope="module")
def table():
    return market()


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    """A finished run with a time column, auctions and a teacher's loss."""
    folder = tmp_path_factory.mktemp("train")
    path = folder / "ads.parquet"
    table.write_parquet(path)
    columns = {**ROLES, "auction": "auction", "time": "time", "truth": "truth"}
    result = train(path, out=folder / "run", **columns, **TAUGHT)
    return SimpleNamespace(folder=folder / "run", path=path, result=result, columns=columns)


@pytest.fixture(scope="module")
def auto(tmp_path_factory):
    """A search and a contest of three recipes, without auctions and time."""
    folder = tmp_path_factory.mktemp("auto")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare.Power, "enough", True)  # whatever the ads can tell
        result = train(market(1500), out=folder / "run", **ROLES, **AUTO)
    return SimpleNamespace(folder=folder / "run", result=result)


@pytest.fixture(scope="module")
def undecided(table, tmp_path_factory):
    """The same on ads that could tell no gain."""
    folder = tmp_path_factory.mktemp("undecided")
    return SimpleNamespace(folder=folder / "run", result=train(table, out=folder / "run", **ROLES, **AUTO))


def test_it_learns_the_true_ctr_better_than_the_base_rate(run):
    test = pl.read_parquet(run.folder / "test.parquet")
    truth = test["truth"].to_numpy()
    for loss in ("log_loss", "log_plus_teacher"):
        ctr = test[loss].to_numpy()
        assert auc(ctr, truth > np.median(truth)) > 0.85
        assert np.mean((ctr - truth) ** 2) < 0.5 * truth.var()
    assert run.result.evaluation.models["log_loss"].normalised_entropy < 0.97


def test_a_run_folder_has_all_its_files(run):
    names = {path.name for path in run.folder.iterdir()}
    files = {"config.toml", "encoder.json", "model.pt", "model.json", "test.parquet", "result.json", "report.html"}
    files |= {
        "optimizer.pt",
        "environment.json",
        "checksums.json",
        "vocabulary.parquet",
    }
    assert files | {"store", "fits", "evaluation"} == names
    assert {path.name for path in (run.folder / "fits").iterdir()} == {"log_loss", "log_plus_teacher"}
    assert (run.folder / "evaluation" / "report.html").is_file()
    result = json.loads((run.folder / "result.json").read_text())
    assert (result["kind"], result["chosen"]) == ("train", "log_plus_teacher")
    assert result["validation"]["log_loss"] == run.result.validation.log_loss
    assert (read_result(run.folder, TrainResult).fits, run.result.kind) == (run.result.fits, "train")
    assert "verdict" not in result  # sentences are made when they are shown
    assert not list(run.folder.rglob("*.part"))


def test_test_ads_are_the_newest_and_auctions_are_whole(run, table):
    test = pl.read_parquet(run.folder / "test.parquet")
    rows = test["row"].to_numpy()
    parts = run.result.table.splits
    assert parts["train"].last <= parts["valid"].first <= parts["valid"].last  # seconds since 1970, shown as dates
    assert parts["valid"].last <= str(pl.from_epoch(table["time"])[rows.tolist()].min())
    whole = table.filter(pl.col("auction").is_in(table["auction"][rows.tolist()].unique().to_list()))
    assert len(whole) == len(test)
    assert sum(part.ads for part in parts.values()) == len(table)
    assert parts["train"].ads / len(table) == pytest.approx(0.8, abs=0.01)


def test_a_random_split_goes_by_its_seed():
    first, again, other = (split(500, auction=None, time=None, seed=seed)["test"].rows for seed in (0, 0, 1))
    assert (first == again).all()
    assert set(first) != set(other)


def test_rows_without_auctions_are_split_by_time_and_then_shuffled():
    parts = split(1000, auction=None, time=np.arange(1000)[::-1], seed=0)
    assert set(parts["test"].rows) == set(range(100))
    assert list(parts["test"].rows) != sorted(parts["test"].rows)
    assert auction_size(256, 100, 100) == 2


def test_halves_share_no_auction():
    ads = bidwise.data.Ads(torch.arange(12)[:, None], torch.zeros(12), torch.ones(12), torch.tensor([0, 3, 5, 9, 12]))
    one, other = halves(ads, seed=0)
    assert sorted([*one.features[:, 0].tolist(), *other.features[:, 0].tolist()]) == list(range(12))
    assert len(one.offsets) == len(other.offsets) == 3
    one, other = halves(bidwise.data.Ads(torch.arange(13)[:, None], torch.zeros(13), torch.ones(13), auction_size=4), 0)
    assert sorted([*one.features[:, 0].tolist(), *other.features[:, 0].tolist()]) == list(range(13))
    assert (one.offsets, len(other), other.auction_size) == (None, 6, 4)


def test_an_interrupted_run_ends_as_if_nothing_had_happened(run, tmp_path):
    class Stop(Exception):
        pass

    def stop(work, done, detail=""):
        if detail == "model 2 of 2, epoch 2.0 of 4":
            assert (work, done) == ("training", 0.75)
            raise Stop

    with pytest.raises(Stop):
        train(run.path, out=tmp_path / "run", **run.columns, **TAUGHT, progress=stop)
    assert not (tmp_path / "run" / "model.pt").exists()
    heard = []

    def hear(prepared):
        heard.append(described(prepared, "cpu"))

    for _ in range(2):
        train(out=tmp_path / "run", config=tmp_path / "run" / "config.toml", opened=hear)
    assert "at most 4 epochs each" in heard[0]
    assert f"The run in {tmp_path / 'run'} is already finished; this is its result." in heard[1]
    assert "at most 4 epochs" not in heard[1]
    there, here = (torch.load(folder / "model.pt", weights_only=True) for folder in (run.folder, tmp_path / "run"))
    assert all(torch.equal(there[name], here[name]) for name in there)
    assert (tmp_path / "run" / "config.toml").read_text() == (run.folder / "config.toml").read_text()
    with pytest.raises(bidwise.InputError, match="table must name the table to train on, found no table"):
        train(out=tmp_path / "other", **ROLES)


def test_the_written_configuration_gives_the_same_run(run, tmp_path):
    sections = tomllib.loads((run.folder / "config.toml").read_text())
    assert resolved(sections).flat() == run.result.config
    assert run.result.settings == resolved(sections)
    again = train(run.path, out=tmp_path / "run", config=run.folder / "config.toml")
    assert again.evaluation.models == run.result.evaluation.models


def test_options_win_over_the_file_and_settings_over_both():
    sections = {"data": {"click": "y", "bid": "b"}, "train": {"epochs": 7, "loss": "log", "seed": 1}}
    config = resolved(sections, {"train.loss": "log_plus", "train.epochs": 8}, ["train.epochs=9", "model.hidden=64,32"])
    assert (config.train.epochs, config.train.loss, config.train.seed) == (9, "log_plus", 1)
    assert config.model.options == {"hidden": (64, 32)}
    assert resolved(nested(config.flat())) == config
    assert resolved(tomllib.loads(to_toml(nested(config.flat())))) == config


def test_lam_reaches_the_loss(table, tmp_path):
    told = SMALL | {"loss": "log_plus", "epochs": 1}
    ctr = [
        train(table, out=tmp_path / str(lam), **ROLES, **told, lam=lam, ignore=["truth"]).evaluation.models
        for lam in (0.01, 30.0)
    ]
    assert ctr[0]["log_plus"].log_loss != ctr[1]["log_plus"].log_loss


def test_predict_refuses_what_it_cannot_use(run, table, tmp_path):
    cases = {
        r"found a column 'bid'": {"column": "bid"},
        r"out must end in .parquet, .csv, .tsv": {"out": tmp_path / "a.xls"},
        r"out must be another file": {"out": run.path},
    }
    for message, options in cases.items():
        with pytest.raises(bidwise.InputError, match=message):
            predict(run.folder, run.path, **options)
    with pytest.raises(bidwise.InputError, match="run must be the folder of a finished run of bidwise train"):
        predict(tmp_path / "none", run.path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(bidwise.InputError, match=r"run must be the folder of a finished run"):
        predict(tmp_path / "empty", run.path)


def test_sampled_negatives_leave_predictions_on_the_true_scale(tmp_path):
    full = market(1500, seed=3)
    random = np.random.default_rng(0)
    kept = full.filter((pl.col("click") == 1) | pl.Series(random.random(len(full)) < 0.2))
    told = SMALL | {"epochs": 6, "metric": "log_loss"}
    means = {}
    for name, rate in (("told", 0.2), ("ignored", None)):
        train(kept, out=tmp_path / name, **ROLES, **told, sampling_rate=rate, ignore=["truth", "auction", "time"])
        means[name] = predict(tmp_path / name, full)["ctr"].mean()
    assert means["told"] == pytest.approx(full["truth"].mean(), rel=0.15)
    assert means["ignored"] > 1.8 * full["truth"].mean()
    metrics = read_result(tmp_path / "told", TrainResult).evaluation.models["log_loss"]
    assert metrics.predicted_over_observed == pytest.approx(1, abs=0.2)
    test = pl.read_parquet(tmp_path / "told" / "test.parquet")
    assert test.group_by("click").agg(pl.col("weight").unique()).sort("click")["weight"].to_list() == [[5.0], [1.0]]
    twice = kept.with_columns(w=pl.when(pl.col("click") == 1).then(1.0).otherwise(5.0))
    with pytest.raises(bidwise.InputError, match="sampling_rate is already corrected for by column 'w'"):
        train(twice, out=tmp_path / "twice", **ROLES, **told, sampling_rate=0.2, weight="w")


def test_weights_decide_between_ads_that_look_alike(tmp_path):
    random = np.random.default_rng(0)
    heavy = random.random(6000) < 0.5
    ads = {"site": random.integers(0, 4, 6000), "bid": np.ones(6000), "weight": np.where(heavy, 9.0, 1.0)}
    ads["click"] = random.random(6000) < np.where(heavy, 0.5, 0.1)
    told = SMALL | {"epochs": 5, "metric": "log_loss"}
    train(ads, out=tmp_path / "weighted", **ROLES, **told, weight="weight")
    train({k: v for k, v in ads.items() if k != "weight"}, out=tmp_path / "alike", **ROLES, **told)
    assert predict(tmp_path / "weighted", ads)["ctr"].mean() == pytest.approx(0.46, abs=0.04)
    assert predict(tmp_path / "alike", ads)["ctr"].mean() == pytest.approx(0.3, abs=0.04)


def test_clicks_in_lower_slots_count_more(tmp_path):
    random = np.random.default_rng(0)
    slots = (1.0, 0.5, 0.25)
    ads = {"site": random.integers(0, 4, 9000), "bid": np.ones(9000), "slot": random.integers(1, 4, 9000)}
    ads["click"] = random.random(9000) < 0.4 * np.asarray(slots)[ads["slot"] - 1]
    told = SMALL | {"epochs": 5, "metric": "log_loss"}
    train(ads, out=tmp_path / "slots", **ROLES, **told, position="slot", slots=slots)
    without = {k: v for k, v in ads.items() if k != "slot"}
    train(without, out=tmp_path / "alike", **ROLES, **told)
    assert predict(tmp_path / "slots", without)["ctr"].mean() == pytest.approx(0.4, abs=0.04)
    assert predict(tmp_path / "alike", ads)["ctr"].mean() == pytest.approx(0.4 * np.mean(slots), abs=0.03)


def test_a_logged_teacher_replaces_the_trained_one(table, tmp_path):
    noisy = table.with_columns(logged=(pl.col("truth") * 0.9 + 0.01))
    told = SMALL | {"loss": "log_plus_teacher", "epochs": 2}
    found = train(noisy, out=tmp_path / "run", **ROLES, **told, auction="auction", teacher="logged", truth="truth")
    assert list(found.fits) == ["log_plus_teacher"]
    assert list(found.evaluation.models) == ["teacher", "log_plus_teacher", "regression"]
    assert found.evaluation.baseline == "teacher"


def test_auto_compares_on_auctions_that_chose_nothing_else(auto):
    choice = auto.result.choice
    assert [each.name for each in choice.candidates] == ["log_loss", *CONTESTANTS]
    assert choice.level == pytest.approx(1 - 0.05 / len(CONTESTANTS))
    assert list(auto.result.fits) == ["log_loss", "ensemble", *CONTESTANTS]  # the teacher is tested, not served
    ads = auto.result.table.splits["valid"].ads
    assert (auto.result.table.auctions("valid"), choice.auctions) == (None, None)
    assert choice.ads == ads // 2
    folders = {path.name: path for path in (auto.folder / "fits").iterdir()}
    assert set(folders) == {*FITS, "ensemble-2", *CONTESTANTS}  # its first member is the baseline
    fits = {tomllib.loads((path / "config.toml").read_text())["valid"] for path in folders.values()}
    assert len(fits) == 1
    assert f"({ads - ads // 2}," in fits.pop()
    assert auto.result.chosen in [each.name for each in choice.candidates]


def test_auto_keeps_log_loss_where_there_is_nothing_to_gain(auto):
    """A few validation auctions: no recipe can be better beyond doubt."""
    assert auto.result.chosen == "log_loss"
    said = [line.text for line in train_verdict(auto.result)]
    assert any(text.startswith("logistic regression was kept: ") for text in said)


def test_auto_trains_no_contestants_where_the_ads_could_not_tell(undecided):
    result = undecided.result
    assert (result.chosen, result.choice, list(result.fits)) == ("log_loss", None, ["log_loss"])
    assert not result.power.half_width <= 0.03
    assert {path.name for path in (undecided.folder / "fits").iterdir()} == FITS
    (said,) = untrained(result)
    assert said.startswith("No other recipe was trained: ")
    assert said in (undecided.folder / "report.html").read_text()
    assert train_summary(result).endswith(f"Note: {said}")
    (said,) = untrained(replace(result, power=Power(0.01, None, 1_000)))
    assert said == "No other recipe was trained: a solved regression is best here, and other recipes are of networks."


def test_without_a_search_there_is_no_runner_up_and_all_recipes_are_compared(table, tmp_path):
    found = train(table, out=tmp_path / "run", **ROLES, **AUTO, budget_seconds=0.0)
    assert (found.search, found.power) == (None, None)
    assert [each.name for each in found.choice.candidates] == ["log_loss", *CONTESTANTS]


def test_the_search_keeps_the_setting_with_the_best_validation_metric(auto):
    found, ads = auto.result.search, auto.result.table.splits["train"].ads
    assert [each.recipe.l2 for each in found.attempts[:2]] == [0.1 / ads, 1.0 / ads]
    best = next(each for each in found.attempts[2:] if each.setting == found.chosen)
    lowest = min(each.value for each in found.attempts[2:])
    assert best.value < 1.02 * lowest  # two logistic regressions: the other may be as good on so few clicks
    for fit in auto.result.fits.values():
        assert (fit.recipe.l2, fit.recipe.model) == (best.recipe.l2, "logistic_regression")
    page = (auto.folder / "report.html").read_text()
    assert "The baseline" in page
    assert f"logistic_regression, l2 {best.recipe.l2:g}, 2 epochs, cosine, batch 64, rate 0.02" in page
    said = train_summary(auto.result)
    assert "Of 2 settings, this one had the best validation log loss: logistic_regression" in said
    assert "The tested model is served, " in said


def test_a_search_shows_what_was_trained_in_full_and_says_if_the_safer_model_was_chosen(run):
    network = run.result.fits[run.result.chosen].recipe
    solved, both = replace(network, embeddings="exact"), replace(network, beside=True)
    settings = [(1, solved, 4, 0.45), (2, network, 1, 0.52), (3, network, 1, 0.51), (2, network, 4, 0.44)]
    attempts = tuple(search.Attempt(*each) for each in [*settings, (4, both, 4, 0.41)])
    for chosen, said in (
        (4, "Of 4 settings, this one had the best validation log loss: "),
        (1, "Too few validation clicks to tell 4 settings apart, so the safer model was chosen."),
    ):
        shown = train_summary(replace(run.result, search=search.Search("log_loss", attempts, chosen)))
        assert said in shown
        lines = [line.split("  ") for line in shown.splitlines() if " epochs)" in line or " epoch)" in line]
        assert [[part.strip() for part in line if part.strip()][-2:] for line in lines] == [
            ["–", "0.45 (4 epochs)"],
            ["0.52 (1 epoch)", "0.44 (4 epochs)"],
            ["0.51 (1 epoch)", "–"],
            ["–", "0.41 (4 epochs)"],
        ]


def test_what_a_user_sets_is_the_same_in_all_settings_of_the_search():
    told = {"data": {"click": "y", "bid": "b"}, "train": {"l2": 0.5, "epochs": 7}}
    found = candidates(resolved(told))
    assert {(each.l2, each.epochs) for each in found} == {(0.5, 7)}
    assert len({each.model for each in found}) == len(found) > 1  # settings that are now alike are tried once
    assert [each.model for each in candidates(resolved(told | {"model": {"name": "dcnv2"}}))] == ["dcnv2"]
    assert {each.model for each in candidates(resolved(told | {"model": {"embedding": 4}}))} == {"deepfm"}
    assert {each.model for each in candidates(resolved(told | {"model": {"cross": 4}}))} == {"dcnv2"}
    assert len(candidates(resolved(told, {"train.budget_seconds": 0.0}))) == 1
    assert len(candidates(resolved(told, {"train.loss": "log_plus"}))) == 1
    assert candidates(resolved(told, {}, ["train.schedule=constant"]))[0].patience == 2
    assert candidates(resolved(told, {}, ["train.schedule=cosine"]))[0].patience is None
    plan = recipes(resolved(told, {"train.recipe": "ensemble", "train.loss": "log_plus"}), found[0])
    several = {"log_loss": ("log_loss", 1), "ensemble": ("log_plus", 4)}
    assert {name: (each.loss, each.members) for name, each in plan.items()} == several


def test_an_ensemble_is_served_from_one_folder(table, tmp_path):
    told = SMALL | {"loss": None, "recipe": "ensemble", "members": 3, "ignore": ["truth"]}
    found = train(table, out=tmp_path / "run", **ROLES, **told)
    assert (found.chosen, list(found.fits)) == ("ensemble", ["log_loss", "ensemble"])
    assert {path.name for path in (tmp_path / "run" / "fits").iterdir()} == {"log_loss", "ensemble-2", "ensemble-3"}
    test = pl.read_parquet(tmp_path / "run" / "test.parquet")
    ctr = predict(tmp_path / "run", table)["ctr"].to_numpy()[test["row"].to_numpy()]
    np.testing.assert_allclose(ctr, test["ensemble"], atol=1e-6)
    assert not np.allclose(ctr, test["log_loss"], atol=1e-6)
    said = [line.text for line in train_verdict(found)]
    assert "3 models were trained with log_loss; their mean logit is served." in said
    assert found.parameters == 3 * train(table, out=tmp_path / "one", **ROLES, **SMALL, ignore=["truth"]).parameters


def test_a_distilled_model_learns_from_the_ensemble(table, tmp_path):
    told = SMALL | {"loss": None, "recipe": "distilled", "members": 2, "ignore": ["truth"], "calibrate": False}
    found = train(table, out=tmp_path / "run", **ROLES, **told)
    assert (found.chosen, list(found.fits)) == ("distilled", ["log_loss", "ensemble", "distilled"])
    assert (found.fits["distilled"].recipe.teacher, found.fits["distilled"].recipe.loss) == ("ensemble", "distilled")
    test = pl.read_parquet(tmp_path / "run" / "test.parquet")
    logits = {name: np.log(test[name] / (1 - test[name])) for name in found.fits}
    assert np.corrcoef(logits["distilled"], logits["ensemble"])[0, 1] > 0.95


def test_a_search_that_is_cut_off_resumes(table, tmp_path):
    class Stop(Exception):
        pass

    seen = []

    def stop(work, done, detail=""):
        if detail == "searching among 3 settings" and done > 0.6:
            raise Stop
        seen.append(done) if work == "training" else None

    told = {**ROLES, "loss": "log_loss", "ignore": ["truth"], "epochs": 2, "budget_seconds": 1e9}
    with pytest.raises(Stop):
        train(table, out=tmp_path / "run", **told, progress=stop)
    assert seen == sorted(seen)
    assert {path.name for path in (tmp_path / "run" / "fits").iterdir()} >= {"search-1-short", "search-2-short"}
    resumed = train(table, out=tmp_path / "run", **told)
    whole = train(table, out=tmp_path / "whole", **told)
    assert resumed.search == whole.search
    assert resumed.validation == whole.validation
    assert [each.epochs for each in whole.search.attempts[:3]] == [0.5, 0.5, 0.5]
    assert {each.epochs for each in whole.search.attempts[3:]} == {2}


def test_the_page_tells_the_choice_the_columns_and_the_test(auto, run):
    for folder, result in ((auto.folder, auto.result), (run.folder, run.result)):
        page = (folder / "report.html").read_text()
        assert page == runs_page([run_of(folder, result)])
        assert train_verdict(result)[0][1] in page
        assert page.startswith("<!doctype html>")
        for words in (
            "brand_id",
            "whole numbers with a name of codes",
            "evaluation/report.html",
            "Over the epochs",
            "Which columns matter",
            "<svg",
        ):
            assert words in page
        assert "http://" not in page.replace("http://www.w3.org", "")
        assert "NaN" not in page
    assert "Which recipe?" in (auto.folder / "report.html").read_text()
    assert "Which recipe?" not in (run.folder / "report.html").read_text()
    assert "training ads" in (run.folder / "report.html").read_text()


BAD = {
    "click that does not exist": ({"click": "clik"}, {}, r"table has no column 'clik'; did you mean 'click'\?"),
    "bid that does not exist": ({"bid": "cost"}, {}, r"table has no column 'cost'; it has"),
    "no click": ({"click": None}, {}, r"click must name the column of clicks, found none: --click"),
    "click and bid the same": ({"bid": "click"}, {}, r"bid must be a column of its own"),
    "feature with a role": ({"numeric": ["bid"]}, {}, r"found .bid., which is also of bid"),
    "clicks that are none": ({}, {"click": 2}, r"row 0 .*found 2; a click must be 0 or 1"),
    "all clicked": ({}, {"click": 1}, r"clicks and other ads in its training rows, found that all of the"),
    "no bid": ({}, {"bid": 0.0}, r"row 0 .*column 'bid': found 0; a bid must be above 0"),
    "NaN bid": ({}, {"bid": float("nan")}, r"row 0 .*column 'bid': found "),
    "one auction": ({"auction": "auction"}, {"auction": 7}, r"must have at least 20 auctions .*, found one: their"),
    "missing auction": ({"auction": "auction"}, {"auction": None}, r"row 0 .*column 'auction': found"),
    "time that is text": ({"time": "site"}, {}, r"row 0 .*column 'site': found 's\d'"),
    "unknown loss": ({"loss": "log_pluss"}, {}, r"loss must be one of .* did you mean 'log_plus'\?"),
    "unknown model": ({"model": "deepfn"}, {}, r"model must be one of .* did you mean 'deepfm'\?"),
    "unknown metric": ({"metric": "welfair"}, {}, r"metric must be one of .* did you mean 'welfare'\?"),
    "unknown option": ({"clik": "click"}, {}, r"a key of \[data\] must be one of .* did you mean 'click'\?"),
    "other model's option": ({"embedding": 3}, {}, r"^embedding is no option of logistic_regression"),
    "lam without pairs": ({"lam": 1.0}, {}, r"^lam is of losses over pairs, as log_plus, found recipe"),
    "position without slots": ({"position": "brand_id"}, {}, r"position needs slots"),
    "position beyond slots": ({"position": "brand_id", "slots": "1,0.5"}, {}, r"position must be a whole number from"),
    "sampling rate": ({"sampling_rate": 1.5}, {}, r"sampling_rate must be in \(0, 1\], found 1.5"),
    "sampled auctions": ({"sampling_rate": 0.5, "auction": "auction"}, {}, r"^auction cannot be combined with sampl"),
    "size of real auctions": ({"auction_size": 9, "auction": "auction"}, {}, r"^auction_size cannot be combined"),
    "number for text": ({"epochs": "many"}, {}, r"^epochs must be a number, found 'many'"),
    "negative epochs": ({"epochs": -1}, {}, r"epochs must be finite and above 0, found -1"),
    "teacher out of range": ({"teacher": "age"}, {}, r"row \d+ .*column 'age': found .*; a CTR must be in \[0, 1\]"),
    "nothing to learn from": ({"ignore": ["site", "brand_id", "age", "noise", "truth", "auction", "time"]}, {},
                              r"must have columns to learn from, found none"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_anything_is_written(table, tmp_path, case):
    options, changes, message = BAD[case]
    changed = table.with_columns(**{name: pl.lit(value) for name, value in changes.items()})
    with pytest.raises(bidwise.InputError, match=message) as found:
        train(changed, out=tmp_path / "run", **{**ROLES, **SMALL, **options})
    assert "\n" not in str(found.value)
    assert not (tmp_path / "run").exists()


def test_tables_that_are_too_small_are_refused(table, tmp_path):
    with pytest.raises(bidwise.InputError, match=r"table must have at least 40 rows to be split .* found 30"):
        train(table.head(30), out=tmp_path / "run", **ROLES, **SMALL)
    with pytest.raises(bidwise.InputError, match=r"table must have at least 20 auctions to be split .* found \d+"):
        train(table.head(60), out=tmp_path / "run", **ROLES, **SMALL, auction="auction")
    with pytest.raises(bidwise.InputError, match="table must contain ads, found no rows"):
        train(table.head(0), out=tmp_path / "run", **ROLES, **SMALL)
    late = table.with_columns(click=(pl.col("time") > table["time"].quantile(0.92)).cast(int))
    with pytest.raises(bidwise.InputError, match=r"clicks and other ads in its training rows, found that none of the"):
        train(late, out=tmp_path / "run", **ROLES, **SMALL, time="time", ignore=["auction"])
    assert not (tmp_path / "run").exists()


def test_files_and_folders_that_cannot_be_used(run, table, tmp_path):
    told = {**ROLES, **SMALL}
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken.toml").write_text("[data\nclick =")
    with pytest.raises(bidwise.InputError, match="no such file"):
        train(tmp_path / "none.csv", out=tmp_path / "run", **told)
    with pytest.raises(bidwise.InputError, match="out must be a folder, found the file"):
        train(table, out=tmp_path / "file", **told)
    with pytest.raises(bidwise.InputError, match=r"broken.toml must be a TOML file, found"):
        train(table, out=tmp_path / "run", config=tmp_path / "broken.toml")
    with pytest.raises(bidwise.InputError, match=r"train.loss = 'log_plus_teacher' there and 'log_loss' here"):
        train(run.path, out=run.folder, **run.columns, **TAUGHT | {"loss": "log_loss"})
    changed = tmp_path / "changed.parquet"
    table.head(len(table) - 5).write_parquet(changed)
    with pytest.raises(bidwise.InputError, match="which began with other rows than"):
        train(changed, out=run.folder, **run.columns, **TAUGHT)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.toml").write_text('reading = "plotted"\n')
    with pytest.raises(bidwise.InputError, match="which has a run of another kind"):
        train(table, out=tmp_path / "other", **told)
    with pytest.raises(bidwise.InputError, match="which has a run of another kind"):
        train(table, out=run.folder / "evaluation", **told)
    (tmp_path / "test.parquet").write_text("my own")
    with pytest.raises(bidwise.InputError, match=r"new folder, found .* with test.parquet in it"):
        train(table, out=tmp_path, **told)
    assert not (tmp_path / "run").exists()


def test_sections_and_settings_that_nobody_knows():
    for sections, settings, message in (
        ({"date": {}}, [], r"section of the configuration must be one of .* did you mean 'data'\?"),
        ({"train": {"epoch": 3}}, [], r"key of \[train\] must be one of .* did you mean 'epochs'\?"),
        ({"train": 3}, [], r"\[train\] must be a section"),
        ({}, ["epochs=3"], r"settings must be section.key=value"),
        ({}, ["train.epoch=3"], r"did you mean 'epochs'\?"),
        ({}, ["train.batch_size=2.5"], r"train.batch_size must be a whole number, found 2.5"),
        ({}, ["train.recipe=ensembel"], r"train.recipe must be one of .* did you mean 'ensemble'\?"),
        ({}, ["train.recipe=distilled", "train.loss=log_plus"], r"train.loss of recipe distilled must be one of disti"),
        ({}, ["train.recipe=single", "train.members=3"], r"train.members is of recipes ensemble and distilled, found"),
        ({}, ["train.recipe=ensemble", "train.members=1"], r"train.members must be at least 2, found 1"),
        ({}, ["train.budget_seconds=-1"], r"train.budget_seconds must be .*, found -1"),
        ({}, ["model.hidden=8", "model.name=logistic_regression"], r"hidden is no option of logistic_regression"),
        ({}, ["train.precision=half"], r"precision must be one of float32, mixed, found 'half'"),
    ):
        with pytest.raises(bidwise.InputError, match=message):
            resolved({"data": {"click": "y", "bid": "b"}, **sections}, {}, settings)


def test_the_command_says_what_it_does_and_what_is_next(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    words = ["--click", "click", "--bid", "bid", "--ignore", "truth", "auction", "--model", "logistic_regression"]
    words += ["--loss", "log_loss", "--set", "train.epochs=1", "data.bins=8", "--time", "time", "--device", "cpu"]
    out = tmp_path / "run"
    app(["train", str(run.path), *words, "--out", str(out)], exit_on_error=False, result_action="return_value")
    said = capsys.readouterr().out
    for expected in (
        "brand_id  categorical",
        "whole numbers with a name of codes",
        "training",
        "columns, on cpu",
        "ads of the test, its AUC is",
        f"Next: bidwise predict {out} NEW_TABLE",
    ):
        assert expected in said
    assert said.index("brand_id") < said.index("of the test")
    config = tomllib.loads((out / "config.toml").read_text())
    assert (config["train"]["epochs"], config["data"]["bins"], config["data"]["ignore"]) == (1, 8, ["truth", "auction"])
    again = ["train", str(out / "config.toml"), "--out", str(out), "--device", "cpu"]
    app(again, exit_on_error=False, result_action="return_value")
    file = tmp_path / "p.csv"
    app(["predict", str(out), str(run.path), "--out", str(file), "--column", "p"], result_action="return_value")
    assert "rows with the column 'p'" in capsys.readouterr().out
    assert "p" in pl.read_csv(file).columns
    pl.read_parquet(run.path).head(1).write_parquet(tmp_path / "one.parquet")
    one = ["predict", str(out), str(tmp_path / "one.parquet"), "--out", str(tmp_path / "one.csv")]
    app(one, result_action="return_value")
    assert ", 1 row with the column 'ctr'" in capsys.readouterr().out


def test_several_columns_name_an_auction(run, table, tmp_path):
    day, hour = table["auction"] // 20, table["auction"] % 20
    split_key = table.drop("auction").with_columns(day=day, hour=hour).sample(fraction=1, shuffle=True, seed=3)
    columns = run.columns | {"auction": ["day", "hour"]}
    found = train(split_key, out=tmp_path / "run", **columns, **SMALL)
    assert {name: part.auctions for name, part in found.table.splits.items()} == {
        name: part.auctions for name, part in run.result.table.splits.items()
    }
    assert {each.name for each in found.table.columns if each.use == "auction"} == {"day", "hour"}
    assert found.evaluation.auctions == run.result.evaluation.auctions
    assert pl.read_parquet(tmp_path / "run" / "test.parquet")["auction"].n_unique() == found.evaluation.auctions
    with pytest.raises(bidwise.InputError, match="found 'day', which is also of bid"):
        train(split_key, out=tmp_path / "other", **columns | {"bid": "day"})


def test_text_with_another_separator_and_without_a_header(table, tmp_path):
    few = table.select("click", "bid", "site", "brand_id", "age").head(900)
    few.write_csv(tmp_path / "bare.csv", separator=";", include_header=False)
    few.rename({name: f"column_{at}" for at, name in enumerate(few.columns, 1)}).write_csv(tmp_path / "named.csv")
    told = SMALL | {"click": "column_1", "bid": "column_2"}
    words = [*("--click", "column_1", "--bid", "column_2", "--model", "logistic_regression", "--loss", "log_loss")]
    words += ["--set", "train.epochs=3", "train.learning_rate=0.02", "--separator", ";", "--no-header"]
    out = tmp_path / "bare"
    command = ["train", str(tmp_path / "bare.csv"), *words, "--no-refit", "--out", str(out), "--device", "cpu"]
    app(command, exit_on_error=False, result_action="return_value")
    named = train(tmp_path / "named.csv", out=tmp_path / "named", **told)
    assert read_result(out, TrainResult).validation == named.validation
    written = tomllib.loads((out / "config.toml").read_text())["data"]
    assert (written["separator"], written["header"]) == (";", False)
    assert train(out=out, config=out / "config.toml").validation == named.validation  # known by what the run remembers
    predictions = predict(out, tmp_path / "bare.csv")
    assert predictions["ctr"].equals(predict(tmp_path / "named", tmp_path / "named.csv")["ctr"])
    assert predict(out, tmp_path / "named.csv", separator=",", header=True).equals(predictions)
    with pytest.raises(bidwise.InputError, match="is for files, found a table in memory"):
        train(few, out=tmp_path / "other", **ROLES, separator=";")


def test_a_tab_may_be_typed_or_written(tmp_path):
    for separator in ("\\t", "\t"):
        assert resolved({"data": ROLES | {"separator": separator}}).data.separator == separator
    assert resolved({"data": ROLES}, {}, ["data.header=false"]).data.header is False
    with pytest.raises(bidwise.InputError, match=r"data\.header must be true or false, found 1"):
        resolved({"data": ROLES | {"header": 1}})


def test_a_few_absurd_bids_leave_training_as_it_is(tmp_path):
    tame, many = market(3000), 4
    absurd = tame.with_columns(bid=tame["bid"].scatter(3000 * np.arange(many), 1e6))
    plain = SMALL | {"epochs": 2, "calibrate": False, "batch_size": 256}
    told = plain | {"loss": "log_plus", "lam": 0.1}
    columns = {**ROLES, "time": "time", "truth": "truth", "ignore": ["auction"]}
    found = {
        name: train(ads, out=tmp_path / name, **columns, **told)
        for name, ads in {"tame": tame, "absurd": absurd}.items()
    }
    train(absurd, out=tmp_path / "plain", **columns, **plain)
    losses = {"tame": "log_plus", "absurd": "log_plus", "plain": "log_loss"}
    ctr = {name: pl.read_parquet(tmp_path / name / "test.parquet")[loss].to_numpy() for name, loss in losses.items()}

    def between(one, other):
        return np.abs(np.log(ctr[one] / ctr[other])).mean()

    assert between("tame", "absurd") < 0.3 * between("tame", "plain")
    facts = found["absurd"].table
    train_bids = np.sort(absurd["bid"].to_numpy()[: facts.splits["train"].ads])
    assert facts.median_bid == pytest.approx(np.median(train_bids))
    assert facts.mean_bid == pytest.approx(np.minimum(train_bids, 100 * np.median(train_bids)).mean())
    assert (facts.capped_bids, facts.largest_bid) == (many, 1e6)
    said = " ".join(table_notes(facts, found["absurd"].settings))
    note = f"{many} bids above 100 times the median ({facts.median_bid:.3g}): {facts.bid_cap:.3g} counts in training"
    assert note in said
    assert "The largest bid is 1e+06; in the test every bid counts in full." in said
    assert note in (tmp_path / "absurd" / "report.html").read_text()
    assert facts.bid_cap == pytest.approx(100 * facts.median_bid)


def test_tame_bids_are_divided_by_their_mean(run, table):
    facts = run.result.table
    assert facts.mean_bid == table["bid"].to_numpy()[: facts.splits["train"].ads].mean()
    assert facts.capped_bids == 0
    assert "times the median" not in " ".join(table_notes(facts, run.result.settings))
