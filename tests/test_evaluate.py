"""`bidwise.evaluate` against plain sums, its calibration, its corrections and its words."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from run_helpers import ads_of, comparison, evaluate
from sklearn.metrics import log_loss, roc_auc_score

import bidwise
from bidwise.checks import InputError
from bidwise.evaluation import level_interval
from bidwise.report.evaluation_sentences import comparison_lines, doubts, headline, notes


def shown(table, model, size=6):
    """Row of the ad with the highest bid times CTR in every auction."""
    ecpm = (table["bid"] * table[model]).reshape(-1, size)
    return ecpm.argmax(1) + size * np.arange(len(ecpm))


def test_numbers_are_plain_sums():
    table = ads_of(500)
    found = evaluate(table)
    value = table["bid"] * table["click"]
    for model in ("rough", "fine"):
        numbers = found.models[model]
        assert numbers.welfare == pytest.approx(value[shown(table, model)].mean())
        assert numbers.auc == pytest.approx(roc_auc_score(table["click"], table[model]))
        assert numbers.log_loss == pytest.approx(log_loss(table["click"], table[model]))
        ecpm = (table["bid"] * table[model]).reshape(-1, 6)
        second = np.sort(ecpm, axis=1)[:, -2]
        rows = shown(table, model)
        assert numbers.revenue == pytest.approx((second / table[model][rows] * table["click"][rows]).mean())
        assert numbers.surplus == pytest.approx(numbers.welfare - numbers.revenue)
    assert (found.auctions, found.ads) == (500, 3000)


def test_a_comparison_is_model_minus_baseline_over_the_same_auctions():
    table = ads_of(500)
    found = evaluate(table)
    rough, fine = shown(table, "rough"), shown(table, "fine")
    value = table["bid"] * table["click"]
    difference = value[fine] - value[rough]
    one = comparison(found)
    assert one.difference == pytest.approx(difference.mean())
    assert one.relative == pytest.approx(difference.mean() / value[rough].mean())
    assert one.decisive_auctions == (rough != fine).sum()
    assert one.changed_auctions == (difference != 0).sum()
    assert one.standard_error == pytest.approx(difference.std(ddof=1) / math.sqrt(500))
    assert one.ci_low < one.difference < one.ci_high
    losses = comparison(found, "log_loss")
    assert losses.difference == pytest.approx(
        log_loss(table["click"], table["fine"]) - log_loss(table["click"], table["rough"])
    )


def test_with_the_truth_welfare_is_expected():
    table = ads_of(500)
    found = evaluate(table, truth="truth")
    value = table["bid"] * table["truth"]
    best = value.reshape(-1, 6).max(1).mean()
    assert found.welfare_of == "truth"
    assert found.optimal_welfare == pytest.approx(best)
    for model in ("rough", "fine"):
        welfare = value[shown(table, model)].mean()
        assert found.models[model].welfare == pytest.approx(welfare)
        assert 1 + found.lift(model, "best possible").difference == pytest.approx(welfare / best)
    assert "expected under the true CTR" in " ".join(notes(found))


def test_a_better_model_is_found_better():
    found = evaluate(ads_of(3_000), truth="truth")
    one = comparison(found)
    assert one.ci_low > 0
    assert found.best == "fine"
    assert comparison_lines(found)[0].text.startswith("fine raises welfare by ")
    assert "fine · ★ best" in str(found)


def test_a_worse_model_is_said_to_be_worse():
    found = evaluate(ads_of(3_000), truth="truth", baseline="fine")
    assert {comparison(found, metric, "rough", "fine").outcome for metric in ("welfare", "log_loss")} == {"worse"}
    assert comparison_lines(found)[0].text.startswith("rough lowers welfare by ")


def test_equal_models_are_not_said_to_differ():
    found = evaluate(ads_of(3_000, noise=(0.3, 0.3)), truth="truth")
    assert "does not change welfare measurably" in comparison_lines(found)[0].text
    assert "would be detected 80 % of the time" in comparison_lines(found)[0].text
    assert found.best is None


def test_shares_of_the_baseline_hold_the_truth_also_for_large_differences():
    """The baseline's level is as uncertain as the difference: 400 data sets of a model that adds some 60 %, and of
    random ads, which lose half of the better model's welfare."""
    tables = [ads_of(200, seed=seed, noise=(9.0, 0.0)) for seed in range(400)]
    gains = [comparison(evaluate(table)) for table in tables]
    losses = [evaluate(table, ctr="fine").welfare_pairs["random ad", "fine"] for table in tables]
    for found in (gains, losses):
        level = np.mean([one.difference / one.relative for one in found])
        lift = np.mean([one.difference for one in found]) / level
        assert abs(lift) > 0.5
        held = np.mean([one.relative_ci_low <= lift <= one.relative_ci_high for one in found])
        assert 0.92 <= held <= 0.98


def test_shares_and_differences_agree_about_zero():
    for seed in range(30):
        one = comparison(evaluate(ads_of(400, seed=seed, noise=(0.6, 0.3))))
        sure = one.outcome in ("better", "worse")
        assert sure == (not one.ci_low <= 0 <= one.ci_high)
        assert not sure or not one.relative_ci_low < 0 < one.relative_ci_high


def test_a_leader_is_named_among_three():
    table = ads_of(3_000)
    found = evaluate(
        table | {"same": table["fine"], "noise": np.full(18_000, 0.2)},
        ctr=["noise", "rough", "fine", "same"],
        truth="truth",
    )
    assert (
        headline(found)
        == "fine has the highest welfare, measurably higher than noise and rough; same cannot be distinguished from it."
    )
    assert headline(found) in str(found).splitlines()


def test_equal_welfare_has_no_winner():
    table = ads_of(100)
    found = evaluate(table | {"fine": table["rough"]})
    assert found.best is None
    assert "★" not in str(found)
    three = evaluate(table | {"fine": table["rough"], "third": table["rough"]}, ctr=["rough", "fine", "third"])
    assert headline(three) == "All models have the same welfare."


def test_a_reserve_above_all_bids_is_noted():
    found = evaluate(ads_of(50), reserve=1e6)
    assert "No ad is shown: no bid reaches the reserve." in notes(found)
    assert found.models["fine"].welfare == 0


def test_the_optimum_keeps_the_reserve():
    table = ads_of(300)
    found = evaluate(table, ctr=["truth", "fine"], truth="truth", reserve=1.0)
    assert found.lift("truth", "best possible").difference == pytest.approx(0)


@pytest.mark.parametrize(
    ("changes", "there", "not_there"),
    [
        ({}, "ads shown, with bids held fixed", "very unequal"),
        ({"bid": lambda table: table["bid"] ** 4}, "very unequal", "rough predicts"),
    ],
)
def test_what_is_odd_is_noted(changes, there, not_there):
    table = ads_of(300)
    said = " ".join(notes(evaluate(table | {name: change(table) for name, change in changes.items()})))
    assert there in said
    assert not_there not in said


def test_a_log_without_its_unclicked_ads_is_doubted_first():
    """Predictions far from the clicks, and weights that make up for ads that were dropped from real auctions."""
    table = ads_of(300)
    found = evaluate(table | {"fine": table["fine"] / 5})
    first = str(found).splitlines()[0]
    assert first.startswith("fine predicts 0.2")
    assert first.endswith("times the observed clicks: is --weight missing or wrong?")
    weights = {"w": np.where(table["click"], 1.0, 10.0)}
    assert str(evaluate(table | weights, weight="w")).startswith("Ads without a click weigh 10 times as much, so")
    assert list(doubts(evaluate(table | {"w": np.ones(1800)}, weight="w"))) == list(doubts(evaluate(table))) == []
    few = ads_of(10)
    assert "off" not in [each.kind for each in evaluate(few | {"fine": few["fine"] * 0.4}).doubts]  # may be chance


def test_few_decisive_auctions_are_too_few_to_tell():
    found = evaluate(ads_of(60))
    one = comparison(found)
    assert one.decisive_auctions < 100
    assert one.outcome == "few"
    assert comparison_lines(found)[0].text.startswith("Too few auctions to compare fine with rough: they show diff")
    assert evaluate(ads_of(3_000)).comparisons[0].outcome != "few"


def test_a_copy_of_a_model_chooses_the_same():
    table = ads_of(200)
    found = evaluate(table | {"fine": table["rough"]})
    (sentence,) = comparison_lines(found)
    assert sentence.kind == "same"
    assert sentence.text == "fine shows the same ads as rough in every auction."
    assert "fine and rough have the same predictions" in " ".join(doubts(found))
    assert comparison(found).difference == 0


def test_different_ads_without_clicks_tell_nothing():
    """No interval from 0 to 0: the models do choose differently, and only luck made that worth nothing."""
    table = ads_of(2_000)
    found = evaluate(table | {"click": np.zeros(12_000)})
    one = comparison(found)
    assert one.decisive_auctions > 100
    assert one.changed_auctions == 0
    assert (one.ci_low, one.ci_high) == (-math.inf, math.inf)
    assert one.outcome == "few"
    assert "welfare differs in 0 auctions, 30 are needed" in comparison_lines(found)[0].text
    assert "inf" not in str(found)
    assert json.loads(found.to_json())["comparisons"][0]["ci_low"] is None


def test_many_decisive_auctions_with_few_clicks_are_too_few():
    found = evaluate(ads_of(3_000, rate=-6.5))
    one = comparison(found)
    assert one.decisive_auctions > 1_000
    assert 0 < one.changed_auctions < 30
    assert one.outcome == "few"
    assert "Too few clicks to compare fine with rough: welfare differs in" in comparison_lines(found)[0].text


def test_losing_every_click_is_no_certainty_of_all():
    """d = -B: the ratio is -1 in every draw, and yet another data set might have had a click."""
    table = ads_of(600)
    click = table["click"].copy()
    fine, rough = shown(table, "fine"), shown(table, "rough")
    click[fine[fine != rough]] = 0
    same = fine[fine == rough]
    click[same] = 0
    one = comparison(evaluate(table | {"click": click}))
    assert one.relative == pytest.approx(-1)
    assert one.relative_ci_low == -1
    assert one.relative_ci_high > -0.95
    assert one.outcome == "worse"


def test_a_constant_difference_is_as_sure_in_shares():
    table = {"auction": np.repeat(np.arange(200), 2), "bid": np.tile([1.0, 2.0], 200), "click": np.ones(400)}
    table |= {"rough": np.tile([0.9, 0.1], 200), "fine": np.tile([0.1, 0.9], 200)}
    one = comparison(evaluate(table))
    assert (one.ci_low, one.ci_high) == (1, 1)
    assert (one.relative_ci_low, one.relative_ci_high) == (pytest.approx(1), pytest.approx(1))


def test_one_model_alone():
    found = evaluate(ads_of(50), ctr="rough")
    assert found.comparisons == ()
    assert comparison_lines(found) == []
    assert "rough brings a welfare of " in str(found)
    assert "against ranking by the highest bid" in str(found)


def test_three_models_are_compared_pair_by_pair():
    table = ads_of(300)
    found = evaluate(table | {"third": 1 - table["fine"]}, ctr=["rough", "fine", "third"], baseline="fine")
    pairs = list(dict.fromkeys((c.model, c.baseline) for c in found.comparisons))
    assert pairs == [("rough", "fine"), ("third", "fine"), ("third", "rough")]
    assert any("3 pairs of models were compared" in note for note in notes(found))


def test_slots_pricing_reserve_and_squash_are_those_of_run_auction():
    table = ads_of(300)
    rules = {"slots": (1.0, 0.6), "pricing": "vcg", "reserve": 0.7, "squash": 0.8}
    found = evaluate(table, **rules)
    sold = bidwise.run_auction(table["fine"], table["bid"], np.arange(0, 1801, 6), **rules)
    assert found.models["fine"].welfare == pytest.approx(sold.welfare(table["click"], table["bid"]).mean().item())
    assert found.models["fine"].revenue == pytest.approx(sold.revenue(table["click"]).mean().item())


@pytest.mark.parametrize("with_truth", [False, True])
def test_all_options_together_are_what_each_means(with_truth):
    """Sampling, positions, weights and slots at once, against plain sums."""
    alpha, rate = np.array([1.0, 0.6, 0.3]), 0.4
    random = np.random.default_rng(1)
    table = ads_of(400)
    table |= {"slot": random.integers(1, 4, size=2400), "w": random.exponential(size=2400) ** 2}
    options = {"slots": alpha, "position": "slot", "weight": "w", "sampling_rate": rate}
    found = evaluate(table, **options, **({"truth": "truth"} if with_truth else {}))
    weight, labels = table["w"].reshape(-1, 6).mean(1), table["click"] / alpha[table["slot"] - 1]
    value = table["bid"] * (table["truth"] if with_truth else labels)
    welfare = {}
    for model in ("rough", "fine"):
        ctr = table[model] / (table[model] + (1 - table[model]) / rate)
        order = np.argsort(-(table["bid"] * ctr).reshape(-1, 6), axis=1, kind="stable")[:, :3]
        welfare[model] = (np.take_along_axis(value.reshape(-1, 6), order, axis=1) * alpha).sum(1)
        assert found.models[model].welfare == pytest.approx(np.average(welfare[model], weights=weight))
        losses = -(labels * np.log(ctr) + (1 - labels) * np.log1p(-ctr))
        assert found.models[model].log_loss == pytest.approx(np.average(losses, weights=table["w"]))
    difference = np.average(welfare["fine"] - welfare["rough"], weights=weight)
    assert comparison(found).difference == pytest.approx(difference)
    assert comparison(found).relative == pytest.approx(difference / np.average(welfare["rough"], weights=weight))
    if with_truth:
        best = (-np.sort(-value.reshape(-1, 6), axis=1)[:, :3] * alpha).sum(1)
        assert found.optimal_welfare == pytest.approx(np.average(best, weights=weight))


def test_revenue_is_judged_by_the_auctions_whose_revenue_differs():
    """The same ads are shown, at other prices."""
    table = ads_of(500)
    halved = evaluate(table | {"fine": table["rough"] / 2})
    assert comparison(halved).decisive_auctions == 0
    assert comparison(halved, "revenue").outcome == "same"
    bent = evaluate(table | {"fine": table["rough"] * np.where(np.arange(3000) % 6 < 3, 1.0, 0.999)})
    assert comparison(bent).decisive_auctions < 30
    assert comparison(bent, "revenue").changed_auctions > 30
    assert comparison(bent, "revenue").outcome in ("better", "worse", "unclear")


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_bids_of_any_unit_can_be_read(scale):
    table = ads_of(50)
    found = evaluate(table | {"bid": scale * table["bid"]})
    (row,) = [line for line in str(found).splitlines() if line.startswith("rough · baseline")]
    printed = row.split()[3]
    assert float(printed.replace(",", "")) == pytest.approx(found.models["rough"].welfare, rel=0.05)
    assert len(printed) <= 11


@pytest.mark.parametrize("click", [0, 1])
def test_one_class_data_says_that_auc_is_undefined(click):
    table = ads_of(50)
    found = evaluate(table | {"click": np.full(300, click)})
    assert math.isnan(found.models["fine"].auc)
    assert any("AUC and normalised entropy are not defined" in note for note in notes(found))
    assert json.loads(found.to_json())["models"]["fine"]["auc"] is None


def test_files_are_written_whole(tmp_path, monkeypatch):
    out = tmp_path / "deep" / "out"
    evaluate(ads_of(100), out=out)
    files = ["environment.json", "report.html", "result.json"]
    assert sorted(path.name for path in out.iterdir()) == files
    assert json.loads((out / "result.json").read_text())["ads"] == 600
    before = (out / "result.json").read_text()

    def fails(*_):
        raise RuntimeError

    other = tmp_path / "other"
    (other / "report.html").mkdir(parents=True)
    with pytest.raises(InputError, match=r"found a folder of that name"):
        evaluate(ads_of(50), out=other)
    assert [path.name for path in other.iterdir()] == ["report.html"]
    with pytest.raises(InputError, match="out must be a folder, found the file"):
        evaluate(ads_of(50), out=out / "result.json" / "deeper")

    monkeypatch.setattr("bidwise.report.build.runs_page", fails)
    with pytest.raises(RuntimeError):
        evaluate(ads_of(50), out=out)
    assert (out / "result.json").read_text() == before
    assert sorted(path.name for path in out.iterdir()) == files


def test_progress_is_told():
    seen = []
    evaluate(ads_of(100), progress=lambda work, share: seen.append((work, share)))
    assert seen == [("rough", 0.0), ("rough", 1.0), ("fine", 0.0), ("fine", 1.0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"auction": "auction", "auction_size": 5}, "auction cannot be combined with auction_size"),
        ({"baseline": "other"}, "baseline must be one of the ctr columns, rough, fine, found 'other'"),
        ({"ctr": []}, "ctr must name at least one column"),
        ({"slots": (1.0, 1.5)}, "slots must be positive and must not rise"),
        ({"pricing": "gps"}, "pricing must be one of .*; did you mean 'gsp'?"),
        ({"reserve": -1.0}, "reserve must be finite and no less than 0, found -1"),
        ({"sampling_rate": 0.0}, r"sampling_rate must be in \(0, 1\], found 0"),
        ({"auction_size": 2.5}, "auction_size must be a whole number, found 2.5"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        evaluate(ads_of(20), **options)


def test_levels_are_means_with_an_interval_on_the_scale_of_their_logarithm():
    table = ads_of(500)
    metrics = evaluate(table).models["fine"]
    value = (table["bid"] * table["click"])[shown(table, "fine")]
    interval = metrics.intervals["welfare"]
    half = 1.9647 * value.std(ddof=1) / math.sqrt(500)  # Student's quantile with 499 degrees of freedom
    assert interval.estimate == metrics.welfare
    bounds = (metrics.welfare * math.exp(-half / metrics.welfare), metrics.welfare * math.exp(half / metrics.welfare))
    assert (interval.low, interval.high) == pytest.approx(bounds, rel=1e-4)
    assert metrics.intervals["auc"].low < metrics.auc < metrics.intervals["auc"].high < 1
    assert metrics.intervals["log_loss"].estimate == metrics.log_loss
    assert level_interval([0.0, 0.0, 0.0]).estimate == 0


def test_references_are_plain_means():
    table, reserve = ads_of(300), 0.8
    found = evaluate(table, truth="truth", reserve=reserve)
    value, bid = table["bid"] * table["truth"], table["bid"].reshape(-1, 6)
    allowed, value = bid >= reserve, value.reshape(-1, 6)
    best = np.where(allowed, value, 0).max(1)
    by_bid = np.where(allowed.any(1), value[np.arange(300), bid.argmax(1)], 0)
    at_random = np.where(allowed, value, 0).sum(1) / np.maximum(allowed.sum(1), 1)
    for name, expected in (("best possible", best), ("highest bid", by_bid), ("random ad", at_random)):
        assert found.references[name].welfare == pytest.approx(expected.mean())
    (one,) = [each for each in found.against if each.pair == ("fine", "random ad")]
    assert one.difference == pytest.approx(found.models["fine"].welfare - at_random.mean())
    assert list(evaluate(table, bid=2.0).references) == ["random ad"]  # ranking by bid would be the same


def test_references_of_every_possible_auction():
    table = {name: column for name, column in ads_of(100).items() if name != "auction"}
    found = evaluate(table, auction_size=6, slots=(1.0, 0.5))
    value = table["bid"] * table["click"]
    assert found.references["random ad"].welfare == pytest.approx(1.5 * value.mean())
    highest = bidwise.pooled_welfare(np.full(600, 0.5), table["click"], table["bid"], 6, slots=(1.0, 0.5))
    assert found.references["highest bid"].welfare == pytest.approx(highest)


def test_the_share_of_the_optimum_is_the_first_line():
    found = evaluate(ads_of(2_000), truth="truth")
    share = 100 * found.models["fine"].welfare / found.optimal_welfare
    assert str(found).startswith(f"fine reaches {share:.2f} % [")


def test_without_auctions_models_are_compared_at_several_sizes():
    table = {name: column for name, column in ads_of(3_000).items() if name != "auction"}
    found = bidwise.evaluate(table, ctr=["rough", "fine"], click="click", bid="bid")
    assert [each.ads for each in found.sizes] == [2, 8, 32, 256]
    assert [each.enough for each in found.sizes] == [True, True, True, False]
    assert found.options["auction_size"] == 32  # the largest that these ads can judge
    same = evaluate(table, auction_size=8, auction=None)
    assert found.sizes[1].comparisons[0].difference == comparison(same).difference
    assert "These ads can detect a change of 10 % in auctions of 2, 8 and 32 ads." in str(found)
    one = bidwise.evaluate(table, ctr="fine", click="click", bid="bid")
    assert one.sizes[0].comparisons[0].baseline == "random ad"
    sure = tuple(replace(each, comparisons=found.sizes[0].comparisons) for each in found.sizes)
    assert "in auctions of 2, 8, 32 and 256 ads." in str(replace(found, sizes=sure))


def test_equal_models_are_not_said_to_be_too_few_to_judge():
    table = {name: column for name, column in ads_of(600).items() if name != "auction"}
    said = str(evaluate(table | {"fine": table["rough"]}, auction=None))
    assert "The models rank all clicked ads alike in auctions of every size." in said
    assert "too few to detect" not in said


def doubted(table, **options):
    return [doubt.kind for doubt in evaluate(table, **options).doubts]


def test_a_healthy_table_raises_no_doubt():
    assert doubted(ads_of(500)) == []
    coarse = ads_of(500)
    coarse |= {name: coarse[name].round(1) for name in ("rough", "fine")}
    assert doubted(coarse | {"bid": np.ones(3000)}) == []  # many ads look alike, but their clicks differ


def test_doubts_are_raised():
    table = ads_of(500)
    twice = {name: np.repeat(column, 2) for name, column in table.items()}
    assert doubted(twice) == ["copies"]
    assert evaluate(twice).doubts[0].count == 3000
    assert doubted({k: x for k, x in twice.items() if k != "auction"}, auction=None, auction_size=4) == ["copies"]
    assert doubted(table | {"truth": table["click"]}, truth="truth") == ["truth_is_click"]
    assert doubted(table | {"truth": np.full(3000, 0.9)}, truth="truth") == ["truth_off"]
    assert doubted(table | {"fine": 0.1 + 0.8 * table["click"]}) == ["too_good"]
    assert doubted(table | {"fine": table["rough"]}) == ["same"]
    assert doubted(table | {"fine": np.full(3000, 0.2)}) == ["constant"]
    assert doubted(table | {"fine": np.full(3000, 0.2)}, bid=1) == ["equal_bids"]
    few = ads_of(3_000, rate=-6.5)
    assert "few_clicks" in doubted(few | {"click": few["click"] * (np.arange(18_000) % 2)})
    rare = ads_of(20_000, rate=-7)
    units = evaluate(rare | {"fine": np.minimum(100 * rare["truth"], 1)}).doubts
    assert [(doubt.kind, doubt.other) for doubt in units] == [("units", "per cent")]
    assert doubted(table | {"fine": 1 / (1 + np.exp(-table["truth"]))}) == ["sigmoid_twice"]


def test_few_clicks_are_said_before_any_number():
    table = ads_of(100)
    table["click"] = np.where(np.arange(600) % 100 == 7, 1, 0)
    said = str(evaluate(table))
    assert said.startswith("Only 6 clicks in 600 ads: too few to judge a model.")
    assert "AUC 0." not in said


def test_winners_of_a_constant_model_pay_what_is_said():
    table = ads_of(200)
    constant = evaluate(table | {"fine": np.full(1200, 0.2)}).models["fine"]
    second = np.sort(table["bid"].reshape(-1, 6), axis=1)[:, -2]
    clicked = table["click"].reshape(-1, 6)[np.arange(200), table["bid"].reshape(-1, 6).argmax(1)]
    assert constant.revenue == pytest.approx((second * clicked).mean())  # the next bid
    tied = evaluate(table | {"fine": np.full(1200, 0.2)}, bid=3.0).models["fine"]
    assert tied.revenue == pytest.approx(tied.welfare)  # their own bid
