"""Output at the terminal: progress bars, and errors in one line."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownOptionError

import bidwise
from bidwise.errors import check_name
from bidwise.evaluation_options import ADVANCED as ADVANCED

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # names in a file could rewrite the screen
# in errors of torch and polars that could not write
FULL = re.compile(rf"failed writing file|transport error|os error ({errno.ENOSPC}|{errno.EDQUOT}|{errno.EFBIG})\b")
_SECONDS = 30  # between lines without a terminal


class Bars:
    """A progress bar for each piece of work, on the error stream; in a log file a line every half minute."""

    def __enter__(self) -> Bars:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

        from bidwise import distributed

        console = Console(stderr=True)
        self.quiet = distributed.rank() > 0  # one voice for all ranks
        columns = (
            "{task.description}",
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            "{task.fields[words]}",
        )
        silent = self.quiet or not console.is_terminal
        self.progress = Progress(*columns, console=console, transient=True, disable=silent)
        self.progress.start()
        self.tasks: dict[str, int] = {}
        self.last_line = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, work: str, done: float, detail: str = "") -> None:
        if work not in self.tasks:
            self.tasks[work] = self.progress.add_task(work, total=1.0, words="")
        self.progress.update(self.tasks[work], completed=done, words=detail)  # type: ignore[arg-type]
        if self.progress.disable and not self.quiet and time.monotonic() - self.last_line > _SECONDS:
            self.last_line = time.monotonic()
            print(", ".join(filter(None, [f"{work}: {100 * done:.0f} %", detail])), file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print above the bars, onto the standard output."""
        self.progress.stop()
        say(text)
        sys.stdout.flush()
        self.progress.start()


def run_command(app: App, words: Sequence[str], resumes: Collection[str]) -> None:
    """Run a command of an app; errors that a user can fix are one line and exit code 2.

    Args:
        resumes: commands that resume after an interruption.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends jobs of clusters as Ctrl-C does
    name = app.name[0]
    try:
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        command(*bound.args, **bound.kwargs)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if not (isinstance(error, CycloptsError | bidwise.InputError | OSError) or FULL.search(str(error))):
            raise
        from bidwise.distributed import ElsewhereError  # late: torch takes a second

        rank = int(os.environ.get("RANK", 0))
        if not rank or not isinstance(error, ElsewhereError | CycloptsError):  # which rank 0 reports
            who = f"{name}, rank {rank}" if rank else name
            print(f"{who}: {as_typed(error, app, words)}\n", end="", file=sys.stderr, flush=True)  # ranks print at once
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        what = "the same command resumes it" if words and words[0] in resumes else "no file was written"
        print(f"{name}: stopped; {what}", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def as_typed(error: Exception, app: App, words: Sequence[str]) -> str:
    """An error in one line that names arguments as typed: ``--auction-size``, TABLE."""
    chain, apps, _ = app.parse_commands(words)
    arguments = apps[-1].assemble_argument_collection() if chain else ()
    given = {each.name: next((name for name in each.names if name in words), each.name) for each in arguments}
    options = {(each.keys or (each.field_info.name,))[-1]: given[each.name] for each in arguments if each.name != "*"}
    usage = f"see {' '.join((app.name[0], *chain))} --help"
    if isinstance(error, MissingArgumentError | UnknownOptionError):  # a wrong name is often why another is missing
        typed = [word.partition("=")[0] for word in words if word.startswith("--")]
        names = [name for each in arguments for name in each.names if each.name != "*"]
        unknown = next((word for word in typed if word not in (*names, "--help")), None)
        if unknown and names:
            near = get_close_matches(unknown, names, n=1, cutoff=0.75)
            settings = "; settings without an option: --set section.key=value" if "settings" in options else ""
            return f"Unknown option: {unknown}; {f'did you mean {near[0]}?' if near else usage + settings}"
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.argument.name not in words:
        return f"{error.argument.name} is missing; {usage}"
    message = f"the disk may be full: {str(error).splitlines()[0]}" if FULL.search(str(error)) else str(error)
    if isinstance(error, bidwise.InputError):
        message = error.spelled(lambda name: options.get(name, name))
    if isinstance(error, OSError) and error.strerror:  # without its number and the temporary name of a file
        name = "" if error.filename is None else f"{str(error.filename).removesuffix('.part')}: "
        message = name + error.strerror
    return CONTROL.sub("�", " ".join(message.split()))


def say(text: str) -> None:
    """Print, with long sentences folded on a terminal."""
    wide = shutil.get_terminal_size().columns
    narrow = sys.stdout is not None and sys.stdout.isatty()
    for line in CONTROL.sub("�", text).split("\n"):
        print(textwrap.fill(line, wide) if narrow and len(line) > wide and "  " not in line else line)


def device_of(name: str) -> str:
    """The device to run on; ``auto`` is a GPU if there is one."""
    check_name("device", name, ("auto", "cpu", "cuda"))
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise bidwise.InputError("must be cpu or auto here, found cuda: torch sees no GPU", "device")
    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
