"""The paper's experiments: ``python -m paper synthetic | regimes | criteo | recipes | simulate | prepare | page``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

import bidwise
from bidwise.cli.terminal import Bars, device_of, run_command
from bidwise.report.formatting import counted
from bidwise.run_folder import locked_folder
from paper import criteo, criteo_results, criteo_text, pages, prepare_criteo, recipes, regimes, synthetic
from paper.criteo_results import CriteoConfig
from paper.recipes import RecipesConfig
from paper.synthetic_results import ReadingsConfig, RegimesConfig, SyntheticConfig, with_preset

app = App(
    name="python -m paper",
    help="The experiments of the paper, with its numbers next to ours.",
    version=bidwise.__version__,
    help_format="markdown",
    default_parameter=Parameter(consume_multiple=True, negative=()),
    suppress_keyboard_interrupt=False,
)
Out = Annotated[Path, Parameter(help="Folder of the run.")]
Device = Annotated[str, Parameter(help="`cpu`, `cuda`, or `auto` for a GPU if there is one.")]
Flat = Parameter(name="*")  # its fields are the options


@app.command(name="synthetic")
def run_synthetic(
    *,
    out: Out,
    config: Annotated[SyntheticConfig | None, Flat] = None,
    as_printed: bool = False,
    device: Device = "auto",
) -> None:
    """Do pairwise losses raise welfare? The paper's synthetic experiment, and the same with every loss tuned.

    Prints a table for each protocol and a verdict; writes OUT/result.json, OUT/report.html and OUT/figures. An
    interrupted run resumes. 30 repeats take half an hour on two cores, 5 with --patience 12 three minutes.

    `python -m paper synthetic --repeats 5 --patience 12 --out runs/synthetic`

    Parameters
    ----------
    as_printed:
        The paper's constants, losses, protocol and sums, for options that are not given.
    """
    given = config or SyntheticConfig()
    _experiment(synthetic.run, with_preset(given, synthetic.AS_PRINTED) if as_printed else given, out, device)


@app.command(name="readings")
def run_readings(*, out: Out, config: Annotated[ReadingsConfig | None, Flat] = None, device: Device = "auto") -> None:
    """Which of the paper's orderings hold under which reading? Its losses under eleven readings, in one table.

    Means and sums, 20 to 300 epochs, three spreads of bids, two initial weights, λ = 3 or tuned, and all as printed.
    Half an hour on two cores; an interrupted run resumes. Writes OUT/result.json, OUT/report.html and OUT/figures.
    """
    _experiment(synthetic.run_readings, config or ReadingsConfig(), out, device)


@app.command(name="regimes")
def run_regimes(*, out: Out, config: Annotated[RegimesConfig | None, Flat] = None, device: Device = "auto") -> None:
    """Where does a welfare loss pay? Its gain over a tuned log loss, from one kind of market to another.

    Three maps: how wrong the model is and whether bids follow clicks; how far bids spread and how many ads compete; how
    strong the teacher is. About ten minutes on a GPU; on two cores about half a day. An interrupted run resumes.
    Writes OUT/result.json, OUT/report.html and OUT/figures.
    """
    _experiment(regimes.run, config or RegimesConfig(), out, device)


@app.command(name="criteo")
def run_criteo(
    *,
    out: Out,
    config: Annotated[CriteoConfig | None, Flat] = None,
    data: Path | None = None,
    workers: int = 1,
    as_printed: bool = False,
    device: Device = "auto",
) -> None:
    """Do welfare losses pay on Criteo? The paper's experiment with DeepFM and DCN, and the same with every loss tuned.

    Takes a store that `prepare` wrote (--data), or simulates ads on the device (--rows). Prints tables and a verdict;
    writes OUT/result.json, OUT/report.html and OUT/figures. An interrupted run resumes after the last model that it
    finished. On a million rows a repeat takes DeepFM about an hour on two cores, DCN several.

    `python -m paper criteo --data store --models deepfm --repeats 3 --out runs/criteo`

    `python -m paper criteo --rows 10000000 --batch-size 4096 --lam-repeats 1 --workers 4 --out runs/criteo-10m`

    Parameters
    ----------
    data:
        Folder that `python -m paper prepare` wrote.
    workers:
        Trainings at once.
    as_printed:
        Losses, λs, steps and sums of the paper, L2 and updates of DeepCTR, for options that are not given.
    """
    given = config or CriteoConfig()
    if given.ads:
        raise bidwise.InputError("is set by the run; simulate so many with {}", argument="ads", others=["rows"])
    given = criteo_results.as_printed(given) if as_printed else given
    _experiment(partial(criteo.run, data=data, workers=workers), given, out, device)


@app.command(name="recipes")
def run_recipes(*, out: Out, config: Annotated[RecipesConfig | None, Flat] = None, device: Device = "auto") -> None:
    """What raises welfare over the strongest log-loss model? Ensembles, distillation, welfare losses, in six worlds.

    Settings are chosen on a draw of each world that no repeat has. Prints a table; writes OUT/result.json,
    OUT/report.html and OUT/figures. An interrupted run resumes. For a GPU: a world takes it two minutes, two cores a
    day.

    `python -m paper recipes --worlds threeway_5 --rows 100000 --repeats 2 --batch-size 1024 --out runs/try`
    """
    _experiment(recipes.run, config or RecipesConfig(), out, device)


@app.command
def simulate(out: Path, /, *, rows: int, seed: int = 0) -> None:
    """Write raw data shaped like the Criteo challenge, of any size, with known true CTR.

    Writes OUT, tab-separated lines of label, 13 integers and 26 categories, and OUT.ctr.npy, the true CTR of every
    line. A million rows take a few seconds and 240 MB; the challenge has 45,840,617.

    `python -m paper simulate ads.tsv --rows 1000000`

    Parameters
    ----------
    out:
        File to write; gzipped if its name ends in .gz.
    rows:
        Ads, one on each line.
    seed:
        Seed of the ads and clicks; what makes people click is the same for all seeds.
    """
    with Bars() as bars:
        click_rate = criteo_text.simulate(out, rows, seed=seed, progress=bars.show)
    print(f"{rows:,} ads, {click_rate:.2%} of them clicked")
    print(f"Written: {out}; {out}.ctr.npy, the true CTR of every line")
    print(f"Next: python -m paper prepare {shlex.quote(str(out))} STORE")


@app.command
def prepare(raw: Path, out: Path, /, *, options: Annotated[prepare_criteo.Options | None, Flat] = None) -> None:
    """Turn raw Criteo text into a store for training.

    Splits and shuffles the ads, turns values into ids, and gives every ad the paper's bid, by an untrained network. The
    disk needs about 340 bytes for each line while it runs: 16 GB for all of Criteo.

    `python -m paper prepare train.txt stores/criteo`

    Parameters
    ----------
    raw:
        File in the layout of the challenge's train.txt, plain or gzip. If RAW.ctr.npy is next to it, as `simulate`
        leaves it, the store has the true CTR.
    out:
        Folder to write.
    """
    with Bars() as bars:
        store = prepare_criteo.prepare(raw, out, options or prepare_criteo.Options(), progress=bars.show)
    known = ", with their true CTR" if "truth" in store.columns("train") else ""
    print(f"{sum(store.splits.values()):,} ads{known}")
    for name, ads in store.splits.items():
        print(f"  {name:<6} {ads:>12,} ads, click rate {store.schema['click_rate'][name]:.4f}")
    print(f"\nWritten: {out}. Next: python -m paper criteo --data {out} --models deepfm --repeats 3 --out runs/criteo")


@app.command
def page(*runs: Path, out: Path) -> None:
    """Write one page about several experiments; it works offline.

    `python -m paper page runs/demo docs/results/plotted --out runs/page.html`

    Parameters
    ----------
    runs:
        Folders of finished experiments.
    out:
        The page to write.
    """
    pages.report(runs, out)
    print(f"Written: {out}")


def _experiment(run: Callable[..., Any], config: Any, out: Path, device: str) -> None:
    """Run an experiment with a progress bar, print what it found, and write a page and figures."""
    where, kept = device_of(device), len(list((out / "pieces").glob("*.pt")))
    if kept and not (out / "result.json").exists():
        print(f"Resuming after {counted(kept, 'part')} of this run, in {out}", flush=True)
    with locked_folder(out), Bars() as bars:
        result = run(config, out=out, device=where, progress=bars.show)
        print(pages.experiment_summary(result))
        bars.show("drawing", 0.0)
        pages.write_report(out, result)
    print(f"\nWritten: {out / 'report.html'}; {out / 'result.json'}; {out / 'figures'}")


def main() -> None:
    run_command(app, sys.argv[1:], resumes=("synthetic", "readings", "regimes", "criteo", "recipes"))


if __name__ == "__main__":
    main()
