"""Ads and the worlds they are drawn from: what the formulas say is what is drawn, from a seed and nothing else."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import seeded

from bidwise import InputError
from bidwise.data import WORLDS, Ads, World, stack

COLUMNS = ("features", "clicks", "bids", "truth")


def drawn(name="plotted", seed=0, ads=2000):
    """Ads of a market, both of one seed."""
    random = seeded(seed)
    return WORLDS[name].market(random).ads(ads, random)


def same(left, right):
    return all(torch.equal(getattr(left, name), getattr(right, name)) for name in COLUMNS)


def over_markets(name, number, count=60, ads=2000):
    """``number(ads)`` averaged over markets."""
    return float(np.mean([number(drawn(name, seed, ads)) for seed in range(count)]))


# moments


@pytest.mark.parametrize(
    ("name", "logit", "log_bid"),
    [
        ("plotted", math.hypot(math.sqrt(50 * 0.1 / 3), 0.1), math.hypot(math.sqrt(50 * 0.04 / 3), 0.1)),
        ("printed", math.hypot(math.sqrt(50 * 10 / 3), 0.1), math.hypot(math.sqrt(50 * 4 / 3), 0.1)),
        # each of the 8 squares has variance 2 for |a| = 1; |a|^2 has mean 1 and variance 2 / 50, so 3 (1 + 2 / 50) - 1
        ("misspecified", math.sqrt(0.6**2 + 0.275**2 * 8 * (3 * 1.04 - 1) + 0.01), math.hypot(0.8, 0.1)),
    ],
)
def test_logits_and_log_bids_vary_as_the_world_says(name, logit, log_bid):
    def spread_of_logit(ads):
        return float(torch.logit(ads.truth.double(), eps=1e-16).var()) if name != "printed" else 0.0

    assert math.sqrt(over_markets(name, lambda ads: float(ads.bids.log().var()))) == pytest.approx(log_bid, rel=0.04)
    if name != "printed":  # its CTR is 0 or 1 in float32 for many ads
        assert math.sqrt(over_markets(name, spread_of_logit)) == pytest.approx(logit, rel=0.04)


@pytest.mark.parametrize(
    ("name", "rate"), [("plotted", 0.5), ("printed", 0.5), ("misspecified", 0.5), ("misspecified_rare", 0.24)]
)
def test_click_rate(name, rate):
    assert over_markets(name, lambda ads: float(ads.clicks.mean())) == pytest.approx(rate, abs=0.015)
    assert over_markets(name, lambda ads: float((ads.clicks - ads.truth).mean())) == pytest.approx(0, abs=0.005)


def test_clicks_are_the_truth_by_chance():
    ads = drawn("misspecified_rare", ads=100_000)
    assert ads.clicks.unique().tolist() == [0, 1]
    for low in (0.1, 0.3, 0.6):
        some = (ads.truth > low) & (ads.truth < low + 0.1)
        assert float(ads.clicks[some].mean()) == pytest.approx(float(ads.truth[some].mean()), abs=0.02)


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.5, 1.0])
def test_weights_of_bids_and_clicks_correlate(correlation):
    world = World(linear=2.0, spread=3.0, correlation=correlation, features=4000)
    market = world.market(seeded(0))
    found = np.corrcoef(market.w.numpy(), market.u.numpy())[0, 1]
    assert found == pytest.approx(correlation, abs=0.04)
    assert float(market.w.norm()) == pytest.approx(2, rel=0.04)
    assert float(market.u.norm()) == pytest.approx(3, rel=0.04)


def test_paper_draws_uniform_weights():
    entries = torch.cat([WORLDS["plotted"].market(seeded(seed)).w for seed in range(40)]) * math.sqrt(10)
    bids = torch.cat([WORLDS["printed"].market(seeded(seed)).u for seed in range(40)]) / 2
    for unit in (entries, bids):
        assert unit.abs().max() <= 1 + 1e-12
        assert np.quantile(unit.numpy(), [0.25, 0.5, 0.75]) == pytest.approx([-0.5, 0, 0.5], abs=0.06)


# the formula, again in numpy


@pytest.mark.parametrize("name", [*WORLDS, "odd"])
def test_ads_follow_the_formula(name):
    odd = World(linear=0.7, spread=0.2, curve=0.4, curves=3, shift=0.3, level=-2.0, noise=0.0, features=6)
    world = replace(WORLDS[name], noise=0.0) if name in WORLDS else odd
    market = world.market(seeded(5))
    ads = market.ads(300, seeded(6))
    for x, ctr, bid in zip(ads.features.double().numpy(), ads.truth.tolist(), ads.bids.tolist(), strict=True):
        logit = world.shift + sum(x[k] * market.w[k].item() for k in range(world.features))
        for square in range(world.curves):
            a = market.squares[:, square].numpy()
            logit += world.curve * (1 if square % 2 == 0 else -1) * (float(np.dot(a, x)) ** 2 - 1)
        log_bid = world.level + float(np.dot(market.u.numpy(), x))
        assert ctr == pytest.approx(1 / (1 + math.exp(-logit)), rel=1e-5, abs=1e-12)
        assert bid == pytest.approx(math.exp(log_bid), rel=1e-5)


def test_noise_moves_logits_and_bids_apart():
    world = World(linear=0.0, spread=0.0, noise=0.3)
    ads = world.market(seeded(0)).ads(50_000, seeded(1))
    logit, log_bid = torch.logit(ads.truth), ads.bids.log()
    assert float(logit.std()) == pytest.approx(0.3, rel=0.03)
    assert float(log_bid.std()) == pytest.approx(0.3, rel=0.03)
    assert abs(np.corrcoef(logit.numpy(), log_bid.numpy())[0, 1]) < 0.02


# seeds


def test_a_seed_gives_the_same_ads_and_another_seed_others():
    assert same(drawn(seed=7), drawn(seed=7))
    assert not torch.equal(drawn(seed=7).features, drawn(seed=8).features)
    markets = [WORLDS["misspecified"].market(seeded(seed)) for seed in (1, 2)]
    for part in ("w", "u", "squares"):
        assert not torch.equal(*(getattr(market, part) for market in markets))
    assert not same(*(market.ads(50, seeded(3)) for market in markets))


def test_drawing_depends_on_the_generator_alone():
    before = torch.get_rng_state()
    expected = drawn("misspecified", seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            random = seeded(4)
            market = WORLDS["misspecified"].market(random)
            found, auctions = market.ads(2000, random), market.auctions(3, 4, random)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
    assert found.features.dtype == torch.float32
    assert auctions.offsets.device.type == "cpu"
    assert torch.equal(found.features, expected.features)
    assert torch.equal(found.clicks, expected.clicks)
    torch.testing.assert_close(found.bids, expected.bids)
    torch.testing.assert_close(found.truth, expected.truth)


def test_auctions_are_ads_with_bounds():
    market = WORLDS["plotted"].market(seeded(0))
    ads = market.auctions(4, 3, seeded(1))
    assert ads.offsets.tolist() == [0, 3, 6, 9, 12]
    assert same(ads, market.ads(12, seeded(1)))


# bad arguments


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda market: market.ads(0, seeded(0)), "ads"),
        (lambda market: market.ads(2.5, seeded(0)), "ads"),
        (lambda market: market.auctions(0, 5, seeded(0)), "ads"),
    ],
)
def test_impossible_sizes_are_refused(call, word):
    with pytest.raises(InputError, match=f"^{word} must be"):
        call(WORLDS["plotted"].market(seeded(0)))


# Ads


def some_ads(ads=4, width=3, **columns):
    default = {"features": torch.zeros(ads, width), "clicks": torch.zeros(ads), "bids": torch.ones(ads)}
    return Ads(**(default | columns))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"features": torch.zeros(4)}, r"features must have shape \(..., ads, width\), found \(4,\)"),
        ({"features": torch.zeros(4, 0)}, r"features must have shape"),
        ({"clicks": torch.zeros(3)}, r"clicks must have one number per ad .*\(4,\), found \(3,\)"),
        ({"clicks": torch.tensor([0, 0, 2, 0])}, r"clicks must be in \[0, 1\], found 2 at \[2\]"),
        ({"bids": torch.tensor([1.0, 0.0, 1.0, 1.0])}, r"bids must be finite and above 0, found 0 at \[1\]"),
        ({"bids": torch.ones(2, 4)}, "bids must have one number per ad"),
        ({"teacher": torch.full((4,), 1.5)}, r"teacher must be in \[0, 1\]"),
        ({"truth": torch.full((4,), math.nan)}, r"truth must be in \[0, 1\]"),
        ({"offsets": torch.tensor([0, 3])}, "offsets must rise from 0 to the number of ads, 4"),
        ({"weights": torch.ones(3)}, r"weights must have one number per ad.*\(4,\), found \(3,\)"),
        ({"weights": -torch.ones(4)}, "weights must be finite and no less than 0, found -1"),
        ({"exposure": torch.ones(3)}, r"exposure must have one number per ad"),
        *(
            ({"exposure": torch.full((4,), x)}, rf"exposure must be in \[1e-06, 1\], found {x:g}")
            for x in (0, 1.5, math.nan)
        ),
    ],
)
def test_ads_that_do_not_fit_are_refused(columns, message):
    with pytest.raises(InputError, match=message):
        some_ads(**columns)


def test_ads_know_their_sizes_and_move():
    more = {name: torch.full((4,), 0.5) for name in ("teacher", "weights", "exposure")}
    ads = some_ads(**more, offsets=torch.tensor([0, 4]))
    moved = ads.to(torch.float64).to("cpu")
    assert (len(ads), ads.width, ads.repeats) == (4, 3, ())
    assert all(getattr(moved, name).dtype == torch.float64 for name in ("features", "clicks", "bids", *more))
    assert moved.offsets.dtype == torch.int64
    assert ads.with_teacher(torch.zeros(4)).teacher.tolist() == [0, 0, 0, 0]
    assert ads.teacher.tolist() == [0.5] * 4


def test_stacked_ads_stand_side_by_side():
    repeats = [replace(drawn(seed=seed, ads=20), weights=torch.rand(20), exposure=torch.ones(20)) for seed in range(3)]
    together = stack(repeats)
    assert together.repeats == (3,)
    assert len(together) == 20
    for k, ads in enumerate(repeats):
        names = (*COLUMNS, "weights", "exposure")
        assert all(torch.equal(getattr(together, name)[k], getattr(ads, name)) for name in names)
    with pytest.raises(InputError, match="same offsets"):
        stack([some_ads(offsets=torch.tensor(bounds)) for bounds in ([0, 2, 4], [0, 1, 4])])
