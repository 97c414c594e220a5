"""Tables of docs/criteo.md, recipes.md and reproduce.md, from results: ``python -m benchmarks.tables RUN ...``"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bidwise.evaluation.estimate import Estimate
from bidwise.study.recipe import BASELINE
from paper.criteo_results import CriteoResult, Protocol
from paper.pages import read_result
from paper.recipes_results import RECIPES, RecipesResult, baseline_of
from paper.synthetic_results import Losses, ReadingsResult, RegimesResult, SyntheticResult

Column = Callable[[Losses], str]
PROTOCOLS = {"converged": "converged, means", "converged_sums": "converged, sums", "tuned": "tuned"}


def tables(run: Path) -> dict[str, list[str]]:
    """The lines of each table by its title."""
    result = read_result(run)
    if isinstance(result, CriteoResult):
        return {f"{model}, {name}": _criteo(found) for model, name, found in result.protocols}
    if isinstance(result, SyntheticResult):
        return {"synthetic": _synthetic(result)}
    if isinstance(result, ReadingsResult):
        return {"readings": _readings(result, READ), "ablation": _readings(result, ABLATED)}
    if isinstance(result, RecipesResult):
        return {"gains": _gains(result)}
    assert isinstance(result, RegimesResult), f"{run}: a result of python -m paper"
    return {"regimes": _regimes(result)}


def _gains(result: RecipesResult) -> list[str]:
    """Change of welfare over the baseline by world."""
    names = [name for name in RECIPES if name != baseline_of(name)]
    worlds = result.worlds.values()
    rows = [[f"`{name}`", *(_points(world.recipes[name].gain) for world in worlds)] for name in names]
    return _markdown(["recipe", *(f"`{world}`" for world in result.worlds)], rows)


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(cells)} |" for cells in (heads, *rows))
    return [head, "|" + "---|" * len(heads), *body]


def _gain(loss: str) -> Column:
    return lambda losses: _points(losses[loss])


READ: Mapping[str, Column] = {
    "`log_loss` reaches": lambda losses: f"{100 * losses[BASELINE].ratio:.2f} %",
    **{f"`{loss}`": _gain(loss) for loss in ("bid_weighted", "sqrt_bid_weighted", "log")},
    "`log`, calibrated": lambda losses: _points(losses["log"].calibrated),
    **{f"`{loss}`": _gain(loss) for loss in ("log_teacher", "hinge_plus_teacher")},
    "log loss of `log`": lambda losses: f"{losses['log'].log_loss:.3f}",
}
ABLATED: Mapping[str, Column] = {
    "neither: `log`": _gain("log"),
    "weights: `log_weighted`": _gain("log_weighted"),
    "teacher: `log_teacher_unweighted`": _gain("log_teacher_unweighted"),
    "both: `log_teacher`": _gain("log_teacher"),
}


def _interval(estimate: Estimate) -> str:
    return f"[{100 * estimate.ci_low:+.2f}, {100 * estimate.ci_high:+.2f}]".replace("-", "−")


def _points(estimate: Estimate | None) -> str:
    """Hundredths with their interval; nothing for the baseline."""
    return f"{100 * estimate.difference:+.2f} ".replace("-", "−") + _interval(estimate) if estimate else ""


def _criteo(protocol: Protocol) -> list[str]:
    rows = []
    for loss, found in protocol.losses.items():
        gains = (
            [None, None] if loss == BASELINE else [protocol.gain(loss).repeats, protocol.gain(loss, calibrated=True)]
        )
        numbers = (found.expected_welfare, found.auc, found.log_loss)
        rows.append([f"`{loss}`", *map(_points, gains), *(f"{number:.4f}" for number in numbers)])
    heads = ["loss", "− log loss, %", "calibrated, %", "expected welfare", "AUC", "log loss"]
    return _markdown(heads, rows)


def _synthetic(result: SyntheticResult) -> list[str]:
    """Differences to log loss in each protocol, and after Platt scaling of both; for log loss what it reaches."""
    rows = []
    for loss in result.config.losses:
        cells = []
        for protocol in result.protocols.values():
            found = protocol.losses.get(loss)
            if found is None:
                cells += ["", ""]
            elif loss == BASELINE:
                cells += [f"{100 * found.ratio:.2f} %", ""]
            else:
                cells += [_points(found), _points(found.calibrated)]
        rows.append([f"`{loss}`", *cells])
    names = [PROTOCOLS[name] for name in result.protocols]
    return _markdown(["loss", *(word for name in names for word in (name, "calibrated"))], rows)


def _readings(result: ReadingsResult, columns: Mapping[str, Column]) -> list[str]:
    rows = [[name, *(column(losses) for column in columns.values())] for name, losses in result.readings.items()]
    return _markdown(["reading", *columns], rows)


def _regimes(result: RegimesResult) -> list[str]:
    heads = ["loss", "better than a tuned log loss", "worse", "unclear", "better, worse after Holm", "cells"]
    rows = []
    for loss, counts in result.summary.items():
        holm = result.after_holm(loss)
        numbers = (counts.better, counts.worse, counts.unclear, f"{holm.better}, {holm.worse}", counts.cells)
        rows.append([f"`{loss}`", *map(str, numbers)])
    return _markdown(heads, rows)


def _lines(runs: Sequence[str]) -> Iterator[str]:
    for run in runs:
        for title, lines in tables(Path(run)).items():
            yield from (f"{run}: {title}", "", *lines, "")


if __name__ == "__main__":
    print("\n".join(_lines(sys.argv[1:])))
