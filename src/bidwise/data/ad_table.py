"""Logged ads of a user's table: columns by their roles, checked, cut into auctions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Real
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from bidwise.checks import InputError
from bidwise.data.columns import read_numbers, spelled
from bidwise.data.table_files import BadRow, Table, open_table
from bidwise.values import Floats

_OWN = ("click", "bid", "auction")  # roles of columns that have no other
_CLICKS = {"true": "1", "false": "0", "yes": "1", "no": "0"}  # words for clicks, in small letters
USUAL = (1e-100, 1e100)  # bids and weights; beyond, sums of squares overflow or vanish


@dataclass(frozen=True)
class AdTable:
    """Logged ads in the order of their auctions: ``offsets`` has the bounds, every column one number per ad."""

    ctr: dict[str, Floats]
    clicks: Floats
    bids: Floats
    offsets: NDArray[np.int64]
    truth: Floats | None = None
    position: NDArray[np.int64] | None = None
    weights: Floats | None = None
    groups: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # of every ad, for each of the keys
    labels: dict[str, list[str]] = field(default_factory=dict)  # names of the groups of a key

    @property
    def ads(self) -> int:
        return len(self.clicks)

    @property
    def auctions(self) -> int:
        return len(self.offsets) - 1

    def rows(self, order: NDArray[np.int64], offsets: NDArray[np.int64]) -> AdTable:
        """The ads at ``order``, cut into auctions at ``offsets``."""
        per_ad = ("clicks", "bids", "truth", "position", "weights")
        taken: dict[str, Any] = {name: None if (x := getattr(self, name)) is None else x[order] for name in per_ad}
        for name in ("ctr", "groups"):
            taken[name] = {key: column[order] for key, column in getattr(self, name).items()}
        return replace(self, offsets=offsets, **taken)


def read_ads(
    table: Table,
    *,
    ctr: Sequence[str] = (),
    click: str,
    bid: str | float | None = None,
    auction: str | Sequence[str] | None = None,
    truth: str | None = None,
    position: str | None = None,
    weight: str | None = None,
    keys: Mapping[str, Sequence[str]] | None = None,
    slots: int | None = None,
    name: str = "table",
) -> AdTable:
    """The named columns of a table, checked, and no others; without ``bid`` all bids are 1, without ``auction`` all ads
    are one auction.

    Auctions scattered over the table are brought together, in the order of their first ads.

    Args:
        table: a Parquet, CSV or TSV file (also gzipped) or URL, a polars or pandas frame, or a mapping of columns.
        ctr: columns of predictions.
        bid: a column, or a number that all ads bid; text that is a number is one unless a column is called so.
        auction: the column or the columns that name the auction.
        keys: columns by which ads are grouped, ``{"pool": ["keyword", "day"]}``, into ``groups`` and ``labels``.
        slots: the largest position.
        name: the name of a table in memory, for errors.

    >>> ads = read_ads({"a": [0.1, 0.2], "y": [0, 1], "b": [1.0, 2.0]}, ctr=["a"], click="y", bid="b")
    >>> ads.bids, ads.offsets
    (array([1., 2.]), array([0, 2]))
    """
    source = open_table(table, name=name)
    bid, constant = column_or_number(source.columns, bid)
    named: list[Any] = [] if auction is None else [*auction] if isinstance(auction, list | tuple) else [auction]
    keys = {key: list(columns) for key, columns in (keys or {}).items()}
    by_role = {"click": click, "bid": bid, "truth": truth, "position": position, "weight": weight}
    numeric = [*ctr, *(column for column in by_role.values() if column is not None)]
    text = [*named, *chain.from_iterable(keys.values())]
    for column in [*numeric, *text]:
        if not isinstance(column, str):
            raise InputError(f"columns must be named by text, found {type(column).__name__}")
    used = dict.fromkeys(ctr, "ctr")
    for role, column in [*by_role.items(), *(("auction", column) for column in named)]:
        if column in used and role in _OWN:
            words = f"must be a column of its own, not also {{}}, found {column!r}"
            raise InputError(words, argument=role, others=[used[column]])
        used |= {} if column is None or column in used else {column: role}
    if twice := sorted(column for column in ctr if [*ctr].count(column) > 1):
        raise InputError(f"must name every column once, found {twice[0]!r} twice", argument="ctr")
    numbers: list[dict[str, Floats]] = []
    names, grouping = [], []
    for block in source.blocks([*numeric, *text]):
        with block.located():
            numbers.append(checked_numbers(block.frame, ctr, by_role, slots=slots))
            names.append(auction_keys(block.frame.select(cs.by_name(*named))) if named else np.empty(0, np.uint64))
            grouping.append(block.frame.select(cs.by_name(*dict.fromkeys(chain.from_iterable(keys.values())))))
    read = {column: np.concatenate([part[column] for part in numbers]) for column in numbers[0]}
    groups = pl.concat(grouping)
    grouped = {key: group_ids(groups.select(cs.by_name(*columns))) for key, columns in keys.items()}
    ads = len(read[click])
    # without auctions an ad competes as often as it weighs, in the mean no less than once
    usual = 1.0 if weight is None else read[weight].mean() if named else min(read[weight].mean(), 1.0)
    ad_table = AdTable(
        ctr={column: read[column] for column in ctr},
        clicks=read[click],
        bids=np.full(ads, constant) if bid is None else read[bid],
        offsets=np.array([0, ads]),
        truth=None if truth is None else read[truth],
        position=None if position is None else read[position].astype(np.int64),
        weights=None if weight is None else read[weight] / usual,
        groups={key: ids for key, (ids, _) in grouped.items()},
        labels={key: labels for key, (_, labels) in grouped.items()},
    )
    if not named:
        return ad_table
    auctions = number_auctions(np.concatenate(names))
    offsets = np.append(0, np.cumsum(np.bincount(auctions)))
    if (np.diff(auctions) >= 0).all():  # the ads of each are together already
        return replace(ad_table, offsets=offsets)
    return ad_table.rows(np.argsort(auctions, kind="stable"), offsets)


def checked_numbers(
    frame: pl.DataFrame, ctr: Sequence[str], roles: Mapping[str, str | None], *, slots: int | None = None
) -> dict[str, Floats]:
    """Columns of numbers, checked by their roles. Clicks may be words: true and false, yes and no."""
    click, columns = roles["click"], [*ctr, *(column for column in roles.values() if column is not None)]
    read = {column: _known_numbers(frame[column], click == column) for column in columns}

    last = np.inf if slots is None else slots
    number = f"a position must be a whole number from 1 to {last}, the number of slots: name more, as 1,0.8,0.6"
    ranges: dict[str, tuple[float, float, str]] = {
        "click": (0, 1, "a click must be 0 or 1"),
        "bid": (*USUAL, "a bid must be above 0, from 1e-100 to 1e100; drop ads without a bid"),
        "truth": (0, 1, "a true CTR must be in [0, 1]"),
        "weight": (*USUAL, "a weight must be above 0, from 1e-100 to 1e100"),
        "position": (1, last, number),
    }
    for role, column in [*(("ctr", column) for column in ctr), *roles.items()]:
        if column is None:
            continue
        hint = "logits? apply the sigmoid first" if read[column].min() < 0 else "per cent? divide by 100"
        low, high, expected = ranges.get(role, (0, 1, f"a CTR must be in [0, 1]; {hint}"))
        good = (read[column] >= low) & (read[column] <= high)
        if role in ("click", "position"):
            good &= read[column] == np.floor(read[column])
        if not good.all():
            row = int(np.argmin(good))
            raise BadRow(column, row, f"{read[column][row]:g}; {expected}")
    return read


def _check_flat(column: pl.Series) -> None:
    if column.dtype.is_nested():
        raise InputError(f"column {column.name!r} must have one value per ad, found {column.dtype}")


def _known_numbers(column: pl.Series, click: bool) -> Floats:
    """The column as float64; the first value that is missing or no number is an error."""
    _check_flat(column)
    numbers, bad = read_numbers(column)
    if click and bad.any():
        numbers, bad = read_numbers(column.cast(pl.String).str.strip_chars().str.to_lowercase().replace(_CLICKS))
    if bad.any():
        row = int(bad.arg_max() or 0)
        value = str(column[row])
        fix = "; clicks are 0 or 1" if click else "; decimals need a point" if "," in value else ""
        raise BadRow(column.name, row, f"{value!r}, which is no number{fix}")
    if (missing := np.isnan(numbers)).any():
        raise BadRow(column.name, int(missing.argmax()), "no value; fill in all of them, or drop the rows")
    return numbers


def group_ids(keys: pl.DataFrame) -> tuple[NDArray[np.int64], list[str]]:
    """The group of every row, rows with the same values in all columns, and the names of groups.

    Groups count from 0 in the order of their first rows; missing values are a group of their own.

    >>> group_ids(pl.DataFrame({"keyword": ["a", "b", "a"], "day": [2, 1, 2]}))
    (array([0, 1, 0]), ['a, 2', 'b, 1'])
    """
    words, runs = _runs(keys)
    words = words.select(pl.all().fill_null("(missing)"))
    ids = number_auctions(words.hash_rows(seed=0).to_numpy())
    labels = words[np.unique(ids, return_index=True)[1]].select(pl.concat_str(pl.all(), separator=", ")).to_series()
    return ids[runs], labels.to_list()


def _runs(keys: pl.DataFrame) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    """Names of runs of rows with the same values, as text, and the run of every row: ads of an auction are often
    together."""
    for column in keys:
        _check_flat(column)
    changes = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in keys.columns)
    starts = np.array(keys.select(changes).to_series())
    starts[:1] = True
    words = [spelled(column).alias(str(at)) for at, column in enumerate(keys.filter(starts))]
    return pl.DataFrame(words), np.cumsum(starts) - 1


def auction_keys(keys: pl.DataFrame) -> NDArray[np.uint64]:
    """A hash of the columns that name the auction, as text; missing values are rejected. Of 100 million auctions two
    share one with a probability of 0.0003."""
    words, runs = _runs(keys)
    for name, column in zip(keys.columns, words, strict=True):
        if column.null_count():
            row = int((runs == int(column.is_null().arg_max() or 0)).argmax())
            raise BadRow(name, row, "no value; every ad needs an auction")
    return np.asarray(words.hash_rows(seed=0).to_numpy()[runs])


def auction_ids(keys: pl.DataFrame) -> NDArray[np.int64]:
    """The auction of every row, from 0 in the order of their first rows; missing values are rejected.

    >>> auction_ids(pl.DataFrame({"query": ["a", "b", "a"], "day": [2, 1, 2]}))
    array([0, 1, 0])
    """
    return number_auctions(auction_keys(keys))


def number_auctions(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The number of every key, from 0 in the order of their first rows."""
    starts = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
    _, first, which = np.unique(keys[starts], return_index=True, return_inverse=True)
    numbers = np.argsort(np.argsort(first))
    return np.asarray(numbers[which][np.cumsum(starts) - 1], dtype=np.int64)


def column_or_number(columns: Sequence[str], bid: Any) -> tuple[str | None, float]:
    """The column of bids, or the number that all ads bid."""
    if bid is None:
        return None, 1.0
    try:
        number = float(bid) if isinstance(bid, str) or (isinstance(bid, Real) and not isinstance(bid, bool)) else None
    except ValueError:
        number = None
    if number is None or bid in columns:
        return bid, 1.0
    if not USUAL[0] <= number <= USUAL[1]:
        raise InputError(f"must be a column or a number above 0, from 1e-100 to 1e100, found {bid}", argument="bid")
    return None, number
