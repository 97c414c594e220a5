"""The command line: ``bidwise evaluate``. Every command says what it found in words, and leaves files to look at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

import bidwise

app = App(
    name="bidwise",
    help="Click-through-rate models for the ad auction they serve.",
    version=bidwise.__version__,
    help_format="plaintext",
)


@app.command
def evaluate(
    table: Path,
    /,
    *,
    ctr: Annotated[list[str], Parameter(consume_multiple=True, negative=())],
    click: str,
    bid: str,
    out: Path,
    auction: str | None = None,
    auction_size: int | None = None,
    seed: int = 0,
    resample: int = 1,
    truth: str | None = None,
    baseline: str | None = None,
    slots: str = "1",
    pricing: Literal["gsp", "vcg", "first_price"] = "gsp",
    reserve: float = 0.0,
    squash: float = 1.0,
    calibrate: Literal["none", "platt", "isotonic", "piecewise"] = "none",
    calibration_table: Path | None = None,
    position: str | None = None,
    sampling_rate: float | None = None,
    weight: str | None = None,
    rounds: int = 999,
) -> None:
    """Which of several models' predictions makes the auction better, and is that sure?

    Prints a table and a verdict, and writes OUT/result.json and OUT/report.html.

    Parameters
    ----------
    table:
        Parquet, CSV or TSV file (also .gz), one row per logged ad.
    ctr:
        Columns of predicted CTR, one per model.
    click:
        Column of clicks, 0 or 1.
    bid:
        Column of cost-per-click bids.
    out:
        Folder for result.json and report.html.
    auction:
        Column that says which ads compete.
    auction_size:
        Without an auction column: shuffle the ads and cut them into auctions of this many (the paper: 256).
    seed:
        Of the shuffle, the folds and the bootstrap.
    resample:
        With --auction-size: how often the ads are shuffled and cut.
    truth:
        Column of true CTR, where it is known: welfare is then expected, not realised.
    baseline:
        The ctr column that the others are compared with [default: the first].
    slots:
        Position multipliers, the first 1, as 1,0.8,0.6.
    pricing:
        How winners pay: gsp, vcg or first_price.
    reserve:
        Price per click below which no ad is shown.
    squash:
        The auction ranks bid * ctr^squash.
    calibrate:
        Adds each model's calibrated twin: none, platt, isotonic or piecewise.
    calibration_table:
        Table to fit the calibration on [default: the other auctions of TABLE, in 5 folds].
    position:
        Column of the slot an ad was logged in, from 1; clicks in slot k count 1/alpha_k. Needs --slots.
    sampling_rate:
        Share of the negatives the models were trained on; predictions are corrected for it.
    weight:
        Column of weights of ads.
    rounds:
        Of the bootstrap behind the intervals.
    """
    options: dict[str, Any] = {name: value for name, value in locals().items() if name != "table"}
    options["slots"] = _multipliers(slots)
    with _Bars() as bars:
        found = bidwise.evaluate(table, **options, progress=bars.show)
    print(found)
    print(f"\nWritten: {out / 'result.json'}, {out / 'report.html'}")


def _multipliers(slots: str) -> tuple[float, ...]:
    """``1,0.8,0.6`` as numbers."""
    try:
        return tuple(float(word) for word in slots.split(","))
    except ValueError:
        raise bidwise.InputError(f"slots must be numbers such as 1,0.8,0.6, found {slots!r}") from None


class _Bars:
    """A progress bar for each piece of work, on the terminal's error stream."""

    def __enter__(self) -> _Bars:
        from rich.console import Console
        from rich.progress import Progress

        self.progress = Progress(console=Console(stderr=True), transient=True)
        self.progress.start()
        self.tasks: dict[str, int] = {}
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, work: str, done: float) -> None:
        if work not in self.tasks:
            self.tasks[work] = self.progress.add_task(work, total=1.0)
        self.progress.update(self.tasks[work], completed=done)  # type: ignore[arg-type]


def main() -> None:
    """The ``bidwise`` command: errors that a user can mend are one line and exit code 2."""
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
    except (CycloptsError, ValueError, OSError) as error:
        if isinstance(error, ValueError) and not isinstance(error, bidwise.InputError):
            raise
        print(f"bidwise: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("bidwise: stopped; nothing was written", file=sys.stderr)
        raise SystemExit(130) from None
