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
def few_programs(monkeypatch):
    if not CUDA:  # the interpreter takes a millisecond for a program without work
        read_bounds_of_loops(monkeypatch)
        monkeypatch.setattr(fused_panels, "FIELD_WORKERS", 8)
        monkeypatch.setattr(fused_panels, "PAIR_PROGRAMS", 8)


def make(ads, seed=0, value="clicks", scale=1.0, shift=-2.0):
    """Logits, labels, bids and teacher of ``ads`` ads."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(3, ads, generator=generator)
    teacher = torch.sigmoid(noise[0] + 0.5 * noise[1] + shift)
    clicks = (torch.rand(ads, generator=generator) < teacher).float()
    columns = noise[0] + shift, clicks if value == "clicks" else teacher, scale * noise[2].exp(), teacher
    return tuple(x.to(DEVICE) for x in columns)


def definition(z, label, bids, teacher, sigma, kappa, dtype=torch.float64):
    """Both sums of every ad of one auction over all n x n pairs, ``(2, ads)``."""
    z, label, bids, teacher = (x.to(dtype) for x in (z, label, bids, teacher))
    s, v = bids * torch.sigmoid(z), bids * label
    left = torch.ones_like(s) if kappa is None else torch.sigmoid(kappa * bids * teacher)
    right = torch.ones_like(s) if kappa is None else torch.sigmoid(kappa * s)
    lag, gap = sigma * (s[:, None] - s), v - v[:, None]  # (k, i): t_k - t_i, v_i - v_k
    cost = (left * gap * torch.nn.functional.softplus(lag, threshold=40.0)).sum(1)
    as_j = right * (left * gap * torch.sigmoid(lag)).sum(1)
    as_i = left * (right * gap * torch.sigmoid(-lag)).sum(1)
    return torch.stack([cost, sigma * (as_j + as_i)])


def panels(columns, sigma=1.0, kappa: float | None = 3.0, offsets=None, size=None) -> Tensor:
    if offsets is None and size is None:
        size = len(columns[0])
    if offsets is not None:
        offsets = torch.tensor(offsets, device=DEVICE)
    return panel_sums(*columns, offsets, size, PairOptions(sigma=sigma, weighting=kappa))[0]


def error(found, truth):
    """Of each of the two sums, relative to its norm over the ads."""
    return (found.double() - truth).norm(dim=-1) / truth.norm(dim=-1).clamp(min=1e-30)


def assert_as_good_as_pairs(columns, found, sigma, kappa):
    truth = definition(*columns, sigma, kappa)
    plain = definition(*columns, sigma, kappa, torch.float32)
    assert found.isfinite().all()
    assert (error(found, truth) <= error(plain, truth) + 1e-6).all(), (error(found, truth), error(plain, truth))


@pytest.mark.parametrize("value", ["clicks", "teacher"])
@pytest.mark.parametrize("kappa", [None, 3.0])
@pytest.mark.parametrize("sigma", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("ads", [2, 3, 65, 513, 1500])
def test_sums_err_no_more_than_float32_pairs(ads, sigma, kappa, value):
    columns = make(ads, seed=ads, value=value)
    assert_as_good_as_pairs(columns, panels(columns, sigma, kappa), sigma, kappa)


def test_thousands_of_ads():
    columns = make(5000, value="teacher")
    assert_as_good_as_pairs(columns, panels(columns, 10.0, 3.0), 10.0, 3.0)


@pytest.mark.parametrize("kappa", [3.0, 1e-3])
def test_panels_far_apart(kappa):
    """More than a thousand panels, most of them empty: what is far below and far above comes in chunks."""
    columns = make(200, scale=30.0, shift=0.0)
    t = columns[2] * torch.sigmoid(columns[0]) * 10.0
    assert 1000 < t.max() < fused_panels.MOST_PANELS
    assert_as_good_as_pairs(columns, panels(columns, 10.0, kappa), 10.0, kappa)


@pytest.mark.parametrize("value", ["clicks", "teacher"])
def test_logits_of_a_hundred(value):
    z, label, bids, teacher = make(300, value=value)
    z = torch.where(z > -2, 100.0, -100.0)
    assert_as_good_as_pairs((z, label, bids, teacher), panels((z, label, bids, teacher)), 1.0, 3.0)


@pytest.mark.parametrize("scale", [1e-6, 1e5])
def test_auctions_of_any_scale(scale):
    """Bids of 1e5 are too wide for panels: those auctions are taken pair by pair."""
    columns = make(300, scale=scale, value="teacher")
    assert_as_good_as_pairs(columns, panels(columns), 1.0, 3.0)


def test_ads_do_not_see_other_auctions():
    """Empty auctions, single ads, and one in three too wide."""
    bounds = [0, 0, 1, 6, 6, 300, 301, 750, 900, 900]
    columns = make(900, value="teacher")
    columns[2][6:300] *= 1e5
    found = panels(columns, offsets=bounds)
    for begin, end in neighbours(bounds):
        one = tuple(x[begin:end] for x in columns)
        if end - begin == 1:
            assert (found[:, begin] == 0).all()
        elif end > begin:
            assert_as_good_as_pairs(one, found[:, begin:end], 1.0, 3.0)


@pytest.mark.parametrize(("auctions", "size"), [(40, 7), (3, 300), (20, 1)])
def test_auctions_of_equal_size(auctions, size):
    columns = make(auctions * size)
    found = panels(columns, size=size)
    truth = torch.cat(
        [definition(*(x[i : i + size] for x in columns), 1.0, 3.0) for i in range(0, len(columns[0]), size)], 1
    )
    assert (error(found, truth) < 1e-6).all()
    torch.testing.assert_close(panels(columns, offsets=range(0, auctions * size + 1, size)), found, rtol=0, atol=0)


def test_what_is_not_a_number_stays_in_its_auction():
    columns = make(90)
    alone = panels(columns, size=30)
    columns[0][40] = torch.nan
    found = panels(columns, size=30)
    assert found[:, 30:60].isnan().all()
    torch.testing.assert_close(found[:, :30], alone[:, :30], rtol=0, atol=0)
    torch.testing.assert_close(found[:, 60:], alone[:, 60:], rtol=0, atol=0)


@pytest.mark.parametrize("bid", [0.7, 1e5])
def test_equal_values_cost_nothing(bid):
    """No value is at stake between them, whatever the logits."""
    z, _, bids, teacher = make(200)
    found = panels((z, torch.ones_like(z), torch.full_like(bids, bid), teacher))
    assert (found == 0).all()


def test_no_ads():
    columns = make(0)
    assert panels(columns, size=5).shape == (2, 0)
    assert panels(columns, offsets=[0, 0, 0]).shape == (2, 0)


def test_order_of_ads_changes_no_bit():
    """Integers are added up, so it does not matter which program comes first."""
    columns = make(1000 if not CUDA else 100_000)
    found = panels(columns, 3.0)
    order = torch.randperm(len(columns[0]), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    assert torch.equal(panels(columns, 3.0), found)
    assert torch.equal(panels(tuple(x[order] for x in columns), 3.0), found[:, order])


def test_arguments_are_left_alone():
    columns = make(100)
    before = [x.clone() for x in columns]
    panels(columns)
    assert all(torch.equal(x, y) for x, y in zip(columns, before, strict=True))


@needs_gpu
@pytest.mark.parametrize("sigma", [1.0, 10.0])
@pytest.mark.parametrize("value", ["clicks", "teacher"])
def test_a_million_ads(sigma, value):
    z, label, bids, teacher = columns = make(1 << 20, value=value)
    z, label, bids, teacher = (x.double() for x in columns)
    s = bids * torch.sigmoid(z)
    left, right = torch.sigmoid(3.0 * bids * teacher), torch.sigmoid(3.0 * s)
    ads = PairInputs(s, bids * label, left, right)
    cost, slope = signed_sums(ads, Auctions.of(z, None), PairOptions(sigma=sigma), gradient=True)
    assert slope is not None
    assert (error(panels(columns, sigma), torch.stack([cost / right, slope])) < 1e-6).all()


@needs_gpu
def test_a_graph_holds_all_of_it():
    """Replayed with other ads, wide ones among them, it gives the bits of a plain call."""
    columns, options = make(5000), PairOptions(weighting=3.0)
    offsets = torch.tensor([0, 10, 3000, 5000], device=DEVICE)
    panel_sums(*columns, offsets, None, options)  # makes the tables and compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = panel_sums(*columns, offsets, None, options)
    for scale in (1.0, 30.0, 1e5):
        for held, new in zip(columns, make(5000, seed=9, scale=scale), strict=True):
            held.copy_(new)
        graph.replay()
        assert torch.equal(found, panel_sums(*columns, offsets, None, options))
