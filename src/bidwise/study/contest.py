"""A contest of losses: every loss and lam trains its own student on the same ads, from the same initial weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bidwise.checks import derived_seed
from bidwise.data.ads import Ads
from bidwise.losses.named import LOSSES, WelfareLoss
from bidwise.models.mlp import MLP, LogisticRegression
from bidwise.study.pieces import Piece
from bidwise.training.arguments import Variants
from bidwise.training.loop import fit
from bidwise.training.validation import METRICS, Metric, State, predict

LAMS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
PAPER = ("log_loss", "bid_weighted", "sqrt_bid_weighted", "log", "log_teacher", "hinge_plus_teacher")
CONTEST = (*PAPER, "ranknet", "log_plus", "log_plus_teacher", "distilled")
#: By the true CTR of validation ads, and by their clicks.
SELECTIONS = (METRICS["expected_welfare"], METRICS["welfare"])

MEMBERS_AT_ONCE = {"cpu": 36, "cuda": 20_000}  # more stay in no cache, and take longer each


@dataclass(frozen=True)
class Contestant:
    """A loss as it is trained: ``lam=None`` for the losses that have none; ``sums`` as the paper prints them."""

    loss: str
    lam: float | None = None
    sums: bool = False


@dataclass(frozen=True)
class Plan:
    """How students are trained."""

    student: str  # "mlp" or "logistic_regression"
    epochs: int
    rate: float
    patience: int | None = None
    every: int = 2
    batch_size: int = 256
    init: str = "glorot"
    precision: str = "float32"
    device: str = "cpu"

    def model(self, width: int, members: Sequence[int], seeds: Sequence[int]) -> MLP:
        """Untrained students; those of one repeat start alike."""
        seeds = [seed + INITIAL for seed in seeds]
        if self.student == "mlp":
            model = MLP(width, (50,), members=members, init=self.init, seed=seeds)
        else:
            model = LogisticRegression(width, members=members, init=self.init, seed=seeds)
        return model.to(self.device, torch.float64 if self.precision == "float64" else torch.float32)


# A repeat has its own seed, that of its ads, and these beside it for what must not depend on them.
BATCHES, TEACHERS_ADS, INITIAL = 1, 500_000, 250_001


def seeds_of(seed: int, repeats: int) -> list[int]:
    """One seed for each repeat, of at most a thousand; those of another ``seed`` are others."""
    return [derived_seed(seed, repeat) for repeat in range(repeats)]


def has_lam(loss: str) -> bool:
    """Whether a loss is a rank term plus lam times the log loss."""
    return isinstance(LOSSES[loss], WelfareLoss)


def loss_of(contestants: Sequence[Contestant]) -> Variants:
    """One loss for models ``(contestants, repeats)``; neighbours that differ in lam alone share their pairs."""
    groups: list[list[Contestant]] = []
    for each in contestants:
        if groups and has_lam(each.loss) and (groups[-1][0].loss, groups[-1][0].sums) == (each.loss, each.sums):
            groups[-1].append(each)
        else:
            groups.append([each])
    parts: list[tuple[torch.nn.Module, int]] = []
    for group in groups:
        named = LOSSES[group[0].loss]
        if isinstance(named, WelfareLoss):
            lam = torch.tensor([[each.lam] for each in group])
            reduction = "sum" if group[0].sums else "mean"
            named = named.with_options(lam=lam, reduction=reduction, pair_mean=None)
        parts.append((named, len(group)))
    return Variants(parts)


@dataclass(frozen=True)
class Trained:
    """What became of contestants: for each selection (or ``last``) weights, and where chosen, epoch and value."""

    contestants: list[Contestant]
    states: dict[str, State]  # each parameter (contestants, repeats, ...)
    epoch: dict[str, Tensor]  # (contestants, repeats)
    value: dict[str, Tensor]  # (contestants, repeats), on validation auctions
    epochs: list[int]  # that were evaluated
    curve: Tensor  # (epochs, contestants, repeats): the first selection on validation auctions, NaN once ended


def train(
    contestants: Sequence[Contestant],
    ads: Ads,
    valid: Ads,
    plan: Plan,
    seeds: Sequence[int],
    piece: Piece,
    selections: Sequence[Metric] = SELECTIONS,
) -> Trained:
    """All contestants, some members at a time: each group is a piece of work, which may be known from a run before."""
    repeats = len(seeds)
    at_once = max(1, MEMBERS_AT_ONCE[torch.device(plan.device).type] // repeats)
    found: list[dict[str, Any]] = []
    groups = [list(contestants[k : k + at_once]) for k in range(0, len(contestants), at_once)]
    for number, group in enumerate(groups):

        def compute(show: Callable[[float], None], group: list[Contestant] = group) -> dict[str, Any]:
            model = plan.model(ads.width, (len(group), repeats), seeds)
            fitted = fit(
                model,
                ads,
                loss=loss_of(group),
                valid=valid,
                metric=selections,
                epochs=plan.epochs,
                batch_size=plan.batch_size,
                learning_rate=plan.rate,
                patience=plan.patience,
                every=plan.every,
                seed=[seed + BATCHES for seed in seeds],
                progress=lambda epoch: show(epoch / plan.epochs),
            )
            states = {selection: best.state for selection, best in fitted.best.items()} | {"last": fitted.last}
            return {
                "states": {key: {k: v.cpu() for k, v in state.items()} for key, state in states.items()},
                "epoch": {selection: best.epoch for selection, best in fitted.best.items()},
                "value": {selection: best.value for selection, best in fitted.best.items()},
                "epochs": [entry["epoch"] for entry in fitted.history],
                "curve": torch.stack([entry[selections[0].name] for entry in fitted.history]),
            }

        found.append(piece(number, "; ".join(map(str, group)), len(group) / len(contestants), compute))
    longest = max((part["epochs"] for part in found), key=len)  # patience ends pieces at different epochs
    missing = [len(longest) - len(part["epochs"]) for part in found]
    curves = [
        torch.nn.functional.pad(part["curve"], (0, 0, 0, 0, 0, epochs), value=torch.nan)
        for part, epochs in zip(found, missing, strict=True)
    ]
    return Trained(
        list(contestants),
        {key: _joined([part["states"][key] for part in found]) for key in found[0]["states"]},
        {key: torch.cat([part["epoch"][key] for part in found]) for key in found[0]["epoch"]},
        {key: torch.cat([part["value"][key] for part in found]) for key in found[0]["value"]},
        longest,
        torch.cat(curves, dim=1),
    )


def _joined(states: Sequence[State]) -> State:
    return {key: torch.cat([state[key] for state in states]) for key in states[0]}


@dataclass(frozen=True)
class Chosen:
    """One student per repeat for a loss: its weights, and the epoch and lam it was chosen with."""

    state: State  # (repeats, ...)
    epoch: Tensor | None
    lam: Tensor | None
    curve: Tensor  # (epochs, repeats)


def choose(trained: Trained, loss: str, selection: str) -> Chosen:
    """For each repeat the lam (and epoch) that is best by ``selection`` on validation auctions; ``last``: the end."""
    rows = torch.tensor([k for k, each in enumerate(trained.contestants) if each.loss == loss])
    repeats = torch.arange(trained.curve.shape[-1])
    if selection == "last":
        best = rows[0].expand(len(repeats))
    else:
        best = rows[trained.value[selection][rows].argmax(0)]
    lams = [trained.contestants[int(row)].lam for row in best]
    return Chosen(
        {key: tensor[best, repeats] for key, tensor in trained.states[selection].items()},
        None if selection == "last" else trained.epoch[selection][best, repeats],
        None if lams[0] is None else torch.tensor(lams),
        trained.curve[:, best, repeats],
    )


def student(plan: Plan, width: int, state: State, seeds: Sequence[int]) -> MLP:
    """One trained student per repeat."""
    model = plan.model(width, (len(seeds),), seeds)
    model.load_state_dict(state)
    return model


def teacher_of(plan: Plan, chosen: Chosen, ads: Ads, seeds: Sequence[int]) -> Ads:
    """The ads with the CTR of a trained model as the teacher's."""
    return ads.with_teacher(predict(student(plan, ads.width, chosen.state, seeds), ads.features).to(ads.bids))
