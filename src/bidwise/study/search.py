"""The strongest baseline: settings of a log-loss model, tried on the same ads and chosen by validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bidwise.data.ads import Ads
from bidwise.runners import Call, Show
from bidwise.study.recipe import Recipe
from bidwise.study.served import Served, on_device, together, trained
from bidwise.training import METRICS

SMALL_DCN = {"embedding": 16, "cross": 2, "hidden": [128, 128]}
SMALL_FM = {"hidden": [128, 128], "dropout": 0.2}
#: What is tried, in this order, and so with a smaller budget its beginning; the first is what a training takes for
#: whatever it is not told. Keys are those of a recipe, but for ``l2``, which is divided by the number of training ads:
#: the penalty is then that of a prior, whatever their number.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"model": "dcnv2", "l2": 2e4, "epochs": 8, "learning_rate": 3e-3, "options": SMALL_DCN},
    {"model": "logistic_regression", "l2": 5, "epochs": 8, "learning_rate": 1e-2},
    {"model": "deepfm", "l2": 2e3, "epochs": 8, "learning_rate": 3e-3, "options": SMALL_FM},
    {"model": "dcnv2", "l2": 1e5, "epochs": 8, "learning_rate": 3e-3, "options": SMALL_DCN},
    {"model": "dcnv2", "l2": 3e4, "epochs": 8, "learning_rate": 3e-3},
    {"model": "deepfm", "l2": 3e3, "epochs": 8, "learning_rate": 3e-3},
)
BUDGET = 4  # settings that are tried by default: the last two are larger models, which take four times as long
STEPS = 150  # of an epoch, about, and so the size of batches
BATCHES = (64, 1024, 4096)  # the smallest, the one that learning rates are for, the largest

SHORT = 0.25  # of its epochs: what each setting is given at first, with a schedule of its own
FINALISTS = 2  # settings that are then trained in full


@dataclass(frozen=True)
class Attempt:
    """A setting as it was tried: the epochs that it had, fewer than in its recipe at first, and its best metric."""

    setting: int  # in the order of the search, from 1
    recipe: Recipe
    epochs: float
    value: float


@dataclass(frozen=True)
class Search:
    """All attempts, short ones first, and the setting that was chosen."""

    metric: str
    attempts: tuple[Attempt, ...]
    chosen: int

    @property
    def passes(self) -> float:
        """Over the training ads, of all attempts together."""
        return sum(each.epochs for each in self.attempts)


def settings(ads: int) -> list[dict[str, Any]]:
    """:data:`SETTINGS` for so many training ads: batches of a power of two, smaller steps with smaller batches.

    >>> {key: settings(160_000)[1][key] for key in ("l2", "batch_size", "learning_rate")}
    {'l2': 3.125e-05, 'batch_size': 1024, 'learning_rate': 0.01}
    >>> {key: settings(10_000)[1][key] for key in ("batch_size", "learning_rate")}
    {'batch_size': 64, 'learning_rate': 0.0025}
    """
    least, usual, most = BATCHES
    batch = min(most, max(least, 2 ** round(math.log2(max(ads, 1) / STEPS))))
    slower = min(1.0, math.sqrt(batch / usual))
    return [
        {
            **each,
            "l2": each["l2"] / max(ads, 1),
            "batch_size": batch,
            "learning_rate": each["learning_rate"] * slower,
            "schedule": "cosine",
        }
        for each in SETTINGS
    ]


def short(recipe: Recipe) -> Recipe:
    """The recipe with the first part of its epochs."""
    return replace(recipe, epochs=SHORT * recipe.epochs)


def most_passes(recipes: Sequence[Recipe]) -> float:
    """Over the training ads, that a search takes at most.

    >>> most_passes([Recipe(epochs=4)] * 6), most_passes([Recipe(epochs=4)])
    (14.0, 4)
    """
    longest = sum(sorted((each.epochs for each in recipes), reverse=True)[:FINALISTS])
    return longest + (sum(short(each).epochs for each in recipes) if len(recipes) > FINALISTS else 0)


def searched(
    recipes: Sequence[Recipe],
    ads: Ads,
    valid: Ads,
    cardinalities: Sequence[int],
    *,
    metric: str = "log_loss",
    device: str | torch.device = "cpu",
    out: Path | None = None,
    show: Show | None = None,
    **options: Any,
) -> tuple[Search, list[Served]]:
    """Train every recipe for a quarter of its epochs and the best two in full: all attempts, and those two, best first.

    Args:
        metric: of the validation ads, by which epochs and recipes are chosen; of those tied the first.
        out: folder of the run folders of all attempts; an interrupted search resumes.
        options: of :func:`trained`: ``seed``, ``calibrate``.
    """
    ads, valid = on_device(ads, device), on_device(valid, device)
    sign = -1 if METRICS[metric].higher_is_better else 1
    total, done = most_passes(recipes), 0.0
    attempts: list[Attempt] = []
    remaining = list(enumerate(recipes, 1))
    served: list[Served] = []
    for last in (False, True) if len(recipes) > FINALISTS else (True,):
        calls = []
        for number, recipe in remaining:
            name, own = (f"search-{number}", recipe) if last else (f"search-{number}-short", short(recipe))
            told = {"recipe": own, "ads": ads, "valid": valid, "cardinalities": cardinalities, "metric": metric}
            folder = None if out is None else out / name
            calls.append(Call(name, _tried, {**told, "device": device, "out": folder, **options}, own.epochs))
        amount = sum(call.amount for call in calls)

        def report(share: float, done: float = done, amount: float = amount) -> None:
            if show is not None:
                show((done + share * amount) / total)

        found: list[Served] = together(calls, device, report)
        done += amount
        tried = [
            Attempt(number, recipe, each.recipe.epochs, float(each.fits[0].best[metric].value))
            for (number, recipe), each in zip(remaining, found, strict=True)
        ]
        attempts += tried
        order = sorted(range(len(tried)), key=lambda at: sign * tried[at].value)[:FINALISTS]
        remaining, served = [remaining[at] for at in order], [found[at] for at in order]
    return Search(metric, tuple(attempts), remaining[0][0]), served


def _tried(show: Show, **options: Any) -> Served:
    return trained(**options, show=show)
