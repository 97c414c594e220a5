"""Common parts of all figures: the style, colours that follow the page's theme, SVG for a page."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib.style
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from bidwise.evaluation.estimate import Estimate, Outcome, signed

INK, SOFT, UNCLEAR, GRID = "#1f2933", "#52606d", "#8a939e", "#e9ecef"
_WIDTH = 4.8  # inches: on a phone the text is then still as large as print
NARROW = 4.1  # for figures of many words, which are three in a row on a wide screen
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a name may contain dollars
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "pdf.fonttype": 42,  # text stays text there too
    "text.color": INK,
    "axes.edgecolor": UNCLEAR,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": UNCLEAR,
    "ytick.color": UNCLEAR,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
# Okabe and Ito's colours, which most colour-blind readers can distinguish, without the yellow that white swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
THEMED = {  # colour of a drawing -> colour on a page
    INK: "var(--ink)",
    UNCLEAR: "var(--mid)",
    GRID: "var(--grid)",
    SOFT: "var(--soft)",
    "#ffffff": "var(--paper)",
    **{
        colour.lower(): f"var(--{name})"
        for colour, name in zip(COLOURS, ("blue", "vermilion", "green", "pink", "orange", "sky", "black"), strict=True)
    },
}
MARKERS = {  # marker -> its shape around (15, 6), for legends outside of figures
    "o": "M15 2a4 4 0 1 0 .01 0z",
    "s": "M11 2h8v8h-8z",
    "^": "M15 1l5 9h-10z",
    "D": "M15 1l5 5-5 5-5-5z",
    "v": "M15 11l5-9h-10z",
    "P": "M13 1.5h4v2.5h2.5v4H17v2.5h-4V8h-2.5V4H13z",
    "X": "M11 3.5l2-2 2 2 2-2 2 2-2 2.5 2 2.5-2 2-2-2-2 2-2-2 2-2.5z",
}


@dataclass(frozen=True)
class Look:
    """How a model is drawn in every figure."""

    colour: str
    marker: str
    dash: str


def looks(models: Sequence[str]) -> dict[str, Look]:
    """A colour and a marker per model; from the eighth on the line is dashed.

    >>> looks(["a", "b"])["b"]
    Look(colour='#D55E00', marker='s', dash='-')
    """
    n, markers = len(COLOURS), list(MARKERS)
    return {m: Look(COLOURS[k % n], markers[k % n], "-" if k < n else "--") for k, m in enumerate(models)}


@dataclass(frozen=True)
class Panel:
    """One pair of axes: a figure of its own on a page, one part of a picture in a file."""

    title: str
    about: str  # a description in words, for readers who cannot see it
    height: float  # inches
    paint: Callable[[Axes], None]
    width: float = _WIDTH


def ticks(most: int) -> MaxNLocator:
    return MaxNLocator(most, steps=[1, 2, 5, 10])


def shortened(name: str, most: int) -> str:
    """A name on one line, without its middle if it is long.

    >>> shortened("click_model_of_last_tuesday", 12)
    'click_…esday'
    """
    name = " ".join(name.split())
    tail = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - tail]}…{name[-tail:]}"


@dataclass(frozen=True)
class Whisker:
    """One line of a figure of intervals; a line without ``words`` is the heading of those below it."""

    name: str
    words: str = ""
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    clear: bool = False  # the interval excludes 0 and can be trusted
    colour: str = UNCLEAR
    marker: str = "o"
    fades: bool = True  # to grey if it is not clear
    below: Estimate | None = None  # the same with another interval, drawn thin below the first

    @classmethod
    def of(cls, name: str, words: str, estimate: Estimate, outcome: Outcome, colour: str, marker: str = "o") -> Whisker:
        """An estimate, clear if the outcome is better or worse; bounds that are not finite are not drawn."""
        numbers = (estimate.difference, estimate.ci_low, estimate.ci_high)
        centre, low, high = (x if math.isfinite(x) else None for x in numbers)
        return cls(name, words, centre, low, high, outcome.clear, colour, marker)


def whiskers(title: str, rows: Sequence[Whisker], label: str, about: str = "", width: float = _WIDTH) -> Panel:
    """Differences with their intervals; full if 0 is outside, hollow (and grey, if a row fades) if not."""
    about = about or f"{title}, {label}: {'; '.join(f'{row.name}: {row.words}' for row in rows if row.words)}"
    ends = [x for row in rows for x in (row.estimate, row.low, row.high) if x is not None]
    ends += [x for row in rows if row.below and row.below.known for x in (row.below.ci_low, row.below.ci_high)]
    reach = max(map(abs, ends), default=0) or 1
    low, high = min(0, *ends, reach * -0.12), max(0, *ends, reach * 0.12)

    def paint(axes: Axes) -> None:
        across = axes.get_yaxis_transform()
        for y, row in enumerate(rows):
            if not row.words:
                axes.text(0, y + 0.25, shortened(row.name, 56), transform=across, color=SOFT, va="center", size=8.5)
                continue
            axes.text(0, y - 0.2, shortened(row.name, 26), transform=across, va="center", weight="bold")
            axes.text(1, y - 0.2, row.words, transform=across, va="center", ha="right")
            if ends:
                axes.plot([0, 0], [y, y + 0.42], color=INK, linewidth=0.9)  # not through the words above
            colour = row.colour if row.clear or not row.fades else UNCLEAR
            if row.low is not None and row.high is not None:
                axes.plot([row.low, row.high], [y + 0.2, y + 0.2], color=colour, marker="|", markersize=7)
            if row.below is not None and row.below.known:
                axes.plot([row.below.ci_low, row.below.ci_high], [y + 0.4, y + 0.4], color=colour, linewidth=0.9)
            if row.estimate is not None:
                face = colour if row.clear else "white"
                axes.plot([row.estimate], [y + 0.2], row.marker, color=colour, markerfacecolor=face, markersize=6.5)
        axes.set_ylim(len(rows) - 0.4, -0.05)
        axes.set_xlim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        axes.yaxis.set_major_locator(NullLocator())
        axes.xaxis.set_major_locator(ticks(6) if ends else NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: signed(0 if abs(x) < 1e-9 else x, "g")))
        axes.spines["left"].set_visible(False)
        axes.spines["bottom"].set_visible(bool(ends))
        axes.set_xlabel(label if ends else "")

    row_height = 0.52 if any(row.below for row in rows) else 0.46
    return Panel(title, about, 0.55 + row_height * len(rows), paint, width)


def drawn(key: str, panel: Panel) -> Markup:
    """The panel as an ``<svg>`` element for the inside of a page; the same bytes for the same picture.

    ``key`` distinguishes figures of one page: every id that is left in the element depends on it.
    """
    with style(key):
        figure = Figure(figsize=(panel.width, panel.height), layout="constrained")
        panel.paint(figure.add_subplot())
        text = io.StringIO()
        figure.savefig(text, format="svg")
    whole = text.getvalue()
    size = re.search(r'viewBox="[^"]*"', whole)
    assert size is not None
    inside = whole[whole.index(">", size.start()) + 1 :]
    # Metadata has the date, and a style inside of a page is one for all of it.
    inside = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", inside, count=2, flags=re.DOTALL)
    inside = re.sub(r'<g id="[^"]*"', "<g", inside)  # groups have no references, and each figure numbers them from 1
    inside = re.sub(r">\s+<", ">\n<", inside)
    inside = re.sub(r"<[^>]+>", lambda tag: themed(tag[0]), inside)
    return Markup(f'<svg role="img" aria-label="{escape(panel.about)}" {size[0]}>') + Markup(inside)


def themed(style: str) -> str:
    """Colours as the page's variables, which differ between light and dark.

    >>> themed("fill: #0072b2; stroke: #123456")
    'fill: var(--blue); stroke: #123456'
    """
    return re.sub(r"#[0-9a-fA-F]{6}\b", lambda found: THEMED.get(found[0].lower(), found[0]), style)


@contextmanager
def style(key: str) -> Iterator[None]:
    """Draw in the style of all figures; ids inside of an SVG depend on ``key``."""
    with matplotlib.style.context(["default", {**STYLE, "svg.hashsalt": key}]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the reader's browser has more letters than our font
        yield
