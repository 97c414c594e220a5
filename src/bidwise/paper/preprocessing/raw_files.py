"""Files of raw text: which can be used, and their lines in blocks, unpacked if need be."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.run_folder import checksum
from bidwise.urls import check_on_disk

BLOCK = 2**24  # bytes of text at a time, about 70,000 lines
PIECE = 2**18  # bytes unpacked at a time
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


def blocks(files: Sequence[Path]) -> Iterator[Block]:
    """The text of several files in order, in blocks that end with a line; gzip is known by its first bytes."""
    sizes = [path.stat().st_size for path in files]
    number = row = 0
    for at, path in enumerate(files):
        line = 0
        with path.open("rb") as file:
            for text in texts(path, file, BLOCK):
                share = (sum(sizes[:at]) + file.tell()) / max(sum(sizes), 1)
                block = Block(number, path, line, row, text, share)
                number, line, row = number + 1, line + block.lines, row + block.lines
                yield block
        check_lines(path, line)


def texts(path: Path, file: BinaryIO, size: int) -> Iterator[bytes]:
    """A file in blocks: one for every ``size`` bytes of text, the lines that end there; the last has all that is left.

    Where a block begins and ends depends on what is near alone, so that others can find it without reading from the
    start, and gzip changes nothing.
    """
    rest, stretches = b"", _stretches(path, file, size)
    text = next(stretches, b"")
    while text:
        after = next(stretches, b"")
        end = line_end(path, text) if after else len(text)
        yield ended(b"".join((rest, memoryview(text)[:end])))
        text, rest = after, text[end:]


def ended(text: bytes) -> bytes:
    """The last line of a file may lack its end."""
    return text if text.endswith(b"\n") else text + b"\n"


def line_end(path: Path, text: bytes) -> int:
    """Where the last whole line of ``text`` ends."""
    end = text.rfind(b"\n") + 1
    if not end:
        raise InputError(
            f"{path} must be lines of text, found {len(text):,} bytes without an end of line; "
            "is it another kind of file?"
        )
    return end


def check_lines(path: Path, lines: int) -> None:
    if not lines:
        raise InputError(f"raw must be files with lines, found the empty {path}")


def check_packed(path: Path) -> None:
    """Raise if a gzip file is damaged; what it unpacks to up to there may look like malformed lines."""
    with path.open("rb") as file:
        if packed(path, file):
            for _ in _unpacked(path, file):
                pass


def packed(path: Path, file: BinaryIO) -> bool:
    """Whether a file is gzip, by its first bytes; raise if it is packed in another way."""
    start = file.read(2)
    file.seek(0)
    if start in OTHERS:
        raise InputError(f"{path} must be text, plain or packed by gzip, found {OTHERS[start]}; unpack it first")
    return start == GZIP


def _stretches(path: Path, file: BinaryIO, size: int) -> Iterator[bytes]:
    """The text, ``size`` bytes at a time."""
    if not packed(path, file):
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
                found = unpack.decompress(piece)
            except zlib.error as error:
                raise InputError(
                    f"{path} must be a whole gzip file, found damage after {unpacked:,} bytes of text ({error}); "
                    "get the file again"
                ) from None
            unpacked += len(found)
            yield found
            piece = unpack.unused_data
    if not unpack.eof:
        raise InputError(
            f"{path} must be a whole gzip file, found one that is cut off after {unpacked:,} bytes of text; "
            "get the file again"
        )


def raw_files(raw: Sequence[str | Path]) -> list[Path]:
    files = [Path(path) for path in raw]
    if not files:
        raise InputError("raw must be at least one file, found none")
    for at, path in enumerate(files):
        check_on_disk("raw", path, "files", "copy them first")
        if path.is_dir():
            raise InputError(f"raw must be files, found the folder {path}; name the files in it")
        if not path.is_file():
            raise InputError(f"raw must be files that exist, found no {path}")
        if any(path.samefile(other) for other in files[:at]):
            raise InputError(f"raw must be different files, found {path} twice")
    return files


def truth_files(files: list[Path]) -> list[Path]:
    found = [path.with_name(path.name + ".ctr.npy") for path in files]
    there = [path.is_file() for path in found]
    if any(there) and not all(there):
        raise InputError(
            f"all raw files must have their CTR beside them or none, found {found[there.index(True)]} "
            f"but no {found[there.index(False)]}"
        )
    return found if all(there) else []


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


def ends(path: Path) -> str:
    """CRC-32 of the first and the last megabyte: enough to tell that a file was changed."""
    with path.open("rb") as file:
        first = file.read(2**20)
        file.seek(max(0, path.stat().st_size - 2**20))
        return checksum(first, file.read())
