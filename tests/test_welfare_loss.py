"""WelfareLoss is rank term + lam * log loss; LOSSES names the losses of the paper and the baselines."""

import pytest
import reference
import torch
from helpers import MEMBERS, of_named_loss, random_auctions, some_weights, stack

import bidwise
from bidwise import InputError, WelfareLoss
from bidwise.losses.named import named_loss, unchecked

PAPER = {"surrogate": "logistic", "value": "clicks", "gap": "signed", "weighting": None, "unit": 1.0}
OURS = PAPER | {"gap": "positive", "unit": "batch"}
RANK = {
    "log": PAPER,
    "log_weighted": PAPER | {"weighting": 3.0},
    "hinge": PAPER | {"surrogate": "hinge"},
    "log_teacher": PAPER | {"value": "teacher", "weighting": 3.0},
    "log_teacher_unweighted": PAPER | {"value": "teacher"},
    "hinge_plus_teacher": PAPER | {"value": "teacher", "gap": "positive", "surrogate": "hinge", "weighting": 3.0},
    "log_plus": OURS,
    "log_plus_teacher": OURS | {"value": "teacher"},
    "ranknet": PAPER | {"gap": "order"},
}
POINTWISE = {
    "log_loss": lambda clicks, bids, teacher: (clicks, None),
    "bid_weighted": lambda clicks, bids, teacher: (clicks, bids),
    "sqrt_bid_weighted": lambda clicks, bids, teacher: (clicks, [b**0.5 for b in bids]),
    "distilled": lambda clicks, bids, teacher: (teacher, None),
}
NAMES = [*RANK, *POINTWISE]
NEED_TEACHER = ["log_weighted", "distilled", *(name for name in RANK if "teacher" in name)]

every_name = pytest.mark.parametrize("name", NAMES)


def expected_loss(name, ads, weights):
    """Loss and gradient of a named loss by the reference."""
    logits, clicks, bids, offsets, teacher = ads.lists()
    if name in RANK:
        return reference.welfare_loss(logits, clicks, bids, offsets, teacher, weights=weights, **RANK[name])
    labels, factors = POINTWISE[name](clicks, bids, teacher)
    both = [w * b for w, b in zip(weights, factors or [1.0] * len(bids), strict=True)]
    return reference.mean_log_loss(logits, labels, both)


# WelfareLoss


@pytest.mark.parametrize("member", MEMBERS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("unit", ["batch", 1.0, 0.3])
@pytest.mark.parametrize("weights", [None, some_weights(13)], ids=["plain", "weighted"])
def test_equals_the_reference(member, reduction, unit, weights):
    ads = random_auctions(seed=1)
    options = member._asdict() | {"sigma": 2.0, "lam": 0.7, "reduction": reduction, "unit": unit}
    loss, gradient = of_named_loss(WelfareLoss(**options), ads, weights)
    listed = None if weights is None else weights.tolist()
    expected, slopes = reference.welfare_loss(*ads.lists(), **options, weights=listed)
    assert loss.item() == pytest.approx(expected, rel=1e-11)
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("member", MEMBERS, ids=str)
@pytest.mark.parametrize("options", [{}, {"method": "direct"}, {"method": "fast"}, {"lam": torch.tensor(2.0)}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_currency_does_not_matter(member, options, dtype):
    ads = random_auctions(seed=5, sizes=[30, 1, 20], dtype=dtype)
    loss = WelfareLoss(**member._asdict(), **options)
    in_euros, in_mills = (of_named_loss(loss, ads.but(bids=rate * ads.bids)) for rate in (1, 1000))
    for one, same in zip(in_euros, in_mills, strict=True):
        torch.testing.assert_close(one, same)


def test_other_options_leave_the_loss_as_it_was():
    loss = WelfareLoss(gap="signed", lam=0.5, unit=2.0)
    other = loss.with_options(sigma=2, reduction="sum", pair_mean=None)
    assert (other.options.gap, other.options.sigma, other.options.pair_mean) == ("signed", 2.0, False)
    assert (other.lam, other.unit) == (0.5, 2.0)
    assert (loss.options.sigma, loss.options.reduction, loss.options.pair_mean) == (1.0, "mean", True)


@pytest.mark.parametrize(
    "other_of", [lambda loss: loss.with_options(sigma=2.0), unchecked], ids=["options", "unchecked"]
)
def test_copies_share_no_lam(other_of):
    lam = torch.tensor([1.0, 2.0])
    loss = WelfareLoss(lam=lam)
    other = other_of(loss)
    other.lam.zero_()
    other.double()
    lam += 1
    assert torch.equal(loss.lam, torch.tensor([1.0, 2.0]))


# LOSSES


def test_losses_are_exactly_the_named_ones():
    assert sorted(bidwise.LOSSES) == sorted(NAMES)
    assert len(bidwise.LOSSES) == len(NAMES)


@pytest.mark.parametrize("error", [KeyError, InputError])
def test_an_unknown_loss_suggests_the_nearest(error):
    with pytest.raises(error, match="did you mean 'log_plus'"):
        bidwise.LOSSES["logplus"]
    assert bidwise.LOSSES.get("logplus") is None
    assert "logplus" not in bidwise.LOSSES


def test_a_named_loss_cannot_be_changed_for_others():
    for name, changes in (("log_plus", {"lam": 0.5, "unit": 1.0}), ("log_loss", {"power": 1.0, "validate": False})):
        changed, before = bidwise.LOSSES[name], repr(bidwise.LOSSES[name])
        for attribute, value in changes.items():
            setattr(changed, attribute, value)
        assert repr(changed) != before == repr(bidwise.LOSSES[name])
    with pytest.raises(TypeError):
        bidwise.LOSSES["log_plus"] = changed


def test_log_plus_is_the_default():
    assert repr(bidwise.LOSSES["log_plus"]) == repr(WelfareLoss()) == repr(WelfareLoss(gap="positive", lam=3.0))
    assert repr(named_loss("log_plus", lam=0.1, unit=1.0)) == repr(WelfareLoss(lam=0.1, unit=1.0))
    assert repr(named_loss("distilled", lam=0.1)) == repr(bidwise.LOSSES["distilled"])


@every_name
@pytest.mark.parametrize("ties", [False, True], ids=["spread", "ties"])
@pytest.mark.parametrize("sizes", [[6, 1, 4, 0, 3], None], ids=["auctions", "one"])
@pytest.mark.parametrize("weighted", [False, True])
def test_each_loss_equals_the_reference(name, ties, sizes, weighted):
    ads = random_auctions(seed=8, sizes=sizes or [8], ties=ties)
    ads = ads if sizes else ads.but(offsets=None)
    weights = some_weights(len(ads.bids)) if weighted else None
    loss, gradient = of_named_loss(bidwise.LOSSES[name], ads, weights)
    expected, slopes = expected_loss(name, ads, weights.tolist() if weighted else [1.0] * len(ads.bids))
    assert loss.item() == pytest.approx(expected, rel=1e-11)
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-9, abs=1e-12)


@every_name
def test_each_loss_takes_leading_dimensions(name):
    rows, weights = [random_auctions(seed=seed, sizes=[3, 4]) for seed in range(3)], some_weights(3, 7)
    loss, gradient = of_named_loss(bidwise.LOSSES[name], stack(*rows), weights)
    expected = [of_named_loss(bidwise.LOSSES[name], row, w) for row, w in zip(rows, weights, strict=True)]
    torch.testing.assert_close(loss, torch.stack([one for one, _ in expected]))
    torch.testing.assert_close(gradient, torch.stack([slope for _, slope in expected]))


@every_name
@pytest.mark.parametrize("dtype", [torch.int64, torch.float16], ids=str)
def test_each_loss_takes_clicks_and_bids_of_any_real_type(name, dtype):
    ads = random_auctions(seed=17)
    ads = ads.but(bids=ads.bids.ceil())  # whole numbers, the same in every type
    clicks = ads.clicks.to(torch.bool if dtype == torch.int64 else dtype)
    found = of_named_loss(bidwise.LOSSES[name], ads.but(clicks=clicks, bids=ads.bids.to(dtype)))
    for one, same in zip(found, of_named_loss(bidwise.LOSSES[name], ads), strict=True):
        torch.testing.assert_close(one, same, rtol=1e-6, atol=1e-7)


@every_name
def test_other_arguments_are_constants_and_stay_as_they_are(name):
    ads = random_auctions(seed=12, ties=True).map(lambda x: x.clone().requires_grad_())
    before, weights = ads.map(lambda x: x.detach().clone()), some_weights(13).requires_grad_()
    loss = bidwise.LOSSES[name](*ads.positional(), ads.teacher, weights)
    constants = torch.autograd.grad(loss, [ads.bids, ads.clicks, ads.teacher, weights], allow_unused=True)
    assert constants == (None, None, None, None)
    assert torch.equal(weights, some_weights(13))
    for argument in ("logits", "clicks", "bids", "teacher"):
        assert torch.equal(getattr(ads, argument), getattr(before, argument)), argument


@every_name
def test_a_missing_teacher_is_named_where_it_is_needed(name):
    ads = random_auctions(seed=14)
    if name in NEED_TEACHER:
        with pytest.raises(InputError, match=r"^teacher must be given"):
            bidwise.LOSSES[name](*ads.positional())
    else:
        with_teacher = bidwise.LOSSES[name](*ads.positional(), ads.teacher)
        torch.testing.assert_close(bidwise.LOSSES[name](*ads.positional()), with_teacher)
