"""What bidwise is installed with is written down, and no command asks the network for anything it was not told to."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import polars as pl

ROOT = Path(__file__).parent.parent
LONG = "BIDWISE_LONG" in os.environ  # make test-long runs every command

spec = importlib.util.spec_from_file_location("dependencies", ROOT / "tools" / "dependencies.py")
dependencies = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dependencies)
BUILT_WITH = {*dependencies.BUILD, "tomlkit", "trove-classifiers"}  # in an environment of their own, as a rule
TOOLS = {"bidwise", "pip", "setuptools", "wheel"}  # an environment's own, and what this is about


def installed():
    return {dependencies.normal(each.metadata["Name"]): each for each in distributions()}


def test_every_file_that_ci_installs_has_a_hash_and_the_version_of_the_constraints():
    lines = dependencies.HASHES.read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[a-z0-9-]+==[^ ]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    hashed = dependencies.pinned(dependencies.HASHES)
    assert len(hashed) == len(lines)
    assert hashed.items() <= dependencies.pinned().items()
    project = dependencies.tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"], *dependencies.BUILD]
    names = {dependencies.normal(re.match(r"[A-Za-z0-9_.-]+", each)[0]) for each in wanted} - {"bidwise"}
    assert names <= set(hashed)
    assert "--require-hashes" in (ROOT / "Makefile").read_text()
    assert "HASHES=1" in (ROOT / ".ci" / "run").read_text()


def test_ci_installs_all_that_is_installed_for_development():
    """Transitive ones too; environments of more extras have more."""
    more = set(dependencies.pinned()) - set(dependencies.pinned(dependencies.HASHES))
    here = set(installed()) - TOOLS - more - BUILT_WITH
    assert here == set(dependencies.pinned(dependencies.HASHES)) - BUILT_WITH - TOOLS


def test_the_list_of_licences_is_current():
    rows = re.findall(r"(?m)^\| ([a-z0-9-]+) \| (\S+) \| (.+) \|$", dependencies.LICENCES.read_text())[1:]
    assert {name: version for name, version, _ in rows} == dependencies.pinned()
    there = {name: licence for name, _, licence in rows}
    assert [name for name, licence in there.items() if licence == "not stated"] == []
    found = {name: each for name, each in installed().items() if name in there}
    assert len(found) > 50
    same = {name for name, each in found.items() if each.version.partition("+")[0] == dependencies.pinned()[name]}
    assert {name: dependencies.licence_of(found[name]) for name in same} == {name: there[name] for name in same}
    unknown = set(installed()) - set(there) - TOOLS
    assert unknown == set()


# The network

BANNED = """
    import sys

    def refuse(event, arguments):
        if event.startswith("socket.") and event.split(".")[1] in ("connect", "sendto", "bind", "getaddrinfo"):
            if not isinstance(arguments[1] if event != "socket.getaddrinfo" else None, (str, bytes)):  # local pipes
                raise RuntimeError(f"the network was asked: {event} {arguments}")

    sys.addaudithook(refuse)
"""
DRIVER = """
    import json, socket, sys, traceback
    from bidwise.cli import first_steps_command, main

    first_steps_command.TRAIN, first_steps_command.AUCTIONS = 3_000, 300

    if __name__ == "__main__":
        try:
            socket.create_connection(("127.0.0.1", 9))
        except RuntimeError:
            print("banned")
        for words in json.loads(sys.argv[1]):
            sys.argv = ["bidwise", *words]
            main()
            print("done:", words[0], flush=True)
"""
COMMANDS = [
    "train ads.csv --click click --bid bid --auction auction --model logistic_regression --loss log_loss --out run",
    "predict run ads.csv --out scored.csv",
    "evaluate scored.csv --ctr ctr --click click --bid bid --auction auction --out judged",
    "report run judged --out page.html",
]
MORE = ["try --out tried", "export run --out ctr.onnx"]
MORE += ["prepare criteo raw.tsv store"]


def without_network():
    """What starts a program where there is no network at all, if this system lets us."""
    for words in (["unshare", "-n"], ["unshare", "-rn"]):
        if shutil.which("unshare") and not subprocess.run([*words, "true"], capture_output=True).returncode:
            return words
    return []


def test_no_command_asks_the_network(tmp_path):
    random = np.random.default_rng(0)
    table = {"site": random.integers(0, 5, 600).astype(str), "bid": random.uniform(0.5, 2, 600)}
    table |= {"click": (random.random(600) < 0.3).astype(int), "auction": np.arange(600) // 4}
    pl.DataFrame(table).write_csv(tmp_path / "ads.csv")
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(textwrap.dedent(BANNED))
    (tmp_path / "driver.py").write_text(textwrap.dedent(DRIVER))
    commands = [each.split() for each in COMMANDS + (MORE if LONG else [])]
    before = os.environ.get("PYTHONPATH")
    told = {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path / "python"), before]))}
    ran = subprocess.run(
        [*without_network(), sys.executable, "driver.py", json.dumps(commands)],
        cwd=tmp_path, env=os.environ | told, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-500:] + ran.stderr[-3000:]
    assert ran.stdout.splitlines()[0] == "banned"
    assert [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("done:")] == [
        words[0] for words in commands
    ]


def test_the_sources_open_no_connection_themselves():
    """polars reads tables by URL."""
    wanted = re.compile(r"urlopen|http\.client|requests\.(get|post)|socket\.(create_connection|socket)\(|urlretrieve")
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert [path.name for path in sources if wanted.search(path.read_text(encoding="utf-8"))] == []


def test_the_sources_run_nothing_that_a_file_says():
    unsafe = re.compile(r"pickle\.load\(|yaml\.load|weights_only=False|allow_pickle=True|(?<![.\w])(eval|exec)\(")
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert [path.name for path in sources if unsafe.search(path.read_text(encoding="utf-8"))] == []
