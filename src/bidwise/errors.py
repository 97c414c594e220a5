"""The error that a user can fix, apart from the checks that raise it: scoring has no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection


class InputError(ValueError):
    """An argument, a file or a column that cannot be used: what a user can fix.

    With ``argument`` the message goes on after its name, and a command line may spell the name as it is typed there.
    ``{}`` in the message stands for ``others``, further arguments.

    >>> error = InputError("needs {}, found none", argument="pool_by", others=("auction_size",))
    >>> str(error), error.spelled(lambda name: "--" + name.replace("_", "-"))
    ('pool_by needs auction_size, found none', '--pool-by needs --auction-size, found none')
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
