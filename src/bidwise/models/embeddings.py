"""Embeddings: a vector for each value of each field, in one table; also for bags, and for fields that gained values.

Bags are fields with several values per ad, such as keywords; their vector is the mean over those values. (A regression
may take the sum.) A bag with room for L values takes L columns of the features, its slots, which share the ids of one
field. Slots that are not used contain the id of missing values: the ids show whether one counts, and no mask travels
with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bidwise.checks import InputError, check_positive, check_whole
from bidwise.values import MISSING

_MOST_SLOTS = 1000  # slots of a bag: an ad has room for all of them in every batch
Values = int | tuple[int, int]  # values of a field, or values and slots of a bag


def values_and_slots(cardinalities: Sequence[Values]) -> tuple[list[int], list[int]]:
    """Values of each field, and the columns of features that it takes.

    >>> values_and_slots([50, (200, 8)])
    ([50, 200], [1, 8])
    """
    pairs = [tuple(each) if isinstance(each, tuple | list) else (each, 1) for each in cardinalities]
    for values, slots in pairs:
        check_whole("cardinalities", values, 1)
        check_whole("slots", slots, 1, _MOST_SLOTS)
    return [values for values, _ in pairs], [slots for _, slots in pairs]


def shares(ids: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight of each slot in the mean of its bag, ``(ads, slots)``: 0 if it is missing, unless all are.

    >>> shares(torch.tensor([[5, 7, 1, 1], [1, 1, 1, 1]]), torch.float32).tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
    """
    known = ids != MISSING
    counts = known | ~known.any(1, keepdim=True)
    return counts.to(dtype) / counts.sum(1, keepdim=True)


def folded(looked_up: Tensor, ids: Tensor, slots: Sequence[int]) -> Tensor:
    """Σ_k share_k x_k over the slots of each field: ``(ads, columns, width) -> (ads, fields, width)``.

    >>> folded(torch.tensor([[[4.0], [1.0], [2.0], [9.0]]]), torch.tensor([[3, 5, 7, 1]]), [1, 3])
    tensor([[[4.0000],
             [1.5000]]])
    """
    parts, end = [], 0
    for several, run in groupby(slots, lambda count: count > 1):
        for width in run if several else (len(list(run)),):  # neighbours that are no bags stay together
            begin, end = end, end + width
            part = looked_up[:, begin:end]
            if several:
                part = (part * shares(ids[:, begin:end], part.dtype)[..., None]).sum(1, keepdim=True)
            parts.append(part)
    return torch.cat(parts, 1)


class Embeddings(nn.Module):
    """A vector for each value of each field, in one table: ids ``(ads, columns) -> (ads, fields, width)``.

    A field has one column, a bag one for each of its slots; its vector is the mean over its values.

    Args:
        cardinalities: values of each field, ``(values, slots)`` of a bag; ids go from 0 to one less.
        width: of the vectors.
        std: of the initial values, normal around 0.
        random: draws them.
        first: if the first column has first-order weights, their share of an L2 penalty.

    ``sparse``: gradients contain only the rows that a batch looked up. An optimizer may then leave all others
    alone, and a step does not take longer for a longer table. On a GPU an optimizer may set ``sums``, where gradients
    are added up instead (:mod:`bidwise.kernels.embedding_kernels`).

    >>> table = Embeddings([3, 2], 4, std=0.1, random=torch.Generator().manual_seed(0))
    >>> table(torch.tensor([[0, 1], [2, 0]])).shape, table.weight.shape
    (torch.Size([2, 2, 4]), torch.Size([5, 4]))
    """

    static = True

    starts: Tensor
    ends: Tensor
    penalty: Tensor

    def __init__(
        self,
        cardinalities: Sequence[Values],
        width: int,
        *,
        std: float,
        random: torch.Generator,
        first: float = 1.0,
    ) -> None:
        super().__init__()
        if not cardinalities:
            raise InputError("cardinalities must have one number for each field, found none")
        self.values, self.slots = values_and_slots(cardinalities)
        self.bags = max(self.slots) > 1
        check_whole("width", width, 1)
        check_positive("std", std, or_zero=True)
        ends = torch.tensor(self.values, device="cpu").cumsum(0)
        self.weight = nn.Parameter(normal((int(ends[-1]), width), std, random))
        self.sparse = False
        self.sums: Any = None
        self.trusted = False  # whether all ids of the training ads have been checked
        self.std, self.columns = std, list(range(sum(self.slots)))  # its columns among all features
        where, slots = torch.get_default_device(), torch.tensor(self.slots, device="cpu")
        for name, bounds in {"starts": F.pad(ends[:-1], (1, 0)), "ends": ends}.items():  # of every column
            self.register_buffer(name, bounds.repeat_interleave(slots).to(where, torch.int32), persistent=False)
        penalty = torch.tensor([first] + [1.0] * (width - 1)).to(where, torch.get_default_dtype())
        self.register_buffer("penalty", penalty, persistent=False)  # factors of an L2 penalty, (width,)

    def forward(self, ids: Tensor) -> Tensor:
        self.check(ids)
        if self.adds_up():
            from bidwise.kernels.embedding_kernels import looked_up

            vectors = looked_up(self.weight, ids, self.starts, self.sums)
        else:
            vectors = F.embedding(ids + self.starts, self.weight, sparse=self.sparse)
        return folded(vectors, ids, self.slots) if self.bags else vectors

    def check(self, ids: Tensor) -> None:
        """Raise unless these are ids of all fields, each below the values of its field.

        Reading values makes the CPU wait for a GPU, which a graph cannot do and a plain torch loop should not; what
        torch.compile or torch.export traces has no values to read.
        """
        if ids.is_floating_point():
            raise InputError(f"features must be ids of categories, whole numbers, found {ids.dtype}")
        if ids.dim() != 2 or ids.shape[1] != len(self.starts):
            raise InputError(f"features must have shape (ads, {len(self.starts)}), found {tuple(ids.shape)}")
        training = torch.is_grad_enabled()
        if torch.compiler.is_compiling() or not len(ids) or (self.trusted and training):
            return
        if ids.device.type == "cuda" and ((training and self.sums is None) or torch.cuda.is_current_stream_capturing()):
            return
        rows = ids + self.starts
        if not bool(((rows >= self.starts) & (rows < self.ends)).all()):
            raise self._outside(ids)

    def field_of_rows(self) -> Tensor:
        """The field that each row belongs to, ``(rows,)``."""
        return torch.repeat_interleave(torch.tensor(self.values, device=self.weight.device))

    def adds_up(self) -> bool:
        """Whether gradients go to ``sums``: while training on a GPU."""
        return self.sums is not None and torch.is_grad_enabled()

    def _outside(self, ids: Tensor) -> InputError:
        values = (self.ends - self.starts).to(ids.device)
        row, field = ((ids < 0) | (ids >= values)).nonzero()[0].tolist()
        name = self.columns[field]
        return InputError(
            f"features must be ids below {int(values[field])} in field {name}, found {int(ids[row, field])} at "
            f"[{row}, {name}]"
        )

    def extra_repr(self) -> str:
        return f"fields={len(self.values)}, rows={len(self.weight)}, width={self.weight.shape[1]}, std={self.std}"


def trust(tables: Sequence[Embeddings], features: Tensor) -> None:
    """Check all ids of the training ads once, instead of the ids of every batch; raise if a batch would."""
    if not tables or features.is_floating_point():
        return
    features = features.flatten(0, -2)
    low, high = features.aminmax(dim=0)
    for table in tables:
        if len(low) <= max(table.columns):
            return  # a forward raises an error
        values = (table.ends - table.starts).to(high.device)
        if bool(((low[table.columns] < 0) | (high[table.columns] >= values)).any()):
            raise table._outside(features[:, table.columns])
        table.trusted = True


def normal(shape: tuple[int, ...], std: float, random: torch.Generator) -> Tensor:
    """Numbers around 0, of the default type and on the default device."""
    drawn = torch.randn(shape, generator=random, dtype=torch.float32, device="cpu") * std
    return drawn.to(torch.get_default_device(), torch.get_default_dtype())


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
