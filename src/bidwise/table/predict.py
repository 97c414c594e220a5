"""`predict`: the CTR of new rows by the model of a run folder, a block at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import polars as pl

from bidwise.checks import InputError
from bidwise.data.read_table import FROM_AFAR, UNREADABLE, Table, same_place, scan_table, table_error, table_name
from bidwise.run_folder import whole_file
from bidwise.table.model import Model, load, written_as_in
from bidwise.urls import check_on_disk

SINKS = (".parquet", ".csv", ".tsv")


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
    table = written_as_in(run, table, separator, header)
    rows = scan_table(table)
    names = rows.collect_schema().names()
    if not column:
        raise InputError("must be a name, found nothing", argument="column")
    if column in names:
        raise InputError(
            f"{table_name(table)} has a column {column!r} already; give the predictions another name (column)"
        )
    target = None if out is None else _target(out, table)
    model = load(run, device=device)
    model.encoder.check(names, table_name(table))
    block = _Block(model, column, progress)
    try:
        block.rows = _count(rows) if progress is not None else 0
        if target is None:
            return block(rows.collect(engine="streaming"))
        _sink(rows, block, target)
    except (*UNREADABLE, InputError) as error:
        if block.failed is not None:
            raise block.failed from None
        if not isinstance(error, InputError | OSError) or FROM_AFAR.search(str(error)):
            raise table_error(table, error) from None
        raise
    return block.done


class _Block:
    """Adds the predictions to some rows; polars may call it from threads of its own."""

    def __init__(self, model: Model, column: str, progress: Callable[[str, float], None] | None) -> None:
        self.model, self.column, self.progress = model, column, progress
        self.rows = self.done = 0
        self.failed: Exception | None = None
        self.lock = threading.Lock()

    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        with self.lock:
            try:
                predicted = rows.with_columns(pl.Series(self.column, self.model.predict(rows)))
            except Exception as error:  # polars would wrap it in words of its own
                self.failed = self.failed or error
                raise
            self.done += len(rows)
            if self.progress is not None and self.rows:
                self.progress("predicting", self.done / self.rows)
            return predicted


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
