"""What bidwise is installed with: hashes for CI, and the licence of every package.

    python tools/dependencies.py hashes      writes requirements-ci.txt, by what pip would install here
    python tools/dependencies.py licences    writes THIRD_PARTY.md, by what is installed here, with all extras

Both start from the versions in constraints.txt. Run them when it changes, on Linux x86-64 with Python 3.11 and torch's
wheel for CPUs, which is what CI has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parent.parent
HASHES, LICENCES = ROOT / "requirements-ci.txt", ROOT / "THIRD_PARTY.md"
BUILD = ("hatchling", "editables")  # what an editable installation is built with
LONGEST = 60  # letters of a licence that is no expression: others have the whole text there


def normal(name: str) -> str:
    """A package's name as pip compares it: ``Jinja2 -> jinja2``, ``tomli_w -> tomli-w``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path = ROOT / "constraints.txt") -> dict[str, str]:
    """Versions by package, of constraints or requirements."""
    lines = re.findall(r"(?m)^([A-Za-z0-9_.-]+)==([^\s\\]+)", path.read_text(encoding="utf-8"))
    return {normal(name): version for name, version in lines}


def extras() -> list[str]:
    """The optional dependencies of the project."""
    return sorted(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def hashes() -> str:
    """Every package of the development environment with the SHA-256 of the file that pip takes."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report), ".[dev]", *BUILD]
        told = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
        subprocess.run([sys.executable, "-m", "pip", *words], cwd=ROOT, env=told, check=True)
        found = json.loads(report.read_text())["install"]
    lines = {}
    for each in found:
        name, version = normal(each["metadata"]["name"]), each["metadata"]["version"].partition("+")[0]
        if name != "bidwise":
            digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
            lines[name] = f"{name}=={version} --hash=sha256:{digest}"
    head = "# Written by tools/dependencies.py: what CI installs (Linux x86-64, Python 3.11), by hash."
    return "\n".join([head, *(lines[name] for name in sorted(lines))]) + "\n"


def licence_of(package: Distribution) -> str:
    """The licence that a package states: an expression, its classifiers, or a line of text."""
    about = package.metadata
    named = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if line.startswith("License ::")]
    stated = (about.get("License") or "").strip()
    short = stated if stated and len(stated) <= LONGEST and "\n" not in stated else ""
    classified = ", ".join(x for x in named if x != "OSI Approved")
    return str(about.get("License-Expression") or classified or short or "not stated")


def licences() -> str:
    """A table of all packages of constraints.txt."""
    rows = []
    for name, version in pinned().items():
        try:
            package = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is not installed: pip install -e '.[{','.join(extras())}]'") from None
        rows.append((name, version, licence_of(package)))
    return "\n".join(
        [
            "# Packages of others",
            "",
            "What `pip install bidwise` and its extras bring along, at the versions of `constraints.txt`, each",
            "with the licence that it states. None is part of bidwise's own files. Written by `tools/dependencies.py`.",
            "",
            "| package | version | licence |",
            "|---|---|---|",
            *(f"| {name} | {version} | {licence} |" for name, version, licence in sorted(rows)),
            "",
        ]
    )


def main() -> None:
    made = {"hashes": (HASHES, hashes), "licences": (LICENCES, licences)}
    if len(sys.argv) != 2 or sys.argv[1] not in made:
        raise SystemExit(__doc__)
    path, make = made[sys.argv[1]]
    path.write_text(make(), encoding="utf-8")
    print(f"Written: {path.name}")


if __name__ == "__main__":
    main()
