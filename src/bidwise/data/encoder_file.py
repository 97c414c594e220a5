"""``encoder.json``: what :meth:`Encoder.to_json` says, written and read without holding all words as Python's text.

Each word has a line of its own, so that vocabularies can be read in stretches, whatever their size.
"""

from __future__ import annotations

import json
import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from bidwise.data.encoding import Categorical, Encoder, words_of
from bidwise.json_files import read_json
from bidwise.run_folder import whole_file

AT_ONCE = 2**16  # words
STRETCH = 2**20  # bytes of words
OPENED, CLOSED, EMPTY = '"vocabulary": [', "\n      ]", '"vocabulary": []'


def write_encoder(path: Path, encoder: Encoder) -> None:
    """The file, byte for byte that of ``write_json(path, encoder.to_json())``."""
    columns = [
        replace(c, vocabulary=c.vocabulary.clear()) if isinstance(c, Categorical) else c for c in encoder.columns
    ]
    bare = json.dumps(Encoder(tuple(columns)).to_json(), indent=2, allow_nan=False) + "\n"
    words = (column.vocabulary for column in encoder.columns if isinstance(column, Categorical))
    with whole_file(path) as part, part.open("w", encoding="utf-8") as file:
        first, *rest = bare.split(EMPTY)  # no name contains it: quotes in text are escaped
        file.write(first)
        for vocabulary, after in zip(words, rest, strict=True):
            file.write(OPENED)
            between = "\n        "
            for some in vocabulary.to_frame().iter_slices(AT_ONCE):
                file.write(between + json.dumps(some.to_series().to_list(), separators=(",\n        ", ":"))[1:-1])
                between = ",\n        "
            file.write((CLOSED if len(vocabulary) else "]") + after)


def read_encoder(path: Path) -> Encoder:
    """The encoder that a file holds; one that is laid out otherwise is read at once, as JSON."""
    vocabularies: list[pl.Series] = []
    bare, at = b"", 0
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            while (start := text.find(OPENED.encode() + b"\n", at) + len(OPENED)) >= len(OPENED):
                end = text.find(CLOSED.encode(), start)
                vocabularies.append(_words(text, start, end))
                bare, at = bare + text[at:start] + str(len(vocabularies) - 1).encode(), end
            data = json.loads((bare + text[at:]).decode())
        left_out = [column for column in data["columns"] if column.get("vocabulary", "")]
        if [column["vocabulary"] for column in left_out] == [[number] for number in range(len(vocabularies))]:
            for column, words in zip(left_out, vocabularies, strict=True):
                column["vocabulary"] = words
            return Encoder.from_json(data, str(path))
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        pass
    return Encoder.from_json(read_json(path), str(path))


def _words(text: Any, start: int, end: int) -> pl.Series:
    """The words between two places of a file; a ValueError or TypeError where there is something else."""
    parts = []
    while start < end:
        comma = text.rfind(b",\n", start, min(end, start + STRETCH)) if end - start > STRETCH else -1
        stop = end if comma < 0 else comma
        parts.append(words_of(json.loads(f"[{text[start:stop].decode()}]")))
        start = stop + 1
    return pl.concat(parts)
