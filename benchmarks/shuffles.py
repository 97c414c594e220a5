"""What it costs to shuffle a long table in blocks: DeepFM on simulated ads in the order of their time, which drift.

python -m benchmarks.shuffles

The table is short, and its blocks are as short beside it as those of 80 million training ads would be: as many blocks,
and as many of them at a time. ``one stretch`` is the contrast: batches from a single stretch of the table.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.harness import write
from bidwise import fit
from bidwise.models import DeepFM
from bidwise.training import mixing
from paper.criteo_device import simulated_ads

Row = dict[str, object]
ROWS, LONG, SEEDS, BATCH, AUCTION = 500_000, 80_000_000, 4, 1024, 100
WORLDS = ("drift", "shared_tail")
METRICS = ("expected_welfare", "log_loss")


def rows() -> Iterator[Row]:
    """Metrics of validation auctions after an epoch, and what blocks change for the same seed."""
    large, block, mix = mixing.LARGE, mixing.BLOCK, mixing.MIX
    for world in WORLDS:
        ads = simulated_ads(ROWS, world=world, device="cpu")
        valid = replace(ads.valid, auction_size=AUCTION)
        short = max(1, block * len(ads.train) // LONG)
        methods = {"all": (large, block, mix), "blocks": (0, short, mix), "one stretch": (0, short * mix, 1)}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
        for seed in range(SEEDS):
            for name, (mixing.LARGE, mixing.BLOCK, mixing.MIX) in methods.items():
                model = DeepFM(ads.cardinalities, embedding=8, hidden=[64, 64], seed=seed)
                last = fit(model, ads.train, valid=valid, metric=list(METRICS), epochs=1, batch_size=BATCH, seed=seed)
                found[name].append({metric: float(last.history[-1][metric]) for metric in METRICS})
                print(world, seed, name, found[name][-1], flush=True)
        for metric in METRICS:
            plain = [each[metric] for each in found["all"]]
            for name in methods:
                values = [each[metric] for each in found[name]]
                changes = [b - a for a, b in zip(plain, values, strict=True)]
                row: Row = {"case": "shuffles", "world": world, "shuffled": name, "metric": metric}
                row |= {"mean": statistics.mean(values), "seed_sd": statistics.stdev(plain)}
                row |= {"change": statistics.mean(changes), "change_sd": statistics.stdev(changes)}
                yield row | {"seeds": SEEDS, "rows": ROWS, "batch": BATCH}


if __name__ == "__main__":
    print(write("shuffles", list(rows())))
