"""Pooled welfare and revenue against brute force: every subset of the ads, every order of tied ones."""

import math
from fractions import Fraction
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
import torch

from bidwise import InputError
from bidwise.evaluation import pooled
from bidwise.evaluation.pooled import Pool, _log_choose, pool_of, pooled_revenue, pooled_welfare


def auction(ads, slots, pricing, reserve=0):
    """Welfare and revenue of one auction, ads as (ctr, truth, bid), ties broken at random: means over all orders."""
    welfare = revenue = orders = 0
    for order in permutations([ad for ad in ads if ad[2] >= reserve]):
        if any(a[0] * a[2] < b[0] * b[2] for a, b in pairwise(order)):
            continue
        orders += 1
        score = [ctr * bid for ctr, _, bid in order] + [0] * (len(slots) + 1)
        for k, (ctr, truth, bid) in enumerate(order[: len(slots)]):
            if pricing == "first_price":
                price = bid
            else:
                price = max(score[k + 1] / ctr if ctr else 0, reserve)
            welfare += slots[k] * truth * bid
            revenue += slots[k] * truth * price
    return welfare / orders, revenue / orders


def brute(ads, size, slots=(1,), pricing="gsp", reserve=0):
    """(welfare, revenue) over all subsets, and over those with each ad."""
    subsets = combinations(range(len(ads)), size)
    found = {rows: auction([ads[row] for row in rows], slots, pricing, reserve) for rows in subsets}
    mean = [sum(pair[k] for pair in found.values()) / len(found) for k in (0, 1)]
    per_ad = [
        [np.mean([float(pair[k]) for rows, pair in found.items() if ad in rows]) for ad in range(len(ads))]
        for k in (0, 1)
    ]
    return [float(x) for x in mean], per_ad


def tensors(ads):
    return (torch.tensor([float(ad[k]) for ad in ads], dtype=torch.float64) for k in range(3))


def random_ads(seed, ads, tied=False):
    random = np.random.default_rng(seed)
    ctr = [Fraction(int(x), 16) for x in random.integers(1, 4 if tied else 16, ads)]
    bids = [Fraction(int(x), 8) for x in random.integers(1, 3 if tied else 40, ads)]
    return list(zip(ctr, [Fraction(int(x)) for x in random.integers(0, 2, ads)], bids, strict=True))


@pytest.mark.parametrize("pricing", ["gsp", "first_price"])
@pytest.mark.parametrize("slots", [(1,), (1, Fraction(1, 2)), (1, Fraction(3, 4), Fraction(1, 4))])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("tied", [False, True])
def test_brute_force(pricing, slots, size, tied):
    ads = random_ads(size, 6, tied)
    ctr, truth, bids = tensors(ads)
    (welfare, revenue), _ = brute(ads, size, slots, pricing)
    alpha = [float(x) for x in slots]
    assert pooled_welfare(ctr, truth, bids, size, slots=alpha) == pytest.approx(welfare, rel=1e-10, abs=1e-12)
    found = pooled_revenue(ctr, truth, bids, size, slots=alpha, pricing=pricing)
    assert found == pytest.approx(revenue, rel=1e-10, abs=1e-12)


def with_each(found, size):
    """The mean over the auctions with each ad, from the values: theta + m (n - 1) / (n - m) (h - theta)."""
    ads = len(found.values)
    return found.mean + (found.values - found.mean) * (ads - size) / (size * (ads - 1))


@pytest.mark.parametrize("slots", [(1,), (1, Fraction(1, 2)), (1, Fraction(3, 4), Fraction(1, 4))])
@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_means_with_each_ad_are_those_of_brute_force(slots, size):
    ads = random_ads(10 + size, 7)
    while len({ctr * bid for ctr, _, bid in ads}) < 7:
        ads = random_ads(len(ads) + hash(ads[0]) % 1000, 7)
    ctr, truth, bids = tensors(ads)
    _, (welfare, revenue) = brute(ads, size, slots)
    alpha = [float(x) for x in slots]
    pool = Pool(bids * ctr, size, len(slots) + 1)
    found = pool.welfare(bids * truth, alpha)
    np.testing.assert_allclose(with_each(found, size), welfare, rtol=1e-10, atol=1e-12)
    assert float(found.values.mean()) == pytest.approx(found.mean)
    found = pool.revenue(truth, bids, ctr, alpha)
    np.testing.assert_allclose(with_each(found, size), revenue, rtol=1e-10, atol=1e-12)
    assert float(found.values.mean()) == pytest.approx(found.mean)


RESERVED = [
    ("gsp", (1,)),
    ("gsp", (1, Fraction(1, 2))),
    ("gsp", (1, 1, Fraction(1, 4))),
    ("vcg", (1,)),
    ("first_price", (1,)),
]


@pytest.mark.parametrize(("pricing", "slots"), RESERVED)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("tied", [False, True])
def test_a_reserve(pricing, slots, size, tied):
    alpha, reserve = [float(x) for x in slots], Fraction(1, 4) if tied else 2
    for seed in range(4):
        ads = random_ads(seed, 7, tied)
        ads[0] = (Fraction(0), Fraction(1), Fraction(5))  # never clicked by the model, and yet above the reserve
        ctr, truth, bids = tensors(ads)
        (welfare, revenue), per_ad = brute(ads, size, slots, pricing, reserve)
        pool = Pool(pool_score(bids, ctr, reserve), size, len(slots) + 1)
        found = pool.revenue(truth, bids, ctr, alpha, pricing, float(reserve))
        assert found.mean == pytest.approx(revenue, rel=1e-10, abs=1e-12)
        shown = pool.welfare((bids * truth).where(bids >= float(reserve), 0), alpha)
        assert shown.mean == pytest.approx(welfare, rel=1e-10, abs=1e-12)
        if not tied and len({ctr * bid for ctr, _, bid in ads if bid >= reserve}) == sum(bids >= float(reserve)):
            np.testing.assert_allclose(with_each(found, size), per_ad[1], rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(with_each(shown, size), per_ad[0], rtol=1e-10, atol=1e-12)
        ones = pool_of(pool_score(bids, ctr, reserve), size, weights=torch.ones(7, dtype=torch.float64))
        assert ones.revenue(truth, bids, ctr, alpha, pricing, float(reserve)).mean == pytest.approx(revenue, abs=1e-12)


def pool_score(bids, ctr, reserve):
    return pooled.ranking_score(bids, ctr, float(reserve))


@pytest.mark.parametrize("slots", [(1.0,), (1.0, 0.5, 0.2)])
@pytest.mark.parametrize("reserve", [0.0, 1.5])
def test_an_ad_of_weight_w_is_w_ads(slots, reserve):
    ads = random_ads(3, 6)
    ctr, truth, bids = tensors(ads)
    weights = torch.tensor([1, 3, 2, 1, 4, 2])
    many = [x.repeat_interleave(weights) for x in (ctr, truth, bids)]
    rules = {"slots": slots, "reserve": reserve}
    for size in (1, 2, 5):
        expected = pooled_welfare(*many, size, slots=slots)
        assert pooled_welfare(ctr, truth, bids, size, slots=slots, weights=weights) == pytest.approx(expected)
        for pricing in ("gsp", "first_price"):
            expected = pooled_revenue(*many, size, pricing=pricing, **rules)
            found = pooled_revenue(ctr, truth, bids, size, pricing=pricing, weights=weights, **rules)
            assert found == pytest.approx(expected, rel=1e-10, abs=1e-12)


def world(seed, ads, tied=False):
    random = np.random.default_rng(seed)
    ctr, bids = random.uniform(0.01, 0.5, ads), random.lognormal(0, 1, ads)
    if tied:
        ctr, bids = ctr.round(1) + 0.05, bids.round(0) + 0.5
    found = [ctr, (random.random(ads) < ctr).astype(float), bids]
    return [torch.from_numpy(x) for x in found]


@pytest.mark.parametrize("slots", [(1.0,), (1.0, 0.5, 0.2)])
@pytest.mark.parametrize("size", [2, 5, 10])
@pytest.mark.parametrize("tied", [False, True])
def test_values_of_ads_are_those_without_them(slots, size, tied):
    ctr, truth, bids = world(7, 12, tied=tied)
    if tied:
        bids = torch.ones(12, dtype=torch.float64)
    found = Pool(bids * ctr, size, len(slots)).welfare(bids * truth, slots)
    for ad in range(12):
        rest = torch.arange(12) != ad
        without = pooled_welfare(ctr[rest], truth[rest], bids[rest], size, slots=slots)
        assert float(found.values[ad]) == pytest.approx(12 * found.mean - 11 * without, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("reserve", [0.0, 0.7])
def test_weights_of_one_change_nothing_and_their_errors_agree(reserve):
    ctr, truth, bids = world(8, 3000)
    for pricing in ("gsp", "first_price"):
        pair = []
        for weights in (None, torch.ones(3000, dtype=torch.float64)):
            pool = pool_of(pool_score(bids, ctr, reserve), 8, 3, weights=weights)
            pair.append(pool.revenue(truth, bids, ctr, (1.0, 0.5), pricing, reserve))
        one, other = pair
        assert other.mean == pytest.approx(one.mean, rel=1e-9)
        assert float(other.values.mean()) == pytest.approx(one.mean, rel=1e-9)
        assert float(other.values.std()) == pytest.approx(float(one.values.std()), rel=0.01)
        np.testing.assert_allclose(other.own, one.own, rtol=1e-7, atol=1e-12)


def test_no_closed_form_is_refused():
    with pytest.raises(InputError, match="found vcg with 2 slots"):
        pooled_revenue([0.5, 0.4, 0.1], [1, 1, 1], [1.0, 1.0, 1.0], 2, slots=(1.0, 0.5), pricing="vcg")


@pytest.mark.parametrize("size", [2, 32, 1024])
@pytest.mark.parametrize("ads", [2000, 4_600_000])
def test_chances_add_up_to_one(size, ads):
    pool = Pool(torch.arange(ads, dtype=torch.float64), size, 2)
    assert size < 1024 or ads < 1e6 or len(pool.rank) < ads / 10
    for k in (1, 2):
        assert float(pool.chance(k - 1, size - k).sum()) * size / ads == pytest.approx(1, abs=1e-9)


def test_log_choose():
    exact = [[1, 1], [10, 3], [40, 7], [1000, 500], [45_800_000, 1023]]
    for a, q in exact:
        expected = sum(np.log(np.longdouble(a - j)) - np.log(np.longdouble(j + 1)) for j in range(q))
        assert float(_log_choose(torch.tensor([float(a)], dtype=torch.float64), q)) == pytest.approx(
            float(expected), abs=2e-11
        )
    assert float(_log_choose(torch.tensor([3.0]), 4)) == -np.inf


def test_ads_that_hardly_ever_win_may_be_left_out(monkeypatch):
    random = np.random.default_rng(1)
    ctr, bids = random.uniform(0.01, 0.5, 3000), random.lognormal(0, 1, 3000)
    clicks = torch.from_numpy((random.random(3000) < ctr).astype(float))
    ctr, bids = torch.from_numpy(ctr), torch.from_numpy(bids)
    some = Pool(bids * ctr, 400, 3)
    monkeypatch.setattr(pooled, "NEGLIGIBLE", -np.inf)
    every = Pool(bids * ctr, 400, 3)
    assert len(some.rank) < 1000 < 2500 < len(every.rank)
    for measure in (
        lambda pool: pool.welfare(bids * clicks, (1.0, 0.5)),
        lambda pool: pool.revenue(clicks, bids, ctr, (1.0, 0.5)),
    ):
        a, b = measure(some), measure(every)
        assert a.mean == pytest.approx(b.mean, rel=1e-14)
        torch.testing.assert_close(with_each(a, 400), with_each(b, 400), rtol=1e-11, atol=1e-14)


def test_the_standard_error_is_that_of_many_pools():
    random = np.random.default_rng(0)
    ads, size = 400, 8
    means, errors = [], []
    for _ in range(300):
        truth = random.uniform(0.05, 0.5, ads)
        ctr = torch.from_numpy(truth)
        clicks = torch.from_numpy((random.random(ads) < truth).astype(float))
        bids = torch.from_numpy(random.lognormal(0, 0.5, ads))
        noisy = (ctr * torch.from_numpy(random.lognormal(0, 0.4, ads))).clamp(max=1)
        good, bad = (Pool(bids * x, size).welfare(bids * clicks, (1.0,)) for x in (ctr, noisy))
        means.append(good.mean - bad.mean)
        errors.append(float((good.values - bad.values).std()) / math.sqrt(ads))
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.12)


def test_pools_that_are_too_small_are_refused():
    with pytest.raises(InputError, match=r"^size must be at most the number of ads, 2, found 3"):
        pooled_welfare([0.1, 0.2], [0, 1], [1.0, 1.0], 3)
    with pytest.raises(InputError, match=r"^size must be at most the sum of weights, 2, found 3"):
        pooled_welfare([0.1, 0.2], [0, 1], [1.0, 1.0], 3, weights=[1, 1])
