"""A trained model for fields that gained values: old rows keep their weights, new ones start untrained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.models.bags import Values, values_and_slots
from bidwise.models.layers import Embeddings


@dataclass(frozen=True)
class Prior:
    """The posterior of the weights of a solved regression: normal, with this mean and precision; bias excepted."""

    mean: Tensor
    precision: Tensor


def widened(model: nn.Module, state: dict[str, Any], before: Sequence[Values]) -> dict[str, Any]:
    """The weights of a model with ``before`` values per field, for a ``model`` with more.

    Args:
        model: built for the values that there are now; new ones, at the end, have its initial vectors.
        state: ``state_dict`` of the old model.

    >>> from bidwise.models import SparseLogisticRegression
    >>> old, model = SparseLogisticRegression([3, 2]), SparseLogisticRegression([4, 2])
    >>> model.load_state_dict(widened(model, old.state_dict(), [3, 2]))
    <All keys matched successfully>
    >>> bool(torch.equal(model(torch.tensor([[2, 1], [0, 0]])), old(torch.tensor([[2, 1], [0, 0]]))))
    True
    """
    state = dict(state)
    for name, table, source, fresh in _rows(model, before):
        old = state[f"{name}.weight"][source]
        state[f"{name}.weight"] = torch.where(fresh[:, None], table.weight.detach().cpu(), old)
    return state


def widened_adam(
    model: nn.Module, state: dict[str, Any], before: Sequence[Values], shares: Sequence[Tensor]
) -> dict[str, Any]:
    """The same of :class:`~bidwise.training.Adam`: new rows have no moments.

    Their number of look-ups, which L2 is divided by, is as if they had been there from the beginning:
    ``shares`` has for each field the share of batches that look each value up.
    """
    numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    states = dict(state["state"])
    for _, table, source, fresh in _rows(model, before):
        number = numbers[id(table.weight)]
        if number not in states:  # no batch has looked anything up
            continue
        states[number] = own = dict(states[number])
        for moment in ("exp_avg", "exp_avg_sq"):
            own[moment] = own[moment][source].masked_fill_(fresh[:, None], 0.0)
        if len(own.get("seen", ())):
            share = torch.cat(list(shares[: len(table.values)])).to(own["seen"])
            own["seen"] = torch.where(fresh, share * own["step"], own["seen"][source])
    return state | {"state": states}


def widened_prior(model: nn.Module, prior: Prior, before: Sequence[Values]) -> Prior:
    """The prior of the weights of a regression: for new rows as wide as for the least known row of their field."""
    _, table, source, fresh = next(_rows(model, before))
    fields, precision = table.field_of_rows(), prior.precision[source]
    least = precision.new_zeros(len(table.values)).scatter_reduce_(0, fields, precision, "amin", include_self=False)
    return Prior(prior.mean[source].masked_fill(fresh, 0.0), torch.where(fresh, least[fields], precision))


def _rows(model: nn.Module, before: Sequence[Values]) -> Iterator[tuple[str, Embeddings, Tensor, Tensor]]:
    """For each table with its name: the old row of every row, arbitrary if its value is new, and whether."""
    had, _ = values_and_slots(before)
    for name, table in model.named_modules():
        if not isinstance(table, Embeddings):
            continue
        sources, fresh, start = [], [], 0
        for field, values in enumerate(table.values):
            ids = torch.arange(values)
            is_new = ids >= had[field]
            sources.append(start + ids.masked_fill(is_new, 0))
            fresh.append(is_new)
            start += had[field]
        yield name, table, torch.cat(sources), torch.cat(fresh)
