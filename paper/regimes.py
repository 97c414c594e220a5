"""Where a welfare loss pays: its gain over a tuned log loss, from one kind of market to another, in three maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bidwise
from bidwise.checks import InputError, check_name
from bidwise.data.ads import Ads
from bidwise.data.worlds import WORLDS, World
from bidwise.json_files import from_json, to_json
from bidwise.losses.named import needs_teacher
from bidwise.study.recipe import BASELINE, Recipe
from bidwise.training.loop import fit
from bidwise.training.validation import METRICS, Metric, predict
from bidwise.workers import Progress, Show, ahead, cores
from paper.grids import BATCHES, LAMS, Students, seeds_of, side_by_side
from paper.synthetic import BY_TRUTH, LOSSES, Fits, Study
from paper.synthetic_results import Axis, CellGain, Counts, MapResult, RegimesConfig, RegimesResult, check_wholes
from paper.tasks import Task, TaskCache

BASE = WORLDS["misspecified_rare"]
LOGIT = math.hypot(BASE.linear, BASE.curve * math.sqrt(2 * BASE.curves))  # standard deviation without noise
SHARE = (BASE.curve * math.sqrt(2 * BASE.curves) / LOGIT) ** 2  # of its variance that is squares, 0.77
SIZE = 50
SIZES = (10, 50, 200, 1000)
BASE_METRIC = f"{BY_TRUTH}@{SIZE}"  # by which a teacher is selected
TEACHERS = ("student", "network", "strong network", "true CTR")
TEACHERS_ADS = 500_000  # beside the seed of a repeat, for the ads of a strong teacher
GAINS = tuple(loss for loss in LOSSES if loss != BASELINE)
TAUGHT = tuple(loss for loss in GAINS if needs_teacher(loss))
UNTAUGHT = tuple(loss for loss in LOSSES if not needs_teacher(loss))


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

    @property
    def corners(self) -> Map:
        """The map of the first and the last level of both axes."""
        x, y = (Axis(axis.name, (axis.levels[0], axis.levels[-1])) for axis in (self.x, self.y))
        return replace(self, x=x, y=y)


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
    for name in sizes:
        if getattr(config, name) % max(SIZES):
            raise InputError(f"must be a multiple of {max(SIZES)}, found {getattr(config, name)}", argument=name)
    for name in config.maps:
        check_name("maps", name, [m.name for m in MAPS])
    maps = tuple(m.name for m in MAPS if not config.maps or m.name in config.maps)
    return replace(config, lams=config.lams or LAMS, maps=maps)


def run(
    config: RegimesConfig, out: str | Path, *, device: str = "cpu", progress: Progress | None = None
) -> RegimesResult:
    """Train, evaluate and write ``result.json``; what is already there is not computed again."""
    config = checked(config)
    asked = [m.corners if config.corners else m for m in MAPS if m.name in config.maps]
    of_world: dict[World, list[Cell]] = {}
    for cell in dict.fromkeys(cell for m in asked for row in m.cells for cell in row):
        of_world.setdefault(cell.world, []).append(cell)
    tasks = [
        Task(f"worlds-{at:02d}", partial(_gains, config, cells, device), key=str(cells))
        for at, cells in enumerate(of_world.values())
    ]
    cache = TaskCache(out, {"experiment": "regimes", **asdict(config)}, device, progress, len(tasks))
    gains: dict[Cell, dict[str, CellGain]] = {}  # by loss
    for cells, found in zip(of_world.values(), cache.all(tasks), strict=True):
        gains |= zip(cells, from_json(list[dict[str, CellGain]], found), strict=True)
    maps = []
    for m in asked:
        losses = {loss: tuple(tuple(gains[cell][loss] for cell in row) for row in m.cells) for loss in m.losses}
        maps.append(MapResult(m.name, _rounded(m.x), _rounded(m.y), losses))
    counts = {loss: Counts.of([found[loss] for found in gains.values() if loss in found]) for loss in GAINS}
    return cache.write(RegimesResult(bidwise.__version__, config, tuple(maps), counts))


def _rounded(axis: Axis) -> Axis:
    return Axis(axis.name, tuple(x if isinstance(x, str) else round(x, 2) for x in axis.levels))


def cut(ads: Ads, size: int) -> Ads:
    """The same ads in auctions of this size: ads are alike, so any of them may compete."""
    return replace(ads, offsets=size * torch.arange(len(ads) // size + 1))


def sized(metric: str, size: int) -> Metric:
    """Welfare of the same ads cut into auctions of this size."""
    plain = METRICS[metric]
    return replace(plain, name=f"{metric}@{size}", of=lambda logits, ads: plain.of(logits, cut(ads, size)))


def _gains(config: RegimesConfig, cells: list[Cell], device: str, _: Show) -> Any:
    """For every cell of one world the gain of each loss over log loss, tuned on the cell's own auctions."""
    study = study_of(config, cells, device)
    untaught = study.train("", study.recipes(config.lams), BASE_METRIC)
    taught = {}
    for kind in dict.fromkeys(cell.teacher for cell in cells):
        ads = study.ads.with_teacher(teacher(kind, study, untaught, cells[0].world, config))
        pupils = replace(study, ads=ads, losses=TAUGHT)
        taught[kind] = pupils.train("", pupils.recipes(config.lams), BASE_METRIC)
    gains = []
    for cell in cells:
        losses = LOSSES if cell.teacher == "student" else (BASELINE, *TAUGHT)  # others do not depend on who teaches
        fits = {loss: (untaught | taught[cell.teacher])[loss] for loss in losses}
        mine = replace(study, valid=cut(study.valid, cell.size), test=cut(study.test, cell.size))
        judged = mine.judge(fits, f"{BY_TRUTH}@{cell.size}")
        names = [field.name for field in fields(CellGain)]
        gains.append({x: CellGain(**{n: getattr(judged[x], n) for n in names}) for x in losses if x != BASELINE})
    return to_json(gains)


def study_of(config: RegimesConfig, cells: list[Cell], device: str) -> Study:
    """The markets of one world, a repeat each, and the best epoch of each student for every size of auctions."""
    world, seeds = cells[0].world, seeds_of(config.seed, config.repeats)

    def draw(seed: int) -> list[Ads]:
        random = torch.Generator().manual_seed(seed)
        market = world.market(random)
        return [market.ads(size, random) for size in (config.training_ads, config.validation_ads, config.test_ads)]

    ads, valid, test = (side_by_side(column) for column in zip(*ahead(draw, seeds, cores()), strict=True))
    recipe = Recipe(model="logistic_regression", unit=1.0, epochs=config.epochs, learning_rate=3e-3)
    students = Students(ads.width, seeds, hidden=(), device=device)
    sizes = sorted({cell.size for cell in cells} | {SIZE})
    metrics = tuple(sized(BY_TRUTH, size) for size in sizes)
    return Study(recipe, UNTAUGHT, ads.to(device), valid.to(device), test, students, _in_turn, metrics)


def _in_turn(tasks: Sequence[Task]) -> list[Any]:
    """What is found in a world is kept, not its parts."""
    return [task.function(lambda share: None) for task in tasks]


def teacher(kind: str, study: Study, untaught: Fits, world: World, config: RegimesConfig) -> Tensor:
    """The teacher's CTR of the training ads: by a model of log loss, or the true one."""
    if kind == "true CTR":
        assert study.ads.truth is not None
        return study.ads.truth
    if kind == "student":
        return study.predicted(untaught, BASE_METRIC)
    ads, seeds, strong = study.ads, study.students.seeds, kind == "strong network"
    if strong:  # 200 units that saw ten times the ads, not 50
        more = []
        for seed in seeds:
            market = world.market(torch.Generator().manual_seed(seed))
            more.append(market.ads(10 * len(ads), torch.Generator().manual_seed(seed + TEACHERS_ADS)))
        ads = side_by_side(more)
    hidden, epochs = ((200,), max(1, config.epochs // 2)) if strong else ((50,), config.epochs)
    model = replace(study.students, hidden=hidden, init="torch").untrained()
    fit(model, ads, valid=study.valid, metric="log_loss", epochs=epochs, seed=[seed + BATCHES for seed in seeds])
    return predict(model, study.ads.features)
