"""Log loss: the cross-entropy of every ad, weighted where asked, safe at any logit."""

import mpmath
import pytest
import reference
import torch
from helpers import PROPERTY, random_auctions, seeds, stack
from hypothesis import given
from hypothesis import strategies as st

from bidwise import log_loss


def loss_and_gradient(logits, clicks, **options):
    logits = logits.detach().clone().requires_grad_()
    loss = log_loss(logits, clicks, **options)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach(), gradient


@PROPERTY
@given(seeds, st.integers(0, 20), st.booleans(), st.booleans())
def test_equals_the_reference(seed, n, soft, weighted):
    ads = random_auctions(seed, [n])
    labels = ads.teacher if soft else ads.clicks
    weights = ads.bids if weighted else None
    loss, gradient = loss_and_gradient(ads.logits, labels, weights=weights, reduction="none")
    expected, slopes = reference.log_loss(ads.logits.tolist(), labels.tolist(), weights.tolist() if weighted else None)
    assert loss.tolist() == pytest.approx(expected, rel=1e-12)
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_mean_is_the_sum_over_the_number_of_ads(weighted):
    ads = random_auctions(seed=0, sizes=[9])
    weights = ads.bids if weighted else None
    none, total, mean = (
        log_loss(ads.logits, ads.clicks, weights=weights, reduction=r) for r in ("none", "sum", "mean")
    )
    torch.testing.assert_close(total, none.sum())
    torch.testing.assert_close(mean, none.sum() / 9)
    torch.testing.assert_close(log_loss(ads.logits, ads.clicks, weights=weights), mean)


@pytest.mark.parametrize("logit", [-1e4, -745.0, -100.0, -30.0, 0.0, 30.0, 100.0, 745.0, 1e4])
@pytest.mark.parametrize("click", [0.0, 0.25, 1.0])
def test_agrees_with_mpmath_at_any_logit(logit, click):
    with mpmath.workdps(80):
        wrong, right = mpmath.log(1 + mpmath.exp(logit)), mpmath.log(1 + mpmath.exp(-logit))
        expected = float(click * right + (1 - click) * wrong)
        slope = float(1 / (1 + mpmath.exp(-logit)) - click)
    for dtype, relative in [(torch.float64, 1e-15), (torch.float32, 1e-6)]:
        loss, gradient = loss_and_gradient(
            torch.tensor([logit], dtype=dtype), torch.tensor([click], dtype=dtype), reduction="none"
        )
        assert loss.item() == pytest.approx(expected, rel=relative, abs=relative * max(1, abs(logit)))
        assert gradient.item() == pytest.approx(slope, abs=relative)  # a CTR minus a click


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_leading_dimensions_equal_a_loop_over_rows(reduction):
    rows = [random_auctions(seed=seed, sizes=[5]) for seed in range(3)]
    batch = stack(*rows)
    found = log_loss(batch.logits, batch.clicks, weights=batch.bids, reduction=reduction)
    expected = [log_loss(row.logits, row.clicks, weights=row.bids, reduction=reduction) for row in rows]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("shape", [(0,), (2, 0)], ids=str)
def test_an_empty_batch_costs_nothing_and_has_a_gradient(reduction, shape):
    loss, gradient = loss_and_gradient(torch.zeros(shape), torch.zeros(shape), reduction=reduction)
    assert loss.shape == (shape if reduction == "none" else shape[:-1])
    assert (loss == 0).all()
    assert gradient.shape == shape
