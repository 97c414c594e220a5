"""`load`: the model of a run folder with what it knows of columns, read once to predict many times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn

from bidwise.checks import InputError, check_name
from bidwise.data.encoder_file import read_encoder
from bidwise.data.encoding import Encoder
from bidwise.data.read_table import (
    UNREADABLE,
    BadRow,
    Location,
    Table,
    column_names,
    location_of,
    scan_table,
    table_error,
    table_name,
    written_as,
)
from bidwise.json_files import from_json, read_json
from bidwise.losses.definition import ctr_of
from bidwise.models import MODELS, Ensemble
from bidwise.run_folder import check_files
from bidwise.run_folder import load as read_weights
from bidwise.table.config import read_toml
from bidwise.urls import check_on_disk
from bidwise.values import Floats

AT_ONCE = 4096  # ads
MODEL_FILES = ("config.toml", "encoder.json", "model.json", "model.pt")  # that `load` reads


_process: int | None = None  # that has used polars


def check_process() -> None:
    """Raise in a process forked from one that has used polars: its threads are gone there, and any work hangs."""
    global _process
    if _process not in (None, os.getpid()):
        raise InputError(
            "a model works in the process that loaded it, found a fork of it; load the model in the child, which "
            "multiprocessing must start by spawn or forkserver"
        )
    _process = os.getpid()


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """What ``model.json`` says of the weights beside it."""

    format: str = "bidwise model"
    version: int = 2
    recipe: str
    loss: str
    members: int
    model: str
    options: dict[str, Any]
    cardinalities: tuple[int | tuple[int, int], ...]


@dataclass(frozen=True)
class Model:
    """A trained model as it is served: columns in, CTR out. Threads may share it.

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

    def predict(self, table: Table) -> Floats:
        """The CTR of every row, float64.

        Args:
            table: a polars or pandas frame, a dict of columns, or a file or URL as in `bidwise predict`. It must have
                the model's columns; others are not read. Values that training did not see count as rare.
        """
        check_process()
        try:
            rows = table if isinstance(table, pl.DataFrame) else self._read(table)
        except UNREADABLE as error:
            raise table_error(table, error) from None
        self.encoder.check(rows.columns, table_name(table))
        return self.ctr(self.encoder.encode(rows))

    def ctr(self, ids: Any) -> Floats:
        """The CTR of rows that are ids already, an integer array ``(rows, columns)``."""
        device = next(self.network.parameters()).device
        features = torch.from_numpy(np.asarray(ids))
        if not len(features):
            return np.zeros(0)
        with torch.inference_mode():
            logits = torch.cat([self.network(part.to(device)) for part in torch.split(features, AT_ONCE)])
        ctr: Floats = ctr_of(logits).double().cpu().numpy()
        if not np.isfinite(ctr).all():
            row = int((~np.isfinite(ctr)).argmax())
            fix = "the model's weights overflow; train again, with a lower learning rate"
            raise BadRow(str(self.run), "ctr", row, f"{ctr[row]}, which is no CTR: {fix}")
        return ctr

    def _read(self, table: Table) -> pl.DataFrame:
        if isinstance(table, pl.LazyFrame | str | Path | Location):
            rows = scan_table(written_as_in(self.run, table))
            self.encoder.check(rows.collect_schema().names(), table_name(table))
            return rows.select(pl.col(self.columns)).collect(engine="streaming")
        self.encoder.check(column_names(table))
        names = table if isinstance(table, Mapping) else table.columns
        known = {str(name): table[name] for name in names if str(name) in self.columns}
        return scan_table(known).collect()  # in memory already; streaming would take longer than a few ads do


def load(run: str | Path, *, device: str = "cpu") -> Model:
    """The model of a folder of `bidwise train`.

    Files that changed since, that belong to different runs or that hold weights that are not finite are rejected.

    Args:
        run: the folder.
        device: ``cpu`` or ``cuda``.
    """
    check_process()
    check_on_disk("run", run, "a folder", "copy it first")
    folder = Path(run)
    if not folder.is_dir():
        raise InputError(
            f"must be a folder of bidwise train, found {'a file' if folder.exists() else 'nothing'} at {folder}",
            argument="run",
        )
    check_files(folder, MODEL_FILES)
    said, path = read_json(folder / "model.json"), folder / "model.json"
    if not isinstance(said, dict) or said.get("format") != ModelFile.format:
        raise InputError(f"{path} must be a model that bidwise train wrote, found something else")
    if said.get("version") != ModelFile.version:
        fix = "train again in a new folder, or predict with the bidwise that wrote it"
        raise InputError(f"{path} must be of version {ModelFile.version}, found {said.get('version')}; {fix}")
    about = from_json(ModelFile, said, str(path))
    encoder = read_encoder(folder / "encoder.json")
    sizes = [field.cardinality for field in encoder.fields]
    for column, (values, fitting) in enumerate(zip_longest(sizes, about.cardinalities)):
        if values != fitting:
            words = f"must fit model.json, found {values} values in column {column} instead of {fitting}"
            raise InputError(f"{folder / 'encoder.json'} {words}; restore both files from the same run")
    return Model(folder, about, encoder, _network(about, folder / "model.pt").to(device).eval())


def _network(about: ModelFile, path: Path) -> nn.Module:
    """The model that ``model.json`` describes, with the weights at ``path``."""
    check_name("model", about.model, MODELS)
    weights = read_weights(path)
    try:
        members = [MODELS[about.model](list(about.cardinalities), **about.options) for _ in range(about.members)]
        network = Ensemble(members)
        network.load_state_dict(weights)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        fix = "restore both files from the same run"
        raise InputError(f"{path} must be the weights of model.json, found others; {fix}") from error
    for name, values in weights.items():
        if values.is_floating_point() and not values.isfinite().all():
            fix = "restore it from a copy, or train again in a new folder"
            raise InputError(f"{path} must have finite weights, found others in {name}; {fix}")
    return network


def written_as_in(run: str | Path, table: Table, separator: str | None = None, header: bool | None = None) -> Table:
    """A text file as the run's own was written, where nothing else is said."""
    if isinstance(table, str | Path) and location_of(table).kind != ".parquet":
        data = read_toml(Path(run) / "config.toml").get("data", {})
        separator, header = separator or data.get("separator"), data.get("header") if header is None else header
    return written_as(table, separator, header)
