"""The Criteo experiment in words: what the paper reports, verdict, notes, and the summary for the terminal."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from bidwise.evaluation.estimate import Outcome, signed
from bidwise.report.formatting import aligned, grid_ends
from bidwise.study.criteo_results import CriteoConfig, CriteoResult, Protocol
from bidwise.study.recipe import BASELINE

MODELS = {"deepfm": "DeepFM", "dcn": "DCN", "dcnv2": "DCN-V2", "logistic_regression": "Logistic regression"}
PAPER_REPEATS = 10
FEW_ADS = 10_000
METRICS = {"log_loss": "log loss", "welfare": "welfare"}  # of validation ads, that select epoch and lam
HARM = 0.99  # of the welfare without early stopping: more than chance takes


@dataclass(frozen=True)
class Reported:
    """Means in the paper with their standard errors; seconds of an epoch with their deviation over 15 epochs."""

    welfare: tuple[float, float]
    auc_loss: tuple[float, float]
    log_loss: tuple[float, float]
    seconds: tuple[float, float]


#: Model -> loss. The paper heads both tables of run times DCN; the first one is DeepFM's.
PAPER = {
    "deepfm": {
        "log_loss": Reported((1.4448, 0.0025), (0.2200, 0.0004), (0.4706, 0.0005), (2635.13, 10.86)),
        "log_weighted": Reported((1.4622, 0.0021), (0.2169, 0.0003), (0.4723, 0.0009), (2700.87, 8.91)),
        "log_teacher": Reported((1.4660, 0.0022), (0.2229, 0.0004), (0.4795, 0.0009), (2700.4, 6.59)),
    },
    "dcn": {
        "log_loss": Reported((1.4622, 0.0026), (0.2173, 0.0004), (0.4840, 0.0015), (5292.2, 57.39)),
        "log_weighted": Reported((1.4663, 0.0028), (0.2146, 0.0005), (0.4934, 0.0020), (5333.67, 56.62)),
        "log_teacher": Reported((1.4650, 0.0027), (0.2115, 0.0007), (0.4922, 0.0048), (5330.0, 48.11)),
    },
}


def paper_gain(model: str, loss: str) -> tuple[float, float]:
    """Gain in welfare that the paper reports against its log loss, as a share, and the standard error of that.

    The error takes the two means as independent: the paper gives none for their difference.

    >>> [round(100 * x, 2) for x in paper_gain("deepfm", "log_teacher")]
    [1.47, 0.23]
    """
    (mean, error), (base, other) = PAPER[model][loss].welfare, PAPER[model][BASELINE].welfare
    return (mean - base) / base, math.hypot(error, other) / base


def paper_slowdown(model: str, loss: str) -> float:
    """How much longer an epoch takes in the paper than with log loss, as a share."""
    return PAPER[model][loss].seconds[0] / PAPER[model][BASELINE].seconds[0] - 1


def compared_with_paper(result: CriteoResult) -> list[tuple[str, str, Protocol]]:
    """Models and losses that the paper trains too, log loss among them, in the protocol that is nearest to its own."""
    nearest = [(model, found) for model, name, found in result.protocols if name == result.config.protocols[0]]
    return [(model, loss, found) for model, found in nearest for loss in PAPER.get(model, ()) if loss in found.losses]


def selected_on(config: CriteoConfig) -> str:
    """Where lam was selected.

    >>> selected_on(CriteoConfig(lam_repeats=1)), selected_on(CriteoConfig(lam_repeats=3)), selected_on(CriteoConfig())
    ('selected on the first repeat', 'selected on the first 3 repeats', 'selected in each repeat')
    """
    first = config.lam_repeats
    if first is None:
        return "selected in each repeat"
    return "selected on the first repeat" if first == 1 else f"selected on the first {first} repeats"


def verdict(result: CriteoResult) -> list[str]:
    """The first sentence is the headline."""
    return [
        *_few_auctions(result),
        *(_against_log_loss(result, name) for name in reversed(result.config.protocols)),
        *_harmful_tuning(result),
        *_calibrated(result),
        *_against_paper(result),
        *_other_selection(result),
        *_lams(result),
        *_clicks(result),
        *_cost(result),
        *_few_repeats(result),
    ]


def auctions_of(result: CriteoResult) -> str:
    """The auctions that were measured: all that could be drawn, or random cuts of the test ads."""
    auctions, cuts = result.data.auctions, result.config.cuts
    return "all possible" if auctions is None else (f"{cuts} × " if cuts > 1 else "") + f"{auctions:,}"


def _few_auctions(result: CriteoResult) -> Iterator[str]:
    ads = result.data.splits.test
    if ads < FEW_ADS:
        yield f"{ads:,} test ads are a trial, not a measurement: use {FEW_ADS:,} or more."


def _against_log_loss(result: CriteoResult, name: str) -> str:
    """How many losses are above and below log loss with each model, and the highest."""
    welfare = "expected welfare" if result.data.known_ctr else "realised welfare"
    start = "With every loss tuned" if name == "tuned" else f"Trained to the end with λ = {result.config.lam:g}"
    models = {MODELS[model]: protocol for model, key, protocol in result.protocols if key == name}
    if not any(protocol.others for protocol in models.values()):
        return f"{start}: only log loss was trained, so there is nothing to compare."
    above, below = (
        {model: [n for n, loss in found.others.items() if loss.outcome == kind] for model, found in models.items()}
        for kind in (Outcome.BETTER, Outcome.WORSE)
    )
    if any(above.values()):
        parts = [
            f"{_of(losses, found.others)} losses with {model} (the highest is {_highest(found, losses)})"
            if (losses := above[model])
            else f"none with {model}"
            for model, found in models.items()
        ]
        words = f"{' and '.join(parts)} reach measurably more {welfare} than log loss"
    else:
        highest = {model: _highest(found, found.others) for model, found in models.items()}
        words = f"no loss reaches measurably more {welfare} than log loss with {' or '.join(models)}: the highest is "
        words += " and ".join(highest.values() if len(highest) == 1 else (f"{highest[m]} with {m}" for m in highest))
    worse = [f"{_of(losses, models[model].others)} with {model}" for model, losses in below.items() if losses]
    words += f"; measurably less: {', '.join(worse)}" if worse else ""
    return f"{start}, {words}."


def _of(some: Collection[str], losses: Collection[str]) -> str:
    return f"{'all' if len(some) == len(losses) > 1 else len(some)} of {len(losses)}"


def _highest(protocol: Protocol, some: Iterable[str]) -> str:
    best = max(some, key=lambda loss: protocol.gain(loss).difference)
    return f"{best} at {protocol.gain(best):%}"


def _harmful_tuning(result: CriteoResult) -> Iterator[str]:
    """Where early stopping did harm."""
    parts = []
    for name, model in result.models.items():
        if set(model.protocols) == {"converged", "tuned"}:
            trained, tuned = (model.protocols[key].losses[BASELINE].expected_welfare for key in ("converged", "tuned"))
            if tuned < HARM * trained:
                parts.append(f"{signed(100 * (tuned / trained - 1))} % with {MODELS[name]}")
    if parts:
        yield (
            f"Log loss at its best epoch by validation {METRICS[result.tuned_by]} is below log loss trained to the "
            f"end, {', '.join(parts)}: there were too few validation ads to select by, and tuned means little here."
        )


def _calibrated(result: CriteoResult) -> Iterator[str]:
    """What is left of measurable differences once no model loses welfare by its scale alone."""
    parts = [
        f"{MODELS[model]} {loss} {protocol.gain(loss):%}, calibrated {protocol.gain(loss, calibrated=True):%}"
        for model, name, protocol in result.protocols
        for loss, found in protocol.others.items()
        if name == result.config.protocols[0] and found.calibrated and found.outcome and found.outcome.clear
    ]
    if parts:
        yield f"Measurable differences after Platt scaling of both models on validation clicks: {'; '.join(parts)}."


def _lams(result: CriteoResult) -> Iterator[str]:
    for model, name, protocol in result.protocols:
        if name == "tuned":
            lams = {f"{MODELS[model]} {loss}": found.lam for loss, found in protocol.losses.items() if found.lam}
            yield from grid_ends(lams, result.config.lams)


def _against_paper(result: CriteoResult) -> Iterator[str]:
    """The gains that the paper reports beside ours, in its protocol if that was run."""
    compared = [entry for entry in compared_with_paper(result) if entry[1] != BASELINE]
    if not compared:
        return
    outcomes = [protocol.losses[loss].outcome for _, loss, protocol in compared]
    same = "converged" in result.config.protocols
    parts = [
        f"{MODELS[model]} {loss} {signed(100 * paper_gain(model, loss)[0])} % there, {protocol.gain(loss):%} here"
        for model, loss, protocol in compared
    ]
    better, worse = outcomes.count(Outcome.BETTER), outcomes.count(Outcome.WORSE)
    yield (
        f"Gains in welfare that the paper reports and this run confirms "
        f"({'trained to the end' if same else 'tuned'}): {better} of {len(compared)}; reversed: "
        f"{worse}; cannot be distinguished from 0: {len(compared) - better - worse}. {'; '.join(parts)}."
    )


def _other_selection(result: CriteoResult) -> Iterator[str]:
    """What remains when the other metric selects epoch and lam."""
    parts, other = [], "log_loss" if result.tuned_by == "welfare" else "welfare"
    for model, name, protocol in result.protocols:
        if name == "tuned" and protocol.others:
            selected = protocol.selected(f"by_{other}")
            above = [loss for loss in selected if selected[loss].outcome == Outcome.BETTER]
            listed = ", ".join(f"{loss} {protocol.gain(loss, f'by_{other}'):%}" for loss in above)
            parts.append(f"with {MODELS[model]} {listed or 'none'}")
    if parts:
        what = "the epoch" if result.config.lam_repeats else "epoch and λ"
        yield (
            f"If validation {METRICS[other]} selects {what} instead of {METRICS[result.tuned_by]}, these are "
            f"measurably above log loss: {'; '.join(parts)}."
        )


def _clicks(result: CriteoResult) -> Iterator[str]:
    """How many differences clicks show, where the true CTR is known."""
    losses = [loss for _, _, protocol in result.protocols for loss in protocol.others.values()]
    if result.data.known_ctr and losses:
        pairs = [(loss.difference, loss.difference_realised) for loss in losses]
        expected, realised = (sum(d is not None and d.outcome.clear for d in each) for each in zip(*pairs, strict=True))
        yield (
            f"By the true CTR {expected} of {len(losses)} differences to log loss are measurable; by clicks, which is "
            f"all that a platform has, {realised}."
        )


def _cost(result: CriteoResult) -> Iterator[str]:
    """How much longer the slowest loss takes, beside what the paper reports."""
    parts = []
    for name, model in result.models.items():
        ratios = {loss: times.relative for loss, times in model.runtime.items() if loss != BASELINE}
        if ratios:
            slowest = max(ratios, key=lambda loss: ratios[loss])
            paper = ""
            if name in PAPER:
                paper = (
                    f" (the paper: {signed(100 * max(paper_slowdown(name, loss) for loss in PAPER[name]), '.1f')} %)"
                )
            parts.append(f"{signed(100 * (ratios[slowest] - 1), '.1f')} % with {MODELS[name]}, {slowest}{paper}")
    if parts:
        yield f"Time of an epoch against log loss, of the slowest loss: {'; '.join(parts)}."


def _few_repeats(result: CriteoResult) -> Iterator[str]:
    repeats = result.config.repeats
    if repeats == 1:
        yield "One repeat has no interval over repeats, so no difference counts as measured."
    elif repeats < PAPER_REPEATS:
        yield f"{repeats} repeats reveal only large differences; the paper has {PAPER_REPEATS}."


def notes(result: CriteoResult) -> Iterator[str]:
    """What a reader should know before quoting a number."""
    config, data = result.config, result.data
    yield (
        "Intervals are not adjusted for their number: of many losses some will seem better or worse than log loss by "
        "chance."
    )
    if data.known_ctr:
        rows = f", {config.rows:,} rows on the device" if config.rows else ""
        yield (
            f"The ads are simulated{rows}, with a known CTR. Expected welfare takes the true CTR of the winner where "
            "realised welfare takes its click, and varies less by chance."
        )
    gains = [(m, loss, *paper_gain(m, loss)) for m, loss, _ in compared_with_paper(result) if loss != BASELINE]
    weak = [f"{MODELS[model]} {loss} {gain / error:.1f}" for model, loss, gain, error in gains if gain < 2 * error]
    if weak:
        yield (
            f"Some gains of the paper are small against its own standard errors, in units of these: {', '.join(weak)} "
            "(taking its two means as independent)."
        )
    if "dcn" in result.models:
        yield (
            "The paper trains DCN for 150,000 steps of 512 ads, which are 2.1 epochs of its data; here the number of "
            "epochs is the same."
        )
    if config.other_batch_size:
        yield (
            f"Batches have {config.batch_size:,} ads where the paper's have 256 (DeepFM) or 512 (DCN). In training "
            "a batch is an auction: auctions are larger, and steps are fewer."
        )
    if config.precision != "float32":
        yield "Products of matrices are in TF32, all else in float32 (--precision mixed)."
    if config.embeddings == "lazy":
        yield (
            "Adam moves only the embeddings that a batch looked up (--embeddings lazy); dense updates keep moving all "
            "of them."
        )
    yield (
        "No run repeats the paper's training to the letter: docs/criteo.md has one table of all that differs, among it "
        "means over pairs where it prints sums, and one split and one draw of bids for all repeats."
    )
    if data.integers == "printed":
        yield (
            "Integers became categories by the map that the paper prints, under which 3 falls together with 1, and "
            "4 to 7 with 2."
        )


def summary(result: CriteoResult) -> str:
    """A table for every model and protocol and the verdict; differences are in per cent of log loss's welfare."""
    config, data = result.config, result.data
    simulated = "simulated ads, their CTR known, " if data.known_ctr else "ads "
    lines = [
        f"{data.splits.train:,} {simulated}to train on, {data.splits.test:,} to test on in {auctions_of(result)} "
        f"auctions of {config.auction_size}; {config.repeats} {'repeat' if config.repeats == 1 else 'repeats'}",
        "",
    ]
    scaled = ""
    for model, name, protocol in result.protocols:
        tuned = any(loss.lam for loss in protocol.losses.values())
        heads = ["  loss", "welfare", "− log loss, % [95 %]", "AUC", "log loss", *(["λ"] if tuned else [])]
        if calibrated := any(loss.calibrated for loss in protocol.losses.values()):
            scaled = "; Platt: the same after Platt scaling of both models on validation clicks"
        heads[3:3] = ["Platt"] if calibrated else []
        rows = [_row(loss, protocol, tuned, calibrated) for loss in protocol.losses]
        lines += [f"{MODELS[model]}, {name}: {_title(name, result)}", "", *aligned([heads, *rows]), ""]
    lines += [
        "▲ above log loss, ▼ below it, where the intervals over repeats and over test auctions both exclude 0.",
        f"Welfare is {'expected, by the true CTR' if data.known_ctr else 'realised, by clicks'}; differences are in % "
        f"of the log loss's, each with the wider of its two intervals{scaled}.",
        "",
    ]
    return "\n".join([*lines, *verdict(result)])


def _title(protocol: str, result: CriteoResult) -> str:
    config = result.config
    if protocol == "converged":
        return f"trained to the end with the paper's λ = {config.lam:g}"
    once = f" (λ {selected_on(config)})" if config.lam_repeats else ""
    return f"every loss at its own best epoch and λ by validation {METRICS[result.tuned_by]}{once}"


def _row(name: str, protocol: Protocol, tuned: bool, calibrated: bool) -> list[str]:
    loss, gain = protocol.losses[name], None if name == BASELINE else protocol.gain
    lams = sorted(set(loss.lam))
    ends = lams[:1] + lams[1:][-1:]
    return [
        f"{loss.outcome.mark if loss.outcome else ' '} {name}",
        f"{loss.main_welfare:.4f}",
        f"{100 * gain(name)}" if gain else "",
        *([signed(100 * gain(name, calibrated=True).difference) if gain else ""] if calibrated else []),
        f"{loss.auc:.4f}",
        f"{loss.log_loss:.4f}",
        *(["–".join(f"{lam:g}" for lam in ends)] if tuned else []),
    ]
