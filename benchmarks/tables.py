"""docs/results/tables.md: the paper's items and the tables of all committed runs; ``python -m benchmarks.tables``."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import DOCS
from bidwise.evaluation.estimate import Estimate
from bidwise.evaluation.intervals import unit_interval
from bidwise.study.recipe import BASELINE
from paper import theory
from paper.criteo_results import CriteoResult, Protocol
from paper.pages import read_result
from paper.recipes import RECIPES, RecipesResult, baseline_of
from paper.synthetic_results import Losses, ReadingsResult, RegimesResult, SyntheticResult

ROOT = Path(__file__).parents[1]
GPU = "the option runs; at 10 M rows or Criteo's size it needs a GPU and has not been run"
#: What the paper has besides statements: item, where it is here, what checks it, and why it does not run, if so.
ITEMS = (
    ("eq. 1, welfare; Example 2.1", "`bidwise.welfare`", "`tests/test_auctions.py`", ""),
    ("eq. 3, ℓ", '`pairwise_welfare_loss(surrogate="indicator")`', "`tests/test_pairwise.py`", ""),
    ("eq. 4, R; eq. 13, ℓ⁺", "`theory.Instance.loss`", "`tests/paper/test_theory.py`", ""),
    ("eq. 5, ℓ^log", "`LOSSES`: `log`, weighted `log_weighted`", "`tests/test_welfare_loss.py`", ""),
    ("eq. 6, ℓ^hinge", "`LOSSES`: `hinge`", "`tests/test_welfare_loss.py`", ""),
    ("ℓ̂^log", "`LOSSES`: `log_teacher`, `log_teacher_unweighted`", "`tests/test_welfare_loss.py`", ""),
    ("eq. 7, ℓ̂^{hinge,+}", "`LOSSES`: `hinge_plus_teacher`", "`tests/test_welfare_loss.py`", ""),
    ("pair weights, Section 4.2", "`pairwise_welfare_loss(weighting=3.0)`", "`tests/test_pairwise.py`", ""),
    (
        "weighted log losses, Appendix B",
        "`LOSSES`: `bid_weighted`, `sqrt_bid_weighted`",
        "`tests/test_pointwise.py`",
        "",
    ),
    ("rank term + λ log loss", "`bidwise.WelfareLoss`", "`tests/test_welfare_loss.py`", ""),
    ("Figure 1, surrogates at several σ", "`python -m paper synthetic`", "`tests/paper/test_pages.py`", ""),
    (
        "Figure 2, welfare of six losses",
        "`python -m paper synthetic`, `readings`",
        "`tests/paper/test_experiments.py`",
        "",
    ),
    ("its standard errors, Appendix B", "`LossResult.difference_to_average`", "`tests/paper/test_experiments.py`", ""),
    ("Figure 4, CTRs and bids", "`python -m paper synthetic`", "`tests/paper/test_pages.py`", ""),
    ("all of Appendix B", "`python -m paper synthetic --as-printed`", "`tests/paper/test_experiments.py`", ""),
    ("preparing Criteo, Appendix C", "`python -m paper prepare`", "`tests/paper/test_criteo.py`", ""),
    ("DeepFM and DCN", "`bidwise.models.DeepFM`, `paper.dcn.DCN`", "`tests/paper/test_deepctr.py`", ""),
    ("Criteo, Appendix C", "`python -m paper criteo --as-printed`", "`tests/paper/test_criteo_experiment.py`", GPU),
    ("Figures 3, 5, 6, Tables 1 to 3", "`python -m paper criteo`", "`tests/paper/test_pages.py`", ""),
    ("Tables 4 and 5, seconds an epoch", "`python -m benchmarks.categories`", "[Benchmarks](benchmarks.md)", ""),
)
STATEMENT = re.compile(r"\b(Eq|Prop|Thm|Lemma|Defs?|Section)\b")  # a docstring that names what it states

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
    return {"regimes": _regimes(result)} | ({"corners": _corners(result)} if result.config.corners else {})


def _gains(result: RecipesResult) -> list[str]:
    """Change of welfare over the baseline by world."""
    names = [name for name in RECIPES if name != baseline_of(name)]
    worlds = result.worlds.values()
    marks = {name: " †" if name.startswith("log_plus") else "" for name in names}  # the page says what it means
    rows = [[f"`{name}`{marks[name]}", *(_points(world.recipes[name].gain) for world in worlds)] for name in names]
    return _markdown(["recipe", *(f"`{world}`" for world in result.worlds)], rows)


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(cells)} |" for cells in (heads, *rows))
    return [head, "|" + "---|" * len(heads), *body]


def _gain(loss: str) -> Column:
    return lambda losses: _points(losses[loss])


def _change(loss: str, other: str) -> Column:
    """Of two losses in the same markets."""

    def column(losses: Losses) -> str:
        pairs = zip(losses[loss].ratios, losses[other].ratios, strict=True)
        return _points(Estimate.of(unit_interval([mine - its for mine, its in pairs])))

    return column


READ: Mapping[str, Column] = {
    "`log_loss` reaches": lambda losses: f"{100 * losses[BASELINE].ratio:.2f} %",
    **{f"`{loss}`": _gain(loss) for loss in ("bid_weighted", "sqrt_bid_weighted", "log")},
    "`log`, calibrated": lambda losses: _points(losses["log"].calibrated),
    **{f"`{loss}`": _gain(loss) for loss in ("log_teacher", "hinge_plus_teacher")},
    "log loss of `log`": lambda losses: f"{losses['log'].log_loss:.3f}",
}
ABLATED: Mapping[str, Column] = {
    "weights, on clicks": _change("log_weighted", "log"),
    "weights, with a teacher": _change("log_teacher", "log_teacher_unweighted"),
    "teacher, without weights": _change("log_teacher_unweighted", "log"),
    "teacher, with weights": _change("log_teacher", "log_weighted"),
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
    heads = ["loss", "better", "worse", "better, worse after Holm", "of"]
    rows = []
    for loss, counts in result.summary.items():
        holm = result.after_holm(loss)
        numbers = (counts.better, counts.worse, f"{holm.better}, {holm.worse}", counts.cells)
        rows.append([f"`{loss}`", *map(str, numbers)])
    return _markdown(heads, rows)


def _corners(result: RegimesResult) -> list[str]:
    """Every cell of maps that have few."""
    heads, rows = [], {loss: [f"`{loss}`"] for loss in result.summary}
    for plot in result.maps:
        for y, height in enumerate(plot.y.levels):
            for x, width in enumerate(plot.x.levels):
                heads.append(f"{plot.y.name} {height}, {plot.x.name} {width}")
                for loss, cells in plot.losses.items():
                    rows[loss].append(_points(cells[y][x]))
    return _markdown(["loss", *heads], rows.values())


def items() -> list[str]:
    """The paper's items: statements are functions of paper.theory that name theirs, with the tests that call them."""
    source = (ROOT / "tests" / "paper" / "test_theory.py").read_text(encoding="utf-8")
    rows = [[paper, where, checked, why or "runs"] for paper, where, checked, why in ITEMS]
    functions = [
        each for _, each in inspect.getmembers(theory, inspect.isfunction) if each.__module__ == theory.__name__
    ]
    for function in sorted(functions, key=lambda each: inspect.getsourcelines(each)[1]):
        label = (function.__doc__ or "").partition("\n")[0].partition(":")[0].rstrip(".")
        if STATEMENT.search(label) and "Sides" in str(inspect.signature(function).return_annotation):
            calls = len(re.findall(rf"\b{function.__name__}\b", source))
            rows.append([label, f"`theory.{function.__name__}`", f"`test_theory.py`, {calls} calls", "runs"])
    return _markdown(["the paper", "here", "checked by", ""], rows)


def _lines(runs: Sequence[Path]) -> Iterator[str]:
    yield from (*HEAD.splitlines(), "", "## The paper, item by item", "", *items())
    for run in runs:
        made = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        yield from ("", f"## `{run.name}`", "")
        yield f"*`{made['command']}`; {made['machine']}; commit {made['commit']}; [numbers]({run.name}/result.json).*"
        yield from ("", f"*{made['note']}*") if "note" in made else ()
        for title, lines in tables(run).items():
            yield from ("", f"### {title}", "", *lines)


def write_page(folder: Path = DOCS / "results") -> Path:
    """The page, from all committed runs that have tables."""
    runs = [path.parent for path in sorted((DOCS / "results").glob("*/result.json")) if path.parent.name not in WITHOUT]
    path = folder / "tables.md"
    path.write_text("\n".join(_lines(runs)) + "\n", encoding="utf-8")
    return path


WITHOUT = ("criteo_full",)  # one training, quoted on the page about the paper

HEAD = """# Tables of the experiments

This page is generated from `docs/results/*/result.json` by `python -m benchmarks.tables`. All data are simulated.
Commands are today's; if a run was made by another, `environment.json` has it as `first_command`.

Differences are model − log loss with 95 % intervals, in points of the optimum; for `recipes` and the runs in Criteo's
shape in % of the baseline's welfare. *Calibrated*: after Platt scaling of both models on validation clicks."""


if __name__ == "__main__":
    print(write_page())
