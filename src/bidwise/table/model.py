"""`load`: the model of a run folder with its encoder, read once to predict many times."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bidwise.checks import InputError, check_name
from bidwise.data.columns import ENCODER_FILES, Encoded, Encoder
from bidwise.data.table_files import BadRow, Source, Table, check_process, open_table
from bidwise.json_files import from_json, read_object
from bidwise.losses.definition import ctr_of
from bidwise.models import MODELS, Ensemble
from bidwise.models.embeddings import Values, values_and_slots
from bidwise.run_folder import check_files
from bidwise.run_folder import load as read_weights
from bidwise.study.recipe import Recipe
from bidwise.table.config import read_config
from bidwise.urls import check_on_disk
from bidwise.values import Floats
from bidwise.workers import ahead, cores

HEIGHT = {"cpu": 128, "cuda": 4096}  # ads that the network has at once: a product of another height rounds differently
_STRETCH = 2**13  # ads that a thread has at once
_UNKNOWN = 0.2  # share of a column, beyond its share in training, above which a warning names it
EMPTY = 1000  # rows, from which on a column without any entry is named
_ENOUGH = 100  # entries of a column that such a share is taken of, at least
MODEL_FILES = ("config.toml", *ENCODER_FILES, "model.json", "model.pt")  # that `load` reads


@dataclass(frozen=True)
class Member:
    """One of the models behind the served mean logit; it sees the first of the fields, or all."""

    model: str
    options: dict[str, Any]
    fields: int


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """The content of ``model.json``, which describes the weights next to it."""

    format: str = "bidwise model"
    version: int = 3
    recipe: str
    loss: str
    members: tuple[Member, ...]
    cardinalities: tuple[int | tuple[int, int], ...]


def drifted(share: float, known: float, filled: int) -> bool:
    """Whether the unknown ``share`` of a column's entries is far above that in training, ``known``; of few entries by
    more than chance (three standard deviations)."""
    return filled >= _ENOUGH and share > _UNKNOWN + known + 1.5 / filled**0.5


class Drift:
    """Entries of every column that the training of a model did not have: rare or unseen values, numbers outside of the
    range of the training rows, and cells that are no numbers; and columns without any entry."""

    def __init__(self, encoder: Encoder) -> None:
        self.known = {column.name: column.unknown for column in encoder.plain.columns}
        self.filled = np.zeros(len(self.known), np.int64)
        self.unknown = np.zeros(len(self.known), np.int64)
        self.rows = 0

    def add(self, rows: Encoded) -> None:
        """Take in some rows."""
        self.filled += rows.filled[: len(self.known)]  # crosses come last
        self.unknown += rows.unknown[: len(self.known)]
        self.rows += len(rows.ids)

    @property
    def shares(self) -> dict[str, float]:
        """Of each column, the share of its entries; missing ones do not count."""
        return dict(zip(self.known, (self.unknown / np.maximum(self.filled, 1)).tolist(), strict=True))

    @property
    def columns(self) -> dict[str, float]:
        """The shares of columns that are written otherwise than in training, or have changed; 1 if a column is empty,
        which none of a model is in training."""
        changed = dict[str, float]()
        for (name, share), filled in zip(self.shares.items(), self.filled.tolist(), strict=True):
            empty = not filled and self.rows >= EMPTY
            if empty or drifted(share, self.known[name], filled):
                changed[name] = 1.0 if empty else share
        return changed

    def __str__(self) -> str:
        named = ", ".join(f"{name!r} {100 * share:.0f} %" for name, share in self.columns.items())
        fix = "check units, spelling and the order of columns"
        return f"has many values that the training did not see, or a column without any: {named}; {fix}"


@dataclass(frozen=True)
class Model:
    """A trained model for serving: columns in, CTR out. Threads may share it.

    ``network`` maps ids to logits, ``encoder`` columns to ids.
    """

    run: Path
    about: ModelFile
    encoder: Encoder = field(repr=False)
    network: nn.Module = field(repr=False)

    @property
    def columns(self) -> list[str]:
        """The columns that the model reads."""
        return self.encoder.names

    def predict(self, table: Table, *, drift: Drift | None = None) -> Floats:
        """The CTR of every row, float64; the same for a row with any other rows.

        Args:
            table: a polars or pandas frame, a dict of columns, or a file or URL as in `bidwise predict`. It must have
                the model's columns; others are not read. Values that training did not see count as rare.
            drift: ``Drift(model.encoder)``, which counts values new since training; by default a warning of the
                logger ``bidwise`` names columns that have much of it.
        """
        source, seen = opened_as_in(self.run, table), drift or Drift(self.encoder)
        self.encoder.check(source.columns, source.name)
        encoded = self.encoder.encode(source.frame(self.columns))
        seen.add(encoded)
        if drift is None and seen.columns:
            logging.getLogger("bidwise").warning("%s %s", source.name, seen)
        return self.ctr(encoded.ids)

    def ctr(self, ids: Any) -> Floats:
        """The CTR of rows that are ids already, an integer array ``(rows, columns)``."""
        features = torch.from_numpy(np.asarray(ids))
        if not len(features):
            return np.zeros(0)
        ctr: Floats = ctr_of(logits_in_blocks(self.network, features)).double().numpy()
        if not np.isfinite(ctr).all():
            fix = "the model's weights overflow; train again, with a lower learning rate"
            row = int((~np.isfinite(ctr)).argmax())
            raise BadRow("ctr", row, f"{ctr[row]}, which is no CTR: {fix}")
        return ctr


def logits_in_blocks(network: nn.Module, features: torch.Tensor) -> torch.Tensor:
    """Logits of rows of ids in blocks of the same height, the last one filled up with ids 0, so that a row's logit does
    not depend on other rows."""
    device = next(network.parameters()).device

    def logits(part: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(1)
        height, rows = HEIGHT[device.type], len(part)
        filled = nn.functional.pad(part, (0, 0, 0, -rows % height))
        with torch.inference_mode():
            return torch.cat([network(block.to(device)) for block in torch.split(filled, height)])[:rows].cpu()

    with one_thread():
        parts = torch.split(features, _STRETCH)
        return torch.cat(list(ahead(logits, parts, cores()) if len(parts) > 1 else map(logits, parts)))


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for every product of torch inside: several would round the rows of a block differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load(run: str | Path, *, device: str = "cpu") -> Model:
    """The model of a folder of `bidwise train`.

    Files that changed since, that belong to different runs or that contain weights that are not finite are rejected.

    Args:
        run: the folder.
        device: ``cpu`` or ``cuda``.
    """
    check_process()
    check_on_disk("run", run, "a folder", "copy it first")
    folder = Path(run)
    check_files(folder, MODEL_FILES)
    said, path = read_object(folder / "model.json"), folder / "model.json"
    if (said.get("format"), said.get("version")) != (ModelFile.format, ModelFile.version):
        fix = "train again in a new folder, or predict with the bidwise that wrote it"
        raise InputError(f"{path} must be a model of version {ModelFile.version}, found {said.get('version')}; {fix}")
    about = from_json(ModelFile, said, str(path))
    encoder = Encoder.read(folder)
    if [field.cardinality for field in encoder.fields] != [*about.cardinalities]:
        words = "must fit model.json, found other numbers of values"
        raise InputError(f"{folder / 'encoder.json'} {words}; restore both files from the same run")
    return Model(folder, about, encoder, _network(about, folder / "model.pt").to(device).eval())


def members_of(recipe: Recipe, fields: int, plain: int | None) -> tuple[Member, ...]:
    """The models that a recipe becomes, over so many fields, of which the ``plain`` ones are no combinations."""
    return tuple(Member(part.model, part.options, fields if part.crosses else plain or fields) for part in recipe.parts)


def network_of(members: Sequence[Member], cardinalities: Sequence[Values]) -> Ensemble:
    """The untrained models whose mean logit is served."""
    known = [list(cardinalities[: member.fields]) for member in members]
    models = [MODELS[member.model](fields, **member.options) for member, fields in zip(members, known, strict=True)]
    return Ensemble(models, widths=[sum(values_and_slots(fields)[1]) for fields in known])


def _network(about: ModelFile, path: Path) -> nn.Module:
    """The model that ``model.json`` describes, with the weights at ``path``."""
    for member in about.members:
        check_name("model", member.model, MODELS)
    weights = read_weights(path)
    try:
        network = network_of(about.members, about.cardinalities)
        network.load_state_dict(weights)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        fix = "restore both files from the same run"
        raise InputError(f"{path} must be the weights of model.json, found others; {fix}") from error
    for name, values in weights.items():
        if values.is_floating_point() and not values.isfinite().all():
            fix = "restore it from a copy, or train again in a new folder"
            raise InputError(f"{path} must have finite weights, found others in {name}; {fix}")
    return network


def opened_as_in(run: Path, table: Table, separator: str | None = None, header: bool | None = None) -> Source:
    """A table; text is read as the run's own was written, unless something else is given."""
    data = read_config(run / "config.toml")["data"] if isinstance(table, str | Path) else {}
    header, inherited = data.get("header") if header is None else header, {separator, header} == {None}
    return opened(table, separator or data.get("separator"), header, inherited=inherited)


def opened(table: Table, separator: str | None, header: bool | None, *, inherited: bool) -> Source:
    """A table; of another run, separator and header are for text alone."""
    try:
        return open_table(table, separator=separator, header=header)
    except InputError as error:
        if not inherited or error.argument not in ("separator", "header"):
            raise
    return open_table(table)
