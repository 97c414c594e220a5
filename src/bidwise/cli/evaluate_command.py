"""``bidwise evaluate``: predictions of any models, compared on one's own auctions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import bidwise
from bidwise.cli.terminal import ADVANCED, Bars, column_of_bids, say


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Roles of columns, and rules of the auction.

    Parameters
    ----------
    ctr:
        Columns of predicted CTR, one per model.
    click:
        Column of clicks, 0 or 1.
    bid:
        Column of bids, or of value per click; or a number, 1 for logs without bids.
    auction:
        Columns that identify an auction: day request_id.
    auction_size:
        Instead of --auction: average over every possible auction of this many ads [default: 2, 8, 32 and 256].
    pool_by:
        Ads compete only within the same value of these columns, e.g. keyword day; needs --auction-size.
    cluster:
        Columns that define clusters, such as advertiser; confidence intervals are over clusters instead of ads.
    by:
        Columns of segments, such as device advertiser.
    truth:
        Column of true CTR, in simulations: welfare and revenue are then expected, not realised.
    baseline:
        The model that the others are compared with [default: the first of --ctr].
    slots:
        Position multipliers, the first 1: 1,0.8,0.6.
    pricing:
        How winners pay: gsp (generalised second price), vcg or first_price.
    reserve:
        Lowest price of a click; ads that bid less are not shown.
    squash:
        The auction ranks by `bid * ctr^squash`.
    calibrate:
        Add a calibrated copy of each model: platt, a line through its logits.
    calibration_table:
        Table to fit the calibration on; needs --calibrate [default: TABLE itself].
    position:
        Column of the slot of an ad, from 1; a click in slot k counts 1/alpha_k. Needs --slots.
    sampling_rate:
        Share of the negatives that the models were trained on; corrects their predictions.
    weight:
        Column of weights of ads; an auction has the mean weight of its ads.
    separator:
        Character between the columns of a text file, \\t for a tab [default: comma in .csv, tab in .tsv].
    no_header:
        The text file has no header; columns are called column_1, column_2, ...
    """

    ctr: list[str]
    click: str
    bid: str | None = None
    auction: list[str] | None = None
    auction_size: int | None = None
    pool_by: Annotated[list[str] | None, ADVANCED] = None
    cluster: Annotated[list[str] | None, ADVANCED] = None
    by: list[str] | None = None
    truth: str | None = None
    baseline: str | None = None
    slots: str = "1"
    pricing: Literal["gsp", "vcg", "first_price"] = "gsp"
    reserve: Annotated[float, ADVANCED] = 0.0
    squash: Annotated[float, ADVANCED] = 1.0
    calibrate: Literal["none", "platt"] = "none"
    calibration_table: Annotated[str | None, ADVANCED] = None
    position: Annotated[str | None, ADVANCED] = None
    sampling_rate: Annotated[float | None, ADVANCED] = None
    weight: Annotated[str | None, ADVANCED] = None
    separator: Annotated[str | None, ADVANCED] = None
    no_header: Annotated[bool, ADVANCED] = False


def evaluate(table: str, /, *, options: EvaluateOptions, out: Path) -> None:
    """Compare the predictions of several models in the auction, with confidence intervals.

    Prints a verdict and a table, and writes OUT/report.html, OUT/verdict.txt and OUT/result.json. Example:

    `bidwise evaluate ads.csv --ctr old new --click y --bid bid --auction id --out dir`

    Parameters
    ----------
    table:
        Parquet, CSV or TSV file (also .csv.gz, .tsv.gz), one row per logged ad; also a URL (s3://, gs://, az://,
        https://) or, quoted, a pattern such as `'day=*/*.parquet'`.
    out:
        Folder for report.html, verdict.txt and result.json.
    """
    given: dict[str, Any] = asdict(options)
    given["slots"] = _multipliers(options.slots)
    given["header"] = not given.pop("no_header")

    from bidwise.data.table_files import check_readable

    lists = (options.ctr, options.auction, options.pool_by, options.cluster, options.by)
    roles = (
        options.click,
        column_of_bids(options.bid),
        options.truth,
        options.position,
        options.weight,
    )
    columns = [*(name for names in lists for name in names or ()), *(role for role in roles if role is not None)]
    check_readable(table, columns, options.separator, not options.no_header)

    from bidwise.evaluation.result import check_folder  # torch, which takes seconds

    check_folder(out)
    with Bars() as bars:
        evaluation = bidwise.evaluate(table, **given, progress=bars.show)
    try:
        evaluation.write(out)
    finally:  # a full disk does not cost the result: it is shown
        say(str(evaluation))
    print(f"\nThe page: {out / 'report.html'}")


def _multipliers(slots: str) -> tuple[float, ...]:
    """``1,0.8,0.6`` as numbers."""
    try:
        return tuple(float(word) for word in slots.split(","))
    except ValueError:
        raise bidwise.InputError(f"must be numbers such as 1,0.8,0.6, found {slots!r}", argument="slots") from None
