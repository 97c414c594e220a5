"""Tables that would fill the memory: lines without an end, packed text, and Parquet that claims rows it has not."""

from __future__ import annotations

import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from bidwise.errors import InputError

LONGEST = 2**24  # bytes of a line; twice that may pass
TAIL = 2**16  # where the end of a line is looked for first
FREE = 2**30  # bytes that any file may claim, eight for each value
RATIO = 100  # of a larger claim to the file: text packs to a tenth, a column of clicks to 1/50
PACKED = (b"(\xb5/\xfd", b"x\x01", b"x\x9c", b"x\xda")  # zstd and zlib, which polars would unpack too


def check_table_file(path: Path) -> None:
    """Raise where reading a .parquet, .csv or .tsv file could take far more memory than the file is large."""
    if path.is_file():
        _check(path, path.stat().st_size, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _check(path: Path, size: int, changed: int) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(4)
            if path.suffix.lower() == ".parquet":
                fault = _parquet_fault(file, size)
            elif start.startswith(PACKED):
                fault = "be plain text or packed by gzip, found zlib or zstd"
            else:
                fault = _gzip_fault(file, size) if start.startswith(b"\x1f\x8b") else _line_fault(file, size)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if fault:
        raise InputError(f"{path} must {fault}")


def _line_fault(file: Any, size: int) -> str:
    """Every whole block of the file has the end of a line; its last bytes mostly have one, and are read first."""
    for start in range(0, size - LONGEST + 1, LONGEST):
        for some in (TAIL, LONGEST):
            file.seek(start + LONGEST - some)
            if b"\n" in file.read(some):
                break
        else:
            return f"have lines of at most {LONGEST:,} bytes, found one that is longer"
    return ""


def _gzip_fault(file: Any, size: int) -> str:
    most, unpacked, rest, unpacker = max(FREE, RATIO * size), 0, b"", zlib.decompressobj(wbits=31)
    file.seek(0 if 1032 * size > FREE else size)  # gzip packs to 1/1032 at best
    while block := rest or file.read(2**20):
        try:
            unpacked += len(unpacker.decompress(block, 2**22))
        except zlib.error:
            return ""  # the reader of the table says so
        rest = unpacker.unconsumed_tail
        if unpacker.eof:
            rest, unpacker = unpacker.unused_data, zlib.decompressobj(wbits=31)
        if unpacked > most:
            return f"unpack to at most {most:,} bytes, found more; unpack it first"
    return ""


def _parquet_fault(file: Any, size: int) -> str:
    """The rows and values that the footer claims, in all and for each part, against the bytes of the file."""
    file.seek(max(0, size - 8))
    length = int.from_bytes(file.read(4), "little")
    if file.read(4) != b"PAR1" or length + 12 > size:
        return ""  # the reader of the table says so
    file.seek(size - 8 - length)
    try:
        footer = _Thrift(file.read(length)).fields()
        groups = footer.get(4, [])
        rows = max(footer.get(3, 0), sum(max(0, group.get(3, 0)) for group in groups))
        values = sum(max(0, part.get(3, {}).get(5, 0)) for group in groups for part in group.get(1, ()))
        claimed = max(values, rows * max((len(group.get(1, ())) for group in groups), default=1))
    except (AttributeError, LookupError, TypeError, RecursionError, OverflowError):
        return "be a Parquet file, found a footer that cannot be read"
    if claimed > max(FREE // 8, RATIO * size):
        return f"hold the values that its footer claims, found {claimed:,} of them in {size:,} bytes"
    return ""


class _Thrift:
    """What a Parquet footer is written in: fields by number, integers of as many bytes as they need."""

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0

    def byte(self) -> int:
        self.at += 1
        return self.text[self.at - 1]

    def whole(self) -> int:
        found = shift = 0
        while (byte := self.byte()) > 127:
            found, shift = found | (byte & 127) << shift, min(shift + 7, 70)
        return found | byte << shift

    def signed(self) -> int:
        found = self.whole()
        return found >> 1 ^ -(found & 1)

    def fields(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.signed()
            found[number] = None if head & 15 in (1, 2) else self.value(head & 15)
        return found

    def value(self, kind: int) -> Any:
        if kind == 12:
            return self.fields()
        if kind in (4, 5, 6):
            return self.signed()
        if kind in (9, 10):
            head = self.byte()
            return [self.value(head & 15) for _ in range(head >> 4 if head >> 4 < 15 else self.whole())]
        skipped = self.whole() if kind == 8 else {1: 1, 2: 1, 3: 1, 7: 8}[kind]  # text has its length before it
        self.at += skipped
