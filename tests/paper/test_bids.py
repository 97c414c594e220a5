"""Bids of both kinds: what their equations say, seeded, and as a schema describes them."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.preprocessing import OneHotEncoder

from bidwise.checks import InputError
from bidwise.data.store import Field
from paper import bids as bids_module
from paper.bids import Bids, untrained_deepfm

SIZES = {"train": 8000, "valid": 1000, "test": 1000}
VALUES = [30, 7, 300]
FIELDS = [Field(name, values) for name, values in zip("abc", VALUES, strict=True)]
RANDOM = torch.Generator().manual_seed(0)
IDS = {
    split: torch.stack([torch.randint(values, (ads,), generator=RANDOM) for values in VALUES], dim=1)
    for split, ads in SIZES.items()
}
TRUTH = {split: torch.sigmoid(torch.randn(ads, generator=RANDOM) - 1) for split, ads in SIZES.items()}


def described(**options):
    return bids_module.drawn(IDS, TRUTH, FIELDS, Bids(**options))


def drawn(split="train", **options):
    return described(**options)[0][split].double().numpy()


@pytest.mark.parametrize("kind", bids_module.KINDS)
def test_bids_are_positive_seeded_and_in_the_schema(kind):
    options = {"kind": kind, "field": "b"}
    made, about = described(**options)
    first = made["train"].double().numpy()
    assert made["train"].dtype == torch.float32
    assert (first > 0).all()
    assert np.isfinite(first).all()
    assert np.array_equal(first, drawn(**options))
    assert not np.array_equal(first, drawn(seed=1, **options))
    assert (about["kind"], about["options"]["seed"]) == (kind, 0)
    assert about["mean"] == pytest.approx(first.mean())
    assert about["quantiles"]["0.5"] == pytest.approx(np.median(first), rel=1e-4)


def test_noise_differs_between_splits():
    logs = [np.log(drawn(split, noise=5.0)) for split in ("train", "valid", "test")]
    correlations = np.corrcoef([logs[0][:1000], logs[1], logs[2]]) - np.eye(3)
    assert np.abs(correlations).max() < 5 / math.sqrt(1000)


def test_paper_bids_are_the_rescaled_network_and_noise():
    plain = drawn(noise=0.0)
    assert plain.min() == pytest.approx(1.0)  # exp of [0, 1]
    assert plain.max() == pytest.approx(math.e)
    assert np.log(plain).std() > 0.1
    for split in ("valid", "test"):  # clamped to the range of training ads
        assert (drawn(split, noise=0.0) >= 1).all()
        assert (drawn(split, noise=0.0) <= np.float32(math.e)).all()
    output = torch.sigmoid(untrained_deepfm(VALUES, seed=0)(IDS["train"]).double()).numpy()
    rescaled = (output - output.min()) / (output.max() - output.min())
    assert np.allclose(np.log(plain), rescaled, atol=1e-4)
    for noise in (0.1, 1.0):
        residual = np.log(drawn(noise=noise) / plain)
        assert residual.std() == pytest.approx(noise, rel=0.05)
        assert abs(residual.mean()) < 5 * noise / math.sqrt(len(residual))


def test_residual_bids_follow_what_no_sum_over_fields_explains():
    logs = np.log(drawn(kind="residual", field="c"))
    assert logs.std() == pytest.approx(math.hypot(1, 0.1), rel=0.03)
    odds = torch.logit(TRUTH["train"].double()).numpy()
    encoded = OneHotEncoder().fit_transform(IDS["train"].numpy())
    left = odds - Ridge(alpha=1.0, solver="sparse_cg").fit(encoded, odds).predict(encoded)
    expected = 0.5 / math.hypot(1, 0.1)
    assert np.corrcoef(logs, left)[0, 1] == pytest.approx(expected, abs=0.03)


def test_the_untrained_network_is_a_deepfm():
    """Plain loops over one ad; weights drawn once more in the same order."""
    generator = torch.Generator().manual_seed(3)
    table = 1e-4 * torch.randn(5, 4, generator=generator)
    widths = [8, 256, 128, 64, 1]
    layers = [torch.randn(a, b, generator=generator) * math.sqrt(2 / (a + b)) for a, b in itertools.pairwise(widths)]
    one, other = table[1], table[3 + 1]  # ids 1 and 1 of fields with 3 and 2 values
    hidden = torch.cat([one, other])
    for weights in layers[:-1]:
        hidden = torch.clamp(hidden @ weights, min=0)
    expected = float(one @ other) + float(hidden @ layers[-1])
    assert float(untrained_deepfm([3, 2], seed=3)(torch.tensor([[1, 1]]))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "uniform"}, r"bids must be one of deepfm, residual, found 'uniform'"),
        ({"noise": -0.1}, r"noise of bids must be in \[0, 5\], found -0.1"),
        ({"kind": "residual", "field": "d"}, "field of bids must be one of a, b, c, found 'd'"),
    ],
)
def test_bids_that_cannot_be_drawn_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        described(**options)
