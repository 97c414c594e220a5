"""Write a table of logged ads such as a platform has, and one of new ads: for `bidwise train` and `bidwise predict`.

Auctions of 2 to 30 ads, four categories, three numbers, a timestamp; clicks depend on how site and brand go together.
The true CTR stands beside the clicks, which no real log has: name it as --truth, or --ignore it.

    python examples/own_table.py runs/own
    bidwise train runs/own/ads.parquet --click click --bid bid --auction auction --time time --truth truth \\
        --out runs/own/run
    bidwise predict runs/own/run runs/own/new_ads.parquet --out runs/own/predictions.parquet
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

AUCTIONS = 6_000


def main(folder="runs/own", auctions=AUCTIONS):
    random = np.random.default_rng(0)
    sizes = random.integers(2, 31, int(auctions))
    auction = np.repeat(np.arange(len(sizes)), sizes)
    ads = len(auction)
    site = np.repeat(random.integers(0, 40, len(sizes)), sizes)  # all ads of an auction are for one place and user
    device = np.repeat(random.choice(["phone", "tablet", "desktop"], len(sizes), p=[0.6, 0.1, 0.3]), sizes)
    hour = np.repeat(random.integers(0, 24, len(sizes)), sizes)
    brand, shape = random.zipf(1.4, ads) % 300, random.choice(["square", "wide", "tall"], ads)
    age, price = random.exponential(10, ads), random.lognormal(3, 1, ads)
    taste = random.normal(size=(40, 2)) @ random.normal(size=(2, 300))  # which site likes which brand
    logit = -2.2 + taste[site, brand] + 0.5 * (device == "phone") * (shape == "tall") - 0.02 * age
    truth = 1 / (1 + np.exp(-logit))
    table = pl.DataFrame(
        {
            "auction": auction,
            "time": pl.from_epoch(pl.Series(1_790_000_000 + 13 * auction), "s"),
            "site": [f"site_{k}" for k in site],
            "device": device,
            "hour": hour,
            "brand_id": brand,
            "shape": shape,
            "age_days": pl.Series(np.where(random.random(ads) < 0.05, np.nan, age.round(1))).fill_nan(None),
            "price": price.round(2),
            "bid": random.lognormal(0, 0.6, ads).round(3) + 0.01,
            "click": (random.random(ads) < truth).astype(int),
            "truth": truth,
        }
    )
    cut = int(table["auction"].max() * 0.95)
    Path(folder).mkdir(parents=True, exist_ok=True)
    table.filter(pl.col("auction") <= cut).write_parquet(Path(folder) / "ads.parquet")
    table.filter(pl.col("auction") > cut).drop("click", "truth").write_parquet(Path(folder) / "new_ads.parquet")
    print(f"Written: {folder}/ads.parquet and {folder}/new_ads.parquet, {ads:,} ads in {len(sizes):,} auctions")


if __name__ == "__main__":
    main(*sys.argv[1:])
