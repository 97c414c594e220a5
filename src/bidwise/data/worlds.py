"""Simulated markets with a known true CTR: the paper's, in two readings, and some that a student cannot represent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bidwise.checks import Named, check_whole
from bidwise.data.ads import Ads


@dataclass(frozen=True)
class World:
    """How ads come about; a draw of its weights is a :class:`Market`.

        logit = w·x + curve · Σ_k ±((a_k·x)² − 1) + shift + noise·ξ,      CTR = sigmoid(logit)
        bid   = exp(level + u·x + noise·ξ'),                               x ~ N(0, I)

    Args:
        linear: standard deviation of w·x.
        spread: standard deviation of u·x, and so of the log bids.
        curve: weight of each square; 0 for a market that is linear in x. A linear student cannot represent squares.
        curves: how many squares, their signs alternating.
        shift: of the logit; -1.5 makes clicks rare.
        correlation: between w and u, in [-1, 1]: whether advertisers bid more for ads that are clicked more.
        level: mean of the log bids.
        noise: standard deviation of the unexplained part of logit and log bid.
        weights: ``normal`` or ``uniform``, how entries of w and u are drawn.
        features: dimensions of x.
    """

    linear: float
    spread: float
    curve: float = 0.0
    curves: int = 8
    shift: float = 0.0
    correlation: float = 0.0
    level: float = 0.0
    noise: float = 0.1
    weights: str = "normal"
    features: int = 50

    def market(self, random: torch.Generator) -> Market:
        """A draw of the weights; ads of one market share them.

        >>> market = WORLDS["plotted"].market(torch.Generator().manual_seed(0))
        >>> market.ads(4, torch.Generator().manual_seed(1)).features.shape
        torch.Size([4, 50])
        """
        unit_w, unit_u = (self._entries(random) for _ in range(2))
        squares = torch.randn(self.features, self.curves, generator=random, dtype=torch.float64, device="cpu")
        unit_u = self.correlation * unit_w + math.sqrt(1 - self.correlation**2) * unit_u
        scale = 1 / math.sqrt(self.features)
        return Market(self, self.linear * scale * unit_w, self.spread * scale * unit_u, scale * squares)

    def _entries(self, random: torch.Generator) -> Tensor:
        """Independent entries of variance 1."""
        if self.weights == "normal":
            return torch.randn(self.features, generator=random, dtype=torch.float64, device="cpu")
        return math.sqrt(3) * (2 * torch.rand(self.features, generator=random, dtype=torch.float64, device="cpu") - 1)


@dataclass(frozen=True)
class Market:
    """A kind of market with its weights drawn: its ads are alike."""

    world: World
    w: Tensor  # (features,) of the logit
    u: Tensor  # (features,) of the log bid
    squares: Tensor  # (features, curves)

    def ads(self, ads: int, random: torch.Generator) -> Ads:
        """Ads that were shown, each clicked with its true CTR, to train on.

        Drawn on the CPU, computed in float64 and kept in float32: a seed gives the same ads on every machine, to
        rounding.
        """
        check_whole("ads", ads, 1)
        x = torch.randn(ads, self.world.features, generator=random, dtype=torch.float32, device="cpu")
        logit_noise, bid_noise = torch.randn(2, ads, generator=random, dtype=torch.float64, device="cpu")
        chance = torch.rand(ads, generator=random, dtype=torch.float64, device="cpu")
        seen = x.double()
        logit = seen @ self.w + self.world.shift + self.world.noise * logit_noise
        if self.world.curve:
            signs = 1 - 2 * (torch.arange(self.world.curves, dtype=torch.float64, device="cpu") % 2)
            logit += self.world.curve * ((seen @ self.squares).square() - 1) @ signs
        truth = torch.sigmoid(logit)
        bids = torch.exp(self.world.level + seen @ self.u + self.world.noise * bid_noise)
        clicks = (chance < truth).float()
        return Ads(x, clicks, bids.float(), truth=truth.float())

    def auctions(self, auctions: int, size: int, random: torch.Generator) -> Ads:
        """Ads that compete, ``size`` in each auction."""
        drawn = self.ads(auctions * size, random)
        offsets = size * torch.arange(auctions + 1, device="cpu")
        return Ads(drawn.features, drawn.clicks, drawn.bids, offsets, truth=drawn.truth)


def _paper(scale: float) -> World:
    """Entries of w_p uniform in ±scale √10, of w_b in ±2 scale: a uniform entry in ±c has standard deviation c / √3.

    The printed CTR, 1 / (1 + exp(w·x) + ξ), may exceed 1; the noise is read inside of the exponent. Its falling sign
    is the sign of w, which is symmetric.
    """
    dimensions = math.sqrt(50)
    return World(
        linear=dimensions * scale * math.sqrt(10 / 3), spread=dimensions * scale * 2 / math.sqrt(3), weights="uniform"
    )


#: Kinds of market by name. ``plotted``: the paper's, scaled to look like its figure; ``printed``: with the weights
#: it prints, for which bids span thirty orders of magnitude; ``misspecified``: clicks depend on squares;
#: ``misspecified_rare``: the same with a click rate of about 0.24.
WORLDS = Named(
    "world",
    {
        "plotted": _paper(0.1),
        "printed": _paper(1.0),
        "misspecified": World(linear=0.6, spread=0.8, curve=0.275, correlation=0.5),
        "misspecified_rare": World(linear=0.6, spread=0.8, curve=0.275, correlation=0.5, shift=-1.5),
    },
)
