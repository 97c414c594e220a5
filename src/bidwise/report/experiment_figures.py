"""Figures of the synthetic benchmark: surrogates, welfare by loss, and the worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from bidwise.report.drawing import COLOURS, INK, NARROW, Panel, Picture, Whisker, ticks, whiskers
from bidwise.report.formatting import number, per_cent, points
from bidwise.report.loss_styles import FAMILIES, PROTOCOLS, family_of, in_order, loss_called

Result = Mapping[str, Any]
SIGMAS = (1, 3, 10)


def surrogates() -> Picture:
    """Figure 1 of the paper: the indicator, and what is put in its place to have a gradient."""
    margin = np.linspace(-1.0, 1.0, 401)
    top = 4.0

    def panel(name: str, formula: str, surrogate: Callable[[float], Any]) -> Panel:

        def paint(axes: Axes) -> None:
            axes.plot([-1, 0, 0, 1], [1, 1, 0, 0], color=INK, linewidth=2.2)
            axes.text(0.03, 1.0, "indicator", va="center")
            for sigma, colour, dash in zip(SIGMAS, COLOURS, ("-", "--", "-."), strict=False):
                values = surrogate(sigma)
                axes.plot(margin, values, color=colour, linestyle=dash)
                inside = int(np.argmax(values <= top * 0.93))
                at = (margin[inside], values[inside])
                axes.annotate(f"σ = {sigma}", at, (5, 7), textcoords="offset points", va="center")
            axes.set_xlim(-1, 1)
            axes.set_ylim(-0.08, top)
            axes.xaxis.set_major_locator(ticks(5))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}".replace("-", "−")))
            axes.set_xlabel("x = eCPM of the ad that should win − eCPM of the other")

        about = (
            f"{name} surrogate {formula} for sigma 1, 3 and 10 against the margin x, beside the indicator, "
            "which is 1 up to x = 0 and 0 beyond. The larger sigma, the steeper the surrogate rises to the left."
        )
        return Panel(f"{name}: {formula}", about, 3.0, paint)

    return Picture(
        "figure1_surrogates",
        (
            panel("Logistic", "log(1 + exp(−σx))", lambda sigma: np.logaddexp(0.0, -sigma * margin)),
            panel("Hinge", "max(−σx, 0)", lambda sigma: np.maximum(-sigma * margin, 0.0)),
        ),
    )


def welfare_by_loss(result: Result) -> Picture:
    """Figure 2 of the paper, as differences to the log loss: what the models share cancels."""
    panels = []
    for protocol in PROTOCOLS:
        losses = (result["protocols"].get(protocol) or {}).get("losses")
        if not losses:
            continue
        rows: list[Whisker] = []
        for name in in_order(losses):
            family = family_of(name)
            if Whisker(family.title) not in rows:
                rows.append(Whisker(family.title))
            rows.append(_welfare_row(name, losses[name]))
        said = "; ".join(f"{row.name}: {row.words}" for row in rows if row.words)
        about = f"{PROTOCOLS[protocol]}: test welfare by loss, share of the optimum and difference to log loss. {said}"
        label = "difference to log loss, % of the optimal welfare"
        panels.append(whiskers(PROTOCOLS[protocol], rows, label, about, NARROW))
    return Picture("figure2_welfare", tuple(panels))


def _welfare_row(name: str, loss: Result) -> Whisker:
    family = family_of(name)
    share = per_cent(loss["ratio"])
    if name == "log_loss":
        return Whisker(name, f"{share}, reference", 0.0, clear=True, colour=family.colour, marker=family.marker)
    centre, low, high = (_times_100(loss[key]) for key in ("difference", "ci_low", "ci_high"))
    clear = low is not None and high is not None and (low > 0 or high < 0)
    words = f"{share}\u2003{points(loss)}"
    return Whisker(name, words, centre, low, high, clear, family.colour, family.marker, fades=False)


def distributions(result: Result) -> Picture:
    """Figure 4 of the paper, for every reading of how its ads come about."""
    panels = []
    for reading, world in result["worlds"].items():
        ctr, bids = world["ctr"], world["log10_bid"]
        about = f"Histogram of the CTR of ads, {reading} reading. " + _shape_words(world)
        panels.append(_histogram(f"CTR, {reading}", ctr, "CTR", about, COLOURS[0]))
        about = (
            f"Histogram of bids on a logarithmic scale, {reading} reading: from {_plain(world.get('lowest_bid'))} "
            f"to {_plain(world.get('highest_bid'))}."
        )
        panels.append(_histogram(f"Bids, {reading}", bids, "bid (log scale)", about, COLOURS[2], decades=True))
    return Picture("figure4_distributions", tuple(panels), across=2)


def _histogram(
    title: str, bins: Mapping[str, Sequence[float]], label: str, about: str, colour: str, *, decades: bool = False
) -> Panel:
    total = sum(bins["counts"]) or 1

    def paint(axes: Axes) -> None:
        shares = [100 * count / total for count in bins["counts"]]
        axes.stairs(shares, bins["edges"], fill=True, color=colour, alpha=0.85, linewidth=0)
        axes.set_xlabel(label)
        axes.set_ylabel("% of the ads")
        axes.yaxis.set_major_locator(ticks(4))
        axes.xaxis.set_major_locator(ticks(6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        if decades:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _plain(10**x)))

    return Panel(title, about, 2.2, paint)


def _shape_words(world: Result) -> str:
    """Whether CTRs are in the middle or at the ends, which the two readings differ by."""
    edges, counts = world["ctr"]["edges"], world["ctr"]["counts"]
    total = sum(counts) or 1
    ends = sum(n for n, low, high in zip(counts, edges, edges[1:], strict=False) if high <= 0.1001 or low >= 0.8999)
    mean = world.get("mean_ctr")
    return f"Mean {number(mean, 3)}; {100 * ends / total:.0f} % of the ads are below 0.1 or above 0.9."


def families_drawn(result: Result) -> list[tuple[str, str, str]]:
    """Title, colour and marker of each family of losses, for a legend."""
    names = {name for protocol in result["protocols"].values() for name in protocol["losses"]}
    families = {loss_called(name).family for name in names}
    return [(family.title, family.colour, family.marker) for key, family in FAMILIES.items() if key in families]


def _times_100(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _plain(value: float | None) -> str:
    """A bid in few digits.

    >>> _plain(0.0123), _plain(250.0), _plain(3e16), _plain(None)
    ('0.012', '250', '3e16', '–')
    """
    if value is None:
        return "–"
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e−").replace("e+", "e").replace("e-", "e−")
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"
