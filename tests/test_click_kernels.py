"""The positive logistic loss of clicks on a GPU equals its definition; without one, in Triton's interpreter.

``TRITON_INTERPRET=1 pytest tests/test_click_kernels.py`` runs it on a CPU.
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
from bidwise.losses.definition import PairOptions
from bidwise.losses.dispatch import kernel_stage

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


def terms(z, label, bids, teacher, sigma, kappa, dtype=torch.float64):
    """The definition in ``dtype``: (k, i) of what is at stake, the other way round, t_k - t_i, and the factor right."""
    z, label, bids, teacher = (x.to(dtype) for x in (z, label, bids, teacher))
    s, v = bids * torch.sigmoid(z), bids * label
    left = torch.ones_like(s) if kappa is None else torch.sigmoid(kappa * bids * teacher)
    right = torch.ones_like(s) if kappa is None else torch.sigmoid(kappa * s)
    gap = v - v[:, None]
    return left * gap.clamp(min=0), left[:, None] * right * (-gap).clamp(min=0), sigma * (s[:, None] - s), right


def definition(*columns, sigma, kappa, dtype=torch.float64):
    """Cost without its factor right_k, and slope, of every ad of one auction over all n x n pairs, ``(2, ads)``."""
    won, lost, lag, right = terms(*columns, sigma, kappa, dtype)
    cost = (won * torch.nn.functional.softplus(lag, threshold=40.0)).sum(1)
    slope = right * (won * torch.sigmoid(lag)).sum(1) - (lost * torch.sigmoid(-lag)).sum(1)
    return torch.stack([cost, sigma * slope])


def clicks_of(columns, sigma=1.0, kappa: float | None = 3.0, offsets=None, size=None) -> Tensor:
    if offsets is None and size is None:
        size = len(columns[0])
    if offsets is not None:
        offsets = torch.tensor(offsets, device=DEVICE)
    return (
        panel_sums(*columns, offsets, size, PairOptions(gap="positive", sigma=sigma, weighting=kappa)).double().sum(0)
    )


def error(found, truth):
    """Of each of the two sums, relative to its norm over the ads; infinite where 0 is owed and not given."""
    wrong, norm = (found.double() - truth).norm(dim=-1), truth.norm(dim=-1)
    return torch.where(norm > 0, wrong / norm, torch.where(wrong > 0, torch.inf, 0.0))


def assert_as_good_as_pairs(columns, found, sigma=1.0, kappa: float | None = 3.0):
    truth = definition(*columns, sigma=sigma, kappa=kappa)
    plain = definition(*columns, sigma=sigma, kappa=kappa, dtype=torch.float32)
    assert found.isfinite().all()
    assert (error(found, truth) <= error(plain, truth) + 1e-6).all(), (error(found, truth), error(plain, truth))


both_weights = pytest.mark.parametrize("kappa", [None, 3.0])


@both_weights
@pytest.mark.parametrize("spread", [0.5, 1.0])
@pytest.mark.parametrize("sigma", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("ads", [2, 3, 65, 513, 1500])
def test_sums_err_no_more_than_float32_pairs(ads, sigma, spread, kappa):
    columns = make(ads, seed=ads, share=max(0.25, 1 / ads), spread=spread)
    assert_as_good_as_pairs(columns, clicks_of(columns, sigma, kappa), sigma, kappa)


@both_weights
def test_thousands_of_ads(kappa):
    columns = make(5000)
    assert_as_good_as_pairs(columns, clicks_of(columns, 10.0, kappa), 10.0, kappa)


@both_weights
@pytest.mark.parametrize("share", [1 / 700, 0.05, 0.25, 1.0])
def test_any_share_of_clicks(share, kappa):
    columns = make(700, share=share)
    assert columns[1].sum() == round(700 * share)
    assert_as_good_as_pairs(columns, clicks_of(columns, 3.0, kappa), 3.0, kappa)


@pytest.mark.parametrize("bid", [1.0, 1e5])
def test_without_a_click_nothing_is_at_stake(bid):
    assert (clicks_of(make(300, share=0.0, scale=bid)) == 0).all()


@both_weights
@pytest.mark.parametrize("most", [1.0, 40.0], ids=["soft", "clicks over exposure"])
def test_labels_between_and_above(most, kappa):
    z, clicks, bids, teacher = make(600)
    label = clicks * most * torch.rand(600, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    columns = z, label, bids, teacher
    assert_as_good_as_pairs(columns, clicks_of(columns, 3.0, kappa), 3.0, kappa)
    columns = z, most * teacher, bids, teacher  # every ad has a value
    assert_as_good_as_pairs(columns, clicks_of(columns, 3.0, kappa), 3.0, kappa)


@both_weights
def test_a_tiny_value_alone_in_its_panel(kappa):
    """1e-25 of the largest leaves no charge for others to see, but its ad gets a slope."""
    columns = make(300)
    _, clicks, bids, _ = columns
    bids.clamp_(max=20.0)
    columns[0][0], clicks[0], bids[0] = 0.0, 1e-25, 60.0
    found = panel_sums(*columns, None, 300, PairOptions(gap="positive", weighting=kappa))[0, 1, 0]
    others = clicks == 0
    others[0] = True
    truth = definition(*(x[others] for x in columns), sigma=1.0, kappa=kappa)[1, 0]
    assert truth < 0
    assert abs(found.double() / truth - 1) < 1e-5


@both_weights
@pytest.mark.parametrize("members", [1, 3])
def test_ties(members, kappa):
    """Ads that are copies of a few: equal values have nothing at stake, equal eCPM has half a slope."""
    columns = tuple(x[:members].repeat(100) for x in make(3, share=1.0))
    columns[1][members * 50 :] = 0
    assert_as_good_as_pairs(columns, clicks_of(columns, 3.0, kappa), 3.0, kappa)


@both_weights
def test_panels_far_apart(kappa):
    """More than a thousand panels, most of them empty: what is far below and far above comes in chunks."""
    columns = make(200, scale=30.0, shift=0.0)
    t = columns[2] * torch.sigmoid(columns[0]) * 10.0
    assert 1000 < t.max() < fused_panels.MOST_PANELS
    assert_as_good_as_pairs(columns, clicks_of(columns, 10.0, kappa), 10.0, kappa)


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
    truth = definition(*columns, sigma=1.0, kappa=kappa)
    assert 0 < truth[0].sum() < 1e-3 * 400**2
    assert (error(clicks_of(columns, 1.0, kappa), truth) < 1e-4).all()


@both_weights
def test_tails_across_hundreds_of_panels(kappa):
    """Every ad has its own distance, so that each panel has some beyond reach on both sides."""
    z, _, _, teacher = make(300)
    t = torch.linspace(0.5, 150.0, 300, device=DEVICE)
    columns = torch.zeros_like(z), (t > 60).float(), 2 * t, teacher
    assert_as_good_as_pairs(columns, clicks_of(columns, 1.0, kappa), 1.0, kappa)
    columns = torch.zeros_like(z), ((t < 40) | (t > 62)).float() * (t > 62), 2 * t * ((t < 40) | (t > 62)), teacher
    found, truth = clicks_of(columns, 1.0, kappa), definition(*columns, sigma=1.0, kappa=kappa)
    unclicked = columns[1] == 0
    assert (error(found[:, unclicked], truth[:, unclicked]) < 1e-4).all()


@both_weights
@pytest.mark.parametrize("scale", [1e-6, 1e5])
def test_auctions_of_any_scale(scale, kappa):
    """Bids of 1e5 are too wide for panels: those auctions are taken pair by pair."""
    columns = make(300, scale=scale)
    assert_as_good_as_pairs(columns, clicks_of(columns, 1.0, kappa), 1.0, kappa)


def test_few_panels(monkeypatch):
    """Just wide enough, and one too few."""
    columns = make(200, scale=10.0)
    width = int((columns[2] * torch.sigmoid(columns[0])).max()) + 1
    for most in (width, width - 1):
        monkeypatch.setattr(fused_panels, "MOST_PANELS", most)
        monkeypatch.setattr(fused_panels, "LEAST_PANELS", 1)
        assert_as_good_as_pairs(columns, clicks_of(columns))


@both_weights
def test_ads_do_not_see_other_auctions(kappa):
    """Empty auctions, single ads, some without a click, and one in three too wide."""
    bounds = [0, 0, 1, 6, 6, 300, 301, 750, 900, 900]
    columns = make(900)
    columns[1][301:500] = 0
    columns[2][6:300] *= 1e5
    found = clicks_of(columns, 1.0, kappa, offsets=bounds)
    for begin, end in neighbours(bounds):
        one = tuple(x[begin:end] for x in columns)
        if end - begin == 1:
            assert (found[:, begin] == 0).all()
        elif end > begin:
            assert_as_good_as_pairs(one, found[:, begin:end], 1.0, kappa)


@pytest.mark.parametrize(("auctions", "size"), [(40, 7), (3, 300), (20, 1)])
def test_auctions_of_equal_size(auctions, size):
    columns = make(auctions * size)
    found = clicks_of(columns, size=size)
    alone = [tuple(x[i : i + size] for x in columns) for i in range(0, auctions * size, size)]
    truth = torch.cat([definition(*one, sigma=1.0, kappa=3.0) for one in alone], 1)
    assert (error(found, truth) < 1e-6).all()
    torch.testing.assert_close(clicks_of(columns, offsets=range(0, auctions * size + 1, size)), found, rtol=0, atol=0)


@both_weights
@pytest.mark.parametrize("clicked", [False, True])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_what_is_not_a_number_stays_in_its_auction(column, clicked, kappa):
    columns = make(90)
    columns[1][40] = float(clicked)
    alone = clicks_of(columns, 1.0, kappa, size=30)
    columns[column][40] = torch.nan
    found = clicks_of(columns, 1.0, kappa, size=30)
    assert found[:, 40].isnan().any()
    assert found[1, 30:60].isnan().all()
    for others in (slice(0, 30), slice(60, 90)):  # with another number of clicked ads before them, their sums are cut
        torch.testing.assert_close(found[:, others], alone[:, others], rtol=1e-6, atol=1e-6)  # elsewhere


def test_no_ads():
    columns = make(0)
    assert clicks_of(columns, size=5).shape == (2, 0)
    assert clicks_of(columns, offsets=[0, 0, 0]).shape == (2, 0)


def test_bits_repeat():
    columns = make(1000 if not CUDA else 100_000)
    found = clicks_of(columns, 3.0)
    for _ in range(2 if not CUDA else 20):
        assert torch.equal(clicks_of(columns, 3.0), found)


@pytest.mark.parametrize("programs", [1, 3, 100])
def test_any_number_of_programs_shares_the_pairs(programs, monkeypatch):
    """Of 400 clicked ads, with 8 partners at a time: from one share to as many as there may be."""
    monkeypatch.setattr(fused_panels, "PAIR_PROGRAMS", programs)
    monkeypatch.setattr(fused_panels, "PARTNERS", 8)
    columns = make(800, share=0.02)
    assert_as_good_as_pairs(columns, clicks_of(columns))
    columns = make(300, share=0.5)
    assert_as_good_as_pairs(columns, clicks_of(columns))


def test_arguments_are_left_alone():
    columns = make(100)
    before = [x.clone() for x in columns]
    clicks_of(columns)
    assert all(torch.equal(x, y) for x, y in zip(columns, before, strict=True))


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
@both_weights
def test_many_auctions(kappa):
    columns = make(300_000)
    offsets = torch.tensor([0, 5000, 5000, 5001, 120_000, 130_000, 300_000], device=DEVICE)
    found = loss_and_gradient(columns, "triton", offsets, weighting=kappa, reduction="none")
    exact = loss_and_gradient(tuple(x.double() for x in columns), "fast", offsets, weighting=kappa, reduction="none")
    for ours, true in zip(found, exact, strict=True):
        assert (ours.double() - true).norm() <= 2e-6 * true.norm()


@needs_gpu
@pytest.mark.parametrize("distance", [18.0, 40.0])
def test_large_ordered_auctions(distance):
    columns = ordered(65_536, distance)
    found = loss_and_gradient(columns, "triton")
    exact = loss_and_gradient(tuple(x.double() for x in columns), "fast")
    for ours, true in zip(found, exact, strict=True):
        assert (ours.double() - true).norm() <= 1e-4 * true.norm()


@needs_gpu
@both_weights
def test_a_graph_holds_all_of_it(kappa):
    """Replayed with other ads, wide ones among them and other clicks, it gives the bits of a plain call."""
    columns, options = make(5000), PairOptions(gap="positive", weighting=kappa)
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


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_host_never_waits():
    columns = make(10_000)
    loss_and_gradient(columns, "auto")
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss_and_gradient(columns, "auto")
    finally:
        torch.cuda.set_sync_debug_mode("default")
