"""The result of an evaluation: numbers, written as JSON and shown as sentences and as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import bidwise
from bidwise.checks import InputError
from bidwise.evaluation.comparison import Comparison
from bidwise.evaluation.doubts import Doubt
from bidwise.evaluation.estimate import Estimate
from bidwise.evaluation.intervals import Interval
from bidwise.evaluation.metrics import ModelMetrics, Reference
from bidwise.evaluation.units import Concentration
from bidwise.json_files import read_object
from bidwise.run_folder import (
    check_writable,
    environment,
    locked_folder,
    result_json,
    whole_file,
    write_json,
    write_text,
)

BY_BID, AT_RANDOM, BEST = "highest bid", "random ad", "best possible"  # references: ways to rank without a model


DETECTED = 0.1  # of the welfare: a change that a table should be able to detect, to judge models


@dataclass(frozen=True)
class Segment:
    """Models compared by the welfare of the ads of one value of a column."""

    column: str
    value: str
    ads: int
    clicks: int
    welfare: Comparison


@dataclass(frozen=True)
class AuctionSize:
    """Models compared over every possible auction of one size."""

    ads: int
    welfare: dict[str, Interval]
    comparisons: tuple[Comparison, ...]

    @property
    def enough(self) -> bool:
        """Whether a change by `DETECTED` of the welfare would be detected in auctions of this size."""
        return any(
            each.enough and each.smallest_lift < DETECTED * self.welfare[each.model].estimate
            for each in self.comparisons
        )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result, field by field as in ``result.json``; ``print`` shows the table and the verdict."""

    kind: ClassVar[str] = "evaluation"
    format: ClassVar[int] = 8
    written: ClassVar[tuple[str, ...]] = ("best", "units", "optimal_welfare")

    models: dict[str, ModelMetrics]
    comparisons: tuple[Comparison, ...]
    references: dict[str, Reference]
    against: tuple[Comparison, ...]  # welfare of models against references, and of those against the baseline
    sizes: tuple[AuctionSize, ...] = ()  # if neither auctions nor their size were named
    doubts: tuple[Doubt, ...] = ()
    auctions: int | None  # None if every possible auction counts
    ads: int
    clusters: int | None = None
    single_ads: int = 0  # real auctions with one ad
    baseline: str
    welfare_of: str  # "clicks": realised; "truth": expected
    bid_spread: float  # standard deviation of log bids
    largest_bid: float  # in medians
    concentration: Concentration  # of the baseline's welfare
    segments: tuple[Segment, ...] = ()
    options: dict[str, Any]  # the options; tables by name
    version: str = bidwise.__version__

    @property
    def best(self) -> str | None:
        """The model with measurably more welfare than every other."""
        lost = {frozenset(comparison.pair): comparison.worse for comparison in self.of_metric("welfare")}
        for model in self.models:
            others = [other for other in self.models if other != model]
            if others and all(lost.get(frozenset((model, other))) == other for other in others):
                return model
        return None

    @property
    def optimal_welfare(self) -> float | None:
        """The highest welfare of any prediction, if the true CTR is known."""
        return self.references[BEST].welfare if BEST in self.references else None

    def lift(self, model: str, baseline: str) -> Estimate:
        """The welfare of a model or a reference in shares of the other's, with its interval."""
        return self.welfare_pairs[model, baseline].lift

    @property
    def welfare_pairs(self) -> dict[tuple[str, str], Comparison]:
        """The comparisons in welfare, of models and references, by (model, baseline)."""
        return {each.pair: each for each in (*self.of_metric("welfare"), *self.against)}

    @property
    def units(self) -> str:
        """The units of intervals."""
        if self.clusters is not None:
            return "clusters"
        return "ads" if self.auctions is None else "auctions"

    @property
    def concentrated(self) -> bool:
        """Whether a handful of many ads has most of the baseline's welfare."""
        return self.concentration.share > 0.5 and (self.auctions or self.ads) > 100

    @property
    def pairs(self) -> dict[tuple[str, str], dict[str, Comparison]]:
        """The comparisons by (model, baseline) and metric."""
        pairs: dict[tuple[str, str], dict[str, Comparison]] = {}
        for comparison in self.comparisons:
            pairs.setdefault(comparison.pair, {})[comparison.metric] = comparison
        return pairs

    def of_metric(self, metric: str) -> list[Comparison]:
        """The comparisons in one metric, in the order of the pairs."""
        return [comparison for comparison in self.comparisons if comparison.metric == metric]

    def renamed(self, names: Mapping[str, str]) -> Evaluation:
        """The same with other names of models; without breakdowns."""

        def of(parts: tuple[Any, ...], *roles: str) -> tuple[Any, ...]:
            return tuple(replace(x, **{k: names.get(getattr(x, k), getattr(x, k)) for k in roles}) for x in parts)

        return replace(
            self,
            models={names.get(name, name): each for name, each in self.models.items()},
            comparisons=of(self.comparisons, "model", "baseline"),
            against=of(self.against, "model", "baseline"),
            doubts=of(self.doubts, "model", "other"),
            baseline=names.get(self.baseline, self.baseline),
            sizes=(),
            segments=(),
        )

    def without_curves(self) -> Evaluation:
        """The same without the data of figures and the table's name: for results that contain an evaluation."""
        models = {name: replace(each, calibration_curve=()) for name, each in self.models.items()}
        return replace(self, models=models, options={k: v for k, v in self.options.items() if k != "table"})

    def __str__(self) -> str:
        from bidwise.report.evaluation_sentences import summary  # late: sentences are made when they are shown

        return summary(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def to_json(self) -> str:
        """JSON as in ``result.json``; numbers that are not defined or not finite are ``null``."""
        return json.dumps(result_json(self), indent=2, allow_nan=False)

    def write(self, out: str | Path) -> None:
        """``out/result.json``, ``report.html`` and ``environment.json``: all, or no result."""
        from bidwise.report.build import run_of, runs_page  # late: matplotlib takes a second

        check_folder(out)
        with locked_folder(out) as folder, whole_file(folder / "result.json") as part:
            part.write_text(self.to_json(), encoding="utf-8")
            made = environment()
            page = runs_page([replace(run_of(folder, self), environment=made)])
            write_json(folder / "environment.json", made)
            write_text(folder / "report.html", page)


def check_folder(out: str | Path) -> Path:
    """``out`` as a path, if the two files can be written there; it is not created yet."""
    folder = check_writable(out)
    for name in ("result.json", "report.html"):
        if (folder / name).is_dir():
            raise InputError(
                f"must be a folder to write {name} into, found a folder of that name in {folder}", argument="out"
            )
    path = folder / "result.json"
    kind = read_object(path).get("kind", "evaluation") if path.is_file() else "evaluation"
    if kind != "evaluation":
        raise InputError(
            f"must be a new folder or one of an evaluation, found {folder} with the result of another run ({kind}); "
            "choose another folder",
            argument="out",
        )
    return folder
