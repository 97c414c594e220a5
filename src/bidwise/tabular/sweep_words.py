"""What a sweep says: which setting validation chooses, what the test says of it, and what to beware of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bidwise.tabular.config import BASELINE
from bidwise.tabular.words import aligned

Result = Mapping[str, Any]
CHEATING = (
    "Test numbers of all settings are shown, but choosing by them would be cheating: the best of many test numbers is "
    "partly luck, and no rows would be left to find out how much of it."
)


def verdict(result: Result) -> list[dict[str, str]]:
    """The choice, then what the test says of it: sentences with their kind, the headline first."""
    settings, chosen = result["settings"], result["chosen"]
    failed = [trial for trial in result["trials"] if trial["failed"] is not None]
    if chosen is None:
        text = "No setting has finished with all of its seeds, so none is chosen."
        return [{"kind": "", "text": text}, *_failed(failed, result)]
    best = _named(settings, chosen["setting"])
    metric = result["by"].replace("_", " ")
    seeds = f", the mean of {len(best['seeds'])} seeds" if len(best["seeds"]) > 1 else ""
    value = best["validation"][result["by"]]["mean"]
    of = f" of {len(settings)} settings" if len(settings) > 1 else ""
    text = f"{best['name']} is chosen: its validation {metric} is the best{of}, {value:.5g}{seeds}."
    return [{"kind": "", "text": text}, *_tested(result, best), *_failed(failed, result)]


def _tested(result: Result, best: Result) -> list[dict[str, str]]:
    baseline = result["baseline"]
    welfare = best["test"]["welfare"]["mean"]
    if baseline is None:
        text = f"On test it has welfare {welfare:.5g} per auction. The grid has no {BASELINE} to compare it with."
        return [{"kind": "", "text": text}]
    if best["name"] == baseline:
        kind = "No other loss" if len({each["loss"] for each in result["settings"]}) > 1 else "No other setting"
        return [{"kind": "", "text": f"{kind} was better on validation; on test its welfare is {welfare:.5g}."}]
    found = best["difference"]["welfare"]
    outcome, change = found["outcome"], change_words(found)
    tuned = sum(each["loss"] == BASELINE for each in result["settings"]) > 1
    against = f"{baseline}" + (f", the best {BASELINE} by validation" if tuned else "")
    match outcome:
        case "better" | "worse":
            text = f"On test, which nothing was chosen by, it changes welfare by {change} against {against}."
        case "same":
            text = f"On test it shows the same ads as {against}."
        case "few":
            text = (
                f"On test it changes welfare by {change} against {against}, but shows other ads in only "
                f"{found['decisive_auctions']:,} of a seed's auctions: too few to tell."
            )
        case _:
            text = f"On test its welfare cannot be told from that of {against}: {change}."
    return [{"kind": outcome, "text": text}]


def _failed(failed: Sequence[Result], result: Result) -> list[dict[str, str]]:
    if not failed:
        return []
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    text = f"{len(failed)} of {len(result['trials'])} trials failed: {failed[0]['name']} ({failed[0]['failed']}){more}."
    return [{"kind": "worse", "text": text}]


def notes(result: Result) -> list[str]:
    """What a reader must know to read the numbers."""
    seeds, by = result["seeds"], result["by"]
    timed = result["config"].get("data.time")
    parts = "the initial weights and the batches"
    told = [
        CHEATING,
        f"A seed decides {parts}; the split goes by time and is the same for all seeds, so an interval over seeds says "
        "nothing about other test ads, and that over test auctions does."
        if timed
        else f"A seed decides the random split into training, validation and test ads, {parts}. Splits of one table "
        "share most of their ads: an interval over seeds is narrower than one over new tables would be.",
    ]
    if len(seeds) > 1:
        told.append(
            "Settings are compared inside of a seed, on the same ads and auctions, and the differences are averaged: "
            "what makes a seed's ads easy or hard cancels."
        )
    else:
        told.append(
            "There is one seed: how much of a difference is luck of the initial weights, and of the split where it is "
            'random, cannot be told. Add seeds: "train.seed" = [0, 1, 2].'
        )
    losses = {each["loss"] for each in result["settings"]}
    if by == "log_loss" and losses - {BASELINE}:
        told.append(
            "The choice is by validation log loss, which is what log_loss is trained for: it is at an advantage. "
            "--by welfare chooses by what auctions are for; with few validation auctions that is mostly chance."
        )
    compared = sum(each.get("difference") is not None for each in result["settings"])
    if compared > 1:
        told.append(
            f"{compared} settings are compared with {result['baseline']}, each with its own 95 % interval: of many "
            "settings without worth about one in twenty looks better or worse by chance. The chosen one was chosen "
            "by validation alone."
        )
    idle = [key for key in result["grid"] if all(key not in trial["settings"] for trial in result["trials"])]
    told += [f"{key} means nothing to any loss or model of this grid: its values were not told apart." for key in idle]
    return told


def change_words(found: Result) -> str:
    """A difference to the baseline with its interval, in per cent where there is something to take them of.

    >>> change_words({"difference": 0.2, "relative": 0.1, "relative_ci_low": -0.05, "relative_ci_high": 0.25})
    '+10.00 % [−5.00, +25.00]'
    """
    if found["difference"] is None:
        return "an unknown amount"
    if found["relative"] is None:
        return f"{found['difference']:+.3g}".replace("-", "−")
    low, high = found["relative_ci_low"], found["relative_ci_high"]
    interval = (
        ", without a finite interval" if low is None or high is None else f" [{100 * low:+.2f}, {100 * high:+.2f}]"
    )
    return f"{100 * found['relative']:+.2f} %{interval}".replace("-", "−")


def summary(result: Result) -> str:
    """The settings and the verdict, as they are printed at the end."""
    metric, chosen = result["by"].replace("_", " "), result["chosen"]
    against = [f"test, against {result['baseline']}"] if result["baseline"] else []
    rows = [["", "seeds", f"validation {metric}", "test welfare", *against]]
    for each in result["settings"]:
        mark = "* " if chosen and each["name"] == chosen["setting"] else "  "
        numbers = [each["validation"][result["by"]]["mean"], each["test"]["welfare"]["mean"]]
        cells = ["–" if x is None else f"{x:.5g}" for x in numbers]
        change = []
        if against:
            change = [change_words(each["difference"]["welfare"]) if each["difference"] else "–"]
        rows.append([mark + each["name"], str(len(each["seeds"])), *cells, *change])
    lines = [f"Means over seeds; * chosen by validation {metric}; welfare is per auction", ""]
    lines += [*aligned(rows, right=(1, 2, 3, 4)), ""]
    lines += [sentence["text"] for sentence in result["verdict"]]
    return "\n".join([*lines, CHEATING])


def _named(settings: Sequence[Result], name: str) -> Result:
    return next(setting for setting in settings if setting["name"] == name)
