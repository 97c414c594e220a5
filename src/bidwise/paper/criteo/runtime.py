"""What a welfare loss costs: the time of training steps under each loss, measured in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

import torch

from bidwise.data.ads import Ads
from bidwise.models import MODELS
from bidwise.paper.criteo.trial import LAM, RATE, Setting, Trial, loss_of
from bidwise.training.arguments import Options
from bidwise.training.run import Run

SEGMENTS = 15
SECONDS = 0.4  # of a segment
WARM = 8  # steps before any is timed: what is made once is made
FOREVER = 10**6  # epochs


def runtime(
    show: Callable[[float], None],
    *,
    model: str,
    setting: Setting,
    losses: Sequence[str],
    ads: Ads,
    cardinalities: Sequence[int],
    device: str,
    precision: str = "float32",
) -> dict[str, dict[str, Any]]:
    """Seconds of an epoch under each loss, mean and standard deviation over segments.

    Steps are those of a training: batches are looked up, and the device is waited for at the end of a segment. The
    losses take turns, each in every place as often, so that a machine that slows down slows all of them;
    ``relative`` is the mean of the ratios to the segment of the log loss in the same round.
    """
    if ads.teacher is None:  # any will do: how long a step takes does not depend on it
        ads = ads.with_teacher(torch.full_like(ads.bids, 0.25))
    how: dict[str, Any] = {} if precision == "float32" else {"precision": precision}
    options = Options(FOREVER, setting.batch_size, RATE, "constant", None, 1, **how)
    runs = {}
    for loss in losses:
        network = MODELS[model](cardinalities).to(device).train()
        runs[loss] = Run(network, ads, None, loss_of(Trial(model, 0, loss, LAM)), {}, options, 0)

    def seconds(run: Run, steps: int) -> float:
        """Of a step, mean over ``steps``."""
        _wait(device)
        began = time.perf_counter()
        run.steps(steps)
        _wait(device)
        return (time.perf_counter() - began) / steps

    for run in runs.values():
        seconds(run, WARM)
    steps = max(3, round(SECONDS / seconds(runs["log_loss"], WARM)))
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
    """Until the device has done what it was given: a GPU returns at once."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
