"""Several ranks train one model as one process would: pairs across ranks, any number of ranks, kills and resumes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import pairwise

import distributed_jobs as jobs
import numpy as np
import pytest
import torch
from distributed_jobs import on_ranks

from bidwise import InputError, WelfareLoss, distributed
from bidwise.training.batches import Pass

GRADIENTS = {
    **{f"gradients {m} {a}": ("gradients", (m, "log_plus_teacher", a), {}) for m in jobs.MODELS for a in jobs.AUCTIONS},
    **{f"gradients {loss}": ("gradients", ("deepfm", loss, "one"), {}) for loss in ("log_loss", "hinge", "log")},
    "gradients dense": ("gradients", ("dcn", "log_plus", "one"), {"embeddings": "dense"}),
    "gradients weighted": ("gradients", ("deepfm", "log_plus", "one"), {"weighted": True}),
    "gradients of a tree": ("gradients", ("logistic_regression", "log_plus_teacher", "one"), {"ads": 3001}),
    "gradients without pairs": ("gradients", ("logistic_regression", "log_teacher", "one"), {"ads": 3001}),
    "gradients of 65 ads": ("gradients", ("deepfm", "log_plus", "one"), {"ads": 65}),
    "gradients of two ads": ("gradients", ("deepfm", "log_plus", "one"), {"ads": 2}),
    **{f"autocast {loss}": ("autocast", (loss,), {}) for loss in ("log_plus", "log_teacher")},
    "own loop": ("own_loop", (False,), {}),
    "own loop, auctions": ("own_loop", (True,), {}),
    "own loop, batch norm": ("own_loop_normed", (), {}),
}
RUNS = {
    **{f"run {m} {a}": ("trained", (m, "log_plus", a), {}) for m in ("deepfm", "dcn") for a in jobs.AUCTIONS},
    "run, last batch of one ad": ("trained", ("dcn", "log_plus", "one"), {"count": 129}),
    "run, auctions longer than batches": ("trained", ("dcn", "log_plus", "ragged"), {"batch_size": 4, "count": 60}),
    "run, dense": ("trained", ("deepfm", "log_plus_teacher", "one"), {"embeddings": "dense", "schedule": "cosine"}),
    "run, weighted": ("trained", ("deepfm", "log_plus", "equal"), {"weighted": True}),
    **{f"run, lam {lam}": ("trained", ("deepfm", WelfareLoss(lam=lam), "single"), {}) for lam in (1.0, 32.0)},
    "members": ("members", (), {}),
    "own model": ("own_model", (), {}),
    "odd model": ("odd_model", (), {}),
}


@pytest.fixture(scope="module")
def together(forked, tmp_path_factory):
    """All jobs on three ranks, which divide some of their batches and not others."""
    folder = tmp_path_factory.mktemp("ranks")
    work = GRADIENTS | RUNS | {"refused": ("refused", (), {})}
    work |= {f"cut off, {name}": ("cut_off", (str(folder / name), 1.5), {}) for name in ("run", "again")}
    work |= {"resumed": ("cut_off", (str(folder / "again"), None), {})}
    work |= {"no table": ("command", command(folder / "none.parquet", folder / "none"), {})}
    if find_spec("polars"):
        work |= {"unseen": ("unseen", (str(folder),), {})}  # the last: each rank goes to a folder of its own
    found = on_ranks(3, work, folder / "found")
    return found, folder


@pytest.fixture(scope="module")
def alone():
    """The same jobs on one rank, each when it is asked for."""
    known = {}

    def of(name):
        function, given, more = (GRADIENTS | RUNS)[name]
        if name not in known:
            known[name] = getattr(jobs, function)(*given, **more)
        return known[name]

    return of


@pytest.mark.parametrize("name", GRADIENTS)
def test_distributed_gradients_are_those_of_one_process(together, alone, name):
    expected = alone(name)
    largest = max(float(x.abs().max()) for x in expected.values())
    for found in together[0]:
        assert found[name].keys() == expected.keys()
        for key, x in expected.items():
            torch.testing.assert_close(found[name][key], x, rtol=1e-6, atol=1e-6 * largest, msg=f"{name}: {key}")


@pytest.mark.parametrize("name", RUNS)
def test_distributed_run_is_that_of_one_process(together, alone, name):
    expected = alone(name)
    for found in together[0]:
        for key, x in expected["last"].items():
            torch.testing.assert_close(found[name]["last"][key], x, rtol=1e-4, atol=2e-5, msg=f"{name}: {key}")
        for entry, wanted in zip(found[name].get("history", []), expected.get("history", []), strict=True):
            assert entry["epoch"] == wanted["epoch"]
            for key in wanted.keys() - {"epoch"}:
                # a rank of AUC changes with the last digit of a logit: one of 600 * 600 / 4 pairs is 1e-5
                torch.testing.assert_close(entry[key], wanted[key], rtol=1e-5, atol=3e-5 if key == "auc" else 1e-6)


def test_distributed_ranks_have_the_same_weights_to_the_last_bit(together):
    first, *others = together[0]
    for name in RUNS:
        for other in others:
            assert all(torch.equal(x, other[name]["last"][key]) for key, x in first[name]["last"].items())


def test_distributed_l2_is_per_unit_of_log_loss(together):
    """Auctions of one ad have no rank term: the weights are the same for every lam."""
    for found in together[0]:
        one, many = (found[f"run, lam {lam}"]["last"] for lam in (1.0, 32.0))
        assert all(torch.equal(x, many[key]) for key, x in one.items())


def test_distributed_disagreement_is_an_error_on_every_rank(together):
    for rank, found in enumerate(together[0]):
        told = found["refused"]
        assert set(told) == {"seed", "train", "norm", "graph", "valid", "out on some", "out", "offsets"}
        assert told["valid"][1].startswith("metric must be the same on all ranks, found ['log_loss'] on rank 0")
        assert told["out on some"][1].startswith("out must be the same on all ranks, found a folder on rank 0 and none")
        assert told["seed"][1].startswith("seed must be the same on all ranks, found [0] on rank 0 and [1] on rank 1")
        assert told["train"][1].startswith("train must be the same on all ranks, found (100, 4) ads")
        assert "found BatchNorm1d as 'norm'; use bidwise.models.BatchNorm" in told["norm"][1]
        assert told["graph"][1].startswith("graph=True needs a GPU with triton")
        assert told["out"] == ("ElsewhereError" if rank else "InputError", told["out"][1])
        assert "out must be a folder, found the file" in told["out"][1]
        assert "offsets must be given on all ranks or on none" in told["offsets"][1]


def test_distributed_run_goes_on_with_another_number_of_ranks(together, tmp_path):
    shutil.copytree(together[1] / "run", tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.pt").is_file()
    assert not (tmp_path / "run" / "model.pt").exists()
    found = jobs.cut_off(tmp_path / "run", None)
    assert (tmp_path / "run" / "model.pt").is_file()
    expected = jobs.cut_off(tmp_path / "whole", None)
    assert expected["began"] < 1 < found["began"]  # it is not a run from the beginning
    for resumed in (each["resumed"] for each in together[0]):
        assert resumed["began"] == found["began"]
        assert all(torch.equal(x, together[0][0]["resumed"]["last"][key]) for key, x in resumed["last"].items())
        for key, x in expected["last"].items():
            torch.testing.assert_close(resumed["last"][key], x, rtol=1e-4, atol=2e-5)
    for key, x in expected["last"].items():
        torch.testing.assert_close(found["last"][key], x, rtol=1e-4, atol=2e-5)
    assert [e["welfare"].item() for e in found["history"]] == pytest.approx(
        [e["welfare"].item() for e in expected["history"]], rel=1e-5
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_distributed_parts_of_a_batch_are_all_of_it_and_whole_auctions(ranks):
    random = torch.Generator().manual_seed(ranks)
    sizes = torch.randint(0, 9, (40,), generator=random)
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    ads = int(offsets[-1])
    order = torch.randperm(ads, generator=random)[None]
    auctions = [13, 14, 30, 40]
    for whole in (Pass(order, [10, 11, ads]), Pass(order, offsets[auctions].tolist(), offsets, auctions)):
        for number in range(len(whole.ends)):
            bounds = [whole.bounds(number, rank, ranks) for rank in range(ranks)]
            cuts = [bounds[0][0], *(stop for _, stop in bounds)]
            assert bounds == list(pairwise(cuts))
            assert (cuts[0], cuts[-1]) == whole.bounds(number)
            lengths, expected = [stop - start for start, stop in bounds], whole.offsets_of(number)
            if whole.offsets is None:
                assert max(lengths) - min(lengths) <= 1
            if expected is not None:  # of whole auctions, or of a single ad
                parts = [whole.offsets_of(number, rank, ranks) for rank in range(ranks)]
                assert [int(part[-1]) for part in parts] == lengths
                assert torch.equal(torch.cat([part.diff() for part in parts]), expected.diff())


def test_distributed_nothing_happens_on_one_rank():
    assert (distributed.count(), distributed.rank()) == (1, 0)
    assert distributed.first(lambda: "found", tell=True) == "found"
    with pytest.raises(InputError, match="mine"):
        distributed.first(lambda: (_ for _ in ()).throw(InputError("mine")))
    with distributed.launched("cpu") as device:
        assert device == "cpu"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Logged ads of auctions with an id."""
    pl = pytest.importorskip("polars")
    random = np.random.default_rng(0)
    ads, fields = 4_000, 4
    features = random.integers(0, 30, (ads, fields))
    logit = random.normal(0, 0.4, (fields, 30))[np.arange(fields), features].sum(1) - 1.5
    path = tmp_path_factory.mktemp("table") / "ads.parquet"
    columns = {f"f{k}": features[:, k] for k in range(fields)}
    columns |= {"auction": np.sort(random.integers(0, 500, ads)), "bid": random.lognormal(0, 0.5, ads)}
    pl.DataFrame(columns | {"click": (random.random(ads) < 1 / (1 + np.exp(-logit))).astype(int)}).write_parquet(path)
    return path


def command(table, out):
    """The words after `bidwise` that train on a table."""
    asked = "--click click --bid bid --auction auction --categorical f0 f1 f2 f3 --loss log_plus --model dcnv2 "
    asked += "--set train.epochs=4 train.patience=4 train.every=0.5 model.hidden=32,32 model.cross=1"
    return ["train", str(table), "--out", str(out), *asked.split()]


def two_ranks(*asked, restarts=0):
    """torchrun, under way."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", *torchrun, "-m", "bidwise", *asked], **pipes)


def measures(folder):
    result = json.loads((folder / "result.json").read_text())
    return result["fits"], result["evaluation"]["models"]


def without_a_rank(job, out):
    """Exit code and words of a job, one of whose two ranks is killed after the first checkpoint."""
    while not (out / "fits" / "log_plus" / "checkpoint.pt").exists():
        assert job.poll() is None, job.stderr.read()
        time.sleep(0.02)
    children = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=True).stdout.split()
    assert len(children) == 2
    os.kill(int(children[1]), signal.SIGKILL)
    said, told = job.communicate(timeout=90)
    return job.returncode, said, told


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory):
    """A training on two ranks that nothing befell."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    job = two_ranks(*command(table, folder))
    said, told = job.communicate(timeout=180)
    assert job.returncode == 0, told
    assert said.count("2 ranks together") == 1
    assert said.count("Written to") == 1
    assert "resumes" not in said
    return folder


def test_distributed_command_is_started_again_by_torchrun(table, whole, tmp_path):
    """Once: the ranks of an attempt must not look for those of the one before. It ends as if nothing had happened."""
    folder = tmp_path / "run"
    code, said, told = without_a_rank(two_ranks(*command(table, folder), restarts=1), folder)
    assert code == 0
    assert told.count("another rank is gone") == 1
    assert "Training: log_plus resumes" in said
    assert measures(folder) == measures(whole)  # to the last bit
    saved, again = (torch.load(each / "model.pt", weights_only=True) for each in (whole, folder))
    assert all(torch.equal(x, again[key]) for key, x in saved.items())


def test_distributed_command_is_killed_and_goes_on(table, whole, tmp_path, capsys):
    """kill -9 of a rank ends the job with a word; one rank goes on, and ends near where two would have."""
    from bidwise.cli import app  # late: GPU machines may not have what the command line needs

    folder = tmp_path / "run"
    code, _, told = without_a_rank(two_ranks(*command(table, folder)), folder)
    assert code != 0
    assert "another rank is gone" in told
    assert "the same command resumes" in told
    assert not (folder / "result.json").exists()
    done = len((folder / "fits" / "log_plus" / "metrics.jsonl").read_text().splitlines())
    app(command(table, folder), exit_on_error=False, result_action="return_value")
    assert "Training: log_plus resumes" in capsys.readouterr().out
    (fits, models), (others, tested) = measures(whole), measures(folder)
    near, wanted = (each["log_plus"]["history"][done]["value"] for each in (others, fits))
    assert near == pytest.approx(wanted, rel=1e-5)
    # by the end a unit may have been switched on or off by the last digit of a sum, which no longer is rounding
    assert tested["log_plus"]["log_loss"] == pytest.approx(models["log_plus"]["log_loss"], rel=0.01)


def test_distributed_command_says_once_what_is_wrong(together):
    codes, told = zip(*(each["no table"] for each in together[0]), strict=True)
    assert set(codes) == {2}
    assert "".join(told).count("none.parquet: no such file") == 1
    assert not (together[1] / "none").exists()


def test_distributed_words_that_are_wrong_are_told_by_rank_0(monkeypatch, capsys):
    """Before the ranks meet, so one after the other."""
    from run_helpers import bidwise_command  # late, for the same reason

    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, times in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        assert bidwise_command(monkeypatch, "train", "--clik") == 2
        assert capsys.readouterr().err.count("Unknown option: --clik; did you mean --click?") == times


def test_distributed_ranks_must_all_see_the_folder(together):
    """Every rank is in another folder, where the same words mean another place."""
    pytest.importorskip("polars")
    found, folder = together
    kinds, words = zip(*(each["unseen"] for each in found), strict=True)
    assert kinds == ("InputError", *["ElsewhereError"] * (len(found) - 1))
    assert len(set(words)) == 1
    assert words[0].startswith("out must be a folder that all ranks see, found that rank 1 on ")
    assert words[0].endswith("does not see " + str(folder / "1" / "run"))
