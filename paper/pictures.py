"""Several panels as one picture: on a page, and as files for a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from bidwise.report.drawing import Panel, style
from bidwise.report.sections import Drawing, drawing
from bidwise.run_folder import whole_file


@dataclass(frozen=True)
class Picture:
    """Panels that belong together: one file in each format, ``across`` of them in a row."""

    name: str
    panels: tuple[Panel, ...]
    across: int = 3


def drawings(key: str, picture: Picture) -> list[Drawing]:
    """The panels of a picture as figures of a page; ``key`` distinguishes its runs."""
    return [drawing(f"{key}{picture.name}{at}", panel) for at, panel in enumerate(picture.panels)]


def write(folder: Path, picture: Picture) -> list[Path]:
    """The picture as SVG, PDF and PNG, on white; whole files or none, and the same bytes every time."""
    rows = [picture.panels[k : k + picture.across] for k in range(0, len(picture.panels), picture.across)]
    heights = [max(panel.height for panel in row) + 0.3 for row in rows]
    across, width = max(map(len, rows)), max(panel.width for panel in picture.panels)
    paths = []
    with style(picture.name):
        figure = Figure(figsize=(width * across, sum(heights)), layout="constrained", facecolor="white")
        grid = figure.add_gridspec(len(rows), across, height_ratios=heights)
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)  # type: ignore[union-attr, call-arg]
        for at, panel in enumerate(picture.panels):
            axes = figure.add_subplot(grid[at // picture.across, at % picture.across])
            panel.paint(axes)
            axes.set_title(panel.title, loc="left", weight="bold", size=10, pad=14)  # above the name of a first row
        for kind, metadata in (("svg", {"Date": None}), ("pdf", {"CreationDate": None}), ("png", {})):
            paths.append(folder / f"{picture.name}.{kind}")
            with whole_file(paths[-1]) as part:
                figure.savefig(part, format=kind, dpi=150, metadata=metadata)
            figure.set_layout_engine("none")  # arranged once for all three
    return paths


def grid_ends(selected: Mapping[str, Sequence[float]], lams: Sequence[float]) -> list[str]:
    """Says where λ was selected at an end of its grid, beyond which nothing was tried; nothing where it never was.

    >>> grid_ends({"log": (10.0, 10.0), "log_plus": (1.0, 10.0)}, (0.1, 1.0, 10.0))
    ['λ is at an end of its grid, 0.1 or 10, where one beyond may be better: log 10 in 2 of 2, log_plus 10 in 1 of 2.']
    >>> grid_ends({"log": (1.0, 1.0)}, (0.1, 1.0, 10.0))
    []
    """
    ends = dict.fromkeys((min(lams), max(lams))) if lams else {}
    found = [(loss, end, tried.count(end), len(tried)) for loss, tried in selected.items() for end in ends]
    parts = [f"{loss} {end:g} in {times} of {of}" for loss, end, times, of in found if times]
    words = f"λ is at an end of its grid, {' or '.join(f'{end:g}' for end in ends)}, where one beyond may be better: "
    return [f"{words}{', '.join(parts)}."] if parts else []
