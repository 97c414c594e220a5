"""`sweep`: a grid of settings of `train`, each trained in a run folder of its own, and one page that compares them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bidwise.checks import InputError, check_name, check_whole
from bidwise.data.ad_table import read_ads
from bidwise.data.blocks import table_fingerprint
from bidwise.data.read_table import Table, scan_table, table_name, written_as
from bidwise.data.store import SCHEMA
from bidwise.evaluation.comparison import Units, compared
from bidwise.evaluation.evaluate import metrics_of
from bidwise.json_files import read_object, to_json
from bidwise.ray_runner import Ray, device_on_ray, one_line
from bidwise.run_folder import (
    environment,
    locked_folder,
    read_result,
    to_toml,
    write_json,
    write_result,
    write_text,
)
from bidwise.runners import ENGINES, Call, Killed, Processes, Progress, Runner, Show
from bidwise.study.compare import Difference, mean_over
from bidwise.study.recipe import BASELINE, best
from bidwise.table.config import METRICS, Config, nested, open_run, read_toml
from bidwise.table.encode import Prepared
from bidwise.table.grid import Trial, read_grid
from bidwise.table.pipeline import TEST_ROLES, run
from bidwise.table.plan import candidates
from bidwise.table.results import (
    AgainstBaseline,
    Chosen,
    Scores,
    Setting,
    SettingDifference,
    SweepResult,
    TrainResult,
    TrialResult,
)
from bidwise.urls import scheme_of, shown


class TrialFailed(Exception):
    """What went wrong in a trial, in words."""


def sweep(
    config: str | Path | Mapping[str, Any],
    *,
    out: str | Path,
    engine: str = "local",
    workers: int | None = None,
    settings: Sequence[str] = (),
    by: str | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> SweepResult:
    """Train every combination of a grid, compare them within seeds, and choose by validation.

    The same call resumes an earlier one that was cut off, and longer lists train only what is new. A trial that fails
    does not end the others: ``failed`` of its result says why. Processes import the script that calls this: guard it
    with ``if __name__ == "__main__"``.

    Args:
        config: TOML file of `train` with a section ``[sweep]`` of lists, ``"train.lam" = [1, 3, 10]``, or its sections.
        out: folder of the sweep; trials are run folders of `train` in ``out/trials``.
        engine: ``local``, processes of this machine; or ``ray``, tasks of a cluster whose machines all see the table
            and ``out`` under the same names.
        workers: trials at once; 1 on this machine, as many as it has cores on a cluster.
        settings: ``["train.epochs=5"]``, above what all trials share.
        by: validation metric that the best setting is chosen by: ``welfare``, ``log_loss`` or ``auc``; ``train.metric``
            by default.
        device: ``cpu`` or ``cuda``; with ``ray`` also ``auto``, a GPU where the cluster has one.
        progress: called as ``progress("trials", 0.4, "trial 3 of 12")``.
        say: called with a line that counts the trials, and with one for every trial that ends.
    """
    from bidwise.report import write_page

    check_name("engine", engine, ENGINES)
    if workers is not None:
        check_whole("workers", workers, 1)
    grid = read_grid(config, settings)
    trials = grid.trials()
    by = by or trials[0].config.train.metric
    check_name("by", by, METRICS)
    for each in {trial.config.model: trial.config for trial in trials}.values():
        for recipe in candidates(each):
            recipe.build([2, 2], 0)  # or an error, before anything runs
    data = trials[0].config.data
    if data.table is None:
        raise InputError("the configuration must name the table to train on, found no table in [data]")
    table = data.table if scheme_of(data.table) else str(Path(data.table).absolute())  # workers may be elsewhere
    scan_table(written_as(table, data.separator, data.header))
    show, tell = progress or (lambda work, done, detail="": None), say or (lambda line: None)
    runner: Runner = Processes(workers or 1, tell)
    if engine == "ray":  # started, or an error, before anything is written
        device = device_on_ray(device)
        runner = Ray(workers, device)
    with locked_folder(out) as folder:
        _check_folder(folder, trials, written_as(table, data.separator, data.header))
        shared, inside = grid.shared | {"data.table": shown(data.table)}, folder / "trials"
        write_text(folder / "config.toml", to_toml({**nested(shared), "sweep": grid.lists}))
        counted = "1 trial" if len(trials) == 1 else f"{len(trials):,} trials"
        fewer = f", not {grid.size:,}: what means nothing to a loss or model is left out"
        tell(counted + (fewer if len(trials) < grid.size else ""))
        failed = _run(inside, trials, table, runner, device, by, show, tell)
        if not (folder / "config.toml").is_file():  # a trial makes its folder where that is missing
            raise OSError(f"{folder} was removed while the sweep ran; the same command starts it again")
        results = tuple(_trial_result(trial, inside, failed.get(trial.name)) for trial in trials)
        bare = SweepResult(
            config=shared,
            grid=grid.lists,
            by=by,
            seeds=tuple(dict.fromkeys(each.seed for each in results)),
            timed=data.time is not None,
            settings=(),
            trials=results,
        )
        result = _compared(bare, inside, show)
        seconds = sum(trial.seconds or 0 for trial in results)  # every trial says itself where it was made
        write_json(folder / "environment.json", {**environment(), "seconds": seconds})
        write_page(result, folder)
        write_result(folder, result)
    return result


def _check_folder(folder: Path, trials: Sequence[Trial], table: Table) -> None:
    """Raise unless the folder is new, or of a sweep whose trials of these names have the same settings and rows."""
    path = folder / "config.toml"
    there = read_toml(path) if path.exists() else {}
    if "sweep" not in there and (there or (folder / "result.json").exists()):
        words = f"must be a new folder or one of the same sweep, found {folder}, which has a run of another kind"
        raise InputError(words, argument="out")
    folders = {open_run(folder / "trials" / trial.name, trial.config): trial.config for trial in trials}
    stores = [Prepared(inside, config) for inside, config in folders.items() if (inside / "store" / SCHEMA).is_file()]
    fingerprint = table_fingerprint(table) if stores else ""
    for prepared in stores:
        prepared.check_rows(fingerprint, table_name(table))


def _run(
    folder: Path,
    trials: Sequence[Trial],
    table: str,
    runner: Runner,
    device: str,
    by: str,
    show: Progress,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Run what is not finished: why each of the failed trials failed."""
    shared = {"table": table, "device": device, "command": list(sys.argv)}
    missing = {each.name: each for each in trials if not (folder / each.name / "result.json").is_file()}
    calls = [
        Call(name, run_trial, {**shared, "config": trial.config, "folder": (folder / name).absolute()})
        for name, trial in missing.items()
    ]
    many, done = len(trials), len(trials) - len(calls)
    if done:
        say(f"{done} of {many} trials are finished already")
    shares: dict[str, float] = {}

    def report(call: Call, share: float) -> None:
        shares[call.name] = share
        show("trials", (many - len(calls) + sum(shares.values())) / many, f"trial {min(done + 1, many)} of {many}")

    failed: dict[str, str] = {}
    with closing(runner.run(calls, show=report)) as ended:
        for call, future in ended:
            done += 1
            if (error := future.exception()) is not None:
                failed[call.name] = _words(error)
                words = f"failed: {failed[call.name]}"
            else:
                found = _trial_result(missing[call.name], folder, None)
                value = getattr(found.validation, by)
                number = "none" if value != value else f"{value:.5g}"
                words = f"validation {by.replace('_', ' ')} {number}, {found.seconds:.0f} s"
            say(f"[{done}/{many}] {call.name}: {words}")
            report(call, 1.0)
    return failed


def run_trial(show: Show, table: str, config: Config, folder: Path, device: str, command: Sequence[str]) -> None:
    """Train and test as `train` does, or resume it; what goes wrong is an error in words without secrets."""

    def progress(work: str, done: float, detail: str = "") -> None:
        if work == "training":
            show(done)

    try:
        run(table, config, folder, device, progress, command=command)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the other trials go on
        raise TrialFailed(_words(error).replace(table, shown(table))) from None


def _words(error: BaseException) -> str:
    """An error on one line, with its type unless it is made of words for users."""
    text = one_line(error)
    if text and isinstance(error, InputError | OSError | TrialFailed | Killed):
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def _trial_result(trial: Trial, folder: Path, failed: str | None) -> TrialResult:
    """One trial: its settings, and the numbers of the model that it kept."""
    train = trial.config.train
    found: dict[str, Any] = {}
    if failed is None:
        result = read_result(folder / trial.name, TrainResult)
        found = {
            "kept": result.chosen,
            "validation": result.validation,
            "test": Scores.of(result.evaluation.models[result.chosen]),
            "seconds": read_object(folder / trial.name / "environment.json").get("seconds"),
        }
    about = {"name": trial.name, "setting": trial.setting, "settings": to_json(trial.settings)}
    return TrialResult(**about, loss=train.name, seed=train.seed, failed=failed, **found)


def _compared(result: SweepResult, folder: Path, show: Progress) -> SweepResult:
    """The same with all settings, each against the log loss on test, and the choice by validation."""
    by = result.by
    groups: dict[str, list[TrialResult]] = {}
    for trial in result.trials:
        groups.setdefault(trial.setting, []).append(trial)
    settings = [Setting.of(name, group) for name, group in groups.items()]
    baseline = baseline_of(settings, by)
    if baseline is not None:
        base = {trial.seed: (trial, _per_unit(trial, folder)) for trial in groups[baseline.name] if not trial.failed}
        for at, setting in enumerate(settings):
            show("comparing", at / len(settings))
            both = [trial for trial in groups[setting.name] if not trial.failed and trial.seed in base]
            if setting is not baseline and both:
                pairs = [(trial, _per_unit(trial, folder), *base[trial.seed]) for trial in both]
                settings[at] = replace(setting, difference=_against(pairs))
        show("comparing", 1.0)
    chosen = best_setting([each for each in settings if each.complete], by)
    own = [] if chosen is None else groups[chosen.name]
    kept = best(own, by, lambda each: getattr(each.validation, by), exact=False)
    return replace(
        result,
        settings=tuple(settings),
        baseline=None if baseline is None else baseline.name,
        chosen=None if kept is None else Chosen(kept.setting, kept.name),
    )


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


def _per_unit(trial: TrialResult, folder: Path) -> Units:
    """The model that a trial kept in the auctions, or ads, of its test."""
    result, path = read_result(folder / trial.name, TrainResult), folder / trial.name / "test.parquet"
    roles: dict[str, Any] = {role: role for role in TEST_ROLES if role in pl.read_parquet_schema(path)}
    slots = result.settings.data.slots
    ads = read_ads(path, ctr=[trial.kept], click="click", bid="bid", slots=len(slots), **roles)
    return metrics_of(trial.kept, ads, {"slots": slots, "size": result.table.auction_size}).per_unit


def _against(pairs: Sequence[tuple[TrialResult, Units, TrialResult, Units]]) -> AgainstBaseline:
    """A setting against the baseline, in pairs of trials of the same seed."""
    mine, my_units, base, base_units = zip(*pairs, strict=True)
    sides = {mine[0].setting: my_units, base[0].setting: base_units}
    units = {name: {key: np.concatenate([x[key] for x in parts]) for key in parts[0]} for name, parts in sides.items()}
    # the same ads may be in the tests of several seeds: seeds do not make intervals over auctions narrower
    (auctions,) = compared(units, [(mine[0].setting, base[0].setting)], copies=len(pairs), metrics=("welfare",))
    repeats = mean_over([a.test.welfare - b.test.welfare for a, b in zip(mine, base, strict=True)])
    both = Difference.between(repeats if len(pairs) > 1 else auctions, auctions)
    welfare = SettingDifference(
        difference=repeats.difference,
        ci_low=both.ci_low,
        ci_high=both.ci_high,
        repeats=repeats,
        auctions=auctions,
        level=float(np.mean([each.test.welfare for each in base])),
    )
    return AgainstBaseline(seeds=tuple(each.seed for each in mine), welfare=welfare)
