"""The report of an evaluation: complete, harmless, the same every time, and readable in a browser."""

import json
import math
import re
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from run_helpers import Page, check_in_a_browser

import bidwise
from bidwise.evaluation.result import Evaluation
from bidwise.report.build import runs_page
from bidwise.report.evaluation_sentences import comparison_lines, notes, verdict
from bidwise.report.sections import Run
from bidwise.run_folder import result_from_json

NASTY = ["<script>alert(1)</script>", "a$b$", "ü", "广告 \"'&amp;", "{{ 7 * 7 }}", "l" + 80 * "o" + "ng"]


def world(models, auctions=150, size=6, seed=0, noise=0.7):
    """A table whose models are noisier the later they come."""
    random = np.random.default_rng(seed)
    ads = auctions * size
    logits = random.normal(-1.5, 1, ads)
    table = {model: 1 / (1 + np.exp(-logits - noise * k * random.normal(size=ads))) for k, model in enumerate(models)}
    return table | {
        "click": (random.random(ads) < 1 / (1 + np.exp(-logits))).astype(int),
        "truth": 1 / (1 + np.exp(-logits)),
        "bid": np.exp(random.normal(0, 0.5, ads)),
        "auction": np.repeat(np.arange(auctions), size),
    }


def result_of(models, *, changes=None, auctions=150, **options):
    table = world(models, auctions) | (changes or {})
    which = {} if "auction_size" in options else {"auction": "auction"}
    return bidwise.evaluate(table, ctr=models, click="click", bid="bid", **which, **options)


def page_of(result):
    return runs_page([Run("evaluation", result)])


def small(name):
    """The results that pages are made of here; each has its own way to be awkward."""
    match name:
        case "three":
            return result_of(["first", "second", "third"], auctions=700)
        case "known truth":
            return result_of(["first", "second"], truth="truth")
        case "too few":
            return result_of(["first", "second"], auctions=30)
        case "single":
            return result_of(["first"], truth="truth")
        case "no clicks":
            return result_of(["first", "second"], changes={"click": np.zeros(900, dtype=int)})
        case "all clicks":
            return result_of(["first", "second"], changes={"click": np.ones(900, dtype=int)})
        case "one auction":
            return result_of(["first", "second"], auctions=1)
        case "equal":
            return result_of(["first", "second"], changes={"second": world(["first"])["first"]})
        case "ten":
            return result_of([f"model {k}" for k in range(10)])
        case "nasty":
            return result_of(NASTY)
        case "drawn":
            return result_of(["first", "second", "third"], auctions=700, auction_size=6)
        case "drawn, too few":
            return result_of(["first", "second"], auctions=5, auction_size=6)
        case "drawn, equal":
            return result_of(["first", "second"], changes={"second": world(["first"])["first"]}, auction_size=6)
        case "drawn, no clicks":
            return result_of(["first", "second"], changes={"click": np.zeros(900, dtype=int)}, auction_size=6)
        case "segments":
            place = np.array(NASTY)[np.arange(900) % 6]
            bid = np.where(np.arange(900) % 300 == 7, 1e6, world(["first"])["bid"])
            more = {"by": ["auction", "place"], "cluster": "place"}
            return result_of(["first", "second"], changes={"place": place, "bid": bid}, auction_size=6, **more)


SMALL = ["three", "known truth", "too few", "single"]
SMALL += ["no clicks", "all clicks", "one auction", "equal", "ten", "nasty"]
SMALL += ["drawn", "drawn, too few", "drawn, equal", "drawn, no clicks", "segments"]


@pytest.fixture(scope="module")
def results():
    return {name: small(name) for name in SMALL}


@pytest.fixture(scope="module")
def pages(results):
    return {name: page_of(result) for name, result in results.items()}


@pytest.mark.parametrize("name", SMALL)
def test_page_says_everything(results, pages, name):
    page = Page(pages[name])
    said = [line.text for line in verdict(results[name])]
    for words in [*said, *notes(results[name]), *results[name].models]:
        assert words in page.text
    auctions = results[name].auctions
    assert ("possible auction" if auctions is None else f"{auctions:,}") in page.text
    assert bidwise.__version__ in page.text


@pytest.mark.parametrize("name", SMALL)
def test_page_is_well_formed(pages, name):
    page = Page(pages[name])
    assert page.faults == []
    assert pages[name].startswith("<!doctype html>")
    assert ("html", {"lang": "en"}) in page.elements
    assert page.tags.count("h1") == 1
    assert page.tags.count("th") == len(page.all("scope"))
    assert len(page.all("id")) == len(set(page.all("id")))
    targets = [link[1:] for link in page.all("xlink:href")] + re.findall(r"url\(#(.*?)\)", pages[name])
    assert set(targets) <= set(page.all("id"))
    pictures = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert all(picture.get("aria-label") or picture.get("aria-hidden") for picture in pictures)


@pytest.mark.parametrize("name", SMALL)
def test_page_needs_nothing_else(pages, name):
    page = Page(pages[name])
    links = [link for key in ("src", "href", "xlink:href", "srcset", "data", "action") for link in page.all(key)]
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert not {"script", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert "@import" not in pages[name]
    assert set(re.findall(r"https?://[^\"\s<]*", pages[name])) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert [link for link in re.findall(r"url\((.*?)\)", pages[name]) if not link.startswith("#")] == []


@pytest.mark.parametrize("name", SMALL)
def test_missing_numbers_are_dashes_not_words(pages, name):
    text = Page(pages[name].partition("Origin of these numbers")[0]).text
    assert not re.search(r"\b(None|nan|inf|NaN|null|undefined)\b", text)


def test_names_are_text_and_nothing_more(pages):
    page = Page(pages["nasty"])
    drawn = re.findall(r"<text[^>]*>(.*?)</text>", pages["nasty"], re.DOTALL)
    assert "a$b$" in drawn
    assert "ü" in drawn
    assert "against &lt;script&gt;alert(1)&lt;/script&gt;" in drawn
    assert "script" not in page.tags
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", pages["nasty"])[0]


def test_names_cannot_change_the_picture():
    plain, nasty = (page_of(result_of(["first", name])) for name in ("second", '<g id="a"><metadata>'))
    assert Page(plain).tags == Page(nasty).tags
    assert '>&lt;g id="a"&gt;&lt;metadata&gt;</text>' in nasty


@pytest.mark.parametrize("name", ["three", "nasty"])
def test_same_result_gives_same_bytes(results, pages, name):
    assert page_of(results[name]) == pages[name]
    assert page_of(result_from_json(Evaluation, json.loads(results[name].to_json()))) == pages[name]


def test_page_leaves_matplotlib_as_it_was(results):
    before = dict(matplotlib.rcParams)
    page_of(results["single"])
    assert dict(matplotlib.rcParams) == before


def test_page_of_three_models_is_small(pages):
    assert len(pages["three"].encode()) < 600_000
    charts = re.findall(r"<svg role.*?</svg>", pages["three"], re.DOTALL)
    assert len(charts) == 2  # whiskers and curves
    assert max(map(len, charts)) < 40_000


BOUNDS = {  # outcome -> words, ends of the interval, auctions that differ
    "better": ("Better", 0.1, 0.3, 500),
    "worse": ("Worse", -0.3, -0.1, 500),
    "unclear": ("No measurable change", -0.1, 0.3, 500),
    "few": ("Too little to tell", 0.1, 0.3, 5),
    "same": ("Same ads shown", 0.0, 0.0, 0),
}


@pytest.mark.parametrize("outcome", BOUNDS)
def test_each_sentence_has_the_mark_of_its_outcome(results, outcome):
    result = results["three"]
    words, low, high, auctions = BOUNDS[outcome]
    changes = {"ci_low": low, "ci_high": high, "changed_auctions": auctions, "decisive_auctions": auctions}
    result = replace(result, comparisons=tuple(replace(c, **changes) for c in result.comparisons))
    assert {line.kind for line in comparison_lines(result)} == {outcome}
    marks = re.findall(r'<span class="badge \w+"><span aria-hidden="true">.</span> ([^<]*)</span>', page_of(result))
    lines = [line for line in verdict(result) if line.kind]
    assert len(marks) == len(lines)
    assert sum(mark.startswith(words) for mark in marks) >= len(comparison_lines(result))


def test_intervals_without_bounds_are_named(results):
    result = results["ten"]
    assert "no finite interval" not in page_of(result)
    ends = dict.fromkeys(("ci_low", "ci_high", "relative_ci_low", "relative_ci_high"), math.nan)
    result = replace(result, comparisons=tuple(replace(c, **ends) for c in result.comparisons))
    assert "no finite interval" in page_of(result)


def test_numbers_in_the_tables_are_the_results(results, pages):
    text = Page(pages["three"]).text
    for numbers in results["three"].models.values():
        assert f"{numbers.auc:.3f}" in text
        assert f"{numbers.predicted_over_observed:.3f}" in text
    for comparison in results["three"].comparisons:
        assert f"{comparison.lift:%}" in text
        assert f"{comparison.changed_auctions:,}" in text
    share = 1 + results["known truth"].lift("second", "best possible").difference
    assert f"{100 * share:.1f}" in Page(pages["known truth"]).text


def test_models_without_room_are_named(results, pages):
    assert "3 models are not drawn, to keep the lines apart." in pages["ten"]


def test_results_of_another_format_are_refused(results, tmp_path):
    data = json.loads(results["known truth"].to_json())
    assert data["kind"] == "evaluation"
    for other in (Evaluation.format - 1, Evaluation.format + 1):
        with pytest.raises(bidwise.InputError, match="must be of format"):
            result_from_json(Evaluation, data | {"format": other})
    with pytest.raises(bidwise.InputError, match=r"must have the keys .*, found new_key"):
        result_from_json(Evaluation, data | {"new_key": 1})


def test_a_handful_of_ads_is_the_first_thing_a_page_says(results, pages):
    assert results["segments"].concentrated
    leading = re.search(r'<p class="headline[^"]*">(.*?)</p>', pages["segments"], re.DOTALL)[1]
    assert "of the welfare of first, and the verdict rests on that." in leading


def test_segments_are_tables_of_the_page(results, pages):
    text = Page(pages["segments"]).text
    for segment in results["segments"].segments:
        assert segment.value in text
        if segment.welfare.lift.known:
            assert f"{segment.welfare.lift:%}" in text
    assert "second against first by place" in text


def test_write_makes_both_files_or_none(tmp_path, monkeypatch):
    table = world(["first", "second"])
    columns = {"ctr": ["first", "second"], "click": "click", "bid": "bid", "auction": "auction"}
    found = bidwise.evaluate(table, **columns, out=tmp_path / "made")
    made = json.loads((tmp_path / "made/environment.json").read_text())
    assert (tmp_path / "made/report.html").read_text("utf-8") == runs_page([Run("made", found, environment=made)])
    assert result_from_json(Evaluation, json.loads((tmp_path / "made/result.json").read_text())) == found
    monkeypatch.setattr("bidwise.report.build.runs_page", lambda runs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        found.write(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["three", "no clicks", "ten", "nasty"])
def test_page_in_a_browser(browser, pages, tmp_path, name, width):
    file = tmp_path / "report.html"
    file.write_text(pages[name], encoding="utf-8")
    check_in_a_browser(browser, file, width, "dark")


def test_a_page_of_several_runs_folds_them_and_its_navigation_stays_in_view(browser, results, tmp_path):
    file = tmp_path / "report.html"
    runs = [
        Run("one", results["known truth"]),
        Run("two", results["three"]),
        Run("three", results["single"]),
    ]
    file.write_text(runs_page(runs), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 1280, "height": 844})
    tab.goto(file.as_uri())
    opened = "[...document.querySelectorAll('details.run')].map(run => run.open)"
    assert tab.evaluate(opened) == [True, False, False]
    tab.click("nav a[href='#run1']")
    assert tab.evaluate(opened) == [True, True, False]
    assert tab.evaluate("scrollY") > 500
    assert tab.evaluate("document.querySelector('nav').getBoundingClientRect().top") == 0
    assert tab.locator("#run1 .headline").is_visible()
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    wide = "[...document.querySelectorAll('table')].filter(t => t.scrollWidth > t.closest('.scroll').clientWidth)"
    assert tab.evaluate(f"{wide}.map(t => t.caption.textContent)") == []
    tab.emulate_media(media="print")
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = false)")
    assert tab.locator("#run2 .headline").is_visible()  # folded on the screen, not on paper
    tab.close()


def test_an_evaluation_keeps_out_of_the_folder_of_another_run(tmp_path):
    (tmp_path / "result.json").write_text('{"kind": "train"}')
    table = {"a": [0.1, 0.2] * 50, "b": [0.2, 0.1] * 50, "y": [0, 1] * 50, "bid": [1.0] * 100}
    asked = {"ctr": ["a", "b"], "click": "y", "bid": "bid", "auction_size": 2, "out": tmp_path}
    with pytest.raises(bidwise.InputError, match=r"^out must be a new folder or one of an evaluation, .*\(train\)"):
        bidwise.evaluate(table, **asked)
    assert (tmp_path / "result.json").read_text() == '{"kind": "train"}'
    (tmp_path / "result.json").unlink()
    bidwise.evaluate(table, **asked)
    bidwise.evaluate(table, **asked)  # again into its own
