"""The store: ads as memory-mapped columns, with a schema and checksums; training data of any size."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from bidwise.checks import InputError, check_name, check_whole
from bidwise.data.ads import Ads
from bidwise.json_files import from_json, read_json
from bidwise.run_folder import checksum, named, read_array, take_room, write_json
from bidwise.values import FIRST as FIRST
from bidwise.values import MISSING as MISSING
from bidwise.values import RARE as RARE

FORMAT = "bidwise store"
VERSION = 2
SCHEMA = "store.json"
SPLITS = ("train", "valid", "test")
AGAIN = "prepare the data again"
TYPES: dict[str, DTypeLike] = {
    "features": np.int32,  # (ads, columns): ids, a row at a time because batches are rows
    "dense": np.float32,  # (ads, 2 for each column of numbers): its normal score, and 1 if it is missing
    "clicks": np.uint8,
    "bids": np.float32,
    "teacher": np.float32,
    "truth": np.float32,
    "weights": np.float32,
    "exposure": np.float32,
    "offsets": np.int64,
}


CHUNK = 2**20  # numbers of a column on the disk that are worked on at once


def chunks(first: int, last: int) -> Iterator[slice]:
    """``first`` to ``last`` in stretches.

    >>> list(chunks(0, 5))
    [slice(0, 5, None)]
    """
    return (slice(at, min(at + CHUNK, last)) for at in range(first, last, CHUNK))


@dataclass(frozen=True)
class Field:
    """A column of categories: ids from 0 to ``values`` - 1: 0 is rare, 1 is missing.

    A bag has ``slots`` adjacent ids for an ad; unused slots are 1.
    """

    name: str
    values: int
    slots: int = 1

    @property
    def cardinality(self) -> int | tuple[int, int]:
        """As models take it."""
        return self.values if self.slots == 1 else (self.values, self.slots)


def spans(slots: Iterable[int]) -> list[slice]:
    """Which columns of the features each field has.

    >>> spans([1, 3, 1])
    [slice(0, 1, None), slice(1, 4, None), slice(4, 5, None)]
    """
    return [slice(end - count, end) for count, end in zip(slots, accumulate(slots), strict=True)]


@dataclass(frozen=True)
class Stated:
    """The schema of a file."""

    bytes: int
    crc32: str


def check_shares(shares: Sequence[int], least: int) -> None:
    """Raise unless these are three shares, one of them for training and two of at least ``least``."""
    if len(shares) != 3:
        raise InputError(f"must be three shares such as 8,1,1, found {','.join(map(str, shares))!r}", argument="split")
    for share, smallest in zip(shares, (1, least, least), strict=True):
        check_whole("split", share, smallest)


def split_sizes(rows: int, shares: Sequence[int], argument: str = "rows") -> list[int]:
    """Ads of training, validation and test: the last two rounded to the nearest, training has the rest.

    >>> split_sizes(45_840_617, (8, 1, 1))
    [36672493, 4584062, 4584062]
    """
    total = sum(shares)
    others = [(2 * rows * share + total) // (2 * total) for share in shares[1:]]
    sizes = [rows - sum(others), *others]
    if any(size < 1 for size, share in zip(sizes, shares, strict=True) if share):
        words = ",".join(map(str, shares))
        raise InputError(f"must be enough for every part of the split {words}, found {rows:,}", argument=argument)
    return sizes


class Store:
    """A folder of columns, one ``.npy`` for each split and column, which is read on demand.

    Args:
        folder: with ``store.json``, which is written last: a folder without it is not finished.
        verify: read all files and compare their checksums; their sizes are compared always.
    """

    def __init__(self, folder: str | Path, *, verify: bool = False) -> None:
        self.folder = Path(folder)
        path = self.folder / SCHEMA
        if not path.is_file():
            raise InputError(f"must be a folder with a store, found no {SCHEMA} in {self.folder}", argument="data")
        self.schema: dict[str, Any] = read_json(path)
        if not isinstance(self.schema, dict) or self.schema.get("format") != FORMAT:
            raise InputError(f"{path} must be the schema of a store, found something else")
        if self.schema.get("version") != VERSION:
            raise InputError(
                f"{path} must be a store of version {VERSION}, found version {self.schema.get('version')!r}; {AGAIN}"
            )
        stated_files = self._read_schema(str(path))
        for name, stated in stated_files.items():
            file = self.folder / name
            state = f"{file.stat().st_size:,} bytes" if file.is_file() else "no file"
            if state != f"{stated.bytes:,} bytes":
                raise InputError(
                    f"{file} must have the {stated.bytes:,} bytes stated in {SCHEMA}, found {state}; {AGAIN}"
                )
            if verify and (crc := checksum(file)) != stated.crc32:
                found = f"{crc}: the file was changed or damaged"
                raise InputError(f"{file} must have checksum {stated.crc32}, found {found}; {AGAIN}")

    def _read_schema(self, name: str) -> dict[str, Stated]:
        """Fields and splits, and the schema of each file. Names of files are ours: none leads out of the folder."""
        said = {key: self.schema.get(key) for key in ("fields", "splits", "files")}
        self.fields = from_json(list[Field], said["fields"], f"fields of {name}")
        self.splits = from_json(dict[str, int], said["splits"], f"splits of {name}")
        files = from_json(dict[str, Stated], said["files"], f"files of {name}")
        known = {"splits": list(SPLITS), "files": _files(SPLITS, *TYPES)}
        for key, there in (("splits", self.splits), ("files", files)):
            for each in there:
                check_name(f"{key} of {name}", each, known[key])
        for number in (*(field.values for field in self.fields), *self.splits.values()):
            check_whole(f"fields and splits of {name}", number, 0)
        for field in self.fields:
            check_whole(f"slots of {name}", field.slots, 1)
        return files

    @property
    def cardinalities(self) -> list[int | tuple[int, int]]:
        """Values of every field, and slots of a bag, from which models are built."""
        return [field.cardinality for field in self.fields]

    @property
    def writer(self) -> StoreWriter:
        """For columns to add, see :meth:`adopt`."""
        return StoreWriter(self.folder, self.splits)

    def has(self, name: str, split: str = "train") -> bool:
        """Whether there is such a column."""
        return _file(split, name) in self.schema["files"]

    def column(self, split: str, name: str) -> NDArray[Any]:
        """A column as an array over the file, not read yet."""
        check_name("split", split, self.splits)
        if not self.has(name, split):
            raise InputError(
                f"{self.folder} has no column {name!r} for {split}; it has {', '.join(self.columns(split))}"
            )
        array = read_array(path := self.folder / _file(split, name))
        rows = array.size if name == "offsets" else self.splits[split]
        widths = {"features": sum(field.slots for field in self.fields), "dense": array.shape[-1] if array.ndim else 0}
        shape = (rows, widths[name]) if name in widths else (rows,)
        if array.shape != shape or array.dtype != TYPES[name]:
            expected = f"{np.dtype(TYPES[name])} {shape}"
            raise InputError(f"{path} must be {expected}, found {array.dtype} {array.shape}; {AGAIN}")
        return array

    def columns(self, split: str) -> list[str]:
        """Names of the columns of a split."""
        return [name for name in TYPES if self.has(name, split)]

    def ads(self, split: str, *, auction_size: int | None = None) -> Ads:
        """The ads of a split; columns stay on disk. If the store has no auctions, ``auction_size`` ads compete."""
        check_name("split", split, self.splits)
        names = (name for name in self.columns(split) if name != "dense")  # which models do not take yet
        columns: dict[str, Any] = {name: _tensor(self.column(split, name)) for name in names}
        if "bids" not in columns:
            raise InputError(f"{self.folder} has no bids")
        if not {"features", "clicks"} <= set(columns):
            raise InputError(
                f"{self.folder} must have features and clicks of {split}, found {', '.join(columns)}; {AGAIN}"
            )
        return Ads(auction_size=None if "offsets" in columns else auction_size, **columns)

    def add(self, name: str, columns: Mapping[str, NDArray[Any]], about: Mapping[str, Any] | None = None) -> Store:
        """The store with a column added or replaced, one array for each split; ``about`` goes into the schema."""
        check_name("name", name, TYPES)
        for split, values in columns.items():
            check_name("split", split, self.splits)
            if name != "offsets" and len(values) != self.splits[split]:
                raise InputError(
                    f"{name} must have one number for each of the {self.splits[split]:,} ads of {split}, "
                    f"found {len(values):,}"
                )
        for split, values in columns.items():
            self.writer.column(split, name, length=len(values))[:] = values
        return self.adopt(name, list(columns), about)

    def adopt(self, name: str, splits: Sequence[str], about: Mapping[str, Any] | None = None) -> Store:
        """The store with a column that was filled through :attr:`writer`, for columns larger than memory.

        The schema forgets the old column first: one that is cut off in between has no column rather than a false one.
        """
        files = {key: stated for key, stated in self.schema["files"].items() if key not in _files(splits, name)}
        if len(files) < len(self.schema["files"]):
            write_json(self.folder / SCHEMA, {**self.schema, "files": files})
        for file in _files(splits, name):
            _named(self.folder, file)
            files[file] = _stated(self.folder / file)
        write_json(self.folder / SCHEMA, {**self.schema, **(about or {}), "files": files})
        return Store(self.folder)


@dataclass(frozen=True)
class StoreWriter:
    """Columns of a store that is being written: ``SPLIT/NAME.npy.part`` until they are whole.

    Args:
        folder: of the store, which is there.
        splits: ads of each.
    """

    folder: Path
    splits: Mapping[str, int]

    def column(self, split: str, name: str, *, width: int | None = None, length: int | None = None) -> NDArray[Any]:
        """An array over the file, to fill; one of the same shape that is there already is opened again.

        ``width`` is for ``features`` and ``dense``, ``length`` the number of entries if it differs from the number of
        ads. Its place on the disk is taken at once: a full disk is an error here, where writing to a mapped file would
        be a crash.
        """
        path = self.folder / (_file(split, name) + ".part")
        path.parent.mkdir(exist_ok=True)  # not those above: a folder that was removed must not come back half empty
        rows = self.splits[split] if length is None else length
        shape = (rows,) if width is None else (rows, width)
        if not rows:  # no rows to map
            with path.open("wb") as file:
                np.save(file, np.zeros(shape, TYPES[name]))
            return np.zeros(shape, TYPES[name])
        if path.is_symlink():  # which would lead out of the folder
            path.unlink()
        if path.is_file():
            try:
                there: NDArray[Any] = np.lib.format.open_memmap(path, mode="r+")
                if there.shape == shape and there.dtype == TYPES[name]:
                    return there
            except (ValueError, EOFError):
                pass  # cut off while it was made
        with named(path):
            made: NDArray[Any] = np.lib.format.open_memmap(path, mode="w+", dtype=TYPES[name], shape=shape)
        take_room(path)
        return made

    def written(self, split: str, name: str) -> NDArray[Any]:
        """A column that was filled, for reading; :meth:`finish` may have been cut off after naming it."""
        path = self.folder / _file(split, name)
        part = path.with_name(path.name + ".part")
        return read_array(part if part.is_file() else path)

    def finish(self, *, fields: Sequence[Field], about: Mapping[str, Any]) -> Store:
        """Give the columns their names, write the schema, and open the store.

        Args:
            fields: in the order of the features.
            about: the origin of the data, the options, and the counts.
        """
        files = _files(self.splits, *TYPES)
        for file in files:
            if (self.folder / f"{file}.part").is_file():
                _named(self.folder, file)
        names = [file for file in files if (self.folder / file).is_file()]
        said = [{key: x for key, x in vars(field).items() if (key, x) != ("slots", 1)} for field in fields]
        schema = {"format": FORMAT, "version": VERSION, "fields": said, "splits": self.splits, **about}
        write_json(self.folder / SCHEMA, {**schema, "files": {name: _stated(self.folder / name) for name in names}})
        return Store(self.folder)


def _stated(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "crc32": checksum(path)}


def _named(folder: Path, name: str) -> None:
    (folder / f"{name}.part").replace(folder / name)


def _file(split: str, name: str) -> str:
    return f"{split}/{name}.npy"


def _files(splits: Iterable[str], *names: str) -> list[str]:
    return [_file(split, name) for split in splits for name in names]


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """Over the same memory; the file is opened read-only, which torch cannot express."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
