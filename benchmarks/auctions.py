"""Speed of a million auctions of 20 ads and 4 slots, on the CPU and, where there is one, on a GPU. Needs torch alone.

python -m benchmarks.auctions
"""

from __future__ import annotations

import torch

import bidwise
from benchmarks.harness import together, write
from benchmarks.table import write_page

ADS, AUCTIONS, SLOTS = 20_000_000, 1_000_000, (1.0, 0.7, 0.5, 0.3)
CASES = {  # name -> (pricing, whether auctions differ in size)
    "gsp": ("gsp", False),
    "vcg": ("vcg", False),
    "first_price": ("first_price", False),
    "gsp, 1 to 39 ads": ("gsp", True),
}


def measured(device: str) -> list[dict[str, object]]:
    """A row per case; a GPU must first agree with the CPU on every winner, and on prices to 1e-12."""
    random = torch.Generator().manual_seed(0)
    ctr = torch.rand(ADS, generator=random, dtype=torch.float64)
    bids = 0.1 + torch.rand(ADS, generator=random, dtype=torch.float64)
    equal = ADS // AUCTIONS * torch.arange(AUCTIONS + 1)
    sizes = torch.randint(1, 40, (AUCTIONS,), generator=random)
    ragged = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    ragged = torch.cat([ragged[ragged < ADS], torch.tensor([ADS])])

    def step(pricing: str, differ: bool, where: str):
        inputs = [x.to(where) for x in (ctr, bids, ragged if differ else equal)]

        def run() -> bidwise.Outcome:
            sold = bidwise.run_auction(*inputs, slots=SLOTS, pricing=pricing)
            if where == "cuda":
                torch.cuda.synchronize()
            return sold

        return run

    if device == "cuda":
        for name, (pricing, differ) in CASES.items():
            here, there = step(pricing, differ, "cpu")(), step(pricing, differ, "cuda")()
            if not torch.equal(here.winners, there.winners.cpu()):
                raise SystemExit(f"{name}: winners differ between CPU and GPU: not timed")
            prices = here.price_per_click, there.price_per_click.cpu()  # NaN in empty slots of both
            torch.testing.assert_close(*prices, rtol=1e-12, atol=0, equal_nan=True)
    timings = together({name: step(*case, device) for name, case in CASES.items()}, seconds=2.0)
    rows: list[dict[str, object]] = []
    for name, timing in timings.items():
        print(f"{name:20} {device:5} {timing.ms:8.1f} ms", flush=True)
        on = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        times = {"ms": timing.ms, "ms_low": timing.ms_low, "ms_high": timing.ms_high, "runs": timing.runs}
        rows.append({"case": name, "on": on, "auctions": AUCTIONS, "ads": ADS, "slots": len(SLOTS), **times})
    return rows


def main() -> None:
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        write(f"auctions_{device}", measured(device))
    print(write_page())


if __name__ == "__main__":
    main()
