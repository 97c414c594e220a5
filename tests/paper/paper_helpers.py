"""What tests of the experiments share: simulated Criteo ads by rows, and the sentences of a verdict."""

import sys
from types import SimpleNamespace

import numpy as np
import torch

from paper import __main__ as commands
from paper import criteo_device, criteo_text, criteo_world, pages
from paper.pages import VIEWS, verdict

CHUNK, SHARED_TAIL = criteo_world.CHUNK, criteo_world.SHARED_TAIL


def chunk_of(seed, number, rows, world=SHARED_TAIL):
    """A chunk of the text with ``integers`` (ads, 13), ``categories`` (ads, 26) and ``missing`` (ads, 39)."""
    found = criteo_world.Sample(*(column.numpy() for column in criteo_text.chunk_of(seed, number, rows, world)))
    return SimpleNamespace(
        clicks=found.clicks.astype(np.uint8),
        integers=found.values[:13].T,
        categories=found.values[13:].T,
        missing=found.missing.T,
        ctr=found.ctr,
    )


def chunks(rows, seed=0, world=SHARED_TAIL):
    return [chunk_of(seed, number, rows, world) for number in range(-(-rows // CHUNK))]


def true_ctr(integers, categories, missing, world=SHARED_TAIL, time=0.0):
    values = np.concatenate([integers, categories], axis=1).T
    return criteo_world.true_ctr(torch.from_numpy(values), torch.from_numpy(missing.T), world, time).numpy()


def drawn_on_cpu(seed, rows, world=SHARED_TAIL):
    """Ads as a device draws them, by columns."""
    time = torch.arange(rows, dtype=torch.float64) / rows
    return criteo_device.chunk_on(torch.device("cpu"), seed, 0, world, time)


def said(result):
    """The sentences of a verdict, the headline first."""
    return verdict(VIEWS[result.kind](result))


def paper_command(monkeypatch, *words):
    """``python -m paper`` in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["python -m paper", *map(str, words)])
    try:
        commands.main()
    except SystemExit as stop:
        return stop.code
    return 0


def figures(folder, result):
    """The names of the figures of a result, as they are written into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pages.write_report(folder, result)
    return sorted((folder / "figures").iterdir()) if (folder / "figures").is_dir() else []
