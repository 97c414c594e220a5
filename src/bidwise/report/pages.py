"""Maps of regimes, evaluations and single training runs as a page tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bidwise.report.build import setting
from bidwise.report.curves import fit_curves, mean_of
from bidwise.report.formatting import NONE, number, points
from bidwise.report.loss_styles import in_order, loss_called
from bidwise.report.regime_figures import level, outcome, regime_maps
from bidwise.report.sections import Cell, Run, RunPage, Section, Table, drawings

Result = Mapping[str, Any]
SIGNS = {"better": "▲ ", "worse": "▼ ", "unclear": "? ", "none": ""}


def regimes_story(run: Run, key: str) -> RunPage:
    """Where which loss is better: a summary, a map for each loss and pair of properties, and all cells in tables."""
    name, result = run.name, run.result
    sections = [_summary(result)] if result["summary"] else []
    for plot, picture in zip(result["maps"], regime_maps(result), strict=True):
        across, upwards = plot["x"], plot["y"]
        *maps, scale = drawings(key, picture)
        sections.append(
            Section(
                plot["title"],
                f"Across: {across['about']}. Upwards: {upwards['about']}. Each cell is the difference to log loss in % "
                "of the optimal welfare, over its 95 % interval. ▲ and blue: better; ▼ and orange: worse; "
                "? and no colour: the interval holds 0.",
                scale=scale,
                figures=maps,
                tables=[_cells(plot, "difference", None), *_twins(plot)],
            )
        )
    losses = in_order(dict.fromkeys(loss for plot in result["maps"] for loss in plot["losses"]))
    settings = [(k.replace("_", " "), setting(v)) for k, v in result["config"].items() if v is not None]
    sections.append(
        Section(
            "How it was done",
            paragraphs=[
                "In every cell each loss trains models on the same ads, from the same initial weights, and they run "
                "the same test auctions. Welfare is bid × true CTR of the ad shown."
            ],
            terms=settings,
        )
    )
    sections.append(Section("The losses", terms=[(loss, loss_called(loss).about) for loss in losses]))
    sections += [Section("Notes", points=result["notes"])] if result["notes"] else []
    headline = result["verdict"][0] if result["verdict"] else "No verdict was written for this run."
    told = [("", sentence) for sentence in result["verdict"][1:]]
    most = max((counts["cells"] for counts in result["summary"].values()), default=0)
    facts = [(f"{len(losses)}", "losses against log loss"), (f"{most}", "worlds, or fewer, for each")]
    repeats = result["config"].get("repeats")
    facts += [(f"{repeats:,}", "repeats in each world")] if repeats else []
    return RunPage(name, "Where which loss is better", headline, told, facts, sections)


def _summary(result: Result) -> Section:
    rows = []
    for loss in in_order(result["summary"]):
        counts = result["summary"][loss]
        cells = [Cell(f"{counts[kind]:,}", kind if counts[kind] else "") for kind in ("better", "worse", "unclear")]
        rows.append((loss, [*cells, Cell(f"{counts['cells']:,}")]))
    headings = [
        ("▲ Better", "Worlds in which the interval of the difference to log loss is above 0."),
        ("▼ Worse", "Worlds in which it is below 0."),
        ("? Unclear", "Worlds in which it holds 0."),
        ("Worlds", "All of them."),
    ]
    lead = "In how many worlds each loss reaches more welfare than log loss, less, or cannot be told from it."
    return Section("Summary", lead, tables=[Table("Worlds by outcome", "Loss", headings, rows)])


def _cells(plot: Result, what: str, inner: str | None) -> Table:
    rows = []
    for loss in in_order(plot["losses"]):
        for height, row in zip(plot["y"]["levels"], plot["losses"][loss], strict=True):
            told = [cell if inner is None else cell[inner] for cell in row]
            kinds = [outcome(cell) for cell in told]
            cells = [
                Cell(SIGNS[kind] + points(cell), "" if kind == "none" else kind)
                for kind, cell in zip(kinds, told, strict=True)
            ]
            rows.append((f"{loss}, {plot['y']['name'].replace('_', ' ')} {level(height)}", cells))
    across = plot["x"]["name"].replace("_", " ")
    headings = [(f"{across} {level(each)}", "") for each in plot["x"]["levels"]]
    return Table(f"{plot['title']}: {what}, in % of the optimal welfare", "Loss", headings, rows, folded=True)


def _twins(plot: Result) -> list[Table]:
    """The same differences measured in other ways, where a run has them."""
    ways = {
        "calibrated": "difference after both models are calibrated",
        "by_clicks": "difference if epoch and λ are chosen by clicks, not by true CTR",
    }
    every = [cell for rows in plot["losses"].values() for row in rows for cell in row]
    return [_cells(plot, what, way) for way, what in ways.items() if every and all(cell.get(way) for cell in every)]


def fit_story(run: Run, key: str) -> RunPage:
    """The curves of a training run and its best epoch."""
    name, result, config, metrics = run.name, run.result, run.config, run.metrics
    best: Mapping[str, Any] = result.get("best") or {}
    loss = str(config.get("loss", "a loss"))
    many = next((len(flat) for found in best.values() if len(flat := flattened(found.get("epoch"))) > 1), 1)
    mean = f" (means of {many:,} models)" if many > 1 else ""
    headline = f"Trained with {loss} for {result.get('epochs', len(metrics))} epochs; nothing was validated."
    rows = []
    for at, (metric, found) in enumerate(best.items()):
        epoch, value = mean_of(found.get("epoch")), mean_of(found.get("value"))
        when = NONE if epoch is None else f"{epoch:g}" if epoch == int(epoch) else f"{epoch:.1f}"
        reached = NONE if value is None else f"{value:.5g}"
        rows.append((metric.replace("_", " "), [Cell(when), Cell(reached)]))
        if at == 0:
            headline = (
                f"Trained with {loss}: {metric.replace('_', ' ')} on validation is best after {when} of "
                f"{result.get('epochs', len(metrics))} epochs: {reached}{mean}."
            )
    table = Table(f"Best epoch by metric{mean}", "Metric", [("Epoch", ""), ("Value", "")], rows)
    numbers = _history(metrics)
    return RunPage(
        name,
        "A training run",
        headline,
        sections=[
            Section(
                "Over the epochs",
                f"A ring marks the best epoch{mean}." if rows else "",
                figures=drawings(key, fit_curves(metrics, best)),
                tables=[*([table] if rows else []), *numbers],
            )
        ],
    )


def _history(metrics: Sequence[Mapping[str, Any]]) -> list[Table]:
    names = [key for key in (metrics[0] if metrics else {}) if key != "epoch"]
    if not names:
        return []
    rows = [(f"{entry['epoch']}", [Cell(number(mean_of(entry.get(key)), 5)) for key in names]) for entry in metrics]
    return [Table("Every evaluated epoch", "Epoch", [(key.replace("_", " "), "") for key in names], rows, folded=True)]


def flattened(value: Any) -> list[Any]:
    """The numbers of nested lists.

    >>> flattened([[1, 2], [3]]), flattened(4)
    ([1, 2, 3], [4])
    """
    return [x for part in value for x in flattened(part)] if isinstance(value, list) else [value]
