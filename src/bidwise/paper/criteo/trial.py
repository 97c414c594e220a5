"""One training of the Criteo experiment: a model, a loss and a lam, from the first batch to the test auctions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.auctions import run_auction
from bidwise.data.ads import Ads, AuctionCuts
from bidwise.evaluation.auc import auc
from bidwise.evaluation.metrics import CTR_BINS
from bidwise.losses.named import named_loss
from bidwise.losses.pointwise import cross_entropy
from bidwise.models import MODELS
from bidwise.training.loop import fit
from bidwise.training.validation import METRICS, Metric, logits_of, mean_welfare, predict

SIGMA, LAM = 3.0, 3.0  # the paper's
RATE = 1e-3


@dataclass(frozen=True)
class Setting:
    """How the paper trains a model."""

    batch_size: int
    epochs: float


DCN_EPOCHS = 2.1  # 150,000 steps of 512 ads are 2.09 epochs of the full data
SETTINGS = {
    "deepfm": Setting(256, 3),
    "dcn": Setting(512, DCN_EPOCHS),
    "dcnv2": Setting(512, DCN_EPOCHS),
    "logistic_regression": Setting(256, 3),
}


@dataclass(frozen=True)
class Trial:
    """What is trained: ``lam=None`` for losses that have none; ``teacher`` says which log-loss model teaches."""

    model: str
    repeat: int
    loss: str
    lam: float | None = None
    teacher: str | None = None  # "last" or "welfare", the selection by which the teacher was taken

    @property
    def name(self) -> str:
        """Of its piece."""
        words = [self.model, f"{self.repeat:02d}", self.loss]
        words += [] if self.lam is None else [f"{self.lam:g}"]
        return "-".join(words + ([] if self.teacher is None else [f"by_{self.teacher}"]))


def welfare_over(auctions: AuctionCuts, name: str) -> Metric:
    """Welfare over these auctions, by clicks or by the true CTR, to select models by."""
    like = METRICS[name]

    def of(logits: Tensor, ads: Ads) -> Tensor:
        rows = auctions.to(logits.device).rows
        worth = ads.clicks if name == "welfare" else ads.truth
        assert worth is not None
        bids = ads.bids[rows]
        return mean_welfare(logits[rows], bids * worth[rows], bids, auctions.offsets)

    return Metric(name, like.about, like.higher_is_better, of)


@dataclass(frozen=True)
class Arena:
    """The data that all trials share."""

    train: Ads
    valid: Ads
    test: Ads
    valid_auctions: AuctionCuts
    test_auctions: AuctionCuts

    @staticmethod
    def of(train: Ads, valid: Ads, test: Ads, *, auction_size: int, cuts: int, seed: int) -> Arena:
        """Splits, of which validation and test ads are cut into auctions."""
        cut = [AuctionCuts.at_random(len(ads), auction_size, cuts=cuts, seed=seed) for ads in (valid, test)]
        return Arena(train, valid, test, *cut)

    def to(self, device: str) -> Arena:
        """The same on a device, where it stays: nothing is moved again for each training."""
        return Arena(*(part.to(device) for part in vars(self).values()))

    @property
    def selections(self) -> list[Metric]:
        """What epoch and lam are chosen by: validation welfare; for comparison log loss, and where known the truth."""
        found = [welfare_over(self.valid_auctions, "welfare"), METRICS["log_loss"]]
        return found + ([] if self.valid.truth is None else [welfare_over(self.valid_auctions, "expected_welfare")])


def train(
    trial: Trial,
    arena: Arena,
    cardinalities: Sequence[int],
    *,
    setting: Setting,
    seed: int,
    every: float,
    l2: float,
    embeddings: str,
    precision: str,
    device: str,
    teacher: Tensor | None,
    progress: Callable[[float], None],
) -> dict[str, Any]:
    """Train, and measure on the test auctions the last weights and the best ones by each selection.

    A log-loss model also tells its CTR of the training ads, at the end and at its best: the teacher of the others.
    """
    ads = arena.train if teacher is None else arena.train.with_teacher(teacher.to(arena.train.bids.device))
    model = MODELS[trial.model](cardinalities, seed=seed).to(device)
    how: dict[str, Any] = {} if precision == "float32" else {"precision": precision}
    fitted = fit(
        model,
        ads,
        loss=loss_of(trial),
        valid=arena.valid,
        metric=arena.selections,
        epochs=setting.epochs,
        batch_size=setting.batch_size,
        learning_rate=RATE,
        every=every,
        l2=l2,
        embeddings=embeddings,
        seed=seed + 1,
        progress=lambda epoch: progress(epoch / setting.epochs),
        **how,
    )
    states = {"last": fitted.last} | {name: best.state for name, best in fitted.best.items()}
    found: dict[str, Any] = {"selections": {}, "teacher": {}}
    for name, state in states.items():
        model.load_state_dict(state)
        found["selections"][name] = measured(model, arena.test, arena.test_auctions)
        if name != "last":
            best = fitted.best[name]
            found["selections"][name] |= {"epoch": float(best.epoch), "value": float(best.value)}
        if trial.loss == "log_loss" and name in ("last", "welfare"):
            found["teacher"][name] = predict(model, arena.train).cpu()
    found["curve"] = {key: [float(entry[key]) for entry in fitted.history] for key in fitted.history[0]}
    found["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    return found


def loss_of(trial: Trial) -> nn.Module:
    """The loss as the paper sets it on Criteo: sigma = 3."""
    return named_loss(trial.loss, lam=trial.lam, sigma=SIGMA)


def measured(model: nn.Module, ads: Ads, auctions: AuctionCuts) -> dict[str, Any]:
    """Welfare of every test auction, by clicks and where known by the true CTR, and how good the predictions are.

    Everything is computed where the ads are; what comes back is a number for each auction.
    """
    device = ads.bids.device
    logits = logits_of(model, ads.features).double().to(device)
    ctr = torch.sigmoid(logits)
    clicks, rows = ads.clicks.double(), auctions.to(device).rows
    bids = ads.bids.double()[rows]
    sold = run_auction(ctr[rows], bids, auctions.offsets)
    truth = None if ads.truth is None else ads.truth.double()[rows]
    clicked = clicks[rows]
    return numbers_of(ctr, clicks) | {
        "log_loss": float(cross_entropy(logits, clicks, None, "mean")),
        "welfare": sold.welfare(clicked, bids).cpu(),
        "expected_welfare": None if truth is None else sold.welfare(truth, bids).cpu(),
        "revenue": float(sold.revenue(clicked if truth is None else truth).mean()),
    }


def numbers_of(ctr: Tensor, clicks: Tensor) -> dict[str, float]:
    """AUC and calibration of predictions, float64 on any device."""
    clicked = float(clicks.sum())
    return {
        "auc": auc(ctr, clicks),
        "calibration_error": calibration_error(ctr, clicks),
        "predicted_over_observed": float(ctr.sum()) / clicked if clicked else float("nan"),
    }


def calibration_error(ctr: Tensor, clicks: Tensor) -> float:
    """:func:`bidwise.evaluation.bins.calibration_error` over bins of equal mass, on any device.

    Bins are stretches of the sorted ads, each summed for itself, which is the same in every run; adding up in parallel
    by the number of the bin would not be.
    """
    ranked = ctr.sort()
    ads, observed = len(ctr), clicks[ranked.indices]
    if not ads:
        return float("nan")
    last = torch.tensor([-(-share * ads // CTR_BINS) - 1 for share in range(1, CTR_BINS)], device=ctr.device)
    after = torch.searchsorted(ranked.values, ranked.values[last], right=True)  # equal keys together
    ends = sorted(set(after.tolist()))
    gaps = [
        (predicted.sum() - found.sum()).abs()
        for predicted, found in (
            (ranked.values[first:end], observed[first:end]) for first, end in zip([0, *ends], [*ends, ads], strict=True)
        )
    ]
    return float(torch.stack(gaps).sum()) / ads
