"""The Criteo experiment: its numbers recomputed, its pieces, and that nothing is lost when it is cut off."""

import json
import math
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

import bidwise
from bidwise.data.criteo.prepare import prepare
from bidwise.data.criteo.world import simulate
from bidwise.data.store import Store
from bidwise.experiments.criteo import Config, experiment, run
from bidwise.experiments.criteo.numbers import of_protocol
from bidwise.experiments.criteo.plan import LAMS, LOSSES, planned, trial_of
from bidwise.experiments.criteo.trial import Arena, Auctions, Trial, loss_of, measured
from bidwise.experiments.pieces import Job, Pieces
from bidwise.models import SparseLogisticRegression
from bidwise.runs import load, read_json

TINY = Config(
    models=("logistic_regression",), losses=("log_plus", "distilled"), repeats=2, auction_size=32, cuts=2, every=1
)


@pytest.fixture(scope="module", autouse=True)
def short_segments():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bidwise.experiments.criteo.runtime.SECONDS", 0.001)
        yield


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


def test_result_has_every_number_of_every_loss(small):
    _, result = small
    model = result["models"]["logistic_regression"]
    assert set(model["protocols"]) == {"converged", "tuned"}
    for protocol in model["protocols"].values():
        assert list(protocol["losses"]) == ["log_loss", "log_plus", "distilled"]
        for loss, found in protocol["losses"].items():
            for key in ("welfare", "expected_welfare", "auc", "auc_loss", "log_loss", "revenue", "calibration_error"):
                assert math.isfinite(found[key]), (loss, key)
            assert found["auc_loss"] == pytest.approx(1 - found["auc"])
            assert (found["difference"] is None) == (loss == "log_loss")
    assert [row["lam"] for row in model["grid"]["log_plus"]] == list(LAMS)
    assert {"log_loss", "log_plus", "distilled"} == set(model["runtime"])
    assert all(found["segments"] >= 15 for found in model["runtime"].values())
    assert model["runtime"]["log_loss"]["relative"] == 1
    assert result["data"]["known_ctr"]
    assert result["data"]["integers"] == "winners"
    assert result["verdict"]
    json.dumps(result)


def test_means_and_errors_are_those_of_the_repeats(small):
    out, result = small
    for protocol, selection in (("converged", "last"), ("tuned", "welfare")):
        found = result["models"]["logistic_regression"]["protocols"][protocol]["losses"]["log_loss"]
        each = [
            load(out / "pieces" / f"logistic_regression-{repeat:02d}-log_loss.pt")["found"]["selections"][selection]
            for repeat in range(2)
        ]
        for key in ("welfare", "expected_welfare"):
            means = [float(entry[key].mean()) for entry in each]
            assert found[key] == pytest.approx(sum(means) / 2)
            assert found[f"{key}_error"] == pytest.approx(abs(means[0] - means[1]) / 2)


def test_differences_are_paired_by_repeat(small):
    _, result = small
    losses = result["models"]["logistic_regression"]["protocols"]["converged"]["losses"]
    plus, base = (losses[name]["repeats"]["expected_welfare"] for name in ("log_plus", "log_loss"))
    apart = [a - b for a, b in zip(plus, base, strict=True)]
    found = losses["log_plus"]["difference"]
    assert found["of"] == "expected"
    assert found["repeats"]["difference"] == pytest.approx(sum(apart) / 2)
    half = 12.7062 * np.std(apart, ddof=1) / math.sqrt(2)  # Student's t with one degree of freedom
    assert found["repeats"]["ci_high"] - found["repeats"]["difference"] == pytest.approx(half, rel=1e-4)
    assert found["auctions"]["difference"] == pytest.approx(found["repeats"]["difference"])
    assert losses["log_plus"]["relative"] == pytest.approx((sum(apart) / 2) / (sum(base) / 2))


def test_lam_is_chosen_by_validation_welfare_in_every_repeat(small):
    out, result = small
    losses = result["models"]["logistic_regression"]["protocols"]["tuned"]["losses"]
    for repeat in range(2):
        trials = {lam: trial_of("logistic_regression", repeat, "log_plus", lam, "tuned") for lam in LAMS}
        tried = {
            lam: load(out / "pieces" / f"{trial.name}.pt")["found"]["selections"]["welfare"]
            for lam, trial in trials.items()
        }
        best = max(tried, key=lambda lam: tried[lam]["value"])
        assert losses["log_plus"]["lam"][repeat] == best
        assert losses["log_plus"]["repeats"]["welfare"][repeat] == pytest.approx(float(tried[best]["welfare"].mean()))


def test_teachers_are_the_log_loss_model_of_the_same_repeat_and_protocol(store, small):
    out, _ = small
    arena = experiment.arena_of(store, TINY)
    for trial in planned(TINY):
        if trial.loss != "distilled":
            continue
        teacher = load(out / "pieces" / f"logistic_regression-{trial.repeat:02d}-log_loss.pt")["found"]["teacher"]
        assert set(teacher) == {"last", "welfare"}
        assert teacher[trial.teacher].shape == (len(arena.train),)
    assert {trial.teacher for trial in planned(TINY) if trial.loss == "distilled"} == {"last", "welfare"}


def test_the_plan_is_every_loss_with_its_lams_and_teachers():
    trials = planned(Config(models=("deepfm",), repeats=1))
    counts = {loss: sum(trial.loss == loss for trial in trials) for loss in LOSSES}
    # one lam with the last teacher and five with the best; without a teacher one training serves both
    assert counts == {
        "log_loss": 1,
        "log_weighted": 6,
        "log_teacher": 6,
        "log_plus": 5,
        "log_plus_teacher": 6,
        "distilled": 2,
    }
    assert len({trial.name for trial in trials}) == len(trials)
    assert {t.lam for t in planned(Config(protocol="converged")) if t.lam is not None} == {3.0}


def test_losses_have_the_papers_slope():
    assert loss_of(Trial("deepfm", 0, "log_teacher", 5.0)).options["sigma"] == 3.0
    assert loss_of(Trial("deepfm", 0, "log_teacher", 5.0)).lam == 5.0
    assert loss_of(Trial("deepfm", 0, "log_weighted", 1.0)).options["weighting"] == 3.0
    assert loss_of(Trial("deepfm", 0, "log_loss")) is bidwise.LOSSES["log_loss"]


def test_measures_agree_with_the_library(store):
    test = store.ads("test", auction_size=32)
    auctions = Auctions.of(len(test), 32, 3, seed=1)
    model = SparseLogisticRegression(store.cardinalities, std=0.3)
    found = measured(model, test, auctions)
    order = auctions.order
    ctr = bidwise.predict(model, test).double()
    for key, truth in (("welfare", test.clicks), ("expected_welfare", test.truth)):
        each = bidwise.welfare(ctr[order], truth[order], test.bids[order], auctions.offsets)
        torch.testing.assert_close(found[key], each)
    paid = bidwise.revenue(ctr[order], test.truth[order], test.bids[order], auctions.offsets, pricing="gsp")
    assert found["revenue"] == pytest.approx(float(paid.mean()))
    metrics = bidwise.evaluation.Metrics().update(ctr, test.clicks, test.bids, test.offsets).compute()
    for key in ("auc", "log_loss", "calibration_error"):
        assert found[key] == pytest.approx(metrics[key], rel=1e-6)


def test_cuts_use_every_ad_once_and_are_the_same_for_all():
    auctions = Auctions.of(100, 32, 3, seed=0)
    assert len(auctions.order) == 3 * 96
    for cut in auctions.order.view(3, 96):
        assert len(cut.unique()) == 96
    assert torch.equal(auctions.order, Auctions.of(100, 32, 3, seed=0).order)
    assert not torch.equal(auctions.order, Auctions.of(100, 32, 3, seed=1).order)


def test_validation_welfare_is_that_of_its_auctions(store):
    valid = store.ads("valid", auction_size=32)
    auctions = Auctions.of(len(valid), 32, 2, seed=0)
    logits = torch.randn(len(valid), generator=torch.Generator().manual_seed(0))
    order = auctions.order
    for name, truth in (("welfare", valid.clicks), ("expected_welfare", valid.truth)):
        each = bidwise.welfare(torch.sigmoid(logits)[order], truth[order], valid.bids[order], auctions.offsets)
        assert float(auctions.metric(name).of(logits, valid)) == pytest.approx(float(each.mean()), rel=1e-6)


def test_a_run_that_was_cut_off_goes_on_and_finds_the_same(store, small, tmp_path, monkeypatch):
    _, expected = small
    done = []

    def stop(show, **options):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(options["trial"])
        return compute(show, **options)

    compute = experiment.compute
    monkeypatch.setattr(experiment, "compute", stop)
    with pytest.raises(KeyboardInterrupt):
        run(TINY, store.folder, tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    again = []
    monkeypatch.setattr(
        experiment, "compute", lambda show, **options: (again.append(options["trial"]), compute(show, **options))[1]
    )
    run(TINY, store.folder, tmp_path / "run")
    assert not set(done) & set(again)
    assert set(done) | set(again) == set(planned(TINY))
    found = read_json(tmp_path / "run" / "result.json")
    assert found["models"]["logistic_regression"]["protocols"] == expected["models"]["logistic_regression"]["protocols"]


def test_processes_find_what_one_finds(store, small, tmp_path):
    run(TINY, store.folder, tmp_path / "run", workers=2)
    found = read_json(tmp_path / "run" / "result.json")
    assert found["models"]["logistic_regression"]["protocols"] == small[1]["models"]["logistic_regression"]["protocols"]


def test_deepfm_and_dcn_run_with_the_papers_losses(store, tmp_path):
    config = Config(
        models=("deepfm", "dcn"), losses=("log_teacher",), protocol="converged", repeats=1, auction_size=32, every=5
    )
    result = run(config, store.folder, tmp_path / "run")
    for model in ("deepfm", "dcn"):
        assert set(result["paper"][model]) >= {"log_loss", "log_weighted", "log_teacher"}
        losses = result["models"][model]["protocols"]["converged"]["losses"]
        assert losses["log_teacher"]["difference"]["repeats"]["ci_low"] is None or math.isnan(
            losses["log_teacher"]["difference"]["repeats"]["ci_low"]
        )
    assert result["models"]["dcn"]["epochs"] == 2.1
    assert result["models"]["deepfm"]["epochs"] == 3


def test_unknown_ctr_leaves_realised_welfare(store, small):
    out, _ = small
    found = {}
    for trial in planned(TINY):
        piece = load(out / "pieces" / f"{trial.name}.pt")["found"]
        kept = {name: {**entry, "expected_welfare": None} for name, entry in piece["selections"].items()}
        found[trial] = {"selections": kept}
    losses = of_protocol("logistic_regression", "tuned", TINY, found)
    assert losses["log_plus"]["expected_welfare"] is None
    assert losses["log_plus"]["difference"]["of"] == "realised"
    assert "by_truth" not in losses["log_plus"]


def test_another_store_or_configuration_is_refused(store, small, tmp_path):
    out, _ = small
    with pytest.raises(bidwise.InputError, match="seed = 0 there and 1 here"):
        run(replace(TINY, seed=1), store.folder, out)
    other = Store(store.folder)
    bids = {split: 2 * np.array(other.column(split, "bids")) for split in other.splits}
    before = {split: np.array(other.column(split, "bids")) for split in other.splits}
    try:
        other.add("bids", bids)
        with pytest.raises(bidwise.InputError, match="checksum"):
            run(TINY, store.folder, out)
    finally:
        Store(store.folder).add("bids", before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": ("deepfn",)}, "models must be one of .*did you mean 'deepfm'"),
        ({"losses": ("log_plsu",)}, "losses must be one of .*did you mean 'log_plus'"),
        ({"models": ()}, "models must name at least one"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"cuts": 101}, "cuts must be at most 100"),
        ({"protocol": "best"}, "protocol must be one of"),
        ({"every": 0}, "every must be finite and above 0"),
        ({"embeddings": "eager"}, "embeddings must be one of lazy, dense"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(bidwise.InputError, match=message):
        Config(**options)


def test_auctions_larger_than_a_split_are_refused(store, tmp_path):
    with pytest.raises(bidwise.InputError, match="auction_size must be at most the 400 ads of valid, found 1000"):
        run(replace(TINY, auction_size=1000), store.folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_arena_without_truth_is_selected_by_clicks_alone(store):
    arena = experiment.arena_of(store, TINY)
    blind = Arena(arena.train, replace(arena.valid, truth=None), arena.test, arena.valid_auctions, arena.test_auctions)
    assert [metric.name for metric in arena.selections] == ["welfare", "log_loss", "expected_welfare"]
    assert [metric.name for metric in blind.selections] == ["welfare", "log_loss"]


def test_a_changed_file_is_refused(store, tmp_path):
    copied = tmp_path / "store"
    shutil.copytree(store.folder, copied)
    clicks = np.load(copied / "train" / "clicks.npy", mmap_mode="r+")
    clicks[7] = 1 - clicks[7]
    clicks.flush()
    with pytest.raises(bidwise.InputError, match=r"clicks.npy must have checksum .* prepare the data again"):
        run(TINY, copied, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def killed(show, **options):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_told_in_one_line(tmp_path):
    pieces = Pieces(tmp_path, {}, "cpu", None)
    jobs = [Job(f"{k}", "", 1.0, killed, {}) for k in range(2)]
    with pytest.raises(bidwise.InputError, match="one of 2 was killed; use fewer"):
        pieces.all(jobs, 2)
