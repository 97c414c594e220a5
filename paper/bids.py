"""Bids for ads that were logged without: the paper's, from an untrained network, and by advertisers who know more.

| kind | bid |
|---|---|
| ``deepfm`` | exp(h(x) + noise N(0, 1)), h an untrained DeepFM rescaled to [0, 1]: the paper's |
| ``residual`` | exp(rho r + sqrt(1 - rho^2) z(a) + noise N(0, 1)), z and r standardised over ads |

a is the ad's value of ``field``, the advertiser, and z(a) standard normal. The residual r is what is left of the log
odds of the true CTR after the best sum of one effect for each field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bidwise.checks import InputError, check_name, check_seed
from bidwise.data.store import Field

KINDS = ("deepfm", "residual")
IN_CACHE = 2**13  # ads that the network sees at a time
ON_DEVICE = 2**18  # the same on a GPU: half a gigabyte
SAMPLE = 2**20  # training bids that quantiles are taken of; ads are in random order
QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
ROUNDS = 3  # of backfitting
RHO = 0.5  # correlation of log bids, before noise, with the residual
ADVERTISERS = 1000  # apart from the numbers of splits, which seed the noise
EMBEDDING, HIDDEN, SPREAD = 4, (256, 128, 64), 1e-4  # the paper's network, with DeepCTR's initial values


@dataclass(frozen=True)
class Bids:
    """Which bids to draw; the table above says what each kind uses.

    Args:
        kind: ``deepfm`` or ``residual``.
        noise: standard deviation of the noise on log bids. The paper says 0.1 in one place and 1 in another; welfare
            near the one it reports needs 0.1.
        seed: of the network, the advertisers and the noise.
        field: name of the field that stands for advertisers. Its rare values are one advertiser, and so are its
            missing ones.
    """

    kind: str = "deepfm"
    noise: float = 0.1
    seed: int = 0
    field: str = "C7"

    def __post_init__(self) -> None:
        check_name("bids", self.kind, KINDS)
        check_seed("seed", self.seed)
        if not 0 <= self.noise <= 5:  # beyond, bids are 0 or infinite in float32
            raise InputError(f"noise of bids must be in [0, 5], found {self.noise}")


def drawn(
    features: Mapping[str, Tensor], truth: Mapping[str, Tensor], fields: Sequence[Field], bids: Bids
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Bids of each split, drawn where its ids are, and what a schema says of them.

    ``features`` are the ids, ``train`` among them; ``truth`` is needed for bids of the kind ``residual``. The noise is
    from a generator of the device.
    """
    residual = bids.kind == "residual"
    scores_of = _residual_scores if residual else _network_scores
    columns = {split: (ids, torch.logit(truth[split], 1e-6)) if residual else (ids,) for split, ids in features.items()}
    score = scores_of(bids, fields, *(column[:SAMPLE] for column in columns["train"]))
    made = {split: score(*some) for split, some in columns.items()}  # scores, which become bids in place
    low, high = (float(end) for end in made["train"].aminmax())
    for split, scores in enumerate(made.values()):
        seed = int(np.random.SeedSequence([bids.seed, split]).generate_state(1, np.uint32)[0])
        random = torch.Generator(scores.device).manual_seed(seed)
        for part in torch.split(scores, ON_DEVICE):
            noise = torch.randn(len(part), generator=random, device=part.device, dtype=torch.float64)
            part.copy_(_log_bids(bids, part.double(), noise, low, high).exp())
    train = made["train"]
    quantiles = train[:SAMPLE].double().quantile(train.new_tensor(QUANTILES, dtype=torch.float64)).tolist()
    return made, {
        "kind": bids.kind,
        "options": asdict(bids),
        "mean": float(train.mean(dtype=torch.float64)),
        "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True)),
    }


def untrained_deepfm(
    values: Sequence[int], seed: int, device: torch.device | str = "cpu"
) -> Callable[[Tensor], Tensor]:
    """Logits of a DeepFM with random weights, as DeepCTR makes one before training; the same on every device.

    First-order weights are 0, embeddings N(0, 0.0001^2), weights of the layers Glorot's normal, biases 0. The deep part
    is all that is seen: it is of the order of the embeddings, the factorisation part of their square.

    >>> untrained_deepfm([5, 3], seed=0)(torch.tensor([[4, 2], [0, 0]])).shape
    torch.Size([2])
    """
    generator = torch.Generator().manual_seed(seed)
    first = torch.tensor([0, *values[:-1]]).cumsum(0)  # of each field's rows in the one table
    table = SPREAD * torch.randn(sum(values), EMBEDDING, generator=generator)
    widths = (EMBEDDING * len(values), *HIDDEN, 1)
    layers = [
        math.sqrt(2 / (before + after)) * torch.randn(before, after, generator=generator)
        for before, after in pairwise(widths)
    ]
    table, first, layers = table.to(device), first.to(device), [weights.to(device) for weights in layers]

    def logits(ids: Tensor) -> Tensor:
        embedded = table[ids + first]  # (ads, fields, embedding)
        factors = (embedded.sum(1).square() - embedded.square().sum(1)).sum(-1) / 2
        hidden = embedded.flatten(1)
        for weights in layers[:-1]:
            hidden = (hidden @ weights).relu()
        return factors + (hidden @ layers[-1]).squeeze(-1)

    return logits


def _network_scores(bids: Bids, fields: Sequence[Field], sample: Tensor) -> Callable[[Tensor], Tensor]:
    """h(x), as a function of ids."""
    logits = untrained_deepfm([field.values for field in fields], bids.seed, sample.device)
    at_once = IN_CACHE if sample.device.type == "cpu" else ON_DEVICE
    return lambda ids: torch.cat([logits(part) for part in torch.split(ids, at_once)])


def _residual_scores(
    bids: Bids, fields: Sequence[Field], ids: Tensor, odds: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """rho r + sqrt(1 - rho^2) z(a). Effects are fitted to the sample by backfitting, on the CPU: a GPU's sums vary."""
    names = [field.name for field in fields]
    check_name("field of bids", bids.field, names)
    at = names.index(bids.field)
    level = np.random.default_rng([bids.seed, ADVERTISERS]).standard_normal(fields[at].values)
    columns = [column.astype(np.int64) for column in ids.T.cpu().numpy()]
    left = odds.double().cpu().numpy()
    effects = [np.zeros(field.values) for field in fields]
    for _ in range(ROUNDS):
        for column, effect in zip(columns, effects, strict=True):
            left += effect[column]
            effect[:] = np.bincount(column, left, len(effect)) / (np.bincount(column, minlength=len(effect)) + 1)
            left -= effect[column]
    seen, scale = level[columns[at]], RHO / (left.std() or 1.0)
    level = math.sqrt(1 - RHO**2) * (level - seen.mean()) / (seen.std() or 1.0) - scale * left.mean()
    effects = [scale * effect for effect in effects]
    effects[at] -= level  # of the advertiser
    first = torch.tensor([0, *(field.values for field in fields[:-1])]).cumsum(0).to(ids.device)
    table = torch.from_numpy(np.concatenate(effects)).to(ids.device)

    def score(ids: Tensor, odds: Tensor) -> Tensor:
        parts = zip(torch.split(ids, ON_DEVICE), torch.split(odds, ON_DEVICE), strict=True)
        return torch.cat([(scale * logit - table[part + first].sum(1)).float() for part, logit in parts])

    return score


def _log_bids(bids: Bids, score: Tensor, noise: Tensor, low: float, high: float) -> Tensor:
    """Equations of the table above; ``low`` and ``high`` are the least and the largest training score."""
    if bids.kind == "residual":
        return score + bids.noise * noise
    # outputs are so near 1/2 that float32 would keep a hundred different ones
    least, most = (float(1 / (1 + np.exp(-np.float64(x)))) for x in (low, high))
    rescaled = ((1 / (1 + torch.exp(-score)) - least) / max(most - least, 1e-300)).clip(0, 1)
    return rescaled + bids.noise * noise
