"""Seven days of ads that drift: a model refreshed every night, one trained once, one trained from scratch every night.

Tastes of sites turn a little every day, and every day brings creatives that nobody has seen. At night a model is
trained on what was logged, and it serves the next day: welfare is in % of what the true CTR, known here, would reach.

    python examples/daily_refresh.py runs/days
"""

import sys
import time
from pathlib import Path

import numpy as np
import polars as pl

import bidwise
from bidwise.table import train

DAYS, AUCTIONS, ADS = 7, 4_000, 10  # each day
SITES, BRANDS, NEW = 30, 40, 60  # new creatives a day; each is shown for about three days
TURN = 0.15  # radians that tastes turn a day
ROLES = {"click": "click", "bid": "bid", "auction": "auction", "time": "time", "truth": "truth"}
MODEL = {"model": "dcnv2", "recipe": "single", "budget_seconds": 0.0}


def day_of_ads(day, seed=0):
    """The logged ads of a day; tastes, brands and creatives are those of the seed."""
    world, random = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1, day])
    sites, turned = world.normal(size=(2, SITES, 4))
    brands = world.normal(size=(BRANDS, 4))
    brand_of = world.integers(0, BRANDS, NEW * (DAYS + 10))
    effect = 0.7 * world.normal(size=NEW * (DAYS + 10))
    site = np.repeat(random.integers(0, SITES, AUCTIONS), ADS)
    number, age = random.integers(0, NEW, len(site)), random.geometric(0.35, len(site)).clip(max=6)  # in days
    creative = NEW * (day + 6 - age) + number
    brand, device = brand_of[creative], random.choice(["phone", "tablet", "desktop"], len(site))
    angle = TURN * (day + np.arange(len(site)) / len(site))[:, None]
    taste = np.cos(angle) * sites[site] + np.sin(angle) * turned[site]
    logit = -3 + 0.5 * (taste * brands[brand]).sum(1) + effect[creative] + 0.3 * (device == "phone")
    truth = 1 / (1 + np.exp(-logit))
    auction = AUCTIONS * day + np.repeat(np.arange(AUCTIONS), ADS)
    named = {"site": site, "brand": brand, "creative": creative}
    return pl.DataFrame(
        {name: [f"{name}_{value}" for value in values] for name, values in named.items()}
        | {"device": device, "auction": auction, "time": auction, "bid": random.lognormal(0, 0.5, len(site))}
        | {"click": (random.random(len(site)) < truth).astype(int), "truth": truth}
    )


def served(run, ads):
    """Welfare of a day by the model of a run, in % of the optimum."""
    ctr, truth, bids = bidwise.load(run).predict(ads), ads["truth"].to_numpy(), ads["bid"].to_numpy()
    offsets = np.arange(0, len(ads) + 1, ADS)
    mine, best = (float(bidwise.welfare(x, truth, bids, offsets).mean()) for x in (ctr, truth))
    return 100 * mine / best


def nights(folder, days, refresh):
    """For each way, the run that serves after every night, with the seconds it took and the rows it passed over."""
    for night in range(1, DAYS + 1):
        tonight = {"once": (days[1], {}), "refreshed": (days[night], {}), "anew": (pl.concat(days[1 : night + 1]), {})}
        if night > 1:
            tonight["refreshed"] = days[night], {"continue_from": folder / f"refreshed-{night - 1}", **refresh}
            del tonight["once"]
        for way, (ads, more) in tonight.items():
            began = time.monotonic()
            options = ROLES | MODEL if "continue_from" not in more else {}
            result = train(ads, out=folder / f"{way}-{night}", **options, **more)
            fit = next(iter(result.fits.values()))
            rows = result.table.splits["train"].ads * fit.recipe.epochs
            yield night, way, time.monotonic() - began, rows


def main(folder="runs/days", seed=0, **refresh):
    folder = Path(folder)
    days = [day_of_ads(day, int(seed)) for day in range(DAYS + 2)]
    spent = {"once": [0.0, 0], "refreshed": [0.0, 0], "anew": [0.0, 0]}
    for night, way, seconds, rows in nights(folder, days, refresh):
        spent[way] = [spent[way][0] + seconds, spent[way][1] + rows]
        print(f"night {night}: {way}, {seconds:.0f} s, {rows:,.0f} rows passed over", flush=True)
    print(f"\n{'day served':12}", *(f"{way:>10}" for way in spent))
    found = {way: [] for way in spent}
    for day in range(2, DAYS + 2):
        for way in spent:
            found[way].append(served(folder / f"{way}-{1 if way == 'once' else day - 1}", days[day]))
        print(f"{day:12}", *(f"{found[way][-1]:9.2f}%" for way in spent))
    print(f"{'mean':12}", *(f"{np.mean(found[way]):9.2f}%" for way in spent))
    print(f"{'seconds':12}", *(f"{seconds:10.0f}" for seconds, _ in spent.values()))
    print(f"{'rows, 1e6':12}", *(f"{rows / 1e6:10.2f}" for _, rows in spent.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
