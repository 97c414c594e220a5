"""The Criteo experiment: its numbers recomputed, its pieces, and that nothing is lost when it is cut off."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from paper_helpers import paper_command

import bidwise
from bidwise.data.store import Store
from bidwise.json_files import read_json, to_json
from bidwise.models import SparseLogisticRegression
from bidwise.run_folder import read_result
from paper.criteo import Numbers, run, selected_lams
from paper.criteo_results import AS_PRINTED, LOSSES, CriteoConfig, CriteoResult
from paper.criteo_text import simulate
from paper.criteo_trial import Measured, Trained, Trial, load_dataset, measured, planned, trial_of
from paper.criteo_world import CRITEO_WORLDS
from paper.prepare_criteo import prepare
from paper.tasks import kept_result

LAMS = (0.3, 3.0, 30.0, 300.0)
TINY = CriteoConfig(
    models=("logistic_regression",), losses=("log_plus", "distilled"), repeats=2, auction_size=32, every=1, lams=LAMS
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("criteo")
    simulate(folder / "ads.tsv", 4_000)
    return prepare([folder / "ads.tsv"], folder / "store")


@pytest.fixture(scope="module")
def small(store, tmp_path_factory):
    out = tmp_path_factory.mktemp("small") / "run"
    run(TINY, store.folder, out)
    return out, read_json(out / "result.json")


def selections(out, name):
    """What a trial found on the test auctions, by selection."""
    return Trained.of(kept_result(out / "pieces" / f"{name}.pt")).selections


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
    assert result["data"]["truth"]
    assert result["data"]["integers"] == "winners"
    assert "verdict" not in result


def test_means_and_errors_are_those_of_the_repeats(small):
    out, result = small
    for protocol, selection in (("converged", "last"), ("tuned", "log_loss")):
        found = result["models"]["logistic_regression"]["protocols"][protocol]["losses"]["log_loss"]
        each = [selections(out, f"logistic_regression-{repeat:02d}-log_loss")[selection] for repeat in range(2)]
        for key in ("welfare", "expected_welfare"):
            means = [float(getattr(entry, key).mean()) for entry in each]
            assert found[key] == pytest.approx(sum(means) / 2)
            assert found[f"{key}_error"] == pytest.approx(abs(means[0] - means[1]) / 2)


def test_differences_are_paired_by_repeat(small):
    out, result = small
    losses = result["models"]["logistic_regression"]["protocols"]["converged"]["losses"]
    plus, base = (
        [float(selections(out, f"logistic_regression-{k:02d}-{name}")["last"].expected_welfare.mean()) for k in (0, 1)]
        for name in ("log_plus-3", "log_loss")
    )
    apart = [a - b for a, b in zip(plus, base, strict=True)]
    found = losses["log_plus"]["difference"]
    assert found["repeats"]["difference"] == pytest.approx(sum(apart) / 2)
    half = 12.7062 * np.std(apart, ddof=1) / math.sqrt(2)  # Student's t with one degree of freedom
    assert found["repeats"]["ci_high"] - found["repeats"]["difference"] == pytest.approx(half, rel=1e-4)
    assert found["auctions"]["difference"] == pytest.approx(found["repeats"]["difference"])
    assert found["difference"] == found["repeats"]["difference"]
    read = read_result(small[0], CriteoResult).models["logistic_regression"].protocols["converged"]
    assert read.gain("log_plus").difference == pytest.approx((sum(apart) / 2) / (sum(base) / 2))


def test_lam_is_chosen_by_the_validation_log_loss_of_all_repeats(small):
    out, result = small
    found = result["models"]["logistic_regression"]["protocols"]["tuned"]["losses"]["log_plus"]
    tried = {lam: [] for lam in LAMS}
    for lam in LAMS:
        names = [trial_of(TINY, "logistic_regression", repeat, "log_plus", lam, "tuned").name for repeat in range(2)]
        tried[lam] = [selections(out, name)["log_loss"] for name in names]
    best = min(tried, key=lambda lam: sum(each.value for each in tried[lam]))
    assert found["lam"] == [best, best]
    assert found["welfare"] == pytest.approx(np.mean([float(each.welfare.mean()) for each in tried[best]]))


def test_teachers_are_the_log_loss_model_of_the_same_repeat_and_protocol(store, small):
    out, _ = small
    ads = load_dataset(TINY, store.folder, "cpu").train
    taught = [trial for trial in planned(TINY) if trial.recipe.loss == "distilled"]
    for trial in taught:
        teacher = kept_result(out / "pieces" / f"logistic_regression-{trial.repeat:02d}-log_loss.pt")["teacher"]
        assert set(teacher) == {"last", "log_loss"}
        assert teacher[trial.recipe.teacher].shape == (len(ads),)
    assert {trial.recipe.teacher for trial in taught} == {"last", "log_loss"}


def test_the_plan_is_every_loss_with_its_lams_and_teachers():
    trials = planned(CriteoConfig(models=("deepfm",), repeats=1))
    counts = {loss: sum(trial.recipe.loss == loss for trial in trials) for loss in LOSSES}
    # one lam with the last teacher and eleven with the best; without a teacher one training serves both
    assert counts == {
        "log_loss": 1,
        "log_weighted": 12,
        "log_teacher": 12,
        "log_plus": 11,
        "log_plus_teacher": 12,
        "distilled": 2,
    }
    assert len({trial.name for trial in trials}) == len(trials)
    converged = [trial.recipe for trial in planned(CriteoConfig(protocol="converged"))]
    assert {recipe.lam for recipe in converged if recipe.lam is not None} == {3.0}


def test_the_baseline_can_be_trained_as_well_as_any():
    config = CriteoConfig(epochs=8, schedule="cosine", l2=1e-4, batch_size=4096)
    recipes = {trial.recipe for trial in planned(config)}
    assert {(r.epochs, r.schedule, r.l2, r.batch_size) for r in recipes} == {(8, "cosine", 1e-4, 4096)}
    assert {r.epochs for r in {trial.recipe for trial in planned(CriteoConfig())}} == {3.0, 2.1}


def test_what_is_printed_is_what_is_trained():
    config = CriteoConfig(**AS_PRINTED, ads=36_672_493)
    recipes = {(r.model, r.loss): r for r in (trial.recipe for trial in planned(config))}
    assert {loss for _, loss in recipes} == {"log_loss", "log_weighted", "log_teacher"}
    dcn, deepfm = recipes["dcn", "log_weighted"], recipes["deepfm", "log_weighted"]
    assert (dcn.batch_size, deepfm.batch_size, dcn.sigma, dcn.l2, dcn.embeddings) == (512, 256, 3.0, 1e-5, "dense")
    assert (dcn.epochs * -(-config.ads // 512), deepfm.epochs) == (pytest.approx(150_000), 3)
    assert (dcn.options, deepfm.options, config.repeats, config.lam) == ({"first_order": True}, {}, 10, 3.0)
    printed = dcn.loss_function
    assert (printed.options.reduction, printed.options.weighting, printed.lam) == ("sum", 3.0, dcn.lam)
    assert {trial.recipe.lam for trial in planned(config)} == {None, 0.1, 1.0, 3.0, 5.0, 10.0}
    assert not recipes["dcn", "log_loss"].sums
    with pytest.raises(bidwise.InputError, match="steps cannot be combined with epochs"):
        CriteoConfig(steps=10, epochs=1)
    with pytest.raises(bidwise.InputError, match="steps is of dcn"):
        CriteoConfig(steps=10, models=("deepfm",))


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
    monkeypatch.setattr("paper.criteo_trial.GROUPS", 60)
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
    assert {path.stem for path in pieces.iterdir()} >= {trial.name for trial in planned(TINY)}
    models = len(planned(TINY))
    assert f"model 4 of {models}" in details
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
    trained = {}
    for trial in planned(TINY):
        kept = Trained.of(kept_result(out / "pieces" / f"{trial.name}.pt"))
        known = {name: replace(each, expected_welfare=None) for name, each in kept.selections.items()}
        trained[trial] = replace(kept, selections=known)
    losses = Numbers(TINY, trained, "logistic_regression").protocol("tuned").losses
    assert math.isnan(losses["log_plus"].expected_welfare)
    assert losses["log_plus"].main_welfare == losses["log_plus"].welfare


def test_another_store_or_configuration_is_refused(store, small, tmp_path):
    out, _ = small
    with pytest.raises(bidwise.InputError, match="seed = 0 there and 1 here"):
        run(replace(TINY, seed=1), store.folder, out)
    other = Store(store.folder)
    bids = {split: 2 * np.array(other.column(split, "bids")) for split in other.splits}
    before = {split: np.array(other.column(split, "bids")) for split in other.splits}
    try:
        for split, values in bids.items():
            np.save(store.folder / split / "bids.npy", values)
        with pytest.raises(bidwise.InputError, match="checksum"):
            run(TINY, store.folder, out)
    finally:
        for split, values in before.items():
            np.save(store.folder / split / "bids.npy", values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": ("deepfn",)}, "models must be one of .*did you mean 'deepfm'"),
        ({"losses": ("log_plsu",)}, "losses must be one of .*did you mean 'log_plus'"),
        ({"models": ()}, "models must name at least one"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"repeats": 1001}, "repeats must be at most 1000, found 1001"),
        ({"protocol": "best"}, "protocol must be one of"),
        ({"every": 0}, "every must be finite and above 0"),
        ({"embeddings": "eager"}, "embeddings must be one of lazy, dense"),
        ({"rows": 9}, "rows must be at least 10"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"lam_repeats": 0}, "lam_repeats must be at least 1"),
        ({"lam_repeats": 3, "repeats": 2}, "lam_repeats must be at most repeats, 2, found 3"),
        ({"precision": "float16"}, "precision must be one of float32, mixed"),
        ({"epochs": 0}, "epochs must be finite and above 0"),
        ({"schedule": "linear"}, "schedule must be one of constant, cosine"),
        ({"world": "shared_tial"}, "world must be one of .*did you mean 'shared_tail'"),
        ({"lams": ()}, "lams must be at least one, found none"),
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
    assert result["data"]["fields"] == 39
    assert result["data"]["integers"] == "winners"
    assert result["data"]["truth"]
    assert result["data"]["bids"]["kind"] == "deepfm"
    model = result["models"]["logistic_regression"]
    assert model["batch_size"] == 512
    assert model["steps"] == 21  # three epochs of 7
    assert "rows = 4000" in (out / "config.toml").read_text()


def test_lam_is_chosen_on_the_first_repeats_and_used_in_all(simulated):
    out, result = simulated
    names = {path.stem for path in (out / "pieces").iterdir()}
    names_of = {lam: trial_of(SIMULATED, "logistic_regression", 0, "log_plus", lam, "tuned").name for lam in LAMS}
    tried = {lam: selections(out, name)["log_loss"] for lam, name in names_of.items()}
    best = min(tried, key=lambda lam: tried[lam].value)
    model = result["models"]["logistic_regression"]
    assert model["protocols"]["tuned"]["losses"]["log_plus"]["lam"] == [best] * 3
    for repeat in (1, 2):  # the chosen one, and 3 for the other protocol
        lams = {name for name in names if name.startswith(f"logistic_regression-{repeat:02d}-log_plus")}
        assert lams == {f"logistic_regression-{repeat:02d}-log_plus-{lam:g}" for lam in {best, 3.0}}


def test_lam_is_selected_by_the_sum_over_the_first_repeats():
    config = CriteoConfig(models=("deepfm",), losses=("log_plus",), protocol="tuned", repeats=3, lam_repeats=2)
    values = {
        (0, 1.0): -5.0,
        (0, 3.0): -4.0,
        (1, 1.0): -1.0,
        (1, 3.0): -4.0,
    }  # 1 is best in the first, 3 in both
    trained = {}
    for trial in planned(config):
        value = values.get((trial.repeat, trial.recipe.lam), 0.0)
        of_test = Measured(torch.zeros(1), None, torch.zeros(1), 0.5, 0.5, value=value)
        trained[trial] = Trained({"log_loss": of_test}, 1)
    lams = selected_lams(config, trained)
    assert lams == {("deepfm", "log_plus"): 3.0}
    rest = [trial for trial in planned(config, lams) if trial not in trained]
    assert rest == [Trial(config.recipe("deepfm", "log_plus", 3.0), 2)]
    assert planned(replace(config, lam_repeats=None)) == planned(replace(config, lam_repeats=3), lams)


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
    assert (config.world, result.data.bids["kind"]) == ("threeway", CRITEO_WORLDS["threeway"].bids.kind)
    assert (config.epochs, config.schedule, config.l2, config.lams) == (2, "cosine", 1e-5, (1, 3, 10))
    assert "400 test ads are a trial" in capsys.readouterr().out
    assert "3,200" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "run" / "figures" / "criteo_welfare.svg").exists()


def test_the_command_asks_for_data_or_rows(tmp_path, monkeypatch, capsys):
    assert paper_command(monkeypatch, "criteo", "--device", "cpu", "--out", tmp_path / "run") != 0
    told = capsys.readouterr()
    assert "or --rows the number of ads to simulate on the device" in " ".join((told.out + told.err).split())
    assert not (tmp_path / "run").exists()
