"""A training run in its folder: what it is resumed by, where it stands, and what it found."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from bidwise import distributed
from bidwise.data.fingerprint import checksum
from bidwise.run_folder import environment, load, save, write_json, write_text
from bidwise.training.run import Place, Run
from bidwise.training.selection import Best
from bidwise.typed_json import to_json


def save_checkpoint(folder: Path, run: Run) -> None:
    """All that is needed to go on, and the metrics so far to look at."""
    best = {name: {"epoch": b.epoch, "value": b.value, "state": b.state} for name, b in run.fit.best.items()}
    standing = {
        "place": asdict(run.place),
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "best": best,
        "history": run.fit.history,
    }
    save(folder / "checkpoint.pt", standing)
    lines = (json.dumps(to_json(entry), allow_nan=False) for entry in run.fit.history)
    write_text(folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines))


def load_checkpoint(folder: Path, run: Run) -> None:
    """Put everything where it stood, if the folder has a checkpoint; rank 0 reads it to ranks that do not see it."""
    path = folder / "checkpoint.pt"
    known = distributed.first(lambda: checksum(path) if path.exists() else None, tell=True)
    if known is None:
        return
    if distributed.all_of(path.exists() and checksum(path) == known):
        there = load(path)  # each for itself: what is sent is held several times over
    else:
        there = distributed.first(lambda: load(path), tell=True)
    run.model.load_state_dict(there["model"])
    run.optimizer.load_state_dict(there["optimizer"])
    device = next(run.model.parameters()).device
    for name, best in there["best"].items():
        state = {key: tensor.to(device) for key, tensor in best["state"].items()}
        run.fit.best[name] = Best(best["epoch"], best["value"], state)
    run.fit.history = there["history"]
    place = Place(**there["place"])
    if place.total is not None:
        place.total = place.total.to(device)
    run.resume(place)


def write_result(folder: Path, run: Run) -> None:
    """The model's weights, its best epochs, and where it was trained."""
    best = {name: {"epoch": b.epoch, "value": b.value} for name, b in run.fit.best.items()}
    save(folder / "model.pt", run.model.state_dict())
    write_json(folder / "environment.json", environment(next(run.model.parameters()).device))
    write_json(folder / "result.json", {"kind": "fit", "epochs": run.position, "best": best})
