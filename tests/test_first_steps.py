"""`bidwise try`: a table, a result and a page."""

import json
import re

import polars as pl
import pytest

import bidwise
from bidwise.cli import commands


def test_a_first_try_leaves_a_table_a_result_and_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "TRAIN", 5_000)
    monkeypatch.setattr(commands, "AUCTIONS", 400)
    commands.try_it(out=tmp_path / "try")
    assert pl.read_csv(tmp_path / "try" / "ads.csv").columns == ["auction", "bid", "click", "old", "new"]
    result = json.loads((tmp_path / "try" / "result.json").read_text())
    assert result["models"]["new"]["welfare"] > result["models"]["old"]["welfare"]
    assert "new" in (tmp_path / "try" / "report.html").read_text()
    printed = capsys.readouterr().out
    assert "5,000 simulated ads" in printed
    command = re.search(r"bidwise (evaluate .*)", printed)[1].split()
    again = bidwise.evaluate(command[1], ctr=["old", "new"], click="click", bid="bid", auction="auction")
    assert again.models["new"].welfare == result["models"]["new"]["welfare"]


def test_a_folder_of_another_run_is_rejected(tmp_path):
    (tmp_path / "result.json").write_text('{"kind": "train"}')
    with pytest.raises(bidwise.InputError) as error:
        commands.try_it(out=tmp_path)
    assert error.value.argument == "out"
