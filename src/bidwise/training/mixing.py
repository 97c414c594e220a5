"""Orders of tables that are too long for a permutation of all their rows: blocks in random order, several at a time
shuffled together.

A pass reads every block once, from its first row to its last, so that a table on the disk is read in long stretches,
and memory contains the rows of ``MIX`` blocks. A batch then has ads of ``MIX`` random stretches of the
table; two ads of one stretch meet in a batch more often than others do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import Thread

import torch
from torch import Tensor

LARGE = 2**26  # ads, up to which all are shuffled together
BLOCK = 2**14  # ads that stay together
MIX = 64  # blocks that are shuffled together: about a million ads


class Mixed:
    """A random order of ``count`` things, ``each`` of them in a block; of ``random`` it draws little, and at once.

    >>> mixed = Mixed(10, 3, torch.Generator().manual_seed(0))
    >>> sorted(mixed(0, 10).tolist()) == list(range(10)) and torch.equal(mixed(4, 7), mixed(0, 10)[4:7])
    True
    """

    def __init__(self, count: int, each: int, random: torch.Generator, ahead: Callable[[Tensor], None] | None = None):
        order = torch.randperm(-(-count // each), generator=random, device="cpu")
        self.first, self.last = order * each, ((order + 1) * each).clamp(max=count)
        parts = -(-len(order) // MIX)
        self.seeds = torch.randint(2**62, (parts,), generator=random, device="cpu").tolist()
        self.ends = (self.last - self.first).cumsum(0)[torch.arange(1, parts + 1).mul(MIX).clamp(max=len(order)) - 1]
        self.ahead = ahead
        self._part = lru_cache(2)(self._shuffled)

    def __call__(self, start: int, stop: int) -> Tensor:
        """The things from place ``start`` to ``stop``."""
        first, last = torch.searchsorted(self.ends, torch.tensor([start, stop - 1]), right=True).tolist()
        begin = int(self.ends[first - 1]) if first else 0
        found = self._part(first) if first == last else torch.cat([self._part(at) for at in range(first, last + 1)])
        return found[start - begin : stop - begin]

    def _shuffled(self, part: int) -> Tensor:
        """The items of ``MIX`` blocks; the next ones are read meanwhile."""
        if self.ahead is not None and part + 1 < len(self.seeds):
            Thread(target=self.ahead, args=[self._things(part + 1)], name="bidwise-ahead", daemon=True).start()
        things = self._things(part)
        random = torch.Generator().manual_seed(self.seeds[part])
        return things[torch.randperm(len(things), generator=random, device="cpu")]

    def _things(self, part: int) -> Tensor:
        some = slice(part * MIX, (part + 1) * MIX)
        sizes = self.last[some] - self.first[some]
        ends = sizes.cumsum(0)
        return torch.arange(int(ends[-1])) + (self.first[some] - ends + sizes).repeat_interleave(sizes)
