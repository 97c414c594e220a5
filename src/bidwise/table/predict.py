"""`predict`: the CTR of new rows by the model of a run folder, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
from polars.io.plugins import register_io_source

from bidwise.checks import InputError
from bidwise.data.read_table import (
    FROM_AFAR,
    PLACES,
    UNREADABLE,
    BadRow,
    Table,
    check_once,
    location_of,
    row_count,
    same_place,
    scan_table,
    table_error,
    table_name,
)
from bidwise.run_folder import whole_file
from bidwise.table.model import Model, load, written_as_in
from bidwise.urls import check_on_disk

SINKS = (".parquet", ".csv", ".tsv")
BLOCK = 2**17  # rows, whole times those that the network has at once


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
        out: a file that ends in .parquet, .csv or .tsv. The table is then read and written in blocks, in constant
            memory.
        column: name of the new column.
        separator, header: of a text file, as in `train`; those of the run by default.
        device: ``cpu`` or ``cuda``.
        progress: called as ``progress("predicting", 0.4)``.
    """
    model = load(run, device=device)
    table = written_as_in(run, table, separator, header)
    try:
        rows = scan_table(table)
        names = rows.collect_schema().names()
    except UNREADABLE as error:
        raise table_error(table, error) from None
    if not column:
        raise InputError("must be a name, found nothing", argument="column")
    if column in names:
        raise InputError(
            f"{table_name(table)} has a column {column!r} already; give the predictions another name (column)"
        )
    target = None if out is None else _target(out, table)
    nested = [name for name, dtype in rows.collect_schema().items() if dtype.is_nested()]
    if target is not None and target.suffix.lower() != ".parquet" and nested:
        words = f"must end in .parquet, found {target.name!r}: text has no lists, and column {nested[0]!r} holds them"
        raise InputError(words, argument="out")
    model.encoder.check(names, table_name(table))
    check_once(model.columns, names, table)
    blocks = _Blocks(model, rows, column, progress)
    try:
        blocks.total = row_count(rows) if progress is not None else 0
        if target is None:
            frame = rows.collect(engine="streaming")
            return frame.with_columns(pl.Series(column, model.predict(frame)))
        _sink(blocks, target)
    except (*UNREADABLE, InputError) as error:
        if blocks.failed is not None:
            if isinstance(bad := blocks.failed, BadRow):
                bad = BadRow(table_name(table), bad.column, blocks.done + bad.row, bad.found)
                raise bad.of(location_of(table)) if isinstance(table, PLACES) else bad from None
            unread = isinstance(blocks.failed, pl.exceptions.PolarsError)
            raise table_error(table, blocks.failed) if unread else blocks.failed from None
        if not isinstance(error, InputError | OSError) or FROM_AFAR.search(str(error)):
            raise table_error(table, error) from None
        raise
    return blocks.done


class _Blocks:
    """The rows with their predictions, a block after the other.

    Blocks begin at the same rows in every run: torch may round a row differently in another block.
    """

    def __init__(
        self,
        model: Model,
        rows: pl.LazyFrame,
        column: str,
        progress: Callable[[str, float], None] | None,
    ) -> None:
        self.model, self.rows, self.column, self.progress = model, rows, column, progress
        self.total = self.done = 0
        self.failed: Exception | None = None

    def __call__(self, *_: Any) -> Iterator[pl.DataFrame]:
        """What polars asks a source for; all columns of all rows are wanted."""
        self.done = 0
        try:
            for block in self.rows.collect_batches(chunk_size=BLOCK, engine="streaming"):
                yield block.with_columns(pl.Series(self.column, self.model.predict(block)))
                self.done += len(block)
                if self.progress is not None and self.total:
                    self.progress("predicting", self.done / self.total)
        except Exception as error:  # polars would wrap it in words of its own
            self.failed = error
            raise


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


def _sink(blocks: _Blocks, path: Path) -> None:
    """Stream the blocks into a file, which gets its name when it is whole."""
    predicted = register_io_source(blocks, schema={**blocks.rows.collect_schema(), blocks.column: pl.Float64()})
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        if path.suffix.lower() == ".parquet":
            predicted.sink_parquet(part, row_group_size=BLOCK, engine="streaming")
        else:
            predicted.sink_csv(part, separator="\t" if path.suffix.lower() == ".tsv" else ",", engine="streaming")
