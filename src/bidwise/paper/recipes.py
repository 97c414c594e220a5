"""What raises welfare over the strongest log-loss model, by how much: recipes in six simulated worlds.

The protocol, fixed before the first run. In every world one draw is for tuning alone: each family of models is trained
with every setting of :data:`FAMILIES`; the setting with the lowest validation log loss is the baseline, the best of the
other deep family is `other`. Every recipe then has as many tries (:data:`CHANGES`): welfare losses and weights by bids
are chosen by pooled validation welfare, students by validation log loss. Repeats draw everything anew (the world's
effects, ads, clicks, bids), train all recipes with these settings, calibrate them on validation clicks (Platt) and
measure expected welfare on test ads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    TAUGHT_SMALL,
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
    "logistic_regression": tuple({"l2": l2, "learning_rate": rate} for l2 in (1.5, 5, 15) for rate in (3e-3, 1e-2)),
    "deepfm": tuple(
        {"l2": l2, "learning_rate": rate}
        for l2, rate in ((300, 1e-3), (1e3, 1e-3), (1e3, 3e-3), (3e3, 1e-3), (3e3, 3e-3), (1e4, 3e-3))
    ),
    "dcnv2": tuple({"l2": l2, "learning_rate": 3e-3} for l2 in (3e3, 1e4, 3e4, 1e5, 3e5, 1e6)),
}
SMALL_SETTINGS = tuple(
    {"model": "deepfm", "l2": l2, "learning_rate": rate, "options": {"hidden": (16, 16), "dropout": 0.0}}
    for l2 in (100, 300, 1e3)
    for rate in (3e-3, 1e-2)
)
EPOCHS = 8
_SOFT = tuple({"loss": "distilled", "click_share": share, "l2": l2} for share in (0.0, 0.5) for l2 in (1.0, 0.3, 0.1))
_LAMS = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
#: What is tried of each recipe: changes to the settings of the baseline, or of `small`; ``l2`` a factor on theirs.
CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    "bid_weighted": tuple(
        {"loss": loss, "l2": l2} for loss in ("sqrt_bid_weighted", "bid_weighted") for l2 in (0.3, 1.0, 3.0)
    ),
    "log_plus": tuple({"loss": "log_plus", "lam": lam} for lam in _LAMS),
    "log_plus_teacher": tuple({"loss": "log_plus_teacher", "lam": lam} for lam in _LAMS),
    "distilled": _SOFT,
    TAUGHT_SMALL: _SOFT,
}
STUDENTS = ("distilled", TAUGHT_SMALL)  # are chosen by log loss, other changes by welfare
MEMBERS = 4
TUNING = 3.5  # repeats that tuning takes as long as, about


def run(
    config: RecipesConfig, out: str | Path, *, device: str = "cpu", progress: Progress | None = None
) -> RecipesResult:
    """Tune, train, measure and write ``result.json``; what is already there is not computed again."""
    of_folder = {"experiment": "recipes", **to_json(config)}
    folder, made_by = open_folder(out, of_folder), environment(device)
    tasks = TaskCache(folder, progress, expected=2 * len(config.worlds) * (config.repeats + TUNING))
    worlds = {}
    for world in config.worlds:
        tuned, repeats = _all(tasks, config, world, device, "", _tuned, _repeated, {})
        small, of_small = _all(tasks, config, world, device, "small-", _tuned_small, _repeated_small, {"full": tuned})
        both = [{**each, "recipes": {**each["recipes"], **s}} for each, s in zip(repeats, of_small, strict=True)]
        worlds[world] = _numbers(Tuned(**{name: {**tuned[name], **small[name]} for name in tuned}), both)
    result = RecipesResult(config, worlds)
    tasks.write(result, made_by)
    return result


def _all(
    tasks: TaskCache,
    config: RecipesConfig,
    world: str,
    device: str,
    prefix: str,
    tune: Callable[..., Any],
    repeat: Callable[..., Any],
    options: dict[str, Any],
) -> tuple[dict[str, Any], list[Any]]:
    """What tuning found in a world, and every repeat with it."""
    shared = {"config": config, "world": world, "device": device, **options}
    grids = SMALL_SETTINGS if prefix else FAMILIES
    key = f"{replace(config, worlds=(world,), repeats=1)}, {grids}, {EPOCHS}, {CHANGES}, {options}"
    (tuned,) = tasks.all([Task(f"{world}-{prefix}tuning", tune, shared, amount=TUNING, key=key)])
    repeats = [
        Task(f"{world}-{prefix}{k:02d}", repeat, {**shared, "tuned": tuned, "repeat": k}, key=f"{key}, {tuned}")
        for k in range(config.repeats)
    ]
    return tuned, tasks.all(repeats)


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

    def members(self, settings: Mapping[str, Any], show: Show) -> list[nn.Module]:
        """An ensemble's."""
        wanted = {str(k): (self.recipe(settings), k, None) for k in range(MEMBERS)}
        return list(self.together(wanted, show).values())

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

    def tried(
        self, settings: Mapping[str, Sequence[Mapping[str, Any]]], show: Show, teacher: nn.Module | None = None
    ) -> dict[str, tuple[dict[str, Any], ...]]:
        """Settings of each name with what validation says of them once they are calibrated, the best first."""
        wanted = {
            f"{name} {k}": (self.recipe(x), 0, teacher) for name, some in settings.items() for k, x in enumerate(some)
        }
        models, found = self.together(wanted, show), {}
        for name, some in settings.items():
            by_welfare = name in CHANGES and name not in STUDENTS
            measure = "valid_welfare" if by_welfare else "valid_log_loss"
            values = [self.on_validation(models[f"{name} {k}"], by_welfare) for k in range(len(some))]
            told = [{**each, measure: value} for each, value in zip(some, values, strict=True)]
            found[name] = tuple(sorted(told, key=lambda each: each[measure], reverse=by_welfare))
        return found

    def on_validation(self, model: nn.Module, by_welfare: bool) -> float:
        """Pooled welfare by clicks, or log loss, of the calibrated model."""
        valid = self.drawn.valid
        logits = logits_across(self.served([model]), valid.features).double()
        if by_welfare:
            return self.welfare(ctr_of(logits), valid, by_clicks=True)
        return float(cross_entropy(logits, valid.clicks.double(), None, "mean"))


def _trained(show: Show, **options: Any) -> nn.Module:
    return trained(**options, show=show).model


def _tuned(show: Show, *, config: RecipesConfig, world: str, device: str) -> dict[str, Any]:
    """The fields of :class:`Tuned`."""
    draw = _Draw.of(config, world, -1, device)
    alone = {family: [{"model": family, **each} for each in some] for family, some in FAMILIES.items()}
    tried = draw.tried(alone, lambda share: show(0.4 * share))
    families = sorted(FAMILIES, key=lambda family: tried[family][0]["valid_log_loss"])
    best = {name: _settings(some[0]) for name, some in tried.items()}
    other = next(family for family in families[1:] if family != "logistic_regression")
    chosen = {BASELINE: best[families[0]], "other": best[other]}
    teacher = draw.served(draw.members(chosen[BASELINE], lambda share: show(0.4 + 0.1 * share)))
    changed = {
        name: [_changed(chosen[BASELINE], change) for change in changes]
        for name, changes in CHANGES.items()
        if baseline_of(name) == BASELINE
    }
    later = draw.tried(changed, lambda share: show(0.5 + 0.5 * share), teacher)
    chosen |= {name: _settings(some[0]) for name, some in later.items()}
    return {"chosen": chosen, "tried": {**tried, **later}}


def _tuned_small(
    show: Show, *, config: RecipesConfig, world: str, device: str, full: Mapping[str, Any]
) -> dict[str, Any]:
    """The same of small models, whose teacher is the ensemble of the baseline."""
    draw = _Draw.of(config, world, -1, device)
    alone = draw.tried({SMALL: SMALL_SETTINGS}, lambda share: show(0.3 * share))
    small = _settings(alone[SMALL][0])
    teacher = draw.served(draw.members(full["chosen"][BASELINE], lambda share: show(0.3 + 0.4 * share)))
    changed = {TAUGHT_SMALL: [_changed(small, change) for change in CHANGES[TAUGHT_SMALL]]}
    taught = draw.tried(changed, lambda share: show(0.7 + 0.3 * share), teacher)
    return {"chosen": {SMALL: small, TAUGHT_SMALL: _settings(taught[TAUGHT_SMALL][0])}, "tried": {**alone, **taught}}


def _settings(told: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if not key.startswith("valid_")}


def _changed(settings: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings, **change, "l2": settings["l2"] * change.get("l2", 1.0)}


def _repeated(
    show: Show, *, config: RecipesConfig, world: str, device: str, tuned: Mapping[str, Any], repeat: int
) -> dict[str, Any]:
    """All recipes on one draw: test numbers by recipe, and the welfare of the true CTR."""
    draw = _Draw.of(config, world, repeat, device)
    of = {name: draw.recipe(settings) for name, settings in tuned["chosen"].items()}
    wanted: dict[str, tuple[Recipe, int, nn.Module | None]] = {
        f"{name} {k}": (of[name], k, None) for name, some in ((BASELINE, MEMBERS), ("other", 2)) for k in range(some)
    }
    wanted |= {name: (of[name], 0, None) for name in ("bid_weighted", "log_plus")}
    models = draw.together(wanted, lambda share: show(0.6 * share))
    base, others = ([models[f"{name} {k}"] for k in range(some)] for name, some in ((BASELINE, MEMBERS), ("other", 2)))
    served: dict[str, nn.Module] = {
        BASELINE: draw.served(base[:1]),
        "other": draw.served(others[:1]),
        "ensemble": draw.served(base),
        "mixed": draw.served(base[:2] + others),
    }
    taught: dict[str, tuple[Recipe, int, nn.Module | None]] = {
        "distilled": (of["distilled"], 0, served["ensemble"]),
        "distilled_mixed": (of["distilled"], 0, served["mixed"]),
        "distilled_one": (of["distilled"], 0, served[BASELINE]),
        "log_plus_teacher": (of["log_plus_teacher"], 0, served["ensemble"]),
    }
    models |= draw.together(taught, lambda share: show(0.6 + 0.4 * share))
    served |= {name: draw.served([model]) for name, model in models.items() if name in RECIPES}
    test = draw.drawn.test
    logits = {name: logits_across(model, test.features) for name, model in served.items()}
    logits["bid_calibrated"] = _bid_calibrated(served[BASELINE], draw.drawn.valid, test)
    return {
        "optimal": draw.welfare(test.truth.double(), test) if test.truth is not None else float("nan"),
        "recipes": {name: draw.measured(logits[name]) for name in RECIPES if baseline_of(name) == BASELINE},
    }


def _repeated_small(
    show: Show,
    *,
    config: RecipesConfig,
    world: str,
    device: str,
    full: Mapping[str, Any],
    tuned: Mapping[str, Any],
    repeat: int,
) -> dict[str, Any]:
    """Test numbers of a small model alone and of one that the baseline's ensemble teaches, on the same draw."""
    draw = _Draw.of(config, world, repeat, device)
    of = {name: draw.recipe(settings) for name, settings in tuned["chosen"].items()}
    teacher = draw.served(draw.members(full["chosen"][BASELINE], lambda share: show(0.6 * share)))
    wanted = {name: (recipe, 0, teacher) for name, recipe in of.items()}
    models = draw.together(wanted, lambda share: show(0.6 + 0.4 * share))
    features = draw.drawn.test.features
    return {name: draw.measured(logits_across(draw.served([model]), features)) for name, model in models.items()}


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
