"""The store: ads as memory-mapped columns with a schema; training data of any size."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from bidwise.checks import InputError, check_name
from bidwise.data.ads import Ads
from bidwise.json_files import from_json, read_object
from bidwise.run_folder import read_array, take_room, write_json

_ORIGIN = {"format": "bidwise store", "version": 3}
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


class Store:
    """A folder of columns, one ``.npy`` for each split and column, which is read on demand.

    Its schema, ``store.json``, is written last: a folder without it is not finished.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path = self.folder / SCHEMA
        if not path.is_file():
            raise InputError(f"must be a folder with a store, found no {SCHEMA} in {self.folder}", argument="data")
        self.schema = read_object(path)
        if {key: self.schema.get(key) for key in _ORIGIN} != _ORIGIN:
            found = f"version {self.schema.get('version')!r}"
            raise InputError(f"{path} must be a store of version {_ORIGIN['version']}, found {found}; {AGAIN}")
        self.fields = from_json(list[Field], self.schema.get("fields"), f"fields of {path}")
        self.splits = from_json(dict[str, int], self.schema.get("splits"), f"splits of {path}")
        self._columns = from_json(dict[str, list[str]], self.schema.get("columns"), f"columns of {path}")

    @property
    def cardinalities(self) -> list[int | tuple[int, int]]:
        """The shape that models need: values of every field, and slots of a bag."""
        return [field.cardinality for field in self.fields]

    def columns(self, split: str) -> list[str]:
        """Names of the columns of a split."""
        check_name("split", split, self.splits)
        return [name for name in TYPES if name in self._columns[split]]

    def column(self, split: str, name: str) -> NDArray[Any]:
        """A column as an array over the file, not read yet."""
        if name not in (known := self.columns(split)):
            raise InputError(f"{self.folder} has no column {name!r} for {split}; it has {', '.join(known)}")
        array = read_array(path := _file(self.folder, split, name))
        rows = array.size if name == "offsets" else self.splits[split]
        shape = (rows, sum(field.slots for field in self.fields)) if name == "features" else (rows,)
        if array.shape != shape or array.dtype != TYPES[name]:
            expected = f"{np.dtype(TYPES[name])} {shape}"
            raise InputError(f"{path} must be {expected}, found {array.dtype} {array.shape}; {AGAIN}")
        return array

    def ads(self, split: str, *, auction_size: int | None = None) -> Ads:
        """The ads of a split; columns stay on disk. If the store has no auctions, ``auction_size`` ads compete."""
        columns: dict[str, Any] = {name: _tensor(self.column(split, name)) for name in self.columns(split)}
        if missing := {"features", "clicks", "bids"} - set(columns):
            raise InputError(f"{self.folder} has no {' and no '.join(sorted(missing))} of {split}; {AGAIN}")
        return Ads(auction_size=None if "offsets" in columns else auction_size, **columns)


@dataclass(frozen=True)
class StoreWriter:
    """Columns of a store that is being written into a folder, which is there.

    Args:
        splits: ads of each.
    """

    folder: Path
    splits: Mapping[str, int]

    def column(self, split: str, name: str, *, width: int | None = None, length: int | None = None) -> NDArray[Any]:
        """An array over a new file, to fill; an array over an old one stays readable while it is in use.

        ``width`` is for ``features``, ``length`` the number of entries if it differs from the number of
        ads. Its place on the disk is taken at once: a full disk is an error here, where writing to a mapped file would
        be a crash.
        """
        path = _file(self.folder, split, name)
        path.parent.mkdir(exist_ok=True)  # not those above: a folder that was removed must not come back half empty
        path.unlink(missing_ok=True)  # a link would lead out of the folder
        rows = self.splits[split] if length is None else length
        shape = (rows,) if width is None else (rows, width)
        if not rows:  # no rows to map
            np.save(path, np.zeros(shape, TYPES[name]))
            return np.zeros(shape, TYPES[name])
        made: NDArray[Any] = np.lib.format.open_memmap(path, mode="w+", dtype=TYPES[name], shape=shape)
        take_room(path)
        return made

    def written(self, split: str, name: str) -> NDArray[Any]:
        """A column that was filled, for reading."""
        return read_array(_file(self.folder, split, name))

    def finish(self, *, fields: Sequence[Field], about: Mapping[str, Any]) -> Store:
        """Write the schema, and open the store.

        Args:
            fields: in the order of the features.
            about: the origin of the data, the options, and the counts.
        """
        columns = {x: [name for name in TYPES if _file(self.folder, x, name).is_file()] for x in self.splits}
        schema = {**about, **_ORIGIN, "fields": fields, "splits": self.splits, "columns": columns}
        write_json(self.folder / SCHEMA, schema)
        return Store(self.folder)


def _file(folder: Path, split: str, name: str) -> Path:
    return folder / split / f"{name}.npy"


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """Over the same memory; the file is opened read-only, which torch cannot express."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
