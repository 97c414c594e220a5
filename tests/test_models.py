"""Models side by side are the models alone; a model alone is torch's own arithmetic."""

import pytest
import torch
from torch import nn

from bidwise import InputError
from bidwise.models import MLP, LogisticRegression


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_gradient(model, features, upstream):
    """Logits, and the gradient of their sum weighted by ``upstream`` for every parameter."""
    logits = model(features)
    return logits.detach(), torch.autograd.grad((logits * upstream).sum(), list(model.parameters()))


@pytest.mark.parametrize("hidden", [(), (7,), (7, 4)])
@pytest.mark.parametrize("lead", [(), (5,), (2, 5)])
def test_features_broadcast_over_variants(hidden, lead):
    features, upstream = draw(*lead, 11, 3), draw(2, 5, 11, seed=1)
    together = MLP(3, hidden, members=(2, 5), seed=range(5)).double()
    with torch.no_grad():  # variants start alike: tell them apart
        for number, parameter in enumerate(together.parameters()):
            parameter += draw(*parameter.shape, seed=number)
    logits, gradients = with_gradient(together, features, upstream)
    assert logits.shape == (2, 5, 11)
    full = features.expand(2, 5, 11, 3)
    for v in range(2):
        for r in range(5):
            alone = MLP(3, hidden).double()
            alone.load_state_dict({name: p[v, r] for name, p in together.state_dict().items()})
            expected, alone_gradients = with_gradient(alone, full[v, r], upstream[v, r])
            torch.testing.assert_close(logits[v, r], expected)
            for all_members, one in zip(gradients, alone_gradients, strict=True):
                torch.testing.assert_close(all_members[v, r], one)


@pytest.mark.parametrize("model", [LogisticRegression(3, seed=2), MLP(3, (7, 4), seed=2)], ids=["regression", "mlp"])
def test_an_mlp_is_linear_layers_with_relu_between(model):
    model, features = model.double(), draw(11, 3)
    linear = [nn.Linear(*layer.weight.shape).double() for layer in model.layers]
    plain = nn.Sequential(linear[0], *(part for layer in linear[1:] for part in (nn.ReLU(), layer)))
    with torch.no_grad():
        for ours, torchs in zip(model.layers, linear, strict=True):
            torchs.weight.copy_(ours.weight.mT)
            torchs.bias.copy_(ours.bias[0])
    torch.testing.assert_close(model(features), plain(features).squeeze(-1))


@pytest.mark.parametrize("init", ["torch", "glorot"])
def test_weights_start_as_those_of_torch_or_keras_do(init):
    sizes = ((400, 60), (60, 1))
    for (inputs, outputs), layer in zip(sizes, MLP(400, (60,), init=init).layers, strict=True):
        bound = inputs**-0.5 if init == "torch" else (6 / (inputs + outputs)) ** 0.5
        entries = layer.weight.detach().flatten() / bound
        assert entries.abs().max() <= 1
        assert float(entries.std()) == pytest.approx(3**-0.5, rel=0.15)
        assert float(layer.bias.detach().abs().max()) <= (bound if init == "torch" else 0)


def test_seeds_decide_the_start():
    same, other, many = MLP(3, seed=1), MLP(3, seed=2), MLP(3, members=(2, 3), seed=[5, 1, 2])
    for name, parameter in MLP(3, seed=1).state_dict().items():
        assert torch.equal(parameter, same.state_dict()[name])
        assert not torch.equal(parameter, other.state_dict()[name])
        for variant in range(2):
            assert torch.equal(many.state_dict()[name][variant, 1], parameter)
            assert torch.equal(many.state_dict()[name][variant, 2], other.state_dict()[name])
    alike = MLP(3, members=(4,), seed=1).state_dict()
    assert all(torch.equal(alike[name][k], start) for name, start in same.state_dict().items() for k in range(4))


def test_making_a_model_reads_and_leaves_no_global_state():
    before, expected = torch.get_rng_state(), MLP(3, seed=1).state_dict()
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        found = MLP(3, seed=1).state_dict()
    finally:
        torch.set_default_dtype(dtype)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(found[name].dtype == torch.float64 for name in expected)
    assert all(torch.equal(found[name].float(), tensor) for name, tensor in expected.items())
    with torch.device("meta"):
        assert next(MLP(3).parameters()).device.type == "meta"


def test_models_print_what_they_were_made_of():
    words = repr(MLP(3, (7,), members=(2, 5), seed=range(5)))
    for word in ("width=3", "hidden=(7,)", "members=(2, 5)", "seed=[0, 1, 2, 3, 4]", "init='torch'"):
        assert word in words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 2.5}, "width must be a whole number"),
        ({"members": (3, -1)}, "members must be at least 1, found -1"),
        ({"members": (2, 3), "seed": [1, 2]}, "seed must be one number or 3, one per repeat, found 2"),
        ({"init": "zero"}, "init must be one of torch, glorot"),
    ],
)
def test_impossible_models_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        MLP(**({"width": 3} | options))
