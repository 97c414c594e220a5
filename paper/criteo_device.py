"""The ads of the Criteo experiment on a device: from a store, or simulated there without text and files.

Simulating does what `python -m paper simulate` and `python -m paper prepare` do with text, for data that is used once:
45.8 million ads take 8 GB of a GPU, and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bidwise.checks import InputError, check_seed, check_whole
from bidwise.data.ads import Ads
from bidwise.data.store import SPLITS, Field, Store
from bidwise.evaluation.pooled import pooled_welfare
from bidwise.run_folder import checksum
from bidwise.values import FIRST, MISSING, RARE
from paper.bids import drawn
from paper.criteo_results import AdsOfRun, CriteoConfig
from paper.criteo_text import NAMES, split_sizes, winners
from paper.criteo_world import COUNTS, CRITEO_WORLDS, FIELDS, CriteoWorld, Sample, sampled

CHUNK = 2**20  # ads that are drawn together, from the seed and the number of the chunk: half a GB
LEAST = -2  # no column has a smaller integer
CHECKED = 2**16  # test ads in the checksum of a table
MIN_COUNT = 10  # categories seen less often in the training ads are rare; integers are not thinned out


@dataclass(frozen=True)
class Dataset:
    """Encoded ads on a device, where they stay for all trainings."""

    train: Ads
    valid: Ads
    test: Ads
    cardinalities: Sequence[int]  # values of every field, what models are built for
    checksum: str  # by which a run knows that it resumes with the ads it began with
    about: dict[str, Any]  # as a store describes itself
    name: str = "simulated"

    @property
    def splits(self) -> dict[str, Ads]:
        """The ads by the names of their splits."""
        return {"train": self.train, "valid": self.valid, "test": self.test}


def simulated_ads(
    rows: int,
    *,
    world: str = "shared_tail",
    world_seed: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Dataset:
    """``rows`` ads of a world on ``device``; uniform numbers come from its generator.

    So a seed means one sample on CPUs, another on GPUs, and a third as text (:func:`~paper.criteo_text.simulate`). The
    first eight tenths are for training, the next one for validation: a split by time where the world drifts, and as
    good as a random one elsewhere.

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
    drawn_from = CRITEO_WORLDS[world] if world_seed is None else CRITEO_WORLDS[world].redrawn(world_seed)
    for number, start in enumerate(range(0, rows, CHUNK)):
        some = slice(start, min(start + CHUNK, rows))
        time = torch.arange(some.start, some.stop, dtype=torch.float64, device=device) / rows
        chunk = chunk_on(device, seed, number, drawn_from, time)
        clicks[some], truth[some] = chunk.clicks, chunk.ctr
        features[some] = _codes(chunk).T
    fields = [
        Field(name, _encode(features[:, index], sizes["train"], 1 if index < len(COUNTS) else MIN_COUNT))
        for index, name in enumerate(NAMES)
    ]
    ids, chosen, ctr = (
        dict(zip(sizes, torch.split(column, list(sizes.values())), strict=True)) for column in (features, clicks, truth)
    )
    bids, about_bids = drawn(ids, ctr, fields, drawn_from.bids)
    ads: dict[str, Any] = {part: Ads(ids[part], chosen[part], bids[part], truth=ctr[part]) for part in sizes}
    first = [column[:CHECKED] for column in (ads["test"].features, ads["test"].clicks, ads["test"].bids)]
    options = {"min_count": MIN_COUNT, "split": (8, 1, 1), "seed": seed, "integers": "winners"}
    about = {"options": options, "bids": about_bids}
    return Dataset(**ads, cardinalities=[field.values for field in fields], checksum=checksum(*first), about=about)


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


def _encode(column: Tensor, train: int, min_count: int) -> int:
    """Codes become ids in place: 0 rare, 1 missing, then values by falling frequency in training, ties by value.

    Returns how many ids there are.
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
    return FIRST + len(kept)


def load_dataset(config: CriteoConfig, data: str | Path | None, device: str) -> Dataset:
    """The ads of a run on the device: of a store, or ``config.rows`` simulated ones."""
    if (data is None) == (config.rows is None):
        raise InputError(
            "must be a store that python -m paper prepare wrote, or {} the number of ads to simulate on the device, "
            f"one of the two; found {'neither' if data is None else 'both'}",
            argument="data",
            others=("rows",),
        )
    if data is None:
        assert config.rows is not None
        dataset = simulated_ads(config.rows, world=config.world, seed=config.seed, device=device)
    else:
        store = Store(data)
        ads: dict[str, Any] = {split: store.ads(split).to(device) for split in SPLITS}
        files = checksum(*sorted(store.folder.glob("*/*.npy")))
        values = [field.values for field in store.fields]
        dataset = Dataset(**ads, cardinalities=values, checksum=files, about=store.schema, name=store.folder.name)
    sized: dict[str, Any] = {
        name: replace(dataset.splits[name], auction_size=config.auction_size) for name in ("valid", "test")
    }
    return replace(dataset, **sized)


def described(dataset: Dataset, auction_size: int) -> AdsOfRun:
    """What a result says about its ads."""
    test, ctr = dataset.test, None if dataset.test.truth is None else dataset.test.truth.double()
    return AdsOfRun(
        name=dataset.name,
        splits={name: len(ads) for name, ads in dataset.splits.items()},
        click_rate=float(dataset.train.clicks.double().mean()),
        about={name: dataset.about[name] for name in ("options", "bids")} | {"values": sum(dataset.cardinalities)},
        optimal_welfare=math.nan if ctr is None else pooled_welfare(ctr, ctr, test.bids, auction_size),
    )
