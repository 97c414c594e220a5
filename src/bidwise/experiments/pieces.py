"""Long work in pieces: each is written when it is done, so that a run which was cut off goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bidwise.runs import load, open_folder, save

Progress = Callable[[str, float], None]  # what is being done, and the share of it that is


class Pieces:
    """A run folder whose results so far are files in ``pieces/``.

    ``expected`` is the amount of work of all pieces together; each piece says how much it is.
    """

    def __init__(self, out: str | Path, config: Mapping[str, Any], work: str, progress: Progress | None) -> None:
        self.folder = open_folder(out, config)
        (self.folder / "pieces").mkdir(exist_ok=True)
        self.work, self.progress = work, progress
        self.expected, self.done = 1.0, 0.0

    def get(self, name: str, amount: float, compute: Callable[[Callable[[float], None]], Any]) -> Any:
        """The piece called ``name``: read if it is there, else computed and written.

        ``compute`` is given a function to call with the share of the piece that is finished.
        """
        path = self.folder / "pieces" / f"{name}.pt"
        if path.exists():
            found = load(path)
        else:
            found = compute(lambda share: self._show(amount * share))
            save(path, found)
        self.done += amount
        self._show(0.0)
        return found

    def called(self, name: str, amount: float) -> Callable[[int, float, Callable[[Callable[[float], None]], Any]], Any]:
        """:meth:`get` for the numbered pieces of one thing, which is ``amount`` of work."""
        return lambda number, share, compute: self.get(f"{name}-{number:02d}", share * amount, compute)

    def _show(self, more: float) -> None:
        if self.progress is not None:
            self.progress(self.work, min(1.0, (self.done + more) / self.expected))
