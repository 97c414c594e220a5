"""Training many models at once is training each alone; the best epoch is kept, and a run that was cut off goes on."""

import json
import math
import os
import random as python_random
import threading
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import equal, seeded
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score
from torch import nn

import bidwise
from bidwise import InputError, WelfareLoss
from bidwise.data import Ads, World, stack
from bidwise.losses import api
from bidwise.models import MLP, DeepFM, LogisticRegression, SparseLogisticRegression
from bidwise.study.recipe import Recipe
from bidwise.training import METRICS, Variants, fit, loop, predict, run, validation
from bidwise.training.batches import Shuffle
from bidwise.training.run import matmul_precision, repeats_in_a_graph
from bidwise.training.validation import Metric, logits_of, mean_welfare
from paper.dcn import DCN

WORLD = World(linear=1.3, spread=0.8, features=8)


def repeat(seed, ads=500, auctions=30, size=10):
    """Train and validation ads of one market; the teacher is a blurred truth."""
    random = seeded(seed)
    market = WORLD.market(random)
    train, valid = market.ads(ads, random), market.auctions(auctions, size, random)
    blur = torch.randn(ads, generator=random)
    return train.with_teacher(torch.sigmoid(torch.logit(train.truth) + 0.5 * blur)), valid


def repeats(count, **sizes):
    """``count`` repeats side by side, and each alone."""
    alone = [repeat(seed, **sizes) for seed in range(count)]
    train, valid = (stack(list(ads)) for ads in zip(*alone, strict=True))
    return train, valid, alone


def numbered(sizes=None, ads=10, lead=()):
    """Ads whose number can be read from every column, in auctions of ``sizes``."""
    ads = ads if sizes is None else sum(sizes)
    number = torch.arange(math.prod(lead) * ads, dtype=torch.float32).view(*lead, ads)
    offsets = None if sizes is None else torch.tensor([0, *sizes]).cumsum(0)
    more = {"teacher": number / 1000, "weights": (number + 1) / 7, "exposure": 0.5 ** (number % 4)}
    return Ads(number.unsqueeze(-1), number % 2, number + 1, offsets, **more)


def label_of(number):
    """Clicks over exposure of a numbered ad."""
    return (number % 2) * 2 ** (number % 4)


def close(left, right, tolerance):
    return all((left[name] - right[name]).abs().max() <= tolerance for name in right)


def member(state, *index):
    return {name: tensor[index] for name, tensor in state.items()}


def history_of(fitted, name):
    return torch.stack([entry[name] for entry in fitted.history])


# many at once is each alone


@pytest.mark.parametrize("hidden", [(), (6,)])
def test_variants_at_once_are_variants_one_by_one(hidden):
    train, valid, alone = repeats(2, ads=300)
    lams = [0.1, 5.0]
    both = bidwise.WelfareLoss(gap="positive", lam=torch.tensor(lams)[:, None])
    teacher = bidwise.WelfareLoss(value="teacher", weighting=3.0, lam=torch.tensor([[0.3, 2.0]]))  # one per repeat
    loss = Variants([(bidwise.LOSSES["log_loss"], 1), (both, 2), (teacher, 1)])
    options = {"batch_size": 64, "learning_rate": 3e-3, "metric": "welfare"}

    def single(v, r):
        if v == 0:
            return "log_loss"
        if v < 3:
            return bidwise.WelfareLoss(gap="positive", lam=lams[v - 1])
        return bidwise.WelfareLoss(value="teacher", weighting=3.0, lam=[0.3, 2.0][r])

    def members():
        return MLP(8, hidden, members=(4, 2), seed=[0, 1])

    first = fit(members(), train, loss=loss, epochs=1, seed=[5, 6], **options)
    whole = fit(members(), train, loss=loss, valid=valid, epochs=4, seed=[5, 6], **options)
    assert whole.history[-1]["welfare"].shape == (4, 2)
    for r, (ads, auctions) in enumerate(alone):
        for v in range(4):
            one = fit(MLP(8, hidden, seed=r), ads, loss=single(v, r), epochs=1, seed=5 + r, **options)
            assert close(member(first.last, v, r), one.last, 1e-5)
            one = fit(MLP(8, hidden, seed=r), ads, loss=single(v, r), valid=auctions, epochs=4, seed=5 + r, **options)
            found, expected = whole.history[-1]["welfare"][v, r].item(), one.history[-1]["welfare"].item()
            assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("auctions", [True, False], ids=["whole auctions", "a last batch of one ad"])
@pytest.mark.parametrize("weighted", [True, False])
def test_auctions_and_short_batches_train_at_once_too(auctions, weighted):
    alone = [repeat(seed, ads=65)[auctions] for seed in range(3)]
    if weighted:
        columns = [0.2 + 0.8 * torch.rand(2, len(ads), generator=seeded(4)) for ads in alone]
        alone = [replace(ads, weights=w, exposure=e) for ads, (w, e) in zip(alone, columns, strict=True)]
    options = {"loss": "log_plus", "epochs": 2, "batch_size": 64, "seed": 4}
    options["metric"] = metrics = ("welfare", "log_loss") if auctions else ("log_loss",)
    train = stack(alone)
    together = fit(LogisticRegression(8, members=(3,), seed=range(3)), train, valid=train, **options)
    for k, ads in enumerate(alone):
        one = fit(LogisticRegression(8, seed=k), ads, valid=ads, **options)
        assert close(member(together.last, k), one.last, 1e-5)
        for name in metrics:
            assert history_of(together, name)[:, k].tolist() == pytest.approx(history_of(one, name).tolist(), rel=1e-4)


# the best epoch


def patient(model, train, valid, patience, seed):
    options = {"loss": "log", "epochs": 14, "batch_size": 50, "learning_rate": 0.02}
    return fit(model, train, valid=valid, metric=("welfare", "log_loss"), patience=patience, seed=seed, **options)


def test_each_member_stops_as_it_would_alone():
    train, valid, alone = repeats(8, ads=200, auctions=6)
    seeds = list(range(8))
    together = patient(MLP(8, (6,), members=(8,), seed=seeds), train, valid, 2, seeds)
    stopped, later = [], []
    for k, (ads, auctions) in enumerate(alone):
        one = patient(MLP(8, (6,), seed=k), ads, auctions, 2, k)
        stopped.append(len(one.history))
        for name in ("welfare", "log_loss"):  # each has a patience of its own
            assert together.best[name].epoch[k] == one.best[name].epoch
            assert close(member(together.best[name].state, k), one.best[name].state, 1e-3)
        assert close(member(together.model.state_dict(), k), one.model.state_dict(), 1e-3)
        longer = patient(MLP(8, (6,), seed=k), ads, auctions, None, k)
        later.append((one.best["welfare"].epoch.item(), longer.best["welfare"].epoch.item()))
    assert len(together.history) == max(stopped)
    assert min(stopped) < max(stopped)
    # some found a better epoch while others still trained, and had to leave it: it would not have come alone
    assert any(kept < epoch <= max(stopped) for kept, epoch in later)


def test_best_weights_are_those_of_the_best_epoch():
    train, valid, _ = repeats(4, ads=200, auctions=15)
    seen = []
    model = MLP(8, (6,), members=(4,), seed=range(4))
    options = {"loss": "log", "epochs": 8, "batch_size": 50, "learning_rate": 0.05, "metric": tuple(METRICS)}
    fitted = fit(model, train, valid=valid, progress=lambda _: seen.append(deepcopy(model.state_dict())), **options)
    assert equal(fitted.last, seen[-1])
    assert equal(model.state_dict(), fitted.best["welfare"].state)
    again = MLP(8, (6,), members=(4,))
    for name, metric in METRICS.items():
        best, values = fitted.best[name], history_of(fitted, name)
        extreme = values.max(0) if metric.higher_is_better else values.min(0)
        assert torch.equal(best.value, extreme.values)
        for k in range(4):
            epoch = best.epoch[k].item()
            assert values[epoch - 1, k] == best.value[k]
            assert not bool((values[: epoch - 1, k] == best.value[k]).any())  # the first of equals
            assert equal(member(best.state, k), member(seen[epoch - 1], k))
        again.load_state_dict(best.state)
        torch.testing.assert_close(metric.of(logits_of(again, valid.features), valid), best.value)
    assert len({tuple(best.epoch.tolist()) for best in fitted.best.values()}) > 2  # each chose for itself


def test_metrics_are_what_they_say():
    _, valid, alone = repeats(2)
    model = MLP(8, members=(2,), seed=range(2))
    logits = logits_of(model, valid.features)
    for k, (_, ads) in enumerate(alone):
        ctr = predict(MLP(8, seed=k), ads.features)
        expected = {
            "welfare": bidwise.welfare(ctr, ads.clicks, ads.bids, ads.offsets).mean().item(),
            "expected_welfare": bidwise.welfare(ctr, ads.truth, ads.bids, ads.offsets).mean().item(),
            "log_loss": sklearn_log_loss(ads.clicks.numpy(), ctr.double().numpy()),
            "auc": roc_auc_score(ads.clicks.numpy(), ctr.numpy()),
        }
        for name, number in expected.items():
            assert METRICS[name].of(logits, valid)[k].item() == pytest.approx(number, rel=1e-5)
    assert [name for name, metric in METRICS.items() if not metric.higher_is_better] == ["log_loss"]


def test_without_validation_the_last_weights_stay():
    train, _ = repeat(0, ads=100)
    model = LogisticRegression(8)
    fitted = fit(model, train, epochs=2, batch_size=50)
    assert fitted.best == {}
    assert equal(model.state_dict(), fitted.last)
    assert [sorted(entry) for entry in fitted.history] == [["epoch", "loss"]] * 2


# learning rate


def rates_of(monkeypatch, train, **options):
    """The learning rate of every step."""
    rates = []
    step = torch.optim.Adam.step

    def recorded(optimizer, *arguments):
        rates.append(optimizer.param_groups[0]["lr"])
        return step(optimizer, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", recorded)
    fitted = fit(LogisticRegression(train.width), train, learning_rate=0.02, **options)
    monkeypatch.setattr(torch.optim.Adam, "step", step)
    return torch.tensor(rates, dtype=torch.float64), fitted


@pytest.mark.parametrize(("epochs", "every", "steps"), [(5, 1, 100), (2.5, 0.3, 50)])
def test_cosine_falls_from_the_rate_to_about_0(monkeypatch, epochs, every, steps):
    train, _ = repeat(0, ads=400)
    options = {"epochs": epochs, "every": every, "batch_size": 20}
    rates, falling = rates_of(monkeypatch, train, schedule="cosine", **options)
    expected = 0.02 * (1 + torch.cos(math.pi * torch.arange(steps, dtype=torch.float64) / steps)) / 2
    torch.testing.assert_close(rates, expected)
    flat, constant = rates_of(monkeypatch, train, **options)
    assert flat.unique().tolist() == [0.02]
    assert not close(falling.last, constant.last, 1e-3)


def test_cosine_reaches_0_where_auctions_are_longer_than_batches(monkeypatch):
    sizes = [20, 31, 7, 25, 40, 12, 9, 16] * 5
    train = replace(repeat(0, ads=sum(sizes))[0], offsets=torch.tensor([0, *sizes]).cumsum(0))
    rates, _ = rates_of(monkeypatch, train, schedule="cosine", epochs=4, batch_size=2)
    assert len(rates) == 4 * len(sizes)
    assert rates[0] == 0.02
    assert bool((rates.diff() < 0).all())
    assert rates[-1] < 1e-4


# batches


@pytest.mark.parametrize(
    ("sizes", "batch_size"),
    [
        (None, 4),
        (None, 3),
        (None, 64),
        ([3] * 7, 6),
        ([3] * 7, 4),
        ([3] * 7, 2),
        ([5, 1, 0, 9, 2, 2, 7], 6),
        ([5, 1, 0, 9, 2, 2, 7], 2),
        ([5, 1, 0, 9, 2, 2, 7], 64),
        ([4, 4, 0, 0, 0, 0, 0, 4, 4], 4),
        ([1] * 5, 2),
        ([6], 2),
    ],
)
@pytest.mark.parametrize("lead", [(), (2,), (2, 2)])
def test_batches_hold_every_ad_once_and_auctions_whole(sizes, batch_size, lead):
    ads = numbered(sizes, lead=lead)
    ragged = sizes is not None and len(set(sizes)) > 1
    randoms = [seeded(k) for k in range(math.prod(lead))]
    auctions_there = [] if sizes is None else list(pairwise(ads.offsets.tolist()))
    if ragged and lead:
        with pytest.raises(InputError, match="auctions of one size"):
            Shuffle(ads, batch_size, randoms)
        return
    for _ in range(4):
        seen, auctions = [], 0
        for batch in Shuffle(ads, batch_size, randoms):
            number = batch.features.squeeze(-1)
            assert number.shape[:-1] == lead
            assert number.shape[-1] > 0
            # all columns come from the same rows
            assert torch.equal(batch.clicks, label_of(number))
            assert torch.equal(batch.bids, number + 1)
            assert torch.equal(batch.weights, (number + 1) / 7)
            torch.testing.assert_close(batch.teacher, number / 1000)
            seen.append(number)
            if sizes is None:
                assert number.shape[-1] <= batch_size
                assert batch.offsets is None or batch.offsets.tolist() == [0, 1]
                continue
            bounds = batch.offsets.tolist()
            assert bounds[0] == 0
            assert bounds[-1] == number.shape[-1]
            auctions += len(bounds) - 1
            for a, b in pairwise(bounds):
                rows = number[..., a:b].reshape(math.prod(lead), b - a) % len(ads)
                for one in rows.tolist():
                    assert one == [] or (one[0], one[0] + b - a) in auctions_there
                    assert one == list(range(int(one[0]), int(one[0]) + b - a) if one else ())
            begins = [a for a, b in pairwise(bounds) if a < b]
            assert max(begins) < batch_size  # auctions begin within the batch
        together = torch.cat(seen, -1).sort(-1).values
        assert torch.equal(together, ads.features.squeeze(-1))
        assert sizes is None or auctions == len(sizes)


def test_batches_are_gathered_where_the_ads_are_and_moved_to_the_model():
    for batch in Shuffle(numbered([3, 1, 2]), 3, [seeded()], torch.device("meta")):
        columns = (batch.features, batch.clicks, batch.bids, batch.teacher, batch.weights, batch.offsets)
        assert {column.device.type for column in columns} == {"meta"}


def test_every_epoch_has_its_own_order_and_every_repeat_too():
    shuffle = Shuffle(numbered(ads=50, lead=(2,)), 50, [seeded(1), seeded(2)])
    (first,), (second,) = (list(shuffle) for _ in range(2))
    inside = [batch.features.squeeze(-1) % 50 for batch in (first, second)]
    assert not torch.equal(inside[0], inside[1])
    assert not torch.equal(inside[0][0], inside[0][1])
    (alone,) = Shuffle(numbered(ads=50), 50, [seeded(2)])
    assert torch.equal(alone.features.squeeze(-1), inside[0][1])


def test_orders_that_are_drawn_ahead_are_those_that_are_not():
    plain, ahead, again = (Shuffle(numbered(ads=30, lead=(2,)), 10, [seeded(1), seeded(2)]) for _ in range(3))
    states = []
    for _ in range(4):
        states.append(plain.states)
        assert all(torch.equal(a, b) for a, b in zip(plain.states, ahead.states, strict=True))
        assert torch.equal(plain.next(ahead=False).order, ahead.next(ahead=True).order)
    ahead.restart(states[1])
    again.next(ahead=False)
    assert torch.equal(ahead.next(ahead=False).order, again.next(ahead=True).order)


def test_the_loss_sees_the_columns_of_its_ads():
    ads, seen = numbered([4] * 6, lead=(3,)), []

    class Echo(LogisticRegression):
        def forward(self, features):
            return super().forward(0 * features) + features.squeeze(-1)

    def loss(logits, clicks, bids, offsets, teacher, weights):
        seen.append((logits.detach().round(), clicks, bids, offsets, teacher, weights))
        return 0 * logits.mean(-1)

    fit(Echo(1, members=(2, 3)), ads, loss=loss, epochs=1, batch_size=8, learning_rate=1e-12, seed=[1, 2, 3])
    assert len(seen) == 3
    for logits, clicks, bids, offsets, teacher, weights in seen:
        assert logits.shape == clicks.shape == bids.shape == teacher.shape == weights.shape == (2, 3, 8)
        number = bids - 1
        torch.testing.assert_close(weights, bids / 7)
        assert bool((logits - number).abs().max() <= 1)  # the bias is within 1
        assert torch.equal(clicks, label_of(number))
        torch.testing.assert_close(teacher, number / 1000)
        assert offsets.tolist() == [0, 4, 8]


def test_log_loss_needs_no_auctions_and_is_what_epochs_are_chosen_by():
    train, valid = repeat(0, ads=100)
    assert fit(LogisticRegression(8), train, valid=replace(valid, offsets=None), epochs=1).best.keys() == {"log_loss"}


@pytest.mark.parametrize("weighted", [False, True])
def test_welfare_of_ads_without_auctions_is_that_of_all_that_could_be_drawn(weighted):
    """For every member, whose ads and weights may be its own; weights count by their mean."""
    train, valid, alone = repeats(2)
    valid = replace(valid, offsets=None, auction_size=7)
    weights = None
    if weighted:
        weights = 3 * torch.rand(2, len(valid), generator=seeded(4)) + 0.1
        valid = replace(valid, weights=weights)
    options = {"metric": ("welfare", "expected_welfare"), "epochs": 2, "batch_size": 50}
    model = MLP(8, (6,), members=(3, 2))
    fitted = fit(model, train, valid=valid, **options)
    model.load_state_dict(fitted.last)
    ctr = torch.sigmoid(logits_of(model, valid.features).double())
    for v, k in product(range(3), range(2)):
        ads = alone[k][1]
        w = None if weights is None else weights[k].double() / weights[k].double().mean()
        for name, truth in (("welfare", ads.clicks), ("expected_welfare", ads.truth)):
            expected = bidwise.pooled_welfare(ctr[v, k], truth, ads.bids, 7, weights=w)
            assert fitted.history[-1][name][v, k].item() == pytest.approx(expected, rel=1e-5)


# any module


class Plain(nn.Module):
    def __init__(self, width=8, squeeze=True):
        super().__init__()
        layers = (nn.Linear(width, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 1))
        self.layers = nn.Sequential(*layers)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.squeeze = squeeze
        self.modes = set()

    def forward(self, features):
        self.modes.add((self.training, torch.is_grad_enabled()))
        logits = self.scale * self.layers(features)
        return logits.squeeze(-1) if self.squeeze else logits


@pytest.mark.parametrize("training", [True, False])
def test_any_module_trains_and_keeps_its_mode(training):
    train, valid = repeat(1, ads=1000, auctions=100)
    model = Plain().train(training)
    before = METRICS["expected_welfare"].of(logits_of(model, valid.features), valid).item()
    fitted = fit(model, train, loss="log_plus", valid=valid, metric="expected_welfare", epochs=10, learning_rate=1e-2)
    assert fitted.best["expected_welfare"].value.item() > before
    assert model.modes == {(True, True), (False, False)}
    assert all(part.training == training for part in model.modules())
    value = METRICS["expected_welfare"].of(logits_of(model, valid.features), valid)  # running means are kept too
    torch.testing.assert_close(value, fitted.best["expected_welfare"].value)
    assert all(part.training == training for part in model.modules())


def test_parts_that_were_frozen_stay_frozen():
    train, valid = repeat(1, ads=200)
    model = Plain()
    model.layers[1].eval()
    mean = model.layers[1].running_mean.clone()
    fit(model, train, valid=valid, epochs=2)
    assert torch.equal(model.layers[1].running_mean, mean)
    assert [part.training for part in model.layers] == [True, False, True, True, True]


def test_a_column_of_logits_is_refused_by_predict_too():
    with pytest.raises(InputError, match=r"model must return one logit per ad, .*squeeze\(-1\)"):
        predict(Plain(squeeze=False), torch.zeros(5, 8))


def swapped(logits, clicks, bids, teacher=None, offsets=None):
    return logits.mean()


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (nn.functional.binary_cross_entropy_with_logits, r"found \(input, target, weight, .*\); wrap it"),
        (swapped, r"in this order, found \(logits, clicks, bids, teacher, offsets\)"),
        (3.0, "a name or a function, found float"),
        (nn.BCEWithLogitsLoss, "found the class BCEWithLogitsLoss; create an instance"),
        (lambda z, y, b, o, p: 1.5, "one number, found float"),
        (lambda z, y, b, o, p: b * z, r"one number, found shape \(50,\)"),
        (lambda z, y, b, o, p: z.detach().mean(), "found a loss without a gradient"),
    ],
)
def test_a_loss_that_cannot_be_trained_with_is_refused(loss, found):
    with pytest.raises(InputError, match=f"^loss must .*{found}"):
        fit(LogisticRegression(8), repeat(0, ads=50)[0], loss=loss)


TRAIN, VALID = repeat(0, ads=50, auctions=2)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"model": LogisticRegression}, "model must be .* the class LogisticRegression; create an instance"),
        ({"model": len}, "model must be .* found builtin_function"),
        ({"model": nn.Identity()}, "model must have parameters"),
        ({"model": Plain(squeeze=False)}, r"model must return .*\(50,\), found \(50, 1\); .*squeeze\(-1\)"),
        ({"model": LogisticRegression(8), "train": stack([TRAIN] * 3)}, r"model must return .*, found \(3, 50\)"),
        ({"model": LogisticRegression(8).requires_grad_(False)}, "loss must depend .* all parameters .* frozen"),
        ({"model": LogisticRegression(8, members=(1,)), "loss": lambda z, *_: z.mean()}, "loss must return .* member"),
        (
            {"model": MLP(8, members=(2, 1)), "loss": Variants([(WelfareLoss(), 1), (WelfareLoss(), 2)])},
            "logits must have 3 variants first",
        ),
        ({"train": (TRAIN.features, TRAIN.clicks, TRAIN.bids)}, "train must be Ads, found tuple"),
        ({"train": Ads(torch.zeros(0, 8), torch.zeros(0), torch.zeros(0))}, "train must contain ads, found none"),
        ({"train": replace(TRAIN, teacher=None), "loss": "log_plus_teacher"}, "train must have a teacher"),
        ({"train": replace(TRAIN, teacher=None), "loss": WelfareLoss(weighting=3.0)}, "train must have a teacher"),
        ({"valid": VALID.features}, "valid must be Ads, found Tensor"),
        ({"valid": replace(VALID, offsets=None), "metric": "welfare"}, "valid must have offsets"),
        ({"valid": replace(VALID, truth=None), "metric": "expected_welfare"}, "valid must have truth"),
        ({"valid": replace(VALID, clicks=torch.zeros(20)), "metric": "auc"}, "valid must have .* can compare"),
        ({"loss": "log_plsu"}, "loss must be one of .*did you mean 'log_plus'"),
        ({"metric": "welfar"}, "metric must be one of .*did you mean 'welfare'"),
        ({"metric": ()}, "metric must name at least one"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"learning_rate": 0.0}, "learning_rate must be finite and above 0"),
        ({"schedule": "linear"}, "schedule must be one of constant, cosine"),
        ({"patience": 2, "valid": None}, "patience needs valid"),
        ({"seed": [1, 2]}, "seed must be one number or 1, one per repeat, found 2"),
        ({"graph": True}, "graph=True needs a GPU with triton"),
        *(
            ({option: found}, f"{option} must be finite and above 0, found {found}")
            for option in ("epochs", "every", "patience")
            for found in (0, -0.5, math.inf, math.nan)
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, changes, found):
    asked = {"model": LogisticRegression(8), "train": TRAIN, "valid": VALID, "epochs": 1} | changes
    with pytest.raises(InputError, match=f"^{found}"):
        fit(asked.pop("model"), asked.pop("train"), **asked)


def test_predict_takes_tensors_and_ads():
    with pytest.raises(InputError, match="features must be a tensor or Ads, found ndarray"):
        predict(LogisticRegression(8), VALID.features.numpy())
    assert torch.equal(predict(LogisticRegression(8), VALID), predict(LogisticRegression(8), VALID.features))


def test_weights_need_a_loss_that_takes_them():
    train, _ = repeat(0, ads=50)
    weighted = replace(train, weights=torch.ones(50))
    with pytest.raises(TypeError, match="weights"):
        fit(LogisticRegression(8), weighted, loss=lambda z, y, b, o, p: z.mean())
    fit(LogisticRegression(8), weighted, loss=lambda z, y, b, o, p, weights: (weights * z).mean(), epochs=1)
    fit(LogisticRegression(8), train, loss=lambda *columns: columns[0].mean(), epochs=1)


def test_predictions_do_not_depend_on_how_many_are_made_at_once(monkeypatch):
    features = repeat(0, ads=1000)[0].features
    model = MLP(8, members=(3,), seed=range(3))
    expected = torch.sigmoid(model(features)).detach()
    torch.testing.assert_close(predict(model, features), expected)
    monkeypatch.setattr(validation, "NUMBERS_AT_ONCE", {"cpu": 1})
    torch.testing.assert_close(predict(model, features), expected)


# welfare of many models at once


@pytest.mark.parametrize("sizes", [[5] * 40, [1, 7, 0, 3, 3, 12, 2, 30], [9], [0, 0, 4], [1, 1, 1]])
@pytest.mark.parametrize("ties", [False, True])
def test_mean_welfare_is_the_mean_of_welfare(sizes, ties):
    ads, random = sum(sizes), seeded(sum(sizes))
    logits, bids = (torch.randn(3, 2, ads, generator=random, dtype=torch.float64) for _ in range(2))
    if ties:
        logits, bids = logits.round() / 2, bids.round() / 2
    bids, truth = bids[0].exp(), torch.rand(2, ads, generator=random, dtype=torch.float64)
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    found = mean_welfare(logits, bids * truth, bids, offsets)
    assert found.shape == (3, 2)
    for v in range(3):
        for r in range(2):
            expected = bidwise.welfare(torch.sigmoid(logits[v, r]), truth[r], bids[r], offsets).mean()
            assert found[v, r].item() == pytest.approx(float(expected), rel=1e-12)
    one = mean_welfare(logits[0, 0], bids[0] * truth[0], bids[0], None)
    whole = torch.tensor([0, ads])
    expected = bidwise.welfare(torch.sigmoid(logits[0, 0]), truth[0], bids[0], whole).mean()
    assert one.item() == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_welfare_of_a_constant_model_is_that_of_a_random_ad(dtype):
    """Wherever the clicked ads stand, and in the last numbers of a tensor, which torch.sigmoid rounds differently."""
    for constant in torch.linspace(-4, 4, 50, dtype=dtype):
        logits, bids = constant.repeat(2, 37), torch.ones(37, dtype=dtype)
        clicks = (torch.arange(37) % 4 == 0).to(dtype)
        offsets = torch.tensor([0, *range(4, 36, 4), 37])
        found = mean_welfare(logits, clicks, bids, offsets)
        assert found.tolist() == pytest.approx([(8 / 4 + 2 / 5) / 9] * 2, rel=1e-12)
        assert mean_welfare(logits[0, :36], clicks[:36], bids[:36], 4 * torch.arange(10)).item() == 0.25


def test_welfare_of_auctions_without_ads_is_0():
    assert mean_welfare(torch.zeros(0), torch.zeros(0), torch.zeros(0), torch.tensor([0, 0, 0])).item() == 0


# run folders

RUN = {
    "loss": "log_plus",
    "epochs": 6,
    "batch_size": 50,
    "learning_rate": 0.02,
    "schedule": "cosine",
    "patience": 5,
    "seed": 3,
}


def a_run(out=None, progress=None, **changes):
    train, valid, _ = repeats(2, ads=200, auctions=15)
    model = MLP(8, (6,), members=(2,), seed=[1, 2])
    options = RUN | {"metric": ("welfare", "log_loss"), "valid": valid, "out": out, "progress": progress} | changes
    return fit(model, train, **options)


def same_fit(found, expected):
    for left, right in zip(found.history, expected.history, strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(torch.as_tensor(left[key]), torch.as_tensor(right[key])) for key in right)
    assert equal(found.last, expected.last)
    assert equal(found.model.state_dict(), expected.model.state_dict())
    assert found.best.keys() == expected.best.keys()
    for name, best in expected.best.items():
        assert torch.equal(found.best[name].epoch, best.epoch)
        assert torch.equal(found.best[name].value, best.value)
        assert equal(found.best[name].state, best.state)


class Stop(Exception):
    pass


def stop_at(epoch):
    def progress(done):
        if done == epoch:
            raise Stop

    return progress


def test_metrics_are_whole_where_the_last_checkpoint_is(tmp_path, monkeypatch):
    expected, written = tmp_path / "expected", []
    a_run(expected)

    def cut(path, *words, write=loop.write_text):
        written.append(path)
        if len(written) == 6:  # the last of six evaluations
            raise OSError("cut off")
        write(path, *words)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_text", cut)
        with pytest.raises(OSError, match="cut off"):
            a_run(tmp_path / "run")
    a_run(tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (expected / "metrics.jsonl").read_bytes()


def test_a_run_folder_says_what_was_found(tmp_path):
    fitted = a_run(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.pt", "config.toml", "metrics.jsonl", "model.pt"]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [entry["epoch"] for entry in fitted.history]
    assert lines[-1]["welfare"] == fitted.history[-1]["welfare"].tolist()
    assert equal(torch.load(tmp_path / "model.pt", weights_only=True), fitted.model.state_dict())


def lam(number):
    return {"model": MLP(8, members=(2,)), "loss": WelfareLoss(lam=torch.tensor([number, 1.0]))}


def counts(*numbers):
    """Variants of other counts, of the same losses."""
    return {"loss": Variants([(bidwise.LOSSES[name], n) for name, n in zip(("log_loss", "log"), numbers, strict=True)])}


def other(name, **changes):
    return {name: replace(repeat(0)[name == "valid"], **changes)}


@pytest.mark.parametrize(
    ("left", "right", "word"),
    [
        ({"learning_rate": 0.02}, {"learning_rate": 0.01}, "learning_rate = 0.02 there and 0.01 here"),
        ({"loss": "log_plus"}, {"loss": "log"}, "loss = 'log_plus' there and 'log' here"),
        ({"seed": 3}, {"seed": 4}, r"seed = \[3\] there and \[4\] here"),
        ({"metric": "welfare"}, {"metric": "auc"}, r"metric = \['welfare'\] there and \['auc'\] here"),
        ({"precision": "float32"}, {"precision": "mixed"}, "precision = "),
        ({"model": MLP(8, (6,), seed=1)}, {"model": MLP(8, (6,), seed=2)}, "model = "),
        ({"model": MLP(8, (6,))}, {"model": MLP(8, (6,), init="glorot")}, "model = "),
        ({"train": repeat(1)[0]}, {"train": repeat(2)[0]}, "train = "),
        ({}, other("train", features=2 * repeat(0)[0].features), "train = "),
        ({}, other("train", teacher=None), "train = "),
        ({}, other("train", weights=torch.ones(500)), "train = "),
        ({}, other("train", exposure=torch.ones(500)), "train = "),
        ({}, other("valid", truth=repeat(0)[1].clicks), "valid = "),
        (lam(1.00001), lam(1.0), "loss = "),
        ({"model": MLP(8, members=(3, 1))} | counts(1, 2), counts(2, 1), "loss = "),
    ],
)
def test_a_folder_of_another_run_is_refused(tmp_path, left, right, word):
    train, valid = repeat(0)
    default = {"model": LogisticRegression(8), "train": train, "valid": valid, "epochs": 1, "out": tmp_path} | left
    first, second = dict(default), default | right
    fit(first.pop("model"), first.pop("train"), **first)
    with pytest.raises(InputError, match=f"out must be a new folder or one of the same run, found .* with {word}"):
        fit(second.pop("model"), second.pop("train"), **second)


def test_a_run_with_a_loss_of_ones_own_goes_on(tmp_path):
    train, _ = repeat(0, ads=100)

    def made():
        def own(logits, clicks, bids, offsets, teacher):
            return bidwise.log_loss(logits, clicks)

        return own

    options = {"epochs": 3, "batch_size": 50, "learning_rate": np.float64(1e-3), "seed": np.int64(1)}
    kept = made()  # another function of the same name lives elsewhere in memory
    with pytest.raises(Stop):
        fit(LogisticRegression(8), train, loss=kept, out=tmp_path, progress=stop_at(2), **options)
    fitted = fit(LogisticRegression(8), train, loss=made(), out=tmp_path, **options)
    assert equal(fitted.last, fit(LogisticRegression(8), train, loss=kept, **options).last)


# parts of epochs


def counted(batches):
    """A log loss that counts its calls in ``batches``."""

    def loss(logits, clicks, bids, offsets, teacher):
        batches.append(logits.shape[-1])
        return bidwise.LOSSES["log_loss"](logits, clicks, bids, offsets)

    return loss


@pytest.mark.parametrize(
    ("epochs", "every", "evaluated", "steps"),
    [
        (2.5, 0.25, [k / 4 for k in range(1, 11)], [3, 5, 8, 10, 13, 15, 18, 20, 23, 25]),
        (0.5, 1, [0.5], [5]),
        (0.35, 0.1, [0.1, 0.2, 0.3, 0.35], [1, 2, 3, 4]),
        (2, 0.7, [0.7, 1.4, 2], [7, 14, 20]),
        (2.1, 1, [1, 2, 2.1], [10, 20, 21]),
        (3.0, 1.5, [1.5, 3], [15, 30]),
        (1, 0.3, [0.3, 0.6, 0.9, 1], [3, 6, 9, 10]),
        (3, 1, [1, 2, 3], [10, 20, 30]),
        (7, 3, [3, 6, 7], [30, 60, 70]),
        (2, 5, [2], [20]),
        (1, 0.05, [k / 10 for k in range(1, 11)], list(range(1, 11))),  # two evaluations in one batch are one
    ],
)
def test_parts_of_epochs_are_trained_and_evaluated(epochs, every, evaluated, steps):
    train, valid = repeat(0, ads=100)
    batches, at = [], []
    metric = Metric("steps", True, lambda z, ads: torch.tensor(float(len(batches))))
    options = {"epochs": epochs, "every": every, "batch_size": 10, "metric": metric}
    fitted = fit(LogisticRegression(8), train, valid=valid, loss=counted(batches), progress=at.append, **options)
    assert [entry["epoch"] for entry in fitted.history] == evaluated
    assert history_of(fitted, "steps").tolist() == steps
    assert batches == [10] * steps[-1]
    assert at == sorted(set(at))
    assert at[-1] == steps[-1] / 10
    epoch = fitted.best["steps"].epoch
    assert epoch.item() == evaluated[-1]
    fractions = not (float(epochs).is_integer() and float(every).is_integer())
    assert epoch.dtype == (torch.float64 if fractions else torch.int64)


def test_the_loss_of_an_evaluation_is_the_mean_since_the_last_or_since_the_pass_began():
    train, _ = repeat(0, ads=100)
    seen = []

    def loss(logits, clicks, bids, offsets, teacher):
        seen.append(bidwise.log_loss(logits, clicks))
        return seen[-1]

    fitted = fit(LogisticRegression(8), train, loss=loss, epochs=2, every=0.4, batch_size=10)
    assert [entry["epoch"] for entry in fitted.history] == [0.4, 0.8, 1.2, 1.6, 2]
    for entry, (a, b) in zip(fitted.history, [(0, 4), (4, 8), (10, 12), (12, 16), (16, 20)], strict=True):
        assert entry["loss"].item() == pytest.approx(torch.stack(seen[a:b]).mean().item(), rel=1e-6)


@pytest.mark.parametrize("patience", [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 1, 1.1])
@pytest.mark.parametrize("best", [1, 2, 3, 6, 9])
def test_patience_may_be_part_of_an_epoch(patience, best):
    """A metric that is the best at evaluation ``best``: sums of tenths must not cost or give an evaluation."""
    train, valid = repeat(0, ads=100)
    model, seen = LogisticRegression(8), []

    def told(logits, ads):
        seen.append(deepcopy(model.state_dict()))
        return torch.tensor(-abs(len(seen) - float(best)))

    metric = Metric("told", True, told)
    options = {"epochs": 3, "every": 0.1, "patience": patience, "batch_size": 10, "metric": metric}
    fitted = fit(model, train, valid=valid, **options)
    assert len(fitted.history) == best + round(10 * patience)
    assert fitted.best["told"].epoch.item() == pytest.approx(best / 10)
    assert equal(fitted.best["told"].state, seen[best - 1])  # the weights of that moment
    assert equal(model.state_dict(), seen[best - 1])
    assert not equal(fitted.last, seen[best - 1])


def test_whole_numbers_may_be_written_as_fractions(tmp_path):
    train, valid = repeat(0, ads=100)
    options = {"valid": valid, "out": tmp_path}
    whole = fit(LogisticRegression(8), train, epochs=2, every=1, patience=1, **options)
    again = fit(LogisticRegression(8), train, epochs=2.0, every=1.0, patience=1.0, **options)
    same_fit(again, whole)
    assert again.best["log_loss"].epoch.dtype == torch.int64


# runs that are cut off inside of an epoch

CARDINALITIES = [30, 4, 200]


def categories(seed=0, ads=120, sizes=None):
    """Ads of categories with clicks that depend on them, in auctions of ``sizes``."""
    random = seeded(seed)
    ads = ads if sizes is None else sum(sizes)
    ids = torch.stack([torch.randint(0, values, (ads,), generator=random) for values in CARDINALITIES], dim=1)
    ctr = torch.sigmoid(0.1 * ids[:, 0] + ids[:, 1] - 3)
    clicks = (torch.rand(ads, generator=random) < ctr).float()
    offsets = None if sizes is None else torch.tensor([0, *sizes]).cumsum(0)
    bids = torch.rand(ads, generator=random) + 0.5
    return Ads(ids.to(torch.int32), clicks, bids, offsets, teacher=ctr, truth=ctr)


RAGGED = [7, 1, 0, 12, 30, 4, 4, 9, 0, 15, 3, 22, 13, 0]  # 120 ads
NETWORKS = {
    "deepfm, lazy": (lambda: DeepFM(CARDINALITIES, embedding=3, hidden=(6,), std=0.1), {"l2": 1e-3}),
    "deepfm, dense": (lambda: DeepFM(CARDINALITIES, embedding=3, hidden=(6,), std=0.1), {"embeddings": "dense"}),
    "dcn": (lambda: DCN(CARDINALITIES, cross=2, hidden=(6, 5), dropout=0.3, std=0.1), {"schedule": "cosine"}),
    "logistic regression": (lambda: SparseLogisticRegression(CARDINALITIES), {"schedule": "cosine", "l2": 1e-3}),
}


def clock(monkeypatch, seconds):
    """Time that goes on by ``seconds`` whenever anybody looks; a run comes up for air after a second."""
    now = [0.0]

    def monotonic():
        now[0] += seconds
        return now[0]

    for module in (run, loop):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))


def a_network(name, sizes=None, out=None, progress=None):
    model, options = NETWORKS[name]
    options = {"epochs": 2.5, "every": 0.75, "batch_size": 16, "learning_rate": 0.02, "seed": 3} | options
    options |= {"loss": "log_plus", "metric": ("welfare", "log_loss"), "patience": 2.25}
    valid = categories(1, sizes=[6] * 10)
    return fit(model(), categories(sizes=sizes), valid=valid, out=out, progress=progress, **options)


def stop_after(calls):
    def progress(done):
        calls[0] -= 1
        if not calls[0]:
            raise Stop

    return progress


@pytest.mark.parametrize("sizes", [None, [4] * 30, RAGGED], ids=["no auctions", "auctions of 4", "ragged"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_run_that_was_cut_off_inside_of_an_epoch_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch, name, sizes):
    expected = a_network(name, sizes)
    assert [entry["epoch"] for entry in expected.history] == [0.75, 1.5, 2.25, 2.5]
    clock(monkeypatch, 2)  # every batch takes more than a second
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    for calls in (1, 3, 4, 5):  # batch 1, batch 4, at the end of the first pass or so, inside of the second
        with pytest.raises(Stop):
            a_network(name, sizes, tmp_path, stop_after([calls]))
    done = []
    same_fit(a_network(name, sizes, tmp_path, done.append), expected)
    assert done[0] > 1
    assert done[-1] >= 2.5
    done.clear()
    same_fit(a_network(name, sizes, tmp_path, done.append), expected)
    assert done == []


@pytest.mark.parametrize("seconds", [7, 120])
def test_a_run_goes_on_from_its_last_checkpoint_wherever_it_was_cut_off(tmp_path, monkeypatch, seconds):
    """Checkpoints of every few batches, or of evaluations alone: what was done since is done again."""
    expected = a_network("deepfm, lazy")
    clock(monkeypatch, 2)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", seconds)
    for calls in range(1, 20, 4):
        folder = tmp_path / str(calls)
        with pytest.raises(Stop):
            a_network("deepfm, lazy", None, folder, stop_after([calls]))
        same_fit(a_network("deepfm, lazy", None, folder), expected)


def test_checkpoints_are_written_inside_of_long_epochs(tmp_path, monkeypatch):
    written, train, save = [], categories(), loop.save_checkpoint

    def saved(folder, run):
        written.append(run.epochs_done)
        save(folder, run)

    monkeypatch.setattr(loop, "save_checkpoint", saved)
    options = {"loss": "log_plus", "epochs": 1, "batch_size": 10}
    fit(SparseLogisticRegression(CARDINALITIES), train, out=tmp_path / "short", **options)
    assert written == [1]
    written.clear()
    clock(monkeypatch, 2)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 9)
    fit(SparseLogisticRegression(CARDINALITIES), train, out=tmp_path / "long", **options)
    assert 2 <= len(written) < 12
    assert written == sorted(written)
    assert 0 < written[0] < 1
    assert written[-1] == 1


def test_progress_comes_about_once_a_second_and_after_each_epoch(monkeypatch):
    train, done = categories(), []
    options = {"epochs": 2, "batch_size": 12, "progress": done.append}
    fit(SparseLogisticRegression(CARDINALITIES), train, **options)
    assert done == [1, 2]
    done.clear()
    clock(monkeypatch, 0.3)  # four batches
    fit(SparseLogisticRegression(CARDINALITIES), train, **options)
    assert done == [0.4, 0.8, 1, 1.4, 1.8, 2]


# L2 per unit of log loss


def without_pairs(ads=160):
    """Auctions of one ad each: the rank term is 0."""
    return replace(categories(ads=ads), offsets=torch.arange(ads + 1))


@pytest.mark.parametrize("options", [{}, {"embeddings": "dense"}, {"clip": 0.01}], ids=str)
def test_a_rank_term_of_0_gives_the_same_weights_for_every_lam(options):
    def last(loss):
        model = DeepFM(CARDINALITIES, hidden=(6,), dropout=0.0, std=0.1)
        return fit(model, without_pairs(), loss=loss, epochs=3, batch_size=16, l2=1e-2, **options).last

    expected = last(WelfareLoss(lam=1.0))
    for lam in (0.25, 32.0):  # powers of 2 are not rounded
        assert equal(last(WelfareLoss(lam=lam)), expected)
    for loss in ("log_loss", WelfareLoss(lam=0.1), WelfareLoss(lam=300.0), WelfareLoss(value="teacher", lam=3.0)):
        assert close(last(loss), expected, 1e-5)
    assert not close(last(WelfareLoss(lam=0.0)), expected, 1e-3)  # only the penalty is left


def test_members_of_every_lam_take_the_same_steps_of_log_loss():
    train = repeat(0, ads=100)[0]
    train = stack([replace(train, offsets=torch.arange(101))])
    lams = torch.tensor([[0.25], [1.0], [64.0]])
    loss = Variants([(bidwise.LOSSES["log_loss"], 1), (WelfareLoss(lam=lams), 3), (WelfareLoss(lam=32.0), 1)])
    last = fit(MLP(8, (6,), members=(5, 1)), train, loss=loss, epochs=3, batch_size=20).last
    for tensor in last.values():  # a product over members may round each of them otherwise
        torch.testing.assert_close(tensor, tensor[:1].expand_as(tensor), atol=1e-6, rtol=1e-5)


def test_the_solver_and_every_lam_agree_on_the_penalty():
    def logits(recipe, loss):
        model = SparseLogisticRegression(CARDINALITIES)
        options = {"epochs": 400, "batch_size": 160, "learning_rate": 0.05, "schedule": "cosine", "l2": 1e-2}
        return predict(Recipe(embeddings=recipe, **options).fit(model, without_pairs(), loss=loss).model, features)

    features = without_pairs().features
    expected = logits("exact", bidwise.LOSSES["log_loss"])
    for lam in (0.1, 30.0):
        torch.testing.assert_close(logits("dense", WelfareLoss(lam=lam)), expected, atol=1e-3, rtol=0)


def test_the_history_has_the_loss_and_not_its_share():
    train = without_pairs()
    options = {"epochs": 1, "batch_size": 16}
    one, many = (
        fit(SparseLogisticRegression(CARDINALITIES), train, loss=WelfareLoss(lam=lam), **options).history[0]["loss"]
        for lam in (1.0, 8.0)
    )
    assert many.item() == pytest.approx(8 * one.item())


# ids, bytes and files


@pytest.mark.parametrize("sizes", [None, RAGGED])
def test_memory_mapped_features_train_as_those_in_memory(tmp_path, sizes):
    ads = categories(sizes=sizes)
    path = tmp_path / "features.npy"
    np.save(path, ads.features.numpy())
    mapped = torch.from_numpy(np.load(path, mmap_mode="c"))
    for features in (mapped, ads.features.long()):
        options = {"loss": "log_plus", "epochs": 2, "batch_size": 16, "valid": categories(1, sizes=[6] * 10)}
        found = fit(DeepFM(CARDINALITIES, hidden=(6,)), replace(ads, features=features), **options)
        same_fit(found, fit(DeepFM(CARDINALITIES, hidden=(6,)), ads, **options))


def test_clicks_may_be_bytes():
    train, valid = categories(), categories(1, sizes=[6] * 10)
    options = {"loss": "log_teacher", "epochs": 2, "batch_size": 16, "metric": tuple(METRICS)}
    expected = fit(SparseLogisticRegression(CARDINALITIES), train, valid=valid, **options)
    for dtype in (torch.uint8, torch.bool, torch.int64):
        ads = [replace(each, clicks=each.clicks.to(dtype)) for each in (train, valid)]
        same_fit(fit(SparseLogisticRegression(CARDINALITIES), ads[0], valid=ads[1], **options), expected)


def test_training_in_double_precision_leaves_ids_as_they_are():
    for model, (train, valid) in (
        (DeepFM(CARDINALITIES, hidden=(6,), dropout=0.0), (categories(), categories(1, sizes=[6] * 10))),
        (MLP(8, (6,)), repeat(0, ads=200)),
    ):
        options = {"loss": "log_teacher", "epochs": 2, "batch_size": 16, "valid": valid}
        fitted = fit(deepcopy(model).double(), train, **options)
        assert all(x.dtype in (torch.float64, torch.int64) for x in fitted.last.values())
        assert close(fit(model, train, **options).last, fitted.last, 1e-4)


def test_ids_that_no_field_has_are_named_by_fit():
    train = categories()
    train.features[17, 2] = 200
    with pytest.raises(InputError, match=r"features must be ids below 200 in field 2, found 200 at"):
        fit(DeepFM(CARDINALITIES, hidden=(6,)), train)


@pytest.mark.parametrize("ads", [33, 17])
def test_a_last_batch_of_one_ad_trains_batch_norm_too(ads):
    fitted = fit(DCN(CARDINALITIES, cross=1, hidden=(6,)), categories(ads=ads), epochs=2, batch_size=16)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in fitted.last.values())
    assert fitted.last["deep.norms.0.num_batches_tracked"].item() == 2 * (ads // 16)


# values are checked once


def test_fit_checks_values_once_and_not_in_every_step(monkeypatch):
    def check(*columns, **others):
        raise AssertionError("checked again")

    train, _ = repeat(0, ads=100)
    monkeypatch.setattr(api, "check_values", check)
    for loss in bidwise.LOSSES:
        fit(LogisticRegression(8), train, loss=loss, epochs=1)
    variants = Variants([(bidwise.LOSSES["log_loss"], 1), (bidwise.LOSSES["log_teacher"], 1)])
    fit(LogisticRegression(8, members=(2, 1)), stack([train]), loss=variants, epochs=1)
    with pytest.raises(AssertionError, match="checked again"):
        bidwise.LOSSES["log_loss"](torch.zeros(3), torch.zeros(3), torch.ones(3))


# what must not happen


def test_global_random_state_is_untouched(tmp_path):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), python_random.getstate()  # noqa: NPY002
    a_run(tmp_path, epochs=2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert python_random.getstate() == before[2]
    for made in (lambda: a_run(epochs=2), lambda: a_network("dcn")):  # which has dropout
        expected = made().last
        assert torch.equal(torch.get_rng_state(), before[0])
        with torch.random.fork_rng():
            torch.manual_seed(99)
            assert equal(made().last, expected)


def test_arguments_are_not_changed():
    train, valid = repeat(0, ads=100)
    kept = [train.features.clone(), train.bids.clone(), valid.features.clone()]
    fit(LogisticRegression(8), train, valid=valid, epochs=1)
    assert all(torch.equal(x, y) for x, y in zip(kept, (train.features, train.bids, valid.features), strict=True))


def test_a_loss_that_is_not_finite_is_explained():
    train, _, _ = repeats(3, ads=100)
    bids = train.bids.clone()
    bids[1] *= 1e38
    message = r"the loss is not finite in batch 1 of epoch 1 for 1 of 3 members, 100 ads, rows .* and 95 more of train"
    message += r"; bids go from .* to .*e\+3\d\. Divide the bids"
    with pytest.raises(InputError, match=message):
        fit(LogisticRegression(8, members=(3,)), replace(train, bids=bids.clamp(max=3e38)), loss="bid_weighted")
    with pytest.raises(InputError, match=r"the weights are not finite after epoch 1; bids go"):
        fit(LogisticRegression(8), repeat(0, ads=100)[0], learning_rate=1e39)
    train, _ = repeat(0, ads=100)
    train.features[3, 2] = math.nan
    with pytest.raises(InputError, match=r"train.features must be finite, found 1 that are not"):
        fit(LogisticRegression(8), train)


# graphs and precision: what can be told without a GPU


class Annealed(bidwise.WelfareLoss):
    """A loss of a user, whose Python changes from call to call."""


def test_only_parts_of_bidwise_are_captured_unasked():
    model = bidwise.models.DeepFM([3, 4], embedding=2, hidden=(4,))
    assert repeats_in_a_graph(model, bidwise.LOSSES["log_plus"])
    assert repeats_in_a_graph(model, Variants([(bidwise.LOSSES["log_loss"], 1)]))
    assert not repeats_in_a_graph(model, Annealed())
    assert not repeats_in_a_graph(model, Variants([(Annealed(), 1)]))
    assert not repeats_in_a_graph(model, lambda *columns: columns[0].sum())
    model.register_forward_hook(lambda *call: None)
    assert not repeats_in_a_graph(model, bidwise.LOSSES["log_plus"])
    model = bidwise.models.DeepFM([3, 4], embedding=2, hidden=(4,))
    model.deep = type("Mine", (type(model.deep),), {"__module__": "mine"})(4, (4,), seed=0, random=torch.Generator())
    assert not repeats_in_a_graph(model, bidwise.LOSSES["log_plus"])


def test_mixed_precision_ends_with_the_last_thread():
    before = torch.get_float32_matmul_precision()
    inside, leave = threading.Event(), threading.Event()

    def work():
        with matmul_precision("mixed"):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    with matmul_precision("mixed"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "high"
    leave.set()
    thread.join()
    assert torch.get_float32_matmul_precision() == before
    torch.set_float32_matmul_precision("high")
    try:
        with matmul_precision("float32"):  # leaves alone what the user has set
            assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
