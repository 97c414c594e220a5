"""What products of matrices in TF32 change, beside what another seed does: DeepFM on simulated Criteo ads.

python -m benchmarks.precision

Without a GPU, TF32 is emulated: the factors of every product, forward and backward, are rounded to its 10 bits.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.harness import write
from bidwise import fit
from bidwise.models import DeepFM
from bidwise.training.arguments import PRECISIONS
from paper.criteo_device import simulated_ads

Row = dict[str, object]
METRICS = ("log_loss", "auc", "expected_welfare")
SEEDS, BATCH, AUCTION = 6, 2048, 200
ROWS = {"cuda": 10_000_000, "cpu": 1_000_000}
PRODUCTS = {getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "mv", "addmv", "bmm", "baddbmm")}


class Rounded(TorchDispatchMode):
    """Products whose factors have the 10 bits of TF32 behind their first, rounded to nearest; sums stay in float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS:
            bits = (x.contiguous().view(torch.int32) for x in args[-2:])
            args = (*args[:-2], *(((x + 0x1000) & ~0x1FFF).view(torch.float32) for x in bits))
        return func(*args, **(kwargs or {}))


def rows() -> Iterator[Row]:
    """Means over seeds, how far seeds differ, and what TF32 changes for the same seed."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ads = simulated_ads(ROWS[device], device=device)
    valid = replace(ads.valid, offsets=torch.arange(0, len(ads.valid) + 1, AUCTION, device=device))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in PRECISIONS}
    for seed in range(SEEDS):
        for name in PRECISIONS:
            emulated = Rounded() if name == "mixed" and device == "cpu" else nullcontext()
            found[name].append(_trained(seed, name, ads, valid, device, emulated))
            print(seed, name, {key: f"{x:.6f}" for key, x in found[name][-1].items()}, flush=True)
    for metric in METRICS:
        plain, mixed = ([each[metric] for each in found[name]] for name in PRECISIONS)
        changes = [b - a for a, b in zip(plain, mixed, strict=True)]
        row: Row = {"case": "precision", "tf32": "emulated" if device == "cpu" else "tensor cores", "metric": metric}
        row |= {"float32": statistics.mean(plain), "seed_sd": statistics.stdev(plain)}
        row |= {"mixed_change": statistics.mean(changes), "mixed_change_sd": statistics.stdev(changes)}
        yield row | {"seeds": SEEDS, "rows": ROWS[device]}


def _trained(
    seed: int, precision: str, ads: Any, valid: Any, device: str, emulated: AbstractContextManager[Any]
) -> dict[str, float]:
    """Metrics of validation auctions after an epoch."""
    model = DeepFM(ads.cardinalities, seed=seed).to(device)
    options = {"epochs": 1, "batch_size": BATCH, "precision": precision, "seed": seed}
    with emulated:
        last = fit(model, ads.train, valid=valid, metric=list(METRICS), **options).history[-1]
    return {metric: float(last[metric]) for metric in METRICS}


if __name__ == "__main__":
    about = {"device": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    print(write("precision", list(rows()), **about))
