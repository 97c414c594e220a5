"""The Criteo experiment: its numbers recomputed, its pieces, and that nothing is lost when it is cut off."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from paper_helpers import paper_command

import bidwise
from bidwise.json_files import read_json, to_json
from bidwise.models import SparseLogisticRegression
from bidwise.run_folder import load, read_result
from paper import criteo
from paper.criteo import Measured, file_of, measured, planned, recipes_of, run, selected
from paper.criteo_device import load_dataset
from paper.criteo_results import AS_PRINTED, LOSSES, CriteoConfig, CriteoResult, as_printed
from paper.criteo_text import simulate
from paper.criteo_world import CRITEO_WORLDS
from paper.dcn import MODELS
from paper.prepare_criteo import Options, prepare

LAMS = (0.3, 3.0, 30.0, 300.0)
TINY = CriteoConfig(
    models=("logistic_regression",), losses=("log_plus", "distilled"), repeats=2, auction_size=32, every=1, lams=LAMS
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("criteo")
    simulate(folder / "ads.tsv", 4_000)
    return prepare(folder / "ads.tsv", folder / "store")


@pytest.fixture(scope="module")
def small(store, tmp_path_factory):
    out = tmp_path_factory.mktemp("small") / "run"
    run(TINY, store.folder, out)
    return out, read_json(out / "result.json")


def found_by(out, recipe, repeat):
    """What a training found on the test auctions, by selection."""
    found = load(out / "pieces" / f"{file_of(recipe, repeat)}.pt")["found"]
    return {name: Measured(**values) for name, values in found["selections"].items()}


def recipe_of(loss, lam=None, config=TINY):
    return config.recipe("logistic_regression", loss, lam)


def test_a_result_is_read_as_it_was_returned(store, small):
    out, _ = small
    result = run(TINY, store.folder, out)  # nothing is computed again
    assert to_json(read_result(out, CriteoResult)) == to_json(result)
    assert math.isfinite(result.models["logistic_regression"].protocols["tuned"].gain("log_plus").difference)


def test_result_has_every_number_of_every_loss(small):
    _, result = small
    model = result["models"]["logistic_regression"]
    assert set(model["protocols"]) == {"converged", "tuned"}
    for protocol in model["protocols"].values():
        assert list(protocol["losses"]) == ["log_loss", "log_plus", "distilled"]
        for loss, found in protocol["losses"].items():
            for key in ("welfare", "expected_welfare", "auc", "log_loss"):
                assert math.isfinite(found[key]), (loss, key)
            assert (found["difference"] is None) == (found["calibrated"] is None) == (loss == "log_loss")
    assert result["data"]["optimal_welfare"] > 0
    assert result["data"]["about"]["options"]["integers"] == "winners"


def test_means_and_differences_are_those_of_the_repeats(small):
    out, result = small
    losses = result["models"]["logistic_regression"]["protocols"]["converged"]["losses"]
    each = {
        loss: [found_by(out, recipe_of(loss, lam), repeat)["last"] for repeat in range(2)]
        for loss, lam in (("log_loss", None), ("log_plus", 3.0))
    }
    for key in ("welfare", "expected_welfare"):
        means = [float(getattr(entry, key).mean()) for entry in each["log_loss"]]
        assert losses["log_loss"][key] == pytest.approx(sum(means) / 2)
        assert losses["log_loss"][f"{key}_error"] == pytest.approx(abs(means[0] - means[1]) / 2)
    plus, base = (
        [float(entry.expected_welfare.mean()) for entry in some] for some in (each["log_plus"], each["log_loss"])
    )
    apart = [a - b for a, b in zip(plus, base, strict=True)]
    found = losses["log_plus"]["difference"]
    assert found["difference"] == found["repeats"]["difference"] == pytest.approx(sum(apart) / 2)
    half = 12.7062 * np.std(apart, ddof=1) / math.sqrt(2)  # Student's t with one degree of freedom
    assert found["repeats"]["ci_high"] - found["repeats"]["difference"] == pytest.approx(half, rel=1e-4)
    assert found["auctions"]["difference"] == pytest.approx(found["repeats"]["difference"])
    read = read_result(out, CriteoResult).models["logistic_regression"].protocols["converged"]
    assert read.gain("log_plus").difference == pytest.approx((sum(apart) / 2) / (sum(base) / 2))


def test_lam_is_chosen_by_the_validation_log_loss_of_all_repeats(small):
    out, result = small
    found = result["models"]["logistic_regression"]["protocols"]["tuned"]["losses"]["log_plus"]
    tried = {lam: [found_by(out, recipe_of("log_plus", lam), k)["log_loss"] for k in range(2)] for lam in LAMS}
    best = min(tried, key=lambda lam: sum(each.value for each in tried[lam]))
    assert found["lam"] == [best, best]
    assert found["welfare"] == pytest.approx(np.mean([float(each.welfare.mean()) for each in tried[best]]))


def test_teachers_are_the_log_loss_model_of_the_same_repeat_and_protocol(store, small):
    out, _ = small
    ads = load_dataset(TINY, store.folder, "cpu").train
    taught = [(recipe, repeat) for recipe, repeat in planned(TINY) if recipe.loss == "distilled"]
    for recipe, repeat in taught:
        teacher = load(out / "pieces" / f"logistic_regression-{repeat:02d}-log_loss.pt")["found"]["teacher"]
        assert set(teacher) == {"last", "log_loss"}
        assert teacher[recipe.teacher].shape == (len(ads),)
    assert {recipe.teacher for recipe, _ in taught} == {"last", "log_loss"}


def test_the_plan_is_every_loss_with_its_lams_and_teachers():
    trials = planned(CriteoConfig(models=("deepfm",), repeats=1))
    counts = {loss: sum(recipe.loss == loss for recipe, _ in trials) for loss in LOSSES}
    # one lam with the last teacher and eleven with the best; without a teacher one training serves both
    assert counts == {
        "log_loss": 1,
        "log_weighted": 12,
        "log_teacher": 12,
        "log_plus": 11,
        "log_plus_teacher": 12,
        "distilled": 2,
    }
    assert len({file_of(*trial) for trial in trials}) == len(trials)
    converged = [recipe for recipe, _ in planned(CriteoConfig(protocol="converged"))]
    assert {recipe.lam for recipe in converged if recipe.lam is not None} == {3.0}


def test_what_is_printed_is_what_is_trained():
    config = CriteoConfig(**AS_PRINTED, ads=36_672_493)
    recipes = {(r.model, r.loss): r for r, _ in planned(config)}
    assert {loss for _, loss in recipes} == {"log_loss", "log_weighted", "log_teacher"}
    dcn, deepfm = recipes["dcn", "log_weighted"], recipes["deepfm", "log_weighted"]
    assert (dcn.batch_size, deepfm.batch_size, dcn.sigma, dcn.l2, dcn.embeddings) == (512, 256, 3.0, 1e-5, "dense")
    assert (dcn.epochs * -(-config.ads // 512), deepfm.epochs) == (pytest.approx(150_000), 3)
    assert (dcn.options, deepfm.options, config.repeats, config.lam) == ({"first_order": True}, {}, 10, 3.0)
    printed = dcn.loss_function
    assert (printed.options.reduction, printed.options.weighting, printed.lam) == ("sum", 3.0, dcn.lam)
    assert {recipe.lam for recipe, _ in planned(config)} == {None, 0.1, 1.0, 3.0, 5.0, 10.0}


def test_as_printed_l2_is_as_strong_in_every_loss(store):
    """Without a rank term the composites are the log loss, and its sum has DeepCTR's L2."""
    ads = store.ads("train").with_teacher(torch.zeros(3_200))
    config, trained = as_printed(CriteoConfig(models=("deepfm",), l2=1e-3)), []
    for loss, lam in (("log_loss", None), ("log_teacher", 3.0)):
        recipe = config.recipe("deepfm", loss, lam)
        model = MODELS["deepfm"](list(store.cardinalities), seed=0)
        trained.append(recipe.fit(model, ads, loss=criteo.loss_of(recipe), seed=1).last["table.weight"])
    torch.testing.assert_close(*trained, rtol=1e-3, atol=1e-4)


def test_given_options_take_the_place_of_printed_ones(monkeypatch):
    configs = []
    monkeypatch.setattr("paper.__main__._experiment", lambda run, config, *_: configs.append(config))
    few, synthetic = "--repeats 1 --models deepfm --protocol converged", "--repeats 2 --losses log"
    for name, words in (("criteo", few), ("criteo", "--epochs 1"), ("synthetic", synthetic)):
        assert paper_command(monkeypatch, name, "--as-printed", "--out", "x", *words.split()) == 0
    deepfm, short, synthetic = configs
    assert (deepfm.repeats, deepfm.models, deepfm.protocols) == (1, ("deepfm",), ("converged",))
    assert (deepfm.sums, deepfm.l2, deepfm.steps, deepfm.first_order) == (True, 1e-5, None, False)
    assert (short.epochs, short.steps, short.first_order) == (1, None, True)
    assert (synthetic.repeats, synthetic.losses, synthetic.reading) == (2, ("log",), "printed")
    assert paper_command(monkeypatch, "criteo", *["--ads", "3", "--out", "x"]) == 2  # a run counts them


def test_measures_agree_with_the_library(store):
    test = store.ads("test", auction_size=32)
    model = SparseLogisticRegression(store.cardinalities, std=0.3)
    valid = store.ads("valid")
    found = measured(model, test, valid)
    ctr = bidwise.predict(model, test).double()
    for key, truth in (("welfare", test.clicks), ("expected_welfare", test.truth)):
        expected = bidwise.pooled_welfare(ctr, truth, test.bids, 32)
        assert float(getattr(found, key).mean()) == pytest.approx(expected, rel=1e-6)
    line = bidwise.evaluation.Platt.fit(bidwise.predict(model, valid), valid.clicks)
    scaled = bidwise.pooled_welfare(line(ctr), test.truth, test.bids, 32)
    assert float(found.calibrated.mean()) == pytest.approx(scaled, rel=1e-6)
    assert scaled != pytest.approx(float(found.expected_welfare.mean()), rel=1e-3)
    blind = measured(model, replace(test, truth=None), valid)
    assert blind.expected_welfare is None
    by_clicks = bidwise.pooled_welfare(line(ctr), test.clicks, test.bids, 32)
    assert float(blind.calibrated.mean()) == pytest.approx(by_clicks, rel=1e-6)
    metrics = bidwise.evaluation.Metrics(ctr, test.clicks, test.bids, size=32).compute()
    for key in ("auc", "log_loss"):
        assert getattr(found, key) == pytest.approx(getattr(metrics, key), rel=1e-6)


def test_groups_of_ads_keep_mean_and_spread(store, monkeypatch):
    test = store.ads("test", auction_size=32)
    model = SparseLogisticRegression(store.cardinalities, std=0.3)
    every_ad = measured(model, test, test).welfare
    monkeypatch.setattr(criteo, "GROUPS", 60)
    groups = measured(model, test, test).welfare
    assert (len(every_ad), len(groups)) == (len(test), 60)
    assert float(groups.mean()) == pytest.approx(float(every_ad.mean()))
    errors = [float(each.std()) / math.sqrt(len(each)) for each in (every_ad, groups)]
    assert errors[1] == pytest.approx(errors[0], rel=0.25)  # the error of a standard deviation of 60 is 9 %


def test_an_interrupted_run_resumes_and_finds_the_same(store, small, tmp_path):
    _, expected = small
    pieces = tmp_path / "run" / "pieces"

    def stop(work, done, detail):
        if len(list(pieces.glob("*.pt"))) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(TINY, store.folder, tmp_path / "run", progress=stop)
    assert not (tmp_path / "run" / "result.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in pieces.iterdir()}
    assert len(kept) == 3
    details = []
    run(TINY, store.folder, tmp_path / "run", progress=lambda work, done, detail: details.append(detail))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert {path.stem for path in pieces.iterdir()} >= {file_of(*trial) for trial in planned(TINY)}
    assert f"part 4 of {len(planned(TINY))}" in details
    found = read_json(tmp_path / "run" / "result.json")
    assert found["models"]["logistic_regression"]["protocols"] == expected["models"]["logistic_regression"]["protocols"]


def test_workers_find_what_one_finds(store, small, tmp_path):
    run(TINY, store.folder, tmp_path / "run", workers=2)
    found = read_json(tmp_path / "run" / "result.json")
    assert found["models"]["logistic_regression"]["protocols"] == small[1]["models"]["logistic_regression"]["protocols"]


def test_deepfm_and_dcn_run_as_printed_but_for_repeats_steps_and_auctions(store, tmp_path):
    small = {"protocol": "converged", "repeats": 1, "auction_size": 32, "every": 5, "steps": 15}
    result = run(CriteoConfig(**{**AS_PRINTED, **small}), store.folder, tmp_path / "run")
    for model in ("deepfm", "dcn"):
        gain = result.models[model].protocols["converged"].gain("log_teacher")
        assert gain.auctions.known
        assert not gain.repeats.known
        assert gain.outcome == "unclear"
    assert [result.models[name].steps for name in ("deepfm", "dcn")] == [3 * 13, 15]
    assert [result.models[name].batch_size for name in ("deepfm", "dcn")] == [256, 512]


def test_unknown_ctr_leaves_realised_welfare(small):
    out, _ = small
    known = [found_by(out, recipe_of("log_plus", 3.0), repeat)["last"] for repeat in range(2)]
    blind = [replace(each, expected_welfare=None) for each in known]
    found = criteo._result(blind, blind, "log_plus")
    assert math.isnan(found.expected_welfare)
    assert found.main_welfare == found.welfare


def test_another_store_or_configuration_is_refused(store, small, tmp_path):
    out, _ = small
    with pytest.raises(bidwise.InputError, match="seed = 0 there and 1 here"):
        run(replace(TINY, seed=1), store.folder, out)
    other = prepare(store.folder.parent / "ads.tsv", tmp_path / "store", Options(bid_noise=0.2))
    with pytest.raises(bidwise.InputError, match="checksum"):
        run(TINY, other.folder, out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": ("deepfn",)}, "models must be one of .*did you mean 'deepfm'"),
        ({"losses": ("log_plsu",)}, "losses must be one of .*did you mean 'log_plus'"),
        ({"models": ()}, "models must name at least one"),
        ({"repeats": 1001}, "repeats must be at most 1000, found 1001"),
        ({"embeddings": "eager"}, "embeddings must be one of lazy, dense"),
        ({"lam_repeats": 3, "repeats": 2}, "lam_repeats must be at most repeats, 2, found 3"),
        ({"precision": "float16"}, "precision must be one of float32, mixed"),
        ({"schedule": "linear"}, "schedule must be one of constant, cosine"),
        ({"lams": ()}, "lams must name at least one, found none"),
        ({"steps": 10, "epochs": 1}, "steps cannot be combined with epochs"),
        ({"steps": 10, "models": ("deepfm",)}, "steps is of dcn"),
        ({"lams": (1.0, -1.0)}, "lams must be finite and above 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(bidwise.InputError, match=message):
        CriteoConfig(**options)


def test_auctions_larger_than_a_split_are_refused(store, tmp_path):
    with pytest.raises(bidwise.InputError, match="auction_size must be at most the 400 ads, found 1000"):
        run(replace(TINY, auction_size=1000), store.folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


SIMULATED = replace(TINY, rows=4_000, batch_size=512, lam_repeats=1, repeats=3)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    out = tmp_path_factory.mktemp("simulated") / "run"
    run(SIMULATED, None, out)
    return out, read_json(out / "result.json")


def test_simulated_rows_need_no_store(simulated):
    out, result = simulated
    assert result["config"]["rows"] == 4_000
    assert result["data"]["splits"] == {"train": 3_200, "valid": 400, "test": 400}
    assert result["data"]["about"]["options"]["integers"] == "winners"
    assert result["data"]["about"]["bids"]["kind"] == "deepfm"
    model = result["models"]["logistic_regression"]
    assert model["batch_size"] == 512
    assert model["steps"] == 21  # three epochs of 7
    assert "rows = 4000" in (out / "config.toml").read_text()


def test_lam_is_chosen_on_the_first_repeats_and_used_in_all(simulated):
    out, result = simulated
    tried = {lam: found_by(out, recipe_of("log_plus", lam, SIMULATED), 0)["log_loss"] for lam in LAMS}
    best = min(tried, key=lambda lam: tried[lam].value)
    model = result["models"]["logistic_regression"]
    assert model["protocols"]["tuned"]["losses"]["log_plus"]["lam"] == [best] * 3
    names = {path.stem for path in (out / "pieces").iterdir()}
    for repeat in (1, 2):  # the chosen one, and 3 for the other protocol
        lams = {name for name in names if name.startswith(f"logistic_regression-{repeat:02d}-log_plus")}
        assert lams == {f"logistic_regression-{repeat:02d}-log_plus-{lam:g}" for lam in {best, 3.0}}


def test_lam_is_selected_by_the_sum_over_the_first_repeats():
    config = CriteoConfig(models=("deepfm",), losses=("log_plus",), protocol="tuned", repeats=3, lam_repeats=2)
    values = {(0, 1.0): -5.0, (0, 3.0): -4.0, (1, 1.0): -1.0, (1, 3.0): -4.0}  # 1 is best in the first, 3 in both
    trained = {}
    for recipe, repeat in planned(config):
        value = values.get((repeat, recipe.lam), 0.0)
        of_test = Measured(torch.zeros(1), None, torch.zeros(1), 0.5, 0.5, value=value)
        trained[recipe, repeat] = {"log_loss": of_test}
    assert selected(config, recipes_of(config)["deepfm", "tuned", "log_plus"], trained).lam == 3.0
    assert {repeat for recipe, repeat in planned(config) if recipe.loss == "log_plus"} == {0, 1}


@pytest.mark.parametrize(("rows", "data"), [(None, None), (4_000, "store")])
def test_ads_are_of_a_store_or_simulated(rows, data, tmp_path):
    with pytest.raises(bidwise.InputError, match=r"data must be a store .* or rows .*; found (neither|both)"):
        run(replace(TINY, rows=rows), data, tmp_path / "run")


def test_the_command_simulates_rows(tmp_path, monkeypatch, capsys):
    asked = "--rows 4000 --models logistic_regression --losses log_plus --protocol tuned --repeats 2 --lam-repeats 1"
    asked += " --batch-size 512 --auction-size 32 --every 1 --device cpu"
    asked += " --epochs 2 --schedule cosine --l2 1e-5 --lams 1 3 10 --world threeway"
    assert paper_command(monkeypatch, "criteo", *asked.split(), "--out", tmp_path / "run") == 0
    result = read_result(tmp_path / "run", CriteoResult)
    config = result.config
    assert (config.world, result.data.about["bids"]["kind"]) == ("threeway", CRITEO_WORLDS["threeway"].bids.kind)
    assert (config.epochs, config.schedule, config.l2, config.lams) == (2, "cosine", 1e-5, (1, 3, 10))
    assert "400 test ads are a trial" in capsys.readouterr().out
    assert "3,200" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "run" / "figures" / "criteo_welfare.svg").exists()
