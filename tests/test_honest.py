"""Nothing is found where there is nothing: intervals in simulation, shuffled clicks, and splits that cannot leak.

How often intervals over auctions hold the truth is in test_intervals.py, and in many worlds in benchmarks/coverage.py.
"""

import math
import os

import numpy as np
import polars as pl
import pytest
from helpers import PROPERTY
from hypothesis import given, settings
from hypothesis import strategies as st

import bidwise
from bidwise.data.ad_table import auction_ids
from bidwise.data.columns import Encoder
from bidwise.data.splits import split
from bidwise.table import train
from bidwise.table.config import resolved
from bidwise.table.prepare import prepare

SPLITS = ("train", "valid", "test")
LONG = "BIDWISE_LONG" in os.environ  # make test-long simulates more often


def chance(found, of, share):
    """Whether ``found`` of ``of`` simulations may be ``share`` of all: within four standard errors."""
    return abs(found - share * of) <= 4 * math.sqrt(of * share * (1 - share))


def at_most(found, of, share):
    return found <= share * of or chance(found, of, share)


def market(seed, ads=1_500, shuffled=False):
    """Ads with two noisy models of their CTR, equally good; ``shuffled`` clicks are those of other ads."""
    random = np.random.default_rng(seed)
    logits = random.normal(-1, 1, ads)
    clicks = (random.random(ads) < 1 / (1 + np.exp(-logits))).astype(int)
    models = {name: 1 / (1 + np.exp(-logits - random.normal(0, 0.7, ads))) for name in ("first", "second")}
    return models | {
        "click": random.permutation(clicks) if shuffled else clicks,
        "bid": np.exp(random.normal(0, 0.5, ads)),
        "auction": np.arange(ads) // 5,
    }


@pytest.mark.parametrize("auctions", [{"auction": "auction"}, {"auction_size": 5}], ids=["real", "pooled"])
@pytest.mark.parametrize("shuffled", [False, True], ids=["equal models", "shuffled clicks"])
def test_an_evaluation_finds_no_difference_where_there_is_none(auctions, shuffled):
    """Verdicts at 95 % are wrong in 5 of 100 evaluations, for every metric; AUC of shuffled clicks is 0.5."""
    simulations, clear, areas = 400 if LONG else 25, {}, []
    for seed in range(simulations):
        columns = {"ctr": ["first", "second"], "click": "click", "bid": "bid", **auctions}
        found = bidwise.evaluate(market(seed, shuffled=shuffled), **columns)
        areas.append(found.models["first"].auc)
        for each in found.comparisons:
            clear[each.metric] = clear.get(each.metric, 0) + each.outcome.clear
    assert {"welfare", "revenue", "log_loss", "auc"} <= set(clear)
    assert {metric: count for metric, count in clear.items() if not at_most(count, simulations, 0.05)} == {}
    if shuffled:
        assert abs(np.mean(areas) - 0.5) < 4 * np.std(areas) / math.sqrt(simulations)
        assert max(abs(area - 0.5) for area in areas) < 0.08
    else:
        assert min(areas) > 0.6


@pytest.mark.parametrize("seed", range(8 if LONG else 1))
def test_training_on_shuffled_clicks_learns_nothing_and_says_so(tmp_path, seed):
    random = np.random.default_rng(seed)
    table = {"site": random.integers(0, 20, 6_000).astype(str), "age": random.random(6_000), "bid": np.ones(6_000)}
    rates = 0.1 + 0.03 * table["site"].astype(int)
    clicks = (random.random(6_000) < rates).astype(int)
    options = {"bid": "bid", "click": "click", "budget_seconds": 0.0, "epochs": 2, "seed": seed}
    options["model"] = "logistic_regression"
    areas = {}
    for name, column in (("true", clicks), ("shuffled", random.permutation(clicks))):
        result = train(table | {"click": column}, out=tmp_path / name, recipe="auto", **options)
        tested = result.evaluation.models[result.chosen]
        areas[name] = tested.auc
        if name == "shuffled":
            assert result.chosen == "log_loss"
            clear = [each.outcome.clear for each in result.evaluation.comparisons if each.metric == "welfare"]
            assert at_most(sum(clear), len(clear), 0.05)
            assert tested.normalised_entropy > 0.99
            assert result.table.leaks == {}
    spread = 1 / math.sqrt(12 * 600 * 0.4 * 0.6)  # of the AUC of 600 test ads without any order
    assert abs(areas["shuffled"] - 0.5) < 4 * spread
    assert areas["true"] > 0.5 + 4 * spread


# No leak between splits, by construction


@st.composite
def tables(draw):
    """Rows whose auctions have keys that come back anywhere, with times that tie and contradict their order."""
    rows = draw(st.integers(60, 400))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    keys = draw(st.sampled_from([25, 40, 60]))
    auction = random.integers(0, keys, rows) if draw(st.booleans()) else np.sort(random.integers(0, keys, rows))
    several = draw(st.booleans())  # a key of two columns, each of which repeats
    frame = {"a": auction // 7, "b": auction % 7} if several else {"a": auction}
    lasting = draw(st.sampled_from([0, 1, 50]))  # how long an auction goes on
    times = np.floor(auction * draw(st.sampled_from([0.0, 0.1, 1.0])) + random.integers(0, lasting + 1, rows))
    return auction, pl.DataFrame(frame), times if draw(st.booleans()) else None, draw(st.integers(0, 9))


@PROPERTY
@given(tables())
def test_no_auction_is_in_two_splits_and_none_learns_from_the_future(made):
    auction, frame, times, seed = made
    if len(np.unique(auction)) < 20:
        return
    parts = split(len(auction), auction=auction_ids(frame), time=times, seed=seed)
    rows = np.concatenate([parts[name].rows for name in SPLITS])
    assert np.array_equal(np.sort(rows), np.arange(len(auction)))
    keys = [set(auction[parts[name].rows].tolist()) for name in SPLITS]
    assert sum(map(len, keys)) == len(set.union(*keys))
    assert all(keys)
    for part in parts.values():
        inside = np.split(auction[part.rows], part.offsets[1:-1])
        assert all(len(set(each.tolist())) == 1 for each in inside)
        assert len(inside) == len({each[0] for each in inside})
    if times is not None:
        began = [[times[auction == key].min() for key in part] for part in keys]
        assert max(began[0]) <= min(began[1])
        assert max(began[1]) <= min(began[2])


@PROPERTY
@given(st.integers(40, 300), st.integers(1, 400), st.booleans(), st.integers(0, 99))
def test_rows_without_auctions_are_in_one_split_and_in_the_order_of_time(rows, ties, timed, seed):
    times = np.random.default_rng(seed).integers(0, ties, rows) if timed else None
    parts = split(rows, auction=None, time=times, seed=seed)
    assert np.array_equal(np.sort(np.concatenate([part.rows for part in parts.values()])), np.arange(rows))
    if timed:
        train_, valid, test = (times[parts[name].rows] for name in SPLITS)
        assert train_.max() <= valid.min()
        assert valid.max() <= test.min()


@settings(PROPERTY, max_examples=8)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_encoders_and_units_know_the_training_rows_alone(tmp_path_factory, seed, grouped):
    """Other values, clicks and bids in validation and test rows change neither ids nor bins, nor what bids are in."""
    random, rows = np.random.default_rng(seed), 300
    table = pl.DataFrame(
        {
            "site": [f"s{site}" for site in random.integers(0, 9, rows)],  # kinds are those of all rows
            "age": random.random(rows),
            "click": (np.arange(rows) % 3 == 0).astype(int),
            "bid": random.uniform(1, 2, rows),
            "auction": np.arange(rows) // 4,
            "time": np.arange(rows),
        }
    )
    roles = {"click": "click", "bid": "bid", "time": "time"} | ({"auction": "auction"} if grouped else {})
    config = resolved({"data": {**roles, **({} if grouped else {"ignore": ["auction"]})}})
    first = prepare(table, config, tmp_path_factory.mktemp("first") / "run")
    later = table["time"].to_numpy() >= first.store.splits["train"]
    changed = table.with_columns(
        pl.Series("site", np.where(later, random.choice(["new", "s0", "s8"], rows), table["site"])),
        pl.Series("age", np.where(later, 1e6 * random.random(rows), table["age"])),
        pl.Series("bid", np.where(later, 50 * table["bid"], table["bid"])),
        pl.Series("click", np.where(later, 1 - table["click"], table["click"])),
    )
    second = prepare(changed, config, tmp_path_factory.mktemp("second") / "run")
    encoders = [Encoder.read(each.store.folder).to_json() for each in (first, second)]
    assert encoders[0] == encoders[1]
    assert encoders[0]["columns"]
    for name in ("mean_bid", "median_bid", "bid_cap", "min_count"):
        assert getattr(first.facts, name) == getattr(second.facts, name)
    for column in ("features", "clicks", "bids"):
        assert np.array_equal(*(each.store.column("train", column) for each in (first, second)))
    assert not np.array_equal(*(each.store.column("test", "features") for each in (first, second)))
