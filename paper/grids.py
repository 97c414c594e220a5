"""Grids of recipes, and many trainings as one tensor program: recipes x repeats are the members of one model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from bidwise.checks import derived_seed
from bidwise.data.ads import Ads
from bidwise.losses.named import WelfareLoss
from bidwise.models.mlp import MLP
from bidwise.study.recipe import Recipe, has_lam
from bidwise.training import METRICS, Metric, Variants
from bidwise.training.validation import State
from bidwise.workers import Show
from paper.tasks import Task

LAMS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # tried: at the end a loss is all but log loss
MOST_REPEATS = 1000
MEMBERS_AT_ONCE = {"cpu": 18, "cuda": 20_000}  # more do not fit into a cache, and take longer each
LAST = "last"  # in place of a metric: nothing is selected
# A repeat has its own seed for its ads, and these in addition for everything that must not depend on the ads.
BATCHES, INITIAL = 1, 250_001

Candidate = TypeVar("Candidate")


def grid(recipe: Recipe, losses: Iterable[str], lams: Sequence[float]) -> list[Recipe]:
    """The recipe with every loss, and every lam where the loss has one."""
    return [replace(recipe, loss=loss, lam=lam) for loss in losses for lam in (lams if has_lam(loss) else (None,))]


def seeds_of(seed: int, repeats: int) -> list[int]:
    """One seed for each repeat; those of another ``seed`` are others."""
    return [derived_seed(seed, repeat) for repeat in range(repeats)]


def best(candidates: Sequence[Candidate], metric: str, value: Callable[[Candidate], float]) -> Candidate:
    """The candidate with the best value of a metric; the first of those tied, or of all where none is finite.

    >>> best(["a", "b", "c"], "log_loss", {"a": 0.3, "b": 0.2, "c": math.nan}.__getitem__)
    'b'
    """
    sign = 1 if METRICS[metric].higher_is_better else -1
    values = [sign * value(each) for each in candidates]
    return candidates[int(np.argmax([x if math.isfinite(x) else -math.inf for x in values]))]


def side_by_side(repeats: Sequence[Ads]) -> Ads:
    """The ads of markets of one size, with a leading dimension: a batched model trains on all at once."""
    names = ("features", "clicks", "bids", "truth")
    columns: dict[str, Any] = {name: torch.stack([getattr(ads, name) for ads in repeats]) for name in names}
    return Ads(**columns, offsets=repeats[0].offsets)


@dataclass(frozen=True)
class Students:
    """Perceptrons, one for each repeat of each recipe; perceptrons of one repeat start alike.

    Args:
        seeds: of the repeats.
        hidden: units of each hidden layer; none for a logistic regression.
    """

    width: int
    seeds: Sequence[int]
    hidden: tuple[int, ...] = (50,)
    init: str = "glorot"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def untrained(self, *recipes: int) -> MLP:
        """Models ``(*recipes, repeats)``."""
        members, seeds = (*recipes, len(self.seeds)), [seed + INITIAL for seed in self.seeds]
        model = MLP(self.width, self.hidden, members=members, init=self.init, seed=seeds)
        return model.to(self.device, self.dtype)

    def trained(self, weights: State) -> MLP:
        """One model for each repeat, with these weights."""
        model = self.untrained()
        model.load_state_dict(weights)
        return model


@dataclass(frozen=True)
class Trained:
    """What became of one recipe in every repeat; by metric (or :data:`LAST`), as selected on validation auctions."""

    recipe: Recipe
    found: Mapping[str, Mapping[str, Any]]  # "state", each parameter (repeats, ...), "epoch" and "value", (repeats,)


@dataclass(frozen=True)
class Selected:
    """One model for each repeat: its weights, the mean epoch, and the lam of each, where something was selected."""

    weights: State  # (repeats, ...)
    epoch: float | None = None
    lam: tuple[float, ...] | None = None


def select(trained: Sequence[Trained], metric: str) -> Selected:
    """For each repeat the recipe and epoch that are best by a metric on validation auctions."""
    found = [each.found[metric] for each in trained]
    if metric == LAST:
        return Selected(found[0]["state"])
    name = metric.partition("@")[0]  # "expected_welfare@50": over auctions of 50 ads
    tries, repeats = range(len(trained)), range(len(found[0]["value"]))
    chosen = [(best(tries, name, lambda k, at=at: float(found[k]["value"][at])), at) for at in repeats]  # type: ignore[misc]
    state = {key: torch.stack([found[k]["state"][key][at] for k, at in chosen]) for key in found[0]["state"]}
    epoch = float(torch.stack([found[k]["epoch"][at] for k, at in chosen]).double().mean())
    lams = [trained[k].recipe.lam for k, _ in chosen]
    return Selected(state, epoch, tuple(lam for lam in lams if lam is not None) or None)


def train(
    name: str,
    recipes: Sequence[Recipe],
    ads: Ads,
    valid: Ads,
    students: Students,
    metrics: Sequence[Metric],
    run: Callable[[Sequence[Task]], list[Any]],
) -> dict[str, list[Trained]]:
    """All recipes, by loss; some members at a time, in tasks called after ``name`` that ``run`` carries out.

    Recipes differ in loss, lam and sums alone.
    """
    at_once = max(1, MEMBERS_AT_ONCE[torch.device(students.device).type] // len(students.seeds))
    groups = [list(recipes[k : k + at_once]) for k in range(0, len(recipes), at_once)]
    tasks = []
    for number, group in enumerate(groups):
        work = partial(_fitted, group, ads, valid, students, metrics)
        tasks.append(Task(f"{name}-{number:02d}", work, amount=len(group), key="; ".join(map(str, group))))
    trained: dict[str, list[Trained]] = {}
    for group, parts in zip(groups, run(tasks), strict=True):
        for recipe, part in zip(group, parts, strict=True):
            trained.setdefault(recipe.loss, []).append(Trained(recipe, part))
    return trained


def _fitted(
    recipes: Sequence[Recipe], ads: Ads, valid: Ads, students: Students, metrics: Sequence[Metric], show: Show
) -> list[dict[str, Any]]:
    """What is :attr:`Trained.found` of each recipe, as it can be kept in a file."""
    model, seeds = students.untrained(len(recipes)), [seed + BATCHES for seed in students.seeds]
    parts: list[tuple[nn.Module, int]] = []  # neighbours that differ in lam alone share their pairs
    for like, group in groupby(recipes, lambda recipe: replace(recipe, lam=None)):
        loss, lams = like.loss_function, [[recipe.lam] for recipe in group]
        if isinstance(loss, WelfareLoss):
            loss = loss.with_options(lam=torch.tensor(lams))
        parts.append((loss, len(lams)))
    fitted = recipes[0].fit(model, ads, loss=Variants(parts), valid=valid, metric=metrics, seed=seeds, show=show)
    found: list[dict[str, Any]] = []
    for row in range(len(recipes)):
        kept: dict[str, dict[str, Any]] = {
            LAST: {"state": {key: x[row].cpu().clone() for key, x in fitted.last.items()}}
        }
        for metric, each in fitted.best.items():
            state = {key: x[row].cpu().clone() for key, x in each.state.items()}
            kept[metric] = {"state": state, "epoch": each.epoch[row].clone(), "value": each.value[row].clone()}
        found.append(kept)
    return found
