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
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from bidwise.errors import InputError

T = TypeVar("T")


def read_plain(path: Path, parse: Callable[[str], Any], expected: str) -> Any:
    """Parse a text file; if it is broken, the error names it and the ``expected`` content."""
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
    return typing.cast(dict[str, Any], read_plain(path, tomllib.loads, expected))


def to_json(value: Any) -> Any:
    """Convert to values that JSON has: no dataclasses, numpy or tensors, no NaN, no infinity.

    Properties that a dataclass names in ``written`` are written next to its fields, and ignored when it is read.
    """
    if is_dataclass(value) and not isinstance(value, type):
        names = [*(f.name for f in fields(value)), *getattr(value, "written", ())]
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
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


_hints = cache(typing.get_type_hints)


def _read(kind: Any, data: Any, where: str) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in inner:
            return None
        *others, last = (part for part in inner if part is not type(None))
        for part in others:
            with suppress(InputError):
                return _read(part, data, where)
        return _read(last, data, where)
    if is_dataclass(kind):
        return _dataclass(kind, data, where)
    if origin in (list, tuple) and isinstance(data, list):
        parts = inner[:1] * len(data) if origin is list or inner[-1:] == (...,) else inner
        if len(parts) == len(data):
            return origin(_read(part, x, f"{where}[{k}]") for k, (part, x) in enumerate(zip(parts, data, strict=True)))
    elif origin in (dict, Mapping) and isinstance(data, dict):
        return {key: _read(inner[1], entry, f"{where}.{key}") for key, entry in data.items()}
    elif kind is float and (data is None or (isinstance(data, int | float) and not isinstance(data, bool))):
        with suppress(OverflowError):  # of a whole number too large for a float
            return math.nan if data is None else float(data)
    elif kind is Any or (origin is None and isinstance(data, kind) and not (kind is int and isinstance(data, bool))):
        return data
    raise InputError(f"{where} must be of the kind {kind if origin else kind.__name__}, found {data!r:.60}")


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise InputError(f"{where} must have keys, found {data!r:.60}")
    known = {f.name: f for f in fields(kind)}
    found = ", ".join(key for key in data if key not in known and key not in getattr(kind, "written", ()))
    missing = [n for n, f in known.items() if n not in data and f.default is MISSING and f.default_factory is MISSING]
    if found or missing:
        found = found or f"no {', '.join(missing)}"
        raise InputError(f"{where} must have the keys {', '.join(known)}, found {found}")
    hints = _hints(kind)
    return kind(**{name: _read(hints[name], data[name], f"{where}.{name}") for name in known if name in data})
