"""The signed logistic loss by panels on a GPU equals its definition; without one, in Triton's interpreter.

``TRITON_INTERPRET=1 pytest tests/test_panel_kernels.py`` runs them on a CPU.
"""

from itertools import pairwise as neighbours

import pytest
import torch
from helpers import CUDA, DEVICE, gpu_or_interpreter, needs_gpu, read_bounds_of_loops
from torch import Tensor

pytest.importorskip("triton")

from bidwise.kernels import fused_panels
from bidwise.kernels.fused_panels import panel_sums
from bidwise.losses.definition import PairInputs, PairOptions
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


def definition(z, label, bids, teacher, sigma, kappa, dtype=torch.float64):
    """Cost without its factor right_k, and slope, of every ad of one auction over all n x n pairs, ``(2, ads)``."""
    z, label, bids, teacher = (x.to(dtype) for x in (z, label, bids, teacher))
    s, v = bids * torch.sigmoid(z), bids * label
    left = torch.ones_like(s) if kappa is None else torch.sigmoid(kappa * bids * teacher)
    right = torch.ones_like(s) if kappa is None else torch.sigmoid(kappa * s)
    lag, stake = sigma * (s[:, None] - s), v - v[:, None]  # (k, i): t_k - t_i, v_i - v_k
    cost = (left * stake * torch.nn.functional.softplus(lag, threshold=40.0)).sum(1)
    slope = right * (left * stake * torch.sigmoid(lag)).sum(1) + left * (right * stake * torch.sigmoid(-lag)).sum(1)
    return torch.stack([cost, sigma * slope])


def sums_of(columns, sigma=1.0, kappa: float | None = 3.0, offsets=None, size=None) -> Tensor:
    if offsets is None and size is None:
        size = len(columns[0])
    if offsets is not None:
        offsets = torch.tensor(offsets, device=DEVICE)
    return panel_sums(*columns, offsets, size, PairOptions(sigma=sigma, weighting=kappa))[0]


def error(found, truth):
    """Of each of the two sums, relative to its norm over the ads; infinite where 0 is owed and not given."""
    wrong, norm = (found.double() - truth).norm(dim=-1), truth.norm(dim=-1)
    return torch.where(norm > 0, wrong / norm, torch.where(wrong > 0, torch.inf, 0.0))


def assert_as_good_as_pairs(columns, sigma=1.0, kappa: float | None = 3.0, found=None):
    found = sums_of(columns, sigma, kappa) if found is None else found
    truth = definition(*columns, sigma, kappa)
    plain = definition(*columns, sigma, kappa, torch.float32)
    assert found.isfinite().all()
    assert (error(found, truth) <= error(plain, truth) + 1e-6).all(), (error(found, truth), error(plain, truth))


both_weights = pytest.mark.parametrize("kappa", [None, 3.0])


def with_teacher(columns):
    """The teacher's CTR as labels: every ad has a value."""
    z, _, bids, teacher = columns
    return z, teacher, bids, teacher


@both_weights
@pytest.mark.parametrize("sigma", [1.0, 10.0])
@pytest.mark.parametrize("ads", [2, 3, 65, 513, 1500])
def test_sums_err_no_more_than_float32_pairs(ads, sigma, kappa):
    columns = make(ads, seed=ads, share=max(0.25, 1 / ads))
    assert_as_good_as_pairs(columns, sigma, kappa)
    assert_as_good_as_pairs(with_teacher(columns), sigma, kappa)


@pytest.mark.parametrize("kappa", [None, 3.0, 1e-3])
def test_panels_far_apart(kappa):
    """More than a thousand panels, most of them empty: what is far below and far above comes in chunks."""
    columns = make(200, scale=30.0, shift=0.0)
    t = columns[2] * torch.sigmoid(columns[0]) * 10.0
    assert 1000 < t.max() < fused_panels.MOST_PANELS
    assert_as_good_as_pairs(columns, 10.0, kappa)


@pytest.mark.parametrize("scale", [1e-6, 1e5])
def test_auctions_of_any_scale(scale):
    """Bids of 1e5 are too wide for panels: those auctions are taken pair by pair."""
    assert_as_good_as_pairs(make(300, scale=scale))


def test_few_panels(monkeypatch):
    """Just wide enough, and one too few."""
    columns = make(200, scale=10.0)
    width = int((columns[2] * torch.sigmoid(columns[0])).max()) + 1
    for most in (width, width - 1):
        monkeypatch.setattr(fused_panels, "MOST_PANELS", most)
        monkeypatch.setattr(fused_panels, "LEAST_PANELS", 1)
        assert_as_good_as_pairs(columns)


def test_ads_do_not_see_other_auctions():
    """Empty auctions, single ads, some without a click, and one in three too wide."""
    bounds = [0, 0, 1, 6, 6, 300, 301, 750, 900, 900]
    columns = make(900)
    columns[1][301:500] = 0
    columns[2][6:300] *= 1e5
    found = sums_of(columns, offsets=bounds)
    for begin, end in neighbours(bounds):
        if end - begin == 1:
            assert (found[:, begin] == 0).all()
        elif end > begin:
            one = tuple(x[begin:end] for x in columns)
            assert_as_good_as_pairs(one, found=found[:, begin:end])


@pytest.mark.parametrize(("auctions", "size"), [(40, 7), (3, 300), (20, 1)])
def test_auctions_of_equal_size(auctions, size):
    columns = make(auctions * size)
    found = sums_of(columns, size=size)
    alone = [tuple(x[i : i + size] for x in columns) for i in range(0, auctions * size, size)]
    truth = torch.cat([definition(*one, 1.0, 3.0) for one in alone], 1)
    assert (error(found, truth) < 1e-6).all()
    by_bounds = sums_of(columns, offsets=range(0, auctions * size + 1, size))
    torch.testing.assert_close(by_bounds, found, rtol=0, atol=0)


@both_weights
@pytest.mark.parametrize("clicked", [False, True])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_what_is_not_a_number_stays_in_its_auction(column, clicked, kappa):
    columns = make(90)
    columns[1][40] = float(clicked)
    alone = sums_of(columns, 1.0, kappa, size=30)
    columns[column][40] = torch.nan
    found = sums_of(columns, 1.0, kappa, size=30)
    assert found[:, 40].isnan().any()
    assert found[1, 30:60].isnan().all()
    for others in (slice(0, 30), slice(60, 90)):
        assert torch.equal(found[:, others], alone[:, others])


def test_no_ads():
    columns = make(0)
    assert sums_of(columns, size=5).shape == (2, 0)
    assert sums_of(columns, offsets=[0, 0, 0]).shape == (2, 0)


def test_bits_repeat_and_arguments_are_left_alone():
    columns = make(1000 if not CUDA else 100_000)
    before = [x.clone() for x in columns]
    found = sums_of(columns, 3.0)
    assert all(torch.equal(x, y) for x, y in zip(columns, before, strict=True))
    for _ in range(2 if not CUDA else 20):
        assert torch.equal(sums_of(columns, 3.0), found)


@needs_gpu
@both_weights
def test_a_graph_holds_all_of_it(kappa):
    """Replayed with other ads, wide ones among them and other clicks, it gives the bits of a plain call."""
    columns, options = make(5000), PairOptions(weighting=kappa)
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


def test_logits_of_a_hundred():
    z, label, bids, teacher = make(300)
    columns = torch.where(z > -2, 100.0, -100.0), label, bids, teacher
    assert_as_good_as_pairs(columns)
    assert_as_good_as_pairs(with_teacher(columns))


@pytest.mark.parametrize("bid", [0.7, 1e5])
def test_equal_values_cost_nothing(bid):
    """No value is at stake between them, whatever the logits."""
    z, _, bids, teacher = make(200)
    assert (sums_of((z, torch.ones_like(z), torch.full_like(bids, bid), teacher)) == 0).all()


def test_order_of_ads_changes_no_bit():
    """Integers are added up, so it does not matter which program comes first."""
    columns = make(1000 if not CUDA else 100_000)
    order = torch.randperm(len(columns[0]), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    found = sums_of(columns, 3.0)
    assert torch.equal(sums_of(tuple(x[order] for x in columns), 3.0), found[:, order])


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
    assert (error(sums_of(columns, sigma), torch.stack([cost / right, slope])) < 1e-6).all()
