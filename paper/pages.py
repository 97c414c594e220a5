"""Pages of the experiments, and one page about several runs; figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bidwise.checks import InputError
from bidwise.json_files import read_json
from bidwise.report.build import run_of, runs_page
from bidwise.report.drawing import write
from bidwise.report.sections import Run
from bidwise.run_folder import result_from_json, write_text
from paper.criteo_results import CriteoResult
from paper.experiment_page import VIEWS, experiment_page, experiment_pictures
from paper.recipes_results import RecipesResult
from paper.synthetic_results import RegimesResult, SyntheticResult

RESULTS: dict[str, Any] = {kind.kind: kind for kind in (SyntheticResult, RegimesResult, CriteoResult, RecipesResult)}
PAGES = dict.fromkeys(VIEWS, experiment_page)


def read_result(folder: Path) -> Any:
    """The result of an experiment, from its folder."""
    path = folder / "result.json"
    if not path.is_file():
        raise InputError(f"must be a folder with result.json, found none in {folder}; has the run finished?", "runs")
    return typed_result(read_json(path), str(path))


def typed_result(data: Any, where: str = "result.json") -> Any:
    """A result of an experiment as its type."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in RESULTS:
        raise InputError(f"{where} must be of kind {', '.join(RESULTS)}, found {kind!r}")
    return result_from_json(RESULTS[kind], data, where)


def experiments_page(runs: Sequence[Run]) -> str:
    """The HTML of a page about experiments."""
    return runs_page(runs, PAGES)


def report(folders: Sequence[Path], out: Path) -> None:
    """Write one page about several experiments."""
    page = experiments_page([run_of(folder, read_result(folder)) for folder in folders])
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page)


def write_report(folder: Path, result: Any) -> None:
    """``report.html``, and every picture as SVG, PDF and PNG under ``figures``; the same bytes for the same result."""
    run = run_of(folder, result)
    pictures = [picture for picture in experiment_pictures(run) if picture.panels]
    for picture in pictures:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        write(folder / "figures", picture)
    write_text(folder / "report.html", experiments_page([run]))
