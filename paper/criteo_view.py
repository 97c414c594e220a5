"""What a page shows of the paper's Criteo experiment, and the paper's numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from bidwise.data.store import SPLITS
from bidwise.evaluation.estimate import signed
from bidwise.report.formatting import counted, number, per_cent
from bidwise.report.sections import Cell, Table
from bidwise.study.recipe import BASELINE
from paper.criteo_results import CriteoResult, LossResult, Protocol
from paper.experiment_figures import Picture, errors, in_order, plus_minus
from paper.experiment_views import (
    CALIBRATED,
    CHOSEN,
    OF_BASELINE,
    PROTOCOLS,
    Column,
    Comparison,
    Experiment,
    Figures,
    by_column,
    gain_cell,
    protocol_terms,
    versus,
)

MODELS = {"deepfm": "DeepFM", "dcn": "DCN", "dcnv2": "DCN-V2", "logistic_regression": "Logistic regression"}
LEVELS = {"welfare": "Realised welfare", "expected_welfare": "Expected welfare", "auc": "AUC", "log_loss": "Log loss"}
FIGURES: Mapping[str, Callable[[LossResult], tuple[float, float]]] = {  # the paper's 3, 5 and 6
    "welfare": lambda loss: (loss.welfare, loss.welfare_error),
    "AUC loss": lambda loss: (1 - loss.auc, loss.auc_error),
    "log loss": lambda loss: (loss.log_loss, loss.log_loss_error),
}
#: Model -> loss -> means in the paper: welfare with its standard error, 1 − AUC, log loss.
PAPER = {
    "deepfm": {
        "log_loss": ((1.4448, 0.0025), 0.2200, 0.4706),
        "log_weighted": ((1.4622, 0.0021), 0.2169, 0.4723),
        "log_teacher": ((1.4660, 0.0022), 0.2229, 0.4795),
    },
    "dcn": {
        "log_loss": ((1.4622, 0.0026), 0.2173, 0.4840),
        "log_weighted": ((1.4663, 0.0028), 0.2146, 0.4934),
        "log_teacher": ((1.4650, 0.0027), 0.2115, 0.4922),
    },
}


def criteo_view(result: CriteoResult) -> Experiment:
    """The paper's Criteo experiment."""
    config, data = result.config, result.data
    train, valid, test = (f"{data.splits[name]:,}" for name in SPLITS)
    facts = [
        (train, "training ads" + (f" of the world {config.world}" if config.rows else "")),
        (test, f"test ads, {valid} validation ads"),
        (per_cent(data.click_rate), "of the training ads are clicked"),
        ("all possible", f"test auctions of {config.auction_size} ads"),
        (f"{config.repeats:,}", "repeats of every training"),
    ]
    if data.known_ctr:
        facts.append((number(data.optimal_welfare, 4), "optimal expected welfare"))
    sizes = "; ".join(
        f"{MODELS[name]}: {counted(model.epochs, 'epoch')} in batches of {model.batch_size:,}, {model.steps:,} steps"
        for name, model in result.models.items()
    )
    how = protocol_terms(config.protocols, "log loss")
    if "tuned" in config.protocols:
        how.append(("λ", f"Selected on {counted(len(config.trying_lams), 'repeat')}, and used in all."))
    return Experiment(
        title="The paper’s Criteo experiment" + (", on simulated ads" if data.known_ctr else ""),
        unit=OF_BASELINE,
        repeats=config.repeats,
        ads=data.splits["test"],
        facts=facts,
        comparisons=[_comparison(result, *found) for found in result.protocols],
        forest="criteo_welfare",
        figures=[_levels(result)],
        paper=_paper_table(result),
        how=[("Trainings", sizes), *how],
        losses=config.losses,
        notes=[
            f"Differences are of {'expected' if data.known_ctr else 'realised'} welfare. One counts as measured only "
            "where its intervals over repeats (another training) and over auctions (other ads) both exclude 0; tables "
            "show the wider of the two.",
            "No run repeats the paper’s training to the letter: docs/results/paper.md lists what differs.",
        ],
    )


def _levels(result: CriteoResult) -> Figures:
    """The paper's losses with every model, in the first protocol."""
    panels, first = [], result.config.protocols[0]
    for model, found in result.models.items():
        losses = found.protocols[first].losses
        for title, mean in FIGURES.items():
            means = {loss: mean(losses[loss]) for loss in PAPER["deepfm"] if loss in losses}
            panels.append(errors(f"{MODELS[model]}: {title}", means))
    lead = f"{PROTOCOLS[first]}: means ± standard errors over repeats."
    return Figures("The paper’s Figures 3, 5 and 6", lead, Picture("criteo_levels", tuple(panels)))


def _mean(loss: LossResult, name: str) -> str:
    return plus_minus(getattr(loss, name), getattr(loss, f"{name}_error"))


def _comparison(result: CriteoResult, model: str, name: str, protocol: Protocol) -> Comparison:
    losses = {loss: protocol.losses[loss] for loss in in_order(protocol.losses)}
    title, base = f"{MODELS[model]}, {PROTOCOLS[name].lower()}", losses[BASELINE].main_welfare
    columns: list[Column] = [
        versus("− log loss", f"In % {OF_BASELINE}; the wider interval.", lambda loss: loss.difference, base),
        versus("Calibrated", CALIBRATED, lambda loss: loss.calibrated, base),
    ]
    for key, heading in LEVELS.items():
        if result.data.known_ctr or key != "expected_welfare":
            columns.append((heading, "± standard error over repeats.", partial(_mean, name=key)))
    columns += CHOSEN if name == "tuned" else []
    gains = {loss: protocol.gain(loss) for loss in losses if loss != BASELINE}
    return Comparison(title, gains, [by_column(title, "Loss", columns, losses)], name == "tuned")


def _paper_table(result: CriteoResult) -> Table:
    """The paper's numbers beside ours, in its own protocol if that was run."""
    rows, nearest = [], result.config.protocols[0]
    for model, protocol in [(model, found) for model, name, found in result.protocols if name == nearest]:
        for loss in [loss for loss in PAPER.get(model, ()) if loss in protocol.losses]:
            here, (welfare, auc_loss, log_loss) = protocol.losses[loss], PAPER[model][loss]
            base, error = PAPER[model][BASELINE][0]
            there = f"{signed(100 * (welfare[0] / base - 1))} % ± {100 * math.hypot(welfare[1], error) / base:.2f}"
            gains = [there, gain_cell(protocol.gain(loss))] if loss != BASELINE else [Cell("reference")] * 2
            others = [number(x, 4) for x in (1 - auc_loss, here.auc, log_loss, here.log_loss)]
            rows.append((f"{MODELS[model]}, {loss}", [plus_minus(*welfare), _mean(here, "welfare"), *gains, *others]))
    independent = "Over its log loss, ± standard error as if both means were independent: it gives none."
    headings = [("Welfare, paper", "Bid × click of the winner."), ("here", ""), ("Gain, paper", independent)]
    headings += [("here", f"In % {OF_BASELINE}."), ("AUC, paper", "1 − the AUC loss that it prints."), ("here", "")]
    headings += [("Log loss, paper", ""), ("here", "")]
    caption = f"The paper’s tables, ten repeats on 45,840,617 ads, beside this run ({nearest})"
    return Table(caption, "Model and loss", headings, rows, explained=True)
