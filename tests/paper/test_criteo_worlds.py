"""The six Criteo-shaped worlds: what each promises."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from paper_helpers import chunk_of, chunks, drawn_on_cpu, true_ctr, world_of

from bidwise import InputError
from paper import criteo_world
from paper.criteo_device import simulated_ads
from paper.criteo_world import CHUNK, CRITEO_WORLDS, FIELDS, world_effects

DRIFT = CRITEO_WORLDS["drift"]
RATES = {
    "shared_tail": 0.256,
    "own_tail": 0.25,
    "threeway": 0.27,
    "threeway_5": 0.05,
    "threeway_05": 0.005,
    "drift": 0.25,
}


def shown(rows, seed=0):
    """Ads with nothing hidden: integers, categories, missing."""
    (chunk,) = chunks(rows, seed)
    return chunk.integers, chunk.categories, chunk.missing


def log_odds(ctr):
    ctr = ctr.astype(np.float64).clip(1e-6, 1 - 1e-6)
    return np.log(ctr / (1 - ctr))


def hashed(place, seed):
    """SplitMix64 of a place, in [0, 1), with Python's whole numbers."""
    word = 2**64 - 1
    mixed = (place + (seed << 32)) * 0x9E3779B97F4A7C15 & word
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & word
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & word
    return ((mixed ^ mixed >> 31) >> 11) / 2**53


@pytest.mark.parametrize("world_seed", [None, 5])
@pytest.mark.parametrize("name", CRITEO_WORLDS)
def test_the_ctr_of_every_world_is_its_formula(name, world_seed):
    world = world_of(name, world_seed)
    now, later = world_effects(world), world_effects(world, 1)
    integers, categories, missing = shown(60, seed=2)
    context = {"I4", "I8", "I9", "I13", "C9", "C20"}
    names = [*(f"I{k}" for k in range(1, 14)), *(f"C{k}" for k in range(1, 27))]
    found = true_ctr(integers, categories, missing, world, np.arange(60) / 60)
    for row in range(60):
        logit, sides = world.intercept, np.zeros((3, 2))
        for index, field in enumerate(FIELDS):
            rank = 0
            if missing[row, index]:
                token = 0
            elif index >= 13:
                rank = int(categories[row, index - 13])
                token = 1 + min(rank, 1023)
            else:
                count = min(int(integers[row, index]), 2**16)
                token = 1 if count < 0 else 2 + math.floor(2 * math.log2(1 + count))
            angle = world.drift * row / 60
            parts = math.cos(angle) * now[index, :, token] + math.sin(angle) * later[index, :, token]
            if world.tail and rank >= 1023:
                uniform = np.array([hashed(2**31 + (3 * index + part) * 2**24 + rank, world.seed) for part in range(3)])
                spread = np.array([world.effect, *[world.vector / math.sqrt(2)] * 2])
                parts = world.tail * spread * math.sqrt(12) * (uniform - 0.5)
            logit += parts[0]
            if field.vector:
                sides[0 if field.hidden < 3 else 1] += parts[1:]
            elif names[index] in context:
                sides[2] += parts[1:]
        user, ad, third = sides
        logit += (user * ad).sum() + world.three_way * (user * ad * third).sum()
        assert found[row] == pytest.approx(1 / (1 + math.exp(-logit)), rel=2e-5)


@pytest.mark.parametrize("name", CRITEO_WORLDS)
def test_click_rates_are_as_named_also_where_effects_are_drawn_anew(name):
    for world in (world_of(name), world_of(name, 3)):
        chunk = chunk_of(4, 0, CHUNK, world)
        assert chunk.ctr.mean(dtype=np.float64) == pytest.approx(RATES[name], rel=0.06)
        assert abs(chunk.clicks.sum() - chunk.ctr.sum()) < 4.5 * math.sqrt((chunk.ctr * (1 - chunk.ctr)).sum())


def test_a_world_drawn_anew_is_another_one_with_other_bids():
    before, after = world_of("threeway"), world_of("threeway", 3)
    assert world_of("threeway", before.seed) is before
    ads = shown(5_000)
    ctr = [log_odds(true_ctr(*ads, world)) for world in (before, after, world_of("threeway", 3))]
    assert np.array_equal(ctr[1], ctr[2])
    assert abs(np.corrcoef(ctr[0], ctr[1])[0, 1]) < 0.4
    assert replace(after.bids, seed=0) == before.bids
    assert after.bids.seed == 3
    for seed in (-1, 2**31):
        with pytest.raises(InputError, match="world_seed must be at"):
            world_of("threeway", seed)


def test_hidden_columns_are_empty_and_matter():
    (chunk,) = chunks(3_000, 6, DRIFT)
    hidden = np.isin(np.arange(39), DRIFT.hidden)
    assert hidden.sum() == 12
    assert chunk.missing[:, hidden].all()
    assert not chunk.missing[:, ~hidden].all(0).any()
    (everything,) = chunks(3_000, 6)
    time = np.arange(3_000) / 3_000
    known, blind = (
        true_ctr(everything.integers, everything.categories, missing, DRIFT, time)
        for missing in (everything.missing, chunk.missing)
    )
    assert np.array_equal(known, chunk.ctr)  # the truth knows what is hidden
    assert np.corrcoef(log_odds(known), log_odds(blind))[0, 1] < 0.95
    ads = simulated_ads(3_000, world="drift")
    assert bool((ads.train.features[:, list(DRIFT.hidden)] == 1).all())
    assert [ads.cardinalities[index] for index in DRIFT.hidden] == [2] * 12


def test_drift_knows_where_in_the_file_an_ad_is():
    ads, drawn = simulated_ads(40_000, world="drift"), drawn_on_cpu(0, 40_000)
    end = torch.ones(40_000, dtype=torch.float64)
    at_the_end = criteo_world.logits(DRIFT, drawn.values, drawn.missing, end).sigmoid()[-len(ads.test) :]
    apart = [(ads.test.truth - at_the_end).abs()[part].mean() for part in (slice(100), slice(-100, None))]
    assert apart[1] < 1e-3 < apart[0]


def test_bids_of_threeway_are_by_advertiser_and_follow_the_residual(monkeypatch):
    ads = simulated_ads(60_000, world="threeway")
    logs, advertiser = ads.train.bids.double().log().numpy(), ads.train.features[:, 14].numpy()  # C2
    assert logs.std() == pytest.approx(1, rel=0.02)
    counts = np.bincount(advertiser)
    means = np.bincount(advertiser, logs) / np.maximum(counts, 1)
    assert np.var(means[advertiser]) == pytest.approx(0.75, abs=0.05)
    drawn, world = drawn_on_cpu(0, 60_000), CRITEO_WORLDS["threeway"]
    whole = criteo_world.logits(world, drawn.values, drawn.missing)
    effects, tokens = criteo_world.tables(world, torch.device("cpu"))
    alone = effects.clone()
    alone[:, :, 1:] = 0  # no products
    monkeypatch.setattr(criteo_world, "tables", lambda *_: (alone, tokens))
    sums = criteo_world.logits(world, drawn.values, drawn.missing)
    monkeypatch.undo()
    products = (whole - sums)[: len(logs)].numpy()
    own = logs - means[advertiser]  # of the advertiser's ads
    assert np.corrcoef(own, products)[0, 1] > 0.85
    assert abs(np.corrcoef(logs, sums[: len(logs)].numpy())[0, 1]) < 0.1
    first, redrawn = (simulated_ads(5_000, world="threeway", world_seed=seed) for seed in (None, 1))
    assert redrawn.about["bids"]["options"]["seed"] == 1
    assert not torch.equal(redrawn.train.truth, first.train.truth)


def test_unknown_worlds_are_refused_with_the_nearest_name():
    with pytest.raises(InputError, match=r"world must be one of shared_tail, .* did you mean 'threeway'\?"):
        simulated_ads(100, world="three_way")
