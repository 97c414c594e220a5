"""The ads of the Criteo experiment, the plan of its trainings, and one of them from first batch to test auctions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.checks import InputError
from bidwise.data.ads import Ads
from bidwise.data.store import SPLITS, Store
from bidwise.evaluation.auc import auc
from bidwise.evaluation.pooled import Pool, Pooled, pooled_welfare
from bidwise.losses.api import cross_entropy
from bidwise.losses.definition import ctr_of
from bidwise.losses.named import needs_teacher
from bidwise.run_folder import checksum
from bidwise.study.recipe import BASELINE, Recipe
from bidwise.training.run import matmul_precision
from bidwise.training.validation import logits_of, predict
from bidwise.workers import Show
from paper.comparisons import platt_scaled
from paper.criteo_device import simulated_ads
from paper.criteo_results import CONVERGED, TUNED, AdsOfRun, CriteoConfig, Truth
from paper.dcn import MODELS
from paper.tasks import kept_result

FIRST = 2**16  # simulated test ads whose checksum says whether they are the same
GROUPS = 2048  # of test ads, over which intervals are taken
Lams = Mapping[tuple[str, str], float]  # (model, loss) -> the lam that was selected


@dataclass(frozen=True)
class Dataset:
    """The splits on their device, where they stay for all trainings."""

    name: str
    checksum: str  # whether a run resumes with the ads it began with
    train: Ads
    valid: Ads
    test: Ads
    cardinalities: Sequence[int]
    schema: dict[str, Any]  # as a store describes itself

    def about(self, config: CriteoConfig) -> AdsOfRun:
        """What a result says about its ads."""
        truth, optimum = None, float("nan")
        if self.test.truth is not None:
            ctr, clicks = self.test.truth.double(), self.test.clicks.double()
            entropy = -(clicks * ctr.log() + (1 - clicks) * (-ctr).log1p()).mean()
            truth = Truth(auc(ctr, clicks), float(entropy))
            optimum = pooled_welfare(ctr, ctr, self.test.bids, config.auction_size)
        options = self.schema.get("options", {})
        return AdsOfRun(
            name=self.name,
            splits={name: len(getattr(self, name)) for name in SPLITS},
            click_rate=float(self.train.clicks.double().mean()),
            fields=len(self.cardinalities),
            values=sum(self.cardinalities),
            integers=options.get("integers"),
            min_count=options.get("min_count"),
            bids=self.schema.get("bids"),
            optimal_welfare=optimum,
            truth=truth,
        )


def load_dataset(config: CriteoConfig, data: str | Path | None, device: str) -> Dataset:
    """The ads of a run on the device: of a store, or ``config.rows`` simulated ones."""
    if (data is None) == (config.rows is None):
        raise InputError(
            "must be a store that python -m paper prepare wrote, or {} the number of ads to simulate on the device, "
            f"one of the two; found {'neither' if data is None else 'both'}",
            argument="data",
            others=("rows",),
        )
    if config.rows is not None:
        drawn = simulated_ads(config.rows, world=config.world, seed=config.seed, device=device)
        splits, values, schema = drawn.splits, drawn.cardinalities, drawn.about
        first = [column[:FIRST] for column in (drawn.test.features, drawn.test.clicks, drawn.test.bids)]
        name, crc = "simulated", checksum(*first)
    else:
        assert data is not None
        store = Store(data)
        splits, schema = {split: store.ads(split) for split in SPLITS}, store.schema
        values = [field.values for field in store.fields]
        name, crc = store.folder.name, checksum(*sorted(store.folder.glob("*/*.npy")))
    sized = {name: replace(splits[name], auction_size=config.auction_size) for name in ("valid", "test")}
    ads = {name: part.to(device) for name, part in ({"train": splits["train"]} | sized).items()}
    return Dataset(name, crc, **ads, cardinalities=values, schema=schema)


@dataclass(frozen=True)
class Trial:
    """A recipe and its repeat; the teacher of a recipe is the log-loss model of the repeat at the weights it names."""

    recipe: Recipe
    repeat: int

    @property
    def name(self) -> str:
        """Of its file."""
        recipe = self.recipe
        words = [recipe.model, f"{self.repeat:02d}", recipe.loss]
        words += [] if recipe.lam is None else [f"{recipe.lam:g}"]
        return "-".join(words + ([] if recipe.teacher is None else [f"by_{recipe.teacher}"]))


def trial_of(config: CriteoConfig, model: str, repeat: int, loss: str, lam: float | None, protocol: str) -> Trial:
    """The training that a protocol takes a loss from; without a teacher one serves both."""
    teacher = CONVERGED if protocol == "converged" else TUNED
    return Trial(config.recipe(model, loss, lam, teacher if needs_teacher(loss) else None), repeat)


def planned(config: CriteoConfig, lams: Lams | None = None) -> list[Trial]:
    """All that is trained: every loss with lam = 3 and the last teacher, and with every lam and the best teacher.

    Args:
        lams: what was selected on the first repeats, where ``lam_repeats`` says so. Without it the plan leaves out what
            depends on the selection.

    >>> config = CriteoConfig(models=("deepfm",), losses=("log_plus",), protocol="tuned", repeats=3, lam_repeats=1)
    >>> [trial.name for trial in planned(config, {("deepfm", "log_plus"): 30.0})][-4:]
    ['deepfm-01-log_loss', 'deepfm-01-log_plus-30', 'deepfm-02-log_loss', 'deepfm-02-log_plus-30']
    >>> len(planned(config))
    14
    """
    trials = {}
    for model in config.models:
        for repeat in range(config.repeats):
            for protocol in config.protocols:
                for loss in config.losses:
                    tried = config.lams_of(loss, protocol)
                    if repeat not in config.trying_lams and len(tried) > 1:
                        tried = (lams[model, loss],) if lams is not None else ()
                    for lam in tried:
                        trial = trial_of(config, model, repeat, loss, lam, protocol)
                        trials[trial.name] = trial
    return list(trials.values())


@dataclass(frozen=True)
class Measured:
    """A model on the test auctions; the epoch and validation metric that it was selected with.

    Welfare is that of groups of ads; ``calibrated`` is main welfare after Platt scaling on validation clicks, since a
    loss may move welfare by its scale alone.
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


@dataclass(frozen=True)
class Trained:
    """What a trial found: its last weights and those with the best validation log loss, tested."""

    selections: dict[str, Measured]
    parameters: int

    @staticmethod
    def of(kept: Mapping[str, Any]) -> Trained:
        """What :func:`train` found, without the predictions of a teacher, which are as long as the data."""
        tested = {name: Measured(**values) for name, values in kept["selections"].items()}
        return Trained(tested, kept["parameters"])


def train(
    show: Show, *, trial: Trial, config: CriteoConfig, dataset: Dataset, seed: int, teacher: Path | None
) -> dict[str, Any]:
    """Train, and measure on the test auctions the last weights and those with the best validation log loss.

    A log-loss model also predicts the training ads, at the end and at its best: the teacher of the others.

    Args:
        teacher: file of the log-loss model's trial.
    """
    recipe, ads = trial.recipe, dataset.train
    device = ads.bids.device
    if teacher is not None:
        ads = ads.with_teacher(kept_result(teacher)["teacher"][recipe.teacher].to(device))
    with matmul_precision(config.precision):
        model = MODELS[recipe.model](list(dataset.cardinalities), **recipe.options, seed=seed).to(device)
        fitted = recipe.fit(model, ads, valid=dataset.valid, metric=TUNED, seed=seed + 1, show=show)
        selections: dict[str, dict[str, Any]] = {}
        predictions: dict[str, Tensor] = {}
        best = fitted.best[TUNED]
        for name, state in {CONVERGED: fitted.last, TUNED: best.state}.items():
            model.load_state_dict(state)
            selections[name] = vars(measured(model, dataset.test, dataset.valid)) | {"lam": recipe.lam}
            if recipe.loss == BASELINE:
                predictions[name] = predict(model, dataset.train).cpu()
        selections[TUNED] |= {"epoch": float(best.epoch), "value": float(best.value)}
    return {
        "selections": selections,
        "teacher": predictions,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def measured(model: nn.Module, ads: Ads, valid: Ads) -> Measured:
    """Welfare over all auctions that could be drawn, by clicks and where known by the true CTR, and the predictions.

    All is computed where the ads are. Of welfare comes back a number for each group of ads, whose mean it is.
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
