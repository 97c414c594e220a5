"""What the Criteo experiment trains: its options, and one trial for each model, repeat, loss and lam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bidwise.checks import InputError, check_name, check_positive, check_whole
from bidwise.experiments.contest import MOST_SEED, has_lam
from bidwise.experiments.criteo.trial import LAM, SETTINGS, Trial
from bidwise.losses.welfare_loss import needs_teacher
from bidwise.training.adam import UPDATES

LOSSES = ("log_loss", "log_weighted", "log_teacher", "log_plus", "log_plus_teacher", "distilled")
LAMS = (0.1, 1.0, 3.0, 5.0, 10.0)  # the paper's
PROTOCOLS = ("converged", "tuned", "both")


@dataclass(frozen=True)
class Config:
    """The options of a run; two runs with the same ones on the same store give the same numbers."""

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

    def __post_init__(self) -> None:
        for argument, names, known in (("models", self.models, SETTINGS), ("losses", self.losses, LOSSES)):
            for name in names:
                check_name(argument, name, known)
            if not names:
                raise InputError(f"{argument} must name at least one of {', '.join(known)}, found none")
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
        ):
            check_whole(name, getattr(self, name), least)
            if most is not None and getattr(self, name) > most:
                raise InputError(f"{name} must be at most {most}, found {getattr(self, name)}")
        check_positive("every", self.every)
        check_positive("l2", self.l2, or_zero=True)

    @property
    def protocols(self) -> tuple[str, ...]:
        """Those that are run."""
        return ("converged", "tuned") if self.protocol == "both" else (self.protocol,)


def planned(config: Config) -> list[Trial]:
    """All that is trained: every loss with lam = 3 and the last teacher, and with every lam and the best teacher."""
    trials: dict[Trial, None] = {}
    for model in config.models:
        for repeat in range(config.repeats):
            for protocol in config.protocols:
                for loss in config.losses:
                    for lam in lams_of(loss, protocol):
                        trials[trial_of(model, repeat, loss, lam, protocol)] = None
    return list(trials)


def lams_of(loss: str, protocol: str) -> Sequence[float | None]:
    """The lam that a protocol tries."""
    if not has_lam(loss):
        return (None,)
    return (LAM,) if protocol == "converged" else LAMS


def trial_of(model: str, repeat: int, loss: str, lam: float | None, protocol: str) -> Trial:
    """The training that a protocol takes a loss from; without a teacher one serves both."""
    by = {"converged": "last", "tuned": "welfare"}[protocol]
    return Trial(model, repeat, loss, lam, by if needs_teacher(loss) else None)
