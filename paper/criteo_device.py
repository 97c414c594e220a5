"""Ads of a simulated Criteo world drawn on a device, as encoded training data: no text, no files.

What `python -m paper simulate` and `python -m paper prepare` do with text, for data that is used once: 45.8
million ads take 8 GB of a GPU, and seconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bidwise.checks import check_seed, check_whole
from bidwise.data.ads import Ads
from bidwise.data.store import Field
from bidwise.values import FIRST, MISSING, RARE
from paper.bids import drawn
from paper.criteo_text import NAMES, split_sizes, winners
from paper.criteo_world import COUNTS, FIELDS, CriteoWorld, Sample, sampled, world_of

CHUNK = 2**20  # ads that are drawn together, from the seed and the number of the chunk: half a GB
LEAST = -2  # no column has a smaller integer
MIN_COUNT = 10  # categories seen less often in the training ads are rare; integers are not thinned out


@dataclass(frozen=True)
class Drawn:
    """Ads on a device, encoded; ``about`` tells what the schema of a store would."""

    train: Ads
    valid: Ads
    test: Ads
    fields: list[Field]
    about: dict[str, Any]

    @property
    def splits(self) -> dict[str, Ads]:
        """The ads by the names of their splits."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def cardinalities(self) -> list[int]:
        """Values of every field, what models are built for."""
        return [field.values for field in self.fields]


def simulated_ads(
    rows: int,
    *,
    world: str = "shared_tail",
    world_seed: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Drawn:
    """``rows`` ads of a world whose text :func:`~paper.criteo_text.simulate` writes, on ``device``.

    The world is the same; the ads are others, for uniform numbers come from a generator of the device: a seed means one
    sample on CPUs and another on GPUs. The first eight tenths are for training, the next one for validation: a split by
    time where the world drifts, and as good as a random one elsewhere.

    Args:
        rows: ads of all splits together.
        world: a name in :data:`~paper.criteo_world.CRITEO_WORLDS`.
        world_seed: draws effects, vectors and bids anew, at the same click rate; ``None``: as the world has them.
        seed: of ads and clicks.

    >>> ads = simulated_ads(1000, seed=0)
    >>> ads.train.features.shape, ads.train.features.dtype, len(ads.test)
    (torch.Size([800, 39]), torch.int32, 100)
    """
    check_whole("rows", rows, 1)
    check_seed("seed", seed)
    sizes, device = split_sizes(rows), torch.device(device)
    features = torch.empty(rows, len(FIELDS), dtype=torch.int32, device=device)
    clicks = torch.empty(rows, dtype=torch.uint8, device=device)
    truth = torch.empty(rows, dtype=torch.float32, device=device)
    drawn_from = world_of(world, world_seed)
    for number, start in enumerate(range(0, rows, CHUNK)):
        some = slice(start, min(start + CHUNK, rows))
        time = torch.arange(some.start, some.stop, dtype=torch.float64, device=device) / rows
        chunk = chunk_on(device, seed, number, drawn_from, time)
        clicks[some], truth[some] = chunk.clicks, chunk.ctr
        features[some] = _codes(chunk).T
    encoded = [
        _encode(features[:, index], sizes["train"], 1 if index < len(COUNTS) else MIN_COUNT)
        for index in range(len(NAMES))
    ]
    fields = [Field(name, values) for name, (values, _, _) in zip(NAMES, encoded, strict=True)]
    ids, chosen, ctr = (
        dict(zip(sizes, torch.split(column, list(sizes.values())), strict=True)) for column in (features, clicks, truth)
    )
    bids, about_bids = drawn(ids, ctr, fields, drawn_from.bids)
    return Drawn(
        **{part: Ads(ids[part], chosen[part], bids[part], truth=ctr[part]) for part in sizes},
        fields=fields,
        about={
            "source": "criteo, simulated",
            "options": {"min_count": MIN_COUNT, "split": (8, 1, 1), "seed": seed, "integers": "winners"},
            "world": {"name": world, **asdict(drawn_from)},
            "rows": rows,
            "rare": {name: rare for name, (_, rare, _) in zip(NAMES, encoded, strict=True)},
            "missing": {name: missing for name, (_, _, missing) in zip(NAMES, encoded, strict=True)},
            "bids": about_bids,
        },
    )


def chunk_on(device: torch.device, seed: int, number: int, world: CriteoWorld, time: Tensor) -> Sample:
    """Chunk ``number`` of ``seed``, an ad for each ``time``."""
    (state,) = np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1, np.uint64).tolist()
    random = torch.Generator(device).manual_seed(state >> 1)

    def uniform(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.rand(shape, generator=random, device=device, dtype=dtype)

    return sampled(world, uniform, time)


def _codes(chunk: Sample) -> Tensor:
    """Values as whole numbers from 1 on that can be counted, 0 where missing: ``(39, ads)`` int32."""
    codes: Tensor = chunk.values + 1
    table = _integer_codes(codes.device)
    for index in range(len(COUNTS)):
        codes[index] = table.index_select(0, chunk.values[index] - LEAST)
    return codes.masked_fill_(chunk.missing, 0)


@lru_cache(maxsize=1)
def _integer_codes(device: torch.device) -> Tensor:
    """Codes of the integers from LEAST to the largest of all columns, in the order of their tokens, int16."""
    every = np.arange(LEAST, max(field.most for field in COUNTS) + 1)
    parts = [winners(part) for part in np.array_split(every, 64)]  # in cache
    return torch.from_numpy(np.concatenate([(part - LEAST + 1).astype(np.int16) for part in parts])).to(device)


def _encode(column: Tensor, train: int, min_count: int) -> tuple[int, float, float]:
    """Codes become ids in place: 0 rare, 1 missing, then values by falling frequency in training, ties by value.

    Returns how many ids there are, and the shares of training ads with rare and with missing values.
    """
    codes = column.contiguous()
    counts = torch.bincount(codes[:train], minlength=int(codes.max()) + 1)
    often = counts >= min_count
    often[0] = False
    kept = often.nonzero().squeeze(1)
    order = counts[kept].sort(descending=True, stable=True).indices
    ids = torch.full_like(counts, RARE, dtype=torch.int32)
    ids[kept[order]] = torch.arange(FIRST, FIRST + len(kept), dtype=torch.int32, device=ids.device)
    ids[0] = MISSING
    column.copy_(ids.index_select(0, codes))
    missing, common = int(counts[0]), int(counts[kept].sum())
    return FIRST + len(kept), (train - missing - common) / train, missing / train
