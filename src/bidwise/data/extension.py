"""An encoder that goes on with new rows: old values keep their ids, new ones get ids of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise.data.encoding import Categorical, Encoder, value_counts
from bidwise.values import FIRST


@dataclass(frozen=True)
class Extension:
    """The encoder after refresh ``number``; ``last_seen`` says for each word of a column in which refresh it occurred.

    The first training is number 0, and all of its words occurred there.
    """

    encoder: Encoder
    number: int = 0
    last_seen: Mapping[str, Sequence[int]] | None = None

    def extended(self, rows: pl.DataFrame, *, min_count: int, forget_after: int | None = None) -> Extension:
        """The next one: values that ``rows``, the new training rows, have at least ``min_count`` times become words.

        Words that have not occurred in the last ``forget_after`` refreshes, this one included, are forgotten: their
        values are rare again, and their ids are free for new values. All other ids stay, and so do bins of numbers.

        >>> old = Extension(Encoder((Categorical("site", ("a", "b")),)))
        >>> new = old.extended(pl.DataFrame({"site": ["c", "b", "c"]}), min_count=2, forget_after=1)
        >>> new.encoder.columns[0].vocabulary, new.last_seen
        (('c', 'b'), {'site': [1, 1]})
        """
        columns, last_seen, number = [], {}, self.number + 1
        for column in self.encoder.columns:
            if isinstance(column, Categorical):
                words = list(column.vocabulary)
                last = list((self.last_seen or {}).get(column.name, [0] * len(words)))
                counts = value_counts(rows[column.name])
                there = set(counts["value"])
                for at, word in enumerate(words):
                    if word in there:
                        last[at] = number
                    elif forget_after is not None and number - last[at] >= forget_after:
                        words[at] = ""
                known = set(words)
                new = [x for x in counts.filter(pl.col("count") >= min_count)["value"] if x not in known]
                free = [at for at, word in enumerate(words) if not word]
                for at, word in zip(free, new, strict=False):
                    words[at], last[at] = word, number
                words += new[len(free) :]
                last += [number] * (len(words) - len(last))
                column, last_seen[column.name] = replace(column, vocabulary=tuple(words)), last
            columns.append(column)
        return Extension(Encoder(tuple(columns)), number, last_seen)


def new_ids(old: Encoder, new: Encoder) -> list[NDArray[np.int64]]:
    """Of every column, the ids whose value an older encoder did not know, or knew by no id.

    >>> old, new = (Encoder((Categorical("site", words),)) for words in (("a", "b"), ("c", "b", "d")))
    >>> new_ids(old, new)
    [array([2, 4])]
    """
    found = []
    for before, after in zip(old.columns, new.columns, strict=True):
        if not isinstance(before, Categorical) or not isinstance(after, Categorical):
            found.append(np.zeros(0, dtype=np.int64))
            continue
        here, there = (np.array(column.vocabulary, dtype=object) for column in (after, before))
        changed = np.ones(len(here), dtype=bool)
        changed[: len(there)] = here[: len(there)] != there
        found.append(FIRST + np.flatnonzero(changed & (here != "")))
    return found


def forgotten(old: Encoder, new: Encoder) -> dict[str, int]:
    """How many words of each column an older encoder had and the new one has no longer."""
    pairs = [(a, b) for a, b in zip(old.columns, new.columns, strict=True) if isinstance(a, Categorical)]
    gone = {a.name: len(set(a.vocabulary) - {"", *getattr(b, "vocabulary", ())}) for a, b in pairs}
    return {name: count for name, count in gone.items() if count}
