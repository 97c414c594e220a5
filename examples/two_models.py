"""Train the same CTR model twice, with the log loss and with a welfare loss, and write what both predict.

Clicks depend on squares of features here and the model is linear: it cannot be right everywhere, and the loss decides
where it is wrong. Takes about twenty seconds on two cores. The table it writes is one that `bidwise evaluate` takes.

    python examples/two_models.py runs/example
    bidwise evaluate runs/example/predictions.parquet --ctr log_loss log_plus --click click --bid bid \\
        --auction auction --truth truth --out runs/example/evaluation
"""

import sys
from pathlib import Path

import polars as pl
import torch

import bidwise

TRAIN, AUCTIONS, SIZE, EPOCHS, LAMBDAS = 40_000, 2_000, 50, 15, (0.03, 0.1, 0.3)
RATES = (1e-3, 3e-3, 1e-2)  # three tries for the log loss too


def main(folder="runs/example"):
    random = torch.Generator().manual_seed(0)
    market = bidwise.data.WORLDS["misspecified_rare"].market(random)
    train = market.ads(TRAIN, random)
    valid, test = (market.auctions(AUCTIONS, SIZE, random) for _ in range(2))
    best = bidwise.optimal_welfare(test.truth, test.bids, test.offsets).mean()

    def fitted(loss, metric, rate=3e-3):
        model = bidwise.models.LogisticRegression(train.width)
        return bidwise.fit(model, train, loss=loss, valid=valid, metric=metric, epochs=EPOCHS, learning_rate=rate)

    # each loss is judged by what it is trained for, and by clicks: all that a platform has
    plain = min((fitted("log_loss", "log_loss", rate) for rate in RATES), key=lambda run: run.best["log_loss"].value)
    tries = [fitted(bidwise.WelfareLoss(gap="positive", lam=lam), "welfare") for lam in LAMBDAS]
    ranked = max(tries, key=lambda run: run.best["welfare"].value)

    log = {"auction": torch.arange(AUCTIONS).repeat_interleave(SIZE), "bid": test.bids, "click": test.clicks}
    log["truth"] = test.truth
    print(f"{TRAIN:,} training ads, {AUCTIONS:,} test auctions of {SIZE} ads; share of the best possible welfare:")
    for name, run in (("log_loss", plain), ("log_plus", ranked)):
        log[name] = bidwise.predict(run.model, test.features)
        reached = bidwise.welfare(log[name], test.truth, test.bids, test.offsets).mean()
        print(f"  {name:10} {reached / best:.2%}")
    Path(folder).mkdir(parents=True, exist_ok=True)
    pl.DataFrame({name: column.numpy() for name, column in log.items()}).write_parquet(
        Path(folder) / "predictions.parquet"
    )
    print(f"Written: {folder}/predictions.parquet; one market proves nothing, python -m paper synthetic draws thirty")


if __name__ == "__main__":
    main(*sys.argv[1:])
