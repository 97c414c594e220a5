"""The paper's experiment on Criteo: DeepFM and DCN, log loss against welfare losses, on a store or on simulated ads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from bidwise.checks import check_whole, derived_seed
from bidwise.run_folder import environment, open_folder
from bidwise.study.recipe import BASELINE, has_lam
from bidwise.workers import Progress
from paper.comparisons import Difference, mean_and_error, paired
from paper.criteo_results import CONVERGED, TUNED, CriteoConfig, CriteoResult, LossResult, ModelResult, Protocol
from paper.criteo_trial import Dataset, Lams, Measured, Trained, Trial, load_dataset, planned, train, trial_of
from paper.grids import best
from paper.tasks import Task, TaskCache, threads


def run(
    config: CriteoConfig,
    data: str | Path | None,
    out: str | Path,
    *,
    device: str = "cpu",
    workers: int = 1,
    progress: Progress | None = None,
) -> CriteoResult:
    """Train, measure and write ``result.json``; what is already there is not computed again.

    Args:
        data: a store, as ``python -m paper prepare`` writes it; ``None`` where ``config.rows`` ads are simulated.
        out: the run folder; one file for each model, repeat, loss and lam.
        workers: trainings at once, in threads.
    """
    check_whole("workers", workers, 1)
    dataset = load_dataset(config, data, device)
    config = replace(config, ads=len(dataset.train))
    of_folder = {"experiment": "criteo", "data": dataset.name, "checksum": dataset.checksum, **asdict(config)}
    folder, made_by = open_folder(out, of_folder), environment(device)  # now: the sources may change while it runs
    tasks = TaskCache(folder, progress)

    def compute(trials: Sequence[Task]) -> list[Any]:
        return tasks.all(trials, threads(workers, device) if workers > 1 else None)

    trained = _train_all(config, tasks, compute, dataset)
    models = {name: Numbers(config, trained, name).result(len(dataset.train)) for name in config.models}
    result = CriteoResult(config=config, data=dataset.about(config), models=models)
    tasks.write(result, made_by)
    return result


def _train_all(
    config: CriteoConfig, tasks: TaskCache, compute: Callable[[Sequence[Task]], list[Any]], dataset: Dataset
) -> dict[Trial, Trained]:
    """Teachers first; what depends on the selected lam last."""
    trained: dict[Trial, Trained] = {}

    def train_these(trials: Sequence[Trial]) -> None:
        todo = []
        for trial in trials:
            teacher = Trial(config.recipe(trial.recipe.model), trial.repeat) if trial.recipe.teacher else None
            options = {"config": config, "dataset": dataset, "trial": trial}
            options["seed"] = derived_seed(config.seed, trial.repeat)
            options["teacher"] = None if teacher is None else tasks.path(teacher.name)
            todo.append(Task(trial.name, train, options, key=str(trial)))
        trained.update(zip(trials, map(Trained.of, compute(todo)), strict=True))

    first = planned(config)
    lams = {(model, loss): config.lams[0] for model in config.models for loss in config.losses}
    tasks.expected = len(planned(config, lams))  # at most: the selected lam may be one that is trained anyway
    for taught in (False, True):
        train_these([trial for trial in first if (trial.recipe.teacher is not None) == taught])
    if "tuned" in config.protocols:
        every = planned(config, selected_lams(config, trained))
        tasks.expected = len(every)
        train_these([trial for trial in every if trial not in trained])
    return trained


def selected_lams(config: CriteoConfig, trained: Mapping[Trial, Trained]) -> Lams:
    """For each model and loss the lam that is used in all repeats."""
    numbers = {model: Numbers(config, trained, model) for model in config.models}
    return {(m, loss): of.best_lam(loss) for m, of in numbers.items() for loss in filter(has_lam, config.losses)}


@dataclass(frozen=True)
class Numbers:
    """What the trials of a run found about one model: what was selected, means over repeats, paired differences."""

    config: CriteoConfig
    trained: Mapping[Trial, Trained]
    model: str

    def result(self, ads: int) -> ModelResult:
        """Everything, of a model trained on so many ads."""
        recipe = self.config.recipe(self.model)
        return ModelResult(
            parameters=self.of_trial(0, BASELINE, None).parameters,
            batch_size=recipe.batch_size,
            epochs=recipe.epochs,
            steps=round(-(-ads // recipe.batch_size) * recipe.epochs),
            protocols={name: self.protocol(name) for name in self.config.protocols},
        )

    def of_trial(self, repeat: int, loss: str, lam: float | None, protocol: str = "tuned") -> Trained:
        return self.trained[trial_of(self.config, self.model, repeat, loss, lam, protocol)]

    def best_lam(self, loss: str) -> float:
        """The lam with the lowest validation log loss, summed over the repeats that tried all."""

        def value(lam: float) -> float:
            tried = (self.of_trial(repeat, loss, lam).selections[TUNED] for repeat in self.config.trying_lams)
            return sum(each.value for each in tried)

        return best(self.config.lams, TUNED, value) or self.config.lam

    def chosen(self, loss: str, protocol: str) -> list[Measured]:
        """For each repeat the last model with the paper's lam, or the best epoch with the best lam."""
        selection = CONVERGED if protocol == "converged" else TUNED
        lams = self.config.lams_of(loss, protocol)
        lam = self.best_lam(loss) if len(lams) > 1 else lams[0]
        repeats = range(self.config.repeats)
        return [self.of_trial(repeat, loss, lam, protocol).selections[selection] for repeat in repeats]

    def protocol(self, name: str) -> Protocol:
        """The numbers of every loss."""
        base = self.chosen(BASELINE, name)
        return Protocol({loss: _result(self.chosen(loss, name), base, loss) for loss in self.config.losses})


def _result(tested: Sequence[Measured], base: Sequence[Measured], loss: str) -> LossResult:
    """Means over repeats with their standard errors, and paired differences."""
    tuned = not np.isnan(tested[0].epoch)
    levels = {}
    for name in ("welfare", "expected_welfare", "auc", "log_loss"):
        values = [getattr(each, name) for each in tested]
        if values[0] is not None:
            levels[name], levels[f"{name}_error"] = mean_and_error([float(np.mean(np.asarray(x))) for x in values])

    def difference(values: Callable[[Measured], Tensor]) -> Difference | None:
        return None if loss == BASELINE else paired(*([values(m).numpy() for m in each] for each in (tested, base)))

    return LossResult(
        **levels,
        difference=difference(lambda measured: measured.main_welfare),
        calibrated=difference(lambda measured: measured.calibrated),
        epoch=float(np.mean([each.epoch for each in tested])),
        lam=tuple(each.lam for each in tested if tuned and each.lam is not None),
    )
