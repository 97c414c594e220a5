"""The composite that is trained: a rank term on eCPM plus lam times the log loss, the named losses, many as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.checks import InputError, Named, check_name, check_not_negative, check_positive
from bidwise.losses.api import check_batch, composite_loss, cross_entropy, kernel_log_loss
from bidwise.losses.definition import VALUES, LossInputs, PairOptions
from bidwise.losses.dispatch import on_kernels
from bidwise.segments import Auctions


class WelfareLoss(nn.Module):
    """Rank term plus lam times the log loss: drop-in for a log loss.

    ``reduction="mean"``: mean over auctions of L / n^2 + lam * mean over ads of the log loss.
    ``reduction="sum"``: sum of L + lam * sum of the log loss, the literal sums of the paper, not divided by n^2.
    ``unit``: the rank term divides bids by it. ``"batch"``, their mean in this batch, makes loss and gradient
    independent of the currency, so that lam, sigma and kappa mean the same everywhere; 1.0 leaves bids unchanged, as
    the paper does.
    See :func:`bidwise.pairwise_welfare_loss` for the other options. Shapes too: with leading dimensions the
    result has one loss per repeat, and ``lam`` may be a tensor that broadcasts over them: many lam trained at once.

    >>> logits, clicks, bids = torch.zeros(3), torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 0.5])
    >>> loss = WelfareLoss(lam=3.0)
    >>> loss(logits, clicks, bids), loss(logits, clicks, 1000 * bids)
    (tensor(2.2244), tensor(2.2244))
    """

    static = True

    def __init__(
        self,
        *,
        value: str = "clicks",
        gap: str = "positive",
        surrogate: str = "logistic",
        sigma: float = 1.0,
        weighting: float | None = None,
        lam: float | Tensor = 3.0,
        unit: float | str = "batch",
        pair_mean: bool | None = None,
        reduction: str = "mean",
        method: str = "auto",
        validate: bool | None = None,
    ) -> None:
        super().__init__()
        check_name("reduction", reduction, ("sum", "mean"))
        if isinstance(lam, Tensor):
            check_not_negative("lam", lam)
        else:
            check_positive("lam", lam, or_zero=True)
        if isinstance(unit, str) and unit != "batch":
            raise InputError(f"must be 'batch' or a number, found {unit!r}", argument="unit")
        if not isinstance(unit, str):
            check_positive("unit", unit)
        if pair_mean is None:
            pair_mean = reduction == "mean"
        self.options = PairOptions(value, gap, surrogate, sigma, weighting, pair_mean, reduction, method, validate)
        self.unit = unit
        self.lam: float | Tensor
        if isinstance(lam, Tensor):
            self.register_buffer("lam", lam.detach().clone())  # of no other loss
        else:
            self.lam = lam

    @property
    def log_losses(self) -> float | Tensor:
        """How many log losses there are in the loss: `fit` counts an L2 penalty for each."""
        return self.lam

    def forward(
        self,
        logits: Tensor,
        clicks: Tensor,
        bids: Tensor,
        offsets: Tensor | None = None,
        teacher: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch; see :func:`bidwise.pairwise_welfare_loss` for the arguments.

        ``weights`` say how much each ad counts: the log loss of an ad counts its weight, the rank term of an auction
        the mean weight of its ads.
        """
        batch, options = LossInputs(logits, clicks, bids, offsets, teacher), self.options
        if weights is None and not isinstance(self.lam, Tensor):
            return composite_loss(batch, options, self.lam, unit=self.unit)
        if weights is None:
            rank = composite_loss(batch, options, unit=self.unit)
        else:
            check_batch(batch._replace(weights=weights), options.validate, options.needs_teacher)
            rank = composite_loss(batch, replace(options, reduction="none", validate=False), unit=self.unit)
            weights = weights.detach().to(rank.dtype)
            rank = rank * _auction_means(weights, offsets)
            rank = rank.sum(-1) if options.reduction == "sum" else rank.sum(-1) / max(rank.shape[-1], 1)
        return rank + self.lam * cross_entropy(logits, clicks, weights, options.reduction)

    def with_options(self, **changes: Any) -> WelfareLoss:
        """The same loss with other options, ``lam`` among them."""
        return WelfareLoss(**(vars(self.options) | {"lam": self.lam, "unit": self.unit} | changes))

    def extra_repr(self) -> str:
        words = ", ".join(f"{name}={option!r}" for name, option in vars(self.options).items())
        lam = self.lam.flatten().tolist() if isinstance(self.lam, Tensor) else self.lam
        return f"{words}, lam={lam}, unit={self.unit!r}"


_PAPER = partial(WelfareLoss, gap="signed", unit=1.0)


class BidWeightedLogLoss(nn.Module):
    """Log loss weighted by bids ** ``power``: the pointwise losses, called as :class:`WelfareLoss` is.

    Power 0 is the log loss, 1 and 1/2 are the paper's weighted baselines. ``value="teacher"`` takes the teacher's CTR
    as soft labels: plain distillation, the control for losses that use a teacher. With a power the loss is in a power
    of the currency: bids that are 100 times as large multiply loss and gradient by 100 ** ``power``. Divide bids by
    their mean if a term such as an L2 penalty is added to the loss, or if the optimizer is not Adam.

    >>> logits, clicks, bids = torch.zeros(2), torch.tensor([1.0, 0.0]), torch.tensor([1.0, 3.0])
    >>> BidWeightedLogLoss(power=1.0)(logits, clicks, bids)
    tensor(1.3863)
    """

    static = True

    def __init__(
        self, *, power: float = 0.0, value: str = "clicks", reduction: str = "mean", validate: bool | None = None
    ) -> None:
        super().__init__()
        check_name("value", value, VALUES)
        check_name("reduction", reduction, ("sum", "mean"))
        self.power, self.value, self.reduction, self.validate = power, value, reduction, validate

    def forward(
        self,
        logits: Tensor,
        clicks: Tensor,
        bids: Tensor,
        offsets: Tensor | None = None,
        teacher: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch; ``offsets`` are checked and otherwise ignored."""
        needs_teacher = 'value="teacher"' if self.value == "teacher" else None
        check_batch(LossInputs(logits, clicks, bids, offsets, teacher, weights), self.validate, needs_teacher)
        labels = clicks if teacher is None or needs_teacher is None else teacher
        if self.power != 0:
            worth = bids.to(torch.promote_types(logits.dtype, torch.float32))
            worth = worth if self.power == 1 else worth**self.power
            weights = worth if weights is None else worth * weights
        if logits.is_cuda and not torch.compiler.is_compiling() and on_kernels(logits):
            return kernel_log_loss(LossInputs(logits, labels, bids, weights=weights), self.reduction)
        return cross_entropy(logits, labels, weights, self.reduction)

    def extra_repr(self) -> str:
        return f"power={self.power}, value={self.value!r}, reduction={self.reduction!r}"


_MAKERS: Named[Callable[[], nn.Module]] = Named(
    "loss",
    {
        "log_loss": BidWeightedLogLoss,  # Appendix B
        "bid_weighted": partial(BidWeightedLogLoss, power=1.0),  # Appendix B
        "sqrt_bid_weighted": partial(BidWeightedLogLoss, power=0.5),  # Appendix B
        "distilled": partial(BidWeightedLogLoss, value="teacher"),  # ours: the control for losses with a teacher
        "log": partial(_PAPER),  # equation 5
        "log_weighted": partial(_PAPER, weighting=3.0),  # equation 5 with the weights of Section 4.2
        "hinge": partial(_PAPER, surrogate="hinge"),  # equation 6
        "ranknet": partial(_PAPER, gap="order"),  # the classic baseline, only the order of values
        "log_teacher": partial(_PAPER, value="teacher", weighting=3.0),  # equation 5 with a teacher, Section 4.2
        "log_teacher_unweighted": partial(_PAPER, value="teacher"),  # equation 5 with a teacher and no weights
        "hinge_plus_teacher": partial(  # equation 7
            _PAPER, value="teacher", gap="positive", surrogate="hinge", weighting=3.0
        ),
        "log_plus": WelfareLoss,  # ours: equation 13 with the logistic surrogate
        "log_plus_teacher": partial(WelfareLoss, value="teacher"),  # ours: the same with a teacher
    },
)


class _Losses(Mapping[str, nn.Module]):
    def __getitem__(self, name: str) -> nn.Module:
        return _MAKERS[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(_MAKERS)

    def __len__(self) -> int:
        return len(_MAKERS)


#: The losses of the paper, its baselines and ours, by name, each built when it is looked up; sigma = 1, lam = 3,
#: kappa = 3 if weighted. A rank term is named after its equation; the composites add lam times the log loss, as
#: Appendices B and C do. ``log_plus`` and ``log_plus_teacher`` divide bids by their mean in the batch; the others take
#: them unchanged, like the paper.
LOSSES: Mapping[str, nn.Module] = _Losses()


def _auction_means(weights: Tensor, offsets: Tensor | None) -> Tensor:
    """Mean weight of the ads of each auction, ``(..., ads) -> (..., auctions)``; of an empty one 0."""
    if offsets is None:
        return weights.sum(-1, keepdim=True) / max(weights.shape[-1], 1)
    auctions = Auctions.of(weights, offsets)
    means = auctions.sum(weights.reshape(-1)) / auctions.sizes.clamp(min=1)
    return means.view(*weights.shape[:-1], -1)


def needs_teacher(loss: object) -> bool:
    """Whether a loss, or the named one, looks at a teacher's CTR; losses of others are not known to.

    >>> needs_teacher("log_teacher"), needs_teacher(WelfareLoss())
    (True, False)
    """
    found = LOSSES.get(loss) if isinstance(loss, str) else loss
    if isinstance(found, WelfareLoss):
        return found.options.needs_teacher is not None
    return isinstance(found, BidWeightedLogLoss) and found.value == "teacher"


def named_loss(name: str, **options: Any) -> nn.Module:
    """A loss by name, with other options of a :class:`WelfareLoss` if they are not ``None`` and the loss is one.

    >>> named_loss("log_plus", lam=0.1, sigma=None).lam, named_loss("log_loss", lam=0.1)
    (0.1, BidWeightedLogLoss(power=0.0, value='clicks', reduction='mean'))
    """
    loss = LOSSES[name]
    if not isinstance(loss, WelfareLoss):
        return loss
    return loss.with_options(**{key: option for key, option in options.items() if option is not None})


def single_loss(loss: str | nn.Module) -> WelfareLoss | BidWeightedLogLoss:
    """A loss of bidwise with one lam, by name or as an object."""
    found = LOSSES[loss] if isinstance(loss, str) else loss
    if not isinstance(found, WelfareLoss | BidWeightedLogLoss) or isinstance(getattr(found, "lam", 0), Tensor):
        expected = "a name, a WelfareLoss with one lam or a BidWeightedLogLoss"
        raise InputError(f"must be {expected}, found {loss!r}", argument="loss")
    return found


def unchecked(loss: Any) -> Any:
    """The same loss without checks of values, for ads that were checked before; other losses unchanged.

    It also takes labels above 1: clicks that are corrected for the slot they were made in.
    """
    if not isinstance(loss, WelfareLoss | BidWeightedLogLoss):
        return loss
    copied = copy(loss)
    copied._buffers = {name: None if x is None else x.clone() for name, x in loss._buffers.items()}
    if isinstance(copied, WelfareLoss):
        copied.options = replace(copied.options, validate=False)
    else:
        copied.validate = False
    return copied


class Variants(nn.Module):
    """Losses of slices of the first member dimension, called as one loss.

    Args:
        losses: each with the number of members it trains: ``[(log_loss, 1), (WelfareLoss(lam=six), 6)]`` for logits
            ``(7, repeats, ads)``.

    >>> both = Variants([(LOSSES["log_loss"], 1), (LOSSES["log"], 2)])
    >>> both(torch.zeros(3, 5, 4), torch.zeros(3, 5, 4), torch.ones(3, 5, 4)).shape
    torch.Size([3, 5])
    """

    static = True

    def __init__(self, losses: Sequence[tuple[nn.Module, int]]) -> None:
        super().__init__()
        self.losses = nn.ModuleList(unchecked(loss) for loss, _ in losses)
        self.counts = [count for _, count in losses]

    def forward(
        self,
        logits: Tensor,
        clicks: Tensor,
        bids: Tensor,
        offsets: Tensor | None = None,
        teacher: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        if logits.shape[0] != sum(self.counts):
            raise InputError(f"logits must have {sum(self.counts)} variants first, found {tuple(logits.shape)}")
        parts = (torch.split(x, self.counts) for x in (logits, clicks, bids))
        others = ([None] * len(self.counts) if x is None else torch.split(x, self.counts) for x in (teacher, weights))
        rows = zip(self.losses, *parts, *others, strict=True)
        return torch.cat([loss(z, y, b, offsets, p, w) for loss, z, y, b, p, w in rows])

    def extra_repr(self) -> str:
        return f"counts={self.counts}"
