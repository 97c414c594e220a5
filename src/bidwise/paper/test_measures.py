"""What trained students are worth on test auctions, repeat by repeat, and what that says about their losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bidwise.auctions import optimal_welfare, revenue
from bidwise.auctions.columns import Floats
from bidwise.data.ads import Ads
from bidwise.evaluation.calibration import calibrator
from bidwise.evaluation.intervals import repeat_interval
from bidwise.models.mlp import MLP
from bidwise.training.validation import METRICS, logits_of, mean_welfare

Measures = dict[str, Floats]  # each (repeats,)


def measured(model: MLP, valid: Ads, test: Ads) -> Measures:
    """Welfare, GSP revenue, AUC, log loss and squared error of the CTR on test auctions, in float64.

    ``calibrated`` is welfare after Platt scaling on validation clicks: a loss may move welfare by its scale alone.
    """
    logits = logits_of(model, test.features).double().cpu()
    valid_ctr = torch.sigmoid(logits_of(model, valid.features).double().cpu())
    ctr = torch.sigmoid(logits)
    assert test.truth is not None
    bids, truth = test.bids.double(), test.truth.double()
    calibrated = torch.stack(
        [
            torch.from_numpy(calibrator("platt", seen, clicks)(predicted))
            for seen, clicks, predicted in zip(valid_ctr, valid.clicks, ctr, strict=True)
        ]
    )
    revenues = [revenue(*columns, test.offsets, pricing="gsp").mean() for columns in zip(ctr, truth, bids, strict=True)]
    found = {
        "welfare": mean_welfare(logits, bids * truth, bids, test.offsets),
        "calibrated": mean_welfare(torch.logit(calibrated), bids * truth, bids, test.offsets),
        "revenue": torch.stack(revenues),
        "auc": METRICS["auc"].of(logits, test),
        "log_loss": METRICS["log_loss"].of(logits, test),
        "squared_error": (ctr - truth).square().mean(-1),
    }
    return {name: value.numpy() for name, value in found.items()}


def best_possible(ads: Ads) -> Floats:
    """Mean welfare per auction of the true CTR, ``(repeats,)``."""
    assert ads.truth is not None
    rows = zip(ads.truth, ads.bids, strict=True)
    return np.array([optimal_welfare(truth, bids, ads.offsets).mean().item() for truth, bids in rows])


def gain(welfare: Floats, baseline: Floats, optimal: Floats) -> dict[str, float]:
    """Share of the optimal welfare, paired difference to the baseline in its units, and 95 % interval over repeats."""
    ratio, difference = welfare / optimal, (welfare - baseline) / optimal
    found = {"ratio": float(ratio.mean()), "difference": float(difference.mean())}
    if len(difference) < 2:
        return {**found, "ci_low": math.nan, "ci_high": math.nan}
    interval = repeat_interval(difference)
    return {**found, "ci_low": interval.low, "ci_high": interval.high}


def summarised(measures: dict[str, Measures], optimal: Floats, paper: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The numbers of every loss, with differences to log loss, and to the average of the paper's losses as it does."""
    base = measures["log_loss"]
    six = [measures[name]["welfare"] for name in paper if name in measures]
    average = np.mean(six, axis=0) if len(six) == len(paper) else np.full_like(optimal, math.nan)
    found = {}
    for name, measure in measures.items():
        apart = measure["welfare"] - average
        error = float(apart.std(ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
        found[name] = {
            "welfare": float(measure["welfare"].mean()),
            **gain(measure["welfare"], base["welfare"], optimal),
            "difference_to_average": float(apart.mean()),
            "error_to_average": error,
            "calibrated": gain(measure["calibrated"], base["calibrated"], optimal),
            **{key: float(measure[key].mean()) for key in ("revenue", "auc", "log_loss", "squared_error")},
            "ratios": (measure["welfare"] / optimal).tolist(),
        }
    return found


def band(curve: Tensor, optimal: Floats) -> dict[str, list[float]]:
    """Mean of welfare / optimal over repeats with a 95 % interval, epoch by epoch: ``(epochs, repeats)``."""
    share = curve.numpy() / optimal
    rows = [repeat_interval(row) if len(row) > 1 else None for row in share]
    return {
        "ratio": share.mean(1).tolist(),
        "low": [row.low if row else math.nan for row in rows],
        "high": [row.high if row else math.nan for row in rows],
    }
