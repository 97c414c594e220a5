"""Tables that would fill the memory: lines without an end, packed text, and Parquet that claims rows it has not."""

from __future__ import annotations

import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from bidwise.errors import InputError

LONGEST = 2**24  # bytes of a line, about: those of a third more may pass
TAIL = 2**16  # where the end of a line is looked for first
FREE = 2**30  # bytes that any file may claim, eight for each value
RATIO = 100  # of what a larger claim may be of the file: text packs to a tenth, a column of clicks to 1/50
PACKED = {b"\x1f\x8b": "gzip", b"(\xb5": "zstd", b"x\x01": "zlib", b"x\x9c": "zlib", b"x\xda": "zlib"}  # by polars


def check_table_file(path: Path) -> None:
    """Raise where reading a .parquet, .csv or .tsv file could take far more memory than the file is large."""
    if path.is_file():
        about = path.stat()
        _check(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=64)
def _check(path: Path, size: int, changed: int) -> None:
    try:
        with path.open("rb") as file:
            if path.suffix.lower() == ".parquet":
                _check_parquet(path, file, size)
                return
            start = file.read(4)
            packed = PACKED.get(start[:2])
            if packed == "gzip":
                _check_gzip(path, file, size)
            elif packed == "zlib" or start == b"(\xb5/\xfd":
                raise InputError(f"{path} must be text, plain or packed by gzip, found {packed}; unpack it first")
            else:
                _check_lines(path, file, size)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def _check_lines(path: Path, file: Any, size: int) -> None:
    """Every whole block of the file has the end of a line; its last bytes mostly have one, and are read first."""
    for start in range(0, size - LONGEST + 1, LONGEST):
        for some in (TAIL, LONGEST):
            file.seek(start + LONGEST - some)
            if b"\n" in file.read(some):
                break
        else:
            raise InputError(f"{path} must have lines of at most {LONGEST:,} bytes, found one that is longer")


def _check_gzip(path: Path, file: Any, size: int) -> None:
    most, unpacked, rest = max(FREE, RATIO * size), 0, b""
    if 1032 * size <= FREE:  # what gzip can do at most
        return
    file.seek(0)
    unpacker = zlib.decompressobj(wbits=31)
    while block := rest or file.read(2**20):
        try:
            unpacked += len(unpacker.decompress(block, 2**22))
        except zlib.error:
            return  # the reader of the table says so
        rest = unpacker.unconsumed_tail
        if unpacker.eof:
            rest, unpacker = unpacker.unused_data, zlib.decompressobj(wbits=31)
        if unpacked > most:
            raise InputError(f"{path} must unpack to at most {most:,} bytes, found more; unpack it first")


def _check_parquet(path: Path, file: Any, size: int) -> None:
    """The rows and values that the footer claims, in all and for each part, against the bytes of the file."""
    file.seek(max(0, size - 8))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if len(end) < 8 or end[4:] != b"PAR1" or length + 12 > size:
        return  # the reader of the table says so
    file.seek(size - 8 - length)
    try:
        about = _Thrift(file.read(length)).fields()
        parts = [part for group in about.get(4, ()) for part in group.get(1, ())]
        claims = [about.get(3, 0), *(group.get(3, 0) for group in about.get(4, ()))]
        values = sum(max(0, part.get(3, {}).get(5, 0)) for part in parts)
        columns = max((len(group.get(1, ())) for group in about.get(4, ())), default=1)
        claimed = max(values, columns * max(claims), sum(claims[1:]))
    except (AttributeError, IndexError, KeyError, TypeError, RecursionError, ValueError):
        raise InputError(f"{path} must be a Parquet file, found a footer that cannot be read") from None
    if claimed > max(FREE // 8, RATIO * size):
        raise InputError(f"{path} must hold the values that its footer claims, found {claimed:,} in {size:,} bytes")


class _Thrift:
    """What a Parquet footer is written in: fields by number, integers of as many bytes as they need."""

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0

    def whole(self) -> int:
        shift = found = 0
        while (byte := self.text[self.at]) > 127:
            found, shift, self.at = found | (byte & 127) << shift, shift + 7, self.at + 1
            if shift > 63:
                raise ValueError("an integer without an end")
        self.at += 1
        return found | byte << shift

    def fields(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while head := self.text[self.at]:
            self.at += 1
            number = number + (head >> 4) if head >> 4 else self.signed()
            found[number] = True if head & 15 in (1, 2) else self.value(head & 15)
        self.at += 1
        return found

    def signed(self) -> int:
        found = self.whole()
        return found >> 1 ^ -(found & 1)

    def value(self, kind: int) -> Any:
        if kind == 12:
            return self.fields()
        if kind in (4, 5, 6):
            return self.signed()
        if kind in (9, 10):
            head = self.text[self.at]
            self.at += 1
            count = head >> 4 if head >> 4 < 15 else self.whole()
            return [self.value(head & 15) for _ in range(count)]
        skipped = self.whole() if kind == 8 else {1: 1, 2: 1, 3: 1, 7: 8}[kind]  # text has its length before it
        self.at += skipped
        return None
