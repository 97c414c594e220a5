"""Where the ads of the Criteo experiment come from: a store, or the simulated world drawn on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bidwise.auctions import optimal_welfare
from bidwise.checks import InputError
from bidwise.data.ads import AuctionCuts
from bidwise.data.criteo_device import simulated_ads
from bidwise.data.store import SPLITS, Store
from bidwise.paper.criteo.plan import Config
from bidwise.paper.criteo.trial import Arena, numbers_of
from bidwise.run_folder import checksum

FIRST = 2**16  # simulated test ads that tell whether they are the same


@dataclass(frozen=True)
class Source:
    """Ads on their device, and what a result tells of them."""

    name: str
    checksum: str  # whether a run goes on with the ads it began with
    arena: Arena
    cardinalities: Sequence[int]
    splits: dict[str, int]
    schema: dict[str, Any]

    def about(self, config: Config) -> dict[str, Any]:
        """What a result tells of its data."""
        arena, truth, optimum = self.arena, None, None
        if arena.test.truth is not None:
            ctr, clicks = arena.test.truth.double(), arena.test.clicks.double()
            entropy = -(clicks * ctr.log() + (1 - clicks) * (-ctr).log1p()).mean()
            truth = {"auc": numbers_of(ctr, clicks)["auc"], "log_loss": float(entropy)}
            rows = arena.test_auctions.rows
            best = optimal_welfare(ctr[rows], arena.test.bids[rows].double(), arena.test_auctions.offsets)
            optimum = float(best.mean())
        return {
            "splits": self.splits,
            "click_rate": float(arena.train.clicks.double().mean()),
            "fields": len(self.cardinalities),
            "values": sum(self.cardinalities),
            **{name: self.schema.get("options", {}).get(name) for name in ("integers", "min_count")},
            "bids": self.schema.get("bids"),
            "auctions": len(arena.test_auctions.offsets[1:]) // config.cuts,
            "known_ctr": truth is not None,
            "optimal_welfare": optimum,
            "truth": truth,
        }


def source_of(config: Config, data: str | Path | None, device: str, *, verify: bool = False) -> Source:
    """The ads of a run; they are loaded or drawn once in a process, and stay on the device.

    Args:
        data: a store; ``None`` simulates ``config.rows`` ads on the device.
        verify: compare the checksums of all files of a store first.
    """
    if (data is None) == (config.rows is None):
        both = "neither" if data is None else f"data = {str(data)!r} and rows = {config.rows}"
        raise InputError(
            "must be a store that bidwise prepare criteo wrote, or rows the number of ads to simulate on the "
            f"device, one of the two; found {both}",
            argument="data",
        )
    cut = (config.auction_size, config.cuts, config.seed)
    if data is None:
        assert config.rows is not None
        return _simulated(config.rows, device, *cut)
    store = Store(data, verify=verify)
    return _stored(str(store.folder.absolute()), _checksum(store), device, *cut)


@lru_cache(maxsize=1)
def _stored(folder: str, checksum: str, device: str, auction_size: int, cuts: int, seed: int) -> Source:
    store = Store(folder)
    arena = _arena_of(store, auction_size, cuts, seed).to(device)
    return Source(store.folder.name, checksum, arena, store.cardinalities, store.splits, store.schema)


@lru_cache(maxsize=1)
def _simulated(rows: int, device: str, auction_size: int, cuts: int, seed: int) -> Source:
    ads = simulated_ads(rows, seed=seed, device=device)
    parts = {"train": ads.train, "valid": ads.valid, "test": ads.test}
    cut = (
        AuctionCuts.of_neighbours(len(parts[split]), auction_size, split).of(parts[split])
        for split in ("valid", "test")
    )
    arena = Arena.of(ads.train, *cut, auction_size=auction_size, cuts=cuts, seed=seed).to(device)
    found = checksum(ads.test.features[:FIRST], ads.test.clicks[:FIRST], ads.test.bids[:FIRST])
    sizes = {split: len(parts[split]) for split in SPLITS}
    return Source("simulated", found, arena, ads.cardinalities, sizes, ads.about)


def _arena_of(store: Store, auction_size: int, cuts: int, seed: int) -> Arena:
    valid, test = (store.ads(split, auction_size=auction_size) for split in ("valid", "test"))
    return Arena.of(store.ads("train"), valid, test, auction_size=auction_size, cuts=cuts, seed=seed)


def _checksum(store: Store) -> str:
    return checksum(repr(sorted(store.schema["files"].items())))
