"""The strongest baseline: settings of a log-loss model, tried on the same ads and chosen by validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bidwise.data.ads import Ads
from bidwise.losses.api import cross_entropy
from bidwise.models.embeddings import Values
from bidwise.study.recipe import EXACT, Recipe
from bidwise.study.served import Served, on_device, trained
from bidwise.training import METRICS, Fit
from bidwise.training.validation import logits_across
from bidwise.workers import Show

SIMPLEST = "logistic_regression"
SMALL_DCN = {"embedding": 16, "cross": 2, "hidden": [128, 128]}
SMALL_FM = {"hidden": [128, 128], "dropout": 0.2}
#: Settings to try; a training takes the first for every setting it lacks. Keys are fields of a recipe, except for
#: ``l2``, which is divided by the number of training ads: the penalty is then a prior, for any number of ads.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"model": "dcnv2", "l2": 2e4, "epochs": 8, "learning_rate": 3e-3, "options": SMALL_DCN},
    {"model": SIMPLEST, "l2": None, "epochs": 8, "learning_rate": 1e-2, "embeddings": EXACT, "crosses": True},
    {"model": "deepfm", "l2": 2e3, "epochs": 8, "learning_rate": 3e-3, "options": SMALL_FM},
    {"model": "deepfm", "l2": 8e3, "epochs": 8, "learning_rate": 3e-3, "options": SMALL_FM},
    {"model": "dcnv2", "l2": 1e5, "epochs": 8, "learning_rate": 3e-3, "options": SMALL_DCN},
)
LARGEST = {"dcnv2": 1.0, "deepfm": 0.01, SIMPLEST: 1.0}  # L2 beyond which vectors may never leave 0
STEPS = 150  # of an epoch, about, and so the size of batches
BATCHES = (64, 4096)  # the smallest and the largest
MOST = 10  # times the epochs, in small tables

SECONDS, TABLE, SMALLEST = 60.0, 200_000 * 20, 15.0  # of CPU for a table of so many cells, in proportion; at least
MULTIPLIED, LOOKED_UP = 6e-11, 1.5e-7  # seconds of a training step for each weight of a layer, and for each field
FEW, SOME = 50, 400  # validation clicks: with fewer the regression is the safe choice, then it with a network
SHORT = 0.25  # of its epochs: the first round of each network, with a schedule of its own


@dataclass(frozen=True)
class Attempt:
    """A setting as it was tried: the epochs of a network, fewer than in its recipe at first, and its best metric."""

    setting: int  # in the order of the search, from 1
    recipe: Recipe
    epochs: float
    value: float

    @property
    def full(self) -> bool:
        """Whether the setting was trained as its recipe says; the first round of networks is shorter."""
        return self.recipe.solved or self.recipe.beside or self.epochs >= self.recipe.epochs


@dataclass(frozen=True)
class Search:
    """All attempts in their order, the chosen setting, and their estimated time."""

    metric: str
    attempts: tuple[Attempt, ...]
    chosen: int
    seconds: float = 0.0  # of CPU
    budget: float = math.inf

    @property
    def leads(self) -> bool:
        """Whether the chosen setting has the best metric of all trained in full, and is not just the safest."""
        values = {each.setting: each.value for each in self.attempts if each.full}
        best = max if METRICS[self.metric].higher_is_better else min
        return values[self.chosen] == best(values.values())


def settings(ads: int) -> list[dict[str, Any]]:
    """:data:`SETTINGS` for so many training ads: batches of a power of two, more epochs if they have few steps.

    >>> {key: settings(160_000)[0][key] for key in ("l2", "batch_size", "epochs")}
    {'l2': 0.125, 'batch_size': 1024, 'epochs': 8}
    >>> {key: settings(2_000)[1][key] for key in ("batch_size", "epochs")}
    {'batch_size': 64, 'epochs': 38}
    """
    ads, (least, most) = max(ads, 1), BATCHES
    longer = min(MOST, max(1.0, STEPS * least / ads))
    shared = {"batch_size": min(most, max(least, 2 ** round(math.log2(ads / STEPS)))), "schedule": "cosine"}

    def penalty(each: dict[str, Any]) -> float | None:
        return None if each["l2"] is None else min(each["l2"] / ads, LARGEST.get(each["model"], math.inf))

    return [each | shared | {"l2": penalty(each), "epochs": round(longer * each["epochs"])} for each in SETTINGS]


def budget(ads: int, columns: int) -> float:
    """Seconds of CPU that a search may take by default.

    >>> budget(200_000, 20), budget(12_000, 39)
    (60.0, 15.0)
    """
    return max(SMALLEST, SECONDS * ads * columns / TABLE)


def seconds(recipe: Recipe, ads: int, cardinalities: Sequence[Values]) -> float:
    """Estimated seconds of CPU of a training, by the weights of its layers: the same on every machine."""
    model = recipe.build([2] * len(cardinalities), 0)
    layers = sum(weight.numel() for name, weight in model.named_parameters() if not name.startswith("table"))
    return recipe.epochs * ads * (MULTIPLIED * layers + LOOKED_UP * len(cardinalities))


def affordable(
    recipes: Sequence[Recipe], ads: int, cardinalities: Sequence[Values], limit: float
) -> list[tuple[int, Recipe]]:
    """The recipes with their numbers that fit into the limit, if one network is trained in full and the others in part:
    solved ones always, and the cheapest network; then others in their order."""
    costs = {
        number: 0.0 if recipe.solved else seconds(recipe, ads, cardinalities)
        for number, recipe in enumerate(recipes, 1)
    }
    networks = [number for number, recipe in enumerate(recipes, 1) if not recipe.solved]
    kept = sorted(networks, key=lambda number: costs[number])[:1]
    for number in networks:
        trial = {*kept, number}
        if max(costs[x] for x in trial) + SHORT * sum(costs[x] for x in trial) * (len(trial) > 1) <= limit:
            kept = [*trial]
    return [(number, recipe) for number, recipe in enumerate(recipes, 1) if recipe.solved or number in kept]


def searched(
    recipes: Sequence[Recipe],
    ads: Ads,
    valid: Ads,
    cardinalities: Sequence[Values],
    *,
    limit: float = math.inf,
    judge: Ads | None = None,
    metric: str = "log_loss",
    device: str | torch.device = "cpu",
    out: Path | None = None,
    plain: int | None = None,
    show: Show = lambda share: None,
    best: Callable[[Served, float], None] = lambda served, value: None,
    **options: Any,
) -> tuple[Search, list[Served]]:
    """Solve the regressions; train every affordable network for a quarter of its epochs and the best one in full, by
    itself and combined with the best regression; without a regression the best two in full. Returns all attempts, and
    the best two, best first.

    Networks are compared only with networks until one is trained in full. Few validation clicks would choose by
    chance: with fewer than `FEW` the regression is chosen, and with fewer than `SOME` the mean of it and the network,
    unless another is better by two standard errors; so much better a network must always be than that mean.

    Args:
        limit: estimated seconds of CPU; networks that do not fit are not trained.
        judge: ads that recipes are compared on, if there are more than the ``valid`` ads that choose epochs.
        metric: of the validation ads, by which epochs and recipes are chosen; of those tied the first.
        out: folder of the run folders of all attempts; an interrupted search resumes.
        plain: as in :func:`trained`.
        best: called with the best model so far and its metric.
        options: of :func:`trained`: ``seed``, ``calibrate``.
    """
    judge = valid if judge is None else judge
    ads, valid, judge = (on_device(each, device) for each in (ads, valid, judge))
    shared: dict[str, Any] = {
        "ads": ads,
        "valid": valid,
        "cardinalities": cardinalities,
        "plain": plain,
        "metric": metric,
    }
    shared |= {"device": device, **options}
    sign = -1 if METRICS[metric].higher_is_better else 1
    fields = list(cardinalities)[:plain]
    possible = affordable(recipes, len(ads), fields, limit)
    costs = {number: 0.0 if recipe.solved else seconds(recipe, len(ads), fields) for number, recipe in possible}
    networks = [(number, recipe) for number, recipe in possible if not recipe.solved]
    finals = 1 if len(networks) < len(possible) else 2  # there is something to compare with
    total = SHORT * sum(costs.values()) * (len(networks) > 1) + sum(sorted(costs.values())[-finals:])
    attempts: list[Attempt] = []
    done = 0.0

    models: list[tuple[float, int, Served]] = []  # trained in full: less is better

    def tried(number: int, recipe: Recipe, *, share: float = 1, known: Sequence[Fit] = ()) -> float:
        nonlocal done
        name, before, cost = f"search-{number}{'-short' * (share < 1)}", done, share * costs.get(number, 0.0)

        def progress(part: float) -> None:
            show((before + part * cost) / max(total, 1e-9))

        part = replace(recipe, epochs=share * recipe.epochs)
        served = trained(part, **shared, known=known, out=None if out is None else out / name, show=progress)
        done += cost
        progress(1.0)
        # as served, calibrated: a short training may have the right order and no scale yet
        value = sign * float(METRICS[metric].of(logits_across(served.model, judge.features), judge))
        attempts.append(Attempt(number, recipe, part.epochs * (not recipe.solved and not recipe.beside), sign * value))
        if share == 1:
            models.append((value, number, served))
            least, _, first = min(models, key=lambda each: each[:2])
            best(first, sign * least)
        return value

    for each in [each for each in possible if each[1].solved]:
        tried(*each)
    regressions = sorted(models, key=lambda each: each[:2])
    if len(networks) > 1:
        short = [tried(*each, share=SHORT) for each in networks]
        networks = [networks[at] for at in sorted(range(len(networks)), key=lambda at: short[at])]
    for each in networks[:finals]:
        tried(*each)
    if networks and regressions:
        fits = (*models[len(regressions)][2].fits, *regressions[0][2].fits)
        tried(len(recipes) + 1, replace(networks[0][1], beside=True), known=fits)
    models.sort(key=lambda each: each[:2])
    clicks = float(judge.clicks.sum())
    safe = [each for each in models if each[2].recipe.model == SIMPLEST or (clicks >= FEW and each[2].recipe.beside)]
    safe = sorted(safe, key=lambda each: not each[2].recipe.beside)[:1]
    alone = not models[0][2].recipe.solved and not models[0][2].recipe.beside
    if safe and (clicks < FEW or ((clicks < SOME or alone) and _as_good(safe[0][2], models[0][2], judge))):
        models = [*safe, *(each for each in models if each not in safe)]
    return Search(metric, tuple(attempts), models[0][1], round(total, 1), limit), [each[2] for each in models[:2]]


def _as_good(second: Served, first: Served, valid: Ads) -> bool:
    """Whether the log loss of the second is higher by no more than two standard errors over the ads."""
    losses = [
        cross_entropy(logits_across(each.model, valid.features).double(), valid.labels, valid.weights, "none")
        for each in (second, first)
    ]
    worse = losses[0] - losses[1]
    return float(worse.mean()) <= 2 * float(worse.std()) / math.sqrt(len(worse))
