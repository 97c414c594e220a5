"""The command line: ``bidwise try | evaluate | train | predict | export``."""

from __future__ import annotations

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


def main() -> None:
    """The ``bidwise`` command."""
    run_command(app, sys.argv[1:], resumes=("train",))
