"""Which loss is kept: candidates of no worth must not be, a better one must be."""

import os

import numpy as np
import pytest

import bidwise
from bidwise.evaluation.units import Units
from bidwise.study.compare import choose, power

SEEDS = 200 if "BIDWISE_LONG" in os.environ else 60  # make test-long simulates more often


def of_auctions(welfare, weights=None):
    """Welfare per auction as `Metrics.per_unit` gives it."""
    columns = {name: np.asarray(column) * (1.0 if weights is None else weights) for name, column in welfare.items()}
    return {
        name: Units(sums={"welfare": column}, weight=weights, shown=np.zeros((len(column), 1)))
        for name, column in columns.items()
    }


def candidates_of(seed, *, auctions=600, size=6, bid_spread=0.5, click_rate=0.2, candidates=5, better=None):
    """Welfare per auction of models that know the CTR up to noise of one strength: none is better than another."""
    random = np.random.default_rng(seed)
    bids = np.exp(bid_spread * random.normal(size=(auctions, size)))
    logits = np.log(click_rate / (1 - click_rate)) + random.normal(size=(auctions, size))
    clicked = random.random((auctions, size)) < 1 / (1 + np.exp(-logits))
    found = {}
    for name in ["log_loss", *(f"candidate_{k}" for k in range(1, candidates))]:
        noise = 0.2 if name == better else 1.0
        ecpm = bids / (1 + np.exp(-logits - noise * random.normal(size=bids.shape)))
        found[name] = (bids * clicked)[np.arange(auctions), ecpm.argmax(axis=1)]
    return found


def symmetric_noise(seed):
    random = np.random.default_rng(seed)
    base = random.exponential(size=300)
    return {"log_loss": base, **{f"candidate_{k}": base + random.normal(size=300) for k in range(1, 5)}}


NOISE = {
    "symmetric noise": symmetric_noise,
    "models": lambda seed: candidates_of(seed),
    "heavy-tailed bids": lambda seed: candidates_of(seed, bid_spread=2.0),
    "rare clicks": lambda seed: candidates_of(seed, auctions=3000, click_rate=0.005),
    "few auctions": lambda seed: candidates_of(seed, auctions=60, click_rate=0.4),
    "ten candidates": lambda seed: candidates_of(seed, candidates=10),
}


@pytest.mark.parametrize("kind", NOISE)
def test_log_loss_is_kept_when_all_candidates_are_noise(kind):
    found = [choose(of_auctions(NOISE[kind](seed)), "log_loss") for seed in range(SEEDS)]
    assert np.mean([choice.chosen == "log_loss" for choice in found]) >= 0.95
    told = np.mean([entry.outcome != "few" for choice in found for entry in choice.candidates[1:]])
    assert told > 0.5 or kind == "few auctions"  # kept by its interval, not because nothing could be told


@pytest.mark.parametrize("spread", [0.5, 1.5])
def test_a_clearly_better_candidate_is_chosen(spread):
    chosen = [
        choose(
            of_auctions(candidates_of(seed, auctions=4000, bid_spread=spread, better="candidate_3")), "log_loss"
        ).chosen
        for seed in range(20)
    ]
    assert chosen.count("candidate_3") >= 18


def test_of_several_better_ones_the_best_is_chosen():
    base = np.random.default_rng(0).exponential(size=200)
    found = choose(of_auctions({"a": base, "b": base + 0.1, "c": base + 0.2, "d": base - 0.1}), "a")
    assert found.chosen == "c"
    assert [entry.outcome for entry in found.candidates] == ["same", "better", "better", "worse"]
    assert found.level == pytest.approx(1 - 0.05 / 3)


def test_a_worse_candidate_and_the_same_candidate_do_not_win():
    base = np.random.default_rng(0).exponential(size=200)
    found = choose(of_auctions({"a": base, "b": base, "c": base - 1}), "a")
    assert found.chosen == "a"
    assert [entry.outcome for entry in found.candidates] == ["same", "same", "worse"]


def test_a_gain_in_a_handful_of_auctions_is_not_enough():
    base = np.zeros(1000)
    gain = base.copy()
    gain[:20] = 5.0  # always a gain, but 20 auctions are too few to bound what the others hide
    found = choose(of_auctions({"a": base, "b": gain}), "a")
    assert (found.chosen, found.candidates[1].outcome, found.candidates[1].changed_auctions) == ("a", "few", 20)


def test_weights_decide():
    random = np.random.default_rng(0)
    base = random.exponential(size=400)
    change = np.where(np.arange(400) < 200, 1.0, -1.0) + 0.1 * random.normal(size=400)
    towards = np.where(np.arange(400) < 200, 9.0, 1.0)
    both = {"a": base, "b": base + change}
    assert choose(of_auctions(both), "a").chosen == "a"
    found = choose(of_auctions(both, towards), "a")
    assert found.chosen == "b"
    assert found.candidates[1].welfare == pytest.approx(np.average(base + change, weights=towards))


def test_intervals_agree_with_those_of_the_evaluation():
    """With a single candidate the level is 95 %, and the interval is that of `unit_interval`."""
    base, other = candidates_of(0, candidates=2).values()
    entry = choose(of_auctions({"a": base, "b": other}), "a").candidates[1]
    interval = bidwise.evaluation.unit_interval(other - base)
    assert (entry.ci_low, entry.ci_high) == pytest.approx((interval.low, interval.high))


def test_welfare_is_said_in_units_of_bids():
    base, other = candidates_of(0, candidates=2).values()
    seen = of_auctions({"a": base, "b": other})
    one, thrice = (choose(seen, "a", unit=unit).candidates[1] for unit in (1.0, 3.0))
    for name in ("welfare", "difference", "ci_low", "ci_high"):
        assert getattr(thrice, name) == pytest.approx(3 * getattr(one, name))
    assert thrice.changed_auctions == one.changed_auctions


def pooled_candidates(seed, *, ads=1500, size=8, candidates=5, better=None):
    """Ads that are in no auctions: models that know the CTR up to noise, in all auctions that could be drawn."""
    random = np.random.default_rng(seed)
    bids, logits = np.exp(0.5 * random.normal(size=ads)), random.normal(size=ads) - 1
    clicks = random.random(ads) < 1 / (1 + np.exp(-logits))
    found = {}
    for name in ["log_loss", *(f"candidate_{k}" for k in range(1, candidates))]:
        noise = 0.2 if name == better else 1.0
        ctr = 1 / (1 + np.exp(-logits - noise * random.normal(size=ads)))
        found[name] = bidwise.evaluation.Metrics(ctr, clicks, bids, size=size).per_unit
    return found


def test_noise_is_refused_where_ads_are_in_no_auctions():
    found = [choose(pooled_candidates(seed), "log_loss") for seed in range(SEEDS)]
    assert np.mean([choice.chosen == "log_loss" for choice in found]) >= 0.95
    assert np.mean([entry.outcome != "few" for choice in found for entry in choice.candidates[1:]]) > 0.9
    assert (found[0].auctions, found[0].ads) == (None, 1500)


def test_a_better_model_of_pooled_ads_is_chosen():
    for seed in range(5):
        found = choose(pooled_candidates(seed, ads=6000, better="candidate_2"), "log_loss")
        assert found.chosen == "candidate_2"
        assert found.candidates[0].outcome == "same"


def test_a_better_model_of_few_clicks_is_not_chosen():
    found = choose(pooled_candidates(0, ads=60, better="candidate_2"), "log_loss")
    assert found.chosen == "log_loss"
    assert {entry.outcome for entry in found.candidates[1:]} == {"few"}


def test_the_power_is_half_the_interval_of_a_comparable_model():
    """Of noise of one size it falls with the root of the auctions, and few auctions are not told to decide."""
    widths = {}
    for auctions in (400, 6400, 64_000):
        seen = of_auctions(candidates_of(0, auctions=auctions, candidates=2))
        base, rival = seen.values()
        found = power(base, rival, candidates=3)
        widths[auctions] = found.half_width
        entry = choose(seen, "log_loss", of=3).candidates[1]
        assert found.half_width == pytest.approx((entry.ci_high - entry.ci_low) / 2 / base.mean("welfare"))
        assert found.enough == (auctions == 64_000)
    assert widths[400] / widths[6400] == pytest.approx(4, rel=0.25)


def test_ads_of_which_too_few_decide_have_no_power():
    base = np.ones(1000)
    found = power(*of_auctions({"a": base, "b": base + (np.arange(1000) < 5)}).values(), candidates=1)
    assert np.isnan(found.half_width)
    assert not found.enough


def test_intervals_may_hold_for_more_candidates_than_there_are():
    seen = of_auctions(candidates_of(0, candidates=2))
    one, three = (choose(seen, "log_loss", of=count) for count in (1, 3))
    assert three.level == pytest.approx(1 - 0.05 / 3)
    assert three.candidates[1].ci_low < one.candidates[1].ci_low


def test_an_unknown_baseline_is_refused():
    with pytest.raises(bidwise.InputError, match=r"baseline must be one of a, b, found 'c'"):
        choose(of_auctions({"a": [1.0], "b": [1.0]}), "c")
    assert choose(of_auctions({"a": [1.0, 2.0]}), "a").chosen == "a"
