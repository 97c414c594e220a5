"""What the documents show runs: code blocks of the README and the docs, the examples, the benchmark page."""

import csv
import json
import re
import shlex
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from run_helpers import ROOT

import bidwise
from benchmarks.pictures import draw
from benchmarks.tables import items
from bidwise.cli import app
from bidwise.run_folder import read_result
from bidwise.study.compare import CONTESTANTS
from bidwise.study.search import FEW, SETTINGS, SOME
from bidwise.table.config import SECTIONS, resolved
from paper import theory
from paper.__main__ import app as paper_app
from paper.grids import LAMS
from paper.synthetic_results import RegimesResult

RESULTS = ROOT / "docs" / "results"


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


GENERATED = {"docs/results/benchmarks.md": "benchmarks.table", "docs/results/tables.md": "benchmarks.tables"}
DOCS = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *DOCS]
OWN_TESTS = ("docs/start/tutorial.md", "docs/guides/serving.md", "docs/guides/sklearn.md")  # they need files
LIGHTNING = "docs/guides/lightning.md"
PROGRAMS = ((app, "bidwise"), (paper_app, "python -m paper"))


@pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")
@pytest.mark.parametrize("page", [page for page in DOCUMENTS if python_blocks(page) and page not in OWN_TESTS])
def test_code_blocks_run(page, tmp_path, monkeypatch):
    if page == LIGHTNING:
        pytest.importorskip("lightning", reason="make test-long installs Lightning")
    monkeypatch.chdir(tmp_path)
    random = torch.Generator().manual_seed(0)
    names = {
        "torch": torch,
        "logits": torch.randn(6, generator=random, requires_grad=True),
        "clicks": torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]),
        "bids": torch.rand(6, generator=random) + 0.5,
        "offsets": torch.tensor([0, 2, 6]),
        "teacher": torch.rand(6, generator=random),
    }
    for block in python_blocks(page):
        exec(block, names)  # the documents are ours
        if isinstance(names.get("loss"), torch.Tensor):
            assert torch.isfinite(names["loss"])


def commands(page):
    """The commands of bidwise and of the paper's experiments in the page's shell blocks: each its app and its words."""
    blocks = re.findall(r"```(?:bash|sh|text)\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [(tool, re.match(rf"(?:torchrun .*-m )?{start} (.*)", line)) for tool, start in PROGRAMS for line in lines]
    return [(program, shlex.split(match[1], comments=True)) for program, match in found if match]


@pytest.mark.parametrize("page", [page for page in DOCUMENTS if commands(page)])
def test_commands_have_options_that_exist(page):
    for tool, words in commands(page):
        tool.parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", DOCUMENTS)
def test_commands_in_sentences_exist(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    for tool, start in PROGRAMS:
        named = re.findall(rf"`{start} ([a-z]+)", text)
        assert [name for name in named if name not in list(tool)] == []
    modules = re.findall(r"`python -m (benchmarks\.\w+)", text)
    assert [name for name in modules if find_spec(name) is None] == []


def test_the_tutorial_runs_from_its_table_to_its_verdict(tmp_path, monkeypatch, capsys):
    """Its blocks in their order, the table smaller, search and training shorter."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "start" / "tutorial.md").read_text().replace("3_000, 10", "600, 10")
    for kind, block in re.findall(r"```(python|bash)\n(.*?)```", text, flags=re.DOTALL):
        if kind == "python":
            exec(block, {})  # the documents are ours
        else:
            words = shlex.split(block)[1:]
            words += ["--budget-seconds", "0", "--set", "train.epochs=2"] if words[0] == "train" else []
            command, bound, _ = app.parse_args(words)
            command(*bound.args, **bound.kwargs)
    assert "new" in capsys.readouterr().out
    assert {"report.html", "result.json"} <= {path.name for path in Path("evaluation").iterdir()}


def test_every_named_loss_is_on_its_page():
    page = (ROOT / "docs" / "guides" / "losses.md").read_text()
    assert [name for name in bidwise.LOSSES if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", DOCUMENTS)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("http")]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_train_page_shows_every_key_of_the_configuration_and_what_the_search_tries():
    page = (ROOT / "docs" / "guides" / "train.md").read_text()
    keys = [key for part in SECTIONS.values() for key in part.__dataclass_fields__]
    assert [key for key in (*keys, *CONTESTANTS) if f"`{key}`" not in page] == []
    for number, each in enumerate(SETTINGS, 1):
        rate = f"{each['learning_rate']:g}"
        penalty = f"L2 {each['l2']:g} / ads, rate {rate}" if each["l2"] else "a penalty for each column"
        assert f"{number}. `{each['model']}`, {penalty}" in " ".join(page.split())
    assert {each["epochs"] for each in SETTINGS} == {8}
    assert f"fewer than {FEW} validation clicks" in " ".join(page.split())
    assert f"with fewer than {SOME} the mean" in " ".join(page.split())
    shown = tomllib.loads(re.search(r"```toml\n(.*?)```", page, flags=re.DOTALL)[1])
    assert resolved(shown).train.recipe == "auto"


def test_the_papers_items_name_files_and_functions_that_exist():
    for line in items()[2:]:
        *_, checked, status = line.strip("| ").split(" | ")
        if name := re.search(r"`(tests/[\w/]+\.py)`", checked):
            assert (ROOT / name[1]).is_file(), line
        assert ", 0 calls" not in checked
        assert status == "runs" or "needs a GPU" in status
    names = re.findall(r"`theory\.(\w+)", words_of("docs/reference/errata.md") + words_of("docs/results/tables.md"))
    assert [name for name in names if not hasattr(theory, name)] == []


def points(gain, level=1.0):
    numbers = (100 * gain[key] / level for key in ("difference", "ci_low", "ci_high"))
    return "{:+.2f} [{:+.2f}, {:+.2f}]".format(*numbers).replace("-", "−")


def committed(run, name="result.json"):
    return json.loads((RESULTS / run / name).read_text())


def words_of(page):
    """The text of a page in one line."""
    return " ".join((ROOT / page).read_text().split())


RUNS = sorted(path.parent.name for path in RESULTS.glob("*/result.json"))


@pytest.mark.parametrize(("page", "module"), GENERATED.items())
def test_generated_pages_are_those_of_the_committed_results(page, module, tmp_path):
    written = import_module(module).write_page(tmp_path)
    assert written.read_text() == (ROOT / page).read_text(), f"run python -m {module}"


def test_pictures_are_those_of_the_committed_results(tmp_path):
    committed = ROOT / "docs" / "assets"
    stale = [path.name for path in draw(tmp_path) if path.read_bytes() != (committed / path.name).read_bytes()]
    assert stale == [], "run python -m benchmarks.pictures"


def test_the_guide_quotes_the_combinations_that_were_found():
    with (ROOT / "benchmarks" / "results" / "crosses.csv").open() as file:
        rows = list(csv.DictReader(file))
    places = [row["place"] for row in rows if row["origin"] == "made with it"]
    found = f"found {sum(map(bool, places))} of the {len(places)} combinations that they were made with"
    assert found in words_of("docs/guides/train.md")
    assert all(row["origin"] != "other" for row in rows)  # none is unrelated


@pytest.mark.parametrize("page", ["README.md", "docs/results/paper.md", "docs/results/simulations.md"])
def test_quoted_intervals_are_in_the_tables_of_the_committed_runs(page):
    quoted = re.findall(r"[+−][\d.]+ \[[+−][\d.]+, [+−][\d.]+\]", words_of(page))
    assert len(quoted) >= 4
    known = words_of("docs/results/tables.md") + words_of("docs/results/benchmarks.md")
    assert [interval for interval in quoted if interval not in known] == []


def test_the_guide_quotes_the_coverage_of_pooled_welfare():
    found = [float(row["covered_where_enough"]) for row in measured_rows("pooled")]
    known = [100 * x for x in found if x == x]  # NaN: too few in all simulations
    good, low = [x for x in known if x >= 93.5], [x for x in known if x < 93.5]
    words = f"{min(good):.0f} to {max(good):.0f} % in {len(good)} of {len(known)} simulated settings"
    assert f"{words}, and {min(low):.0f} and {max(low):.0f} % in two" in words_of("docs/guides/evaluate.md")


def test_documents_stay_short():
    """One person can read them in an afternoon; generated pages do not count."""
    assert len(words_of("README.md").split()) <= 700
    assert sum(len(words_of(page).split()) for page in DOCS if page not in GENERATED) <= 20_000


def test_the_readme_quotes_the_committed_runs():
    readme = words_of("README.md")
    quoted = [("misspecified", "tuned", "log_plus"), ("misspecified", "tuned", "bid_weighted")]
    quoted += [("plotted", "converged", "log"), ("plotted", "tuned", "log")]
    for run, protocol, loss in quoted:
        assert points(committed(run)["protocols"][protocol]["losses"][loss]) in readme
    assert points(committed("plotted")["protocols"]["converged"]["losses"]["log"]["calibrated"]) in readme
    assert points(committed("readings")["readings"]["best epoch, λ = 3"]["log"]) in readme
    untuned, tuned = (committed("plotted")["protocols"][name]["losses"]["log_loss"] for name in ("converged", "tuned"))
    assert round(100 * (tuned["ratio"] - untuned["ratio"])) == 5
    assert "five points better" in readme


def test_the_readme_quotes_the_recipes():
    worlds = committed("recipes")["worlds"].values()
    gains = sorted((world["recipes"]["distilled"]["gain"] for world in worlds), key=lambda gain: gain["difference"])
    low, high = (f"{100 * gain['difference']:+.2f}".replace("-", "−") for gain in (gains[0], gains[3]))
    assert f"{points(gains[4])} and {points(gains[5])} %, and {low} to {high} % in four other" in words_of("README.md")


def test_the_page_of_simulations_quotes_the_map_of_markets():
    page = words_of("docs/results/simulations.md")
    regimes = read_result(ROOT / "docs" / "results" / "regimes", RegimesResult)
    for loss in ("log_plus", "sqrt_bid_weighted", "bid_weighted", "log"):
        counts, after = regimes.summary[loss], regimes.after_holm(loss)
        cells = (counts.better, counts.worse, counts.unclear, f"{after.better}, {after.worse}")
        assert f"| `{loss}` | {' | '.join(map(str, cells))} |" in page
        assert f"Of {counts.cells} kinds of market" in page


def test_grids_of_lambda_are_those_of_the_code():
    assert f"eleven values from {LAMS[0]:g} to {LAMS[-1]:g}" in words_of("docs/results/paper.md")
    assert len(LAMS) == 11


@pytest.mark.parametrize("run", RUNS)
def test_committed_runs_record_where_they_were_made(run):
    environment = committed(run, "environment.json")
    assert environment["command"].startswith(("python -m benchmarks.", "python -m paper"))  # which exist, on the page
    if environment["command"].startswith("python -m paper"):
        paper_app.parse_args(shlex.split(environment["command"])[3:], exit_on_error=False, print_error=False)
    assert environment["machine"]
    assert environment["commit"]


def device_rows(name, **where):
    return measured_rows(f"device_{name}", **where)


def measured_rows(name, **where):
    with (ROOT / "benchmarks" / "results" / f"{name}.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if all(row[key] == value for key, value in where.items())]


def test_times_on_the_gpu_are_those_of_the_benchmark():
    page = (ROOT / "docs" / "guides" / "scaling.md").read_text()
    step = {"model": "deepfm", "batch": "10000", "loss": "log_loss"}

    def measured(name, key, **where):
        return [float(row[key]) for row in device_rows(name, **where)]

    def one(name, key, **where):
        (number,) = measured(name, key, **where)
        return number

    auction = {"member": "signed weighted logistic", "way": "auto"}
    pairs = measured("losses", "ms", ads="65536", way="pairs")
    added = [100 * x for x in measured("steps", "overhead", model="deepfm", batch="256", precision="float32") if x]
    seconds, rates = (
        [one(name, key, **step | changed, precision=p) for p in ("float32", "mixed")]
        for name, key, changed in (("epoch", "seconds", {"batch": "256"}), ("steps", "rows_per_second", {}))
    )
    whole = one("profile", "us", model="deepfm", batch="10000", kernel="the whole step, without a profiler") / 1e3
    expected = [
        f"{1e3 * one('losses', 'ms', ads='256', **auction):.1f} µs",
        f"{one('losses', 'ms', ads='1048576', **auction):.2f} ms",
        f"{min(pairs):.1f} to {max(pairs):.1f} ms",
        f"{seconds[0]:.1f} s, mixed {seconds[1]:.1f} s",
        f"{rates[1] / 1e6:.1f} M mixed",
        f"{rates[0] / 1e6:.1f} M in float32",
        f"{10 / whole:.1f} M since, with steps of {whole:.2f} ms",
        f"**{one('epoch', 'rows_per_second', **step, precision='mixed') / 1e6:.1f} M mixed**",
        f"+{min(added):.1f} to +{max(added):.1f} %",
    ]
    assert [words for words in expected if words not in page] == []


def test_mixed_precision_changes_less_than_another_seed():
    words, rows = words_of("docs/guides/scaling.md"), measured_rows("precision")
    assert {row["metric"] for row in rows} == {"log_loss", "auc", "expected_welfare"}
    for row in rows:
        change, seeds = float(row["mixed_change"]), float(row["seed_sd"])
        assert abs(change) < seeds
        places = 3 if row["metric"] == "expected_welfare" else 4
        assert f"{change:+.{places}f}".replace("-", "−") in words
        assert f"{seeds:.{places}f}" in words


def test_the_page_on_clusters_quotes_the_benchmarks():
    page = (ROOT / "docs" / "guides" / "scaling.md").read_text()
    for model, batch in (("DeepFM", 256), ("DeepFM", 4096), ("DCN", 256), ("DCN", 4096)):
        rows = measured_rows("ranks", model=model, batch=str(batch), loss="log_plus", way="together")
        assert [row["ranks"] for row in rows] == ["1", "2", "4"]
        rates = [f"{float(row['rows_per_second']):,.0f}" for row in rows]
        shares = [f"{100 * float(row['efficiency']):.0f} %" for row in rows[1:]]
        sent = f"{float(rows[1]['kb_per_step']) / 1e3:.1f} MB"
        assert f"| {' | '.join([model, f'{batch:,}', *rates, *shares, sent])} |" in page
    (alone,) = device_rows("profile", model="deepfm", batch="10000", kernel="the whole step, without a profiler")
    assert f"against {float(alone['us']) / 1e3:.2f} ms without ranks" in " ".join(page.split())
