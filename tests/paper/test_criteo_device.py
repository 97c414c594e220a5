"""Ads of the simulated world drawn on a device: the distributions of the text, exact codes, seeded."""

import math

import numpy as np
import pytest
import torch
from paper_helpers import chunks, drawn_on_cpu

import bidwise
from bidwise.evaluation.auc import auc
from bidwise.models import SparseLogisticRegression
from paper import criteo_device
from paper.criteo_device import simulated_ads
from paper.criteo_text import simulate, winners
from paper.criteo_world import COUNTS
from paper.prepare_criteo import prepare

ROWS = 200_000


@pytest.fixture(scope="module")
def ads():
    return simulated_ads(50_000, seed=3)


def close(a, b, ads, errors=5.0):
    """Shares of two samples of as many ads, within sampling error."""
    pooled = (a + b) / 2
    return abs(a - b) <= errors * math.sqrt(2 * pooled * (1 - pooled) / ads) + 1e-9


def test_click_rate_and_auc_are_those_of_the_text():
    text = chunks(ROWS)
    found = simulated_ads(ROWS * 5 // 4).train
    ctr = np.concatenate([chunk.ctr for chunk in text]).astype(np.float64)
    clicks = np.concatenate([chunk.clicks for chunk in text])
    assert close(float(found.clicks.double().mean()), clicks.mean(), ROWS)
    assert float(found.truth.double().mean()) == pytest.approx(ctr.mean(), abs=5 * ctr.std() * math.sqrt(2 / ROWS))
    assert float(found.truth.double().std()) == pytest.approx(ctr.std(), rel=0.01)
    assert auc(found.truth, found.clicks) == pytest.approx(auc(ctr, clicks), abs=0.005)


def test_integers_become_the_tokens_of_the_store():
    drawn = drawn_on_cpu(0, 50_000)
    codes = criteo_device._codes(drawn)
    for index in range(len(COUNTS)):
        values = drawn.values[index].numpy().astype(np.int64)
        tokens = codes[index].numpy() - 1 + criteo_device.LEAST
        there = ~drawn.missing[index].numpy()
        assert np.array_equal(tokens[there], winners(values[there]))
    assert ((codes == 0) == drawn.missing).all()


def test_ids_are_by_falling_frequency_in_training_and_ties_by_value():
    column = torch.tensor([5, 5, 5, 2, 2, 9, 9, 0, 0, 4, 9, 7, 5], dtype=torch.int32)
    values = criteo_device._encode(column, 10, 2)
    # in training 5 three times, 2 and 9 twice, 4 once; afterwards 9, an unseen 7, and 5
    assert column.tolist() == [2, 2, 2, 3, 3, 4, 4, 1, 1, 0, 4, 0, 2]
    assert values == 5


def test_vocabularies_are_of_the_size_that_text_gives(tmp_path, ads):
    simulate(tmp_path / "ads.tsv", 50_000)
    store = prepare(tmp_path / "ads.tsv", tmp_path / "store")
    for here, there in zip(ads.cardinalities, store.cardinalities, strict=True):
        assert abs(here - there) <= 3 * math.sqrt(there)
    for id_ in (0, 1):  # rare, missing
        here, there = (
            np.mean(np.asarray(x) == id_, axis=0) for x in (ads.train.features, store.column("train", "features"))
        )
        assert all(close(a, b, 40_000, errors=6) for a, b in zip(here, there, strict=True))
    for name in ("integers", "min_count"):
        assert ads.about["options"][name] == store.schema["options"][name]
    assert ads.about["bids"].keys() == store.schema["bids"].keys()
    assert ads.about["bids"]["mean"] == pytest.approx(store.schema["bids"]["mean"], rel=0.1)


def test_splits_are_columns_that_models_train_on(ads):
    assert [len(part) for part in (ads.train, ads.valid, ads.test)] == [40_000, 5_000, 5_000]
    for part in (ads.train, ads.valid, ads.test):
        assert part.features.dtype == torch.int32
        assert part.features.is_contiguous()
        assert part.clicks.dtype == torch.uint8
        assert part.bids.dtype == part.truth.dtype == torch.float32
        assert bool((part.features < torch.tensor(ads.cardinalities)).all())
    for index, values in enumerate(ads.cardinalities):
        counts = torch.bincount(ads.train.features[:, index], minlength=values)
        assert len(counts) == values
        assert bool((counts[2:].diff() <= 0).all())
        assert bool((counts[2:] >= (1 if index < len(COUNTS) else 10)).all())
    fitted = bidwise.fit(SparseLogisticRegression(ads.cardinalities), ads.train, epochs=1, learning_rate=0.01)
    assert auc(bidwise.predict(fitted.model, ads.test), ads.test.clicks) > 0.7


def test_a_seed_gives_the_same_ads_and_another_one_others(ads, monkeypatch):
    again, other = simulated_ads(50_000, seed=3), simulated_ads(50_000, seed=4)
    for name in ("features", "clicks", "bids", "truth"):
        assert torch.equal(getattr(again.test, name), getattr(ads.test, name))
        assert not torch.equal(getattr(other.test, name), getattr(ads.test, name))
    monkeypatch.setattr(criteo_device, "CHUNK", 20_000)
    chunked = simulated_ads(50_000, seed=3)
    first, second = chunked.train.truth[:20_000], chunked.train.truth[20_000:40_000]
    assert not torch.equal(first, second)
    assert float(second.double().mean()) == pytest.approx(float(first.double().mean()), rel=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows must be at least 1"),
        ({"rows": 4}, "rows must be enough for every part of the split 8:1:1, found 4"),
        ({"rows": 100, "seed": -1}, "seed must be at least 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(bidwise.InputError, match=message):
        simulated_ads(**options)
