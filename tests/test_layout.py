"""The layout of the source: what may import what, and that no module name is used twice."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import bidwise

SOURCE = Path(bidwise.__file__).parent

# A room, a module or package of bidwise, imports only rooms above it; those on one line may import each other.
ORDER = (
    ("errors",),
    ("checks",),
    ("json_files",),
    ("segments",),
    ("urls",),
    ("values",),
    ("distributed",),
    ("run_folder",),
    ("workers",),
    ("kernels", "losses"),  # a loss has its kernels, which compute what the loss defines
    ("diagnosis",),
    ("auctions",),
    ("models",),
    ("data",),
    ("evaluation_options",),
    ("evaluation",),
    ("training",),
    ("study",),
    ("table",),
    ("report",),
    ("bridges",),
    ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
PAGES = "report"  # which functions that write a page import when they are called, from anywhere


def modules():
    """Name, without ``bidwise.``, and path of every module; a package is its ``__init__``."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts).removesuffix("__init__").removesuffix("."), path


def imports(tree, *, late=False):
    """Modules that code imports, each with whether that is inside of a function; not those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name their module in full"
            yield from ((f"{node.module}.{alias.name}", late) for alias in node.names)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, late=late or inside)


@cache
def imported(path):
    return list(imports(ast.parse(path.read_text(encoding="utf-8"))))


def rooms_of(path):
    """Rooms that a module imports, each with whether that is inside of a function."""
    for name, late in imported(path):
        package, _, rest = name.partition(".")
        if package == "bidwise" and rest.split(".")[0] in LEVEL:
            yield rest.split(".")[0], late


def allowed(importer, room, *, late):
    own = importer.split(".")[0]
    return LEVEL[room] <= LEVEL[own] or (room == PAGES and late)


def test_every_module_is_in_a_room():
    assert {name.split(".")[0] for name, _ in modules()} == {*LEVEL, "", "__main__"}


def test_a_module_imports_only_rooms_above_its_own():
    rooms = ((name, *room) for name, path in modules() if name not in ("", "__main__") for room in rooms_of(path))
    assert {(name, room) for name, room, late in rooms if not allowed(name, room, late=late)} == set()


def test_no_module_name_is_used_twice():
    names = Counter(path.stem for _, path in modules() if path.stem not in ("__init__", "__main__"))
    assert {name for name, count in names.items() if count > 1} == set()


def test_the_package_does_not_import_the_paper():
    assert [name for _, path in modules() for name, _ in imported(path) if name.split(".")[0] == "paper"] == []


def test_the_rule_sees_what_it_should():
    code = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import bidwise.cli\n"
    code += "import bidwise.checks\ndef f():\n    from bidwise import report\n"
    assert list(imports(ast.parse(code)))[1:] == [("bidwise.checks", False), ("bidwise.report", True)]
    assert allowed("training.run", "data", late=False)
    assert not allowed("data.ads", "training", late=False)
    assert not allowed("study.compare", "report", late=False)
    assert allowed("study.compare", "report", late=True)


def test_no_test_file_imports_another():
    tests = Path(__file__).parent
    found = [(path.name, name) for path in tests.rglob("*.py") for name, _ in imported(path)]
    assert [(file, name) for file, name in found if name.startswith("test_")] == []
