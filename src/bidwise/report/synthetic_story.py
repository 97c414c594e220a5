"""The synthetic benchmark as a page tells it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bidwise.report.curves import learning_curves
from bidwise.report.experiment_figures import distributions, families_drawn, surrogates, welfare_by_loss
from bidwise.report.formatting import NONE, decimals, number, per_cent, points
from bidwise.report.loss_styles import PROTOCOLS, in_order, loss_called, protocol_words
from bidwise.report.regime_figures import outcome
from bidwise.report.sections import Cell, Run, RunPage, Section, Table, drawings

Result = Mapping[str, Any]
FINDINGS = {"better": "▲ better", "worse": "▼ worse", "unclear": "≈ cannot be told", "same": "= the same", "none": NONE}
VERDICTS = {
    "holds": ("better", "✓ holds"),
    "does not hold": ("worse", "✗ does not hold"),
    "unclear": ("unclear", "≈ unclear"),
}
TO_AVERAGE = (
    "Welfare − mean welfare of the paper’s six losses, ± its standard error over repeats, which is how the paper draws "
    "its error bars."
)
READINGS = {
    "plotted": "The default. Weights a tenth of the printed ones, which gives the picture that the paper describes: "
    "CTRs around one half, bids within a few powers of ten.",
    "printed": "The numbers as the paper prints them. CTRs pile up at 0 and 1, bids spread over many powers of ten.",
    "misspecified": "Not of the paper: a world with curves that a linear model cannot follow.",
    "misspecified_rare": "The same with rare clicks.",
}


def synthetic_story(run: Run, key: str) -> RunPage:
    """Verdict, welfare by loss, the paper's claims, welfare over epochs, numbers, worlds, surrogates, protocol."""
    name, result = run.name, run.result
    config, protocols = result["config"], shown(result)
    return RunPage(
        name,
        "The synthetic benchmark of the paper"
        if result["config"].get("reading") in ("plotted", "printed")
        else "The synthetic benchmark in a world that the student cannot represent",
        result["verdict"][0] if result["verdict"] else "No verdict was written for this run.",
        [("", sentence) for sentence in result["verdict"][1:]],
        _facts(result),
        [
            Section(
                "Test welfare by loss",
                "Every model runs the same test auctions. Mark: mean difference to the model trained with log loss, in "
                "% of the optimal welfare, the most that any prediction could reach; line: 95 % interval over "
                "repeats. Hollow where the interval holds 0. The first number of a line is the share of the optimum "
                "that the loss reaches. Each panel has its own scale.",
                legend=families_drawn(result),
                figures=drawings(key, welfare_by_loss(result)),
            ),
            *_claims(result),
            Section(
                "Welfare over the epochs",
                "Welfare on validation auctions, mean over repeats; tuned, at the λ that each repeat chose. "
                "Bands are 95 % intervals, left out where they "
                "would cover each other: worlds differ more than losses do. A loss that peaks early and falls later is "
                "trained for too long. Early epochs below the frame are cut off.",
                figures=drawings(key, learning_curves(result)),
            ),
            Section(
                "All numbers",
                "Differences are model − log loss on the same auctions, in % of the optimal welfare; 95 % intervals.",
                tables=[table for protocol in protocols for table in _tables(protocol, protocols[protocol])],
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
                paragraphs=_setting(config),
                terms=[(PROTOCOLS.get(protocol, protocol), protocol_words(protocol, config)) for protocol in protocols],
            ),
            Section("The losses", terms=[(loss, loss_called(loss).about) for loss in in_order(_names(result))]),
            *([Section("Notes", points=result["notes"])] if result["notes"] else []),
        ],
    )


def shown(result: Result) -> dict[str, Mapping[str, Result]]:
    """The losses of each protocol that was run."""
    found = result["protocols"]
    names = [*(name for name in PROTOCOLS if name in found), *(name for name in found if name not in PROTOCOLS)]
    return {name: found[name]["losses"] for name in names if found[name] and found[name].get("losses")}


def _names(result: Result) -> list[str]:
    return list(dict.fromkeys(name for losses in shown(result).values() for name in losses))


def _facts(result: Result) -> list[tuple[str, str]]:
    config = result["config"]
    auctions, size = config.get("test_auctions"), config.get("auction_size")
    counted = [
        (config.get("repeats"), "repeat" if config.get("repeats") == 1 else "repeats, each with its own world"),
        (config.get("training_ads"), "training ads in each" if config.get("repeats") != 1 else "training ads"),
        (auctions, f"test auctions of {size} ads" if size else "test auctions"),
    ]
    return [
        *((f"{count:,}", what) for count, what in counted if count is not None),
        (number(result["optimal_welfare"], 3), "optimal welfare of an auction: the true CTR decides"),
    ]


def _claims(result: Result) -> list[Section]:
    rows = []
    for claim in result["claims"]:
        kind, words = VERDICTS.get(claim["verdict"], ("unclear", claim["verdict"]))
        cells = [Cell(claim[key] or NONE) for key in ("paper", "ours")]
        rows.append((claim["claim"], [*cells, Cell(words, kind), Cell(claim["words"] or NONE)]))
    if not rows:
        return []
    headings = [("The paper", ""), ("This run", ""), ("Verdict", ""), ("In words", "")]
    lead = "What the paper says about this experiment, and what this run found."
    table = Table("The paper’s claims, and this run", "Claim", headings, rows, wordy=True)
    return [Section("The paper’s claims", lead, tables=[table])]


def _tables(protocol: str, losses: Mapping[str, Result]) -> list[Table]:
    title, names = PROTOCOLS.get(protocol, protocol), in_order(losses)
    return [
        _welfare_table(title, names, losses),
        _measures_table(title, names, losses),
        *_repeats_table(title, names, losses),
    ]


def _welfare_table(title: str, names: Iterable[str], losses: Mapping[str, Result]) -> Table:
    clicks = any("by_clicks" in loss for loss in losses.values())
    headings = [
        ("Share of optimum", "Welfare / the best that any prediction could reach, mean over repeats."),
        ("Difference", "Model − log loss, in % of the optimal welfare, with its 95 % interval."),
        ("Finding", "Whether the interval leaves out 0, and on which side."),
        ("Share, calibrated", "The same after predictions were calibrated on validation ads."),
        ("Difference, calibrated", "Against the log loss, calibrated too."),
    ]
    if clicks:
        headings += [
            (
                "Share, chosen by clicks",
                "Epoch and λ chosen by clicked welfare, which real logs have, not by true CTR.",
            ),
            ("Difference, chosen by clicks", "Against the log loss, chosen in the same way."),
        ]
    rows = []
    for name in names:
        loss = losses[name]
        cells = [per_cent(loss["ratio"]), _points(name, loss)]
        kind = "none" if name == "log_loss" else outcome(loss)
        if kind == "unclear" and loss["ci_low"] == loss["ci_high"] == 0:
            kind = "same"
        found = [Cell(text) for text in cells] + [Cell(FINDINGS[kind], "" if kind == "none" else kind)]
        for other in ("calibrated", *(["by_clicks"] if clicks else [])):
            twin = loss.get(other)
            found += [Cell(per_cent(twin["ratio"])), Cell(_points(name, twin))] if twin else [Cell(NONE), Cell(NONE)]
        rows.append((name, found))
    return Table(f"{title}: welfare", "Loss", headings, rows, explained=True)


def _points(name: str, found: Result) -> str:
    return "reference" if name == "log_loss" else points(found)


def _measures_table(title: str, names: Sequence[str], losses: Mapping[str, Result]) -> Table:
    columns: dict[str, tuple[str, str, int | None]] = {  # key -> heading, meaning, decimals
        "welfare": ("Welfare", "Bid × true CTR of the ad shown, mean per auction and repeat.", None),
        "revenue": ("Revenue", "What the ads shown pay in a second-price auction, mean per auction.", None),
        "auc": ("AUC", "Chance that a clicked ad is predicted above an unclicked one.", 4),
        "log_loss": ("Log loss", "Mean −log of the probability given to what happened; lower is better.", 4),
        "squared_error": ("Squared error", "Mean squared distance of predicted and true CTR; lower is better.", 5),
        "epoch": ("Best epoch", "Mean over repeats.", 1),
    }
    present = [key for key in columns if any(losses[name].get(key) is not None for name in names)]
    rows: list[tuple[str, list[Cell]]] = [(name, []) for name in names]
    for key in present:
        places = columns[key][2]
        if places is None:
            places = decimals((losses[name].get(key) for name in names), 5)
        for name, cells in rows:
            cells.append(Cell(number(losses[name].get(key), places)))
    headings = [columns[key][:2] for key in present]
    if any(losses[name].get("error_to_average") is not None for name in names):
        headings.append(("To average", TO_AVERAGE))
        places = decimals((losses[name].get("error_to_average") for name in names), 2)
        for name, cells in rows:
            mean, error = (losses[name].get(f"{key}_to_average") for key in ("difference", "error"))
            cells.append(Cell(f"{number(mean, places, sign=True)} ± {number(error, places)}"))
    return Table(f"{title}: other measures", "Loss", headings, rows, folded=True, explained=True)


def _repeats_table(title: str, names: Sequence[str], losses: Mapping[str, Result]) -> list[Table]:
    repeats = max((len(losses[name].get("ratios") or ()) for name in names), default=0)
    if not repeats:
        return []
    lams = any(losses[name].get("lam") for name in names)
    rows = []
    for k in range(repeats):
        cells = []
        for name in names:
            share, lam = (dict(enumerate(losses[name].get(key) or ())).get(k) for key in ("ratios", "lam"))
            cells.append(Cell(per_cent(share) + (f", λ {lam:g}" if lam is not None else "")))
        rows.append((f"{k + 1}", cells))
    what = "share of optimum and chosen λ" if lams else "share of optimum"
    headings = [(name, "") for name in names]
    return [Table(f"{title}: {what} in every repeat", "Repeat", headings, rows, folded=True)]


def _worlds(key: str, result: Result) -> Section:
    rows = []
    for reading, world in result["worlds"].items():
        bids = [f"{world[end]:.3g}" if world.get(end) is not None else NONE for end in ("lowest_bid", "highest_bid")]
        rows.append((reading, [Cell(number(world.get("mean_ctr"), 3)), *map(Cell, bids)]))
    headings = [("Mean CTR", ""), ("Lowest bid", ""), ("Highest bid", "")]
    return Section(
        "The worlds that ads are drawn from",
        "The paper’s formulas can be read in two ways (its Figure 4 shows one of them). "
        f"This run used the reading called {result['config'].get('reading', 'plotted')}.",
        figures=drawings(key, distributions(result)),
        tables=[Table("Worlds", "Reading", headings, rows)] if rows else [],
        terms=[(reading, READINGS[reading]) for reading in result["worlds"] if reading in READINGS],
    )


def _setting(config: Mapping[str, Any]) -> list[str]:
    student = {"mlp": "a network with one hidden layer of 50", "logistic_regression": "a logistic regression"}
    words = "Each repeat draws a world, training ads, validation and test auctions. Every loss then trains "
    words += student.get(str(config.get("student")), "the same kind of model")
    words += " on the same ads, from the same initial weights, with the same batches"
    if config.get("batch_size") and config.get("rate") is not None:
        words += f" of {config['batch_size']:,} ads and Adam at a rate of {config['rate']:g}"
    return [
        words + ".",
        "An auction shows the ad with the highest bid × predicted CTR. Its welfare is bid × true CTR of that ad, which "
        "is known here because the world is made up.",
    ]
