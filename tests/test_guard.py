"""A loss or gradient that is not finite stops a run, with its batch; clipped gradients."""

import math

import pytest
import torch
from torch import nn

import bidwise
from bidwise import InputError, fit
from bidwise.data import Ads
from bidwise.models import DeepFM, LogisticRegression
from bidwise.training import loop
from bidwise.training.adam import Guard
from bidwise.training.run import Run


def ads(count=64, width=3, seed=0):
    random = torch.Generator().manual_seed(seed)
    clicks = (torch.rand(count, generator=random) < 0.3).float()
    return Ads(torch.randn(count, width, generator=random), clicks, 0.5 + torch.rand(count, generator=random))


def categories(count=64, seed=0):
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 9, (count, 3), generator=random)
    return Ads(ids, (torch.rand(count, generator=random) < 0.3).float(), 0.5 + torch.rand(count, generator=random))


class FailsOn(nn.Module):
    """Log loss, but not a number for batches with one of some bids: which batch it is only the order tells."""

    def __init__(self, bids, value=math.nan):
        super().__init__()
        self.register_buffer("bids", torch.as_tensor(bids))
        self.value = value

    def forward(self, logits, clicks, bids, offsets=None, teacher=None):
        bad = torch.isin(bids, self.bids).any()
        return bidwise.log_loss(logits, clicks) * torch.where(bad, self.value, 1.0)


class Exploding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits):
        return logits.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.inf


def test_the_rows_are_those_of_the_batch():
    """The same order drawn by hand."""
    train = ads()
    order = torch.randperm(64, generator=torch.Generator().manual_seed(5))
    number = int((order == 40).nonzero()) // 8
    with pytest.raises(InputError, match=rf"in batch {number + 1} of epoch 1, 8 ads, rows {order[8 * number]}, "):
        fit(LogisticRegression(3), train, loss=FailsOn(train.bids[[40]]), batch_size=8, seed=5)


@pytest.mark.parametrize("loss", ["log_loss", "log_plus", FailsOn([])])
def test_the_error_names_what_no_loss_can_take(loss):
    model = LogisticRegression(3)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(InputError, match=r"logits not finite: 8 of 8 ads"):
        fit(model, ads(), loss=loss, batch_size=8)


def test_a_gradient_that_is_not_finite_stops_too():
    def loss(logits, clicks, bids, offsets, teacher):
        return bidwise.log_loss(Exploding.apply(logits), clicks)

    with pytest.raises(InputError, match=r"the gradient is not finite in batch 1 of epoch 1"):
        fit(LogisticRegression(3), ads(), loss=loss, batch_size=8)


@pytest.fixture
def unwatched(monkeypatch):
    """As on a GPU, where a step is not waited for: the run is looked at when it is evaluated."""
    made = Guard.__init__

    def init(self, *args, **options):
        made(self, *args, **options)
        self.watching = False

    monkeypatch.setattr(Guard, "__init__", init)


def test_without_a_checkpoint_the_epoch_is_named(unwatched):
    train = ads()
    with pytest.raises(InputError, match=r"the loss is not finite after epoch 1; bids go"):
        fit(LogisticRegression(3), train, loss=FailsOn(train.bids[[17]]), batch_size=8)


def test_a_ruined_state_is_not_saved(unwatched, tmp_path):
    train = ads()
    options = loop.Options(1, 8, 1e-3, "constant", None, 1)
    run = Run(LogisticRegression(3), train, None, FailsOn(train.bids), {}, options, 0)
    for _ in range(3):
        run.take_step()
    with pytest.raises(InputError, match="not finite after epoch"):
        loop.save_checkpoint(tmp_path, run)
    assert not list(tmp_path.iterdir())


def gradients_of(model, train, **options):
    run = Run(model, train, None, "log_loss", {}, loop.Options(1, len(train), 1e-3, "constant", None, 1, **options), 0)
    seen = []
    step = run.optimizer.step

    def record():
        seen.extend(p.grad.clone() for p in model.parameters())
        step()

    run.optimizer.step = record
    run.take_step()
    return seen


@pytest.mark.parametrize("embeddings", ["lazy", "dense"])
def test_gradients_are_cut_to_a_length(embeddings):
    train = categories()
    build = lambda: DeepFM([9] * 3, hidden=[8], dropout=0.0, seed=0)  # noqa: E731
    whole = [g.to_dense() for g in gradients_of(build(), train, embeddings=embeddings)]
    length = math.sqrt(sum(float(g.double().square().sum()) for g in whole))
    cut = [g.to_dense() for g in gradients_of(build(), train, embeddings=embeddings, clip=length / 4)]
    for long, short in zip(whole, cut, strict=True):
        torch.testing.assert_close(short, long / 4)
    same = [g.to_dense() for g in gradients_of(build(), train, embeddings=embeddings, clip=2 * length)]
    for long, left in zip(whole, same, strict=True):
        torch.testing.assert_close(left, long)


def test_options_that_mean_nothing_are_refused():
    for model, train, clip in ((LogisticRegression(3), ads(), 0), (LogisticRegression(3, members=(2,)), ads(), 1.0)):
        with pytest.raises(InputError) as raised:
            fit(model, train, clip=clip)
        assert raised.value.argument == "clip"
