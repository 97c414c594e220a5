"""`sweep`: a grid of settings of `train`, each trained in a run folder of its own, and one page that compares them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch

from bidwise.checks import InputError, check_name, check_whole
from bidwise.data.read_table import Table, scan_table, table_fingerprint, table_name, written_as
from bidwise.data.store import SCHEMA
from bidwise.ray_runner import Ray, device_on_ray, one_line
from bidwise.run_folder import (
    check_writable,
    environment,
    locked_folder,
    read_json,
    write_json,
    write_result,
    write_text,
)
from bidwise.runners import ENGINES, Call, Killed, Processes, Progress, Runner, Show
from bidwise.study.select import best
from bidwise.table.config import METRICS, SECTIONS, Config, Train, flattened, read_toml, resolved
from bidwise.table.grid import Grid, Identity, Known, Trial, identity_of, read_grid
from bidwise.table.pipeline import run
from bidwise.table.results import Chosen, SweepResult
from bidwise.table.settings import baseline_of, best_setting, settings_of, trial_result, with_differences
from bidwise.urls import scheme_of, shown

ERROR = "error.txt"  # of a trial that failed for a reason that no user can fix


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

    The same call resumes an earlier one that was cut off, and a larger grid trains only what is new. A trial that fails
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
    check_name("engine", engine, ENGINES)
    if workers is not None:
        check_whole("workers", workers, 1)
    grid = read_grid(config, settings)
    by = by or grid.sections["train"].get("metric", Train.metric)
    check_name("by", by, METRICS)
    data = grid.trials()[0].config.data
    table = data.table
    if table is None:
        raise InputError("the configuration must name the table to train on, found no table in [data]")
    if scheme_of(table) is None:  # workers may be in another folder
        table = str(Path(table).absolute())
    written = written_as(table, data.separator, data.header)
    scan_table(written)
    _check_grown(check_writable(out), grid)
    show, tell = progress or (lambda work, done, detail="": None), say or (lambda line: None)
    if engine == "ray":  # started, or an error, before anything is written
        device = device_on_ray(device)
    runner: Runner = Ray(workers, device) if engine == "ray" else Processes(workers or 1, tell)
    with locked_folder(out) as folder:
        trials = grid.trials(_known(folder))
        _check_table(folder, trials, written)
        write_text(folder / "config.toml", grid.to_toml())
        tell(grid.counted(trials))
        failed = _run(folder, trials, table, runner, device, by, show, tell)
        result = _compared(folder, grid, trials, failed, by, show)
        _write(folder, result, device)
    return result


def _check_grown(folder: Path, grid: Grid) -> None:
    """Raise unless the folder is new, or has a sweep all of whose trials with a result are in this grid."""
    path = folder / "config.toml"
    if not path.exists() and not (folder / "result.json").exists():
        return
    there = read_toml(path) if path.exists() else {}
    if set(there) != {*SECTIONS, "sweep"}:
        raise InputError(
            f"must be a new folder or one of the same sweep, found {folder}, which has a run of another kind",
            argument="out",
        )
    here = {identity_of(trial.config) for trial in grid.trials()}
    lost = [
        name
        for identity, (name, _) in _known(folder).items()
        if identity not in here and (folder / "trials" / name / "result.json").is_file()
    ]
    if not lost:
        return
    before, now = (
        {key: [value] for key, value in flattened(each.shown_sections()).items()} | each.lists
        for each in (read_grid(there), grid)
    )
    words = [
        f"{key} = {before.get(key, [None])} there and {now.get(key, [None])} here"
        for key in dict.fromkeys([*before, *now])
        if key != "data.table" and any(value not in now.get(key, [None]) for value in before.get(key, [None]))
    ]
    raise InputError(
        f"must be a new folder or one of a sweep that this one has all trials of, found {folder} with "
        f"{', '.join(words) or 'others'}, so {len(lost)} of its trials, as {lost[0]}, are not in this grid, which may "
        "grow but not shrink where results are; choose another folder",
        argument="out",
    )


def _known(folder: Path) -> dict[Identity, Known]:
    """Trials that are there, by what makes them the same: a grid with more keys would call them otherwise."""
    there = {path.parent.name: resolved(read_toml(path)) for path in sorted((folder / "trials").glob("*/config.toml"))}
    return {identity_of(config): (name, config) for name, config in there.items()}


def _check_table(folder: Path, trials: Sequence[Trial], table: Table) -> None:
    """Raise unless the trials that are there began with the rows that the table has now."""
    stores = [path for trial in trials if (path := folder / "trials" / trial.name / "store" / SCHEMA).is_file()]
    now = table_fingerprint(table) if stores else ""
    for path in stores:
        if read_json(path)["table"]["fingerprint"] != now:
            raise InputError(
                f"must be a new folder or one of the same table, found {path.parents[1]}, which began with other "
                f"rows than {table_name(table)} has now; choose another folder, or delete that one",
                argument="out",
            )


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
    inside, many = (folder / "trials").absolute(), len(trials)
    shared = {"table": table, "device": device, "command": list(sys.argv)}
    missing = {each.name: each for each in trials if not (inside / each.name / "result.json").is_file()}
    calls = [
        Call(name, run_trial, {**shared, "config": trial.config, "folder": inside / name})
        for name, trial in missing.items()
    ]
    done = many - len(calls)
    if done:
        say(f"{done} of {many} trials are finished already")
    shares: dict[str, float] = {}

    def display() -> None:
        show("trials", (done + sum(shares.values())) / many, f"trial {min(done + 1, many)} of {many}")

    def report(call: Call, share: float) -> None:
        shares[call.name] = share
        display()

    display()
    failed: dict[str, str] = {}
    with closing(runner.run(calls, show=report)) as ended:
        for call, future in ended:
            done += 1
            shares.pop(call.name, None)
            if (error := future.exception()) is not None:
                failed[call.name] = _words(error)
                words = f"failed: {failed[call.name]}"
            else:
                found = trial_result(missing[call.name], inside / call.name, None)
                value = getattr(found.validation, by)
                number = "none" if value != value else f"{value:.5g}"
                words = f"validation {by.replace('_', ' ')} {number}, {found.seconds:.0f} s"
            say(f"[{done}/{many}] {call.name}: {words}")
            display()
    return failed


def run_trial(show: Show, table: str, config: Config, folder: Path, device: str, command: Sequence[str]) -> None:
    """Train and test as `train` does, or resume it; what goes wrong is an error in words without secrets."""

    def progress(work: str, done: float, detail: str = "") -> None:
        if work == "training":
            show(done)

    try:
        run(table, config, folder, device, progress, command=command)
        (folder / ERROR).unlink(missing_ok=True)
    except KeyboardInterrupt:
        raise
    except (InputError, OSError) as error:
        raise InputError(_words(error).replace(table, shown(table))) from None
    except BaseException as error:  # the other trials go on
        why = _words(error).replace(table, shown(table))
        with suppress(Exception):  # a full disk has no place for it
            with locked_folder(folder):
                write_text(folder / ERROR, traceback.format_exc().replace(table, shown(table)))
            why += f"; see {folder / ERROR}"
        raise TrialFailed(why) from None


def _words(error: BaseException) -> str:
    """An error on one line, with its type unless it is made of words for users."""
    text = one_line(error)
    if text and isinstance(error, InputError | OSError | TrialFailed | Killed):
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def _compared(
    folder: Path, grid: Grid, trials: Sequence[Trial], failed: Mapping[str, str], by: str, show: Progress
) -> SweepResult:
    inside, data = folder / "trials", trials[0].config.data
    results = [trial_result(trial, inside / trial.name, failed.get(trial.name)) for trial in trials]
    settings = settings_of(results)
    baseline, chosen = baseline_of(settings, by), best_setting([each for each in settings if each.complete], by)
    if baseline is not None:
        settings = with_differences(settings, baseline, results, inside, lambda share: show("comparing", share))
    own = [] if chosen is None else [trial for trial in results if trial.name in chosen.trials]
    trial = best(own, by, lambda each: getattr(each.validation, by), exact=False)
    return SweepResult(
        config=flattened(grid.shown_sections()),
        grid=grid.lists,
        by=by,
        seeds=tuple(dict.fromkeys(each.seed for each in results)),
        timed=data.time is not None,
        welfare_of="clicks" if data.truth is None else "truth",
        baseline=None if baseline is None else baseline.name,
        chosen=None if chosen is None or trial is None else Chosen(chosen.name, trial.name),
        settings=tuple(settings),
        trials=tuple(results),
    )


def _write(folder: Path, result: SweepResult, device: str) -> None:
    """The files of the sweep, the result last; every trial says itself where it was made."""
    from bidwise.report import write_page

    seconds = sum(trial.seconds or 0 for trial in result.trials)
    made = environment("cuda" if device == "cuda" and torch.cuda.is_available() else "cpu")
    write_json(folder / "environment.json", {**made, "seconds": seconds})
    write_page(result, folder)
    write_result(folder, result)
