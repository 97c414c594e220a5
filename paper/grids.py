"""Which recipes an experiment trains: grids of losses and lam, their seeds, and the best of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from bidwise.checks import derived_seed
from bidwise.losses.named import WelfareLoss
from bidwise.study.recipe import Recipe, has_lam
from bidwise.training import METRICS, Variants

LAMS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # tried: at the end a loss is all but log loss

Candidate = TypeVar("Candidate")


def grid(recipe: Recipe, losses: Iterable[str], lams: Sequence[float]) -> list[Recipe]:
    """The recipe with every loss, and every lam where the loss has one."""
    return [replace(recipe, loss=loss, lam=lam) for loss in losses for lam in (lams if has_lam(loss) else (None,))]


def joint_loss(recipes: Sequence[Recipe]) -> Variants:
    """One loss for models ``(recipes, repeats)``; neighbours that differ in lam alone share their pairs."""
    groups: list[list[Recipe]] = []
    for recipe in recipes:
        like = replace(recipe, lam=None)
        if groups and has_lam(recipe.loss) and replace(groups[-1][0], lam=None) == like:
            groups[-1].append(recipe)
        else:
            groups.append([recipe])
    parts: list[tuple[nn.Module, int]] = []
    for group in groups:
        loss = group[0].loss_function
        if isinstance(loss, WelfareLoss):
            loss = loss.with_options(lam=torch.tensor([[recipe.lam] for recipe in group]))
        parts.append((loss, len(group)))
    return Variants(parts)


MOST_REPEATS = 1000


def seeds_of(seed: int, repeats: int) -> list[int]:
    """One seed for each repeat; those of another ``seed`` are others."""
    return [derived_seed(seed, repeat) for repeat in range(repeats)]


def best(candidates: Iterable[Candidate], metric: str, value: Callable[[Candidate], float | None]) -> Candidate | None:
    """The candidate with the best value of a metric; the first of those tied.

    >>> best(["a", "b", "c"], "log_loss", {"a": 0.3, "b": 0.2, "c": None}.get)
    'b'
    """
    sign = 1 if METRICS[metric].higher_is_better else -1
    known = [(x, each) for each in candidates if (x := value(each)) is not None]
    known = [pair for pair in known if math.isfinite(pair[0])]
    return max(known, key=lambda pair: sign * pair[0])[1] if known else None
