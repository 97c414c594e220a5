"""`predict`: the CTR of new rows by the model of a run folder, a block at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn

from bidwise.checks import InputError, check_name
from bidwise.data.encoding import Encoder
from bidwise.data.locations import FROM_AFAR, location_of, same_place, written_as
from bidwise.data.read_table import Table, scan_table, table_error, table_name
from bidwise.models import TABLE_MODELS, Ensemble
from bidwise.run_folder import load, read_json, whole_file
from bidwise.table.config import read_toml
from bidwise.training.validation import predict as ctr_of
from bidwise.typed_json import from_json
from bidwise.urls import check_on_disk

SINKS = (".parquet", ".csv", ".tsv")


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
    cardinalities: tuple[int, ...]


def load_run(run: str | Path, device: str = "cpu") -> tuple[nn.Module, Encoder]:
    """The model of a run folder and how it reads columns."""
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
    encoder = Encoder.from_json(read_json(folder / "encoder.json"), str(folder / "encoder.json"))
    check_name("model", about.model, TABLE_MODELS)
    model = Ensemble(
        [TABLE_MODELS[about.model](list(about.cardinalities), **about.options) for _ in range(about.members)]
    )
    try:
        model.load_state_dict(load(folder / "model.pt"))
    except RuntimeError as error:
        raise InputError(f"{folder / 'model.pt'} must be the weights of model.json, found others") from error
    return model.to(device), encoder


def predict(
    run: str | Path,
    table: Table,
    *,
    out: str | Path | None = None,
    column: str = "ctr",
    separator: str | None = None,
    header: bool | None = None,
    device: str = "cpu",
    progress: Callable[[str, float], None] | None = None,
) -> pl.DataFrame | int:
    """The table with the model's CTR as one column more: a frame, or a file at ``out`` and the number of its rows.

    Args:
        run: folder of `train`.
        table: as in `train`; needs the columns that the model was trained on and may have any others. Values that
            training did not see count as rare.
        out: a file that ends in .parquet, .csv or .tsv. The table is then read and written in blocks.
        column: name of the new column.
        separator, header: of a text file, as in `train`; those of the run by default.
        device: ``cpu`` or ``cuda``.
        progress: called as ``progress("predicting", 0.4)``.
    """
    table = _written(table, Path(run) / "config.toml", separator, header)
    rows = scan_table(table)
    names = rows.collect_schema().names()
    if not column:
        raise InputError("must be a name, found nothing", argument="column")
    if column in names:
        raise InputError(
            f"{table_name(table)} has a column {column!r} already; give the predictions another name (column)"
        )
    target = None if out is None else _target(out, table)
    model, encoder = load_run(run, device)
    encoder.check(names, table_name(table))
    block = _Block(model, encoder, column, progress)
    try:
        block.rows = _count(rows) if progress is not None else 0
        if target is None:
            return block(rows.collect(engine="streaming"))
        _sink(rows, block, target)
    except (pl.exceptions.PolarsError, InputError, OSError) as error:
        if block.failed is not None:
            raise block.failed from None
        if isinstance(error, pl.exceptions.PolarsError) or FROM_AFAR.search(str(error)):
            raise table_error(table, error) from None
        raise
    return block.done


def _written(table: Table, config: Path, separator: str | None, header: bool | None) -> Table:
    """A text file as the run's own was written, where nothing else is said."""
    if isinstance(table, str | Path) and location_of(table).kind != ".parquet" and config.is_file():
        data = read_toml(config).get("data", {})
        separator, header = separator or data.get("separator"), data.get("header") if header is None else header
    return written_as(table, separator, header)


class _Block:
    """Adds the predictions to some rows; polars may call it from threads of its own."""

    def __init__(
        self, model: nn.Module, encoder: Encoder, column: str, progress: Callable[[str, float], None] | None
    ) -> None:
        self.model, self.encoder, self.column, self.progress = model, encoder, column, progress
        self.rows = self.done = 0
        self.failed: Exception | None = None
        self.lock = threading.Lock()

    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        with self.lock:
            try:
                predicted = rows.with_columns(pl.Series(self.column, self._ctr(rows), dtype=pl.Float64))
            except Exception as error:  # polars would wrap it in words of its own
                self.failed = self.failed or error
                raise
            self.done += len(rows)
            if self.progress is not None and self.rows:
                self.progress("predicting", self.done / self.rows)
            return predicted

    def _ctr(self, rows: pl.DataFrame) -> Any:
        if rows.is_empty():
            return np.zeros(0)
        features = torch.from_numpy(self.encoder.encode(rows))
        return ctr_of(self.model, features).double().cpu().numpy()


def _count(rows: pl.LazyFrame) -> int:
    return int(rows.select(pl.len()).collect().item())


def _target(out: str | Path, table: Table) -> Path:
    check_on_disk("out", out, "a file", "copy it afterwards")
    path = Path(out)
    if path.suffix.lower() not in SINKS:
        raise InputError(f"must end in {', '.join(SINKS)}, found {path.name!r}", argument="out")
    if path.is_dir():
        raise InputError(f"must be a file, found the folder {path}", argument="out")
    if same_place(out, table):
        raise InputError(f"must be another file than the table, found {path} for both", argument="out")
    above = path.absolute().parent
    if above.exists() and not above.is_dir():
        raise InputError(f"must be in a folder, found the file {above}", argument="out")
    return path


def _sink(rows: pl.LazyFrame, block: _Block, path: Path) -> None:
    """Stream the rows through the model into a file, which gets its name when it is whole."""
    schema = pl.Schema({**rows.collect_schema(), block.column: pl.Float64()})
    predicted = rows.map_batches(block, schema=schema, streamable=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        if path.suffix.lower() == ".parquet":
            predicted.sink_parquet(part, engine="streaming")
        else:
            predicted.sink_csv(part, separator="\t" if path.suffix.lower() == ".tsv" else ",", engine="streaming")
