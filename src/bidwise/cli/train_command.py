"""``bidwise train``: a model on one's own table."""

from __future__ import annotations

import os
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from bidwise.cli.terminal import ADVANCED, Bars, device_of, say


@Parameter(name="*")
@dataclass(frozen=True)
class TrainOptions:
    """Roles of columns, and training on them.

    Parameters
    ----------
    continue_from:
        Folder of a finished run to continue with the rows of TABLE; both models are tested on the newest rows.
    click:
        Column of clicks: 0 or 1, true or false, yes or no.
    bid:
        Column of bids per click, or a number that all ads bid [default: 1; welfare then counts clicks].
    auction:
        Columns that identify an auction [default: none, any ads may compete].
    numeric:
        Columns of numbers [default: inferred].
    categorical:
        Columns of categories [default: inferred].
    bag:
        Text columns with several values in a cell, such as a|b|c. List columns need no option.
    ignore:
        Columns to hide from the model: everything that is not known before the click.
    keep:
        Columns to train on although they almost give the click away (AUC above 0.99), which stops a run.
    time:
        Column to split by: the oldest 80 % train, the next 10 % choose, the newest 10 % test [default: random split].
    time_format:
        Format of the times, e.g. '%d.%m.%Y %H:%M' [default: ISO dates, or seconds or milliseconds since 1970].
    teacher:
        Column of logged CTR predictions, for losses that need a teacher [default: a log-loss model].
    weight:
        Column of weights of ads.
    position:
        Column of the slot of an ad, from 1; a click in slot k counts 1/alpha_k. Needs --slots.
    slots:
        Position multipliers, the first 1: 1,0.8,0.6.
    sampling_rate:
        Share of the ads without a click that the table contains; each counts 1/rate.
    truth:
        Column of true CTR, in simulations: the test then measures expected welfare.
    auction_size:
        Without --auction: ads per auction in validation and test [default: 256, fewer in small tables].
    model:
        deepfm, dcnv2 or logistic_regression [default: chosen by the search].
    recipe:
        single: the best model of the search; ensemble: the mean of 4; distilled: one that learns from an ensemble;
        auto: single, unless another recipe is measurably better [default: single].
    loss:
        log_loss, log_plus or any other in bidwise.LOSSES [default: log_loss].
    budget_seconds:
        CPU seconds that the search may take, about; 0: no search [default: 60 for 200,000 rows of 20 columns, in
        proportion; 0 with --loss].
    refit:
        Train the chosen model once more on all rows, the newest included, and serve that [default: yes].
    crosses:
        Look for combinations of columns that predict clicks [default: yes].
    metric:
        Choose the epoch by log_loss, auc or welfare [default: log_loss].
    seed:
        Seed of the split, the initial weights and the batches [default: 0].
    clip:
        Clip the gradient norm of each batch to this value [default: no clipping].
    separator:
        Character between the columns of a text file, \\t for a tab [default: comma in .csv, tab in .tsv].
    no_header:
        The text file has no header; columns are called column_1, column_2, ...
    settings:
        Any setting as section.key=value: train.epochs=5 model.hidden=64,64 data.bins=16.
    """

    continue_from: Annotated[Path | None, Parameter(name="--continue")] = None
    click: str | None = None
    bid: str | None = None
    auction: list[str] | None = None
    numeric: Annotated[list[str] | None, ADVANCED] = None
    categorical: Annotated[list[str] | None, ADVANCED] = None
    bag: Annotated[list[str] | None, ADVANCED] = None
    ignore: list[str] | None = None
    keep: Annotated[list[str] | None, ADVANCED] = None
    time: str | None = None
    time_format: Annotated[str | None, ADVANCED] = None
    teacher: Annotated[str | None, ADVANCED] = None
    weight: Annotated[str | None, ADVANCED] = None
    position: Annotated[str | None, ADVANCED] = None
    slots: Annotated[str | None, ADVANCED] = None
    sampling_rate: Annotated[float | None, ADVANCED] = None
    truth: Annotated[str | None, ADVANCED] = None
    auction_size: Annotated[int | None, ADVANCED] = None
    model: Literal["deepfm", "dcnv2", "logistic_regression"] | None = None
    recipe: Literal["auto", "single", "ensemble", "distilled"] | None = None
    loss: str | None = None
    budget_seconds: float | None = None
    refit: Annotated[bool | None, ADVANCED, Parameter(negative="--no-refit")] = None
    crosses: Annotated[bool | None, ADVANCED, Parameter(negative="--no-crosses")] = None
    metric: Annotated[Literal["log_loss", "welfare", "auc"] | None, ADVANCED] = None
    seed: Annotated[int | None, ADVANCED] = None
    clip: Annotated[float | None, ADVANCED] = None
    separator: Annotated[str | None, ADVANCED] = None
    no_header: Annotated[bool | None, ADVANCED] = None
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None


def train(
    table: str, /, *, out: Path, options: TrainOptions | None = None, device: Annotated[str, ADVANCED] = "auto"
) -> None:
    """Train a CTR model on a table of logged ads, and evaluate it on the newest of them.

    Prints the type of every column, searches for the best model on validation ads, and tests it on ads held out from
    all choices. Writes OUT/report.html, OUT/result.json and the model. The same command resumes an interrupted run.
    Options with several values take them separated by spaces. Examples:

    `bidwise train ads.parquet --click click --bid bid --auction id --time time --out runs/mine`

    `bidwise train today.parquet --continue runs/monday --out runs/tuesday`

    Parameters
    ----------
    table:
        Parquet, CSV or TSV file, one row per ad that was shown; a folder, a URL (s3://, gs://, az://, https://) or a
        quoted pattern such as `'day=*/*.parquet'`; or a TOML file such as OUT/config.toml, which options override.
    out:
        Folder of the run.
    device:
        cpu, cuda, or auto for a GPU if there is one.
    """
    options = options or TrainOptions()
    device = device_of(device)

    from bidwise import distributed
    from bidwise.report.train_page import described, train_summary
    from bidwise.table import train as run

    given: dict[str, Any] = asdict(options)
    given |= {"settings": options.settings or [], "header": False if given.pop("no_header") else None}
    given |= {"config" if table.lower().endswith(".toml") else "table": table}
    with distributed.launched(device) as where, ExitStack() as stack:
        if distributed.rank():  # the first one speaks
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        with Bars() as bars:
            given["opened"] = lambda prepared: bars.say(described(prepared, where) + "\n")
            result = run(**given, out=out, device=where, progress=bars.show)
        say(train_summary(result))
        print(f"\nWritten to {out}: report.html; evaluation/report.html, the test in detail; test.parquet, predictions")
        print(f"Next: bidwise predict {out} NEW_TABLE --out predictions.parquet")
