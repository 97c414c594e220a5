"""Count look-ups by string key, ``x["key"]`` and ``x.get("key")``, in the rooms that handle results.

Results are dataclasses; a key in quotes belongs to the border where JSON is read. Run from the root of the project:

    python -m benchmarks.lookups [--list]
"""

import ast
import sys
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src" / "bidwise"
ROOMS = ("report", "study", "table", "paper")
BORDER = ("to_json", "from_json")  # functions that are the border
ELSEWHERE = ("raw_text", "sorted_blocks", "prepare_criteo")  # read records of arrays, before there are results


def lookups(path: Path) -> list[int]:
    """Lines of a file with a look-up by string key, outside of functions that read and write JSON."""
    found: list[int] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef) and node.name in BORDER:
            return
        subscript = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _text(node.slice)
        get = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and bool(node.args)
            and _text(node.args[0])
        )
        if (subscript or get) and not _constant(node):
            found.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def _constant(node: ast.AST) -> bool:
    """Whether it is a table of the program, as ``MODELS["dcn"]``, or of matplotlib, as ``axes.spines["left"]``."""
    table = node.value if isinstance(node, ast.Subscript) else node.func.value
    return (isinstance(table, ast.Name) and table.id.isupper()) or getattr(table, "attr", "") == "spines"


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def main() -> None:
    total = 0
    paths = (path for room in ROOMS for path in (SOURCES / room).rglob("*.py"))
    for path in sorted(path for path in paths if path.stem not in ELSEWHERE):
        lines = lookups(path)
        total += len(lines)
        if lines:
            where = f": {', '.join(map(str, lines))}" if "--list" in sys.argv else ""
            print(f"{len(lines):4d} {path.relative_to(SOURCES)}{where}")
    print(f"{total:4d} in all")


if __name__ == "__main__":
    main()
