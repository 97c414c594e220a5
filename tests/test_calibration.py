"""Platt scaling: scikit-learn as the oracle, then the laws that it keeps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from bidwise.evaluation import Platt

PROPERTY = settings(derandomize=True, deadline=None, database=None, max_examples=150)
seeds = st.integers(0, 10_000)

labels = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1), st.floats(0, 8))
any_ads = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1)), labels, st.sampled_from([0.5, 1.0, 3.0])
    ),
    min_size=1,
    max_size=60,
).map(lambda rows: tuple(np.array(column) for column in zip(*rows, strict=True)))


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def logit(p):
    return np.log(p / (1 - p))


def clicked_ads(seed, ads, *, distinct=None, slope=1.0, level=0.0):
    """CTR, clicks drawn from sigmoid(slope logit(ctr) + level), and weights of which some are 0."""
    draw = np.random.default_rng(seed)
    z = draw.normal(-1, 1.5, ads)
    ctr = sigmoid(z) if distinct is None else np.round(sigmoid(z) * distinct) / distinct
    clicks = (draw.random(ads) < sigmoid(slope * z + level)).astype(float)
    weights = draw.gamma(2.0, 1.0, ads) * (draw.random(ads) < 0.9)
    return ctr, clicks, weights


# Against scikit-learn


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(("slope", "level"), [(1.0, 0.0), (0.5, 1.0), (2.0, -3.0)])
def test_platt_equals_logistic_regression_on_the_logit(weighted, slope, level):
    for seed in range(5):
        ctr, clicks, weights = clicked_ads(seed, 800, slope=slope, level=level)
        weights = weights if weighted else None
        oracle = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=1000)
        oracle.fit(logit(ctr)[:, None], clicks, sample_weight=weights)
        ours = Platt.fit(ctr, clicks, weights=weights)
        assert ours.slope == pytest.approx(oracle.coef_.item(), rel=1e-6)
        assert ours.intercept == pytest.approx(oracle.intercept_.item(), rel=1e-6, abs=1e-6)


# Laws


@PROPERTY
@given(ads=any_ads, between=st.lists(st.floats(0, 1), max_size=20))
def test_output_is_monotone_and_in_the_unit_interval(ads, between):
    ctr, clicks, weights = ads
    asked = np.sort(np.concatenate([ctr, between, [0.0, 1.0]]))
    calibrated = Platt.fit(ctr, clicks, weights=weights)(asked)
    assert calibrated.dtype == np.float64
    assert calibrated.min() >= 0
    assert calibrated.max() <= 1
    assert (np.diff(calibrated) >= -1e-14).all()


@PROPERTY
@given(seed=seeds, ads=st.integers(30, 200), soft=st.booleans(), distinct=st.sampled_from([None, 5]))
def test_the_mean_of_the_training_data_is_kept(seed, ads, soft, distinct):
    ctr, clicks, weights = clicked_ads(seed, ads, distinct=distinct)
    if soft:
        clicks = np.random.default_rng(seed).random(ads)
    else:  # no maximum, no law: keep the classes from being separable
        ctr[:4], clicks[:4], weights[:4] = [0.1, 0.1, 0.9, 0.9], [0, 1, 0, 1], 1
    calibrated = Platt.fit(ctr, clicks, weights=weights)(ctr)
    assert np.average(calibrated, weights=weights) == pytest.approx(np.average(clicks, weights=weights), rel=1e-9)


def test_exposure_labels_recover_the_ctr_of_full_exposure():
    ctr, clicks, _ = clicked_ads(2, 200_000)
    draw = np.random.default_rng(2)
    exposure = draw.choice([0.25, 1.0], len(ctr))
    seen = clicks * (draw.random(len(ctr)) < exposure)
    assert np.abs(Platt.fit(ctr, seen / exposure)(ctr) - ctr).mean() < 0.012
    assert np.abs(Platt.fit(ctr, seen)(ctr) - ctr).mean() > 0.08


@PROPERTY
@given(seed=seeds, factor=st.sampled_from([1e-6, 0.3, 1e6]))
def test_only_the_ratios_of_weights_matter_and_zero_is_absent(seed, factor):
    ctr, clicks, weights = clicked_ads(seed, 120, distinct=30)
    expected = Platt.fit(ctr, clicks, weights=weights)(ctr)
    np.testing.assert_allclose(Platt.fit(ctr, clicks, weights=factor * weights)(ctr), expected, atol=1e-8)
    seen = weights > 0
    absent = Platt.fit(ctr[seen], clicks[seen], weights=weights[seen])(ctr)
    np.testing.assert_array_equal(absent, expected)


def test_arguments_are_read_not_written_and_may_be_tensors():
    ctr, clicks, weights = clicked_ads(4, 100)
    expected = Platt.fit(ctr, clicks, weights=weights)(ctr)
    for column in (ctr, clicks, weights):
        column.flags.writeable = False
    np.testing.assert_array_equal(Platt.fit(ctr, clicks, weights=weights)(ctr), expected)
    tensors = [torch.tensor(column) for column in (ctr, clicks, weights)]
    np.testing.assert_array_equal(Platt.fit(*tensors[:2], weights=tensors[2])(tensors[0]), expected)


# Data that say little


@pytest.mark.parametrize(
    ("ctr", "clicks", "rate"),
    [
        (np.full(10, 0.3), [1, 1] + 8 * [0], 2 / 10),  # one prediction for all
        *((np.linspace(0.1, 0.9, 8), 8 * [y], rate) for y, rate in ((0, 1 / 10), (1, 9 / 10), (3, 9 / 10))),
    ],
    ids=["constant", "no clicks", "all clicks", "more than clicks"],
)
def test_platt_moves_only_the_level_where_the_data_say_nothing_of_a_slope(ctr, clicks, rate):
    fitted = Platt.fit(ctr, clicks)
    assert fitted.slope == 1
    assert fitted(ctr).mean() == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize("clicks", [[0, 0, 0, 1, 1], [0, 0, 0, 0, 3.0]], ids=["clicks", "cut"])
def test_platt_of_separable_classes_fits_platts_targets(clicks):
    ctr, clicks = np.array([0.1, 0.2, 0.3, 0.6, 0.8]), np.array(clicks)
    many = min(clicks.sum(), 3)
    residual = np.where(clicks, (many + 1) / (many + 2), 1 / (5 - many + 2)) - Platt.fit(ctr, clicks)(ctr)
    assert residual.sum() == pytest.approx(0, abs=1e-10)  # the likelihood's gradient in level and slope
    assert residual @ logit(ctr) == pytest.approx(0, abs=1e-10)


def test_platt_is_finite_where_only_the_highest_score_has_clicks():
    fitted = Platt.fit([0.1, 0.2, 0.7, 0.7], [0, 0, 0, 1])  # separable but for a tie at the edge
    assert 0 < fitted.slope < 10


def test_platt_takes_half_of_a_step_that_would_lose():
    """Newton's whole step goes too far here; where the search ends the mean is kept, so nothing is left to gain."""
    ctr, clicks, weights = [0.5, 0.7911, 0.25, 0.7911, 0.0, 0.5], [1, 1, 1, 1, 0.576, 0.576], [1, 1, 3, 1, 0.5, 0.5]
    fitted = Platt.fit(ctr, clicks, weights=weights)
    assert np.average(fitted(ctr), weights=weights) == pytest.approx(np.average(clicks, weights=weights), rel=1e-12)
    assert 0.1 < fitted.slope < 0.12


@pytest.mark.parametrize("ads", [4, 400])
def test_platt_of_a_reversed_order_is_constant(ads):
    ctr = np.linspace(0.1, 0.9, ads)
    fitted = Platt.fit(ctr, (ctr < 0.4).astype(float))
    assert fitted.slope == 0
    np.testing.assert_allclose(fitted(ctr), (ctr < 0.4).mean(), rtol=1e-9)


def test_ctr_0_and_1_are_clipped_where_the_logit_is_taken():
    ctr, clicks = [0.0, 0.0, 0.5, 1.0, 1.0], [0, 1, 0, 0, 1]
    fitted = Platt.fit(ctr, clicks)
    np.testing.assert_array_equal(fitted([0.0, 1.0]), fitted([1e-12, 1 - 1e-12]))
    assert np.isfinite(fitted(ctr)).all()


# Errors


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: Platt.fit([], []), "ctr"),
        (lambda: Platt.fit([0.1, 1.5], [0, 1]), "ctr"),
        (lambda: Platt.fit([0.1, np.nan], [0, 1]), "ctr"),
        (lambda: Platt.fit([0.1], [0, 1]), "clicks"),
        (lambda: Platt.fit([0.1, 0.2], [0, -1]), "clicks"),
        (lambda: Platt.fit([0.1], [np.inf]), "clicks"),
        (lambda: Platt.fit([0.1], [1], weights=[np.nan]), "weights"),
        (lambda: Platt.fit([0.1, 0.2], [0, 1], weights=[0, 0]), "weights"),
        (lambda: Platt(1.0, 0.0)([2.0]), "ctr"),
        (lambda: Platt(1.0, 0.0)([[0.5]]), "ctr"),
    ],
)
def test_errors_name_the_argument(call, argument):
    with pytest.raises(ValueError, match=f"^{argument} must"):
        call()
