"""Raw Criteo text: files that can be used, their lines in blocks, every field of a block at once as arrays."""

from __future__ import annotations

import dataclasses
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.run_folder import checksum, read_array
from bidwise.urls import check_on_disk
from paper.criteo_text import CATEGORIES, INTEGERS

SAMPLES = 10  # malformed lines of a block, shown in full
BLOCK = 2**24  # bytes of text at a time, about 70,000 lines
ENDS = 2**20  # bytes at both ends of a file, enough to tell that it was changed
GZIP = b"\x1f\x8b"
OTHERS = {b"PK": "a zip archive", b"BZ": "a bzip2 file", b"\xfd7": "an xz file", b"(\xb5": "a zstandard file"}

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

    number: int
    path: Path
    line: int  # of the first line in its file, from 0
    row: int  # of the first line in all files together, from 0
    text: bytes
    truth: NDArray[np.float32] | None  # CTR of each line
    share: float  # of all bytes that are read up to here


def blocks(files: Sequence[Path], truth: Sequence[Path] = ()) -> Iterator[Block]:
    """The text of several files in order, and the CTR beside it, in blocks that end with a line."""
    sizes = [path.stat().st_size for path in files]
    number = row = 0
    known = {path: _truth(beside) for path, beside in zip(files, truth, strict=False)}
    for at, path in enumerate(files):
        line, ctr = 0, known.get(path)
        for text, read in _texts(path):
            count = text.count(b"\n")
            some = None if ctr is None else _truth_of(path, ctr, line, count)
            yield Block(number, path, line, row, text, some, (sum(sizes[:at]) + read) / sum(sizes))
            number, line, row = number + 1, line + count, row + count
        if not line:
            raise InputError(f"must be files with lines, found the empty {path}", argument="raw")
        if ctr is not None and len(ctr) != line:
            raise InputError(
                f"{path.name}.ctr.npy must have one CTR for each of the {line:,} lines of {path}, found {len(ctr):,}"
            )


def _texts(path: Path) -> Iterator[tuple[bytes, int]]:
    """Whole lines, about ``BLOCK`` bytes at a time, and how many bytes of the file are read; gzip is unpacked."""
    with path.open("rb") as raw:
        start = raw.read(2)
        raw.seek(0)
        if start in OTHERS:
            raise InputError(f"{path} must be text, plain or packed by gzip, found {OTHERS[start]}; unpack it first")
        file: Any = gzip.GzipFile(fileobj=raw) if start == GZIP else raw
        rest, unpacked = b"", 0
        while True:
            try:
                text = file.read(BLOCK)
            except EOFError:
                raise _damaged(path, f"one that is cut off after {unpacked:,} bytes of text or more") from None
            except (gzip.BadGzipFile, zlib.error) as error:
                raise _damaged(path, f"damage after {unpacked:,} bytes of text or more ({error})") from None
            if not text:
                break
            unpacked += len(text)
            end = text.rfind(b"\n") + 1
            if not end and len(text) == BLOCK:
                raise InputError(
                    f"{path} must be lines of text, found {len(text):,} bytes without an end of line; "
                    "is it another kind of file?"
                )
            if end:
                yield rest + text[:end], raw.tell()
                rest = b""
            rest += text[end:]
        if rest:  # the last line of a file may lack its end
            yield rest + b"\n", raw.tell()


def check_whole_file(path: Path) -> None:
    """Raise if a gzip file is damaged; what it unpacks to up to there may look like malformed lines."""
    for _ in _texts(path):
        pass


def _damaged(path: Path, found: str) -> InputError:
    return InputError(f"{path} must be a whole gzip file, found {found}; get the file again")


def raw_files(raw: Sequence[str | Path]) -> list[Path]:
    """The files of a data set, if they can be read."""
    files = [Path(path) for path in raw]
    if not files:
        raise InputError("must be at least one file, found none", argument="raw")
    for at, path in enumerate(files):
        check_on_disk("raw", path, "files", "copy them first")
        if path.is_dir():
            raise InputError(f"must be files, found the folder {path}; name the files in it", argument="raw")
        if not path.is_file():
            raise InputError(f"must be files that exist, found no {path}", argument="raw")
        if any(path.samefile(other) for other in files[:at]):
            raise InputError(f"must be different files, found {path} twice", argument="raw")
    return files


def truth_files(files: Sequence[Path]) -> list[Path]:
    """The files of true CTR beside raw ones: all of them have one, or none has."""
    beside = [path.with_name(path.name + ".ctr.npy") for path in files]
    there = [path.is_file() for path in beside]
    if any(there) and not all(there):
        raise InputError(
            f"all raw files must have their CTR beside them or none, found {beside[there.index(True)]} "
            f"but no {beside[there.index(False)]}"
        )
    return beside if all(there) else []


def _truth(path: Path) -> NDArray[Any]:
    ctr = read_array(path)
    if ctr.ndim != 1 or ctr.dtype.kind != "f":
        raise InputError(f"{path} must be floating point of shape (lines,), found {ctr.dtype} {ctr.shape}")
    return ctr


def _truth_of(path: Path, ctr: NDArray[Any], line: int, count: int) -> NDArray[np.float32]:
    """The CTR of some lines; zeros where there is none, which is an error once all lines are counted."""
    truth = np.zeros(count, np.float32)
    there = ctr[line : line + count]
    truth[: len(there)] = there
    wrong = np.flatnonzero(~((truth >= 0) & (truth <= 1)))
    if len(wrong):
        at = f"{truth[wrong[0]]} for line {line + int(wrong[0]) + 1}"
        raise InputError(f"{path}.ctr.npy must be between 0 and 1, found {at}")
    return truth


def ends(path: Path) -> str:
    """Checksum of the first and the last megabyte."""
    with path.open("rb") as file:
        first = file.read(ENDS)
        file.seek(max(0, path.stat().st_size - ENDS))
        return checksum(first, file.read())


@dataclass(frozen=True)
class Lines:
    """The good lines of a block as columns, and which they are."""

    clicks: NDArray[np.uint8]  # (rows,)
    integers: NDArray[np.int64]  # (13, rows), 0 where missing
    categories: NDArray[np.uint32]  # (26, rows), the number that eight hex digits write; 0 where missing
    missing: NDArray[np.bool_]  # (39, rows), integers first
    good: NDArray[np.bool_]  # whether each line of the block is a row


def parse(text: bytes) -> Lines:
    r"""Every field of every line at once; lines that break a rule are left out and named by ``good``.

    >>> found = parse(b"1\t-2" + b"\t" * 13 + b"\t00ff00ff" + b"\t" * 24 + b"\n" + b"0\t1\n")
    >>> found.integers[0], found.categories[1], found.good
    (array([-2]), array([16711935], dtype=uint32), array([ True, False]))
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
    starts = np.append(len(MARGIN), separators[last[:-1]] + 1)
    fields = np.diff(last, prepend=-1)
    good = fields == WIDTH
    if not good.all():
        separators, starts = separators[np.repeat(good, fields)], starts[good]
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
    if not wrong.any():
        return Lines(clicks, integers, categories, missing, good)
    good[np.flatnonzero(good)[wrong]] = False
    right = ~wrong
    return Lines(clicks[right], integers[:, right], categories[:, right], missing[:, right], good)


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


def faults(block: Block, good: NDArray[np.bool_]) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """How many lines have each kind of fault; the first ones with their numbers (from 1) and the fault in words.

    Sixteen million empty lines take no longer than sixteen megabytes of others.
    """
    if good.all():
        return {}, []
    text, bad = np.frombuffer(block.text, np.uint8), np.flatnonzero(~good)
    ends = np.flatnonzero(text == ord("\n"))
    starts = np.append(0, ends[:-1] + 1)
    tabs = np.diff(np.searchsorted(np.flatnonzero(text == ord("\t")), ends), prepend=0)

    def faulty(at: int) -> tuple[str, str]:
        return fault(block.text[starts[at] : ends[at]])

    whole = tabs[bad] == WIDTH - 1
    kinds = Counter(faulty(at)[0] for at in bad[whole]) + Counter(fields=int((~whole).sum()))
    return dict(kinds), [(block.line + at + 1, faulty(at)[1]) for at in bad[:SAMPLES].tolist()]


def fault(line: bytes) -> tuple[str, str]:
    r"""What is wrong with a line: the kind, and what was expected and found.

    >>> fault(b"1\t2")
    ('fields', 'expected 40 fields between tabs (label, 13 integers, 26 categories), found 2')
    """
    words = line.removesuffix(b"\r").split(b"\t")
    if len(words) != WIDTH:
        hint = " (is it test.txt, which has no labels? use train.txt)" if len(words) == WIDTH - 1 else ""
        parts = f"label, {len(INTEGERS)} integers, {len(CATEGORIES)} categories"
        return "fields", f"expected {WIDTH} fields between tabs ({parts}), found {len(words)}{hint}"
    label, *values = words
    if label not in (b"0", b"1"):
        return "label", f"expected the label 0 or 1, found {_shown(label)}"
    for name, value in zip(INTEGERS, values, strict=False):
        if value and _integer(value) is None:
            return "integer", f"expected {name} to be empty or a whole number below 2^31, found {_shown(value)}"
    for name, value in zip(CATEGORIES, values[len(INTEGERS) :], strict=True):
        if value and not re.fullmatch(rb"[0-9a-fA-F]{8}", value):
            return "category", f"expected {name} to be empty or 8 hex digits, found {_shown(value)}"
    raise AssertionError("a line without fault")


def _shown(word: bytes) -> str:
    text = word[:24].decode("utf-8", "replace") + ("..." if len(word) > 24 else "")
    return repr(text)
