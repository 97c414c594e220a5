"""What raises welfare over the strongest log-loss model, by how much: recipes in six simulated worlds.

The protocol, fixed before the first run. In every world one draw is for tuning alone: each family of models is trained
with every setting of :data:`FAMILIES`; the setting with the lowest validation log loss is the baseline, the best of the
other deep family is `other`; lam of `log_plus` is chosen by pooled validation welfare, the share of clicks in soft
labels by validation log loss. Repeats draw everything anew (the world's effects, ads, clicks, bids), train all
recipes with these settings, calibrate them on validation clicks (Platt) and measure expected welfare on test ads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bidwise.checks import derived_seed
from bidwise.data.ads import Ads
from bidwise.data.criteo_device import Drawn, simulated_ads
from bidwise.evaluation.auc import auc
from bidwise.evaluation.estimate import Estimate
from bidwise.evaluation.pooled import Pool
from bidwise.losses.pointwise import cross_entropy
from bidwise.models import Ensemble
from bidwise.run_folder import environment, open_folder
from bidwise.runners import Call, Progress, Show, Task, TaskCache
from bidwise.study.recipe import BASELINE, Recipe
from bidwise.study.recipes_results import (
    RECIPES,
    SMALL,
    RecipeNumbers,
    RecipesConfig,
    RecipesResult,
    Tuned,
    WorldNumbers,
    baseline_of,
)
from bidwise.study.served import calibrated, together, trained
from bidwise.training.run import matmul_precision
from bidwise.training.validation import ctr_of, logits_across
from bidwise.typed_json import to_json

#: Settings that are tried, by family; ``l2`` times the number of training ads, eight epochs of a cosine.
FAMILIES: dict[str, tuple[dict[str, Any], ...]] = {
    "logistic_regression": ({"l2": 5, "learning_rate": 1e-2},),
    "deepfm": (
        {"l2": 1e3, "learning_rate": 1e-3},
        {"l2": 3e3, "learning_rate": 1e-3},
        {"l2": 3e3, "learning_rate": 3e-3},
    ),
    "dcnv2": (
        {"l2": 1e4, "learning_rate": 3e-3},
        {"l2": 3e4, "learning_rate": 3e-3},
        {"l2": 1e5, "learning_rate": 3e-3},
    ),
}
SMALL_OPTIONS = {"hidden": (16, 16), "dropout": 0.0}  # of a DeepFM
EPOCHS = 8
LAMS = (3.0, 30.0, 300.0)
CLICK_SHARES = (0.0, 0.5)
TUNING = 3.0  # repeats that tuning takes as long as, about


def run(
    config: RecipesConfig, out: str | Path, *, device: str = "cpu", progress: Progress | None = None
) -> RecipesResult:
    """Tune, train, measure and write ``result.json``; what is already there is not computed again."""
    of_folder = {"experiment": "recipes", **to_json(config)}
    folder, made_by = open_folder(out, of_folder), environment(device)
    tasks = TaskCache(folder, progress, expected=len(config.worlds) * (config.repeats + TUNING))
    worlds = {}
    for world in config.worlds:
        shared = {"config": config, "world": world, "device": device}
        key = f"{replace(config, worlds=(world,), repeats=1)}"
        (kept,) = tasks.all([Task(f"{world}-tuning", _tuned, shared, amount=TUNING, key=key)])
        repeats = [
            Task(f"{world}-{repeat:02d}", _repeated, {**shared, "tuned": kept, "repeat": repeat}, key=f"{key}, {kept}")
            for repeat in range(config.repeats)
        ]
        worlds[world] = _numbers(Tuned(**kept), tasks.all(repeats))
    result = RecipesResult(config, worlds)
    tasks.write(result, made_by)
    return result


def _numbers(tuned: Tuned, repeats: Sequence[Mapping[str, Any]]) -> WorldNumbers:
    recipes = {}
    for name in RECIPES:
        welfare, base = (
            np.array([each["recipes"][n]["welfare"] for each in repeats]) for n in (name, baseline_of(name))
        )
        measured = {
            key: tuple(each["recipes"][name][key] for each in repeats) for key in ("welfare", "auc", "log_loss")
        }
        gain = None if name == baseline_of(name) else Estimate.over_repeats((welfare / base - 1).tolist())
        recipes[name] = RecipeNumbers(**measured, gain=gain)
    return WorldNumbers(tuned, tuple(each["optimal"] for each in repeats), recipes)


@dataclass(frozen=True)
class _Draw:
    """A draw of a world, and what is trained on it."""

    config: RecipesConfig
    drawn: Drawn
    device: str
    seed: int

    @classmethod
    def of(cls, config: RecipesConfig, world: str, number: int, device: str) -> _Draw:
        seed = derived_seed(config.seed, world, number)
        drawn = simulated_ads(config.rows, world=world, world_seed=seed % 2**31, seed=seed, device=device)
        mean = drawn.train.bids.mean()  # lam is in its units
        parts: dict[str, Any] = {name: replace(ads, bids=ads.bids / mean) for name, ads in drawn.splits.items()}
        return cls(config, replace(drawn, **parts), device, seed)

    @property
    def valid(self) -> Ads:
        return replace(self.drawn.valid, auction_size=self.config.auction_size)

    def recipe(self, settings: Mapping[str, Any], **more: Any) -> Recipe:
        l2 = settings["l2"] / len(self.drawn.train)
        ours: dict[str, Any] = {"batch_size": self.config.batch_size, "precision": self.config.precision}
        return Recipe(**{**settings, "l2": l2, "epochs": EPOCHS, "schedule": "cosine", **ours, **more})

    def together(self, wanted: Mapping[str, tuple[Recipe, int, nn.Module | None]], show: Show) -> dict[str, nn.Module]:
        """Models by name of recipes, with the number of their seed and their teacher, several at once on a GPU."""
        calls = [
            Call(
                name,
                _trained,
                {
                    "recipe": recipe,
                    "ads": self.drawn.train,
                    "valid": self.valid,
                    "cardinalities": self.drawn.cardinalities,
                    "seed": derived_seed(self.seed, "member", member),
                    "device": self.device,
                    "teacher": teacher,
                    "calibrate": False,
                },
            )
            for name, (recipe, member, teacher) in wanted.items()
        ]
        with matmul_precision(self.config.precision):
            return dict(zip(wanted, together(calls, self.device, show), strict=True))

    def served(self, models: Sequence[nn.Module]) -> Ensemble:
        """The mean logit of models, calibrated."""
        return calibrated(Ensemble([part for each in models for part in each.models]).to(self.device), self.valid)  # type: ignore[union-attr]

    def measured(self, logits: Tensor) -> dict[str, float]:
        ads = self.drawn.test
        return {
            "welfare": self.welfare(ctr_of(logits.double()), ads),
            "auc": auc(logits.double(), ads.clicks.double()),
            "log_loss": float(cross_entropy(logits.double(), ads.clicks.double(), None, "mean")),
        }

    def welfare(self, ctr: Tensor, ads: Ads, by_clicks: bool = False) -> float:
        bids = ads.bids.double()
        worth = ads.clicks if by_clicks or ads.truth is None else ads.truth
        return Pool(bids * ctr, self.config.auction_size).welfare(bids * worth.double(), (1.0,)).mean

    def validation_loss(self, model: nn.Module) -> float:
        logits, clicks = logits_across(model, self.drawn.valid.features).double(), self.drawn.valid.clicks.double()
        return float(cross_entropy(logits, clicks, None, "mean"))


def _trained(show: Show, **options: Any) -> nn.Module:
    return trained(**options, show=show).model


def _tuned(show: Show, *, config: RecipesConfig, world: str, device: str) -> dict[str, Any]:
    """The fields of :class:`Tuned`."""
    draw = _Draw.of(config, world, -1, device)
    full = [{"model": family, **each} for family, some in FAMILIES.items() for each in some]
    settings = [*full, *({"model": "deepfm", **each, "options": SMALL_OPTIONS} for each in FAMILIES["deepfm"])]
    wanted = {str(k): (draw.recipe(each), 0, None) for k, each in enumerate(settings)}
    models = list(draw.together(wanted, lambda share: show(0.6 * share)).values())
    losses = [draw.validation_loss(draw.served([model])) for model in models]
    order = sorted(range(len(settings)), key=losses.__getitem__)
    baseline = next(k for k in order if k < len(full))
    known = (settings[baseline]["model"], "logistic_regression")
    other = next(k for k in order if k < len(full) and settings[k]["model"] not in known)
    small = next(k for k in order if k >= len(full))
    recipe, teacher = draw.recipe(settings[baseline]), draw.served([models[baseline], models[other]])
    later = {f"log_plus-{lam}": (replace(recipe, loss="log_plus", lam=lam), 0, None) for lam in LAMS}
    soft = {
        f"distilled-{part}": (replace(recipe, loss="distilled", click_share=part), 0, teacher) for part in CLICK_SHARES
    }
    found = draw.together({**later, **soft}, lambda share: show(0.6 + 0.4 * share))
    valid = draw.drawn.valid

    def welfare(lam: float) -> float:
        model = draw.served([found[f"log_plus-{lam}"]])
        return draw.welfare(ctr_of(logits_across(model, valid.features).double()), valid, by_clicks=True)

    return {
        "baseline": settings[baseline],
        "other": settings[other],
        "small": settings[small],
        "lam": max(LAMS, key=welfare),
        "click_share": min(
            CLICK_SHARES, key=lambda part: draw.validation_loss(draw.served([found[f"distilled-{part}"]]))
        ),
        "tried": tuple({**each, "valid_log_loss": loss} for each, loss in zip(settings, losses, strict=True)),
    }


def _repeated(
    show: Show, *, config: RecipesConfig, world: str, device: str, tuned: Mapping[str, Any], repeat: int
) -> dict[str, Any]:
    """All recipes on one draw: test numbers by recipe, and the welfare of the true CTR."""
    draw = _Draw.of(config, world, repeat, device)
    base, other, small = (draw.recipe(tuned[key]) for key in ("baseline", "other", "small"))
    lam = tuned["lam"]
    wanted: dict[str, tuple[Recipe, int, nn.Module | None]] = {f"base-{k}": (base, k, None) for k in range(4)}
    wanted |= {f"other-{k}": (other, k, None) for k in range(2)}
    wanted |= {
        "sqrt_bid_weighted": (replace(base, loss="sqrt_bid_weighted"), 0, None),
        "log_plus": (replace(base, loss="log_plus", lam=lam), 0, None),
        SMALL: (small, 0, None),
    }
    models = draw.together(wanted, lambda share: show(0.6 * share))
    served: dict[str, nn.Module] = {
        BASELINE: draw.served([models["base-0"]]),
        "other": draw.served([models["other-0"]]),
        "ensemble": draw.served([models[f"base-{k}"] for k in range(4)]),
        "mixed": draw.served([models[f"{kind}-{k}"] for kind in ("base", "other") for k in range(2)]),
    }
    soft = {"loss": "distilled", "click_share": tuned["click_share"]}
    taught = draw.together(
        {
            "distilled": (replace(base, **soft), 0, served["mixed"]),
            "distilled_same": (replace(base, **soft), 0, served["ensemble"]),
            "distilled_one": (replace(base, **soft), 0, served[BASELINE]),
            "log_plus_teacher": (replace(base, loss="log_plus_teacher", lam=lam), 0, served["mixed"]),
            "distilled_small": (replace(small, **soft), 0, served["mixed"]),
        },
        lambda share: show(0.6 + 0.4 * share),
    )
    single = {name: model for name, model in {**models, **taught}.items() if name in RECIPES}
    served |= {name: draw.served([model]) for name, model in single.items()}
    test = draw.drawn.test
    logits = {name: logits_across(model, test.features) for name, model in served.items()}
    logits["bid_calibrated"] = _bid_calibrated(served[BASELINE], draw.drawn.valid, test)
    return {
        "optimal": draw.welfare(test.truth.double(), test) if test.truth is not None else float("nan"),
        "recipes": {name: draw.measured(logits[name]) for name in RECIPES},
    }


def _bid_calibrated(model: nn.Module, valid: Ads, test: Ads) -> Tensor:
    """slope · logit + bend · log bid + level on test ads, the likeliest line on validation clicks by Newton's steps."""

    def inputs(ads: Ads) -> Tensor:
        logits = logits_across(model, ads.features).double()
        return torch.stack([logits, ads.bids.double().log(), torch.ones_like(logits)], dim=1)

    x, clicks = inputs(valid), valid.clicks.double()
    line = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64, device=x.device)  # the calibrated model's own
    for _ in range(8):
        ctr = torch.sigmoid(x @ line)
        line = line + torch.linalg.solve(x.T @ (x * (ctr * (1 - ctr))[:, None]), x.T @ (clicks - ctr))
    return inputs(test) @ line
