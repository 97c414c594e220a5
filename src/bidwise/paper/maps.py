"""The maps of where a loss pays: kinds of market along two axes each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bidwise.data.worlds import WORLDS, World
from bidwise.losses.named import needs_teacher
from bidwise.study.contest import CONTEST

BASE = WORLDS["misspecified_rare"]
LOGIT = math.hypot(BASE.linear, BASE.curve * math.sqrt(2 * BASE.curves))  # standard deviation without noise
SHARE = (BASE.curve * math.sqrt(2 * BASE.curves) / LOGIT) ** 2  # of its variance that is squares, 0.77
SIZE = 50
SIZES = (10, 50, 200, 1000)
TEACHERS = ("student", "network", "strong network", "true CTR")
GAINS = tuple(loss for loss in CONTEST if loss != "log_loss")
TAUGHT = tuple(loss for loss in GAINS if needs_teacher(loss))


def world(share: float = SHARE, correlation: float = BASE.correlation, spread: float = BASE.spread) -> World:
    """The base world with another share of squares, correlation or spread; logit variance and mean bid stay."""
    return replace(
        BASE,
        linear=LOGIT * math.sqrt(1 - share),
        curve=LOGIT * math.sqrt(share / (2 * BASE.curves)),
        correlation=correlation,
        spread=spread,
        level=(BASE.spread**2 - spread**2) / 2,
    )


@dataclass(frozen=True)
class Axis:
    """One side of a map."""

    name: str
    about: str
    levels: tuple[float | str, ...]


@dataclass(frozen=True)
class Cell:
    """A kind of market, the size of its auctions, and who teaches."""

    world: World
    size: int = SIZE
    teacher: str = "student"


@dataclass(frozen=True)
class Map:
    """Cells over two axes, ``at(x, y)``."""

    name: str
    title: str
    x: Axis
    y: Axis
    losses: tuple[str, ...]
    at: Callable[[Any, Any], Cell]


MISSPECIFIED = Axis(
    "misspecification", "share of the logit's variance that the student cannot represent", (0.0, 0.25, 0.5, SHARE)
)
MAPS = (
    Map(
        "misspecification_correlation",
        "How wrong the model must be, and whether bids follow clicks",
        Axis("correlation", "correlation between the weights of bid and CTR", (0.0, 0.25, 0.5, 0.75)),
        MISSPECIFIED,
        GAINS,
        lambda x, y: Cell(world(share=y, correlation=x)),
    ),
    Map(
        "spread_size",
        "How far bids spread, and how many ads compete",
        Axis("auction size", "ads in an auction", SIZES),
        Axis("bid spread", "standard deviation of log bids", (0.2, 0.4, 0.8, 1.6)),
        GAINS,
        lambda x, y: Cell(world(spread=y), size=x),
    ),
    Map(
        "teacher",
        "How strong the teacher is",
        Axis("teacher", "who gives the soft labels", TEACHERS),
        MISSPECIFIED,
        TAUGHT,
        lambda x, y: Cell(world(share=y), teacher=x),
    ),
)
