"""Commands that are killed at any moment: the same command, started again, ends as if nothing had happened.

Every command runs once undisturbed. Then it is started, killed with SIGKILL at a random moment of that run's duration,
started and killed again up to three times in a row, and at last left alone: its files must equal those of the
undisturbed run, byte for byte, and nothing else may lie about. With ``--points`` it is also killed just before each of
its renames and removals, which is where random moments seldom fall. After every kill each file that has its
final name must be whole.

Not compared, as it depends on when and where a run was made: ``seconds`` in environment.json and in pieces of
experiments, and the durations in report.html that repeat them. Checkpoints have the same values in other bytes: pickle
writes a word twice where it was read from two files.

Commands run in forks of this process, which has imported everything and started no thread.

    python -m benchmarks.kills --kills 50 --points
"""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", POLARS_MAX_THREADS="1", MPLBACKEND="agg")

import numpy as np
import polars as pl
import torch

from benchmarks.harness import Machine
from bidwise.cli import main as bidwise_main
from bidwise.run_folder import LOCK
from paper.__main__ import main as paper_main
from paper.criteo_text import simulate

LATE = (  # what commands import when they need it
    *("evaluation.evaluate", "report.build", "report.drawing", "report.evaluation_page"),
    *("report.train_page", "table.pipeline", "table.predict"),
)
SMALLER = {  # several blocks of what is one block here
    "bidwise.data.table_files": {"ROWS": 200, "BYTES": 2**14},
    "bidwise.table.predict": {"BLOCK": 512},
}
POINTS = ("replace", "rename", "unlink", "rmdir")
IN_A_ROW = 3
PATIENCE = 120  # seconds for a command that takes one


@dataclass(frozen=True)
class Job:
    """A command of bidwise, or of ``python -m paper``, in a folder of its own; all share the inputs next to it."""

    words: str
    main: Callable[[], None] = bidwise_main

    @property
    def arguments(self) -> list[str]:
        return self.words.split()


ROLES = "--click click --bid bid --auction auction"
ONE = "--loss log_plus --model deepfm --set train.epochs=3 train.every=1 model.hidden=8 model.embedding=4"
SHORT = "--set train.epochs=2 model.hidden=8"
EXPERIMENT = Path(__file__).parent.parent / "docs" / "results" / "misspecified"
JOBS = {  # named as in results/kills.log
    "prepare": Job("prepare ../in/raw.tsv out --min-count 2", paper_main),
    "train": Job(f"train ../in/ads.csv {ROLES} --budget-seconds 5 {SHORT} --out out"),
    "refresh": Job("train ../in/tomorrow.parquet --continue ../in/run --out out"),
    "reproduce": Job(
        "synthetic --repeats 1 --epochs 2 --losses log_plus --validation-auctions 20 --protocol converged --out out",
        paper_main,
    ),
    "evaluate": Job(f"evaluate ../in/run/test.parquet --ctr log_plus {ROLES} --out out"),
    "predict": Job("predict ../in/run ../in/new.csv --out out/ctr.parquet"),
    "report": Job("page ../in/experiment --out out/page.html", paper_main),
}


# What commands are given


def market(auctions: int, seed: int, brands: int = 9) -> pl.DataFrame:
    """Logged ads whose clicks depend on site and brand."""
    draws = np.random.default_rng(seed)
    sizes = draws.integers(2, 8, auctions)
    site, brand = np.repeat(draws.integers(0, 5, auctions), sizes), draws.integers(0, brands, sizes.sum())
    ctr = 1 / (1 + np.exp(2 - 0.3 * site - 0.3 * (brand % 9)))
    return pl.DataFrame(
        {
            "auction": np.repeat(np.arange(auctions), sizes),
            "site": [f"s{k}" for k in site],
            "brand": [f"b{k}" for k in brand],
            "age": draws.exponential(1.0, len(ctr)),
            "bid": np.exp(0.5 * draws.normal(size=len(ctr))),
            "click": (draws.random(len(ctr)) < ctr).astype(int),
        }
    )


def make_inputs(folder: Path) -> None:
    """Tables, raw text, a finished run and a finished experiment."""
    folder.mkdir()
    market(200, 0).write_csv(folder / "ads.csv")
    market(200, 1, brands=12).write_parquet(folder / "tomorrow.parquet")
    market(600, 2).write_csv(folder / "new.csv")
    simulate(folder / "raw.tsv", 2500)
    shutil.copytree(EXPERIMENT, folder / "experiment", ignore=shutil.ignore_patterns("figures"))
    os.chdir(folder)
    sys.argv = ["bidwise", *f"train ads.csv {ROLES} {ONE} --out run".split()]
    bidwise_main()


# Processes


def forked(work: Callable[[], None], log: Path) -> int:
    """The number of a process, head of a session of its own, that does some work."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    code = 70
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1), os.dup2(out, 2)
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(child: int, seconds: float | None = None) -> int | None:
    """The exit code of a child, minus the signal that killed it; ``None`` where it still runs after so long."""
    until = time.monotonic() + (PATIENCE if seconds is None else seconds)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            last = time.monotonic() + 30
            while of_session(child) and time.monotonic() < last:  # what it started ends with it, in a moment
                time.sleep(0.01)
            return os.waitstatus_to_exitcode(status)
        if (left := until - time.monotonic()) <= 0:
            return None
        time.sleep(min(0.002, left))


def is_held(lock: Path) -> bool:
    """Whether a process holds a lock."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def of_session(head: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            state, _, _, session = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == head and state != "Z":
                found.append(int(name))
    return found


def dying_at(main: Callable[[], None], point: int, count: Path) -> None:
    """Kill this process before its ``point``-th change of a name; write how many there were where there are fewer."""
    seen = 0

    def counting(act: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            seen += "dir_fd" in options or os.path.lexists(arguments[0])
            if seen == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*arguments, **options)

        return counted

    for name in POINTS:
        setattr(os, name, counting(getattr(os, name)))
    try:
        main()
    finally:
        count.write_text(str(seen))


@contextmanager
def disk(place: Path, size: int) -> Iterator[None]:
    """A disk of so many bytes in place of an empty folder."""
    shutil.rmtree(place)
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
    try:
        (place / "tmp").mkdir()
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


def no_disk() -> str:
    """Why no disk can be mounted here; nothing where one can."""
    with tempfile.TemporaryDirectory() as place:
        tried = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True, check=False)
        if not tried.returncode:
            subprocess.run(["umount", place], check=True)
    return tried.stderr.strip()


# What a folder holds


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder, and empty folders as ``NAME/``."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() or path.is_symlink():
            found[name] = path.read_bytes()
        elif not any(path.iterdir()):
            found[name + "/"] = b""
    return found


def timeless(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: timeless(each) for key, each in tree.items() if key != "seconds"}
    if isinstance(tree, torch.Tensor):
        return tree.dtype, tree.shape, tree.numpy().tobytes()
    return [timeless(each) for each in tree] if isinstance(tree, list | tuple) else tree


def comparable(name: str, content: bytes) -> Any:
    """A file without what depends on when it was made."""
    path = Path(name)
    if path.name == "environment.json":
        return timeless(json.loads(content))
    if path.suffix == ".html":
        return re.sub(rb"[\d.]+ (s|seconds?|min|minutes?)\b", b"", content)
    if path.name == "checkpoint.pt" or path.parent.name == "pieces":
        return timeless(torch.load(io.BytesIO(content), weights_only=True))
    return content


def differences(found: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    """Files that are missing, left over or other than expected."""
    words = [f"{name} missing" for name in expected.keys() - found.keys()]
    words += [f"{name} left over" for name in found.keys() - expected.keys()]
    for name in found.keys() & expected.keys():
        if found[name] != expected[name] and comparable(name, found[name]) != comparable(name, expected[name]):
            words.append(f"{name} differs")
    return sorted(words)


def torn(found: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    """Files with a final name that are not whole."""
    final = {name: content for name, content in found.items() if name in expected and not name.endswith("/")}
    return sorted(name for name, content in final.items() if content != expected[name] and not _whole(name, content))


def _whole(name: str, content: bytes) -> bool:
    ends = {".html": b"</html>", ".svg": b"</svg>", ".pdf": b"%%EOF", ".parquet": b"PAR1", ".png": b"IEND\xaeB`\x82"}
    suffix = Path(name).suffix
    try:
        match suffix:
            case ".json":
                json.loads(content)
            case ".jsonl":
                [json.loads(line) for line in content.splitlines()]
                return content.endswith(b"\n")
            case ".toml":
                tomllib.loads(content.decode())
            case ".pt":
                torch.load(io.BytesIO(content), weights_only=True)
            case ".npy":
                np.load(io.BytesIO(content))
            case _:
                return suffix in ends and content.rstrip().endswith(ends[suffix])
    except Exception:
        return False
    return True


# The campaign


@dataclass
class Outcome:
    """What became of a command that was killed."""

    name: str
    seconds: float  # of the undisturbed run
    trouble: str = "kills at work"
    kills: int = 0  # or other trouble, that found it at work
    missed: int = 0  # that came after its end
    restarts: int = 0
    points: int = 0
    equal: int = 0
    unequal: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        runs = f"{self.equal} of {self.equal + self.unequal} ends equal"
        return (
            f"{self.name:<10}{self.seconds:5.1f} s undisturbed; {self.kills} {self.trouble}, {self.missed} too late, "
            f"{self.restarts} restarts; {self.points} points; {runs}; {len(self.faults)} faults"
        )


class Campaign:
    """Commands with their inputs in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if code := ended(forked(lambda: make_inputs(folder / "in"), folder / "log")):
            raise RuntimeError(f"inputs could not be made, exit code {code}:\n{(folder / 'log').read_text()}")
        self.inputs, self.no_disk = tree(folder / "in"), no_disk()

    def place(self) -> Path:
        """The folder to run a command in, empty: always the same, as some results name it."""
        place = self.folder / "run"
        shutil.rmtree(place, ignore_errors=True)
        place.with_suffix(".log").unlink(missing_ok=True)
        (place / "tmp").mkdir(parents=True)
        return place

    def start(self, job: Job, place: Path, point: int | None = None, most: int | None = None) -> int:
        """Start a command; ``most``: bytes that a file may have."""

        def work() -> None:
            os.chdir(place)
            if most is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            tempfile.tempdir = os.environ["TMPDIR"] = str(place / "tmp")
            sys.argv = ["bidwise", *job.arguments]
            for module, values in SMALLER.items():
                vars(import_module(module)).update(values)
            job.main() if point is None else dying_at(job.main, point, self.folder / "points")

        place.with_suffix(".log").write_bytes(b"")  # a command that was killed may have ended inside of a line
        return forked(work, place.with_suffix(".log"))

    def finished(self, job: Job, place: Path, outcome: Outcome, expected: dict[str, bytes], story: str) -> None:
        """Let the command end, and compare."""
        outcome.restarts += 1
        child = self.start(job, place)
        code = ended(child)
        wrong = [] if code == 0 else [f"exit code {code}: {_last(place)}"]
        wrong += differences(tree(place), expected)
        wrong += ["inputs were changed"] if tree(self.folder / "in") != self.inputs else []
        outcome.equal += not wrong
        outcome.unequal += bool(wrong)
        outcome.faults += [f"{story}: {each}" for each in wrong]
        if wrong:
            shutil.copytree(place, self.folder / f"faulty{outcome.unequal}-{outcome.name}")

    def killed(self, child: int, alone: bool, place: Path, outcome: Outcome, expected: dict[str, bytes]) -> bool:
        """Kill a command, with or without its children, which must then end by themselves."""
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL) if alone else os.killpg(child, signal.SIGKILL)
        hit = ended(child) == -signal.SIGKILL
        outcome.faults += [f"process {left} outlives a kill" for left in of_session(child)]
        outcome.faults += [f"{name} is not whole after a kill" for name in torn(tree(place), expected)]
        return hit

    def undisturbed(self, name: str) -> tuple[Job, Outcome, Path, dict[str, bytes]]:
        """A command, how long it takes, where, and what it leaves."""
        job, place, began = JOBS[name], self.place(), time.monotonic()
        if code := ended(self.start(job, place)):
            raise RuntimeError(f"{name} ends with exit code {code} by itself: {_last(place)}")
        return job, Outcome(name, time.monotonic() - began), place, tree(place)

    def run(self, name: str, kills: int, points: int | None, seed: int) -> Outcome:
        """A command's part: ``points`` of its changes of names, or all of them."""
        draws = random.Random(f"{seed} {name}")
        job, outcome, place, expected = self.undisturbed(name)
        while outcome.kills < kills and outcome.missed < 4 * kills:
            place, moments = self.place(), []
            for _ in range(min(draws.randint(1, IN_A_ROW), kills - outcome.kills)):
                moment = draws.uniform(0, outcome.seconds)
                child = self.start(job, place)
                outcome.restarts += bool(moments)
                moments.append(moment)
                if (code := ended(child, moment)) is not None:
                    outcome.missed += 1
                    outcome.faults += [f"exit code {code}: {_last(place)}"] if code else []
                elif self.killed(child, draws.random() < 0.3, place, outcome, expected):
                    outcome.kills += 1
                else:
                    outcome.missed += 1
            self.finished(job, place, outcome, expected, f"killed at {', '.join(f'{each:.2f} s' for each in moments)}")
        for point in self.points(job, points, draws):
            place = self.place()
            if self.killed_at(job, place, point):
                outcome.points += 1
                outcome.faults += [f"{each} is not whole before point {point}" for each in torn(tree(place), expected)]
            self.finished(job, place, outcome, expected, f"killed before point {point}")
        return outcome

    def troubled(self, name: str, shares: Sequence[float]) -> Outcome:
        """A command whose disk is full, may not be written to, has a quota, or loses its folder, at each share of the
        way; and one that meets another in its folder. It ends with one line, and finishes when the trouble is over."""
        job, outcome, place, expected = self.undisturbed(name)
        outcome.trouble = "failures"
        total, largest = sum(map(len, expected.values())), max(map(len, expected.values()))

        def fails(child: int, *, must: bool = True, words: str = "") -> None:
            code, said = ended(child), place.with_suffix(".log").read_text()
            lines = [line for line in said.splitlines() if line.startswith(("bidwise: ", "python -m paper: "))]
            if code == 0 and not must:
                outcome.missed += 1
                return
            outcome.kills += 1
            if code != 2 or len(lines) != 1 or "Traceback" in said or words not in said:
                outcome.faults.append(f"{story}: exit code {code}, said {said.strip()[-600:]!r}")
            outcome.faults += [f"{story}: {each} is not whole" for each in torn(tree(place), expected)]
            print(f"    {story}: {' '.join(lines[-1:])}", flush=True)

        for share in shares:
            if not self.no_disk:
                story = f"full at {share:.0%}"
                with disk(self.place(), max(1, int(share * total) // 4096) * 4096):
                    fails(self.start(job, place))
                    remount(place, "size=1g")
                    self.finished(job, place, outcome, expected, story)
                story = f"read-only at {share:.0%}"
                with disk(self.place(), 2**30):
                    child = self.start(job, place)
                    if ended(child, share * outcome.seconds) is None:
                        self.killed(child, False, place, outcome, expected)
                        remount(place, "ro")
                        before = tree(place)
                        fails(self.start(job, place))
                        outcome.faults += [f"{story}: changed"] if tree(place) != before else []
                        remount(place, "rw")
                    self.finished(job, place, outcome, expected, story)
            story = f"quota at {share:.0%}"
            fails(self.start(job, self.place(), most=int(share * largest)))
            self.finished(job, place, outcome, expected, story)
            story = f"vanished at {share:.0%}"
            child = self.start(job, self.place())
            if ended(child, share * outcome.seconds) is None:
                with suppress(FileNotFoundError):
                    (place / "out").rename(place / "gone")
                    shutil.rmtree(place / "gone")
                fails(child, must=False)
            self.finished(job, place, outcome, expected, story)
        story, child = "two at once", self.start(job, self.place())
        while ended(child, 0.001) is None:
            os.kill(child, signal.SIGSTOP)  # or it may have ended before the second begins
            time.sleep(0.001)
            held = any(is_held(lock) for lock in place.glob(f"out/*{LOCK}"))
            if held:
                fails(self.start(job, place), words="in use by another run")
            os.kill(child, signal.SIGCONT)
            if held:
                outcome.faults += [f"{story}: the first ended as well"] if ended(child) else []
                break
        self.finished(job, place, outcome, expected, story)
        return outcome

    def points(self, job: Job, wanted: int | None, draws: random.Random) -> Iterator[int]:
        """Numbers of the changes of names to die at."""
        if wanted == 0:
            return iter(())
        self.killed_at(job, self.place(), 10**9)
        every = range(1, int((self.folder / "points").read_text()) + 1)
        return iter(every if wanted is None else sorted(draws.sample(every, min(wanted, len(every)))))

    def killed_at(self, job: Job, place: Path, point: int) -> bool:
        return ended(self.start(job, place, point)) == -signal.SIGKILL


def _last(place: Path) -> str:
    lines = place.with_suffix(".log").read_text().strip().splitlines()
    return lines[-1] if lines else "without a word"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50, help="of each command, at work")
    parser.add_argument("--points", type=int, nargs="?", default=0, const=-1, help="so many, all without a number")
    parser.add_argument("--command", choices=JOBS, nargs="+", default=list(JOBS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trouble", type=float, nargs="+", help="disks that fail at these shares, in place of kills")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    asked = parser.parse_args()
    for name in LATE:
        import_module(f"bidwise.{name}")
    began, faults = time.monotonic(), 0
    print(f"{' '.join(['python -m benchmarks.kills', *sys.argv[1:]])}\n{Machine()}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="kills"))
    try:
        campaign = Campaign(folder)
        if asked.trouble and campaign.no_disk:
            print(f"Full and read-only disks are left out: {campaign.no_disk}", flush=True)
        for name in asked.command:
            if asked.trouble:
                outcome = campaign.troubled(name, asked.trouble)
            else:
                outcome = campaign.run(name, asked.kills, None if asked.points < 0 else asked.points, asked.seed)
            faults += len(outcome.faults)
            print(outcome, flush=True)
            for line in outcome.faults[:20]:
                print(f"    {line}", flush=True)
    finally:
        print(folder) if asked.keep else shutil.rmtree(folder, ignore_errors=True)
    print(f"{faults} faults, {time.monotonic() - began:.0f} s", flush=True)
    raise SystemExit(faults > 0)


if __name__ == "__main__":
    main()
