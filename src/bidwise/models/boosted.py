"""Boosted trees over categories, as a module: what serves, calibrates and averages networks does the same with them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.checks import InputError, check_positive, check_whole
from bidwise.models.bags import Values, folded, values_and_slots


def lightgbm() -> Any:
    """The library, which is no dependency."""
    try:
        import lightgbm as found
    except ImportError:
        raise InputError(
            "must be installed to be used, found no lightgbm; pip install lightgbm", argument="model"
        ) from None
    return found


class BoostedTrees(nn.Module):
    """LightGBM over the smoothed click rate of every value of every field; `training.trees.fit_trees` trains it.

        logit = bias + sum of trees(rates),   rate of a value = (clicks + smooth * mean) / (ads + smooth)

    The rate of a bag is the mean over its values. Rates are a buffer and the trees, as LightGBM writes them, are the
    extra state: ``state_dict`` has all of it.

    Args:
        cardinalities: how many values each field has, ``(values, slots)`` of a bag.
        leaves: of a tree.
        smooth: ads that the mean click rate counts in the rate of a value.
        seed: as other models have one; the folds that rates are made out of are drawn by the seed of the training.
    """

    rates: Tensor
    starts: Tensor
    sizes: Tensor

    def __init__(
        self, cardinalities: Sequence[Values], *, leaves: int = 8, smooth: float = 100.0, seed: int = 0
    ) -> None:
        super().__init__()
        check_whole("leaves", leaves, 2)
        check_positive("smooth", smooth)
        lightgbm()
        self.leaves, self.smooth, self.seed = leaves, smooth, seed
        self.bias = nn.Parameter(torch.zeros(()))
        values, self.slots = values_and_slots(cardinalities)
        self.register_buffer("rates", torch.zeros(sum(values), dtype=torch.float64))
        columns = torch.tensor(self.slots)  # of each field
        for name, numbers in {"starts": [0, *accumulate(values)][:-1], "sizes": values}.items():
            self.register_buffer(name, torch.tensor(numbers).repeat_interleave(columns), persistent=False)
        self.trees = ""
        self._booster: Any = None

    def codes(self, features: Tensor) -> Tensor:
        """Where the rate of every value stands, ``(ads, columns)``."""
        if bool(((features < 0) | (features >= self.sizes)).any()):
            raise InputError(f"must be ids from 0 to below {self.sizes.tolist()}, found others", argument="features")
        return features.long() + self.starts

    def inputs(self, rates: Tensor, features: Tensor) -> Tensor:
        """What trees see, ``(ads, fields)``, of the rates of all columns."""
        return rates if max(self.slots) == 1 else folded(rates[..., None], features, self.slots)[..., 0]

    def grow(self, trees: str) -> None:
        """Take these trees, in LightGBM's words."""
        self.trees, self._booster = trees, None

    def forward(self, features: Tensor) -> Tensor:
        """Logits of ads by their ids ``(ads, columns)``; without a gradient."""
        if not self.trees or not len(features):
            return self.bias.detach().expand(len(features))
        if self._booster is None:
            self._booster = lightgbm().Booster(model_str=self.trees)
        inputs = self.inputs(self.rates[self.codes(features)], features).cpu().numpy()
        scores = self._booster.predict(inputs, raw_score=True, num_threads=torch.get_num_threads())
        return self.bias.detach() + torch.from_numpy(scores).to(self.bias)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(list(self.trees.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        self.grow(bytes(state.tolist()).decode())
