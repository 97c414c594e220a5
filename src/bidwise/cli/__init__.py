"""The command line. Every command says what it found in words, and leaves files to look at."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from inspect import getdoc
from typing import Any

from cyclopts import App, CycloptsError

import bidwise
from bidwise.cli.data_command import prepare_criteo, simulate_criteo
from bidwise.cli.evaluate_command import evaluate
from bidwise.cli.first_steps_command import try_it
from bidwise.cli.reproduce_command import criteo, recipes, regimes, report, synthetic
from bidwise.cli.serve_command import export
from bidwise.cli.terminal import as_typed
from bidwise.cli.train_command import predict, sweep, train

app = App(
    name="bidwise",
    help="Click-through-rate models for the ad auction they serve.",
    version=bidwise.__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # `main` says what became of the run
)
experiments = App(name="reproduce", help="The paper's experiments, with our numbers beside the paper's.")
simulation = App(name="simulate", help="Raw data of a known shape with known CTR.")
preparation = App(name="prepare", help="Raw data to a store that models are trained on.")


def _add(to: App, command: Callable[..., Any], name: str | None = None) -> None:
    """Register a command, each paragraph of its docstring on one line: lines are folded where they are shown."""
    heading = "Parameters\n----------\n"
    parts = (getdoc(command) or "").split(heading)
    command.__doc__ = heading.join(re.sub(r"(?m)^( *)\S.*(\n\1\S.*)+$", _joined, part) for part in parts)
    to.command(command, name=name)


def _joined(lines: re.Match[str]) -> str:
    return lines[1] + " ".join(lines[0].split())


_add(app, try_it, "try")
for each in (evaluate, train, predict, sweep, report, export):
    _add(app, each)
for experiment in (synthetic, regimes, criteo, recipes):
    _add(experiments, experiment)
_add(simulation, simulate_criteo, "criteo")
_add(preparation, prepare_criteo, "criteo")
for group in (experiments, simulation, preparation):
    app.command(group)

TOGETHER = ("train", "--help", "--version")  # commands for several ranks


class Terminated(KeyboardInterrupt):
    """SIGTERM: what ends jobs of clusters and containers, and leaves what Ctrl-C leaves."""


def _terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one does not disturb the end
    raise Terminated


def _said_elsewhere(error: Exception) -> bool:
    """Whether rank 0 says it."""
    from bidwise.distributed import ElsewhereError  # late: torch takes a second

    return isinstance(error, ElsewhereError | CycloptsError)


def main() -> None:
    """The ``bidwise`` command: errors that a user can fix are one line and exit code 2."""
    command: Callable[..., Any] | None = None
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        if int(os.environ.get("WORLD_SIZE", 1)) > 1 and sys.argv[1:2] and sys.argv[1] not in TOGETHER:
            if int(os.environ.get("RANK", 0)):  # rank 0 says why
                raise SystemExit(2)
            raise bidwise.InputError(f"torchrun is for bidwise train, found {sys.argv[1]}; run it without torchrun")
        command, bound, _ = app.parse_args(sys.argv[1:], exit_on_error=False, print_error=False)
        command(*bound.args, **bound.kwargs)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (CycloptsError, ValueError, OSError) as error:
        if isinstance(error, ValueError) and not isinstance(error, bidwise.InputError):
            raise
        rank = int(os.environ.get("RANK", 0))
        if not rank or not _said_elsewhere(error):
            who = f"bidwise, rank {rank}" if rank else "bidwise"
            said = f"{who}: {as_typed(error, command)}\n"
            print(said, end="", file=sys.stderr, flush=True)  # at once: others print too
        raise SystemExit(2) from None
    except KeyboardInterrupt as stop:
        resumes = sys.argv[1:2] and sys.argv[1] in ("reproduce", "prepare", "train", "sweep", "predict")
        what = "the same command resumes it" if resumes else "nothing was written"
        print(f"bidwise: stopped; {what}", file=sys.stderr)
        raise SystemExit(128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)) from None
    finally:
        signal.signal(signal.SIGTERM, before)
