"""`predict`: the CTR of new rows by the model of a run folder, in one pass over the table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
from polars.io.plugins import register_io_source

from bidwise.checks import InputError
from bidwise.data.columns import Encoded
from bidwise.data.table_files import Block, Source, Table
from bidwise.run_folder import named, whole_file
from bidwise.table.model import Drift, Model, load, opened_as_in
from bidwise.urls import check_on_disk
from bidwise.values import Floats
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
        raise InputError(f"{source.name} has a column {column!r} already; give the predictions another name (column)")
    target = None if out is None else _target(out, source)
    model.encoder.check(source.columns, source.name)
    predictions = _Predictions(model, source, column, progress)
    if target is None:
        frames = list(predictions.frames())
        predictions.report(strict)
        return pl.concat(frames)
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as part:
        if (to := SINKS[target.suffix.lower()]) is None:
            predictions.write_parquet(part)
        else:
            with named(part), part.open("wb") as file:
                predictions.write_text(file, to)
        predictions.report(strict)
    return predictions.done


class _Predictions:
    """The blocks of a table with their CTR, one after the other."""

    def __init__(
        self, model: Model, source: Source, column: str, progress: Callable[[str, float], None] | None
    ) -> None:
        self.model, self.source, self.column, self.progress = model, source, column, progress
        self.drift, self.done = Drift(model.encoder), 0

    def __iter__(self) -> Iterator[tuple[Block, Floats]]:
        def encoded(block: Block) -> tuple[Block, Encoded]:
            return block, self.model.encoder.encode(block.frame)

        for block, rows in ahead(encoded, self.source.blocks(), min(cores(), 4)):
            self.drift.add(rows)
            with block.located():
                ctr = self.model.ctr(rows.ids)
            yield block, ctr
            self.done += len(ctr)
            if self.progress is not None:
                self.progress("predicting", block.share)

    def frames(self) -> Iterator[pl.DataFrame]:
        """The cells of the blocks with their CTR."""
        return (block.frame.with_columns(pl.Series(self.column, ctr)) for block, ctr in self)

    def report(self, strict: bool) -> None:
        """Warn of columns with many values that training did not have, or raise."""
        if not self.drift.columns:
            return
        if strict:
            raise InputError(f"{self.source.name} {self.drift}")
        logging.getLogger("bidwise").warning("%s %s", self.source.name, self.drift)

    def write_text(self, file: BinaryIO, separator: str) -> None:
        """Cells of text come out as they went in, between the same separators unless these are tabs."""
        header, own = self.source.header, self.source.separator
        separator = own if "\t" not in (own, separator) else separator
        for frame in self.frames():
            frame.write_csv(file, separator=separator, include_header=header)
            header = False

    def write_parquet(self, path: Path) -> None:
        """Stream the blocks into a Parquet file."""

        def frames(*_: Any) -> Iterator[pl.DataFrame]:
            """The interface of a source of polars; all columns of all rows are read."""
            try:
                yield from self.frames()
            except Exception as error:  # polars would wrap it in words of its own
                failed.append(error)
                raise

        failed: list[Exception] = []
        predicted = register_io_source(frames, schema={**self.source.schema, self.column: pl.Float64()})
        try:
            with path.open("wb") as file:  # by its name polars could make it after an error, when it was removed
                predicted.sink_parquet(file, row_group_size=GROUP, engine="streaming")
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
    above = path.absolute().parent
    if above.exists() and not above.is_dir():
        raise InputError(f"must be in a folder, found the file {above}", argument="out")
    nested = [name for name, dtype in source.schema.items() if dtype.is_nested()]
    if path.suffix.lower() != ".parquet" and nested:
        words = f"must end in .parquet, found {path.name!r}: text has no lists, and column {nested[0]!r} contains them"
        raise InputError(words, argument="out")
    return path
