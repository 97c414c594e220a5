"""URLs beside paths: which is which, how they are shown, and where only a file system will do."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from bidwise.checks import InputError

WEB = ("http", "https")


def scheme_of(place: str | Path) -> str | None:
    """What a URL begins with; ``None`` for paths.

    >>> scheme_of("s3://bucket/ads.csv"), scheme_of(Path("s3://bucket")), scheme_of("C:/ads.csv"), scheme_of("ads.csv")
    ('s3', 's3', None, None)
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", str(place))  # a path keeps one slash of two
    return found[1].lower() if found else None


def url_of(place: str | Path) -> str:
    """The URL with both its slashes: ``Path("s3://bucket/a") -> "s3://bucket/a"``."""
    scheme, _, rest = str(place).partition(":")
    return f"{scheme.lower()}://{rest.removeprefix('/').removeprefix('/')}"


def shown(place: str | Path) -> str:
    """How errors and results call a file or a URL: without password or signature, for runs are passed on.

    >>> shown("https://me:secret@host/ads.csv?signature=abc"), shown("s3://bucket/day=?/*.csv")
    ('https://host/ads.csv', 's3://bucket/day=?/*.csv')
    """
    scheme = scheme_of(place)
    if scheme is None:
        return str(place)
    if scheme not in WEB:
        return url_of(place)
    parts = urlsplit(url_of(place))
    return f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_on_disk(argument: str, found: str | Path, expected: str, mend: str) -> None:
    """Raise for a URL: what is written, and what is read in pieces, must be on a file system."""
    if scheme_of(found) is not None:
        raise InputError(
            f"{argument} must be {expected} on a file system, found {shown(found)}; mount the bucket or {mend}"
        )
