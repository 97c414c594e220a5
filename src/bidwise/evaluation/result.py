"""What an evaluation found: printed as words, written as JSON and as a page."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bidwise
from bidwise.checks import InputError
from bidwise.evaluation.verdict import summary
from bidwise.run_folder import check_writable, whole_file
from bidwise.typed_json import to_json


@dataclass(frozen=True)
class Evaluation:
    """What was found, field by field as in ``result.json``; ``print`` shows the table and the verdict."""

    models: dict[str, dict[str, Any]]
    comparisons: list[dict[str, Any]]
    verdict: list[dict[str, str]]  # model, baseline, outcome, text
    headline: str  # who leads, where there are three models or more
    notes: list[str]
    auctions: int
    ads: int
    cuts: int  # how often the ads were cut into auctions; 1 for real ones
    ads_left_out: int
    baseline: str
    best: str | None  # highest welfare; none where all have the same
    welfare_of: str  # "clicks": realised; "truth": expected
    optimal_welfare: float | None  # of any prediction, where the true CTR is known
    options: dict[str, Any]
    version: str = bidwise.__version__

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __str__(self) -> str:
        return summary(self)

    def to_json(self) -> str:
        """Plain JSON; numbers that are not defined or not finite are ``null``."""
        return json.dumps(to_json(asdict(self)), indent=2, allow_nan=False)

    def write(self, out: str | Path) -> None:
        """``out/result.json`` and ``out/report.html``: both, or none of them."""
        from bidwise.report.evaluation_page import (
            evaluation_page,  # late: matplotlib takes a second, and not everyone writes
        )

        folder = check_folder(out)
        pages = {"result.json": self.to_json(), "report.html": evaluation_page(to_json(asdict(self)))}
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as files:  # renamed when both are written
            for name, text in pages.items():
                files.enter_context(whole_file(folder / name)).write_text(text, encoding="utf-8")


def check_folder(out: str | Path) -> Path:
    """``out`` as a path, if the two files can be written there; nothing is made yet."""
    folder = check_writable(out)
    for name in ("result.json", "report.html"):
        if (folder / name).is_dir():
            raise InputError(f"out must be a folder to write {name} into, found a folder of that name in {folder}")
    return folder
