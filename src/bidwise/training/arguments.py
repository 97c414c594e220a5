"""What :func:`bidwise.fit` refuses before the first step, each with a word on what it should have been."""

from __future__ import annotations

import inspect

from torch import nn

from bidwise.checks import InputError
from bidwise.data.ads import Ads

COLUMNS = ("logits", "clicks", "bids", "offsets", "teacher")  # what a loss is called with, in this order


def check_parts(model: object, train: object, valid: object) -> None:
    """Raise unless model and ads are what they should be."""
    if not isinstance(model, nn.Module):
        found = f"the class {model.__name__}; make one of it" if isinstance(model, type) else type(model).__name__
        raise InputError(f"model must be a torch.nn.Module, found {found}")
    for name, ads in (("train", train), ("valid", valid)):
        if not isinstance(ads, Ads) and (name == "train" or ads is not None):
            raise InputError(
                f"{name} must be Ads, found {type(ads).__name__}; use bidwise.data.Ads(features, clicks, bids)"
            )


def check_loss(loss: object, *, weighted: bool) -> None:
    """Raise unless ``loss`` can be called as losses are, and will read its arguments as they are meant."""
    if not callable(loss):
        raise InputError(f"loss must be a name or a function, found {type(loss).__name__}")
    if isinstance(loss, type):
        raise InputError(f"loss must be a name or a function, found the class {loss.__name__}; make one of it")
    wanted = ", ".join((*COLUMNS, "weights=") if weighted else COLUMNS)
    why = ", the last because train has weights" if weighted else ""
    fix = "wrap it in a function that takes these and passes on what it needs"
    if (getattr(loss, "__module__", None) or "").startswith("torch.nn.functional"):  # would take bids for its options
        raise InputError(f"loss must take ({wanted}){why}, found torch's {getattr(loss, '__name__', 'own')}; {fix}")
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):  # of a function that does not tell
        return
    try:
        signature.bind(*COLUMNS, **({"weights": None} if weighted else {}))
    except TypeError:
        found = " ".join(str(signature).split())
        raise InputError(f"loss must take ({wanted}){why}, found {found}; {fix}") from None
    names = [name for name, part in signature.parameters.items() if part.kind is not part.KEYWORD_ONLY]
    for name, meant in zip(names, COLUMNS, strict=False):
        if name != meant and name in (*COLUMNS, "weights"):
            raise InputError(f"loss must take ({wanted}) in this order, found {name} in the place of {meant}; {fix}")
