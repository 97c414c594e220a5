"""The Criteo experiment: its options, and what a run found, as ``result.json`` holds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import bidwise
from bidwise.checks import InputError, check_name, check_positive, check_seed, check_whole
from bidwise.evaluation.estimate import Outcome
from bidwise.models import MODELS
from bidwise.study.compare import Difference
from bidwise.study.recipe import BASELINE, MOST_REPEATS, Recipe, has_lam
from bidwise.study.synthetic_results import Histogram
from bidwise.training.adam import UPDATES
from bidwise.training.arguments import PRECISIONS

LOSSES = ("log_loss", "log_weighted", "log_teacher", "log_plus", "log_plus_teacher", "distilled")
PROTOCOLS = ("converged", "tuned", "both")
CONVERGED, TUNED = "last", "welfare"  # the weights that a protocol takes, of the model and of its teacher
PAPER_SETTINGS = {  # model -> ads in a batch, epochs; 150,000 steps of DCN are 2.09 epochs of the full data
    "deepfm": (256, 3.0),
    "dcn": (512, 2.1),
    "dcnv2": (512, 2.1),
    "logistic_regression": (256, 3.0),
}


@dataclass(frozen=True)
class CriteoConfig:
    """The options of a run; two runs with the same ones on the same data give the same numbers.

    Args:
        rows: ads to simulate on the device, in place of a store; ``None`` takes the store.
        batch_size: ads in a batch; ``None``: as many as the paper has for each model.
        lam_repeats: lam is selected once, by validation welfare summed over the first so many repeats, which alone
            train every lam; ``None``: each repeat trains every lam and selects its own.
        precision: of the training, ``float32`` or ``mixed``.
    """

    lams: ClassVar[tuple[float, ...]] = (0.1, 1.0, 3.0, 5.0, 10.0)  # these four are the paper's
    lam: ClassVar[float] = 3.0
    sigma: ClassVar[float] = 3.0
    learning_rate: ClassVar[float] = 1e-3
    written: ClassVar[tuple[str, ...]] = ("lams", "lam", "sigma", "learning_rate")

    models: tuple[str, ...] = ("deepfm", "dcn")
    losses: tuple[str, ...] = LOSSES
    protocol: str = "both"
    repeats: int = 10
    seed: int = 0
    auction_size: int = 256
    cuts: int = 0  # of results that were measured on random cuts into auctions; 0: on all that could be drawn
    every: float = 0.25
    l2: float = 0.0
    embeddings: str = "lazy"
    rows: int | None = None
    batch_size: int | None = None
    lam_repeats: int | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        for argument, names, known in (("models", self.models, tuple(MODELS)), ("losses", self.losses, LOSSES)):
            for name in names:
                check_name(argument, name, known)
            if not names:
                raise InputError(f"must name at least one of {', '.join(known)}, found none", argument=argument)
        object.__setattr__(self, "models", tuple(dict.fromkeys(self.models)))
        asked = (BASELINE, *self.losses)  # what all others are compared with, and their teacher
        object.__setattr__(self, "losses", tuple(loss for loss in LOSSES if loss in asked))
        check_name("protocol", self.protocol, PROTOCOLS)
        check_name("embeddings", self.embeddings, UPDATES)
        check_name("precision", self.precision, PRECISIONS)
        check_seed("seed", self.seed)
        check_whole("repeats", self.repeats, 1, MOST_REPEATS)
        check_whole("auction_size", self.auction_size, 2)
        for name, least in (("rows", 10), ("batch_size", 2), ("lam_repeats", 1)):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least)
        if self.lam_repeats is not None and self.lam_repeats > self.repeats:
            raise InputError(
                f"must be at most {{}}, {self.repeats}, found {self.lam_repeats}",
                argument="lam_repeats",
                others=("repeats",),
            )
        check_positive("every", self.every)
        check_positive("l2", self.l2, or_zero=True)

    @property
    def protocols(self) -> tuple[str, ...]:
        """Those that are run."""
        return ("converged", "tuned") if self.protocol == "both" else (self.protocol,)

    @property
    def in_folder(self) -> dict[str, Any]:
        """What a run folder states; options at defaults that older folders do not know are left out."""
        return {**asdict(self), "precision": None if self.precision == "float32" else self.precision}

    @property
    def trying_lams(self) -> range:
        """The repeats that train every lam."""
        return range(self.repeats if self.lam_repeats is None else self.lam_repeats)

    @property
    def other_batch_size(self) -> int | None:
        """Ads of a batch, where a model has more or fewer than in the paper."""
        return self.batch_size if {PAPER_SETTINGS[model][0] for model in self.models} != {self.batch_size} else None

    def lams_of(self, loss: str, protocol: str) -> Sequence[float | None]:
        """The lam that a protocol tries; losses without one have ``None``."""
        if not has_lam(loss):
            return (None,)
        return (self.lam,) if protocol == "converged" else self.lams

    def recipe(self, model: str, loss: str = BASELINE, lam: float | None = None, teacher: str | None = None) -> Recipe:
        """How a model is trained: the paper's way, but for the batch size where one is given."""
        batch_size, epochs = PAPER_SETTINGS[model]
        return Recipe(
            loss=loss,
            lam=lam,
            sigma=self.sigma,
            teacher=teacher,
            model=model,
            epochs=epochs,
            batch_size=self.batch_size or batch_size,
            learning_rate=self.learning_rate,
            every=self.every,
            l2=self.l2,
            embeddings=self.embeddings,
            precision=self.precision,
        )


@dataclass(frozen=True)
class Bids:
    """How the bids of all ads were drawn, and how they came out."""

    kind: str
    options: dict[str, Any]
    mean: float
    quantiles: dict[str, float]
    histogram: Histogram


@dataclass(frozen=True)
class Truth:
    """What the true CTR reaches on the test ads."""

    auc: float
    log_loss: float


@dataclass(frozen=True)
class SplitSizes:
    """Ads of each split."""

    train: int
    valid: int
    test: int

    @property
    def ads(self) -> int:
        return self.train + self.valid + self.test


@dataclass(frozen=True, kw_only=True)
class AdsOfRun:
    """The ads that a run trained and tested on; ``auctions`` are those of one random cut, where there was one."""

    written: ClassVar[tuple[str, ...]] = ("known_ctr",)

    name: str
    splits: SplitSizes
    click_rate: float
    fields: int
    values: int
    integers: str | None = None
    min_count: int | None = None
    bids: Bids | None = None
    auctions: int | None = None
    optimal_welfare: float = math.nan  # expected, where the true CTR is known
    truth: Truth | None = None

    @property
    def known_ctr(self) -> bool:
        """Whether the ads are simulated."""
        return self.truth is not None


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Means over repeats on the test auctions, with standard errors; expected welfare is NaN for ads of unknown CTR."""

    written: ClassVar[tuple[str, ...]] = ("auc_loss",)

    welfare: float
    welfare_error: float = math.nan
    expected_welfare: float = math.nan
    expected_welfare_error: float = math.nan
    auc: float
    auc_error: float = math.nan
    log_loss: float
    log_loss_error: float = math.nan

    @property
    def auc_loss(self) -> float:
        """1 − AUC, as the paper reports it."""
        return 1 - self.auc

    @property
    def main_welfare(self) -> float:
        """Expected welfare, which varies less by chance, where it is known; else realised welfare."""
        return self.welfare if math.isnan(self.expected_welfare) else self.expected_welfare


@dataclass(frozen=True, kw_only=True)
class AtLam(Levels):
    """A loss with one lam, at its best epoch."""

    lam: float


@dataclass(frozen=True, kw_only=True)
class Selected(Levels):
    """A loss at the epoch, mean over repeats, and the lam of each repeat that were selected on validation auctions.

    ``difference`` is main welfare − that of the log loss selected in the same way; ``None`` for the log loss.
    """

    difference: Difference | None
    epoch: float = math.nan  # of trainings whose last weights are taken
    lam: tuple[float, ...] = ()

    @property
    def outcome(self) -> Outcome | None:
        """Against the log loss, by both sources of chance."""
        return None if self.difference is None else self.difference.outcome


@dataclass(frozen=True)
class EachRepeat:
    """The means of every repeat; none of expected welfare for ads of unknown CTR."""

    welfare: tuple[float, ...]
    expected_welfare: tuple[float, ...]
    auc: tuple[float, ...]
    log_loss: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LossResult(Selected):
    """All numbers of a loss in a protocol; the tuned one also selects by validation log loss and by the true CTR."""

    revenue: float
    calibration_error: float
    predicted_over_observed: float
    difference_realised: Difference | None
    repeats: EachRepeat
    by_log_loss: Selected | None = None
    by_truth: Selected | None = None


@dataclass(frozen=True)
class Protocol:
    """The losses of a protocol, the log loss among them."""

    losses: dict[str, LossResult]

    @property
    def others(self) -> dict[str, LossResult]:
        """All losses but the log loss."""
        return {name: loss for name, loss in self.losses.items() if name != BASELINE}

    def selected(self, by: str = "") -> dict[str, Selected]:
        """The losses as selected by welfare, or ``by_log_loss`` or ``by_truth``."""
        found = {name: getattr(loss, by) if by else loss for name, loss in self.losses.items()}
        return {name: loss for name, loss in found.items() if loss is not None}

    def gain(self, loss: str, by: str = "") -> Difference:
        """Difference to the log loss as a share of its welfare."""
        selected = self.selected(by)
        difference = selected[loss].difference
        assert difference is not None, "of the log loss to itself"
        return difference / selected[BASELINE].main_welfare


@dataclass(frozen=True)
class Curve:
    """Validation metrics over the epochs, mean over repeats, at the lam that was selected most often."""

    epoch: tuple[float, ...]
    welfare: tuple[float, ...]
    log_loss: tuple[float, ...]
    expected_welfare: tuple[float, ...] = ()
    lam: float | None = None


@dataclass(frozen=True)
class EpochTime:
    """Seconds of an epoch over timed segments of ``steps``; ``relative`` is to the log loss in the same round."""

    segments: int
    steps: int
    seconds: float
    sd: float
    relative: float
    relative_sd: float


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """Everything of one model; ``grid`` are the losses at every lam, over the repeats that tried all of them."""

    parameters: int
    batch_size: int
    epochs: float
    steps: int
    protocols: dict[str, Protocol]
    grid: dict[str, tuple[AtLam, ...]] = field(default_factory=dict)
    grid_log_loss: Levels | None = None  # over the repeats of the grid
    curves: dict[str, Curve] = field(default_factory=dict)
    runtime: dict[str, EpochTime]


@dataclass(frozen=True, kw_only=True)
class CriteoResult:
    """What a run found."""

    kind: ClassVar[str] = "criteo"
    format: ClassVar[int] = 2

    version: str = bidwise.__version__
    config: CriteoConfig
    data: AdsOfRun
    models: dict[str, ModelResult]

    @property
    def protocols(self) -> list[tuple[str, str, Protocol]]:
        """Every model, protocol and what it found."""
        return [(name, key, found) for name, model in self.models.items() for key, found in model.protocols.items()]
