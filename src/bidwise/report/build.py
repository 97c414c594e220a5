"""Pages about runs, made from their folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

import bidwise
from bidwise.json_files import read_object, read_toml
from bidwise.report.drawing import MARKERS, shortened, themed
from bidwise.report.evaluation_page import evaluation_page
from bidwise.report.formatting import duration
from bidwise.report.sections import OUTCOMES, Run, RunPage, Section, setting
from bidwise.report.train_page import train_page

PageOf = Callable[[Run, str], RunPage]  # of a run and the prefix of its ids
PAGES: Mapping[str, PageOf] = {"evaluation": evaluation_page, "train": train_page}  # by the kind of the result

RECORDED = ("command", "commit", "machine", "cores", "threads", "python", "torch", "bidwise")  # in environment.json


def run_of(folder: Path, result: Any) -> Run:
    """A result with the settings and the environment that its folder contains."""
    environment, config = folder / "environment.json", folder / "config.toml"
    return Run(
        folder.resolve().name,
        result,
        read_object(environment) if environment.is_file() else {},
        read_toml(config) if config.is_file() else {},
    )


def runs_page(runs: Sequence[Run], pages: Mapping[str, PageOf] = PAGES) -> str:
    """The HTML of a page about runs: everything is escaped, and a name that is missing is an error."""
    shown = [_page(run, pages[run.result.kind](run, f"run{at}-")) for at, run in enumerate(runs)]
    environment = Environment(
        loader=PackageLoader("bidwise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["themed"] = themed
    return environment.get_template("page.html").render(
        pages=shown,
        title=shown[0].title if len(shown) == 1 else f"Report on {len(shown)} runs",
        shapes=MARKERS,
        outcomes=OUTCOMES,
        version=bidwise.__version__,
    )


def _page(run: Run, page: RunPage) -> RunPage:
    return replace(page, sections=[section for section in (*page.sections, _source(run)) if not section.empty])


def _source(run: Run) -> Section:
    """The origin of the numbers: command, commit, machine, settings."""
    recorded = run.environment
    terms = [("run folder", run.name)]
    terms += [(key, str(recorded[key])) for key in RECORDED if recorded.get(key) is not None]
    if recorded.get("seconds") is not None:
        terms.append(("run time of all parts, added up", duration(recorded["seconds"])))
    config = getattr(run.result, "config", None) or getattr(run.result, "options", None) or run.config
    settings: Mapping[str, Any] = vars(config) if is_dataclass(config) else config
    words = (f"{k} = {shortened(setting(value), 80)}" for k, value in settings.items() if value is not None)
    terms += [("settings", text)] if (text := "; ".join(words)) else []
    lead = "" if recorded else "This run has not recorded its command and machine."
    return Section("Origin of these numbers", lead, terms=terms)
