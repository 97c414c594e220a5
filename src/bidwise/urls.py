"""URLs next to paths: which is which, how they are shown, and which uses need a file system."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from bidwise.errors import InputError

WEB = ("http", "https")
NAMES = ("abfs", "abfss")  # container@account: no password
USER = re.compile(r"[^/]*@|[^/:[]*:(?!\d*(?:/|$))[^@]*@")  # name:password@, which may have slashes; no host:port/
IN_WORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/.*", re.DOTALL)  # after key= too, and with spaces


def scheme_of(place: str | Path) -> str | None:
    """The scheme of a URL; ``None`` for paths.

    >>> scheme_of("s3://bucket/ads.csv"), scheme_of(Path("s3://bucket")), scheme_of("C:/ads.csv"), scheme_of("ads.csv")
    ('s3', 's3', None, None)
    """
    start = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", str(place))  # a path keeps one slash of two
    return start[1].lower() if start else None


def url_of(place: str | Path) -> str:
    """The URL with both its slashes: ``Path("s3://bucket/a") -> "s3://bucket/a"``."""
    scheme, _, rest = str(place).partition(":")
    rest = rest.lstrip("/") if scheme.lower() in WEB else rest.removeprefix("/").removeprefix("/")
    return f"{scheme.lower()}://{rest}"


def shown(place: str | Path) -> str:
    """How errors and results call a file or a URL: without password or signature, for runs are passed on.

    >>> shown("https://me:secret@host/ads.csv?signature=abc"), shown("s3://bucket/day=?/*.csv")
    ('https://host/ads.csv', 's3://bucket/day=?/*.csv')
    """
    scheme = scheme_of(place)
    if scheme is None:
        return str(place)
    rest = url_of(place).partition("://")[2]
    if scheme in WEB:
        rest = re.split("[?#]", rest, maxsplit=1)[0]
    user = None if scheme in NAMES else USER.match(rest)
    return f"{scheme}://{rest[user.end() :] if user else rest}"


def shown_command(words: Sequence[str]) -> str:
    """The command as typed, with URLs passed through :func:`shown`, and quotes around words with spaces.

    >>> shown_command(["train", "--set", "data.table=HTTP://host/my ads.csv?signature=abc"])
    "train --set 'data.table=http://host/my ads.csv'"
    """
    plain = [IN_WORD.sub(lambda url: shown(url[0]), word) for word in words]
    return " ".join(shlex.quote(word) if " " in word else word for word in plain)


def check_on_disk(argument: str, place: str | Path, expected: str, fix: str) -> None:
    """Raise for a URL: outputs, and files read in pieces, must be on a file system."""
    if scheme_of(place) is not None:
        raise InputError(
            f"must be {expected} on a file system, found {shown(place)}; mount the bucket or {fix}", argument
        )
