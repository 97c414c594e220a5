"""What the trials of a sweep say together: means over seeds, differences within seeds, the choice by validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.data.ad_table import read_ads
from bidwise.evaluation.comparison import compared
from bidwise.evaluation.evaluate import metrics_of
from bidwise.run_folder import read_json, read_result
from bidwise.study.compare import mean_over
from bidwise.study.recipe import BASELINE
from bidwise.study.select import best
from bidwise.table.config import METRICS
from bidwise.table.grid import Trial
from bidwise.table.results import (
    AgainstBaseline,
    MeanScores,
    Scores,
    Setting,
    SettingDifference,
    TrainResult,
    TrialResult,
)
from bidwise.typed_json import to_json

Pairs = Sequence[tuple[TrialResult, TrialResult]]  # a trial of a setting and the baseline's of the same seed


def trial_result(trial: Trial, folder: Path, failed: str | None) -> TrialResult:
    """One trial: its settings, and the numbers of the model that it kept."""
    config = trial.config
    bare = TrialResult(
        name=trial.name,
        setting=trial.setting,
        settings=to_json(trial.settings),
        loss=config.train.name,
        seed=config.train.seed,
        failed=failed,
    )
    if failed is not None:
        return bare
    result = read_result(folder, TrainResult)
    return replace(
        bare,
        kept=result.chosen,
        validation=result.validation,
        test=Scores.of(result.evaluation.models[result.chosen]),
        test_ads=result.evaluation.ads,
        seconds=read_json(folder / "environment.json").get("seconds"),
    )


def settings_of(trials: Sequence[TrialResult]) -> list[Setting]:
    """Trials of all seeds together, in the order of the grid."""
    groups: dict[str, list[TrialResult]] = {}
    for trial in trials:
        groups.setdefault(trial.setting, []).append(trial)
    settings = []
    for name, group in groups.items():
        done = [trial for trial in group if trial.failed is None]
        settings.append(
            Setting(
                name=name,
                loss=group[0].loss,
                complete=len(done) == len(group),
                seeds=tuple(trial.seed for trial in done),
                trials=tuple(trial.name for trial in done),
                validation=MeanScores.over([trial.validation for trial in done]),
                test=MeanScores.over([trial.test for trial in done]),
            )
        )
    return settings


def best_setting(settings: Sequence[Setting], by: str) -> Setting | None:
    """The setting with the best mean validation metric; the first of those tied to the digits shown."""
    return best(settings, by, lambda setting: getattr(setting.validation, by).mean, exact=False)


def baseline_of(settings: Sequence[Setting], by: str) -> Setting | None:
    """What others are compared with: the log loss, with the settings that validation chooses for it.

    Where all of its settings lack a seed, one of those that lack the fewest.
    """
    own = [setting for setting in settings if setting.loss == BASELINE and setting.seeds]
    most = max((len(setting.seeds) for setting in own), default=0)
    own = [setting for setting in own if len(setting.seeds) == most]
    return best_setting(own, by) or next(iter(own), None)


def with_differences(
    settings: Sequence[Setting],
    baseline: Setting,
    trials: Sequence[TrialResult],
    folder: Path,
    show: Callable[[float], None],
) -> list[Setting]:
    """Every setting with its difference to the baseline on test auctions, in the seeds that both have."""
    by_seed = {(trial.setting, trial.seed): trial for trial in trials if trial.failed is None}
    kept: dict[tuple[int, ...], dict[str, NDArray[Any]]] = {}  # the baseline's auctions by seeds
    compared_settings = []
    for at, setting in enumerate(settings):
        show(at / len(settings))
        seeds = tuple(seed for seed in setting.seeds if seed in baseline.seeds)
        if setting is not baseline and seeds:
            pairs = [(by_seed[setting.name, seed], by_seed[baseline.name, seed]) for seed in seeds]
            if seeds not in kept:
                kept[seeds] = _auctions([base for _, base in pairs], folder)
            mine = _auctions([trial for trial, _ in pairs], folder)
            setting = replace(setting, difference=_against(setting.name, mine, baseline.name, kept[seeds], pairs))
        compared_settings.append(setting)
    show(1.0)
    return compared_settings


def _against(
    name: str, mine: Mapping[str, NDArray[Any]], baseline: str, base: Mapping[str, NDArray[Any]], pairs: Pairs
) -> AgainstBaseline:
    # the same ads may be in the tests of several seeds: seeds do not make intervals over auctions narrower
    comparisons = compared({name: mine, baseline: base}, [(name, baseline)], copies=len(pairs))
    differences = {
        each.metric: SettingDifference.inside_seeds(
            mean_over([getattr(trial.test, each.metric) - getattr(other.test, each.metric) for trial, other in pairs]),
            each,
            level=float(np.mean([getattr(other.test, each.metric) for _, other in pairs])),
            several=len(pairs) > 1,
        )
        for each in comparisons
        if each.metric in {f.name for f in fields(AgainstBaseline)}
    }
    validation = {
        metric: mean_over([getattr(a.validation, metric) - getattr(b.validation, metric) for a, b in pairs])
        for metric in METRICS
    }
    return AgainstBaseline(seeds=tuple(trial.seed for trial, _ in pairs), validation=validation, **differences)


def _auctions(trials: Sequence[TrialResult], folder: Path) -> dict[str, NDArray[Any]]:
    """The kept models in the test auctions of their trials, one after the other."""
    parts = [_per_unit(folder / trial.name, trial.kept) for trial in trials]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _per_unit(folder: Path, model: str) -> dict[str, NDArray[Any]]:
    result = read_result(folder, TrainResult)
    config, size = result.settings, result.table.auction_size
    roles: dict[str, Any] = {role: role for role, _ in config.data.roles if role in ("auction", "truth", "position")}
    if config.data.weight or config.data.sampling_rate:
        roles["weight"] = "weight"
    path, slots = folder / "test.parquet", config.data.slots
    ads = read_ads(path, ctr=[model], click="click", bid="bid", slots=len(slots), **roles)
    return metrics_of(model, ads, {"slots": slots, "size": size}).per_unit
