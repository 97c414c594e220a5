"""Tables of the Criteo experiment with the paper's numbers beside ours: welfare and losses, and run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidwise.report.criteo.criteo_tables import OF_LOG_LOSS
from bidwise.report.criteo.findings import (
    PAPERS,
    finding,
    give_or_take,
    known,
    model_called,
    paper_gain,
    percentage,
    protocols_of,
    reference,
    told,
)
from bidwise.report.formatting import NONE, decimals, number
from bidwise.report.loss_styles import in_order
from bidwise.report.sections import Cell, Table

Result = Mapping[str, Any]
AGREEMENT = {
    "better": ("better", "✓ the same sign"),
    "worse": ("worse", "✗ the other sign"),
    "unclear": ("unclear", "≈ cannot be told"),
    "none": ("", NONE),
}


def paper_tables(result: Result) -> list[Table]:
    """The paper's numbers beside ours, for models and losses that it has; ours by its own protocol if that was run."""
    welfare: list[tuple[str, list[Cell]]] = []
    others: list[tuple[str, list[Cell]]] = []
    protocol = _nearest(result)
    for name, paper in (result.get("paper") or {}).items():
        losses = (protocols_of(result["models"][name]) if name in result["models"] else {}).get(protocol) or {}
        for loss in ("log_loss", *PAPERS):
            if loss in losses and loss in paper:
                title = f"{model_called(name)}, {loss}"
                welfare.append((title, [*_pair(paper[loss], losses[loss], "welfare"), *_gains(loss, paper, losses)]))
                both = (_pair(paper[loss], losses[loss], key) for key in ("auc_loss", "log_loss"))
                others.append((title, [cell for pair in both for cell in pair]))
    if not welfare:
        return []
    headings = [
        ("Welfare, paper", "Bid × click of the winner, mean over auctions and ten repeats, ± standard error."),
        ("Welfare, here", "The same of this run."),
        ("Gain, paper", "Difference to its log loss in %, ± standard error as if both means were independent."),
        ("Gain, here", OF_LOG_LOSS + " With the wider of its 95 % intervals, over repeats and over auctions."),
        ("Signs", "Whether the difference here is measured, by both intervals, and has the paper’s sign."),
    ]
    further = [
        ("AUC loss, paper", "1 − AUC, ± standard error; lower is better."),
        ("AUC loss, here", "The same of this run."),
        ("Log loss, paper", "± standard error; lower is better."),
        ("Log loss, here", "The same of this run."),
    ]
    return [
        Table(f"Welfare (our protocol: {protocol})", "Model and loss", headings, welfare, explained=True),
        Table(f"AUC loss and log loss (our protocol: {protocol})", "Model and loss", further, others, explained=True),
    ]


def _nearest(result: Result) -> str:
    """The protocol of the paper, or another if that was not run."""
    names = [name for model in result["models"].values() for name in protocols_of(model)]
    return "converged" if "converged" in names else next(iter(names), "")


def _pair(paper: Result, here: Result, key: str) -> list[Cell]:
    both = (paper[key], (here[key], here.get(f"{key}_error")))
    return [Cell(give_or_take(mean, error, 4)) for mean, error in both]


def _gains(loss: str, paper: Result, losses: Mapping[str, Result]) -> list[Cell]:
    gain, difference = paper_gain(paper, loss), losses[loss]["difference"]
    kind, words = AGREEMENT[finding(difference)]
    return [
        Cell("reference" if gain is None else f"{percentage(gain[0])} ± {100 * gain[1]:.2f}"),
        Cell("reference" if loss == "log_loss" else told(difference, reference(losses, difference))),
        Cell(words, kind),
    ]


def runtime_table(result: Result) -> list[Table]:
    """Seconds of an epoch under each loss, beside the paper's."""
    rows = []
    for name, model in result["models"].items():
        paper = (result.get("paper") or {}).get(name) or {}
        times = {loss: tuple(found["seconds"]) for loss, found in paper.items() if found.get("seconds")}
        for loss in in_order(model.get("runtime") or {}):
            found = model["runtime"][loss]
            places = min(decimals([found.get("seconds")], 4), 3)
            there = times.get(loss)
            relative = there[0] / times["log_loss"][0] - 1 if there and "log_loss" in times else None
            cells = [
                give_or_take(found.get("seconds"), found.get("sd"), places),
                "reference" if loss == "log_loss" else _longer(found.get("relative"), found.get("relative_sd")),
                f"{found['segments']:,}" if found.get("segments") else NONE,
                NONE if there is None else f"{there[0]:,.0f} ± {there[1]:.0f}",
                NONE if relative is None else "reference" if loss == "log_loss" else f"{100 * relative:+.1f} %",
            ]
            rows.append((f"{model_called(name)}, {loss}", [Cell(text) for text in cells]))
    headings = [
        ("Seconds per epoch", "Mean ± standard deviation over segments, scaled to an epoch of this run’s ads."),
        ("Against log loss", "Mean of the ratios to the segment of the log loss in the same round, ± their deviation."),
        ("Segments", "How often a stretch of training steps was timed; the losses take turns."),
        ("Seconds, paper", "On the whole data and the paper’s machine, mean ± standard deviation of 15 epochs."),
        ("Against log loss, paper", "Ratio of the paper’s means."),
    ]
    return [Table("Time of an epoch", "Model and loss", headings, rows, explained=True)] if rows else []


def _longer(relative: float | None, deviation: float | None) -> str:
    relative, deviation = known(relative), known(deviation)
    if relative is None:
        return NONE
    words = number(100 * (relative - 1), 1, sign=True)
    return f"{words} %" if deviation is None else f"{words} % ± {100 * deviation:.1f}"
