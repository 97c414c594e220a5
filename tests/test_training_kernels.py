"""Kernels of training: the same rows, moments and logits as without them; on a GPU, or interpreted on the CPU."""

import copy
import os
import threading
import warnings

import numpy as np
import pytest
import torch
from distributed_jobs import on_ranks
from helpers import CUDA, DEVICE, needs_gpu

import bidwise
from bidwise import InputError, distributed
from bidwise.data import Ads
from bidwise.models import DeepFM, SparseLogisticRegression
from bidwise.training import Adam, Variants
from paper.dcn import DCN, MODELS

pytest.importorskip("triton", reason="needs triton: make test-kernels installs it")
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1 as make test-kernels sets it", allow_module_level=True)
from bidwise.kernels.embedding_kernels import activated, product

CARDINALITIES = [4, 30, 9]


def batch(seed, ads=70, cardinalities=CARDINALITIES):
    random = torch.Generator().manual_seed(seed)
    ids = [(values * torch.rand(ads, generator=random) ** 3).to(torch.int32) for values in cardinalities]
    return torch.stack(ids, dim=1), torch.rand(ads, generator=random)


def trained(model, optimizer, batches, rates=None):
    device = next(model.parameters()).device
    for step, (ids, labels) in enumerate(batches):
        if rates is not None:
            optimizer.set_rate(rates[step])
        optimizer.zero_grad()
        logits = model(ids.to(device))
        torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits)).backward()
        optimizer.step()
    return model


def made(name, **options):
    options = {"std": 0.3, "seed": 1} | options
    if name == "deepfm":
        options |= {"embedding": 5, "hidden": (16, 8), "dropout": 0.0}
    if name in ("dcn", "dcnv2"):
        options |= {"hidden": (16,), "cross": 2}
    return MODELS[name](CARDINALITIES, **options)


def assert_near(found, expected, tolerance=2e-5):
    for name, tensor in expected.state_dict().items():
        if tensor.is_floating_point():
            error = (found.state_dict()[name].cpu().double() - tensor.cpu().double()).abs().max().item()
            assert error < tolerance, (name, error)


@pytest.mark.parametrize("l2", [0.0, 0.01])
@pytest.mark.parametrize("name", ["deepfm", "dcn", "dcnv2", "logistic_regression"])
def test_lazy_rows_are_those_without_kernels(name, l2):
    batches = [batch(seed) for seed in range(8)]
    ours, plain = made(name).to(DEVICE), made(name).double()
    optimizer = Adam(ours, lr=0.01, l2=l2)
    assert optimizer.sums
    trained(ours, optimizer, batches)
    without = Adam(plain, lr=0.01, l2=l2)
    assert not without.sums
    trained(plain, without, batches)
    assert_near(ours, plain)


def test_rows_of_bags_that_an_ad_looks_up_several_times_are_updated_once():
    """Ids of the slots repeat within an ad, the id of missing values most of all."""
    cardinalities, batches = [4, (9, 6)], [batch(seed, cardinalities=[4] + [9] * 6) for seed in range(8)]
    ours, plain = (DeepFM(cardinalities, embedding=5, hidden=(8,), dropout=0.0, std=0.3, seed=1) for _ in range(2))
    ours, plain = ours.to(DEVICE), plain.double()
    optimizer = Adam(ours, lr=0.01)
    assert optimizer.sums
    trained(ours, optimizer, batches)
    trained(plain, Adam(plain, lr=0.01), batches)
    assert_near(ours, plain)


def test_sums_of_bags_that_all_have_one_value_do_not_overflow():
    ids, labels = torch.full((64, 32), 5, dtype=torch.int32), torch.ones(64)
    ours, plain = (SparseLogisticRegression([(9, 32)], std=0.3, seed=1) for _ in range(2))
    ours, plain = ours.to(DEVICE), plain.double()
    for model in (ours, plain):
        trained(model, Adam(model, lr=0.01), [(ids, labels)])
    assert_near(ours, plain)


def test_rows_that_are_filled_up_for_tensor_cores_change_no_number():
    """15 columns of vectors and one of zeros, as mixed precision has them; on a GPU products are then rounded more."""
    batches = [batch(seed) for seed in range(8)]
    ours, plain = made("deepfm").to(DEVICE), made("deepfm").double()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        trained(ours, Adam(ours, lr=0.01), batches)
    finally:
        torch.set_float32_matmul_precision(before)
    trained(plain, Adam(plain, lr=0.01), batches)
    assert_near(ours, plain, 5e-3 if CUDA else 2e-5)


def test_several_ranks_and_dense_updates_have_no_kernels(monkeypatch):
    """Ranks average gradients, which must be tensors; dense updates are those of torch."""
    assert Adam(made("deepfm").to(DEVICE)).sums
    assert not Adam(made("deepfm").to(DEVICE), updates="dense").sums
    monkeypatch.setattr(distributed, "several", lambda: True)
    assert not Adam(made("deepfm").to(DEVICE)).sums


def test_two_ranks_without_row_kernels_end_where_one_process_with_them_does(tmp_path):
    options = {"count": 150, "epochs": 1, "device": DEVICE}
    work = {auctions: ("trained", ("deepfm", "log_plus", auctions), options) for auctions in ("one", "ragged")}
    (one,), (first, second) = on_ranks(1, work, tmp_path / "1"), on_ranks(2, work, tmp_path / "2")
    for name, expected in one.items():
        for key, x in expected["last"].items():
            assert torch.equal(first[name]["last"][key], second[name]["last"][key])
            torch.testing.assert_close(first[name]["last"][key], x, rtol=1e-5, atol=5e-6)


def test_a_run_can_be_repeated_and_taken_up_again():
    batches = [batch(seed) for seed in range(6)]
    first, again, cut = (made("deepfm").to(DEVICE) for _ in range(3))
    trained(first, Adam(first, lr=0.01), batches)
    trained(again, Adam(again, lr=0.01), batches)
    assert torch.equal(first.table.weight, again.table.weight)
    before = Adam(cut, lr=0.01)
    trained(cut, before, batches[:3])
    state = copy.deepcopy(before.state_dict())
    after = Adam(cut, lr=0.5)
    after.load_state_dict(state)
    assert float(after.rate) == pytest.approx(0.01)
    trained(cut, after, batches[3:])
    torch.testing.assert_close(cut.table.weight, first.table.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernels_first", [True, False])
def test_a_state_is_taken_up_with_and_without_kernels(kernels_first):
    batches = [batch(seed) for seed in range(6)]
    models = [made("deepfm").to(DEVICE), made("deepfm").double()]
    first, second = models if kernels_first else reversed(models)
    before, after = Adam(first, lr=0.01), Adam(second, lr=0.5)
    trained(first, before, batches[:3])
    second.load_state_dict(first.state_dict())
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    for model, optimizer in ((first, before), (second, after)):
        trained(model, optimizer, batches[3:])
    assert_near(*models)


def test_large_and_tiny_gradients_lose_no_digits():
    for scale in (1e-12, 1e12):
        model = SparseLogisticRegression(CARDINALITIES).to(DEVICE)
        optimizer = Adam(model, lr=0.01)
        optimizer.zero_grad()
        ids, labels = batch(0, ads=200)
        logits = model(ids.to(DEVICE))
        (scale * (logits * labels.to(DEVICE)).sum()).backward()
        expected = torch.zeros(sum(CARDINALITIES), dtype=torch.float64)
        rows = ids.long() + torch.tensor([0, 4, 34])
        expected.index_add_(0, rows.flatten(), labels.double().repeat_interleave(3))
        optimizer.step()
        found = optimizer.state[model.table.weight]["exp_avg"].squeeze(1).double().cpu() / 0.1 / scale
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("l2", [0.0, 0.01])
def test_gradients_of_a_pass_before_the_tables_are_prepared_count(l2):
    plain, ours = made("deepfm").double(), made("deepfm").to(DEVICE)
    for model in (plain, ours):
        optimizer = Adam(model, lr=0.01, l2=l2)
        for seed in range(3):
            model(batch(seed)[0].to(model.bias.device)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_near(ours, plain)


def test_a_table_is_looked_up_once_in_a_step():
    model = made("deepfm").to(DEVICE)
    Adam(model).zero_grad()
    ids = batch(0)[0].to(DEVICE)
    with pytest.raises(RuntimeError, match="once in a step"):
        (model(ids).sum() + model(ids).sum()).backward()


@pytest.mark.parametrize("ads", [1, 127, 129, 300])
def test_a_hidden_layer_drops_units_and_scales_up_the_others(ads):
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(ads, 50, generator=random).to(DEVICE).requires_grad_()
    bias = torch.randn(50, generator=random).to(DEVICE).requires_grad_()
    steps = torch.tensor(7, device=DEVICE)
    out = activated(inputs, bias, 0.5, 3, steps)
    kept = out > 0
    positive = (inputs + bias) > 0
    torch.testing.assert_close(out[kept], 2 * (inputs + bias)[kept])
    assert not bool((kept & ~positive).any())
    if ads > 100:
        share = kept.sum() / positive.sum()
        assert abs(float(share) - 0.5) < 5 * 0.5 / float(positive.sum()) ** 0.5
    upstream = torch.randn(ads, 50, generator=random).to(DEVICE)
    out.backward(upstream)
    expected = torch.where(kept, 2 * upstream, 0)
    torch.testing.assert_close(inputs.grad, expected)
    torch.testing.assert_close(bias.grad, expected.sum(0), rtol=1e-5, atol=1e-5)
    assert torch.equal(out, activated(inputs, bias, 0.5, 3, steps))
    if ads > 1:
        assert not torch.equal(out, activated(inputs, bias, 0.5, 3, steps + 1))
        assert not torch.equal(out, activated(inputs, bias, 0.5, 4 << 48, steps))
    without = activated(inputs, bias, 0.0, 3, steps)
    torch.testing.assert_close(without, (inputs + bias).relu())


@pytest.mark.parametrize("units", [1, 4, 50, 513])
def test_which_units_are_dropped_depends_on_the_place_in_the_batch(units):
    """Several ranks drop what one process would."""
    steps, bias = torch.tensor(7, device=DEVICE), torch.zeros(units, device=DEVICE)
    whole = activated(torch.ones(30, units, device=DEVICE), bias, 0.5, 3, steps)
    part = activated(torch.ones(13, units, device=DEVICE), bias, 0.5, 3, steps, 17)
    assert torch.equal(whole[17:], part)


def test_a_product_takes_columns_of_zeros():
    random = torch.Generator().manual_seed(0)
    inputs, weight, upstream = (torch.randn(shape, generator=random) for shape in ((5, 6), (6, 3), (5, 3)))
    padded = torch.nn.functional.pad(inputs, (0, 2)).to(DEVICE).requires_grad_()
    inputs, ours, theirs = inputs.requires_grad_(), weight.to(DEVICE).requires_grad_(), weight.requires_grad_()
    found, expected = product(padded, ours), inputs @ theirs
    found.backward(upstream.to(DEVICE))
    expected.backward(upstream)
    torch.testing.assert_close(found.cpu(), expected)
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)
    torch.testing.assert_close(padded.grad.cpu()[:, :6], inputs.grad)


def market(ads=3000, seed=0, cardinalities=CARDINALITIES, offsets=None):
    ids, _ = batch(seed, ads, cardinalities)
    random = torch.Generator().manual_seed(seed + 1)
    ctr = torch.sigmoid(ids[:, 0] * 0.5 - 1 - 0.1 * ids[:, 2])
    clicks = (torch.rand(ads, generator=random) < ctr).float()
    return Ads(ids, clicks, torch.rand(ads, generator=random) + 0.5, offsets, teacher=ctr)


@pytest.mark.parametrize("loss", ["log_loss", "log_teacher", "log_plus"])
def test_fit_gives_the_numbers_of_the_cpu(loss):
    ads = market(600)
    valid = market(200, seed=5, offsets=torch.arange(0, 201, 20))
    found, expected = made("deepfm").to(DEVICE), made("deepfm").double()
    options = {"loss": loss, "valid": valid, "metric": ["log_loss", "welfare"], "epochs": 2, "batch_size": 64}
    ours = bidwise.fit(found, ads, **options)
    theirs = bidwise.fit(expected, ads, **options)
    for a, b in zip(ours.history, theirs.history, strict=True):
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-5)
        assert float(a["log_loss"]) == pytest.approx(float(b["log_loss"]), rel=1e-5)
        assert float(a["welfare"]) == pytest.approx(float(b["welfare"]), rel=1e-2)
    assert_near(found, expected, 1e-4)


def test_a_model_is_given_back_after_training():
    """What is trained with another optimizer next gets gradients as everyone expects them."""
    model = made("deepfm").to(DEVICE)
    ads = market(128)
    bidwise.fit(model, ads, epochs=1, batch_size=64)
    assert model.table.sums is None
    model(ads.features.to(DEVICE)).sum().backward()
    assert model.table.weight.grad.abs().sum() > 0
    with pytest.raises(ZeroDivisionError):
        bidwise.fit(model, ads, epochs=1, batch_size=64, progress=lambda epoch: 1 / 0)
    assert model.table.sums is None
    copy.deepcopy(model)


def test_a_second_derivative_is_refused():
    inputs = torch.randn(4, 3, device=DEVICE, requires_grad=True)
    out = activated(inputs, torch.zeros(3, device=DEVICE), 0.0, 0, torch.tensor(0, device=DEVICE))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(out.square().sum() + inputs.pow(3).sum(), inputs, create_graph=True)


@pytest.mark.parametrize("name", ["deepfm", "dcn"])
def test_every_step_and_every_layer_drops_other_units(name):
    model = MODELS[name](CARDINALITIES, hidden=(64, 64), dropout=0.5).to(DEVICE)
    dropped = []

    def look(inputs, bias, dropout, seed, steps, begin):
        dropped.append(activated(torch.ones_like(inputs), torch.zeros_like(bias), dropout, seed, steps) == 0)
        return activated(inputs, bias, dropout, seed, steps, begin)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bidwise.kernels.embedding_kernels.activated", look)
        ids = batch(0)[0].to(DEVICE)
        model(ids), model(ids)
    assert int(model.deep.steps) == 2
    assert len(dropped) == 4
    for one in range(4):
        assert 0.4 < float(dropped[one].float().mean()) < 0.6
        for other in range(one):
            assert 0.4 < float((dropped[one] == dropped[other]).float().mean()) < 0.6


def test_states_of_frozen_parameters_and_of_no_step_at_all():
    plain, ours = made("deepfm").double(), made("deepfm").to(DEVICE)
    before = Adam(plain, lr=0.01)
    optimizer = Adam(ours, lr=0.01)
    optimizer.load_state_dict(copy.deepcopy(before.state_dict()))
    assert int(optimizer.kernels.clock.step) == 0
    plain.bias.requires_grad_(False)
    trained(plain, before, [batch(0)])
    optimizer.load_state_dict(copy.deepcopy(before.state_dict()))
    assert int(optimizer.kernels.clock.step) == 1
    trained(ours, optimizer, [batch(1)])
    optimizer.state_dict()


def test_gradients_that_are_not_wanted_are_left_out():
    model, other = made("deepfm").to(DEVICE), made("deepfm").to(DEVICE)
    optimizer = Adam(model, lr=0.01)
    optimizer.zero_grad()
    ids = batch(3)[0].to(DEVICE)
    model(ids).sum().backward()
    optimizer.zero_grad()
    trained(model, optimizer, [batch(1)])
    trained(other, Adam(other, lr=0.01), [batch(1)])
    assert torch.equal(model.table.weight, other.table.weight)


def test_a_shared_table_has_no_kernels():
    model = torch.nn.ModuleList([SparseLogisticRegression(CARDINALITIES) for _ in range(2)]).to(DEVICE)
    model[1].table.weight = model[0].table.weight
    assert not Adam(model, lr=0.01).sums


@pytest.mark.parametrize("features", [torch.zeros(100, 3), torch.zeros(100, 2, dtype=torch.int32)])
def test_features_that_a_forward_refuses_are_refused_with_kernels(features):
    ads = market(100)
    with pytest.raises(InputError, match="features must"):
        bidwise.fit(made("deepfm").to(DEVICE), Ads(features, ads.clicks, ads.bids), epochs=1, batch_size=50)


def test_ids_outside_of_their_field_are_refused_before_the_first_step():
    ads = market(100)
    ads.features[17, 1] = 30
    with pytest.raises(InputError, match="field 1"):
        bidwise.fit(made("deepfm").to(DEVICE), ads.to(DEVICE), epochs=1, batch_size=50)


class Beside(torch.nn.Module):
    """Ids among other features, as a model of one's own may have them."""

    def __init__(self):
        super().__init__()
        self.linear, self.own = torch.nn.Linear(2, 1), DeepFM([5, 5], embedding=3, hidden=(8,))

    def forward(self, features):
        return self.own(features[:, 2:].long()) + self.linear(features[:, :2]).squeeze(-1)


@pytest.mark.parametrize("wrong", [(17, 3, 6.0), (17, 2, 5.0), (3, 3, -1.0)])
def test_ids_inside_of_a_model_are_checked_before_kernels_write(wrong):
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 5, (100, 2), generator=random)
    features = torch.cat([torch.randn(100, 2, generator=random), ids.float()], dim=1)
    ads = Ads(features, torch.rand(100, generator=random).round(), torch.ones(100))
    model = Beside().to(DEVICE)
    bidwise.fit(model, ads, epochs=1, batch_size=50)
    row, column, value = wrong
    features[row, column] = value
    with pytest.raises(InputError, match="features must be ids below 5 in field"):
        bidwise.fit(model, ads, epochs=1, batch_size=50)


def test_ids_of_other_ads_are_checked_after_training():
    ads, valid = market(100), market(60, seed=5, offsets=torch.arange(0, 61, 20))
    model = made("deepfm").to(DEVICE)
    bidwise.fit(model, ads, epochs=1, batch_size=50)
    assert not model.table.trusted
    valid.features[3, 0] = 4
    with pytest.raises(InputError, match="field 0"):
        bidwise.predict(model, valid)
    with pytest.raises(InputError, match="field 0"):
        bidwise.fit(model, ads, valid=valid, epochs=1, batch_size=50)


def test_numbers_of_numpy_are_numbers():
    ads = market(100)
    loss = bidwise.WelfareLoss(value="teacher", weighting=np.float32(3), lam=np.float32(3), sigma=np.float64(3))
    model = DeepFM(CARDINALITIES, embedding=3, hidden=(8,), dropout=np.float32(0.5)).to(DEVICE)
    bidwise.fit(model, ads, loss=loss, epochs=1, batch_size=50, l2=np.float32(1e-5))


# graphs


def without_and_with_a_graph(make, ads, **options):
    """The same training twice, step by step and as a graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [bidwise.fit(make().to(DEVICE), ads, graph=graph, **options) for graph in (False, True)]


@needs_gpu
@pytest.mark.parametrize("loss", sorted(bidwise.LOSSES))
def test_a_graph_changes_no_number(loss):
    options = {"loss": loss, "epochs": 2.5, "batch_size": 256, "every": 0.5}
    model = DeepFM(CARDINALITIES, embedding=5, hidden=(32, 16), std=0.1)
    plain, graph = without_and_with_a_graph(lambda: copy.deepcopy(model), market(5000).to(DEVICE), **options)
    for a, b in zip(plain.history, graph.history, strict=True):
        assert torch.equal(a["loss"], b["loss"])
    for name, tensor in plain.last.items():
        assert torch.equal(tensor, graph.last[name]), name


@needs_gpu
@pytest.mark.parametrize("name", ["dcn", "dcnv2", "logistic_regression", "deepfm"])
def test_a_graph_changes_no_number_of_other_models(name):
    ads = market(3000, offsets=torch.arange(0, 3001, 50)).to(DEVICE)
    options = {"loss": "log_plus", "epochs": 2, "batch_size": 250, "schedule": "cosine"}
    plain, graph = without_and_with_a_graph(lambda: made(name), ads, **options)
    if name.startswith("dcn"):  # cuBLAS may take another way inside of a graph
        assert float(plain.history[-1]["loss"]) == pytest.approx(float(graph.history[-1]["loss"]), rel=1e-4)
        assert_near(plain.model, graph.model, 5e-4)
        return
    for key, tensor in plain.last.items():
        assert torch.equal(tensor, graph.last[key]), key


@needs_gpu
def test_a_graph_changes_no_number_of_many_models_at_once():
    random = torch.Generator().manual_seed(0)
    one = bidwise.data.WORLDS["plotted"].market(random).ads(1500, random)
    lams = torch.tensor([0.1, 1.0, 3.0], device=DEVICE)[:, None]
    losses = [(bidwise.LOSSES["log_loss"], 1), (bidwise.WelfareLoss(gap="positive", lam=lams), 3)]
    plain, graph = without_and_with_a_graph(
        lambda: bidwise.models.MLP(one.width, hidden=(16,), members=(4, 2)),
        bidwise.data.ads.stack([one, one]).to(DEVICE),
        **{"loss": Variants(losses), "epochs": 3, "batch_size": 100, "seed": [1, 2]},
    )
    for a, b in zip(plain.history, graph.history, strict=True):
        torch.testing.assert_close(a["loss"], b["loss"], rtol=1e-6, atol=0)
    for name, tensor in plain.last.items():
        torch.testing.assert_close(tensor, graph.last[name], rtol=1e-4, atol=1e-5)


@needs_gpu
def test_a_graph_is_taken_up_again_where_it_was_cut_off(tmp_path):
    ads = market(5000).to(DEVICE)
    whole, cut = (DeepFM(CARDINALITIES, hidden=(32,), std=0.1).to(DEVICE) for _ in range(2))
    options = {"loss": "log_teacher", "batch_size": 256, "epochs": 3, "every": 0.25}
    bidwise.fit(whole, ads, **options)

    class Cut(Exception):
        pass

    def stop(epoch):
        if epoch > 1.4:
            raise Cut

    with pytest.raises(Cut):
        bidwise.fit(cut, ads, out=tmp_path / "run", progress=stop, **options)
    again = DeepFM(CARDINALITIES, hidden=(32,), std=0.1).to(DEVICE)
    bidwise.fit(again, ads, out=tmp_path / "run", **options)
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


@needs_gpu
def test_a_model_that_waits_for_the_gpu_is_trained_without_a_graph():
    class Waits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(3))

        def forward(self, features):
            return features.float() @ self.weight * (1 + 0 * float(features.float().mean().item()))

    ads = market(3000).to(DEVICE)
    model = Waits().to(DEVICE)
    with pytest.warns(UserWarning, match="could not be captured"):
        bidwise.fit(model, ads, epochs=1, batch_size=100, graph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = Waits().to(DEVICE)
        bidwise.fit(quiet, ads, epochs=1, batch_size=100)
    assert torch.equal(model.weight, quiet.weight)


@needs_gpu
def test_runs_in_threads_give_the_numbers_they_give_alone():
    ads = market(20_000).to(DEVICE)

    def fitted(seed):
        model = DeepFM(CARDINALITIES, hidden=(64,), std=0.1, seed=seed).to(DEVICE)
        return bidwise.fit(model, ads, loss="log_plus", epochs=3, batch_size=256, seed=seed).last

    alone = [fitted(seed) for seed in range(4)]
    together = [None] * 4

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            together[seed] = fitted(seed)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@needs_gpu
@pytest.mark.parametrize("offsets", [None, "equal", "ragged"])
def test_ads_that_stay_on_the_host_give_the_numbers_of_ads_on_the_gpu(monkeypatch, offsets):
    sizes = {"equal": torch.full((200,), 25), "ragged": torch.tensor([40, 10] * 100)}
    bounds = None if offsets is None else torch.nn.functional.pad(sizes[offsets].cumsum(0), (1, 0))
    ads = market(5000, offsets=bounds)
    models = [DeepFM(CARDINALITIES, hidden=(32,), std=0.1).to(DEVICE) for _ in range(2)]
    options = {"loss": "log_plus", "epochs": 2.5, "batch_size": 250, "every": 0.5}
    there = bidwise.fit(models[0], ads, **options)
    monkeypatch.setattr("bidwise.training.batches.SHARE", 0.0)
    on_host = bidwise.fit(models[1], ads, **options)
    for name, tensor in there.last.items():
        assert torch.equal(tensor, on_host.last[name]), name


@needs_gpu
def test_mixed_precision_is_near():
    ads = market(20_000).to(DEVICE)
    valid = market(4000, seed=9, offsets=torch.arange(0, 4001, 20)).to(DEVICE)
    found = {}
    for precision in ("float32", "mixed"):
        model = DeepFM(CARDINALITIES, std=0.1).to(DEVICE)
        options = {"valid": valid, "metric": "log_loss", "epochs": 2, "precision": precision}
        found[precision] = float(bidwise.fit(model, ads, **options).history[-1]["log_loss"])
    assert found["mixed"] == pytest.approx(found["float32"], rel=5e-3)
    assert torch.get_float32_matmul_precision() == "highest"


@needs_gpu
def test_a_wide_network_over_many_values():
    cardinalities = [3, 50_000, 700, 40]
    ads = market(4000, cardinalities=cardinalities)
    plain = DCN(cardinalities, hidden=(64,), std=0.1)
    ours, plain = copy.deepcopy(plain).to(DEVICE), plain.double()
    a = bidwise.fit(ours, ads, epochs=1, batch_size=512)
    b = bidwise.fit(plain, ads, epochs=1, batch_size=512)
    assert float(a.history[-1]["loss"]) == pytest.approx(float(b.history[-1]["loss"]), rel=1e-4)
