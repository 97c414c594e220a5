"""`train --continue`: yesterday's model goes on with today's rows, and both are tested on the newest of them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from bidwise.auctions.columns import Floats
from bidwise.checks import InputError
from bidwise.data.encoding import LEFT_OUT, Categorical, Column, Encoder
from bidwise.data.extension import Extension, forgotten, new_ids
from bidwise.data.read_table import check_columns
from bidwise.data.store import Store
from bidwise.models import MODELS
from bidwise.models.categorical import embedding_width
from bidwise.models.widening import widened, widened_adam
from bidwise.run_folder import checksum, read_json, read_result, write_json
from bidwise.run_folder import load as read_tensors
from bidwise.study.recipe import BASELINE, Recipe
from bidwise.study.served import Start
from bidwise.table.config import ENSEMBLE, SINGLE, options_of, read_toml
from bidwise.table.model import Model, load
from bidwise.table.results import Refresh, TableFacts, TrainResult

EPOCHS, SCHEDULE = 1, "cosine"  # of a refresh, unless it is told others
KEPT = ("calibrate", "metric", "every", "seed")  # of the run's section [train]
ADAM, LAST_SEEN = "optimizer.pt", "last_seen.json"


@dataclass(frozen=True)
class Previous:
    """A finished run that another goes on from."""

    model: Model
    result: TrainResult

    @staticmethod
    def read(run: str | Path) -> Previous:
        """The run in a folder; an error where none can go on from it."""
        try:
            model = load(run)
        except InputError as error:
            error.argument = error.argument and "continue_from"
            raise
        if model.about.model not in MODELS:
            words = f"must be a run whose model can go on, found {model.about.model} in {run}; train on all rows again"
            raise InputError(words, argument="continue_from")
        if not (model.run / ADAM).is_file():
            words = f"must be a run with the state of its optimizer, found no {ADAM} in {run}, which an older bidwise"
            raise InputError(f"{words} wrote; train it again in a new folder", argument="continue_from")
        return Previous(model, read_result(model.run, TrainResult))

    @property
    def recipe(self) -> Recipe:
        return self.result.fits[self.result.chosen].recipe

    @property
    def facts(self) -> TableFacts:
        """Of the table that the first of all these runs was trained on, but for splits: units of bids are kept."""
        return self.result.table

    @cached_property
    def extension(self) -> Extension:
        refresh, path = self.facts.refresh, self.model.run / LAST_SEEN
        last_seen = read_json(path) if refresh is not None else None
        return Extension(self.model.encoder, 0 if refresh is None else refresh.number, last_seen)

    def sections(self) -> dict[str, dict[str, Any]]:
        """A configuration that goes on from the run: roles, model and settings as they are, passes of a refresh.

        A student whose teacher was a model of its own run learns from clicks alone.
        """
        there, recipe = read_toml(self.model.run / "config.toml"), self.recipe
        known = {name: there["train"][name] for name in KEPT if name in there["train"]}
        many = {"recipe": ENSEMBLE, "members": recipe.members} if recipe.members > 1 else {"recipe": SINGLE}
        same = {name: getattr(recipe, name) for name in ("batch_size", "learning_rate", "l2", "precision")}
        loss = {"loss": BASELINE}
        if recipe.teacher is None:
            own = {name: getattr(recipe, name) for name in ("lam", "sigma") if getattr(recipe, name) is not None}
            loss = {"loss": recipe.loss, **own}
        run = {"epochs": EPOCHS, "schedule": SCHEDULE, "continue_from": str(self.model.run)}
        return {
            "data": _without(there["data"], "table"),
            "model": self._model(),
            "train": known | many | same | loss | run,
        }

    def _model(self) -> dict[str, Any]:
        """The section [model], with everything said."""
        name, cardinalities = self.model.about.model, self.model.about.cardinalities
        signature = inspect.signature(MODELS[name]).parameters
        options = {key: signature[key].default for key in options_of(name)} | self.recipe.options
        if "widths" in options and options["widths"] is None:
            options["widths"] = [embedding_width(values) for values in cardinalities]
        return {"name": name} | options

    def columns(self, frame: pl.DataFrame, roles: Sequence[tuple[str, str]], name: str) -> list[Column]:
        """Every column of a new table with what it is taken for: the same as in the run."""
        self.model.encoder.check(frame.columns, name)
        check_columns([column for _, column in roles], frame.columns, name)
        uses = {c.name: "categorical" if isinstance(c, Categorical) else "numeric" for c in self.model.encoder.columns}
        uses |= {column: role for role, column in reversed(roles)}
        order = [*dict.fromkeys(column for _, column in roles), *self.model.encoder.names]
        order += [column for column in frame.columns if column not in order]
        shares = frame.null_count().row(0, named=True)
        return [
            Column(
                column,
                uses.get(column, LEFT_OUT),
                frame[column].n_unique() if column in uses else 0,
                shares[column] / max(len(frame), 1),
                "as in the run before" if column in uses else "not in the run before",
            )
            for column in order
        ]

    def extended(self, rows: pl.DataFrame, min_count: int, forget_after: int | None) -> tuple[Extension, Refresh]:
        """The encoder after the new training rows, and what became new."""
        extension = self.extension.extended(rows, min_count=min_count, forget_after=forget_after)
        old, encoder = self.model.encoder, extension.encoder
        new = {name: len(ids) for name, ids in zip(old.names, new_ids(old, encoder), strict=True) if len(ids)}
        run, model = self.model.run, checksum(self.model.run / "model.pt")
        return extension, Refresh(run.name, model, extension.number, new, forgotten(old, encoder))

    def predict(self, rows: pl.DataFrame) -> Floats:
        """The run's own CTR of rows, as `bidwise predict` would have it."""
        return self.model.predict(rows.select(self.model.columns))

    def start(self, recipe: Recipe, encoder: Encoder, store: Store) -> list[Start]:
        """The weights and the state of Adam of every member, for the values that there are now."""
        about, old = self.model.about, self.model.encoder
        model = recipe.build(store.cardinalities, 0)
        new = [torch.from_numpy(ids) for ids in new_ids(old, encoder)]
        shares = _shares(store, recipe.batch_size)
        members: Any = self.model.network.models
        if (recipe.model, recipe.members) != (about.model, len(members)) or _other(recipe.options, self._model()):
            words = (
                f"must have the model of the run that it goes on from, {len(members)} × {about.model}, found another"
            )
            raise InputError(f"{words}; leave out its options", argument="continue_from")
        states = read_tensors(self.model.run / ADAM)
        return [
            Start(
                widened(model, member.state_dict(), about.cardinalities, new),
                widened_adam(model, state, about.cardinalities, new, shares),
            )
            for member, state in zip(members, states, strict=True)
        ]


def write_extension(folder: Path, extension: Extension) -> None:
    """What the next refresh needs to know of words."""
    write_json(folder / LAST_SEEN, extension.last_seen)


def _shares(store: Store, batch: int) -> list[torch.Tensor]:
    """For each field, the share of batches of the new training rows that look each value up: 1 - (1 - its rows)^ads."""
    features = store.column("train", "features")
    rates = (
        np.bincount(features[:, at], minlength=field.values) / len(features) for at, field in enumerate(store.fields)
    )
    return [torch.from_numpy(1 - (1 - rate) ** batch) for rate in rates]


def _other(options: dict[str, Any], section: dict[str, Any]) -> bool:
    """Whether options of a model differ from those in its section."""
    plain = {key: list(x) if isinstance(x, tuple) else x for key, x in section.items()}
    return any(plain[key] != (list(x) if isinstance(x, tuple) else x) for key, x in options.items())


def _without(section: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in keys}
