"""The numbers of the Criteo experiment: what was chosen, means over repeats, paired differences to the log loss."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from bidwise.auctions.columns import Floats
from bidwise.evaluation.intervals import Interval, auction_intervals, repeat_interval
from bidwise.paper.criteo.plan import LAMS, Config, Lams, lams_of, trial_of
from bidwise.paper.criteo.trial import Trial
from bidwise.study.recipe import has_lam

ERRORS = ("welfare", "expected_welfare", "auc_loss", "log_loss")  # have a standard error over repeats
Found = dict[Trial, Any]  # what each trial found
Chosen = dict[str, Any]  # a trained model on the test auctions, with the epoch and lam it was chosen with


def chosen_lams(config: Config, found: Found) -> Lams:
    """For each model and loss the lam with the highest validation welfare, summed over the repeats that tried all."""

    def value(model: str, loss: str, lam: float) -> float:
        trials = [trial_of(model, repeat, loss, lam, "tuned") for repeat in config.tried]
        return sum(float(found[trial]["selections"]["welfare"]["value"]) for trial in trials)

    return {
        (model, loss): max(LAMS, key=lambda lam: value(model, loss, lam))
        for model in config.models
        for loss in filter(has_lam, config.losses)
    }


def _chosen(model: str, loss: str, protocol: str, selection: str, config: Config, found: Found) -> list[Chosen]:
    """For each repeat the model that a selection takes, of all epochs and lams; ``last`` takes the end.

    With ``lam_repeats`` lam is already chosen, and a selection takes the epoch alone.
    """
    lams = lams_of(loss, protocol)
    if config.lam_repeats is not None and len(lams) > 1:
        lams = (chosen_lams(config, found)[model, loss],)
    chosen = []
    for repeat in range(config.repeats):
        tried = [
            {**found[trial_of(model, repeat, loss, lam, protocol)]["selections"][selection], "lam": lam} for lam in lams
        ]
        sign = -1 if selection == "log_loss" else 1
        chosen.append(tried[0] if selection == "last" else max(tried, key=lambda entry: sign * entry["value"]))
    return chosen


def of_protocol(model: str, protocol: str, config: Config, found: Found) -> dict[str, Any]:
    """The numbers of every loss."""
    main = "last" if protocol == "converged" else "welfare"
    selections = [main] if protocol == "converged" else [main, "log_loss", "expected_welfare"]
    known = next(iter(found.values()))["selections"]["last"]["expected_welfare"] is not None
    selections = [name for name in selections if known or name != "expected_welfare"]
    named = {"log_loss": "by_log_loss", "expected_welfare": "by_truth"}
    losses: dict[str, dict[str, Any]] = {}
    for selection in selections:
        base = _chosen(model, "log_loss", protocol, selection, config, found)
        for loss in config.losses:
            chosen = _chosen(model, loss, protocol, selection, config, found)
            numbers = _numbers(chosen, None if loss == "log_loss" else base, config)
            if selection == main:
                losses[loss] = numbers
            else:
                kept = ("welfare", "expected_welfare", "auc_loss", "log_loss", "difference", "relative", "epoch", "lam")
                losses[loss][named[selection]] = {key: numbers[key] for key in kept if key in numbers}
    return losses


def _numbers(chosen: list[Chosen], base: list[Chosen] | None, config: Config) -> dict[str, Any]:
    """Means over repeats with standard errors, and paired differences to the log loss."""
    known = chosen[0]["expected_welfare"] is not None
    each: dict[str, Any] = {
        "welfare": [float(entry["welfare"].mean()) for entry in chosen],
        "expected_welfare": [float(entry["expected_welfare"].mean()) for entry in chosen] if known else None,
        **{key: [entry[key] for entry in chosen] for key in ("auc", "log_loss", "revenue", "calibration_error")},
        "predicted_over_observed": [entry["predicted_over_observed"] for entry in chosen],
        "auc_loss": [1 - entry["auc"] for entry in chosen],
    }
    numbers: dict[str, Any] = {key: None if values is None else float(np.mean(values)) for key, values in each.items()}
    numbers |= {f"{key}_error": _error(each[key]) for key in ERRORS}
    kind = "expected_welfare" if known else "welfare"
    numbers["difference"] = None if base is None else _difference(chosen, base, kind, config)
    numbers["difference_realised"] = None if base is None else _difference(chosen, base, "welfare", config)
    if base is not None:
        level = float(np.mean([float(entry[kind].mean()) for entry in base]))
        numbers["relative"] = numbers["difference"]["repeats"]["difference"] / level if level else float("nan")
    if "epoch" in chosen[0]:
        numbers["epoch"] = float(np.mean([entry["epoch"] for entry in chosen]))
        if chosen[0]["lam"] is not None:
            numbers["lam"] = [entry["lam"] for entry in chosen]
    numbers["repeats"] = {key: each[key] for key in ("welfare", "expected_welfare", "auc", "log_loss")}
    return numbers


def _difference(chosen: list[Chosen], base: list[Chosen], kind: str, config: Config) -> dict[str, Any]:
    """Welfare − that of the log loss: over repeats (another training) and over auctions (other ads that meet)."""
    paired: list[Floats] = [(a[kind] - b[kind]).numpy() for a, b in zip(chosen, base, strict=True)]
    by_repeat = [float(change.mean()) for change in paired]
    if len(by_repeat) > 1:
        repeats = repeat_interval(by_repeat)
    else:
        repeats = Interval(by_repeat[0], float("nan"), float("nan"), float("nan"))
    (auctions,) = auction_intervals(np.mean(paired, axis=0), cuts=config.cuts, seed=config.seed)
    named = {"repeats": repeats, "auctions": auctions}
    words = {
        name: {"difference": interval.estimate, "ci_low": interval.low, "ci_high": interval.high}
        for name, interval in named.items()
    }
    return {"of": "expected" if kind == "expected_welfare" else "realised", **words}


def _error(values: list[float] | None) -> float | None:
    """Standard error of the mean over repeats."""
    if values is None or len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def lam_grid(model: str, config: Config, found: Found) -> dict[str, list[dict[str, Any]]]:
    """Test numbers by lam, each at its own best epoch, over the repeats that tried every lam."""
    return {
        loss: [{"lam": lam, **grid_row(model, loss, lam, config, found)} for lam in LAMS]
        for loss in filter(has_lam, config.losses)
    }


def grid_row(model: str, loss: str, lam: float | None, config: Config, found: Found) -> dict[str, Any]:
    """Test numbers of a loss and a lam, over the repeats that tried every lam."""
    trials = [trial_of(model, repeat, loss, lam, "tuned") for repeat in config.tried]
    numbers = _numbers([found[trial]["selections"]["welfare"] | {"lam": lam} for trial in trials], None, config)
    return {name: numbers[name] for key in ERRORS for name in (key, f"{key}_error")}


def curves_of(model: str, config: Config, found: Found) -> dict[str, dict[str, Any]]:
    """Validation metrics over the epochs, mean over repeats, at the lam that was chosen most often."""
    curves = {}
    for loss in config.losses:
        chosen = Counter(entry["lam"] for entry in _chosen(model, loss, "tuned", "welfare", config, found))
        lam = chosen.most_common(1)[0][0]
        seen = [found[trial_of(model, r, loss, lam, "tuned")]["curve"] for r in range(config.repeats)]
        keys = [key for key in ("welfare", "log_loss", "expected_welfare") if key in seen[0]]
        means = {key: np.mean([curve[key] for curve in seen], axis=0).tolist() for key in keys}
        curves[loss] = {"epoch": seen[0]["epoch"], "lam": lam, "expected_welfare": None, **means}
    return curves
