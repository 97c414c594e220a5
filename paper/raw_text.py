"""Raw Criteo text: lines of files in blocks, and every field of a block at once as arrays."""

from __future__ import annotations

import dataclasses
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.run_folder import read_array
from paper.criteo_text import CATEGORIES, INTEGERS

BLOCK = 2**24  # bytes of text at a time, about 70,000 lines
GZIP = b"\x1f\x8b"

WIDTH = 1 + len(INTEGERS) + len(CATEGORIES)  # fields of a line, the label first
LARGEST = 2**31 - 1

# Every byte as a code: hex digits as their values, all others with the highest bit set.
OTHER, TAB, NEWLINE, MINUS, RETURN = 0x80, 0x90, 0x91, 0xA0, 0xB0
_KNOWN = dict(zip(b"0123456789abcdefABCDEF", (*range(16), *range(10, 16)), strict=True))
_KNOWN |= {ord("\t"): TAB, ord("\n"): NEWLINE, ord("-"): MINUS, ord("\r"): RETURN}
CODES = bytes(_KNOWN.get(byte, OTHER) for byte in range(256))
AT_ONCE = 2**22  # bytes whose arrays stay in cache
MARGIN = b" " * 8  # around the text, so that eight bytes before or after any field can be read

Words = NDArray[np.uint64]


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


@dataclass(frozen=True)
class Lines:
    """The lines of a block as columns."""

    clicks: NDArray[np.uint8]  # (rows,)
    integers: NDArray[np.int64]  # (13, rows), 0 where missing
    categories: NDArray[np.uint32]  # (26, rows), the number that eight hex digits write; 0 where missing
    missing: NDArray[np.bool_]  # (39, rows), integers first


class Malformed(ValueError):
    """Some line breaks a rule; :func:`fault` says which rule."""


def parse(text: bytes) -> Lines:
    r"""Every field of every line at once.

    >>> found = parse(b"1\t-2" + b"\t" * 13 + b"\t00ff00ff" + b"\t" * 24 + b"\n")
    >>> found.integers[0], found.categories[1]
    (array([-2]), array([16711935], dtype=uint32))
    """
    bounds = [0]
    while bounds[-1] < len(text):
        bounds.append(text.find(b"\n", bounds[-1] + AT_ONCE) + 1 or len(text))
    parts = [_parsed(text[start:stop]) for start, stop in pairwise(bounds)]
    names = [field.name for field in dataclasses.fields(Lines)]
    return Lines(*(np.concatenate([getattr(part, name) for part in parts], -1) for name in names))


def _parsed(text: bytes) -> Lines:
    codes = np.frombuffer((MARGIN + text + MARGIN).translate(CODES), np.uint8)
    words = np.ndarray((len(codes) - 7,), "<u8", codes.data, strides=(1,))  # the eight bytes from every byte on
    separators = np.flatnonzero((codes & 0xFE) == TAB)  # tabs and ends of lines
    last = np.flatnonzero(codes[separators] == NEWLINE)  # of each line
    if not (np.diff(last, prepend=-1) == WIDTH).all():
        raise Malformed
    starts = np.append(len(MARGIN), separators[last[:-1]] + 1)
    ends = np.ascontiguousarray(separators.reshape(-1, WIDTH).T)
    ends[-1] -= codes[ends[-1] - 1] == RETURN
    rows = len(starts)

    clicks = codes[starts]
    wrong = (ends[0] - starts != 1) | (clicks > 1)
    integers = np.empty((len(INTEGERS), rows), np.int64)
    categories = np.empty((len(CATEGORIES), rows), np.uint32)
    missing = np.empty((WIDTH - 1, rows), np.bool_)
    for column in range(1, WIDTH):
        start, end = ends[column - 1] + 1, ends[column]
        missing[column - 1] = start == end
        if column <= len(INTEGERS):
            wrong |= _integers(text, codes, words, start, end, integers[column - 1])
        else:
            wrong |= _categories(words, start, end, categories[column - 1 - len(INTEGERS)])
    if wrong.any():
        raise Malformed
    return Lines(clicks, integers, categories, missing)


def _integers(
    text: bytes, codes: NDArray[np.uint8], words: Words, start: NDArray[Any], end: NDArray[Any], out: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Decimal numbers into ``out``; which of them are none. Eight digits are one word: added up pair by pair."""
    negative = codes[start] == MINUS
    digits = end - start - negative
    before = (64 - 8 * np.minimum(digits, 8)).astype(np.uint64)  # bits of the word that are not of this field
    word = words[end - 8] >> before << before
    wrong: NDArray[np.bool_] = (
        (word | (word + np.uint64(0x7676767676767676))) & np.uint64(0x8080808080808080)
    ) != 0  # above 9
    wrong |= negative & (digits == 0)
    word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    word = (word * np.uint64(10_000) + (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    out[:] = word
    np.negative(out, out=out, where=negative)
    for row in np.flatnonzero(digits > 8):
        found = _integer(text[start[row] - len(MARGIN) : end[row] - len(MARGIN)])
        wrong[row] = found is None
        out[row] = found or 0
    return wrong


def _integer(word: bytes) -> int | None:
    """A whole number of at most 31 bits, or ``None``."""
    found = int(word) if re.fullmatch(rb"-?[0-9]{1,40}", word) else None
    return found if found is not None and abs(found) <= LARGEST else None


def _categories(words: Words, start: NDArray[Any], end: NDArray[Any], out: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Eight hex digits as a number into ``out``; which are not that. Digits are put together pair by pair."""
    word = words[start]
    length = end - start
    absent = length == 0
    wrong: NDArray[np.bool_] = ((length != 8) | ((word & np.uint64(0x8080808080808080)) != 0)) & ~absent
    word = ((word << np.uint64(4)) | (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    word = ((word << np.uint64(8)) | (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    out[:] = ((word << np.uint64(16)) | (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    out[absent] = 0
    return wrong


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
        if value and _integer(value) is None:
            return f"expected {name} to be empty or a whole number below 2^31, found {_shown(value)}"
    for name, value in zip(CATEGORIES, values[len(INTEGERS) :], strict=True):
        if value and not re.fullmatch(rb"[0-9a-fA-F]{8}", value):
            return f"expected {name} to be empty or 8 hex digits, found {_shown(value)}"
    return ""


def _shown(word: bytes) -> str:
    text = word[:24].decode("utf-8", "replace") + ("..." if len(word) > 24 else "")
    return repr(text)
