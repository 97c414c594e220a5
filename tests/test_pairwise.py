"""The pairwise family equals its definition and keeps its laws."""

import mpmath
import pytest
import reference
import torch
from helpers import (
    DEVICE,
    MEMBERS,
    PROPERTY,
    auctions,
    loss_and_gradient,
    members,
    pairwise,
    random_auctions,
    seeds,
    stack,
    worst,
)
from hypothesis import given
from hypothesis import strategies as st

every_member = pytest.mark.parametrize("member", MEMBERS, ids=str)
sigmas = st.sampled_from([0.1, 1.0, 3.0])


# The definition


@every_member
@pytest.mark.parametrize("method", ["direct", "auto"])
@pytest.mark.parametrize("ties", [False, True], ids=["spread", "ties"])
@pytest.mark.parametrize("heavy", [False, True], ids=["even", "heavy"])
def test_equals_the_reference(member, method, ties, heavy):
    for pair_mean, sigma in [(True, 1.0), (False, 0.3)]:
        ads = random_auctions(seed=1, sizes=[6, 1, 0, 9, 2], ties=ties, heavy=heavy)
        options = member._asdict() | {"sigma": sigma, "pair_mean": pair_mean}
        found, gradient = loss_and_gradient(ads, member, **options, reduction="none", method=method)
        expected = reference.pairwise(*ads.lists(), **options)
        assert worst(found, [one.loss for one in expected], [one.magnitude for one in expected]) < 1e-12
        slopes = [slope for one in expected for slope in one.gradient]
        assert worst(gradient, slopes, max(map(abs, slopes))) < 1e-11


@every_member
def test_agrees_with_mpmath_at_logits_of_100(member):
    ads = random_auctions(seed=4, sizes=[5])
    ads = ads.but(logits=torch.tensor([-100.0, 100.0, 0.25, -1.5, 100.0], dtype=torch.float64))
    logits, clicks, bids, _, teacher = ads.lists()

    def exact_loss(*z):
        def sigmoid(x):
            return 1 / (1 + mpmath.exp(-x))

        s = [b * sigmoid(x) for b, x in zip(bids, z, strict=True)]
        y = teacher if member.value == "teacher" else clicks
        v = [mpmath.mpf(b) * p for b, p in zip(bids, y, strict=True)]
        total = mpmath.mpf(0)
        for i in range(5):
            for j in range(5):
                x = v[i] - v[j]
                gap = {"signed": x, "positive": max(x, 0), "order": int(x > 0)}[member.gap]
                x = s[i] - s[j]
                phi = {"logistic": mpmath.log(1 + mpmath.exp(-x)), "hinge": max(-x, 0)}.get(
                    member.surrogate, int(x <= 0)
                )
                weight = 1
                if member.weighting:
                    weight = sigmoid(3 * mpmath.mpf(bids[i]) * teacher[i]) * sigmoid(3 * s[j])
                total += weight * gap * phi
        return total / 25

    with mpmath.workdps(80):
        expected = float(exact_loss(*logits))
        slopes = [
            float(mpmath.diff(lambda x, k=k: exact_loss(*logits[:k], x, *logits[k + 1 :]), logits[k])) for k in range(5)
        ]
    found, gradient = loss_and_gradient(ads, member)
    assert found.item() == pytest.approx(expected, rel=1e-12)
    assert worst(gradient, slopes, max(map(abs, slopes))) < 1e-11


@every_member
@pytest.mark.parametrize("method", ["direct", "fast"])
def test_equal_ads_tie(member, method):
    """Of 30 equal logits in float64, torch.sigmoid rounds the last ones differently from the others."""
    ads = random_auctions(seed=40, sizes=[30]).map(lambda x: x.to(DEVICE))
    equal = {name: torch.full_like(ads.logits, x) for name, x in [("logits", -0.2472781538963318), ("bids", 2.0)]}
    ads = ads.but(**equal, offsets=None)
    found, gradient = loss_and_gradient(ads, member, method=method)
    (expected,) = reference.pairwise(*ads.lists(), **member._asdict())
    assert worst(found.cpu(), expected.loss, max(expected.magnitude, 1)) < 1e-12
    assert worst(gradient.cpu(), expected.gradient, max(map(abs, expected.gradient)) or 1) < 1e-11


# Reductions, shapes and types


@PROPERTY
@given(auctions, members)
def test_sum_and_mean_reduce_the_auctions(ads, member):
    none = pairwise(ads, member, reduction="none")
    assert none.shape == (len(ads.bounds()),)
    torch.testing.assert_close(pairwise(ads, member, reduction="sum"), none.sum())
    torch.testing.assert_close(pairwise(ads, member, reduction="mean"), none.mean())
    torch.testing.assert_close(pairwise(ads, member), none.mean())


@every_member
def test_each_auction_passes_its_own_gradient_on(member):
    ads = random_auctions(seed=6, sizes=[4, 3, 5])
    logits = ads.logits.clone().requires_grad_()
    none = pairwise(ads.but(logits=logits), member, reduction="none")
    (gradient,) = torch.autograd.grad(none, logits, torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64))
    parts = [loss_and_gradient(one, member)[1] for one in ads.split()]
    torch.testing.assert_close(gradient, torch.cat([2 * parts[0], 0 * parts[1], -parts[2]]))


@every_member
@pytest.mark.parametrize("sizes", [[3, 3], [4, 0, 1, 3]], ids=["even", "ragged"])
def test_leading_dimensions_equal_a_loop_over_rows(member, sizes):
    rows = [random_auctions(seed=seed, sizes=sizes, ties=seed > 3) for seed in range(6)]
    batch = stack(*rows).map(lambda x: x.unflatten(0, (2, 3)))
    for reduction, shape in [("none", (2, 3, len(sizes))), ("sum", (2, 3)), ("mean", (2, 3))]:
        found, gradient = loss_and_gradient(batch, member, reduction=reduction)
        expected = [loss_and_gradient(row, member, reduction=reduction) for row in rows]
        assert found.shape == shape
        torch.testing.assert_close(found.flatten(0, 1), torch.stack([loss for loss, _ in expected]))
        torch.testing.assert_close(gradient.flatten(0, 1), torch.stack([slope for _, slope in expected]))


def test_tensors_need_not_be_contiguous():
    ads = random_auctions(seed=12, sizes=[3, 4])
    strided = ads.map(lambda x: torch.stack([x, x], dim=-1)[..., 0])
    for member in MEMBERS:
        for found, expected in zip(loss_and_gradient(strided, member), loss_and_gradient(ads, member), strict=True):
            torch.testing.assert_close(found, expected)


# Laws of the family


@PROPERTY
@given(auctions, members, sigmas)
def test_auctions_do_not_interact(ads, member, sigma):
    together, gradient = loss_and_gradient(ads, member, sigma=sigma, reduction="none")
    alone = [loss_and_gradient(one, member, sigma=sigma, reduction="sum") for one in ads.split()]
    torch.testing.assert_close(together, torch.stack([loss for loss, _ in alone]))
    torch.testing.assert_close(gradient, torch.cat([slope for _, slope in alone]))


@PROPERTY
@given(auctions, members, seeds)
def test_order_inside_an_auction_does_not_matter(ads, member, seed):
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(b - a, generator=generator) + a for a, b in ads.bounds()])
    loss, gradient = loss_and_gradient(ads, member, reduction="none")
    shuffled, shuffled_gradient = loss_and_gradient(ads.map(lambda x: x[order]), member, reduction="none")
    torch.testing.assert_close(shuffled, loss)
    torch.testing.assert_close(shuffled_gradient, gradient[order])


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize("offsets", [None, [0], [0, 0, 0]], ids=str)
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 0)], ids=str)
def test_an_empty_batch_costs_nothing_and_has_a_gradient(reduction, offsets, shape):
    ads = random_auctions(seed=0, sizes=[]).map(lambda x: x.new_zeros(shape))
    count = 1 if offsets is None else len(offsets) - 1
    ads = ads.but(offsets=None if offsets is None else torch.tensor(offsets))
    for member in MEMBERS:
        loss, gradient = loss_and_gradient(ads, member, reduction=reduction)
        assert loss.shape == (shape[:-1] if reduction != "none" else (*shape[:-1], count))
        assert (loss == 0).all()
        assert gradient.shape == shape


# Good manners


@every_member
@pytest.mark.parametrize("method", ["direct", "fast"])
def test_arguments_are_never_mutated(member, method):
    ads = random_auctions(seed=13, ties=True)
    copy = ads.map(torch.clone).but(offsets=ads.offsets.clone())
    loss_and_gradient(ads, member, method=method, sigma=2.0)
    pairwise(ads, member, method=method, sigma=2.0)
    for name in ("logits", "clicks", "bids", "offsets", "teacher"):
        assert torch.equal(getattr(ads, name), getattr(copy, name)), name


@every_member
@pytest.mark.parametrize("method", ["direct", "fast"])
@pytest.mark.parametrize("sizes", [[5, 1, 3], [300]], ids=str)
def test_gradient_is_optional(member, method, sizes):
    ads = random_auctions(seed=15, sizes=sizes, ties=True)
    wanted = pairwise(ads.but(logits=ads.logits.clone().requires_grad_()), member, method=method)
    unwanted = pairwise(ads, member, method=method)
    assert wanted.requires_grad
    assert not unwanted.requires_grad
    torch.testing.assert_close(unwanted, wanted.detach())


@every_member
@pytest.mark.parametrize("method", ["direct", "auto"])
def test_a_second_derivative_is_refused(member, method):
    ads = random_auctions(seed=17)
    logits = ads.logits.clone().requires_grad_()
    loss = pairwise(ads.but(logits=logits), member, method=method)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_the_loss_may_be_changed_in_place():
    ads = random_auctions(seed=19)
    for member in MEMBERS:
        logits = ads.logits.clone().requires_grad_()
        loss = pairwise(ads.but(logits=logits), member)
        (whole,) = torch.autograd.grad(loss, logits, retain_graph=True)
        loss /= 2  # as where gradients of several batches are accumulated
        (half,) = torch.autograd.grad(loss, logits)
        torch.testing.assert_close(half, whole / 2)
