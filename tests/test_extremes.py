"""Numbers at the edge: bids of 1e8, CTRs of 1e-7, logits of 80, auctions of one ad and of a million, and no ads."""

import math
import os

import numpy as np
import pytest
import reference
import torch
from helpers import MEMBERS, loss_and_gradient, random_auctions, worst

import bidwise
from bidwise import LOSSES, diagnose, fit, log_loss
from bidwise.data import Ads
from bidwise.models import DeepFM, LogisticRegression

RARE = math.log(1e-7)  # the logit of a CTR of 1e-7
LOGITS = (80.0, -80.0, RARE, 0.0, RARE + 1, -80.0, 3.0)
BIDS = (1e8, 1e8, 1e8, 1e-8, 1.0, 1.0, 3e7)


def edge(dtype=torch.float64):
    """Every logit of `LOGITS` beside every bid of `BIDS`, in auctions of 1, 0, 7 and the rest."""
    ads = random_auctions(0, sizes=(1, 0, 7, 41), dtype=torch.float64)
    pairs = [(z, b) for z in LOGITS for b in BIDS]
    logits, bids = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    return ads.but(logits=logits, bids=bids, teacher=torch.sigmoid(0.9 * logits)).map(lambda x: x.to(dtype))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
@pytest.mark.parametrize("method", ["direct", "auto"])
@pytest.mark.parametrize("member", [m for m in MEMBERS if m.surrogate != "indicator"], ids=str)
def test_pairwise_losses_are_those_of_the_definition(member, method, dtype, error):
    """Relative to what is added up: single terms of 1e16 leave no digits to sums of less."""
    ads = edge(dtype)
    loss, gradient = loss_and_gradient(ads, member, method=method, reduction="none")
    expected = reference.pairwise(*ads.lists(), **member._asdict())
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()
    assert worst(loss, [one.loss for one in expected], [one.magnitude or 1 for one in expected]) < error
    assert loss[0] == loss[1] == 0  # one ad, and none, have no pairs


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_the_log_loss_is_exact_to_a_rounding_of_the_logit(dtype, error):
    """So the loss of a tiny CTR has no digits in float32, but its gradient has all of them."""
    logits = torch.tensor(LOGITS, dtype=dtype, requires_grad=True)
    for clicked in (0.0, 1.0):
        clicks = torch.full_like(logits, clicked)
        losses = log_loss(logits, clicks, reduction="none")
        (gradient,) = torch.autograd.grad(losses.sum(), logits)
        expected = reference.log_loss(logits.tolist(), clicks.tolist())
        assert worst(losses.detach(), expected[0], [max(abs(z), 1) for z in logits.tolist()]) < error
        assert worst(gradient, expected[1], [1.0] * len(logits) if clicked else expected[1]) < error


def training_ads(dtype, ids, auctions):
    """Ads with heavy bids and next to no clicks, in one auction a batch, or in auctions of 0 to 7 ads."""
    random = torch.Generator().manual_seed(0)
    count = 256
    bids = 10 ** (16 * torch.rand(count, generator=random, dtype=torch.float64) - 8)
    clicks = torch.zeros(count, dtype=dtype)
    clicks[5] = 1
    features = (
        torch.randint(0, 9, (count, 3), generator=random) if ids else 40 * torch.randn(count, 2, generator=random)
    )
    sizes = torch.tensor([1, 0, 7] * 32)
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)) if auctions else None
    teacher = torch.full((count,), 1e-7, dtype=dtype)
    return Ads(features if ids else features.to(dtype), clicks, bids.to(dtype), offsets, teacher=teacher)


@pytest.mark.parametrize("auctions", [False, True], ids=["drawn", "auctions"])
@pytest.mark.parametrize("precision", ["float32", "mixed", "float64"])
@pytest.mark.parametrize("name", LOSSES)
def test_training_stays_finite(name, precision, auctions):
    dtype = torch.float64 if precision == "float64" else torch.float32
    options = {"batch_size": 64, "epochs": 2, "precision": "mixed" if precision == "mixed" else "float32"}
    for ids in (False, True):
        model = DeepFM([9] * 3, hidden=[8], seed=0) if ids else LogisticRegression(2)
        with torch.no_grad():
            next(p for key, p in model.named_parameters() if "bias" in key).fill_(RARE)
        found = fit(model.to(dtype), training_ads(dtype, ids, auctions), loss=name, **options)
        assert all(math.isfinite(float(entry["loss"])) for entry in found.history)
        assert all(bool(torch.isfinite(x).all()) for x in model.state_dict().values())


MILLION = ["log", "hinge"] if not os.environ.get("BIDWISE_LONG") else list(LOSSES)


@pytest.mark.parametrize("name", MILLION)
def test_a_million_ads_in_one_auction(name):
    """No pairs are held: single precision agrees with double."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2**20, generator=random) - 4
    clicks = (torch.rand(2**20, generator=random) < torch.sigmoid(logits)).float()
    noise, bids = torch.randn(2**20, generator=random), torch.exp(0.5 * torch.randn(2**20, generator=random))
    teacher = torch.sigmoid(logits + 0.5 * noise)
    found = []
    for dtype in (torch.float32, torch.float64):
        z, *others = (x.to(dtype) for x in (logits, clicks, bids, teacher))
        z.requires_grad_()
        loss = LOSSES[name](z, others[0], others[1], None, others[2])
        (gradient,) = torch.autograd.grad(loss, z)
        found.append((loss.item(), gradient.double()))
    (single, slope), (double, exact) = found
    assert single == pytest.approx(double, rel=1e-4)
    assert float((slope - exact).norm() / exact.norm()) < 1e-3


def test_an_auction_of_large_bids_and_rare_clicks_is_measured():
    random = np.random.default_rng(0)
    bids, ctr = 10 ** random.uniform(-8, 8, 600), 10 ** random.uniform(-7, -1, 600)
    clicks = (random.random(600) < 0.02).astype(float)
    table = {"ctr": ctr, "click": clicks, "bid": bids, "auction": np.arange(600) // 3}
    found = bidwise.evaluate(table, ctr=["ctr"], click="click", bid="bid", auction="auction")
    best = (bids * ctr).reshape(-1, 3).argmax(1)
    expected = (bids * clicks).reshape(-1, 3)[np.arange(200), best].mean()
    assert found.models["ctr"].welfare == pytest.approx(expected, rel=1e-12)


# Probabilities in the place of logits.


def predictions(count=2000, rate=-2.0, seed=0):
    random = torch.Generator().manual_seed(seed)
    logits = rate + torch.randn(count, generator=random)
    clicks = (torch.rand(count, generator=random) < torch.sigmoid(logits)).float()
    return logits, clicks, torch.ones(count)


CALLS = {
    "pairwise": lambda z, y, b: bidwise.pairwise_welfare_loss(z, y, b, gap="positive"),
    "welfare_loss": lambda z, y, b: bidwise.WelfareLoss()(z, y, b),
    "log_loss": lambda z, y, b: log_loss(z, y),
    "named": lambda z, y, b: LOSSES["bid_weighted"](z, y, b),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("rate", [-4.0, -2.0, 0.0])
def test_probabilities_passed_as_logits_are_noticed(call, rate):
    logits, clicks, bids = predictions(rate=rate)
    call(logits, clicks, bids)  # warnings are errors here
    with pytest.warns(UserWarning, match=r"logits must be logits, found 2,000 numbers in \[0, 1\].*are they CTRs"):
        call(torch.sigmoid(logits), clicks, bids)


@pytest.mark.parametrize("rate", [-4.0, -2.0, 0.0, 0.5, 1.0])
def test_logits_that_happen_to_lie_in_0_to_1_are_not(rate):
    random = torch.Generator().manual_seed(0)
    _, clicks, bids = predictions(rate=rate)
    for logits in (0.6 + 0.1 * torch.rand(2000, generator=random), torch.rand(2000, generator=random)):
        honest = (torch.rand(2000, generator=random) < torch.sigmoid(logits)).float()
        for call in CALLS.values():
            call(logits, honest, bids)
            if rate < 0:
                call(logits, clicks, bids)  # a CTR would have the mean of the clicks
    for call in CALLS.values():
        call(torch.full((2000,), 0.5), clicks, bids)  # a constant is an untrained model
        call(torch.sigmoid(predictions(50)[0]), predictions(50)[1], torch.ones(50))  # too few to say


def test_the_doctor_says_so_too():
    logits, clicks, bids = predictions()
    (finding,) = [f for f in diagnose(torch.sigmoid(logits), clicks, bids).alarms if "look like CTR" in f.name]
    assert finding.advice.startswith("Pass torch.logit(ctr)")
    assert not [f for f in diagnose(logits, clicks, bids).alarms if "look like CTR" in f.name]


def test_a_metric_for_boosting_notices_ctr():
    logits, clicks, bids = (x.double().numpy() for x in predictions())
    metric = bidwise.welfare_metric(bids, auction_size=10)
    metric(clicks, logits)
    with pytest.warns(UserWarning, match=r"predictions must be logits.*pass raw=False"):
        metric(clicks, 1 / (1 + np.exp(-logits)))


class Sigmoid(torch.nn.Module):
    def __init__(self, ending):
        super().__init__()
        self.line, self.ending = torch.nn.Linear(2, 1), ending

    def forward(self, features):
        return self.ending(self.line(features))


ENDINGS = {
    "squeezed": lambda z: torch.sigmoid(z).squeeze(-1),
    "selected": lambda z: z.sigmoid()[:, 0],
    "flat": lambda z: torch.nn.Sigmoid()(z.flatten()),
    "reshaped": lambda z: torch.sigmoid(z).view(-1, 1).reshape(-1),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_fit_refuses_a_model_that_ends_in_a_sigmoid(ending):
    ads = Ads(torch.randn(40, 2), torch.arange(40) % 2.0, torch.ones(40))
    with pytest.raises(bidwise.InputError, match="model must return logits, found the CTR that a sigmoid makes"):
        fit(Sigmoid(ending), ads, epochs=1)


def test_a_sigmoid_inside_of_a_model_is_its_own_affair():
    ads = Ads(torch.randn(40, 2), torch.arange(40) % 2.0, torch.ones(40))
    fit(Sigmoid(lambda z: 4 * torch.sigmoid(z).squeeze(-1) - 2), ads, epochs=1)
