"""What the Criteo experiment trains: its options, and one trial for each model, repeat, loss and lam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bidwise.checks import MOST_SEED, InputError, check_name, check_positive, check_whole
from bidwise.losses.named import needs_teacher
from bidwise.paper.criteo.trial import LAM, SETTINGS, Setting, Trial
from bidwise.study.contest import has_lam
from bidwise.training.adam import UPDATES
from bidwise.training.arguments import PRECISIONS

LOSSES = ("log_loss", "log_weighted", "log_teacher", "log_plus", "log_plus_teacher", "distilled")
LAMS = (0.1, 1.0, 3.0, 5.0, 10.0)  # the paper's
PROTOCOLS = ("converged", "tuned", "both")
Lams = Mapping[tuple[str, str], float]  # (model, loss) -> the lam that was chosen


@dataclass(frozen=True)
class Config:
    """The options of a run; two runs with the same ones on the same data give the same numbers.

    Args:
        rows: ads to simulate on the device, in place of a store; ``None`` takes the store.
        batch_size: ads in a batch; ``None``: as many as the paper has for each model.
        lam_repeats: lam is chosen once, by validation welfare summed over the first so many repeats, which alone train
            every lam; ``None``: each repeat trains every lam and chooses its own.
        precision: of the training, ``float32`` or ``mixed``.
    """

    models: tuple[str, ...] = ("deepfm", "dcn")
    losses: tuple[str, ...] = LOSSES
    protocol: str = "both"
    repeats: int = 10
    seed: int = 0
    auction_size: int = 256
    cuts: int = 10
    every: float = 0.25
    l2: float = 0.0
    embeddings: str = "lazy"
    rows: int | None = None
    batch_size: int | None = None
    lam_repeats: int | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        for argument, names, known in (("models", self.models, SETTINGS), ("losses", self.losses, LOSSES)):
            for name in names:
                check_name(argument, name, known)
            if not names:
                raise InputError(f"must name at least one of {', '.join(known)}, found none", argument=argument)
        object.__setattr__(self, "models", tuple(dict.fromkeys(self.models)))
        asked = ("log_loss", *self.losses)  # what all others are compared with, and their teacher
        object.__setattr__(self, "losses", tuple(loss for loss in LOSSES if loss in asked))
        check_name("protocol", self.protocol, PROTOCOLS)
        check_name("embeddings", self.embeddings, UPDATES)
        for name, least, most in (
            ("repeats", 1, 1000),
            ("seed", 0, MOST_SEED),
            ("auction_size", 2, None),
            ("cuts", 1, 100),
            ("rows", 10, None),
            ("batch_size", 2, None),
            ("lam_repeats", 1, None),
        ):
            found = getattr(self, name)
            if found is None and name in ("rows", "batch_size", "lam_repeats"):
                continue
            check_whole(name, found, least)
            if most is not None and found > most:
                raise InputError(f"{name} must be at most {most}, found {found}")
        if self.lam_repeats is not None and self.lam_repeats > self.repeats:
            raise InputError(
                f"must be at most repeats, {self.repeats}, found {self.lam_repeats}", argument="lam_repeats"
            )
        check_name("precision", self.precision, PRECISIONS)
        check_positive("every", self.every)
        check_positive("l2", self.l2, or_zero=True)

    @property
    def protocols(self) -> tuple[str, ...]:
        """Those that are run."""
        return ("converged", "tuned") if self.protocol == "both" else (self.protocol,)

    @property
    def stated(self) -> dict[str, Any]:
        """What a run folder is found again by; options at defaults that older folders do not know are left out."""
        return {**asdict(self), "precision": None if self.precision == "float32" else self.precision}

    @property
    def tried(self) -> range:
        """The repeats that train every lam."""
        return range(self.repeats if self.lam_repeats is None else self.lam_repeats)

    def setting(self, model: str) -> Setting:
        """How a model is trained: the paper's way, but for the batch size where one is given."""
        paper = SETTINGS[model]
        return paper if self.batch_size is None else Setting(self.batch_size, paper.epochs)


def planned(config: Config, lams: Lams | None = None) -> list[Trial]:
    """All that is trained: every loss with lam = 3 and the last teacher, and with every lam and the best teacher.

    Args:
        lams: what was chosen on the first repeats, where ``lam_repeats`` says so. Without it the plan leaves out what
            depends on the choice.

    >>> config = Config(models=("deepfm",), losses=("log_plus",), protocol="tuned", repeats=3, lam_repeats=1)
    >>> [trial.name for trial in planned(config, {("deepfm", "log_plus"): 5.0})][-4:]
    ['deepfm-01-log_loss', 'deepfm-01-log_plus-5', 'deepfm-02-log_loss', 'deepfm-02-log_plus-5']
    >>> len(planned(config))
    8
    """
    trials: dict[Trial, None] = {}
    for model in config.models:
        for repeat in range(config.repeats):
            for protocol in config.protocols:
                for loss in config.losses:
                    tried = lams_of(loss, protocol)
                    if repeat not in config.tried and len(tried) > 1:
                        tried = (lams[model, loss],) if lams is not None else ()
                    for lam in tried:
                        trials[trial_of(model, repeat, loss, lam, protocol)] = None
    return list(trials)


def work(config: Config) -> int:
    """Trainings of a run, at most: the chosen lam may be one that is trained anyway."""
    return len(planned(config, {(model, loss): LAMS[0] for model in config.models for loss in config.losses}))


def lams_of(loss: str, protocol: str) -> Sequence[float | None]:
    """The lam that a protocol tries."""
    if not has_lam(loss):
        return (None,)
    return (LAM,) if protocol == "converged" else LAMS


def trial_of(model: str, repeat: int, loss: str, lam: float | None, protocol: str) -> Trial:
    """The training that a protocol takes a loss from; without a teacher one serves both."""
    by = {"converged": "last", "tuned": "welfare"}[protocol]
    return Trial(model, repeat, loss, lam, by if needs_teacher(loss) else None)
