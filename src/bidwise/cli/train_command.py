"""``bidwise train``, ``sweep`` and ``predict``: a model on one's own table, a grid of them, and predictions."""

from __future__ import annotations

import os
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import bidwise
from bidwise.cli.terminal import Bars, Columns, device_of, say

Settings = Annotated[list[str] | None, Parameter(name="--set", consume_multiple=True, negative=())]


def train(
    table: str,
    /,
    *,
    out: Path,
    continue_from: Annotated[Path | None, Parameter(name="--continue")] = None,
    click: str | None = None,
    bid: str | None = None,
    auction: Columns = None,
    numeric: Columns = None,
    categorical: Columns = None,
    bag: Columns = None,
    ignore: Columns = None,
    keep: Columns = None,
    time: str | None = None,
    teacher: str | None = None,
    weight: str | None = None,
    position: str | None = None,
    slots: str | None = None,
    sampling_rate: float | None = None,
    truth: str | None = None,
    auction_size: int | None = None,
    model: str | None = None,
    recipe: str | None = None,
    loss: str | None = None,
    budget: int | None = None,
    metric: str | None = None,
    seed: int | None = None,
    clip: float | None = None,
    on_nan: str | None = None,
    separator: str | None = None,
    header: bool | None = None,
    settings: Settings = None,
    engine: str = "local",
    device: str = "auto",
) -> None:
    """Train a CTR model on a table of logged ads, and evaluate it on the newest of them.

    Says what every column is taken for, searches for the best settings of a log-loss model on validation ads, compares
    other recipes with it, and evaluates on test ads held out from all selection. Writes OUT/report.html,
    OUT/result.json and the model. The same command resumes a run that was cut off. Under torchrun all processes train
    one model together, on the same files. Examples:

    bidwise train ads.parquet --click click --bid bid --auction id --time time --out runs/mine

    bidwise train 's3://bucket/day=*/*.parquet' --click click --bid bid --out runs/mine

    bidwise train ads.parquet --click click --bid bid --recipe ensemble --model deepfm --out runs/mine

    bidwise train config.toml --out runs/mine --set train.learning_rate=3e-4

    bidwise train today.parquet --continue runs/monday --out runs/tuesday

    torchrun --standalone --nproc-per-node 2 -m bidwise train config.toml --out runs/mine

    Parameters
    ----------
    table:
        Parquet, CSV or TSV file, one row per logged ad, or a folder of them; also a URL (s3://, gs://, az://, https://)
        or, quoted, a pattern such as 'day=*/*.parquet'. It may exceed the memory. Or a TOML file with sections data,
        model and train, as a run leaves it in OUT/config.toml; options win over the file.
    out:
        Folder of the run.
    continue_from:
        Folder of a finished run, whose model goes on with the rows of TABLE: columns, ids, weights and optimizer are
        kept, new values get ids of their own, and both models are tested on the newest rows. Roles and settings are
        those of that run; options here are above them.
    click:
        Column of clicks, 0 or 1.
    bid:
        Column of cost-per-click bids.
    auction:
        Column that says which ads compete, or several, separated by spaces [default: none, any ads may].
    numeric:
        Columns of numbers, separated by spaces [default: inferred].
    categorical:
        Columns of categories, separated by spaces [default: inferred].
    bag:
        Text columns that hold several values each, as a|b|c, separated by spaces; --set data.bag_separator=';' changes
        what is between the values. Columns of lists need not be named.
    ignore:
        Columns that the model must not see, separated by spaces: what is not known before the click.
    keep:
        Columns to train on although each alone tells the clicks of held-out rows (AUC above 0.99), which otherwise
        stops the run.
    time:
        Column to split by: the oldest 80 % train, the next 10 % choose, the newest 10 % test [default: at random].
    teacher:
        Column of logged CTR predictions, for losses that need a teacher [default: a log-loss model is trained].
    weight:
        Column of weights of ads.
    position:
        Column of the slot an ad was logged in, from 1; a click in slot k counts 1/alpha_k. Needs --slots.
    slots:
        Position multipliers, the first 1, separated by commas: 1,0.8,0.6.
    sampling_rate:
        Share of the ads without a click that the table holds; each then counts 1/rate.
    truth:
        Column of true CTR, where it is known (simulations): the test is then by expected welfare.
    auction_size:
        Without --auction: ads of an auction in validation and test, fewer in small tables [default: 256].
    model:
        deepfm, dcn, dcnv2, logistic_regression or lightgbm, trees [default: searched for; dcnv2 where nothing is].
    recipe:
        auto: the best log-loss model that a search finds, unless another recipe is measurably better on validation
        auctions; single: one model; ensemble: the mean of 4; distilled: one model that learns from that ensemble
        [default: auto, or single where a loss is named].
    loss:
        log_loss, log_plus or any other in bidwise.LOSSES [default: log_loss].
    budget:
        How many of six settings of the log-loss model the search tries; 1 takes the first [default: 4 for recipe auto,
        else 1].
    metric:
        What the epoch is chosen by: log_loss, welfare (needs thousands of validation auctions) or auc [default:
        log_loss].
    seed:
        Seed of the split, the initial weights and the batches [default: 0].
    clip:
        Largest norm of the gradient of a batch; longer ones are shrunk to it [default: none is].
    on_nan:
        stop at a batch whose loss or gradient is not finite, or skip it and count it [default: stop].
    separator:
        Character between the columns of a text file, \\t for a tab [default: comma in .csv, tab in .tsv].
    header:
        Whether the first line of a text file names the columns; they are called column_1, column_2, ... without
        [default: it does].
    settings:
        Any setting as section.key=value, separated by spaces: train.epochs=5 model.hidden=64,64 data.bins=16.
    engine:
        local, or ray: blocks of the table are encoded by the machines of a Ray cluster, to the same bytes.
    device:
        cpu, cuda, or auto for a GPU where there is one.
    """
    given: dict[str, Any] = {
        name: value for name, value in locals().items() if name not in ("table", "out", "settings", "device")
    }
    from bidwise import distributed
    from bidwise.report.train_page import described, summary
    from bidwise.table import train as run

    source: dict[str, Any] = {"config": table} if table.lower().endswith(".toml") else {"table": table}
    with distributed.launched(device_of(device)) as where, ExitStack() as stack:
        if distributed.rank():  # the first one speaks
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        with Bars() as bars:
            result = run(
                **source,
                **given,
                out=out,
                settings=settings or [],
                device=where,
                progress=bars.show,
                opened=lambda prepared: bars.say(described(prepared, where) + "\n"),
            )
        say(summary(result))
        print(f"\nWritten to {out}: report.html; evaluation/report.html, the test in detail; test.parquet, predictions")
        print(f"Next: bidwise predict {out} NEW_TABLE --out predictions.parquet")


def sweep(
    config: Path,
    /,
    *,
    out: Path,
    engine: str = "local",
    workers: int | None = None,
    by: str | None = None,
    settings: Settings = None,
    device: str = "auto",
) -> None:
    """Train every combination of a grid of recipes, losses, seeds or any other setting, and compare them.

    The best setting is chosen on validation auctions; the test of all is shown with paired intervals. Writes
    OUT/report.html, OUT/result.json and a run folder of bidwise train for each trial, OUT/trials/NAME. The same command
    resumes a sweep that was cut off; with longer lists it trains only what is new. Example:

    bidwise sweep sweep.toml --out runs/sweep --workers 2

    Parameters
    ----------
    config:
        TOML file as bidwise train takes it, with one more section, [sweep], of lists:
        "train.loss" = ["log_loss", "log_plus"], "train.lam" = [1, 3, 10], "train.seed" = [0, 1, 2].
    out:
        Folder of the sweep.
    engine:
        local, processes of this machine; or ray, a Ray cluster (RAY_ADDRESS, or one that this machine belongs to): all
        of its machines must see the table and OUT under the same names, on a shared file system.
    workers:
        Trials at once, which share the cores [default: 1; with ray as many as the cluster has cores].
    by:
        Validation metric that the setting is chosen by: welfare, log_loss or auc [default: train.metric].
    settings:
        What all trials share, as section.key=value, separated by spaces: train.epochs=5 model.hidden=64,64.
    device:
        cpu, cuda, or auto for a GPU where there is one.
    """
    from bidwise.report.sweep_page import summary
    from bidwise.table.sweep import sweep as run

    where = device if engine == "ray" else device_of(device)  # a cluster has GPUs of its own
    given: dict[str, Any] = {"engine": engine, "workers": workers, "settings": settings or [], "by": by}
    with Bars() as bars:
        result = run(config, out=out, **given, device=where, progress=bars.show, say=bars.say)
    print()
    say(summary(result))
    print(f"\nWritten: {out / 'report.html'}; {out / 'result.json'}; {out / 'trials'}, one run folder per trial")
    setting = result.setting(result.recommended)
    if setting is not None and result.chosen is not None:
        trial = result.chosen.trial if setting.name == result.chosen.setting else setting.trials[0]
        print(f"Next: bidwise predict {out / 'trials' / trial} NEW_TABLE --out predictions.parquet")
    if result.failed:
        first, many = result.failed[0], f"{len(result.failed)} of {len(result.trials)} trials failed"
        raise bidwise.InputError(f"{many}, as {first.name}: {first.failed}; the same command tries them again")


def predict(
    run: Path,
    table: str,
    /,
    *,
    out: Path,
    column: str = "ctr",
    separator: str | None = None,
    header: bool | None = None,
    device: str = "auto",
) -> None:
    """The CTR of new rows, by the model of a run of bidwise train.

    Writes TABLE with one column more. Values that training did not see count as rare. Example:

    bidwise predict runs/mine new.parquet --out predictions.parquet

    Parameters
    ----------
    run:
        Folder of bidwise train.
    table:
        Parquet, CSV or TSV file, or its URL, a folder of such files or, quoted, a pattern, with the columns that the
        model was trained on; others are kept as they are. It is read and written in blocks; Parquet in constant memory.
    out:
        File to write; ends in .parquet, .csv or .tsv. The same command resumes a run that was killed.
    column:
        Name of the new column.
    separator:
        Character between the columns of a text file, \\t for a tab [default: as in the run].
    header:
        Whether the first line of a text file names the columns [default: as in the run].
    device:
        cpu, cuda, or auto for a GPU where there is one.
    """
    from bidwise.table.predict import predict as write_predictions

    written: dict[str, Any] = {"separator": separator, "header": header, "device": device_of(device)}
    with Bars() as bars:
        rows = write_predictions(run, table, out=out, column=column, **written, progress=bars.show)
    print(f"Written: {out}, {rows:,} rows with the column {column!r}")


def verify(run: Path, /) -> None:
    """Check that a run folder holds what was found: every file, setting, metric and a sample of the predictions.

    Says line by line what matches, what does not, and what the folder has no material to check by. Recomputes the
    checksums of the files, compares config.toml with result.json, computes the metrics from the stored predictions
    again, and lets the stored model predict a sample of the test rows. The exit code is 1 where something differs.
    Example:

    bidwise verify runs/mine

    Parameters
    ----------
    run:
        Folder of bidwise train, sweep, evaluate or reproduce, or of bidwise.fit.
    """
    from bidwise.table.verify import verify as checks_of

    checks = checks_of(run)
    for check in checks:
        say(str(check))
    wrong = sum(check.holds is False for check in checks)
    say(f"\n{len(checks)} checks: {f'{wrong} differ' if wrong else 'nothing differs'}")
    if wrong:
        raise SystemExit(1)
