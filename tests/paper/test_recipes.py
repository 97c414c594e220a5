"""The study of recipes: tuned on one draw, compared on others, resumable; what the page says of a committed run."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from paper_helpers import said

from bidwise import InputError
from bidwise.data.ads import Ads
from bidwise.run_folder import read_result
from paper import recipes
from paper.pages import experiment_summary, write_report
from paper.recipes import RECIPES, SMALL, RecipesConfig, RecipesResult, _bid_calibrated, baseline_of, run

COMMITTED = Path(__file__).parents[2] / "docs" / "results" / "recipes"
CONFIG = RecipesConfig(worlds=("threeway_5",), rows=1500, repeats=2, auction_size=16, batch_size=256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipes")
    small = {"embedding": 2, "hidden": (4,)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "EPOCHS", 1)
        some = {name: ({**each[0], "options": small}, *each[1:2]) for name, each in recipes.FAMILIES.items()}
        some["logistic_regression"] = recipes.FAMILIES["logistic_regression"][:1]
        patch.setattr(recipes, "FAMILIES", some)
        patch.setattr(recipes, "CHANGES", {name: changes[::5] for name, changes in recipes.CHANGES.items()})
        tiny = tuple({**each, "options": {"embedding": 1, "hidden": (2,)}} for each in recipes.SMALL_SETTINGS[:2])
        patch.setattr(recipes, "SMALL_SETTINGS", tiny)
        run(CONFIG, folder)
        yield folder


def test_every_recipe_has_a_number_for_every_draw(folder):
    result = read_result(folder, RecipesResult)
    (world,) = result.worlds.values()
    assert list(world.recipes) == list(RECIPES)
    for name, found in world.recipes.items():
        assert len(found.welfare) == len(found.auc) == len(found.log_loss) == CONFIG.repeats
        assert all(0 < welfare < best for welfare, best in zip(found.welfare, world.optimal, strict=True))
        assert (found.gain is None) == (name in ("log_loss", SMALL))
        if found.gain is not None:
            changes = np.divide(found.welfare, world.recipes[baseline_of(name)].welfare) - 1
            assert found.gain.difference == pytest.approx(changes.mean())
    assert len(set(world.optimal)) == CONFIG.repeats  # worlds are drawn anew
    assert world.recipes["ensemble"].welfare != world.recipes["mixed"].welfare


def test_the_baseline_has_the_lowest_validation_log_loss_of_its_kind(folder):
    tuned = read_result(folder, RecipesResult).worlds["threeway_5"].tuned
    families = [each for name in recipes.FAMILIES for each in tuned.tried[name]]
    best = min(families, key=lambda each: each["valid_log_loss"])
    baseline = tuned.chosen["log_loss"]
    assert {key: best[key] for key in baseline} == baseline
    assert tuned.chosen["other"]["model"] not in (baseline["model"], "logistic_regression")


def test_recipes_change_the_baseline_and_the_best_try_is_kept(folder):
    tuned = read_result(folder, RecipesResult).worlds["threeway_5"].tuned
    for name, tried in tuned.tried.items():
        measure = "valid_welfare" if name in ("bid_weighted", "log_plus", "log_plus_teacher") else "valid_log_loss"
        values = [each[measure] for each in tried]
        assert values == sorted(values, reverse=measure == "valid_welfare")
        if name in recipes.CHANGES:
            chosen, base = tuned.chosen[name], tuned.chosen[baseline_of(name)]
            assert {**tried[0], **chosen} == tried[0]
            assert len(tried) == 2
            assert chosen["model"] == base["model"]
            factors = [change.get("l2", 1) for change in recipes.CHANGES[name]]
            assert any(chosen["l2"] == pytest.approx(base["l2"] * factor) for factor in factors)


def test_a_finished_run_is_not_computed_again(folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError

    monkeypatch.setattr(recipes._Draw, "of", refuse)
    before = json.loads((folder / "result.json").read_text())
    run(CONFIG, folder)
    assert json.loads((folder / "result.json").read_text()) == before
    with pytest.raises(InputError, match="rows"):
        run(replace(CONFIG, rows=1600), folder)


def test_the_page_names_worlds_and_recipes(folder):
    result = read_result(folder, RecipesResult)
    write_report(folder, result)
    page = (folder / "report.html").read_text()
    assert all(name in page for name in RECIPES)
    assert said(result)[0] in page
    assert "distilled_small" in experiment_summary(result)


def test_the_headline_counts_worlds_of_the_committed_run():
    result = read_result(COMMITTED, RecipesResult)
    gains = [world.recipes["ensemble"].gain for world in result.worlds.values()]
    where = f"{sum(gain.ci_low > 0 for gain in gains)} of {len(gains)} worlds"
    assert said(result)[0].startswith(f"ensemble is measurably above its baseline in {where} and below it in none")


def test_bid_aware_calibration_finds_the_line_that_clicks_follow():
    random = torch.Generator().manual_seed(0)
    logits, log_bids = (torch.randn(200_000, generator=random, dtype=torch.float64) for _ in range(2))
    chance = torch.sigmoid(0.5 * logits + 0.8 * log_bids - 1.0)
    clicks = (torch.rand(len(chance), generator=random, dtype=torch.float64) < chance).double()
    ads = Ads(logits[:, None], clicks, log_bids.exp())

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

        def forward(self, features):
            return features[:, 0]

    found = _bid_calibrated(Own(), ads, ads)
    assert (found - torch.logit(chance)).abs().max() < 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [({"worlds": ("threway",)}, "threeway"), ({"rows": 10}, "rows"), ({"worlds": ()}, "at least one world")],
)
def test_what_cannot_be_run_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        RecipesConfig(**options)
