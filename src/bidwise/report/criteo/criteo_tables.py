"""The tables of the Criteo experiment: all numbers of a model, by protocol, by lam and by repeat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bidwise.report.criteo.findings import (
    bounds,
    chosen_on,
    estimate,
    finding,
    give_or_take,
    interval,
    known,
    percentage,
    protocols_of,
    reference,
    share,
    shares,
    told,
)
from bidwise.report.formatting import NONE, number, per_cent
from bidwise.report.loss_styles import PROTOCOLS, in_order
from bidwise.report.sections import Cell, Table

Result = Mapping[str, Any]
Losses = Mapping[str, Result]
FINDINGS = {"better": "▲ better", "worse": "▼ worse", "unclear": "≈ cannot be told", "none": NONE}
OF_LOG_LOSS = "Model − log loss on the same auctions, in % of the log loss’s welfare."


def model_tables(result: Result, name: str) -> list[Table]:
    """All numbers of a model: for each protocol an open table and folded ones."""
    optimum = result["data"].get("optimal_welfare")
    tables = []
    for protocol, losses in protocols_of(result["models"][name]).items():
        title, names, short = PROTOCOLS.get(protocol, protocol), in_order(losses), protocol.capitalize()
        tables += [
            _welfare(title, names, losses),
            _differences(f"{short}: differences in welfare per auction", names, losses),
            _other(f"{short}: other measures", names, losses, optimum, chosen_on(result["config"])),
            *_choices(short, names, losses, "the epoch" if result["config"].get("lam_repeats") else "epoch and λ"),
            *_repeats(f"{short}: every repeat", names, losses),
        ]
    return tables


def _welfare(title: str, names: Sequence[str], losses: Losses) -> Table:
    expected = any(losses[name].get("expected_welfare") is not None for name in names)
    headings = [("Realised welfare", "Bid × click of the winner, mean per auction, ± standard error over repeats.")]
    if expected:
        words = "Bid × true CTR of the winner, mean per auction, ± standard error over repeats."
        headings += [("Expected welfare", words)]
    headings += [
        ("− log loss, %", OF_LOG_LOSS + (" Of expected welfare." if expected else " Of realised welfare.")),
        ("95 % over repeats", "Its interval over repeats: another training."),
        ("95 % over auctions", "Its interval over test auctions: other ads that meet."),
        ("Finding", "Better or worse where both intervals leave out 0 on the same side."),
        ("AUC loss", "1 − AUC, ± standard error over repeats; lower is better."),
        ("Log loss", "± standard error over repeats; lower is better."),
    ]
    rows = []
    for name in names:
        loss = losses[name]
        found, base, kind = loss["difference"], reference(losses, loss["difference"]), finding(loss["difference"])
        cells = [Cell(_mean(loss, key)) for key in ("welfare", *(["expected_welfare"] if expected else []))]
        if name == "log_loss":
            cells += [Cell("reference"), Cell(NONE), Cell(NONE), Cell(NONE)]
        else:
            cells += [Cell(percentage(share(estimate(found), base)))]
            cells += [Cell(interval(shares(found, base, source))) for source in ("repeats", "auctions")]
            cells += [Cell(FINDINGS[kind], "" if kind == "none" else kind)]
        rows.append((name, [*cells, *(Cell(_mean(loss, key)) for key in ("auc_loss", "log_loss"))]))
    return Table(title, "Loss", headings, rows, explained=True)


def _mean(loss: Result, key: str) -> str:
    return give_or_take(loss.get(key), loss.get(f"{key}_error"), 4)


def _differences(title: str, names: Iterable[str], losses: Losses) -> Table:
    """Differences as they are, not in per cent; realised ones too where expected ones are the main ones."""
    twins = any((losses[name]["difference"] or {}).get("of") == "expected" for name in names)
    keys = {"difference": "Expected" if twins else "Realised", **({"difference_realised": "Realised"} if twins else {})}
    headings = []
    for kind in keys.values():
        headings += [
            (f"{kind}", f"{kind} welfare − that of log loss, mean per auction."),
            ("over repeats", "95 % interval over repeats."),
            ("over auctions", "95 % interval over test auctions."),
            ("Finding", "Better or worse where both intervals leave out 0 on the same side."),
        ]
    rows = []
    for name in names:
        cells = []
        for key in keys:
            found = losses[name].get(key)
            kind = finding(found)
            cells += [Cell("reference" if name == "log_loss" else _signed(estimate(found)))]
            for source in ("repeats", "auctions"):
                ends = bounds(found, source)
                cells += [Cell(NONE if ends is None else f"[{_signed(ends[0])}, {_signed(ends[1])}]")]
            cells += [Cell(FINDINGS[kind], "" if kind == "none" else kind)]
        rows.append((name, cells))
    return Table(title, "Loss", headings, rows, folded=True)


def _signed(value: float | None) -> str:
    return number(value, 4, sign=True)


def _other(title: str, names: Sequence[str], losses: Losses, optimum: float | None, where: str) -> Table:
    columns: dict[str, tuple[str, str, int]] = {  # key -> heading, meaning, decimals
        "revenue": ("Revenue", "What winners pay in a second-price auction, mean per auction; expected if known.", 4),
        "auc": ("AUC", "Chance that a clicked ad is predicted above an unclicked one.", 4),
        "calibration_error": ("Calibration error", "Mean |predicted − observed CTR| over bins of equal mass.", 4),
        "predicted_over_observed": ("Pred./obs.", "Predicted clicks / observed clicks; 1 is right.", 3),
        "epoch": ("Epoch", "Chosen by validation welfare, mean over repeats.", 2),
    }
    present = [key for key in columns if any(losses[name].get(key) is not None for name in names)]
    headings = [columns[key][:2] for key in present]
    lams = any(losses[name].get("lam") for name in names)
    headings += [("λ", f"By validation welfare, {where}.")] if lams else []
    if optimum:
        headings.insert(0, ("Share of optimum", "Expected welfare / the most that any prediction could reach."))
    rows = []
    for name in names:
        cells = [Cell(number(known(losses[name].get(key)), columns[key][2])) for key in present]
        if optimum:
            cells.insert(0, Cell(per_cent(share(known(losses[name].get("expected_welfare")), optimum))))
        rows.append((name, [*cells, *([Cell(_lams(losses[name]))] if lams else [])]))
    return Table(title, "Loss", headings, rows, folded=True, explained=True)


def _lams(loss: Result) -> str:
    return ", ".join(f"{lam:g}" for lam in loss.get("lam") or () if lam is not None) or NONE


def _choices(protocol: str, names: Sequence[str], losses: Losses, what: str) -> list[Table]:
    """What becomes of welfare when the validation log loss, or the truth, chooses the epoch, and lam if it may."""
    ways = {"": "by welfare", "by_log_loss": "by log loss", "by_truth": "by true CTR"}
    there = [way for way in ways if not way or any(losses[name].get(way) for name in names)]
    if len(there) == 1:
        return []
    expected = any(losses[name].get("expected_welfare") is not None for name in names)
    kind, word = ("expected_welfare", "Expected") if expected else ("welfare", "Realised")
    headings = []
    for way in there:
        headings += [
            (f"{word} welfare, {ways[way]}", f"On test auctions, {what} chosen {ways[way]} on validation ads."),
            (
                "− log loss, %",
                "Against the log loss chosen in the same way; the wider 95 % interval of repeats and auctions.",
            ),
            ("Finding", "Better or worse where both intervals leave out 0 on the same side."),
        ]
    rows = []
    for name in names:
        cells = []
        for way in there:
            chosen = {loss: entry.get(way) or {} if way else entry for loss, entry in losses.items()}
            found = chosen[name].get("difference")
            which = finding(found)
            cells += [Cell(number(known(chosen[name].get(kind)), 4))]
            cells += [Cell("reference" if name == "log_loss" else told(found, reference(chosen, found)))]
            cells += [Cell(FINDINGS[which], "" if which == "none" else which)]
        rows.append((name, cells))
    title = f"{protocol}: other ways to choose {what}"
    return [Table(title, "Loss", headings, rows, folded=True, explained=True)]


def _repeats(title: str, names: Sequence[str], losses: Losses) -> list[Table]:
    columns = {
        "welfare": "Realised welfare",
        "expected_welfare": "Expected welfare",
        "auc": "AUC",
        "log_loss": "Log loss",
    }
    each = {name: losses[name].get("repeats") or {} for name in names}
    present = [key for key in columns if any(found.get(key) for found in each.values())]
    if not present:
        return []
    lams = any(losses[name].get("lam") for name in names)
    rows = []
    for name in names:
        for k in range(max(len(each[name].get(key) or ()) for key in present)):
            cells = [Cell(number(_at(each[name].get(key), k), 4)) for key in present]
            lam = _at(losses[name].get("lam"), k)
            cells += [Cell(NONE if lam is None else f"{lam:g}")] if lams else []
            rows.append((f"{name}, {k + 1}", cells))
    headings = [(columns[key], "") for key in present] + ([("λ", "")] if lams else [])
    return [Table(title, "Loss and repeat", headings, rows, folded=True)]


def _at(values: Sequence[float] | None, k: int) -> float | None:
    return known(values[k]) if values and k < len(values) else None


def grid_table(model: str, grid: Mapping[str, Sequence[Result]], base: Result) -> Table:
    """Test numbers by lam; the model trained with log loss in the last row."""
    expected = any(row.get("expected_welfare") is not None for rows in grid.values() for row in rows)
    columns = {
        "welfare": "Realised welfare",
        **({"expected_welfare": "Expected welfare"} if expected else {}),
        "auc_loss": "AUC loss",
        "log_loss": "Log loss",
    }
    entries = [(f"{name}, λ {row['lam']:g}", row) for name in in_order(grid) for row in grid[name]]
    rows = [(name, [Cell(_mean(row, key)) for key in columns]) for name, row in [*entries, ("log_loss", base)]]
    return Table(f"{model} by λ", "Loss and λ", [(words, "") for words in columns.values()], rows, folded=True)
