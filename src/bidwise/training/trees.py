"""Boosted trees for any loss: rounds until validation no longer improves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bidwise.checks import InputError
from bidwise.data.ads import Ads
from bidwise.losses.curvature import Derivatives
from bidwise.losses.named import BidWeightedLogLoss, WelfareLoss, unchecked
from bidwise.models.bags import all_shares
from bidwise.models.boosted import BoostedTrees, lightgbm
from bidwise.training.validation import METRICS, Best, Fit, Metric, State

FOLDS = 5
CHECK = 10  # rounds from one validation to the next
FEWEST = 100  # ads of a leaf


def fit_trees(
    model: BoostedTrees,
    ads: Ads,
    *,
    loss: nn.Module,
    valid: Ads | None = None,
    metric: str | Sequence[str | Metric] = "log_loss",
    rounds: int = 1000,
    learning_rate: float = 0.05,
    patience: float | None = 50,
    l2: float = 0.0,
    seed: int = 0,
    show: Callable[[float], None] | None = None,
) -> Fit:
    """Train ``model`` in place; an epoch of the history is a round, each of which sees all ads.

    Args:
        loss: of :data:`bidwise.LOSSES`, or of its kind. Ads that were not in auctions all compete.
        valid, metric: what rounds are chosen by; without ``valid`` all of them are kept.
        patience: rounds without a better value after which to stop.
        l2: of the values of leaves.
    """
    if not isinstance(loss, WelfareLoss | BidWeightedLogLoss):
        raise InputError(f"loss must be one of bidwise.LOSSES for trees, found {type(loss).__name__}")
    metrics = [METRICS[m] if isinstance(m, str) else m for m in ([metric] if isinstance(metric, str) else metric)]
    labels, weights, bids = _floats(ads.labels), _floats(ads.weights), _floats(ads.bids)
    assert labels is not None
    assert bids is not None
    codes = model.codes(ads.features).cpu().numpy()
    share = all_shares(ads.features, model.slots, torch.float64).cpu().numpy() if max(model.slots) > 1 else None
    counts = _Counts(codes, labels, weights, len(model.rates), model.smooth, share)
    model.rates.copy_(torch.from_numpy(counts.rates()))
    fold = np.random.default_rng(seed).integers(0, FOLDS, len(codes))
    seen = torch.from_numpy(counts.out_of_fold(fold))
    data = lightgbm().Dataset(model.inputs(seen, ads.features.cpu()).numpy())
    options = {"objective": "none", "num_leaves": model.leaves, "learning_rate": learning_rate, "lambda_l2": l2}
    options |= {
        "feature_fraction": 0.6,
        "min_data_in_leaf": min(FEWEST, len(codes) // 20 + 1),
        "seed": seed % 2**31,
        "verbose": -1,
    }
    booster = lightgbm().Booster(options | {"num_threads": torch.get_num_threads(), "deterministic": True}, data)
    offsets = None if ads.offsets is None else ads.offsets.cpu().numpy()
    derivatives = Derivatives(loss, bids, offsets, _floats(ads.teacher))
    start, latest = float(model.bias.detach()), np.zeros(len(codes))

    def step(scores: NDArray[np.float64], _: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        latest[:] = scores + start
        return derivatives(latest, labels, weights)

    held_out = None
    if valid is not None:
        held_out = model.inputs(model.rates[model.codes(valid.features)], valid.features).cpu().numpy()
    logits = None if valid is None else np.full(len(valid), start)
    history: list[dict[str, Any]] = []
    best: dict[str, tuple[int, Tensor]] = {}
    done = 0
    while done < rounds:
        more = min(CHECK, rounds - done)
        for _ in range(more):
            booster.update(fobj=step)
        done += more
        record: dict[str, Any] = {"epoch": done, "loss": _loss(loss, latest, ads)}
        if valid is not None and logits is not None:
            logits += booster.predict(held_out, raw_score=True, start_iteration=done - more, num_iteration=more)
            for each in metrics:
                value = each.of(torch.from_numpy(logits).to(valid.bids), valid).double().cpu()
                record[each.name] = value
                sign = 1 if each.higher_is_better else -1
                if each.name not in best or sign * value > sign * best[each.name][1]:
                    best[each.name] = done, value
        history.append(record)
        if show is not None:
            show(done / rounds)
        if best and patience is not None and done - max(at for at, _ in best.values()) >= patience:
            break

    def state(after: int) -> State:
        model.grow(booster.model_to_string(num_iteration=after))
        return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    last = state(done)
    kept = {name: Best(torch.tensor(at), value, state(at)) for name, (at, value) in best.items()}
    if valid is not None:
        model.load_state_dict(kept[metrics[0].name].state)
    return Fit(model, kept, last, history)


class _Counts:
    """Ads and clicks of every value, and the rates they make."""

    def __init__(
        self,
        codes: NDArray[np.int64],
        labels: NDArray[np.float64],
        weights: NDArray[np.float64] | None,
        values: int,
        smooth: float,
        share: NDArray[np.float64] | None = None,
    ) -> None:
        mass = np.ones_like(labels) if weights is None else weights / weights.mean()
        self.codes, self.values, self.smooth, self.share = codes, values, smooth, share
        self.mass, self.clicks = mass, mass * labels
        self.mean = float(self.clicks.sum() / mass.sum())

    def rates(self, rows: NDArray[np.bool_] | slice = slice(None)) -> NDArray[np.float64]:
        """(clicks + smooth mean) / (ads + smooth) of every value over these rows."""
        flat, fields = self.codes[rows].ravel(), self.codes.shape[1]
        parts = 1.0 if self.share is None else self.share[rows].ravel()  # of an ad, that the values of a bag have
        ads, clicks = (
            np.bincount(flat, np.repeat(x[rows], fields) * parts, self.values) for x in (self.mass, self.clicks)
        )
        found: NDArray[np.float64] = (clicks + self.smooth * self.mean) / (ads + self.smooth)
        return found

    def out_of_fold(self, fold: NDArray[np.int64]) -> NDArray[np.float64]:
        """The rates of every ad's values over the other folds: its own click is no part of them."""
        table = np.empty(self.codes.shape)
        for one in range(FOLDS):
            table[fold == one] = self.rates(fold != one)[self.codes[fold == one]]
        return table


def _loss(loss: nn.Module, logits: NDArray[np.float64], ads: Ads) -> float:
    z = torch.from_numpy(logits).to(ads.bids)
    return float(unchecked(loss)(z, ads.labels.to(z), ads.bids, ads.offsets, ads.teacher, ads.weights))


def _floats(column: Tensor | None) -> NDArray[np.float64] | None:
    return None if column is None else column.double().cpu().numpy()
