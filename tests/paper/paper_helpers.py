"""What tests of the experiments share: simulated Criteo ads by rows, and the sentences of a verdict."""

import sys
from types import SimpleNamespace

import numpy as np
import torch

from paper import __main__ as commands
from paper import criteo_device, criteo_world, pages
from paper.criteo_world import CHUNK, CRITEO_WORLDS, SHARED_TAIL


def world_of(name, seed=None):
    return CRITEO_WORLDS[name] if seed is None else CRITEO_WORLDS[name].redrawn(seed)


def chunk_of(seed, number, rows, world=SHARED_TAIL):
    """A chunk of ``rows`` ads with ``integers`` (ads, 13), ``categories`` (ads, 26) and ``missing`` (ads, 39)."""
    time = (number * CHUNK + torch.arange(CHUNK, dtype=torch.float64)) / rows
    drawn = criteo_world.sampled(world, criteo_world.numpy_uniform(seed, number), time)
    found = criteo_world.Sample(*(column[..., : rows - number * CHUNK].numpy() for column in drawn))
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
    values = torch.from_numpy(np.concatenate([integers, categories], axis=1).T)
    return criteo_world.logits(world, values, torch.from_numpy(missing.T), time).sigmoid().float().numpy()


def drawn_on_cpu(seed, rows, world=SHARED_TAIL):
    """Ads as a device draws them, by columns."""
    time = torch.arange(rows, dtype=torch.float64) / rows
    return criteo_device.chunk_on(torch.device("cpu"), seed, 0, world, time)


def said(result):
    """The sentences of a verdict, the headline first."""
    return pages.verdict(pages.VIEWS[result.kind](result))


def paper_command(monkeypatch, *words):
    """``python -m paper`` in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["python -m paper", *map(str, words)])
    try:
        commands.main()
    except SystemExit as stop:
        return stop.code
    return 0
