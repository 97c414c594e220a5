"""Where a table lies: a file, several by a pattern, or a URL that polars reads."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import polars as pl

from bidwise.checks import InputError
from bidwise.urls import WEB, scheme_of, shown, url_of

SEPARATORS = {".csv": ",", ".tsv": "\t"}
ENDINGS = ".parquet, .csv, .tsv, .csv.gz or .tsv.gz"
PATTERN = "*["  # in the name of a table: several files
S3 = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN for a session"
GOOGLE = "GOOGLE_SERVICE_ACCOUNT, the file of a key"
AZURE = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN"
KEYS = (  # schemes that polars reads, and what it looks for in the environment
    {"s3": S3, "s3a": S3, "gs": GOOGLE, "gcs": GOOGLE}
    | dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), AZURE)
    | {"hf": "HF_TOKEN"}
    | dict.fromkeys(WEB)
)
SCHEMES = "s3://, gs://, az://, abfss://, hf://, http:// and https://"
NO_KEY = re.compile(r"169\.254\.169\.254|/latest/api/token|token request|Account must be specified")
FROM_AFAR = re.compile("object-store error|error sending request")


@dataclass(frozen=True)
class Location:
    """A table outside of memory: ``name`` as errors call it, ``where`` as polars does."""

    name: str
    where: str | Path
    kind: str
    several: bool = False
    separator: str | None = None  # of text; by the ending, where it is None
    header: bool = True  # whether the first line of text has the names of columns

    @property
    def is_file(self) -> bool:
        """Whether it is one file on a file system."""
        return isinstance(self.where, Path) and not self.several

    def scan(self, **options: Any) -> pl.LazyFrame:
        """The table, not read yet; ``options`` are those of text. Folders such as ``day=7`` are columns of Parquet."""
        warnings.filterwarnings("ignore", r"'\(default_\)region' not set", UserWarning)  # polars asks the bucket for it
        if self.kind == ".parquet":
            return pl.scan_parquet(self.where, glob=self.several, hive_partitioning=self.several)
        written: dict[str, Any] = {"separator": self.separator or SEPARATORS[self.kind], "has_header": self.header}
        if not self.header:  # polars counts them from 0 or 1, by its version
            written["with_column_names"] = lambda names: [f"column_{at}" for at in range(1, len(names) + 1)]
        return pl.scan_csv(self.where, glob=self.several, **written, **options)

    def error(self, error: Exception) -> InputError:
        """What went wrong, in one line that says what to do."""
        text = re.sub(r" \(location: .*?(?= \(path: |$)", "", " ".join(str(error).split()))  # with the signature
        if isinstance(error, pl.exceptions.NoDataError):
            return InputError(f"{self.name} must hold ads, found an empty file")
        if isinstance(error, FileNotFoundError) or "expanded paths were empty" in text:
            return InputError(f"{self.name}: no {'file has such a name' if self.several else 'such file'}")
        if isinstance(self.where, Path):
            return InputError(f"{self.name} cannot be read: {str(error).strip().splitlines()[0]}")
        if not FROM_AFAR.search(text):
            return InputError(f"{self.name} cannot be read: {self._without_urls(str(error).strip().splitlines()[0])}")
        keys = KEYS[scheme_of(self.where) or ""]
        if isinstance(error, PermissionError):
            fix = f"check {keys}, and that they may read it" if keys else "does it need a password or a signature?"
            return InputError(f"{self.name} cannot be read: access was denied; {fix}")
        if NO_KEY.search(text):
            return InputError(f"{self.name} cannot be read: there are no credentials; set {keys}")
        if "configured region" in text:
            moved = "its bucket is in another region; set AWS_REGION"
            nowhere = "the server says that it has moved and not where to; check the URL"
            return InputError(f"{self.name} cannot be read: {moved if keys == S3 else nowhere}")
        if "(Connect)" in text:
            reason = text.rpartition(": ")[2].partition(" (os error")[0]
            own = ", AWS_REGION and, for a store of your own, AWS_ENDPOINT_URL" if keys == S3 else ""
            return InputError(f"{self.name} cannot be reached: {reason}; check the network{own}")
        reason = (text.rpartition(" (path: ")[0] or text).rpartition(" - ")[2].removeprefix("object-store error: ")
        return InputError(f"{self.name} cannot be read: {self._without_urls(reason)}")

    def _without_urls(self, text: str) -> str:
        """Words of polars, which may name the URL with its password or signature."""
        return re.sub(r"[A-Za-z][\w+.-]+://\S+", "...", text.replace(str(self.where), "..."))


def location_of(table: str | Path | Location) -> Location:
    """The place of a table; what is no file and no URL is refused, whether a URL has anything is seen when it is read.

    >>> location_of("s3://bucket/day=*/a.csv.gz").kind
    '.csv'
    """
    if isinstance(table, Location):
        return table
    name, scheme = shown(table), scheme_of(table)
    if scheme == "file":
        return location_of(Path(unquote(urlsplit(str(table)).path)))
    if scheme is not None:
        if scheme not in KEYS:
            raise InputError(f"{name} must be a file or a URL of a kind that can be read: {SCHEMES}; copy it to one")
        if scheme in WEB and "*" in name:
            raise InputError(f"{name} must be one file, found a pattern: {scheme}:// cannot list files")
        return Location(name, url_of(table), _kind(name), scheme not in WEB and _is_pattern(name))
    path = Path(table)
    if path.is_dir():
        raise InputError(
            f"{path} must be a file, found a folder; for all its files name a pattern, {path / '*.parquet'}"
        )
    several = not path.exists() and _is_pattern(name)
    if not path.exists() and not several:
        raise InputError(f"{path}: no such file")
    return Location(name, path, _kind(name), several)


def written_as(table: Any, separator: str | None = None, header: bool | None = None) -> Any:
    """A table whose text has another separator than its ending says, or no line of names (``header=False``): columns
    are then called column_1, column_2 and so on. ``None`` is what the ending says, and a header.

    >>> written_as("s3://bucket/ads.csv", separator=";").separator
    ';'
    """
    if separator == "\\t":  # as it is typed in a shell
        separator = "\t"
    if separator is not None and (len(separator.encode()) != 1 or separator in '\r\n"'):
        raise InputError(f"must be one character, or \\t for a tab, found {separator!r}", argument="separator")
    if separator is None and header in (None, True):
        return table
    argument = "header" if separator is None else "separator"
    if not isinstance(table, str | Path):
        raise InputError("is for files, found a table in memory", argument=argument)
    place = location_of(table)
    if place.kind == ".parquet":
        raise InputError(f"is for text, .csv or .tsv, found {place.name}", argument=argument)
    return replace(place, separator=separator, header=header is not False)


def same_place(one: object, other: object) -> bool:
    """Whether two tables are the same file or URL."""
    one, other = (each.where if isinstance(each, Location) else each for each in (one, other))
    if not isinstance(one, str | Path) or not isinstance(other, str | Path):
        return one is other
    if scheme_of(one) or scheme_of(other):
        return url_of(one) == url_of(other)  # with what is asked for after the question mark
    return Path(one).resolve() == Path(other).resolve()


def _is_pattern(name: str) -> bool:
    return any(mark in name for mark in PATTERN)


def _kind(name: str) -> str:
    lower = name.lower()
    kind = "." + lower.removesuffix(".gz").rpartition(".")[2]
    if lower.endswith(".parquet") or kind in SEPARATORS:
        return kind
    several = f"; for all files of a folder name a pattern, {name}*.parquet" if name.endswith("/") else ""
    raise InputError(f"{name} must end in {ENDINGS}{several}")
