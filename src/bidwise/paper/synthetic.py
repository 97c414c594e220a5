"""The paper's synthetic experiment: ten losses, in the paper's protocol and in one that tunes every loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bidwise
from bidwise.auctions.columns import Floats
from bidwise.checks import MOST_SEED, InputError, check_name, check_whole
from bidwise.data.ads import Ads, stack
from bidwise.data.worlds import WORLDS
from bidwise.losses.named import needs_teacher
from bidwise.models.mlp import INITS
from bidwise.paper.synthetic_sentences import claims, notes, verdict
from bidwise.paper.test_measures import Measures, band, best_possible, gain, measured, summarised
from bidwise.study.contest import (
    CONTEST,
    LAMS,
    PAPER,
    Chosen,
    Contestant,
    Plan,
    Trained,
    choose,
    has_lam,
    seeds_of,
    student,
    teacher_of,
    train,
)
from bidwise.study.pieces import Pieces, Progress

PROTOCOLS = ("converged", "tuned", "both")
LAM = 3.0  # the paper's


@dataclass(frozen=True)
class Setting:
    """What belongs to a world: the student, how much it sees and how fast it learns."""

    student: str
    training_ads: int
    rate: float
    precision: str = "float32"


SETTINGS = {
    "plotted": Setting("mlp", 10_000, 1e-3),
    "printed": Setting("mlp", 10_000, 1e-3, precision="float64"),
    "misspecified": Setting("logistic_regression", 10_000, 3e-3),
    "misspecified_rare": Setting("logistic_regression", 40_000, 3e-3),
}


@dataclass(frozen=True)
class Config:
    """The options of a run; two runs with the same ones give the same numbers."""

    reading: str = "plotted"
    protocol: str = "both"
    repeats: int = 30
    epochs: int = 100
    seed: int = 0
    patience: int | None = None
    validation_auctions: int = 2000
    test_auctions: int = 2000
    auction_size: int = 50
    training_ads: int | None = None
    init: str = "glorot"
    every: int = 2
    losses: tuple[str, ...] = CONTEST

    def __post_init__(self) -> None:
        for loss in self.losses:
            check_name("losses", loss, CONTEST)
        if not self.losses:
            raise InputError("must name at least one loss, found none", argument="losses")
        asked = ("log_loss", *self.losses)  # what all others are compared with, and their teacher
        object.__setattr__(self, "losses", tuple(loss for loss in CONTEST if loss in asked))
        check_name("reading", self.reading, SETTINGS)
        check_name("protocol", self.protocol, PROTOCOLS)
        check_name("init", self.init, INITS)
        for name, least in (("repeats", 1), ("epochs", 1), ("seed", 0), ("every", 1), ("auction_size", 2)):
            check_whole(name, getattr(self, name), least)
        for name in ("validation_auctions", "test_auctions"):
            check_whole(name, getattr(self, name), 1)
        for name, least in (("patience", 1), ("training_ads", 2)):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least)
        for name, most in (("repeats", 1000), ("seed", MOST_SEED)):
            if getattr(self, name) > most:
                raise InputError(f"{name} must be at most {most}, found {getattr(self, name)}")


def run(config: Config, out: str | Path, *, device: str = "cpu", progress: Progress | None = None) -> dict[str, Any]:
    """Train, evaluate and write ``result.json``; what is already there is not computed again."""
    setting = SETTINGS[config.reading]
    pieces = Pieces(out, {"experiment": "synthetic", **asdict(config)}, device, progress)
    seeds = seeds_of(config.seed, config.repeats)
    ads, valid, test = drawn(config, seeds)
    optimal = best_possible(test)
    plan = Plan(
        setting.student,
        config.epochs,
        setting.rate,
        every=config.every,
        init=config.init,
        precision=setting.precision,
        device=device,
    )
    tuned = replace(plan, patience=config.patience)
    plan = replace(plan, every=max(config.every, 5))  # nothing is chosen there, so a coarser curve will do
    contest = _Contest(ads, valid, test, optimal, seeds, pieces)
    wanted = {"both": ("converged", "tuned")}.get(config.protocol, (config.protocol,))
    losses = config.losses
    counts = {"converged": len(losses) + sum(map(has_lam, losses)), "tuned": len(_grid(losses, LAMS))}
    pieces.expected = float(sum(counts[name] for name in wanted))
    protocols: dict[str, dict[str, Any]] = {}
    if "converged" in wanted:
        trained = contest.train("converged", plan, _grid(losses, (LAM,)), "last")
        protocols["converged"] = contest.judge(plan, trained, "last")
        # Adam does not see the scale of a loss: sums change the weight of lam, and nothing for losses without it
        trained = contest.train("sums", plan, _grid(filter(has_lam, losses), (LAM,), sums=True), "last", trained)
        protocols["converged_sums"] = contest.judge(plan, trained, "last")
    if "tuned" in wanted:
        trained = contest.train("tuned", tuned, _grid(losses, LAMS), "expected_welfare")
        protocols["tuned"] = contest.judge(tuned, trained, "expected_welfare")
    result: dict[str, Any] = {
        "kind": "synthetic",
        "version": bidwise.__version__,
        "config": {
            **asdict(config),
            "training_ads": config.training_ads or setting.training_ads,
            "batch_size": plan.batch_size,
            "rate": setting.rate,
            "student": setting.student,
            "lams": LAMS,
        },
        "optimal_welfare": float(optimal.mean()),
        "protocols": {name: {"losses": found["losses"]} for name, found in protocols.items()},
        "curves": {name: found["curves"] for name, found in protocols.items()},
        "worlds": {
            name: _distribution(name, config.seed) for name in dict.fromkeys(("plotted", "printed", config.reading))
        },
    }
    result["claims"] = claims(result)
    result["verdict"] = verdict(result)
    result["notes"] = notes(result)
    pieces.write(result)
    return result


def drawn(config: Config, seeds: Sequence[int]) -> tuple[Ads, Ads, Ads]:
    """Training ads, validation auctions and test auctions of every repeat; each repeat is a market of its own."""
    world, setting = WORLDS[config.reading], SETTINGS[config.reading]
    repeats = []
    for seed in seeds:
        random = torch.Generator().manual_seed(seed)
        market = world.market(random)
        repeats.append(
            (
                market.ads(config.training_ads or setting.training_ads, random),
                market.auctions(config.validation_auctions, config.auction_size, random),
                market.auctions(config.test_auctions, config.auction_size, random),
            )
        )
    ads, valid, test = (stack(column) for column in zip(*repeats, strict=True))
    return ads, valid, test


def _grid(losses: Iterable[str], lams: Sequence[float], sums: bool = False) -> list[Contestant]:
    """Every loss with every lam it can have."""
    return [Contestant(loss, lam, sums) for loss in losses for lam in (lams if has_lam(loss) else (None,))]


@dataclass(frozen=True)
class _Contest:
    """The same ads and auctions for every protocol."""

    ads: Ads
    valid: Ads
    test: Ads
    optimal: Floats
    seeds: list[int]
    pieces: Pieces

    def train(
        self,
        name: str,
        plan: Plan,
        contestants: list[Contestant],
        selection: str,
        before: Mapping[str, Trained] | None = None,
    ) -> dict[str, Trained]:
        """All contestants, those with a teacher after it: the log loss's student, which may be known from before."""
        found = dict(before or {})
        for taught in (False, True):
            some = [each for each in contestants if needs_teacher(each.loss) == taught]
            if not some:
                continue
            ads = self.ads
            if taught:
                ads = teacher_of(plan, choose(found["log_loss"], "log_loss", selection), ads, self.seeds)
            kept = self.pieces.called(f"{name}-taught" if taught else name, float(len(some)))
            trained = train(some, ads, self.valid, plan, self.seeds, kept)
            found.update((each.loss, trained) for each in some)
        return {loss: found[loss] for loss in CONTEST if loss in found}

    def judge(self, plan: Plan, trained: Mapping[str, Trained], selection: str) -> dict[str, Any]:
        """The chosen students of every loss on the test auctions, and how they got there."""
        best = best_possible(self.valid)
        chosen = {loss: choose(trained[loss], loss, selection) for loss in trained}
        measures = {loss: self._measured(plan, found) for loss, found in chosen.items()}
        losses = summarised(measures, self.optimal, PAPER)
        curves = {loss: {"epoch": trained[loss].epochs, **band(found.curve, best)} for loss, found in chosen.items()}
        for loss, found in chosen.items():
            losses[loss].update(_choice(found))
        if selection != "last":  # what a user could have chosen, who does not know the true CTR
            chosen = {loss: choose(trained[loss], loss, "welfare") for loss in trained}
            welfare = {loss: self._measured(plan, found)["welfare"] for loss, found in chosen.items()}
            for loss, found in chosen.items():
                seen = gain(welfare[loss], welfare["log_loss"], self.optimal)
                losses[loss]["by_clicks"] = {**seen, **_choice(found)}
        return {"losses": losses, "curves": curves}

    def _measured(self, plan: Plan, chosen: Chosen) -> Measures:
        return measured(student(plan, self.ads.width, chosen.state, self.seeds), self.valid, self.test)


def _choice(chosen: Chosen) -> dict[str, Any]:
    """The epoch and lam a loss was given, where it had a choice."""
    found: dict[str, Any] = {}
    if chosen.epoch is not None:
        found["epoch"] = float(chosen.epoch.double().mean())
        if chosen.lam is not None:
            found["lam"] = [round(lam, 6) for lam in chosen.lam.tolist()]
    return found


def _distribution(reading: str, seed: int) -> dict[str, Any]:
    """Histograms of CTR and log10 bid over ten markets, for the paper's Figure 4."""
    ctr, bids = [], []
    for repeat in seeds_of(seed, 10):
        random = torch.Generator().manual_seed(repeat)
        ads = WORLDS[reading].market(random).ads(10_000, random)
        ctr.append(ads.truth)
        bids.append(ads.bids)
    truth, all_bids = torch.cat(ctr).numpy(), torch.cat(bids).numpy()  # type: ignore[arg-type]
    histograms = {}
    for name, numbers, bins in (("ctr", truth, np.linspace(0, 1, 41)), ("log10_bid", np.log10(all_bids), 40)):
        counts, edges = np.histogram(numbers, bins)
        histograms[name] = {"edges": edges.round(6), "counts": counts}
    return {
        **histograms,
        "mean_ctr": float(truth.mean()),
        "lowest_bid": float(all_bids.min()),
        "highest_bid": float(all_bids.max()),
    }
