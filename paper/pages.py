"""Pages of the experiments: verdict, gains with intervals, all numbers, the paper's beside ours; figures as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bidwise.checks import InputError
from bidwise.evaluation.estimate import Outcome
from bidwise.json_files import read_json
from bidwise.report.build import run_of, runs_page
from bidwise.report.sections import Run, RunPage, Section
from bidwise.run_folder import result_from_json, write_text
from paper.criteo_results import CriteoResult
from paper.criteo_view import criteo_view
from paper.experiment_figures import forest
from paper.experiment_views import Comparison, Experiment, readings_view, recipes_view, regimes_view, synthetic_view
from paper.loss_styles import losses_section
from paper.pictures import Picture, drawings, grid_ends, write
from paper.recipes_results import RecipesResult
from paper.synthetic_results import ReadingsResult, RegimesResult, SyntheticResult

FEW_REPEATS, FEW_ADS = 10, 10_000
KINDS: tuple[Any, ...] = (SyntheticResult, ReadingsResult, RegimesResult, CriteoResult, RecipesResult)
RESULTS: dict[str, Any] = {kind.kind: kind for kind in KINDS}
VIEWS: dict[str, Callable[[Any], Experiment]] = {
    "synthetic": synthetic_view,
    "readings": readings_view,
    "regimes": regimes_view,
    "criteo": criteo_view,
    "recipes": recipes_view,
}


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
    return runs_page(runs, dict.fromkeys(VIEWS, experiment_page))


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


def experiment_page(run: Run, key: str) -> RunPage:
    """Verdict, gains, the paper's numbers, ours, figures, and how it was done."""
    shown = VIEWS[run.result.kind](run.result)
    headline, *others = verdict(shown)
    others += [run.environment["note"]] if "note" in run.environment else []
    tables = [table for each in shown.comparisons for table in each.tables]
    lead = (
        f"Difference to the baseline on the same auctions, in % {shown.unit}, with 95 % intervals; full marks where "
        "they exclude 0. Of two lines the upper is over repeats, the lower over auctions."
    )
    sections = [
        Section(f"Over all {shown.over}", tables=[shown.summary] if shown.summary else []),
        Section("Welfare against the baseline", lead, figures=drawings(key, _forest(shown))),
        Section("The paper’s numbers beside ours", tables=[shown.paper] if shown.paper else []),
        Section("All numbers", "Means over repeats on test auctions.", tables=tables),
        *(
            Section(each.title, each.lead, figures=drawings(key, each.picture), tables=each.tables)
            for each in shown.figures
        ),
        Section("How it was done", terms=shown.how),
        losses_section(shown.losses),
        Section("Notes", points=shown.notes),
    ]
    return RunPage(run.name, shown.title, headline, [("", each) for each in others], shown.facts, sections)


def experiment_pictures(run: Run) -> list[Picture]:
    """Every picture of a run, for files; those that have nothing to show have no panels."""
    shown = VIEWS[run.result.kind](run.result)
    return [_forest(shown), *(each.picture for each in shown.figures)]


def experiment_summary(result: Any) -> str:
    """Tables and the verdict, for the terminal."""
    shown = VIEWS[result.kind](result)
    tables = [shown.summary] if shown.summary else [each.tables[0] for each in shown.comparisons]
    parts = ["\n".join([table.caption, "", *(f"  {line}" for line in table.text())]) for table in tables]
    return "\n\n".join([*parts, "\n".join(verdict(shown))])


def _forest(shown: Experiment) -> Picture:
    label = f"difference to the baseline, % {shown.unit}"
    families = bool(shown.losses) and not shown.worlds  # else what is compared are readings or recipes
    panels = [forest(each.title, each.gains, label, families=families) for each in shown.comparisons]
    return Picture(
        shown.forest, tuple(panel for panel, each in zip(panels, shown.comparisons, strict=True) if each.gains)
    )


def verdict(shown: Experiment) -> list[str]:
    """What is better than the baseline, what is worse, and what to beware of; the first sentence is the headline."""
    tuned_first = sorted(shown.comparisons, key=lambda each: not each.tuned)
    found = [_over_worlds(shown)] if shown.worlds else [_compared(each) for each in tuned_first]
    lams = {name: some for each in shown.comparisons for name, some in each.lams.items()}
    for name, cells in shown.worlds.items():
        lams[name] = tuple(lam for cell in cells for lam in getattr(cell, "lam", None) or ())
    found += grid_ends({name: some for name, some in lams.items() if some}, shown.lams)
    if shown.ads is not None and shown.ads < FEW_ADS:
        found.append(f"{shown.ads:,} test ads are a trial, not a measurement: use {FEW_ADS:,} or more.")
    if shown.repeats == 1:
        found.append("One repeat has no interval over repeats, so no difference counts as measured.")
    elif shown.repeats < FEW_REPEATS:
        found.append(f"{shown.repeats} repeats reveal only large differences.")
    return found


def _compared(comparison: Comparison) -> str:
    """Which candidates are better, worse, or cannot be distinguished, with the best one's estimate."""
    gains = comparison.gains
    if not gains:
        return f"{comparison.title}: only log loss was trained, so there is nothing to compare."
    better, worse = ([n for n, x in gains.items() if x.outcome is kind] for kind in (Outcome.BETTER, Outcome.WORSE))
    best = max(better or gains, key=lambda name: gains[name].difference)
    count = f"{len(better) or 'none'} of {len(gains)} losses {'are' if len(better) > 1 else 'is'}"
    parts = [f"{count} measurably above log loss, the highest {best} at {gains[best]:%}"]
    rest = [name for name in gains if name not in (*better, *worse)]
    for words, names in (("below it", worse), ("not distinguished from it", rest)):
        parts += [f"{words}: {', '.join(names)}"] if names else []
    return f"{comparison.title}: {'; '.join(parts)}."


def _over_worlds(shown: Experiment) -> str:
    """The candidate that is better in most worlds, one that is worse in none before all others."""
    outcomes = {name: [gain.outcome for gain in gains] for name, gains in shown.worlds.items()}
    better, worse = (
        {name: some.count(kind) for name, some in outcomes.items()} for kind in (Outcome.BETTER, Outcome.WORSE)
    )
    best = max(outcomes, key=lambda name: (better[name] > 0 and not worse[name], better[name] - worse[name]))
    if not better[best]:
        return f"No candidate is measurably above its baseline in any of the {shown.over}."
    words = f"{best} is measurably above its baseline in {better[best]} of {len(outcomes[best])} {shown.over}"
    return f"{words} and below it in {worse[best] or 'none'}; the table has the others."
