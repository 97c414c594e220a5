"""Every sentence of pages and of the terminal: produced here, collected in ``sentences.txt``, at most 25 words long.

The strings of the source that end like a sentence are its templates: each must be produced, and nothing else may be.
``BIDWISE_WRITE=1`` writes the file again.
"""

import ast
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_helpers import ads_of, market

import bidwise
from bidwise.data.columns import Column
from bidwise.evaluation.estimate import Outcome
from bidwise.report.build import PAGES, runs_page
from bidwise.report.sections import Run
from bidwise.report.train_page import described, train_summary
from bidwise.report.train_sentences import ABOUT, table_doubts, table_notes
from bidwise.study.compare import Candidate, Choice, Power
from bidwise.study.search import Attempt, Search
from bidwise.table import train
from bidwise.table.leaks import Telling
from bidwise.table.results import Refresh

FILE = Path(__file__).with_name("sentences.txt")
SOURCE = Path(bidwise.__file__).parent
MODULES = [path for path in sorted((SOURCE / "report").glob("*.py")) if path.stem not in ("formatting", "__init__")]
MOST = 25  # words; a number with its unit and its interval is one
DIGITS = r"\d(?:[\d,.e+−]*\d)?"
NUMBER = re.compile(rf"[+−-]?{DIGITS}(?: %)?(?: ± {DIGITS})?(?: \[[+−]?{DIGITS}, [+−]?{DIGITS}\])?")
END = re.compile(r"(?<=[.?]) (?=[A-Z0-9#\0])")
GAP = "\0"


def templates():
    """Sentences as the source has them, with a gap for every value, by the place of each."""
    found = {}
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        inside |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                parts = [re.sub(r"\{\w*\}", GAP, node.value)]
            else:
                continue
            for sentence in END.split("".join(parts).strip()):
                if sentence[-1:] in (".", "?") and sentence.count(" ") > 1:
                    found[sentence] = f"{path.name}:{node.lineno}"
    return found


def texts_of(result):
    """All that a page and the terminal say of a result, but for numbers in tables."""
    page = PAGES[result.kind](Run("run", result), "")
    yield from (page.headline, *(text for _, text in page.verdict))
    tables = list(page.tables)
    for section in page.sections:
        yield from (section.lead, *section.points, *(meaning for _, meaning in section.terms))
        yield from (re.search(r'aria-label="([^"]*)"', figure.picture)[1] for figure in section.figures)
        tables += section.tables
    yield from (meaning for table in tables for _, meaning in table.headings)
    yield from (str(result) if result.kind == "evaluation" else train_summary(result)).splitlines()


def evaluations():
    """Evaluations that differ in what is to be said of them."""
    table, few, rare = ads_of(900), ads_of(40), ads_of(3_000, rate=-6.5)
    pool = {name: column for name, column in ads_of(1500).items() if name != "auction"}
    usual = {"ctr": ["rough", "fine"], "click": "click", "bid": "bid"}

    def of(table, **options):
        auction = {"auction": "auction"} if "auction" in table and "auction_size" not in options else {}
        return bidwise.evaluate(table, **usual | auction | options)

    same, constant = table | {"fine": table["rough"]}, table | {"fine": np.full(5400, 0.3)}
    yield of(table, truth="truth")
    yield of(table, truth="truth", baseline="fine")
    yield of(table, truth="truth", ctr="fine")
    yield of(table, ctr="fine", slots=(1.0, 0.5))
    yield of(table | {"slot": np.tile([1, 2], 2700)}, position="slot", slots=(1.0, 0.5), by="slot")
    yield of(few)
    yield of(rare)
    yield of(same | {"third": same["rough"]}, ctr=["rough", "fine", "third"])
    yield of(same)
    yield of(constant)
    yield of(constant, bid=1.0)
    yield of(table | {"third": table["truth"], "flat": np.full(5400, 0.2)}, ctr=["rough", "third", "flat"])
    yield of(table | {"third": table["fine"]}, ctr=["rough", "fine", "third"])
    yield of(table | {"third": table["truth"]}, ctr=["fine", "third", "truth"])
    yield of(ads_of(900, noise=(0.3, 0.3)))
    yield of({name: np.repeat(column, 2) for name, column in table.items()})
    yield of(pool | {name: np.repeat(pool[name][:4500], 2) for name in pool}, auction_size=8)
    yield of(table | {"truth": table["click"]}, truth="truth")
    yield of(table | {"truth": np.full(5400, 0.9)}, truth="truth")
    yield of(table | {"w": np.where(table["click"], 1, 10)}, weight="w")
    yield of(table | {"fine": 0.1 + 0.8 * table["click"]})
    yield of(table | {"fine": 1 / (1 + np.exp(-table["truth"]))})
    yield of(table | {"fine": table["fine"] / 5, "rough": table["rough"].round(1)})
    yield of(ads_of(9_000, rate=-7) | {"fine": np.minimum(100 * ads_of(9_000, rate=-7)["truth"], 1)})
    yield of(table | {"click": np.ones(5400)})
    yield of(table | {"click": np.zeros(5400)})
    yield of(table, reserve=1e6)
    yield of(table | {"auction": np.arange(5400)})
    yield of(table | {"bid": np.where(np.arange(5400) == np.argmax(table["click"]), 1e7, table["bid"])})
    yield of(table | {"bid": table["bid"] ** 4})
    yield of(table | {"day": np.arange(5400) // 60 % 9}, cluster="day")
    yield of(pool, calibrate="platt")
    yield of(pool | {"fine": pool["rough"]})
    yield of({name: column[:40] for name, column in pool.items()})
    yield of({name: column[:60] for name, column in pool.items()}, auction_size=6)
    yield of(pool | {"fine": pool["rough"] / 2}, auction_size=6)
    yield of(
        {**table, **{f"model {k}": table["fine"] ** (1 + k / 9) for k in range(9)}},
        ctr=[f"model {k}" for k in range(9)],
    )


def trainings(folder):
    """Results of `train` that differ in what is to be said of them."""
    options = {"click": "click", "bid": "bid", "model": "logistic_regression", "epochs": 2}
    table = market(400)
    result = train(table, out=folder, **options, auction="auction", time="time", truth="truth", loss="log_loss")
    facts, fit, chosen = result.table, result.fits["log_loss"], result.evaluation.models["log_loss"]
    yield result
    alone = replace(
        result.evaluation, references={k: x for k, x in result.evaluation.references.items() if k != "best possible"}
    )

    def judged(evaluation, outcome):
        bounds = {"better": (1.0, 2.0), "worse": (-2.0, -1.0), "unclear": (-1.0, 2.0)}[outcome]
        counts = {"changed_auctions": 500, "decisive_auctions": 500}
        changes = {"ci_low": bounds[0], "ci_high": bounds[1], "difference": sum(bounds) / 2, **counts}
        return replace(evaluation, against=tuple(replace(each, **changes) for each in evaluation.against))

    for outcome in ("better", "worse", "unclear"):
        yield replace(result, evaluation=judged(alone, outcome))
    clean = replace(judged(alone, "better"), doubts=())
    yield replace(result, evaluation=clean, fits={"log_loss": replace(fit, slope=1.0, intercept=0.0)})
    useless = {"log_loss": replace(chosen, normalised_entropy=1.2, auc=math.nan)}
    yield replace(result, evaluation=replace(alone, models=result.evaluation.models | useless))
    yield replace(result, fits=dict.fromkeys([*ABOUT, "mine"], fit))
    many = replace(fit, recipe=replace(fit.recipe, members=3, schedule="constant", epochs=fit.best.epoch))
    yield replace(result, fits={"log_loss": many}, refit=None)
    attempts = tuple(Attempt(at, fit.recipe, epochs, 0.4) for at, epochs in ((1, 0.5), (2, 0.5), (3, 0.5), (1, 2.0)))
    yield replace(result, search=Search("log_loss", attempts, 1), power=Power(0.08, None, 300))
    yield replace(result, power=Power(0.01, None, 1_000))
    attempts = tuple(Attempt(at, fit.recipe, 2.0, loss) for at, loss in ((1, 0.4), (2, 0.3)))
    yield replace(result, search=Search("log_loss", attempts, 1), power=Power(math.nan, 120, 300))
    zero = {"difference": 0.0, "ci_low": 0.0, "ci_high": 0.0, "changed_auctions": 0}
    base = Candidate(name="log_loss", welfare=1.0, **zero)
    for low, high, changed, choice in (
        (0.1, 0.3, 500, "distilled"),
        (-0.1, 0.3, 500, "log_loss"),
        (0.1, 0.3, 5, "log_loss"),
    ):
        other = replace(base, name="distilled", difference=0.1, ci_low=low, ci_high=high, changed_auctions=changed)
        picked = Choice(choice, "log_loss", 200, 900, 0.95, (base, other))
        models = {choice: result.evaluation.models["log_loss"]}
        against = tuple(replace(each, model=choice) if each.model == "log_loss" else each for each in alone.against)
        shown = replace(alone, models=alone.models | models, against=against)
        yield replace(result, choice=picked, chosen=choice, fits={choice: fit}, evaluation=shown)
    strange = {
        "leaks": {"dwell": 0.97},
        "telling": {"seen": Telling("seen = 'no'", 900, 0.0, 0.2)},
        "columns": (
            *facts.columns,
            Column("slot", "numeric", 9, 0.0, ""),
            Column("code", "dropped", 9, 0.0, "constant"),
        ),
        "duplicates": 12,
        "auction_size": 30,
        "sampled": 1000,
        "equal_bids": True,
        "capped_bids": 3,
    }
    sampled = result.config | {"data.sampling_rate": 0.1, "data.auction": (), "data.auction_size": 256}
    yield replace(result, table=replace(facts, **strange), config=sampled)
    random = replace(facts.splits["test"], first=None, last=None)
    yield replace(result, table=replace(facts, duplicates=3, splits=facts.splits | {"test": random}))
    refresh = Refresh("monday", 2, 9000, 0.1, {"site": 3}, "2999-01-01", {"site": 0.6})
    for outcome in ("better", "worse", "unclear", "same", "few"):
        yield refreshed(result, refresh, outcome)
    expected = replace(refresh, unknown={}, until=None)
    yield refreshed(replace(result, evaluation=clean), expected, "better")


def refreshed(result, refresh, outcome):
    """A result of a refresh with one outcome."""
    low, high, changed = {
        "better": (0.1, 0.3, 500),
        "worse": (-0.3, -0.1, 500),
        "unclear": (-0.1, 0.3, 500),
        "same": (0.0, 0.0, 0),
        "few": (0.1, 0.3, 5),
    }[outcome]
    old = result.evaluation.models["log_loss"]
    first = result.evaluation.against[0]
    pair = {"model": "refreshed", "baseline": "previous", "decisive_auctions": changed, "changed_auctions": changed}
    pair |= {"ci_low": low, "ci_high": high, "relative_ci_low": low, "relative_ci_high": high}
    compared = [
        replace(first, **pair, metric=metric) for metric in ("welfare", "revenue", "surplus", "log_loss", "auc")
    ]
    against = [
        replace(each, model="refreshed") if each.model == "log_loss" else each for each in result.evaluation.against
    ]
    evaluation = replace(
        result.evaluation,
        models={"previous": old, "refreshed": old},
        baseline="previous",
        comparisons=tuple(compared),
        against=tuple(replace(each, baseline="previous") if each.baseline == "log_loss" else each for each in against)
        + tuple(replace(each, model="previous") for each in against if each.model == "refreshed"),
    )
    assert evaluation.of_metric("welfare")[0].outcome == Outcome(outcome)
    return replace(
        result,
        chosen="refreshed",
        fits={"refreshed": result.fits["log_loss"]},
        table=replace(result.table, refresh=refresh),
        evaluation=evaluation,
    )


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """What the terminal prints before a training, and before that of a finished run; and the result."""
    heard, folder = [], tmp_path_factory.mktemp("before") / "run"
    options = {"click": "click", "bid": "bid", "model": "logistic_regression", "loss": "log_loss"}
    options |= {"opened": lambda prepared: heard.append(described(prepared, "cpu").splitlines())}
    for _ in range(2):
        result = train(market(60), out=folder, **options)
    return heard, result


@pytest.fixture(scope="module")
def produced(tmp_path_factory, before):
    """Every sentence that was said, its numbers shown as #."""
    said = [re.sub(r"run in \S+", "run in runs/mine", line) for lines in before[0] for line in lines]
    for result in evaluations():
        said += texts_of(result)
    said += re.findall('<p class="lead">(.*?)</p>', runs_page([Run("run", result)]))
    for result in trainings(tmp_path_factory.mktemp("train") / "run"):
        said += [*texts_of(result), *table_notes(result.table, result.settings), *table_doubts(result.table)]
    found = {sentence.removeprefix("Note: ") for text in said for sentence in END.split(NUMBER.sub("#", text))}
    return {
        each for each in found if each[-1:] in (".", "?") and each.count(" ") > 1 and "  " not in each
    }  # no rows of tables


def pattern(template):
    return re.compile(re.escape(NUMBER.sub("#", template)).replace(GAP, ".*"), re.DOTALL)


def test_every_sentence_is_produced_and_every_sentence_said_is_in_the_source(produced):
    examples = {}
    for template, where in templates().items():
        examples[template] = min(
            (each for each in produced if pattern(template).fullmatch(each)), default=f"MISSING {where}"
        )
    assert [(template, each) for template, each in examples.items() if each.startswith("MISSING")] == []
    unknown = [each for each in produced if not any(pattern(template).fullmatch(each) for template in examples)]
    assert unknown == []
    text = "\n".join(sorted(set(examples.values()))) + "\n"
    if os.environ.get("BIDWISE_WRITE"):
        FILE.write_text(text, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == text, "BIDWISE_WRITE=1 rewrites it"


def test_no_sentence_is_longer_than_25_words(produced):
    assert [each for each in produced if len(each.split()) > MOST] == []


def test_doubts_and_notes_are_printed_before_a_training(before):
    (first, again), result = before
    for note in (*table_notes(result.table, result.settings), *table_doubts(result.table)):
        assert f"Note: {note}" in first
    assert any(line.endswith("is already finished; this is its result.") for line in again)
