"""DeepFM and DCN give the logits of DeepCTR-Torch, the twin of what the paper used; skipped where it is missing."""

import pytest
import torch

from bidwise.models import DeepFM
from paper.dcn import DCN

deepctr_torch = pytest.importorskip("deepctr_torch", reason="pip install --no-deps deepctr-torch")
VALUES, ADS = [7, 40, 3], 50


def theirs(name, width, **options):
    from deepctr_torch import inputs, models

    fields = [inputs.SparseFeat(f"f{at}", values, embedding_dim=width) for at, values in enumerate(VALUES)]
    model = getattr(models, name)(fields, fields, init_std=0.3, seed=1, **options)
    with torch.no_grad():
        for weight in model.parameters():  # biases are 0 at first
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())) / 3)
    tables = [
        [model_part[f"f{at}"].weight for at in range(len(VALUES))]
        for model_part in (model.linear_model.embedding_dict, model.embedding_dict)
    ]
    return model, *tables


def copied(ours, model, layers):
    """Weights of the hidden layers, and of the last one, whose order both have: cross layers first."""
    with torch.no_grad():
        for mine, layer in zip(ours.deep.weights, layers, strict=True):
            mine.copy_(layer.weight.T)
        ours.last.copy_(model.dnn_linear.weight.T)
        ours.bias.copy_(model.out.bias.squeeze())


def same(ours, model):
    random = torch.Generator().manual_seed(0)
    ids = torch.stack([torch.randint(values, (ADS,), generator=random) for values in VALUES], dim=1)
    ours.eval(), model.eval()
    torch.testing.assert_close(torch.sigmoid(ours(ids)), model(ids.float()).squeeze(-1), rtol=1e-5, atol=1e-6)


def test_deepfm():
    model, first, vectors = theirs("DeepFM", 4, dnn_hidden_units=(8, 6))
    ours = DeepFM(VALUES, embedding=4, hidden=(8, 6), dropout=0.0)
    with torch.no_grad():
        ours.table.weight.copy_(torch.cat([torch.cat(pair, dim=1) for pair in zip(first, vectors, strict=True)]))
        for mine, layer in zip(ours.deep.biases, model.dnn.linears, strict=True):
            mine.copy_(layer.bias)
    copied(ours, model, model.dnn.linears)
    same(ours, model)


def test_dcn():
    model, first, vectors = theirs("DCN", 6, cross_num=3, dnn_hidden_units=(8, 6), dnn_use_bn=True)
    ours = DCN(VALUES, widths=[6, 6, 6], cross=3, hidden=(8, 6), first_order=True)
    with torch.no_grad():
        ours.tables.tables[0].weight.copy_(torch.cat(vectors))
        ours.first.weight.copy_(torch.cat(first))
        for at in range(3):
            ours.cross.weights[at].copy_(model.crossnet.kernels[at])
            ours.cross.biases[at].copy_(model.crossnet.bias[at].squeeze(-1))
        for mine, norm, layer in zip(ours.deep.norms, model.dnn.bn, model.dnn.linears, strict=True):
            layer.bias.zero_()  # batch norm cancels it in training; ours has none
            for name, value in mine.state_dict().items():
                value.copy_(norm.state_dict()[name])
            mine.eps = norm.eps
    copied(ours, model, model.dnn.linears)
    same(ours, model)
