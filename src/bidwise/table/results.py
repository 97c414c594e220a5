"""The result of `train`, as in ``result.json``: numbers; sentences are made when they are shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import bidwise
from bidwise.data.columns import Column
from bidwise.evaluation.metrics import ModelMetrics
from bidwise.evaluation.result import Evaluation
from bidwise.study.compare import Choice, Power
from bidwise.study.recipe import Recipe
from bidwise.study.search import Search
from bidwise.table.config import Config, resolved
from bidwise.table.leaks import Telling


@dataclass(frozen=True)
class SplitFacts:
    """Training, validation or test ads."""

    ads: int
    click_rate: float
    auctions: int | None = None  # if the table has them
    first: str | None = None  # time of the oldest ad, if the split is by time
    last: str | None = None


@dataclass(frozen=True)
class Refresh:
    """The run that a training continued, and the new values of its encoder."""

    run: str  # name of its folder
    number: int  # of refreshes since the first training
    ads: int  # that were trained on since then
    l2: float | None  # the penalty, a prior for so many ads
    new: dict[str, int]  # words that got ids of their own, by column
    until: str | None = None  # time of the newest ad that the run before has seen
    unknown: dict[str, float] = field(default_factory=dict)  # share of values new to it, if most are


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """Facts of a table before training."""

    fingerprint: str
    columns: tuple[Column, ...]
    splits: dict[str, SplitFacts]
    auction_size: int | None  # of validation and test, if the table has no auctions
    min_count: int
    mean_bid: float  # of training ads, none above the cap: the divisor of bids
    median_bid: float = math.nan
    bid_cap: float = math.nan  # the most that a bid counts in training and validation
    capped_bids: int = 0  # bids above it
    largest_bid: float = math.nan
    equal_bids: bool = False  # no column of bids: all ads bid the same
    leaks: dict[str, float]  # columns that predict the click by themselves, with their AUC
    telling: dict[str, Telling] = field(default_factory=dict)  # and others with a value that does
    certain: tuple[str, ...] = ()  # of both, those that training stops for
    duplicates: int = 0  # rows that are copies of others
    refresh: Refresh | None = None  # if the training continued another
    sampled: int | None = None  # training rows behind bins and the median bid, if not all

    @property
    def timed(self) -> bool:
        """Whether the split is by time."""
        return self.splits["test"].last is not None

    def auctions(self, split: str) -> int | None:
        """Their number, if they are real."""
        return self.splits[split].auctions


@dataclass(frozen=True)
class Epoch:
    """The state of a training at an evaluation: mean loss of its batches, and the metric on validation."""

    epoch: float
    loss: float
    value: float


@dataclass(frozen=True)
class FitResult:
    """A recipe, how the training of its first member went, and the line that calibrates the served model."""

    recipe: Recipe
    best: Epoch
    history: tuple[Epoch, ...]
    slope: float = 1.0
    intercept: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The metrics of one model that a run reports for its validation auctions."""

    welfare: float = math.nan
    auc: float = math.nan
    log_loss: float = math.nan
    predicted_over_observed: float = math.nan

    @classmethod
    def of(cls, metrics: ModelMetrics, unit: float = 1.0) -> Scores:
        """The comparisons of all metrics; ``unit`` of bids."""
        values = {name: getattr(metrics, name) for name in cls.__dataclass_fields__}
        return cls(**values | {"welfare": metrics.welfare * unit})


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The result of `train`: the chosen model, the reason, and its test."""

    kind: ClassVar[str] = "train"
    format: ClassVar[int] = 9

    config: dict[str, Any]  # section.key -> value
    table: TableFacts
    fields: dict[str, int]  # columns that the model sees, with the number of their ids
    parameters: int
    search: Search | None = None  # of the baseline's settings, which all recipes have
    fits: dict[str, FitResult]  # by loss or recipe
    power: Power | None = None  # of recipe auto: whether the ads that choose could tell a gain
    choice: Choice | None = None  # of recipe auto, if they could
    chosen: str
    validation: Scores  # of the chosen model, on all validation auctions
    evaluation: Evaluation  # of test ads, without curves
    importance: dict[str, float]  # rise of the log loss when a column is shuffled in test ads, the largest first
    refit: int | None = None  # ads that the served model was trained on once more; None: the tested one is served
    version: str = bidwise.__version__

    @property
    def settings(self) -> Config:
        """The configuration."""
        return resolved({}, self.config)
