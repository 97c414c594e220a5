"""What a person sees at the terminal: progress bars, and errors in one line."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Annotated, Any

import cyclopts
from cyclopts import MissingArgumentError, UnknownOptionError

import bidwise

Columns = Annotated[list[str] | None, cyclopts.Parameter(consume_multiple=True, negative=())]
OPTIONS = {"settings": "--set", "continue_from": "--continue"}
NAMES = OPTIONS | {"raw": "RAW", "out": "OUT"}  # of arguments that a command has under another name
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # names in a file could rewrite what the terminal shows
SECONDS = 30  # between lines where there is no terminal


class Bars:
    """A progress bar for each piece of work, on the terminal's error stream; in a log file a line every half minute:
    ``training: 37 %, model 2 of 5, epoch 1.3 of 3, about 4 min left``."""

    def __enter__(self) -> Bars:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn

        from bidwise import distributed

        console = Console(stderr=True)
        self.quiet = distributed.rank() > 0  # one voice for all ranks
        columns = ("{task.description}", BarColumn(), TaskProgressColumn(), "{task.fields[words]}")
        silent = self.quiet or not console.is_terminal
        self.progress = Progress(*columns, console=console, transient=True, disable=silent)
        self.progress.start()
        self.tasks: dict[str, int] = {}
        self.started: dict[str, tuple[float, float]] = {}  # when, and with which share
        self.last_line = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, work: str, done: float, detail: str = "") -> None:
        if work not in self.tasks:
            self.tasks[work] = self.progress.add_task(work, total=1.0, words="")
        words = ", ".join(filter(None, [detail, self._left(work, done)]))
        self.progress.update(self.tasks[work], completed=done, words=words)  # type: ignore[arg-type]
        if self.progress.disable and not self.quiet and time.monotonic() - self.last_line > SECONDS:
            self.last_line = time.monotonic()
            print(", ".join(filter(None, [f"{work}: {100 * done:.0f} %", words])), file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print above the bars, onto the standard output."""
        self.progress.stop()
        say(text)
        sys.stdout.flush()
        self.progress.start()

    def _left(self, work: str, done: float) -> str:
        """How long the rest takes at the speed so far; what an earlier run had done took no time."""
        from bidwise.report.formatting import duration

        when, before = self.started.setdefault(work, (time.monotonic(), done))
        passed = time.monotonic() - when
        if passed < 5 or not before < done < 1:
            return ""
        return f"about {duration(passed * (1 - done) / (done - before))} left"


def as_typed(error: Exception, command: Callable[..., Any] | None) -> str:
    """An error in one line, with the arguments of the command called as they are typed: ``--auction-size``, TABLE."""
    if isinstance(error, MissingArgumentError | UnknownOptionError) and (unknown := _unknown_option(error)):
        return unknown
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.argument.name not in sys.argv:
        return f"{error.argument.name} is missing; see bidwise {' '.join(error.command_chain or ())} --help"
    parameters = {} if command is None else signature(command).parameters

    def spell(name: str) -> str:
        if name == "settings" or name not in parameters:
            return NAMES.get(name, name) if parameters else name
        return _option(name) if parameters[name].kind is Parameter.KEYWORD_ONLY else name.upper()

    message = error.spelled(spell) if isinstance(error, bidwise.InputError) else str(error)
    if isinstance(error, OSError) and error.strerror:  # without its number and the name that a file has meanwhile
        name = "" if error.filename is None else f"{str(error.filename).removesuffix('.part')}: "
        message = name + error.strerror
    return CONTROL.sub("�", " ".join(message.split()))


def _option(name: str) -> str:
    return OPTIONS.get(name) or "--" + name.replace("_", "-")


def _unknown_option(error: MissingArgumentError | UnknownOptionError) -> str | None:
    """The first option that the command does not have, often why another is missing, with what may be meant."""
    parameters = {} if error.target is None else signature(error.target).parameters
    options = [_option(name) for name, each in parameters.items() if each.kind is Parameter.KEYWORD_ONLY]
    known = {option: option for option in (*options, "--help", *(["--no-header"] if "header" in parameters else []))}
    words = [typed.partition("=")[0] for typed in sys.argv[1:] if typed.startswith("--")]
    unknown = next((word for word in words if word not in known), None)
    if unknown is None or not parameters:
        return None
    keys: dict[str, str] = {}
    if "settings" in parameters:
        from bidwise.table.config import SECTIONS  # late: torch takes a second

        for section, part in SECTIONS.items():
            keys |= {_option(key): f"--set {section}.{key}=VALUE" for key in part.__dataclass_fields__}
    meant = keys | known
    near = get_close_matches(unknown, meant, n=1)
    help_ = f"See bidwise {' '.join(error.command_chain or ())} --help"
    return f"Unknown option: {unknown}. " + (f"Did you mean {meant[near[0]]}?" if near else help_)


def say(text: str) -> None:
    """Print, with long sentences folded on a terminal."""
    wide = shutil.get_terminal_size().columns
    narrow = sys.stdout is not None and sys.stdout.isatty()
    for line in CONTROL.sub("�", text).split("\n"):
        print(textwrap.fill(line, wide) if narrow and len(line) > wide and "  " not in line else line)


def device_of(name: str) -> str:
    """The device to run on; ``auto`` is a GPU where there is one."""
    import torch

    from bidwise.checks import check_name

    check_name("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise bidwise.InputError("must be cpu or auto here, found cuda: torch sees no GPU", argument="device")
    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
