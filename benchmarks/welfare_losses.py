"""What welfare losses, ensembles and distillation add to the model that `bidwise train` finds by its search.

On each table of :mod:`benchmarks.made_tables` the search chooses a network and its settings by log loss. The same
network is trained with each loss, as a mean of four, and by distillation from that mean; each is served by itself and
as the mean logit with the solved regression, before and after calibration. L2 is for each unit of log loss, the same
for every lam. Measured on test rows: pooled welfare by the true CTR in % of what the true CTR itself reaches. Tables
measured before are kept: a run that was cut off resumes.

    python -m benchmarks.welfare_losses [KINDS] [SEEDS]      # such as: b,c15 20-22
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import torch

import bidwise
from benchmarks.harness import RESULTS, read, write
from benchmarks.rivals import CHOSEN_ON, Rows
from bidwise.evaluation.metrics import log_losses
from bidwise.study.recipe import BASELINE, SOLVED, Recipe
from bidwise.study.search import budget, searched
from bidwise.study.served import Served, numbers, trained
from bidwise.table.config import resolved
from bidwise.table.plan import MEMBERS, candidates
from bidwise.table.prepare import Prepared, prepare
from bidwise.training.validation import logits_across

ENSEMBLE, DISTILLED = "ensemble of four", "distilled"
LAMS = {"log_plus": (3.0, 30.0, 300.0), "log_weighted": (3.0, 30.0, 300.0), "log_teacher": (30.0, 300.0)}
POINTWISE = ("sqrt_bid_weighted", "bid_weighted")
SEEDS = "20-22"  # no setting was chosen on them


def measured(kind: str, seed: int) -> list[dict[str, object]]:
    """The rows of one table."""
    rows, found = Rows.of(kind, seed), list[dict[str, object]]()
    data = {"click": "click", "bid": "bid", "auction_size": rows.size, "time": "time"}
    config = resolved({"data": data, "train": {"seed": seed}})
    with tempfile.TemporaryDirectory() as folder:
        prepare(rows.known.drop("truth"), config, folder)
        prepared = Prepared(Path(folder), config)
        ads, valid = (prepared.store.ads(part) for part in ("train", "valid"))
        test = torch.from_numpy(prepared.encoder.encode(rows.test.drop("click", "bid", "truth")).ids)
        shared = {"ads": ads, "valid": valid, "cardinalities": prepared.store.cardinalities, "plain": prepared.plain}
        limit = budget(len(ads), prepared.plain or len(prepared.store.fields))
        _, best = searched(candidates(config, len(ads)), **shared, seed=seed, limit=limit)
        network = next(each for each in best if not each.recipe.solved)
        recipe = replace(network.recipe, beside=False)
        regression = trained(SOLVED, **shared, seed=seed).fits

        def add(name: str, recipe: Recipe, base: Served | None = None, known: tuple = ()) -> Served:
            """Train it and measure it by itself and with the regression, which is returned."""
            start = time.process_time()
            teacher = None if base is None else base.model
            alone = trained(recipe, **shared, seed=seed, teacher=teacher, known=known)
            seconds = time.process_time() - start
            both = trained(replace(recipe, beside=True), **shared, seed=seed, known=(*alone.fits, *regression))
            for served, how in ((alone, "alone"), (both, "with the regression")):
                row = {"kind": kind, "seed": f"{seed}", "loss": name, "lam": f"{recipe.lam or ''}", "served": how}
                found.append(row | scores(served, rows, test) | {"seconds": seconds, "model": recipe.model})
            return both

        baseline = add(BASELINE, recipe, known=network.fits[:1])
        for loss, lams in LAMS.items():
            for lam in lams:
                add(loss, replace(recipe, loss=loss, lam=lam, teacher=BASELINE), base=baseline)
        for loss in POINTWISE:
            add(loss, replace(recipe, loss=loss))
        many = add(ENSEMBLE, replace(recipe, members=MEMBERS), known=network.fits[:1])
        add(DISTILLED, replace(recipe, loss="distilled", teacher=ENSEMBLE), base=many)
    return found


def scores(served: Served, rows: Rows, test: torch.Tensor) -> dict[str, float]:
    """Welfare of test rows before and after calibration, and the log loss after it."""
    logits = logits_across(served.model, test).double()
    ctr = torch.sigmoid(logits), torch.sigmoid((logits - served.model.intercept) / served.model.slope)
    clicks, truth, bids = (rows.test[column].to_numpy() for column in ("click", "truth", "bid"))
    best = bidwise.pooled_welfare(truth, truth, bids, rows.size)
    after, before = (100 * bidwise.pooled_welfare(numbers(x), truth, bids, rows.size) / best for x in ctr)
    loss = float(log_losses(numbers(ctr[0]), clicks).mean())
    return {"before": round(before, 3), "welfare": round(after, 3), "log_loss": round(loss, 5)}


def main() -> None:
    torch.set_num_threads(1)
    kinds, seeds = [*sys.argv[1:], *(",".join(CHOSEN_ON), SEEDS)[len(sys.argv) - 1 :]]
    first, last = (seeds.split("-") * 2)[:2]
    for seed, kind in ((s, k) for s in range(int(first), int(last) + 1) for k in kinds.split(",")):
        known = read("welfare_losses") if (RESULTS / "welfare_losses.csv").exists() else []
        if any((row["kind"], row["seed"]) == (kind, f"{seed}") for row in known):
            continue
        rows = measured(kind, seed)
        print(pl.DataFrame(rows), flush=True)
        write("welfare_losses", [*known, *rows])


if __name__ == "__main__":
    main()
