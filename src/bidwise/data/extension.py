"""An encoder that goes on with new rows: old values keep their ids, new ones get ids of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bidwise.data.encoding import Bag, Categorical, Encoder
from bidwise.values import FIRST

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Extension:
    """An encoder after refresh ``number``; ``last_seen`` says of each word of a column in which refresh it occurred.

    The first training is number 0, and all of its words occurred there.
    """

    encoder: Encoder
    number: int = 0
    last_seen: Mapping[str, Sequence[int]] | None = None

    def extended(self, fitted: Encoder) -> Encoder:
        """The encoder with the words of one that was fitted to new rows: unknown ones take the places of forgotten
        words, then places at the end. All other ids stay, and so do bins of numbers.

        >>> old, new = (Encoder((Categorical("site", words),)) for words in (("a", "", "b"), ("b", "c", "d")))
        >>> Extension(old).extended(new).columns[0].vocabulary.to_list()
        ['a', 'c', 'b', 'd']
        """
        known, columns = {column.name: column for column in fitted.columns}, []
        for column in self.encoder.columns:
            if isinstance(column, Categorical):
                words, new = column.vocabulary, getattr(known[column.name], "vocabulary", column.vocabulary)
                new = new.filter(~new.is_in(words.implode()))
                free = (words == "").arg_true().head(len(new))
                words = words.clone().scatter(free, new.head(len(free)))
                column = replace(column, vocabulary=pl.concat([words, new[len(free) :].alias(words.name)]))
                if isinstance(column, Bag):  # lists may have become longer
                    column = replace(column, slots=max(column.slots, known[column.name].field.slots))
            columns.append(column)
        return Encoder(tuple(columns))

    def aged(self, encoder: Encoder, occurred: Sequence[Ids], forget_after: int | None) -> Extension:
        """The next extension: that of an :meth:`extended` encoder, whose ``occurred`` ids new training rows have.

        Words that did not occur in the last ``forget_after`` refreshes, this one included, are forgotten.

        >>> encoder = Encoder((Categorical("site", ("a", "b")),))
        >>> aged = Extension(encoder).aged(encoder, [np.array([0, 3])], 1)
        >>> aged.encoder.columns[0].vocabulary.to_list(), aged.last_seen
        (['', 'b'], {'site': [0, 1]})
        """
        number, columns, last_seen = self.number + 1, [], {}
        for column, ids in zip(encoder.columns, occurred, strict=True):
            if isinstance(column, Categorical):
                words, before = column.vocabulary, (self.last_seen or {}).get(column.name, ())
                last = np.zeros(len(words), dtype=np.int64)
                last[: len(before)] = before
                last[ids[ids >= FIRST] - FIRST] = number
                if forget_after is not None:
                    words = words.set(pl.Series(number - last >= forget_after), "")
                column, last_seen[column.name] = replace(column, vocabulary=words), last.tolist()
            columns.append(column)
        return Extension(Encoder(tuple(columns)), number, last_seen)


def new_ids(old: Encoder, new: Encoder) -> list[Ids]:
    """Of every column, the ids whose words an older encoder did not have there.

    >>> old, new = (Encoder((Categorical("site", words),)) for words in (("a", "b"), ("c", "b", "d")))
    >>> new_ids(old, new)
    [array([2, 4])]
    """
    found = []
    for before, after in zip(old.columns, new.columns, strict=True):
        there, here = (getattr(column, "vocabulary", pl.Series(dtype=pl.String)) for column in (before, after))
        changed = np.ones(len(here), dtype=bool)
        changed[: len(there)] = (here[: len(there)] != there).to_numpy()
        found.append(FIRST + np.flatnonzero(changed & (here != "").to_numpy()))
    return found
