"""``bidwise export`` and ``bidwise score``: a model outside of torch."""

from __future__ import annotations

from pathlib import Path


def export(run: Path, /, *, onnx: Path) -> None:
    """Write the model of a run as one ONNX graph, and its encoder as JSON beside it.

    The graph maps ids to CTR; ensembles and the calibration are part of it. Writes nothing unless onnxruntime scores as
    torch does, to 1e-5. Needs onnx, onnxscript and onnxruntime. Example:

    bidwise export runs/mine --onnx ctr.onnx

    Parameters
    ----------
    run:
        Folder of bidwise train.
    onnx:
        File to write; ends in .onnx. The encoder gets the same name with .json.
    """
    from bidwise.bridges.onnx_export import export_onnx

    written = export_onnx(run, onnx)
    print(f"Written: {written.file} and {written.encoder}; scores differ from torch's by {written.difference:.1e}")
    print(f"Next: bidwise score {written.file} TABLE --out scores.csv")


def score(
    file: Path,
    table: Path,
    /,
    *,
    out: Path,
    column: str = "ctr",
    separator: str | None = None,
    header: bool | None = None,
) -> None:
    """The CTR of new rows, by a model of bidwise export, with neither torch nor polars.

    Values that training did not see count as rare. Examples:

    bidwise score ctr.onnx new.csv --out scores.csv

    bidwise score ctr.onnx new.parquet --out scores.npy

    Parameters
    ----------
    file:
        The .onnx file of bidwise export; its .json must be beside it.
    table:
        CSV or TSV file, also with .gz; a Parquet file where pyarrow or polars is installed. Needs the columns that the
        model was trained on.
    out:
        File to write: .csv or .tsv for the table with one column more, .npy for the scores alone.
    column:
        Name of the new column.
    separator:
        Character between the columns of a text file, \\t for a tab [default: as in the run].
    header:
        Whether the first line of a text file names the columns [default: as in the run].
    """
    from bidwise.bridges.score_table import score_table

    rows = score_table(file, table, out, column=column, separator=separator, header=header)
    print(f"Written: {out}, {rows:,} rows")
