"""``bidwise sweep``: a grid of settings of ``bidwise train``, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import bidwise
from bidwise.cli.terminal import Bars, device_of, say


def sweep(
    config: Path,
    /,
    *,
    out: Path,
    engine: str = "local",
    workers: int | None = None,
    by: str | None = None,
    settings: Annotated[list[str] | None, Parameter(name="--set", consume_multiple=True, negative=())] = None,
    device: str = "auto",
) -> None:
    """Train every combination of a grid of recipes, losses, seeds or any other setting, and compare them.

    The best setting is chosen on validation auctions; the test of all is shown with paired intervals. Writes
    OUT/report.html, OUT/result.json and a run folder of bidwise train for each trial, OUT/trials/NAME. The same command
    resumes a sweep that was cut off; with longer lists it trains only what is new. Example:

    bidwise sweep sweep.toml --out runs/sweep --workers 2

    Parameters
    ----------
    config:
        TOML file as bidwise train takes it, with one more section, [sweep], of lists:
        "train.loss" = ["log_loss", "log_plus"], "train.lam" = [1, 3, 10], "train.seed" = [0, 1, 2].
    out:
        Folder of the sweep.
    engine:
        local, processes of this machine; or ray, a Ray cluster (RAY_ADDRESS, or one that this machine belongs to): all
        of its machines must see the table and OUT under the same names, on a shared file system.
    workers:
        Trials at once, which share the cores [default: 1; with ray as many as the cluster has cores].
    by:
        Validation metric that the setting is chosen by: welfare, log_loss or auc [default: train.metric].
    settings:
        What all trials share, as section.key=value, separated by spaces: train.epochs=5 model.hidden=64,64.
    device:
        cpu, cuda, or auto for a GPU where there is one.
    """
    from bidwise.report.sweep_page import summary
    from bidwise.table.sweep import sweep as run

    where = device if engine == "ray" else device_of(device)  # a cluster has GPUs of its own
    with Bars() as bars:
        result = run(
            config,
            out=out,
            engine=engine,
            workers=workers,
            settings=settings or [],
            by=by,
            device=where,
            progress=bars.show,
            say=bars.say,
        )
    print()
    say(summary(result))
    print(f"\nWritten: {out / 'report.html'}; {out / 'result.json'}; {out / 'trials'}, one run folder per trial")
    setting = result.setting(result.recommended)
    if setting is not None and result.chosen is not None:
        trial = result.chosen.trial if setting.name == result.chosen.setting else setting.trials[0]
        print(f"Next: bidwise predict {out / 'trials' / trial} NEW_TABLE --out predictions.parquet")
    if result.failed:
        first = result.failed[0]
        raise bidwise.InputError(
            f"{len(result.failed)} of {len(result.trials)} trials failed, as {first.name}: {first.failed}; the same "
            "command tries them again"
        )
