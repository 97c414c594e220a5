"""What the synthetic benchmark says in words: the verdict, the paper's claims beside it, notes, what was done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bidwise.evaluation.estimate import Estimate, Outcome
from bidwise.losses.named import needs_teacher
from bidwise.report.formatting import counted, grid_ends, number
from bidwise.study.compare import points
from bidwise.study.recipe import BASELINE
from bidwise.study.synthetic_results import Losses, SyntheticConfig, SyntheticResult

PROPOSED = ("log", "log_teacher", "hinge_plus_teacher")  # by the paper
WEIGHTED = ("bid_weighted", "sqrt_bid_weighted")
STUDENTS = {"mlp": "a network with one hidden layer of 50 units", "logistic_regression": "a logistic regression"}
READINGS = {
    "plotted": "The default. The weights are a tenth of those printed, which gives the picture that the paper "
    "describes: CTRs around one half, bids within a few powers of ten.",
    "printed": "The numbers as the paper prints them. CTRs pile up at 0 and 1, and bids span many powers of ten.",
    "misspecified": "Not in the paper: a world with curves that a linear model cannot follow.",
    "misspecified_rare": "The same with rare clicks.",
}
MARKS = (
    "▲ above log loss, ▼ below it, where the interval excludes 0. Differences are points, hundredths of the\n"
    "optimal welfare; calibrated: the same after Platt scaling of all models on validation clicks."
)


class Claim(NamedTuple):
    """A claim of the paper, where it makes it, what this run measured, and whether that agrees."""

    claim: str
    paper: str
    ours: str
    verdict: str  # holds, partly, does not hold, unclear
    words: str = ""


def claims(result: SyntheticResult) -> list[Claim]:
    """The paper's claims about its synthetic experiment; for the paper's world alone."""
    if not result.config.papers or not {*PROPOSED, *WEIGHTED, "ranknet"} <= set(result.config.losses):
        return []
    found = []
    protocols, better, worse = result.protocols, Outcome.BETTER, Outcome.WORSE
    if "converged" in protocols:
        losses = protocols["converged"].losses
        teacher = losses["log_teacher"].minus(losses["log"])
        least = min(("log", "log_teacher"), key=lambda loss: losses[loss].difference)
        hinge = losses["hinge_plus_teacher"].minus(losses[least])
        calibrated = {loss: losses[loss].calibrated for loss in PROPOSED[:2]}
        found += [
            _claim("All three proposed losses beat log loss.", "Figure 2", _some(losses, PROPOSED), better),
            _claim("Weighting the log loss by bids does worse.", "Figure 2", _some(losses, WEIGHTED), worse),
            _claim("A teacher helps.", "Section 5.1: overall beneficial", {"log_teacher − log": teacher}, better),
            _claim(
                "The hinge loss gains less than the logistic ones.",
                "Section 5.1, attributed to its kink",
                {f"hinge_plus_teacher − {least}": hinge},
                worse,
            ),
        ]
        if "converged_sums" in protocols:
            sums = _some(protocols["converged_sums"].losses, PROPOSED)
            where = "the appendix prints sums over pairs and ads"
            found.append(_claim("All three beat log loss with sums instead of means.", where, sums, better))
        ranknet, where = _some(losses, ("ranknet",)), "Proposition 3.5 warns of it"
        found.append(_claim("Plain learning to rank is no substitute.", where, ranknet, worse))
        found.append(_claim("The gain remains once all models are calibrated.", "not asked", calibrated, better))
    if "tuned" in protocols:
        tuned = _some(protocols["tuned"].losses, PROPOSED)
        where = "hoped for: tuning “may” make the advantages “more pronounced”"
        found.append(_claim("The gain remains once every loss is tuned.", where, tuned, better))
    return found


def _some(losses: Losses, names: Iterable[str]) -> dict[str, Estimate]:
    return {name: losses[name] for name in names}


def _claim(claim: str, paper: str, differences: Mapping[str, Estimate], expected: Outcome) -> Claim:
    """Whether all of these differences have the outcome that is claimed."""
    ours = "; ".join(f"{name}: {points(each)}" for name, each in differences.items())
    outcomes = [each.outcome for each in differences.values()]
    holds = outcomes.count(expected)
    if holds == len(outcomes):
        return Claim(claim, paper, ours, "holds")
    if holds:
        return Claim(claim, paper, ours, "partly", f"{holds} of {len(outcomes)}")
    if any(outcome.clear for outcome in outcomes):
        return Claim(claim, paper, ours, "does not hold")
    known = all(each.known for each in differences.values())
    held = "the interval contains 0" if len(outcomes) == 1 else "the intervals contain 0"
    return Claim(claim, paper, ours, "unclear", held if known else "no interval")


def verdict(result: SyntheticResult) -> list[str]:
    """The first sentence is the headline."""
    protocols, config, sentences = result.protocols, result.config, []
    if "tuned" in protocols:
        sentences.append(_tuned(protocols["tuned"].losses))
    if "converged" in protocols:
        sentences += _converged(protocols["converged"].losses, config)
    if "tuned" in protocols:
        tuned = protocols["tuned"].losses
        sentences.append(_by_clicks(tuned))
        sentences += grid_ends({name: found.lam for name, found in tuned.items() if found.lam}, config.lams)
    if config.repeats == 1:
        sentences.append("A single repeat says nothing about the next: no difference can be established.")
    elif config.repeats < 10:
        sentences.append(f"With {config.repeats} repeats only large differences show; the full run has 30.")
    return sentences


def _above(gains: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """What is measurably above log loss."""
    return {name: gain for name, gain in gains.items() if gain.outcome is Outcome.BETTER}


def _listed(gains: Mapping[str, Estimate]) -> str:
    return ", ".join(f"{name} {points(gain)}" for name, gain in gains.items())


def _tuned(losses: Losses) -> str:
    reached = f"A tuned log loss reaches {number(100 * losses[BASELINE].ratio, 1)} % of the optimal welfare"
    others = {name: gain for name, gain in losses.items() if name != BASELINE}
    if not others:
        return f"{reached}."
    if above := _above(others):
        return f"{reached}; measurably above it, in points of that: {_listed(above)}."
    best = max(others, key=lambda name: others[name].difference)
    return f"{reached}, and no other loss is measurably above it: the highest is {best}, {points(others[best])} points."


def _converged(losses: Losses, config: SyntheticConfig) -> list[str]:
    papers = ", as in the paper," if config.papers else ","
    start = f"Trained for {counted(config.epochs, 'epoch')} without early stopping{papers} log loss reaches "
    start += f"{number(100 * losses[BASELINE].ratio, 1)} %"
    above = _above(losses)
    if not above:
        return [f"{start}; no loss is measurably above it."]
    calibrated = {name: losses[name].calibrated for name in above}
    after = "none of these can be distinguished from log loss any more"
    if kept := list(_above(calibrated)):
        after = f"{' and '.join(filter(None, [', '.join(kept[:-1]), kept[-1]]))} "
        after += "are still measurably above log loss" if len(kept) > 1 else "is still measurably above log loss"
    return [
        f"{start}; above it, in points: {_listed(above)}.",
        f"Once all models are calibrated, {after}: {_listed(calibrated)}.",
    ]


def _by_clicks(losses: Losses) -> str:
    """Losses with a teacher are left out: theirs was selected by the true CTR."""
    gains = {name: each.by_clicks for name, each in losses.items() if each.by_clicks and not needs_teacher(name)}
    words = _listed(_above(gains)) or "no loss is measurably above log loss"
    return f"Epoch and λ selected by clicks, which is all that a platform has (losses without a teacher): {words}."


def notes(result: SyntheticResult) -> list[str]:
    """What a reader should know before quoting a number."""
    config, sentences = result.config, []
    if config.reading == "printed":
        world = result.worlds["printed"]
        sentences.append(
            f"The weights as printed give bids from {world.lowest_bid:.0e} to {world.highest_bid:.0e}, and CTRs that "
            "pile up at 0 and 1: bids decide most auctions, and losses are sums of numbers thirty orders of magnitude "
            "apart. They were computed in double precision here. This cannot be what the paper ran, whose figure shows "
            "CTRs around one half; dividing all weights by 10 gives that figure (the reading called plotted)."
        )
    sentences.append("Intervals are Student's t over repeats, each of which is a market of its own.")
    if "tuned" in result.protocols:
        sentences.append(
            f"Losses with λ have {len(config.lams)} tries where the others have one. The teacher is the tuned log loss "
            "model, selected by the true CTR even where the students are selected by clicks."
        )
    if "converged_sums" in result.protocols:
        sentences.append(
            "Adam does not see the scale of a loss, so literal sums change nothing for the losses without λ, whose "
            f"runs are shown again; for the others they make the log loss weigh {config.batch_size} times less."
        )
    if config.student == "mlp":
        sentences.append(
            f"The network starts from {'Glorot' if config.init == 'glorot' else 'torch'} weights; the paper does not "
            "say. How much early stopping helps the log loss depends on this: try --init torch."
        )
    return sentences


def _lams(config: SyntheticConfig) -> str:
    return ", ".join(f"{lam:g}" for lam in config.lams)


def terminal_title(protocol: str, config: SyntheticConfig) -> str:
    """A protocol as the heading of its table at the terminal."""
    titles = {
        "converged": f"converged: {counted(config.epochs, 'epoch')}, λ = 3, the paper's protocol",
        "converged_sums": "converged, with the literal sums that the paper prints",
        "tuned": "tuned: every loss at its own best epoch and λ",
    }
    return titles[protocol]


def protocol_words(protocol: str, config: SyntheticConfig) -> str:
    """What a protocol does."""
    match protocol:
        case "converged":
            return (
                f"The paper’s way: every model trains for {counted(config.epochs, 'epoch')} and keeps its last "
                "weights; nothing is selected. Losses over pairs are means over the pairs of a batch plus λ = 3 times "
                "the mean log loss."
            )
        case "converged_sums":
            return (
                "The same, with losses summed over pairs and ads exactly as the paper prints them. A batch has far "
                f"more pairs than ads, so the pairs weigh about {config.batch_size:,} times as much against the log "
                "loss as in the means."
            )
    words = (
        f"Every loss gets the epoch that is best for it, and where it has a λ its best λ of {_lams(config)}, by the "
        f"welfare (as the true CTR has it) of {config.validation_auctions:,} validation auctions. Test auctions are "
        "held out from all selection."
    )
    if config.patience is None:
        return f"{words} Every model trains for {counted(config.epochs, 'epoch')} before one is selected."
    return (
        f"{words} To save time a model stops training after {counted(config.patience, 'epoch')} without improvement, "
        f"and after {counted(config.epochs, 'epoch')} at the latest. This shortens the protocol: a loss that would "
        "have improved later is not seen doing so."
    )


def how(config: SyntheticConfig) -> list[str]:
    """How it was done."""
    return [
        "Each repeat draws a world, training ads, validation and test auctions. Every loss then trains "
        f"{STUDENTS.get(config.student, config.student)} on the same ads, from the same initial weights, with the same "
        f"batches of {config.batch_size:,} ads and Adam at a learning rate of {config.learning_rate:g}.",
        "An auction shows the ad with the highest bid × predicted CTR. Its welfare is bid × true CTR of that ad, which "
        "is known here because the world is simulated.",
    ]
