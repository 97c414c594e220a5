"""What a sweep says: which setting validation chooses, what the test says of it, and what to beware of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bidwise.table.compare import as_shown
from bidwise.table.config import BASELINE

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
    tied = _tied(settings, best, result["by"])
    if len(settings) == 1:
        text = f"{best['name']} is the only setting: its validation {metric} is {value:.5g}{seeds}."
    elif tied:
        among = f"{', '.join(tied[:3])}{f' and {len(tied) - 3} more' if len(tied) > 3 else ''}"
        text = (
            f"{best['name']} is chosen, but tied with {among}: to the digits shown their validation {metric} is the "
            f"same, {value:.5g}{seeds}, and the first of the grid is taken."
        )
    else:
        text = f"{best['name']} is chosen: its validation {metric} is the best of {len(settings)} settings, "
        text += f"{value:.5g}{seeds}."
    return [{"kind": "", "text": text}, *_tested(result, best), *_failed(failed, result)]


def _tied(settings: Sequence[Result], best: Result, by: str) -> list[str]:
    """The other settings that could be chosen as well."""
    means = {each["name"]: each["validation"][by]["mean"] for each in settings if each["complete"]}
    shown = {name: as_shown(mean) for name, mean in means.items() if mean is not None}
    return [name for name, mean in shown.items() if name != best["name"] and mean == shown[best["name"]]]


def _no_baseline(result: Result) -> str:
    """Why nothing is compared with the log loss."""
    if any(each["loss"] == BASELINE for each in result["settings"]):
        return f"No trial of {BASELINE} has finished to compare it with."
    return f"The grid has no {BASELINE} to compare it with."


def _lacking(result: Result) -> list[int]:
    """Seeds that the baseline lacks: its differences are in the others alone."""
    if result["baseline"] is None:
        return []
    return [seed for seed in result["seeds"] if seed not in _named(result["settings"], result["baseline"])["seeds"]]


def _tested(result: Result, best: Result) -> list[dict[str, str]]:
    baseline = result["baseline"]
    welfare = best["test"]["welfare"]["mean"]
    if baseline is None:
        return [{"kind": "", "text": f"On test it has welfare {welfare:.5g} per auction. {_no_baseline(result)}"}]
    if best["name"] == baseline:
        kind = "No other loss" if len({each["loss"] for each in result["settings"]}) > 1 else "No other setting"
        text = f"{kind} was better on validation; on test its welfare is {welfare:.5g}."
        if len(result["settings"]) == 1:
            text = f"On test its welfare is {welfare:.5g} per auction."
        return [{"kind": "", "text": text}]
    found = best["difference"]["welfare"]
    outcome, change = found["outcome"], change_words(found)
    tuned = sum(each["loss"] == BASELINE for each in result["settings"]) > 1
    against = f"{baseline}" + (f", the best {BASELINE} by validation" if tuned else "")
    if _lacking(result):
        against += f" (in {_seed_words(best['difference']['seeds'])}, which both have)"
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
    if _lacking(result):
        told.append(
            f"{result['baseline']} lacks {_seed_words(_lacking(result))}, whose trials failed: differences to it are "
            "taken in the other seeds alone. The same command tries them again."
        )
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


def _seed_words(seeds: Sequence[int]) -> str:
    """``[0] -> "seed 0"``, ``[0, 2] -> "seeds 0, 2"``."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def change_words(found: Result) -> str:
    """A difference to the baseline with its interval, in per cent where there is something to take them of.

    >>> change_words({"difference": 0.2, "relative": 0.1, "relative_ci_low": -0.05, "relative_ci_high": 0.25})
    '+10.00 % [−5.00, +25.00]'
    >>> change_words({"difference": -1e-9, "relative": -1e-9, "relative_ci_low": None, "relative_ci_high": None})
    '0.00 % (too few auctions for an interval)'
    """
    if found["difference"] is None:
        return "an unknown amount"
    if found["relative"] is None:
        return f"{found['difference']:+.3g}".replace("-", "−")
    low, high = found["relative_ci_low"], found["relative_ci_high"]
    if low is None or high is None:
        return f"{_per_cent(found['relative'])} % (too few auctions for an interval)"
    return f"{_per_cent(found['relative'])} % [{_per_cent(low)}, {_per_cent(high)}]"


def _per_cent(share: float) -> str:
    """Hundredths with their sign, 0 without one."""
    words = f"{100 * share:+.2f}".replace("-", "−")
    return "0.00" if words[1:] == "0.00" else words


def summary(result: Result) -> str:
    """The settings and the verdict, as they are printed at the end."""
    from bidwise.report.formatting import aligned  # late: report may import this module

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
