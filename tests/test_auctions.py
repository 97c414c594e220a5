"""Welfare of an allocation, against plain loops."""

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bidwise.auctions import welfare

settings.register_profile("auctions", derandomize=True, deadline=None, database=None, max_examples=100)
seeded = settings(settings.get_profile("auctions"))


def loop_welfare(ctr, truth, bids, offsets, slots):
    """One auction at a time, one slot at a time."""
    totals = []
    for first, last in itertools.pairwise(offsets):
        left, total = list(range(first, last)), 0.0
        for alpha in slots:
            if not left:
                break
            shown = left[0]
            for row in left[1:]:
                if bids[row] * ctr[row] > bids[shown] * ctr[shown]:
                    shown = row
            left.remove(shown)
            total += alpha * bids[shown] * truth[shown]
        totals.append(total)
    return totals


def ragged_ads(seed, sizes):
    """Few distinct numbers, so that ties are common."""
    draw = random.Random(seed)
    ads = sum(sizes)
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    ctr = [draw.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(ads)]
    truth = [draw.random() for _ in range(ads)]
    bids = [draw.choice([0.5, 1.0, 2.0, 3.0]) for _ in range(ads)]
    return ctr, truth, bids, offsets


ads_of_one_auction = st.lists(
    st.tuples(st.integers(0, 64), st.integers(0, 64), st.integers(1, 80)), min_size=1, max_size=8
)
falling_slots = st.lists(st.integers(1, 10), max_size=4).map(
    lambda shares: (1.0, *sorted((share / 10 for share in shares), reverse=True))
)


def test_example_2_1_is_1_72():
    ctr, bids = torch.tensor([0.1, 0.4, 0.9]), torch.tensor([10.0, 2.0, 0.5])
    assert welfare(ctr, ctr, bids, None, slots=(1.0, 0.9)).item() == pytest.approx(1.72, abs=1e-6)


@pytest.mark.parametrize("slots", [(1.0,), (1.0, 1.0), (1.0, 0.6, 0.3), (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)])
@pytest.mark.parametrize("sizes", [[4], [3, 0, 1, 5], [0, 0], [1, 1, 1], [0, 7, 2, 0]])
def test_welfare_is_the_loop(sizes, slots):
    for seed in range(5):
        ctr, truth, bids, offsets = ragged_ads(seed, sizes)
        found = welfare(ctr, truth, bids, torch.tensor(offsets), slots=slots)
        assert found.tolist() == pytest.approx(loop_welfare(ctr, truth, bids, offsets, slots))


def test_ties_go_to_the_lowest_row():
    ctr, truth, bids = (
        torch.tensor([0.5, 1.0, 0.5]),
        torch.tensor([0.1, 0.2, 0.3]),
        torch.tensor([2.0, 1.0, 2.0]),
    )
    assert welfare(ctr, truth, bids, None).item() == pytest.approx(0.2)


def test_ties_go_to_the_lowest_row_among_many():
    """Long enough for sorts that are not stable to show it."""
    ads, size = 20_000, 100
    ctr, bids = torch.full((ads,), 0.5), torch.ones(ads)
    row = torch.arange(ads) % size
    truth = row / size
    one_auction = welfare(ctr, truth.sort().values, bids, None, slots=(1.0, 1.0))
    assert one_auction.tolist() == [0.0]
    many = welfare(ctr, truth, bids, torch.arange(0, ads + 1, size), slots=(1.0, 0.5))
    torch.testing.assert_close(many, torch.full((ads // size,), 0.5 / size, dtype=torch.float64))


def test_without_offsets_the_ads_are_one_auction():
    ctr, truth, bids, _ = ragged_ads(0, [6])
    together = welfare(ctr, truth, bids, torch.tensor([0, 6]), slots=(1.0, 0.5))
    torch.testing.assert_close(welfare(ctr, truth, bids, None, slots=(1.0, 0.5)), together)


def test_no_ads_and_no_auctions():
    nothing = torch.zeros(0)
    assert welfare(nothing, nothing, nothing, None).tolist() == [0.0]
    assert welfare(nothing, nothing, nothing, torch.tensor([0, 0, 0])).tolist() == [0.0, 0.0]
    assert welfare(nothing, nothing, nothing, torch.tensor([0])).tolist() == []


def test_arrays_and_tensors_agree_and_are_left_alone():
    ctr, truth, bids, offsets = (np.array(column) for column in ragged_ads(1, [3, 4]))
    for column in (ctr, truth, bids, offsets):
        column.flags.writeable = False
    from_arrays = welfare(ctr, truth, bids, offsets, slots=(1.0, 0.5))
    tensors = [torch.tensor(column) for column in (ctr, truth, bids, offsets)]
    before = [column.clone() for column in tensors]
    torch.testing.assert_close(welfare(*tensors, slots=(1.0, 0.5)), from_arrays)
    assert all(torch.equal(old, new) for old, new in zip(before, tensors, strict=True))


def test_float32_predictions_are_ranked_without_rounding():
    """The two eCPMs are equal once rounded to float32; the second is higher."""
    ctr, bids = torch.tensor([0.1, 0.07]), torch.tensor([0.7, 1.0])
    assert len((bids * ctr).unique()) == 1
    shown = welfare(ctr, torch.tensor([0.0, 1.0]), bids, None)
    assert shown.item() == 1.0
    assert shown.dtype == torch.float64


def test_clicks_may_be_booleans():
    assert welfare([0.5, 0.2], torch.tensor([True, False]), [2.0, 1.0], None).item() == 2.0


@seeded
@given(ads_of_one_auction, falling_slots)
def test_the_true_ctr_is_never_beaten(ads, slots):
    ctr, truth, bids = (torch.tensor(column, dtype=torch.float64) for column in zip(*ads, strict=True))
    ctr, truth, bids = ctr / 64, truth / 64, bids / 8
    best = welfare(truth, truth, bids, None, slots=slots).item()
    assert welfare(ctr, truth, bids, None, slots=slots).item() <= best + 1e-12


@seeded
@given(ads_of_one_auction, ads_of_one_auction, falling_slots)
def test_auctions_do_not_interact(first, second, slots):
    columns = torch.tensor(first + second, dtype=torch.float64) / torch.tensor([64, 64, 8])
    together = welfare(*columns.T, torch.tensor([0, len(first), len(first) + len(second)]), slots=slots)
    alone = [welfare(*part.T, None, slots=slots) for part in (columns[: len(first)], columns[len(first) :])]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ctr": [0.5, 1.5]}, r"ctr must be in \[0, 1\], found 1.5"),
        ({"ctr": [[0.5, 0.5]]}, r"ctr must have shape \(ads,\), found \(1, 2\)"),
        ({"truth": [0.5, -0.1]}, "truth must be in"),
        ({"truth": [0.5, float("nan")]}, "truth must be in"),
        ({"truth": [0.5]}, "truth must have one number per ad, 2, found 1"),
        ({"bids": [1.0, 0.0]}, "bids must be finite and above 0, found 0"),
        ({"bids": [1.0, 2.0, 3.0]}, "bids must have one number per ad"),
        ({"offsets": torch.tensor([0, 1])}, "offsets must end at the number of ads"),
        ({"slots": ()}, "slots must have one multiplier per slot"),
        ({"slots": (0.9, 0.5)}, "slots must start with 1, found 0.9"),
        ({"slots": (1.0, 0.5, 0.6)}, "slots must be positive and must not rise"),
        ({"slots": (1.0, 0.0)}, "slots must be positive and must not rise"),
        ({"slots": (1.0, float("nan"))}, "slots must be positive and must not rise"),
    ],
)
def test_wrong_values_are_named(changed, message):
    good = {"ctr": [0.5, 0.5], "truth": [0.5, 0.5], "bids": [1.0, 1.0], "offsets": None, "slots": (1.0,)}
    arguments = good | changed
    slots = arguments.pop("slots")
    with pytest.raises(ValueError, match=message):
        welfare(*arguments.values(), slots=slots)


def test_wrong_types_are_named():
    with pytest.raises(TypeError, match="bids must hold numbers"):
        welfare([0.5], [0.5], ["one"], None)
    with pytest.raises(TypeError, match=r"offsets must be torch.int64, found torch.float64"):
        welfare([0.5], [0.5], [1.0], [0.0, 1.0])
    with pytest.raises(TypeError, match="ctr must be real"):
        welfare(torch.tensor([0.5 + 0j]), [0.5], [1.0], None)
