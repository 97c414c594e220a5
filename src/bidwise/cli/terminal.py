"""What a person sees at the terminal: progress bars, and errors in one line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownOptionError

import bidwise

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


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends jobs of clusters and containers as Ctrl-C would."""


def _terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one does not disturb the end
    raise Terminated


def run_command(app: App, words: Sequence[str], resumes: Collection[str]) -> None:
    """Run a command of an app; errors that a user can fix are one line and exit code 2.

    Args:
        resumes: commands that resume after an interruption.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    name = app.name[0]
    try:
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        command(*bound.args, **bound.kwargs)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (CycloptsError, bidwise.InputError, OSError) as error:
        rank = int(os.environ.get("RANK", 0))
        if not rank or not _reported_by_rank_0(error):
            who = f"{name}, rank {rank}" if rank else name
            print(f"{who}: {as_typed(error, app, words)}\n", end="", file=sys.stderr, flush=True)  # ranks print at once
        raise SystemExit(2) from None
    except KeyboardInterrupt as stop:
        what = "the same command resumes it" if words and words[0] in resumes else "nothing was written"
        print(f"{name}: stopped; {what}", file=sys.stderr)
        raise SystemExit(128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _reported_by_rank_0(error: Exception) -> bool:
    from bidwise.distributed import ElsewhereError  # late: torch takes a second

    return isinstance(error, ElsewhereError | CycloptsError)


def as_typed(error: Exception, app: App, words: Sequence[str]) -> str:
    """An error in one line that calls arguments as they are typed: ``--auction-size``, TABLE."""
    options = _options(app, words)
    if isinstance(error, MissingArgumentError | UnknownOptionError):
        unknown = _unknown_option(options, app, words)
        if unknown is not None:
            return unknown
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.argument.name not in words:
        return f"{error.argument.name} is missing; see {_chain(app, words)} --help"
    message = str(error)
    if isinstance(error, bidwise.InputError):
        message = error.spelled(lambda name: options.get(name, name))
    if isinstance(error, OSError) and error.strerror:  # without its number and the temporary name of a file
        name = "" if error.filename is None else f"{str(error.filename).removesuffix('.part')}: "
        message = name + error.strerror
    return CONTROL.sub("�", " ".join(message.split()))


def _chain(app: App, words: Sequence[str]) -> str:
    """What was typed up to the command."""
    chain, _, _ = app.parse_commands(words)
    return " ".join((app.name[0], *chain))


def _options(app: App, words: Sequence[str]) -> dict[str, str]:
    """How the arguments of the command are typed, by their names in Python: ``{"auction_size": "--auction-size"}``."""
    chain, apps, _ = app.parse_commands(words)
    if not chain:
        return {}
    arguments = apps[-1].assemble_argument_collection()
    return {(each.keys or (each.field_info.name,))[-1]: each.name for each in arguments if each.name != "*"}


def _unknown_option(options: Mapping[str, str], app: App, words: Sequence[str]) -> str | None:
    """The first option that the command does not have, often why another is missing, with what may be meant."""
    known = {option: option for option in (*options.values(), "--help")}
    typed = [word.partition("=")[0] for word in words if word.startswith("--")]
    unknown = next((word for word in typed if word not in known), None)
    if unknown is None or not options:
        return None
    meant, near = known, get_close_matches(unknown, known, n=1, cutoff=0.75)
    if not near and "settings" in options:
        from bidwise.table.config import SECTIONS  # late: torch takes a second

        for section, part in SECTIONS.items():
            meant |= {f"--{k.replace('_', '-')}": f"--set {section}.{k}=VALUE" for k in part.__dataclass_fields__}
    near = near or get_close_matches(unknown, meant, n=1)
    hint = f"Did you mean {meant[near[0]]}?" if near else f"See {_chain(app, words)} --help"
    return f"Unknown option: {unknown}. {hint}"


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
