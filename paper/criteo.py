"""The paper's experiment on Criteo: DeepFM and DCN, log loss against welfare losses, on a store or on simulated ads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bidwise.checks import check_whole, derived_seed
from bidwise.data.ads import Ads
from bidwise.evaluation.auc import auc
from bidwise.evaluation.pooled import Pool, Pooled
from bidwise.losses.api import cross_entropy
from bidwise.losses.definition import ctr_of
from bidwise.losses.named import needs_teacher
from bidwise.run_folder import load
from bidwise.study.recipe import BASELINE, Recipe, has_lam
from bidwise.training.run import matmul_precision
from bidwise.training.validation import logits_of, predict
from bidwise.workers import Progress, Show
from paper.comparisons import Difference, mean_and_error, paired, platt_scaled
from paper.criteo_device import Dataset, described, load_dataset
from paper.criteo_results import SELECTIONS, TUNED, CriteoConfig, CriteoResult, LossResult, ModelResult, Protocol
from paper.dcn import MODELS
from paper.grids import best
from paper.tasks import Task, TaskCache, threads

GROUPS = 2048  # of test ads, over which intervals are taken
Trial = tuple[Recipe, int]  # a recipe and its repeat
Key = tuple[str, str, str]  # model, protocol and loss


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
    tasks = TaskCache(out, of_folder, device, progress)
    trained: dict[Trial, Trained] = {}

    def train_these(trials: Iterable[Trial]) -> None:
        todo = [trial for trial in dict.fromkeys(trials) if trial not in trained]
        calls = [_task(config, dataset, tasks, *trial) for trial in todo]
        kept = tasks.all(calls, threads(workers, device) if workers > 1 else None)
        for trial, each in zip(todo, kept, strict=True):  # without a teacher's predictions, as long as the data
            trained[trial] = {name: Measured(**values) for name, values in each["selections"].items()}

    recipes, repeats = recipes_of(config), range(config.repeats)
    first = planned(config)
    more = sum(config.repeats - len(config.trying_lams) for some in recipes.values() if len(some) > 1)
    tasks.expected = len(first) + more  # at most: the selected lam may be one that is trained anyway
    for taught in (False, True):  # teachers first, what depends on the selected lam last
        train_these(trial for trial in first if (trial[0].teacher is not None) == taught)

    chosen = {key: selected(config, some, trained) for key, some in recipes.items()}
    rest = [(recipe, repeat) for recipe in chosen.values() for repeat in repeats]
    tasks.expected = len({*first, *rest})
    train_these(rest)
    tested = {key: [trained[recipe, each][SELECTIONS[key[1]]] for each in repeats] for key, recipe in chosen.items()}
    models = {model: _model_result(config, model, tested) for model in config.models}
    return tasks.write(CriteoResult(config=config, data=described(dataset, config.auction_size), models=models))


def recipes_of(config: CriteoConfig) -> dict[Key, list[Recipe]]:
    """One for each lam that is tried: in the paper's protocol 3, with the last teacher, else all with the best teacher.

    A loss without a teacher is trained once for both protocols.
    """
    recipes = {}
    for model, protocol, loss in product(config.models, config.protocols, config.losses):
        teacher = SELECTIONS[protocol] if needs_teacher(loss) else None
        lams = config.lams_of(loss, protocol)
        recipes[model, protocol, loss] = [config.recipe(model, loss, lam, teacher) for lam in lams]
    return recipes


def planned(config: CriteoConfig) -> list[Trial]:
    """What is trained before lam is selected: every lam in the repeats that try it, other losses in all of them.

    >>> config = CriteoConfig(models=("deepfm",), losses=("log_plus",), protocol="tuned", repeats=3, lam_repeats=1)
    >>> len(planned(config))
    14
    """
    trials = []
    for recipes in recipes_of(config).values():
        repeats = config.trying_lams if len(recipes) > 1 else range(config.repeats)
        trials += [(recipe, repeat) for recipe in recipes for repeat in repeats]
    return list(dict.fromkeys(trials))


def selected(config: CriteoConfig, recipes: Sequence[Recipe], trained: Mapping[Trial, Trained]) -> Recipe:
    """The recipe with the best lam: the lowest validation log loss, summed over the repeats that tried all."""
    return best(recipes, TUNED, lambda recipe: sum(trained[recipe, k][TUNED].value for k in config.trying_lams))


def file_of(recipe: Recipe, repeat: int) -> str:
    """The name of the file of a training."""
    words = [recipe.model, f"{repeat:02d}", recipe.loss]
    words += [] if recipe.lam is None else [f"{recipe.lam:g}"]
    return "-".join(words + ([] if recipe.teacher is None else [f"by_{recipe.teacher}"]))


def _task(config: CriteoConfig, dataset: Dataset, tasks: TaskCache, recipe: Recipe, repeat: int) -> Task:
    """A training; its teacher is the log-loss model of the repeat."""
    seed = derived_seed(config.seed, repeat)
    teacher = tasks.path(file_of(config.recipe(recipe.model), repeat)) if recipe.teacher else None
    work = partial(train, recipe=recipe, dataset=dataset, seed=seed, teacher=teacher)
    return Task(file_of(recipe, repeat), work, key=f"{recipe}, repeat {repeat}")


@dataclass(frozen=True)
class Measured:
    """A model on the test auctions; the epoch and validation metric that it was selected with.

    Welfare is a number for each group of ads; ``calibrated`` is main welfare after Platt scaling on validation clicks,
    since a loss may move welfare by its scale alone.
    """

    welfare: Tensor
    expected_welfare: Tensor | None
    calibrated: Tensor
    auc: float
    log_loss: float
    epoch: float = float("nan")
    value: float = float("nan")
    lam: float | None = None

    @property
    def main_welfare(self) -> Tensor:
        """By the true CTR where that is known, else by clicks."""
        return self.welfare if self.expected_welfare is None else self.expected_welfare


Trained = Mapping[str, Measured]  # by selection: the last weights, and those with the best validation log loss


def loss_of(recipe: Recipe) -> nn.Module:
    """The loss; if pairs are added up, so are log losses without lam, for L2 and Adam's epsilon to be as strong."""
    loss = recipe.loss_function
    if recipe.sums and not has_lam(recipe.loss):
        loss.reduction = "sum"  # type: ignore[assignment]
    return loss


def train(show: Show, *, recipe: Recipe, dataset: Dataset, seed: int, teacher: Path | None) -> dict[str, Any]:
    """Train, and measure on the test auctions the last weights and those with the best validation log loss.

    A log-loss model also predicts the training ads, at the end and at its best: the teacher of the others.

    Args:
        teacher: file of the log-loss model's training.
    """
    ads, device = dataset.train, dataset.train.bids.device
    if teacher is not None:
        ads = ads.with_teacher(load(teacher)["found"]["teacher"][recipe.teacher].to(device))
    tested: dict[str, dict[str, Any]] = {}
    predictions: dict[str, Tensor] = {}
    with matmul_precision(recipe.precision):
        model = MODELS[recipe.model](list(dataset.cardinalities), **recipe.options, seed=seed).to(device)
        loss = loss_of(recipe)
        fitted = recipe.fit(model, ads, loss=loss, valid=dataset.valid, metric=TUNED, seed=seed + 1, show=show)
        best = fitted.best[TUNED]
        for name, state in zip(SELECTIONS.values(), (fitted.last, best.state), strict=True):
            model.load_state_dict(state)
            tested[name] = vars(measured(model, dataset.test, dataset.valid)) | {"lam": recipe.lam}
            if recipe.loss == BASELINE:
                predictions[name] = predict(model, dataset.train).cpu()
    tested[TUNED] |= {"epoch": float(best.epoch), "value": float(best.value)}
    return {"selections": tested, "teacher": predictions}


def measured(model: nn.Module, ads: Ads, valid: Ads) -> Measured:
    """Welfare over all auctions that could be drawn, by clicks and where known by the true CTR, and the predictions.

    All is computed where the ads are. Welfare comes back as a number for each group of ads; their mean is the welfare.
    """
    logits = logits_of(model, ads.features).double().to(ads.bids.device)
    ctr, clicks, bids = ctr_of(logits), ads.clicks.double(), ads.bids.double()
    assert ads.auction_size is not None
    pool = Pool(bids * ctr, ads.auction_size)
    scaled = platt_scaled(logits, logits_of(model, valid.features).double(), valid.clicks)
    worth = clicks if ads.truth is None else ads.truth.double()
    return Measured(
        welfare=_grouped(pool.welfare(bids * clicks, (1.0,))),
        expected_welfare=None if ads.truth is None else _grouped(pool.welfare(bids * worth, (1.0,))),
        calibrated=_grouped(Pool(bids * ctr_of(scaled), ads.auction_size).welfare(bids * worth, (1.0,))),
        auc=auc(ctr, clicks),
        log_loss=float(cross_entropy(logits, clicks, None, "mean")),
    )


def _grouped(welfare: Pooled) -> Tensor:
    """The ads' values as means of random groups, which is all that intervals need: splits are in random order."""
    ads = len(welfare.values)
    groups = min(GROUPS, ads)
    of_ad = torch.arange(ads, device=welfare.values.device) % groups
    sums: Tensor = welfare.values.new_zeros(groups).index_add(0, of_ad, welfare.values)
    return (sums * (groups / ads)).cpu()


def _model_result(config: CriteoConfig, model: str, tested: Mapping[Key, list[Measured]]) -> ModelResult:
    recipe, protocols = config.recipe(model), {}
    for name in config.protocols:
        base = tested[model, name, BASELINE]
        protocols[name] = Protocol({loss: _result(tested[model, name, loss], base, loss) for loss in config.losses})
    steps = round(-(-config.ads // recipe.batch_size) * recipe.epochs)
    return ModelResult(recipe.batch_size, recipe.epochs, steps, protocols)


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
