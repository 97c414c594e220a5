"""The store: ads as memory-mapped columns, with a schema and checksums; training data of any size."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from bidwise.checks import InputError, check_name
from bidwise.data.ads import Ads
from bidwise.json_files import from_json, read_json
from bidwise.run_folder import checksum, named, read_array, take_room, write_json

_FORMAT = "bidwise store"
_VERSION = 2
SCHEMA = "store.json"
SPLITS = ("train", "valid", "test")
AGAIN = "prepare the data again"
TYPES: dict[str, DTypeLike] = {
    "features": np.int32,  # (ads, columns): ids, a row at a time because batches are rows
    "clicks": np.uint8,
    "bids": np.float32,
    "teacher": np.float32,
    "truth": np.float32,
    "weights": np.float32,
    "exposure": np.float32,
    "offsets": np.int64,
}


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
        if not isinstance(self.schema, dict) or self.schema.get("format") != _FORMAT:
            raise InputError(f"{path} must be the schema of a store, found something else")
        if self.schema.get("version") != _VERSION:
            raise InputError(
                f"{path} must be a store of version {_VERSION}, found version {self.schema.get('version')!r}; {AGAIN}"
            )
        self.fields = from_json(list[Field], self.schema.get("fields"), f"fields of {path}")
        self.splits = from_json(dict[str, int], self.schema.get("splits"), f"splits of {path}")
        for name, stated in from_json(dict[str, Stated], self.schema.get("files"), f"files of {path}").items():
            check_name(f"files of {path}", name, _files(SPLITS, *TYPES))  # ours: none leads out of the folder
            file = self.folder / name
            size = file.stat().st_size if file.is_file() else -1
            if size != stated.bytes or (verify and checksum(file) != stated.crc32):
                found = "no file" if size < 0 else f"{size:,} bytes" if size != stated.bytes else "another checksum"
                raise InputError(f"{file} must be the {stated.bytes:,} bytes of {SCHEMA}, found {found}; {AGAIN}")

    @property
    def cardinalities(self) -> list[int | tuple[int, int]]:
        """The shape that models need: values of every field, and slots of a bag."""
        return [field.cardinality for field in self.fields]

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
        shape = (rows, sum(field.slots for field in self.fields)) if name == "features" else (rows,)
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
        columns: dict[str, Any] = {name: _tensor(self.column(split, name)) for name in self.columns(split)}
        if missing := {"features", "clicks", "bids"} - set(columns):
            raise InputError(f"{self.folder} has no {' and no '.join(sorted(missing))} of {split}; {AGAIN}")
        return Ads(auction_size=None if "offsets" in columns else auction_size, **columns)

    def add(self, name: str, columns: Mapping[str, NDArray[Any]], about: Mapping[str, Any] | None = None) -> Store:
        """The store with a column added or replaced, one array for each split; ``about`` goes into the schema.

        The schema forgets the old column first: one that is cut off in between has no column rather than a false one.
        """
        check_name("name", name, TYPES)
        writer, added = StoreWriter(self.folder, self.splits), _files(columns, name)
        for split, values in columns.items():
            check_name("split", split, self.splits)
            if name != "offsets" and len(values) != (ads := self.splits[split]):
                raise InputError(
                    f"{name} must have a number for each of the {ads:,} ads of {split}, found {len(values):,}"
                )
            writer.column(split, name, length=len(values))[:] = values
        files = {key: stated for key, stated in self.schema["files"].items() if key not in added}
        if len(files) < len(self.schema["files"]):
            write_json(self.folder / SCHEMA, {**self.schema, "files": files})
        for file in added:
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
        """An array over the file, to fill.

        ``width`` is for ``features``, ``length`` the number of entries if it differs from the number of
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
        with named(path):
            made: NDArray[Any] = np.lib.format.open_memmap(path, mode="w+", dtype=TYPES[name], shape=shape)
        take_room(path)
        return made

    def written(self, split: str, name: str) -> NDArray[Any]:
        """A column that was filled, for reading."""
        return read_array(self.folder / f"{_file(split, name)}.part")

    def names(self, split: str, *names: str) -> list[str]:
        """The ads of the columns that were filled."""
        return [name for name in names if (self.folder / f"{_file(split, name)}.part").is_file()]

    def widened(self, split: str, name: str, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """A column that was filled, and an array over its successor of another width, to fill from it."""
        old = self.written(split, name)
        (self.folder / f"{_file(split, name)}.part").unlink()  # it stays readable while it is in use
        return old, self.column(split, name, width=width)

    def finish(self, *, fields: Sequence[Field], about: Mapping[str, Any]) -> Store:
        """Give the columns their names, write the schema, and open the store.

        Args:
            fields: in the order of the features.
            about: the origin of the data, the options, and the counts.
        """
        files = [file for file in _files(self.splits, *TYPES) if (self.folder / f"{file}.part").is_file()]
        for file in files:
            _named(self.folder, file)
        said = [{key: x for key, x in vars(field).items() if (key, x) != ("slots", 1)} for field in fields]
        schema = {"format": _FORMAT, "version": _VERSION, "fields": said, "splits": self.splits, **about}
        write_json(self.folder / SCHEMA, {**schema, "files": {name: _stated(self.folder / name) for name in files}})
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
