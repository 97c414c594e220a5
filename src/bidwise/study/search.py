"""The strongest baseline: settings of a log-loss model, tried on the same ads and chosen by validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bidwise.data.ads import Ads
from bidwise.losses.api import cross_entropy
from bidwise.models.bags import Values
from bidwise.study.recipe import EXACT, Recipe
from bidwise.study.served import Served, on_device, together, trained
from bidwise.training import METRICS
from bidwise.training.validation import logits_across
from bidwise.workers import Call, Show

SMALL_DCN = {"embedding": 16, "cross": 2, "hidden": [128, 128]}
SMALL_FM = {"hidden": [128, 128], "dropout": 0.2}
#: Settings to try, in this order; a smaller budget tries the first ones. A training takes the first for
#: every setting it lacks. Keys are fields of a recipe, except for ``l2``, which is divided by the training ads:
#: the penalty is then a prior, for any number of ads.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"model": "dcnv2", "l2": 2e4, "epochs": 8, "learning_rate": 3e-3, "options": SMALL_DCN},
    {"model": "logistic_regression", "l2": 5, "epochs": 8, "learning_rate": 1e-2, "embeddings": EXACT},
    {"model": "deepfm", "l2": 2e3, "epochs": 8, "learning_rate": 3e-3, "options": SMALL_FM},
    {"model": "dcnv2", "l2": 1e5, "epochs": 8, "learning_rate": 3e-3, "options": SMALL_DCN},
    {"model": "dcnv2", "l2": 3e4, "epochs": 8, "learning_rate": 3e-3},
    {"model": "deepfm", "l2": 3e3, "epochs": 8, "learning_rate": 3e-3},
)
BUDGET = 4  # settings that are tried by default: the last two are larger models, which take four times as long
LARGEST = {"dcnv2": 1.0, "deepfm": 0.01, "logistic_regression": 1.0}  # L2 beyond which vectors may never leave 0
STEPS = 150  # of an epoch, about, and so the size of batches
BATCHES = (64, 4096)  # the smallest and the largest
MOST = 10  # times the epochs, in small tables

SIMPLEST = "logistic_regression"
FEW = 200  # clicks
SHORT = 0.25  # of its epochs: the first round of each setting, with a schedule of its own
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
        """Over the training ads, of all attempts together: their epochs."""
        return sum(each.epochs for each in self.attempts)


def settings(ads: int) -> list[dict[str, Any]]:
    """:data:`SETTINGS` for so many training ads: batches of a power of two, more epochs if they have few steps.

    >>> {key: settings(160_000)[1][key] for key in ("l2", "batch_size", "epochs")}
    {'l2': 3.125e-05, 'batch_size': 1024, 'epochs': 8}
    >>> {key: settings(2_000)[1][key] for key in ("batch_size", "epochs")}
    {'batch_size': 64, 'epochs': 38}
    """
    ads, (least, most) = max(ads, 1), BATCHES
    longer = min(MOST, max(1.0, STEPS * least / ads))
    shared = {"batch_size": min(most, max(least, 2 ** round(math.log2(ads / STEPS)))), "schedule": "cosine"}
    return [
        each | shared | {"l2": min(each["l2"] / ads, LARGEST[each["model"]]), "epochs": round(longer * each["epochs"])}
        for each in SETTINGS
    ]


def short(recipe: Recipe) -> Recipe:
    """The recipe with a part of its epochs; the simplest model has all of them, which take less time still."""
    return recipe if recipe.model == SIMPLEST else replace(recipe, epochs=SHORT * recipe.epochs)


def most_passes(recipes: Sequence[Recipe]) -> float:
    """Over the training ads, that a search takes at most.

    >>> most_passes([Recipe(epochs=4)] * 6), most_passes([Recipe(epochs=4)])
    (14.0, 4)
    """
    longest = sum(sorted((each.epochs for each in recipes), reverse=True)[:FINALISTS])
    if len(recipes) <= FINALISTS:
        return longest
    simple = max((each.epochs for each in recipes if each.model == SIMPLEST), default=0)
    return longest + simple + sum(short(each).epochs for each in recipes)


def searched(
    recipes: Sequence[Recipe],
    ads: Ads,
    valid: Ads,
    cardinalities: Sequence[Values],
    *,
    judge: Ads | None = None,
    metric: str = "log_loss",
    device: str | torch.device = "cpu",
    out: Path | None = None,
    show: Show = lambda share: None,
    **options: Any,
) -> tuple[Search, list[Served]]:
    """Train every recipe for a quarter of its epochs and the best two in full: all attempts, and those two, best first.

    A logistic regression is always trained in full too. With fewer than `FEW` validation clicks it is chosen unless the
    best is better by two standard errors: they would choose by chance, and it is the safer choice.

    Args:
        judge: ads that recipes are compared on, if there are more than the ``valid`` ads that choose epochs.
        metric: of the validation ads, by which epochs and recipes are chosen; of those tied the first.
        out: folder of the run folders of all attempts; an interrupted search resumes.
        options: of :func:`trained`: ``seed``, ``calibrate``.
    """
    judge = valid if judge is None else judge
    ads, valid, judge = (on_device(each, device) for each in (ads, valid, judge))
    shared = {"ads": ads, "valid": valid, "cardinalities": cardinalities, "metric": metric, "device": device, **options}
    sign = -1 if METRICS[metric].higher_is_better else 1
    total, done = most_passes(recipes), 0.0
    attempts: list[Attempt] = []
    remaining = list(enumerate(recipes, 1))
    found: list[Served] = []
    for last in (False, True) if len(recipes) > FINALISTS else (True,):
        calls = []
        for number, recipe in remaining:
            name, own = (f"search-{number}", recipe) if last else (f"search-{number}-short", short(recipe))
            told = {"recipe": own, "out": None if out is None else out / name}
            calls.append(Call(name, _tried, shared | told, own.epochs))
        amount = sum(call.amount for call in calls)
        found = together(calls, device, lambda share, done=done, amount=amount: show((done + share * amount) / total))  # type: ignore[misc]
        done += amount
        # as each is served, calibrated: a short training may have the right order and no scale yet
        values = [float(METRICS[metric].of(logits_across(each.model, judge.features), judge)) for each in found]
        attempts += [
            Attempt(number, recipe, each.recipe.epochs, value)
            for (number, recipe), each, value in zip(remaining, found, values, strict=True)
        ]
        order = sorted(range(len(found)), key=lambda at: sign * values[at])
        simple = [at for at in order[1:] if found[at].recipe.model == SIMPLEST][:1]
        if not last:
            order = [*order[:FINALISTS], *(at for at in simple if at not in order[:FINALISTS])]
        elif simple and float(judge.clicks.sum()) < FEW and _as_good(found[simple[0]], found[order[0]], judge):
            order = [*simple, *(at for at in order if at not in simple)]
        remaining, found = [remaining[at] for at in order], [found[at] for at in order]
    return Search(metric, tuple(attempts), remaining[0][0]), found[:2]


def _tried(show: Show, **options: Any) -> Served:
    return trained(**options, show=show)


def _as_good(second: Served, first: Served, valid: Ads) -> bool:
    """Whether the log loss of the second is higher by no more than two standard errors over the ads."""
    losses = [
        cross_entropy(logits_across(each.model, valid.features).double(), valid.labels, valid.weights, "none")
        for each in (second, first)
    ]
    worse = losses[0] - losses[1]
    return float(worse.mean()) <= 2 * float(worse.std()) / math.sqrt(len(worse))
