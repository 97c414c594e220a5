"""L2 at look-up against L2 on all rows in every step: welfare and log loss of DeepFM in the six worlds.

    python -m benchmarks.lazy_l2 [--rows 1000000] [--seeds 2] [--worlds NAME ...]

Both kinds of update are tuned: each tries the same values of L2 and keeps the one with the lowest validation log loss.
Welfare is that of all auctions of 256 test ads, in % of the welfare of the true CTR.
"""

from __future__ import annotations

import argparse
import time

import torch

from benchmarks.harness import RESULTS, read, write
from bidwise.evaluation.pooled import pooled_welfare
from bidwise.study.recipe import Recipe
from bidwise.training.validation import ctr_of, logits_across
from paper.criteo_device import Drawn, simulated_ads
from paper.criteo_world import CRITEO_WORLDS

Row = dict[str, object]
VALUES = (0.0, 1e3, 3e3, 1e4)  # times the number of training ads
SIZE = 256


def tried(drawn: Drawn, updates: str, l2: float, seed: int, device: str) -> Row:
    """One training: validation log loss at its best epoch, and test welfare there."""
    recipe = Recipe(
        epochs=4, schedule="cosine", learning_rate=3e-3, batch_size=4096, l2=l2 / len(drawn.train), embeddings=updates,
        precision="mixed",
    )  # fmt: skip
    start = time.perf_counter()
    model = recipe.build(drawn.cardinalities, seed).to(device)
    fitted = recipe.fit(model, drawn.train, valid=drawn.valid, metric="log_loss", seed=seed)
    seconds, test = time.perf_counter() - start, drawn.test
    assert test.truth is not None
    ctr, truth, bids = ctr_of(logits_across(model, test.features).double()), test.truth.double(), test.bids.double()
    share = pooled_welfare(ctr, truth, bids, SIZE) / pooled_welfare(truth, truth, bids, SIZE)
    best = fitted.best["log_loss"]
    return {"valid_log_loss": float(best.value), "epoch": float(best.epoch), "welfare": 100 * share, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--worlds", nargs="*", default=list(CRITEO_WORLDS), choices=list(CRITEO_WORLDS))
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    about = {"device": torch.cuda.get_device_name()} if device == "cuda" else {}
    rows: list[Row] = [{**row} for row in read("lazy_l2")] if (RESULTS / "lazy_l2.csv").exists() else []
    for world in asked.worlds:
        drawn = simulated_ads(asked.rows, world=world, device=device)
        for seed in range(asked.seeds):
            for l2 in VALUES:
                for updates in ("lazy", "dense") if l2 else ("lazy",):
                    found = tried(drawn, updates, l2, seed, device)
                    row: Row = {"world": world, "rows": asked.rows, "seed": seed, "updates": updates, "l2": l2, **found}
                    print(
                        "  ".join(f"{k} {x:.5g}" if isinstance(x, float) else f"{k} {x}" for k, x in row.items()),
                        flush=True,
                    )
                    rows.append({**row, **about})
        write("lazy_l2", rows, **about)


if __name__ == "__main__":
    main()
