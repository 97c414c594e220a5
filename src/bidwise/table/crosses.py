"""Combinations of columns that predict clicks: found by a test on the residuals of a regression without them, kept by
validation.

Residuals r = click - CTR of the regression have mean 0 in every cell of a combination without new information. The rows
are dealt into two halves; in a cell with sums S and S' of residuals and variances V and V' in the halves

    T = Σ_cells W S S',   W = (V + V') / ((V + k) (V' + k)),   z = T / sqrt(Σ_cells W² V V'),

has expectation 0 for such a combination, and z is about normal; T is about the log loss that another one saves, as far
as it can be learned. k shrinks cells of few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from bidwise.data.ads import Ads
from bidwise.data.columns import Bag, Cross, Encoder, Numeric
from bidwise.evaluation.calibration import rows_of
from bidwise.losses.api import cross_entropy
from bidwise.losses.named import LOSSES
from bidwise.models import SparseLogisticRegression
from bidwise.training.exact import MOST, SHORT, fit_exact
from bidwise.training.validation import logits_of
from bidwise.values import FIRST, Floats

ROUNDS = 3  # of testing; from the second on with triples
EACH = 12  # combinations of a round
PAIRS = 24  # of those found, extended to triples
LEAST = 4.0  # z of a combination: exceeded by one of 30,000 without information
PRIOR = 10.0  # k: a variance of cells of 0.1
COUNT, SHARE = 4, 50_000  # rows, at least, of a combination with an id of its own, and one of how many
GROUPS = (0, 16, 8, 5)  # of the bins of a number, by how many numbers a combination has
FINER = {2: (4, 8, 16), 3: (4, 8)}  # several for numbers with each other: coarse cells have weights next to fine ones
SMOOTH = (8, 24)  # groups of neighbouring bins, which get weights next to those of the bins
CELLS = 2**21  # beyond, cells are numbered by those that occur
ROWS = 2**18  # of the training rows, evenly spaced, that the search takes
LARGEST = 2**62
NO_WORDS = pl.Series("word", [], dtype=pl.String)

First = Callable[[Encoder, SparseLogisticRegression, float], object]


def with_crosses(encoder: Encoder, train: Ads, valid: Ads, min_count: int, first: First = lambda *_: None) -> Encoder:
    """The encoder with columns of neighbouring bins, and with all combinations that the ads speak for; their features
    are ids of the columns. ``first`` is called with the regression before combinations and its validation log loss."""
    if sum(field.values for field in encoder.fields) > MOST:
        return encoder
    ids = train.features.numpy()
    made = [_learned(spec, encoder, ids, min_count) for spec in _smoothed(encoder)]
    names = [column.name for column in encoder.columns if column.field.values > FIRST + 1]
    bags = {column.name for column in encoder.columns if isinstance(column, Bag)}
    fitted = _Fitted.of(encoder, made, train, valid)
    first(Encoder((*encoder.columns, *made)), fitted.model, float(fitted.losses.mean()))
    for number in range(ROUNDS):
        tests = _untested(names, bags, [cross.of for cross in fitted.crosses], triples=number > 0)
        chosen = _tested(tests, encoder, train, fitted, np.random.default_rng(number))
        if not chosen:
            break
        more = [_learned(spec, encoder, ids, min_count) for of in chosen for spec in _finer(encoder, of)]
        longer = _Fitted.of(encoder, [*fitted.crosses, *more], train, valid, start=fitted.model)
        worse = longer.losses - fitted.losses
        if float(worse.mean()) > float(worse.std()) / len(worse) ** 0.5:
            break
        fitted = longer
    return Encoder((*encoder.columns, *fitted.crosses))


def relearned(encoder: Encoder, crosses: Sequence[Cross], ids: NDArray[np.int32], min_count: int) -> Encoder:
    """The encoder with the same combinations and words learned from these rows."""
    sizes = {column.name: column.field.values for column in encoder.columns}
    fitting = (replace(cross, sizes=tuple(sizes[name] for name in cross.of)) for cross in crosses)
    return Encoder((*encoder.columns, *(_learned(cross, encoder, ids, min_count) for cross in fitting)))


@dataclass(frozen=True)
class _Fitted:
    """A regression with some combinations, the CTR of its training rows and the losses of validation rows."""

    crosses: list[Cross]
    model: SparseLogisticRegression
    ctr: Floats
    losses: Tensor

    @staticmethod
    def of(
        encoder: Encoder, crosses: list[Cross], train: Ads, valid: Ads, start: SparseLogisticRegression | None = None
    ) -> _Fitted:
        cardinalities = [field.cardinality for field in (*encoder.fields, *(cross.field for cross in crosses))]
        model = SparseLogisticRegression(cardinalities, std=0.0)
        if start is not None:  # of fewer combinations
            model.bias.data.copy_(start.bias.data)
            model.table.weight.data[: len(start.table.weight)] = start.table.weight.data
        ads, others = (_crossed(encoder, crosses, each) for each in (train, valid))
        fit_exact(model, ads, loss=LOSSES["log_loss"], l2=None, passes=SHORT)
        ctr = torch.sigmoid(logits_of(model, ads.features).double()).numpy()
        logits = logits_of(model, others.features).double()
        return _Fitted(crosses, model, ctr, cross_entropy(logits, others.labels, others.weights, "none"))


def _crossed(encoder: Encoder, crosses: Sequence[Cross], ads: Ads) -> Ads:
    """The ads with the ids of crosses after the plain ones."""
    ids = ads.features.numpy()
    more = [cross.table.ids(encoder.parts(ids, cross)) for cross in crosses]
    return replace(ads, features=torch.from_numpy(np.vstack([ids.T, *more]).T.copy()))


def _spec(encoder: Encoder, of: tuple[str, ...], groups: int | None = None, name: str | None = None) -> Cross:
    """A combination without words."""
    columns = {column.name: column for column in encoder.columns}
    groups = groups or GROUPS[_numbers(encoder, of)]
    joined = [groups if isinstance(columns[x], Numeric) and columns[x].field.values > FIRST + groups else 0 for x in of]
    sizes = tuple(columns[x].field.values for x in of)
    name = name or " × ".join(of)
    while name in columns:  # of the table
        name += " combined"
    slots = max(columns[x].field.slots for x in of)
    return Cross(name, NO_WORDS, of=of, sizes=sizes, groups=tuple(joined), slots=slots)


def _numbers(encoder: Encoder, of: tuple[str, ...]) -> int:
    """How many of the columns are numbers."""
    return sum(isinstance(column, Numeric) for column in encoder.columns if column.name in of)


def _finer(encoder: Encoder, of: tuple[str, ...]) -> list[Cross]:
    """A combination as columns of the regression: one, or several of numbers with coarse and with fine groups."""
    if (numbers := _numbers(encoder, of)) not in FINER:
        return [_spec(encoder, of)]
    specs = [_spec(encoder, of, groups, f"{' × '.join(of)} / {groups}") for groups in FINER[numbers]]
    return list({spec.groups: spec for spec in specs}.values())


def _smoothed(encoder: Encoder) -> list[Cross]:
    """Neighbouring bins of numbers with more of them."""
    return [
        _spec(encoder, (column.name,), groups, f"{column.name} / {groups}")
        for groups in SMOOTH
        for column in encoder.columns
        if isinstance(column, Numeric) and column.field.values > FIRST + groups
    ]


def _learned(cross: Cross, encoder: Encoder, ids: NDArray[np.int32], count: int) -> Cross:
    """With the words of all combinations that so many rows have, the most frequent first."""
    count = max(COUNT, count, len(ids) // SHARE)
    words, counts = np.unique(cross.table.keys(encoder.parts(ids, cross)), return_counts=True)
    kept = (counts >= count) & (words >= 0)
    words, counts = words[kept], counts[kept]
    ordered = pl.Series(words[np.argsort(-counts, kind="stable")], dtype=pl.Int64)
    return replace(cross, vocabulary=ordered.cast(pl.String))


def _untested(
    names: Sequence[str], bags: Set[str], known: Sequence[tuple[str, ...]], *, triples: bool
) -> list[tuple[str, ...]]:
    """All pairs, and triples of the pairs that were found, in the order of the columns; of ``bags`` one at most."""
    found = {frozenset(of) for of in known}
    pairs = [of for of in dict.fromkeys(known) if len(of) == 2][:PAIRS] if triples else []
    sets = [*map(frozenset, combinations(names, 2)), *(frozenset((*of, x)) for of in pairs for x in names)]
    tests = dict.fromkeys(each for each in sets if each not in found and len(each) > 1 and len(each & bags) < 2)
    return [tuple(sorted(each, key=names.index)) for each in tests]


def _tested(
    tests: Sequence[tuple[str, ...]], encoder: Encoder, train: Ads, fitted: _Fitted, random: np.random.Generator
) -> list[tuple[str, ...]]:
    """The combinations that save most, of those that measurably save anything."""
    labels, weights = train.labels.numpy(), train.weights
    residuals = labels - fitted.ctr
    variances = fitted.ctr * (1 - fitted.ctr)
    if weights is not None:  # clicks and other ads may count differently
        counts = weights.numpy().astype(np.float64)
        residuals = residuals * counts * rows_of(counts, labels)
        variances = residuals**2
    half = random.random(len(residuals)) < 0.5
    seen = []
    for of in tests:
        cross = _spec(encoder, of)
        if np.prod([float(size) for size in cross.sizes]) > LARGEST:
            continue
        cells = cross.table.keys(encoder.parts(train.features.numpy(), cross))
        rows: Any = slice(None)
        if cells.ndim > 1:  # one for each value of a bag
            rows, cells = np.nonzero(cells >= 0)[1], cells[cells >= 0]
        if (size := int(np.prod(cross.sizes))) > CELLS:
            occurring, cells = np.unique(cells, return_inverse=True)
            size = len(occurring)
        sums, spread = (np.bincount(cells, values[rows], size) for values in (residuals, variances))
        sums_one, spread_one = (np.bincount(cells, (values * half)[rows], size) for values in (residuals, variances))
        spread_other = spread - spread_one
        worth = spread / ((spread_one + PRIOR) * (spread_other + PRIOR))
        saved = float((worth * sums_one * (sums - sums_one)).sum())
        noise = float(np.sqrt((worth**2 * spread_one * spread_other).sum()))
        if saved > LEAST * noise > 0:
            seen.append((saved, of))
    return [of for _, of in sorted(seen, key=lambda each: -each[0])[:EACH]]
