"""The made tables of the benchmarks, and how a rival is tuned and fitted on them."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from benchmarks import made_tables
from benchmarks.made_tables import KINDS, make_table
from benchmarks.rivals import Method, Rows, fitted, target_encoded


@pytest.fixture(autouse=True)
def small_tables(monkeypatch):
    monkeypatch.setattr(made_tables, "KINDS", {name: replace(kind, rows=6_000) for name, kind in KINDS.items()})


@pytest.mark.parametrize("kind", KINDS)
def test_a_made_table_follows_from_its_kind_and_seed(kind):
    table = make_table(kind, seed=1)
    assert table.equals(make_table(kind, seed=1))
    assert not table.equals(make_table(kind, seed=2))
    truth, clicks = table["truth"].to_numpy(), table["click"].to_numpy()
    assert truth.mean() == pytest.approx(KINDS[kind].rate)
    assert abs(clicks.sum() - truth.sum()) < 4 * np.sqrt((truth * (1 - truth)).sum())
    assert abs(((clicks - truth) * (truth - truth.mean())).mean()) < 4 * truth.std() * np.sqrt(
        truth.mean() / len(table)
    )
    assert table["bid"].min() > 0


def test_times_ascend_and_give_hour_and_weekday():
    table = make_table("c15", seed=0)
    seconds = table["time"] - 1_700_000_000
    assert table["time"].is_sorted()
    assert (table["hour"] == "h" + (seconds // 3600 % 24).cast(pl.String)).all()
    assert (table["weekday"] == "w" + (seconds // 86_400 % 7).cast(pl.String)).all()


def test_new_ids_arrive_below_a_hierarchy_that_stays():
    table = make_table("arrivals", seed=0)
    old, new = table[:4_800], table[4_800:]
    unseen = [1 - new[name].is_in(old[name].unique().to_list()).mean() for name in ("creative", "brand")]
    assert unseen[0] > 0.2
    assert unseen[1] < 0.05
    assert table.group_by("creative").agg(pl.col("order").n_unique())["order"].max() == 1


def test_rivals_choose_on_validation_rows_and_fit_all_known_rows_again():
    rows, asked = Rows.of("b", seed=0), []
    assert rows.train["time"].max() <= rows.valid["time"].min() <= rows.valid["time"].max() <= rows.test["time"].min()

    def fit(train, other, seed, ctr, rounds=None):
        asked.append((len(train), len(other), ctr, rounds))
        return np.full(len(other), ctr), {"ctr": ctr, "rounds": 7}

    rate = rows.valid["click"].mean()
    settings = tuple({"ctr": ctr} for ctr in (rate / 2, rate, 3 * rate))
    ctr, setting = fitted(Method("constant", "bidwise", fit, settings), rows)
    assert setting == {"ctr": rate, "rounds": 7}
    assert asked[-1] == (4_800, 1_200, rate, 7)
    assert asked[:-1] == [(3_840, 960, each["ctr"], None) for each in settings]
    assert ctr.shape == (1_200,)


def test_a_bag_is_encoded_by_the_mean_rate_of_its_entries_and_their_number():
    pytest.importorskip("sklearn")
    train = pl.DataFrame(
        {"tags": [["t1"], ["t1", "t2"], ["t2"], []] * 50, "x": [1.0] * 200, "click": [1, 1, 0, 0] * 50}
    )
    asked = pl.DataFrame({"tags": [["t1"], ["t1", "t2"], []], "x": [1.0] * 3, "click": [0, 0, 0]})
    _, encoded = target_encoded(train, [asked], smooth=1e-9, seed=0)
    np.testing.assert_allclose(encoded, [[1, 1, 1], [0.75, 2, 1], [0.5, 0, 1]])
