"""What raises welfare, by how much, at what cost of training and of serving: the page of `reproduce recipes`."""

from __future__ import annotations

from typing import Any

from bidwise.evaluation.estimate import Outcome
from bidwise.report.drawing import COLOURS, Picture, Whisker, whiskers
from bidwise.report.formatting import counted
from bidwise.report.sections import Cell, Run, RunPage, Section, Table, drawings, setting
from bidwise.study.recipes_results import RECIPES, SMALL, RecipesResult, baseline_of

GAIN, WORLDS = 0.005, 3  # the aim: so much of the welfare, in so many worlds
WORDS = {
    "log_loss": "the strongest baseline: architecture, L2 and learning rate by validation log loss",
    "other": "the best setting of the other deep architecture",
    "ensemble": "four baselines with different seeds, served as their mean logit",
    "mixed": "two baselines and two of the other architecture, served as their mean logit",
    "distilled": "the baseline's architecture trained on the CTR of the ensemble",
    "distilled_mixed": "control: the same with the mixed ensemble as the teacher",
    "distilled_one": "control: the same with a single baseline as the teacher",
    "bid_weighted": "log loss weighted by the bid or its square root",
    "log_plus": "the pairwise welfare loss, positive part and logistic",
    "log_plus_teacher": "the same on the CTR of the ensemble",
    "bid_calibrated": "the baseline, recalibrated by a line over its logit and the log bid",
    "small": "a small DeepFM (two layers of 16), its own L2 and learning rate",
    "distilled_small": "the same trained on the CTR of the ensemble, compared with `small`",
}


def recipes_page(run: Run, key: str) -> RunPage:
    """A summary table over worlds, a figure and a table for each world, the settings, and how it was done."""
    result: RecipesResult = run.result
    sections = [
        Section("Summary", "Change of welfare over the baseline, in %.", tables=[_summary(result)]),
        Section("Recipes", terms=[(name, f"{words}; {_cost(name)}") for name, words in WORDS.items()]),
    ]
    for (world, numbers), picture in zip(result.worlds.items(), recipes_pictures(run), strict=True):
        terms = [(name, _settings(each)) for name, each in numbers.tuned.chosen.items()]
        sections.append(
            Section(
                f"World {world}",
                f"The baseline reaches {100 * numbers.share('log_loss'):.2f} % of the welfare of the true CTR.",
                figures=drawings(key, picture),
                tables=[_levels(result, world)],
                terms=terms,
            )
        )
    config = result.config
    facts = [
        (f"{len(result.worlds)}", "worlds"),
        (f"{config.repeats}", "draws of each"),
        (f"{config.rows:,}", "ads in a draw"),
    ]
    return RunPage(
        run.name, "What raises welfare over the strongest baseline", headline(result), facts=facts, sections=sections
    )


def headline(result: RecipesResult) -> str:
    """Whether a recipe that serves one model reaches the aim, and which does best."""
    single = [name for name, cost in RECIPES.items() if cost.serves == 1 and baseline_of(name) not in (name, SMALL)]
    counts = {name: _counts(result, name) for name in single}
    best = max(single, key=lambda name: (counts[name][0], counts[name][1] - counts[name][2]))
    reached, better, worse = counts[best]
    worlds = counted(len(result.worlds), "world")
    if not better:
        return f"Serving one model, no recipe measurably beats the strongest baseline in any of {worlds}."
    words = f"raises welfare by half a per cent or more over the strongest baseline in {reached} of {worlds}"
    aim = f"{best} {words}." if reached >= WORLDS else f"The aim is not reached: serving one model, {best} {words}."
    return f"{aim} It is measurably above it in {better}, below it in {worse}."


def _counts(result: RecipesResult, name: str) -> tuple[int, int, int]:
    """Worlds in which the gain is clear and large enough, clear, and clearly a loss."""
    gains = [gain for numbers in result.worlds.values() if (gain := numbers.recipes[name].gain) is not None]
    better = [gain for gain in gains if gain.outcome is Outcome.BETTER]
    worse = sum(gain.outcome is Outcome.WORSE for gain in gains)
    return sum(gain.difference >= GAIN for gain in better), len(better), worse


def recipes_summary(result: RecipesResult) -> str:
    """The table and the headline, for the terminal."""
    table = _summary(result)
    return "\n".join([table.caption, "", *(f"  {line}" for line in table.text()), "", headline(result)])


def recipes_pictures(run: Run) -> list[Picture]:
    """The recipes of each world with their intervals."""
    pictures = []
    for world, numbers in run.result.worlds.items():
        rows = [
            Whisker.of(name, f"{each.gain:.2%}", 100 * each.gain, each.gain.outcome, COLOURS[0])
            for name, each in numbers.recipes.items()
            if each.gain is not None
        ]
        label = "change of welfare over the baseline, %"
        pictures.append(Picture(f"recipes_{world}", (whiskers(f"World {world}", rows, label, f"Recipes in {world}."),)))
    return pictures


def _summary(result: RecipesResult) -> Table:
    rows = []
    for name in RECIPES:
        if name != baseline_of(name):
            gains = [numbers.recipes[name].gain for numbers in result.worlds.values()]
            cells = [Cell(f"{100 * gain:.2f}", gain.outcome.value) for gain in gains if gain is not None]
            rows.append((name, cells))
    headings = [(world, "") for world in result.worlds]
    caption = f"Change of welfare, % of the baseline's ({SMALL} for distilled_small), 95 % intervals over draws"
    return Table(caption, "Recipe", headings, rows)


def _levels(result: RecipesResult, world: str) -> Table:
    numbers = result.worlds[world]

    def mean(values: tuple[float, ...], places: int) -> Cell:
        return Cell(f"{sum(values) / len(values):.{places}f}")

    rows = [
        (name, [Cell(f"{100 * numbers.share(name):.2f}"), mean(each.auc, 4), mean(each.log_loss, 5)])
        for name, each in numbers.recipes.items()
    ]
    headings = [("of the optimum, %", ""), ("AUC", ""), ("log loss", "")]
    return Table("Means over draws", "Recipe", headings, rows, folded=True)


def _cost(name: str) -> str:
    """``5 trainings, one model served``."""
    cost = RECIPES[name]
    return f"{counted(cost.trainings, 'training')}, {counted(cost.serves, 'model')} served"


def _settings(settings: dict[str, Any]) -> str:
    words = {"l2": "L2 × ads", "learning_rate": "rate"}
    flat = {**{key: x for key, x in settings.items() if key != "options"}, **settings.get("options", {})}
    return ", ".join(f"{words.get(name, name)} {setting(value)}" for name, value in flat.items())
