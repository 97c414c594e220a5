"""Many trainings as one tensor program: recipes x repeats are the members of one model, and each repeat selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bidwise.data.ads import Ads
from bidwise.models.mlp import MLP
from bidwise.study.recipe import Recipe
from bidwise.training import Metric
from bidwise.training.validation import State
from bidwise.workers import Show
from paper.grids import best, joint_loss
from paper.tasks import Task

MEMBERS_AT_ONCE = {"cpu": 18, "cuda": 20_000}  # more do not fit into a cache, and take longer each
LAST = "last"  # in place of a metric: nothing is selected
# A repeat has its own seed, that of its ads, and these beside it for what must not depend on them.
BATCHES, INITIAL = 1, 250_001


@dataclass(frozen=True)
class Students:
    """Perceptrons, one for each repeat of each recipe; those of one repeat start alike.

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
    weights: dict[str, State]  # each parameter (repeats, ...)
    epoch: dict[str, Tensor]  # (repeats,)
    value: dict[str, Tensor]  # (repeats,)


@dataclass(frozen=True)
class Selected:
    """One model for each repeat: its weights, the epoch and lam it was selected with."""

    weights: State  # (repeats, ...)
    epoch: Tensor | None
    lam: tuple[float, ...] | None


def select(trained: Sequence[Trained], metric: str) -> Selected:
    """For each repeat the recipe and epoch that are best by a metric on validation auctions."""
    name = metric.partition("@")[0]  # "welfare@50": over auctions of 50 ads

    def winner(repeat: int) -> Trained:
        first = trained[0]
        return first if metric == LAST else best(trained, name, lambda t: float(t.value[metric][repeat])) or first

    weights = trained[0].weights[metric]
    chosen = [winner(repeat) for repeat in range(len(next(iter(weights.values()))))]

    def picked(tensors: Callable[[Trained], Tensor]) -> Tensor:
        return torch.stack([tensors(each)[r] for r, each in enumerate(chosen)])

    lams = [each.recipe.lam for each in chosen]
    return Selected(
        {key: picked(lambda each, key=key: each.weights[metric][key]) for key in weights},  # type: ignore[misc]
        None if metric == LAST else picked(lambda each: each.epoch[metric]),
        tuple(lam for lam in lams if lam is not None) or None,
    )


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
    tasks = [
        Task(
            f"{name}-{number:02d}",
            partial(_fitted, group, ads, valid, students, metrics),
            amount=len(group),
            key="; ".join(map(str, group)),
        )
        for number, group in enumerate(groups)
    ]
    trained: dict[str, list[Trained]] = {}
    for group, parts in zip(groups, run(tasks), strict=True):
        for recipe, part in zip(group, parts, strict=True):
            trained.setdefault(recipe.loss, []).append(Trained(recipe, **part))
    return trained


def _fitted(
    recipes: Sequence[Recipe], ads: Ads, valid: Ads, students: Students, metrics: Sequence[Metric], show: Show
) -> list[dict[str, Any]]:
    """The fields of :class:`Trained` for each recipe, as they can be kept in a file."""
    fitted = recipes[0].fit(
        students.untrained(len(recipes)),
        ads,
        loss=joint_loss(recipes),
        valid=valid,
        metric=metrics,
        seed=[seed + BATCHES for seed in students.seeds],
        show=show,
    )
    weights = {metric: each.state for metric, each in fitted.best.items()} | {LAST: fitted.last}
    return [
        {
            "weights": {
                metric: {k: x[row].cpu().clone() for k, x in state.items()} for metric, state in weights.items()
            },
            "epoch": {metric: each.epoch[row].clone() for metric, each in fitted.best.items()},
            "value": {metric: each.value[row].clone() for metric, each in fitted.best.items()},
        }
        for row in range(len(recipes))
    ]
