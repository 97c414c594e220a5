"""Where a welfare loss pays: its gain over a tuned log loss, from one kind of market to another, in three maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import bidwise
from bidwise.checks import check_name
from bidwise.data.ads import Ads, stack
from bidwise.data.worlds import WORLDS, World
from bidwise.json_files import from_json, to_json
from bidwise.losses.named import needs_teacher
from bidwise.models.mlp import MLP
from bidwise.run_folder import environment, open_folder
from bidwise.study.recipe import BASELINE, Recipe
from bidwise.training.loop import fit
from bidwise.training.validation import METRICS, Metric, logits_of, mean_welfare, predict
from bidwise.values import Floats
from bidwise.workers import Progress, Show, ahead, cores
from paper.comparisons import Gain, gain, platt_scaled
from paper.grids import LAMS, grid, seeds_of
from paper.members import BATCHES, Selected, Students, select, train
from paper.synthetic import BY_CLICKS, BY_TRUTH, LOSSES, Fits
from paper.synthetic_results import (
    Axis,
    CellGain,
    Counts,
    MapResult,
    RegimesConfig,
    RegimesResult,
    TunedGain,
    check_wholes,
)
from paper.tasks import Task, TaskCache

BASE = WORLDS["misspecified_rare"]
LOGIT = math.hypot(BASE.linear, BASE.curve * math.sqrt(2 * BASE.curves))  # standard deviation without noise
SHARE = (BASE.curve * math.sqrt(2 * BASE.curves) / LOGIT) ** 2  # of its variance that is squares, 0.77
SIZE = 50
SIZES = (10, 50, 200, 1000)
TEACHERS = ("student", "network", "strong network", "true CTR")
TEACHERS_ADS = 500_000  # beside the seed of a repeat, for the ads of a strong teacher
STUDENT = "logistic_regression"
GAINS = tuple(loss for loss in LOSSES if loss != BASELINE)
TAUGHT = tuple(loss for loss in GAINS if needs_teacher(loss))
UNTAUGHT = tuple(loss for loss in LOSSES if not needs_teacher(loss))
Gains = dict[str, CellGain]  # by loss


def world(share: float = SHARE, correlation: float = BASE.correlation, spread: float = BASE.spread) -> World:
    """The base world with another share of squares, correlation or spread; logit variance and mean bid stay."""
    return replace(
        BASE,
        linear=LOGIT * math.sqrt(1 - share),
        curve=LOGIT * math.sqrt(share / (2 * BASE.curves)),
        correlation=correlation,
        spread=spread,
        level=(BASE.spread**2 - spread**2) / 2,
    )


@dataclass(frozen=True)
class Cell:
    """A kind of market, the size of its auctions, and who teaches."""

    world: World
    size: int = SIZE
    teacher: str = "student"


@dataclass(frozen=True)
class Map:
    """Cells over two axes, ``at(x, y)``."""

    name: str
    x: Axis
    y: Axis
    losses: tuple[str, ...]
    at: Callable[[Any, Any], Cell]

    @property
    def cells(self) -> list[list[Cell]]:
        """Rows along y, in them cells along x."""
        return [[self.at(x, y) for x in self.x.levels] for y in self.y.levels]


MISSPECIFIED = Axis("misspecification", (0.0, 0.25, 0.5, SHARE))
CORRELATION, SPREAD = Axis("correlation", (0.0, 0.25, 0.5, 0.75)), Axis("bid spread", (0.2, 0.4, 0.8, 1.6))
AUCTION_SIZE, TEACHER = Axis("auction size", SIZES), Axis("teacher", TEACHERS)
MAPS = (
    Map(
        "misspecification_correlation",
        CORRELATION,
        MISSPECIFIED,
        GAINS,
        lambda x, y: Cell(world(share=y, correlation=x)),
    ),
    Map("spread_size", AUCTION_SIZE, SPREAD, GAINS, lambda x, y: Cell(world(spread=y), size=x)),
    Map("teacher", TEACHER, MISSPECIFIED, TAUGHT, lambda x, y: Cell(world(share=y), teacher=x)),
)


def checked(config: RegimesConfig) -> RegimesConfig:
    """The options with what is fixed, or an error that names what cannot be used."""
    sizes = dict.fromkeys(("validation_ads", "test_ads"), max(SIZES))
    check_wholes(config, repeats=2, epochs=1, training_ads=2, **sizes)
    for name in config.maps:
        check_name("maps", name, [m.name for m in MAPS])
    maps = tuple(m.name for m in MAPS if not config.maps or m.name in config.maps)
    return replace(config, lams=config.lams or LAMS, maps=maps, student=STUDENT)


def run(
    config: RegimesConfig, out: str | Path, *, device: str = "cpu", progress: Progress | None = None
) -> RegimesResult:
    """Train, evaluate and write ``result.json``; what is already there is not computed again."""
    config = checked(config)
    folder = open_folder(out, {"experiment": "regimes", **asdict(config)})
    where = environment(device)  # now: the sources may change while it runs
    asked = [m for m in MAPS if m.name in config.maps]
    cells = list(dict.fromkeys(cell for m in asked for row in m.cells for cell in row))
    groups = _groups(cells, together=device != "cpu")
    tasks = [
        Task(f"worlds-{at:02d}", partial(_gains, config, group, device), amount=_models(config, group), key=str(group))
        for at, group in enumerate(groups)
    ]
    kept = TaskCache(folder, progress, expected=sum(task.amount for task in tasks))
    gains = {
        cell: from_json(Gains, found)
        for group, all_found in zip(groups, kept.all(tasks), strict=True)
        for cell, found in zip(group, all_found, strict=True)
    }
    maps = []
    for m in asked:
        losses = {loss: tuple(tuple(gains[cell][loss] for cell in row) for row in m.cells) for loss in m.losses}
        maps.append(MapResult(m.name, _rounded(m.x), _rounded(m.y), losses))
    counts = {loss: Counts.of([found[loss] for found in gains.values() if loss in found]) for loss in GAINS}
    result = RegimesResult(bidwise.__version__, config, tuple(maps), counts)
    kept.write(result, where)
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


def _models(config: RegimesConfig, cells: list[Cell]) -> int:
    """How many students a group trains in each repeat."""
    teachers = {cell.teacher for cell in cells}
    untaught, taught = (len(grid(Recipe(), losses, config.lams)) for losses in (UNTAUGHT, TAUGHT))
    return len({cell.world for cell in cells}) * (untaught + taught * len(teachers))


def _gains(config: RegimesConfig, cells: list[Cell], device: str, show: Show) -> Any:
    return to_json(_Group(config, cells, device, show).gains())


def _rounded(axis: Axis) -> Axis:
    return Axis(axis.name, tuple(x if isinstance(x, str) else round(x, 2) for x in axis.levels))


def sized(metric: str, size: int) -> Metric:
    """Welfare of the same ads cut into auctions of this size: ads are alike, so any of them may compete."""

    def of(logits: torch.Tensor, ads: Ads) -> torch.Tensor:
        auctions = len(ads) // size
        rows = slice(0, auctions * size)
        offsets = size * torch.arange(auctions + 1)
        seen = ads.truth if metric == BY_TRUTH else ads.clicks
        assert seen is not None
        bids = ads.bids[..., rows]
        return mean_welfare(logits[..., rows], bids * seen[..., rows], bids, offsets)

    return Metric(f"{metric}@{size}", METRICS[metric].about, METRICS[metric].higher_is_better, of)


class _Group:
    """Some worlds at once: their repeats are one leading dimension, world after world."""

    def __init__(self, config: RegimesConfig, cells: list[Cell], device: str, show: Show) -> None:
        self.config, self.cells, self.show = config, cells, show
        self.worlds = list(dict.fromkeys(cell.world for cell in cells))
        seeds = seeds_of(config.seed, config.repeats)
        self.markets = [(world, seed) for world in self.worlds for seed in seeds]
        self.ads, self.valid, self.test = (ads.to(device) for ads in self._drawn())
        self.students = Students(self.ads.width, seeds * len(self.worlds), hidden=(), device=device)
        self.done, self.models = 0.0, _models(config, cells) / len(self.worlds)

    def _drawn(self) -> tuple[Ads, Ads, Ads]:
        sizes = (self.config.training_ads, self.config.validation_ads, self.config.test_ads)

        def draw(market_and_seed: tuple[World, int]) -> list[Ads]:
            world, seed = market_and_seed
            random = torch.Generator().manual_seed(seed)
            market = world.market(random)
            return [market.ads(size, random) for size in sizes]

        repeats = ahead(draw, self.markets, cores())
        ads, valid, test = (stack(column) for column in zip(*repeats, strict=True))
        return ads, valid, test

    def gains(self) -> list[Gains]:
        """For every cell the gain of each loss over log loss, tuned on the cell's own auctions."""
        untaught = self.trained(UNTAUGHT, self.ads)
        taught = {
            teacher: self.trained(TAUGHT, self.ads.with_teacher(self.teacher(teacher, untaught)))
            for teacher in dict.fromkeys(cell.teacher for cell in self.cells)
        }

        @cache
        def selected(loss: str, teacher: str, size: int, metric: str) -> Selected:
            return select((taught[teacher] if teacher else untaught)[loss], f"{metric}@{size}")

        @cache
        def welfare(loss: str, teacher: str, size: int, metric: str, calibrated: bool) -> Floats:
            return self.welfare(selected(loss, teacher, size, metric), size, calibrated)

        def in_cell(cell: Cell, loss: str) -> CellGain:
            first = self.worlds.index(cell.world) * self.config.repeats
            rows = slice(first, first + self.config.repeats)
            teacher, optimal = cell.teacher if needs_teacher(loss) else "", self.optimal(cell.size)[rows]

            def over_log_loss(metric: str, calibrated: bool = False) -> Gain:
                way = (cell.size, metric, calibrated)
                return gain(welfare(loss, teacher, *way)[rows], welfare(BASELINE, "", *way)[rows], optimal)

            lam = selected(loss, teacher, cell.size, BY_TRUTH).lam
            return CellGain(
                **vars(over_log_loss(BY_TRUTH)),
                calibrated=over_log_loss(BY_TRUTH, calibrated=True),
                by_clicks=TunedGain(**vars(over_log_loss(BY_CLICKS))),
                lam=None if lam is None else lam[rows],
            )

        # losses without a teacher do not depend on who teaches
        losses = {cell: GAINS if cell.teacher == "student" else TAUGHT for cell in self.cells}
        return [{loss: in_cell(cell, loss) for loss in losses[cell]} for cell in self.cells]

    def trained(self, losses: Sequence[str], ads: Ads) -> Fits:
        """Students of these losses, with the best epoch of each for every size of auctions."""
        recipes = grid(
            Recipe(model=STUDENT, unit=1.0, epochs=self.config.epochs, learning_rate=3e-3), losses, self.config.lams
        )
        sizes = sorted({cell.size for cell in self.cells} | {SIZE})
        metrics = [sized(name, size) for size in sizes for name in (BY_TRUTH, BY_CLICKS)]
        return train("", recipes, ads, self.valid, self.students, metrics, self._run)

    def _run(self, tasks: Sequence[Task]) -> list[Any]:
        """Tasks one after the other; the whole group is kept, not its parts."""
        values = []
        for task in tasks:
            values.append(task.function(lambda share, n=task.amount: self.show((self.done + n * share) / self.models)))
            self.done += task.amount
        return values

    def teacher(self, kind: str, untaught: Fits) -> torch.Tensor:
        """The teacher's CTR of the training ads: by a model of log loss, or the true one."""
        if kind == "true CTR":
            assert self.ads.truth is not None
            return self.ads.truth
        if kind == "student":
            model = self.students.trained(select(untaught[BASELINE], f"{BY_TRUTH}@{SIZE}").weights)
        else:
            model = self.network(strong=kind == "strong network")
        return predict(model, self.ads.features)

    def network(self, strong: bool) -> MLP:
        """A network that can represent squares: 50 units, or 200 that saw ten times the ads."""
        ads = self.ads
        if strong:
            more = []
            for world, seed in self.markets:
                market = world.market(torch.Generator().manual_seed(seed))
                random = torch.Generator().manual_seed(seed + TEACHERS_ADS)
                more.append(market.ads(10 * self.config.training_ads, random))
            ads = stack(more)
        hidden, epochs = ((200,), max(1, self.config.epochs // 2)) if strong else ((50,), self.config.epochs)
        model = replace(self.students, hidden=hidden, init="torch").untrained()
        batches = [seed + BATCHES for seed in self.students.seeds]
        fit(model, ads, valid=self.valid, metric="log_loss", epochs=epochs, seed=batches)
        return model

    def optimal(self, size: int) -> Floats:
        """Welfare of the true CTR on test auctions, ``(repeats,)``."""
        assert self.test.truth is not None
        return _numpy(sized(BY_TRUTH, size).of(torch.logit(self.test.truth.double()), self.test))

    def welfare(self, selected: Selected, size: int, calibrated: bool = False) -> Floats:
        """Welfare on test auctions, as it is or after Platt scaling on validation clicks, ``(repeats,)``."""
        model = self.students.trained(selected.weights)
        logits = logits_of(model, self.test.features).double()
        if calibrated:
            logits = platt_scaled(logits, logits_of(model, self.valid.features).double(), self.valid.clicks)
        return _numpy(sized(BY_TRUTH, size).of(logits, self.test))


def _numpy(values: torch.Tensor) -> Floats:
    numbers: Floats = values.cpu().numpy()
    return numbers
