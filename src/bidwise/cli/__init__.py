"""The command line: ``bidwise try | evaluate | train | predict | export``."""

from __future__ import annotations

import os
import sys

from cyclopts import App, Parameter

import bidwise
from bidwise.cli.commands import evaluate, export, predict, try_it
from bidwise.cli.terminal import run_command
from bidwise.cli.train_command import train

app = App(
    name="bidwise",
    help="Click-through-rate models for the ad auction they serve.",
    version=bidwise.__version__,
    help_format="markdown",
    default_parameter=Parameter(consume_multiple=True, negative=()),
    suppress_keyboard_interrupt=False,  # `run_command` reports the state of the run
)
app.command(try_it, name="try")
for command in (evaluate, train, predict, export):
    app.command(command)

TOGETHER = ("train", "--help", "--version")  # commands for several ranks


def main() -> None:
    """The ``bidwise`` command."""
    words = sys.argv[1:]
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and words and words[0] not in TOGETHER:
        if not int(os.environ.get("RANK", 0)):  # one voice for all ranks
            print(f"bidwise: torchrun is for bidwise train; run {words[0]} without torchrun", file=sys.stderr)
        raise SystemExit(2)
    run_command(app, words, resumes=("train",))
