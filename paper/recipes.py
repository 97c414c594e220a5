"""What raises welfare over the strongest log-loss model, by how much: recipes in six simulated worlds.

The protocol, fixed before the first run. In every world one draw is for tuning alone: each family of models is trained
with every setting of :data:`FAMILIES`; the setting with the lowest validation log loss is the baseline, the best of the
other deep family is `other`. Every recipe then has as many tries (:data:`CHANGES`): welfare losses and weights by bids
are chosen by pooled validation welfare, students by validation log loss. Repeats draw everything anew (the world's
effects, ads, clicks, bids), train all recipes with these settings, calibrate them on validation clicks (Platt) and
measure expected welfare on test ads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import bidwise
from bidwise.checks import InputError, check_name, derived_seed
from bidwise.data.ads import Ads
from bidwise.evaluation.auc import auc
from bidwise.evaluation.estimate import Estimate
from bidwise.evaluation.intervals import unit_interval
from bidwise.evaluation.pooled import Pool
from bidwise.json_files import to_json
from bidwise.losses.api import cross_entropy
from bidwise.losses.definition import ctr_of
from bidwise.models import Ensemble
from bidwise.study.recipe import BASELINE, Recipe
from bidwise.study.served import calibrated, trained
from bidwise.training.arguments import PRECISIONS
from bidwise.training.run import matmul_precision
from bidwise.training.validation import logits_across
from bidwise.workers import Progress, Show
from paper.criteo_device import Dataset, simulated_ads
from paper.criteo_world import CRITEO_WORLDS
from paper.synthetic_results import check_wholes
from paper.tasks import Task, TaskCache

SMALL, TAUGHT_SMALL = "small", "distilled_small"  # the baseline of small models, and what is compared with it

#: What is compared with the strongest baseline, ``log_loss``, and the small ones with theirs.
RECIPES = {
    BASELINE: "the strongest baseline: architecture, L2 and learning rate by validation log loss",
    "other": "the best setting of the other deep architecture",
    "ensemble": "four baselines with different seeds, served as their mean logit",
    "mixed": "two baselines and two of the other architecture, served as their mean logit",
    "distilled": "the baseline’s architecture trained on the CTR of the ensemble",
    "distilled_mixed": "control: the same with the mixed ensemble as the teacher",
    "distilled_one": "control: the same with a single baseline as the teacher",
    "bid_weighted": "log loss weighted by the bid or its square root",
    "log_plus": "the pairwise welfare loss, positive part and logistic",
    "log_plus_teacher": "the same on the CTR of the ensemble",
    "bid_calibrated": "the baseline, recalibrated by a line over its logit and the log bid",
    SMALL: "a small DeepFM (two layers of 16), its own L2 and learning rate",
    TAUGHT_SMALL: "the same trained on the CTR of the ensemble, compared with small",
}


@dataclass(frozen=True)
class RecipesConfig:
    """The options of a run; two runs with the same ones on the same kind of device give the same numbers.

    Args:
        worlds: names of simulated worlds.
        rows: ads of a draw: eight tenths train, one validates, one tests.
        repeats: draws of every world in addition to the one for tuning.
        auction_size: ads of an auction; welfare is the mean over every possible auction.
        batch_size: ads in a batch.
        precision: float32, or mixed for products of matrices on the tensor cores of a GPU.
        seed: of all random numbers.
    """

    worlds: tuple[str, ...] = tuple(CRITEO_WORLDS)
    rows: int = 1_000_000
    repeats: int = 8
    auction_size: int = 256
    batch_size: int = 4096
    precision: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.worlds:
            raise InputError("must name at least one world, found none", argument="worlds")
        for world in self.worlds:
            check_name("worlds", world, CRITEO_WORLDS)
        check_name("precision", self.precision, PRECISIONS)
        check_wholes(self, rows=1000, auction_size=2, batch_size=2)


@dataclass(frozen=True)
class Tuned:
    """What was chosen on a draw of the world that no repeat has, and everything that was tried there."""

    chosen: dict[str, dict[str, Any]]  # settings of the baseline, of `other` and of each recipe that has some
    tried: dict[str, tuple[dict[str, Any], ...]]  # by family or recipe, with their validation number, the best first


@dataclass(frozen=True)
class RecipeNumbers:
    """A recipe in a world: test numbers of each repeat, and the change of welfare as a share of the baseline's."""

    welfare: tuple[float, ...]
    auc: tuple[float, ...]
    log_loss: tuple[float, ...]
    gain: Estimate | None = None  # None: a baseline


@dataclass(frozen=True)
class WorldNumbers:
    """A world: its settings, the welfare of the true CTR in each repeat, and all recipes."""

    tuned: Tuned
    optimal: tuple[float, ...]
    recipes: dict[str, RecipeNumbers]


@dataclass(frozen=True)
class RecipesResult:
    """A run of `python -m paper recipes`."""

    config: RecipesConfig
    worlds: dict[str, WorldNumbers]
    version: str = bidwise.__version__
    kind: ClassVar[str] = "recipes"
    format: ClassVar[int] = 2


def baseline_of(name: str) -> str:
    """What a recipe is compared with."""
    return SMALL if name.endswith(SMALL) else BASELINE


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
    for l2, rate in ((100, 3e-3), (300, 3e-3), (300, 1e-2), (1e3, 3e-3), (1e3, 1e-2), (3e3, 3e-3))
)
EPOCHS = 8
_SOFT = tuple({"loss": "distilled", "click_share": share, "l2": l2} for share in (0.0, 0.5) for l2 in (1.0, 0.3, 0.1))
_LAMS = (0.1, 0.3, 1.0, 3.0, 30.0, 300.0)
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
Settings = Mapping[str, Any]
Wanted = dict[str, tuple[Recipe, int, nn.Module | None]]  # by name: a recipe, the number of its seed, its teacher


def run(
    config: RecipesConfig, out: str | Path, *, device: str = "cpu", progress: Progress | None = None
) -> RecipesResult:
    """Tune, train, measure and write ``result.json``; what is already there is not computed again."""
    expected = len(config.worlds) * (config.repeats + 1)
    tasks = TaskCache(out, {"experiment": "recipes", **to_json(config)}, device, progress, expected)
    worlds = {}
    for world in config.worlds:
        key = f"{replace(config, worlds=(world,), repeats=1)}, {FAMILIES}, {SMALL_SETTINGS}, {EPOCHS}, {CHANGES}"
        (tuned,) = tasks.all([Task(f"{world}-tuning", partial(_tuned, config, world, device), key=key)])
        repeat = partial(_repeated, config, world, device, tuned["chosen"])
        key += f", {tuned}"
        repeats = [Task(f"{world}-{k:02d}", partial(repeat, k), key=key) for k in range(config.repeats)]
        worlds[world] = _numbers(Tuned(**tuned), tasks.all(repeats))
    return tasks.write(RecipesResult(config, worlds))


def _numbers(tuned: Tuned, repeats: Sequence[Mapping[str, Any]]) -> WorldNumbers:
    recipes = {}
    for name in RECIPES:
        measured = {key: tuple(each[name][key] for each in repeats) for key in ("welfare", "auc", "log_loss")}
        base = np.array([each[baseline_of(name)]["welfare"] for each in repeats])
        gain = Estimate.of(unit_interval((np.array(measured["welfare"]) / base - 1).tolist()))
        recipes[name] = RecipeNumbers(**measured, gain=None if name == baseline_of(name) else gain)
    return WorldNumbers(tuned, tuple(each["optimal"] for each in repeats), recipes)


@dataclass(frozen=True)
class _Draw:
    """A draw of a world, and what is trained on it."""

    config: RecipesConfig
    drawn: Dataset
    device: str
    seed: int

    @classmethod
    def of(cls, config: RecipesConfig, world: str, number: int, device: str) -> _Draw:
        seed = derived_seed(config.seed, world, number)
        drawn = simulated_ads(config.rows, world=world, world_seed=seed % 2**31, seed=seed, device=device)
        mean = drawn.train.bids.mean()  # lam is in its units
        parts: dict[str, Any] = {name: replace(ads, bids=ads.bids / mean) for name, ads in drawn.splits.items()}
        parts["valid"] = replace(parts["valid"], auction_size=config.auction_size)
        return cls(config, replace(drawn, **parts), device, seed)

    def recipe(self, settings: Settings) -> Recipe:
        l2 = settings["l2"] / len(self.drawn.train)
        config = {"batch_size": self.config.batch_size, "precision": self.config.precision}
        return Recipe(**{**settings, "unit": 1.0, "l2": l2, "epochs": EPOCHS, "schedule": "cosine", **config})

    def trained(self, wanted: Wanted) -> dict[str, nn.Module]:
        """Models by name."""
        shared: dict[str, Any] = {"ads": self.drawn.train, "valid": self.drawn.valid, "device": self.device}
        shared |= {"cardinalities": self.drawn.cardinalities, "calibrate": False}
        with matmul_precision(self.config.precision):
            return {
                name: trained(recipe, **shared, seed=derived_seed(self.seed, "member", member), teacher=teacher).model
                for name, (recipe, member, teacher) in wanted.items()
            }

    def served(self, models: Sequence[nn.Module]) -> Ensemble:
        """The mean logit of models, calibrated."""
        parts = [part for each in models for part in each.models]  # type: ignore[union-attr]
        return calibrated(Ensemble(parts).to(self.device), self.drawn.valid)

    def measured(self, logits: Tensor) -> dict[str, float]:
        ads = self.drawn.test
        return {
            "welfare": self.welfare(ctr_of(logits.double()), ads, ads.truth),
            "auc": auc(logits.double(), ads.clicks.double()),
            "log_loss": float(cross_entropy(logits.double(), ads.clicks.double(), None, "mean")),
        }

    def welfare(self, ctr: Tensor, ads: Ads, worth: Tensor | None) -> float:
        assert worth is not None
        bids = ads.bids.double()
        return Pool(bids * ctr, self.config.auction_size).welfare(bids * worth.double(), (1.0,)).mean

    def tried(
        self, settings: Mapping[str, Sequence[Settings]], teacher: nn.Module | None = None
    ) -> dict[str, tuple[dict[str, Any], ...]]:
        """Settings of each name with what validation says of them once they are calibrated, the best first."""
        wanted: Wanted = {
            f"{name} {k}": (self.recipe(x), 0, teacher) for name, some in settings.items() for k, x in enumerate(some)
        }
        models, found, valid = self.trained(wanted), {}, self.drawn.valid
        for name, some in settings.items():
            by_welfare = name in CHANGES and name not in STUDENTS
            measure, rated = "valid_welfare" if by_welfare else "valid_log_loss", []
            for k, each in enumerate(some):
                logits = logits_across(self.served([models[f"{name} {k}"]]), valid.features).double()
                if by_welfare:
                    value = self.welfare(ctr_of(logits), valid, valid.clicks)
                else:
                    value = float(cross_entropy(logits, valid.clicks.double(), None, "mean"))
                rated.append({**each, measure: value})
            found[name] = tuple(sorted(rated, key=lambda each: each[measure], reverse=by_welfare))
        return found


def _tuned(config: RecipesConfig, world: str, device: str, _: Show) -> dict[str, dict[str, Any]]:
    """The fields of :class:`Tuned`."""
    draw = _Draw.of(config, world, -1, device)
    alone: dict[str, Sequence[Settings]] = {
        family: [{"model": family, **each} for each in some] for family, some in FAMILIES.items()
    }
    tried = draw.tried({**alone, SMALL: SMALL_SETTINGS})
    first, *others = sorted(FAMILIES, key=lambda family: tried[family][0]["valid_log_loss"])
    other = next(family for family in others if family != "logistic_regression")
    chosen = {name: _settings(tried[of]) for name, of in ((BASELINE, first), ("other", other), (SMALL, SMALL))}
    members: Wanted = {str(k): (draw.recipe(chosen[BASELINE]), k, None) for k in range(MEMBERS)}
    ensemble = draw.served(list(draw.trained(members).values()))
    changed = {
        name: [{**base, **change, "l2": base["l2"] * change.get("l2", 1.0)} for change in changes]
        for name, changes in CHANGES.items()
        for base in [chosen[baseline_of(name)]]
    }
    later = draw.tried(changed, ensemble)
    return {"chosen": chosen | {name: _settings(some) for name, some in later.items()}, "tried": {**tried, **later}}


def _settings(tried: Sequence[Settings]) -> dict[str, Any]:
    """The best."""
    return {key: value for key, value in tried[0].items() if not key.startswith("valid_")}


def _repeated(
    config: RecipesConfig, world: str, device: str, chosen: Mapping[str, Settings], repeat: int, _: Show
) -> dict[str, Any]:
    """Test numbers by recipe on one draw, and the welfare of the true CTR."""
    draw = _Draw.of(config, world, repeat, device)
    test, of = draw.drawn.test, {name: draw.recipe(settings) for name, settings in chosen.items()}
    alone: Wanted = {f"{BASELINE} {k}": (of[BASELINE], k, None) for k in range(MEMBERS)}
    alone |= {f"other {k}": (of["other"], k, None) for k in range(2)}
    alone |= {name: (of[name], 0, None) for name in ("bid_weighted", "log_plus", SMALL)}
    models = draw.trained(alone)
    base, others = [models[f"{BASELINE} {k}"] for k in range(MEMBERS)], [models[f"other {k}"] for k in range(2)]
    members = {BASELINE: base[:1], "other": others[:1], "ensemble": base, "mixed": base[:2] + others}
    served = {name: draw.served(some) for name, some in members.items()}
    taught: Wanted = {
        "distilled": (of["distilled"], 0, served["ensemble"]),
        "distilled_mixed": (of["distilled"], 0, served["mixed"]),
        "distilled_one": (of["distilled"], 0, served[BASELINE]),
        "log_plus_teacher": (of["log_plus_teacher"], 0, served["ensemble"]),
        TAUGHT_SMALL: (of[TAUGHT_SMALL], 0, served["ensemble"]),
    }
    models |= draw.trained(taught)
    served |= {name: draw.served([model]) for name, model in models.items() if name in RECIPES}
    logits = {name: logits_across(model, test.features) for name, model in served.items()}
    logits["bid_calibrated"] = _bid_calibrated(served[BASELINE], draw.drawn.valid, test)
    measured: dict[str, Any] = {name: draw.measured(each) for name, each in logits.items()}
    assert test.truth is not None
    return {"optimal": draw.welfare(test.truth.double(), test, test.truth), **measured}


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
