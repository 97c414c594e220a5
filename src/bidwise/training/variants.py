"""Several losses trained at once: the first member dimension, cut into one slice for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bidwise.checks import InputError
from bidwise.losses.named import unchecked


class Variants(nn.Module):
    """Losses of slices of the first member dimension, called as one loss.

    Args:
        losses: each with the number of members it trains: ``[(log_loss, 1), (WelfareLoss(lam=six), 6)]`` for logits
            ``(7, repeats, ads)``.

    >>> import bidwise
    >>> both = Variants([(bidwise.LOSSES["log_loss"], 1), (bidwise.LOSSES["log"], 2)])
    >>> both(torch.zeros(3, 5, 4), torch.zeros(3, 5, 4), torch.ones(3, 5, 4)).shape
    torch.Size([3, 5])
    """

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
        """One loss per member, ``(*members)``."""
        if logits.shape[0] != sum(self.counts):
            raise InputError(f"logits must have {sum(self.counts)} variants first, found {tuple(logits.shape)}")
        parts = (torch.split(x, self.counts) for x in (logits, clicks, bids))
        others = ([None] * len(self.counts) if x is None else torch.split(x, self.counts) for x in (teacher, weights))
        rows = zip(self.losses, *parts, *others, strict=True)
        return torch.cat([loss(z, y, b, offsets, p, w) for loss, z, y, b, p, w in rows])

    def extra_repr(self) -> str:
        return f"counts={self.counts}"
