"""docs/results/tables.md from the committed runs: ``python -m benchmarks.tables``"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.harness import DOCS
from bidwise.evaluation.estimate import Estimate
from bidwise.study.recipe import BASELINE, has_lam
from paper.criteo_results import CriteoResult, Levels
from paper.criteo_results import Protocol as CriteoProtocol
from paper.pages import read_result
from paper.recipes_results import RECIPES, SMALL, RecipesResult, baseline_of
from paper.synthetic_results import Losses, RegimesResult, SyntheticResult

BY = {"by_welfare": "by welfare", "by_truth": "by truth"}


def tables(run: Path) -> dict[str, list[str]]:
    """The lines of each table by its title."""
    result = read_result(run)
    if isinstance(result, CriteoResult):
        return {f"{model}, {name}": _criteo(result, name, found) for model, name, found in result.protocols}
    if isinstance(result, SyntheticResult):
        return {name: _synthetic(name, found.losses) for name, found in result.protocols.items()}
    if isinstance(result, RecipesResult):
        return {"gains": _gains(result), "levels": _shares(result)}
    assert isinstance(result, RegimesResult), f"{run}: a result of python -m paper"
    return {"regimes": _regimes(result)}


def _gains(result: RecipesResult) -> list[str]:
    """Change of welfare over the baseline by world."""
    names = [name for name in RECIPES if name != baseline_of(name)]
    rows = [
        [
            f"`{name}`",
            *(_points(world.recipes[name].gain) for world in result.worlds.values()),
            str(RECIPES[name].trainings),
            str(RECIPES[name].serves),
        ]
        for name in names
    ]
    return _markdown(["recipe", *(f"`{world}`" for world in result.worlds), "trainings", "models served"], rows)


def _shares(result: RecipesResult) -> list[str]:
    """What baselines reach of the optimal welfare, and with which settings."""
    rows = []
    for name, world in result.worlds.items():
        cells = []
        for each in (BASELINE, SMALL):
            settings = world.tuned.chosen[each]
            cells += [f"{settings['model']}, {settings['l2']:g}, {settings['learning_rate']:g}"]
            cells += [f"{100 * world.share(each):.2f} %"]
        lams = ", ".join(f"{world.tuned.chosen[each]['lam']:g}" for each in ("log_plus", "log_plus_teacher"))
        soft = [world.tuned.chosen[each] for each in ("distilled", "distilled_small")]
        cells += [lams, *(f"{x['click_share']:g}, {x['l2']:g}" for x in soft)]
        rows.append([f"`{name}`", *cells])
    heads = ["world", "baseline: model, L2 × ads, rate", "of the optimum", "small", "of the optimum"]
    heads += ["λ of `log_plus`, with teacher", "`distilled`: clicks, L2 × ads", "`distilled_small`"]
    return _markdown(heads, rows)


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(cells)} |" for cells in (heads, *rows))
    return [head, "|" + "---|" * len(heads), *body]


def _interval(estimate: Estimate) -> str:
    return f"[{100 * estimate.ci_low:+.2f}, {100 * estimate.ci_high:+.2f}]".replace("-", "−")


def _points(estimate: Estimate | None) -> str:
    """Hundredths with their interval; nothing for the baseline."""
    return f"{100 * estimate.difference:+.2f} ".replace("-", "−") + _interval(estimate) if estimate else ""


def _level(levels: Levels, name: str) -> str:
    return f"{getattr(levels, name):.4f} ± {getattr(levels, f'{name}_error'):.4f}"


def _criteo(result: CriteoResult, name: str, protocol: CriteoProtocol) -> list[str]:
    tuned, losses = name == "tuned", protocol.losses
    ways = [by for by in BY if protocol.selected(by)] if tuned else []
    calibrated = any(loss.calibrated for loss in losses.values())
    heads = ["loss", "welfare", "expected welfare", "− log loss, % [repeats]", "[auctions]"]
    heads += ["calibrated, %"] if calibrated else []
    heads += ["AUC", "log loss", *(["epoch", "λ"] if tuned else []), *(f"{BY[by]}, %" for by in ways)]
    rows = []
    for loss, found in losses.items():
        gain = None if loss == BASELINE else protocol.gain(loss)
        cells = [f"`{loss}`", _level(found, "welfare"), _level(found, "expected_welfare")]
        cells += [_points(gain.repeats), _interval(gain.auctions)] if gain else ["", ""]
        cells += [_points(protocol.gain(loss, calibrated=True)) if gain else ""] if calibrated else []
        cells += [_level(found, "auc"), _level(found, "log_loss")]
        if tuned:
            lams = found.lam[:1] if result.config.lam_repeats else found.lam
            cells += [f"{found.epoch:.2f}", ", ".join(f"{lam:g}" for lam in lams)]
        cells += [_points(protocol.gain(loss, by).repeats) if gain else "" for by in ways]
        rows.append(cells)
    return _markdown(heads, rows)


def _synthetic(name: str, losses: Losses) -> list[str]:
    tuned = name == "tuned"
    heads = ["loss", "of the optimum", "− log loss", "− log loss, calibrated"]
    heads += [*(["− log loss, chosen by clicks"] if tuned else []), "AUC", "log loss"]
    rows = []
    for loss, found in losses.items():
        if name == "converged_sums" and not has_lam(loss):
            continue
        gains = [found, found.calibrated, *([found.by_clicks] if tuned else [])]
        cells = [f"`{loss}`", f"{100 * found.ratio:.2f} %", *("" if loss == BASELINE else _points(g) for g in gains)]
        rows.append([*cells, f"{found.auc:.4f}", f"{found.log_loss:.4f}"])
    return _markdown(heads, rows)


def _regimes(result: RegimesResult) -> list[str]:
    heads = ["loss", "better than a tuned log loss", "worse", "unclear", "better, worse after Holm", "cells"]
    rows = []
    for loss, counts in result.summary.items():
        holm = result.after_holm(loss)
        numbers = (counts.better, counts.worse, counts.unclear, f"{holm.better}, {holm.worse}", counts.cells)
        rows.append([f"`{loss}`", *map(str, numbers)])
    return _markdown(heads, rows)


def _lines(runs: Sequence[Path]) -> Iterator[str]:
    yield from HEAD.splitlines()
    for run in runs:
        made = json.loads((run / "environment.json").read_text())
        yield from ("", f"## `{run.name}`", "")
        yield f"*`{made['command']}`; {made['machine']}; commit {made['commit']}; [numbers]({run.name}/result.json).*"
        for title, lines in tables(run).items():
            yield from ("", f"### {title}".replace("_", " "), "", *lines)


def write_page(folder: Path = DOCS / "results") -> Path:
    """The page, from all committed runs that have tables."""
    runs = [path.parent for path in sorted((DOCS / "results").glob("*/result.json")) if path.parent.name not in WITHOUT]
    path = folder / "tables.md"
    path.write_text("\n".join(_lines(runs)) + "\n")
    return path


WITHOUT = ("criteo_full",)  # one training, quoted on the page of simulations

HEAD = """# Tables of the experiments

This page is generated from `docs/results/*/result.json` by `python -m benchmarks.tables`. All data are simulated.

Differences are model − log loss with 95 % intervals, in points of the optimum; for `recipes` and the runs in Criteo's
shape in % of the baseline's welfare. *Calibrated*: after Platt scaling of all models on validation clicks. *Chosen by
clicks*, *by welfare*, *by truth*: epoch and λ selected by that instead."""


if __name__ == "__main__":
    print(write_page())
