"""Where a welfare loss pays: its gain over a tuned log loss, from one kind of world to another."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import bidwise
from bidwise.auctions.columns import Floats
from bidwise.checks import MOST_SEED, InputError, check_whole
from bidwise.data.ads import Ads, AuctionCuts, stack
from bidwise.data.worlds import World
from bidwise.evaluation.calibration import calibrator
from bidwise.losses.named import needs_teacher
from bidwise.models.mlp import MLP
from bidwise.paper.maps import GAINS, MAPS, SIZE, SIZES, TAUGHT, Cell
from bidwise.paper.synthetic_sentences import regime_notes, regime_verdict
from bidwise.paper.test_measures import gain
from bidwise.study.contest import (
    BATCHES,
    CONTEST,
    INITIAL,
    LAMS,
    TEACHERS_ADS,
    Contestant,
    Plan,
    Trained,
    choose,
    has_lam,
    seeds_of,
    student,
    train,
)
from bidwise.study.pieces import Compute, Pieces, Progress
from bidwise.training.loop import fit
from bidwise.training.validation import METRICS, Metric, logits_of, mean_welfare, predict


@dataclass(frozen=True)
class Config:
    """The options of a run."""

    repeats: int = 10
    epochs: int = 20
    seed: int = 0
    training_ads: int = 40_000
    validation_ads: int = 100_000
    test_ads: int = 200_000

    def __post_init__(self) -> None:
        check_whole("repeats", self.repeats, 2)
        check_whole("epochs", self.epochs, 1)
        check_whole("seed", self.seed, 0)
        for name, most in (("repeats", 1000), ("seed", MOST_SEED)):
            if getattr(self, name) > most:
                raise InputError(f"{name} must be at most {most}, found {getattr(self, name)}")
        check_whole("training_ads", self.training_ads, 2)
        for name in ("validation_ads", "test_ads"):
            check_whole(name, getattr(self, name), max(SIZES))


def run(config: Config, out: str | Path, *, device: str = "cpu", progress: Progress | None = None) -> dict[str, Any]:
    """Train, evaluate and write ``result.json``; what is already there is not computed again."""
    pieces = Pieces(out, {"experiment": "regimes", **asdict(config)}, device, progress)
    cells = {(m.name, x, y): m.at(x, y) for m in MAPS for y in m.y.levels for x in m.x.levels}
    different = list(dict.fromkeys(cells.values()))
    groups = _groups(different, together=device != "cpu")
    pieces.expected = float(len(different))
    found: dict[Cell, dict[str, Any]] = {}
    for number, group in enumerate(groups):

        def compute(show: Callable[[float], None], group: list[Cell] = group) -> list[dict[str, Any]]:
            return _Group(config, group, device, show).gains()

        found.update(zip(group, pieces.get(f"worlds-{number:02d}", str(group), len(group), compute), strict=True))
    maps = [
        {
            "name": m.name,
            "title": m.title,
            "x": asdict(replace(m.x, levels=_rounded(m.x.levels))),
            "y": asdict(replace(m.y, levels=_rounded(m.y.levels))),
            "losses": {
                loss: [[found[cells[m.name, x, y]][loss] for x in m.x.levels] for y in m.y.levels] for loss in m.losses
            },
        }
        for m in MAPS
    ]
    result: dict[str, Any] = {
        "kind": "regimes",
        "version": bidwise.__version__,
        "config": {**asdict(config), "lams": LAMS, "student": "logistic_regression"},
        "maps": maps,
        "summary": _summary(found),
    }
    result["verdict"] = regime_verdict(result)
    result["notes"] = regime_notes(result)
    pieces.write(result)
    return result


def _groups(cells: list[Cell], together: bool) -> list[list[Cell]]:
    """Cells that train together: those of one world, or of all worlds that ask for the same sizes and teachers."""
    of_world: dict[World, list[Cell]] = {}
    for cell in cells:
        of_world.setdefault(cell.world, []).append(cell)
    if not together:
        return list(of_world.values())
    alike: dict[Any, list[Cell]] = {}
    for some in of_world.values():
        alike.setdefault(frozenset((cell.size, cell.teacher) for cell in some), []).extend(some)
    return list(alike.values())


def _rounded(levels: tuple[float | str, ...]) -> tuple[float | str, ...]:
    return tuple(level if isinstance(level, str) else round(level, 2) for level in levels)


def _summary(found: dict[Cell, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """In how many different cells a loss is better, worse or not to be told from log loss."""
    summary = {}
    for loss in GAINS:
        cells = [gains[loss] for gains in found.values() if loss in gains]
        better, worse = sum(c["ci_low"] > 0 for c in cells), sum(c["ci_high"] < 0 for c in cells)
        unclear = len(cells) - better - worse
        summary[loss] = {"better": better, "worse": worse, "unclear": unclear, "cells": len(cells)}
    return summary


def sized(metric: str, size: int) -> Metric:
    """Welfare of the same ads cut into auctions of this size: ads are alike, so any of them may compete."""

    def of(logits: torch.Tensor, ads: Ads) -> torch.Tensor:
        cuts = AuctionCuts.of_neighbours(len(ads), size)
        rows, offsets = cuts.rows, cuts.offsets
        seen = ads.truth if metric == "expected_welfare" else ads.clicks
        assert seen is not None
        bids = ads.bids[..., rows]
        return mean_welfare(logits[..., rows], bids * seen[..., rows], bids, offsets)

    return Metric(f"{metric}@{size}", METRICS[metric].about, METRICS[metric].higher_is_better, of)


class _Group:
    """Some worlds at once: their repeats are one leading dimension, world after world."""

    def __init__(self, config: Config, cells: list[Cell], device: str, show: Callable[[float], None]) -> None:
        self.config, self.cells, self.device, self.show = config, cells, device, show
        self.worlds = list(dict.fromkeys(cell.world for cell in cells))
        seeds = seeds_of(config.seed, config.repeats)
        self.seeds = seeds * len(self.worlds)
        self.markets = [(world, seed) for world in self.worlds for seed in seeds]
        self.ads, self.valid, self.test = (ads.to(device) for ads in self._drawn())
        self.plan = Plan("logistic_regression", config.epochs, 3e-3, every=1, device=device)
        self.sizes = sorted({cell.size for cell in cells} | {SIZE})

    def _drawn(self) -> tuple[Ads, Ads, Ads]:
        sizes = (self.config.training_ads, self.config.validation_ads, self.config.test_ads)

        def draw(market_and_seed: tuple[World, int]) -> list[Ads]:
            world, seed = market_and_seed
            random = torch.Generator().manual_seed(seed)
            market = world.market(random)
            return [market.ads(size, random) for size in sizes]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            repeats = list(pool.map(draw, self.markets))
        ads, valid, test = (stack(column) for column in zip(*repeats, strict=True))
        return ads, valid, test

    def gains(self) -> list[dict[str, Any]]:
        """For every cell the gain of each loss over log loss, tuned on the cell's own auctions."""
        teachers = list(dict.fromkeys(cell.teacher for cell in self.cells))
        contests = 1 + len(teachers)
        alone = self._trained([loss for loss in CONTEST if not needs_teacher(loss)], self.ads, 0, contests)
        taught = {}
        for number, teacher in enumerate(teachers, 1):
            ads = self.ads.with_teacher(self._teacher(teacher, alone))
            taught[teacher] = self._trained(TAUGHT, ads, number, contests)
        welfare: dict[tuple[str, str, int, str], dict[str, Floats]] = {}
        found = []
        for cell in self.cells:
            first = self.worlds.index(cell.world) * self.config.repeats
            rows = slice(first, first + self.config.repeats)
            optimal = self._optimal(cell.size)[rows]
            gains = {}
            for loss in CONTEST:
                if loss != "log_loss" and not needs_teacher(loss) and cell.teacher != "student":
                    continue  # the same as in the cell without that teacher
                trained, teacher = (taught[cell.teacher], cell.teacher) if needs_teacher(loss) else (alone, "")
                for selection in ("expected_welfare", "welfare"):
                    key = (loss, teacher, cell.size, selection)
                    if key not in welfare:
                        welfare[key] = self._welfare(trained, loss, cell.size, selection)
                chosen, by_clicks = (
                    {kind: numbers[rows] for kind, numbers in welfare[loss, teacher, cell.size, selection].items()}
                    for selection in ("expected_welfare", "welfare")
                )
                if loss == "log_loss":
                    base, base_by_clicks = chosen, by_clicks
                    continue
                gains[loss] = {
                    **gain(chosen["welfare"], base["welfare"], optimal),
                    "calibrated": gain(chosen["calibrated"], base["calibrated"], optimal),
                    "by_clicks": gain(by_clicks["welfare"], base_by_clicks["welfare"], optimal),
                }
            found.append(gains)
        return found

    def _trained(self, losses: Sequence[str], ads: Ads, number: int, contests: int) -> Trained:
        contestants = [Contestant(loss, lam) for loss in losses for lam in (LAMS if has_lam(loss) else (None,))]
        selections = [sized(name, size) for size in self.sizes for name in ("expected_welfare", "welfare")]

        done = 0.0

        def piece(_: int, of: str, share: float, compute: Compute) -> Any:
            nonlocal done
            found = compute(lambda part: self.show((number + done + share * part) / contests))
            done += share
            return found

        return train(contestants, ads, self.valid, self.plan, self.seeds, piece, selections)

    def _teacher(self, kind: str, alone: Trained) -> torch.Tensor:
        """The teacher's CTR of the training ads: by a model of log loss, or the true one."""
        if kind == "true CTR":
            assert self.ads.truth is not None
            return self.ads.truth
        if kind == "student":
            chosen = choose(alone, "log_loss", f"expected_welfare@{SIZE}")
            model = student(self.plan, self.ads.width, chosen.state, self.seeds)
        else:
            model = self._network(strong=kind == "strong network")
        return predict(model, self.ads.features)

    def _network(self, strong: bool) -> MLP:
        """A network that can represent squares: 50 units, or 200 that saw ten times the ads."""
        ads = self.ads
        if strong:
            more = []
            for world, seed in self.markets:
                random = torch.Generator().manual_seed(seed)
                market = world.market(random)
                more.append(
                    market.ads(10 * self.config.training_ads, torch.Generator().manual_seed(seed + TEACHERS_ADS))
                )
            ads = stack(more)
        hidden, seeds = (200,) if strong else (50,), [seed + INITIAL for seed in self.seeds]
        model = MLP(ads.width, hidden, members=(len(seeds),), seed=seeds).to(self.device)
        epochs = max(1, self.config.epochs // (2 if strong else 1))
        fit(
            model, ads, valid=self.valid, metric="log_loss", epochs=epochs, seed=[seed + BATCHES for seed in self.seeds]
        )
        return model

    def _optimal(self, size: int) -> Floats:
        assert self.test.truth is not None
        truth = torch.logit(self.test.truth.double())
        return sized("expected_welfare", size).of(truth, self.test).cpu().numpy()

    def _welfare(self, trained: Trained, loss: str, size: int, selection: str) -> dict[str, Floats]:
        """Welfare on test auctions, as it is and after Platt scaling on validation clicks, ``(repeats,)``."""
        chosen = choose(trained, loss, f"{selection}@{size}")
        model = student(self.plan, self.ads.width, chosen.state, self.seeds)
        logits = logits_of(model, self.test.features)
        metric = sized("expected_welfare", size)
        found = {"welfare": metric.of(logits.double(), self.test).cpu().numpy()}
        if selection == "expected_welfare":
            valid = predict(model, self.valid.features).cpu()
            lines = [calibrator("platt", p, y) for p, y in zip(valid, self.valid.clicks.cpu(), strict=True)]
            slope, intercept = (
                torch.tensor([getattr(line, name) for line in lines], dtype=torch.float64, device=logits.device)
                for name in ("slope", "intercept")
            )
            scaled = slope[:, None] * logits.double() + intercept[:, None]
            found["calibrated"] = metric.of(scaled, self.test).cpu().numpy()
        return found
