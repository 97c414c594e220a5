"""Columns and rows that make a test look better than the future: what stops a training, and what is said of it."""

import re

import numpy as np
import polars as pl
import pytest

import bidwise
from bidwise.cli import app
from bidwise.report.train_page import described
from bidwise.report.train_sentences import table_doubts, table_notes, train_verdict
from bidwise.table import train
from bidwise.table.config import resolved
from bidwise.table.leaks import LEAK, TELLS, placements
from bidwise.table.prepare import prepare

ROLES = {"click": "click", "bid": "bid"}
QUICK = {"model": "logistic_regression", "loss": "log_loss", "epochs": 1}


def market(ads=3000, seed=0):
    random = np.random.default_rng(seed)
    site = random.integers(0, 8, ads)
    click = random.random(ads) < 0.1 + 0.05 * site
    return pl.DataFrame({"site": site, "bid": random.uniform(0.5, 2, ads), "click": click.astype(int)})


def with_dwell(table, honest=0.0, seed=1):
    """A column that is known after the click: seconds on the page, but for a share of the ads."""
    random = np.random.default_rng(seed)
    known = random.random(len(table)) >= honest
    return table.with_columns(dwell=pl.Series(table["click"].to_numpy() * known * random.exponential(30, len(table))))


def prepared(table, folder, **data):
    return prepare(table, resolved({}, {"data.click": "click", "data.bid": "bid"} | data), folder)


def test_a_column_that_tells_the_clicks_stops_training(tmp_path):
    table = with_dwell(market())
    with pytest.raises(bidwise.InputError, match=r"keep must name 'dwell'.*AUC (1|0.99).*--ignore dwell.*--keep dwell"):
        train(table, out=tmp_path / "run", **ROLES, **QUICK)
    kept = train(table, out=tmp_path / "run", **ROLES, **QUICK, keep=["dwell"])
    assert kept.table.leaks["dwell"] > TELLS
    ignored = train(table, out=tmp_path / "ignored", **ROLES, **QUICK, ignore=["dwell"])
    assert ignored.table.leaks == {}
    assert kept.evaluation.models["log_loss"].auc > 0.99 > ignored.evaluation.models["log_loss"].auc


def test_a_value_that_tells_the_clicks_stops_training(tmp_path):
    """Half of the clicked ads have it, and no other: an AUC of 0.75 alone would stop nothing."""
    table = market()
    random = np.random.default_rng(2)
    refund = pl.Series(np.where((table["click"].to_numpy() == 1) & (random.random(len(table)) < 0.5), "yes", "no"))
    with pytest.raises(bidwise.InputError, match=r"100 % of .* ads with refund = 'yes'") as error:
        prepared(table.with_columns(refund=refund), tmp_path / "run")
    assert error.value.argument == "keep"
    facts = prepared(table.with_columns(refund=refund), tmp_path / "kept", **{"data.keep": ["refund"]}).facts
    assert facts.telling["refund"].click_rate == 1
    assert facts.leaks == {}
    value = pl.Series(np.where(refund == "yes", random.random(len(table)), np.nan))  # in each bin of it too few ads
    with pytest.raises(bidwise.InputError, match=r"100 % of .* ads with 'value' filled in"):
        prepared(table.with_columns(value=value), tmp_path / "value")


def test_a_value_that_is_never_clicked_is_a_warning(tmp_path):
    table = market(9000)
    random = np.random.default_rng(2)
    hidden = pl.Series(np.where((table["click"].to_numpy() == 0) & (random.random(len(table)) < 0.3), "no", "yes"))
    found = prepared(table.with_columns(seen=hidden), tmp_path / "run")
    assert (found.facts.telling["seen"].value, found.facts.telling["seen"].click_rate) == ("seen = 'no'", 0)
    assert any("ads with seen = 'no'" in text for text in table_doubts(found.facts))


def test_no_bids_are_equal_bids(tmp_path):
    table = market().drop("bid")
    found = [train(table, out=tmp_path / str(bid), click="click", **QUICK, bid=bid) for bid in (None, 1, "0.5")]
    for each in found:
        assert each.table.equal_bids
        assert each.evaluation.models == found[0].evaluation.models
    assert any("All ads bid the same" in note for note in table_notes(found[0].table, found[0].settings))


def test_the_command_names_the_option(tmp_path, monkeypatch, capsys):
    path = tmp_path / "ads.parquet"
    with_dwell(market()).write_parquet(path)
    words = ["bidwise", "train", str(path), "--click", "click", "--bid", "bid", "--loss", "log_loss"]
    words += ["--model", "logistic_regression", "--set", "train.epochs=1", "--device", "cpu", "--out"]
    monkeypatch.setattr("sys.argv", [*words, str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        bidwise.cli.main()
    assert ended.value.code == 2
    assert "--keep must name 'dwell'" in capsys.readouterr().err
    app([*words[1:], str(tmp_path / "kept"), "--keep", "dwell"], exit_on_error=False, result_action="return_value")
    said = capsys.readouterr().out
    before, after = said.split("Training: logistic regression")
    for text in (before + after.partition("\n\n")[0], after.partition("\n\n")[2].partition("AUC is")[0]):
        assert "Column 'dwell' by itself predicts the clicks with an AUC of" in text


def test_a_column_that_nearly_tells_the_clicks_is_a_warning(tmp_path):
    found = prepared(with_dwell(market(), honest=0.06), tmp_path)
    assert LEAK < found.facts.leaks["dwell"] < TELLS
    assert any("'dwell' by itself predicts the clicks" in text for text in table_doubts(found.facts))


def test_a_few_held_out_rows_that_a_column_orders_by_chance_stop_nothing(tmp_path):
    table = with_dwell(market(46, seed=3))  # of few held-out rows a column may be right by chance
    found = train(table, out=tmp_path, **ROLES, **QUICK)
    assert found.table.leaks["dwell"] == 1
    assert any("'dwell' by itself predicts the clicks" in text for _, text in train_verdict(found))


def test_a_tiny_table_with_a_perfect_auc_is_doubted(tmp_path):
    random = np.random.default_rng(3)
    site = random.integers(0, 2, 60)
    table = pl.DataFrame({"site": site, "other": random.integers(0, 3, 60), "bid": np.ones(60), "click": site})
    found = train(table, out=tmp_path, **ROLES, **QUICK | {"epochs": 20, "learning_rate": 0.1}, keep=["site"])
    assert found.evaluation.models["log_loss"].auc == 1
    said = " ".join(text for _, text in train_verdict(found))
    assert "regression has an AUC of 1, which is too good to be true" in said
    assert re.search(r"Only \d clicks? in 6 ads: too few to judge a model", said)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "too good to be true" in page


def test_columns_named_like_a_placement_are_warned_of(tmp_path):
    random = np.random.default_rng(0)
    more = {name: random.integers(0, 4, 3000) for name in ("ad_position", "slotNumber", "composition")}
    found = prepared(market().with_columns(**{k: pl.Series(v) for k, v in more.items()}), tmp_path)
    assert placements(found.facts.columns) == ["ad_position", "slotNumber"]
    said = described(found, "cpu")
    assert "Column 'ad_position' is named like a placement" in said
    assert "'composition' is named" not in said


def test_the_verdict_and_the_page_repeat_what_is_doubtful(tmp_path):
    table = market().with_columns(rank=pl.Series(np.random.default_rng(0).integers(1, 5, 3000)))
    table = pl.concat([table, table[:300]])
    found = train(table, out=tmp_path, **ROLES, **QUICK)
    copies = 3300 - len(table.unique())
    assert found.table.duplicates == copies >= 300
    said = " ".join(text for _, text in train_verdict(found))
    assert "Column 'rank' is named like a placement" in said
    assert f"{copies} rows (9.1 %) equal an earlier one in all columns" in said
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("named like a placement") == 1


def test_kept_columns_are_features(tmp_path):
    with pytest.raises(bidwise.InputError, match="table has no column 'dwel'"):
        prepared(with_dwell(market()), tmp_path, **{"data.keep": "dwel"})
    with pytest.raises(bidwise.InputError, match="keep must name features, found 'site', which is none"):
        resolved({}, {"data.click": "click", "data.bid": "bid", "data.keep": "site", "data.ignore": "site"})
