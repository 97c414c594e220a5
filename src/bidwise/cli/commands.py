"""``bidwise try``, ``evaluate``, ``predict`` and ``export``; torch is imported when a command runs."""

from __future__ import annotations

import time
from pathlib import Path

import bidwise
from bidwise.cli.terminal import Bars, device_of, say
from bidwise.evaluation_options import EvaluationOptions

TRAIN, AUCTIONS, SIZE, EPOCHS = 20_000, 2_000, 50, 8


def try_it(*, out: Path = Path("bidwise-try")) -> None:
    """Compare two models on simulated ads in the auction: a first look, in about ten seconds.

    Everything is left in OUT: the table, which you may open and change, and the page, report.html.

    Parameters
    ----------
    out:
        Folder for ads.csv, result.json and report.html.
    """
    import polars as pl
    import torch

    from bidwise.evaluation.result import check_folder

    check_folder(out)
    started, table = time.perf_counter(), out / "ads.csv"
    random = torch.Generator().manual_seed(0)
    market = bidwise.data.WORLDS["misspecified_rare"].market(random)
    train, test = market.ads(TRAIN, random), market.auctions(AUCTIONS, SIZE, random)
    columns = {"auction": torch.arange(AUCTIONS).repeat_interleave(SIZE), "bid": test.bids, "click": test.clicks.long()}
    with Bars() as bars:
        models = {"old": bidwise.models.LogisticRegression(train.width), "new": bidwise.models.MLP(train.width)}
        for number, (name, model) in enumerate(models.items()):
            bars.show("training", number / 2, f"model {number + 1} of 2")
            fitted = bidwise.fit(model, train, loss="log_loss", epochs=EPOCHS, batch_size=512, learning_rate=1e-2)
            columns[name] = bidwise.predict(fitted.model, test.features)
        out.mkdir(parents=True, exist_ok=True)
        pl.DataFrame({name: column.numpy() for name, column in columns.items()}).write_csv(table)
        roles = {role: role for role in ("click", "bid", "auction")}
        found = bidwise.evaluate(table, ctr=list(models), **roles, out=out, progress=bars.show)
    (out / ".gitignore").write_text("*\n", encoding="utf-8")
    say(f"A logistic regression, old, and a small network, new, were trained on {TRAIN:,} simulated ads.")
    say(f"They are compared in {AUCTIONS:,} further auctions of {SIZE} ads.\n\n{found}\n")
    print(
        f"This took {time.perf_counter() - started:.0f} s. The page: {out / 'report.html'}. On your own predictions:\n"
    )
    print(f"  bidwise evaluate {table} --ctr old new --click click --bid bid --auction auction --out evaluation")


def evaluate(table: str, /, *, options: EvaluationOptions, out: Path) -> None:
    """Compare the predictions of several models in the auction, with confidence intervals.

    Prints a verdict and a table, and writes OUT/report.html and OUT/result.json. Example:

    `bidwise evaluate ads.csv --ctr old new --click y --bid bid --auction id --out dir`

    Parameters
    ----------
    table:
        Parquet, CSV or TSV file (also .csv.gz, .tsv.gz), one row per logged ad; also a URL (s3://, gs://, az://,
        https://) or, quoted, a pattern such as `'day=*/*.parquet'`.
    out:
        Folder for report.html and result.json.
    """
    from bidwise.evaluation.result import check_folder

    check_folder(out)
    with Bars() as bars:
        evaluation = bidwise.evaluate(table, **vars(options), progress=bars.show)
    try:
        evaluation.write(out)
    finally:  # a full disk does not cost the result: it is shown
        say(str(evaluation))
    print(f"\nThe page: {out / 'report.html'}")


def predict(
    run: Path,
    table: str,
    /,
    *,
    out: Path,
    column: str = "ctr",
    separator: str | None = None,
    no_header: bool | None = None,
    strict: bool = False,
    device: str = "auto",
) -> None:
    """Predict the CTR of new rows with a trained model.

    Writes TABLE with one column more; all others stay unchanged. Values that training did not see count as rare, and
    a warning names the columns that have many of them. Example:

    `bidwise predict runs/mine new.parquet --out predictions.parquet`

    Parameters
    ----------
    run:
        Folder of bidwise train.
    table:
        Parquet, CSV or TSV file, or its URL, a folder of such files or, quoted, a pattern, with the columns that the
        model was trained on; others are kept unchanged. It is read and written in blocks.
    out:
        File to write; ends in .parquet, .csv or .tsv.
    column:
        Name of the new column.
    separator:
        Character between the columns of a text file, \\t for a tab [default: as in the run].
    no_header:
        The first line of a text file is a row [default: as in the run].
    strict:
        Fail instead of the warning, and write no file.
    device:
        cpu, cuda, or auto for a GPU if there is one.
    """
    from bidwise.report.formatting import counted
    from bidwise.table.predict import predict as write_predictions

    with Bars() as bars:
        rows = write_predictions(
            run,
            table,
            out=out,
            column=column,
            separator=separator,
            header=False if no_header else None,
            strict=strict,
            device=device_of(device),
            progress=bars.show,
        )
    assert isinstance(rows, int)
    print(f"Written: {out}, {counted(rows, 'row')} with the column {column!r}")


def export(run: Path, /, *, out: Path) -> None:
    """Write the model of a run as one ONNX graph, and its encoder as JSON next to it.

    The graph maps ids to CTR and includes ensembles and the calibration. No file is written unless onnxruntime scores
    as torch does, to 1e-5. Needs onnx, onnxscript and onnxruntime; `bidwise.Scorer` reads the files without torch.

    `bidwise export runs/mine --out ctr.onnx`

    Parameters
    ----------
    run:
        Folder of bidwise train.
    out:
        File to write; ends in .onnx. The encoder gets the same name with .json.
    """
    from bidwise.bridges.onnx_export import export_onnx

    written = export_onnx(run, out)
    print(f"Written: {written.file} and {written.encoder}; scores differ from torch's by {written.difference:.1e}")
