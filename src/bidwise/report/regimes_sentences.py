"""What the maps of regimes say in words: the headline, notes, and what their axes mean."""

from __future__ import annotations

from bidwise.report.formatting import grid_ends
from bidwise.study.synthetic_results import RegimesResult

TITLES = {
    "misspecification_correlation": "How wrong the model must be, and whether bids follow clicks",
    "spread_size": "How far bids spread, and how many ads compete",
    "teacher": "How strong the teacher is",
}
AXES = {
    "misspecification": "share of the logit’s variance that the student cannot represent",
    "correlation": "correlation between the weights of bid and CTR",
    "auction size": "ads in an auction",
    "bid spread": "standard deviation of log bids",
    "teacher": "who gives the soft labels",
}


def headline(result: RegimesResult) -> str:
    """Which loss is safe, and which gains in most kinds of market."""
    summary = result.summary
    shares = {loss: counts.better / counts.cells for loss, counts in summary.items()}
    safest = min(summary, key=lambda loss: (summary[loss].worse, -shares[loss]))
    best = max(summary, key=lambda loss: (shares[loss], -summary[loss].worse))
    if not shares[best]:
        return "No loss is measurably above a tuned log loss in any kind of market."
    safe, most = summary[safest], summary[best]
    if safe.worse or not safe.better:
        return "Every loss that beats a tuned log loss in some kinds of market is measurably worse in others."
    words = f"{safest} beats a tuned log loss in {safe.better} of {safe.cells} kinds of market"
    words += f" ({result.after_holm(safest).better} after Holm's correction for their number)"
    words += " and is measurably worse in none"
    if best != safest:
        words += f"; {best} beats it in {most.better} of {most.cells} ({result.after_holm(best).better}) and is worse "
        words += f"in {most.worse}"
    return f"{words}."


def notes(result: RegimesResult) -> list[str]:
    """What a reader should know before quoting a number."""
    config = result.config
    cells = sum(counts.cells for counts in result.summary.values())
    lams: dict[str, tuple[float, ...]] = {}
    for loss in result.summary:
        lams[loss] = sum((cell.lam or () for cell in result.cells(loss)), ())
    return [
        f"{config.repeats} repeats a cell, each a market of its own; every loss has its own epoch (of {config.epochs}) "
        "and λ in each repeat, selected by expected welfare on validation auctions of the cell.",
        "The student is a logistic regression; squares of features, which it cannot represent, make up the share of "
        "the logit's variance on the axis. Unless stated otherwise bids have spread 0.8 and correlation 0.5, auctions "
        "50 ads, the share is 0.77, clicks have a rate near 0.24, and the teacher is the tuned log loss student.",
        f"Of {cells} intervals of 95 % about {round(cells / 40)} lie above 0, and as many below, by chance alone, and "
        f"the best of {len(result.summary)} losses was named after looking. Cells share their random numbers, so their "
        "errors go together.",
        *grid_ends(lams, config.lams),
    ]
