"""`load`: the model of a run folder with what it knows of columns, read once to predict many times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from bidwise.auctions.columns import Floats
from bidwise.checks import InputError, check_name
from bidwise.data.encoder_file import read_encoder
from bidwise.data.encoding import Encoder
from bidwise.data.read_table import (
    UNREADABLE,
    Location,
    Table,
    column_names,
    location_of,
    scan_table,
    table_error,
    table_name,
    written_as,
)
from bidwise.models import MODELS, Ensemble
from bidwise.run_folder import load as read_weights
from bidwise.run_folder import read_json
from bidwise.table.config import read_toml
from bidwise.training.validation import ctr_of
from bidwise.typed_json import from_json
from bidwise.urls import check_on_disk

AT_ONCE = 4096  # ads


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

    Args:
        run: the folder.
        device: ``cpu`` or ``cuda``.
    """
    check_on_disk("run", run, "a folder", "copy it first")
    folder = Path(run)
    if not folder.is_dir():
        raise InputError(
            f"must be a folder of bidwise train, found {'a file' if folder.exists() else 'nothing'} at {folder}",
            argument="run",
        )
    for name in ("result.json", "model.json", "model.pt", "encoder.json"):
        if not (folder / name).is_file():
            raise InputError(f"must be a finished run of bidwise train, found no {name} in {folder}", argument="run")
    said, path = read_json(folder / "model.json"), folder / "model.json"
    if not isinstance(said, dict) or said.get("format") != ModelFile.format:
        raise InputError(f"{path} must be a model that bidwise train wrote, found something else")
    if said.get("version") != ModelFile.version:
        fix = "train again in a new folder, or predict with the bidwise that wrote it"
        raise InputError(f"{path} must be of version {ModelFile.version}, found {said.get('version')}; {fix}")
    about = from_json(ModelFile, said, str(path))
    encoder = read_encoder(folder / "encoder.json")
    return Model(folder, about, encoder, _network(about, folder / "model.pt").to(device).eval())


def _network(about: ModelFile, path: Path) -> nn.Module:
    """The model that ``model.json`` describes with the weights at ``path``, and no larger than these."""
    check_name("model", about.model, MODELS)
    weights = read_weights(path)
    others = f"{path} must be the weights of model.json, found others"
    tensors = [x for x in weights.values() if isinstance(x, torch.Tensor)] if isinstance(weights, dict) else []
    if sum(x.numel() for x in tensors) > path.stat().st_size:  # views of a few numbers
        raise InputError(others)
    try:
        with _AtMost(2 * path.stat().st_size):
            build = partial(MODELS[about.model], list(about.cardinalities), **about.options)
            network = Ensemble([build() for _ in range(about.members)])
        network.load_state_dict(weights)
    except (RuntimeError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(others) from error
    return network


class _AtMost(TorchFunctionMode):
    """Where tensors of at most ``room`` numbers in all can be made: sizes in a file are only what it claims."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.randn, torch.zeros, torch.ones, torch.empty):
            shape = args[0] if args and isinstance(args[0], tuple | list) else args
            self.room -= max(1, math.prod(shape))
            if self.room < 0:
                raise ValueError("more numbers than the weights have")
        return func(*args, **(kwargs or {}))


def written_as_in(run: str | Path, table: Table, separator: str | None = None, header: bool | None = None) -> Table:
    """A text file as the run's own was written, where nothing else is said."""
    config = Path(run) / "config.toml"
    if isinstance(table, str | Path) and location_of(table).kind != ".parquet" and config.is_file():
        data = read_toml(config).get("data", {})
        separator, header = separator or data.get("separator"), data.get("header") if header is None else header
    return written_as(table, separator, header)
