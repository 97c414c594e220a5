"""`predict`: the CTR of new rows by the model of a run folder, in one pass over the table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
from polars.io.plugins import register_io_source

from bidwise.checks import InputError
from bidwise.data.table_files import Source, Table
from bidwise.run_folder import whole_file
from bidwise.table.model import Drift, load, opened_as_in
from bidwise.urls import check_on_disk
from bidwise.workers import ahead, cores

SINKS = {".parquet": None, ".csv": ",", ".tsv": "\t"}  # the separator of text
GROUP = 2**17  # rows of a row group


def predict(
    run: str | Path,
    table: Table,
    *,
    out: str | Path | None = None,
    column: str = "ctr",
    separator: str | None = None,
    header: bool | None = None,
    strict: bool = False,
    device: str = "cpu",
    progress: Callable[[str, float], None] | None = None,
) -> pl.DataFrame | int:
    """The table with the model's CTR as one column more: a frame, or a file at ``out`` and the number of its rows.

    Other columns come out as they went in; cells of text keep their text. The logger ``bidwise`` warns of columns
    with many values that the training did not have.

    Args:
        run: folder of `train`.
        table: as in `train`; needs the columns that the model was trained on and may have any others. Values that
            training did not see count as rare.
        out: a file that ends in .parquet, .csv or .tsv. The table is then read and written in blocks, in constant
            memory.
        column: name of the new column.
        separator, header: of a text file, as in `train`; by default as in the run.
        strict: raise instead of the warning, without writing a file.
        device: ``cpu`` or ``cuda``.
        progress: called as ``progress("predicting", 0.4)``.
    """
    model = load(run, device=device)
    source = opened_as_in(model.run, table, separator, header)
    if not column:
        raise InputError("must be a name, found an empty text", argument="column")
    if column in source.columns:
        raise InputError(f"must be a new name, found a column {column!r} in {source.name}", argument="column")
    target = None if out is None else _target(out, source)
    model.encoder.check(source.columns, source.name)
    drift, done = Drift(model.encoder), 0

    def frames() -> Iterator[pl.DataFrame]:
        """The blocks of the table with their CTR."""
        nonlocal done
        blocks = ahead(lambda block: (block, model.encoder.encode(block.frame)), source.blocks(), min(cores(), 4))
        for block, rows in blocks:
            drift.add(rows)
            with block.located():
                ctr = model.ctr(rows.ids)
            yield block.frame.with_columns(pl.Series(column, ctr))
            done += len(ctr)
            if progress is not None:
                progress("predicting", block.share)

    def report() -> None:
        if drift.columns and strict:
            raise InputError(f"{source.name} {drift}")
        if drift.columns:
            logging.getLogger("bidwise").warning("%s %s", source.name, drift)

    if target is None:
        found = pl.concat(frames())
        report()
        return found
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as part:
        if (separator := SINKS[target.suffix.lower()]) is None:
            _write_parquet(part, frames(), {**source.schema, column: pl.Float64()})
        else:
            with part.open("wb") as file:
                _write_text(file, frames(), source, separator)
        report()
    return done


def _write_text(file: BinaryIO, frames: Iterator[pl.DataFrame], source: Source, separator: str) -> None:
    """Cells of text come out as they went in, between the same separators unless these are tabs."""
    header, own = source.header, source.separator
    for frame in frames:
        frame.write_csv(file, separator=separator if "\t" in (own, separator) else own, include_header=header)
        header = False


def _write_parquet(path: Path, frames: Iterator[pl.DataFrame], schema: dict[str, Any]) -> None:
    """Stream blocks into a Parquet file."""
    failed: list[Exception] = []

    def blocks(*_: Any) -> Iterator[pl.DataFrame]:
        """The interface of a source of polars; all columns of all rows are read."""
        try:
            yield from frames
        except Exception as error:  # polars would wrap it in words of its own
            failed.append(error)
            raise

    try:
        with path.open("wb") as file:  # by its name polars could make it after an error, when it was removed
            register_io_source(blocks, schema=schema).sink_parquet(file, row_group_size=GROUP, engine="streaming")
    except pl.exceptions.PolarsError:
        if failed:
            raise failed[0] from None
        raise


def _target(out: str | Path, source: Source) -> Path:
    check_on_disk("out", out, "a file", "copy it afterwards")
    path = Path(out)
    if path.suffix.lower() not in SINKS:
        raise InputError(f"must end in {', '.join(SINKS)}, found {path.name!r}", argument="out")
    if path.is_dir():
        raise InputError(f"must be a file, found the folder {path}", argument="out")
    if source.reads(path):
        words = f"must be another file than the table, and outside of the folder that is read, found {path}"
        raise InputError(words, argument="out")
    nested = [name for name, dtype in source.schema.items() if dtype.is_nested()]
    if path.suffix.lower() != ".parquet" and nested:
        words = f"must end in .parquet, found {path.name!r}: text has no lists, and column {nested[0]!r} contains them"
        raise InputError(words, argument="out")
    return path
