"""A training run in its folder: what it is resumed by, where it stands, and what it found."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import torch

from bidwise.data.ads import Ads
from bidwise.runs import environment, load, plain, save, write_json, write_text
from bidwise.training.selection import Best, Fit


def save_checkpoint(
    folder: Path, fit: Fit, epoch: int, optimizer: torch.optim.Optimizer, randoms: list[torch.Generator]
) -> None:
    """All that is needed to go on, and the metrics so far to look at."""
    best = {name: {"epoch": b.epoch, "value": b.value, "state": b.state} for name, b in fit.best.items()}
    standing = {
        "epoch": epoch,
        "model": fit.model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "randoms": [random.get_state() for random in randoms],
        "best": best,
        "history": fit.history,
    }
    save(folder / "checkpoint.pt", standing)
    lines = (json.dumps(plain(entry), allow_nan=False) for entry in fit.history)
    write_text(folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines))


def load_checkpoint(folder: Path, fit: Fit, optimizer: torch.optim.Optimizer, randoms: list[torch.Generator]) -> int:
    """Put everything where it stood, and return the epoch; 0 where the folder has no checkpoint."""
    path = folder / "checkpoint.pt"
    if not path.exists():
        return 0
    there = load(path)
    fit.model.load_state_dict(there["model"])
    optimizer.load_state_dict(there["optimizer"])
    for random, state in zip(randoms, there["randoms"], strict=True):
        random.set_state(state)
    device = next(fit.model.parameters()).device
    for name, best in there["best"].items():
        state = {key: tensor.to(device) for key, tensor in best["state"].items()}
        fit.best[name] = Best(best["epoch"], best["value"], state)
    fit.history = there["history"]
    return int(there["epoch"])


def write_result(folder: Path, fit: Fit, epoch: int) -> None:
    """The model's weights, its best epochs, and where it was trained."""
    best = {name: {"epoch": b.epoch, "value": b.value} for name, b in fit.best.items()}
    save(folder / "model.pt", fit.model.state_dict())
    write_json(folder / "environment.json", environment(next(fit.model.parameters()).device))
    write_json(folder / "result.json", {"kind": "fit", "epochs": epoch, "best": best})


def words(found: Any) -> str:
    """How ``found`` prints, on one line and without addresses, which change from run to run."""
    return " ".join(re.sub(r" at 0x[0-9a-f]+", "", repr(found)).split())


def fingerprint(ads: Ads) -> str:
    """Sizes and a checksum: whether a run is resumed on the ads it began with."""
    sums = [
        0 if column is None else zlib.crc32(column.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        for column in (ads.features, ads.clicks, ads.bids, ads.teacher, ads.truth, ads.offsets)
    ]
    return f"{tuple(ads.features.shape)} ads, checksum {zlib.crc32(repr(sums).encode()):08x}"
