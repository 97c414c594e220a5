"""The six Criteo-shaped worlds: click rate, AUC of the true CTR, and of models trained with log loss.

    python -m benchmarks.worlds [--rows 1000000] [--device cpu] [--world NAME] [--world-seed K]

Logistic regression and DeepFM train two epochs of batches of 4,096; validation log loss keeps the best half epoch.
"""

from __future__ import annotations

import argparse
import time

import torch

from benchmarks.harness import write
from bidwise import fit
from bidwise.evaluation.auc import auc
from bidwise.models import MODELS
from bidwise.training.validation import predict
from paper.criteo_device import simulated_ads
from paper.criteo_world import CRITEO_WORLDS

Row = dict[str, object]
BATCH, EPOCHS = 4096, 2
RATES = {"logistic_regression": 0.01, "deepfm": 1e-3}


def row(name: str, rows: int, device: str, world_seed: int | None) -> Row:
    """A world: its clicks and bids, and AUCs on its test ads."""
    start = time.perf_counter()
    ads = simulated_ads(rows, world=name, world_seed=world_seed, device=device)
    test, log_bids = ads.test, ads.test.bids.double().log()
    found: Row = {
        "world": name,
        "rows": rows,
        "world_seed": "" if world_seed is None else world_seed,
        "click_rate": float(test.truth.double().mean()),
        "log_bid_sd": float(log_bids.std()),
        "bid_correlation": float(torch.corrcoef(torch.stack([log_bids, torch.logit(test.truth.double(), 1e-9)]))[0, 1]),
        "values": sum(ads.cardinalities),
        "seconds_to_draw": time.perf_counter() - start,
        "auc_truth": auc(test.truth, test.clicks),
    }
    for model, rate in RATES.items():
        fitted = fit(
            MODELS[model](ads.cardinalities, seed=0).to(device),
            ads.train,
            valid=ads.valid,
            metric="log_loss",
            epochs=EPOCHS,
            every=0.5,
            batch_size=BATCH,
            learning_rate=rate,
        )
        found[f"auc_{model}"] = auc(predict(fitted.model, test), test.clicks)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--world", choices=list(CRITEO_WORLDS), help="one of them alone")
    parser.add_argument("--world-seed", type=int)
    asked = parser.parse_args()
    about = {"device": torch.cuda.get_device_name()} if asked.device.startswith("cuda") else {}
    rows = []
    for name in [asked.world] if asked.world else CRITEO_WORLDS:
        rows.append(row(name, asked.rows, asked.device, asked.world_seed))
        print(
            "  ".join(f"{k} {x:.4g}" if isinstance(x, float) else f"{k} {x}" for k, x in rows[-1].items()), flush=True
        )
    print(write("worlds", rows, **about))


if __name__ == "__main__":
    main()
