"""The error that a user can fix, and checks of names and numbers that raise it, without torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from hashlib import blake2b
from numbers import Integral, Real
from typing import TypeVar

MOST_SEED = 2**63 - 1
PLAIN_SEEDS = 4000  # beyond, 1,000,003 times a seed is no longer below 2^32

Entry = TypeVar("Entry")


class InputError(ValueError):
    """An argument, a file or a column that cannot be used, which a user can fix.

    With ``argument`` the message continues after its name, and a command line may spell the name as typed there.
    ``{}`` in the message stands for ``others``, further arguments.

    >>> error = InputError("needs {}, found none", argument="time_format", others=("time",))
    >>> str(error), error.spelled(lambda name: "--" + name.replace("_", "-"))
    ('time_format needs time, found none', '--time-format needs --time, found none')
    """

    argument: str = ""  # also of errors that another process wraps
    others: tuple[str, ...] = ()

    def __init__(self, message: str, argument: str = "", *, others: Collection[str] = ()) -> None:
        super().__init__(message)
        self.argument, self.others = argument, tuple(others)

    def spelled(self, spell: Callable[[str], str]) -> str:
        """The message with its arguments called as ``spell`` calls them."""
        message = str(self.args[0])
        for other in self.others:
            message = message.replace("{}", spell(other), 1)
        return f"{spell(self.argument)} {message}" if self.argument else message

    def __str__(self) -> str:
        return self.spelled(str)


def check_name(argument: str, found: object, names: Collection[str]) -> None:
    """Raise unless ``found`` is one of ``names``; suggests the nearest."""
    if not (isinstance(found, str) and found in names):
        raise InputError(_unknown(found, names), argument)


def _unknown(found: object, names: Collection[str]) -> str:
    near = get_close_matches(str(found), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"must be one of {', '.join(names)}, found {found!r}{hint}"


class UnknownName(InputError, KeyError):
    """A name that is not in a table of names."""

    __str__ = InputError.__str__  # KeyError would put quotes around a sentence


class Named(dict[str, Entry]):
    """Things by name; asking for one that is not there suggests the nearest.

    >>> Named("loss", {"log_plus": 1})["logplus"]
    Traceback (most recent call last):
    bidwise.errors.UnknownName: loss must be one of log_plus, found 'logplus'; did you mean 'log_plus'?
    """

    def __init__(self, argument: str, things: Mapping[str, Entry]) -> None:
        super().__init__(things)
        self.argument = argument

    def __missing__(self, name: object) -> Entry:
        raise UnknownName(_unknown(name, self), self.argument)


def check_positive(argument: str, found: object, *, or_zero: bool = False) -> None:
    """Raise unless ``found`` is a finite number above 0, or 0 if that is allowed."""
    if isinstance(found, bool) or not isinstance(found, Real):
        raise TypeError(f"{argument} must be a number, found {type(found).__name__}")
    if not (0 < float(found) < float("inf") or (or_zero and found == 0)):
        raise InputError(
            f"must be finite and {'no less than' if or_zero else 'above'} 0, found {found}", argument=argument
        )


def check_whole(argument: str, found: object, least: int, most: int | None = None) -> None:
    """Raise unless ``found`` is a whole number, ``least`` or more and ``most`` at most."""
    if isinstance(found, bool) or not isinstance(found, Integral):
        raise InputError(f"must be a whole number, found {found!r}", argument=argument)
    if int(found) < least:
        raise InputError(f"must be at least {least}, found {found}", argument=argument)
    if most is not None and int(found) > most:
        raise InputError(f"must be at most {most}, found {found}", argument=argument)


def check_seed(argument: str, found: object) -> None:
    """Raise unless ``found`` is a whole number from 0 to 2^63 - 1."""
    check_whole(argument, found, 0, MOST_SEED)


def derived_seed(seed: int, *parts: int | str) -> int:
    """A seed for each purpose and repeat of a run, independent of other base seeds.

    torch's generator of the CPU reads only the low 32 bits of a seed. Repeats, the last of ``parts``, are therefore
    counted from a hash rather than hashed themselves: no two of one run share those bits. Base seeds up to 4,000
    without a purpose have the numbers that they had before any number was allowed.

    >>> derived_seed(7, 0), derived_seed(7, 2)
    (7000021, 7000025)
    >>> derived_seed(2**62, 3) - derived_seed(2**62, 0)
    6
    >>> derived_seed(7, "bids", 0) != derived_seed(7, 0)
    True
    """
    check_seed("seed", seed)
    *purposes, repeat = parts if parts and isinstance(parts[-1], int) else (*parts, 0)
    if seed <= PLAIN_SEEDS and not purposes:
        return 1_000_003 * seed + 2 * int(repeat)
    text = repr((int(seed), *purposes)).encode()
    return (int.from_bytes(blake2b(text, digest_size=8).digest()) >> 2) + 2 * int(repeat)
