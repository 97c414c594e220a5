"""`bidwise try`, and the check that a loss takes part in training."""

import json
import re

import polars as pl
import pytest
import torch

import bidwise
from bidwise.bridges.loss_runs import loss_runs
from bidwise.cli import first_steps_command as first_steps


def test_a_first_try_leaves_a_table_a_result_and_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(first_steps, "TRAIN", 5_000)
    monkeypatch.setattr(first_steps, "AUCTIONS", 400)
    first_steps.try_it(out=tmp_path / "try")
    assert pl.read_csv(tmp_path / "try" / "ads.csv").columns == ["auction", "bid", "click", "old", "new"]
    result = json.loads((tmp_path / "try" / "result.json").read_text())
    assert result["models"]["new"]["welfare"] > result["models"]["old"]["welfare"]
    assert "new" in (tmp_path / "try" / "report.html").read_text()
    printed = capsys.readouterr().out
    assert "5,000 simulated ads" in printed
    command = re.search(r"bidwise (evaluate .*)", printed)[1].split()
    again = bidwise.evaluate(command[1], ctr=["old", "new"], click="click", bid="bid", auction="auction")
    assert again.models["new"].welfare == result["models"]["new"]["welfare"]


def test_a_folder_of_another_run_is_refused(tmp_path):
    (tmp_path / "result.json").write_text('{"kind": "train"}')
    with pytest.raises(bidwise.InputError, match="out must be a new folder"):
        first_steps.try_it(out=tmp_path)


def test_a_loss_that_is_never_called_is_noticed():
    with pytest.raises(AssertionError, match="never computed"), loss_runs(bidwise.LOSSES["log"]):
        torch.ones(1, requires_grad=True).sum().backward()


def test_a_loss_that_runs_too_seldom_is_noticed():
    loss, logits = bidwise.WelfareLoss(), torch.zeros(2, requires_grad=True)
    with pytest.raises(AssertionError, match="computed 1 time and its gradient used 1, fewer than 2"):  # noqa: SIM117
        with loss_runs(loss, least=2):
            loss(logits, torch.tensor([1.0, 0.0]), torch.ones(2)).backward()


def test_an_error_inside_the_block_is_the_one_that_is_raised():
    with pytest.raises(ZeroDivisionError), loss_runs(bidwise.LOSSES["log"]):
        raise ZeroDivisionError
