"""The passes over a table of any size: columns with a role onto the disk, values counted, rows written as ids.

Each is a map over blocks of rows. What is as long as the table lies in files of a folder that is gone in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from bidwise.data.ad_table import auction_keys, checked_numbers, number_auctions
from bidwise.data.blocks import CHUNK, Blocks, Scratch
from bidwise.data.counting import Found, Seen, Sketch, Tally, counted, exploded, seen
from bidwise.data.encoder_file import read_encoder, write_encoder
from bidwise.data.encoding import Bag, Categorical, Encoder, Numeric, edges, slots_of
from bidwise.data.read_table import BadRow, check_columns, numbers_of
from bidwise.data.splits import Split, places, split, times_of
from bidwise.data.store import SPLITS, StoreWriter
from bidwise.run_folder import read_json, whole_file, write_json
from bidwise.runners import Runner, cores
from bidwise.table.config import Data
from bidwise.table.leaks import duplicated_rows, row_hashes

SAMPLE = 2**20  # training rows that bins, the median bid and leaks are taken from, evenly spaced
HASHES = 2**22  # rows that are compared to find copies, at most
NUMBERS = {"click": np.uint8, **dict.fromkeys(("bid", "teacher", "truth", "weight", "position"), np.float64)}
THREADS = 8  # at most

Say = Callable[[float], None]


def every(rows: int) -> int:
    """One of how many rows is in the sample: all are, up to ``SAMPLE`` of them."""
    return -(-rows // SAMPLE)


@dataclass(frozen=True)
class Passes:
    """A table, the roles of its columns, and the folder of what is as long as the table."""

    blocks: Blocks
    data: Data
    work: Path
    name: str

    @property
    def runner(self) -> Runner:
        """The threads that work on blocks."""
        return Runner(min(cores(), THREADS))

    @property
    def array(self) -> Scratch:
        """Columns of all rows by their names."""
        return Scratch(self.work)

    def numbers(self, role: str) -> NDArray[Any]:
        """A column of numbers with a role, all rows in their order."""
        return self.array(role, NUMBERS[role], self.blocks.rows)

    def has(self, role: str) -> bool:
        """Whether the table has such a column."""
        return getattr(self.data, role) is not None

    @property
    def duplicates(self) -> int:
        """Rows that are copies of others, known after the first pass."""
        return int(read_json(self.work / "columns.json")["duplicates"])

    @cached_property
    def times(self) -> NDArray[Any] | None:
        """When each ad was shown, as numbers that sort."""
        if self.data.time is None:
            return None
        return self.array("time", read_json(self.work / "columns.json")["time"], self.blocks.rows)

    @cached_property
    def auction(self) -> NDArray[np.int64] | None:
        """The auction of every row."""
        if not self.data.auction:
            return None
        ids = self.array("auction", np.int64, self.blocks.rows)
        number_auctions(self.array("key", np.uint64, self.blocks.rows), ids, self.array)
        return ids

    def columns(self, say: Say, numeric: Sequence[str] = (), bags: Sequence[str] = ()) -> list[Found]:
        """First pass: columns with a role, and those that are to be numbers or lists, are checked; what was found in
        all."""
        path, rows, schema = self.work / "columns.json", self.blocks.rows, self.blocks.schema
        if not path.is_file():
            named = [*self.data.kinds, *self.data.ignore, *self.data.keep]
            check_columns([*(column for _, column in self.data.roles), *named], schema.names(), self.name)
            sketches, starts, time = [Sketch() for _ in schema], iter(self.blocks.starts), ""
            hashes: list[NDArray[np.uint64]] = []
            share = min(1.0, HASHES / max(rows, 1))

            def keep(found: tuple[dict[str, NDArray[Any]], list[Seen], NDArray[np.uint64]]) -> None:
                nonlocal time
                start, (numbers, values, some) = next(starts), found
                hashes.append(some)
                for name, each in numbers.items():
                    time = each.dtype.str if name == "time" else time
                    self.array(name, NUMBERS.get(name, each.dtype), rows)[start : start + len(each)] = each
                for sketch, block in zip(sketches, values, strict=True):
                    sketch.add(block)
                say(start / rows)

            numbers = [column for column in (*self.data.numeric, *numeric) if column in schema]
            data = replace(self.data, bag=tuple(dict.fromkeys([*self.data.bag, *bags])))
            work = partial(_checked, self.blocks, data, numbers, self.name, share)
            self.runner.in_order(work, self.blocks.starts, keep)
            about = {name: sketch.about(rows) for name, sketch in zip(schema, sketches, strict=True)}
            copies = duplicated_rows(np.concatenate(hashes), share)
            write_json(path, {"columns": about, "time": time, "duplicates": copies})
        about = read_json(path)["columns"]
        return [Found(name, dtype, rows, **about[name]) for name, dtype in schema.items()]

    def split(self, seed: int) -> dict[str, Split]:
        """Rows of training, validation and test, and where each row of the table goes."""
        parts = split(
            self.blocks.rows, auction=self.auction, time=self.times, seed=seed, name=self.name, array=self.array
        )
        places(parts, self.array("place", np.int64, self.blocks.rows))
        return parts

    def encoder(self, kinds: Mapping[str, str], train: int, min_count: int, bins: int, say: Say) -> Encoder:
        """Second pass: vocabularies and bins of ``train`` training rows."""
        path = self.work / "encoder.json"
        if path.is_file():
            return read_encoder(path)
        tallies = {name: Tally() for name, kind in kinds.items() if kind != "numeric"}
        samples: dict[str, list[Any]] = {name: [] for name in kinds if name not in tallies}
        done = 0

        def add(block: dict[str, Any]) -> None:
            nonlocal done
            for name, found in block.items():
                if name in tallies:
                    tallies[name].add(found, self.work)
                else:
                    samples[name].append(found)
            done += 1
            say(done / len(self.blocks.starts))

        separator, longest = self.data.bag_separator, {each.name: slots_of(each) for each in self.columns(say)}
        work = partial(_counted, self.blocks, self.array, kinds, separator, train)
        self.runner.in_order(work, self.blocks.starts, add)
        columns: list[Categorical | Numeric] = []
        for name in kinds:
            if name in tallies:
                words = tallies.pop(name).vocabulary(min_count)
                bag = kinds[name] == "bag"
                columns.append(Bag(name, words, longest[name], separator) if bag else Categorical(name, words))
            else:
                columns.append(Numeric(name, edges(np.concatenate(samples.pop(name)), bins)))
        encoder = Encoder(tuple(columns))
        write_encoder(path, encoder)
        return encoder

    def write(self, encoder: Encoder, store: StoreWriter, say: Say) -> None:
        """Third pass: rows as ids, each where it goes, and the auctions of test rows. A block that is written leaves a
        mark."""
        left = [start for start in self.blocks.starts if not (self.work / f"{start}.written").is_file()]
        waiting = iter(left)
        for part in SPLITS if left else ():  # whole columns may have their names already: a new one would be empty
            store.column(part, "features", width=encoder.width)
        for column in encoder.columns:
            if isinstance(column, Categorical):
                _ = column.lookup  # once, not in every thread
        auction = self.data.auction[0] if len(self.data.auction) == 1 else None
        tested = sum(store.splits[part] for part in SPLITS[:2])

        def write(block: tuple[NDArray[np.int64], NDArray[np.int32], pl.Series | None]) -> None:
            start, (place, ids, names) = next(waiting), block
            begin = 0
            for part in SPLITS:
                end = begin + store.splits[part]
                some = slice(*np.searchsorted(place, [begin, end]))
                if some.start < some.stop:
                    column = store.column(part, "features", width=encoder.width)
                    at = place[some] - begin
                    together = at[-1] - at[0] == len(at) - 1
                    column[slice(at[0], at[-1] + 1) if together else at] = ids[some]
                begin = end
            if names is not None:
                test = pl.DataFrame({"place": place[place >= tested] - tested, "auction": names})
                for (chunk,), rows in test.group_by(pl.col("place") // CHUNK):
                    with whole_file(self.work / f"test.{chunk}.{start}", scratch=True) as path:
                        rows.write_ipc(path)
            (self.work / f"{start}.written").touch()
            say(start / self.blocks.rows)

        self.runner.in_order(partial(_encoded, self.blocks, self.array, encoder, auction, tested), left, write)

    def auctions_of_test(self, parts: Mapping[str, Split], part: slice) -> Any:
        """What the auctions of some test rows are called: by one column as it was, by several a number."""
        if self.auction is None or len(self.data.auction) > 1:
            return None if self.auction is None else self.auction[parts["test"].rows[part]]
        files = sorted(path for path in self.work.glob(f"test.{part.start // CHUNK}.*") if path.suffix != ".part")
        return pl.concat(map(pl.read_ipc, files)).sort("place")["auction"]


def _checked(
    blocks: Blocks, data: Data, numeric: Sequence[str], name: str, share: float, start: int
) -> tuple[dict[str, NDArray[Any]], list[Seen], NDArray[np.uint64]]:
    """Columns of a block with a role, checked; what is seen in all columns; hashes of a share of its rows."""
    try:
        return _checked_rows(blocks.read(start), data, numeric, name, share, start)
    except BadRow as error:
        raise error if blocks.place is None else error.of(blocks.place) from None


def _checked_rows(
    frame: pl.DataFrame, data: Data, numeric: Sequence[str], name: str, share: float, start: int
) -> tuple[dict[str, NDArray[Any]], list[Seen], NDArray[np.uint64]]:
    roles = {role: getattr(data, role) for role in NUMBERS if role != "teacher"}
    teacher = [] if data.teacher is None else [data.teacher]
    numbers = checked_numbers(frame, teacher, roles, slots=len(data.slots), name=name, start=start)
    found: dict[str, NDArray[Any]] = {
        role: numbers[column] for role, column in (roles | {"teacher": data.teacher}).items() if column is not None
    }
    for column in numeric:
        numbers_of(frame[column], name, start)  # an error names the first value that is none
    if data.time is not None:
        found["time"] = times_of(frame[data.time], name, start)
    if data.auction:
        found["key"] = auction_keys(frame.select(cs.by_name(*data.auction)), name, start)
    separators = dict.fromkeys(data.bag, data.bag_separator)
    return found, [seen(column, separators.get(column.name)) for column in frame], row_hashes(frame, share)


def _counted(
    blocks: Blocks, array: Scratch, kinds: Mapping[str, str], separator: str, train: int, start: int
) -> dict[str, Any]:
    """Values of a block's training rows, counted; of numbers those in the sample."""
    frame = blocks.read(start, list(kinds))
    place = array("place", np.int64, blocks.rows)[start : start + len(frame)]
    inside = place < train
    rows, sample = np.flatnonzero(inside), np.flatnonzero(inside & (place % every(train) == 0))
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        column = frame[name][sample if kind == "numeric" else rows]
        if kind == "numeric":
            found[name] = numbers_of(column)
        else:
            found[name] = counted(exploded(column, separator)[0] if kind == "bag" else column)
    return found


def _encoded(
    blocks: Blocks, array: Scratch, encoder: Encoder, auction: str | None, tested: int, start: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], pl.Series | None]:
    """Where the rows of a block go, in that order, their ids, and the auctions of those that go to the test."""
    frame = blocks.read(start, list(dict.fromkeys([*encoder.names, *([] if auction is None else [auction])])))
    place = array("place", np.int64, blocks.rows)[start : start + len(frame)]
    order = np.argsort(place)
    place = place[order]
    names = None if auction is None else frame[auction][order[place >= tested]]
    return place, encoder.encode(frame)[order], names
