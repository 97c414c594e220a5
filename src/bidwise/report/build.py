"""`report`: one page about one or several runs, made from what their folders hold; and figures as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

import bidwise
from bidwise.checks import InputError
from bidwise.plain_text import json_of, read_object, read_plain, read_toml
from bidwise.report.drawing import MARKERS, Picture, shortened, themed, write
from bidwise.report.formatting import duration
from bidwise.report.sections import OUTCOMES, Run, RunPage, Section, setting
from bidwise.run_folder import read_json, result_from_json, write_text
from bidwise.urls import check_on_disk


class Kind(NamedTuple):
    """A kind of run: its type, and in ``report`` what makes its page, and its figures that are files too."""

    result: str
    page: str  # called with a run and the prefix of its ids
    pictures: str = ""  # called with a run


KINDS = {
    "evaluation": Kind("evaluation.result.Evaluation", "evaluation_page.evaluation_page"),
    **{
        kind: Kind(f"study.{result}", "experiment_page.experiment_page", "experiment_page.experiment_pictures")
        for kind, result in (
            ("synthetic", "synthetic_results.SyntheticResult"),
            ("regimes", "synthetic_results.RegimesResult"),
            ("criteo", "criteo_results.CriteoResult"),
            ("recipes", "recipes_results.RecipesResult"),
        )
    },
    "train": Kind("table.results.TrainResult", "train_page.train_page"),
    "fit": Kind("report.curves.FitResult", "curves.fit_page", "curves.fit_pictures"),
}

RECORDED = {  # what environment.json has -> what a page calls it
    "command": "command",
    "commit": "commit of bidwise",
    "machine": "machine",
    "cores": "cores",
    "threads": "threads",
    "python": "Python",
    "torch": "torch",
    "bidwise": "bidwise",
}


def report(runs: Sequence[Path], out: Path) -> None:
    """One page about all the runs, at ``out``; every error names the folder or file that cannot be used."""
    if not runs:
        raise InputError("must name at least one run folder, found none", argument="runs")
    check_on_disk("out", out, "a file", "copy it afterwards")
    out = Path(out)
    if out.is_dir():
        raise InputError(
            f"must be a file, found the folder {out}; add a name such as {out / 'report.html'}", argument="out"
        )
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"must be a page, a file that ends in .html, found {out}", argument="out")
    page = runs_page([read_run(Path(run)) for run in runs])
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"must be in a folder, found the file {out.parent}", argument="out") from None
    write_text(out, page)


def read_run(folder: Path) -> Run:
    """What a run folder holds; only ``result.json`` must be there."""
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise InputError(f"must be a run folder, found {found} at {folder}", argument="runs")
    path = folder / "result.json"
    if not path.is_file():
        raise InputError(
            f"must be a folder with result.json, found none in {folder}; has the run finished?", argument="runs"
        )
    return run_of(folder, typed_result(read_json(path), str(path)))


def run_of(folder: Path, result: Any) -> Run:
    """A result with what else its folder holds."""
    environment, config, metrics = (folder / name for name in ("environment.json", "config.toml", "metrics.jsonl"))
    return Run(
        folder.resolve().name,
        result,
        read_object(environment) if environment.is_file() else {},
        read_toml(config) if config.is_file() else {},
        read_plain(metrics, _entries, "lines of JSON") if kind_of(result) == "fit" and metrics.is_file() else [],
    )


def typed_result(data: Any, where: str = "result.json") -> Any:
    """What ``result.json`` holds as the type of its kind."""
    kind = kind_of(data)
    if kind is None:
        found = repr(data.get("kind")) if isinstance(data, dict) else type(data).__name__
        raise InputError(f"{where} must be of kind {', '.join(KINDS)}, found kind {found}")
    return result_from_json(_named(KINDS[kind].result), data, where)


def kind_of(result: Any) -> str | None:
    """Which kind of run a result is of; ``None`` for what no page can be made of.

    >>> kind_of({"kind": "fit"}), kind_of({"kind": "?"}), kind_of(3)
    ('fit', None, None)
    """
    kind = result.get("kind") if isinstance(result, dict) else getattr(result, "kind", None)
    return kind if isinstance(kind, str) and kind in KINDS else None


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"bidwise.{module}"), name)


def _entries(text: str) -> list[dict[str, Any]]:
    entries = [json_of(line) for line in text.splitlines() if line.strip()]
    if not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("a line without keys")
    return entries


def runs_page(runs: Sequence[Run]) -> str:
    """The HTML of a page about runs: everything is escaped, and a name that is missing is an error."""
    pages = [_page(run, f"run{at}-") for at, run in enumerate(runs)]
    environment = Environment(
        loader=PackageLoader("bidwise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["themed"] = themed
    return environment.get_template("page.html").render(
        pages=pages,
        title=pages[0].title if len(pages) == 1 else f"Report on {len(pages)} runs",
        shapes=MARKERS,
        outcomes=OUTCOMES,
        version=bidwise.__version__,
    )


def _page(run: Run, key: str) -> RunPage:
    kind = kind_of(run.result)
    if kind is None:
        raise InputError(f"run {run.name} must be of kind {', '.join(KINDS)}")
    make: Callable[[Run, str], RunPage] = _named(f"report.{KINDS[kind].page}")
    try:
        page = make(run, key)
        sections = [section for section in (*page.sections, _source(run)) if not section.empty]
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:  # right types, wrong parts
        raise InputError(
            f"result.json of run {run.name} must be whole, found parts that do not fit together: {error!r}"
        ) from error
    return replace(page, sections=sections)


def _source(run: Run) -> Section:
    """Where the numbers come from: command, commit, machine, settings."""
    recorded = run.environment
    terms = [("run folder", run.name)]
    terms += [(title, str(recorded[key])) for key, title in RECORDED.items() if recorded.get(key) is not None]
    if recorded.get("seconds") is not None:
        terms.append(("run time of all parts, added up", duration(recorded["seconds"])))
    config = getattr(run.result, "config", None) or getattr(run.result, "options", None) or run.config
    settings: Mapping[str, Any] = vars(config) if is_dataclass(config) else config
    words = (f"{k} = {shortened(setting(value), 80)}" for k, value in settings.items() if value is not None)
    terms += [("settings", text)] if (text := "; ".join(words)) else []
    lead = "" if recorded else "This run has not recorded its command and machine."
    return Section("Where these numbers come from", lead, terms=terms)


def pictures(run: Run) -> list[Picture]:
    """All pictures of a run that have something to show and are files too."""
    draw = KINDS[kind].pictures if (kind := kind_of(run.result)) else ""
    return [picture for picture in (_named(f"report.{draw}")(run) if draw else []) if picture.panels]


def write_figures(folder: Path, result: Any) -> list[Path]:
    """Every picture of a run as SVG, PDF and PNG under ``folder/figures``; the same bytes for the same result."""
    inside = Path(folder) / "figures"
    made = pictures(run_of(Path(folder), result))
    if made:
        inside.mkdir(parents=True, exist_ok=True)
    return [path for picture in made for path in write(inside, picture)]
