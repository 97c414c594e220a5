"""What a welfare loss costs: the time of training steps under each loss, measured in turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

import torch

from bidwise.data.ads import Ads
from bidwise.runners import Show
from bidwise.study.criteo_results import EpochTime
from bidwise.study.recipe import BASELINE, Recipe
from bidwise.training.arguments import Options
from bidwise.training.run import Run

SEGMENTS = 15
SECONDS = 0.4  # of a segment
WARM = 8  # steps before any is timed: what is made once is made


def epoch_times(
    show: Show, *, recipes: Sequence[Recipe], ads: Ads, cardinalities: Sequence[int], device: str
) -> dict[str, dict[str, Any]]:
    """Seconds of an epoch under the loss of each recipe, the log loss among them: the fields of :class:`EpochTime`.

    Steps are those of a training: batches are looked up, and the device is waited for at the end of a segment. The
    losses take turns, each in every position as often, so that a machine that slows down slows all of them;
    ``relative`` is the mean of the ratios to the segment of the log loss in the same round.
    """
    if ads.teacher is None:  # any will do: how long a step takes does not depend on it
        ads = ads.with_teacher(torch.full_like(ads.bids, 0.25))
    runs: dict[str, Run] = {}
    for recipe in recipes:
        options = Options(1, recipe.batch_size, recipe.learning_rate, "constant", None, 1, precision=recipe.precision)
        network = recipe.build(cardinalities, 0).to(device).train()
        runs[recipe.loss] = Run(network, ads, None, recipe.loss_function, {}, options, 0)

    def seconds(run: Run, steps: int) -> float:
        """Of a step, mean over ``steps``."""
        _wait(device)
        began = time.perf_counter()
        run.steps(steps)
        _wait(device)
        return (time.perf_counter() - began) / steps

    for run in runs.values():
        seconds(run, WARM)
    steps = max(3, round(SECONDS / seconds(runs[BASELINE], WARM)))
    losses = list(runs)
    segments: dict[str, list[float]] = {loss: [] for loss in losses}
    for turn in range(SEGMENTS):
        for position in range(len(losses)):
            loss = losses[(turn + position) % len(losses)]
            segments[loss].append(seconds(runs[loss], steps))
        show((turn + 1) / SEGMENTS)
    epoch, found = -(-len(ads) // recipes[0].batch_size), {}
    for loss, times in segments.items():
        ratios = [a / b for a, b in zip(times, segments[BASELINE], strict=True)]
        spent = (epoch * mean(times), epoch * stdev(times), mean(ratios), stdev(ratios))
        found[loss] = vars(EpochTime(SEGMENTS, steps, *spent))
    return found


def _wait(device: str) -> None:
    """Until the device has done what it was given: a GPU returns at once."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
