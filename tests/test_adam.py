"""Dense updates are torch's Adam; lazy ones are Adam for the rows of the batch, and leave all others alone."""

import copy
import io
import math

import pytest
import torch
from helpers import equal
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bidwise import InputError
from bidwise.models import MODELS, DeepFM, SparseLogisticRegression
from bidwise.training import Adam

CARDINALITIES = [4, 30, 9]
RATE, BETAS, EPS = 0.02, (0.9, 0.999), 1e-8


def batch(seed, ads=12, cardinalities=CARDINALITIES):
    random = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randint(0, values, (ads,), generator=random) for values in cardinalities], dim=1)
    return ids, torch.rand(ads, generator=random)


def all_rows(seed):
    """Every value of every field at least once."""
    ids, labels = batch(seed, ads=max(CARDINALITIES))
    for field, values in enumerate(CARDINALITIES):
        ids[:, field] = torch.arange(len(ids)).roll(seed) % values
    return ids, labels


def deepfm(**options):
    return DeepFM(CARDINALITIES, **({"embedding": 3, "hidden": (6,), "std": 0.3, "seed": 1} | options))


FIRST = torch.tensor(1e-3).item()  # in single precision, as a model is made


def objective(model, ids, labels, l2=0.0):
    """Mean log loss, and l2 Σ w² of DeepFM's table as a user would write it: a thousandth for first-order weights."""
    logits = model(ids)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
    if l2:
        weight = model.table.weight
        loss = loss + l2 * (FIRST * weight[:, 0].square().sum() + weight[:, 1:].square().sum())
    return loss


def train(model, optimizer, batches, l2=0.0):
    for ids, labels in batches:
        optimizer.zero_grad()
        objective(model, ids, labels, l2).backward()
        optimizer.step()
    return model


def assert_near(left, right):
    for name, tensor in right.state_dict().items():
        torch.testing.assert_close(left.state_dict()[name], tensor, rtol=1e-9, atol=1e-11)


# dense


@pytest.mark.parametrize("name", MODELS)
def test_dense_updates_are_those_of_torch(name):
    batches = [batch(seed) for seed in range(6)]
    ours, theirs = (MODELS[name](CARDINALITIES, seed=1) for _ in range(2))
    train(ours, Adam(ours, lr=RATE, updates="dense"), batches)
    train(theirs, torch.optim.Adam(theirs.parameters(), lr=RATE, fused=True), batches)
    assert equal(ours.state_dict(), theirs.state_dict())


def test_dense_l2_is_a_term_of_the_loss():
    batches = [batch(seed) for seed in range(6)]
    ours, theirs, without = deepfm().double(), deepfm().double(), deepfm().double()
    train(ours, Adam(ours, lr=RATE, updates="dense", l2=0.01), batches)
    train(theirs, torch.optim.Adam(theirs.parameters(), lr=RATE), batches, l2=0.01)
    train(without, Adam(without, lr=RATE, updates="dense"), batches)
    assert_near(ours, theirs)
    assert not torch.allclose(ours.table.weight, without.table.weight, atol=1e-3)


# lazy


@pytest.mark.parametrize("l2", [0.0, 0.01])
@pytest.mark.parametrize("name", MODELS)
def test_lazy_is_dense_where_every_row_is_in_every_batch(name, l2):
    batches = [all_rows(seed) for seed in range(8)]
    lazy, dense = (MODELS[name](CARDINALITIES, seed=1, std=0.3).double() for _ in range(2))
    train(lazy, Adam(lazy, lr=RATE, l2=l2), batches)
    train(dense, Adam(dense, lr=RATE, updates="dense", l2=l2), batches)
    assert_near(lazy, dense)


def rows_by_hand(weight, gradients, l2):
    """Lazy Adam over lists: ``gradients`` has for each step a list of (row, gradient of one look-up)."""
    weight, seen = [list(row) for row in weight], [0] * len(weight)
    mean, square = ([[0.0] * len(row) for row in weight] for _ in range(2))
    for step, lookups in enumerate(gradients, start=1):
        sums = {}
        for row, slopes in lookups:
            sums[row] = [a + b for a, b in zip(sums.get(row, [0.0] * len(slopes)), slopes, strict=True)]
        for row, slopes in sums.items():
            seen[row] += 1
            for k, slope in enumerate(slopes):
                g = slope + 2 * l2 * weight[row][k] / (seen[row] / step)
                mean[row][k] = BETAS[0] * mean[row][k] + (1 - BETAS[0]) * g
                square[row][k] = BETAS[1] * square[row][k] + (1 - BETAS[1]) * g**2
                corrected = mean[row][k] / (1 - BETAS[0] ** step)
                size = math.sqrt(square[row][k] / (1 - BETAS[1] ** step))
                weight[row][k] -= RATE * corrected / (size + EPS)
    return weight, mean, square


@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_lazy_updates_are_adam_by_hand_for_the_rows_of_the_batch(l2):
    model = SparseLogisticRegression([3, 4], std=0.5, seed=2).double()
    optimizer = Adam(model, lr=RATE, l2=l2)
    start = model.table.weight.tolist()
    batches = [  # ids that come twice in a batch, rows that rest for a step, and one that never comes
        [[0, 0], [0, 1], [1, 0], [0, 0]],
        [[1, 3], [1, 3], [1, 1]],
        [[0, 0], [1, 0], [0, 3], [0, 3]],
        [[1, 1]],
    ]
    gradients = []
    for number, ids in enumerate(batches):
        labels = [0.5 * ((number + k) % 3) for k in range(len(ids))]
        weight, bias = model.table.weight.tolist(), model.bias.item()
        lookups = []
        for (a, b), label in zip(ids, labels, strict=True):
            logit = bias + weight[a][0] + weight[3 + b][0]
            slope = (1 / (1 + math.exp(-logit)) - label) / len(ids)
            lookups += [(a, [slope]), (3 + b, [slope])]
        gradients.append(lookups)
        train(model, optimizer, [(torch.tensor(ids), torch.tensor(labels, dtype=torch.float64))])
        state = optimizer.state[model.table.weight]
        found = (model.table.weight, state["exp_avg"], state["exp_avg_sq"])
        for ours, expected in zip(found, rows_by_hand(start, gradients, l2), strict=True):
            torch.testing.assert_close(
                ours.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12
            )
    assert model.table.weight[[2, 5]].tolist() == [start[2], start[5]]


def test_a_state_without_counts_goes_on_as_if_every_step_had_looked_up_every_row():
    ids, labels = batch(0)
    found = {}
    for l2 in (0.0, 0.05):
        model = deepfm().double()
        optimizer = Adam(model, lr=RATE)
        train(model, optimizer, [(ids, labels)] * 5)
        again = Adam(model, lr=RATE, l2=l2)
        again.load_state_dict(optimizer.state_dict())
        before = again.state[model.table.weight]["exp_avg"].clone()
        train(model, again, [(ids, labels)])
        found[l2] = (again.state[model.table.weight]["exp_avg"] - BETAS[0] * before) / (1 - BETAS[0])
        start = model.table.weight.detach()
    rows = (ids + torch.tensor([0, 4, 34])).unique()
    pull = (found[0.05] - found[0.0])[rows][:, 1:]
    assert 0 < pull.abs().max() < 2 * 0.05 * start.abs().max() * 1.5  # not times the five steps before


def test_the_rate_may_change_between_steps():
    model, slow = deepfm(), deepfm()
    optimizer, other = Adam(model, lr=RATE), Adam(slow, lr=RATE)
    start = copy.deepcopy(model.state_dict())
    optimizer.param_groups[0]["lr"] = 0.0
    other.param_groups[0]["lr"] = 1e-6
    for one, some in ((model, optimizer), (slow, other)):
        train(one, some, [batch(0)])
    for name, tensor in start.items():
        if name != "deep.steps":
            assert torch.equal(model.state_dict()[name], tensor)
            assert (slow.state_dict()[name] - tensor).abs().max() <= 1.01e-6 + 1e-7 * tensor.abs().max()
    assert not torch.equal(slow.table.weight, start["table.weight"])


# what it takes


class Dense(TorchDispatchMode):
    """Records tensors of at least ``numbers`` numbers that an operation makes, other than those it was given."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers, self.made = numbers, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        given = {id(x) for x in tree_leaves((args, kwargs))}
        for x in tree_leaves(found):
            large = isinstance(x, torch.Tensor) and x.layout == torch.strided and x.numel() >= self.numbers
            if large and id(x) not in given and not x._is_view():
                self.made.append((str(function), tuple(x.shape)))
        return found


def made_in_a_step(updates, l2):
    cardinalities = [20_000, 10_000]
    model = DeepFM(cardinalities, embedding=3, hidden=(4,))
    optimizer = Adam(model, lr=RATE, updates=updates, l2=l2)
    batches = [batch(seed, ads=16, cardinalities=cardinalities) for seed in range(3)]
    train(model, optimizer, batches[:1])  # makes the moments, once
    with Dense(10_000) as dense:
        train(model, optimizer, batches[1:])
    return dense.made


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_a_lazy_step_makes_nothing_of_the_size_of_a_table(l2):
    assert made_in_a_step("lazy", l2) == []
    assert made_in_a_step("dense", l2) != []  # the recorder sees it where it is


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_a_loop_that_clears_gradients_after_each_step_trains_as_one_that_does_before(l2):
    """Of its first backward pass the tables are not prepared, so their gradients are dense."""
    before, after = deepfm().double(), deepfm().double()
    train(before, Adam(before, RATE, l2=l2), [batch(seed) for seed in range(3)])
    optimizer = Adam(after, RATE, l2=l2)
    for seed in range(3):
        objective(after, *batch(seed)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_near(after, before)


@pytest.mark.parametrize("updates", ["lazy", "dense"])
def test_step_calls_the_closure_and_returns_its_loss(updates):
    plain, ours = deepfm(), deepfm()
    train(plain, Adam(plain, lr=RATE, updates=updates), [batch(0)])
    optimizer, found = Adam(ours, lr=RATE, updates=updates), []
    optimizer.zero_grad()

    def closure():
        found.append(objective(ours, *batch(0)))
        found[0].backward()
        return found[0]

    with torch.no_grad():
        assert optimizer.step(closure) is found[0]
    assert len(found) == 1
    assert equal(ours.state_dict(), plain.state_dict())


def test_a_table_without_a_gradient_is_left_alone():
    model = deepfm()
    start = model.table.weight.detach().clone()
    optimizer = Adam(model, lr=RATE, l2=0.1)
    (2 * model.bias).backward()
    optimizer.step()
    assert torch.equal(model.table.weight, start)
    assert model.bias.item() == pytest.approx(-RATE, rel=1e-6)


# state


@pytest.mark.parametrize("updates", ["lazy", "dense"])
@pytest.mark.parametrize("name", MODELS)
def test_an_optimizer_goes_on_from_its_state(name, updates):
    batches = [batch(seed) for seed in range(6)]
    whole = MODELS[name](CARDINALITIES, seed=1)
    optimizer = Adam(whole, lr=RATE, updates=updates, l2=0.01)
    train(whole, optimizer, batches[:3])
    file = io.BytesIO()
    torch.save({"model": whole.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(whole, optimizer, batches[3:])
    resumed = MODELS[name](CARDINALITIES, seed=1, std=0.5)
    again = Adam(resumed, lr=1.0, updates=updates, l2=0.01)
    there = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    resumed.load_state_dict(there["model"])
    again.load_state_dict(there["optimizer"])
    train(resumed, again, batches[3:])
    assert equal(resumed.state_dict(), whole.state_dict())
    for one, other in zip(again.param_groups[0]["params"], optimizer.param_groups[0]["params"], strict=True):
        assert equal(again.state[one], optimizer.state[other])


def test_bad_options_are_refused():
    for options, message in (
        ({"updates": "laz"}, "embeddings must be one of lazy, dense, found 'laz'; did you mean 'lazy'"),
        ({"l2": -1.0}, "l2 must be finite and no less than 0, found -1.0"),
    ):
        with pytest.raises(InputError, match=message):
            Adam(deepfm(), lr=RATE, **options)
