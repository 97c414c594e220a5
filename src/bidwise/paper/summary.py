"""The findings of an experiment as a few lines of text, for the command line."""

from __future__ import annotations

from typing import Any

from bidwise.paper.synthetic_sentences import clearly, points

PROTOCOLS = {
    "converged": "converged: {epochs} epochs, λ = 3, the paper's protocol",
    "converged_sums": "converged, with the literal sums that the paper prints",
    "tuned": "tuned: every loss at its own best epoch and λ",
}


def synthetic_summary(result: dict[str, Any]) -> str:
    """A table for every protocol and the verdict; differences to log loss are in points of the optimal welfare."""
    lines = []
    for name, protocol in result["protocols"].items():
        lines += [PROTOCOLS[name].format(**result["config"]), ""]
        heads = ["loss", "welfare", "of optimum", "− log loss [95 %]", "calibrated", "AUC", "log loss"]
        rows = [
            [
                f"{_mark(loss, found)} {loss}",
                f"{found['welfare']:.4f}",
                f"{100 * found['ratio']:.2f} %",
                "" if loss == "log_loss" else points(found),
                "" if loss == "log_loss" else f"{100 * found['calibrated']['difference']:+.2f}",
                f"{found['auc']:.4f}",
                f"{found['log_loss']:.4f}",
            ]
            for loss, found in protocol["losses"].items()
        ]
        lines += [*aligned(heads, rows), ""]
    lines += [
        "▲ above log loss, ▼ below it, by an interval that leaves out 0. Differences are points, hundredths of the"
    ]
    lines += ["optimal welfare; calibrated: the same after Platt scaling of all models on validation clicks.", ""]
    return "\n".join([*lines, *result["verdict"]])


def regimes_summary(result: dict[str, Any]) -> str:
    """In how many kinds of market each loss beats a tuned log loss, and the verdict."""
    rows = [
        [f"  {loss}", *(str(found[key]) for key in ("better", "worse", "unclear", "cells"))]
        for loss, found in result["summary"].items()
    ]
    table = aligned(["loss", "better", "worse", "unclear", "cells"], rows)
    return "\n".join([*table, "", result["verdict"][0]])


def _mark(loss: str, found: dict[str, Any]) -> str:
    return " " if loss == "log_loss" else {1: "▲", 0: " ", -1: "▼"}[clearly(found)]


def aligned(heads: list[str], rows: list[list[str]]) -> list[str]:
    """Columns as wide as they need to be, the first to the left."""
    heads = [f"  {heads[0]}", *heads[1:]]
    wide = [max(len(row[k]) for row in [heads, *rows]) for k in range(len(heads))]
    return [
        "  ".join([row[0].ljust(wide[0]), *(cell.rjust(w) for cell, w in zip(row[1:], wide[1:], strict=True))]).rstrip()
        for row in [heads, *rows]
    ]
