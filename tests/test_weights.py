"""Weights say how much ads count, exposure how visible they were: in losses, metrics, batches and training."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import reference
import torch
from helpers import MEMBERS, of_named_loss, random_auctions, seeded, some_weights
from helpers import stack as stack_batches

import bidwise
from bidwise import InputError, WelfareLoss
from bidwise.data import Ads
from bidwise.losses.named import unchecked
from bidwise.training import METRICS, Variants

SIZES = (5, 1, 3, 0, 4)
every_loss = pytest.mark.parametrize("name", bidwise.LOSSES)


# losses


@every_loss
@pytest.mark.parametrize("bounds", [None, [0], [0, 0, 0]])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_ads_cost_nothing(name, bounds, weighted):
    logits, none = torch.zeros(0, requires_grad=True), torch.zeros(0)
    offsets, more = None if bounds is None else torch.tensor(bounds), [none] if weighted else []
    loss = bidwise.LOSSES[name](logits, none, none, offsets, none, *more)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.shape == (0,)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_and_logits_of_half_precision(name, dtype):
    ads = random_auctions(seed=7).map(lambda x: x.to(dtype))
    weights = torch.arange(1, 14)
    found, gradient = of_named_loss(bidwise.LOSSES[name], ads, weights.to(dtype))
    expected, slopes = of_named_loss(bidwise.LOSSES[name], ads.map(lambda x: x.float()), weights.float())
    assert (found.dtype, gradient.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, slopes.to(dtype))


@every_loss
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(12), r"weights must have the shape of logits, \(13,\), found \(12,\)"),
        (-torch.ones(13), r"weights must be finite and no less than 0, found -1 at \[0\] and 12 more"),
        (torch.full((13,), math.nan), "weights must be finite and no less than 0, found nan"),
        (torch.full((13,), math.inf), "weights must be finite and no less than 0, found inf"),
    ],
)
def test_bad_weights_are_refused(name, weights, message):
    with pytest.raises(InputError, match=message):
        of_named_loss(bidwise.LOSSES[name], random_auctions(seed=0), weights)


# labels above 1: clicks over the multiplier of their slot


@pytest.mark.parametrize("member", MEMBERS, ids=str)
@pytest.mark.parametrize("method", ["direct", "fast", "auto"])
def test_unchecked_losses_take_labels_above_1(member, method):
    if method == "fast" and member.surrogate == "indicator":
        method = "direct"
    ads = random_auctions(seed=9, sizes=(5, 1, 30, 0, 4))
    ads = ads.but(clicks=ads.clicks * (1 + 9 * torch.rand(40, generator=seeded(), dtype=torch.float64)))
    assert ads.clicks.max() > 1
    options = member._asdict() | {"lam": 0.7, "unit": 1.0}
    loss = WelfareLoss(**options, method=method)
    found, gradient = of_named_loss(unchecked(loss), ads)
    expected, slopes = reference.welfare_loss(*ads.lists(), **options)
    assert found.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    torch.testing.assert_close(gradient, torch.tensor(slopes, dtype=torch.float64), rtol=1e-7, atol=1e-9)
    with pytest.raises(InputError, match=r"clicks must be in \[0, 1\]"):
        of_named_loss(loss, ads)


@every_loss
def test_an_unchecked_loss_is_the_same_and_leaves_the_other_as_it_was(name):
    loss, ads, weights = bidwise.LOSSES[name], random_auctions(seed=10), some_weights(13)
    free = unchecked(loss)
    before = repr(loss)
    for found, expected in zip(of_named_loss(free, ads, weights), of_named_loss(loss, ads, weights), strict=True):
        assert torch.equal(found, expected)
    of_named_loss(free, ads.but(bids=-ads.bids))  # the caller has checked them, or is to blame
    with pytest.raises(InputError, match="bids must be finite and above 0"):
        of_named_loss(loss, ads.but(bids=-ads.bids))
    assert repr(loss) == before


def test_variants_pass_weights_to_each_loss():
    losses = [(bidwise.LOSSES["log_loss"], 1), (WelfareLoss(gap="positive"), 2), (bidwise.LOSSES["log_teacher"], 1)]
    ads = stack_batches(*(random_auctions(seed=seed, sizes=(3, 4)) for seed in range(4)))
    weights = some_weights(4, 7)
    found, gradient = of_named_loss(Variants(losses), ads, weights)
    unweighted, _ = of_named_loss(Variants(losses), ads)
    assert found.shape == (4,)
    assert not torch.isclose(found, unweighted).any()
    for k, loss in enumerate([losses[0][0], losses[1][0], losses[1][0], losses[2][0]]):
        one, slopes = of_named_loss(loss, ads.map(lambda x, k=k: x[k]), weights[k])
        torch.testing.assert_close(found[k], one)
        torch.testing.assert_close(gradient[k], slopes)


# metrics


def auctions_of_ads(sizes):
    """Ads with weights and exposure, one column of features."""
    random, count = seeded(), sum(sizes)

    def drawn():
        return torch.rand(count, generator=random, dtype=torch.float64)

    return Ads(
        drawn().unsqueeze(-1),
        (drawn() < 0.5).double(),
        drawn() + 0.5,
        torch.tensor([0, *sizes]).cumsum(0),
        truth=drawn(),
        weights=0.1 + 3 * drawn(),
        exposure=0.2 + 0.8 * drawn(),
    )


def welfare_by_hand(logits, worth, bids, weights, bounds):
    """What auctions are worth on average; each counts the mean weight of its ads."""
    total, counted, auctions = [], [], 0
    for a, b in pairwise(bounds):
        auctions += 1
        if a == b:
            continue
        ecpm = [reference.sigmoid(z) * bid for z, bid in zip(logits[a:b], bids[a:b], strict=True)]
        count = math.fsum(weights[a:b]) / (b - a)
        total.append(count * worth[a + ecpm.index(max(ecpm))])
        counted.append(count)
    return math.fsum(total) / (math.fsum(counted) / len(counted)) / auctions


@pytest.mark.parametrize("sizes", [SIZES, (3, 3, 3), (6,), (0, 0, 4)])
@pytest.mark.parametrize("exposed", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_metrics_count_ads_by_their_weights(sizes, exposed, weighted):
    ads = auctions_of_ads(sizes)
    ads = replace(ads, **({} if exposed else {"exposure": None}), **({} if weighted else {"weights": None}))
    logits = torch.randn(len(ads), generator=seeded(1), dtype=torch.float64)
    z, y, b, truth = (x.tolist() for x in (logits, ads.clicks, ads.bids, ads.truth))
    w = ads.weights.tolist() if weighted else [1.0] * len(ads)
    labels = [c / e for c, e in zip(y, ads.exposure.tolist(), strict=True)] if exposed else y
    bounds = ads.offsets.tolist()
    expected = {
        "welfare": welfare_by_hand(z, [p * q for p, q in zip(b, labels, strict=True)], b, w, bounds),
        "expected_welfare": welfare_by_hand(z, [p * q for p, q in zip(b, truth, strict=True)], b, w, bounds),
        "log_loss": math.fsum(reference.log_loss(z, labels, w)[0]) / math.fsum(w),
    }
    for name, number in expected.items():
        assert METRICS[name].of(logits, ads).item() == pytest.approx(number, rel=1e-12)
