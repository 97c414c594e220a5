"""What ranks add up of one auction is all of it: the parts of a loss and of its gradient sum to the whole."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product

import pytest
import torch
from helpers import DEVICE, gpu_or_interpreter, needs_gpu, read_bounds_of_loops

from bidwise import distributed
from bidwise.kernels.fused_pairs import fused_loss
from bidwise.losses.api import loss_and_gradient
from bidwise.losses.definition import GAPS, SURROGATES, Batch, PairOptions, Part
from bidwise.losses.dispatch import linear
from bidwise.losses.without_pairs import LEAF_PAIRS, _range
from bidwise.training.permutation import draws, permutations, swapped

CUTS = (0, 7, 7, 300, 641)  # of four ranks, one without ads
SIZES = [b - a for a, b in pairwise(CUTS)]


def both(marks):
    return lambda test: marks[0](marks[1](test))


def ads(count, device="cpu", seed=0):
    random = torch.Generator().manual_seed(seed)
    logits, bids = torch.randn(count, generator=random) - 1, torch.randn(count, generator=random).exp()
    teacher = torch.sigmoid(torch.randn(count, generator=random) - 1)
    clicks = (torch.rand(count, generator=random) < teacher).float()
    return Batch(*(x.to(device) for x in (logits, clicks, bids)), None, teacher.to(device))


def parts():
    return [Part(a, b, CUTS[-1], 1, rank, len(SIZES)) for rank, (a, b) in enumerate(pairwise(CUTS))]


def of_ranks(batch, options, monkeypatch):
    """Loss and gradient from each rank as a thread; where they exchange sums, each is given its own ads alone."""
    if not linear(options, CUTS[-1], len(SIZES)):
        return [loss_and_gradient(batch, options, 3.0, True, part) for part in parts()]
    here, brought, meet = threading.local(), [None] * len(SIZES), threading.Barrier(len(SIZES), timeout=60)

    def stacked(local):
        brought[here.rank] = local
        meet.wait()
        everywhere = torch.stack(brought)
        meet.wait()
        return everywhere

    def work(part):
        here.rank = part.rank
        some = Batch(*(None if x is None else x[part.own] for x in batch))
        return loss_and_gradient(some, options, 3.0, True, part._replace(begin=0, end=len(some.logits), sizes=SIZES))

    monkeypatch.setattr(distributed, "stacked", stacked)
    monkeypatch.setattr(distributed, "rank", lambda: here.rank)
    with ThreadPoolExecutor(len(SIZES)) as threads:
        found = list(threads.map(work, parts()))
    zeros = [torch.zeros(CUTS[-1], dtype=batch.logits.dtype) for _ in found]
    return [
        (loss, zero.index_copy(0, torch.arange(part.begin, part.end), slope))
        for (loss, slope), zero, part in zip(found, zeros, parts(), strict=True)
    ]


@pytest.mark.parametrize("method", ["direct", "fast"])
@pytest.mark.parametrize("weighting", [None, 3.0])
@pytest.mark.parametrize("value", ["clicks", "teacher"])
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("gap", GAPS)
def test_parts_of_a_loss_add_up(gap, surrogate, value, weighting, method, monkeypatch):
    batch = Batch(*(None if x is None else x.double() for x in ads(CUTS[-1])))
    options = PairOptions(value, gap, surrogate, 2.0, weighting, method=method)
    loss, slope = loss_and_gradient(batch, options, 3.0, True)
    found = of_ranks(batch, options, monkeypatch)
    torch.testing.assert_close(sum(x for x, _ in found), loss, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(sum(x for _, x in found), slope, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_parts_add_up_with_one_panel_and_with_many(scale, monkeypatch):
    """Ranks exchange moments where eCPM spreads little, and ads where it spreads much: the same loss."""
    batch = Batch(*(None if x is None else x.double() for x in ads(CUTS[-1])))
    batch, options = batch._replace(bids=scale * batch.bids), PairOptions("teacher", weighting=3.0, method="fast")
    loss, slope = loss_and_gradient(batch, options, 3.0, True)
    found = of_ranks(batch, options, monkeypatch)
    torch.testing.assert_close(sum(x for x, _ in found), loss, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(sum(x for _, x in found), slope, rtol=1e-8, atol=1e-12 * scale**2)


VALUES_OF_ADS = {
    "distinct": lambda n, random: torch.rand(n, generator=random),
    "three in four 0": lambda n, random: (torch.rand(n, generator=random) - 0.75).clamp(min=0),
    "two": lambda n, random: (torch.rand(n, generator=random) < 0.3).float(),
    "nine": lambda n, random: torch.randint(9, (n,), generator=random).float(),
    "one": lambda n, random: torch.ones(n),
}


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize("name", VALUES_OF_ADS)
def test_every_pair_is_on_one_rank_whatever_the_ties(name, ranks):
    """The ranges of values: they follow each other, and what is above one has a higher value than all of it."""
    for count in (1, 5, 900, 4096):
        value = VALUES_OF_ADS[name](count, torch.Generator().manual_seed(count)).sort().values
        end = 0
        for rank in range(ranks):
            begin, after, above = _range(value, Part(0, 0, count, 1, rank, ranks), 64)
            assert begin == end <= after <= above <= count
            end = after
            if begin < after:
                higher, own = value[above:], value[begin:after]
                between = value[after:above]  # equal to all of the range, so that nothing is at stake
                assert (higher > own[-1]).all()
                assert (between == own[0]).all()
                assert (between == own[-1]).all()
        assert end == count


def test_ranks_share_out_the_work(monkeypatch):
    """Pairs that are evaluated, and ads of the nodes of a tree: of each of four ranks about a quarter."""
    from bidwise.losses import definition, without_pairs

    work = []
    block, segments = definition.pair_block, without_pairs.segment_sums

    def counted_block(i, j, *given):
        work.append(i.ecpm.numel() * j.ecpm.shape[-1])
        return block(i, j, *given)

    def counted_segments(arranged, *given):
        work.append(LEAF_PAIRS * len(arranged.ads.ecpm))
        return segments(arranged, *given)

    monkeypatch.setattr(definition, "pair_block", counted_block)
    monkeypatch.setattr(without_pairs, "segment_sums", counted_segments)
    count = 4096
    for value, method in product(("clicks", "teacher"), ("direct", "fast")):
        options, spent = PairOptions(value, "positive", method=method), []
        for part in [None, *(Part(count * k // 4, count * (k + 1) // 4, count, 1, k, 4) for k in range(4))]:
            work.clear()
            loss_and_gradient(ads(count), options, 3.0, True, part)
            spent.append(sum(work))
        whole, *each = spent
        assert 0.99 * whole < sum(each) < 1.15 * whole
        assert max(each) < 1.2 * whole / 4, (value, method)


@both(gpu_or_interpreter)
@pytest.mark.parametrize("weighting", [None, 3.0])
@pytest.mark.parametrize(
    ("value", "gap", "stage"),
    [
        ("clicks", "positive", "pairs"),
        ("teacher", "signed", "pairs"),
        ("clicks", "positive", "clicks"),
        ("teacher", "signed", "panels"),
        ("clicks", "signed", "covariance"),
    ],
)
def test_parts_of_a_loss_in_kernels_add_up(value, gap, stage, weighting, monkeypatch):
    if DEVICE == "cpu":
        read_bounds_of_loops(monkeypatch)
    if stage == "covariance" and weighting is not None:
        pytest.skip("weights have no covariance")
    batch, options = ads(CUTS[-1], DEVICE), PairOptions(value, gap, "logistic", 2.0, weighting)
    loss, slope = fused_loss(batch, options, 3.0, "mean", True, stage)
    found = [fused_loss(batch, options, 3.0, "mean", True, stage, part) for part in parts()]
    assert [len(x) for _, x in found] == SIZES
    torch.testing.assert_close(sum(x for x, _ in found), loss, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(torch.cat([x for _, x in found]), slope, rtol=1e-5, atol=1e-8)


def test_auctions_of_a_rank_are_means_over_those_of_all():
    batch, offsets = ads(60), torch.tensor([0, 20, 20, 45, 60])
    options = PairOptions(gap="positive")
    loss, slope = loss_and_gradient(batch._replace(offsets=offsets), options, 3.0, True)
    total, slopes = torch.zeros(()), []
    for own in (torch.tensor([0, 20, 20]), torch.tensor([20, 45, 60])):
        some = Batch(*(None if x is None else x[own[0] : own[-1]] for x in batch))._replace(offsets=own - own[0])
        part = loss_and_gradient(some, options, 3.0, True, Part(0, len(some.logits), 60, 4))
        total, slopes = total + part[0], [*slopes, part[1]]
    torch.testing.assert_close(total, loss)
    torch.testing.assert_close(torch.cat(slopes), slope)


@pytest.mark.parametrize("count", [2, 3, 10, 1000, 100_003])
def test_swaps_found_at_once_are_those_of_torch(count):
    for seed in range(3):
        random, twin = (torch.Generator().manual_seed(seed) for _ in range(2))
        assert torch.equal(swapped(count, draws(count - 1, random)), torch.randperm(count, generator=twin))
        assert torch.equal(random.get_state(), twin.get_state())  # the next epoch is the same, too


@needs_gpu
def test_order_is_the_same_on_a_gpu():
    count = 1_000_003
    there, here = ([torch.Generator().manual_seed(k) for k in (5, 6)] for _ in range(2))
    found = permutations(count, there, torch.device(DEVICE))
    assert found.is_cuda
    assert torch.equal(found.cpu(), permutations(count, here, torch.device("cpu")))
