"""The options of an evaluation, the same in Python and on the command line; without torch, for a fast ``--help``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from bidwise.errors import InputError

ADVANCED = Parameter(group="Advanced")  # options that few users need: a part of their own in --help


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Roles of columns, and rules of the auction.

    In Python a single column need not be a list, and slots are numbers.

    Args:
        ctr: Columns of predicted CTR, one per model.
        click: Column of clicks, 0 or 1.
        bid: Column of bids, or of value per click; or a number that all ads bid [default: 1].
        auction: Columns that identify an auction: day request_id.
        auction_size: Without auctions: average over every possible auction of this many ads [default: the largest of
            2, 8, 32 and 256 that the table can judge; models are compared in all of them].
        cluster: Columns that define clusters, such as advertiser; confidence intervals are over clusters instead of
            ads.
        by: Columns of segments, such as device advertiser.
        truth: Column of true CTR, in simulations: welfare and revenue are then expected, not realised.
        baseline: The model that the others are compared with [default: the first].
        slots: Position multipliers, the first 1: 1,0.8,0.6.
        pricing: How winners pay: gsp (generalised second price), vcg or first_price.
        reserve: Lowest price of a click; ads that bid less are not shown.
        squash: The auction ranks by `bid * ctr^squash`.
        position: Column of the slot of an ad, from 1; a click in slot k counts 1/alpha_k. Needs slots.
        sampling_rate: Share of the negatives that the models were trained on; corrects their predictions.
        calibrate: Add a calibrated copy of each model: platt, a line through its logits.
        weight: Column of weights of ads: an auction has the mean weight of its ads; without auctions an ad competes as
            often as it weighs.
        separator: Character between the columns of a text file, \\t for a tab [default: comma in .csv, tab in .tsv].
        header: The first line of a text file names the columns; without, they are column_1, column_2, ...
    """

    ctr: list[str]
    click: str
    bid: str | None = None
    auction: list[str] | None = None
    auction_size: int | None = None
    cluster: Annotated[list[str] | None, ADVANCED] = None
    by: list[str] | None = None
    truth: str | None = None
    baseline: str | None = None
    slots: str = "1"
    pricing: Literal["gsp", "vcg", "first_price"] = "gsp"
    reserve: Annotated[float, ADVANCED] = 0.0
    squash: Annotated[float, ADVANCED] = 1.0
    position: Annotated[str | None, ADVANCED] = None
    calibrate: Literal["none", "platt"] = "none"
    sampling_rate: Annotated[float | None, ADVANCED] = None
    weight: Annotated[str | None, ADVANCED] = None
    separator: Annotated[str | None, ADVANCED] = None
    header: Annotated[bool, ADVANCED, Parameter(negative="--no-header")] = True

    def columns(self, role: str) -> list[str]:
        """The columns of a role that may have several."""
        names = getattr(self, role) or []
        return [names] if isinstance(names, str) else list(names)

    @property
    def multipliers(self) -> tuple[float, ...]:
        """The slots as numbers."""
        try:
            return tuple(
                float(alpha) for alpha in (self.slots.split(",") if isinstance(self.slots, str) else self.slots)
            )
        except ValueError:
            words = f"must be numbers such as 1,0.8,0.6, found {self.slots!r}"
            raise InputError(words, argument="slots") from None

    @property
    def rules(self) -> dict[str, Any]:
        """The auction."""
        rules = {name: getattr(self, name) for name in ("pricing", "reserve", "squash")}
        return rules | {"slots": self.multipliers, "size": self.auction_size}
