"""Bids of every kind: what their equations say, seeded, and in the schema."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from bidwise.checks import InputError
from bidwise.data.store import Field, Store, StoreWriter
from paper.bids import Bids, attach, untrained_deepfm

SIZES = {"train": 8000, "valid": 1000, "test": 1000}
VALUES = [30, 7, 300]


@pytest.fixture
def store(tmp_path):
    draw = np.random.default_rng(0)
    writer = StoreWriter(tmp_path, SIZES)
    for split, ads in SIZES.items():
        writer.column(split, "features", width=3)[:] = draw.integers(0, VALUES, (ads, 3))
        writer.column(split, "clicks")[:] = draw.integers(0, 2, ads)
        writer.column(split, "truth")[:] = 1 / (1 + np.exp(draw.normal(1, 1, ads)))
    fields = [Field(name, values) for name, values in zip("abc", VALUES, strict=True)]
    return writer.finish(fields=fields, about={})


def drawn(store, split="train", **options):
    return np.array(attach(store, Bids(**options)).column(split, "bids"), np.float64)


@pytest.mark.parametrize("kind", ["deepfm", "residual"])
def test_bids_are_positive_seeded_and_in_the_schema(store, kind):
    options = {"kind": kind, "field": "b"}
    first = drawn(store, **options)
    assert (first > 0).all()
    assert np.isfinite(first).all()
    assert np.array_equal(first, drawn(store, **options))
    assert not np.array_equal(first, drawn(store, seed=1, **options))
    found = attach(store, Bids(**options)).schema["bids"]
    assert found["kind"] == kind
    assert found["options"]["seed"] == 0
    assert found["mean"] == pytest.approx(first.mean())
    assert found["quantiles"]["0.5"] == pytest.approx(np.median(first))
    Store(store.folder).ads("test", auction_size=256)


def test_noise_differs_between_splits(store):
    logs = [np.log(drawn(store, split, noise=5.0)) for split in ("train", "valid", "test")]
    correlations = np.corrcoef([logs[0][:1000], logs[1], logs[2]]) - np.eye(3)
    assert np.abs(correlations).max() < 5 / math.sqrt(1000)


def test_paper_bids_are_the_rescaled_network_and_noise(store):
    plain = drawn(store, noise=0.0)
    assert plain.min() == pytest.approx(1.0)  # exp of [0, 1]
    assert plain.max() == pytest.approx(math.e)
    assert np.log(plain).std() > 0.1
    for split in ("valid", "test"):  # clamped to the range of training ads
        assert (drawn(store, split, noise=0.0) >= 1).all()
        assert (drawn(store, split, noise=0.0) <= np.float32(math.e)).all()
    logits = untrained_deepfm(VALUES, seed=0)(torch.from_numpy(np.array(store.column("train", "features"))))
    output = torch.sigmoid(logits.double()).numpy()
    rescaled = (output - output.min()) / (output.max() - output.min())
    assert np.allclose(np.log(plain), rescaled, atol=1e-4)
    assert np.log(drawn(store, noise=0.0, scale=2.0)).max() == pytest.approx(2.0)
    for noise in (0.1, 1.0):
        residual = np.log(drawn(store, noise=noise) / plain)
        assert residual.std() == pytest.approx(noise, rel=0.05)
        assert abs(residual.mean()) < 5 * noise / math.sqrt(len(residual))


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


def test_bids_that_cannot_be_drawn_are_refused(store, tmp_path):
    with pytest.raises(InputError, match=r"bids must be one of deepfm, residual, found 'uniform'"):
        Bids("uniform")
    with pytest.raises(InputError, match=r"noise of bids must be in \[0, 5\], found -0.1"):
        Bids(noise=-0.1)
    with pytest.raises(InputError, match=r"rho of bids must be in \[-1, 1\], found nan"):
        Bids(rho=float("nan"))
    with pytest.raises(InputError, match="field of bids must be one of a, b, c, found 'd'"):
        attach(store, Bids("residual", field="d"))
    schema = json.loads((store.folder / "store.json").read_text())
    schema["columns"] = {split: ["features", "clicks"] for split in SIZES}
    (store.folder / "store.json").write_text(json.dumps(schema))
    without = Store(store.folder)
    with pytest.raises(InputError, match="bids of kind residual need the true CTR, found no column truth"):
        attach(without, Bids("residual"))
