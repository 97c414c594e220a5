"""Training on several ranks: a loss over the ads of all of them, and gradients averaged, rows of embeddings too.

Every rank has the same ads, the same order of them and the same weights; it computes the logits of its part of every
batch. A run is then the same run on any number of ranks, to the rounding of sums.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bidwise import distributed
from bidwise.checks import InputError
from bidwise.data.ads import Ads
from bidwise.data.fingerprint import fingerprint
from bidwise.models.layers import BatchNorm
from bidwise.training.validation import logits_of

NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.batchnorm._LazyNormBase)
ROWS = 4096  # at least, by which ranks see that they have the same ads


class AcrossRanks(nn.Module):
    """A loss of the ads of all ranks together, called on every rank with its own.

    All ranks get the same number. Without offsets all ads are one auction, so that pairs of ads of different ranks
    count; with offsets auctions are whole on their rank. What travels is one number for each ad and column, never one
    for each pair. Gradients are those of the whole batch once they are averaged over ranks, as DistributedDataParallel
    does; so this is what a loop of one's own needs:

    .. code-block:: python

        loss = bidwise.training.AcrossRanks(bidwise.WelfareLoss())
        loss(DistributedDataParallel(model)(features), clicks, bids).backward()

    With one rank it is the loss itself.

    >>> import bidwise
    >>> AcrossRanks(bidwise.LOSSES["log"])(torch.zeros(2), torch.tensor([0.0, 1.0]), torch.ones(2))
    tensor(2.0794)
    """

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(
        self,
        logits: Tensor,
        clicks: Tensor,
        bids: Tensor,
        offsets: Tensor | None = None,
        teacher: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The loss of the ads of all ranks."""
        return loss_across(self.loss, logits, clicks, bids, offsets, teacher, weights)


def loss_across(
    loss: Callable[..., Tensor],
    logits: Tensor,
    clicks: Tensor,
    bids: Tensor,
    offsets: Tensor | None = None,
    teacher: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """What :class:`AcrossRanks` makes of ``loss``."""
    if distributed.count() > 1:
        batch = distributed.share() or _shared_out(logits, offsets)
        columns = [x for x in (logits, clicks, bids, teacher, weights) if x is not None]
        dtype = torch.float32
        for column in columns:
            dtype = torch.promote_types(dtype, column.dtype)
        together = distributed.joined(torch.stack([x.to(dtype).expand_as(logits) for x in columns]), batch.sizes)
        found = iter([part.to(x.dtype) for part, x in zip(together, columns, strict=True)])
        logits, clicks, bids = next(found), next(found), next(found)
        teacher = None if teacher is None else next(found)
        weights = None if weights is None else next(found)
        offsets = None if batch.offsets is None else batch.offsets.to(logits.device)
    return loss(logits, clicks, bids, offsets, teacher, **({} if weights is None else {"weights": weights}))


def _shared_out(logits: Tensor, offsets: Tensor | None) -> distributed.Share:
    """How the ads that ranks have come with are shared out; they tell each other."""
    auctions = -1 if offsets is None else len(offsets) - 1
    told = distributed.stacked(torch.tensor([logits.shape[-1], auctions], device=logits.device)).tolist()
    sizes, counts = tuple(size for size, _ in told), [number for _, number in told]
    if min(counts) < 0:
        if max(counts) >= 0:
            raise InputError("offsets must be given on all ranks or on none, found them on some")
        return distributed.Share(sizes)
    assert offsets is not None
    lengths = distributed.concatenated(offsets.to(logits.device).diff(), counts).cpu()
    return distributed.Share(sizes, torch.nn.functional.pad(lengths.cumsum(0), (1, 0)))


def average_gradients(parameters: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
    """Replace gradients by their mean over ranks; of ``rows``, tables of embeddings, those rows travel that some rank
    has looked up.
    """
    number = distributed.count()
    dense = [p for p in parameters if p.requires_grad and not any(p is table for table in rows)]
    for dtype in dict.fromkeys(p.dtype for p in dense):
        some = [p for p in dense if p.dtype == dtype]
        there = torch.tensor([float(p.grad is not None) for p in some], dtype=dtype, device=some[0].device)
        flat = torch.cat([*((torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in some), there])
        dist.all_reduce(flat)
        *means, there = torch.split(flat, [*(p.numel() for p in some), len(some)])
        unused = [p for p, ranks_with in zip(some, there.tolist(), strict=True) if not ranks_with]
        for p, total in zip(some, means, strict=True):  # laid out in memory as the parameter, which Adam walks
            p.grad = torch.empty_like(p).copy_(total.view_as(p)).div_(number)
        for p in unused:
            p.grad = None
    found = [_rows(table) for table in rows]
    if not found:
        return
    sizes = distributed.stacked(torch.tensor([len(at) for at, _ in found], device=found[0][0].device)).T.tolist()
    for table, (at, values), lengths in zip(rows, found, sizes, strict=True):
        at, values = distributed.concatenated(at, lengths), distributed.concatenated(values.T, lengths).T
        with warnings.catch_warnings():  # torch 2.11 warns whether or not one says that rows need no check
            warnings.filterwarnings("ignore", "Sparse invariant checks")
            table.grad = torch.sparse_coo_tensor(at[None], values / number, table.shape, check_invariants=False)


def _rows(table: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows of a table have a gradient here, each once, and the gradients."""
    if table.grad is None:
        return torch.empty(0, dtype=torch.int64, device=table.device), table.new_empty(0, *table.shape[1:])
    gradient = (table.grad if table.grad.is_sparse else table.grad.to_sparse(1)).coalesce()
    return gradient.indices()[0], gradient.values()


def logits_across(model: nn.Module, features: Tensor) -> Tensor:
    """Logits of all ads on every rank, ``(..., ads, width) -> (*members, ads)``; each computes its part of them."""
    number = distributed.count()
    if number == 1:
        return logits_of(model, features)
    ads = features.shape[-2]
    bounds = [ads * part // number for part in range(number + 1)]
    sizes = [stop - start for start, stop in pairwise(bounds)]
    part = features.narrow(-2, bounds[distributed.rank()], sizes[distributed.rank()])
    return distributed.concatenated(logits_of(model, part), sizes)


def check_ranks(model: nn.Module, train: Ads, valid: Ads | None, told: dict[str, Any]) -> None:
    """Raise unless all ranks are about to train the same model on the same ads, in the same order."""
    if distributed.count() == 1:
        return
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise InputError("model must be the model itself, found DistributedDataParallel; fit averages gradients")
    for name, part in model.named_modules():
        if isinstance(part, NORMS) and part.training and not isinstance(part, BatchNorm | nn.SyncBatchNorm):
            raise InputError(
                f"model must norm by the ads of all ranks, found {type(part).__name__} as {name!r}; use "
                "bidwise.models.BatchNorm, or SyncBatchNorm on GPUs"
            )
    sampled = None if valid is None else fingerprint(valid, ROWS)
    distributed.check_same(**told, train=fingerprint(train, ROWS), valid=sampled)
