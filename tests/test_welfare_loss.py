"""WelfareLoss is rank term + lam * log loss; LOSSES names the losses of the paper and the baselines."""

from copy import deepcopy

import pytest
import reference
import torch
from helpers import MEMBERS, random_auctions, stack

import bidwise

LOGISTIC = {"surrogate": "logistic"}
RANK = {
    "log": LOGISTIC | {"value": "clicks", "gap": "signed"},
    "log_weighted": LOGISTIC | {"value": "clicks", "gap": "signed", "weighting": 3.0},
    "hinge": {"value": "clicks", "gap": "signed", "surrogate": "hinge"},
    "log_teacher": LOGISTIC | {"value": "teacher", "gap": "signed", "weighting": 3.0},
    "hinge_plus_teacher": {"value": "teacher", "gap": "positive", "surrogate": "hinge", "weighting": 3.0},
    "log_plus": LOGISTIC | {"value": "clicks", "gap": "positive"},
    "log_plus_teacher": LOGISTIC | {"value": "teacher", "gap": "positive"},
    "ranknet": LOGISTIC | {"value": "clicks", "gap": "order"},
}
POINTWISE = {
    "log_loss": lambda clicks, bids, teacher: (clicks, None),
    "bid_weighted": lambda clicks, bids, teacher: (clicks, bids),
    "sqrt_bid_weighted": lambda clicks, bids, teacher: (clicks, [b**0.5 for b in bids]),
    "distilled": lambda clicks, bids, teacher: (teacher, None),
}
NAMES = [*RANK, *POINTWISE]
NEED_TEACHER = ["log_weighted", "log_teacher", "hinge_plus_teacher", "log_plus_teacher", "distilled"]

every_name = pytest.mark.parametrize("name", NAMES)


def loss_and_gradient(criterion, ads):
    logits = ads.logits.detach().clone().requires_grad_()
    loss = criterion(logits, ads.clicks, ads.bids, ads.offsets, ads.teacher)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach(), gradient


def expected_loss(name, ads):
    """Loss and gradient of a named loss by the reference."""
    logits, clicks, bids, offsets, teacher = ads.lists()
    if name in RANK:
        return reference.welfare_loss(logits, clicks, bids, offsets, teacher, **RANK[name])
    return reference.mean_log_loss(logits, *POINTWISE[name](clicks, bids, teacher))


# WelfareLoss


@pytest.mark.parametrize("member", MEMBERS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_equals_the_reference(member, reduction):
    ads = random_auctions(seed=1)
    options = member._asdict() | {"sigma": 2.0, "lam": 0.7, "reduction": reduction}
    loss, gradient = loss_and_gradient(bidwise.WelfareLoss(**options), ads)
    expected, slopes = reference.welfare_loss(*ads.lists(), **options)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_is_the_rank_term_plus_lam_times_the_log_loss(reduction):
    ads = random_auctions(seed=2)
    rank = bidwise.pairwise_welfare_loss(
        *ads.positional(), gap="positive", reduction=reduction, pair_mean=reduction == "mean"
    )
    log_loss = bidwise.log_loss(ads.logits, ads.clicks, reduction=reduction)
    found = bidwise.WelfareLoss(gap="positive", reduction=reduction, lam=5.0)(*ads.positional())
    torch.testing.assert_close(found, rank + 5.0 * log_loss)


def test_lam_is_3_unless_told():
    ads = random_auctions(seed=3)
    torch.testing.assert_close(
        bidwise.WelfareLoss()(*ads.positional()), bidwise.WelfareLoss(lam=3.0)(*ads.positional())
    )


def test_lam_of_0_leaves_the_rank_term():
    ads = random_auctions(seed=4)
    found = bidwise.WelfareLoss(gap="positive", lam=0.0)(*ads.positional())
    torch.testing.assert_close(found, bidwise.pairwise_welfare_loss(*ads.positional(), gap="positive"))


def test_methods_agree():
    ads = random_auctions(seed=5, sizes=[30, 20])
    direct, fast = (bidwise.WelfareLoss(method=method)(*ads.positional()) for method in ("direct", "fast"))
    torch.testing.assert_close(direct, fast)


def test_reduction_none_is_refused():
    ads = random_auctions(seed=6)
    with pytest.raises(ValueError, match=r"reduction.*none"):
        bidwise.WelfareLoss(reduction="none")(*ads.positional())


def test_is_a_module_without_state():
    criterion = bidwise.WelfareLoss(gap="positive", sigma=2.0)
    assert isinstance(criterion, torch.nn.Module)
    assert list(criterion.parameters()) == []
    assert criterion.state_dict() == {}
    ads = random_auctions(seed=7)
    torch.testing.assert_close(deepcopy(criterion)(*ads.positional()), criterion(*ads.positional()))


# LOSSES


def test_losses_are_exactly_the_named_ones():
    assert sorted(bidwise.LOSSES) == sorted(NAMES)


@pytest.mark.parametrize("error", [KeyError, bidwise.InputError])
def test_an_unknown_loss_suggests_the_nearest(error):
    with pytest.raises(error, match=r"^loss must be one of .*, found 'logplus'; did you mean 'log_plus'\?$"):
        bidwise.LOSSES["logplus"]
    assert bidwise.LOSSES.get("logplus") is None


def test_other_options_leave_the_loss_as_it_was():
    loss = bidwise.WelfareLoss(gap="positive", lam=0.5)
    other = loss.with_options(sigma=2, reduction="sum", pair_mean=None)
    assert (other.options.gap, other.options.sigma, other.options.pair_mean, other.lam) == ("positive", 2.0, False, 0.5)
    assert (loss.options.sigma, loss.options.reduction, loss.options.pair_mean) == (1.0, "mean", True)


@every_name
@pytest.mark.parametrize("ties", [False, True], ids=["spread", "ties"])
def test_each_loss_equals_the_reference(name, ties):
    ads = random_auctions(seed=8, sizes=[6, 1, 4, 0, 3], ties=ties)
    loss, gradient = loss_and_gradient(bidwise.LOSSES[name], ads)
    expected, slopes = expected_loss(name, ads)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-10, abs=1e-12)


@every_name
def test_each_loss_takes_one_auction_without_offsets(name):
    ads = random_auctions(seed=9, sizes=[8])
    loss, _ = loss_and_gradient(bidwise.LOSSES[name], ads.but(offsets=None))
    assert loss.item() == pytest.approx(expected_loss(name, ads)[0], rel=1e-12)


@every_name
def test_each_loss_takes_leading_dimensions(name):
    rows = [random_auctions(seed=seed, sizes=[3, 4]) for seed in range(3)]
    loss, gradient = loss_and_gradient(bidwise.LOSSES[name], stack(*rows))
    expected = [loss_and_gradient(bidwise.LOSSES[name], row) for row in rows]
    torch.testing.assert_close(loss, torch.stack([one for one, _ in expected]))
    torch.testing.assert_close(gradient, torch.stack([slope for _, slope in expected]))


@every_name
@pytest.mark.parametrize("offsets", [None, [0], [0, 0]], ids=str)
def test_each_loss_of_an_empty_batch_is_0_with_a_gradient(name, offsets):
    ads = random_auctions(seed=0, sizes=[]).but(offsets=None if offsets is None else torch.tensor(offsets))
    loss, gradient = loss_and_gradient(bidwise.LOSSES[name], ads)
    assert (loss.item(), gradient.shape) == (0.0, (0,))


@every_name
def test_each_loss_is_finite_for_extreme_input(name):
    for dtype in (torch.float32, torch.float64):
        ads = random_auctions(seed=10, sizes=[40, 1, 20], dtype=dtype, heavy=True, ties=True)
        ads = ads.but(logits=torch.where(ads.logits > 0, 1e4 * ads.logits.sign(), ads.logits))
        loss, gradient = loss_and_gradient(bidwise.LOSSES[name], ads)
        assert loss.isfinite()
        assert gradient.isfinite().all()


@every_name
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_each_loss_of_half_precision_is_float32(name, dtype):
    ads = random_auctions(seed=11, dtype=torch.float32)
    loss, gradient = loss_and_gradient(bidwise.LOSSES[name], ads.but(logits=ads.logits.to(dtype)))
    assert (loss.dtype, gradient.dtype) == (torch.float32, dtype)


@every_name
@pytest.mark.parametrize("dtype", [torch.int64, torch.float16], ids=str)
def test_each_loss_takes_bids_of_any_real_type(name, dtype):
    ads = random_auctions(seed=17)
    ads = ads.but(bids=ads.bids.ceil())  # whole numbers, the same in every type
    found = loss_and_gradient(bidwise.LOSSES[name], ads.but(bids=ads.bids.to(dtype)))
    for one, same in zip(found, loss_and_gradient(bidwise.LOSSES[name], ads), strict=True):
        torch.testing.assert_close(one, same, rtol=1e-12, atol=1e-14)


@every_name
def test_bids_clicks_and_teacher_are_constants(name):
    ads = random_auctions(seed=12).map(lambda x: x.clone().requires_grad_())
    loss = bidwise.LOSSES[name](*ads.positional(), ads.teacher)
    constants = torch.autograd.grad(loss, [ads.bids, ads.clicks, ads.teacher], allow_unused=True)
    assert constants == (None, None, None)


@every_name
def test_each_loss_never_mutates_its_arguments(name):
    ads = random_auctions(seed=13, ties=True)
    copy = ads.map(torch.clone)
    loss_and_gradient(bidwise.LOSSES[name], ads)
    for argument in ("logits", "clicks", "bids", "teacher"):
        assert torch.equal(getattr(ads, argument), getattr(copy, argument)), argument


@pytest.mark.parametrize("name", NEED_TEACHER)
def test_a_missing_teacher_is_named(name):
    with pytest.raises(ValueError, match="teacher"):
        bidwise.LOSSES[name](*random_auctions(seed=14).positional())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEED_TEACHER])
def test_the_other_losses_need_no_teacher(name):
    ads = random_auctions(seed=15)
    with_teacher = bidwise.LOSSES[name](*ads.positional(), ads.teacher)
    torch.testing.assert_close(bidwise.LOSSES[name](*ads.positional()), with_teacher)


@every_name
def test_three_steps_of_training_lower_the_loss(name):
    ads = random_auctions(seed=16, sizes=[8, 8, 1, 7], dtype=torch.float32)
    features = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(3, 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(4):
        loss = bidwise.LOSSES[name](
            model(features).squeeze(-1), ads.clicks, ads.bids, offsets=ads.offsets, teacher=ads.teacher
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
