"""`bidwise.evaluate` where ads are in no auctions, and what it says about clusters, segments and heavy bids."""

import json
import math
from itertools import combinations

import numpy as np
import pytest
import torch
from run_helpers import ads_of, comparison, evaluate

import bidwise
from bidwise.checks import InputError
from bidwise.evaluation.comparison import EFFECTIVE
from bidwise.evaluation.intervals import student_quantile
from bidwise.evaluation.pooled import pool_of
from bidwise.evaluation.result import Evaluation
from bidwise.report.evaluation_sentences import comparison_lines, notes
from bidwise.run_folder import result_from_json

RULES = [
    {},
    {"slots": (1.0, 0.6)},
    {"reserve": 0.9},
    {"squash": 0.5, "slots": (1.0, 0.5, 0.2)},
    {"slots": (1.0, 0.6), "reserve": 1.1, "squash": 0.7},
    {"pricing": "first_price", "slots": (1.0, 0.6), "reserve": 0.9},
]


def logged(ads=3_000, seed=0, **options):
    """Ads in no auctions, with an advertiser, a device, a day and a weight."""
    table = ads_of(ads, size=1, seed=seed, **options)
    del table["auction"]
    random = np.random.default_rng(seed + 1)
    return table | {
        "advertiser": random.integers(0, 80, ads),
        "device": random.choice(["phone", "tablet", "desk"], p=[0.6, 0.1, 0.3], size=ads),
        "day": random.integers(0, 4, ads),
        "w": random.exponential(size=ads) + 0.1,
    }


def drawn(table, **options):
    return evaluate(table, **({"auction_size": 16} | options))


def taken(table, rows):
    return {name: column[rows] for name, column in table.items()}


def columns(table, model, truth="click"):
    return table[model], table[truth], table["bid"]


def pooled(table, model, size=16):
    """`Pooled` welfare and revenue of a model."""
    ctr, clicks, bids = (torch.as_tensor(x, dtype=torch.float64) for x in columns(table, model))
    pool = pool_of(bids * ctr, size)
    return pool.welfare(bids * clicks, (1.0,)), pool.revenue(clicks, bids, ctr, (1.0,))


def assert_same_json(found, expected, rel=1e-9, where=""):
    """Two results, number by number; their tables have no name."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for name, value in expected.items():
            assert_same_json(found[name], value, rel, f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for at, value in enumerate(expected):
            assert_same_json(found[at], value, rel, f"{where}[{at}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=rel, abs=1e-11), where
    else:
        assert found == expected, where


# the numbers


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_welfare_and_revenue_are_the_means_over_all_auctions(rules, size):
    table = logged(9, seed=3)
    found = drawn(table, auction_size=size, **rules)
    rows = np.array(list(combinations(range(9), size)))
    offsets = np.arange(0, rows.size + 1, size)
    for model in ("rough", "fine"):
        ctr, clicks, bids = (column[rows.ravel()] for column in columns(table, model))
        sold = bidwise.run_auction(ctr, bids, offsets, **rules)
        numbers = found.models[model]
        assert numbers.welfare == pytest.approx(float(sold.welfare(clicks, bids).mean()), rel=1e-9)
        assert numbers.revenue == pytest.approx(float(sold.revenue(clicks).mean()), rel=1e-9)
        assert numbers.surplus == pytest.approx(float(sold.surplus(clicks, bids).mean()), rel=1e-9)
        assert numbers.fill_rate == pytest.approx(float((sold.winners >= 0).double().mean()))
        promised = float(sold.welfare(ctr, bids).sum() / sold.welfare(clicks, bids).sum())
        assert numbers.winners_predicted_over_observed == pytest.approx(promised)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("slots", [(1.0,), (1.0, 0.5)])
def test_numbers_are_those_of_the_library(weighted, slots):
    table = logged()
    found = drawn(table, slots=slots, weight="w" if weighted else None)
    more = {"slots": slots, "weights": table["w"] if weighted else None}
    for model, numbers in found.models.items():
        assert numbers.welfare == pytest.approx(bidwise.pooled_welfare(*columns(table, model), 16, **more))
        assert numbers.revenue == pytest.approx(bidwise.pooled_revenue(*columns(table, model), 16, **more))
        assert numbers.auc_in_auctions is None
    one, base = found.models["fine"], found.models["rough"]
    for metric in ("welfare", "revenue", "surplus", "log_loss", "auc"):
        difference = getattr(one, metric) - getattr(base, metric)
        assert comparison(found, metric).difference == pytest.approx(difference)
    assert (found.auctions, found.ads) == (None, 3_000)
    assert "The auctions are not real" in " ".join(notes(found))


def test_an_ad_competes_as_often_as_it_weighs():
    table = logged(500)
    copies = np.random.default_rng(0).integers(1, 4, 500)
    weighted = drawn(table | {"w": copies}, weight="w")
    repeated = drawn(taken(table, np.repeat(np.arange(500), copies)))
    for metric in ("welfare", "revenue", "log_loss", "auc"):
        values = [getattr(found.models["fine"], metric) for found in (weighted, repeated)]
        assert values[0] == pytest.approx(values[1])
    smaller, one = (drawn(table | {"w": copies / total}, weight="w") for total in (copies.sum(), copies.mean()))
    assert smaller.models["fine"].revenue == pytest.approx(one.models["fine"].revenue)  # weights of mean 1 at least


def test_a_calibrated_copy_is_a_model_like_others():
    table = logged()
    found = drawn(table, calibrate="platt", truth="truth")
    models = list(found.models)
    assert models[2:] == [f"{model}+platt" for model in models[:2]]
    copy = bidwise.evaluation.Platt.fit(table["fine"], table["click"])(table["fine"])
    welfare = bidwise.pooled_welfare(copy, table["truth"], table["bid"], 16)
    assert found.models["fine+platt"].welfare == pytest.approx(welfare)
    assert "two numbers each" in str(found)
    with pytest.raises(InputError, match="calibrated copy"):
        drawn(table | {"fine+platt": copy}, ctr=["fine", "fine+platt"], calibrate="platt")


def test_errors_of_differences_are_those_of_paired_ads():
    table = logged()
    found = drawn(table)
    mine, base = pooled(table, "fine"), pooled(table, "rough")
    welfare, revenue = (a - b for a, b in zip(mine, base, strict=True))
    surplus = welfare - revenue
    for metric, difference in (("welfare", welfare), ("revenue", revenue), ("surplus", surplus)):
        one = comparison(found, metric)
        assert one.difference == pytest.approx(difference.mean)
        assert one.standard_error == pytest.approx(float(difference.values.std()) / math.sqrt(3_000), rel=1e-9)
        half = student_quantile(0.975, 2_999) * one.standard_error
        assert (one.ci_low, one.ci_high) == pytest.approx((one.difference - half, one.difference + half))
    own = np.abs(welfare.own.numpy())
    assert comparison(found).effective_clicks == pytest.approx(own.sum() ** 2 / (own @ own))
    assert comparison(found).decisive_auctions is None
    one = comparison(found)
    assert one.relative == pytest.approx(one.difference / base[0].mean)


def test_the_truth_is_the_optimum_of_all_auctions():
    table = logged()
    found = drawn(table, truth="truth")
    best = bidwise.pooled_welfare(*columns(table, "truth", "truth"), 16)
    assert found.optimal_welfare == pytest.approx(best)
    numbers = found.models["fine"]
    assert numbers.welfare == pytest.approx(bidwise.pooled_welfare(*columns(table, "fine", "truth"), 16))
    assert 1 + found.lift("fine", "best possible").difference == pytest.approx(numbers.welfare / best)


def test_auc_has_delongs_interval():
    """DeLong's variance of the difference of two AUCs, from all pairs of a clicked and another ad."""
    table = logged(1_500)
    found = drawn(table)
    clicked = table["click"] == 1
    above = {}
    for model in ("rough", "fine"):
        wins = table[model][clicked][:, None] > table[model][~clicked]
        above[model] = wins.mean(1), wins.mean(0)
        assert found.models[model].auc == pytest.approx(wins.mean())
    errors = [(b - a).var(ddof=1) / len(a) for a, b in zip(above["rough"], above["fine"], strict=True)]
    one = comparison(found, "auc")
    assert one.difference == pytest.approx(above["fine"][0].mean() - above["rough"][0].mean())
    assert one.standard_error == pytest.approx(math.sqrt(sum(errors)), rel=0.01)
    assert one.outcome == "better"
    assert "AUC" in str(found)


def test_the_auc_of_real_auctions_varies_by_auction():
    """Against the spread over data sets whose auctions, each a random number of times, are drawn anew."""
    table = ads_of(300)
    auction = table["auction"]
    table = table | {"click": (np.random.default_rng(5).random(300)[auction] < table["truth"]).astype(int)}
    one = comparison(evaluate(table), "auc")
    random = np.random.default_rng(0)
    spread = []
    for _ in range(400):
        rows = np.concatenate([np.arange(6) + 6 * k for k in random.integers(0, 300, 300)])
        areas = [bidwise.evaluation.auc(table[model][rows], table["click"][rows]) for model in ("rough", "fine")]
        spread.append(areas[1] - areas[0])
    assert one.standard_error == pytest.approx(np.std(spread), rel=0.15)


# the order of rows


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight": "w", "slots": (1.0, 0.5), "reserve": 0.8},
        {"cluster": "advertiser"},
        {"cluster": "advertiser", "by": ["device", "day"]},
        {"by": "advertiser"},
    ],
    ids=str,
)
def test_shuffled_rows_change_nothing(options):
    table = logged()
    rows = np.random.default_rng(7).permutation(3_000)
    found, expected = (json.loads(drawn(each, **options).to_json()) for each in (taken(table, rows), table))
    assert_same_json(found, expected)


# clusters


def test_clusters_of_one_ad_change_nothing():
    table = logged()
    found, expected = drawn(table | {"id": np.arange(3_000)}, cluster="id"), drawn(table)
    assert found.clusters == 3_000
    for metric in ("welfare", "revenue", "surplus", "log_loss", "auc"):
        one, other = comparison(found, metric), comparison(expected, metric)
        for name in ("difference", "ci_low", "ci_high", "standard_error", "relative_ci_low", "effective_clicks"):
            assert getattr(one, name) == pytest.approx(getattr(other, name)), (metric, name)


def test_copies_of_ads_make_nothing_surer():
    table = logged()
    four = taken(table | {"id": np.arange(3_000)}, np.tile(np.arange(3_000), 4))
    once, copied = drawn(table), drawn(four, cluster="id")
    for metric in ("welfare", "revenue", "log_loss", "auc"):
        one, other = comparison(once, metric), comparison(copied, metric)
        assert other.standard_error == pytest.approx(one.standard_error, rel=0.03), metric
    alone = comparison(drawn(four))
    assert alone.standard_error == pytest.approx(comparison(once).standard_error / 2, rel=0.03)


def test_few_clusters_have_students_interval():
    table = logged()
    one = comparison(drawn(table | {"week": table["day"]}, cluster="week"))
    assert (one.ci_high - one.difference) / one.standard_error == pytest.approx(student_quantile(0.975, 3))
    assert "which are few" in " ".join(notes(drawn(table, cluster="day")))


def test_clusters_of_real_auctions_are_sums_of_them():
    table = ads_of(600)
    site = table["auction"] % 50
    one = comparison(evaluate(table | {"site": site}, cluster="site"))
    value = table["bid"] * table["click"]
    shown = {
        model: (table["bid"] * table[model]).reshape(-1, 6).argmax(1) + 6 * np.arange(600)
        for model in ("rough", "fine")
    }
    change = (value[shown["fine"]] - value[shown["rough"]]).reshape(12, 50).sum(0)  # of each site
    assert one.difference == pytest.approx(change.sum() / 600)
    assert one.standard_error == pytest.approx(change.std(ddof=1) * math.sqrt(50) / 600)


def test_few_clusters_are_not_few_auctions_or_clicks():
    """What makes up a difference is counted in auctions and ads, however they are drawn."""
    table = ads_of(2_000) | {"site": np.repeat(np.arange(20), 600)}
    plain, clustered = evaluate(table, by="site"), evaluate(table, cluster="site", by="site")
    for metric in ("welfare", "revenue", "log_loss", "auc"):
        one, other = comparison(clustered, metric), comparison(plain, metric)
        counts = (other.decisive_auctions, other.changed_auctions)
        assert (one.decisive_auctions, one.changed_auctions) == counts
        assert one.outcome != "few"
    assert clustered.concentration.share == pytest.approx(plain.concentration.share)
    for one, other in zip(clustered.segments, plain.segments, strict=True):
        assert one.welfare.changed_auctions == other.welfare.changed_auctions
    plain, clustered = drawn(table), drawn(table, cluster="site")
    for metric in ("welfare", "revenue", "log_loss", "auc"):
        one, other = comparison(clustered, metric), comparison(plain, metric)
        assert one.effective_clicks == pytest.approx(other.effective_clicks)
        assert one.outcome != "few"


def test_a_cluster_inside_an_auction_is_refused():
    table = ads_of(50)
    with pytest.raises(InputError, match=r"cluster must be the same for all ads of an auction; .*auction_size"):
        evaluate(table | {"advertiser": np.arange(300) % 7}, cluster="advertiser")


# segments


@pytest.mark.parametrize("options", [{}, {"weight": "w"}, {"cluster": "advertiser"}], ids=str)
def test_segments_add_up_to_the_whole(options):
    found = drawn(logged(), by=["device", "day"], **options)
    for column in ("device", "day"):
        segments = [each for each in found.segments if each.column == column]
        assert sum(each.welfare.difference for each in segments) == pytest.approx(comparison(found).difference)
        assert sum(each.ads for each in segments) == 3_000
        assert sum(each.clicks for each in segments) == found.models["fine"].clicks
        assert [each.ads for each in segments] == sorted((each.ads for each in segments), reverse=True)


def test_segments_of_real_auctions_add_up_too():
    table = ads_of(500)
    device = np.random.default_rng(0).choice(["phone", "desk"], 3_000)
    found = evaluate(table | {"device": device}, by="device")
    value = np.where(device == "phone", table["bid"] * table["click"], 0)
    shown = [(table["bid"] * table[model]).reshape(-1, 6).argmax(1) + 6 * np.arange(500) for model in ("rough", "fine")]
    (phone,) = [each for each in found.segments if each.value == "phone"]
    assert phone.welfare.difference == pytest.approx((value[shown[1]] - value[shown[0]]).mean())
    assert sum(each.welfare.difference for each in found.segments) == pytest.approx(comparison(found).difference)


def test_intervals_of_segments_hold_at_once():
    found = drawn(logged(), by="device")
    for each in found.segments:
        half = (each.welfare.ci_high - each.welfare.difference) / each.welfare.standard_error
        assert half == pytest.approx(student_quantile(1 - 0.025 / 3, 2_999))


@pytest.mark.parametrize("options", [{}, {"cluster": "advertiser"}])
def test_a_segment_of_all_ads_is_the_whole(options):
    """Also its error: segments are drawn anew as the ads or clusters are."""
    found = drawn(logged() | {"all": ["x"] * 3_000}, by="all", **options)
    (whole,) = found.segments
    for name in ("difference", "ci_low", "ci_high", "standard_error", "relative", "effective_clicks"):
        assert getattr(whole.welfare, name) == pytest.approx(getattr(comparison(found), name)), name


def test_a_segment_without_clicks_tells_nothing():
    table = logged()
    quiet = table | {"click": np.where(table["device"] == "desk", 0, table["click"])}
    (desk,) = [each for each in drawn(quiet, by="device").segments if each.value == "desk"]
    assert (desk.clicks, desk.welfare.outcome) == (0, "few")


def test_the_largest_segments_are_shown():
    found = drawn(logged(), by="advertiser")
    assert len(found.segments) == 50
    assert found.segments[0].ads == np.bincount(logged()["advertiser"]).max()


# heavy bids


def absurd():
    """Three clicked ads bid a million."""
    table = logged(6_000, noise=(0.7, 0.7))
    bid, click = table["bid"].copy(), table["click"].copy()
    bid[:3], click[:3] = 1e6, 1
    return table | {"bid": bid, "click": click}


def test_a_handful_of_ads_that_hold_the_welfare_is_said_first():
    found = drawn(absurd())
    assert found.concentrated
    assert found.concentration.count == 3
    first = str(found).splitlines()[0]
    assert first.startswith("3 ads bring 100 % of the welfare of rough, and the verdict rests on that.")
    assert "Are some bids absurd?" in str(found)
    assert "would be detected" not in str(found)
    assert "very unequal" not in str(found)
    assert not drawn(logged()).concentrated
    assert "rests on that" not in str(drawn(logged()))


def test_concentrated_welfare_of_real_auctions():
    table = absurd() | {"auction": np.arange(6_000) // 6}
    found = evaluate(table)
    assert found.concentrated
    assert "1 auction brings 100 % of the welfare of rough" in str(found)


# what may be said


def test_auctions_of_one_ad_are_named():
    table = ads_of(400, size=1)
    assert "400 of 400 auctions have one ad, which every model shows." in notes(evaluate(table))
    assert "Does --auction name a column of impressions?" in notes(evaluate(table))
    some = ads_of(200) | {"auction": np.concatenate([np.arange(30), 30 + np.arange(1_170) // 6])}
    said = " ".join(notes(evaluate(some)))
    assert "30 of 225 auctions have one ad, which every model shows." in said
    assert "impression" not in said
    assert "one ad" not in " ".join(notes(evaluate(ads_of(200))))


def test_too_few_clicks_are_said():
    found = drawn(logged(3_000, rate=-6.0))
    one = comparison(found)
    assert 0 < one.effective_clicks < EFFECTIVE
    assert one.outcome == "few"
    (sentence,) = comparison_lines(found)
    rests = f"the difference rests on {one.effective_clicks:.1f} effective clicks, {EFFECTIVE} are needed."
    assert sentence.text == f"Too few clicks to compare fine with rough: {rests}"


def test_no_clicks_are_too_few_and_not_the_same():
    table = logged()
    found = drawn(table | {"click": np.zeros(3_000)})
    assert comparison(found).outcome == "few"
    assert (comparison(found).ci_low, comparison(found).ci_high) == (-math.inf, math.inf)
    assert "the same" not in comparison_lines(found)[0].text
    assert "inf" not in str(found)
    assert json.loads(found.to_json())["comparisons"][0]["ci_low"] is None


def test_a_monotone_copy_of_a_model_is_the_same():
    table = logged()
    found = drawn(table | {"fine": table["rough"] ** 3}, bid=2.0)  # where all bid the same
    assert comparison(found).outcome == comparison(found, "auc").outcome == "same"
    assert comparison_lines(found)[0].text.startswith("fine ranks all clicked ads as rough does.")
    halved = drawn(table | {"fine": table["rough"] / 2})
    assert comparison(halved).outcome == comparison(halved, "revenue").outcome == "same"
    assert comparison(halved, "log_loss").outcome != "same"


def test_the_smallest_lift_that_would_be_seen_is_named():
    table = logged(2_000, noise=(0.62, 0.6))
    found = drawn(table)
    one = comparison(found)
    assert one.outcome == "unclear"
    assert f"{100 * one.relative_smallest_lift:.2f} % would be detected 80 % of the time" in str(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"auction_size": 3_000}, "auction_size must be below the number of ads, 3,000, found 3,000"),
        ({"auction_size": 5_000}, "auction_size must be below the number of ads, 3,000, found 5,000"),
        ({"auction_size": 0}, "auction_size must be at least 1, found 0"),
        (
            {"pricing": "vcg", "slots": (1.0, 0.5)},
            "pricing must be gsp or first_price without auction, found vcg with 2 slots; name real auctions",
        ),
    ],
)
def test_what_has_no_answer_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        drawn(logged(), **options)


# written and shown


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight": "w"},
        {"cluster": "advertiser"},
        {"by": ["device", "day"]},
        {"truth": "truth", "ctr": ["rough", "fine", "truth"]},
        {"ctr": "rough"},
    ],
    ids=str,
)
def test_results_are_written_read_and_shown(tmp_path, options):
    found = drawn(logged(1_000), out=tmp_path, **options)
    written = json.loads((tmp_path / "result.json").read_text())
    read = result_from_json(Evaluation, written)
    assert read.to_json() == found.to_json()
    assert str(read) == str(found)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for sentence in comparison_lines(found):
        assert sentence.text in page
    for each in found.segments:
        assert f"{each.ads:,}" in page


def test_columns_of_segments_may_be_called_cluster():
    table = logged() | {"cluster": np.arange(len(logged()["bid"])) % 2}
    found = drawn(table, cluster="advertiser", by="cluster")
    assert found.clusters == len(set(table["advertiser"]))
    assert [segment.value for segment in found.segments] == ["0", "1"]
