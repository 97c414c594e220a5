"""Boosted trees over categories, as a module: what serves, calibrates and averages networks does the same with them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.checks import InputError, check_positive, check_whole


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

    Rates are a buffer and the trees, as LightGBM writes them, are the extra state: ``state_dict`` has all of it.

    Args:
        cardinalities: how many values each field has.
        leaves: of a tree.
        smooth: ads that the mean click rate counts in the rate of a value.
        seed: as other models have one; the folds that rates are made out of are drawn by the seed of the training.
    """

    rates: Tensor
    starts: Tensor
    sizes: Tensor

    def __init__(self, cardinalities: Sequence[int], *, leaves: int = 8, smooth: float = 100.0, seed: int = 0) -> None:
        super().__init__()
        check_whole("leaves", leaves, 2)
        check_positive("smooth", smooth)
        lightgbm()
        self.leaves, self.smooth, self.seed = leaves, smooth, seed
        self.bias = nn.Parameter(torch.zeros(()))
        self.register_buffer("rates", torch.zeros(sum(cardinalities), dtype=torch.float64))
        self.register_buffer("starts", torch.tensor([0, *accumulate(cardinalities)][:-1]), persistent=False)
        self.register_buffer("sizes", torch.tensor(list(cardinalities)), persistent=False)
        self.trees = ""
        self._booster: Any = None

    def codes(self, features: Tensor) -> Tensor:
        """Where the rate of every value stands, ``(ads, fields)``."""
        if bool(((features < 0) | (features >= self.sizes)).any()):
            raise InputError(f"must be ids from 0 to below {self.sizes.tolist()}, found others", argument="features")
        return features.long() + self.starts

    def grow(self, trees: str) -> None:
        """Take these trees, in LightGBM's words."""
        self.trees, self._booster = trees, None

    def forward(self, features: Tensor) -> Tensor:
        """Logits of ads by their ids ``(ads, fields)``; without a gradient."""
        if not self.trees or not len(features):
            return self.bias.detach().expand(len(features))
        if self._booster is None:
            self._booster = lightgbm().Booster(model_str=self.trees)
        scores = self._booster.predict(
            self.rates[self.codes(features)].cpu().numpy(), raw_score=True, num_threads=torch.get_num_threads()
        )
        return self.bias.detach() + torch.from_numpy(scores).to(self.bias)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(list(self.trees.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        self.grow(bytes(state.tolist()).decode())
