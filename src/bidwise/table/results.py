"""What `train` and `sweep` found, as ``result.json`` holds it: numbers; sentences are made when they are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import bidwise
from bidwise.data.encoding import Column
from bidwise.evaluation.comparison import Comparison
from bidwise.evaluation.estimate import Estimate, Outcome
from bidwise.evaluation.metrics import ModelMetrics
from bidwise.evaluation.result import Evaluation
from bidwise.study.compare import Choice, Difference, Power, mean_over
from bidwise.study.recipe import Recipe
from bidwise.study.search import Search
from bidwise.table.config import Config, resolved


@dataclass(frozen=True)
class SplitFacts:
    """Training, validation or test ads."""

    ads: int
    click_rate: float
    auctions: int | None = None  # where the table has them
    first: str | None = None  # time of the oldest ad, where the split is by time
    last: str | None = None


@dataclass(frozen=True)
class Refresh:
    """The run that a training went on from, and what its encoder learnt."""

    run: str  # name of its folder
    number: int  # of refreshes since the first training
    ads: int  # that were trained on since then
    l2: float  # what the penalty becomes: that of a prior, for so many ads
    new: dict[str, int]  # words that got ids of their own, by column
    until: str | None = None  # time of the newest ad that the run before has seen
    unknown: dict[str, float] = field(default_factory=dict)  # share of values that it did not know, where most are such


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """What was found in a table before anything was trained."""

    fingerprint: str
    columns: tuple[Column, ...]
    splits: dict[str, SplitFacts]
    auction_size: int | None  # of validation and test, where the table has no auctions
    min_count: int
    mean_bid: float  # of training ads, none above the cap: what bids are divided by
    median_bid: float = math.nan
    bid_cap: float = math.nan  # the most that a bid counts in training and validation
    capped_bids: int = 0  # bids above it
    largest_bid: float = math.nan
    cut: str | None = (
        None  # of a split by time: "auctions" that last beyond it, or ads of the same "time" on both sides
    )
    leaks: dict[str, float]  # columns that predict the click all by themselves, with their AUC
    duplicates: int = 0  # rows that are copies of others
    refresh: Refresh | None = None  # where the training went on from another
    sampled: int | None = None  # training rows that bins and the median bid come from, where not from all

    @property
    def timed(self) -> bool:
        """Whether the split is by time."""
        return self.splits["test"].last is not None

    def auctions(self, split: str) -> int | None:
        """How many there are, where they are real."""
        return self.splits[split].auctions


@dataclass(frozen=True)
class Epoch:
    """What training had reached when it was evaluated: mean loss of its batches, and the metric on validation."""

    epoch: float
    loss: float
    value: float


@dataclass(frozen=True)
class FitResult:
    """A recipe, how the training of its first member went, and the line that calibrates what is served."""

    recipe: Recipe
    best: Epoch
    history: tuple[Epoch, ...]
    slope: float = 1.0
    intercept: float = 0.0
    skipped: int = 0  # batches of all members that were left out: their loss or gradient was not finite


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The metrics of one model that settings are compared by."""

    welfare: float = math.nan
    auc: float = math.nan
    log_loss: float = math.nan
    predicted_over_observed: float = math.nan

    @classmethod
    def of(cls, metrics: ModelMetrics, unit: float = 1.0) -> Scores:
        """Those of all metrics; ``unit`` is that of bids."""
        values = {name: getattr(metrics, name) for name in cls.__dataclass_fields__}
        return cls(**values | {"welfare": metrics.welfare * unit})


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What `train` found: the model that was chosen, why, and its test."""

    kind: ClassVar[str] = "train"
    format: ClassVar[int] = 5

    config: dict[str, Any]  # section.key -> value
    table: TableFacts
    fields: dict[str, int]  # columns that the model sees, with the number of their ids
    parameters: int
    search: Search | None = None  # of the baseline's settings, which all recipes have
    fits: dict[str, FitResult]  # by loss or recipe
    power: Power | None = None  # of recipe auto: whether the ads that choose could tell a gain
    choice: Choice | None = None  # of recipe auto, where they could
    chosen: str
    validation: Scores  # of the chosen model, on all validation auctions
    evaluation: Evaluation  # of test ads, without curves
    version: str = bidwise.__version__

    @property
    def settings(self) -> Config:
        """The configuration."""
        return resolved({}, self.config)


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with Student's 95 % interval: none of one seed, and no number where one is missing.

    >>> Mean.over([1.0, 2.0, 3.0]).mean, Mean.over([1.0]), Mean.over([math.nan, 2.0]).mean
    (2.0, Mean(mean=1.0, ci_low=nan, ci_high=nan), nan)
    """

    mean: float
    ci_low: float = math.nan
    ci_high: float = math.nan

    @classmethod
    def over(cls, values: Iterable[float]) -> Mean:
        estimate = mean_over(list(values))
        return cls(estimate.difference, estimate.ci_low, estimate.ci_high)


@dataclass(frozen=True, kw_only=True)
class MeanScores:
    """The metrics of a setting: means over its seeds."""

    welfare: Mean
    auc: Mean
    log_loss: Mean
    predicted_over_observed: Mean

    @classmethod
    def over(cls, scores: Sequence[Scores]) -> MeanScores:
        return cls(**{name: Mean.over(getattr(each, name) for each in scores) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One training of a sweep: what it was given, and the numbers of the model that it kept or why it failed."""

    name: str
    setting: str
    settings: dict[str, Any]  # section.key -> value, of what the grid varies
    loss: str  # or another recipe than a single model
    seed: int
    failed: str | None = None
    kept: str = ""  # the loss or recipe whose model it kept
    validation: Scores = Scores()
    test: Scores = Scores()
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class SettingDifference(Difference):
    """A setting minus the baseline on test, within seeds; of one seed the interval is that over auctions alone."""

    auctions: Comparison
    level: float  # the baseline's mean

    written: ClassVar[tuple[str, ...]] = ("outcome",)

    @property
    def outcome(self) -> Outcome:
        """That of the auctions, with the wider interval."""
        return replace(self.auctions, difference=self.difference, ci_low=self.ci_low, ci_high=self.ci_high).outcome

    @property
    def lift(self) -> Estimate:
        """As a share of the baseline; not a number where the baseline has nothing."""
        return self / (self.level if self.level > 0 else 0)


@dataclass(frozen=True, kw_only=True)
class AgainstBaseline:
    """A setting against the baseline, in the seeds that both have."""

    seeds: tuple[int, ...]
    welfare: SettingDifference


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The trials of all seeds that have everything else in common."""

    name: str
    loss: str
    complete: bool  # no trial failed
    seeds: tuple[int, ...]  # of the trials that finished
    trials: tuple[str, ...]
    validation: MeanScores
    test: MeanScores
    difference: AgainstBaseline | None = None

    @classmethod
    def of(cls, name: str, trials: Sequence[TrialResult]) -> Setting:
        done = [trial for trial in trials if trial.failed is None]
        return cls(
            name=name,
            loss=trials[0].loss,
            complete=len(done) == len(trials),
            seeds=tuple(trial.seed for trial in done),
            trials=tuple(trial.name for trial in done),
            validation=MeanScores.over([trial.validation for trial in done]),
            test=MeanScores.over([trial.test for trial in done]),
        )


@dataclass(frozen=True)
class Chosen:
    """The setting that validation chooses, and the best of its trials."""

    setting: str
    trial: str


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """What `sweep` found: settings and trials in the order of the grid, and the choice by validation."""

    kind: ClassVar[str] = "sweep"
    format: ClassVar[int] = 4
    written: ClassVar[tuple[str, ...]] = ("recommended",)

    config: dict[str, Any]  # what all trials share, section.key -> value
    grid: dict[str, list[Any]]
    by: str  # the validation metric that chooses
    seeds: tuple[int, ...]
    timed: bool  # whether the split is by time, the same for all seeds
    baseline: str | None = None
    chosen: Chosen | None = None  # by validation
    settings: tuple[Setting, ...]
    trials: tuple[TrialResult, ...]
    version: str = bidwise.__version__

    def setting(self, name: str | None) -> Setting | None:
        """A setting by its name."""
        return next((each for each in self.settings if each.name == name), None)

    @property
    def recommended(self) -> str | None:
        """The chosen setting where its test interval against the baseline is above 0, in doubt the baseline."""
        chosen = None if self.chosen is None else self.setting(self.chosen.setting)
        if chosen is None or self.baseline is None or chosen.difference is None:
            return None if chosen is None else chosen.name
        return chosen.name if chosen.difference.welfare.outcome is Outcome.BETTER else self.baseline

    @property
    def failed(self) -> list[TrialResult]:
        """The trials that failed."""
        return [trial for trial in self.trials if trial.failed is not None]

    @property
    def finished(self) -> list[TrialResult]:
        """The others."""
        return [trial for trial in self.trials if trial.failed is None]
