"""Auctions against plain loops, against the textbook, and against the laws of their prices."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bidwise.auctions import optimal_welfare, outcome, regret, revenue, run_auction, surplus, welfare

settings.register_profile("auctions", derandomize=True, deadline=None, database=None, max_examples=100)
seeded = settings(settings.get_profile("auctions"))

PRICINGS = ["gsp", "vcg", "first_price"]
SLOTS = [(1.0,), (1.0, 1.0), (1.0, 0.6, 0.3), (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)]
SIZES = [[4], [3, 0, 1, 5], [0, 0], [1, 1, 1], [0, 7, 2, 0]]


def all_orders(ctr, bids, first, last, reserve=0.0, squash=1):
    """Every order of an auction's ads in which no score rises."""
    runs = {}
    for row in range(first, last):
        if not bids[row] < reserve:
            runs.setdefault(bids[row] * ctr[row] ** squash, []).append(row)
    ways = [itertools.permutations(runs[score]) for score in sorted(runs, reverse=True)]
    return [list(itertools.chain(*way)) for way in itertools.product(*ways)]


def loop_measures(ctr, truth, bids, offsets, slots, pricing="first_price", reserve=0.0, squash=1):
    """Welfare and revenue of every auction: the mean over all orders of tied ads, one slot at a time."""
    worth, paid = [], []
    for first, last in itertools.pairwise(offsets):
        orders = all_orders(ctr, bids, first, last, reserve, squash)
        gains, prices = [], []
        for order in orders:
            for slot, (alpha, row) in enumerate(zip(slots, order, strict=False)):
                gains.append(alpha * truth[row] * bids[row])
                price = loop_price(slot, order, ctr, bids, slots, pricing, reserve, squash)
                prices.append(alpha * truth[row] * price)
        worth.append(math.fsum(gains) / len(orders))
        paid.append(math.fsum(prices) / len(orders))
    return worth, paid


def loop_auction(ctr, bids, offsets, slots, pricing, reserve, squash):
    """Winners and prices, slot by slot, of equal scores the higher bid and CTR; ``None`` for an empty slot's price."""
    winners, prices = [], []
    for first, last in itertools.pairwise(offsets):
        bidders = [row for row in range(first, last) if not bids[row] < reserve]
        bidders.sort(key=lambda row: (-bids[row] * ctr[row] ** squash, -bids[row], -ctr[row], row))
        shown = (bidders + [-1] * len(slots))[: len(slots)]
        winners.append(shown)
        prices.append(
            [
                None if row < 0 else loop_price(slot, bidders, ctr, bids, slots, pricing, reserve, squash)
                for slot, row in enumerate(shown)
            ]
        )
    return winners, prices


def loop_price(slot, bidders, ctr, bids, slots, pricing, reserve, squash):
    """What the ad in ``slot``, counted from 0, pays for a click."""
    own = bidders[slot]

    def bid_to_beat(place):
        """Least bid of ``own`` that is worth as much as the bidder in this place, and no less than the reserve."""
        if place >= len(bidders) or ctr[own] ** squash == 0:
            return reserve
        rival = bidders[place]
        return max(reserve, bids[rival] * ctr[rival] ** squash / ctr[own] ** squash)

    if pricing == "gsp":
        price = bid_to_beat(slot + 1)
    elif pricing == "first_price":
        price = bids[own]
    else:  # every step down from the slot to no slot at all, at the price of that step
        price = 0.0
        for place in range(slot, len(slots)):
            below = slots[place + 1] if place + 1 < len(slots) else 0.0
            price += (slots[place] - below) * bid_to_beat(place + 1)
        price /= slots[slot]
    return min(price, bids[own])


def ragged_ads(seed, sizes):
    """Few distinct numbers, so that ties are common; their square roots are exact."""
    draw = random.Random(seed)
    ads = sum(sizes)
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    ctr = [draw.choice([0.0, 0.0625, 0.25, 1.0]) for _ in range(ads)]
    truth = [draw.random() for _ in range(ads)]
    bids = [draw.choice([0.5, 1.0, 2.0, 3.0]) for _ in range(ads)]
    return ctr, truth, bids, offsets


def smooth_ads(seed, sizes):
    """No ties."""
    draw = random.Random(seed)
    _, truth, _, offsets = ragged_ads(seed, sizes)
    return [draw.random() for _ in truth], truth, [draw.lognormvariate(0, 1) for _ in truth], offsets


def assert_is_the_loop(found, winners, prices):
    assert found.winners.tolist() == winners
    assert found.price_per_click.dtype == torch.float64
    for row, expected in zip(found.price_per_click.tolist(), prices, strict=True):
        for price, want in zip(row, expected, strict=True):
            assert math.isnan(price) if want is None else price == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("squash", [0, 0.5, 1, 2])
@pytest.mark.parametrize("reserve", [0.0, 1.0])
@pytest.mark.parametrize("pricing", PRICINGS)
def test_the_auction_is_the_loop(pricing, reserve, squash):
    for seed, (sizes, slots, ads) in enumerate(itertools.product(SIZES, SLOTS, (ragged_ads, smooth_ads))):
        ctr, _, bids, offsets = ads(seed, sizes)
        found = run_auction(ctr, bids, offsets, slots=slots, pricing=pricing, reserve=reserve, squash=squash)
        winners, prices = loop_auction(ctr, bids, offsets, slots, pricing, reserve, squash)
        assert_is_the_loop(found, winners, prices)


@pytest.mark.parametrize("places", [1, 4, 12, 30, 60])
def test_large_auctions_and_many_slots_are_the_loop(places):
    slots = [0.97**k for k in range(places)]
    for ads in (ragged_ads, smooth_ads):
        ctr, _, bids, offsets = ads(places, [50, 3, 45, 0, 41, 2, 47])
        found = run_auction(ctr, bids, offsets, slots=slots, pricing="vcg", reserve=0.75)
        assert_is_the_loop(found, *loop_auction(ctr, bids, offsets, slots, "vcg", 0.75, 1))


@pytest.mark.parametrize("sizes", [[5] * 9, [5, 2, 0, 7, 6, 1, 5, 3]])
def test_auctions_ranked_in_pieces_are_the_same(monkeypatch, sizes):
    ctr, _, bids, offsets = ragged_ads(3, sizes)
    whole = run_auction(ctr, bids, offsets, slots=(1.0, 0.5))
    monkeypatch.setattr(outcome, "CHUNK", 16)
    pieces = run_auction(ctr, bids, offsets, slots=(1.0, 0.5))
    assert torch.equal(pieces.winners, whole.winners)
    assert torch.equal(pieces.payment.nan_to_num(), whole.payment.nan_to_num())


@pytest.mark.parametrize("ads", [ragged_ads, smooth_ads])
@pytest.mark.parametrize("slots", [(1.0,), (1.0, 0.6), (1.0, 1.0, 0.3)])
@pytest.mark.parametrize("pricing", PRICINGS)
@pytest.mark.parametrize(
    "rules", [{}, {"reserve": 1.0}, {"squash": 0.5}, {"squash": 0}, {"reserve": 0.6, "squash": 2.0}]
)
def test_measures_are_the_mean_over_all_orders_of_tied_ads(pricing, rules, slots, ads):
    for seed, sizes in enumerate([[3, 0, 1, 5], [6, 6, 6], [2, 7]]):
        columns = ctr, truth, bids, offsets = ads(seed, sizes)
        worth, paid = loop_measures(*columns, slots, pricing, **rules)
        options = {"slots": slots} | rules
        assert welfare(*columns, **options).tolist() == pytest.approx(worth, rel=1e-12)
        assert revenue(*columns, pricing=pricing, **options).tolist() == pytest.approx(paid, rel=1e-12)
        kept = [w - p for w, p in zip(worth, paid, strict=True)]
        assert surplus(*columns, pricing=pricing, **options).tolist() == pytest.approx(kept, abs=1e-12)
        best, _ = loop_measures(truth, truth, bids, offsets, slots)
        assert optimal_welfare(*columns[1:], slots=slots).tolist() == pytest.approx(best, rel=1e-12)
        lost = [b - w for b, w in zip(best, worth, strict=True)]
        assert regret(*columns, **options).tolist() == pytest.approx(lost, abs=1e-12)
        shown = [
            {tuple(order[: len(slots)]) for order in all_orders(ctr, bids, *bounds, **rules)}
            for bounds in itertools.pairwise(offsets)
        ]
        assert run_auction(ctr, bids, offsets, **options).tied.tolist() == [len(each) > 1 for each in shown]


def test_payment_is_what_the_model_expects():
    ctr, bids, slots = [0.1, 0.4, 0.9], [10.0, 2.0, 0.5], (1.0, 0.9, 0.8, 0.7)
    sold = run_auction(ctr, bids, None, slots=slots)
    assert sold.price_per_click.tolist()[0] == pytest.approx([8.0, 1.125, 0.0, math.nan], nan_ok=True)
    assert sold.payment.tolist()[0] == pytest.approx([0.8, 0.9 * 0.4 * 1.125, 0.0, math.nan], nan_ok=True)
    assert sold.slots.tolist() == list(slots)
    assert sold.revenue(ctr).item() == pytest.approx(sold.payment.nansum().item())


@pytest.mark.parametrize("squash", [0.3, 0.7, 1.5])
def test_equal_ads_tie_wherever_they_stand(squash):
    """Vectorised powers round the last numbers of an array differently."""
    for seed in range(40):
        ctr = random.Random(seed).random()
        sizes = range(1, 38)
        offsets = [0, *itertools.accumulate(sizes)]
        found = run_auction([ctr] * offsets[-1], [1.5] * offsets[-1], offsets, slots=(1.0, 1.0), squash=squash)
        assert found.winners[:, 0].tolist() == offsets[:-1]
        assert found.winners[1:, 1].tolist() == [first + 1 for first in offsets[1:-1]]


def textbook_vcg(ctr, bids, slots):
    """Winners of the best assignment and what each costs the others, by trying every assignment."""

    def best(ads):
        padded = [*ads, *[None] * len(slots)]
        worth = {
            order: sum(a * bids[i] * ctr[i] for a, i in zip(slots, order, strict=True) if i is not None)
            for order in itertools.permutations(padded, len(slots))
        }
        return max(worth.items(), key=lambda item: item[1])

    everyone = range(len(ctr))
    order, total = best(everyone)
    payments = []
    for alpha, own in zip(slots, order, strict=True):
        others = best([row for row in everyone if row != own])[1]
        payments.append(None if own is None else others - (total - alpha * bids[own] * ctr[own]))
    return order, payments


@pytest.mark.parametrize("slots", [(1.0,), (1.0, 0.5), (1.0, 0.7, 0.2)])
@pytest.mark.parametrize("ads", [1, 2, 3, 5])
def test_vcg_charges_the_harm_to_others(ads, slots):
    for seed in range(3):
        ctr, _, bids, _ = smooth_ads(seed, [ads])
        sold = run_auction(ctr, bids, None, slots=slots, pricing="vcg")
        order, payments = textbook_vcg(ctr, bids, slots)
        for k, (row, payment) in enumerate(zip(order, payments, strict=True)):
            assert sold.winners[0, k] == (-1 if row is None else row)
            if row is not None:
                assert sold.payment[0, k].item() == pytest.approx(payment, abs=1e-12)
                assert sold.price_per_click[0, k].item() == pytest.approx(payment / slots[k] / ctr[row], abs=1e-12)


def test_rounding_breaks_neither_the_bid_nor_the_reserve():
    draw = random.Random(0)
    ads = [(draw.random(), draw.lognormvariate(0, 1)) for _ in range(500)]
    assert any(bid * ctr / ctr > bid for ctr, bid in ads)
    twins = torch.tensor(ads, dtype=torch.float64).repeat_interleave(2, dim=0).T
    sold = run_auction(*twins, torch.arange(0, 1001, 2))
    assert (sold.price_per_click[:, 0] <= twins[1, ::2]).all()
    for _ in range(50):
        slots = (1.0, *sorted((draw.random() for _ in range(3)), reverse=True))
        alone = run_auction([0.5], [1.0], None, slots=slots, pricing="vcg", reserve=0.1)
        assert 0.1 <= alone.price_per_click[0, 0].item() < 0.1 + 1e-12


def shuffled(draw, offsets):
    """The rows of auctions in any order, each with its ads in any order: rows, and the auctions in their new order."""
    auctions = draw.sample(range(len(offsets) - 1), len(offsets) - 1)
    return [draw.sample(range(*offsets[k : k + 2]), offsets[k + 1] - offsets[k]) for k in auctions], auctions


@pytest.mark.parametrize("pricing", PRICINGS)
@seeded
@given(seed=st.integers(0, 10**6), squash=st.sampled_from([0, 0.5, 1]), reserve=st.sampled_from([0.0, 1.0]))
def test_the_order_of_rows_and_of_auctions_does_not_matter(pricing, seed, squash, reserve):
    draw = random.Random(seed)
    ctr, truth, bids, offsets = ragged_ads(seed, [draw.randint(0, 9) for _ in range(6)])
    groups, auctions = shuffled(draw, offsets)
    rows, bounds = list(itertools.chain(*groups)), [0, *itertools.accumulate(map(len, groups))]
    rules = {"slots": (1.0, 0.7, 0.7), "pricing": pricing, "reserve": reserve, "squash": squash}
    before = run_auction(ctr, bids, offsets, **rules)
    ctr2, truth2, bids2 = ([column[row] for row in rows] for column in (ctr, truth, bids))
    after = run_auction(ctr2, bids2, bounds, **rules)
    for name, *numbers in (("welfare", (truth, bids), (truth2, bids2)), ("revenue", (truth,), (truth2,))):
        found = [getattr(sold, name)(*columns) for sold, columns in zip((before, after), numbers, strict=True)]
        torch.testing.assert_close(found[1], found[0][auctions], rtol=1e-12, atol=1e-15)
    for name in ("price_per_click", "payment", "tied"):
        torch.testing.assert_close(
            getattr(after, name), getattr(before, name)[auctions], rtol=0, atol=0, equal_nan=True
        )

    def ads(sold, ctr, bids):  # who is shown, ads with the same bid and CTR being the same
        return [[row >= 0 and (ctr[row], bids[row]) for row in auction] for auction in sold.winners.tolist()]

    assert ads(after, ctr2, bids2) == [ads(before, ctr, bids)[k] for k in auctions]


def test_no_ads_and_no_auctions():
    nothing = torch.zeros(0)
    assert welfare(nothing, nothing, nothing, None).tolist() == [0.0]
    assert welfare(nothing, nothing, nothing, torch.tensor([0, 0, 0])).tolist() == [0.0, 0.0]
    assert welfare(nothing, nothing, nothing, torch.tensor([0])).tolist() == []
    for offsets, count in ((None, 1), ([0, 0, 0], 2), ([0], 0)):
        for pricing in PRICINGS:
            sold = run_auction([], [], offsets, slots=(1.0, 0.5, 0.5), pricing=pricing, reserve=0.1)
            assert sold.winners.tolist() == [[-1, -1, -1]] * count
            assert sold.price_per_click.shape == sold.payment.shape == (count, 3)
            assert sold.price_per_click.isnan().all()
            assert sold.payment.isnan().all()
            assert sold.surplus([], []).tolist() == [0.0] * count


@pytest.mark.parametrize("squash", [0, 0.5, 1])
@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_what_is_read_in_place_is_left_alone(make, squash):
    columns = [make(column) for column in smooth_ads(2, [3, 4, 30])]
    for column in columns if make is np.array else ():
        column.flags.writeable = False
    before = [make(column) for column in smooth_ads(2, [3, 4, 30])]
    ctr, truth, bids, offsets = columns
    for pricing in PRICINGS:
        sold = run_auction(ctr, bids, offsets, slots=(1.0, 0.5), pricing=pricing, reserve=0.5, squash=squash)
        sold.surplus(truth, bids)
        for table in (sold.winners, sold.price_per_click, sold.payment):
            table.fill_(0)  # nor is what comes back a view of what went in
    surplus(*columns, slots=(1.0, 0.5), reserve=0.5, squash=squash)
    assert all((old == new).all() for old, new in zip(before, columns, strict=True))


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "uint8", "bool"])
def test_numbers_of_any_kind(kind):
    ctr, bids = np.array([0, 1, 1, 1], dtype=kind), np.array([1, 1, 1, 1], dtype=kind)
    expected = ([[1, 0], [2, 3]], [[0.0, 0.0], [1.0, 0.0]])
    for make in (np.asarray, torch.tensor, list):
        sold = run_auction(make(ctr), make(bids), [0, 2, 4], slots=(1, 1 / 2))
        assert (sold.winners.tolist(), sold.price_per_click.tolist()) == expected
        assert sold.winners.dtype == torch.int64
        assert sold.payment.dtype == torch.float64


@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "uint8", "uint32", "uint64"])
def test_offsets_of_any_integer_kind(kind):
    offsets = np.array([0, 1, 3], dtype=kind)
    for found in (offsets, offsets.tolist(), torch.from_numpy(offsets)):
        assert run_auction([0.5, 0.2, 0.4], [1.0, 1.0, 1.0], found).winners.tolist() == [[0], [2]]


def test_arrays_that_are_not_in_order():
    ads = np.array([[0.5, 1.0], [0.25, 3.0], [1.0, 2.0]])
    forward = run_auction(ads[:, 0], ads[:, 1], None, slots=(1.0, 0.5))
    backward = run_auction(ads[::-1, 0], ads[::-1, 1], None, slots=(1.0, 0.5))
    assert forward.winners.tolist() == [[2, 1]]
    assert backward.winners.tolist() == [[0, 1]]


def test_truth_may_be_clicks_over_exposure_in_an_outcome():
    sold = run_auction([0.5, 0.2], [2.0, 4.0], None, slots=(1.0, 0.5))
    assert sold.welfare([0.0, 2.5], [2.0, 4.0]).item() == 5.0
    assert sold.revenue([2.0, 0.0]).item() == pytest.approx(2.0 * 1.6)
    assert sold.surplus([2.0, 0.0], [2.0, 4.0]).item() == pytest.approx(4.0 - 2.0 * 1.6)


def test_float32_predictions_are_ranked_without_rounding():
    """The two eCPMs are equal once rounded to float32; the second is higher."""
    ctr, bids = torch.tensor([0.1, 0.07]), torch.tensor([0.7, 1.0])
    assert len((bids * ctr).unique()) == 1
    shown = welfare(ctr, torch.tensor([0.0, 1.0]), bids, None)
    assert shown.item() == 1.0
    assert shown.dtype == torch.float64


WRONG = {
    "ctr": ([0.5, 1.5], [[0.5, 0.5]], torch.tensor([0.5 + 0j, 0.5])),
    "truth": ([0.5, -0.1], [0.5, 1.5], [0.5, math.nan], [0.5]),
    "bids": ([1.0, 0.0], [1.0, math.inf], [1.0, 2.0, 3.0], ["one", "two"]),
    "offsets": (torch.tensor([0, 1]), [1, 2], [0, 2, 1, 2], ["one"], [0.0, 2.0], torch.tensor([0.0, 2.0])),
    "slots": ((), (0.9, 0.5), (1.0, 0.5, 0.6), (1.0, 0.0), (1.0, math.nan)),
    "pricing": ("second", None),
    "reserve": (-1.0, math.nan, "one"),
    "squash": (-0.5, math.inf, None),
}


@pytest.mark.parametrize(("argument", "wrong"), [(name, wrong) for name, some in WRONG.items() for wrong in some])
def test_wrong_arguments_are_named(argument, wrong):
    given = {"ctr": [0.5, 0.5], "truth": [0.5, 0.5], "bids": [1.0, 1.0], "offsets": None} | {argument: wrong}
    for measure, unknown in ((revenue, None), (surplus, None), (welfare, "pricing"), (run_auction, "truth")):
        if argument != unknown:
            with pytest.raises((ValueError, TypeError), match=f"^{argument} must"):
                measure(**{name: value for name, value in given.items() if name != unknown})


@pytest.mark.parametrize("truth", [[0.5, -1.0], [math.nan, 0.5], [0.5, 0.5, 0.5]])
def test_wrong_truth_of_an_outcome_is_named(truth):
    sold = run_auction([0.5, 0.5], [1.0, 1.0], None)
    for measure in (lambda truth: sold.welfare(truth, [1.0, 1.0]), sold.revenue):
        with pytest.raises(ValueError, match=r"^truth must (be finite and no less than 0|have one number per ad)"):
            measure(truth)
    with pytest.raises(ValueError, match=r"^bids must be finite and above 0, found 0"):
        sold.surplus([0.5, 0.5], [1.0, 0.0])
    for measure in (welfare, regret):
        with pytest.raises(ValueError, match=r"^truth must be in \[0, 1\], found 1.5 at \[1\]"):
            measure([0.5, 0.5], [0.5, 1.5], [1.0, 1.0], None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("pricing", PRICINGS)
def test_a_gpu_agrees(pricing):
    for sizes in ([50, 3, 45, 0, 41, 2, 47], [20] * 1000):
        ctr, truth, bids, offsets = (torch.tensor(column) for column in ragged_ads(0, sizes))
        options = {"slots": (1.0, 0.8, 0.5), "pricing": pricing, "reserve": 0.75, "squash": 0.5}
        here = run_auction(ctr, bids, offsets, **options)
        there = run_auction(ctr.cuda(), bids, offsets, **options)
        assert torch.equal(there.winners.cpu(), here.winners)
        torch.testing.assert_close(there.price_per_click.cpu(), here.price_per_click, equal_nan=True)
        torch.testing.assert_close(there.surplus(truth, bids).cpu(), here.surplus(truth, bids))
