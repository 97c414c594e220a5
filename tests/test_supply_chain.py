"""What bidwise is installed with is written down, and no command asks the network for anything it was not told to."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from importlib.metadata import distributions

import pytest
from run_helpers import ROOT, program, small_market

LONG = "BIDWISE_LONG" in os.environ  # make test-long runs every command

dependencies = program("tools/dependencies.py")


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


def test_the_list_of_licences_is_current():
    rows = re.findall(r"(?m)^\| ([a-z0-9-]+) \| (\S+) \| (.+) \|$", dependencies.LICENCES.read_text())[1:]
    assert {name: version for name, version, _ in rows} == dependencies.pinned()
    there = {name: licence for name, _, licence in rows}
    assert [name for name, licence in there.items() if licence == "not stated"] == []
    installed = {dependencies.normal(each.metadata["Name"]): each for each in distributions()}
    same = {
        name: each
        for name, each in installed.items()
        if name in there and each.version.partition("+")[0] == dependencies.pinned()[name]
    }
    assert len(same) > 50
    assert {name: dependencies.licence_of(each) for name, each in same.items()} == {name: there[name] for name in same}


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
    from bidwise.cli import main, commands

    commands.TRAIN, commands.AUCTIONS = 3_000, 300

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
]
MORE = ["try --out tried", "export run --out ctr.onnx"]


def without_network():
    """What starts a program where there is no network at all, if this system lets us."""
    for words in (["unshare", "-n"], ["unshare", "-rn"]):
        if shutil.which("unshare") and not subprocess.run([*words, "true"], capture_output=True).returncode:
            return words
    return []


def test_no_command_asks_the_network(tmp_path):
    small_market(150).write_csv(tmp_path / "ads.csv")
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


@pytest.mark.parametrize(
    "unwanted",
    [
        r"urlopen|http\.client|requests\.(get|post)|socket\.(create_connection|socket)\(|urlretrieve",
        r"pickle\.load\(|yaml\.load|weights_only=False|allow_pickle=True|(?<![.\w])(eval|exec)\(",
    ],
    ids=["the network", "code in files"],
)
def test_the_sources_do_without(unwanted):
    """polars reads URLs."""
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert [path.name for path in sources if re.search(unwanted, path.read_text(encoding="utf-8"))] == []
