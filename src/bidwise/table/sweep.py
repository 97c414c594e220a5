"""`sweep`: a grid of settings of `train`, each trained in a run folder of its own, and one page that compares them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import bidwise
from bidwise.checks import InputError, check_name, check_whole
from bidwise.data.store import SCHEMA
from bidwise.ray_runner import started_ray
from bidwise.run_folder import check_writable, environment, locked_folder, read_json, write_json, write_text
from bidwise.runners import ENGINES
from bidwise.table.compare import baseline_of, best_of, best_trial, differences, numbers_of, settings_of
from bidwise.table.config import METRICS, SECTIONS, read_toml, resolved
from bidwise.table.grid import Grid, Identity, Known, Trial, identity_of, read_grid
from bidwise.table.roles import fingerprint, scan
from bidwise.table.sweep_sentences import notes, verdict
from bidwise.table.trials import Ended, Job, device_on_ray, finished, in_processes, on_ray
from bidwise.typed_json import to_json
from bidwise.urls import scheme_of, shown

Progress = Callable[[str, float], None]  # what is being done, and the share that is done


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
) -> dict[str, Any]:
    """Train every combination of a grid, compare them inside of seeds, and choose by validation: ``result.json``.

    The same call goes on where an earlier one stopped, and a larger grid trains only what is new. A trial that fails
    does not end the others: ``trials`` of the result have its message under ``failed``. Processes import the script
    that calls this: guard it with ``if __name__ == "__main__"``.

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
        progress: called as ``progress("trials", 0.4)``.
        say: called with a line that counts the trials, and with one for every trial that ends.
    """
    check_name("engine", engine, ENGINES)
    if workers is not None:
        check_whole("workers", workers, 1)
    grid = read_grid(config, settings)
    by = by or grid.sections["train"].get("metric", "log_loss")
    check_name("by", by, METRICS)
    first = grid.trials()[0].config
    if first.data.table is None:
        raise InputError("the configuration must name the table to train on, found no table in [data]")
    table = first.data.table
    if scheme_of(table) is None:  # workers may be in another folder
        table = str(Path(table).absolute())
    scan(table)
    _check_grown(check_writable(out), grid)
    if engine == "ray":
        started_ray()  # or an error, before anything is written
        device = device_on_ray(device)
    show, tell = progress or (lambda work, done: None), say or (lambda line: None)
    with locked_folder(out) as folder:
        trials = grid.trials(_known(folder))
        _check_table(folder, trials, table)
        write_text(folder / "config.toml", grid.to_toml())
        tell(grid.counted(trials))
        failed = _run(folder, trials, table, engine, workers, device, by, show, tell)
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
            f"out must be a new folder or one of the same sweep, found {folder}, which has a run of another kind"
        )
    here = {identity_of(trial.config) for trial in grid.trials()}
    lost = [
        name
        for identity, (name, _) in _known(folder).items()
        if identity not in here and (folder / "trials" / name / "result.json").is_file()
    ]
    if not lost:
        return
    before = read_grid(there)
    told = [_flat(each) | each.lists for each in (before, grid)]
    words = []
    for key in dict.fromkeys([*told[0], *told[1]]):
        values = [each.lists.get(key, [shared.get(key)]) for each, shared in zip((before, grid), told, strict=True)]
        if key != "data.table" and any(value not in values[1] for value in values[0]):
            words.append(f"{key} = {values[0]} there and {values[1]} here")
    raise InputError(
        f"out must be a new folder or one of a sweep that this one has all trials of, found {folder} with "
        f"{', '.join(words) or 'others'}, so {len(lost)} of its trials, as {lost[0]}, are not in this grid, which may "
        "grow but not shrink where results are; choose another folder"
    )


def _flat(grid: Grid) -> dict[str, Any]:
    return {f"{section}.{key}": x for section, part in grid.shown_sections().items() for key, x in part.items()}


def _known(folder: Path) -> dict[Identity, Known]:
    """Trials that are there, by what makes them the same: a grid with more keys would call them otherwise."""
    there = {path.parent.name: resolved(read_toml(path)) for path in sorted((folder / "trials").glob("*/config.toml"))}
    return {identity_of(config): (name, config) for name, config in there.items()}


def _check_table(folder: Path, trials: Sequence[Trial], table: str) -> None:
    """Raise unless the trials that are there began with the rows that the table has now."""
    begun = [path for trial in trials if (path := folder / "trials" / trial.name / "store" / SCHEMA).is_file()]
    now = fingerprint(table) if begun else ""
    for path in begun:
        if read_json(path)["table"]["fingerprint"] != now:
            raise InputError(
                f"out must be a new folder or one of the same table, found {path.parents[1]}, which began with other "
                f"rows than {shown(table)} has now; choose another folder, or delete that one"
            )


def _run(
    folder: Path,
    trials: Sequence[Trial],
    table: str,
    engine: str,
    workers: int | None,
    device: str,
    by: str,
    show: Progress,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Run what is not finished: why each of the failed trials failed."""
    inside = (folder / "trials").absolute()
    jobs = [
        Job(trial, table, inside / trial.name, device, list(sys.argv))
        for trial in trials
        if not finished(inside / trial.name)
    ]
    done = len(trials) - len(jobs)
    if done:
        say(f"{done} of {len(trials)} trials are finished already")
    show("trials", done / len(trials))
    failed: dict[str, str] = {}
    ends: Sequence[Ended] | Any = ()
    if jobs:
        ends = on_ray(jobs, workers) if engine == "ray" else in_processes(jobs, workers or 1, say)
    for job, why in ends:
        done += 1
        if why is not None:
            failed[job.trial.name] = why
            words = f"failed: {why}"
        else:
            found = numbers_of(job.trial, job.folder, None)
            value = found["validation"][by]
            number = "none" if value is None else f"{value:.5g}"
            words = f"validation {by.replace('_', ' ')} {number}, {found['seconds']:.0f} s"
        say(f"[{done}/{len(trials)}] {job.trial.name}: {words}")
        show("trials", done / len(trials))
    return failed


def _compared(
    folder: Path, grid: Grid, trials: Sequence[Trial], failed: Mapping[str, str], by: str, show: Progress
) -> dict[str, Any]:
    inside = folder / "trials"
    found = [numbers_of(trial, inside / trial.name, failed.get(trial.name)) for trial in trials]
    settings = settings_of(found)
    baseline, chosen = baseline_of(settings, by), best_of(settings, by)
    if baseline is not None:
        differences(settings, baseline, found, inside, lambda share: show("comparing", share))
    best = None if chosen is None else best_trial(chosen, found, by)
    result: dict[str, Any] = {
        "kind": "sweep",
        "version": bidwise.__version__,
        "config": _flat(grid),
        "grid": grid.lists,
        "by": by,
        "seeds": list(dict.fromkeys(trial["seed"] for trial in found)),
        "baseline": None if baseline is None else baseline["name"],
        "chosen": None if chosen is None or best is None else {"setting": chosen["name"], "trial": best["name"]},
        "settings": settings,
        "trials": found,
    }
    result["verdict"], result["notes"] = verdict(result), notes(result)
    return to_json(result)  # type: ignore[no-any-return]


def _write(folder: Path, result: Mapping[str, Any], device: str) -> None:
    """The files of the sweep, the result last; every trial says itself where it was made."""
    from bidwise.report import write_page  # late: matplotlib takes a second

    seconds = sum(trial.get("seconds") or 0 for trial in result["trials"])
    there = environment("cuda" if device == "cuda" and torch.cuda.is_available() else "cpu") | {"seconds": seconds}
    write_json(folder / "environment.json", there)
    write_page(result, folder)
    write_json(folder / "result.json", result)
