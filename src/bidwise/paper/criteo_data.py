"""The ads of the Criteo experiment, from a store or drawn on the device, and the auctions they are cut into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from bidwise.auctions import optimal_welfare
from bidwise.checks import InputError
from bidwise.data.ads import Ads, AuctionCuts
from bidwise.data.criteo_device import simulated_ads
from bidwise.data.store import SPLITS, Store
from bidwise.evaluation.auc import auc
from bidwise.run_folder import checksum
from bidwise.study.criteo_results import AdsOfRun, Bids, CriteoConfig, SplitSizes, Truth
from bidwise.training.validation import METRICS, Metric, mean_welfare
from bidwise.typed_json import from_json

FIRST = 2**16  # simulated test ads whose checksum says whether they are the same


def welfare_over(cuts: AuctionCuts, name: str) -> Metric:
    """Welfare over these auctions, by clicks or by the true CTR, to select models by."""
    like = METRICS[name]

    def of(logits: Tensor, ads: Ads) -> Tensor:
        rows = cuts.to(logits.device).rows
        worth = ads.clicks if name == "welfare" else ads.truth
        assert worth is not None
        bids = ads.bids[rows]
        return mean_welfare(logits[rows], bids * worth[rows], bids, cuts.offsets)

    return Metric(name, like.about, like.higher_is_better, of)


@dataclass(frozen=True)
class Dataset:
    """The splits on their device, where they stay for all trainings, and the auctions of validation and test ads."""

    name: str
    checksum: str  # whether a run resumes with the ads it began with
    train: Ads
    valid: Ads
    test: Ads
    valid_cuts: AuctionCuts
    test_cuts: AuctionCuts
    cardinalities: Sequence[int]
    splits: SplitSizes
    schema: dict[str, Any]  # as a store describes itself

    @property
    def selections(self) -> list[Metric]:
        """What epoch and lam are selected by: validation welfare; for comparison log loss, and the truth if known."""
        truth = [] if self.valid.truth is None else [welfare_over(self.valid_cuts, "expected_welfare")]
        return [welfare_over(self.valid_cuts, "welfare"), METRICS["log_loss"], *truth]

    def about(self, config: CriteoConfig) -> AdsOfRun:
        """What a result says about its ads."""
        truth, optimum = None, float("nan")
        if self.test.truth is not None:
            ctr, clicks, rows = self.test.truth.double(), self.test.clicks.double(), self.test_cuts.rows
            entropy = -(clicks * ctr.log() + (1 - clicks) * (-ctr).log1p()).mean()
            truth = Truth(auc(ctr, clicks), float(entropy))
            best = optimal_welfare(ctr[rows], self.test.bids[rows].double(), self.test_cuts.offsets)
            optimum = float(best.mean())
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
            auctions=self.test_cuts.auctions // config.cuts,
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
    cut = (config.auction_size, config.cuts, config.seed)
    if data is None:
        assert config.rows is not None
        return _simulated(config.rows, device, *cut)
    store = Store(data, verify=verify)
    files = checksum(repr(sorted(store.schema["files"].items())))
    return _stored(str(store.folder.absolute()), files, device, *cut)


@lru_cache(maxsize=1)
def _stored(folder: str, files: str, device: str, *cut: int) -> Dataset:
    store = Store(folder)
    splits = {split: store.ads(split) for split in SPLITS}
    return _dataset(store.folder.name, files, splits, device, cut, store.cardinalities, store.schema)


@lru_cache(maxsize=1)
def _simulated(rows: int, device: str, *cut: int) -> Dataset:
    ads = simulated_ads(rows, seed=cut[-1], device=device)
    splits = {"train": ads.train, "valid": ads.valid, "test": ads.test}
    first = checksum(ads.test.features[:FIRST], ads.test.clicks[:FIRST], ads.test.bids[:FIRST])
    return _dataset("simulated", first, splits, device, cut, ads.cardinalities, ads.about)


def _dataset(
    name: str,
    checksum: str,
    splits: dict[str, Ads],
    device: str,
    cut: tuple[int, ...],
    cardinalities: Sequence[int],
    schema: dict[str, Any],
) -> Dataset:
    size, cuts, seed = cut
    valid, test = (
        AuctionCuts.of_neighbours(len(splits[split]), size, split).of(splits[split]).to(device)
        for split in ("valid", "test")
    )
    valid_cuts, test_cuts = (
        AuctionCuts.at_random(len(ads), size, cuts=cuts, seed=seed).to(device) for ads in (valid, test)
    )
    train, sizes = splits[SPLITS[0]].to(device), SplitSizes(*map(len, splits.values()))
    return Dataset(name, checksum, train, valid, test, valid_cuts, test_cuts, cardinalities, sizes, schema)
