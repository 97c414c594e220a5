"""Intervals: how often they hold the truth, what they are made of, and Student's t against scipy."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student

import bidwise
from bidwise.evaluation import student_quantile, unit_interval

SIMULATIONS, AT_ONCE, ADS = 2_000, 100, 5


def simulated(auctions, noise, seed, *, rate=-1.0, bids=0.5):
    """Welfare differences of two noisy models, ``(auctions, simulations)``, and in how many auctions winners differ."""
    random = torch.Generator().manual_seed(seed)
    ads = auctions * AT_ONCE * ADS

    def normal():
        return torch.randn(ads, generator=random, dtype=torch.float64)

    logits, bid = rate + normal(), torch.exp(bids * normal())
    clicks = torch.bernoulli(torch.sigmoid(logits), generator=random)
    offsets = ADS * torch.arange(auctions * AT_ONCE + 1)
    sold = [bidwise.run_auction(torch.sigmoid(logits + scale * normal()), bid, offsets) for scale in noise]
    difference = sold[0].welfare(clicks, bid) - sold[1].welfare(clicks, bid)
    decisive = (sold[0].winners != sold[1].winners).any(1).double()
    return difference.view(auctions, AT_ONCE).numpy(), decisive.view(auctions, AT_ONCE).sum(0).mean().item()


def coverage(auctions, noise, truth=None, **world):
    """Share of 2,000 intervals that hold the truth: by default the mean over all simulations."""
    drawn = [simulated(auctions, noise, seed, **world) for seed in range(SIMULATIONS // AT_ONCE)]
    decisive = np.mean([count for _, count in drawn])
    aim = np.mean([d.mean() for d, _ in drawn]) if truth is None else truth
    found = [unit_interval(column) for d, _ in drawn for column in d.T]
    return np.mean([x.low <= aim <= x.high for x in found]), decisive


@pytest.mark.parametrize(
    ("auctions", "noise", "world"),
    [
        (300, (0.2, 1.0), {}),  # a better model
        (200, (0.0, 9.0), {}),  # skewed: nearly all differences have one sign
        (450, (0.5, 0.5), {"bids": 1.0}),  # heavy tails
        (1_500, (0.2, 1.0), {"rate": -3.5}),  # rare clicks: most decisive auctions still differ by 0
    ],
)
def test_intervals_hold_the_truth_in_95_of_100(auctions, noise, world):
    held, decisive = coverage(auctions, noise, **world)
    assert decisive >= 100
    assert 0.93 <= held <= 0.97


def test_equal_noisy_models_are_found_different_in_5_of_100():
    held, decisive = coverage(400, (0.5, 0.5), truth=0.0)
    assert decisive >= 100
    assert 0.03 <= 1 - held <= 0.07


def test_without_weights_the_interval_is_students():
    d = np.random.default_rng(0).normal(1.0, 2.0, size=500)
    interval, error = unit_interval(d), d.std(ddof=1) / math.sqrt(500)
    assert interval.standard_error == pytest.approx(error)
    assert (interval.low, interval.high) == pytest.approx(student.interval(0.95, 499, loc=d.mean(), scale=error))


def test_weighted_intervals_are_the_loop_that_leaves_out_one_unit():
    d, w = np.array([0.0, 1.0, 3.0, -1.0, 0.5, 2.0, 0.2]), np.array([1.0, 2.0, 0.5, 1.0, 1.5, 0.7, 1.1])
    mean = np.average(d, weights=w)
    without = [np.average(np.delete(d, k), weights=np.delete(w, k)) for k in range(7)]
    error = math.sqrt(6 / 7 * sum((x - mean) ** 2 for x in without))
    interval = unit_interval(d * w, w)
    assert (interval.estimate, interval.standard_error) == pytest.approx((mean, error))
    freedom = round(w.sum() ** 2 / (w**2).sum()) - 1
    assert interval.high == pytest.approx(mean + student.ppf(0.975, freedom) * error)


def test_nothing_differs():
    interval = unit_interval(np.zeros(50))
    assert (interval.estimate, interval.low, interval.high, interval.smallest) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("d", "weights", "estimate"),
    [
        ([], None, math.nan),
        ([0.5], None, 0.5),
        ([0.5], [2.0], 0.25),
        ([2.0, 0.0, 0.0], [4.0, 0.0, 0.0], 0.5),  # all the weight in one unit
        ([2.0, 1e-20], [4.0, 1e-20], 0.5),
        ([0.0, 0.0], [0.0, 0.0], math.nan),
    ],
)
def test_too_little_for_an_interval(d, weights, estimate):
    interval = unit_interval(d, weights)
    assert interval.estimate == pytest.approx(estimate, nan_ok=True)
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


def test_the_smallest_lift_is_found_in_4_of_5_samples():
    random = np.random.default_rng(4)
    interval = unit_interval(random.normal(size=400))
    samples = random.normal(interval.smallest, 1.0, size=(500, 400))
    assert np.mean([unit_interval(d).low > 0 for d in samples]) == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 29, 30, 100, 1001])
@pytest.mark.parametrize("probability", [0.5, 0.6, 0.9, 0.975, 0.9995])
def test_student_quantiles_are_those_of_scipy(probability, freedom):
    assert student_quantile(probability, freedom) == pytest.approx(
        student.ppf(probability, freedom), rel=1e-9, abs=1e-12
    )
