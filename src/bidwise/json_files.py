"""JSON and TOML files, and frozen dataclasses to JSON and back; errors name the file and the place in it.

Unknown keys, missing keys and values of another type are rejected. Numbers that are not finite are ``null`` in JSON; if
a ``float`` is expected, ``null`` is read as NaN.
"""

from __future__ import annotations

import json
import math
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bidwise.errors import InputError

T = TypeVar("T")


def read_plain(path: Path, parse: Callable[[str], Any], expected: str) -> Any:
    """Parse a text file; if it is broken, the error names it and what was ``expected``."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} must be {expected}, found: {error}") from None


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    return read_plain(path, json.loads, "a JSON file that bidwise wrote")


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path} must be a JSON object that bidwise wrote, found {type(value).__name__}")
    return value


def read_toml(path: Path, expected: str = "a configuration that bidwise wrote") -> dict[str, Any]:
    """The tables of a TOML file."""
    tables: dict[str, Any] = read_plain(path, tomllib.loads, expected)
    return tables


def to_json(value: Any) -> Any:
    """What JSON can hold: no dataclasses, numpy or tensors, no NaN, no infinity.

    Properties that a dataclass names in ``written`` are written beside its fields, and left alone when it is read.
    """
    if is_dataclass(value) and not isinstance(value, type):
        names = [*(f.name for f in fields(value)), *getattr(value, "written", ())]
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "tolist"):  # numpy and torch, numbers and arrays
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def from_json(kind: type[T], data: Any, where: str = "result") -> T:
    """The dataclass that :func:`to_json` wrote.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     x: float
    ...     names: tuple[str, ...] = ()
    >>> from_json(Point, {"x": 1, "names": ["a"]})
    Point(x=1.0, names=('a',))
    >>> from_json(Point, {"x": 1, "y": 2})
    Traceback (most recent call last):
    ...
    bidwise.errors.InputError: result must have the keys x, names, found y
    """
    return typing.cast(T, _read(kind, data, where))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in inner:
            return None
        return _first([part for part in inner if part is not type(None)], data, where)
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind, data, where)
    if origin in (list, tuple) and isinstance(data, list):
        each = inner[:1] * len(data) if origin is list or inner[-1:] == (...,) else inner
        if len(each) == len(data):
            return origin(_read(part, x, f"{where}[{k}]") for k, (part, x) in enumerate(zip(each, data, strict=True)))
    if origin in (dict, Mapping) and isinstance(data, dict):
        return {key: _read(inner[1], entry, f"{where}.{key}") for key, entry in data.items()}
    if kind is float and (data is None or (isinstance(data, int | float) and not isinstance(data, bool))):
        with suppress(OverflowError):  # of a whole number that no float can hold
            return math.nan if data is None else float(data)
    if kind is np.ndarray and isinstance(data, list):
        return np.array([_read(float, x, f"{where}[{k}]") for k, x in enumerate(data)])
    if isinstance(kind, type) and issubclass(kind, Enum) and data in [entry.value for entry in kind]:
        return kind(data)
    if isinstance(kind, type) and isinstance(data, kind) and not (kind is int and isinstance(data, bool)):
        return data
    name = getattr(kind, "__name__", str(kind)) if origin is None else str(kind)
    raise InputError(f"{where} must be of the kind {name}, found {_short(data)}")


def _first(kinds: list[Any], data: Any, where: str) -> Any:
    """The first kind of a union that fits."""
    for kind in kinds[:-1]:
        try:
            return _read(kind, data, where)
        except InputError:
            continue
    return _read(kinds[-1], data, where)


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise InputError(f"{where} must have keys, found {_short(data)}")
    known = {f.name: f for f in fields(kind)}
    unknown = [key for key in data if key not in known and key not in getattr(kind, "written", ())]
    if unknown:
        raise InputError(f"{where} must have the keys {', '.join(known)}, found {', '.join(unknown)}")
    missing = [n for n, f in known.items() if n not in data and f.default is MISSING and f.default_factory is MISSING]
    if missing:
        raise InputError(f"{where} must have the keys {', '.join(known)}, found no {', '.join(missing)}")
    hints = _hints(kind)
    return kind(**{name: _read(hints[name], data[name], f"{where}.{name}") for name in known if name in data})


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) < 60 else text[:57] + "..."
