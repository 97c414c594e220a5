"""How much of bidwise a run of `bidwise train` with one loss goes through: its functions and files, counted.

python -m benchmarks.touched           how many
python -m benchmarks.touched --list    and which, by file
"""

from __future__ import annotations

import inspect
import runpy
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from unittest import mock

import bidwise

SOURCE = Path(bidwise.__file__).parent
EXAMPLE = Path(__file__).parent.parent / "examples" / "own_table.py"
AUCTIONS = 300
OPTIONS = "--click click --bid bid --auction auction --time time --ignore truth --loss log_loss --model deepfm"
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")  # parts of the function around them


def touched() -> dict[str, set[str]]:
    """Functions that ran while a model was trained on a small table, by file."""
    functions: dict[str, set[str]] = defaultdict(set)
    root = str(SOURCE)

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            name = code.co_qualname
            while name.endswith(COMPREHENSIONS):
                name = name.rpartition(".")[0].removesuffix(".<locals>")
            if code.co_flags & inspect.CO_OPTIMIZED and name:  # else the body of a module or of a class
                functions[code.co_filename.removeprefix(root).lstrip("/")].add(name)

    with tempfile.TemporaryDirectory() as folder:
        runpy.run_path(str(EXAMPLE))["main"](folder, AUCTIONS)
        command = f"bidwise train {folder}/ads.parquet {OPTIONS} --set train.epochs=1 --out {folder}/run"
        from bidwise.cli import main

        threading.setprofile(look)
        sys.setprofile(look)
        try:
            with mock.patch.object(sys, "argv", command.split()):
                main()
        except SystemExit as ended:
            if ended.code:
                raise
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    return functions


def main() -> None:
    functions = touched()
    if "--list" in sys.argv[1:]:
        for path, names in sorted(functions.items(), key=lambda item: (-len(item[1]), item[0])):
            print(f"{len(names):4} {path}: {', '.join(sorted(names))}")
    print(f"{sum(map(len, functions.values()))} functions in {len(functions)} files")


if __name__ == "__main__":
    main()
