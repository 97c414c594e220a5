"""How fast `fit` trains on a CPU with this source tree and with another one, in turns: ratios of one run.

python -m benchmarks.fit_speed OTHER/src    DeepFM and MLP, batches of 256 and 4,096 ads, medians of ROUNDS processes
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 5
CASES = {
    "DeepFM, 256": ("deepfm", 256, 12_800),
    "DeepFM, 4,096": ("deepfm", 4096, 16_384),
    "DeepFM, L2, dense, 256": ("dense", 256, 12_800),
    "MLP, 256": ("mlp", 256, 200_000),
    "MLP, 30 members, 256": ("members", 256, 20_000),
}


def timed() -> dict[str, float]:
    """Ads a second of CPU time of each case, of the second of two fits."""
    import torch

    from bidwise.data import WORLDS, Ads, stack
    from bidwise.models import MLP, DeepFM
    from bidwise.training import fit

    def numbers(ads: int, seed: int) -> Ads:
        random = torch.Generator().manual_seed(seed)
        return WORLDS["plotted"].market(random).ads(ads, random)

    def ids(ads: int) -> Ads:
        random = torch.Generator().manual_seed(0)
        features = (2000 ** torch.rand(ads, 39, generator=random)).int() - 1
        return Ads(features, (torch.rand(ads, generator=random) < 0.2).float(), torch.rand(ads, generator=random) + 0.5)

    speed = {}
    for name, (kind, batch, ads) in CASES.items():
        members = kind == "members"
        if kind in ("deepfm", "dense"):
            model, train = DeepFM([2000] * 39), ids(ads)
        else:
            train = stack([numbers(ads, seed) for seed in range(30)]) if members else numbers(ads, 0)
            model = MLP(50, members=(30,) if members else ())
        options = {"embeddings": "dense", "l2": 1e-6} if kind == "dense" else {}
        for _ in range(2):
            begin = time.process_time()
            fit(model, train, loss="log_plus", epochs=1, batch_size=batch, **options)
            speed[name] = len(train) * train.repeats.numel() / (time.process_time() - begin)
    return speed


def main() -> None:
    """All cases, the trees in turns."""
    trees = {"this": Path(__file__).parents[1] / "src", "other": Path(sys.argv[1]).resolve()}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(ROUNDS):
        for name, tree in trees.items():
            command = [sys.executable, "-c", "import json, benchmarks.fit_speed as b; print(json.dumps(b.timed()))"]
            where = {"env": os.environ | {"PYTHONPATH": f"{tree}:{Path(__file__).parents[1]}"}, "cwd": "/"}
            rounds[name].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, **where).stdout))
    print(f"{'ads a CPU second':26}{'this':>12}{'other':>12}{'ratio (lowest, highest)':>28}")
    for case in CASES:
        this, other = ([found[case] for found in rounds[name]] for name in trees)
        ratios = [a / b for a, b in zip(this, other, strict=True)]
        medians = f"{statistics.median(this):12,.0f}{statistics.median(other):12,.0f}"
        print(f"{case:26}{medians}{statistics.median(ratios):14.3f} ({min(ratios):.3f}, {max(ratios):.3f})")


if __name__ == "__main__":
    main()
