"""The raw layout of the Criteo Display Advertising Challenge: lines of tab-separated text, and files of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.checks import InputError

INTEGERS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))

BLOCK = 4096  # lines put together at a time: they stay in cache
VALUES = 2**24  # a category's number takes three bytes of its name, its column the fourth
BYTES_PER_LINE = (250, 105)  # with its true CTR: as text, gzipped

_HEX = np.frombuffer(b"".join(b"%04x" % number for number in range(2**16)), np.uint32)
_DIGITS = np.frombuffer(b"".join(b"%04d" % number for number in range(10**4)), np.uint32)
_LEADING = np.frombuffer(  # without zeros in front; a zero byte, which is dropped, stands for no digit
    b"".join((b"%d" % number).rjust(4, b"\0") for number in range(10**4)), np.uint32
)


def hex_names(column: int, numbers: NDArray[Any]) -> NDArray[np.uint32]:
    """Names of the values ``numbers`` of category ``column``, to be written as eight hex digits.

    A bijection of 32 bits (the last steps of MurmurHash3: shifts and odd factors, each of which can be undone), applied
    to 2^24 (column + 1) + number: no two values of any columns share a name, and no vocabulary is held.

    >>> [f"{name:08x}" for name in hex_names(0, np.arange(3))]
    ['47ba7b95', '4a232301', 'e43cf8d1']
    """
    mixed = numbers.astype(np.uint32)
    mixed += np.uint32(VALUES * (column + 1))
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed


def lines(clicks: NDArray[Any], integers: NDArray[Any], categories: NDArray[Any], missing: NDArray[np.bool_]) -> bytes:
    r"""Text of the ads: ``label, I1 ... I13, C1 ... C26`` between tabs, missing values empty.

    Args:
        clicks: ``(ads,)``, 0 or 1.
        integers: ``(ads, 13)``, of at most eight digits.
        categories: ``(ads, 26)``, numbers of values from 0, below 2^24.
        missing: ``(ads, 39)``, integers first.

    >>> empty = np.arange(39)[None] > 1
    >>> lines(np.array([1]), np.full((1, 13), -2), np.zeros((1, 26), int), empty)[:10]
    b'1\t-2\t-2\t\t\t'
    """
    columns = (clicks, integers, categories, missing)
    return b"".join(
        _block(*(column[start : start + BLOCK] for column in columns)) for start in range(0, len(clicks), BLOCK)
    )


def _block(clicks: NDArray[Any], integers: NDArray[Any], categories: NDArray[Any], missing: NDArray[np.bool_]) -> bytes:
    """All lines at one width, with zero bytes where a value is shorter; then the zero bytes are dropped."""
    ads, width = len(clicks), 1 + 10 * len(INTEGERS) + 9 * len(CATEGORIES) + 1
    text = np.zeros((ads, width), np.uint8)
    text[:, 0] = clicks
    text[:, 0] += ord("0")
    text[:, -1] = ord("\n")
    at = 1

    def four(place: int) -> NDArray[np.uint32]:
        """Four characters of every line, as one number."""
        return np.ndarray(ads, np.uint32, text.data, offset=place, strides=(width,))

    for number in range(len(INTEGERS)):
        text[:, at] = ord("\t")
        found, there = integers[:, number], ~missing[:, number]
        if found.min() < 0:
            text[:, at + 1] = ord("-") * ((found < 0) & there)
            found = np.abs(found)
        if found.max() < 10**4:
            four(at + 6)[:] = _LEADING.take(found) * there
        else:
            high = found // 10**4
            low = found - high * 10**4
            four(at + 2)[:] = _LEADING.take(high) * ((high > 0) & there)
            four(at + 6)[:] = np.where(high > 0, _DIGITS.take(low), _LEADING.take(low)) * there
        at += 10
    for number in range(len(CATEGORIES)):
        text[:, at] = ord("\t")
        names, there = hex_names(number, categories[:, number]), ~missing[:, len(INTEGERS) + number]
        four(at + 1)[:] = _HEX.take(names >> np.uint32(16)) * there
        four(at + 5)[:] = _HEX.take(names & np.uint32(0xFFFF)) * there
        at += 9
    flat = text.ravel()
    joined: bytes = flat[flat != 0].tobytes()
    return joined


def write_raw(out: Path, rows: int, blocks: Iterable[tuple[bytes, NDArray[np.float32]]]) -> Path:
    """Blocks of text one after the other in ``out``, and the true CTR of their lines beside it; where that is.

    Both have temporary names until they are whole. The CTR is written piece by piece rather than through a memory map,
    which a full disk would turn into a crash.
    """
    _check_room(out, rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    truth = out.with_name(out.name + ".ctr.npy")
    text_part, truth_part = (path.with_name(path.name + ".part") for path in (out, truth))
    try:
        with text_part.open("wb") as text, truth_part.open("wb") as numbers:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows,)}
            np.lib.format.write_array_header_1_0(numbers, header)
            for block, ctr in blocks:
                text.write(block)
                numbers.write(ctr.astype("<f4").tobytes())
            for file in (text, numbers):
                file.flush()
                os.fsync(file.fileno())
        truth_part.replace(truth)
        text_part.replace(out)
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(f"{out} could not be written: {error.strerror or error}") from error
    finally:
        text_part.unlink(missing_ok=True)
        truth_part.unlink(missing_ok=True)
    return truth


def _check_room(out: Path, rows: int) -> None:
    """Raise unless a file of so many rows can be written at ``out``."""
    if out.is_dir():
        raise InputError(
            f"must be a file to write, found the folder {out}; add a name, such as {out / 'ads.tsv'}", argument="out"
        )
    if out.exists() and not out.is_file():
        raise InputError(f"must be a file to write, found {out}, which is none; choose another name", argument="out")
    there = next(path for path in out.absolute().parents if path.exists())
    if not there.is_dir():
        raise InputError(
            f"must be in a folder, found the file {there} in place of one; choose another name", argument="out"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"must be in a folder that can be written to, found {there}, which cannot", argument="out")
    needed, free = rows * BYTES_PER_LINE[out.suffix == ".gz"], shutil.disk_usage(there).free
    if needed > free:
        raise InputError(
            f"must fit on the disk, found {rows:,}, about {needed / 1e9:,.1f} GB, with {free / 1e9:,.1f} GB free "
            f"in {there}; take fewer, a name that ends in .gz, or another disk",
            argument="rows",
        )
