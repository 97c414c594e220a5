"""``bidwise reproduce`` and ``bidwise report``: the paper's experiments, and pages about runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

import bidwise
from bidwise.cli.terminal import Bars, device_of

if TYPE_CHECKING:
    from bidwise.runners import Progress

Config = TypeVar("Config")
Out = Annotated[Path, Parameter(help="Folder of the run.")]
Seed = Annotated[int, Parameter(help="Seed of all random numbers.")]
Device = Annotated[str, Parameter(help="cpu, cuda, or auto for a GPU where there is one.")]
Words = Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())]
Numbers = Annotated[list[float] | None, Parameter(consume_multiple=True, negative=())]


def synthetic(
    *,
    out: Out,
    reading: str = "plotted",
    protocol: str = "both",
    repeats: int = 30,
    epochs: int = 100,
    seed: Seed = 0,
    losses: Words = None,
    patience: int | None = None,
    validation_auctions: int = 2000,
    init: str = "glorot",
    device: Device = "auto",
) -> None:
    """Do pairwise losses raise welfare? The paper's synthetic experiment, and the same with every loss tuned.

    Prints a table for each protocol and a verdict; writes OUT/result.json, OUT/report.html and OUT/figures. An
    interrupted run resumes. 30 repeats take half an hour on two cores, 5 with --patience 12 three minutes.

    bidwise reproduce synthetic --repeats 5 --patience 12 --out runs/synthetic

    Parameters
    ----------
    reading:
        The world: plotted (the paper's, as its figure shows it), printed (with the weights that the paper prints),
        misspecified (a linear student, clicks that depend on squares) or misspecified_rare (the same with a click rate
        near 0.24).
    protocol:
        converged (the paper's: all epochs, lam = 3), tuned (each loss its own epoch and lam) or both.
    repeats:
        Markets, each with its own ads; intervals are over repeats.
    epochs:
        Passes over the training ads.
    losses:
        Names out of the ten that take part, separated by spaces; log_loss always does [default: all].
    patience:
        In the tuned protocol, stop after so many epochs without a better validation welfare [default: never].
    validation_auctions:
        Auctions that epoch and lam are selected by.
    init:
        Initial weights of the network: glorot or torch.
    """
    from bidwise.paper.synthetic import checked, run
    from bidwise.study.synthetic_results import SyntheticConfig

    config = checked(_config(SyntheticConfig, locals()))
    _experiment(lambda show: run(config, out, device=device_of(device), progress=show), out)


def regimes(
    *,
    out: Out,
    repeats: int = 10,
    epochs: int = 20,
    seed: Seed = 0,
    training_ads: int = 40_000,
    validation_ads: int = 100_000,
    test_ads: int = 200_000,
    device: Device = "auto",
) -> None:
    """Where does a welfare loss pay? Its gain over a tuned log loss, from one kind of market to another.

    Three maps: how wrong the model is and whether bids follow clicks; how far bids spread and how many ads compete; how
    strong the teacher is. About ten minutes on a GPU; on two cores an hour and a half, in parts: an interrupted run
    resumes. Writes OUT/result.json, OUT/report.html and OUT/figures.

    Parameters
    ----------
    repeats:
        Markets in each cell, at least 2.
    epochs:
        Passes over the training ads; each loss has its own best epoch of them.
    training_ads:
        Ads that a student is trained on.
    validation_ads:
        Ads of the auctions that epoch and lam are selected by.
    test_ads:
        Ads of the auctions that welfare is measured on.
    """
    from bidwise.paper.regimes import checked, run
    from bidwise.study.synthetic_results import RegimesConfig

    config = checked(_config(RegimesConfig, locals()))
    _experiment(lambda show: run(config, out, device=device_of(device), progress=show), out)


def criteo(
    *,
    out: Out,
    data: Path | None = None,
    rows: int | None = None,
    world: str = "shared_tail",
    models: Words = None,
    losses: Words = None,
    protocol: str = "both",
    repeats: int = 10,
    seed: Seed = 0,
    auction_size: int = 256,
    every: float = 0.25,
    l2: float = 0.0,
    embeddings: str = "lazy",
    epochs: float | None = None,
    schedule: str = "constant",
    batch_size: int | None = None,
    lams: Numbers = None,
    lam_repeats: int | None = None,
    precision: str = "float32",
    workers: int = 1,
    device: Device = "auto",
) -> None:
    """Do welfare losses pay on Criteo? The paper's experiment with DeepFM and DCN, and the same with every loss tuned.

    Takes a store of bidwise prepare criteo (--data), or simulates ads on the device (--rows). Prints tables and a
    verdict; writes OUT/result.json, OUT/report.html and OUT/figures. An interrupted run resumes after the last model
    that it finished. On a million rows a repeat takes DeepFM about an hour on two cores, DCN several.

    bidwise reproduce criteo --data store --models deepfm --repeats 3 --out runs/criteo

    bidwise reproduce criteo --rows 10000000 --batch-size 4096 --lam-repeats 1 --workers 4 --out runs/criteo-10m

    Parameters
    ----------
    data:
        Folder that bidwise prepare criteo wrote.
    rows:
        In place of a folder: how many ads of a simulated world to draw on the device, for a GPU.
    world:
        Of the simulated ads, as bidwise simulate criteo names them.
    models:
        deepfm, dcn, dcnv2, logistic_regression, separated by commas or spaces [default: deepfm dcn].
    losses:
        Names of losses; log_loss always takes part [default: log_loss, log_weighted and log_teacher (the paper's),
        log_plus and log_plus_teacher (ours), distilled (the control)].
    protocol:
        converged (all epochs, the paper's lam = 3), tuned (each loss its own epoch and lam, by validation log loss)
        or both.
    repeats:
        Trainings of every model, each with its own initial weights and order of ads.
    auction_size:
        Ads of a validation or test auction; all that could be drawn are measured.
    every:
        Epochs between evaluations on the validation auctions.
    l2:
        Weight of the squared embeddings in the loss; DeepCTR's default is 1e-5.
    embeddings:
        lazy (updates the rows that a batch looked up) or dense (all rows, as Adam does).
    epochs:
        Of every training [default: the paper's, 3 for DeepFM and 2.1 for DCN].
    schedule:
        Of the learning rate, constant or cosine.
    batch_size:
        Ads in a batch [default: the paper's, 256 for DeepFM and 512 for DCN].
    lams:
        What the tuned protocol tries [default: 0.003 0.01 0.03 0.1 0.3 1 3 10 30 100 300].
    lam_repeats:
        Select lam once, on so many first repeats, which alone train every lam [default: in each repeat].
    precision:
        float32, or mixed for products of matrices on the tensor cores of a GPU.
    workers:
        Trainings at once: threads on a GPU, processes on a CPU.
    """
    from bidwise.paper.criteo import run
    from bidwise.study.criteo_results import CriteoConfig

    config, where = _config(CriteoConfig, locals()), device_of(device)
    _experiment(lambda show: run(config, data, out, device=where, workers=workers, progress=show), out)


def recipes(
    *,
    out: Out,
    worlds: Words = None,
    rows: int = 1_000_000,
    repeats: int = 8,
    auction_size: int = 256,
    batch_size: int = 4096,
    precision: str = "float32",
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """What raises welfare over the strongest log-loss model? Ensembles, distillation, welfare losses, in six worlds.

    Settings are chosen on a draw of each world that no repeat has. Prints a table; writes OUT/result.json,
    OUT/report.html and OUT/figures. An interrupted run resumes. For a GPU: a world takes it two minutes, two
    cores a day.

    bidwise reproduce recipes --precision mixed --out runs/recipes

    bidwise reproduce recipes --worlds threeway_5 --rows 100000 --repeats 2 --batch-size 1024 --out runs/try

    Parameters
    ----------
    worlds:
        Names of simulated worlds, separated by commas or spaces [default: all six].
    rows:
        Ads of a draw: eight tenths train, one validates, one tests.
    repeats:
        Draws of every world beside the one for tuning.
    auction_size:
        Ads of an auction; all that could be drawn are measured.
    batch_size:
        Ads in a batch.
    precision:
        float32, or mixed for products of matrices on the tensor cores of a GPU.
    """
    from bidwise.paper.recipes import run
    from bidwise.study.recipes_results import RecipesConfig

    config = _config(RecipesConfig, locals())
    _experiment(lambda show: run(config, out, device=device_of(device), progress=show), out)


def _config(kind: type[Config], options: Mapping[str, Any]) -> Config:
    """The configuration of an experiment: the options of its command that were given and are called as its fields."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    given = {name: options[name] for name in names if options.get(name) is not None}
    for name, value in given.items():
        given[name] = tuple(value) if isinstance(value, list) else value
        if isinstance(value, list) and isinstance(value[0], str):  # separated by commas, by spaces or by both
            given[name] = tuple(part.strip() for word in value for part in word.split(",") if part.strip())
            if not given[name]:
                raise bidwise.InputError("must be names, separated by commas or spaces, found none", argument=name)
    return kind(**given)


def report(*runs: Path, out: Path = Path("report.html")) -> None:
    """One page about one or several runs, to look at and to pass on: it works offline.

    bidwise report runs/synthetic runs/regimes --out report.html

    Parameters
    ----------
    runs:
        Folders of bidwise train, bidwise evaluate, bidwise reproduce or bidwise.fit.
    out:
        The page to write.
    """
    from bidwise.report.build import report as write_page

    write_page(runs, out)
    print(f"Written: {out}")


def _experiment(run: Callable[[Progress], Any], out: Path) -> None:
    """Run an experiment with a progress bar, say what it found, and leave a page and figures."""
    from bidwise.report.formatting import counted
    from bidwise.run_folder import locked_folder

    kept = len(list((out / "pieces").glob("*.pt")))
    if kept and not (out / "result.json").exists():
        print(f"Resuming after {counted(kept, 'part')} of this run, in {out}", flush=True)
    with locked_folder(out), Bars() as bars:
        result = run(bars.show)
        from bidwise.report import experiment_page, write_page  # matplotlib takes a second: after options were checked
        from bidwise.report.build import write_figures

        print(experiment_page.experiment_summary(result))
        bars.show("drawing", 0.0)
        write_figures(out, result)
        bars.show("drawing", 0.9)
        write_page(result, out)
    print(f"\nWritten: {out / 'report.html'}; {out / 'result.json'}; {out / 'figures'}")
