"""``bidwise train``: a model on one's own table."""

from __future__ import annotations

import os
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import bidwise
from bidwise.cli.terminal import Bars, check_run, column_of_bids, device_of, say
from bidwise.urls import check_on_disk


@Parameter(name="*")
@dataclass(frozen=True)
class TrainOptions:
    """What the columns are, and how to train on them.

    Parameters
    ----------
    continue_from:
        Folder of a finished run to continue with the rows of TABLE: its roles, settings, ids, weights and optimizer are
        kept, new values get ids of their own, and both models are tested on the newest rows. Options override.
    click:
        Column of clicks: 0 or 1, true or false, yes or no.
    bid:
        Column of cost-per-click bids, or a number that all ads bid [default: 1; welfare then counts clicks].
    auction:
        Columns that identify an auction, separated by spaces [default: none, any ads may compete].
    numeric:
        Columns of numbers, separated by spaces [default: inferred].
    categorical:
        Columns of categories, separated by spaces [default: inferred].
    bag:
        Text columns with several values in a cell, as a|b|c, separated by spaces (`--set data.bag_separator=';'` for
        another character). Columns of lists need not be named.
    ignore:
        Columns that the model must not see, separated by spaces: everything that is not known before the click.
    keep:
        Columns to keep although one, or one of its values, tells the clicks almost perfectly, which stops a run.
    missing:
        Words that mean a missing value, separated by spaces, in addition to NA, N/A, null, None, NaN and -.
    time:
        Column to split by: the oldest 80 % train, the next 10 % choose, the newest 10 % test [default: at random].
    time_format:
        How the times are written, e.g. '%d.%m.%Y %H:%M' [default: ISO dates, or seconds or milliseconds since 1970].
    teacher:
        Column of logged CTR predictions, for losses that need a teacher [default: a log-loss model is trained].
    weight:
        Column of weights of ads.
    position:
        Column of the slot in which an ad was logged, from 1; a click in slot k counts 1/alpha_k. Needs --slots.
    slots:
        Position multipliers, the first 1, separated by commas: 1,0.8,0.6.
    sampling_rate:
        Share of the ads without a click that the table contains; each then counts 1/rate.
    truth:
        Column of true CTR, if it is known (simulations): the test then measures expected welfare.
    auction_size:
        Without --auction: ads of an auction in validation and test, fewer in small tables [default: 256].
    model:
        deepfm, dcnv2 or logistic_regression [default: chosen by a search; dcnv2 without one].
    recipe:
        single: the best model of a search; ensemble: the mean of 4; distilled: one that learns from an ensemble; auto:
        single, unless another recipe is measurably better [default: single].
    loss:
        log_loss, log_plus or any other in bidwise.LOSSES [default: log_loss].
    budget_seconds:
        CPU seconds that the search for a model may take, about; 0: no search [default: 60 for 200,000 rows of 20
        columns, in proportion; 0 with --loss].
    refit:
        Train the chosen model once more on all rows, the newest included, and serve that [default: yes].
    crosses:
        Look for combinations of columns that predict clicks [default: yes].
    metric:
        Chooses the epoch: log_loss, welfare (needs thousands of validation auctions) or auc [default: log_loss].
    seed:
        Seed of the split, the initial weights and the batches [default: 0].
    clip:
        Clip the gradient norm of each batch to this value [default: no clipping].
    separator:
        Character between the columns of a text file, \\t for a tab [default: comma in .csv, tab in .tsv].
    no_header:
        The first line of a text file is a row; columns are called column_1, column_2, ...
    settings:
        Any setting as section.key=value, separated by spaces: train.epochs=5 model.hidden=64,64 data.bins=16.
    """

    continue_from: Annotated[Path | None, Parameter(name="--continue")] = None
    click: str | None = None
    bid: str | None = None
    auction: list[str] | None = None
    numeric: list[str] | None = None
    categorical: list[str] | None = None
    bag: list[str] | None = None
    ignore: list[str] | None = None
    keep: list[str] | None = None
    missing: list[str] | None = None
    time: str | None = None
    time_format: str | None = None
    teacher: str | None = None
    weight: str | None = None
    position: str | None = None
    slots: str | None = None
    sampling_rate: float | None = None
    truth: str | None = None
    auction_size: int | None = None
    model: Literal["deepfm", "dcnv2", "logistic_regression"] | None = None
    recipe: Literal["auto", "single", "ensemble", "distilled"] | None = None
    loss: str | None = None
    budget_seconds: float | None = None
    refit: bool | None = None
    crosses: bool | None = None
    metric: Literal["log_loss", "welfare", "auc"] | None = None
    seed: int | None = None
    clip: float | None = None
    separator: str | None = None
    no_header: bool | None = None
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None


def train(table: str, /, *, out: Path, options: TrainOptions | None = None, device: str = "auto") -> None:
    """Train a CTR model on a table of logged ads, and evaluate it on the newest of them.

    Prints the type of every column, searches for the best settings of a log-loss model on validation ads, compares
    other recipes with it, and evaluates on test ads held out from all selection. Writes OUT/report.html,
    OUT/result.json and the model. The same command resumes an interrupted run. Under torchrun all processes train one
    model together, on the same files. Examples:

    `bidwise train ads.parquet --click click --bid bid --auction id --time time --out runs/mine`

    `bidwise train config.toml --out runs/mine --set train.learning_rate=3e-4`

    `bidwise train today.parquet --continue runs/monday --out runs/tuesday`

    `torchrun --standalone --nproc-per-node 2 -m bidwise train config.toml --out runs/mine`

    Parameters
    ----------
    table:
        Parquet, CSV or TSV file, one row per logged ad, or a folder of them; also a URL (s3://, gs://, az://, https://)
        or, quoted, a pattern such as `'day=*/*.parquet'`. It may exceed the memory. Or a TOML file with sections data,
        model and train, as a run leaves it in OUT/config.toml; options override the file. Or a prepared store,
        such as OUT/store of another run, with the roles of its columns.
    out:
        Folder of the run.
    device:
        cpu, cuda, or auto for a GPU if there is one.
    """
    options = options or TrainOptions()
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:  # of several processes the first looks, for all of them
        _check_first(table, options)
    device = device_of(device)

    from bidwise import distributed
    from bidwise.report.train_page import described, summary
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
        say(summary(result))
        print(f"\nWritten to {out}: report.html; evaluation/report.html, the test in detail; test.parquet, predictions")
        print(f"Next: bidwise predict {out} NEW_TABLE --out predictions.parquet")


def _check_first(table: str, options: TrainOptions) -> None:
    """Raise if a file is missing or has not the columns, before torch is imported, which takes seconds."""
    from bidwise.data.table_files import check_readable

    if options.continue_from is not None:
        check_run(options.continue_from, "continue_from")
    if table.lower().endswith(".toml"):
        check_on_disk("the configuration", table, "a file", "copy it first")
        if not Path(table).exists():
            raise bidwise.InputError(f"{table}: no such file")
        return
    if (Path(table) / "store.json").is_file():
        return
    lists = (options.auction, options.numeric, options.categorical, options.bag, options.ignore, options.keep)
    bid = column_of_bids(options.bid)
    roles = (options.click, bid, options.time, options.teacher, options.weight, options.position, options.truth)
    columns = [*(role for role in roles if role is not None), *(name for names in lists for name in names or ())]
    resumed = options.continue_from is not None  # text is then written as in that run
    check_readable(table, [] if resumed else columns, options.separator, False if options.no_header else None)
