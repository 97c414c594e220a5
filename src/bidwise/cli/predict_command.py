"""``bidwise predict``: the CTR of new rows."""

from __future__ import annotations

from pathlib import Path

from bidwise.cli.terminal import Bars, check_run, device_of


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
    from bidwise.data.table_files import check_readable

    header = False if no_header else None
    check_run(run)
    check_readable(table, [], separator, header)

    from bidwise.report.formatting import counted
    from bidwise.table.predict import predict as write_predictions  # torch, which takes seconds

    with Bars() as bars:
        rows = write_predictions(
            run,
            table,
            out=out,
            column=column,
            separator=separator,
            header=header,
            strict=strict,
            device=device_of(device),
            progress=bars.show,
        )
    assert isinstance(rows, int)
    print(f"Written: {out}, {counted(rows, 'row')} with the column {column!r}")
