"""The page of the Criteo experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

from bidwise.evaluation.estimate import NONE, signed
from bidwise.report.criteo_figures import bids, curves, lam_grid, welfare
from bidwise.report.criteo_sentences import (
    METRICS,
    MODELS,
    PAPER,
    auctions_of,
    compared_with_paper,
    notes,
    paper_gain,
    paper_slowdown,
    selected_on,
    verdict,
)
from bidwise.report.drawing import Picture
from bidwise.report.formatting import counted, decimals, number, per_cent
from bidwise.report.loss_styles import PROTOCOLS, families_drawn, in_order, losses_section
from bidwise.report.sections import (
    Cell,
    Column,
    Drawing,
    Run,
    RunPage,
    Section,
    Table,
    by_column,
    drawings,
    finding,
    measure_columns,
)
from bidwise.study.compare import Difference
from bidwise.study.criteo_results import CriteoResult, Levels, LossResult, Protocol
from bidwise.study.recipe import BASELINE

FULL = 45_840_617  # ads of the challenge
BIDS = {  # kind of bids -> how they come about
    "deepfm": "exp(h + noise), h the output of an untrained DeepFM, scaled to [0, 1]: the paper’s",
    "lognormal": "log-normal, independent of the ad",
    "advertiser": "log-normal around a level of each advertiser",
    "ctr": "log-normal, correlated with the true CTR",
    "residual": "log-normal by advertiser, correlated with what no sum over fields explains of the true CTR",
}
INTEGERS = {
    "winners": "⌊(ln x)²⌋ above 2, as the winners of the challenge did",
    "printed": "⌊log₂ x⌋ above 2, as the paper prints, under which some numbers fall together",
}
OF_LOG_LOSS = "Model − log loss on the same auctions, in % of the log loss’s welfare"
BOTH = "Better or worse where the intervals over repeats and over auctions both exclude 0 on the same side."
ERROR = "± standard error over repeats"
LEVELS = {  # measures that every table has, with their meaning
    "welfare": ("Realised welfare", f"Bid × click of the winner, mean per auction, {ERROR}."),
    "expected_welfare": ("Expected welfare", f"Bid × true CTR of the winner, mean per auction, {ERROR}."),
    "auc": ("AUC", f"Chance that a clicked ad is predicted above an unclicked one, {ERROR}."),
    "log_loss": ("Log loss", f"{ERROR}; lower is better."),
}
OTHERS = {  # key -> heading, meaning, decimals
    "revenue": ("Revenue", "What winners pay in a second-price auction, mean per auction; expected if known.", 4),
    "calibration_error": ("Calibration error", "Mean |predicted − observed CTR| over bins of equal mass.", 4),
    "predicted_over_observed": ("Pred./obs.", "Predicted clicks / observed clicks; 1 is right.", 3),
    "epoch": ("Epoch", "Selected on validation ads, mean over repeats.", 2),
}
WAYS = {"by_log_loss": "by log loss", "by_welfare": "by welfare", "by_truth": "by true CTR"}  # to select epoch and lam


def criteo_page(run: Run, key: str) -> RunPage:
    """Verdict, welfare against log loss, the paper's numbers, all of ours, λ, epochs, run time, bids, protocols."""
    result: CriteoResult = run.result
    headline, *sentences = verdict(result)
    return RunPage(
        run.name,
        "The paper’s Criteo experiment" + (", on simulated ads" if result.data.known_ctr else ""),
        headline,
        [("", sentence) for sentence in sentences],
        _facts(result),
        [
            *_welfare(key, result),
            Section("The paper’s numbers beside ours", _comparable(result), tables=_paper_tables(result)),
            *(
                Section(
                    f"All numbers: {MODELS[name]}",
                    f"Means over repeats on test auctions. {model.parameters:,} parameters, {model.batch_size:,} ads "
                    f"in a batch, {model.steps:,} steps.",
                    tables=[table for key, found in model.protocols.items() for table in _tables(result, key, found)],
                )
                for name, model in result.models.items()
            ),
            _lams(key, result),
            *_curves(key, result),
            Section(
                "What the losses cost",
                "Training steps timed in turns, so that a machine that slows down slows all losses alike. The paper "
                "reports +2.5 % for DeepFM (in a table that is headed DCN by mistake) and +0.8 % for DCN.",
                tables=[_runtime_table(result)],
            ),
            _bids(key, result),
            _protocols(result),
            losses_section(result.config.losses),
            Section("Notes", points=list(notes(result))),
        ],
    )


def _facts(result: CriteoResult) -> list[tuple[str, str]]:
    data, config = result.data, result.config
    facts = [(f"{config.rows:,}", f"rows of the world {config.world} simulated on the device")] if config.rows else []
    facts += [
        (f"{data.splits.train:,}", "training ads"),
        (f"{data.splits.valid:,}", "validation ads"),
        (f"{data.splits.test:,}", "test ads"),
        (per_cent(data.click_rate), "of the training ads are clicked"),
        (auctions_of(result), f"test auctions of {config.auction_size} ads"),
        (f"{data.values:,}", f"values of {data.fields} fields"),
        (f"{config.repeats:,}", f"{'repeat' if config.repeats == 1 else 'repeats'} of every training"),
    ]
    if data.truth is not None:
        scores = f"{number(data.truth.auc, 4)}, {number(data.truth.log_loss, 4)}"
        facts.append((number(data.optimal_welfare, 4), "optimal expected welfare: the true CTR decides"))
        facts.append((scores, "AUC and log loss of the true CTR on test ads"))
    return facts


def _by_model(key: str, result: CriteoResult, picture: Picture) -> dict[str, list[Drawing]]:
    """The figures of each model that has any: the titles of its panels begin with its name."""
    figures = drawings(key, picture)
    each = {name: [f for f in figures if f.title.startswith(f"{MODELS[name]}. ")] for name in result.models}
    return {name: found for name, found in each.items() if found}


def _welfare(key: str, result: CriteoResult) -> list[Section]:
    kind = "Expected welfare (bid × true CTR of the winner)" if result.data.known_ctr else "Realised welfare"
    lead = (
        f"{kind} of each loss − that of log loss on the same auctions, in % of the log loss’s. Upper, thick line: 95 % "
        "interval over repeats, chance in training; lower, thin line: over test auctions, chance in the ads that met. "
        "A difference counts as measured, ▲ or ▼ and a full mark, only where both exclude 0 on the same side; "
        "otherwise ≈ and a hollow mark."
        + (" One repeat has no interval over repeats." if result.config.repeats == 1 else "")
    )
    return [
        Section(
            f"Test welfare against log loss: {MODELS[name]}",
            lead if at == 0 else "As above.",
            legend=families_drawn(result.config.losses),
            figures=figures,
        )
        for at, (name, figures) in enumerate(_by_model(key, result, welfare(result)).items())
    ]


def _comparable(result: CriteoResult) -> str:
    """What may be compared with the paper's numbers."""
    if result.data.known_ctr:
        return (
            "These ads are simulated and the paper’s are not: levels cannot be compared, only the signs of "
            "differences. Welfare is realised in both; the gain of this run is of expected welfare, which varies less "
            "by chance."
        )
    ads, words = result.data.splits.ads, "The paper has ten repeats on all of the challenge’s ads"
    if ads != FULL:
        return f"{words}, {FULL:,}; this run has {ads:,} ads, so levels can differ for that reason alone."
    return f"{words}. Bids are drawn anew, so levels of welfare can differ for that reason alone."


def give_or_take(value: float, error: float, places: int = 4) -> str:
    """A mean with its standard error, where it has one.

    >>> give_or_take(1.23456, 0.012), give_or_take(1.2, math.nan, 2)
    ('1.2346 ± 0.0120', '1.20')
    """
    return number(value, places) + (f" ± {error:.{places}f}" if math.isfinite(error) else "")


def _mean(levels: Levels, name: str) -> str:
    return give_or_take(getattr(levels, name), getattr(levels, f"{name}_error"))


def _level_columns(result: CriteoResult) -> list[Column]:
    names = [name for name in LEVELS if result.data.known_ctr or name != "expected_welfare"]
    return [(*LEVELS[name], partial(_mean, name=name)) for name in names]


def _against(of: Callable[[Any], Difference | None], spec: str, what: str) -> list[Column]:
    """A difference with each of its intervals, and what was found."""

    def cell(row: Any, source: str) -> str:
        return "reference" if (difference := of(row)) is None else format(getattr(difference, source), spec)

    return [
        (
            f"{what}, over repeats",
            "With its 95 % interval over repeats: another training.",
            partial(cell, source="repeats"),
        ),
        (
            "over auctions",
            "The same with its interval over test auctions: other ads.",
            partial(cell, source="auctions"),
        ),
        ("Finding", BOTH, lambda row: finding(None if (found := of(row)) is None else found.outcome)),
    ]


def _tables(result: CriteoResult, name: str, protocol: Protocol) -> list[Table]:
    """All numbers of a protocol: an open table and folded ones."""
    losses = {loss: protocol.losses[loss] for loss in in_order(protocol.losses)}
    known, short, levels = result.data.known_ctr, name.capitalize(), _level_columns(result)
    level = losses[BASELINE].main_welfare
    gains = _against(lambda loss: loss.difference and loss.difference / level, "%", "− log loss")
    if any(loss.calibrated for loss in losses.values()):
        words = f"{OF_LOG_LOSS}, after Platt scaling of both on validation clicks, with the wider of its intervals."
        gains.append(
            ("Calibrated", words, lambda loss: f"{loss.calibrated / level:%}" if loss.calibrated else "reference")
        )
    differences = _against(attrgetter("difference_realised"), ".4f", "Realised")
    others = measure_columns(OTHERS, losses.values())
    if known:
        differences = [*_against(attrgetter("difference"), ".4f", "Expected"), *differences]
        share = "Expected welfare / the most that any prediction could reach."
        optimum = result.data.optimal_welfare
        others.insert(0, ("Share of optimum", share, lambda loss: per_cent(loss.expected_welfare / optimum)))
    if any(loss.lam for loss in losses.values()):
        selected = f"By validation {METRICS[result.tuned_by]}, {selected_on(result.config)}."
        others.append(("λ", selected, lambda loss: ", ".join(f"{lam:g}" for lam in loss.lam) or NONE))
    return [
        by_column(PROTOCOLS[name], "Loss", [*levels[:-2], *gains, *levels[-2:]], losses),
        by_column(f"{short}: differences in welfare per auction", "Loss", differences, losses, folded=True),
        by_column(f"{short}: other measures", "Loss", others, losses, folded=True),
        *_selections(result, name, protocol),
        _repeats(f"{short}: every repeat", losses),
    ]


def _repeats(caption: str, losses: Mapping[str, LossResult]) -> Table:
    lams, rows = any(loss.lam for loss in losses.values()), []
    for name, loss in losses.items():
        values = {key: each for key, each in vars(loss.repeats).items() if each}
        for k in range(len(loss.repeats.welfare)):
            lam = [f"{loss.lam[k]:g}" if loss.lam else NONE] if lams else []
            rows.append((f"{name}, {k + 1}", [*(number(each[k], 4) for each in values.values()), *lam]))
    headings = [(LEVELS[key][0], "") for key in values] + ([("λ", "")] if lams else [])
    return Table(caption, "Loss and repeat", headings, rows, folded=True)


def _selections(result: CriteoResult, name: str, protocol: Protocol) -> list[Table]:
    """What becomes of welfare when another metric, or the truth, selects the epoch, and lam if it may."""
    what = "the epoch" if result.config.lam_repeats else "epoch and λ"
    wider = f"{OF_LOG_LOSS} selected in the same way; the wider 95 % interval of repeats and auctions."
    columns: list[Column] = []
    for by, words in {"": f"by {METRICS[result.tuned_by]}", **WAYS}.items():
        if found := protocol.selected(by):
            on_test = f"On test auctions, {what} selected {words} on validation ads."
            gains = {n: "reference" if n == BASELINE else f"{protocol.gain(n, by):%}" for n in found}
            welfare = {n: number(loss.main_welfare, 4) for n, loss in found.items()}
            findings = {n: finding(loss.outcome) for n, loss in found.items()}
            columns += [(f"Welfare {words}", on_test, welfare.__getitem__), ("− log loss", wider, gains.__getitem__)]
            columns += [("Finding", BOTH, findings.__getitem__)]
    rows = {loss: loss for loss in in_order(protocol.losses)}
    table = by_column(f"{name.capitalize()}: other ways to select {what}", "Loss", columns, rows, folded=True)
    return [table] if len(columns) > 3 else []


def _paper_tables(result: CriteoResult) -> list[Table]:
    """The paper's numbers beside ours, for models and losses that it has; ours by its own protocol if that was run."""
    welfare, others = [], []
    for model, loss, protocol in compared_with_paper(result):
        title, paper, here = f"{MODELS[model]}, {loss}", PAPER[model][loss], protocol.losses[loss]
        gains: list[str | Cell] = ["reference", "reference", NONE]
        if loss != BASELINE:
            (there, error), gain = paper_gain(model, loss), protocol.gain(loss)
            gains = [f"{signed(100 * there)} % ± {100 * error:.2f}", f"{gain:%}", _signs(there, gain)]
        welfare.append((title, [give_or_take(*paper.welfare), _mean(here, "welfare"), *gains]))
        auc = [give_or_take(1 - paper.auc_loss[0], paper.auc_loss[1]), give_or_take(here.auc, here.auc_error)]
        others.append((title, [*auc, give_or_take(*paper.log_loss), _mean(here, "log_loss")]))
    caption, same = f"(our protocol: {result.config.protocols[0]})", "The same of this run."
    headings = [
        ("Welfare, paper", "Bid × click of the winner, mean over auctions and ten repeats, ± standard error."),
        ("Welfare, here", same),
        ("Gain, paper", "Difference to its log loss in %, ± standard error as if both means were independent."),
        ("Gain, here", f"{OF_LOG_LOSS}, with the wider of its 95 % intervals, over repeats and over auctions."),
        ("Signs", "Whether the difference here is measured, by both intervals, and has the paper’s sign."),
    ]
    further = [
        ("AUC, paper", "1 − the AUC loss that it prints, ± standard error; higher is better."),
        ("AUC, here", same),
        ("Log loss, paper", "± standard error; lower is better."),
        ("Log loss, here", same),
    ]
    return [
        Table(f"{words} {caption}", "Model and loss", columns, rows, explained=True)
        for words, columns, rows in (("Welfare", headings, welfare), ("AUC and log loss", further, others))
    ]


def _signs(there: float, gain: Difference) -> Cell:
    """Whether a measured difference has the paper's sign."""
    if not gain.outcome.clear:
        return finding(gain.outcome)
    same = (there > 0) == (gain.difference > 0)
    return Cell("✓ the same sign", "better") if same else Cell("✗ the other sign", "worse")


def _lams(key: str, result: CriteoResult) -> Section:
    columns, tables = [(heading, "", of) for heading, _, of in _level_columns(result)], []
    for name, model in result.models.items():
        rows: dict[str, Levels] = {
            f"{loss}, λ {at.lam:g}": at for loss in in_order(model.grid) for at in model.grid[loss]
        }
        if model.grid_log_loss is not None:
            rows[BASELINE] = model.grid_log_loss
            tables.append(by_column(f"{MODELS[name]} by λ", "Loss and λ", columns, rows, folded=True))
    first, bars = result.config.lam_repeats, "; bars are standard errors over repeats"
    repeats = "the first repeat" if first == 1 else f"the first {first} repeats"
    tried = (f", of {repeats}, which alone trained all of them" if first else "") + ("" if first == 1 else bars)
    return Section(
        "The weight λ of the log loss",
        "Pairs + λ × log loss: the larger λ, the nearer a loss is to log loss. Test auctions, every λ at its own best "
        f"epoch by validation {METRICS[result.tuned_by]}{tried}. The thick line is the model trained with log loss "
        "alone. Where the smallest λ dwarfs the rest it is beyond the frame; the table has it.",
        figures=drawings(key, lam_grid(result)),
        tables=tables,
    )


def _curves(key: str, result: CriteoResult) -> list[Section]:
    lam = "was selected" if result.config.lam_repeats else "most repeats selected"
    lead = (
        f"Validation auctions, mean over repeats, at the λ that {lam}. Epoch and λ are selected by "
        f"{METRICS[result.tuned_by]}. A loss that peaks early and falls later is trained for too long. "
        "Early epochs beyond the frame are cut off."
    )
    return [
        Section(f"Over the epochs: {MODELS[name]}", lead if at == 0 else "As above.", figures=figures)
        for at, (name, figures) in enumerate(_by_model(key, result, curves(result)).items())
    ]


def _runtime_table(result: CriteoResult) -> Table:
    """Seconds of an epoch under each loss, beside the paper's."""
    rows = []
    for name, model in result.models.items():
        for loss in in_order(model.runtime):
            times, paper = model.runtime[loss], PAPER.get(name, {}).get(loss)
            slower = f"{signed(100 * (times.relative - 1), '.1f')} % ± {100 * times.relative_sd:.1f}"
            slower_there = NONE if paper is None else f"{signed(100 * paper_slowdown(name, loss), '.1f')} %"
            cells = [
                give_or_take(times.seconds, times.sd, min(decimals([times.seconds], 4), 3)),
                "reference" if loss == BASELINE else slower,
                f"{times.segments:,}",
                NONE if paper is None else "{:,.0f} ± {:.0f}".format(*paper.seconds),
                "reference" if loss == BASELINE and paper else slower_there,
            ]
            rows.append((f"{MODELS[name]}, {loss}", cells))
    headings = [
        ("Seconds per epoch", "Mean ± standard deviation over segments, scaled to an epoch of this run’s ads."),
        ("Against log loss", "Mean of the ratios to the segment of the log loss in the same round, ± their deviation."),
        ("Segments", "How often a stretch of training steps was timed; the losses take turns."),
        ("Seconds, paper", "On the whole data and the paper’s machine, mean ± standard deviation of 15 epochs."),
        ("Against log loss, paper", "Ratio of the paper’s means."),
    ]
    return Table("Time of an epoch", "Model and loss", headings, rows, explained=True)


def _bids(key: str, result: CriteoResult) -> Section:
    drawn = result.data.bids
    terms = []
    if drawn is not None:
        terms = [("kind", f"{drawn.kind}: {BIDS.get(drawn.kind, 'given')}")]
        if (noise := drawn.options.get("noise")) is not None:
            terms.append(("noise", f"standard deviation {noise:g} of log bids"))
        terms.append(
            ("quantiles", ", ".join(f"{100 * float(at):g} %: {bid:.3g}" for at, bid in drawn.quantiles.items()))
        )
    lead = "The challenge’s ads come without bids: they are drawn, once for all models and losses."
    return Section("Bids", lead, figures=drawings(key, bids(result)), terms=terms)


def _protocols(result: CriteoResult) -> Section:
    config, data = result.config, result.data
    paragraphs = [
        "Every loss trains the same model on the same ads, from the same initial weights, with the same batches and "
        f"Adam at a rate of {config.learning_rate:g}; σ = {config.sigma:g} in losses of pairs. A repeat has its own "
        "initial weights and order of the ads. In training a batch is an auction.",
        (
            f"Test ads are cut into auctions of {config.auction_size} ads at random"
            if config.cuts
            else f"Welfare is the mean over all auctions of {config.auction_size} test ads that could be drawn"
        )
        + "; an auction shows the ad with the highest bid × predicted CTR. Realised welfare is bid × click of that ad"
        + (", expected welfare bid × true CTR." if data.known_ctr else ": nobody knows the true CTR here."),
    ]
    prepared = [f"integers become categories by {INTEGERS[data.integers]}"] if data.integers in INTEGERS else []
    prepared += [f"categories seen fewer than {data.min_count:,} times in training are one"] if data.min_count else []
    if prepared:
        words = "; ".join(prepared)
        paragraphs.append(f"{words[0].upper()}{words[1:]}.")
    terms = [(PROTOCOLS[name], _protocol(name, result)) for name in config.protocols]
    return Section("How it was done", paragraphs=paragraphs, terms=terms)


def _protocol(name: str, result: CriteoResult) -> str:
    """What a protocol does, in plain words."""
    config = result.config
    length = ", ".join(
        f"{MODELS[name]} {counted(model.epochs, 'epoch')} in batches of {model.batch_size:,}"
        for name, model in result.models.items()
    )
    if name == "converged":
        return (
            f"Every model trains to the end ({length}) and keeps its last weights; λ = {config.lam:g} as in the paper, "
            "nothing is selected. The teacher is the log-loss model at its end."
        )
    once = config.lam_repeats
    every = "epoch" if config.every == 1 else f"{config.every:g} epochs"
    return (
        f"{'The same trainings' if 'converged' in config.protocols else f'Trainings ({length})'}, evaluated on "
        f"validation auctions every {every}. Every loss gets the epoch, and where it has a λ the λ (of "
        f"{', '.join(f'{lam:g}' for lam in config.lams)}), that validation {METRICS[result.tuned_by]} selects"
        + (f", λ {selected_on(config)} and the epoch in each" if once else ", in each repeat")
        + f"; test auctions take no part. Losses with λ thus have {len(config.lams)} tries where the others have one. "
        + "The teacher is the log-loss model at its best epoch. For comparison "
        + f"{'the epoch is' if once else 'epoch and λ are'} also selected by "
        + f"{'realised welfare' if result.tuned_by == 'log_loss' else 'log loss'}"
        + (" and, as nobody could, by the true CTR." if result.data.known_ctr else ".")
    )
