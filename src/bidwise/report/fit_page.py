"""A single training run as a page shows it: its curves and its best epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from bidwise.report.drawing import COLOURS, SOFT, Panel, Picture, ticks
from bidwise.report.formatting import NONE, counted, number
from bidwise.report.sections import Cell, Run, RunPage, Section, Table, drawings


@dataclass(frozen=True)
class BestEpoch:
    """The best epoch by a metric and its value; nested lists where many models were trained at once."""

    epoch: Any
    value: Any

    @property
    def models(self) -> int:
        return np.asarray(self.epoch).size


@dataclass(frozen=True)
class FitResult:
    """What :func:`bidwise.fit` writes."""

    epochs: float
    best: dict[str, BestEpoch] = field(default_factory=dict)
    kind: ClassVar[str] = "fit"
    format: ClassVar[int] = 1


def fit_page(run: Run, key: str) -> RunPage:
    """The curves of a training run and its best epoch."""
    result: FitResult = run.result
    loss = str(run.config.get("loss", "a loss"))
    many = max((best.models for best in result.best.values()), default=1)
    mean = f" (means of {many:,} models)" if many > 1 else ""
    rows = []
    for metric, best in result.best.items():
        epoch, value = mean_of(best.epoch), mean_of(best.value)
        when = NONE if epoch is None else f"{epoch:g}" if epoch == int(epoch) else f"{epoch:.1f}"
        rows.append((metric.replace("_", " "), [Cell(when), Cell(NONE if value is None else f"{value:.5g}")]))
    if rows:
        metric, (when_best, reached) = rows[0]
        headline = f"Trained with {loss}: {metric} on validation is best after {when_best.text} of "
        headline += f"{counted(result.epochs, 'epoch')}: {reached.text}{mean}."
    else:
        headline = f"Trained with {loss} for {counted(result.epochs, 'epoch')}; nothing was validated."
    table = Table(f"Best epoch by metric{mean}", "Metric", [("Epoch", ""), ("Value", "")], rows)
    section = Section(
        "Over the epochs",
        f"A ring marks the best epoch{mean}." if rows else "",
        figures=drawings(key, fit_curves(run.metrics, result.best)),
        tables=[table, *_history(run.metrics)],
    )
    return RunPage(run.name, "A training run", headline, sections=[section])


def _history(metrics: Sequence[Mapping[str, Any]]) -> list[Table]:
    names = [key for key in (metrics[0] if metrics else {}) if key != "epoch"]
    if not names:
        return []
    rows = [(f"{entry['epoch']}", [Cell(number(mean_of(entry.get(key)), 5)) for key in names]) for entry in metrics]
    return [Table("Every evaluated epoch", "Epoch", [(key.replace("_", " "), "") for key in names], rows, folded=True)]


def fit_pictures(run: Run) -> list[Picture]:
    """The curves as files."""
    return [fit_curves(run.metrics, run.result.best)]


def fit_curves(metrics: Sequence[Mapping[str, Any]], best: Mapping[str, BestEpoch]) -> Picture:
    """The loss and every metric of a training run over its epochs; a ring where the metric is best."""
    names = [name for name in (metrics[0] if metrics else {}) if name != "epoch"]
    epochs = [entry["epoch"] for entry in metrics]
    panels = [_panel(name, epochs, [mean_of(entry.get(name)) for entry in metrics], best.get(name)) for name in names]
    return Picture("fit", tuple(panels))


def _panel(name: str, epochs: list[float], values: list[float | None], best: BestEpoch | None) -> Panel:
    words = name.replace("_", " ")
    about = f"{words} over {counted(len(epochs), 'evaluated epoch')}"
    when, value = (None, None) if best is None else (mean_of(best.epoch), mean_of(best.value))
    if when is not None and value is not None:
        about += f", best after epoch {when:g}: {value:.5g}"

    def paint(axes: Axes) -> None:
        heights = [math.nan if y is None else y for y in values]
        axes.plot(epochs, heights, color=COLOURS[0], marker="o" if len(epochs) < 3 else "")
        if when is not None and value is not None:
            axes.plot([when], [value], "o", color=COLOURS[1], markerfacecolor="white", markersize=7)
        axes.xaxis.set_major_locator(ticks(6))
        axes.yaxis.set_major_locator(ticks(6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.5g}".replace("-", "−")))
        axes.set_xlabel("epoch")
        axes.set_ylabel(words, color=SOFT)

    return Panel(f"{words.capitalize()} over epochs", about + ".", 2.7, paint)


def mean_of(value: Any) -> float | None:
    """A number, or the mean of the numbers in nested lists: runs of many models have one for each.

    >>> mean_of([[1.0, 3.0], [None, 2.0]]), mean_of(None), mean_of(4)
    (2.0, None, 4.0)
    """
    if isinstance(value, list):
        inside = [x for x in map(mean_of, value) if x is not None]
        return sum(inside) / len(inside) if inside else None
    return None if value is None else float(value)
