"""JSON and TOML that anyone may have written: bounded in size and depth, and every error names the file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bidwise.errors import InputError

LARGEST = {".toml": 2**20}  # bytes: where keys are long its reader takes the square of them
LARGEST_OTHER = 2**30
DEEPEST = 64  # values inside of values; what bidwise writes has a dozen


def read_plain(path: Path, parse: Callable[[str], Any], expected: str) -> Any:
    """What ``parse`` makes of a file of text, which is ``expected``; an error names it."""
    most = LARGEST.get(path.suffix, LARGEST_OTHER)
    try:
        if path.stat().st_size > most:
            raise ValueError(f"more than {most:,} bytes")
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} must be {expected}, found: {error}") from None


def json_of(text: str) -> Any:
    """What JSON says, or a ValueError: also where it is too deep to walk, or has text that no file can hold."""
    return _checked(json.loads, text)


def read_json(path: Path) -> Any:
    """What a JSON file holds, or an error that names it."""
    return read_plain(path, json_of, "a JSON file that bidwise wrote")


def read_object(path: Path) -> dict[str, Any]:
    """What a JSON file holds, if it has keys."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path} must be a JSON object that bidwise wrote, found {type(found).__name__}")
    return found


def read_toml(path: Path, expected: str = "a configuration that bidwise wrote") -> dict[str, Any]:
    """What a TOML file holds, or an error that names it."""
    found: dict[str, Any] = read_plain(path, lambda text: _checked(tomllib.loads, text), expected)
    return found


def _checked(parse: Callable[[str], Any], text: str) -> Any:
    try:
        found = parse(text)
    except RecursionError:
        raise ValueError(f"values inside of values, more than {DEEPEST} deep") from None
    level, depth = [found], 0
    while level := [x for each in level if isinstance(each, dict | list) for x in _inside(each)]:
        if (depth := depth + 1) > DEEPEST:
            raise ValueError(f"values inside of values, more than {DEEPEST} deep")
    if "\\ud" in text.lower():  # halves of letters, which JSON can name
        json.dumps(found, ensure_ascii=False, default=str).encode()
    return found


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value
