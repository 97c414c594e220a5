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
from bidwise.report.train_sentences import ABOUT as ABOUT_LOSSES
from bidwise.report.train_sentences import NO_WORDS
from bidwise.run_folder import result_from_json, write_text
from paper.criteo_results import CriteoResult
from paper.criteo_view import criteo_view
from paper.experiment_figures import Picture, forest, in_order
from paper.experiment_views import Comparison, Experiment, readings_view, recipes_view, regimes_view, synthetic_view
from paper.recipes import RecipesResult
from paper.synthetic_results import Counts, ReadingsResult, RegimesResult, SyntheticResult

FEW_REPEATS, FEW_ADS = 10, 10_000
ABOUT = ABOUT_LOSSES | {"log_teacher_unweighted": "log with a teacher’s CTR for clicks and no pair weights."}
KINDS: dict[Any, Callable[[Any], Experiment]] = {
    SyntheticResult: synthetic_view,
    ReadingsResult: readings_view,
    RegimesResult: regimes_view,
    CriteoResult: criteo_view,
    RecipesResult: recipes_view,
}
RESULTS = {kind.kind: kind for kind in KINDS}
VIEWS = {kind.kind: view for kind, view in KINDS.items()}


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


def report(folders: Sequence[Path], out: Path) -> None:
    """Write one page about several experiments."""
    page = runs_page([run_of(folder, read_result(folder)) for folder in folders], dict.fromkeys(VIEWS, experiment_page))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page)


def write_report(folder: Path, result: Any) -> None:
    """``report.html``, and every picture as SVG under ``figures``; the same bytes for the same result."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for picture in experiment_pictures(result):
        picture.write(folder / "figures")
    write_text(folder / "report.html", runs_page([run_of(folder, result)], {result.kind: experiment_page}))


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
        Section("Welfare against the baseline", lead, figures=_forest(shown).drawings(key)),
        Section("The paper’s numbers beside ours", tables=[shown.paper] if shown.paper else []),
        Section("All numbers", "Means over repeats on test auctions.", tables=tables),
    ]
    for each in shown.figures:
        sections.append(Section(each.title, each.lead, figures=each.picture.drawings(key), tables=each.tables))
    sections.append(Section("How it was done", terms=shown.how))
    about = [(loss, ABOUT.get(loss, NO_WORDS)) for loss in in_order(shown.losses)]
    sections += [Section("The losses", terms=about), Section("Notes", points=shown.notes)]
    return RunPage(run.name, shown.title, headline, [("", each) for each in others], shown.facts, sections)


def experiment_pictures(result: Any) -> list[Picture]:
    """Every picture of a result that has something to show."""
    shown = VIEWS[result.kind](result)
    return [picture for picture in (_forest(shown), *(each.picture for each in shown.figures)) if picture.panels]


def experiment_summary(result: Any) -> str:
    """Tables and the verdict, for the terminal."""
    shown = VIEWS[result.kind](result)
    tables = [shown.summary] if shown.summary else [each.tables[0] for each in shown.comparisons]
    parts = ["\n".join([table.caption, "", *(f"  {line}" for line in table.text())]) for table in tables]
    return "\n\n".join([*parts, "\n".join(verdict(shown))])


def _forest(shown: Experiment) -> Picture:
    label = f"difference to the baseline, % {shown.unit}"
    panels = [forest(each.title, each.gains, label) for each in shown.comparisons if each.gains]
    return Picture(shown.forest, tuple(panels))


def verdict(shown: Experiment) -> list[str]:
    """What is better than the baseline, what is worse, and what to beware of; the first sentence is the headline."""
    tuned_first = sorted(shown.comparisons, key=lambda each: not each.tuned)
    found = [_over_worlds(shown)] if shown.worlds else [_compared(each) for each in tuned_first]
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
    better, worse = ([n for n, gain in gains.items() if gain.outcome is x] for x in (Outcome.BETTER, Outcome.WORSE))
    best = max(better or gains, key=lambda name: gains[name].difference)
    count = f"{len(better) or 'none'} of {len(gains)} losses {'are' if len(better) > 1 else 'is'}"
    parts = [f"{count} measurably above log loss, the highest {best} at {gains[best]:%}"]
    rest = [name for name in gains if name not in (*better, *worse)]
    for words, names in (("below it", worse), ("not distinguished from it", rest)):
        parts += [f"{words}: {', '.join(names)}"] if names else []
    return f"{comparison.title}: {'; '.join(parts)}."


def _over_worlds(shown: Experiment) -> str:
    """The candidate that is better in most worlds, one that is worse in none before all others."""
    counts = {name: Counts.of(gains) for name, gains in shown.worlds.items()}
    best = max(counts, key=lambda name: counts[name].merit)
    if not counts[best].better:
        return f"No candidate is measurably above its baseline in any of the {shown.over}."
    words = f"{best} is measurably above its baseline in {counts[best].better} of {counts[best].cells} {shown.over}"
    return f"{words} and below it in {counts[best].worse or 'none'}; the table has the others."
