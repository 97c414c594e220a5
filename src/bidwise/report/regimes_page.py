"""Maps of regimes: the difference to log loss over two properties of the market, one map for each loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from bidwise.evaluation.estimate import Estimate, Outcome
from bidwise.report.drawing import COLOURS, INK, NARROW, SOFT, UNCLEAR, Panel, Picture
from bidwise.report.formatting import NONE
from bidwise.report.loss_styles import in_order, losses_section
from bidwise.report.regimes_sentences import AXES, TITLES, headline, notes
from bidwise.report.sections import Cell, Run, RunPage, Section, Table, drawings, setting
from bidwise.study.compare import points
from bidwise.study.synthetic_results import CellGain, MapResult, RegimesResult

BETTER, WORSE = COLOURS[0], COLOURS[1]
DEEPEST = 0.55  # opacity of the strongest colour: words on it stay readable, on light and dark
CAPS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100)  # per cent of the optimum at which the colour is strongest
SIGNS = {Outcome.BETTER: "▲", Outcome.WORSE: "▼", Outcome.SAME: "="}
WAYS: dict[str, Callable[[CellGain], Estimate]] = {  # the same differences measured in other ways
    "difference": lambda cell: cell,
    "difference after both models are calibrated": lambda cell: cell.calibrated,
    "difference if epoch and λ are selected by clicks, not by true CTR": lambda cell: cell.by_clicks,
}


def regimes_page(run: Run, key: str) -> RunPage:
    """Where which loss is better: a summary, a map for each loss and pair of properties, and all cells in tables."""
    result: RegimesResult = run.result
    lead = "In how many worlds each loss reaches more welfare than log loss, less, or cannot be distinguished from it."
    sections = [Section("Summary", lead, tables=[_summary(result)])]
    for plot, picture in zip(result.maps, regime_pictures(run), strict=True):
        *maps, scale = drawings(key, picture)
        across, upwards = (AXES.get(axis.name, axis.name) for axis in (plot.x, plot.y))
        sections.append(
            Section(
                TITLES.get(plot.name, plot.name),
                f"Across: {across}. Upwards: {upwards}. Each cell is the difference to log loss in % of the optimal "
                "welfare, above its 95 % interval. ▲ and blue: better; ▼ and orange: worse; ? and no colour: the "
                "interval contains 0.",
                scale=scale,
                figures=maps,
                tables=[_cells(plot, words, way) for words, way in WAYS.items()],
            )
        )
    losses = in_order(dict.fromkeys(loss for plot in result.maps for loss in plot.losses))
    sections += [
        Section(
            "How it was done",
            paragraphs=[
                "In every cell each loss trains models on the same ads, from the same initial weights, and they run "
                "the same test auctions. Welfare is bid × true CTR of the ad shown."
            ],
            terms=[(name.replace("_", " "), setting(value)) for name, value in asdict(result.config).items()],
        ),
        losses_section(losses),
        Section("Notes", points=notes(result)),
    ]
    facts = [
        (f"{len(losses)}", "losses against log loss"),
        (f"{max(counts.cells for counts in result.summary.values())}", "worlds, or fewer, for each"),
        (f"{result.config.repeats:,}", "repeats in each world"),
    ]
    return RunPage(run.name, "Where which loss is better", headline(result), facts=facts, sections=sections)


def regimes_summary(result: RegimesResult) -> str:
    """In how many kinds of market each loss beats a tuned log loss, and the headline, for the terminal."""
    return "\n".join([*(f"  {line}" for line in _summary(result).text()), "", headline(result)])


def _summary(result: RegimesResult) -> Table:
    rows = []
    for loss in in_order(result.summary):
        counts, after = result.summary[loss], result.after_holm(loss)
        cells = [
            Cell(f"{count:,}", kind if count else "")
            for kind, count in [*vars(counts).items(), ("better", after.better), ("worse", after.worse)]
        ]
        rows.append((loss, [*cells, Cell(f"{counts.cells:,}")]))
    headings = [
        ("▲ Better", "Worlds in which the interval of the difference to log loss is above 0."),
        ("▼ Worse", "Worlds in which it is below 0."),
        ("? Unclear", "Worlds in which it contains 0."),
        ("▲ Holm", "Better after Holm's correction for the number of worlds."),
        ("▼ Holm", "Worse after it."),
        ("Worlds", "All of them."),
    ]
    return Table("Worlds by outcome", "Loss", headings, rows)


def _cells(plot: MapResult, what: str, way: Callable[[CellGain], Estimate]) -> Table:
    rows = []
    for loss in in_order(plot.losses):
        for height, row in zip(plot.y.levels, plot.losses[loss], strict=True):
            cells = [_cell_text(way(cell)) for cell in row]
            rows.append((f"{loss}, {plot.y.name} {level(height)}", cells))
    headings = [(f"{plot.x.name} {level(each)}", "") for each in plot.x.levels]
    title = TITLES.get(plot.name, plot.name)
    return Table(f"{title}: {what}, in % of the optimal welfare", "Loss", headings, rows, folded=True)


def _cell_text(gain: Estimate) -> Cell:
    if not math.isfinite(gain.difference):
        return Cell(NONE)
    return Cell(f"{SIGNS.get(gain.outcome, '?')} {points(gain)}", gain.outcome.value)


def regime_pictures(run: Run) -> list[Picture]:
    """One picture for each pair of properties, with a panel for each loss and the scale of colours they share."""
    result: RegimesResult = run.result
    clear = sorted(abs(100 * cell.difference) for cell in _all_cells(result) if cell.outcome.clear)
    reach = clear[int(0.9 * (len(clear) - 1))] if clear else 1.0  # nine in ten of the clear cells are within
    cap = next((cap for cap in CAPS if cap >= reach), CAPS[-1])
    return [
        Picture(f"regimes_{plot.name}", (*(_map(name, plot, cap) for name in in_order(plot.losses)), _scale(cap)))
        for plot in result.maps
    ]


def _all_cells(result: RegimesResult) -> Iterator[CellGain]:
    return (cell for plot in result.maps for rows in plot.losses.values() for row in rows for cell in row)


def _map(name: str, plot: MapResult, cap: float) -> Panel:
    columns, rows = plot.x.levels, plot.y.levels
    cells = plot.losses[name]
    outcomes = [cell.outcome for row in cells for cell in row]
    better, worse = outcomes.count(Outcome.BETTER), outcomes.count(Outcome.WORSE)
    across, upwards = (AXES.get(axis.name, axis.name) for axis in (plot.x, plot.y))
    about = (
        f"{name}: difference to log loss over {across} (across) and {upwards} (upwards). "
        f"Better in {better} cells, worse in {worse}, unclear in {len(outcomes) - better - worse}."
    )
    big = 9.5 if len(columns) <= 4 else 8.0
    small = min(7.8, 30 / max(len(columns), 1))

    def paint(axes: Axes) -> None:
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                _cell(axes, x, y, cell, cap, big, small)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(-0.5, len(rows) - 0.5)
        axes.set_xticks(range(len(columns)), [level(each).replace(" ", "\n") for each in columns])
        axes.set_yticks(range(len(rows)), [level(each).replace(" ", "\n") for each in rows])
        axes.set_xlabel(plot.x.name)
        axes.set_ylabel(plot.y.name)
        _bare(axes)

    return Panel(name, about, 0.7 + 0.56 * len(rows), paint, NARROW)


def _cell(axes: Axes, x: int, y: int, cell: CellGain, cap: float, big: float, small: float) -> None:
    """Colour, number, interval and sign; a cell without a clear sign has no colour, a dotted edge and a question."""
    clear, corner, side = cell.outcome.clear, (x - 0.48, y - 0.48), 0.96
    if clear:
        depth = DEEPEST * min(abs(100 * cell.difference) / cap, 1)
        fill = BETTER if cell.outcome is Outcome.BETTER else WORSE
        axes.add_patch(Rectangle(corner, side, side, facecolor=fill, edgecolor="none", alpha=max(depth, 0.06)))
    else:
        axes.add_patch(Rectangle(corner, side, side, facecolor="none", edgecolor=UNCLEAR, linewidth=0.7, linestyle=":"))
    if not math.isfinite(cell.difference):
        axes.text(x, y, NONE, ha="center", va="center", color=SOFT)
        return
    ink = INK if clear else SOFT
    centre, _, interval = points(cell).partition(" ")
    words = f"{centre} {SIGNS.get(cell.outcome, '?')}"
    axes.text(x, y + 0.16, words, ha="center", va="center", size=big, color=ink)
    axes.text(x, y - 0.2, interval.strip("[]"), ha="center", va="center", size=small, color=ink)


def _scale(cap: float) -> Panel:
    steps = [k / 4 for k in range(-4, 5)]

    def paint(axes: Axes) -> None:
        for k, step in enumerate(steps):
            if step:
                colour = BETTER if step > 0 else WORSE
                axes.add_patch(Rectangle((k, 0), 1, 1, facecolor=colour, edgecolor="none", alpha=DEEPEST * abs(step)))
            else:
                axes.add_patch(
                    Rectangle((k, 0.02), 1, 0.96, facecolor="none", edgecolor=UNCLEAR, linewidth=0.7, linestyle=":")
                )
                axes.text(k + 0.5, 0.5, "?", ha="center", va="center", color=SOFT)
        axes.set_xlim(0, len(steps))
        axes.set_ylim(0, 1)
        words = [f"−{cap:g} or less", f"−{cap / 2:g}", "unclear", f"+{cap / 2:g}", f"+{cap:g} or more"]
        axes.set_xticks([0.9, 2.5, 4.5, 6.5, 8.1], words)
        axes.yaxis.set_major_locator(NullLocator())
        axes.set_xlabel("difference to log loss, % of the optimal welfare")
        _bare(axes)

    about = f"Scale of colours: orange for worse, blue for better, strongest from {cap:g} % of the optimal welfare on."
    return Panel("Scale of all maps", about, 0.85, paint, NARROW)


def _bare(axes: Axes) -> None:
    axes.grid(False)
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def level(value: float | str) -> str:
    """A level of an axis as words."""
    return value if isinstance(value, str) else f"{value:g}".replace("-", "−")
