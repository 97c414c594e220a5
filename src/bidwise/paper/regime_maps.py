"""The maps of where a loss pays: kinds of market along two axes each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bidwise.data.worlds import WORLDS, World
from bidwise.losses.named import needs_teacher
from bidwise.paper.synthetic import LOSSES
from bidwise.study.recipe import BASELINE
from bidwise.study.synthetic_results import Axis

BASE = WORLDS["misspecified_rare"]
LOGIT = math.hypot(BASE.linear, BASE.curve * math.sqrt(2 * BASE.curves))  # standard deviation without noise
SHARE = (BASE.curve * math.sqrt(2 * BASE.curves) / LOGIT) ** 2  # of its variance that is squares, 0.77
SIZE = 50
SIZES = (10, 50, 200, 1000)
TEACHERS = ("student", "network", "strong network", "true CTR")
GAINS = tuple(loss for loss in LOSSES if loss != BASELINE)
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
class Cell:
    """A kind of market, the size of its auctions, and who teaches."""

    world: World
    size: int = SIZE
    teacher: str = "student"


@dataclass(frozen=True)
class Map:
    """Cells over two axes, ``at(x, y)``."""

    name: str
    x: Axis
    y: Axis
    losses: tuple[str, ...]
    at: Callable[[Any, Any], Cell]

    @property
    def cells(self) -> list[list[Cell]]:
        """Rows along y, in them cells along x."""
        return [[self.at(x, y) for x in self.x.levels] for y in self.y.levels]


MISSPECIFIED = Axis("misspecification", (0.0, 0.25, 0.5, SHARE))
MAPS = (
    Map(
        "misspecification_correlation",
        Axis("correlation", (0.0, 0.25, 0.5, 0.75)),
        MISSPECIFIED,
        GAINS,
        lambda x, y: Cell(world(share=y, correlation=x)),
    ),
    Map(
        "spread_size",
        Axis("auction size", SIZES),
        Axis("bid spread", (0.2, 0.4, 0.8, 1.6)),
        GAINS,
        lambda x, y: Cell(world(spread=y), size=x),
    ),
    Map(
        "teacher",
        Axis("teacher", TEACHERS),
        MISSPECIFIED,
        TAUGHT,
        lambda x, y: Cell(world(share=y), teacher=x),
    ),
)
