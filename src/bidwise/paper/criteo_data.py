"""The ads of the Criteo experiment, from a store or drawn on the device, and what is said about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from bidwise.checks import InputError
from bidwise.data.ads import Ads
from bidwise.data.criteo_device import simulated_ads
from bidwise.data.store import SPLITS, Store
from bidwise.evaluation.auc import auc
from bidwise.evaluation.pooled import pooled_welfare
from bidwise.run_folder import checksum
from bidwise.study.criteo_results import TUNED, AdsOfRun, Bids, CriteoConfig, SplitSizes, Truth
from bidwise.training.validation import METRICS, Metric
from bidwise.typed_json import from_json

FIRST = 2**16  # simulated test ads whose checksum says whether they are the same


@dataclass(frozen=True)
class Dataset:
    """The splits on their device, where they stay for all trainings."""

    name: str
    checksum: str  # whether a run resumes with the ads it began with
    train: Ads
    valid: Ads
    test: Ads
    cardinalities: Sequence[int]
    splits: SplitSizes
    schema: dict[str, Any]  # as a store describes itself

    @property
    def selections(self) -> list[Metric]:
        """What epoch and lam are selected by: validation log loss; for comparison welfare, and the truth if known."""
        names = [TUNED, "welfare", *([] if self.valid.truth is None else ["expected_welfare"])]
        return [METRICS[name] for name in names]

    def about(self, config: CriteoConfig) -> AdsOfRun:
        """What a result says about its ads."""
        truth, optimum = None, float("nan")
        if self.test.truth is not None:
            ctr, clicks = self.test.truth.double(), self.test.clicks.double()
            entropy = -(clicks * ctr.log() + (1 - clicks) * (-ctr).log1p()).mean()
            truth = Truth(auc(ctr, clicks), float(entropy))
            optimum = pooled_welfare(ctr, ctr, self.test.bids, config.auction_size)
        options, bids = self.schema.get("options", {}), self.schema.get("bids")
        return AdsOfRun(
            name=self.name,
            splits=self.splits,
            click_rate=float(self.train.clicks.double().mean()),
            fields=len(self.cardinalities),
            values=sum(self.cardinalities),
            integers=options.get("integers"),
            min_count=options.get("min_count"),
            bids=None if bids is None else from_json(Bids, bids, f"bids of {self.name}"),
            optimal_welfare=optimum,
            truth=truth,
        )


def load_dataset(config: CriteoConfig, data: str | Path | None, device: str, *, verify: bool = False) -> Dataset:
    """The ads of a run; they are loaded or drawn once in a process, and stay on the device.

    Args:
        data: a store; ``None`` simulates ``config.rows`` ads on the device.
        verify: compare the checksums of all files of a store first.
    """
    if (data is None) == (config.rows is None):
        raise InputError(
            "must be a store that bidwise prepare criteo wrote, or {} the number of ads to simulate on the device, one "
            f"of the two; found {'neither' if data is None else 'both'}",
            argument="data",
            others=("rows",),
        )
    if data is None:
        assert config.rows is not None
        return _simulated(config.rows, config.world, config.seed, config.auction_size, device)
    store = Store(data, verify=verify)
    files = checksum(repr(sorted(store.schema["files"].items())))
    return _stored(str(store.folder.absolute()), files, config.auction_size, device)


@lru_cache(maxsize=1)
def _stored(folder: str, files: str, size: int, device: str) -> Dataset:
    store = Store(folder)
    splits = {split: store.ads(split) for split in SPLITS}
    return _dataset(store.folder.name, files, splits, device, size, store.cardinalities, store.schema)


@lru_cache(maxsize=1)
def _simulated(rows: int, world: str, seed: int, size: int, device: str) -> Dataset:
    ads = simulated_ads(rows, world=world, seed=seed, device=device)
    first = checksum(ads.test.features[:FIRST], ads.test.clicks[:FIRST], ads.test.bids[:FIRST])
    return _dataset("simulated", first, ads.splits, device, size, ads.cardinalities, ads.about)


def _dataset(
    name: str,
    checksum: str,
    splits: dict[str, Ads],
    device: str,
    size: int,
    cardinalities: Sequence[int],
    schema: dict[str, Any],
) -> Dataset:
    valid, test = (replace(splits[split], auction_size=size).to(device) for split in ("valid", "test"))
    train, sizes = splits[SPLITS[0]].to(device), SplitSizes(*map(len, splits.values()))
    return Dataset(name, checksum, train, valid, test, cardinalities, sizes, schema)
