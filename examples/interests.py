"""What a column of lists is worth: 100,000 ads whose clicks depend on how readers' interests and brands go together.

One model ignores the interests, one sees the first of each list as a category, one uses the lists. Welfare is
in % of what the true CTR, known here, would reach.

    python examples/interests.py runs/interests
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from bidwise.table import train

AUCTIONS, ADS = 10_000, 10
INTERESTS, BRANDS, SITES = 200, 50, 30
ROLES = {"click": "click", "bid": "bid", "auction": "auction", "truth": "truth"}
MODEL = {"model": "dcnv2", "loss": "log_loss"}


def logged(auctions=AUCTIONS, seed=0):
    """Readers have 0 to 8 interests; those of an auction see ten brands."""
    random = np.random.default_rng(seed)
    interests, brands = random.normal(size=(INTERESTS, 4)), random.normal(size=(BRANDS, 4))
    lists = [random.zipf(1.3, count) % INTERESTS for count in random.integers(0, 9, auctions)]
    taste = np.array([interests[each].mean(0) if len(each) else np.zeros(4) for each in lists])
    reader, rows = np.repeat(np.arange(auctions), ADS), auctions * ADS
    brand = random.integers(0, BRANDS, rows)
    truth = 1 / (1 + np.exp(2.5 - (taste[reader] * brands[brand]).sum(1)))
    names = pl.Series([[f"interest_{k}" for k in each] for each in lists], dtype=pl.List(pl.String))
    return pl.DataFrame(
        {
            "auction": reader,
            "interests": names.gather(reader),
            "site": random.integers(0, SITES, auctions)[reader],
            "brand": brand,
            "bid": random.lognormal(0, 0.5, rows),
            "click": (random.random(rows) < truth).astype(int),
            "truth": truth,
        }
    )


def main(folder="runs/interests", auctions=AUCTIONS, **options):
    table = logged(int(auctions))
    tables = {
        "ignored": table.drop("interests"),
        "the first": table.with_columns(pl.col("interests").list.first()),
        "lists": table,
    }
    for name, rows in tables.items():
        out = Path(folder) / name.replace(" ", "_")
        found = train(rows, out=out, **ROLES, **MODEL, **options).evaluation.models["log_loss"]
        test = pl.read_parquet(out / "test.parquet").with_columns(value=pl.col("bid") * pl.col("truth"))
        best = test.group_by("auction").agg(pl.col("value").max())["value"].mean()
        print(f"interests, {name}: welfare {100 * found.welfare / best:.1f} % of the optimum, AUC {found.auc:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
