"""Raw files between workers who read them themselves. The key of a row needs its line, so lines are counted first.

Parts have the blocks of :func:`bidwise.paper.preprocessing.raw_files.blocks`, with the same numbers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from bidwise.paper.preprocessing import raw_files as raw
from bidwise.paper.preprocessing.raw_files import Block, check_lines, ended, line_end, packed, texts
from bidwise.runners import Runner


@dataclass(frozen=True)
class Part:
    """What one worker reads: a block of plain text, or all of a gzip file, which can be read from its start alone."""

    path: Path
    packed: bool
    size: int  # bytes of text in a block
    start: int  # bytes of the file
    stop: int
    share: float  # of all bytes that are read up to here
    number: int = 0  # of the first block
    line: int = 0  # of the first line in its file, from 0
    row: int = 0  # of the first line in all files together, from 0
    blocks: int = 0  # not counted yet
    lines: int = 0

    def __iter__(self) -> Iterator[Block]:
        number, line, row = self.number, self.line, self.row
        check_seen("raw", self.path)
        with self.path.open("rb") as file:
            for text in texts(self.path, file, self.size) if self.packed else [ended(self._bytes(file))]:
                block = Block(number, self.path, line, row, text, self.share)
                number, line, row = number + 1, line + block.lines, row + block.lines
                yield block

    def counted(self) -> Part:
        """The part with its blocks and lines, and the end of its last whole line as its end."""
        check_seen("raw", self.path)
        if self.packed:
            lines = [block.lines for block in self]
            return replace(self, blocks=len(lines), lines=sum(lines))
        with self.path.open("rb") as file:
            text = self._bytes(file)
            if file.read(1):
                text = text[: line_end(self.path, text)]
        return replace(self, blocks=1, lines=ended(text).count(b"\n"), stop=self.start + len(text))

    def _bytes(self, file: BinaryIO) -> bytes:
        file.seek(self.start)
        return file.read(self.stop - self.start)


def check_seen(argument: str, path: Path) -> None:
    """Raise unless a worker sees a file or folder that the process it works for sees."""
    if not path.exists():
        raise OSError(
            f"{argument} must be on a file system that all machines of the cluster share, under the same path, "
            f"found no {path} on {socket.gethostname()}"
        )


def parts(files: Sequence[Path]) -> list[Part]:
    """All files, cut at bytes that need not be ends of lines."""
    sizes, found = [path.stat().st_size for path in files], list[Part]()
    for at, (path, size) in enumerate(zip(files, sizes, strict=True)):
        with path.open("rb") as file:
            gzip = packed(path, file)
        for start, stop in pairwise([0, size] if gzip else [*range(0, size, raw.BLOCK), size]):
            found.append(Part(path, gzip, raw.BLOCK, start, stop, (sum(sizes[:at]) + stop) / max(sum(sizes), 1)))
    return found


def counted_parts(files: Sequence[Path], engine: Runner, show: Callable[[str, float], None]) -> list[Part]:
    """All files, cut at ends of lines, with the line that each part begins with: workers count, sums are taken here."""
    of: dict[Path, list[Part]] = {path: [] for path in files}

    def then(part: Part) -> None:
        of[part.path].append(part)
        show("Counting lines", part.share)

    engine.in_order(Part.counted, parts(files), then)
    found: list[Part] = []
    number = row = 0
    for path in files:
        start = line = 0
        for part in of[path]:
            found.append(replace(part, start=start, number=number, line=line, row=row))
            start, number, line, row = part.stop, number + part.blocks, line + part.lines, row + part.lines
        check_lines(path, line)
    return found
