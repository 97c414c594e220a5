"""Train the same small CTR model twice, with the log loss and with a welfare loss, and let both run an ad auction.

The worlds are such that a welfare loss can help: clicks depend on squares of features, the model is linear, so it
cannot be right everywhere, and the loss decides where it is wrong. Takes about a minute on two cores.

    python examples/two_models.py [FOLDER]

Predictions of both models for the test auctions of the first world go to FOLDER/predictions.parquet, a table as
`bidwise evaluate` takes it.
"""

import math
import sys
from pathlib import Path

import polars as pl
import torch

import bidwise
from bidwise.evaluation import repeat_interval

FEATURES, TRAIN, AUCTIONS, SIZE, EPOCHS, BATCH = 50, 40_000, 2_000, 50, 15, 256
WORLDS, RATES, LAMBDAS = 8, (1e-3, 3e-3, 1e-2), (0.03, 0.1, 0.3)  # three tries each, the best on validation is kept


def draw_world(random):
    """Weights of the true click rate (linear and quadratic) and of the bids, which lean towards good ads."""
    w = 1.2 * torch.randn(FEATURES, generator=random) / math.sqrt(FEATURES)
    curves = torch.randn(FEATURES, 8, generator=random) / math.sqrt(FEATURES)
    signs = torch.tensor([1.0, -1.0]).repeat(4)
    other = torch.randn(FEATURES, generator=random) / math.sqrt(FEATURES)
    u = 0.5 * w / 1.2 + math.sqrt(0.75) * other  # correlation 1/2 between bid and click rate
    return w, curves, signs, u


def draw_ads(world, ads, random):
    """Features, bids, true CTR and clicks."""
    w, curves, signs, u = world
    x = torch.randn(ads, FEATURES, generator=random)
    logit = 0.5 * x @ w + 0.275 * ((x @ curves).square() - 1) @ signs - 1.5
    ctr = torch.sigmoid(logit + 0.1 * torch.randn(ads, generator=random))
    bids = torch.exp(0.8 * x @ u + 0.1 * torch.randn(ads, generator=random))
    return x, bids, ctr, torch.bernoulli(ctr, generator=random)


def train(loss, train_ads, valid_ads, offsets, rate=3e-3):
    """A linear model by Adam: the weights of its best epoch on validation auctions, and how good that was.

    Each model is judged by what it is trained for: log loss by log loss, a welfare loss by clicked welfare.
    """
    x, bids, _, clicks = train_ads
    model = torch.nn.Linear(FEATURES, 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    random = torch.Generator().manual_seed(1)
    best, kept = -math.inf, None
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=random).split(BATCH):
            optimizer.zero_grad()
            loss(model(x[rows]).squeeze(-1), clicks[rows], bids[rows]).backward()  # a batch is one auction
            optimizer.step()
        if loss is bidwise.LOSSES["log_loss"]:
            with torch.no_grad():
                seen = -loss(model(valid_ads[0]).squeeze(-1), valid_ads[3], valid_ads[1]).item()
        else:
            seen = auction_welfare(model, valid_ads, offsets, truth=valid_ads[3]).mean().item()
        if seen > best:
            best, kept = seen, {name: weight.clone() for name, weight in model.state_dict().items()}
    model.load_state_dict(kept)
    return model, best


def predicted(model, ads):
    """The model's CTR of every ad."""
    with torch.no_grad():
        return torch.sigmoid(model(ads[0]).squeeze(-1))


def auction_welfare(model, ads, offsets, truth):
    """Welfare of every auction when the model ranks the ads."""
    return bidwise.welfare(predicted(model, ads), truth, ads[1], offsets)


def contest(seed):
    """Welfare of both models on the test auctions of one world, as shares of the optimum, and the auctions' log."""
    random = torch.Generator().manual_seed(seed)
    world = draw_world(random)
    offsets = SIZE * torch.arange(AUCTIONS + 1)
    train_ads, valid_ads, test_ads = (draw_ads(world, n, random) for n in (TRAIN, SIZE * AUCTIONS, SIZE * AUCTIONS))
    _, bids, truth, _ = test_ads
    data = (train_ads, valid_ads, offsets)
    plain_tries = [train(bidwise.LOSSES["log_loss"], *data, rate) for rate in RATES]
    ranked_tries = [train(bidwise.WelfareLoss(gap="positive", lam=lam), *data) for lam in LAMBDAS]
    plain, ranked = (max(tries, key=lambda found: found[1])[0] for tries in (plain_tries, ranked_tries))
    best = bidwise.welfare(truth, truth, bids, offsets).mean()
    shares = [(auction_welfare(model, test_ads, offsets, truth).mean() / best).item() for model in (plain, ranked)]
    log = {
        "auction": torch.arange(AUCTIONS).repeat_interleave(SIZE),
        "bid": bids,
        "click": test_ads[3],
        "truth": truth,
        "log_loss": predicted(plain, test_ads),
        "log_plus": predicted(ranked, test_ads),
    }
    return shares, pl.DataFrame({name: column.numpy() for name, column in log.items()})


def main(folder=None):
    print(f"{WORLDS} worlds, in each {TRAIN:,} training ads and {AUCTIONS:,} test auctions of {SIZE} ads for one slot")
    print("log_loss: the best of three learning rates; log_plus: of three weights for its log loss, on validation")
    print("welfare as a share of what the true CTR earns:\n")
    print(f"{'world':>5} {'log_loss':>10} {'log_plus':>10} {'difference':>11}")
    found = []
    for world in range(WORLDS):
        (plain, ranked), log = contest(seed=world)
        if folder is not None and world == 0:
            Path(folder).mkdir(parents=True, exist_ok=True)
            log.write_parquet(Path(folder) / "predictions.parquet")
        found.append(ranked - plain)
        print(f"{world:5} {plain:10.2%} {ranked:10.2%} {ranked - plain:+11.2%}", flush=True)
    mean = repeat_interval(found)
    bounds = f"[{mean.low:+.2%}, {mean.high:+.2%}]"
    print(f"\nlog_plus - log_loss: {mean.estimate:+.2%} of the optimum, 95 % interval {bounds}")
    if mean.low > 0:
        print("The welfare loss is better here: a linear model must be wrong somewhere, and it chooses where.")
    else:
        print("Too few worlds to tell the two apart.")
    print("Where a model can be right everywhere, a tuned log loss is hard to beat: measure before you switch.")


if __name__ == "__main__":
    main(*sys.argv[1:])
