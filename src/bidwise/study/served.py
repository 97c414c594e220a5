"""A recipe from the first batch to the model that is served: its members, trained and calibrated on validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bidwise.checks import derived_seed
from bidwise.data.ads import Ads
from bidwise.evaluation.calibration import shrunk_line
from bidwise.models import Ensemble
from bidwise.models.embeddings import Prior, Values, values_and_slots
from bidwise.study.recipe import Recipe
from bidwise.training import Fit, Metric
from bidwise.training.batches import fits
from bidwise.training.validation import logits_across
from bidwise.workers import Show


@dataclass(frozen=True)
class Served:
    """The result of a recipe: the served model, and how each of its members was trained."""

    recipe: Recipe
    model: Ensemble
    fits: tuple[Fit, ...]  # of its parts


#: Where a training resumes: the weights of a model, and the state of its Adam or the prior of its weights, if known.
Start = tuple[dict[str, Any], dict[str, Any] | Prior | None]


def trained(
    recipe: Recipe,
    ads: Ads,
    valid: Ads | None,
    cardinalities: Sequence[Values],
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    teacher: nn.Module | None = None,
    known: Sequence[Fit] = (),
    start: Sequence[Start] = (),
    plain: int | None = None,
    metric: str | Sequence[str | Metric] = "log_loss",
    calibrate: bool = True,
    line: tuple[float, float] = (1.0, 0.0),
    out: Path | None = None,
    show: Show = lambda share: None,
) -> Served:
    """Train a recipe over categories: all of its parts, then a line through their logits on the validation ads.

    The first member has ``seed`` itself, so that a recipe of one member is the first of the same recipe with more.

    Args:
        ads, valid: to train on, and to choose epochs by and to calibrate on; without the latter the last weights.
        teacher: its CTR replaces the teacher's of ``ads`` in a recipe that needs one.
        known: the first parts, if they have been trained before.
        start: each part resumes from it, instead of initial weights.
        plain: how many fields are no combinations of others; they come first. ``None``: all.
        calibrate: by a line through the logits of ``valid``.
        line: slope and intercept that the calibration begins with.
        out: run folder of the first member; the others are next to it. An interrupted training resumes.
        show: called with the share that is done.

    >>> random = torch.Generator().manual_seed(0)
    >>> ids, bids = torch.randint(0, 5, (400, 2), generator=random), torch.ones(400)
    >>> ads = Ads(ids, (ids[:, 0] > 2).float(), bids)
    >>> found = trained(Recipe(model="logistic_regression", epochs=2, members=3), ads, ads, [5, 5])
    >>> len(found.model.models), len(found.fits[0].history)
    (3, 2)
    """
    taught = ads
    if recipe.needs_teacher and teacher is not None:
        taught = ads.with_teacher(torch.sigmoid(logits_across(teacher, ads.features)).to(ads.bids))
    if recipe.needs_teacher and recipe.click_share:
        assert taught.teacher is not None
        taught = taught.with_teacher(taught.teacher.lerp(ads.clicks.to(taught.teacher), recipe.click_share))
    usual = _logit_of_mean(ads)
    fits, widths, parts = list(known), list[int | None](), recipe.parts
    for number, part in enumerate(parts):
        fields = list(cardinalities)[: None if part.crosses else plain]
        width = sum(values_and_slots(fields)[1])
        widths.append(width if width < ads.width else None)
        if number < len(known):
            continue
        own = seed if not number else derived_seed(seed, "member", number)
        model = part.build(fields, own)
        if start:
            model.load_state_dict(start[number][0])
        else:
            model.get_parameter("bias").data.fill_(usual)  # small tables have few steps to find it

        def progress(share: float, at: int = number - len(known)) -> None:
            show((at + share) / (len(parts) - len(known)))

        given: dict[str, Any] = {"valid": None if valid is None else valid.first(width), "seed": own, "metric": metric}
        given["out"] = out if out is None or not number else out.with_name(f"{out.name}-{number + 1}")
        state = start[number][1] if start else None
        given |= {"prior": state} if isinstance(state, Prior) else {"adam": state}
        fits.append(part.fit(model.to(device), taught.first(width), **given, show=progress))
    served = Ensemble([fit.model for fit in fits], widths=widths).to(device)
    return Served(recipe, calibrated(served, valid, line) if calibrate and valid is not None else served, tuple(fits))


def on_device(ads: Ads, device: str | torch.device) -> Ads:
    """The ads on a device that has room for them, once for all that train there."""
    return ads.to(device) if fits(ads, torch.device(device)) else ads


def calibrated(model: Ensemble, valid: Ads, line: tuple[float, float] = (1.0, 0.0)) -> Ensemble:
    """The same members with a line through their logits for these ads, drawn towards an earlier one; the order of CTRs
    is never reversed."""
    bare = Ensemble(list(model.models), widths=model.widths).to(next(model.parameters()).device)
    logits = line[0] * logits_across(bare, valid.features).double().cpu() + line[1]
    weights = None if valid.weights is None else numbers(valid.weights)
    slope, intercept = shrunk_line(numbers(logits), numbers(valid.labels), weights)
    if slope <= 0:
        slope, intercept = 1.0, 0.0
    bare.slope.fill_(slope * line[0])
    bare.intercept.fill_(slope * line[1] + intercept)
    return bare


def _logit_of_mean(ads: Ads) -> float:
    labels = ads.labels.double()
    counts = torch.ones_like(labels) if ads.weights is None else ads.weights.double()
    mean = float((labels * counts).sum()) / float(counts.sum())
    return float(torch.logit(torch.tensor(mean, dtype=torch.float64), eps=1e-6))


def numbers(values: Tensor) -> Any:
    """A tensor as numpy has it, in float64."""
    return values.cpu().numpy().astype(np.float64)
