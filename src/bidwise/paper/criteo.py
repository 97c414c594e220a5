"""The paper's experiment on Criteo: DeepFM and DCN, log loss against welfare losses, on a store or on simulated ads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bidwise.checks import check_whole, derived_seed
from bidwise.paper.criteo_data import Dataset, load_dataset
from bidwise.paper.criteo_numbers import Numbers, selected_lams
from bidwise.paper.criteo_trial import Trained, Trial, planned, train
from bidwise.paper.epoch_times import epoch_times
from bidwise.run_folder import environment, open_folder
from bidwise.runners import Processes, Progress, Runner, Task, TaskCache, Threads
from bidwise.study.criteo_results import CriteoConfig, CriteoResult, EpochTime, ModelResult
from bidwise.study.recipe import has_lam
from bidwise.training.run import matmul_precision

TIMING = 0.2  # of the work of a training: how long its steps take


def run(
    config: CriteoConfig,
    data: str | Path | None,
    out: str | Path,
    *,
    device: str = "cpu",
    workers: int = 1,
    runner: Runner | None = None,
    progress: Progress | None = None,
) -> CriteoResult:
    """Train, measure and write ``result.json``; what is already there is not computed again.

    Args:
        data: a store, as ``bidwise prepare criteo`` writes it; ``None`` where ``config.rows`` ads are simulated.
        out: the run folder; one file for each model, repeat, loss and lam.
        workers: trainings at once: threads on a GPU, processes on a CPU.
        runner: in place of these.
    """
    check_whole("workers", workers, 1)
    dataset = load_dataset(config, data, device, verify=True)  # the same ads in every precision
    of_folder = {"experiment": "criteo", "data": dataset.name, "checksum": dataset.checksum, **asdict(config)}
    folder, made_by = open_folder(out, of_folder), environment(device)  # now: the sources may change while it runs
    tasks = TaskCache(folder, progress)
    shared = {"data": None if data is None else str(Path(data).absolute()), "config": config, "device": device}
    trained = _train_all(config, tasks, runner or _runner(workers, device), shared)
    result = CriteoResult(
        config=config,
        data=dataset.about(config),
        models={name: _model_result(Numbers(config, trained, name), dataset, tasks, device) for name in config.models},
    )
    tasks.write(result, made_by)
    return result


def _runner(workers: int, device: str) -> Runner:
    if workers == 1:
        return Runner()
    return Threads(workers, device) if torch.device(device).type == "cuda" else Processes(workers)


def _train_all(config: CriteoConfig, tasks: TaskCache, runner: Runner, shared: dict[str, Any]) -> dict[Trial, Trained]:
    """Teachers first; what depends on the selected lam last."""
    trained: dict[Trial, Trained] = {}

    def train_these(trials: Sequence[Trial]) -> None:
        todo = []
        for trial in trials:
            teacher = Trial(config.recipe(trial.recipe.model), trial.repeat) if trial.recipe.teacher else None
            options = shared | {"trial": trial, "seed": derived_seed(config.seed, trial.repeat)}
            options["teacher"] = None if teacher is None else tasks.path(teacher.name)
            todo.append(Task(trial.name, train, options, key=str(trial), epochs=trial.recipe.epochs))
        trained.update(zip(trials, map(Trained.of, tasks.all(todo, runner)), strict=True))

    first = planned(config)
    once = config.lam_repeats is not None and "tuned" in config.protocols
    lams = {(model, loss): config.lams[0] for model in config.models for loss in config.losses}
    timing = TIMING * len(config.models)
    tasks.expected = len(planned(config, lams)) + timing  # at most: the selected lam may be one that is trained anyway
    for taught in (False, True):
        train_these([trial for trial in first if (trial.recipe.teacher is not None) == taught])
    if once:
        every = planned(config, selected_lams(config, trained))
        tasks.expected = len(every) + timing
        train_these([trial for trial in every if trial not in trained])
    return trained


def _model_result(numbers: Numbers, dataset: Dataset, tasks: TaskCache, device: str) -> ModelResult:
    config, recipe = numbers.config, numbers.config.recipe(numbers.model)
    recipes = [config.recipe(numbers.model, loss, config.lam if has_lam(loss) else None) for loss in config.losses]
    tuned = "tuned" in config.protocols

    def timed(show: Any) -> dict[str, dict[str, Any]]:
        with matmul_precision(config.precision):
            return epoch_times(
                show, recipes=recipes, ads=dataset.train, cardinalities=dataset.cardinalities, device=device
            )

    times = tasks.get(f"{numbers.model}-runtime", f"{recipes} on {device}", TIMING, timed)
    return ModelResult(
        parameters=numbers.of_trial(0, recipe.loss, None).parameters,
        batch_size=recipe.batch_size,
        epochs=recipe.epochs,
        steps=round(-(-len(dataset.train) // recipe.batch_size) * recipe.epochs),
        protocols={name: numbers.protocol(name) for name in config.protocols},
        grid=numbers.grid() if tuned else {},
        grid_log_loss=numbers.grid_log_loss() if tuned and any(map(has_lam, config.losses)) else None,
        curves=numbers.curves() if tuned else {},
        runtime={loss: EpochTime(**values) for loss, values in times.items()},
    )
