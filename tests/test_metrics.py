"""Metrics against scikit-learn and plain loops, and the laws they obey."""

import itertools
import math
import random
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from bidwise.auctions import run_auction, welfare
from bidwise.evaluation.auc import auc, auction_auc
from bidwise.evaluation.calibration import equal_mass
from bidwise.evaluation.metrics import Metrics

seeded = settings(derandomize=True, deadline=None, database=None, max_examples=60)
seeds = st.integers(0, 2**20)
COUNTS = {"ads", "clicks", "clipped"}
TABLES = {"calibration_curve"}


def random_log(seed, sizes=None, *, ties=True):
    """Columns of metrics: ragged auctions; with ``ties`` scores, bids and weights repeat."""
    draw = random.Random(seed)
    sizes = [draw.choice([0, 1, 1, 2, 3, 5, 9, 17]) for _ in range(draw.randint(1, 9))] if sizes is None else sizes
    ads = sum(sizes)
    truth = [draw.random() for _ in range(ads)]
    return {
        "ctr": [draw.choice([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]) if ties else draw.random() for _ in range(ads)],
        "clicks": [int(draw.random() < p) for p in truth],
        "bids": [draw.choice([0.5, 1.0, 2.0]) if ties else math.exp(draw.gauss(0, 1)) for _ in range(ads)],
        "offsets": [0, *itertools.accumulate(sizes)],
        "truth": truth,
        "exposure": [draw.choice([1.0, 0.5, 0.3]) for _ in range(ads)],
        "weights": [draw.choice([0.0, 0.1, 0.3, 1.0]) if ties else draw.random() for _ in range(ads)],
    }


def chosen(log, *names):
    return {name: log[name] for name in ("ctr", "clicks", "bids", "offsets", *names)}


def rows_of(log, rows, offsets):
    return {name: offsets if name == "offsets" else [column[i] for i in rows] for name, column in log.items()}


def auctions_of(log):
    return [range(a, b) for a, b in itertools.pairwise(log["offsets"])]


def close(found, expected, tolerance=1e-9):
    if math.isnan(expected):
        return math.isnan(found)
    return abs(found - expected) <= tolerance * max(1, abs(expected))


def numbers_of(found):
    """The metrics by name, without those that only an evaluation adds."""
    if isinstance(found, dict):
        return found
    names = [*(field.name for field in fields(found)), *getattr(found, "written", ())]
    return {name: x for name in names if name != "intervals" and (x := getattr(found, name)) is not None}


def assert_same(found, expected):
    found, expected = numbers_of(found), numbers_of(expected)
    assert found.keys() == expected.keys()
    for name, number in expected.items():
        if name in TABLES:
            assert len(found[name]) == len(number), name
            for a, b in zip(found[name], number, strict=True):
                assert_same(a, b)
        else:
            assert close(found[name], number), (name, found[name], number)


def loop_auc(score, clicks, weights):
    won = total = 0.0
    for i, j in itertools.product(range(len(score)), repeat=2):
        if clicks[i] and not clicks[j]:
            total += weights[i] * weights[j]
            won += weights[i] * weights[j] * ((score[i] > score[j]) + (score[i] == score[j]) / 2)
    return won / total if total > 0 else math.nan


def loop_bins(key, weights, bins):
    """Rows of each bin: a value goes where the share of the weight below it says."""
    whole, found, below = sum(weights), {}, 0.0
    for value in sorted(set(key)):
        rows = [i for i in range(len(key)) if key[i] == value]
        if whole > 0:
            found.setdefault(min(math.floor(bins * below / whole + 1e-7), bins - 1), []).extend(rows)
        below += sum(weights[i] for i in rows)
    return [rows for _, rows in sorted(found.items()) if sum(weights[i] for i in rows) > 0]


def over(part, whole):
    return part / whole if whole > 0 else math.nan


def loop_metrics(ctr, clicks, bids, offsets, truth=None, exposure=None, weights=None, slots=(1.0,)):
    """Every metric by its definition, for an auction at generalised second prices without reserve."""
    n = len(ctr)
    w = weights or [1.0] * n
    label = [y / a for y, a in zip(clicks, exposure or [1.0] * n, strict=True)]
    worth = truth or label
    ecpm = [b * c for b, c in zip(bids, ctr, strict=True)]
    eps = 2.0**-52
    mean = {"welfare": 0.0, "revenue": 0.0, "surplus": 0.0, "fill_rate": 0.0}
    promised = auction_weight = area = area_weight = 0.0
    for first, last in itertools.pairwise(offsets):
        rows = range(first, last)
        weight = sum(w[i] for i in rows) / len(rows) if rows else 1.0
        auction_weight += weight
        ranking = sorted((ecpm[i] for i in rows), reverse=True)
        for k, (alpha, score) in enumerate(zip(slots, ranking, strict=False)):
            rival = ranking[k + 1] if k + 1 < len(ranking) else 0.0
            run = [i for i in rows if ecpm[i] == score]  # each of them as likely
            for i in run:
                price = min(rival / ctr[i], bids[i]) if ctr[i] > 0 else 0.0
                gains = {"welfare": bids[i], "revenue": price, "surplus": bids[i] - price}
                for name, gain in gains.items():
                    mean[name] += weight * alpha * worth[i] * gain / len(run)
            mean["fill_rate"] += weight / len(slots)
            promised += weight * alpha * score
        inside = loop_auc(*([column[i] for i in rows] for column in (ctr, clicks, w)))
        if not math.isnan(inside):
            area += inside * weight * len(rows)
            area_weight += weight * len(rows)

    def total(term):
        return sum(w[i] * term(i) for i in range(n))

    def log_loss_of(i):
        p = min(max(ctr[i], eps), 1 - eps)
        return -(label[i] * math.log(p) + (1 - label[i]) * math.log1p(-p))

    whole, seen = total(lambda i: 1.0), total(lambda i: label[i])
    rate = over(seen, whole)
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)) if 0 < rate < 1 else math.nan
    by_ctr = loop_bins(ctr, w, 20)
    overall = loop_auc(ctr, clicks, w)

    def row(rows, key):
        weight, predicted, observed = (
            sum(w[i] * of(i) for i in rows) for of in (lambda i: 1, ctr.__getitem__, label.__getitem__)
        )
        ends = {"low": min(key[i] for i in rows), "high": max(key[i] for i in rows), "ads": len(rows)}
        return ends | {"predicted": predicted / weight, "observed": observed / weight}

    return {name: over(number, auction_weight) for name, number in mean.items()} | {
        "auc": overall,
        "auc_in_auctions": over(area, area_weight),
        "log_loss": over(total(log_loss_of), whole),
        "normalised_entropy": over(total(log_loss_of), whole) / entropy,
        "calibration_error": over(sum(abs(sum(w[i] * (ctr[i] - label[i]) for i in r)) for r in by_ctr), whole),
        "predicted_over_observed": over(total(lambda i: ctr[i]), seen),
        "winners_predicted_over_observed": over(promised, mean["welfare"]),
        "ads": n,
        "clicks": sum(clicks),
        "clipped": sum(not eps <= p <= 1 - eps for p in ctr),
        "calibration_curve": [row(rows, ctr) for rows in by_ctr],
    }


OPTIONS = [(), ("truth",), ("exposure",), ("weights",), ("truth", "exposure", "weights")]


@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
@seeded
@given(seed=seeds, ties=st.booleans(), slots=st.sampled_from([(1.0,), (1.0, 0.6, 0.6)]))
def test_every_metric_is_its_definition(options, seed, ties, slots):
    log = chosen(random_log(seed, ties=ties), *options)
    assert_same(Metrics(**log, slots=slots).compute(), loop_metrics(**log, slots=slots))


@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_every_metric_of_a_longer_log_is_its_definition(options):
    log = chosen(random_log(3, sizes=[7, 40, 0, 33, 90, 130, 1], ties=False), *options)
    found = Metrics(**log).compute()
    assert_same(found, loop_metrics(**log))
    assert len(found.calibration_curve) == 20


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_agree_with_scikit_learn(ties, weighted):
    log = random_log(5, sizes=[900, 1100], ties=ties)
    weights = log["weights"] if weighted else None
    log = chosen(log) | ({"weights": weights} if weighted else {})
    found = Metrics(**log).compute()
    y, p = np.array(log["clicks"]), np.array(log["ctr"])
    assert close(found.auc, roc_auc_score(y, p, sample_weight=weights))
    assert close(auc(p, y, weights=weights), roc_auc_score(y, p, sample_weight=weights))
    assert close(found.log_loss, sklearn_log_loss(y, p, sample_weight=weights))


@seeded
@given(seeds)
def test_auc_knows_only_the_order(seed):
    log = random_log(seed)
    score = np.array(log["ctr"])
    columns = (log["clicks"], log["offsets"])
    assert close(auc(np.exp(3 * score) - 7, log["clicks"]), auc(score, log["clicks"]))
    np.testing.assert_array_equal(auction_auc(np.exp(3 * score) - 7, *columns), auction_auc(score, *columns))


@seeded
@given(seeds, st.booleans())
def test_auction_auc_is_auc_of_each_auction(seed, weighted):
    log = random_log(seed)
    weights = log["weights"] if weighted else None
    found = auction_auc(log["ctr"], log["clicks"], log["offsets"], weights=weights)
    for number, rows in zip(found, auctions_of(log), strict=True):
        w = log["weights"] if weighted else [1.0] * len(log["ctr"])
        assert close(number, loop_auc(*([column[i] for i in rows] for column in (log["ctr"], log["clicks"], w))))


@seeded
@given(seeds)
def test_welfare_is_that_of_the_auction(seed):
    log = random_log(seed)
    options = {"slots": (1.0, 0.4), "pricing": "vcg", "reserve": 0.6, "squash": 0.5}
    metrics = Metrics(**chosen(log, "truth"), **options)
    sold = run_auction(log["ctr"], log["bids"], log["offsets"], **options)
    kept = metrics.per_unit
    np.testing.assert_allclose(kept.sum("welfare"), sold.welfare(log["truth"], log["bids"]))
    np.testing.assert_allclose(kept.sum("revenue"), sold.revenue(log["truth"]))
    np.testing.assert_allclose(kept.sum("surplus"), sold.surplus(log["truth"], log["bids"]), atol=1e-12)
    places = torch.where(sold.winners >= 0, sold.winners - torch.tensor(log["offsets"])[:-1, None], -1)
    assert kept.shown[~sold.tied.numpy()].tolist() == places[~sold.tied].tolist()
    assert (kept.auctions, kept.weight) == (len(places), None)
    assert close(metrics.compute().fill_rate, (sold.winners >= 0).double().mean().item())
    plain = Metrics(**chosen(log, "truth")).compute().welfare
    assert close(plain, welfare(log["ctr"], log["truth"], log["bids"], log["offsets"]).mean().item())


def test_per_unit_columns_add_up():
    log = random_log(11, sizes=[3, 5, 1, 8])
    metrics = Metrics(**log)
    kept, result = metrics.per_unit, metrics.compute()
    for metric in ("log_loss", "revenue", "auc", "surplus"):
        assert close(kept.mean(metric), getattr(result, metric))
    np.testing.assert_allclose(kept.ad_weight, kept.weight * [3, 5, 1, 8])


@pytest.mark.parametrize("size", [None, 2])
def test_another_model_of_the_same_ads_is_as_if_measured_alone(size):
    log, ctr = random_log(12, sizes=[3, 5, 1, 8]), random_log(13, sizes=[17])["ctr"]
    log |= {"size": size, "offsets": log["offsets"] if size is None else None}
    first = Metrics(**log)
    first.compute()
    assert_same(first.of(ctr).compute(), Metrics(**log | {"ctr": ctr}).compute())
    assert close(first.sales.mean("welfare"), first.compute().welfare)


def test_without_ads_there_are_counts_and_nan():
    for offsets in ([0], None, [0, 0, 0]):
        found = Metrics([], [], [], offsets).compute()
        assert all(getattr(found, name) == 0 for name in ("ads", "clicks", "clipped"))
        assert all(getattr(found, name) == () for name in TABLES)
        of_auctions = {"welfare", "revenue", "surplus", "fill_rate"}  # an auction without ads has welfare 0
        for name in numbers_of(found).keys() - COUNTS - TABLES - (of_auctions if offsets != [0] else set()):
            assert math.isnan(getattr(found, name)), name
    assert Metrics([], [], [], [0], slots=(1.0, 0.5)).per_unit.shown.shape == (0, 2)


@pytest.mark.parametrize("click", [0, 1])
def test_one_class_and_single_ads(click):
    found = Metrics([0.2, 0.4, 0.6], [click] * 3, [1.0, 2.0, 3.0], [0, 1, 2, 3]).compute()
    for name in ("auc", "auc_in_auctions", "normalised_entropy"):
        assert math.isnan(getattr(found, name)), name
    for name in ("predicted_over_observed", "winners_predicted_over_observed"):
        assert math.isnan(getattr(found, name)) == (click == 0), name


def test_weights_of_zero_give_nan():
    found = Metrics([0.2, 0.4], [0, 1], [1.0, 2.0], weights=[0.0, 0.0]).compute()
    for name in numbers_of(found).keys() - COUNTS - TABLES:
        assert math.isnan(getattr(found, name)), name


def test_equal_predictions_share_a_bin():
    ctr = [0.1] * 15 + [0.2] * 4 + [0.3]
    assert equal_mass(np.array(ctr), 10).tolist() == [0, 15, 19]
    found = Metrics(ctr, [0, 1] * 10, [1.0] * 20).compute().calibration_curve
    assert [(row.low, row.high, row.ads) for row in found] == [(0.1, 0.1, 15), (0.2, 0.2, 4), (0.3, 0.3, 1)]


@pytest.mark.parametrize("weight", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("ads", [20, 60, 1000])
def test_rounding_of_equal_weights_does_not_move_a_bin(ads, weight):
    key = np.arange(ads, dtype=float)
    np.testing.assert_array_equal(equal_mass(key, 10, np.full(ads, weight)), equal_mass(key, 10))


def test_tensors_of_any_kind_and_arrays_agree():
    log = chosen(random_log(4))
    tensors = {
        "ctr": torch.tensor(log["ctr"], dtype=torch.float64, requires_grad=True),
        "clicks": torch.tensor(log["clicks"], dtype=torch.bool),
        "bids": torch.tensor(log["bids"], dtype=torch.float32),
        "offsets": torch.tensor(log["offsets"]),
    }
    arrays = {name: np.asarray(column) for name, column in log.items()}
    for array in arrays.values():
        array.flags.writeable = False
    expected = Metrics(**log).compute()
    assert_same(Metrics(**tensors).compute(), expected)
    assert_same(Metrics(**arrays).compute(), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ctr": [0.5, 1.5]}, r"ctr must be in \[0, 1\], found 1.5"),
        ({"ctr": [0.5, math.nan]}, r"ctr must be in \[0, 1\]"),
        ({"clicks": [0, 0.5]}, r"clicks must be 0 or 1, found 0.5 at \[1\]"),
        ({"clicks": [0, 2]}, r"clicks must be in \[0, 1\]"),
        ({"clicks": [0]}, "clicks must have one number per ad, 2, found 1"),
        ({"bids": [1.0, 0.0]}, "bids must be finite and above 0"),
        ({"truth": [0.5, -1.0]}, r"truth must be in \[0, 1\]"),
        ({"exposure": [0.5, 0.0]}, r"exposure must be above 0, found 0 at \[1\]"),
        ({"exposure": [0.5, 2.0]}, r"exposure must be in \[0, 1\]"),
        ({"weights": [1.0, -1.0]}, "weights must be finite and no less than 0"),
        ({"offsets": [0, 1]}, "offsets must rise from 0 to the number of ads"),
    ],
)
def test_bad_columns_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        Metrics(**{"ctr": [0.5, 0.5], "clicks": [0, 1], "bids": [1.0, 1.0]} | change)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="pricing must be one of"):
        Metrics([], [], [], [0], pricing="gps")
    with pytest.raises(ValueError, match="ctr must be"):
        auc([math.nan], [1])
    with pytest.raises(ValueError, match=r"clicks must be 0 or 1, found 0.5 at \[1\]"):
        auc([0.1, 0.2, 0.3], [1.0, 0.5, 0.0])


@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
@seeded
@given(seed=seeds)
def test_the_order_of_rows_and_of_auctions_changes_no_metric(options, seed):
    log, draw = chosen(random_log(seed), *options), random.Random(seed)
    bounds = list(itertools.pairwise(log["offsets"]))
    groups = [draw.sample(range(*bound), bound[1] - bound[0]) for bound in draw.sample(bounds, len(bounds))]
    rows = list(itertools.chain(*groups))
    other = rows_of(log, rows, [0, *itertools.accumulate(map(len, groups))])
    rules = {"slots": (1.0, 0.6, 0.6), "pricing": "vcg", "reserve": 0.7, "squash": 0.5}
    for given_rules in ({}, rules):
        before, after = (Metrics(**each, **given_rules).compute() for each in (log, other))
        assert_same(after, before)


def test_models_that_tie_the_same_ads_show_the_same():
    """In every order of rows, though the winner that stands for the tie differs."""
    ctr = {"two": [0.5, 0.5, 0.1], "also": [0.4, 0.4, 0.3], "other": [0.5, 0.1, 0.5], "one": [0.6, 0.5, 0.1]}
    for rows in itertools.permutations(range(3)):
        seen = {
            name: Metrics([column[row] for row in rows], [0, 0, 0], [1.0, 1.0, 1.0]).per_unit
            for name, column in ctr.items()
        }
        assert seen["two"].shown == seen["also"].shown
        assert len({float(units.shown.item()) for units in seen.values()}) == 3
