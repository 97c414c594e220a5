"""Long work in pieces: each is written when it is done, so that a run which was cut off goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import bidwise
from bidwise.checks import InputError
from bidwise.runs import environment, load, open_folder, save, write_json

Progress = Callable[[str, float], None]  # what is being done, and the share of it that is


#: Computes a piece, and calls the function it is given with the share that is finished.
Compute = Callable[[Callable[[float], None]], Any]
#: Called with the number of a piece, what it is of, its share of the work, and what computes it.
Piece = Callable[[int, str, float, Compute], Any]


class Pieces:
    """A run folder whose results so far are files in ``pieces/``.

    ``expected`` is the amount of work of all pieces together; each piece says how much it is.
    """

    def __init__(self, out: str | Path, config: Mapping[str, Any], device: str, progress: Progress | None) -> None:
        self.folder = open_folder(out, config)
        self.environment = environment(device)  # now: the sources may change while it runs
        (self.folder / "pieces").mkdir(exist_ok=True)
        self.progress = progress
        self.expected, self.done = 1.0, 0.0
        self.computed, self.seconds = False, 0.0  # whether a piece is new, and what all pieces took

    def get(self, name: str, of: str, amount: float, compute: Compute) -> Any:
        """The piece called ``name``: read if it is there and ``of`` what is asked for, else computed and written."""
        path = self.folder / "pieces" / f"{name}.pt"
        of = f"bidwise {bidwise.__version__}: {of}"
        kept = _kept(path)
        if kept is None or kept["of"] != of:
            started = time.perf_counter()
            found = compute(lambda share: self._show(amount * share))
            kept = {"of": of, "found": found, "seconds": time.perf_counter() - started}
            save(path, kept)
            self.computed = True
        self.seconds += kept["seconds"]
        self.done += amount
        self._show(0.0)
        return kept["found"]

    def called(self, name: str, amount: float) -> Piece:
        """:meth:`get` for the numbered pieces of one thing, which is ``amount`` of work."""
        return lambda number, of, share, compute: self.get(f"{name}-{number:02d}", of, share * amount, compute)

    def write(self, result: Any) -> None:
        """``result.json``, and ``environment.json`` where something is new: a look at old results leaves theirs."""
        write_json(self.folder / "result.json", result)
        path = self.folder / "environment.json"
        if self.computed or not path.exists():
            write_json(path, {**self.environment, "seconds": round(self.seconds, 1)})

    def _show(self, more: float) -> None:
        if self.progress is not None:
            self.progress("training", min(1.0, (self.done + more) / self.expected))


def _kept(path: Path) -> Any:
    """What a piece holds; ``None`` for one that is not there or damaged, which is then computed again."""
    try:
        kept = load(path)
    except (FileNotFoundError, InputError):
        return None
    return kept if isinstance(kept, dict) and kept.keys() == {"of", "found", "seconds"} else None
