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
    largest,
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

import bidwise

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
@pytest.mark.parametrize("method", ["direct", "auto"])
def test_gradient_equals_the_numerical_derivative(member, method):
    ads = random_auctions(seed=2, sizes=[4, 1, 3])

    def loss(logits):
        return pairwise(ads.but(logits=logits), member, reduction="none", method=method)

    assert torch.autograd.gradcheck(loss, ads.logits.requires_grad_())


@every_member
def test_soft_clicks_are_labels_like_any_other(member):
    ads = random_auctions(seed=3, sizes=[5, 4])
    ads = ads.but(clicks=torch.rand(9, generator=torch.Generator().manual_seed(0)).double())
    expected = reference.pairwise(*ads.lists(), **member._asdict())
    found = pairwise(ads, member, reduction="none")
    assert worst(found, [one.loss for one in expected], [one.magnitude for one in expected]) < 1e-12


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


@pytest.mark.parametrize("method", ["direct", "auto"])
@pytest.mark.parametrize("gap", ["positive", "order"])
def test_hinge_has_half_its_slope_at_a_tie(gap, method):
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    clicks, bids = torch.tensor([1.0, 0.0]), torch.tensor([4.0, 4.0])
    loss = bidwise.pairwise_welfare_loss(
        logits, clicks, bids, gap=gap, surrogate="hinge", sigma=3.0, pair_mean=False, method=method
    )
    loss.backward()
    stake = {"positive": 4.0, "order": 1.0}[gap]
    slope = 3.0 / 2 * stake * 4.0 / 4  # sigma / 2, stake, ds/dz = b f (1 - f)
    assert loss == 0
    assert logits.grad.tolist() == pytest.approx([-slope, slope])


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


@pytest.mark.parametrize("surrogate", ["logistic", "hinge"])
@pytest.mark.parametrize("method", ["direct", "auto"])
def test_signed_and_unweighted_is_minus_the_covariance_of_value_and_ecpm(surrogate, method):
    ads = random_auctions(seed=5, sizes=[40])
    found = bidwise.pairwise_welfare_loss(*ads.positional(), surrogate=surrogate, sigma=2.0, method=method)
    value, ecpm = ads.bids * ads.clicks, ads.bids * torch.sigmoid(ads.logits)
    covariance = torch.cov(torch.stack([value, ecpm]), correction=0)[0, 1]
    torch.testing.assert_close(found, -2.0 * covariance)


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
def test_pair_mean_divides_by_the_square_of_the_auction_size(member):
    ads = random_auctions(seed=7, sizes=[4, 1, 6])
    mean, total = (pairwise(ads, member, pair_mean=p, reduction="none") for p in (True, False))
    torch.testing.assert_close(mean * torch.tensor([16.0, 1.0, 36.0]), total)


def test_without_offsets_the_batch_is_one_auction():
    ads = random_auctions(seed=8, sizes=[7])
    for member in MEMBERS:
        alone = pairwise(ads.but(offsets=None), member, reduction="none")
        torch.testing.assert_close(alone, pairwise(ads, member, reduction="none"))


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


@every_member
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(member, dtype):
    ads = random_auctions(seed=9, dtype=torch.float32)
    ads = ads.but(logits=ads.logits.to(dtype))
    found, gradient = loss_and_gradient(ads, member)
    expected, expected_gradient = loss_and_gradient(ads.but(logits=ads.logits.float()), member)
    assert (found.dtype, gradient.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient, expected_gradient.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_loss_and_gradient_have_the_dtype_of_the_logits(dtype):
    ads = random_auctions(seed=10)
    for member in MEMBERS:
        found, gradient = loss_and_gradient(ads.but(logits=ads.logits.to(dtype)), member)
        assert (found.dtype, gradient.dtype) == (dtype, dtype)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float16, torch.float64], ids=str)
def test_clicks_and_bids_may_be_of_any_real_type(dtype):
    ads = random_auctions(seed=11, dtype=torch.float32)
    ads = ads.but(bids=ads.bids.ceil())
    other = ads.but(clicks=ads.clicks.to(dtype))
    if dtype != torch.bool:
        other = other.but(bids=ads.bids.to(dtype))
    for member in MEMBERS:
        found, gradient = loss_and_gradient(other, member)
        expected, expected_gradient = loss_and_gradient(ads, member)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


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


@PROPERTY
@given(seeds, members, st.integers(1, 9), st.booleans())
def test_single_ad_auctions_cost_nothing(seed, member, count, heavy):
    loss, gradient = loss_and_gradient(random_auctions(seed, [1] * count, heavy=heavy), member, reduction="none")
    assert loss.tolist() == [0.0] * count
    assert gradient.tolist() == [0.0] * count


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


@PROPERTY
@given(auctions, members)
def test_empty_auctions_cost_nothing(ads, member):
    loss, gradient = loss_and_gradient(ads, member, reduction="none")
    padded = torch.cat([ads.offsets[:1], ads.offsets, ads.offsets[-1:]])
    more, same_gradient = loss_and_gradient(ads.but(offsets=padded), member, reduction="none")
    torch.testing.assert_close(more, torch.nn.functional.pad(loss, (1, 1)))
    torch.testing.assert_close(same_gradient, gradient)


@PROPERTY
@given(
    seeds,
    members,
    st.sampled_from(["direct", "auto"]),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([0.1, 1.0, 30.0]),
)
def test_extreme_input_gives_finite_numbers(seed, member, method, dtype, sigma):
    ads = random_auctions(seed, [30, 1, 0, 30], dtype=dtype, ties=True, heavy=True)
    generator = torch.Generator().manual_seed(seed)
    extreme = torch.tensor([-1e4, -100.0, 100.0, 1e4], dtype=dtype)
    drawn = extreme[torch.randint(0, 4, (61,), generator=generator)]
    ads = ads.but(logits=torch.where(torch.rand(61, generator=generator) < 0.5, drawn, ads.logits))
    loss, gradient = loss_and_gradient(ads, member, method=method, sigma=sigma, reduction="none")
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


@PROPERTY
@given(auctions, members, st.sampled_from([0.25, 8.0]))
def test_currency_does_not_matter(ads, member, rate):
    """Bids in another currency: sigma and kappa per unit of money follow, the loss is money (or a count)."""
    kappa = None if member.weighting is None else member.weighting / rate
    loss, gradient = loss_and_gradient(ads, member, reduction="none")
    other, other_gradient = loss_and_gradient(
        ads.but(bids=rate * ads.bids), member, sigma=1 / rate, weighting=kappa, reduction="none"
    )
    unit = 1.0 if member.gap == "order" else rate
    torch.testing.assert_close(other, unit * loss)
    torch.testing.assert_close(other_gradient, unit * gradient)


@PROPERTY
@given(auctions, members, sigmas)
def test_hinge_is_proportional_to_sigma_and_indicator_ignores_it(ads, member, sigma):
    if member.surrogate == "logistic":
        member = member._replace(surrogate="hinge")
    slope = sigma if member.surrogate == "hinge" else 1.0
    found = pairwise(ads, member, sigma=sigma, reduction="none")
    torch.testing.assert_close(found, slope * pairwise(ads, member, reduction="none"))


@PROPERTY
@given(auctions, members)
def test_scaled_clicks_scale_the_loss_unless_order_alone_counts(ads, member):
    member = member._replace(value="clicks")
    scale = 1.0 if member.gap == "order" else 0.5
    found = pairwise(ads.but(clicks=0.5 * ads.clicks), member, reduction="none")
    torch.testing.assert_close(found, scale * pairwise(ads, member, reduction="none"))


@PROPERTY
@given(auctions, members)
def test_only_differences_of_value_matter(ads, member):
    member = member._replace(value="clicks")
    ads = ads.but(bids=torch.full_like(ads.bids, 2.0), clicks=0.5 * ads.clicks)
    found = pairwise(ads.but(clicks=ads.clicks + 0.25), member, reduction="none")
    torch.testing.assert_close(found, pairwise(ads, member, reduction="none"))


@PROPERTY
@given(auctions, members)
def test_only_differences_of_ecpm_matter_without_weighting(ads, member):
    member = member._replace(weighting=None)
    ctr = torch.arange(ads.logits.numel(), dtype=torch.float64) / 128  # differences stay exact
    ads = ads.but(bids=torch.full_like(ads.bids, 2.0))
    near, far = (pairwise(ads.but(logits=torch.logit(ctr + shift)), member, reduction="none") for shift in (0.25, 0.5))
    torch.testing.assert_close(near, far)


@PROPERTY
@given(auctions, members)
def test_the_right_order_costs_nothing_under_the_positive_hinge(ads, member):
    member = member._replace(gap="positive", surrogate="hinge", value="teacher")
    ads = ads.but(logits=torch.logit(ads.teacher))
    assert largest(pairwise(ads, member, reduction="none")) < 1e-12


@PROPERTY
@given(auctions, members)
def test_positive_and_order_are_never_negative(ads, member):
    if member.gap != "signed":
        assert (pairwise(ads, member, reduction="none") >= 0).all()


# Good manners


@every_member
@pytest.mark.parametrize("method", ["direct", "auto"])
def test_arguments_are_never_mutated(member, method):
    ads = random_auctions(seed=13, ties=True)
    copy = ads.map(torch.clone).but(offsets=ads.offsets.clone())
    loss_and_gradient(ads, member, method=method, sigma=2.0)
    pairwise(ads, member, method=method, sigma=2.0)
    for name in ("logits", "clicks", "bids", "offsets", "teacher"):
        assert torch.equal(getattr(ads, name), getattr(copy, name)), name


@every_member
def test_bids_clicks_and_teacher_are_constants(member):
    ads = random_auctions(seed=14).map(lambda x: x.clone().requires_grad_())
    loss = pairwise(ads, member)
    _, *constants = torch.autograd.grad(loss, [ads.logits, ads.bids, ads.clicks, ads.teacher], allow_unused=True)
    assert constants == [None, None, None]


@every_member
def test_gradient_is_optional(member):
    ads = random_auctions(seed=15, ties=True)
    wanted = pairwise(ads.but(logits=ads.logits.clone().requires_grad_()), member)
    unwanted = pairwise(ads, member)
    assert wanted.requires_grad
    assert not unwanted.requires_grad
    torch.testing.assert_close(unwanted, wanted.detach())


def test_an_unused_teacher_changes_nothing():
    ads = random_auctions(seed=16)
    for member in MEMBERS:
        if member.value == "clicks" and member.weighting is None:
            torch.testing.assert_close(pairwise(ads, member, teacher=None), pairwise(ads, member))


@every_member
@pytest.mark.parametrize("method", ["direct", "auto"])
def test_a_second_derivative_is_refused(member, method):
    ads = random_auctions(seed=17)
    logits = ads.logits.clone().requires_grad_()
    loss = pairwise(ads.but(logits=logits), member, method=method)
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(gradient.sum(), logits)
    with pytest.raises(RuntimeError, match="no second derivative"):
        (loss + gradient.square().sum()).backward()


def test_the_backward_pass_can_run_twice():
    ads = random_auctions(seed=18)
    for member in MEMBERS:
        logits = ads.logits.clone().requires_grad_()
        loss = pairwise(ads.but(logits=logits), member)
        (once,) = torch.autograd.grad(loss, logits, retain_graph=True)
        (twice,) = torch.autograd.grad(loss, logits)
        torch.testing.assert_close(once, twice)


def test_the_loss_may_be_changed_in_place():
    ads = random_auctions(seed=19)
    for member in MEMBERS:
        logits = ads.logits.clone().requires_grad_()
        loss = pairwise(ads.but(logits=logits), member)
        (whole,) = torch.autograd.grad(loss, logits, retain_graph=True)
        loss /= 2  # as where gradients of several batches are accumulated
        (half,) = torch.autograd.grad(loss, logits)
        torch.testing.assert_close(half, whole / 2)
