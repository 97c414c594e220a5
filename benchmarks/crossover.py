"""Fit `SPEEDS` of bidwise.losses.dispatch to the measured times of `direct` and `fast`.

python -m benchmarks.losses crossover && python -m benchmarks.crossover
"""

from __future__ import annotations

import torch

from benchmarks.harness import read


def main() -> None:
    rows = [row for row in read("losses_crossover") if "," not in row["loss"]]
    for gap, surrogate in dict.fromkeys(tuple(row["loss"].split()[:2]) for row in rows):
        mine = [row for row in rows if row["loss"].startswith(f"{gap} {surrogate}")]
        mine = [row for row in mine if float(row["ads"]) / float(row["auctions"]) >= 512]  # below, the choice is clear
        if gap == "signed" and surrogate != "indicator":  # unweighted is the closed form: always taken
            mine = [row for row in mine if row["loss"].endswith("weighted")]
        _, pair = fit([row for row in mine if row["method"] == "direct"], pairs)
        call, ad = fit([row for row in mine if row["method"] == "fast"], lambda row: float(row["ads"]))
        print(f'    ("{gap}", "{surrogate}"): Speed(pair={pair:.2g}, call={call:.2g}, ad={ad:.2g}),')


def pairs(row: dict[str, str]) -> float:
    return float(row["ads"]) ** 2 / float(row["auctions"])


def fit(rows: list[dict[str, str]], size) -> tuple[float, float]:
    """Nanoseconds a call and a unit of size that fit best, every row by its relative error."""
    time = torch.tensor([1e6 * float(row["ms"]) for row in rows], dtype=torch.float64)
    design = torch.tensor([[1.0, size(row)] for row in rows], dtype=torch.float64)
    relative = design / time[:, None]
    call, unit = torch.linalg.lstsq(relative, torch.ones_like(time)[:, None]).solution.flatten().tolist()
    if call < 0:  # a line through the origin then
        call, unit = 0.0, (relative[:, 1].sum() / relative[:, 1].square().sum()).item()
    return call, unit


if __name__ == "__main__":
    main()
