"""``bidwise simulate`` and ``bidwise prepare``: raw data of known CTR, and raw data as a store to train on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import bidwise
from bidwise.cli.terminal import Bars

if TYPE_CHECKING:
    from bidwise.data.store import Store


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
    made_by = world_of(world, world_seed)
    bids, options = made_by.bids, " --order file" if made_by.drift else ""
    if bids.kind != Bids().kind:
        options += f" --bids {bids.kind} --bid-sigma {bids.sigma:g} --bid-field {bids.field} --bid-noise {bids.noise:g}"
    if world_seed is not None:
        print("Bids of this world on a device have a seed of their own, which text cannot be given.")
    print(f"Next: bidwise prepare criteo {shlex.quote(str(made.out))} STORE{options}")


def prepare_criteo(
    *paths: Path,
    min_count: int = 10,
    split: str = "8,1,1",
    order: Literal["random", "file"] = "random",
    seed: int = 0,
    integers: Literal["winners", "printed"] = "winners",
    on_error: Literal["strict", "skip"] = "strict",
    bids: Literal["deepfm", "lognormal", "advertiser", "ctr", "residual", "none"] = "deepfm",
    bid_noise: float = 0.1,
    bid_sigma: float = 0.5,
    bid_field: str = "C7",
) -> None:
    """Raw Criteo text, one or several files, as a store for training: RAW [RAW ...] OUT, the last is the folder.

    Splits and shuffles the ads, turns values into ids, and gives every ad a bid. A run that was cut off resumes. The
    disk needs about 340 bytes for each line while it runs: 16 GB for all of Criteo.

    bidwise prepare criteo train.txt stores/criteo

    Parameters
    ----------
    paths:
        Raw files in the layout of the challenge's train.txt, plain or gzip, then the folder to write. If RAW.ctr.npy
        is beside each file, as bidwise simulate leaves it, the store knows the true CTR.
    min_count:
        Categories seen less often in the training ads count as rare.
    split:
        Shares of training, validation and test ads.
    order:
        random, or file: the first lines are for training and the last for test, a split by time.
    seed:
        Seed of the random order and of the bids.
    integers:
        How integers become categories: winners, floor((ln x)^2) as the challenge's winners did, or printed,
        floor(log2 x) as the paper prints, which puts 3 with 1 and 4 to 7 with 2.
    on_error:
        At a malformed line: strict stops, skip leaves it out and counts it.
    bids:
        deepfm (the paper's: an untrained network), lognormal, advertiser (a level for each value of a field), ctr
        (correlated with the true CTR), residual (by advertiser, correlated with what no sum over fields explains of
        the true CTR) or none.
    bid_noise:
        Standard deviation of the noise on log bids of deepfm, advertiser and residual; the paper says 0.1 and 1.
    bid_sigma:
        Standard deviation of log bids, of all kinds but deepfm.
    bid_field:
        Field that stands for advertisers.
    """
    if len(paths) < 2:
        raise bidwise.InputError(
            f"RAW and OUT are needed, found {' '.join(map(str, paths)) or 'neither'}; "
            "as in bidwise prepare criteo train.txt stores/criteo"
        )
    *raw, out = paths
    shares = _shares(split)

    from bidwise.data.bids import Bids
    from bidwise.data.store import SCHEMA
    from bidwise.paper.prepare_criteo import prepare

    there = (out / SCHEMA).is_file()
    with Bars() as bars:
        store = prepare(
            raw,
            out,
            min_count=min_count,
            split=shares,
            order=order,
            seed=seed,
            integers=integers,
            on_error=on_error,
            bids=None if bids == "none" else Bids(bids, noise=bid_noise, sigma=bid_sigma, field=bid_field, seed=seed),
            progress=bars.show,
        )
    if there:
        print(f"{out} is complete already, from the same files with the same options; nothing to do\n")
    print(summary(store))
    written = "" if there else f"Written: {out}. "
    print(f"\n{written}Next: bidwise reproduce criteo --data {out} --models deepfm --repeats 3 --out runs/criteo")


def summary(store: Store) -> str:
    """What a store holds, in a few lines."""
    schema = store.schema
    lines = [f"{schema['rows']:,} ads" + (", with their true CTR" if store.has("truth") else "")]
    for name, ads in store.splits.items():
        lines.append(f"  {name:<6} {ads:>12,} ads, click rate {schema['click_rate'][name]:.4f}")
    skipped = schema["skipped"]
    if skipped["lines"]:
        reasons = ", ".join(f"{kind} {count:,}" for kind, count in skipped["reasons"].items())
        lines.append(f"{skipped['lines']:,} malformed lines were skipped ({reasons}), such as {skipped['samples'][0]}")
    if "bids" in schema:
        bids = schema["bids"]
        low, high = bids["quantiles"]["0.01"], bids["quantiles"]["0.99"]
        lines.append(f"bids {bids['kind']}: mean {bids['mean']:.3f}, 98 % between {low:.3f} and {high:.3f}")
    return "\n".join(lines)


def _shares(split: str) -> tuple[int, ...]:
    """``8,1,1`` as numbers."""
    try:
        return tuple(int(word) for word in split.split(","))
    except ValueError:
        raise bidwise.InputError(
            f"must be three whole numbers such as 8,1,1, found {split!r}", argument="split"
        ) from None
