"""JSON and TOML files; an error names the file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bidwise.errors import InputError


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
