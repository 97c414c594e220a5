"""Curves over epochs: lines with their names at their ends, and the page of a single training run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bidwise.report.drawing import COLOURS, SOFT, Look, Panel, Picture, shortened, ticks
from bidwise.report.formatting import NONE, counted, number
from bidwise.report.sections import Run, RunPage, Section, Table, drawings
from bidwise.study.recipe import BASELINE

LABELS = 0.63  # where lines end and their names begin, as a share of the width


def named_lines(
    axes: Axes, lines: Mapping[str, tuple[Sequence[Any], Sequence[float]]], style: Mapping[str, Look]
) -> None:
    """Lines over epochs, each with its name at its end; names are moved apart and lead back to their lines."""
    epochs = [x for xs, _ in lines.values() for x in xs]
    first, last = min(epochs, default=1), max(epochs, default=1)
    wide = last > 15 * first > 0
    late = [y for _, ys in lines.values() for y in ys[len(ys) // 8 :] if math.isfinite(y)] or [0.0]
    room = 0.06 * (max(late) - min(late)) or 0.5
    bottom, top = min(late) - room, max(late) + room
    end = first * (last / first) ** (1 / LABELS) if wide else first + (last - first) / LABELS
    for name, (xs, ys) in lines.items():
        thick = 2.2 if name == BASELINE else 1.5
        axes.plot(xs, ys, color=style[name].colour, linestyle=style[name].dash, linewidth=thick)
        if len(xs) == 1:
            axes.plot(xs, ys, color=style[name].colour, marker=style[name].marker)
    if wide:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        steps = [step * 10**power for power in range(6) for step in (1, 2, 5)]
        axes.xaxis.set_major_locator(FixedLocator([x for x in steps if first <= x <= last]))
    else:
        axes.xaxis.set_major_locator(FixedLocator([x for x in ticks(6).tick_values(first, last) if first <= x <= last]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.set_xlim(first, max(end, first + 1))
    axes.set_ylim(bottom, top)
    axes.spines["bottom"].set_bounds(first, last)
    axes.yaxis.set_major_locator(ticks(6))
    axes.set_xlabel("epoch (log scale)" if wide else "epoch", x=LABELS / 2)
    ends = {name: next((y for y in reversed(ys) if math.isfinite(y)), None) for name, (_, ys) in lines.items()}
    label_ends(axes, ends, style)


def label_ends(axes: Axes, ends: Mapping[str, float | None], style: Mapping[str, Look]) -> None:
    """Names to the right of where lines end, moved apart, each led back to its line."""
    bottom, top = axes.get_ylim()
    heights = {name: (y - bottom) / (top - bottom) for name, y in ends.items() if y is not None}
    for name, (height, place) in apart(heights):
        leader = ([LABELS + 0.004, LABELS + 0.035], [height, place])
        axes.plot(*leader, transform=axes.transAxes, color=style[name].colour, linewidth=0.9)
        axes.text(LABELS + 0.045, place, shortened(name, 20), transform=axes.transAxes, va="center", size=8)


def apart(heights: Mapping[str, float], gap: float = 0.07) -> list[tuple[str, tuple[float, float]]]:
    """Heights in [0, 1], and places near them that are ``gap`` apart, from the top down.

    >>> [(name, round(place, 3)) for name, (_, place) in apart({"a": 0.5, "b": 0.5}, gap=0.1)]
    [('a', 0.55), ('b', 0.45)]
    """
    groups: list[list[str]] = []  # neighbours that touch; each stands around the mean of its members, inside the axes

    def centre(members: list[str]) -> float:
        half = gap * (len(members) - 1) / 2 + 0.02
        mean = sum(min(max(heights[name], 0.0), 1.0) for name in members) / len(members)
        return min(max(mean, half), max(1 - half, 0.5))

    for name in sorted(heights, key=lambda name: -heights[name]):
        groups.append([name])
        while len(groups) > 1:
            above, below = groups[-2:]
            if centre(above) - centre(below) >= gap * (len(above) + len(below)) / 2:
                break
            groups[-2:] = [above + below]
    return [
        (name, (heights[name], centre(members) + gap * ((len(members) - 1) / 2 - k)))
        for members in groups
        for k, name in enumerate(members)
    ]


@dataclass(frozen=True)
class BestEpoch:
    """The best epoch by a metric and its value; nested lists where many models were trained at once."""

    epoch: Any
    value: Any


@dataclass(frozen=True)
class FitResult:
    """What :func:`bidwise.fit` writes."""

    epochs: float
    best: dict[str, BestEpoch] = field(default_factory=dict)
    skipped: int = 0
    kind: ClassVar[str] = "fit"
    format: ClassVar[int] = 1


def skipped_words(batches: int) -> str:
    """How much was left out of a training."""
    many = "1 batch" if batches == 1 else f"{batches:,} batches"
    return f"{many} left out, whose loss or gradient was not finite."


def fit_page(run: Run, key: str) -> RunPage:
    """The curves of a training run and its best epoch."""
    result: FitResult = run.result
    loss, trained = run.config.get("loss", "a loss"), counted(result.epochs, "epoch")
    many = max((np.asarray(best.epoch).size for best in result.best.values()), default=1)
    mean = f" (means of {many:,} models)" if many > 1 else ""
    rows = [
        (name.replace("_", " "), [_digits(mean_of(best.epoch)), _digits(mean_of(best.value))])
        for name, best in result.best.items()
    ]
    headline = f"Trained with {loss} for {trained}; nothing was validated."
    if rows:
        metric, (when, reached) = rows[0]
        headline = f"Trained with {loss}: {metric} on validation is best after {when} of {trained}: {reached}{mean}."
    if result.skipped:
        headline += f" {skipped_words(result.skipped)}"
    names = [name for name in (run.metrics[0] if run.metrics else {}) if name != "epoch"]
    history = [(f"{e['epoch']}", [number(mean_of(e.get(name)), 5) for name in names]) for e in run.metrics]
    headings = [(name.replace("_", " "), "") for name in names]
    section = Section(
        "Over the epochs",
        f"A ring marks the best epoch{mean}." if rows else "",
        figures=drawings(key, fit_curves(run.metrics, result.best)),
        tables=[
            Table(f"Best epoch by metric{mean}", "Metric", [("Epoch", ""), ("Value", "")], rows),
            *([Table("Every evaluated epoch", "Epoch", headings, history, folded=True)] if names else []),
        ],
    )
    return RunPage(run.name, "A training run", headline, sections=[section])


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


def _digits(value: float | None) -> str:
    return NONE if value is None else f"{value:.5g}"


def mean_of(value: Any) -> float | None:
    """A number, or the mean of the numbers in nested lists: runs of many models have one for each.

    >>> mean_of([[1.0, 3.0], [None, 2.0]]), mean_of(None), mean_of(4)
    (2.0, None, 4.0)
    """
    if isinstance(value, list):
        inside = [x for x in map(mean_of, value) if x is not None]
        return sum(inside) / len(inside) if inside else None
    return None if value is None else float(value)
