"""What the tests of sweeps share: a small table, a grid, numbers to compare, and kills at a moment."""

import json
import os
import signal
import threading
import time
from contextlib import suppress

import numpy as np
import polars as pl

from bidwise.typed_json import to_json

SECTIONS = {
    "data": {"click": "click", "bid": "bid", "auction": "auction"},
    "model": {"name": "logistic_regression"},
    "train": {"epochs": 1, "learning_rate": 0.02},
}
LISTS = {"train.loss": ["log_loss", "log_plus"], "train.lam": [1, 10], "train.seed": [0, 1]}
TIMES = ("seconds",)


def market(auctions=150, seed=0):
    """Logged ads whose clicks depend on site and brand."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 8, auctions)
    site, brand = np.repeat(random.integers(0, 5, auctions), sizes), random.integers(0, 9, sizes.sum())
    ctr = 1 / (1 + np.exp(2 - 0.3 * site - 0.3 * brand))
    return pl.DataFrame(
        {
            "auction": np.repeat(np.arange(auctions), sizes),
            "site": [f"s{k}" for k in site],
            "brand": [f"b{k}" for k in brand],
            "bid": np.exp(0.5 * random.normal(size=len(ctr))),
            "click": (random.random(len(ctr)) < ctr).astype(int),
        }
    )


def told(table, lists=None, **train):
    """The sections of a sweep over a table."""
    sections = {name: dict(part) for name, part in SECTIONS.items()}
    sections["data"]["table"] = str(table)
    sections["train"] |= train
    return {**sections, "sweep": LISTS if lists is None else lists}


def toml_of(sections):
    lines = []
    for section, part in sections.items():
        lines += [f"[{section}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in part.items())]
    return "\n".join(lines)


def without_times(found):
    """A result as JSON, without what differs from run to run."""
    found = to_json(found)
    if isinstance(found, dict):
        return {key: without_times(value) for key, value in found.items() if key not in TIMES}
    return [without_times(value) for value in found] if isinstance(found, list) else found


def at_work_in(folder):
    """The processes that hold the lock on a folder: it is open there."""
    found = []
    for process in os.listdir("/proc"):
        if not process.isdigit() or int(process) == os.getpid():
            continue
        with suppress(OSError):  # it has ended meanwhile
            links = [f"/proc/{process}/fd/{number}" for number in os.listdir(f"/proc/{process}/fd")]
            if str(folder) in map(os.readlink, links):
                found.append(int(process))
    return found


class Killer(threading.Thread):
    """Kills, with SIGKILL and ``times`` times, the process that trains in a folder."""

    def __init__(self, folder, times=1, patience=60):
        super().__init__(daemon=True)
        self.folder, self.times, self.patience, self.killed = folder, times, patience, []

    def run(self):
        until = time.monotonic() + self.patience
        while len(self.killed) < self.times and time.monotonic() < until:
            for process in set(at_work_in(self.folder)) - set(self.killed):
                if (self.folder / "fits").is_dir():
                    os.kill(process, signal.SIGKILL)
                    self.killed.append(process)
            time.sleep(0.02)
