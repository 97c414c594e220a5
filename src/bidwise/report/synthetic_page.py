"""The synthetic benchmark: its page, and its tables at the terminal."""

from __future__ import annotations

import math

from bidwise.evaluation.estimate import signed
from bidwise.report.formatting import NONE, aligned, decimals, number, per_cent
from bidwise.report.loss_styles import PROTOCOLS, families_drawn, in_order, losses_section
from bidwise.report.sections import Cell, Run, RunPage, Section, Table, by_column, drawings, finding, measure_columns
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
from bidwise.study.compare import Gain, points
from bidwise.study.recipe import BASELINE
from bidwise.study.synthetic_results import Losses, LossResult, SyntheticResult

VERDICTS = {  # of claims: outcome, words
    "holds": ("better", "✓ holds"),
    "partly": ("unclear", "≈ partly"),
    "does not hold": ("worse", "✗ does not hold"),
    "unclear": ("unclear", "≈ unclear"),
}
MEASURES = {  # field -> heading, meaning, decimals
    "welfare": ("Welfare", "Bid × true CTR of the ad shown, mean per auction and repeat.", None),
    "revenue": ("Revenue", "What the ads shown pay in a second-price auction, per auction.", None),
    "auc": ("AUC", "Chance that a clicked ad is predicted above an unclicked one.", 4),
    "log_loss": ("Log loss", "Mean −log of the probability of what happened; lower is better.", 4),
    "squared_error": ("Squared error", "Mean squared error of the CTR; lower is better.", 5),
    "epoch": ("Best epoch", "Mean over repeats.", 1),
}
TO_AVERAGE = (
    "Welfare − mean welfare of the paper’s six losses, ± its standard error over repeats, which is how the paper draws "
    "its error bars."
)


def synthetic_summary(result: SyntheticResult) -> str:
    """A table for every protocol and the verdict, for the terminal."""
    parts = []
    headings = ["  loss", "welfare", "of optimum", "− log loss [95 %]", "calibrated", "AUC", "log loss"]
    for name, protocol in result.protocols.items():
        rows = []
        for loss, found in protocol.losses.items():
            differences = [points(found), signed(100 * found.calibrated.difference)] if loss != BASELINE else ["", ""]
            measures = [f"{found.auc:.4f}", f"{found.log_loss:.4f}"]
            row = [f"{found.outcome.mark} {loss}", f"{found.welfare:.4f}", per_cent(found.ratio)]
            rows.append([*row, *differences, *measures])
        parts += [terminal_title(name, result.config), "\n".join(aligned([headings, *rows]))]
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
        cells: list[Cell | str] = [claim.paper, claim.ours, Cell(words, outcome), claim.words or NONE]
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
        known = name != BASELINE and math.isfinite(loss.difference)
        cells: list[Cell | str] = [
            *_gain(name, loss),
            finding(loss.outcome if known else None),
            *_gain(name, loss.calibrated),
        ]
        rows.append((name, [*cells, *(_gain(name, loss.by_clicks) if by_clicks else [])]))
    return Table(f"{title}: welfare", "Loss", headings, rows, explained=True)


def _gain(name: str, gain: Gain | None) -> list[str]:
    if gain is None:
        return [NONE, NONE]
    return [per_cent(gain.ratio), "reference" if name == BASELINE else points(gain)]


def _measures(title: str, losses: Losses) -> Table:
    rows = {name: losses[name] for name in in_order(losses)}
    columns = measure_columns(MEASURES, rows.values())
    places = decimals((loss.error_to_average for loss in rows.values()), 2)

    def to_average(loss: LossResult) -> str:
        mean = number(loss.difference_to_average, places, sign=True)
        return f"{mean} ± {number(loss.error_to_average, places)}"

    if any(math.isfinite(loss.error_to_average) for loss in rows.values()):
        columns.append(("To average", TO_AVERAGE, to_average))
    return by_column(f"{title}: other measures", "Loss", columns, rows, folded=True)


def _repeats(title: str, losses: Losses) -> Table:
    names = in_order(losses)
    rows = [(f"{k + 1}", [_repeat(losses[name], k) for name in names]) for k in range(len(losses[BASELINE].ratios))]
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
        rows.append((reading, [number(world.mean_ctr, 3), *bids]))
    headings = [("Mean CTR", ""), ("Lowest bid", ""), ("Highest bid", "")]
    return Section(
        "The worlds that ads are drawn from",
        "The paper’s formulas can be read in two ways (its Figure 4 shows one of them). "
        f"This run used the reading called {result.config.reading}.",
        figures=drawings(key, distributions(result)),
        tables=[Table("Worlds", "Reading", headings, rows)],
        terms=[(reading, READINGS[reading]) for reading in result.worlds if reading in READINGS],
    )
