"""The Criteo experiment: its options, and what a run found, as ``result.json`` holds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import bidwise
from bidwise.checks import InputError, check_name, check_positive
from bidwise.study.recipe import BASELINE, Recipe, has_lam
from bidwise.training.adam import UPDATES
from bidwise.training.arguments import PRECISIONS, SCHEDULES
from paper.comparisons import Difference
from paper.criteo_world import CRITEO_WORLDS
from paper.dcn import MODELS
from paper.grids import LAMS
from paper.synthetic_results import check_wholes, with_preset

LOSSES = ("log_loss", "log_weighted", "log_teacher", "log_plus", "log_plus_teacher", "distilled")
CHOICES = {
    "protocol": ("converged", "tuned", "both"),
    "embeddings": UPDATES,
    "precision": PRECISIONS,
    "schedule": SCHEDULES,
    "world": CRITEO_WORLDS,
}
TUNED = "log_loss"
SELECTIONS = {"converged": "last", "tuned": TUNED}  # the weights that a protocol takes, of models and teachers
PAPER_SETTINGS = {  # model -> ads in a batch, epochs; 150,000 steps of DCN are 2.09 epochs of the full data
    "deepfm": (256, 3.0),
    "dcn": (512, 2.1),
    "dcnv2": (512, 2.1),
    "logistic_regression": (256, 3.0),
}

#: What the paper and DeepCTR's defaults say, if it is not the default of any run: models, both protocols, ten repeats,
#: batches of 256 and 512, three epochs of DeepFM, a constant rate, float32, lam = 3 and sigma = 3 are.
AS_PRINTED: dict[str, Any] = {
    "losses": ("log_loss", "log_weighted", "log_teacher"),
    "l2": 1e-5,
    "embeddings": "dense",
    "first_order": True,
    "steps": 150_000,  # of DCN
    "sums": True,
    "lams": (0.1, 1.0, 3.0, 5.0, 10.0),
}


@dataclass(frozen=True)
class CriteoConfig:
    """The options of a run; two runs with the same ones on the same data give the same numbers.

    Args:
        models: deepfm, dcn, dcnv2, logistic_regression.
        losses: names of losses; log_loss always takes part.
        protocol: converged (all epochs, the paper's lam = 3), tuned (each loss its own epoch and lam, by validation log
            loss) or both.
        repeats: trainings of every model, each with its own initial weights and order of ads.
        seed: of all random numbers.
        auction_size: ads of a validation or test auction; welfare is the mean over every possible auction.
        every: epochs between evaluations on the validation auctions.
        l2: weight of the squared embeddings in the loss; DeepCTR's default is 1e-5.
        embeddings: lazy (updates the rows that a batch looked up) or dense (all rows, as Adam does).
        rows: ads to simulate on the device, in place of a store.
        world: of simulated ads, as `simulate` names them.
        epochs: of every training; by default the paper's, 3 for DeepFM and 2.1 for DCN.
        schedule: of the learning rate, constant or cosine.
        steps: of every training of DCN, in place of epochs; the paper takes 150,000.
        first_order: give DCN a weight for every value beside its layers, as DeepCTR does.
        batch_size: ads in a batch; by default the paper's, 256 for DeepFM and 512 for DCN.
        sums: add up pairs and log loss, as the paper prints its losses, instead of taking means.
        lams: what the tuned protocol tries; the paper has 0.1, 1, 3, 5 and 10.
        lam_repeats: how many repeats train every lam, by default all; validation log loss summed over them selects one.
        precision: float32, or mixed for products of matrices on the tensor cores of a GPU.
        ads: training ads, set by the run.
    """

    lam: ClassVar[float] = 3.0
    sigma: ClassVar[float] = 3.0

    models: tuple[str, ...] = ("deepfm", "dcn")
    losses: tuple[str, ...] = LOSSES
    protocol: str = "both"
    repeats: int = 10
    seed: int = 0
    auction_size: int = 256
    every: float = 0.25
    l2: float = 0.0
    embeddings: str = "lazy"
    rows: int | None = None
    world: str = "shared_tail"
    epochs: float | None = None
    steps: int | None = None
    first_order: bool = False
    sums: bool = False
    schedule: str = "constant"
    batch_size: int | None = None
    lams: tuple[float, ...] = LAMS
    lam_repeats: int | None = None
    precision: str = "float32"
    ads: int = 0

    def __post_init__(self) -> None:
        for argument, names, known in (("models", self.models, tuple(MODELS)), ("losses", self.losses, LOSSES)):
            for name in names:
                check_name(argument, name, known)
        for name in ("models", "losses", "lams"):
            if not getattr(self, name):
                raise InputError("must name at least one, found none", argument=name)
        object.__setattr__(self, "models", tuple(dict.fromkeys(self.models)))
        asked = (BASELINE, *self.losses)  # what all others are compared with, and their teacher
        object.__setattr__(self, "losses", tuple(loss for loss in LOSSES if loss in asked))
        for name, choices in CHOICES.items():
            check_name(name, getattr(self, name), choices)
        check_wholes(self, auction_size=2, rows=10, batch_size=2, lam_repeats=1, steps=1)
        for name in ("steps", "first_order"):
            if getattr(self, name) and "dcn" not in self.models:
                raise InputError("is of dcn, which {} leaves out; remove it", argument=name, others=("models",))
        if self.steps is not None and self.epochs is not None:
            raise InputError("cannot be combined with {}; remove one", argument="steps", others=("epochs",))
        if self.lam_repeats is not None and self.lam_repeats > self.repeats:
            message = f"must be at most {{}}, {self.repeats}, found {self.lam_repeats}"
            raise InputError(message, argument="lam_repeats", others=("repeats",))
        for name, value in (("every", self.every), ("epochs", self.epochs), *(("lams", lam) for lam in self.lams)):
            if value is not None:
                check_positive(name, value)
        check_positive("l2", self.l2, or_zero=True)

    @property
    def protocols(self) -> tuple[str, ...]:
        """Those that are run."""
        return ("converged", "tuned") if self.protocol == "both" else (self.protocol,)

    @property
    def trying_lams(self) -> range:
        """The repeats that train every lam."""
        return range(self.repeats if self.lam_repeats is None else self.lam_repeats)

    def lams_of(self, loss: str, protocol: str) -> Sequence[float | None]:
        """The lam that a protocol tries; losses without one have ``None``."""
        if not has_lam(loss):
            return (None,)
        return (self.lam,) if protocol == "converged" else self.lams

    def recipe(self, model: str, loss: str = BASELINE, lam: float | None = None, teacher: str | None = None) -> Recipe:
        """How a model is trained; docs/results/paper.md lists what differs from the paper."""
        batch_size, epochs = PAPER_SETTINGS[model]
        batch_size, epochs = self.batch_size or batch_size, self.epochs or epochs
        if model == "dcn" and self.steps is not None:
            epochs = self.steps / -(-self.ads // batch_size)
        names = ("sigma", "schedule", "every", "l2", "embeddings", "precision")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        options |= {"epochs": epochs, "batch_size": batch_size, "sums": self.sums}
        if model == "dcn" and self.first_order:
            options["options"] = {"first_order": True}
        return Recipe(loss=loss, lam=lam, unit=1.0, teacher=teacher, model=model, **options)


def as_printed(config: CriteoConfig) -> CriteoConfig:
    """The given options, completed by :data:`AS_PRINTED` where it goes with them."""
    of_dcn = {"steps", "first_order"} if "dcn" not in config.models else {"steps"} if config.epochs else set()
    printed: CriteoConfig = with_preset(config, {k: x for k, x in AS_PRINTED.items() if k not in of_dcn})
    return printed


@dataclass(frozen=True, kw_only=True)
class AdsOfRun:
    """The ads that a run trained and tested on."""

    name: str
    splits: dict[str, int]
    click_rate: float
    about: dict[str, Any]  # how they and their bids were made, and how many values all fields have
    optimal_welfare: float = math.nan  # expected, where the true CTR is known

    @property
    def known_ctr(self) -> bool:
        """Whether the ads are simulated."""
        return math.isfinite(self.optimal_welfare)


@dataclass(frozen=True, kw_only=True)
class LossResult:
    """A loss on the test auctions: means over repeats with standard errors, and what was selected on validation ads.

    Expected welfare is NaN for ads of unknown CTR. ``difference`` is main welfare − the log loss model's,
    ``calibrated`` the same after Platt scaling of both models on validation clicks; ``None`` for the log loss.
    """

    welfare: float
    welfare_error: float = math.nan
    expected_welfare: float = math.nan
    expected_welfare_error: float = math.nan
    auc: float
    auc_error: float = math.nan
    log_loss: float
    log_loss_error: float = math.nan
    difference: Difference | None
    calibrated: Difference | None = None
    epoch: float = math.nan  # mean over repeats; NaN if the last weights are taken
    lam: tuple[float, ...] = ()  # of each repeat

    @property
    def main_welfare(self) -> float:
        """Expected welfare, which varies less by chance, where it is known; else realised welfare."""
        return self.welfare if math.isnan(self.expected_welfare) else self.expected_welfare


@dataclass(frozen=True)
class Protocol:
    """The losses of a protocol, the log loss among them."""

    losses: dict[str, LossResult]

    def gain(self, loss: str, *, calibrated: bool = False) -> Difference:
        """Difference to the log loss as a share of its welfare."""
        found = self.losses[loss]
        difference = found.calibrated if calibrated else found.difference
        assert difference is not None, "of the log loss to itself"
        return difference / self.losses[BASELINE].main_welfare


@dataclass(frozen=True)
class ModelResult:
    """Everything of one model."""

    batch_size: int
    epochs: float
    steps: int
    protocols: dict[str, Protocol]


@dataclass(frozen=True, kw_only=True)
class CriteoResult:
    """What a run found."""

    kind: ClassVar[str] = "criteo"
    format: ClassVar[int] = 6

    version: str = bidwise.__version__
    config: CriteoConfig
    data: AdsOfRun
    models: dict[str, ModelResult]

    @property
    def protocols(self) -> list[tuple[str, str, Protocol]]:
        """Every model, protocol and what it found."""
        return [(name, key, found) for name, model in self.models.items() for key, found in model.protocols.items()]
