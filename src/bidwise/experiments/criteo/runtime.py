"""What a welfare loss costs: the time of training steps under each loss, measured in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from statistics import mean, stdev
from typing import Any

import torch

from bidwise.data.ads import Ads
from bidwise.experiments.criteo.trial import LAM, RATE, SETTINGS, Trial, loss_of
from bidwise.models import MODELS
from bidwise.training.run import Options, Run

SEGMENTS = 15
SECONDS = 0.4  # of a segment


def runtime(
    show: Callable[[float], None],
    *,
    model: str,
    losses: Sequence[str],
    ads: Ads,
    cardinalities: Sequence[int],
    device: str,
) -> dict[str, dict[str, Any]]:
    """Seconds of an epoch under each loss, mean and standard deviation over segments.

    The losses take turns, each in every place as often, so that a machine that slows down slows all of them;
    ``relative`` is the mean of the ratios to the segment of the log loss in the same round.
    """
    setting = SETTINGS[model]
    if ads.teacher is None:  # any will do: how long a step takes does not depend on it
        ads = ads.with_teacher(torch.full_like(ads.bids, 0.25))
    network = MODELS[model](cardinalities).to(device).train()
    options = Options(setting.epochs, setting.batch_size, RATE, "constant", None, 1)
    runs = {loss: Run(network, ads, None, loss_of(Trial(model, 0, loss, LAM)), {}, options, 0) for loss in losses}
    batches = list(islice(next(iter(runs.values())).batches, 8))
    batches = [batch for batch in batches if batch.ads == setting.batch_size] or batches

    def seconds(run: Run, steps: int) -> float:
        _wait(device)
        began = time.perf_counter()
        for step in range(steps):
            run.step(batches[step % len(batches)])
        _wait(device)
        return (time.perf_counter() - began) / steps

    for run in runs.values():
        seconds(run, 3)
    steps = max(3, round(SECONDS / seconds(runs["log_loss"], 3)))
    segments: dict[str, list[float]] = {loss: [] for loss in losses}
    for turn in range(SEGMENTS):
        for place in range(len(losses)):
            loss = losses[(turn + place) % len(losses)]
            segments[loss].append(seconds(runs[loss], steps))
        show((turn + 1) / SEGMENTS)
    per_epoch = -(-len(ads) // setting.batch_size)
    found = {}
    for loss, times in segments.items():
        ratios = [a / b for a, b in zip(times, segments["log_loss"], strict=True)]
        found[loss] = {
            "segments": len(times),
            "steps": steps,
            "seconds": per_epoch * mean(times),
            "sd": per_epoch * stdev(times),
            "relative": mean(ratios),
            "relative_sd": stdev(ratios),
        }
    return found


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
