"""Which columns matter: the loss of a model on test ads when one column after the other is shuffled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bidwise.checks import derived_seed
from bidwise.data.ads import Ads
from bidwise.evaluation.comparison import Comparison, compared
from bidwise.evaluation.units import Units

INTACT = "intact"  # the model with no column shuffled
_METRICS = ("welfare", "log_loss")
_ADS = 50_000  # test ads that are shuffled at most, the first whole auctions


def importance(
    model: nn.Module,
    ads: Ads,
    columns: Mapping[str, slice],
    units: Callable[[nn.Module, Ads], Units],
    seed: int = 0,
    crossed: Callable[[NDArray[np.int32]], NDArray[np.int32]] = lambda ids: ids,
) -> tuple[Comparison, ...]:
    """The change of welfare and of log loss when a column is shuffled, column by column; those that matter most first.

    A column that the model ignores has no effect. Of two redundant columns, each may seem to matter little.

    Args:
        model: its logits.
        ads: test ads.
        columns: of the features: the ids of each column of the table.
        units: contributions of each auction or ad to the metrics of a model.
        crossed: makes the ids of combinations again, of rows in which a column was shuffled.
    """
    ads = _first(ads)
    intact = units(model, ads)
    found: list[list[Comparison]] = []
    for at, (name, columns_of) in enumerate(columns.items()):
        order = torch.randperm(len(ads), generator=torch.Generator().manual_seed(derived_seed(seed, "shuffled", at)))
        features = ads.features.clone()
        features[:, columns_of] = features[order, columns_of]
        features = torch.from_numpy(crossed(features.numpy()))
        seen = {name: units(model, replace(ads, features=features)), INTACT: intact}
        found.append(compared(seen, [(name, INTACT)], metrics=_METRICS))
    found.sort(key=lambda pair: -pair[1].difference)
    return tuple(each for pair in found for each in pair)


def _first(ads: Ads) -> Ads:
    if len(ads) <= _ADS:
        return ads
    if ads.offsets is None:
        return ads.take(slice(0, _ADS))
    offsets = ads.offsets[: max(2, int(torch.searchsorted(ads.offsets, _ADS, right=True)))]
    return ads.take(slice(0, int(offsets[-1])), offsets)
