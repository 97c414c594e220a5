"""Logistic losses by panels on a GPU equal their definition, signed and positive; without one, in Triton's interpreter.

``TRITON_INTERPRET=1 pytest tests/test_panel_kernels.py`` runs them on a CPU.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise as neighbours

import pytest
import torch
from helpers import CUDA, DEVICE, gpu_or_interpreter, needs_gpu, read_bounds_of_loops
from torch import Tensor

pytest.importorskip("triton")

import bidwise
from bidwise.kernels import fused_panels
from bidwise.kernels.fused_panels import panel_sums
from bidwise.losses import dispatch
from bidwise.losses.definition import PairInputs, PairOptions
from bidwise.losses.dispatch import kernel_stage
from bidwise.losses.without_pairs import signed_sums
from bidwise.segments import Auctions

pytestmark = gpu_or_interpreter


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """The interpreter takes a millisecond for a program without work."""
    if CUDA:
        return
    read_bounds_of_loops(monkeypatch)
    monkeypatch.setattr(fused_panels, "FIELD_WORKERS", 8)
    monkeypatch.setattr(fused_panels, "PAIR_PROGRAMS", 8)


def make(ads, seed=0, share=0.25, scale=1.0, spread=1.0, shift=-1.0):
    """Logits, clicks, bids and teacher of ``ads`` ads, of which about ``share`` are clicked, the likely ones first."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(3, ads, generator=generator)
    teacher = torch.sigmoid(noise[0] + 0.5 * noise[1] + shift)
    hope = teacher - 0.3 * torch.rand(ads, generator=generator)
    clicks = torch.zeros(ads)
    clicks[hope.argsort(descending=True)[: round(share * ads)]] = 1.0
    return tuple(x.to(DEVICE) for x in (noise[0] + shift, clicks, scale * (spread * noise[2]).exp(), teacher))


def definition(z, label, bids, teacher, gap, sigma, kappa, dtype=torch.float64):
    """Cost without its factor right_k, and slope, of every ad of one auction over all n x n pairs, ``(2, ads)``."""
    z, label, bids, teacher = (x.to(dtype) for x in (z, label, bids, teacher))
    s, v = bids * torch.sigmoid(z), bids * label
    left = torch.ones_like(s) if kappa is None else torch.sigmoid(kappa * bids * teacher)
    right = torch.ones_like(s) if kappa is None else torch.sigmoid(kappa * s)
    lag, stake = sigma * (s[:, None] - s), v - v[:, None]  # (k, i): t_k - t_i, v_i - v_k
    won, lost = (stake, stake) if gap == "signed" else (stake.clamp(min=0), stake.clamp(max=0))
    cost = (left * won * torch.nn.functional.softplus(lag, threshold=40.0)).sum(1)
    slope = right * (left * won * torch.sigmoid(lag)).sum(1) + left * (right * lost * torch.sigmoid(-lag)).sum(1)
    return torch.stack([cost, sigma * slope])


def sums_of(columns, gap, sigma=1.0, kappa: float | None = 3.0, offsets=None, size=None) -> Tensor:
    if offsets is None and size is None:
        size = len(columns[0])
    if offsets is not None:
        offsets = torch.tensor(offsets, device=DEVICE)
    return panel_sums(*columns, offsets, size, PairOptions(gap=gap, sigma=sigma, weighting=kappa))[0]


clicks_of = partial(sums_of, gap="positive")


def error(found, truth):
    """Of each of the two sums, relative to its norm over the ads; infinite where 0 is owed and not given."""
    wrong, norm = (found.double() - truth).norm(dim=-1), truth.norm(dim=-1)
    return torch.where(norm > 0, wrong / norm, torch.where(wrong > 0, torch.inf, 0.0))


def assert_as_good_as_pairs(columns, gap, sigma=1.0, kappa: float | None = 3.0, found=None):
    found = sums_of(columns, gap, sigma, kappa) if found is None else found
    truth = definition(*columns, gap, sigma, kappa)
    plain = definition(*columns, gap, sigma, kappa, torch.float32)
    assert found.isfinite().all()
    assert (error(found, truth) <= error(plain, truth) + 1e-6).all(), (error(found, truth), error(plain, truth))


both_gaps = pytest.mark.parametrize("gap", ["signed", "positive"])
both_weights = pytest.mark.parametrize("kappa", [None, 3.0])
# unweighted signed sums are a covariance, of which no one asks panels
every_way = pytest.mark.parametrize(("gap", "kappa"), [("signed", 3.0), ("positive", 3.0), ("positive", None)])


def with_teacher(columns):
    """The teacher's CTR as labels: every ad has a value."""
    z, _, bids, teacher = columns
    return z, teacher, bids, teacher


@both_weights
@both_gaps
@pytest.mark.parametrize("sigma", [1.0, 10.0])
@pytest.mark.parametrize("ads", [2, 3, 65, 513, 1500])
def test_sums_err_no_more_than_float32_pairs(ads, sigma, gap, kappa):
    columns = make(ads, seed=ads, share=max(0.25, 1 / ads))
    assert_as_good_as_pairs(columns, gap, sigma, kappa)
    if gap == "signed":
        assert_as_good_as_pairs(with_teacher(columns), gap, sigma, kappa)


@both_gaps
@pytest.mark.parametrize("kappa", [None, 3.0, 1e-3])
def test_panels_far_apart(kappa, gap):
    """More than a thousand panels, most of them empty: what is far below and far above comes in chunks."""
    columns = make(200, scale=30.0, shift=0.0)
    t = columns[2] * torch.sigmoid(columns[0]) * 10.0
    assert 1000 < t.max() < fused_panels.MOST_PANELS
    assert_as_good_as_pairs(columns, gap, 10.0, kappa)


@every_way
@pytest.mark.parametrize("scale", [1e-6, 1e5])
def test_auctions_of_any_scale(scale, kappa, gap):
    """Bids of 1e5 are too wide for panels: those auctions are taken pair by pair."""
    assert_as_good_as_pairs(make(300, scale=scale), gap, 1.0, kappa)


@both_gaps
def test_few_panels(gap, monkeypatch):
    """Just wide enough, and one too few."""
    columns = make(200, scale=10.0)
    width = int((columns[2] * torch.sigmoid(columns[0])).max()) + 1
    for most in (width, width - 1):
        monkeypatch.setattr(fused_panels, "MOST_PANELS", most)
        monkeypatch.setattr(fused_panels, "LEAST_PANELS", 1)
        assert_as_good_as_pairs(columns, gap)


@every_way
def test_ads_do_not_see_other_auctions(kappa, gap):
    """Empty auctions, single ads, some without a click, and one in three too wide."""
    bounds = [0, 0, 1, 6, 6, 300, 301, 750, 900, 900]
    columns = make(900)
    columns[1][301:500] = 0
    columns[2][6:300] *= 1e5
    found = sums_of(columns, gap, 1.0, kappa, offsets=bounds)
    for begin, end in neighbours(bounds):
        if end - begin == 1:
            assert (found[:, begin] == 0).all()
        elif end > begin:
            one = tuple(x[begin:end] for x in columns)
            assert_as_good_as_pairs(one, gap, 1.0, kappa, found[:, begin:end])


@both_gaps
@pytest.mark.parametrize(("auctions", "size"), [(40, 7), (3, 300), (20, 1)])
def test_auctions_of_equal_size(auctions, size, gap):
    columns = make(auctions * size)
    found = sums_of(columns, gap, size=size)
    alone = [tuple(x[i : i + size] for x in columns) for i in range(0, auctions * size, size)]
    truth = torch.cat([definition(*one, gap, 1.0, 3.0) for one in alone], 1)
    assert (error(found, truth) < 1e-6).all()
    by_bounds = sums_of(columns, gap, offsets=range(0, auctions * size + 1, size))
    torch.testing.assert_close(by_bounds, found, rtol=0, atol=0)


@both_gaps
@both_weights
@pytest.mark.parametrize("clicked", [False, True])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_what_is_not_a_number_stays_in_its_auction(column, clicked, kappa, gap):
    columns = make(90)
    columns[1][40] = float(clicked)
    alone = sums_of(columns, gap, 1.0, kappa, size=30)
    columns[column][40] = torch.nan
    found = sums_of(columns, gap, 1.0, kappa, size=30)
    assert found[:, 40].isnan().any()
    assert found[1, 30:60].isnan().all()
    tolerance = 0 if gap == "signed" else 1e-6  # with another number of clicked ads before them, sums are cut elsewhere
    for others in (slice(0, 30), slice(60, 90)):
        torch.testing.assert_close(found[:, others], alone[:, others], rtol=tolerance, atol=tolerance)


@both_gaps
def test_no_ads(gap):
    columns = make(0)
    assert sums_of(columns, gap, size=5).shape == (2, 0)
    assert sums_of(columns, gap, offsets=[0, 0, 0]).shape == (2, 0)


@both_gaps
def test_bits_repeat_and_arguments_are_left_alone(gap):
    columns = make(1000 if not CUDA else 100_000)
    before = [x.clone() for x in columns]
    found = sums_of(columns, gap, 3.0)
    assert all(torch.equal(x, y) for x, y in zip(columns, before, strict=True))
    for _ in range(2 if not CUDA else 20):
        assert torch.equal(sums_of(columns, gap, 3.0), found)


@needs_gpu
@both_gaps
@both_weights
def test_a_graph_holds_all_of_it(kappa, gap):
    """Replayed with other ads, wide ones among them and other clicks, it gives the bits of a plain call."""
    columns, options = make(5000), PairOptions(gap=gap, weighting=kappa)
    offsets = torch.tensor([0, 10, 3000, 5000], device=DEVICE)
    panel_sums(*columns, offsets, None, options)  # makes the tables and compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = panel_sums(*columns, offsets, None, options)
    for scale, share in ((1.0, 0.25), (30.0, 0.0), (1.0, 1.0), (1e5, 0.05), (1.0, 0.01)):
        for held, new in zip(columns, make(5000, seed=9, scale=scale, share=share), strict=True):
            held.copy_(new)
        graph.replay()
        assert torch.equal(found, panel_sums(*columns, offsets, None, options))


# The signed gap


def test_logits_of_a_hundred():
    z, label, bids, teacher = make(300)
    columns = torch.where(z > -2, 100.0, -100.0), label, bids, teacher
    assert_as_good_as_pairs(columns, "signed")
    assert_as_good_as_pairs(with_teacher(columns), "signed")


@pytest.mark.parametrize("bid", [0.7, 1e5])
def test_equal_values_cost_nothing(bid):
    """No value is at stake between them, whatever the logits."""
    z, _, bids, teacher = make(200)
    assert (sums_of((z, torch.ones_like(z), torch.full_like(bids, bid), teacher), "signed") == 0).all()


def test_order_of_ads_changes_no_bit():
    """Integers are added up, so it does not matter which program comes first."""
    columns = make(1000 if not CUDA else 100_000)
    order = torch.randperm(len(columns[0]), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    found = sums_of(columns, "signed", 3.0)
    assert torch.equal(sums_of(tuple(x[order] for x in columns), "signed", 3.0), found[:, order])


@needs_gpu
@pytest.mark.parametrize("sigma", [1.0, 10.0])
def test_a_million_ads(sigma):
    columns = make(1 << 20)
    z, label, bids, teacher = (x.double() for x in columns)
    s = bids * torch.sigmoid(z)
    left, right = torch.sigmoid(3.0 * bids * teacher), torch.sigmoid(3.0 * s)
    ads = PairInputs(s, bids * label, left, right)
    cost, slope = signed_sums(ads, Auctions.of(z, None), PairOptions(sigma=sigma), gradient=True)
    assert slope is not None
    assert (error(sums_of(columns, "signed", sigma), torch.stack([cost / right, slope])) < 1e-6).all()


# The positive gap: pairs of clicked ads, all others by panels


@both_weights
@pytest.mark.parametrize("share", [1 / 700, 0.05, 0.25, 1.0])
def test_any_share_of_clicks(share, kappa):
    columns = make(700, share=share)
    assert columns[1].sum() == round(700 * share)
    assert_as_good_as_pairs(columns, "positive", 3.0, kappa)


@pytest.mark.parametrize("bid", [1.0, 1e5])
def test_without_a_click_nothing_is_at_stake(bid):
    assert (clicks_of(make(300, share=0.0, scale=bid)) == 0).all()


@both_weights
@pytest.mark.parametrize("most", [1.0, 40.0], ids=["soft", "clicks over exposure"])
def test_labels_between_and_above(most, kappa):
    z, clicks, bids, teacher = make(600)
    label = clicks * most * torch.rand(600, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    columns = z, label, bids, teacher
    assert_as_good_as_pairs(columns, "positive", 3.0, kappa)
    columns = z, most * teacher, bids, teacher  # every ad has a value
    assert_as_good_as_pairs(columns, "positive", 3.0, kappa)


@both_weights
def test_a_tiny_value_alone_in_its_panel(kappa):
    """1e-26 of the largest, which is far above: it leaves no charge for others to see, but its ad gets a slope."""
    z, clicks, bids, _ = columns = make(300, share=0.0)
    bids.clamp_(max=20.0)
    z[:2], bids[0], bids[1], clicks[0], clicks[1] = 0.0, 60.0, 400.0, 1e-25, 1.0
    found, truth = clicks_of(columns, kappa=kappa)[1, 0], definition(*columns, "positive", 1.0, kappa)[1, 0]
    assert truth < 0
    assert abs(found.double() / truth - 1) < 1e-5


@both_weights
@pytest.mark.parametrize("members", [1, 3])
def test_ties(members, kappa):
    """Ads that are copies of a few: equal values have nothing at stake, equal eCPM has half a slope."""
    columns = tuple(x[:members].repeat(100) for x in make(3, share=1.0))
    columns[1][members * 50 :] = 0
    assert_as_good_as_pairs(columns, "positive", 3.0, kappa)


def ordered(ads, distance, share=0.25, seed=0):
    """Clicked ads ``distance`` above the others in eCPM, all of one bid a little apart."""
    z, clicks, _, teacher = make(ads, share=share, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    bid = 2.0 * distance
    ctr = 0.2 + 0.5 * clicks + 0.05 * torch.rand(ads, generator=generator).to(DEVICE)
    return torch.logit(ctr), clicks, torch.full_like(z, bid), teacher


@both_weights
@pytest.mark.parametrize("share", [1 / 400, 0.25, 0.9])
@pytest.mark.parametrize("distance", [10.0, 16.0, 18.0, 40.0, 75.0])
def test_small_losses_of_ordered_auctions_keep_their_digits(distance, share, kappa):
    """Values are equal among the clicked, so that e^(t_j - t_i) across the gap is all there is."""
    columns = ordered(400, distance, share)
    truth = definition(*columns, "positive", 1.0, kappa)
    assert 0 < truth[0].sum() < 1e-3 * 400**2
    assert (error(clicks_of(columns, sigma=1.0, kappa=kappa), truth) < 1e-4).all()


@both_weights
def test_tails_across_hundreds_of_panels(kappa):
    """Every ad has its own distance, so that each panel has some beyond reach on both sides."""
    z, _, _, teacher = make(300)
    t = torch.linspace(0.5, 150.0, 300, device=DEVICE)
    columns = torch.zeros_like(z), (t > 60).float(), 2 * t, teacher
    assert_as_good_as_pairs(columns, "positive", 1.0, kappa)
    columns = torch.zeros_like(z), ((t < 40) | (t > 62)).float() * (t > 62), 2 * t * ((t < 40) | (t > 62)), teacher
    found, truth = clicks_of(columns, sigma=1.0, kappa=kappa), definition(*columns, "positive", 1.0, kappa)
    unclicked = columns[1] == 0
    assert (error(found[:, unclicked], truth[:, unclicked]) < 1e-4).all()


@pytest.mark.parametrize("programs", [1, 3, 100])
def test_any_number_of_programs_shares_the_pairs(programs, monkeypatch):
    """Of 400 clicked ads, with 8 partners at a time: from one share to as many as there may be."""
    monkeypatch.setattr(fused_panels, "PAIR_PROGRAMS", programs)
    monkeypatch.setattr(fused_panels, "PARTNERS", 8)
    columns = make(800, share=0.02)
    assert_as_good_as_pairs(columns, "positive")
    columns = make(300, share=0.5)
    assert_as_good_as_pairs(columns, "positive")


# As part of the loss


def loss_and_gradient(columns, method, offsets=None, **options):
    z, label, bids, teacher = columns
    z = z.detach().clone().requires_grad_()
    loss = bidwise.pairwise_welfare_loss(
        z, label, bids, offsets, teacher=teacher, gap="positive", method=method, validate=False, **options
    )
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    return loss.detach(), gradient


@both_weights
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_the_loss_by_clicks_is_the_loss(repeats, reduction, kappa, monkeypatch):
    monkeypatch.setattr(dispatch, "CLICKS_FROM", 20)
    columns = tuple(x.view(repeats, -1).squeeze(0) for x in make(100 * repeats))
    called = []
    monkeypatch.setattr(fused_panels, "panel_sums", lambda *x: called.append(True) or panel_sums(*x))
    for offsets in (None, torch.tensor([0, 60, 60, 100], device=DEVICE)):
        run = partial(loss_and_gradient, offsets=offsets, sigma=3.0, weighting=kappa, reduction=reduction)
        called.clear()
        found = run(columns, "triton")
        assert called
        exact = run(tuple(x.double() for x in columns), "direct")
        plain = run(columns, "direct")
        for ours, theirs, true in zip(found, plain, exact, strict=True):
            assert ours.shape == true.shape
            wrong, budget = ((x.double() - true).norm() / true.norm() for x in (ours, theirs))
            assert wrong <= budget + 1e-6


def test_clicks_are_taken_where_they_help(monkeypatch):
    """Few ads of a large auction are clicked; a teacher's CTR is above 0 for all."""
    monkeypatch.setattr(dispatch, "CLICKS_FROM", 4096)
    large, small = (torch.zeros(ads, device=DEVICE) for ads in (dispatch.CLICKS_FROM, dispatch.CLICKS_FROM - 1))
    method = "auto" if CUDA else "triton"
    for kappa in (None, 3.0):
        positive = PairOptions(gap="positive", weighting=kappa, method=method)
        assert kernel_stage(positive, large, None) == "clicks"
        assert kernel_stage(positive, small, None) == "pairs"
        assert kernel_stage(replace(positive, value="teacher"), large, None) == "pairs"
        assert kernel_stage(replace(positive, surrogate="hinge"), large, None) == "pairs"
        assert kernel_stage(positive, large, torch.tensor([0, 10, len(large)])) == "pairs"
        assert kernel_stage(replace(positive, method="fast"), large, None) is None


# On a GPU


@needs_gpu
@both_weights
@pytest.mark.parametrize("share", [0.05, 0.25])
@pytest.mark.parametrize("sigma", [1.0, 10.0])
@pytest.mark.parametrize("ads", [10_000, 65_536, 1_048_576])
def test_large_auctions(ads, sigma, share, kappa):
    columns = make(ads, share=share)
    found = loss_and_gradient(columns, "triton", sigma=sigma, weighting=kappa)
    exact = loss_and_gradient(tuple(x.double() for x in columns), "fast", sigma=sigma, weighting=kappa)
    rounding = max(2e-6, 4e-7 * sigma)  # eCPM is off by 6e-8 of itself, and sigma times that stands in the exponent
    for ours, true in zip(found, exact, strict=True):
        assert (ours.double() - true).norm() <= rounding * true.norm()


@needs_gpu
@pytest.mark.parametrize("distance", [18.0, 40.0])
def test_large_ordered_auctions(distance):
    columns = ordered(65_536, distance)
    found = loss_and_gradient(columns, "triton")
    exact = loss_and_gradient(tuple(x.double() for x in columns), "fast")
    for ours, true in zip(found, exact, strict=True):
        assert (ours.double() - true).norm() <= 1e-4 * true.norm()
