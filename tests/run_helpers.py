"""What tests of tables, commands and pages share: made tables, the command in this process, and how pages are read."""

import re
import sys
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import polars as pl

import bidwise
from bidwise.cli import main

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """What a page holds; ends that do not match what is open, and what is never closed, are faults."""

    def __init__(self, html):
        super().__init__()
        self.open, self.faults, self.elements, self.text = [], [], [], ""
        self.feed(html)
        self.close()
        self.faults += self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"/{tag}")

    def handle_data(self, data):
        self.text += data

    @property
    def tags(self):
        return [tag for tag, _ in self.elements]

    def all(self, name):
        return [attributes[name] for _, attributes in self.elements if name in attributes]


ENVIRONMENT = {
    "bidwise": "0.1.0",
    "commit": "1a2b3c4+",
    "command": "python -m paper synthetic --repeats 5 --out runs/synthetic",
    "machine": "AMD EPYC 7B13",
    "cores": 2,
    "threads": 1,
    "python": "3.11.2",
    "torch": "2.13.0+cpu",
    "numpy": "2.3.1",
    "seconds": 812.3,
}


CONTRASTS = """() => {
  const rgb = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const front = rgb(element.closest('svg') ? style.fill : style.color);
    let behind = ground(element);
    const svg = element.closest('figure svg');
    if (svg) {  // the strongest patch that has this text on it
      const box = element.getBoundingClientRect();
      for (const path of svg.querySelectorAll('path')) {
        const own = path.getBoundingClientRect(), paint = getComputedStyle(path);
        const alpha = Number(paint.opacity) * Number(paint.fillOpacity);
        if (paint.fill === 'none' || alpha > 0.8 || own.left > box.left || own.right < box.right) continue;
        if (own.top > box.top + 2 || own.bottom < box.bottom - 2) continue;
        if (own.width > svg.getBoundingClientRect().width / 2) continue;  // bands: their boxes reach beyond the axes
        behind = rgb(paint.fill).map((c, k) => alpha * c + (1 - alpha) * behind[k]);
      }
    }
    found.push([ratio(light(front), light(behind)), element.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""


def check_in_a_browser(browser, file, width, scheme):
    """The page fits, can be read in light and dark, says nothing on the console and asks the network for nothing."""
    faults, requests = [], []
    tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    tab.on("console", lambda message: faults.append(message.text))
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(file.as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert tab.locator(".headline").first.is_visible()
    assert tab.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert tab.evaluate("[...document.querySelectorAll('table')].every(t => t.closest('.scroll'))")
    boxes = [figure.bounding_box() for figure in tab.locator("figure svg").all()]
    assert boxes
    assert all(box["width"] > 250 and box["height"] > 50 for box in boxes)
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    contrasts = tab.evaluate(CONTRASTS)
    assert len(contrasts) > 100
    assert [pair for pair in contrasts if pair[0] < 4.5] == []
    tab.close()
    assert faults == []
    assert [url for url in requests if url not in (file.as_uri(), "data:,")] == []


def bidwise_command(monkeypatch, *words):
    """Run the command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["bidwise", *map(str, words)])
    try:
        main()
    except SystemExit as stop:
        return stop.code
    return 0


SMALL = {"model": "logistic_regression", "epochs": 3, "learning_rate": 0.02, "loss": "log_loss"}


def market(auctions=500, seed=0, rare=1.0):
    """Logged ads with known CTR: two categories, two numbers, auctions of 2 to 9 ads, one a minute."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 10, auctions)
    ads = int(sizes.sum())
    site = np.repeat(random.integers(0, 8, auctions), sizes)
    brand = random.integers(0, 20, ads)
    age = random.normal(size=ads)
    logit = -1.2 - rare + 0.15 * site + np.linspace(-1.5, 1.5, 20)[brand] + 0.7 * age
    ctr = 1 / (1 + np.exp(-logit))
    return pl.DataFrame(
        {
            "auction": np.repeat(np.arange(auctions), sizes),
            "time": np.repeat(1_700_000_000 + 60 * np.arange(auctions), sizes),
            "site": [f"s{k}" for k in site],
            "brand_id": brand,
            "age": age,
            "noise": random.normal(size=ads),
            "bid": np.exp(0.4 * random.normal(size=ads)),
            "click": (random.random(ads) < ctr).astype(int),
            "truth": ctr,
        }
    )


def ads_of(auctions, size=6, seed=0, noise=(0.8, 0.2), rate=-1.0):
    """A table of logged ads with two models; the second is nearer to the truth."""
    random = np.random.default_rng(seed)
    ads = auctions * size
    logit = rate + random.normal(size=ads)
    truth = 1 / (1 + np.exp(-logit))
    models = {
        name: 1 / (1 + np.exp(-logit - scale * random.normal(size=ads)))
        for name, scale in zip(("rough", "fine"), noise, strict=True)
    }
    return {
        "auction": np.repeat(np.arange(auctions), size),
        "bid": np.exp(0.5 * random.normal(size=ads)),
        "click": (random.random(ads) < truth).astype(int),
        "truth": truth,
        **models,
    }


def evaluate(table, **options):
    ready = {"ctr": ["rough", "fine"], "click": "click", "bid": "bid"}
    if "auction_size" not in options:
        ready["auction"] = "auction"
    return bidwise.evaluate(table, **(ready | {"rounds": 199} | options))


def comparison(found, metric="welfare", model="fine", baseline="rough"):
    (one,) = [c for c in found.comparisons if (c.model, c.baseline, c.metric) == (model, baseline, metric)]
    return one


def small_market(auctions=150, seed=0):
    """Logged ads whose clicks depend on site and brand."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 8, auctions)
    site, brand = np.repeat(random.integers(0, 5, auctions), sizes), random.integers(0, 9, sizes.sum())
    ctr = 1 / (1 + np.exp(2 - 0.3 * site - 0.3 * brand))
    return pl.DataFrame(
        {
            "auction": np.repeat(np.arange(auctions), sizes),
            "site": [f"s{k}" for k in site],
            "brand": [f"b{k}" for k in brand],
            "bid": np.exp(0.5 * random.normal(size=len(ctr))),
            "click": (random.random(len(ctr)) < ctr).astype(int),
        }
    )


SECRET = "X-Amz-Signature=0123abc"


class Bucket(BaseHTTPRequestHandler):
    """As much of S3 as reading takes: GET and HEAD of an object or a range of it, and lists of keys."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes] = {}  # noqa: RUF012 (filled by the fixture)

    def do_GET(self):
        url = urlsplit(self.path)
        name, query = unquote(url.path).strip("/"), parse_qs(url.query)
        if name.startswith("locked/"):
            self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        elif name.startswith("elsewhere/"):
            self.answer(301)
        elif name.startswith("busy/"):
            self.answer(503, b"<Error><Code>SlowDown</Code></Error>")
        elif "list-type" in query:
            start = f"{name}/{query.get('prefix', [''])[0]}"
            self.answer(200, listed(name, [key for key in sorted(self.objects) if key.startswith(start)], self.objects))
        elif name not in self.objects:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self.send_range(self.objects[name])

    do_HEAD = do_PUT = do_GET  # names that http.server looks for

    def send_range(self, data):
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return self.answer(200, data)
        first, last = asked.groups()
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last), len(data) - 1) if first and last else len(data) - 1
        return self.answer(206, data[begin : end + 1], {"Content-Range": f"bytes {begin}-{end}/{len(data)}"})

    def answer(self, status, body=b"", headers=None):
        stated = {"Content-Length": len(body), "ETag": '"1"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        self.send_response(status)
        for name, value in (stated | (headers or {})).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def listed(bucket, keys, objects):
    """The answer to a question for keys."""
    about = "<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>1</ETag><StorageClass>STANDARD</StorageClass>"
    entries = "".join(
        f"<Contents><Key>{key.removeprefix(bucket + '/')}</Key><Size>{len(objects[key])}</Size>{about}</Contents>"
        for key in keys
    )
    ends = f"<Name>{bucket}</Name><KeyCount>{len(keys)}</KeyCount><IsTruncated>false</IsTruncated>"
    return f"<ListBucketResult>{ends}{entries}</ListBucketResult>".encode()
