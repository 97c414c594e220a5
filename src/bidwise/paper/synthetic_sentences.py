"""Findings in words: what the paper claims beside what we measured, and where a loss pays."""

from __future__ import annotations

from typing import Any

from bidwise.evaluation.intervals import repeat_interval
from bidwise.losses.named import needs_teacher

Losses = dict[str, dict[str, Any]]

PROPOSED = ("log", "log_teacher", "hinge_plus_teacher")  # by the paper
WEIGHTED = ("bid_weighted", "sqrt_bid_weighted")


def points(gain: dict[str, Any]) -> str:
    """A difference in points, hundredths of the optimal welfare, with its interval.

    >>> points({"difference": 0.0132, "ci_low": 0.01, "ci_high": 0.0164})
    '+1.32 [+1.00, +1.64]'
    """
    bounds = (gain["ci_low"], gain["ci_high"])
    words = ", ".join("?" if bound is None or bound != bound else f"{100 * bound:+.2f}" for bound in bounds)
    return f"{100 * gain['difference']:+.2f} [{words}]"


def clearly(gain: dict[str, Any]) -> int:
    """1 for a gain whose interval is above 0, -1 below, 0 where it holds 0 or there is none."""
    low, high = gain["ci_low"], gain["ci_high"]
    return 0 if low is None or high is None else int(low > 0) - int(high < 0)


def claims(result: dict[str, Any]) -> list[dict[str, str]]:
    """The paper's claims about its synthetic experiment; for the paper's world alone."""
    if result["config"]["reading"] not in ("plotted", "printed"):
        return []
    if not {*PROPOSED, *WEIGHTED, "ranknet"} <= set(result["config"]["losses"]):
        return []
    found = []
    protocols = result["protocols"]
    if "converged" in protocols:
        losses = protocols["converged"]["losses"]
        found.append(_claim("All three proposed losses beat log loss.", "Figure 2", losses, PROPOSED, 1))
        found.append(_claim("Weighting the log loss by bids does worse.", "Figure 2", losses, WEIGHTED, -1))
        found.append(_teacher(losses))
        least = min(("log", "log_teacher"), key=lambda loss: losses[loss]["difference"])
        modest = _paired(losses, "hinge_plus_teacher", least)
        found.append(
            _judged(
                "The hinge loss gains less than the logistic ones.",
                "Section 5.1, put down to its kink",
                f"hinge_plus_teacher − {least}: {points(modest)}",
                -clearly(modest),
            )
        )
        if "converged_sums" in protocols:
            sums = protocols["converged_sums"]["losses"]
            told = "the appendix prints sums over pairs and ads"
            found.append(_claim("All three beat log loss with sums instead of means.", told, sums, PROPOSED, 1))
        found.append(
            _claim("Plain learning to rank is no substitute.", "Proposition 3.5 warns of it", losses, ("ranknet",), -1)
        )
        calibrated = {loss: {**losses[loss], **losses[loss]["calibrated"]} for loss in losses}
        found.append(
            _claim("The gain remains once all models are calibrated.", "not asked", calibrated, PROPOSED[:2], 1)
        )
    if "tuned" in protocols:
        losses = protocols["tuned"]["losses"]
        told = "hoped for: tuning “may” make the advantages “more pronounced”"
        found.append(_claim("The gain remains once every loss is tuned.", told, losses, PROPOSED, 1))
    return found


def _claim(claim: str, paper: str, losses: Losses, names: tuple[str, ...], sign: int) -> dict[str, str]:
    """Whether all of these losses differ from log loss in the direction that is claimed."""
    ours = "; ".join(f"{name} {points(losses[name])}" for name in names)
    signs = [sign * clearly(losses[name]) for name in names]
    holds = signs.count(1)
    if 0 < holds < len(names):
        words = f"{holds} of {len(names)}"
        return {"claim": claim, "paper": paper, "ours": ours, "verdict": "partly", "words": words}
    if holds:
        return _judged(claim, paper, ours, 1)
    return _judged(claim, paper, ours, -1 if -1 in signs else 0)


def _judged(claim: str, paper: str, ours: str, sign: int) -> dict[str, str]:
    verdict = {1: "holds", 0: "unclear", -1: "does not hold"}[sign]
    words = ("no interval" if "?" in ours else "an interval holds 0") if sign == 0 else ""
    return {"claim": claim, "paper": paper, "ours": ours, "verdict": verdict, "words": words}


def _paired(losses: Losses, name: str, other: str) -> dict[str, float]:
    """The difference of two losses over the same repeats."""
    differences = [a - b for a, b in zip(losses[name]["ratios"], losses[other]["ratios"], strict=True)]
    if len(differences) < 2:
        return {"difference": differences[0], "ci_low": float("nan"), "ci_high": float("nan")}
    interval = repeat_interval(differences)
    return {"difference": interval.estimate, "ci_low": interval.low, "ci_high": interval.high}


def _teacher(losses: Losses) -> dict[str, str]:
    gain = _paired(losses, "log_teacher", "log")
    ours = f"log_teacher − log: {points(gain)}"
    return _judged("A teacher helps.", "Section 5.1: overall beneficial", ours, clearly(gain))


def verdict(result: dict[str, Any]) -> list[str]:
    """The first sentence is the headline."""
    protocols, config, told = result["protocols"], result["config"], []
    if "tuned" in protocols:
        told.append(_tuned_words(protocols["tuned"]["losses"]))
    if "converged" in protocols:
        told.extend(_converged_words(protocols["converged"]["losses"], config))
    if "tuned" in protocols:
        told.append(_clicks_words(protocols["tuned"]["losses"]))
    if config["repeats"] == 1:
        told.append("One repeat says nothing about the next: no difference can be told.")
    elif config["repeats"] < 10:
        told.append(f"With {config['repeats']} repeats only large differences can be told; the full run has 30.")
    return told


def _above(losses: Losses) -> dict[str, dict[str, Any]]:
    """The losses that are measurably above log loss."""
    return {name: gain for name, gain in losses.items() if name != "log_loss" and clearly(gain) > 0}


def _listed(gains: dict[str, dict[str, Any]]) -> str:
    return ", ".join(f"{name} {points(gain)}" for name, gain in gains.items())


def _tuned_words(losses: Losses) -> str:
    reached = f"A tuned log loss reaches {100 * losses['log_loss']['ratio']:.1f} % of the optimal welfare"
    others = {name: gain for name, gain in losses.items() if name != "log_loss"}
    if not others:
        return f"{reached}."
    above = _above(losses)
    if above:
        return f"{reached}; measurably above it, in points of that: {_listed(above)}."
    best = max(others, key=lambda name: others[name]["difference"])
    return f"{reached}, and no other loss is measurably above it: the highest is {best}, {points(others[best])} points."


def _converged_words(losses: Losses, config: dict[str, Any]) -> list[str]:
    epochs = f"{config['epochs']} epochs" if config["epochs"] > 1 else "one epoch"
    papers = ", as the paper does," if config["reading"] in ("plotted", "printed") else ","
    start = f"Trained for {epochs} without early stopping{papers} log loss reaches "
    start += f"{100 * losses['log_loss']['ratio']:.1f} %"
    above = _above(losses)
    if not above:
        return [f"{start}; no loss is measurably above it."]
    calibrated = {name: losses[name]["calibrated"] for name in above}
    kept = _above(calibrated)
    shares = [f"{name} {points(calibrated[name])}" for name in above]
    after = f"measurably above log loss {'are' if len(kept) > 1 else 'is'} still {', '.join(kept)}" if kept else ""
    after = after or "none of these can be told from log loss any more"
    return [
        f"{start}; above it, in points: {_listed(above)}.",
        f"Once all models are calibrated, {after}: {', '.join(shares)}.",
    ]


def _clicks_words(losses: Losses) -> str:
    """Losses with a teacher are left out: theirs was chosen by the true CTR."""
    gains = {name: found["by_clicks"] for name, found in losses.items() if not needs_teacher(name)}
    above = _above(gains)
    words = _listed(above) if above else "no loss is measurably above log loss"
    return f"Epoch and λ chosen by clicks, which is all that a platform has (losses without a teacher): {words}."


def notes(result: dict[str, Any]) -> list[str]:
    """What a reader should know before quoting a number."""
    config, found = result["config"], []
    if config["reading"] == "printed":
        world = result["worlds"]["printed"]
        found.append(
            f"The weights as printed give bids from {world['lowest_bid']:.0e} to {world['highest_bid']:.0e}, and CTRs "
            "that pile up at 0 and 1: bids decide most auctions, and losses are sums of numbers thirty orders of "
            "magnitude apart. They were computed in double precision here. This cannot be what the paper ran, whose "
            "figure shows CTRs around one half; dividing all weights by 10 gives that figure (the reading "
            "called plotted)."
        )
    if config["patience"] is not None and "tuned" in result["protocols"]:
        found.append(
            f"The tuned protocol stopped a run after {config['patience']} epochs without a better validation "
            "welfare, and "
            f"chose by {config['validation_auctions']:,} validation auctions. Without --patience all epochs are tried."
        )
    found.append(
        "Every repeat is a market of its own; all losses of a repeat see the same ads, batches and initial weights. "
        "Intervals "
        "are Student's t over repeats."
    )
    if "tuned" in result["protocols"]:
        found.append(
            "Tuned: each loss has its own epoch, and its own λ out of "
            f"{', '.join(f'{lam:g}' for lam in config['lams'])} where it has one, for each repeat by expected welfare "
            "(the true CTR decides) on validation auctions. Losses with λ thus have six tries where the others "
            "have one. "
            "The teacher is the tuned log loss model, chosen by the true CTR also where the students are chosen "
            "by clicks."
        )
    if "converged_sums" in result["protocols"]:
        found.append(
            "Adam does not see the scale of a loss, so literal sums change nothing for the losses without λ, whose "
            "runs are "
            "shown again; for the others they make the log loss weigh 256 times less."
        )
    if config["student"] == "mlp":
        found.append(
            f"The network starts from {'Glorot' if config['init'] == 'glorot' else 'torch'} weights; the paper does "
            "not say. "
            "How early stopping helps the log loss depends on this: try --init torch."
        )
    return found


def regime_verdict(result: dict[str, Any]) -> list[str]:
    """The first sentence is the headline."""
    summary = result["summary"]
    shares = {loss: found["better"] / found["cells"] for loss, found in summary.items()}
    order = sorted(summary, key=lambda loss: (summary[loss]["worse"], -shares[loss]))
    safest, best = order[0], max(order, key=lambda loss: shares[loss])
    if not shares[best]:
        told = ["No loss is measurably above a tuned log loss in any kind of market."]
    elif summary[safest]["worse"] or not shares[safest]:
        told = ["Every loss that beats a tuned log loss in some kinds of market is measurably worse in others."]
    else:
        found, most = summary[safest], summary[best]
        words = f"{safest} beats a tuned log loss in {found['better']} of {found['cells']} kinds of market"
        words += " and is measurably worse in none"
        if best != safest:
            words += f"; {best} beats it in {most['better']} of {most['cells']} and is worse in {most['worse']}"
        told = [f"{words}."]
    for loss in order:
        found = summary[loss]
        told.append(f"{loss}: better in {found['better']}, worse in {found['worse']}, unclear in {found['unclear']}.")
    return told


def regime_notes(result: dict[str, Any]) -> list[str]:
    """What a reader should know before quoting a number."""
    config = result["config"]
    cells = sum(found["cells"] for found in result["summary"].values())
    return [
        f"{config['repeats']} repeats a cell, each a market of its own; every loss has its own epoch (of "
        f"{config['epochs']}) and λ in each repeat, chosen by expected welfare on validation auctions of the cell.",
        "The student is a logistic regression; squares of features, which it cannot represent, make the share of the "
        "logit's variance on the axis. Where nothing else is said bids have spread 0.8 and correlation 0.5, auctions "
        "50 ads, the share is 0.77, clicks have a rate near 0.24, and the teacher is the tuned log loss student.",
        f"Of {cells} intervals of 95 % about {round(cells / 40)} lie above 0, and as many below, by chance "
        "alone, and the "
        "best of nine losses was named after looking. Cells share their random numbers, so they err together.",
    ]
