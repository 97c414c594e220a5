"""``bidwise try`` and ``bidwise doctor``: a first look, and whether everything works on this machine."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bidwise.cli.terminal import Bars, say

TRAIN, AUCTIONS, SIZE, EPOCHS = 20_000, 2_000, 50, 8
CORE = ("torch", "numpy", "polars", "matplotlib", "cyclopts")
OPTIONAL = {  # package -> what it is for, and what to install
    "scikit-learn": ("bidwise.CTRClassifier, bidwise.welfare_scorer", "scikit-learn"),
    "lightgbm": ("gradient boosting, bidwise.welfare_objective", "lightgbm"),
    "lightning": ("bidwise.WelfareCallback", "lightning"),
    "onnxruntime": ("bidwise export, bidwise score", "onnx onnxscript onnxruntime"),
    "triton": ("fused kernels on a GPU", "triton"),
}


def try_it(*, out: Path = Path("bidwise-try")) -> None:
    """Two models on simulated ads, judged in the auction: a first look, in about ten seconds.

    Everything is left in OUT: the table, which you may open and change, and report.html, the page to look at.

    Parameters
    ----------
    out:
        Folder for ads.csv, result.json and report.html.
    """
    import polars as pl
    import torch

    import bidwise
    from bidwise.evaluation.result import check_folder

    check_folder(out)
    started = time.perf_counter()
    random = torch.Generator().manual_seed(0)
    market = bidwise.data.WORLDS["misspecified_rare"].market(random)
    train, test = market.ads(TRAIN, random), market.auctions(AUCTIONS, SIZE, random)
    columns = {"auction": torch.arange(AUCTIONS).repeat_interleave(SIZE), "bid": test.bids, "click": test.clicks.long()}
    with Bars() as bars:
        models = {"old": bidwise.models.LogisticRegression(train.width), "new": bidwise.models.MLP(train.width)}
        for number, (name, model) in enumerate(models.items()):
            bars.show("training", number / 2, f"model {number + 1} of 2")
            fitted = bidwise.fit(model, train, loss="log_loss", epochs=EPOCHS, batch_size=512, learning_rate=1e-2)
            columns[name] = bidwise.predict(fitted.model, test.features)
        out.mkdir(parents=True, exist_ok=True)
        pl.DataFrame({name: column.numpy() for name, column in columns.items()}).write_csv(out / "ads.csv")
        found = bidwise.evaluate(
            out / "ads.csv",
            ctr=list(models),
            click="click",
            bid="bid",
            auction="auction",
            out=out,
            progress=bars.show,
        )
    say(
        f"Two models were trained on {TRAIN:,} simulated ads: old, a logistic regression, and new, a small network. "
        f"{AUCTIONS:,} further auctions of {SIZE} ads judge them.\n\n{found}\n"
    )
    print(f"Took {time.perf_counter() - started:.0f} s. Look at {out / 'report.html'}. On your own predictions:\n")
    print(
        f"  bidwise evaluate {out / 'ads.csv'} --ctr old new --click click --bid bid --auction auction --out evaluation"
    )


def doctor() -> None:
    """Check the installation, the devices and the speed of this machine; nothing is written."""
    import torch

    import bidwise

    print(f"bidwise {bidwise.__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(", ".join(f"{name} {version(name)}" for name in CORE))
    print(f"\nCPU: {torch.get_num_threads()} threads of torch")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            print(f"GPU {number}: {about.name}, {about.total_memory / 2**30:.0f} GiB")
    else:
        print("GPU: none that torch can see; everything works on the CPU")
    print("\nOptional parts")
    for name, (purpose, packages) in OPTIONAL.items():
        try:
            state = version(name)
        except PackageNotFoundError:
            state = f"not installed: pip install {packages}"
        print(f"  {name:13} {purpose}: {state}")
    print("\nSpeed")
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        for what, took in _speeds(device):
            print(f"  {device:5} {what}: {took}")
    free = shutil.disk_usage(".").free / 2**30
    print(f"\nDisk: {free:.0f} GiB free here{'' if free > 1 else '; runs need room for a copy of their table'}")


def _speeds(device: str) -> list[tuple[str, str]]:
    """Losses at two sizes, and training of DeepFM on categories: what a first training would be like."""
    import torch

    import bidwise

    random = torch.Generator().manual_seed(0)
    lines = []
    for ads in (256, 65_536):
        logits = torch.randn(ads, generator=random).to(device).requires_grad_()
        clicks = (torch.rand(ads, generator=random) < 0.05).float().to(device)
        bids = torch.rand(ads, generator=random).add(0.5).to(device)

        def step(logits=logits, clicks=clicks, bids=bids) -> None:  # type: ignore[no-untyped-def]
            bidwise.LOSSES["log_plus"](logits, clicks, bids).backward()

        lines.append(
            (f"log_plus and its gradient, one auction of {ads:,} ads", f"{1e3 * _seconds(step, device):.2f} ms")
        )
    rows, fields, batch = 4 * 4096, 20, 4096
    ids = torch.randint(0, 1000, (rows, fields), generator=random)
    logged = bidwise.data.Ads(ids, (ids[:, 0] % 7 == 0).float(), torch.ones(rows)).to(device)
    model = bidwise.models.DeepFM([1000] * fields).to(device)

    def epoch() -> None:
        bidwise.fit(model, logged, loss="log_loss", epochs=1, batch_size=batch)

    lines.append((f"DeepFM, {fields} columns, batches of {batch:,}", f"{rows / _seconds(epoch, device):,.0f} rows/s"))
    return lines


def _seconds(work: Callable[[], None], device: str, least: float = 0.5) -> float:
    """Of one call, the fastest of those that fit into half a second, after one to warm up."""
    import torch

    best, began = float("inf"), None
    while began is None or time.perf_counter() - began < least:
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if began is not None:
            best = min(best, time.perf_counter() - started)
        began = began or time.perf_counter()
    return best
