"""What the experiments in simulated markets found: `python -m paper synthetic` and `python -m paper regimes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from bidwise.checks import check_seed, check_whole
from bidwise.evaluation.estimate import Estimate, Outcome
from bidwise.evaluation.intervals import LEVEL, student_quantile, student_share
from paper.comparisons import Gain
from paper.grids import MOST_REPEATS


def check_wholes(config: Any, **least: int) -> None:
    """Raise unless the seed, the repeats and these options are whole numbers, at least so large."""
    check_seed("seed", config.seed)
    check_whole("repeats", config.repeats, least.pop("repeats", 1), MOST_REPEATS)
    for name, smallest in least.items():
        if getattr(config, name) is not None:
            check_whole(name, getattr(config, name), smallest)


def with_preset(config: Any, preset: Mapping[str, Any]) -> Any:
    """The options, with a preset in place of defaults."""
    default = type(config)()
    return replace(config, **{k: x for k, x in preset.items() if getattr(config, k) == getattr(default, k)})


@dataclass(frozen=True, kw_only=True)
class CellGain(Gain):
    """The gain of a loss in one kind of market, with the epoch (mean over repeats) and lam (of each) selected."""

    calibrated: Gain  # after Platt scaling of both models on validation clicks
    epoch: float | None = None
    lam: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class LossResult(CellGain):
    """A loss on the test auctions: means over repeats, and its gain over log loss in shares of the optimal welfare."""

    welfare: float
    difference_to_average: float  # welfare minus the mean of the paper's losses, as the paper defines it
    error_to_average: float
    auc: float
    log_loss: float
    ratios: tuple[float, ...]  # share of the optimal welfare in each repeat


Losses = dict[str, LossResult]


@dataclass(frozen=True)
class Protocol:
    """The losses of a protocol."""

    losses: Losses


@dataclass(frozen=True)
class Histogram:
    """Counts between edges."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class WorldShape:
    """How CTRs and bids of a world are distributed."""

    ctr: Histogram
    log10_bid: Histogram


@dataclass(frozen=True)
class SyntheticConfig:
    """The options of a run; two runs with the same ones give the same numbers. The world decides what is left open.

    Args:
        reading: plotted (the paper's world with a tenth of its weights), printed (with the printed weights),
            misspecified (a linear student, clicks that depend on squares) or misspecified_rare (the same with a click
            rate near 0.24).
        protocol: converged (the paper's: all epochs, lam = 3), tuned (each loss its own epoch and lam) or both.
        repeats: markets, each with its own ads; intervals are over repeats.
        epochs: passes over the training ads.
        seed: of all random numbers.
        patience: in the tuned protocol, stop after so many epochs without a better validation welfare; by default
            never.
        validation_auctions: auctions that select epoch and lam.
        test_auctions: auctions that measure welfare.
        auction_size: ads of an auction.
        init: initial weights of the network, glorot or torch.
        every: epochs between evaluations in the tuned protocol.
        losses: names of losses; log_loss always takes part; by default ten, log_weighted and log_teacher_unweighted
            are the others.
        bid_weights: the weights of log bids are uniform in plus or minus this, 0.2 in plotted and 2 in printed.
        training_ads: ads that a student is trained on; 0 takes the world's.
        batch_size: ads in a batch.
        lams: weights of the log loss that the tuned protocol tries; by default 0.003 to 300.
        sums: only the losses as the paper prints them, sums over pairs and ads; without it converged has both, and
            tuned has means.
    """

    reading: str = "plotted"
    protocol: str = "both"
    repeats: int = 30
    epochs: int = 100
    seed: int = 0
    patience: int | None = None
    validation_auctions: int = 2000
    test_auctions: int = 2000
    auction_size: int = 50
    init: str = "glorot"
    every: int = 2
    losses: tuple[str, ...] = ()  # all of them
    training_ads: int = 0
    batch_size: int = 256
    lams: tuple[float, ...] = ()
    sums: bool = False
    bid_weights: float | None = None


@dataclass(frozen=True)
class SyntheticResult:
    """A run of `python -m paper synthetic`."""

    version: str
    config: SyntheticConfig
    optimal_welfare: float
    protocols: dict[str, Protocol]
    worlds: dict[str, WorldShape]
    kind: ClassVar[str] = "synthetic"
    format: ClassVar[int] = 4


@dataclass(frozen=True)
class ReadingsConfig:
    """The options of a run of all readings.

    Args:
        repeats: markets of each reading.
        seed: of all random numbers.
        validation_auctions: auctions that calibrate, and select where something is selected.
        test_auctions: auctions that measure welfare.
    """

    repeats: int = 8
    seed: int = 0
    validation_auctions: int = 500
    test_auctions: int = 2000


@dataclass(frozen=True)
class ReadingsResult:
    """A run of `python -m paper readings`: the losses by reading."""

    version: str
    config: ReadingsConfig
    readings: dict[str, Losses]
    kind: ClassVar[str] = "readings"
    format: ClassVar[int] = 3


@dataclass(frozen=True)
class RegimesConfig:
    """The options of a run of the maps of regimes.

    Args:
        repeats: markets in each cell, at least 2.
        epochs: passes over the training ads; each loss has its own best epoch of them.
        seed: of all random numbers.
        training_ads: ads that a student is trained on.
        validation_ads: ads of the auctions that select epoch and lam.
        test_ads: ads of the auctions that measure welfare.
        lams: weights of the log loss to try; by default 0.003 to 300.
        maps: names of maps, misspecification_correlation, spread_size and teacher; by default all three.
        corners: only the first and the last level of each axis, a quarter of the cells.
    """

    repeats: int = 10
    epochs: int = 20
    seed: int = 0
    training_ads: int = 40_000
    validation_ads: int = 100_000
    test_ads: int = 200_000
    lams: tuple[float, ...] = ()
    maps: tuple[str, ...] = ()
    corners: bool = False


@dataclass(frozen=True)
class Axis:
    """One side of a map."""

    name: str
    levels: tuple[float | str, ...]


@dataclass(frozen=True)
class MapResult:
    """Gains over two properties of the market."""

    name: str
    x: Axis
    y: Axis
    losses: dict[str, tuple[tuple[CellGain, ...], ...]]  # rows along y, in them cells along x


@dataclass(frozen=True)
class Counts:
    """In how many different kinds of market a loss is better than log loss, worse, or cannot be distinguished."""

    better: int
    worse: int
    unclear: int

    @classmethod
    def of(cls, gains: Sequence[Estimate], cells: int | None = None) -> Counts:
        """Of these gains; of more ``cells``, the others are unclear."""
        outcomes = [gain.outcome for gain in gains]
        better, worse = outcomes.count(Outcome.BETTER), outcomes.count(Outcome.WORSE)
        return cls(better, worse, (len(gains) if cells is None else cells) - better - worse)

    @property
    def cells(self) -> int:
        return self.better + self.worse + self.unclear

    @property
    def merit(self) -> tuple[bool, int]:
        """Better in some and worse in none before all others, then the most."""
        return self.better > 0 and not self.worse, self.better - self.worse


@dataclass(frozen=True)
class RegimesResult:
    """A run of `python -m paper regimes`."""

    version: str
    config: RegimesConfig
    maps: tuple[MapResult, ...]
    summary: dict[str, Counts]  # by loss, over cells that differ
    kind: ClassVar[str] = "regimes"
    format: ClassVar[int] = 4

    def cells(self, loss: str) -> list[CellGain]:
        """A loss in every kind of market that differs."""
        return list(dict.fromkeys(cell for plot in self.maps for row in plot.losses.get(loss, ()) for cell in row))

    def after_holm(self, loss: str) -> Counts:
        """:attr:`summary` of one loss with Holm's correction for the number of its cells."""
        cells = self.cells(loss)
        stand = holm([student_p_value((cell.ci_low, cell.ci_high), self.config.repeats - 1) for cell in cells])
        return Counts.of([cell for cell, stands in zip(cells, stand, strict=True) if stands], len(cells))


def holm(p_values: Sequence[float], error: float = 1 - LEVEL) -> list[bool]:
    """Which of several findings stand after Holm's correction: any wrong one among them has a chance of ``error``.

    >>> holm([0.001, 0.04, 0.02, 0.6])
    [True, False, False, False]
    """
    stand = [False] * len(p_values)
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        if not p_values[at] <= error / (len(p_values) - rank):
            break
        stand[at] = True
    return stand


def student_p_value(interval: tuple[float, float], freedom: int) -> float:
    """The chance of a difference as large where there is none, from Student's 95 % interval.

    >>> round(student_p_value((0.0, 2.0), 9), 3)
    0.05
    """
    low, high = interval
    half = (high - low) / 2
    if not half > 0:
        return 1.0 if low == 0 else 0.0
    return 2 * (1 - student_share(abs(low + high) / 2 / half * student_quantile(0.5 + LEVEL / 2, freedom), freedom))
