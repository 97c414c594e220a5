"""``bidwise evaluate``: predictions of any models, compared on one's own auctions."""

from __future__ import annotations

from pathlib import Path

import bidwise
from bidwise.cli.terminal import Bars, column_of_bids, say
from bidwise.evaluation_options import EvaluationOptions


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
    from bidwise.data.table_files import check_readable

    lists = [column for role in ("ctr", "auction", "cluster", "by") for column in options.columns(role)]
    roles = (options.click, column_of_bids(options.bid), options.truth, options.position, options.weight)
    check_readable(table, [*lists, *filter(None, roles)], options.separator, options.header)

    from bidwise.evaluation.result import check_folder  # torch, which takes seconds

    check_folder(out)
    with Bars() as bars:
        evaluation = bidwise.evaluate(table, **vars(options), progress=bars.show)
    try:
        evaluation.write(out)
    finally:  # a full disk does not cost the result: it is shown
        say(str(evaluation))
    print(f"\nThe page: {out / 'report.html'}")
