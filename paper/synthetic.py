"""The paper's synthetic experiment: ten losses, in the paper's protocol and tuned; and how it can be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bidwise
from bidwise.auctions import optimal_welfare
from bidwise.checks import check_name, check_positive
from bidwise.data.ads import Ads
from bidwise.data.worlds import WORLDS, World
from bidwise.losses.named import needs_teacher
from bidwise.models.mlp import INITS, MLP
from bidwise.study.recipe import BASELINE, Recipe, has_lam
from bidwise.training.validation import METRICS, Metric, logits_of, mean_welfare, predict
from bidwise.values import Floats
from bidwise.workers import Progress
from paper.comparisons import gain, mean_and_error, platt_scaled
from paper.grids import LAMS, LAST, Students, Trained, grid, seeds_of, select, side_by_side, train
from paper.synthetic_results import (
    Histogram,
    Losses,
    LossResult,
    Protocol,
    ReadingsConfig,
    ReadingsResult,
    SyntheticConfig,
    SyntheticResult,
    WorldShape,
    check_wholes,
)
from paper.tasks import Task, TaskCache, threads

PROTOCOLS = ("converged", "tuned", "both")
PAPER = (BASELINE, "bid_weighted", "sqrt_bid_weighted", "log", "log_teacher", "hinge_plus_teacher")
LOSSES = (*PAPER, "ranknet", "log_plus", "log_plus_teacher", "distilled")
ABLATION = ("log_weighted", "log_teacher_unweighted")  # between `log` and `log_teacher`: one of their two changes
LAM = 3.0  # the paper's
#: 30 repeats, batches of 256 and Glorot's initial weights are the defaults of any run.
AS_PRINTED: dict[str, Any] = {"reading": "printed", "protocol": "converged", "losses": PAPER, "sums": True}
BY_TRUTH = "expected_welfare"  # by the true CTR of validation ads
Fits = dict[str, list[Trained]]  # by loss
TUNED = {"protocol": "tuned", "patience": 20}
#: By name, what differs from the first: the world `plotted`, means over pairs and ads, 100 epochs, lam = 3, Glorot's
#: initial weights, nothing selected.
READINGS: Mapping[str, dict[str, Any]] = {
    "means, 100 epochs": {},
    "20 epochs": {"epochs": 20},
    "60 epochs": {"epochs": 60},
    "300 epochs": {"epochs": 300},
    "sums": {"sums": True},
    "bids ±2/√10": {"bid_weights": 2 / math.sqrt(10)},
    "bids ±2": {"bid_weights": 2.0},
    "torch's initial weights": {"init": "torch"},
    "best epoch, λ = 3": {**TUNED, "lams": (LAM,)},
    "best epoch and λ": {**TUNED, "lams": (0.3, 3.0, 30.0, 300.0)},
    "as printed": {"reading": "printed", "sums": True},
}
NETWORK = {"model": "mlp", "learning_rate": 1e-3}
LINEAR = {"model": "logistic_regression", "learning_rate": 3e-3}
STUDENTS = {"plotted": NETWORK, "printed": NETWORK, "misspecified": LINEAR, "misspecified_rare": LINEAR}


def checked(config: SyntheticConfig) -> SyntheticConfig:
    """The options with what the world decides, or an error that names what cannot be used."""
    known = (*LOSSES, *ABLATION)
    for loss in config.losses:
        check_name("losses", loss, known)
    check_name("reading", config.reading, STUDENTS)
    check_name("protocol", config.protocol, PROTOCOLS)
    check_name("init", config.init, INITS)
    asked = (BASELINE, *config.losses) if config.losses else LOSSES  # it is the baseline and the teacher of all others
    config = replace(
        config,
        losses=tuple(loss for loss in known if loss in asked),
        training_ads=config.training_ads or (40_000 if config.reading == "misspecified_rare" else 10_000),
        lams=config.lams or LAMS,
    )
    ones = dict.fromkeys(("epochs", "every", "validation_auctions", "test_auctions", "patience"), 1)
    check_wholes(config, **ones, auction_size=2, training_ads=2)
    if config.bid_weights is not None:
        check_positive("bid_weights", config.bid_weights)
    return config


def run(
    config: SyntheticConfig, out: str | Path, *, device: str = "cpu", progress: Progress | None = None
) -> SyntheticResult:
    """Train, evaluate and write ``result.json``; what is already there is not computed again."""
    config = checked(config)
    cache = TaskCache(out, {"experiment": "synthetic", **asdict(config)}, device, progress)
    study = Study.of(config, device, cache)
    tuned = study.recipes(config.lams, patience=config.patience, sums=config.sums)
    coarse = max(config.every, 5)  # nothing is selected there
    converged = study.recipes((LAM,), every=coarse, sums=config.sums)
    # Adam does not see the scale of a loss: sums change the weight of lam, and nothing for losses without it
    sums = [replace(recipe, sums=True) for recipe in converged if has_lam(recipe.loss) and not config.sums]
    wanted = {"converged": [converged, sums], "tuned": [tuned], "both": [converged, sums, tuned]}[config.protocol]
    cache.expected = sum(map(len, wanted))
    protocols: dict[str, Protocol] = {}
    if converged in wanted:
        trained = study.train("converged", converged, LAST)
        protocols["converged_sums" if config.sums else "converged"] = Protocol(study.judge(trained, LAST))
        if sums:
            protocols["converged_sums"] = Protocol(study.judge(study.train("sums", sums, LAST, trained), LAST))
    if tuned in wanted:
        protocols["tuned"] = Protocol(study.judge(study.train("tuned", tuned, BY_TRUTH), BY_TRUTH))
    worlds = {world: _shape(world, config.seed) for world in dict.fromkeys(("plotted", "printed", config.reading))}
    optimal = float(best_possible(study.test).mean())
    return cache.write(SyntheticResult(bidwise.__version__, config, optimal, protocols, worlds))


def run_readings(
    config: ReadingsConfig, out: str | Path, *, device: str = "cpu", progress: Progress | None = None
) -> ReadingsResult:
    """Train, measure and write ``result.json``; readings that are already there are not computed again."""
    check_wholes(config, validation_auctions=1, test_auctions=1)
    losses = (*PAPER, *ABLATION)
    models = [len(grid(Recipe(), losses, changes.get("lams", (LAM,)))) for changes in READINGS.values()]
    cache = TaskCache(out, {"experiment": "readings", **asdict(config)}, device, progress, sum(models))
    readings: dict[str, Losses] = {}
    for number, (name, changes) in enumerate(READINGS.items()):
        of_reading = checked(SyntheticConfig(**{**asdict(config), "losses": losses, "lams": (LAM,), **changes}))
        study = Study.of(of_reading, device, cache)
        if of_reading.protocol == "tuned":
            recipes, by = study.recipes(of_reading.lams, patience=of_reading.patience), BY_TRUTH
        else:
            recipes, by = study.recipes((LAM,), every=of_reading.epochs, sums=of_reading.sums), LAST
        readings[name] = study.judge(study.train(f"reading-{number:02d}", recipes, by), by)
    return cache.write(ReadingsResult(bidwise.__version__, config, readings))


def world_of(config: SyntheticConfig) -> World:
    """The world of a run, its bids perhaps with other weights: uniform in ±c, they have variance c² / 3."""
    world = WORLDS[config.reading]
    if config.bid_weights is None:
        return world
    return replace(world, spread=config.bid_weights * math.sqrt(world.features / 3))


def drawn(config: SyntheticConfig, seeds: Sequence[int]) -> tuple[Ads, Ads, Ads]:
    """Training ads, validation auctions and test auctions of every repeat; each repeat is a market of its own."""
    repeats = []
    for seed in seeds:
        random = torch.Generator().manual_seed(seed)
        market, size = world_of(config).market(random), config.auction_size
        some = market.ads(config.training_ads, random), market.auctions(config.validation_auctions, size, random)
        repeats.append((*some, market.auctions(config.test_auctions, size, random)))
    ads, valid, test = (side_by_side(column) for column in zip(*repeats, strict=True))
    return ads, valid, test


@dataclass(frozen=True)
class Study:
    """Losses that are trained, selected and tested on the same ads and auctions."""

    recipe: Recipe
    losses: tuple[str, ...]
    ads: Ads
    valid: Ads
    test: Ads
    students: Students
    run: Callable[[Sequence[Task]], list[Any]]
    metrics: tuple[Metric, ...] = (METRICS[BY_TRUTH],)

    @classmethod
    def of(cls, config: SyntheticConfig, device: str, cache: TaskCache) -> Study:
        """Ads of every repeat; bids that differ by more than e² need double precision."""
        seeds = seeds_of(config.seed, config.repeats)
        ads, valid, test = drawn(config, seeds)
        dtype = torch.float64 if world_of(config).spread > 2 else torch.float32
        student: dict[str, Any] = STUDENTS[config.reading]
        hidden = (50,) if student is NETWORK else ()
        students = Students(ads.width, seeds, hidden, config.init, dtype, device)
        options = {name: getattr(config, name) for name in ("epochs", "batch_size", "every")}
        recipe = Recipe(unit=1.0, **student, **options)
        return cls(recipe, config.losses, ads, valid, test, students, partial(_on_all_cores, cache, device))

    def recipes(self, lams: Sequence[float], **changes: Any) -> list[Recipe]:
        """A recipe for every loss and every lam, where it has one."""
        return grid(replace(self.recipe, **changes), self.losses, lams)

    def train(self, name: str, recipes: list[Recipe], metric: str, before: Fits | None = None) -> Fits:
        """All recipes, those with a teacher last: if ads have none, the log loss's student, maybe of ``before``."""
        trained, ads = dict(before or {}), self.ads
        for taught in (False, True):
            some = [recipe for recipe in recipes if needs_teacher(recipe.loss) == taught]
            if not some:
                continue
            if taught and ads.teacher is None:
                ads = ads.with_teacher(self.predicted(trained, metric).to(ads.bids))
            called = f"{name}-taught" if taught else name
            trained |= train(called, some, ads, self.valid, self.students, self.metrics, self.run)
        return {loss: trained[loss] for loss in self.losses if loss in trained}

    def predicted(self, trained: Fits, metric: str) -> Tensor:
        """The CTR of the training ads by the log loss's students."""
        return predict(self.students.trained(select(trained[BASELINE], metric).weights), self.ads.features)

    def judge(self, trained: Fits, metric: str) -> Losses:
        """The selected students of every loss on the test auctions."""
        optimal = best_possible(self.test)
        selected = {loss: select(fits, metric) for loss, fits in trained.items()}
        models = {loss: self.students.trained(each.weights) for loss, each in selected.items()}
        measures = {loss: measured(model, self.valid, self.test) for loss, model in models.items()}
        six = [measures[loss].welfare for loss in PAPER if loss in measures]
        average = np.mean(six, axis=0) if len(six) == len(PAPER) else np.full_like(optimal, math.nan)
        base, losses = measures[BASELINE], {}
        for loss, mine in measures.items():
            to_average, error = mean_and_error((mine.welfare - average).tolist())
            means: dict[str, Any] = {name: float(getattr(mine, name).mean()) for name in ("welfare", "auc", "log_loss")}
            losses[loss] = LossResult(
                **vars(gain(mine.welfare, base.welfare, optimal)),
                epoch=selected[loss].epoch,
                lam=selected[loss].lam,
                **means,
                difference_to_average=to_average,
                error_to_average=error,
                calibrated=gain(mine.calibrated, base.calibrated, optimal),
                ratios=tuple((mine.welfare / optimal).tolist()),
            )
        return losses


def _on_all_cores(cache: TaskCache, device: str, tasks: Sequence[Task]) -> list[Any]:
    """On a CPU each core has a task of its own: operations are too small to be shared by cores."""
    before = torch.get_num_threads()
    if torch.device(device).type == "cuda" or before == 1:
        return cache.all(tasks)
    torch.set_num_threads(1)  # of all threads that are started from here on
    try:
        return cache.all(tasks, threads(min(before, 8)))
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Measures:
    """What trained students are worth on test auctions, each ``(repeats,)``, in float64.

    ``calibrated`` is welfare after Platt scaling on validation clicks: a loss may move welfare by its scale alone.
    """

    welfare: Floats
    calibrated: Floats
    auc: Floats
    log_loss: Floats


def measured(model: MLP, valid: Ads, test: Ads) -> Measures:
    """The measures of students, one for each repeat."""
    logits = logits_of(model, test.features).double().cpu()
    calibrated = platt_scaled(logits, logits_of(model, valid.features).double(), valid.clicks)
    assert test.truth is not None
    worth, bids = test.bids.double() * test.truth.double(), test.bids.double()
    return Measures(
        mean_welfare(logits, worth, bids, test.offsets).numpy(),
        mean_welfare(calibrated, worth, bids, test.offsets).numpy(),
        METRICS["auc"].of(logits, test).numpy(),
        METRICS["log_loss"].of(logits, test).numpy(),
    )


def best_possible(ads: Ads) -> Floats:
    """Mean welfare per auction of the true CTR, ``(repeats,)``."""
    assert ads.truth is not None
    rows = zip(ads.truth, ads.bids, strict=True)
    return np.array([optimal_welfare(truth, bids, ads.offsets).mean().item() for truth, bids in rows])


def _shape(reading: str, seed: int) -> WorldShape:
    """Histograms of CTR and log10 bid over ten markets, for the paper's Figure 4."""
    ctrs, all_bids = [], []
    for repeat in seeds_of(seed, 10):
        random = torch.Generator().manual_seed(repeat)
        ads = WORLDS[reading].market(random).ads(10_000, random)
        assert ads.truth is not None
        ctrs.append(ads.truth)
        all_bids.append(ads.bids)
    ctr, bids = torch.cat(ctrs).numpy(), torch.cat(all_bids).numpy()
    return WorldShape(_histogram(ctr, np.linspace(0, 1, 41)), _histogram(np.log10(bids), 40))


def _histogram(numbers: Floats, bins: Any) -> Histogram:
    counts, edges = np.histogram(numbers, bins)
    return Histogram(tuple(edges.round(6).tolist()), tuple(counts.tolist()))
