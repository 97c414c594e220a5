"""What a training run says: what it takes the table for before it begins, and what it found."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bidwise import distributed
from bidwise.evaluation.result import Evaluation
from bidwise.report.evaluation_sentences import verdicts
from bidwise.table.encode import Prepared
from bidwise.typed_json import from_json

Result = Mapping[str, Any]
TITLES = {"train": "training", "valid": "validation", "test": "test"}


def described(prepared: Prepared, parameters: int, losses: Sequence[str], device: str) -> str:
    """The columns, the splits and the model, before anything is trained."""
    about, config = prepared.about, prepared.config
    rows = [["column", "used as", "values", "missing", "why"]]
    for column in about["columns"]:
        values = f"{column['values']:,}" if column["values"] else "–"
        missing = f"{column['missing']:.1%}" if column["missing"] else "–"
        rows.append([column["name"], column["use"], values, missing, column["reason"]])
    lines = aligned(rows, right=(2, 3))
    timed = "from" in about["splits"]["train"]
    rows = [["split", "ads", "auctions", "clicked", *(["from", "to"] if timed else [])]]
    for name, part in about["splits"].items():
        size = prepared.auction_size
        cut = "–" if name == "train" or size is None else f"{part['ads'] // size:,} of {size}"
        auctions = cut if part["auctions"] is None else f"{part['auctions']:,}"
        times = [part["from"], part["to"]] if timed else []
        rows.append([TITLES[name], f"{part['ads']:,}", auctions, f"{part['click_rate']:.2%}", *times])
    lines += ["", *aligned(rows, right=(1, 2, 3))]
    fields = len(prepared.store.fields)
    told = f"{config.model.name} over {fields} columns, {parameters:,} parameters, on {device}{_together()}"
    many = f"{len(losses)} models, one for each loss: {', '.join(losses)}" if len(losses) > 1 else f"loss {losses[0]}"
    each = " each" if len(losses) > 1 else ""
    lines += ["", f"Model: {told}", f"Training: {many}; at most {config.train.epochs:g} epochs{each}"]
    lines.append(f"Categories seen less than {about['min_count']} times in training count as rare.")
    return "\n".join([*lines, *(f"Note: {note}" for note in about["notes"])])


def standing(prepared: Prepared, losses: Sequence[str]) -> list[str]:
    """Where an earlier run was cut off, if it was."""
    lines = []
    for name in losses:
        folder = prepared.folder / "fits" / name
        if (folder / "metrics.jsonl").is_file() and not (folder / "result.json").is_file():
            last = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1:]
            lines += [f"Training: {name} goes on after epoch {json.loads(entry)['epoch']:g}" for entry in last]
    return lines


def _together() -> str:
    return f", {distributed.count()} ranks together" if distributed.count() > 1 else ""


def aligned(rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """The lines of a table for the terminal; columns ``right`` are flush on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def verdict(result: Result) -> list[dict[str, str]]:
    """What was chosen and why, then what the test rows say of it: sentences with their kind, the headline first."""
    sentences = [_chosen(result)]
    evaluation = result["evaluation"]
    chosen = evaluation["models"][result["chosen"]]
    kind = "realised" if evaluation["welfare_of"] == "clicks" else "expected"
    facts = [f"{kind} welfare {chosen['welfare']:.5g} per auction"]
    if _known(chosen["auc"]):
        facts.append(f"AUC {chosen['auc']:.4f}")
    entropy = chosen.get("normalised_entropy")
    share = ""
    if _known(entropy):
        worse = "; it is worse than no model" if entropy > 1 else ""
        share = f" ({entropy:.3f} of what always predicting the mean would have{worse})"
    facts.append(f"log loss {chosen['log_loss']:.4f}{share}")
    if _known(chosen["predicted_over_observed"]):
        facts.append(f"{chosen['predicted_over_observed']:.3f} predicted clicks for each observed one")
    when = "newest" if "from" in result["splits"]["test"] else "held-out"
    many = f"{evaluation['ads']:,} {when} ads, which nothing was chosen by"
    sentences.append({"kind": "", "text": f"On test ({many}): {', '.join(facts)}."})
    for sentence in verdicts(from_json(Evaluation, evaluation)):
        if result["chosen"] in (sentence.model, sentence.baseline) and sentence.outcome is not None:
            sentences.append({"kind": sentence.outcome.value, "text": f"On test: {sentence.text}"})
    return sentences


def _known(number: Any) -> bool:
    return number is not None and number == number


def _chosen(result: Result) -> dict[str, str]:
    contest, chosen = result["contest"], result["chosen"]
    best = result["fits"][chosen]["best"][result["metric"]]
    metric = result["metric"].replace("_", " ")
    when = f"after {float(best['epoch']):g} epochs validation {metric} was best"
    if contest is None:
        return {"kind": "", "text": f"The model was trained with {chosen}; {when}."}
    others = [entry for entry in contest["candidates"] if entry["name"] != contest["baseline"]]
    where = f"{contest['auctions']:,} validation auctions, the half that no epoch was chosen by"
    if chosen != contest["baseline"]:
        entry = next(entry for entry in others if entry["name"] == chosen)
        text = (
            f"{chosen} is chosen: on {where} it raises welfare by {change_words(entry, contest)} over "
            f"{contest['baseline']}; {when}."
        )
        return {"kind": "better", "text": text}
    few = all(entry["outcome"] in ("few", "same") for entry in others)
    why = "there are too few to tell any other loss from it" if few else "no other loss is better beyond its interval"
    if all(entry["outcome"] == "same" for entry in others):
        why = "all losses show the same ads"
    text = f"{contest['baseline']} is kept: on {where}, {why}; {when}.{_needed(contest, others)}"
    return {"kind": "few" if few else "unclear", "text": text}


def _needed(contest: Result, others: Sequence[Result]) -> str:
    """How many auctions would narrow the intervals to 1 % of the welfare, which goes with the root of their number."""
    base = contest["candidates"][0]["welfare"]
    told = [entry for entry in others if entry["outcome"] not in ("few", "same") and _known(entry["ci_high"])]
    halves = sorted((entry["ci_high"] - entry["difference"]) / base for entry in told) if base else []
    if not halves or not 0.01 < halves[len(halves) // 2] < float("inf"):
        return ""
    half = halves[len(halves) // 2]
    needed = contest["auctions"] * (half / 0.01) ** 2
    digits = 10 ** max(0, math.floor(math.log10(needed)) - 1)
    rounded = math.ceil(needed / digits) * digits
    return f" Intervals are about ± {100 * half:.2g} % wide; ± 1 % would take about {rounded:,} such auctions."


def change_words(entry: Result, contest: Result) -> str:
    """A difference with its interval, in per cent of the baseline's welfare where it has any.

    >>> entry = {"difference": 0.02, "ci_low": 0.01, "ci_high": 0.03}
    >>> change_words(entry, {"candidates": [{"welfare": 2.0}]})
    '1.00 % [0.50, 1.50]'
    """
    base = contest["candidates"][0]["welfare"]
    scale, unit, digits = (100 / base, " %", ".2f") if base else (1.0, "", ".3g")
    found = (entry["difference"], entry["ci_low"], entry["ci_high"])
    if not all(_known(x) and abs(x) < float("inf") for x in found):
        return f"{found[0] * scale:{digits}}{unit}, without a finite interval".replace("-", "−")
    size, low, high = (f"{x * scale:{digits}}" for x in found)
    return f"{size}{unit} [{low}, {high}]".replace("-", "−")


def summary(result: Result) -> str:
    """The contest and the verdict, as they are printed at the end."""
    lines = []
    contest = result["contest"]
    if contest:
        words = {
            "unclear": "cannot be told apart",
            "few": "too few auctions",
            "same": "same ads",
        }
        rows = [["", "welfare", f"against {contest['baseline']}", "auctions that differ", ""]]
        for entry in contest["candidates"]:
            base = entry["name"] == contest["baseline"]
            change = "–" if base else change_words(entry, contest)
            mark = "* " if entry["name"] == result["chosen"] else "  "
            differ = "–" if base else f"{entry['changed_auctions']:,}"
            told = "baseline" if base else words.get(entry["outcome"], entry["outcome"])
            rows.append([mark + entry["name"], f"{entry['welfare']:.5g}", change, differ, told])
        level = f"{100 * contest['level']:.4g}"
        lines += [
            f"Contest on {contest['auctions']:,} validation auctions; * chosen; intervals of {level} % each, so that "
            "all hold at once in 95 of 100 contests",
            "",
            *aligned(rows, right=(1, 2, 3)),
            "",
        ]
    models = result["evaluation"]["models"]
    if len(models) > 1:
        kind = "realised" if result["evaluation"]["welfare_of"] == "clicks" else "expected"
        rows = [["", "welfare", "AUC", "log loss", "pred/obs"]]
        for name, found in models.items():
            mark = "* " if name == result["chosen"] else "  "
            numbers = [(found["welfare"], ".5g"), (found["auc"], ".4f"), (found["log_loss"], ".4f")]
            numbers.append((found["predicted_over_observed"], ".3f"))
            rows.append([mark + name, *(f"{x:{digits}}" if _known(x) else "–" for x, digits in numbers)])
        many = f"{result['evaluation']['ads']:,} ads in {result['evaluation']['auctions']:,} auctions"
        lines += [f"Test, {many}; {kind} welfare per auction; * chosen", "", *aligned(rows, right=(1, 2, 3, 4)), ""]
    lines += [sentence["text"] for sentence in result["verdict"]]
    return "\n".join(lines)
