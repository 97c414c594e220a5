"""A table through an exported model: text by Python's csv module, Parquet by pyarrow or polars where one is there."""

from __future__ import annotations

import csv
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bidwise.bridges.scoring import Scorer
from bidwise.errors import InputError
from bidwise.urls import check_on_disk
from bidwise.values import Vocabulary

SEPARATORS = {".csv": ",", ".tsv": "\t"}
AT_ONCE = 4096  # rows
LONGEST = 2**20  # characters of a line
WHOLE = re.compile(r"-?\d+", re.ASCII)  # what polars takes for numbers and booleans in a text file
DECIMAL = re.compile(r"[-+]?((\d*\.\d+)([eE][-+]?\d+)?|inf|NaN|\d+[eE][-+]?\d+|\d+\.)", re.ASCII)
BOOLEAN = re.compile("true|false", re.IGNORECASE)

Row = list[Any]


@dataclass(frozen=True)
class Rows:
    """A table that is read a row at a time, as often as need be; ``text`` says whether its values are all text."""

    name: str
    columns: list[str]
    read: Callable[[], Iterable[Row]]
    text: bool


def score_table(
    file: str | Path,
    table: str | Path,
    out: str | Path,
    *,
    column: str = "ctr",
    separator: str | None = None,
    header: bool | None = None,
) -> int:
    """Score a table, a block of rows at a time; returns how many there were.

    Args:
        file: what `bidwise export` wrote.
        table: .csv, .tsv, either with .gz, or .parquet; blank lines are rows without values.
        out: ends in .csv or .tsv for the table with one column more, in .npy for the scores alone.
        column: name of the new column.
        separator, header: of a text file, as in `bidwise train`; those of the run by default.
    """
    check_on_disk("table", table, "a file", "copy it first")
    check_on_disk("out", out, "a file", "copy it afterwards")
    target = Path(out)
    ending = target.suffix.lower()
    if ending not in (*SEPARATORS, ".npy"):
        raise InputError(f"must end in .csv, .tsv or .npy, found {target.name!r}", argument="out")
    if target.resolve() == Path(table).resolve():
        raise InputError(f"must be another file than the table, found {target} for both", argument="out")
    scorer = Scorer(file)
    written = scorer.about["text"]
    rows = _opened(
        Path(table), separator or written["separator"], bool(written["header"] if header is None else header)
    )
    scorer.check(rows.columns, rows.name)
    if column in rows.columns and ending != ".npy":
        raise InputError(f"{rows.name} has a column {column!r} already; give the scores another name (column)")
    scored = _scored(scorer, rows)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _whole(target) as part:
        if ending == ".npy":
            scores = np.concatenate([np.zeros(0), *(scores for _, scores in scored)])
            with part.open("wb") as binary:
                np.save(binary, scores)
            return len(scores)
        count = 0
        with part.open("w", newline="", encoding="utf-8") as opened:
            writer = csv.writer(opened, delimiter=SEPARATORS[ending], lineterminator="\n")
            writer.writerow([*rows.columns, column])
            for block, scores in scored:
                writer.writerows([*row, repr(score)] for row, score in zip(block, scores.tolist(), strict=True))
                count += len(block)
        return count


def _scored(scorer: Scorer, rows: Rows) -> Iterator[tuple[list[Row], Any]]:
    places = {name: rows.columns.index(name) for name in scorer.columns}
    names = [name for name, ids in scorer.columns.items() if isinstance(ids, Vocabulary)]
    types = _types(rows, {name: places[name] for name in names}) if rows.text else {}
    stream, done = iter(rows.read()), 0
    while block := list(islice(stream, AT_ONCE)):
        columns = {name: [row[at] for row in block] for name, at in places.items()}
        for name, read in types.items():
            columns[name] = [read(x) if x else None for x in columns[name]]
        try:
            yield block, scorer.score(columns)
        except InputError as error:
            raise InputError(f"{rows.name}, rows {done} to {done + len(block) - 1}: {error}") from None
        done += len(block)


def _types(rows: Rows, places: dict[str, int]) -> dict[str, Callable[[str], Any]]:
    """How names in a text file are read, by all rows, so that 7, 07 and 7.0 are one name if all are numbers."""
    kinds: dict[str, set[str]] = {name: set() for name in places}
    for row in rows.read():
        for name, at in places.items():
            if row[at] and "text" not in kinds[name]:
                kinds[name].add(_kind(row[at]))
    reads: dict[str, Callable[[str], Any]] = {}
    for name, found in kinds.items():
        if found == {"whole"}:
            reads[name] = int
        elif found and found <= {"whole", "decimal"}:
            reads[name] = float
        elif found == {"boolean"}:
            reads[name] = str.lower
    return reads


def _kind(text: str) -> str:
    if WHOLE.fullmatch(text):
        return "whole"
    return "decimal" if DECIMAL.fullmatch(text) else "boolean" if BOOLEAN.fullmatch(text) else "text"


def _opened(path: Path, separator: str | None, header: bool) -> Rows:
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise InputError(f"must be a file, found {found} at {path}", argument="table")
    last = path.suffix.lower()
    if last == ".parquet":
        return _parquet(path)
    ending = Path(path.stem).suffix.lower() if last == ".gz" else last
    if ending not in SEPARATORS:
        raise InputError(f"{path} must end in .parquet, .csv, .tsv, .csv.gz or .tsv.gz")
    delimiter = "\t" if separator == "\\t" else separator or SEPARATORS[ending]
    if len(delimiter) != 1:
        raise InputError(f"must be one character, or \\t for a tab, found {separator!r}", argument="separator")

    def lines() -> Iterator[Row]:
        opener: Any = gzip.open if last == ".gz" else open
        broken = (csv.Error, UnicodeDecodeError, EOFError, zlib.error)
        with _readable(path, *broken), opener(path, "rt", encoding="utf-8-sig", newline="") as text:
            yield from csv.reader(iter(partial(_line, text), ""), delimiter=delimiter)

    first = next(iter(lines()), None)
    if first is None:
        raise InputError(f"{path} must hold ads, found an empty file")
    columns = first if header else [f"column_{at}" for at in range(1, len(first) + 1)]

    def rows() -> Iterator[Row]:
        for at, row in enumerate(islice(lines(), int(header), None)):
            if len(row) > len(columns):
                raise InputError(f"{path}: row {at} must have {len(columns)} values, found {len(row)}")
            yield row if len(row) == len(columns) else [*row, *[""] * (len(columns) - len(row))]

    return Rows(str(path), columns, rows, text=True)


def _line(text: Any) -> str:
    """The next line, which must not fill the memory."""
    line: str = text.readline(LONGEST)
    if len(line) == LONGEST:
        raise csv.Error(f"a line of {LONGEST:,} characters or more")
    return line


def _parquet(path: Path) -> Rows:
    if find_spec("pyarrow") is not None:
        broken = import_module("pyarrow").ArrowException
        with _readable(path, broken):
            file = import_module("pyarrow.parquet").ParquetFile(path)

        def rows() -> Iterator[Row]:
            with _readable(path, broken):
                for batch in file.iter_batches(AT_ONCE):
                    yield from map(list, zip(*batch.to_pydict().values(), strict=True))

        return Rows(str(path), file.schema_arrow.names, rows, text=False)
    if find_spec("polars") is None:
        raise InputError(f"{path} needs pyarrow or polars to be read, found neither; install one, or give a CSV file")
    import polars as pl

    with _readable(path, pl.exceptions.PolarsError):
        frame = pl.read_parquet(path)
    return Rows(str(path), frame.columns, lambda: map(list, frame.iter_rows()), text=False)


@contextmanager
def _readable(path: Path, *broken: type[Exception]) -> Iterator[None]:
    """What keeps a file from being read, as an error that names it."""
    errors: tuple[type[Exception], ...] = (*broken, OSError)
    try:
        yield
    except errors as error:
        raise InputError(f"{path} cannot be read: {str(error).strip().partition(chr(10))[0]}") from None


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A temporary name that becomes ``path`` in the end, as of run folders, which need torch."""
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
