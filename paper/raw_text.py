"""Raw Criteo text: lines of files in blocks, and every field of a block at once as arrays."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.run_folder import read_array
from paper.criteo_text import CATEGORIES, INTEGERS

BLOCK = 2**24  # bytes of text at a time, about 70,000 lines
GZIP = b"\x1f\x8b"

WIDTH = 1 + len(INTEGERS) + len(CATEGORIES)  # fields of a line, the label first
LARGEST = 2**31 - 1
LABEL = pl.col("label")
SCHEMA = {"label": pl.Int8} | dict.fromkeys(INTEGERS, pl.Int32) | dict.fromkeys(CATEGORIES, pl.String)


@dataclass(frozen=True)
class Block:
    """Whole lines of one file."""

    path: Path
    line: int  # of the first line in its file, from 0
    row: int  # of the first line in all files together, from 0
    text: bytes
    truth: NDArray[Any] | None  # CTR of each line
    share: float  # of all bytes that are read up to here


def raw_files(raw: Sequence[str | Path]) -> list[Path]:
    """The files of a data set, if they can be read."""
    files = [Path(path) for path in raw]
    if not files:
        raise InputError("must be at least one file, found none", argument="raw")
    for at, path in enumerate(files):
        if not path.is_file():
            raise InputError(f"must be files that exist, found no file {path}", argument="raw")
        if any(path.samefile(other) for other in files[:at]):
            raise InputError(f"must be different files, found {path} twice", argument="raw")
    return files


def true_ctrs(files: Sequence[Path]) -> dict[Path, NDArray[Any]]:
    """The arrays ``RAW.ctr.npy`` of all files, by file; empty if no file has one."""
    named = {path: path.with_name(path.name + ".ctr.npy") for path in files}
    without = [path for path, name in named.items() if not name.is_file()]
    if len(without) == len(files):
        return {}
    if without:
        raise InputError(f"all raw files must have their CTR next to them or none, found none of {without[0]}")
    found = {path: read_array(name) for path, name in named.items()}
    for path, ctr in found.items():
        if ctr.ndim != 1 or ctr.dtype.kind != "f":
            raise InputError(f"{named[path]} must be floating point of shape (lines,), found {ctr.dtype} {ctr.shape}")
        wrong = np.flatnonzero(~((ctr >= 0) & (ctr <= 1)))
        if len(wrong):
            at = f"{ctr[wrong[0]]} for line {int(wrong[0]) + 1}"
            raise InputError(f"{named[path]} must be between 0 and 1, found {at}")
    return found


def blocks(files: Sequence[Path], truth: dict[Path, NDArray[Any]]) -> Iterator[Block]:
    """The text of several files in order, in blocks that end with a line."""
    sizes = [path.stat().st_size for path in files]
    row = 0
    for at, path in enumerate(files):
        line, ctr = 0, truth.get(path)
        for text, read in _texts(path):
            count = text.count(b"\n")
            part = None if ctr is None else ctr[line : line + count]
            if part is not None and len(part) < count:
                raise _lines_differ(path, f"{len(part) + line:,} for more lines")
            yield Block(path, line, row, text, part, (sum(sizes[:at]) + read) / sum(sizes))
            line, row = line + count, row + count
        if not line:
            raise InputError(f"must be files with lines, found the empty {path}", argument="raw")
        if ctr is not None and len(ctr) != line:
            raise _lines_differ(path, f"{len(ctr):,} for {line:,} lines")


def _lines_differ(path: Path, found: str) -> InputError:
    return InputError(f"{path}.ctr.npy must have one CTR for each line of {path.name}, found {found}")


def _texts(path: Path) -> Iterator[tuple[bytes, int]]:
    """Whole lines, about ``BLOCK`` bytes at a time, and how many bytes of the file are read; gzip is unpacked."""
    with path.open("rb") as raw:
        start = raw.read(2)
        raw.seek(0)
        file: Any = gzip.GzipFile(fileobj=raw) if start == GZIP else raw
        rest = b""
        while True:
            try:
                text = file.read(BLOCK)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                found = f"a damaged one ({error}); get the file again"
                raise InputError(f"{path} must be a whole gzip file, found {found}") from None
            if not text:
                break
            end = text.rfind(b"\n") + 1
            if not end and len(text) == BLOCK:
                found = f"{len(text):,} bytes without an end of line; unpack it if it is an archive"
                raise InputError(f"{path} must be lines of text, plain or packed by gzip, found {found}")
            if end:
                yield rest + text[:end], raw.tell()
                rest = b""
            rest += text[end:]
        if rest:  # the last line of a file may lack its end
            yield rest + b"\n", raw.tell()


class Malformed(ValueError):
    """Some line breaks a rule; :func:`fault` says which rule."""


def parse(text: bytes) -> pl.DataFrame:
    r"""Every field of every line: the label, integers, and categories as the numbers that their hex digits write.

    >>> parse(b"1\t-2" + b"\t" * 13 + b"\t00ff00ff" + b"\t" * 24 + b"\n").select("I1", "I2", "C1", "C2").row(0)
    (-2, None, None, 16711935)
    """
    if text.count(b"\t") != (WIDTH - 1) * text.count(b"\n"):
        raise Malformed
    names, digits = pl.col(*CATEGORIES), pl.col(*CATEGORIES).str
    try:
        words = pl.read_csv(text, separator="\t", has_header=False, schema=SCHEMA, quote_char=None)
        table = words.with_columns(digits.to_integer(base=16, dtype=pl.UInt32))
    except pl.exceptions.PolarsError:
        raise Malformed from None
    right = words.select(pl.all_horizontal((digits.len_bytes() == 8) | names.is_null(), LABEL.is_in([0, 1])))
    if not right.to_series().all():
        raise Malformed
    return table


def fault(line: bytes) -> str:
    r"""What was expected of a line and what was found; empty if nothing is wrong.

    >>> fault(b"1\t2")
    'expected 40 fields between tabs (label, 13 integers, 26 categories), found 2'
    """
    words = line.removesuffix(b"\r").split(b"\t")
    if len(words) != WIDTH:
        hint = " (is it test.txt, which has no labels? use train.txt)" if len(words) == WIDTH - 1 else ""
        parts = f"label, {len(INTEGERS)} integers, {len(CATEGORIES)} categories"
        return f"expected {WIDTH} fields between tabs ({parts}), found {len(words)}{hint}"
    label, *values = words
    if label not in (b"0", b"1"):
        return f"expected the label 0 or 1, found {_shown(label)}"
    for name, value in zip(INTEGERS, values, strict=False):
        if value and not (re.fullmatch(rb"-?[0-9]{1,40}", value) and abs(int(value)) <= LARGEST):
            return f"expected {name} to be empty or a whole number below 2^31, found {_shown(value)}"
    for name, value in zip(CATEGORIES, values[len(INTEGERS) :], strict=True):
        if value and not re.fullmatch(rb"[0-9a-fA-F]{8}", value):
            return f"expected {name} to be empty or 8 hex digits, found {_shown(value)}"
    return ""


def _shown(word: bytes) -> str:
    text = word[:24].decode("utf-8", "replace") + ("..." if len(word) > 24 else "")
    return repr(text)
