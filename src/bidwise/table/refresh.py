"""`train --continue`: yesterday's model continues with today's rows, and both are tested on the newest of them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.data.columns import Bag, Encoder
from bidwise.data.store import Store
from bidwise.models import MODELS, Ensemble
from bidwise.models.embeddings import Prior, widened, widened_adam, widened_prior
from bidwise.run_folder import check_files, read_result
from bidwise.run_folder import load as read_tensors
from bidwise.study.recipe import BASELINE, Recipe
from bidwise.study.served import Start
from bidwise.table.config import ENSEMBLE, SINGLE, Data, options_of, read_config, resolved
from bidwise.table.model import Model, drifted, load
from bidwise.table.results import Refresh, TableFacts, TrainResult
from bidwise.training.arguments import whole
from bidwise.training.loop import adam_of
from bidwise.training.validation import Fit
from bidwise.values import MISSING, RARE, Floats

EPOCHS, RATE = 0.5, 0.1  # of a refresh, in units of the first training's
_KEPT = ("calibrate", "metric", "every", "seed")  # of the run's section [train]
STATE = "optimizer.pt"
_AT_ONCE = 2**20  # rows of a file that are worked on at once


@dataclass(frozen=True)
class Previous:
    """A finished run that another continues."""

    model: Model
    result: TrainResult

    @staticmethod
    def read(run: str | Path) -> Previous:
        """The run in a folder; an error if it cannot be continued."""
        try:
            model = load(run)
            check_files(model.run, (STATE, "result.json"))
        except InputError as error:
            error.argument = error.argument and "continue_from"
            raise
        return Previous(model, read_result(model.run, TrainResult))

    def continued(self, recipe: Recipe) -> Recipe:
        """A recipe as this run continues it; raises unless it has the model of the run."""
        own = self.recipe
        if (recipe.model, recipe.members, recipe.options) != (own.model, own.members, _without(self._model(), "name")):
            words = f"must be a run of the same model, found {own.members} × {own.model} there and another here"
            raise InputError(f"{words}; remove the option", argument="continue_from")
        same = {name: getattr(self.recipe, name) for name in ("crosses", "beside", "embeddings")}
        return replace(recipe, **same, l2=recipe.l2 if self.recipe.l2 is not None else None)

    @property
    def recipe(self) -> Recipe:
        return self.result.fits[self.result.chosen].recipe

    @property
    def facts(self) -> TableFacts:
        """Of the table that the first of all these runs was trained on, but for splits: units of bids are kept."""
        return self.result.table

    def sections(self) -> dict[str, dict[str, Any]]:
        """A configuration that continues the run: the same roles, model and settings, fewer and smaller steps.

        A student with a teacher from its own run learns from clicks only.
        """
        there, recipe = read_config(self.model.run / "config.toml"), self.recipe
        known = {name: there["train"][name] for name in _KEPT if name in there["train"]}
        many = {"recipe": ENSEMBLE, "members": recipe.members} if recipe.members > 1 else {"recipe": SINGLE}
        same = {name: getattr(recipe, name) for name in ("epochs", "batch_size", "learning_rate", "precision")}
        if self.facts.refresh is None:
            same |= {"epochs": whole(EPOCHS * recipe.epochs), "learning_rate": RATE * recipe.learning_rate}
        loss = {"loss": BASELINE}
        if recipe.teacher is None:
            own = {name: getattr(recipe, name) for name in ("lam", "sigma") if getattr(recipe, name) is not None}
            loss = {"loss": recipe.loss, **own}
        run = {"schedule": "cosine", "continue_from": str(self.model.run)}
        return {
            "data": _without(there["data"], "table", "ignore"),
            "model": self._model(),
            "train": known | many | same | loss | run,
        }

    def _model(self) -> dict[str, Any]:
        """The section [model], with all keys."""
        name = self.recipe.model
        signature = inspect.signature(MODELS[name]).parameters
        options = {key: signature[key].default for key in options_of(name)} | self.recipe.options
        options = {key: list(x) if isinstance(x, tuple) else x for key, x in options.items()}
        return {"name": name} | options

    @property
    def line(self) -> tuple[float, float]:
        """How the run's own logits were calibrated."""
        network = cast(Ensemble, self.model.network)
        return float(network.slope), float(network.intercept)

    def check_data(self, data: Data) -> None:
        """Raise if options would change types of columns, or make a role of a feature."""
        known, features = resolved(self.sections()).data, self.model.encoder.names
        for role, column in data.roles:
            if column in features:
                raise InputError(f"must not name a feature of the run to continue, found {column!r}", argument=role)
        for option in ("numeric", "categorical", "bag", "bag_separator", "ignore", "bins"):
            if getattr(data, option) != getattr(known, option):
                fix = "columns keep their types"
                raise InputError(
                    f"cannot be changed with --continue, found {getattr(data, option)!r}: {fix}", argument=option
                )

    @property
    def bags(self) -> dict[str, str]:
        """Columns with several values in a cell, and the separator between them in text."""
        return {column.name: column.separator for column in self.model.encoder.columns if isinstance(column, Bag)}

    def ctr(self, encoder: Encoder, features: NDArray[np.int32]) -> Floats:
        """The run's own CTR of rows that are ids of an extended encoder, as `bidwise predict` has it."""
        fields = self.model.encoder.fields

        def old(ids: NDArray[np.int32]) -> NDArray[np.int32]:
            parts = [ids[:, at][:, : field.slots] for at, field in zip(encoder.spans, fields, strict=True)]
            return np.hstack([np.where(x < its.values, x, RARE) for x, its in zip(parts, fields, strict=True)])

        return self.model.ctr(old(features))

    def refreshed(self, encoder: Encoder, features: NDArray[np.int32], rows: int) -> Refresh:
        """The values that an extended encoder learnt from training rows."""
        known = {field.name: field.values for field in self.model.encoder.fields}
        new = {field.name: field.values - known[field.name] for field in encoder.fields}
        refresh = self.facts.refresh
        before = self.result.refit or self.facts.splits["train"].ads if refresh is None else refresh.ads
        ads = before + (rows or len(features))
        unknown: dict[str, float] = {}
        plain = self.model.encoder.plain.columns  # crosses come last
        for column, count in zip(plain, _counts(features, encoder), strict=False):
            count[MISSING] = 0
            filled = int(count.sum())
            share = float(count[RARE] + count[known[column.name] :].sum()) / filled if filled else 1.0
            unknown |= {column.name: share} if drifted(share, column.unknown, filled) or not filled else {}
        return Refresh(
            run=self.model.run.name,
            number=1 if refresh is None else refresh.number + 1,
            ads=ads,
            l2=None if self.recipe.l2 is None else self.recipe.l2 * before / ads,
            new={name: count for name, count in new.items() if count},
            until=self.facts.splits["test"].last,
            unknown=unknown,
        )

    def start(self, recipe: Recipe, store: Store) -> list[Start]:
        """The weights of every part, and the state of its Adam or their prior, for the present values
        of the columns."""
        about, members = self.model.about, cast(Ensemble, self.model.network).models
        encoder = Encoder.read(store.folder)
        ads, counts = store.splits["train"], _counts(store.column("train", "features"), encoder)
        shares = [torch.from_numpy(1 - (1 - count / ads) ** recipe.batch_size) for count in counts]
        states, starts = read_tensors(self.model.run / STATE), list[Start]()
        for part, member, own, state in zip(recipe.parts, members, about.members, states, strict=True):
            fields, before = store.cardinalities[: own.fields], about.cardinalities[: own.fields]
            model, known = part.build(fields, len(starts)), state
            if isinstance(state, dict) and "precision" in state:
                known = widened_prior(model, Prior(**state), before)
            elif isinstance(state, dict):
                known = widened_adam(model, state, before, shares)
            starts.append((widened(model, member.state_dict(), before), known))
        return starts


def state_of(fit: Fit) -> dict[str, Any] | None:
    """The start of the next training of a model, besides its weights."""
    if fit.prior is not None:
        return vars(fit.prior)
    return None if fit.folder is None else adam_of(fit)


def _counts(features: NDArray[np.int32], encoder: Encoder) -> list[NDArray[np.int64]]:
    """Of each column, how many rows have each id; several times in a list is once."""
    totals = [np.zeros(field.values, dtype=np.int64) for field in encoder.fields]
    for start in range(0, len(features), _AT_ONCE):
        for at, total in zip(encoder.spans, totals, strict=True):
            ids = np.sort(features[start : start + _AT_ONCE, at], axis=1)
            total += np.bincount(ids[np.diff(ids, axis=1, prepend=-1) > 0], minlength=len(total))
    return totals


def _without(section: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in keys}
