"""What a person sees at the terminal: progress bars, and errors in one line."""

from __future__ import annotations

import re
import sys

OPTIONS = (
    "auction_size",
    "sampling_rate",
    "calibration_table",
    "validation_auctions",
    "training_ads",
    "validation_ads",
    "test_ads",
)


class Bars:
    """A progress bar for each piece of work, on the terminal's error stream."""

    def __enter__(self) -> Bars:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self.progress = Progress(console=console, transient=True, disable=not console.is_terminal)
        self.progress.start()
        self.tasks: dict[str, int] = {}
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, work: str, done: float) -> None:
        if work not in self.tasks:
            self.tasks[work] = self.progress.add_task(work, total=1.0)
        self.progress.update(self.tasks[work], completed=done)  # type: ignore[arg-type]


def as_typed(message: str) -> str:
    """An error in one line, with options called as they are typed."""
    missing = re.search(r"parameter (\S+) requires an argument", message)
    if missing and missing[1] not in sys.argv:
        words = ("evaluate", "report", "reproduce", "synthetic", "regimes")
        command = " ".join(word for word in sys.argv[1:3] if word in words)
        return f"{missing[1]} is missing; see bidwise {command} --help"
    options = "|".join(OPTIONS)  # as arguments of this message, not inside names of files
    message = re.sub(
        rf"(^|needs |needs a |^auction or )({options})(?= must| needs| or|;|:|$)",
        lambda found: found[1] + "--" + found[2].replace("_", "-"),
        message,
    )
    return " ".join(re.sub("^auction or --", "--auction or --", message).split())
