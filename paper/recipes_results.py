"""What `python -m paper recipes` found: recipes against the strongest baseline, in worlds whose true CTR is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import bidwise
from bidwise.checks import InputError, check_name
from bidwise.evaluation.estimate import Estimate
from bidwise.study.recipe import BASELINE
from bidwise.training.arguments import PRECISIONS
from paper.criteo_world import CRITEO_WORLDS
from paper.synthetic_results import check_wholes

SMALL, TAUGHT_SMALL = "small", "distilled_small"  # the baseline of small models, and what is compared with it


@dataclass(frozen=True)
class About:
    """A recipe; models that are trained for it, the last one included, and models that serve an ad."""

    about: str
    trainings: int = 1
    serves: int = 1


#: What is compared with the strongest baseline, ``log_loss``, and the small ones with theirs.
RECIPES = {
    BASELINE: About("the strongest baseline: architecture, L2 and learning rate by validation log loss"),
    "other": About("the best setting of the other deep architecture"),
    "ensemble": About("four baselines with different seeds, served as their mean logit", 4, 4),
    "mixed": About("two baselines and two of the other architecture, served as their mean logit", 4, 4),
    "distilled": About("the baseline’s architecture trained on the CTR of the ensemble", 5),
    "distilled_mixed": About("control: the same with the mixed ensemble as the teacher", 5),
    "distilled_one": About("control: the same with a single baseline as the teacher", 2),
    "bid_weighted": About("log loss weighted by the bid or its square root"),
    "log_plus": About("the pairwise welfare loss, positive part and logistic"),
    "log_plus_teacher": About("the same on the CTR of the ensemble", 5),
    "bid_calibrated": About("the baseline, recalibrated by a line over its logit and the log bid"),
    SMALL: About("a small DeepFM (two layers of 16), its own L2 and learning rate"),
    TAUGHT_SMALL: About("the same trained on the CTR of the ensemble, compared with small", 5),
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

    def share(self, name: str) -> float:
        """Of the optimal welfare, mean over repeats."""
        return float(np.mean(np.divide(self.recipes[name].welfare, self.optimal)))


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
