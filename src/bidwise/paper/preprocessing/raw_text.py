"""Files of raw text: which can be used, and their lines in blocks, read in order or by workers who read for themselves.

Blocks are the same either way, with the same numbers. Where one begins and ends depends on what is near alone, so that
workers find it without reading from the start, and gzip changes nothing. The key of a row needs its line, so lines are
counted before workers begin.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.run_folder import checksum
from bidwise.runners import Runner
from bidwise.urls import check_on_disk

BLOCK = 2**24  # bytes of text at a time, about 70,000 lines
PIECE = 2**18  # bytes unpacked at a time
ENDS = 2**20  # bytes at both ends of a file, enough to tell that it was changed
GZIP = b"\x1f\x8b"
OTHERS = {b"PK": "a zip archive", b"BZ": "a bzip2 file", b"\xfd7": "an xz file", b"(\xb5": "a zstandard file"}


@dataclass(frozen=True)
class Block:
    """Whole lines of one file."""

    number: int
    path: Path
    line: int  # of the first line in its file, from 0
    row: int  # of the first line in all files together, from 0
    text: bytes
    share: float  # of all bytes that are read up to here

    @property
    def lines(self) -> int:
        return self.text.count(b"\n")


@dataclass(frozen=True)
class Part:
    """Blocks that one worker reads: one of plain text, or all of a file, as gzip can be read from its start alone."""

    path: Path
    whole: bool
    size: int  # bytes of text in a block
    start: int  # bytes of the file
    stop: int
    before: int  # bytes of the files before
    total: int  # bytes of all files
    number: int = 0  # of the first block
    line: int = 0  # of the first line in its file, from 0
    row: int = 0  # of the first line in all files together, from 0
    blocks: int = 0  # not counted yet
    lines: int = 0

    def __iter__(self) -> Iterator[Block]:
        number, line, row = self.number, self.line, self.row
        check_seen("raw", self.path)
        with self.path.open("rb") as file:
            for text in self._texts(file):
                block = Block(number, self.path, line, row, text, (self.before + file.tell()) / max(self.total, 1))
                number, line, row = number + 1, line + block.lines, row + block.lines
                yield block

    def _texts(self, file: BinaryIO) -> Iterator[bytes]:
        """The text of each block: the lines that end in ``size`` bytes; the last has all that is left."""
        if not self.whole:
            yield _ended(self._bytes(file))
            return
        rest, stretches = b"", _stretches(self.path, file, self.size)
        text = next(stretches, b"")
        while text:
            after = next(stretches, b"")
            end = _line_end(self.path, text) if after else len(text)
            yield _ended(b"".join((rest, memoryview(text)[:end])))
            text, rest = after, text[end:]

    def _bytes(self, file: BinaryIO) -> bytes:
        file.seek(self.start)
        return file.read(self.stop - self.start)

    def counted(self) -> Part:
        """The part with its blocks and lines, and the end of its last whole line as its end."""
        check_seen("raw", self.path)
        if self.whole:
            lines = [block.lines for block in self]
            return replace(self, blocks=len(lines), lines=sum(lines))
        with self.path.open("rb") as file:
            text = self._bytes(file)
            if file.read(1):
                text = text[: _line_end(self.path, text)]
        return replace(self, blocks=1, lines=_ended(text).count(b"\n"), stop=self.start + len(text))


def blocks(files: Sequence[Path]) -> Iterator[Block]:
    """The text of several files in order, in blocks that end with a line; gzip is known by its first bytes."""
    number = row = 0
    for part in _parts(files, lambda path: True):
        block = None
        for block in replace(part, number=number, row=row):
            yield block
        _check_lines(part.path, block is not None)
        if block is not None:
            number, row = block.number + 1, block.row + block.lines


def counted_parts(files: Sequence[Path], engine: Runner, show: Callable[[str, float], None]) -> list[Part]:
    """All files, cut at ends of lines, with the line that each part begins with: workers count, sums are taken here."""
    of: dict[Path, list[Part]] = {path: [] for path in files}

    def then(part: Part) -> None:
        of[part.path].append(part)
        show("Counting lines", (part.before + part.stop) / max(part.total, 1))

    engine.in_order(Part.counted, _parts(files, _is_packed), then)
    found: list[Part] = []
    number = row = 0
    for path in files:
        start = line = 0
        for part in of[path]:
            found.append(replace(part, start=start, number=number, line=line, row=row))
            start, number, line, row = part.stop, number + part.blocks, line + part.lines, row + part.lines
        _check_lines(path, line > 0)
    return found


def _parts(files: Sequence[Path], whole: Callable[[Path], bool]) -> Iterable[Part]:
    """All files, those that are not ``whole`` cut at bytes that need not be ends of lines."""
    sizes = [path.stat().st_size for path in files]
    for at, (path, size) in enumerate(zip(files, sizes, strict=True)):
        one = whole(path)
        for start, stop in pairwise([0, size] if one else [*range(0, size, BLOCK), size]):
            yield Part(path, one, BLOCK, start, stop, sum(sizes[:at]), sum(sizes))


def check_seen(argument: str, path: Path) -> None:
    """Raise unless a worker sees a file or folder that the process it works for sees."""
    if not path.exists():
        raise OSError(
            f"{argument} must be on a file system that all machines of the cluster share, under the same path, "
            f"found no {path} on {socket.gethostname()}"
        )


def check_whole_gzip(path: Path) -> None:
    """Raise if a gzip file is damaged; what it unpacks to up to there may look like malformed lines."""
    if _is_packed(path):
        with path.open("rb") as file:
            for _ in _unpacked(path, file):
                pass


def _check_lines(path: Path, lines: bool) -> None:
    if not lines:
        raise InputError(f"must be files with lines, found the empty {path}", argument="raw")


def _ended(text: bytes) -> bytes:
    """The last line of a file may lack its end."""
    return text if text.endswith(b"\n") else text + b"\n"


def _line_end(path: Path, text: bytes) -> int:
    """Where the last whole line of ``text`` ends."""
    end = text.rfind(b"\n") + 1
    if not end:
        raise InputError(
            f"{path} must be lines of text, found {len(text):,} bytes without an end of line; "
            "is it another kind of file?"
        )
    return end


def _is_packed(path: Path) -> bool:
    """Whether a file is gzip, by its first bytes; raise if it is packed in another way."""
    with path.open("rb") as file:
        start = file.read(2)
    if start in OTHERS:
        raise InputError(f"{path} must be text, plain or packed by gzip, found {OTHERS[start]}; unpack it first")
    return start == GZIP


def _stretches(path: Path, file: BinaryIO, size: int) -> Iterator[bytes]:
    """The text, ``size`` bytes at a time."""
    if not _is_packed(path):
        while text := file.read(size):
            yield text
        return
    held: list[bytes] = []
    left = size
    for piece in _unpacked(path, file):
        while len(piece) >= left:
            yield b"".join((*held, piece[:left]))
            held, piece, left = [], piece[left:], size
        held.append(piece)
        left -= len(piece)
    if rest := b"".join(held):
        yield rest


def _unpacked(path: Path, file: BinaryIO) -> Iterator[bytes]:
    unpack, unpacked = zlib.decompressobj(31), 0
    while piece := file.read(PIECE):
        while piece:
            if unpack.eof:  # several packed parts, one after the other, are one text; zeros may fill up the end
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                unpack = zlib.decompressobj(31)
            try:
                text = unpack.decompress(piece)
            except zlib.error as error:
                raise _damaged(path, f"damage after {unpacked:,} bytes of text ({error})") from None
            unpacked += len(text)
            yield text
            piece = unpack.unused_data
    if not unpack.eof:
        raise _damaged(path, f"one that is cut off after {unpacked:,} bytes of text")


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


class Truth:
    """The CTR of each line, in a file beside the lines; another process is told where it is and opens it again."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.ctr: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise InputError(f"{path} must be a numpy file of one CTR for each line, found: {error}") from None
        if self.ctr.ndim != 1 or self.ctr.dtype.kind != "f":
            found = f"{self.ctr.dtype} {self.ctr.shape}"
            raise InputError(f"{path} must be floating point of shape (lines,), found {found}")

    def __reduce__(self) -> tuple[type[Truth], tuple[Path]]:
        return Truth, (self.path,)

    def of(self, block: Block, lines: int) -> NDArray[np.float32]:
        """The CTR of a block's lines; zeros where there is none, which is an error once all lines are counted."""
        truth = np.zeros(lines, np.float32)
        there = self.ctr[block.line : block.line + lines]
        truth[: len(there)] = there
        wrong = np.flatnonzero(~((truth >= 0) & (truth <= 1)))
        if len(wrong):
            line = block.line + int(wrong[0]) + 1
            raise InputError(f"{block.path}.ctr.npy must be between 0 and 1, found {truth[wrong[0]]} for line {line}")
        return truth


def ends(path: Path) -> str:
    """Checksum of the first and the last megabyte."""
    with path.open("rb") as file:
        first = file.read(ENDS)
        file.seek(max(0, path.stat().st_size - ENDS))
        return checksum(first, file.read())
