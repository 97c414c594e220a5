"""Record what the commands give, and compare two recordings: numbers to 1e-9, predictions bitwise.

``python tools/same.py record FOLDER`` with the sources to record; ``python tools/same.py compare BEFORE AFTER``.
The demo's result.json is compared if both folders contain ``demo.json``.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import torch

TIMES = ("seconds", "environment", "written", "commit", "took")


def record(folder):
    folder.mkdir(parents=True)
    run = [sys.executable, "-m", "bidwise"]
    subprocess.run([sys.executable, "examples/own_table.py", folder / "own"], check=True)
    roles = ["--click", "click", "--bid", "bid", "--auction", "auction", "--time", "time", "--truth", "truth"]
    subprocess.run([*run, "train", folder / "own/ads.parquet", *roles, "--out", folder / "run"], check=True)
    predicted = folder / "predictions.parquet"
    subprocess.run([*run, "predict", folder / "run", folder / "own/new_ads.parquet", "--out", predicted], check=True)
    subprocess.run([sys.executable, "examples/two_models.py", folder / "two"], check=True)
    models = ["--ctr", "log_loss", "log_plus", "--click", "click", "--bid", "bid", "--auction", "auction"]
    subprocess.run(
        [*run, "evaluate", folder / "two/predictions.parquet", *models, "--out", folder / "evaluation"], check=True
    )
    (folder / "losses.json").write_text(json.dumps(losses()))


def losses():
    """Value and gradient of every named loss on fixed batches."""
    import bidwise

    found = {}
    for case, sizes in {"one": [300], "many": [5, 1, 64, 0, 130], "large": [5000]}.items():
        random = torch.Generator().manual_seed(len(case))
        ads = sum(sizes)
        logits = torch.randn(ads, generator=random)
        clicks = (torch.rand(ads, generator=random) < 0.2).float()
        bids = torch.randn(ads, generator=random).exp()
        teacher = torch.sigmoid(logits + torch.randn(ads, generator=random))
        offsets = torch.tensor([0, *sizes]).cumsum(0)
        for name, loss in bidwise.LOSSES.items():
            for dtype in (torch.float32, torch.float64):
                z = logits.to(dtype).requires_grad_()
                value = loss(z, clicks.to(dtype), bids.to(dtype), offsets, teacher.to(dtype))
                (gradient,) = torch.autograd.grad(value, z)
                found[f"{case} {name} {dtype}"] = [value.item(), gradient.tolist()]
    return found


def differences(before, after, where=""):
    """Places where two values of JSON differ; keys of one side alone are named."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            if key in TIMES:
                continue
            if key not in before or key not in after:
                yield f"{where}.{key}: only {'before' if key in before else 'after'}"
            else:
                yield from differences(before[key], after[key], f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for k, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{where}[{k}]")
    elif isinstance(before, int | float) and isinstance(after, int | float):
        if not math.isclose(before, after, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{where}: {before} before, {after} after"
    elif before != after:
        yield f"{where}: {str(before)[:60]!r} before, {str(after)[:60]!r} after"


def compare(before, after):
    wrong = []
    for file in ("demo.json", "run/result.json", "evaluation/result.json", "losses.json"):
        if (before / file).exists() and (after / file).exists():
            pair = (json.loads((folder / file).read_text()) for folder in (before, after))
            wrong += [f"{file}{line}" for line in differences(*pair)]
        else:
            print("not compared:", file)
    old, new = (pl.read_parquet(folder / "predictions.parquet")["ctr"].to_numpy() for folder in (before, after))
    if not np.array_equal(old, new):
        wrong.append(f"predictions differ by up to {np.abs(old - new).max():.2e}")
    print("\n".join(wrong) or "the same")
    return bool(wrong)


if __name__ == "__main__":
    verb, *folders = sys.argv[1:]
    sys.exit(record(Path(folders[0])) if verb == "record" else compare(*map(Path, folders)))
