"""``bidwise simulate``: data of the shape of a benchmark's, with known CTR."""

from __future__ import annotations

import shlex
from pathlib import Path

from bidwise.cli.terminal import Bars


def simulate_criteo(out: Path, /, *, rows: int, seed: int = 0) -> None:
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
    seed:
        Seed of the ads and clicks; what makes people click is the same for all seeds.
    """
    import numpy as np

    from bidwise.data.criteo_text import simulate
    from bidwise.evaluation.auc import auc

    with Bars() as bars:
        made = simulate(out, rows, seed=seed, progress=bars.show)
    best = auc(np.array(np.load(made.truth, mmap_mode="r")[: len(made.first_clicks)]), made.first_clicks)
    print(f"{made.rows:,} ads, {made.click_rate:.2%} of them clicked")
    if not np.isnan(best):  # there are ads of both kinds
        print(f"The true CTR has AUC {best:.4f}: the most that any model can reach on these ads")
    print(f"Written: {made.out}; {made.truth}, the true CTR of every line")
    print(f"Next: bidwise prepare criteo {shlex.quote(str(made.out))} STORE")
