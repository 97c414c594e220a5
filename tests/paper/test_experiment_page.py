"""Pages and figures of runs: complete, harmless, the same every time, and readable in light, dark and on a phone."""

import json
import math
import re

import numpy as np
import pytest
from paper_helpers import figures, said
from run_helpers import ENVIRONMENT, Page, check_in_a_browser

from bidwise.checks import InputError
from bidwise.evaluation.estimate import Estimate
from bidwise.report.build import run_of
from bidwise.report.sections import Run
from paper.comparisons import points
from paper.experiment_views import AXES, FIGURE_2
from paper.pages import experiments_page, read_result, report, typed_result

PAPER = ["log_loss", "bid_weighted", "sqrt_bid_weighted", "log", "log_teacher", "hinge_plus_teacher"]
NAMES = [*PAPER, "ranknet", "log_plus", "log_plus_teacher", "distilled"]
PROTOCOLS = ("converged", "converged_sums", "tuned")
HOSTILE = "<b>x</b> & \"'{{ 7 * 7 }}"


def difference(centre, width=0.004):
    return {"difference": centre, "ci_low": centre - width, "ci_high": centre + width}


def loss(name, protocol, repeats, random):
    """Numbers of a loss: signed losses win at the end, and log loss once everything is tuned."""
    gain = 0.0 if name == "log_loss" else {"tuned": -0.01, "converged": 0.012}.get(protocol, -0.03) * random.random()
    ratio = {"tuned": 0.983, "converged": 0.93}.get(protocol, 0.9) + gain
    found = {
        "welfare": 6.1 * ratio,
        "ratio": ratio,
        **difference(gain),
        "difference_to_average": 6.1 * gain - 0.01,
        "error_to_average": 0.0012,
        "auc": 0.7 + gain,
        "log_loss": 0.55 - gain,
        "squared_error": 0.012 + gain / 10,
        "revenue": 4.2 + gain,
        "ratios": [ratio + 0.001 * k for k in range(repeats)],
        "calibrated": {"ratio": ratio + 0.001, **difference(gain + 0.001)},
    }
    if protocol == "tuned":
        found["epoch"] = 11.2
        found["by_clicks"] = {"ratio": ratio - 0.002, **difference(gain - 0.002)}
        if name not in ("log_loss", "bid_weighted", "sqrt_bid_weighted", "distilled"):
            found["lam"] = [0.3] * repeats
    return found


def curve(k, end=0.93):
    epochs = list(range(2, 101, 2))
    shape = [
        0.983 - 0.004 * k - 0.35 * math.exp(-e / 2.5) - (0.983 - end - 0.002 * k) * (e / 100) ** 0.7 for e in epochs
    ]
    return {"epoch": epochs, "ratio": shape, "low": [y - 0.003 for y in shape], "high": [y + 0.003 for y in shape]}


def world_histogram(spread, seed):
    random = np.random.default_rng(seed)
    ctr, edges = np.histogram(1 / (1 + np.exp(-random.normal(0, spread, 4000))), 40, (0, 1))
    bids = random.normal(0, spread * 0.35, 4000)
    counts, powers = np.histogram(bids, 40)
    return {
        "ctr": {"edges": edges.tolist(), "counts": ctr.tolist()},
        "log10_bid": {"edges": powers.tolist(), "counts": counts.tolist()},
        "lowest_bid": 10 ** bids.min(),
        "highest_bid": 10 ** bids.max(),
        "mean_ctr": 0.5,
    }


def synthetic(protocols=PROTOCOLS, repeats=5, names=NAMES, patience=20):
    random = np.random.default_rng(0)
    return {
        "kind": "synthetic",
        "format": 2,
        "version": "0.1.0",
        "config": {
            "reading": "plotted",
            "protocol": "both",
            "repeats": repeats,
            "epochs": 100,
            "seed": 0,
            "patience": patience,
            "validation_auctions": 500,
            "test_auctions": 2000,
            "auction_size": 50,
            "training_ads": 10000,
            "batch_size": 256,
            "learning_rate": 0.001,
            "losses": names,
            "student": "mlp",
            "init": "glorot",
            "every": 2,
            "lams": [0.03, 0.1, 0.3, 1, 3, 10],
        },
        "optimal_welfare": 6.123,
        "protocols": {
            p: {
                "losses": {name: loss(name, p, repeats, random) for name in names},
                "curves": {name: curve(k) for k, name in enumerate(names)},
            }
            for p in protocols
        },
        "worlds": {"plotted": world_histogram(1.3, 0), "printed": world_histogram(13.0, 1)},
    }


def regimes():
    random = np.random.default_rng(1)
    x = {"name": "correlation", "levels": [0, 0.25, 0.5, 0.75]}
    y = {"name": "misspecification", "levels": [0, 0.25, 0.5, 0.77]}
    other = {"name": "bids", "levels": ["narrow", "wide", "very wide"]}

    def cell(shift):
        centre = float(random.normal(shift, 0.008))
        twins = {"calibrated": difference(centre + 0.001, 0.006), "by_clicks": difference(centre - 0.001, 0.007)}
        return {
            "ratio": 0.9,
            **difference(centre, 0.005),
            **{way: {"ratio": 0.9, **twin} for way, twin in twins.items()},
        }

    names = [name for name in NAMES if name != "log_loss"]
    shifts = {name: (k % 4 - 1.5) * 0.006 for k, name in enumerate(names)}
    maps = [
        {
            "name": f"misspecification_{across['name']}",
            "x": across,
            "y": y,
            "losses": {n: [[cell(shifts[n] + 0.004 * k) for _ in across["levels"]] for k in range(4)] for n in names},
        }
        for across in (x, other)
    ]
    return {
        "kind": "regimes",
        "format": 3,
        "version": "0.1.0",
        "config": {"repeats": 8, "epochs": 30, "seed": 0, "student": "logistic_regression"},
        "maps": maps,
        "summary": {name: {"better": 9 + k, "worse": 3, "unclear": 16 - k} for k, name in enumerate(names)},
    }


def run(name, result, config=None, environment=ENVIRONMENT):
    result = typed_result(result) if isinstance(result, dict) else result
    return Run(name, result, environment, config or {})


def nulled(value):
    """The same result with no numbers left but counts, edges and epochs."""
    kept = ("config", "edges", "counts", "epoch", "lam", "levels", "summary")
    if isinstance(value, dict):
        return {key: entry if key in kept else nulled(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [nulled(entry) for entry in value]
    return None if isinstance(value, float) else value


def one_repeat():
    result = synthetic(("converged",), repeats=1, patience=None)
    for numbers in result["protocols"]["converged"]["losses"].values():
        numbers |= {"ci_low": None, "ci_high": None, "error_to_average": None}
    for line in result["protocols"]["converged"]["curves"].values():
        line |= {"low": [None] * 50, "high": [None] * 50}
    return result


def small(name):
    """The runs that pages are made of here; each has its own way to be awkward."""
    match name:
        case "synthetic":
            return [run("synthetic", synthetic())]
        case "tuned alone":
            return [run("tuned", synthetic(("tuned",), patience=None))]
        case "one repeat":
            return [run("once", one_repeat())]
        case "no numbers":
            return [run("nothing", nulled(synthetic())), run("nowhere", nulled(regimes()))]
        case "unknown loss":
            return [run("own", synthetic(names=["log_loss", "my_<i>loss"]))]
        case "regimes":
            return [run("regimes", regimes())]
        case "all":
            kinds = [run("one", synthetic()), run("two", regimes()), run(HOSTILE, regimes(), environment={})]
            return [*kinds, run("again", synthetic(("converged",)))]


SMALL = ["synthetic", "tuned alone", "one repeat", "no numbers", "unknown loss", "regimes", "all"]


@pytest.fixture(scope="module")
def pages():
    return {name: experiments_page(small(name)) for name in SMALL}


def test_every_number_of_the_synthetic_benchmark_is_on_the_page(pages):
    result, page = synthetic(), Page(pages["synthetic"])
    for losses in (protocol["losses"] for protocol in result["protocols"].values()):
        for name, numbers in losses.items():
            assert name in page.text
            assert f"{100 * numbers['ratio']:.2f} %" in page.text
            for key in ("welfare", "revenue", "auc", "log_loss"):
                assert f"{numbers[key]:.4f}" in page.text
            assert f"{numbers['squared_error']:.5f}" in page.text
            assert f"{numbers['difference_to_average']:.4f} ± 0.0012".replace("-", "−") in page.text
            for part in (numbers, numbers["calibrated"], numbers.get("by_clicks")):
                if part and name != "log_loss":
                    assert f"{estimate(part):%}" in page.text
    assert pages["synthetic"].count(">0.3</td>") == 6  # lam of losses that have one
    for words in (*said(typed_result(result)), *ENVIRONMENT["command"].split()):
        assert words in page.text
    for fact in ("1a2b3c4+", "AMD EPYC 7B13", "2.13.0+cpu", "14 min", "6.123"):
        assert fact in page.text


def estimate(part):
    return Estimate(**{key: part[key] for key in ("difference", "ci_low", "ci_high")})


def test_verdict_comes_first(pages):
    text = Page(pages["synthetic"].partition("</head>")[2]).text
    first = text.index(said(typed_result(synthetic()))[0])
    assert first < text.index("Welfare against the baseline") < text.index("How it was done")


def test_the_papers_figure_stands_beside_this_run(pages):
    assert pages["synthetic"].count("Its Figure 2, which has no numbers.") == 2
    assert all(f">{words}</td>" in pages["synthetic"] for words in FIGURE_2.values())
    assert "Its Figure 2" not in pages["tuned alone"]
    world = synthetic()
    world["config"]["reading"] = "misspecified"
    assert "Its Figure 2" not in experiments_page([run("other world", world)])


def test_protocols_that_were_not_run_are_not_told(pages):
    assert "literal sums" not in pages["tuned alone"]
    assert "<figcaption>Converged (trained to the end)" not in pages["tuned alone"]
    assert "<figcaption>Converged (trained to the end)" in pages["one repeat"]
    assert "Tuned (on validation auctions)" not in pages["one repeat"]


def test_a_loss_that_is_better_and_one_that_is_worse_look_alike(pages):
    rows = re.findall(r"<td class=\"finding (\w+)\">([^<]*)</td>", pages["synthetic"])
    signs = {kind: {words[0] for k, words in rows if k == kind} for kind in ("better", "worse", "unclear")}
    assert signs == {"better": {"▲"}, "worse": {"▼"}, "unclear": {"≈"}}


def test_every_cell_of_the_regimes_is_in_a_map_and_in_tables(pages):
    text = Page(pages["regimes"]).text
    result = typed_result(regimes())
    for plot in result.maps:
        assert f"By {plot.x.name} and {plot.y.name}" in text
        assert AXES.get(plot.x.name, plot.x.name) in text
        assert AXES[plot.y.name] in text
        for cell in (cell for rows in plot.losses.values() for row in rows for cell in row):
            sign = "≈" if cell.ci_low <= 0 <= cell.ci_high else "▲" if cell.difference > 0 else "▼"
            assert f"{points(cell).partition(' ')[0]} {sign}" in text
            for way in (cell, cell.calibrated, cell.by_clicks):
                assert f"{100 * way:.2f}" in text
            assert f"{sign} {100 * cell:.2f}" in text
    assert said(result)[0] in text
    for counts in regimes()["summary"].values():
        assert f">{counts['better']}</td>" in pages["regimes"]


def test_a_loss_that_changes_nothing_is_called_the_same():
    result = synthetic(("converged",))
    result["protocols"]["converged"]["losses"]["log"] |= {"difference": 0.0, "ci_low": 0.0, "ci_high": 0.0}
    assert (
        Page(experiments_page([run("same", result)])).text.count("= 0.00 % [0.00, 0.00]") == 2
    )  # the paper's table has it too


@pytest.mark.parametrize("name", SMALL)
def test_page_is_well_formed(pages, name):
    page = Page(pages[name])
    assert page.faults == []
    assert pages[name].startswith("<!doctype html>")
    assert page.tags.count("h1") == 1
    assert page.tags.count("th") == len(page.all("scope"))
    assert page.tags.count("table") == page.tags.count("caption")
    assert len(page.all("id")) == len(set(page.all("id")))
    targets = [link[1:] for key in ("href", "xlink:href") for link in page.all(key) if link.startswith("#")]
    targets += re.findall(r"url\(#(.*?)\)", pages[name]) + page.all("aria-labelledby")
    assert set(targets) <= set(page.all("id"))
    drawn = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert all(picture.get("aria-label") or picture.get("aria-hidden") for picture in drawn)
    assert not re.search(r"\b(None|nan|inf|NaN|null|undefined)\b", page.text)


@pytest.mark.parametrize("name", SMALL)
def test_page_needs_nothing_else(pages, name):
    page = Page(pages[name])
    links = [link for key in ("src", "href", "xlink:href", "srcset", "data", "action") for link in page.all(key)]
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert not {"script", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert "@import" not in pages[name]
    assert re.findall(r"https?://(?!www\.w3\.org/)", pages[name]) == []
    assert [link for link in re.findall(r"url\((.*?)\)", pages[name]) if not link.startswith("#")] == []


def test_names_are_text_and_nothing_more(pages):
    page = Page(pages["all"])
    assert HOSTILE in page.text
    assert "b" not in page.tags
    assert "49" not in re.findall(r"<span class=\"run-name\">(.*?)</span>", pages["all"])[2]
    assert "i" not in Page(pages["unknown loss"]).tags
    assert "my_<i>loss" in Page(pages["unknown loss"]).text


def test_figures_follow_the_theme(pages):
    charts = re.findall(r"<svg role.*?</svg>", pages["synthetic"] + pages["regimes"], re.DOTALL)
    assert len(charts) == 3 + 3 + 4 + 2 * 9
    assert not any(re.search(r"(fill|stroke): #", chart) for chart in charts)
    names = {name for chart in charts for name in re.findall(r"var\((--\w+)\)", chart)}
    assert all(pages["synthetic"].count(f"{name}:") == 2 for name in names)  # a light and a dark one


@pytest.mark.parametrize("name", ["all"])
def test_same_runs_give_same_bytes(pages, name):
    assert experiments_page(small(name)) == pages[name]


def test_page_is_small(pages):
    assert len(pages["synthetic"].encode()) < 500_000
    assert len(pages["regimes"].encode()) < 500_000


STARTS = {".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}


@pytest.mark.parametrize(("result", "count"), [(one_repeat(), 3), (nulled(synthetic()), 3), (regimes(), 2)])
def test_figures_are_files_of_three_kinds(tmp_path, result, count):
    paths = figures(tmp_path, typed_result(result))
    assert len(paths) == 3 * count
    assert all(path.read_bytes().startswith(STARTS[path.suffix]) for path in paths)


def test_figures_are_always_the_same(tmp_path):
    first, second = (figures(tmp_path / place, typed_result(synthetic())) for place in ("first", "second"))
    assert [path.name for path in first] == [path.name for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert b"CreationDate" not in first[0].read_bytes()
    assert "<dc:date>" not in first[2].read_text(encoding="utf-8")


def folder(path, result):
    path.mkdir()
    (path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    (path / "environment.json").write_text(json.dumps(ENVIRONMENT), encoding="utf-8")
    return path


def test_report_reads_folders_and_writes_one_page(tmp_path):
    runs = [folder(tmp_path / "<b>x", synthetic()), folder(tmp_path / "two", regimes())]
    report(runs, tmp_path / "made" / "page.html")
    assert (tmp_path / "made/page.html").read_text(encoding="utf-8") == experiments_page(
        [run_of(path, read_result(path)) for path in runs]
    )
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "result.json, found none in"),
        ("{", "must be a JSON file that bidwise wrote"),
        ('{"kind": "criterion"}', "found 'criterion'"),
        ("{}", "found None"),
        ("[1]", "found None"),
        ('{"kind": "synthetic"}', "must be of format 2, found 1; make it again"),
        ('{"kind": "synthetic", "format": 3}', "must be of format 2, found 3; make it again"),
        ('{"kind": "synthetic", "format": 2}', "found no version, config"),
        ('{"kind": "regimes", "format": 3, "maps": 3}', "found no version, config"),
    ],
)
def test_report_names_what_cannot_be_read(tmp_path, text, words):
    (tmp_path / "broken").mkdir()
    if text is not None:
        (tmp_path / "broken/result.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(words)):
        report([tmp_path / "broken"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
@pytest.mark.parametrize("name", ["synthetic", "no numbers", "regimes", "all"])
def test_page_in_a_browser(browser, pages, tmp_path, name, width, scheme):
    file = tmp_path / "report.html"
    file.write_text(pages[name], encoding="utf-8")
    check_in_a_browser(browser, file, width, scheme)


def test_page_is_printed_light_and_whole(browser, pages, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(pages["synthetic"], encoding="utf-8")
    tab = browser.new_page(color_scheme="dark")
    tab.goto(file.as_uri())
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(31, 41, 51)"
    assert tab.locator("details table").first.is_visible()  # folded on the screen, not on paper
    tab.close()
