"""``bidwise simulate``: data of the shape of a benchmark's, with known CTR."""

from __future__ import annotations

import shlex
from pathlib import Path

from bidwise.cli.terminal import Bars


def simulate_criteo(
    out: Path, /, *, rows: int, world: str = "shared_tail", world_seed: int | None = None, seed: int = 0
) -> None:
    """Raw data shaped like the Criteo challenge, of any size, whose true CTR is known.

    Writes OUT, tab-separated lines of label, 13 integers and 26 categories, and OUT.ctr.npy, the true CTR of every
    line. A million rows take a few seconds and 240 MB; the challenge has 45,840,617. Example:

    bidwise simulate criteo ads.tsv --rows 1000000

    Parameters
    ----------
    out:
        File to write; gzipped if its name ends in .gz.
    rows:
        Ads, one on each line.
    world:
        What makes people click: shared_tail, own_tail (rare values have effects of their own), threeway, threeway_5,
        threeway_05 (products of three columns; 27, 5 and 0.5 % clicks) or drift (effects move, 12 columns are empty).
    world_seed:
        Draws effects anew, at the same click rate.
    seed:
        Seed of the ads and clicks; what makes people click is the same for all seeds.
    """
    from bidwise.data.bids import Bids
    from bidwise.data.criteo_text import simulate
    from bidwise.data.criteo_world import world_of

    with Bars() as bars:
        made = simulate(out, rows, world=world, world_seed=world_seed, seed=seed, progress=bars.show)
    print(f"{made.rows:,} ads, {made.click_rate:.2%} of them clicked")
    print(f"Written: {made.out}; {made.truth}, the true CTR of every line")
    made_by, options = world_of(world, world_seed), ""
    if made_by.drift:
        options += " --order file"
    if made_by.bids.kind != Bids().kind:
        bids = made_by.bids
        options += f" --bids {bids.kind} --bid-sigma {bids.sigma:g} --bid-field {bids.field} --bid-noise {bids.noise:g}"
    if world_seed is not None:
        print("Bids of this world on a device have a seed of their own, which text cannot be given.")
    print(f"Next: bidwise prepare criteo {shlex.quote(str(made.out))} STORE{options}")
