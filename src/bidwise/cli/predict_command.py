"""``bidwise predict``: the CTR of new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    device: str = "auto",
) -> None:
    """Predict the CTR of new rows with a trained model.

    Writes TABLE with one column more. Values that training did not see count as rare. Example:

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
    device:
        cpu, cuda, or auto for a GPU if there is one.
    """
    from bidwise.data.read_table import check_readable

    header = False if no_header else None
    check_run(run)
    check_readable(table, [], separator, header)

    from bidwise.table.predict import predict as write_predictions  # torch, which takes seconds

    with Bars() as bars:
        how: dict[str, Any] = {"column": column, "separator": separator, "header": header, "device": device_of(device)}
        rows = write_predictions(run, table, out=out, **how, progress=bars.show)
    print(f"Written: {out}, {rows:,} rows with the column {column!r}")
