"""The synthetic benchmark: its page, and its tables at the terminal."""

from __future__ import annotations

import math

from bidwise.evaluation.estimate import Outcome, signed
from bidwise.report.formatting import NONE, decimals, number, per_cent
from bidwise.report.loss_styles import PROTOCOLS, families_drawn, in_order, losses_section
from bidwise.report.sections import Cell, Run, RunPage, Section, Table, drawings
from bidwise.report.synthetic_figures import distributions, learning_curves, surrogates, welfare_by_loss
from bidwise.report.synthetic_sentences import (
    MARKS,
    READINGS,
    claims,
    how,
    notes,
    protocol_words,
    terminal_title,
    verdict,
)
from bidwise.report.text_tables import aligned
from bidwise.study.compare import Gain, points
from bidwise.study.recipe import BASELINE
from bidwise.study.synthetic_results import Losses, LossResult, SyntheticResult

FINDINGS = {
    Outcome.BETTER: "▲ better",
    Outcome.WORSE: "▼ worse",
    Outcome.UNCLEAR: "≈ unclear",
    Outcome.SAME: "= the same",
}
VERDICTS = {  # of claims: outcome, words
    "holds": ("better", "✓ holds"),
    "partly": ("unclear", "≈ partly"),
    "does not hold": ("worse", "✗ does not hold"),
    "unclear": ("unclear", "≈ unclear"),
}
TO_AVERAGE = (
    "Welfare − mean welfare of the paper’s six losses, ± its standard error over repeats, which is how the paper draws "
    "its error bars."
)


def synthetic_summary(result: SyntheticResult) -> str:
    """A table for every protocol and the verdict, for the terminal."""
    parts = []
    headings = ["loss", "welfare", "of optimum", "− log loss [95 %]", "calibrated", "AUC", "log loss"]
    for name, protocol in result.protocols.items():
        rows = []
        for loss, found in protocol.losses.items():
            differences = [points(found), signed(100 * found.calibrated.difference)] if loss != BASELINE else ["", ""]
            measures = [f"{found.auc:.4f}", f"{found.log_loss:.4f}"]
            row = [f"{found.outcome.mark} {loss}", f"{found.welfare:.4f}", per_cent(found.ratio)]
            rows.append([*row, *differences, *measures])
        parts += [terminal_title(name, result.config), "\n".join(aligned(headings, rows))]
    return "\n\n".join([*parts, MARKS, "\n".join(verdict(result))])


def synthetic_page(run: Run, key: str) -> RunPage:
    """Verdict, welfare by loss, the paper's claims, welfare over epochs, numbers, worlds, surrogates, protocol."""
    result: SyntheticResult = run.result
    config, protocols = result.config, result.protocols
    losses = dict.fromkeys(loss for found in protocols.values() for loss in found.losses)
    headline, *others = verdict(result)
    return RunPage(
        run.name,
        "The synthetic benchmark of the paper"
        if config.papers
        else "The synthetic benchmark in a world that the student cannot represent",
        headline,
        [("", sentence) for sentence in others],
        _facts(result),
        [
            Section(
                "Test welfare by loss",
                "Every model runs the same test auctions. Mark: mean difference to the model trained with log loss, in "
                "% of the optimal welfare, the most that any prediction could reach; line: 95 % interval over "
                "repeats. Hollow where the interval contains 0. The first number of a line is the share of the optimum "
                "that the loss reaches. Each panel has its own scale.",
                legend=families_drawn(losses),
                figures=drawings(key, welfare_by_loss(result)),
            ),
            _claims(result),
            Section(
                "Welfare over the epochs",
                "Welfare on validation auctions, mean over repeats; tuned, at the λ that each repeat selected. Bands "
                "are 95 % intervals, left out where they would cover each other: worlds differ more than losses do. A "
                "loss that peaks early and falls later is trained for too long. Early epochs below the frame are cut "
                "off.",
                figures=drawings(key, learning_curves(result)),
            ),
            Section(
                "All numbers",
                "Differences are model − log loss on the same auctions, in % of the optimal welfare; 95 % intervals.",
                tables=[table for name, found in protocols.items() for table in _tables(name, found.losses)],
            ),
            _worlds(key, result),
            Section(
                "What the losses put in place of the auction’s choice",
                "An auction shows one ad or the other: a step, which has no slope to learn from. The paper replaces "
                "the step by a smooth or a bent line (its Figure 1). At x = 0 the logistic is log 2 ≈ 0.69 for any σ, "
                "and both grow without bound to the left.",
                figures=drawings(key, surrogates()),
            ),
            Section(
                "How it was done",
                paragraphs=how(config),
                terms=[(PROTOCOLS.get(name, name), protocol_words(name, config)) for name in protocols],
            ),
            losses_section(losses),
            Section("Notes", points=notes(result)),
        ],
    )


def _facts(result: SyntheticResult) -> list[tuple[str, str]]:
    config = result.config
    once = config.repeats == 1
    return [
        (f"{config.repeats:,}", "repeat" if once else "repeats, each with its own world"),
        (f"{config.training_ads:,}", "training ads" if once else "training ads in each"),
        (f"{config.test_auctions:,}", f"test auctions of {config.auction_size} ads"),
        (number(result.optimal_welfare, 3), "optimal welfare of an auction: the true CTR decides"),
    ]


def _claims(result: SyntheticResult) -> Section:
    rows = []
    for claim in claims(result):
        outcome, words = VERDICTS[claim.verdict]
        cells = [Cell(claim.paper), Cell(claim.ours), Cell(words, outcome), Cell(claim.words or NONE)]
        rows.append((claim.claim, cells))
    headings = [("The paper", ""), ("This run", ""), ("Verdict", ""), ("In words", "")]
    table = Table("The paper’s claims, and this run", "Claim", headings, rows, wordy=True)
    lead = "What the paper says about this experiment, and what this run found."
    return Section("The paper’s claims", lead, tables=[table])


def _tables(protocol: str, losses: Losses) -> list[Table]:
    title = PROTOCOLS.get(protocol, protocol)
    return [_welfare(title, losses), _measures(title, losses), _repeats(title, losses)]


def _welfare(title: str, losses: Losses) -> Table:
    headings = [
        ("Share of optimum", "Welfare / the best that any prediction could reach, mean over repeats."),
        ("Difference", "Model − log loss, in % of the optimal welfare, with its 95 % interval."),
        ("Finding", "Whether the interval excludes 0, and on which side."),
        ("Share, calibrated", "The same after predictions were calibrated on validation ads."),
        ("Difference, calibrated", "Against the log loss, calibrated too."),
    ]
    by_clicks = any(loss.by_clicks for loss in losses.values())
    if by_clicks:
        about = "Epoch and λ selected by clicked welfare, which real logs have, not by true CTR."
        headings.append(("Share, selected by clicks", about))
        headings.append(("Difference, selected by clicks", "Against the log loss, selected in the same way."))
    rows = []
    for name in in_order(losses):
        loss = losses[name]
        finding = Cell(NONE)
        if name != BASELINE and math.isfinite(loss.difference):
            finding = Cell(FINDINGS[loss.outcome], loss.outcome.value)
        cells = [*_gain(name, loss), finding, *_gain(name, loss.calibrated)]
        rows.append((name, [*cells, *(_gain(name, loss.by_clicks) if by_clicks else [])]))
    return Table(f"{title}: welfare", "Loss", headings, rows, explained=True)


def _gain(name: str, gain: Gain | None) -> list[Cell]:
    if gain is None:
        return [Cell(NONE), Cell(NONE)]
    return [Cell(per_cent(gain.ratio)), Cell("reference" if name == BASELINE else points(gain))]


def _measures(title: str, losses: Losses) -> Table:
    every = [losses[name] for name in in_order(losses)]
    columns: list[tuple[str, str, list[float | None], int | None]] = [  # heading, meaning, values, decimals
        ("Welfare", "Bid × true CTR of the ad shown, mean per auction and repeat.", [x.welfare for x in every], None),
        ("Revenue", "What the ads shown pay in a second-price auction, per auction.", [x.revenue for x in every], None),
        ("AUC", "Chance that a clicked ad is predicted above an unclicked one.", [x.auc for x in every], 4),
        ("Log loss", "Mean −log of the probability of what happened; lower is better.", [x.log_loss for x in every], 4),
        ("Squared error", "Mean squared error of the CTR; lower is better.", [x.squared_error for x in every], 5),
        ("Best epoch", "Mean over repeats.", [x.epoch for x in every], 1),
    ]
    rows: list[tuple[str, list[Cell]]] = [(name, []) for name in in_order(losses)]
    headings = []
    for heading, meaning, values, places in columns:
        if any(value is not None for value in values):
            headings.append((heading, meaning))
            shown = decimals(values, 5) if places is None else places
            for (_, cells), value in zip(rows, values, strict=True):
                cells.append(Cell(number(value, shown)))
    if any(math.isfinite(loss.error_to_average) for loss in every):
        headings.append(("To average", TO_AVERAGE))
        places = decimals((loss.error_to_average for loss in every), 2)
        for (_, cells), loss in zip(rows, every, strict=True):
            mean, error = number(loss.difference_to_average, places, sign=True), number(loss.error_to_average, places)
            cells.append(Cell(f"{mean} ± {error}"))
    return Table(f"{title}: other measures", "Loss", headings, rows, folded=True, explained=True)


def _repeats(title: str, losses: Losses) -> Table:
    names = in_order(losses)
    rows = [
        (f"{k + 1}", [Cell(_repeat(losses[name], k)) for name in names]) for k in range(len(losses[BASELINE].ratios))
    ]
    lams = any(loss.lam for loss in losses.values())
    what = "share of optimum and selected λ" if lams else "share of optimum"
    headings = [(name, "") for name in names]
    return Table(f"{title}: {what} in every repeat", "Repeat", headings, rows, folded=True)


def _repeat(loss: LossResult, k: int) -> str:
    return per_cent(loss.ratios[k]) + (f", λ {loss.lam[k]:g}" if loss.lam else "")


def _worlds(key: str, result: SyntheticResult) -> Section:
    rows = []
    for reading, world in result.worlds.items():
        bids = (f"{x:.3g}" if math.isfinite(x) else NONE for x in (world.lowest_bid, world.highest_bid))
        rows.append((reading, [Cell(number(world.mean_ctr, 3)), *map(Cell, bids)]))
    headings = [("Mean CTR", ""), ("Lowest bid", ""), ("Highest bid", "")]
    return Section(
        "The worlds that ads are drawn from",
        "The paper’s formulas can be read in two ways (its Figure 4 shows one of them). "
        f"This run used the reading called {result.config.reading}.",
        figures=drawings(key, distributions(result)),
        tables=[Table("Worlds", "Reading", headings, rows)],
        terms=[(reading, READINGS[reading]) for reading in result.worlds if reading in READINGS],
    )
