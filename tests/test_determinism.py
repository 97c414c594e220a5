"""The same configuration and seed give the same numbers, in another process and with another number of threads."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from run_helpers import small_market

import bidwise
from bidwise.data import Ads
from bidwise.evaluation.pooled import pooled_revenue
from bidwise.training.arguments import Options
from bidwise.training.run import Run
from bidwise.training.validation import METRICS

SOURCE = Path(__file__).parent.parent
SCRIPT = """
import sys, torch
import bidwise
from bidwise.table import train
folder, threads = sys.argv[1], int(sys.argv[2])
assert torch.get_num_threads() == threads, torch.get_num_threads()
roles = dict(click="click", bid="bid")
train("ads.parquet", out=folder + "/train", **roles, auction="auction", model="dcnv2", loss="log_plus", epochs=1)
quick = dict(model="logistic_regression", recipe="distilled", members=2, epochs=1)
train("ads.parquet", out=folder + "/drawn", **roles, ignore=["auction"], **quick)
for name, more in (("auctions", dict(auction="auction")), ("pooled", dict(auction_size=50))):
    ctr = dict(ctr=["a", "b"], slots=(1.0, 0.5))
    bidwise.evaluate("predictions.parquet", **ctr, **roles, **more, out=f"{folder}/{name}")
"""
KINDS = ("train", "drawn", "auctions", "pooled")


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The same commands in two processes at once, with one thread and with two."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("two threads need two cores")
    folder = tmp_path_factory.mktemp("twice")
    small_market(300).write_parquet(folder / "ads.parquet")
    big = small_market(16_000)  # numbers enough for two threads to share
    assert len(big) > 2 * 2**15
    random = np.random.default_rng(0)
    big.with_columns(a=pl.Series(random.random(len(big))), b=pl.Series(random.random(len(big)))).write_parquet(
        folder / "predictions.parquet"
    )
    path = os.pathsep.join([str(Path(bidwise.__file__).parent.parent), str(SOURCE)])
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(threads), str(threads)],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        for threads in (1, 2)
    ]
    errors = [run.communicate(timeout=300)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], errors
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_same_with_one_thread_and_with_two(twice, kind):
    one, two = ((twice / threads / kind / "result.json").read_text() for threads in ("1", "2"))
    assert one == two


def test_the_weights_and_predictions_are_the_same_too(twice):
    for name in ("train/model.pt", "drawn/model.pt", "train/encoder.json"):
        assert (twice / "1" / name).read_bytes() == (twice / "2" / name).read_bytes()
    one, two = (pl.read_parquet(twice / threads / "train" / "test.parquet") for threads in ("1", "2"))
    assert one.equals(two)


@pytest.fixture
def with_threads():
    """Calls a function with one thread and with two."""
    before = torch.get_num_threads()

    def both(work):
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(work())
        return found

    yield both
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "loss"), [("deepfm", "log_plus"), ("dcnv2", "log_loss"), ("logistic_regression", "log_plus_teacher")]
)
def test_steps_do_not_depend_on_the_number_of_threads(with_threads, name, loss):
    """Batches of 2,049: wide enough for threads to share matrices, batch norms and pairs."""

    def trained():
        random = torch.Generator().manual_seed(0)
        ids, clicks = torch.randint(0, 50, (4098, 4), generator=random), torch.rand(4098, generator=random) < 0.2
        more = {"teacher": torch.rand(4098, generator=random)}
        train = Ads(ids, clicks.float(), 0.5 + torch.rand(4098, generator=random), **more)
        wide = {} if name == "logistic_regression" else {"hidden": [32]}
        model = bidwise.models.MODELS[name]([50] * 4, **wide, seed=0)
        run = Run(model, train, None, loss, {}, Options(1, 2049, 1e-3, "constant", None, 1, l2=0.01), 0)
        run.take_step()
        run.take_step()
        return model.state_dict()

    one, two = with_threads(trained)
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_batch_norm_is_torchs():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(50, 7, generator=random, dtype=torch.float64, requires_grad=True)
    mine, theirs = bidwise.models.BatchNorm(7).double(), torch.nn.BatchNorm1d(7).double()
    with torch.no_grad():
        for norm in (mine, theirs):
            norm.weight.copy_(torch.linspace(0.5, 2, 7))
            norm.bias.copy_(torch.linspace(-1, 1, 7))
    found = []
    for norm in (mine, theirs):
        x.grad = None
        (norm(x) * torch.arange(350.0).view(50, 7).sin()).sum().backward()
        found.append([x.grad.clone(), norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var])
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right)
    assert mine.num_batches_tracked == theirs.num_batches_tracked == 1
    assert torch.autograd.gradcheck(lambda x: mine(x), (x,))


def test_batch_norm_refuses_second_derivatives():
    x = torch.randn(5, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(bidwise.models.BatchNorm(3)(x).pow(3).sum(), x, create_graph=True)


@pytest.mark.parametrize("metric", ["log_loss", "auc", "welfare"])
@pytest.mark.parametrize("weighted", [False, True])
def test_validation_does_not_depend_on_the_number_of_threads(with_threads, metric, weighted):
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(100_001, generator=random)
    ads = Ads(
        logits[:, None],
        (torch.rand(100_001, generator=random) < 0.2).float(),
        0.5 + torch.rand(100_001, generator=random),
        weights=0.5 + torch.rand(100_001, generator=random) if weighted else None,
        auction_size=20,
    )
    one, two = with_threads(lambda: METRICS[metric].of(logits, ads))
    assert torch.equal(one, two)


@pytest.mark.parametrize("weighted", [False, True])
def test_pooled_numbers_do_not_depend_on_the_number_of_threads(with_threads, weighted):
    random = np.random.default_rng(0)
    ctr, bids = random.random(70_001), 0.5 + random.random(70_001)
    clicks = random.random(70_001) < ctr
    weights = 0.5 + random.random(70_001) if weighted else None

    def measured():
        found = [bidwise.pooled_welfare(ctr, clicks, bids, 30, slots=(1.0, 0.5), weights=weights)]
        return found if weighted else [*found, pooled_revenue(ctr, clicks, bids, 30)]

    one, two = with_threads(measured)
    assert one == two
