"""A recipe of training: a model, a loss with its options, its labels and its schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import nn

from bidwise.data.ads import Ads
from bidwise.losses.named import LOSSES, WelfareLoss, named_loss, needs_teacher
from bidwise.models import MODELS
from bidwise.models.categorical import SparseLogisticRegression
from bidwise.models.embeddings import Values
from bidwise.training import Fit, fit
from bidwise.training.arguments import Options
from bidwise.training.exact import fit_exact, solvable

EXACT = "exact"
ROUGHLY = 5.0  # l2 times ads, of a regression that cannot be solved
BASELINE = "log_loss"  # every other loss is compared with it; the teacher of losses that need one


@dataclass(frozen=True)
class Recipe:
    """One training, but for its ads and its seed.

    Args:
        loss: a name in :data:`bidwise.LOSSES`.
        lam, sigma, unit: of a loss over pairs; ``None``: the named loss's own.
        sums: sums over ads and pairs, as the paper prints its losses, instead of means.
        teacher: which model's CTR a loss with a teacher learns from, in the words of the study.
        click_share: share of the click in a teacher's labels: 0.5 is half the click, half the teacher's CTR.
        members: models that are trained alike but for their seeds, and served as their mean logit.
        model: a name in :data:`bidwise.models.MODELS`, or one that the study knows how to build.
        options: of the model.
        embeddings: ``lazy`` or ``dense`` updates by Adam, or ``exact``: the optimum of a logistic regression with a log
            loss, for which batches, rate and epochs have no meaning; other models are updated lazily.
        l2: ``None``, of an exact solution: a penalty for each column, found from the training ads.
        crosses: the model sees combinations of columns, if the store has them.
        beside: serve the mean logit of the model and of a solved regression, :data:`SOLVED`.
    """

    loss: str = BASELINE
    lam: float | None = None
    sigma: float | None = None
    unit: float | None = None
    sums: bool = False
    teacher: str | None = None
    click_share: float = 0.0
    members: int = 1
    model: str = "deepfm"
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    epochs: float = 10
    batch_size: int = 256
    learning_rate: float = 1e-3
    schedule: str = "constant"
    patience: float | None = None
    every: float = 1
    l2: float | None = 0.0
    embeddings: str = "lazy"
    precision: str = "float32"
    clip: float | None = None
    crosses: bool = False
    beside: bool = False

    @property
    def needs_teacher(self) -> bool:
        return needs_teacher(self.loss)

    @property
    def solved(self) -> bool:
        """Whether it has a single optimum, which is found without batches."""
        return self.embeddings == EXACT and not has_lam(self.loss)

    @property
    def parts(self) -> list[Recipe]:
        """The trainings behind the served mean logit."""
        return [replace(self, members=1, beside=False)] * self.members + [SOLVED] * self.beside

    @property
    def loss_function(self) -> nn.Module:
        """The loss as a module."""
        loss = named_loss(self.loss, lam=self.lam, sigma=self.sigma, unit=self.unit)
        if self.sums and isinstance(loss, WelfareLoss):
            return loss.with_options(reduction="sum", pair_mean=None)
        return loss

    def build(self, cardinalities: Sequence[Values], seed: int) -> nn.Module:
        """The untrained model over categories."""
        return MODELS[self.model](list(cardinalities), **self.options, seed=seed)

    def fit(
        self,
        model: nn.Module,
        ads: Ads,
        *,
        loss: nn.Module | None = None,
        show: Callable[[float], None] = lambda share: None,
        **options: Any,
    ) -> Fit:
        """Train ``model`` by this recipe, with further ``options`` of :func:`bidwise.fit`: ``valid``, ``metric``,
        ``seed``, ``out``; ``show`` is called with the share of the epochs that is done."""
        function = loss or self.loss_function
        prior = options.pop("prior", None)
        if self.solved and solvable(model, function):  # fast enough to start again after a kill
            assert isinstance(model, SparseLogisticRegression)
            options = {name: value for name, value in options.items() if name in ("valid", "metric")}
            return fit_exact(model, ads, loss=function, l2=self.l2, prior=prior, show=show, **options)
        options |= {f.name: getattr(self, f.name) for f in fields(Options)}
        options["embeddings"] = "lazy" if self.embeddings == EXACT else self.embeddings
        options["l2"] = ROUGHLY / len(ads) if self.l2 is None else self.l2

        def progress(epoch: float) -> None:
            show(min(1.0, epoch / self.epochs))

        return fit(model, ads, loss=function, **options, progress=progress)


#: The regression that is solved: one penalty for each column, combinations of columns included.
SOLVED = Recipe(
    model="logistic_regression",
    embeddings=EXACT,
    l2=None,
    crosses=True,
    epochs=4,  # and the rest, if it has too many weights to be solved
    batch_size=4096,
    learning_rate=1e-2,
    schedule="cosine",
)


def has_lam(loss: str) -> bool:
    """Whether a loss is a rank term plus lam times the log loss."""
    return isinstance(LOSSES[loss], WelfareLoss)
