"""What the trials of a sweep say together: means over seeds, differences inside of seeds, the choice by validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.data.read_table import cut_auctions, read_ads
from bidwise.evaluation.comparison import Comparison, compared
from bidwise.evaluation.estimate import Outcome
from bidwise.evaluation.evaluate import metrics_of
from bidwise.evaluation.intervals import repeat_interval
from bidwise.run_folder import read_json
from bidwise.table.config import BASELINE
from bidwise.table.grid import Trial
from bidwise.table.trials import VALIDATED, VALIDATION
from bidwise.training.validation import METRICS
from bidwise.typed_json import to_json

TESTED = ("welfare", "revenue", "auc", "log_loss", "predicted_over_observed")
COMPARED = ("welfare", "log_loss")
ENDS = ("ci_low", "ci_high")

Result = dict[str, Any]


def numbers_of(trial: Trial, folder: Path, failed: str | None) -> Result:
    """One trial: what it was told, and the numbers of the model that it kept."""
    found: Result = {
        "name": trial.name,
        "setting": trial.setting,
        "settings": to_json(trial.settings),
        "loss": trial.config.train.loss,
        "seed": trial.seed,
        "failed": failed,
    }
    if failed is not None:
        return found
    result = read_json(folder / "result.json")
    test = result["evaluation"]["models"][result["chosen"]]
    return found | {
        "kept": result["chosen"],
        "validation": {name: read_json(folder / VALIDATION)[name] for name in VALIDATED},
        "test": {name: test[name] for name in TESTED},
        "test_auctions": result["evaluation"]["auctions"],
        "seconds": read_json(folder / "environment.json").get("seconds"),
    }


def settings_of(trials: Sequence[Result]) -> list[Result]:
    """Trials of all seeds together, in the order of the grid; ``complete`` where none failed."""
    settings = []
    for name in dict.fromkeys(trial["setting"] for trial in trials):
        of_it = [trial for trial in trials if trial["setting"] == name]
        done = [trial for trial in of_it if trial["failed"] is None]
        settings.append(
            {
                "name": name,
                "loss": of_it[0]["loss"],
                "complete": len(done) == len(of_it),
                "seeds": [trial["seed"] for trial in done],
                "trials": [trial["name"] for trial in done],
                "validation": {m: mean_of(trial["validation"][m] for trial in done) for m in VALIDATED},
                "test": {m: mean_of(trial["test"][m] for trial in done) for m in TESTED},
            }
        )
    return settings


def mean_of(values: Iterable[float | None]) -> Result:
    """Mean over seeds with Student's 95 % interval; no number where one is missing, no interval of one seed.

    >>> found = mean_of([1.0, 2.0, 3.0])
    >>> found["mean"], round(found["ci_low"], 3), mean_of([1.0]), mean_of([None, 2.0])["mean"]
    (2.0, -0.484, {'mean': 1.0, 'ci_low': None, 'ci_high': None}, None)
    """
    numbers = list(values)
    known = [x for x in numbers if x is not None]
    if not known or len(known) < len(numbers):
        return {"mean": None, "ci_low": None, "ci_high": None}
    if len(known) == 1:
        return {"mean": known[0], "ci_low": None, "ci_high": None}
    found = repeat_interval(known)
    return {"mean": found.estimate, "ci_low": found.low, "ci_high": found.high}


def best_of(settings: Sequence[Result], by: str) -> Result | None:
    """The complete setting with the best mean validation metric; the first of those tied to the digits shown."""
    return _best([setting for setting in settings if setting["complete"]], by, lambda x: x["validation"][by]["mean"])


def best_trial(setting: Result, trials: Sequence[Result], by: str) -> Result | None:
    """The trial of a setting with the best validation metric."""
    return _best([trial for trial in trials if trial["name"] in setting["trials"]], by, lambda x: x["validation"][by])


def _best(found: Sequence[Result], by: str, of: Callable[[Result], float | None]) -> Result | None:
    sign = 1 if METRICS[by].higher_is_better else -1
    known = [(as_shown(value), each) for each in found if (value := of(each)) is not None]
    return max(known, key=lambda pair: sign * pair[0])[1] if known else None


def as_shown(value: float) -> float:
    """A validation metric to the digits that are shown: smaller differences choose nothing.

    >>> as_shown(0.4512349) == as_shown(0.4512251), as_shown(0.45123) == as_shown(0.45124)
    (True, False)
    """
    return float(f"{value:.5g}")


def baseline_of(settings: Sequence[Result], by: str) -> Result | None:
    """What others are compared with: the log loss, with the settings that validation chooses for it.

    Where all of its settings lack a seed, one of those that lack the fewest.
    """
    own = [setting for setting in settings if setting["loss"] == BASELINE and setting["seeds"]]
    most = max((len(setting["seeds"]) for setting in own), default=0)
    own = [setting for setting in own if len(setting["seeds"]) == most]
    return _best(own, by, lambda x: x["validation"][by]["mean"]) or next(iter(own), None)


def differences(
    settings: Sequence[Result], baseline: Result, trials: Sequence[Result], folder: Path, show: Callable[[float], None]
) -> None:
    """Give every setting its ``difference`` to the baseline on test auctions, in the seeds that both have."""
    numbers = {(trial["setting"], trial["seed"]): trial for trial in trials if trial["failed"] is None}
    kept: dict[tuple[int, ...], dict[str, NDArray[Any]]] = {}  # the baseline's auctions by seeds
    for at, setting in enumerate(settings):
        show(at / len(settings))
        seeds = tuple(seed for seed in setting["seeds"] if seed in baseline["seeds"])
        setting["difference"] = None
        if setting is baseline or not seeds:
            continue
        pairs = [(numbers[setting["name"], seed], numbers[baseline["name"], seed]) for seed in seeds]
        if seeds not in kept:
            kept[seeds] = _joined([_per_auction(folder / base["name"], base["kept"]) for _, base in pairs])
        mine = _joined([_per_auction(folder / trial["name"], trial["kept"]) for trial, _ in pairs])
        # the same ads may be in the tests of several seeds: intervals do not get narrower by seeds
        found = compared({"setting": mine, "baseline": kept[seeds]}, [("setting", "baseline")], cuts=len(seeds))
        by_auctions = {each.metric: each for each in found}
        setting["difference"] = {m: _difference(by_auctions[m], pairs, m) for m in COMPARED} | {
            "seeds": list(seeds),
            "validation": {m: mean_of(_changes(pairs, "validation", m)) for m in VALIDATED},
        }
    show(1.0)


def _difference(auctions: Comparison, pairs: Sequence[tuple[Result, Result]], metric: str) -> Result:
    """A difference over test auctions, over seeds, and the interval that holds both; shares of the baseline too."""
    level = float(np.mean([base["test"][metric] for _, base in pairs]))
    seeds = mean_of(_changes(pairs, "test", metric))
    by_auctions = {end: x if math.isfinite(x := getattr(auctions, end)) else None for end in ("difference", *ENDS)}
    both = [by_auctions] if len(pairs) == 1 else [by_auctions, seeds]
    low = _outermost(min, [each["ci_low"] for each in both])
    high = _outermost(max, [each["ci_high"] for each in both])
    outcome = auctions.outcome
    if outcome.clear and (low is None or high is None or low <= 0 <= high):
        outcome = Outcome.UNCLEAR
    found = {"difference": seeds["mean"], "ci_low": low, "ci_high": high}
    shares = {f"relative{end}": _share(found[name], level) for name, end in RELATIVE.items()}
    return {
        **found,
        **shares,
        "over_seeds": seeds,
        "over_auctions": by_auctions,
        "decisive_auctions": auctions.decisive_auctions,
        "outcome": outcome,
    }


def _outermost(most: Callable[[list[float]], float], ends: Sequence[float | None]) -> float | None:
    known = [end for end in ends if end is not None]
    return most(known) if len(known) == len(ends) else None


def _changes(pairs: Sequence[tuple[Result, Result]], split: str, metric: str) -> list[float | None]:
    """Setting minus baseline in each seed."""
    both = [(mine[split][metric], base[split][metric]) for mine, base in pairs]
    return [None if mine is None or base is None else mine - base for mine, base in both]


RELATIVE = {"difference": "", "ci_low": "_ci_low", "ci_high": "_ci_high"}


def _share(number: float | None, level: float) -> float | None:
    return None if number is None or not level > 0 else number / level


def _per_auction(folder: Path, model: str) -> dict[str, NDArray[Any]]:
    """The kept model in the test auctions of its trial."""
    result = read_json(folder / "result.json")
    config = result["config"]
    roles: dict[str, Any] = {
        role: role if config.get(f"data.{role}") else None for role in ("auction", "truth", "position")
    }
    weighted = config.get("data.weight") or config.get("data.sampling_rate")
    ads = read_ads(
        folder / "test.parquet",
        ctr=[model],
        click="click",
        bid="bid",
        weight="weight" if weighted else None,
        slots=len(config["data.slots"]),
        **roles,
    )
    if result["auction_size"] is not None:
        ads = cut_auctions(ads, result["auction_size"], seed=config["train.seed"])
    return metrics_of(model, ads, {"slots": config["data.slots"]}).per_auction


def _joined(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
