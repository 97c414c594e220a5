"""The auction to play with: what it shows is what `bidwise.run_auction` computes, in a real browser."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import bidwise

DOCS = Path(__file__).parent.parent / "docs"
SHELL = '<!doctype html><meta charset="utf-8"><div id="auction"></div>'


@pytest.fixture
def auction(browser):
    page = browser.new_page()
    page.set_content(SHELL)
    page.add_script_tag(path=DOCS / "assets" / "auction.js")
    yield page
    page.close()


def move(page, label, value):
    page.get_by_label(label, exact=True).evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", str(value)
    )


def shown(page):
    """What the page says and computes: bids and CTRs, prices by slot, the sentence below."""
    state = page.evaluate("() => { const a = document.getElementById('auction').auction;"
                          " return { ads: a.ads, slots: a.slots, sold: a.sell() }; }")  # fmt: skip
    return state, page.locator(".auction-sum").inner_text()


@pytest.mark.parametrize("pricing", ["gsp", "vcg", "first_price"])
@pytest.mark.parametrize("moves", [{}, {"ctr of Games": 0.02}, {"bid of Loans": 12, "ctr of Hotels": 0.1}])
def test_prices_and_winners_are_those_of_run_auction(auction, pricing, moves):
    auction.get_by_label("pricing").select_option(pricing)
    for label, value in moves.items():
        move(auction, label, value)
    state, sentence = shown(auction)
    ctr, bids, truth = ([ad[key] for ad in state["ads"]] for key in ("ctr", "bid", "truth"))
    sold = bidwise.run_auction(ctr, bids, None, slots=state["slots"], pricing=pricing)
    assert [sale["row"] for sale in state["sold"]] == sold.winners[0].tolist()
    assert [sale["price"] for sale in state["sold"]] == pytest.approx(sold.price_per_click[0].tolist())
    rows = auction.locator("tbody tr")
    slots = [rows.nth(row).locator(".slot").inner_text() for row in range(len(bids))]
    assert slots == [
        str(sold.winners[0].tolist().index(row) + 1) if row in sold.winners[0] else "–" for row in range(4)
    ]
    welfare = float(bidwise.welfare(ctr, truth, bids, None, slots=state["slots"]))
    best = float(bidwise.optimal_welfare(truth, bids, None, slots=state["slots"]))
    revenue = float(sold.revenue(truth))
    assert sentence.startswith(f"Welfare {welfare:.2f} of {best:.2f} possible")
    assert sentence.endswith(f"Revenue {revenue:.2f}." if revenue >= 0.1 else f"Revenue {revenue:.3f}.")
    assert ("the best ads are shown" in sentence) == (best - welfare < 1e-9)


def test_a_small_mistake_costs_nothing_and_a_large_one_does(auction):
    move(auction, "ctr of Games", 0.12)
    assert "the best ads are shown" in shown(auction)[1]
    move(auction, "ctr of Games", 0.09)
    assert "the predictions cost" in shown(auction)[1]


def test_start_again_undoes_every_move(auction):
    before = shown(auction)
    move(auction, "bid of Shoes", 9)
    assert shown(auction) != before
    auction.get_by_role("button", name="Start again").click()
    assert shown(auction) == before


CUT_OFF = """() => [...document.querySelectorAll(".md-content pre > code, .md-content .md-typeset__scrollwrap")]
    .filter(part => part.scrollWidth > part.clientWidth + 1).map(part => part.innerText.slice(0, 60))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="make test-long installs mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    built = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_site_is_whole_and_needs_no_network(site, browser):
    """Every page opens from the disk at two widths, requests no outside resource, and has no error; no code block and
    no table is cut off on a laptop."""
    pages = sorted(path for path in site.rglob("*.html") if path.name != "report.html")
    assert {page.stem for page in pages} >= {page.stem for page in DOCS.rglob("*.md")}
    outside, errors, wide = [], [], []
    for width in (1280, 390):
        opened = browser.new_page(viewport={"width": width, "height": 900})
        opened.on("request", lambda asked: outside.append(asked.url))
        opened.on("pageerror", lambda error: errors.append(str(error)))
        for page in pages:
            opened.goto(page.as_uri())
            if opened.evaluate("document.documentElement.scrollWidth") > width:
                wide.append((page.name, width))
            if width == 1280:
                wide += [(page.name, text) for text in opened.evaluate(CUT_OFF)]
        opened.close()
    assert [url for url in outside if not url.startswith(("file:", "data:"))] == []
    assert (errors, wide) == ([], [])


def test_no_link_of_the_site_is_dead(site):
    dead = []
    for page in site.rglob("*.html"):
        links = re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8"))
        local = {link for link in links if not re.match(r"[a-z]+:|//|/", link)}
        dead += [(page.name, link) for link in local if not (page.parent / unquote(link)).exists()]
    assert dead == []


def test_the_search_works_from_the_disk(site, browser):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("pooled welfare", delay=20)
    page.wait_for_function("/[1-9]\\d* matching/.test(document.querySelector('.md-search-result__meta').innerText)")
    page.close()


def test_the_auction_is_on_its_page(site, browser):
    page = browser.new_page()
    page.goto((site / "start" / "auction.html").as_uri())
    assert page.locator("#auction tbody tr").count() == 4
    page.close()


def test_the_reference_documents_its_functions(site):
    text = (site / "reference" / "api.html").read_text()
    for name in ("pairwise_welfare_loss", "run_auction", "evaluate", "fit", "Ads"):
        assert f">{name}</span>" in text or f".{name}</span>" in text or f".{name}<" in text
