"""Bids for ads that were logged without: the paper's, from an untrained network, and by advertisers who know more.

| kind | bid |
|---|---|
| ``deepfm`` | exp(scale h(x) + noise N(0, 1)), h an untrained DeepFM rescaled to [0, 1]: the paper's |
| ``residual`` | exp(sigma (rho r + sqrt(1 - rho^2) z(a)) + noise N(0, 1)), z and r standardised over ads |

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
from bidwise.data.store import SCHEMA, Field, Store, StoreWriter

SOURCES = {"deepfm": ("features",), "residual": ("features", "truth")}  # what bids depend on
BLOCK = 2**16  # ads at a time
IN_CACHE = 2**13  # ads that the network sees at a time
ON_DEVICE = 2**18  # the same on a GPU: half a gigabyte
SAMPLE = 2**20  # training bids that quantiles are taken of; ads are in random order
QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
ROUNDS = 3  # of backfitting
ADVERTISERS = 1000  # apart from the numbers of splits, which seed the noise
EMBEDDING, HIDDEN, SPREAD = 4, (256, 128, 64), 1e-4  # the paper's network, with DeepCTR's initial values

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Bids:
    """Which bids to draw; the table above says what each kind uses.

    Args:
        kind: ``deepfm`` or ``residual``.
        noise: standard deviation of the noise on log bids. The paper says 0.1 in one place and 1 in another; welfare
            near the one it reports needs 0.1.
        seed: of the network, the advertisers and the noise.
        scale: of the rescaled network output, the paper's c.
        sigma: standard deviation of log bids before noise.
        field: name of the field that stands for advertisers. Its rare values are one advertiser, and so are its
            missing ones.
        rho: correlation of log bids (before noise) with the residual, in [-1, 1].
    """

    kind: str = "deepfm"
    noise: float = 0.1
    seed: int = 0
    scale: float = 1.0
    sigma: float = 0.5
    field: str = "C7"
    rho: float = 0.5

    def __post_init__(self) -> None:
        check_name("bids", self.kind, SOURCES)
        check_seed("seed", self.seed)
        for name, low, high in (("noise", 0, 5), ("scale", 0, 5), ("sigma", 0, 5), ("rho", -1, 1)):
            if not low <= getattr(self, name) <= high:  # beyond, bids are 0 or infinite in float32
                raise InputError(f"{name} of bids must be in [{low}, {high}], found {getattr(self, name)}")

    def column(self, names: Sequence[str]) -> int:
        """The number of ``field`` among the names of all fields."""
        check_name("field of bids", self.field, names)
        return list(names).index(self.field)


def attach(store: Store, bids: Bids, *, progress: Progress | None = None) -> Store:
    """The store with a column ``bids`` in every split, in place of any that was there; the schema describes it."""
    if "truth" in SOURCES[bids.kind] and "truth" not in store.columns("train"):
        raise InputError(f"bids of kind {bids.kind} need the true CTR, found no column truth in {store.folder}")
    if any(field.slots > 1 for field in store.fields):
        raise InputError(f"bids are drawn for single values, found a column of lists in {store.folder}")
    columns: dict[str, dict[str, Tensor]] = {"features": {}, "truth": {}}
    for name in SOURCES[bids.kind]:
        for split in store.splits:
            path = store.folder / split / f"{name}.npy"
            columns[name][split] = torch.from_numpy(np.load(path, mmap_mode="c"))
    if progress is not None:
        progress("Drawing bids", 0.5)
    made, about = drawn(columns["features"], columns["truth"], store.fields, bids)
    writer = StoreWriter(store.folder, store.splits)
    (store.folder / SCHEMA).unlink()  # without it a store that is cut off here is not finished
    for split, column in made.items():
        writer.column(split, "bids")[:] = column.numpy()
    return writer.finish(fields=store.fields, about=store.schema | {"bids": about})


def drawn(
    features: Mapping[str, Tensor], truth: Mapping[str, Tensor], fields: Sequence[Field], bids: Bids
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Bids of each split, drawn where its ids are, and what a schema says of them.

    ``features`` are the ids, ``train`` among them. The noise is from a generator of the device.
    """
    sources = {"features": features, "truth": truth}
    columns = {split: [sources[name][split] for name in SOURCES[bids.kind]] for split in features}
    score = _scores(bids, fields, *(column[:SAMPLE] for column in columns["train"]))
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


def _scores(bids: Bids, fields: Sequence[Field], sample: Tensor, *others: Tensor) -> Callable[..., Tensor]:
    """What bids depend on besides noise, as a function of columns, see ``SOURCES``; ``sample`` has training ads."""
    if bids.kind == "residual":
        return _residual_scores(bids, fields, sample, *others)
    logits = untrained_deepfm([field.values for field in fields], bids.seed, sample.device)
    at_once = IN_CACHE if sample.device.type == "cpu" else ON_DEVICE
    return lambda ids: torch.cat([logits(part) for part in torch.split(ids, at_once)])


def _residual_scores(
    bids: Bids, fields: Sequence[Field], ids: Tensor, ctr: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """rho r + sqrt(1 - rho^2) z(a). Effects are fitted to the sample by backfitting, on the CPU: a GPU's sums vary."""
    at = bids.column([field.name for field in fields])
    level = np.random.default_rng([bids.seed, ADVERTISERS]).standard_normal(fields[at].values)
    columns = [column.astype(np.int64) for column in ids.T.cpu().numpy()]
    left = _log_odds(ctr).double().cpu().numpy()
    effects = [np.zeros(field.values) for field in fields]
    for _ in range(ROUNDS):
        for column, effect in zip(columns, effects, strict=True):
            left += effect[column]
            effect[:] = np.bincount(column, left, len(effect)) / (np.bincount(column, minlength=len(effect)) + 1)
            left -= effect[column]
    seen, scale = level[columns[at]], bids.rho / (left.std() or 1.0)
    level = math.sqrt(1 - bids.rho**2) * (level - seen.mean()) / (seen.std() or 1.0) - scale * left.mean()
    effects = [scale * effect for effect in effects]
    effects[at] -= level  # of the advertiser
    first = torch.tensor([0, *(field.values for field in fields[:-1])]).cumsum(0).to(ids.device)
    table = torch.from_numpy(np.concatenate(effects)).to(ids.device)

    def score(ids: Tensor, ctr: Tensor) -> Tensor:
        parts = zip(torch.split(ids, BLOCK), torch.split(ctr, BLOCK), strict=True)
        return torch.cat([(scale * _log_odds(odds) - table[part + first].sum(1)).float() for part, odds in parts])

    return score


def _log_bids(bids: Bids, score: Tensor, noise: Tensor, low: float, high: float) -> Tensor:
    """Equations of the table above; ``low`` and ``high`` are the least and the largest training score."""
    if bids.kind == "residual":
        return bids.sigma * score + bids.noise * noise
    # outputs are so near 1/2 that float32 would keep a hundred different ones
    least, most = (float(1 / (1 + np.exp(-np.float64(x)))) for x in (low, high))
    rescaled = ((1 / (1 + torch.exp(-score)) - least) / max(most - least, 1e-300)).clip(0, 1)
    return bids.scale * rescaled + bids.noise * noise


def _log_odds(ctr: Tensor) -> Tensor:
    return torch.logit(ctr, 1e-6)
