"""The experiments of `python -m paper` on a machine that has only torch and numpy: plain options, no pages.

    python -m benchmarks.studies recipes runs/recipes worlds=drift,threeway precision=mixed
    python -m benchmarks.studies synthetic runs/plotted reading=plotted patience=40

Options are the fields of the experiment's configuration. The same command resumes an interrupted run. Copy the folder
to a machine with all dependencies and run `python -m paper page` there to make its page.
"""

from __future__ import annotations

import ast
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from paper import criteo, recipes, regimes, synthetic
from paper.criteo_results import CriteoConfig
from paper.recipes_results import RecipesConfig
from paper.synthetic_results import RegimesConfig, SyntheticConfig

CONFIGS = {"recipes": RecipesConfig, "synthetic": SyntheticConfig, "regimes": RegimesConfig, "criteo": CriteoConfig}


def configuration(kind: type, words: list[str]) -> Any:
    """``["repeats=3", "worlds=drift,threeway"]`` as a configuration; several values are a tuple."""
    known, given = {field.name: field.type for field in fields(kind)}, {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise SystemExit(f"{name!r} is no option of {kind.__name__}; it has {', '.join(known)}")
        given[name] = _value(value) if "tuple" not in known[name] else tuple(map(_value, value.split(",")))
    return kind(**given)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


def main() -> None:
    experiment, out, *words = sys.argv[1:]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = {
        name: word.removeprefix(f"{name}=") for word in words for name in ("workers", "data") if f"{name}=" in word
    }
    config = configuration(CONFIGS[experiment], [word for word in words if word.partition("=")[0] not in settings])
    shown = 0.0

    def show(work: str, done: float, detail: str = "") -> None:
        nonlocal shown
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            print(f"{time.strftime('%H:%M:%S')} {out}: {work} {done:.1%} {detail}", flush=True)

    if experiment == "criteo":
        workers = int(settings.get("workers", 1))
        criteo.run(config, settings.get("data"), Path(out), device=device, workers=workers, progress=show)
    else:
        {"recipes": recipes, "synthetic": synthetic, "regimes": regimes}[experiment].run(
            config, Path(out), device=device, progress=show
        )
    print(f"{time.strftime('%H:%M:%S')} {out}: done", flush=True)


if __name__ == "__main__":
    main()
