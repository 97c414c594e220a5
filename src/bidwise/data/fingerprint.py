"""Whether data is what it was: checksums of files and arrays, and of all that models are trained on."""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from torch import Tensor

from bidwise.data.ads import Ads

BYTES_AT_ONCE = 2**24


def checksum(*parts: Path | Tensor | bytes | str) -> str:
    """CRC-32 of files, numbers and text, one after the other.

    >>> checksum("ab", b"c") == checksum("abc")
    True
    """
    found = 0
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                while block := file.read(BYTES_AT_ONCE):
                    found = zlib.crc32(block, found)
        elif isinstance(part, Tensor):
            found = zlib.crc32(part.detach().cpu().contiguous().view(torch.uint8).numpy().data, found)
        else:
            found = zlib.crc32(part.encode() if isinstance(part, str) else part, found)
    return f"{found:08x}"


def fingerprint(ads: Ads, rows: int | None = None) -> str:
    """Shape and checksum of ads, by which a run knows that it resumes on the ads it began with.

    Args:
        rows: of each column, evenly spaced, that are enough to tell; ``None``: all.
    """
    step = 1 if rows is None else max(1, len(ads) // rows)
    per_ad = (ads.clicks, ads.bids, ads.teacher, ads.truth, ads.offsets, ads.weights, ads.exposure)
    sums = [int(checksum(ads.features[..., ::step, :]), 16)]
    sums += [0 if column is None else int(checksum(column[..., ::step]), 16) for column in per_ad]
    return f"{tuple(ads.features.shape)} ads, checksum {checksum(repr(sums))}"
