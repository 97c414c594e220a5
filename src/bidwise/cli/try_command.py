"""``bidwise try``: a first look."""

from __future__ import annotations

import time
from pathlib import Path

from bidwise.cli.terminal import Bars, say

TRAIN, AUCTIONS, SIZE, EPOCHS = 20_000, 2_000, 50, 8


def try_it(*, out: Path = Path("bidwise-try")) -> None:
    """Compare two models on simulated ads in the auction: a first look, in about ten seconds.

    Everything is left in OUT: the table, which you may open and change, and the page, report.html.

    Parameters
    ----------
    out:
        Folder for ads.csv, result.json and report.html.
    """
    import polars as pl
    import torch

    import bidwise
    from bidwise.evaluation.result import check_folder

    check_folder(out)
    started = time.perf_counter()
    random = torch.Generator().manual_seed(0)
    market = bidwise.data.WORLDS["misspecified_rare"].market(random)
    train, test = market.ads(TRAIN, random), market.auctions(AUCTIONS, SIZE, random)
    columns = {"auction": torch.arange(AUCTIONS).repeat_interleave(SIZE), "bid": test.bids, "click": test.clicks.long()}
    with Bars() as bars:
        models = {"old": bidwise.models.LogisticRegression(train.width), "new": bidwise.models.MLP(train.width)}
        for number, (name, model) in enumerate(models.items()):
            bars.show("training", number / 2, f"model {number + 1} of 2")
            fitted = bidwise.fit(model, train, loss="log_loss", epochs=EPOCHS, batch_size=512, learning_rate=1e-2)
            columns[name] = bidwise.predict(fitted.model, test.features)
        out.mkdir(parents=True, exist_ok=True)
        pl.DataFrame({name: column.numpy() for name, column in columns.items()}).write_csv(out / "ads.csv")
        found = bidwise.evaluate(
            out / "ads.csv",
            ctr=list(models),
            click="click",
            bid="bid",
            auction="auction",
            out=out,
            progress=bars.show,
        )
    (out / ".gitignore").write_text("*\n", encoding="utf-8")
    say(f"A logistic regression, old, and a small network, new, were trained on {TRAIN:,} simulated ads.")
    say(f"They are compared in {AUCTIONS:,} further auctions of {SIZE} ads.\n\n{found}\n")
    print(
        f"This took {time.perf_counter() - started:.0f} s. The page: {out / 'report.html'}. On your own predictions:\n"
    )
    print(
        f"  bidwise evaluate {out / 'ads.csv'} --ctr old new --click click --bid bid --auction auction --out evaluation"
    )
