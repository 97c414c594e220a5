"""Arguments of :func:`bidwise.fit`: its options, and checks before the first step."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bidwise import distributed
from bidwise.checks import InputError, check_name, check_positive, check_whole
from bidwise.data.ads import Ads, fingerprint
from bidwise.losses.named import Variants
from bidwise.models.layers import BatchNorm
from bidwise.training.adam import UPDATES

_COLUMNS = ("logits", "clicks", "bids", "offsets", "teacher")  # arguments of a loss, in this order
SCHEDULES = ("constant", "cosine")
PRECISIONS = ("float32", "mixed")
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.batchnorm._LazyNormBase)
_RESHAPED = ("Squeeze", "View", "UnsafeView", "Select", "Reshape", "Transpose", "Clone")  # their names in autograd
_ROWS = 4096  # at least, by which ranks check that they have the same ads


@dataclass(frozen=True)
class Options:
    """The numbers of a run, checked."""

    epochs: float
    batch_size: int
    learning_rate: float
    schedule: str
    patience: float | None
    every: float
    embeddings: str = "lazy"
    l2: float = 0.0
    precision: str = "float32"
    clip: float | None = None

    def __post_init__(self) -> None:
        check_whole("batch_size", self.batch_size, 2)
        for name in ("epochs", "every", "learning_rate", "patience"):
            number = getattr(self, name)
            if number is not None or name != "patience":
                check_positive(name, number)
                object.__setattr__(self, name, float(number) if name == "learning_rate" else whole(number))
        check_name("schedule", self.schedule, SCHEDULES)
        check_name("embeddings", self.embeddings, UPDATES)
        check_name("precision", self.precision, PRECISIONS)
        check_positive("l2", self.l2, or_zero=True)
        if self.clip is not None:
            check_positive("clip", self.clip)


def check_parts(model: object, train: object, valid: object) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, found {_kind(model)}")
    if next(model.parameters(), None) is None:
        raise InputError("model must have parameters to train, found none")
    for name, ads in (("train", train), ("valid", valid)):
        if not isinstance(ads, Ads) and (name == "train" or ads is not None):
            raise InputError(f"{name} must be Ads, found {_kind(ads)}; use bidwise.data.Ads(features, clicks, bids)")


def _kind(thing: object) -> str:
    return f"the class {thing.__name__}; create an instance" if isinstance(thing, type) else type(thing).__name__


def check_loss(loss: object) -> None:
    """Raise unless ``loss`` is a function that takes its arguments in the order of :data:`_COLUMNS`, as far as seen."""
    if not callable(loss) or isinstance(loss, type):
        raise InputError(f"loss must be a name or a function, found {_kind(loss)}")
    wrong = (getattr(loss, "__module__", None) or "").startswith("torch.nn.functional")  # would take bids for weights
    try:
        parts = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
    except (TypeError, ValueError):  # a function without a signature
        return
    names = [part.name for part in parts if part.kind is not part.KEYWORD_ONLY]
    known = (*_COLUMNS, "weights")
    if wrong or any(name != meant and name in known for name, meant in zip(names, _COLUMNS, strict=False)):
        expected, found = ", ".join(_COLUMNS), ", ".join(names)
        raise InputError(f"loss must take ({expected}) in this order, found ({found}); wrap it in a function that does")


def log_losses(loss: object, members: torch.Size) -> Tensor:
    """How many log losses a loss contains, in a shape that broadcasts with ``members``; 1 if it does not state it.

    >>> import bidwise
    >>> log_losses(bidwise.WelfareLoss(lam=30.0), torch.Size()).item()
    30.0
    """
    if isinstance(loss, Variants):
        counts = (torch.Size([count, *members[1:]]) for count in loss.counts)
        return torch.cat([log_losses(part, own).expand(own) for part, own in zip(loss.losses, counts, strict=True)])
    number = torch.as_tensor(getattr(loss, "log_losses", 1.0), dtype=torch.float64, device="cpu")
    return torch.where(number > 0, number, 1.0)


def check_no_sigmoid(logits: Tensor) -> None:
    """Raise if a model returns the output of a sigmoid, reshaped or not."""
    node: Any = logits.grad_fn
    while node is not None and type(node).__name__.startswith(_RESHAPED) and node.next_functions:
        node = node.next_functions[0][0]
    if type(node).__name__.startswith("Sigmoid"):
        raise InputError("model must return logits, found the CTR that a sigmoid makes of them; leave the sigmoid out")


def check_ranks(model: nn.Module, train: Ads, valid: Ads | None, settings: dict[str, Any]) -> None:
    """Raise unless all ranks are about to train the same model on the same ads, in the same order."""
    if distributed.count() == 1:
        return
    for name, part in model.named_modules():
        if isinstance(part, _NORMS) and part.training and not isinstance(part, BatchNorm | nn.SyncBatchNorm):
            found = f"{type(part).__name__} as {name!r}; use bidwise.models.BatchNorm, or SyncBatchNorm on GPUs"
            raise InputError(f"model must norm by the ads of all ranks, found {found}")
    data = {"train": fingerprint(train, _ROWS), "valid": None if valid is None else fingerprint(valid, _ROWS)}
    distributed.check_ranks_agree(**settings, **data)


def whole(number: float) -> float:
    """A whole number as an int, so that it prints as one.

    >>> whole(3.0), whole(0.1 + 0.2)
    (3, 0.3)
    """
    if not isinstance(number, float):
        return number
    return int(number) if number.is_integer() else round(number, 10)


def one_line(value: Any) -> str:
    """The representation of ``value`` on one line, without addresses, which change from run to run."""
    return " ".join(re.sub(r" at 0x[0-9a-f]+", "", repr(value)).split())
