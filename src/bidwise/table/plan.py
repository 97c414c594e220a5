"""The plan of a configuration: settings of the baseline for the search, and recipes with the best of them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from bidwise.losses.named import needs_teacher
from bidwise.models import MODELS
from bidwise.study.recipe import BASELINE, EXACT, ROUGHLY, Recipe
from bidwise.study.search import settings
from bidwise.table.config import DISTILLED, ENSEMBLE, REFRESHED, SINGLE, Config

MEMBERS = 4  # of an ensemble
PATIENCE = 2  # epochs, with a constant learning rate
ADS = 100_000  # for settings shown before a table is read
# naming one of these asks for batches
OF_BATCHES = {"epochs", "batch_size", "learning_rate", "schedule", "patience", "clip"}
NOT_OF_ALL = ("loss", "lam", "sigma", "teacher", "click_share", "members", "model", "options", "crosses", "beside")


def candidates(config: Config, ads: int = ADS) -> list[Recipe]:
    """Recipes of the baseline: settings for so many ``ads``, with the configuration on top; one without a
    search.

    >>> from bidwise.table.config import resolved
    >>> config = resolved({"data": {"click": "y", "bid": "b"}, "train": {"loss": "log_plus", "l2": 0.5}})
    >>> [(each.model, each.l2, each.loss) for each in candidates(config)]
    [('dcnv2', 0.5, 'log_loss')]
    """
    model = config.model
    values = {f.name: getattr(config.train, f.name, None) for f in fields(Recipe) if f.name not in NOT_OF_ALL}
    own = {name: value for name, value in values.items() if value is not None}
    own |= {"embeddings": Recipe.embeddings} if own.keys() & OF_BATCHES else {}
    own |= {} if config.train.crosses else {"crosses": False}
    options = {key: list(x) if isinstance(x, tuple) else x for key, x in model.options.items()}
    known = settings(ads)
    other = {**known[0], "model": next(filter(model.may_be, MODELS)), "options": {}}  # of models that are in none
    possible = [each for each in known if model.may_be(each["model"])] or [other]
    if config.train.recipe in (ENSEMBLE, DISTILLED) and model.name is None:  # of a solution that is always the same
        possible = [each for each in possible if each.get("embeddings") != EXACT] or possible
    tried = [Recipe(**each | {"options": each.get("options", {}) | options} | own) for each in possible]
    tried = [
        replace(each, patience=PATIENCE) if each.patience is None and each.schedule == "constant" else each
        for each in tried
    ]
    tried = [replace(each, l2=ROUGHLY / ads) if each.l2 is None and not each.solved else each for each in tried]
    return list(dict.fromkeys(tried))[: None if config.train.searches else 1]


def combines(config: Config) -> bool:
    """Whether a regression is solved, which takes combinations of columns."""
    return config.train.crosses and any(recipe.crosses and recipe.solved for recipe in candidates(config))


def recipes(config: Config, baseline: Recipe, *, searched: bool = False) -> dict[str, Recipe]:
    """The recipes to train, by name and in order: the baseline, if it was ``searched`` or is needed, then the others.

    A recipe with a ``teacher`` learns from the one of that name before it.
    """
    train = config.train
    taught = BASELINE if config.data.teacher is None else None

    def of(loss: str, teacher: str | None = taught, members: int = 1) -> Recipe:
        more: dict[str, Any] = {"teacher": teacher} if needs_teacher(loss) else {}
        return replace(baseline, loss=loss, members=members, lam=train.lam, sigma=train.sigma, **more)

    many = train.members or MEMBERS
    found = {BASELINE: baseline}
    if train.continue_from is not None:
        return {REFRESHED: of(str(train.loss), members=many if train.recipe == ENSEMBLE else 1)}
    if train.recipe == SINGLE:
        one = of(str(train.loss))
        return found | {one.loss: one} if searched or one.teacher else {one.loss: one}
    if train.distils:
        found[ENSEMBLE] = replace(baseline, members=many)
    if train.recipe == ENSEMBLE:
        found[ENSEMBLE] = of(str(train.loss), members=many)
    if train.recipe == DISTILLED:
        found[DISTILLED] = of(str(train.loss), ENSEMBLE)
    return found | {name: of(name, ENSEMBLE if name == DISTILLED else taught) for name in train.contestants}
