"""Training on categories: what losses add to a step, vocabularies, batches from a file, and making the data.

python -m benchmarks.categories          all cases, then docs/results/benchmarks.md
python -m benchmarks.categories steps    one of them: steps, vocabulary, loader, pipeline
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import write
from bidwise import WelfareLoss
from bidwise.data import Ads
from bidwise.losses.named import named_loss, unchecked
from bidwise.models import DeepFM
from bidwise.training.arguments import Options
from bidwise.training.batches import AdBatch, Shuffle
from bidwise.training.run import Run
from paper.dcn import DCN

FIELDS, INTEGERS = 39, 13
COLUMNS = ("features", "clicks", "bids")
STEPS: dict[str, nn.Module] = {
    name: named_loss(name, sigma=3.0, lam=3.0, unit=1.0)
    for name in ("log_loss", "log_weighted", "log_teacher", "log_plus", "log_plus_teacher")
}
MODELS: dict[str, tuple[Callable[[Sequence[int]], nn.Module], int, float]] = {  # with its batch and target
    "DeepFM": (DeepFM, 256, 0.03),
    "DCN": (DCN, 512, 0.01),
}
VOCABULARIES, SLOWER = (10_000, 100_000, 1_000_000), 1.5  # at most, from the smallest to the largest
ROWS_PER_SECOND = 1e6
Row = dict[str, object]


def cardinalities(total: int) -> list[int]:
    """Values of 39 fields, ``total`` together: 13 of integers with 40 each, 26 from a handful to a fifth of all."""
    shares = torch.logspace(0, 4, FIELDS - INTEGERS, dtype=torch.float64)
    rest = total - 40 * INTEGERS
    values = [40] * INTEGERS + (3 + (rest - 3 * len(shares)) * shares / shares.sum()).long().tolist()
    values[-1] += total - sum(values)
    return values


def drawn(values: Sequence[int], count: int, seed: int = 0) -> Ads:
    """Ads whose value k of a field is about 1 / k as frequent as the first."""
    random = torch.Generator().manual_seed(seed)
    uniform = torch.rand(count, len(values), generator=random, dtype=torch.float64)
    most = torch.tensor(values, dtype=torch.float64)
    ids = torch.minimum((most + 1) ** uniform - 1, most - 1).to(torch.int32)
    ctr = torch.rand(count, generator=random) / 2
    clicks = (torch.rand(count, generator=random) < ctr).float()
    return Ads(ids, clicks, torch.rand(count, generator=random) + 0.5, teacher=ctr)


class Steps:
    """The step that `fit` makes, on batches that lie ready."""

    def __init__(self, model: nn.Module, ads: Ads, batch: int, updates: str = "lazy") -> None:
        options = Options(1, batch, 1e-3, "constant", None, 1, updates)
        self.run = Run(model, ads, None, STEPS["log_loss"], {}, options, 0)
        self.batches: list[AdBatch] = list(Shuffle(ads, batch, [torch.Generator().manual_seed(0)]))
        with torch.no_grad():
            self._agree(model)

    def _agree(self, model: nn.Module) -> None:
        """Refuse to time losses that are not what they say: all n x n pairs give the same."""
        model.eval()
        first = self.batches[0]
        for name, loss in STEPS.items():
            if not isinstance(loss, WelfareLoss):
                continue
            direct = loss.with_options(method="direct")
            columns = (model(first.features), first.clicks, first.bids, None, first.teacher)
            found, expected = loss(*columns).item(), direct(*columns).item()
            if abs(found - expected) > 1e-4 * abs(expected):
                raise SystemExit(f"{name}: {found} against {expected}: not timed")
        model.train()

    def ms(self, loss: nn.Module) -> float:
        """Milliseconds of a step with ``loss``, mean over the batches."""
        self.run.loss = unchecked(loss)
        start = time.perf_counter()
        for batch in self.batches:
            self.run.step(batch)
        return 1e3 * (time.perf_counter() - start) / len(self.batches)


def in_turns(timed: dict[str, Callable[[], float]], segments: int) -> dict[str, list[float]]:
    """Every one of ``timed`` once in each segment, in an order that goes round; a first segment warms up."""
    names = list(timed)
    times: dict[str, list[float]] = {name: [] for name in names}
    for segment in range(segments + 1):
        turn = segment % len(names)
        for name in names[turn:] + names[:turn]:
            ms = timed[name]()
            if segment:
                times[name].append(ms)
    return times


def spread(numbers: Sequence[float]) -> float:
    return statistics.stdev(numbers) if len(numbers) > 1 else 0.0


def steps(vocabulary: int = 1_000_000, segments: int = 30, at_once: int = 10) -> list[Row]:
    """What each loss adds to a step of the paper's networks; ratios within a segment, medians over segments."""
    rows: list[Row] = []
    values = cardinalities(vocabulary)
    for model, (make, batch, target) in MODELS.items():
        step = Steps(make(values), drawn(values, batch * at_once), batch)
        times = in_turns({name: lambda loss=loss, s=step: s.ms(loss) for name, loss in STEPS.items()}, segments)
        for name, found in times.items():
            ratios = [a / b - 1 for a, b in zip(found, times["log_loss"], strict=True)]
            row: Row = {"case": "steps", "model": model, "batch": batch, "vocabulary": vocabulary, "loss": name}
            row |= {"dtype": "float32", "ms": statistics.median(found), "ms_sd": spread(found)}
            row |= {"overhead": statistics.median(ratios), "overhead_sd": spread(ratios), "target": target}
            rows.append(row | {"segments": segments, "steps": at_once})
            print(
                f"{model:8} {name:18} {row['ms']:8.2f} ms a step, sd {row['ms_sd']:.2f}, "
                f"{100 * statistics.median(ratios):+.2f} %",
                flush=True,
            )
    return rows


def vocabulary(totals: Sequence[int] = VOCABULARIES, segments: int = 15, at_once: int = 10) -> list[Row]:
    """A step of DeepFM by the number of values, with lazy and with dense updates."""
    batch = MODELS["DeepFM"][1]
    timed: dict[str, Callable[[], float]] = {}
    for total in totals:
        values = cardinalities(total)
        ads = drawn(values, batch * at_once)
        for updates in ("lazy", "dense"):
            step = Steps(DeepFM(values), ads, batch, updates)
            timed[f"{updates} {total}"] = lambda s=step: s.ms(STEPS["log_loss"])  # type: ignore[misc]
    times = in_turns(timed, segments)
    rows: list[Row] = []
    for name, found in times.items():
        updates, total = name.split()
        least = times[f"{updates} {totals[0]}"]
        slower = statistics.median(a / b for a, b in zip(found, least, strict=True))
        print(f"{updates:6} {int(total):10,} values {statistics.median(found):8.2f} ms, {slower:.2f} times", flush=True)
        row: Row = {"case": "vocabulary", "updates": updates, "vocabulary": int(total), "batch": batch}
        row |= {"dtype": "float32", "ms": statistics.median(found), "ms_sd": spread(found), "slower": slower}
        rows.append(row | {"target": SLOWER if updates == "lazy" else "", "segments": segments, "steps": at_once})
    return rows


def loader(count: int = 1_000_000, batch: int = 256, epochs: int = 5) -> list[Row]:
    """Shuffled batches of ids in a file, and of the same in memory."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        ids = np.lib.format.open_memmap(path, "w+", np.int32, (count, FIELDS))
        ids[:] = np.arange(count, dtype=np.int32)[:, None] + np.arange(FIELDS, dtype=np.int32)
        ids.flush()
        number = torch.arange(count)
        features = {"file": torch.from_numpy(np.load(path, mmap_mode="c")), "memory": torch.from_numpy(np.array(ids))}
        shuffles = {}
        for where, found in features.items():
            ads = Ads(found, (number % 4 == 0).to(torch.uint8), torch.rand(count) + 0.5)
            shuffles[where] = Shuffle(ads, batch, [torch.Generator().manual_seed(0)])
            seen = torch.cat([_checked(each) for each in shuffles[where]])
            if not torch.equal(seen.sort().values, number.to(torch.int32)):
                raise SystemExit(f"{where}: an epoch does not have every ad once: not timed")
        times = in_turns({where: lambda s=shuffle: _epoch(s) for where, shuffle in shuffles.items()}, epochs)
        for where, ms in times.items():
            rate = count / statistics.median(ms) * 1e3
            print(f"loader {where:8} {rate / 1e6:6.2f} million rows a second", flush=True)
            row: Row = {"case": "loader", "features": where, "rows": count, "fields": FIELDS, "batch": batch}
            row |= {"ms": statistics.median(ms), "ms_low": min(ms), "ms_high": max(ms), "runs": epochs}
            rows.append(row | {"rows_per_second": rate, "target": ROWS_PER_SECOND})
    return rows


def _checked(batch: AdBatch) -> Tensor:
    """Numbers of the ads, if all columns are theirs."""
    number = batch.features[:, 0]
    fields = torch.equal(batch.features, number[:, None] + torch.arange(FIELDS, dtype=torch.int32))
    if not fields or not torch.equal(batch.clicks, (number % 4 == 0).float()):
        raise SystemExit("a batch has columns of different ads: not timed")
    return number


def _epoch(shuffle: Shuffle) -> float:
    start = time.perf_counter()
    for _ in shuffle:
        pass
    return 1e3 * (time.perf_counter() - start)


def pipeline(counts: Sequence[int] = (1_000_000, 5_000_000), runs: int = 3) -> list[Row]:
    """`python -m paper simulate` and `python -m paper prepare`, with the peak memory of the process."""
    rows: list[Row] = []
    for count in counts:
        taken: dict[str, list[tuple[float, float]]] = {"simulate": [], "prepare": []}
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                raw, store = Path(folder) / "ads.tsv", Path(folder) / "store"
                taken["simulate"].append(_command("simulate", str(raw), "--rows", str(count)))
                taken["prepare"].append(_command("prepare", str(raw), str(store)))
                kept = sum(len(np.load(path, mmap_mode="r")) for path in store.glob("*/clicks.npy"))
                if kept != count:
                    raise SystemExit(f"the store has {kept:,} ads of {count:,}: not timed")
        for command, found in taken.items():
            ms = [1e3 * seconds for seconds, _ in found]
            rate, peak = 1e3 * count / statistics.median(ms), max(mb for _, mb in found)
            print(f"{command:10} {count:10,} rows {rate:12,.0f} rows a second, {peak:,.0f} MB", flush=True)
            row: Row = {"case": "pipeline", "command": command, "rows": count, "ms": statistics.median(ms)}
            row |= {"ms_low": min(ms), "ms_high": max(ms), "runs": runs}
            rows.append(row | {"rows_per_second": rate, "peak_mb": peak})
    return rows


LAUNCH = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


def _command(*words: str) -> tuple[float, float]:
    """Seconds and peak megabytes of a command; started by a small process, whose memory does not hide the command's."""
    asked = [sys.executable, "-c", LAUNCH, sys.executable, "-m", "paper", *words]
    found = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"python -m paper {' '.join(words)} failed")
    seconds, megabytes = map(float, found.stdout.split())
    return seconds, megabytes


CASES = {"steps": steps, "vocabulary": vocabulary, "loader": loader, "pipeline": pipeline}


def main(wanted: list[str]) -> None:
    if unknown := [name for name in wanted if name not in CASES]:
        raise SystemExit(f"unknown case {unknown[0]}; one of: {', '.join(CASES)}")
    for name in wanted or CASES:
        print(write(f"categories_{name}", CASES[name]()))
    from benchmarks.table import write_page  # what it imports is not there on machines with torch and numpy alone

    print(write_page())


if __name__ == "__main__":
    main(sys.argv[1:])
