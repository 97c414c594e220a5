"""Ads of the simulated world drawn on a device: the distributions of the text, exact codes, seeded."""

import math

import numpy as np
import pytest
import torch
from paper_helpers import chunks, drawn_on_cpu
from sklearn.linear_model import Ridge
from sklearn.preprocessing import OneHotEncoder

import bidwise
from bidwise.evaluation.auc import auc
from bidwise.models import SparseLogisticRegression
from paper import bids as bids_module
from paper import criteo_device
from paper.bids import Bids
from paper.criteo_device import simulated_ads
from paper.criteo_text import MAPS, simulate
from paper.criteo_world import COUNTS, FIELDS
from paper.prepare_criteo import prepare

ROWS = 200_000


@pytest.fixture(scope="module")
def drawn():
    return drawn_on_cpu(0, ROWS)


@pytest.fixture(scope="module")
def text():
    """As many ads of the text, one array of values and one of gaps, ``(39, ads)``."""
    found = list(chunks(ROWS))
    values = np.concatenate([np.concatenate([c.integers, c.categories], 1) for c in found]).T
    return values, np.concatenate([c.missing for c in found]).T, np.concatenate([c.ctr for c in found])


@pytest.fixture(scope="module")
def ads():
    return simulated_ads(50_000, seed=3)


def close(a, b, ads, errors=5.0):
    """Shares of two samples of as many ads, within sampling error."""
    pooled = (a + b) / 2
    return abs(a - b) <= errors * math.sqrt(2 * pooled * (1 - pooled) / ads) + 1e-9


def test_values_are_as_frequent_as_in_the_text(drawn, text):
    values, missing, _ = text
    for index in range(len(FIELDS)):
        here, gaps = drawn.values[index].numpy(), drawn.missing[index].numpy()
        assert close(gaps.mean(), missing[index].mean(), ROWS)
        assert (here[gaps] == 0).all()
        there = values[index]
        for value in (-2, -1, 0, 1, 2, 3, 7):
            assert close((here == value).mean(), (there == value).mean(), ROWS)
        for quantile in (0.3, 0.6, 0.9, 0.99):
            level = np.quantile(there, quantile)
            assert close((here <= level).mean(), (there <= level).mean(), ROWS)
        assert here.max() <= (FIELDS[index].most if index < len(COUNTS) else FIELDS[index].values - 1)


def test_columns_are_tied_and_missing_together_as_in_the_text(drawn, text):
    values, missing, _ = text
    here, gaps = drawn.values.numpy(), drawn.missing.numpy()
    for a, b in ((0, 3), (13, 16), (14, 23), (0, 14)):  # two of one hidden variable, and two that are not
        high_here = [here[k] > np.median(values[k]) for k in (a, b)]
        high_there = [values[k] > np.median(values[k]) for k in (a, b)]
        assert close((high_here[0] & high_here[1]).mean(), (high_there[0] & high_there[1]).mean(), ROWS)
    assert (gaps[2] <= gaps[3]).all()  # one group, the second has the higher rate
    assert close((gaps[2] & gaps[5]).mean(), (missing[2] & missing[5]).mean(), ROWS)


def test_click_rate_and_auc_are_those_of_the_text(text):
    found = simulated_ads(ROWS, split=(1, 0, 0)).train
    ctr = text[2].astype(np.float64)
    clicks = np.concatenate([chunk.clicks for chunk in chunks(ROWS)])
    assert close(float(found.clicks.double().mean()), clicks.mean(), ROWS)
    assert float(found.truth.double().mean()) == pytest.approx(ctr.mean(), abs=5 * ctr.std() * math.sqrt(2 / ROWS))
    assert float(found.truth.double().std()) == pytest.approx(ctr.std(), rel=0.01)
    assert auc(found.truth, found.clicks) == pytest.approx(auc(ctr, clicks), abs=0.005)


@pytest.mark.parametrize("integers", ["winners", "printed"])
def test_integers_become_the_tokens_of_the_store(drawn, integers):
    codes = criteo_device._codes(drawn, integers)
    for index in range(len(COUNTS)):
        values = drawn.values[index].numpy().astype(np.int64)
        tokens = codes[index].numpy() - 1 + criteo_device.LEAST
        there = ~drawn.missing[index].numpy()
        assert np.array_equal(tokens[there], MAPS[integers](values[there]))
    assert ((codes == 0) == drawn.missing).all()


def test_ids_are_by_falling_frequency_in_training_and_ties_by_value():
    column = torch.tensor([5, 5, 5, 2, 2, 9, 9, 0, 0, 4, 9, 7, 5], dtype=torch.int32)
    values, rare, missing = criteo_device._encode(column, 10, 2)
    # in training 5 three times, 2 and 9 twice, 4 once; afterwards 9, an unseen 7, and 5
    assert column.tolist() == [2, 2, 2, 3, 3, 4, 4, 1, 1, 0, 4, 0, 2]
    assert (values, rare, missing) == (5, 0.1, 0.2)


def test_vocabularies_are_of_the_size_that_text_gives(tmp_path, ads):
    simulate(tmp_path / "ads.tsv", 50_000)
    store = prepare([tmp_path / "ads.tsv"], tmp_path / "store")
    assert [field.name for field in ads.fields] == [field.name for field in store.fields]
    for here, there in zip(ads.cardinalities, store.cardinalities, strict=True):
        assert abs(here - there) <= 3 * math.sqrt(there)
    for name in ("rare", "missing"):
        for field, share in store.schema[name].items():
            assert close(ads.about[name][field], share, 40_000, errors=6)
    for name in ("integers", "min_count"):
        assert ads.about["options"][name] == store.schema["options"][name]
    assert ads.about["bids"].keys() == store.schema["bids"].keys()
    assert ads.about["bids"]["mean"] == pytest.approx(store.schema["bids"]["mean"], rel=0.05)


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


@pytest.mark.parametrize("kind", bids_module.SOURCES)
def test_bids_are_as_a_store_draws_them(ads, kind):
    bids = Bids(kind=kind, rho=0.7)
    found, about = bids_module.drawn(
        {"train": ads.train.features, "test": ads.test.features},
        {"train": ads.train.truth, "test": ads.test.truth},
        ads.fields,
        bids,
    )
    assert found["train"].dtype == torch.float32
    assert about["kind"] == kind
    assert about["mean"] == pytest.approx(float(found["train"].double().mean()))
    assert about["quantiles"]["0.5"] == pytest.approx(float(found["train"].median()), rel=1e-4)
    assert sum(about["histogram"]["counts"]) == 45_000
    logs = found["train"].double().log()
    if kind == "deepfm":  # without noise the rescaled output of the network, whose ends are 0 and 1
        quiet, _ = bids_module.drawn(
            {"train": ads.train.features}, {"train": ads.train.truth}, ads.fields, Bids(noise=0)
        )
        score = torch.sigmoid(bids_module.untrained_deepfm(ads.cardinalities, 0)(ads.train.features).double())
        rescaled = (score - score.min()) / (score.max() - score.min())
        torch.testing.assert_close(quiet["train"].double().log(), rescaled, rtol=0, atol=1e-3)
        assert float((logs - rescaled).std()) == pytest.approx(0.1, rel=0.03)
    else:
        assert float(logs.std()) == pytest.approx(0.5, rel=0.03)
        odds = torch.logit(ads.train.truth.double())
        encoded = OneHotEncoder().fit_transform(ads.train.features.numpy())
        additive = Ridge(alpha=1.0, solver="sparse_cg").fit(encoded, odds.numpy()).predict(encoded)
        left, expected = odds - torch.from_numpy(additive), 0.7 * 0.5 / math.hypot(0.5, 0.1)
        assert float(torch.corrcoef(torch.stack([logs, left]))[0, 1]) == pytest.approx(expected, abs=0.03)


def test_training_ads_alone_are_drawn_where_asked():
    found = simulated_ads(1_000, split=(1, 0, 0))
    assert [len(part) for part in (found.train, found.valid, found.test)] == [1_000, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows must be at least 1"),
        ({"rows": 4}, "rows must be enough for every part of the split 8,1,1, found 4"),
        ({"rows": 100, "split": (8, 2)}, "split must be three shares"),
        ({"rows": 100, "split": (0, 1, 1)}, "split must be at least 1"),
        ({"rows": 100, "integers": "winner"}, "did you mean 'winners'"),
        ({"rows": 100, "min_count": 0}, "min_count must be at least 1"),
        ({"rows": 100, "bids": Bids("residual", field="C99")}, "field of bids must be one of"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(bidwise.InputError, match=message):
        simulated_ads(**options)
