"""Pages, figures and words of experiments, those of the committed runs: complete, harmless, and always the same."""

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from paper_helpers import said
from run_helpers import ENVIRONMENT, Page, check_in_a_browser

from bidwise.checks import InputError
from bidwise.evaluation.estimate import Estimate, signed
from bidwise.json_files import read_json
from bidwise.report.build import run_of, runs_page
from bidwise.report.sections import Run
from bidwise.study.recipe import BASELINE
from paper.comparisons import Difference
from paper.criteo_view import PAPER
from paper.experiment_views import AXES
from paper.pages import (
    VIEWS,
    experiment_page,
    experiment_pictures,
    experiment_summary,
    read_result,
    report,
    typed_result,
    write_report,
)
from paper.synthetic import PAPER as SIX

RESULTS = Path(__file__).parents[2] / "docs" / "results"
HOSTILE = "<b>x</b> & \"'{{ 7 * 7 }}"
RUNS = sorted(path.parent.name for path in RESULTS.glob("*/result.json"))
AWKWARD = ("no numbers", "one repeat", "two runs")


def all_of_page(runs):
    return runs_page(runs, dict.fromkeys(VIEWS, experiment_page))


def nulled(value):
    """The same result with no numbers left but those that are selected, counted or never missing."""
    kept = ("config", "edges", "counts", "epoch", "epochs", "lam", "levels", "summary", "tuned", "bids")
    if isinstance(value, dict):
        return {key: entry if key in kept else nulled(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [nulled(entry) for entry in value]
    return None if isinstance(value, float) else value


@cache
def result_of(name):
    return read_result(RESULTS / name)


def run(result, name="run"):
    return Run(name, result, ENVIRONMENT, {})


def one_repeat():
    """A synthetic result of one repeat, which has no intervals."""
    data = read_json(RESULTS / "plotted" / "result.json")
    data["config"]["repeats"] = 1
    data["protocols"] = {"converged": data["protocols"]["converged"]}
    for numbers in data["protocols"]["converged"]["losses"].values():
        numbers |= {"ci_low": None, "ci_high": None, "error_to_average": None}
    return typed_result(data)


def shown(name):
    """The runs of a page."""
    match name:
        case "no numbers":
            kinds = ("plotted", "regimes", "criteo_10m_deepfm")
            return [run(typed_result(nulled(read_json(RESULTS / kind / "result.json"))), kind) for kind in kinds]
        case "one repeat":
            return [run(one_repeat())]
        case "two runs":
            return [run(result_of("misspecified")), run(result_of("misspecified_rare"), HOSTILE)]
    return [run(result_of(name), name)]


@cache
def page_of(name):
    return all_of_page(shown(name))


def contains(page, estimate):
    return f"{estimate:%}" in page.text


@pytest.mark.parametrize("name", ["plotted", "misspecified"])
def test_every_number_of_the_synthetic_experiment_is_on_the_page(name):
    result, page = result_of(name), Page(page_of(name))
    for protocol in result.protocols.values():
        for loss, numbers in protocol.losses.items():
            assert loss in page.text
            assert f"{100 * numbers.ratio:.2f} %" in page.text
            for key in ("welfare", "auc", "log_loss"):
                assert f"{getattr(numbers, key):.4f}" in page.text
            average = f"{numbers.difference_to_average:.4f} ± {numbers.error_to_average:.4f}"
            assert average.replace("-", "−") in page.text
            assert loss == BASELINE or all(contains(page, gain) for gain in (numbers, numbers.calibrated))
    for words in (*said(result), *ENVIRONMENT["command"].split(), "1a2b3c4+", "AMD EPYC 7B13"):
        assert words in page.text


@pytest.mark.parametrize("name", ["criteo_10m_converged", "criteo_10m_deepfm"])
def test_every_number_of_criteo_is_on_the_page_beside_the_papers(name):
    result, page = result_of(name), Page(page_of(name))
    for model, _, protocol in result.protocols:
        for loss, numbers in protocol.losses.items():
            for key in ("welfare", "expected_welfare", "auc", "log_loss"):
                assert f"{getattr(numbers, key):.4f} ± {getattr(numbers, f'{key}_error'):.4f}" in page.text
            if loss != BASELINE:
                assert all(contains(page, protocol.gain(loss, calibrated=way)) for way in (False, True))
        for welfare, auc_loss, log_loss in PAPER[model].values():
            assert "{:.4f} ± {:.4f}".format(*welfare) in page.text
            assert all(f"{number:.4f}" in page.text for number in (1 - auc_loss, log_loss))
    assert "+1.20 % ± 0.23" in page.text  # log_weighted of DeepFM
    for words in (*said(result), "8,000,000", "all possible", "No run repeats the paper’s training to the letter"):
        assert words in page.text


def test_every_reading_is_on_the_page():
    result, page = result_of("readings"), Page(page_of("readings"))
    for reading, losses in result.readings.items():
        assert reading in page.text
        for loss, numbers in losses.items():
            assert f"{numbers.log_loss:.4f}" in page.text
            assert loss == BASELINE or (contains(page, numbers) and contains(page, numbers.calibrated))


def test_every_cell_of_the_regimes_is_in_a_map_and_in_tables():
    result, page = result_of("regimes"), Page(page_of("regimes"))
    for plot in result.maps:
        assert f"By {plot.x.name} and {plot.y.name}" in page.text
        assert AXES.get(plot.x.name, plot.x.name) in page.text
        for cell in (cell for rows in plot.losses.values() for row in rows for cell in row):
            sign = "≈" if cell.ci_low <= 0 <= cell.ci_high else "▲" if cell.difference > 0 else "▼"
            assert f"{signed(100 * cell.difference)} {sign}" in page.text
            assert all(f"{100 * way:.2f}" in page.text for way in (cell, cell.calibrated))
    for counts in result.summary.values():
        assert f">{counts.better}</td>" in page_of("regimes")


def test_every_recipe_is_on_the_page():
    result, page = result_of("recipes"), Page(page_of("recipes"))
    for world, numbers in result.worlds.items():
        assert f"World {world}" in page.text
        assert all(recipe in page.text for recipe in numbers.recipes)
        assert all(f"{100 * x.gain:.2f}" in page.text for x in numbers.recipes.values() if x.gain is not None)


@pytest.mark.parametrize(
    ("repeats", "auctions", "kind"),
    [
        ((0.1, 0.3), (0.05, 0.4), "better"),
        ((-0.3, -0.1), (-0.4, -0.1), "worse"),
        ((0.1, 0.3), (-0.1, 0.5), "unclear"),
        ((-0.1, 0.5), (0.1, 0.3), "unclear"),
        ((0.1, 0.3), (-0.3, -0.1), "unclear"),
        ((math.nan, math.nan), (0.1, 0.3), "unclear"),
        ((0.0, 0.3), (0.1, 0.3), "unclear"),
    ],
)
def test_a_difference_counts_only_where_both_intervals_exclude_0(repeats, auctions, kind):
    parts = [Estimate(difference=0.2, ci_low=low, ci_high=high) for low, high in (repeats, auctions)]
    found = Difference.between(*parts)
    assert found.outcome == (100 * found).outcome == kind
    assert (100 * found).auctions == 100 * found.auctions


def test_the_verdict_comes_first_and_names_what_is_better_and_worse():
    result = result_of("criteo_10m_converged")
    text = Page(page_of("criteo_10m_converged").partition("</head>")[2]).text
    first, *_ = sentences = said(result)
    assert text.index(first) < text.index("Welfare against the baseline") < text.index("How it was done")
    assert first == (
        "DeepFM, converged (trained to the end): none of 5 losses is measurably above log loss, the highest distilled "
        "at +0.06 % [−0.38, +0.49]; below it: log_weighted, log_teacher, log_plus_teacher; not distinguished from it: "
        "log_plus, distilled."
    )
    assert "3 repeats reveal only large differences." in sentences
    assert "One repeat has no interval over repeats, so no difference counts as measured." in said(one_repeat())
    assert "only log loss was trained" in said(result_of("criteo_full"))[0]
    few = replace(result, data=replace(result.data, splits={**result.data.splits, "test": 9_999}))
    words = "9,999 test ads are a trial, not a measurement: use 10,000 or more."
    assert words in said(few)
    assert words not in sentences


def test_what_was_not_run_is_not_shown():
    assert "literal sums" not in page_of("misspecified")
    assert "Tuned (on validation auctions)" not in page_of("one repeat")
    unknown = replace(result_of("criteo_full").data, optimal_welfare=math.nan)
    text = Page(all_of_page([run(replace(result_of("criteo_full"), data=unknown))])).text
    assert "Differences are of realised welfare" in text
    assert "Expected welfare" not in text


def test_a_loss_that_is_better_and_one_that_is_worse_look_alike():
    rows = re.findall(r"<td[^>]* class=\"finding (\w+)\">([^<]*)</td>", page_of("plotted"))
    signs = {kind: {words[0] for k, words in rows if k == kind} for kind in ("better", "worse", "unclear")}
    assert signs == {"better": {"▲"}, "worse": {"▼"}, "unclear": {"≈"}}


@pytest.mark.parametrize("name", [*RUNS, *AWKWARD])
def test_page_is_well_formed_and_needs_nothing_else(name):
    page = Page(page_of(name))
    assert page.faults == []
    assert page_of(name).startswith("<!doctype html>")
    assert page.tags.count("h1") == 1
    assert page.tags.count("th") == len(page.all("scope"))
    assert page.tags.count("table") == page.tags.count("caption")
    assert len(page.all("id")) == len(set(page.all("id")))
    targets = [link[1:] for key in ("href", "xlink:href") for link in page.all(key) if link.startswith("#")]
    targets += re.findall(r"url\(#(.*?)\)", page_of(name)) + page.all("aria-labelledby")
    assert set(targets) <= set(page.all("id"))
    drawn = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert all(picture.get("aria-label") or picture.get("aria-hidden") for picture in drawn)
    assert not re.search(r"\b(None|nan|inf|NaN|null|undefined)\b", page.text)
    links = [link for key in ("src", "href", "xlink:href", "srcset", "data", "action") for link in page.all(key)]
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert not {"script", "img", "iframe", "object", "embed", "base", "form", "b"} & set(page.tags)
    assert re.findall(r"https?://(?!www\.w3\.org/)|@import", page_of(name)) == []
    charts = re.findall(r"<svg role.*?</svg>", page_of(name), re.DOTALL)
    assert not any(re.search(r"(fill|stroke): #", chart) for chart in charts)
    colours = {colour for chart in charts for colour in re.findall(r"var\((--\w+)\)", chart)}
    assert all(page_of(name).count(f"{colour}:") == 2 for colour in colours)  # a light and a dark one
    assert len(page_of(name).encode()) < 1_100_000


@pytest.mark.parametrize("name", ["readings", "criteo_10m_converged"])
def test_same_runs_give_same_bytes_and_figures(tmp_path, name):
    assert all_of_page(shown(name)) == page_of(name)
    written = []
    for place in ("first", "second"):
        (tmp_path / place).mkdir()
        write_report(tmp_path / place, result_of(name))
        written.append({path.name: path.read_bytes() for path in sorted((tmp_path / place / "figures").iterdir())})
    assert written[0] == written[1]
    assert all(content.startswith(b"<?xml") for content in written[0].values())
    assert set(written[0]) == {f"{picture.name}.svg" for picture in experiment_pictures(result_of(name))}


def test_the_papers_figures_are_drawn():
    pictures = {picture.name: picture for picture in experiment_pictures(result_of("plotted"))}
    assert list(pictures) == ["figure2_welfare", "figure2_with_errors", "figure4_distributions", "figure1_surrogates"]
    protocols = result_of("plotted").protocols
    for protocol, panel in zip(protocols.values(), pictures["figure2_with_errors"].panels, strict=True):
        six = {loss: protocol.losses[loss] for loss in SIX}
        assert all(f"{loss} {x.welfare:.4f} ± {x.error_to_average:.4f}" in panel.about for loss, x in six.items())
        assert panel.about.count("±") == 6
    assert "figure2_with_errors" not in [picture.name for picture in experiment_pictures(one_repeat())]
    *_, levels = experiment_pictures(result_of("criteo_10m_converged"))
    losses = result_of("criteo_10m_converged").models["dcn"].protocols["converged"].losses
    titles = ["welfare", "AUC loss", "log loss"]
    assert [panel.title for panel in levels.panels] == [f"{model}: {x}" for model in ("DeepFM", "DCN") for x in titles]
    for loss in ("log_loss", "log_weighted", "log_teacher"):
        means = (losses[loss].welfare, 1 - losses[loss].auc, losses[loss].log_loss)
        errors = (losses[loss].welfare_error, losses[loss].auc_error, losses[loss].log_loss_error)
        for panel, mean, error in zip(levels.panels[3:], means, errors, strict=True):
            assert f"{loss} {mean:.4f} ± {error:.4f}" in panel.about
    for name, title in (("plotted", "Converged (trained to the end)"), ("criteo_10m_converged", "DCN, converged")):
        first, *_ = experiment_pictures(result_of(name))
        assert any(panel.title.startswith(title) and "log_teacher: " in panel.about for panel in first.panels)


def test_the_summary_has_a_table_for_each_comparison():
    result = result_of("criteo_10m_converged")
    lines = experiment_summary(result).splitlines()
    assert [line for line in lines if line.endswith(", converged (trained to the end)")]
    row = next(line for line in lines if line.startswith("  log_weighted "))
    assert re.split("  +", row.strip())[:3] == ["log_weighted", "▼ −1.61 % [−2.03, −1.20]", "≈ −0.19 % [−0.47, +0.10]"]
    assert lines[-len(said(result)) :] == said(result)


def test_report_reads_folders_and_writes_one_page(tmp_path):
    folders = [RESULTS / "misspecified", RESULTS / "criteo_full"]
    report(folders, tmp_path / "made" / "page.html")
    expected = all_of_page([run_of(path, read_result(path)) for path in folders])
    assert (tmp_path / "made/page.html").read_text(encoding="utf-8") == expected
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "result.json, found none in"),
        ("{", "must be a JSON file that bidwise wrote"),
        ({"kind": "criterion"}, "found 'criterion'"),
        ({}, "found None"),
        ([1], "found None"),
        ({"kind": "synthetic"}, "must be of format 4, found 1; make it again"),
        ({"kind": "regimes", "format": 4, "maps": 3}, "found no version, config"),
    ],
)
def test_report_names_what_cannot_be_read(tmp_path, content, words):
    (tmp_path / "broken").mkdir()
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "broken/result.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(words)):
        report([tmp_path / "broken"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
@pytest.mark.parametrize("name", ["plotted", "regimes", "criteo_10m_deepfm", "no numbers"])
def test_page_in_a_browser(browser, tmp_path, name, width, scheme):
    file = tmp_path / "report.html"
    file.write_text(page_of(name), encoding="utf-8")
    check_in_a_browser(browser, file, width, scheme)


def test_page_is_printed_light_and_whole(browser, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(page_of("regimes"), encoding="utf-8")
    tab = browser.new_page(color_scheme="dark")
    tab.goto(file.as_uri())
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(31, 41, 51)"
    assert tab.locator("details table").first.is_visible()  # folded on the screen, not on paper
    tab.close()
