"""`report`: one page about one or several runs, made from what their folders hold; and figures as files."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bidwise
from bidwise.checks import InputError
from bidwise.report.criteo.criteo_figures import criteo_pictures
from bidwise.report.criteo.criteo_story import criteo_story
from bidwise.report.curves import fit_curves, learning_curves
from bidwise.report.drawing import MARKERS, Picture, shortened, write
from bidwise.report.evaluation_page import template
from bidwise.report.experiment_figures import distributions, surrogates, welfare_by_loss
from bidwise.report.pages import evaluation_story, fit_story, regimes_story, setting
from bidwise.report.regime_figures import regime_maps
from bidwise.report.sections import Section, Story
from bidwise.report.synthetic_story import synthetic_story
from bidwise.run_folder import read_json, write_text
from bidwise.urls import check_on_disk

KINDS = ("synthetic", "regimes", "criteo", "train", "sweep", "fit")


def report(runs: Sequence[Path], out: Path) -> None:
    """One page about all the runs, at ``out``; every error names the folder or file that cannot be used."""
    if not runs:
        raise InputError("runs must name at least one run folder, found none")
    check_on_disk("out", out, "a file", "copy it afterwards")
    out = Path(out)
    if out.is_dir():
        raise InputError(f"out must be a file, found the folder {out}; add a name such as {out / 'report.html'}")
    page = runs_page([read_run(Path(run)) for run in runs])
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"out must be in a folder, found the file {out.parent}") from None
    write_text(out, page)


def read_run(folder: Path) -> dict[str, Any]:
    """What a run folder holds, as :func:`runs_page` takes it; only ``result.json`` must be there."""
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise InputError(f"run must be a run folder, found {found} at {folder}")
    if not (folder / "result.json").is_file():
        raise InputError(f"run must be a folder with result.json, found none in {folder}; has the run finished?")
    result = read_json(folder / "result.json")
    kind = kind_of(result)
    if kind is None:
        told = repr(result.get("kind")) if isinstance(result, dict) else type(result).__name__
        raise InputError(
            f"{folder / 'result.json'} must be of an evaluation or of kind {', '.join(KINDS)}, found kind {told}"
        )
    environment = folder / "environment.json"
    return {
        "name": folder.resolve().name,
        "result": result,
        "environment": read_json(environment) if environment.is_file() else {},
        "config": _config(folder / "config.toml"),
        "metrics": _metrics(folder / "metrics.jsonl") if kind == "fit" else [],
    }


def kind_of(result: Any) -> str | None:
    """Which kind of run a result is of; ``None`` for what no page can be made of.

    >>> kind_of({"models": {}, "comparisons": []}), kind_of({"kind": "fit"}), kind_of({"kind": "?"}), kind_of(3)
    ('evaluation', 'fit', None, None)
    """
    if not isinstance(result, dict):
        return None
    if "kind" in result:
        return result["kind"] if result["kind"] in KINDS else None
    return "evaluation" if "models" in result and "comparisons" in result else None


def _config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be a configuration that bidwise wrote, found: {error}") from None


def _metrics(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise InputError(f"{path} must have one JSON object in each line, found: {error}") from None


def runs_page(runs: Sequence[Mapping[str, Any]]) -> str:
    """The HTML of a page about runs; each has ``name``, ``result``, ``environment``, ``config`` and ``metrics``."""
    stories = [_story(run, f"run{at}-") for at, run in enumerate(runs)]
    return template("runs.html").render(
        stories=stories,
        title=stories[0].what if len(stories) == 1 else f"Report on {len(stories)} runs",
        shapes=MARKERS,
        version=bidwise.__version__,
    )


def _story(run: Mapping[str, Any], key: str) -> Story:
    result, name = run["result"], str(run["name"])
    try:
        match kind_of(result):
            case "synthetic":
                story = synthetic_story(name, key, result)
            case "regimes":
                story = regimes_story(name, key, result)
            case "criteo":
                story = criteo_story(name, key, result)
            case "train":
                from bidwise.report.train_story import train_story

                story = train_story(name, key, result)
            case "sweep":
                from bidwise.report.sweep_story import sweep_story

                story = sweep_story(name, key, result)
            case "fit":
                story = fit_story(name, key, result, run.get("config") or {}, run.get("metrics") or [])
            case "evaluation":
                story = evaluation_story(name, key, result)
            case _:
                raise InputError(f"run {name} must be an evaluation or of kind {', '.join(KINDS)}")
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"result.json of run {name} must be whole, found that {error!r} is missing or of no use"
        ) from error
    return Story(**{**vars(story), "sections": [s for s in (*story.sections, _source(run)) if not s.empty]})


def _source(run: Mapping[str, Any]) -> Section:
    """Where the numbers come from: command, commit, machine, settings."""
    there: Mapping[str, Any] = run.get("environment") or {}
    words = {
        "command": "command",
        "commit": "commit of bidwise",
        "machine": "machine",
        "cores": "cores",
        "threads": "threads",
        "python": "Python",
        "torch": "torch",
        "seconds": "run time of all parts, added up",
    }
    terms = [("run folder", str(run["name"]))]
    for key, title in words.items():
        value = there.get(key)
        if value is not None:
            terms.append((title, duration(value) if key == "seconds" else str(value)))
    version = there.get("bidwise") or run["result"].get("version")
    terms += [("bidwise", str(version))] if version else []
    settings = run["result"].get("config") or run["result"].get("options") or run.get("config") or {}
    told = "; ".join(f"{key} = {shortened(setting(value), 80)}" for key, value in settings.items() if value is not None)
    terms += [("settings", told)] if told else []
    lead = "" if there else "This run has not recorded its command and machine."
    return Section("Where these numbers come from", lead, terms=terms)


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(42.4), duration(600), duration(9000)
    ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def pictures(result: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]] = ()) -> list[Picture]:
    """All pictures of a run that have something to show; an evaluation has its own page instead."""
    found: list[Picture] = []
    match kind_of(result):
        case "synthetic":
            found = [surrogates(), welfare_by_loss(result), distributions(result), learning_curves(result)]
        case "regimes":
            found = regime_maps(result)
        case "criteo":
            found = criteo_pictures(result)
        case "fit":
            found = [fit_curves(metrics, result.get("best") or {})]
    return [picture for picture in found if picture.panels]


def write_figures(folder: Path, result: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]] = ()) -> list[Path]:
    """Every picture of a run as SVG, PDF and PNG under ``folder/figures``; the same bytes for the same result."""
    inside = Path(folder) / "figures"
    made = pictures(result, metrics)
    if made:
        inside.mkdir(parents=True, exist_ok=True)
    return [path for picture in made for path in write(inside, picture)]
