"""Auctions as people have them: ids and sizes, loaders of torch, columns of numpy, pandas and polars."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import bidwise
from bidwise.data import Ads

IDS = [7, 7, 3, 3, 3, 9]
KINDS = {
    "list": list,
    "tuple": tuple,
    "numpy": np.array,
    "texts": lambda ids: [f"auction {each}" for each in ids],
    "dates": lambda ids: np.array("2026-01-01", dtype="datetime64[D]") + np.array(ids),
    "tensor": torch.tensor,
    "int32 tensor": lambda ids: torch.tensor(ids, dtype=torch.int32),
    "pandas": pd.Series,
    "pandas, other index": lambda ids: pd.Series(ids, index=range(10, 10 + len(ids))),
    "pandas category": lambda ids: pd.Series(ids).astype(str).astype("category"),
    "pandas nullable": lambda ids: pd.Series(ids, dtype="Int64"),
    "polars": pl.Series,
    "polars text": lambda ids: pl.Series([str(each) for each in ids]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_any_kind_give_the_bounds(kind):
    found = bidwise.offsets(KINDS[kind](IDS))
    assert found.dtype == torch.int64
    assert found.tolist() == [0, 2, 5, 6]


@pytest.mark.parametrize("kind", ["list", "numpy", "tensor", "int32 tensor", "pandas", "pandas nullable", "polars"])
def test_sizes_of_any_kind_give_the_bounds(kind):
    found = bidwise.offsets(sizes=KINDS[kind]([2, 0, 3, 1]))
    assert found.dtype == torch.int64
    assert found.tolist() == [0, 2, 2, 5, 6]


def test_offsets_of_no_ads():
    assert bidwise.offsets([]).tolist() == bidwise.offsets(sizes=[]).tolist() == [0]


@pytest.mark.parametrize("kind", ["numpy", "texts", "tensor", "pandas", "polars"])
def test_scattered_ids_are_rejected_with_the_way_to_sort(kind):
    with pytest.raises(bidwise.InputError, match=r"next to each other, found .*7.* again after.*np.argsort\(ids"):
        bidwise.offsets(KINDS[kind]([7, 3, 3, 7, 7]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "offsets needs ids, one for each ad, or sizes=.* found neither"),
        ({"ids": IDS, "sizes": [1]}, "found both"),
        ({"ids": [[1, 2]]}, r"ids must have one value for each ad, found shape \(1, 2\)"),
        ({"sizes": [1, -2]}, "sizes must be whole numbers, 0 or more"),
        ({"sizes": [1.5]}, "sizes must be whole numbers"),
        ({"sizes": ["2"]}, "sizes must be whole numbers"),
        ({"sizes": [1, float("inf")]}, r"sizes must add up to less than 2\^63 ads, found inf"),
        ({"sizes": [2**62, 2**62]}, "sizes must add up to less than"),
        ({"ids": ["a", float("nan"), float("nan"), "b"]}, "found none at row 1"),
        ({"ids": [1, pd.NA]}, "found none at row 1"),
        ({"ids": ["a", pd.NaT]}, "found none at row 1"),
        ({"ids": [1.0, float("nan")]}, "ids must name the auction of every ad, found none at row 1"),
        ({"ids": ["a", None]}, "found none at row 1"),
        ({"ids": pd.Series(["a", None, "b"])}, "found none at row 1"),
        ({"ids": pd.Series([1, None], dtype="Int64")}, "found none at row 1"),
        ({"ids": pl.Series([1, None])}, "found none at row 1"),
    ],
)
def test_what_are_no_ids_or_sizes_is_refused(arguments, message):
    with pytest.raises(bidwise.InputError, match=message):
        bidwise.offsets(**arguments)


@pytest.mark.parametrize(
    "ids", [[1, "1", 2], [2**53, 2**53 + 1, 0.5], [2**63, 2**63 + 1, -1], [torch.tensor(k) for k in range(3)]], ids=str
)
def test_ids_in_lists_are_what_python_holds(ids):
    assert bidwise.offsets(ids).tolist() == [0, 1, 2, 3]
    with pytest.raises(bidwise.InputError, match="again after other auctions"):
        bidwise.offsets([*ids, ids[0]])


LOGITS, CLICKS, BIDS = torch.zeros(6), torch.tensor([1.0, 0, 0, 0, 0, 1]), torch.ones(6)
CALLS = {
    "pairwise_welfare_loss": lambda offsets: bidwise.pairwise_welfare_loss(LOGITS, CLICKS, BIDS, offsets),
    "WelfareLoss": lambda offsets: bidwise.WelfareLoss()(LOGITS, CLICKS, BIDS, offsets),
    "welfare": lambda offsets: bidwise.welfare(LOGITS.sigmoid(), CLICKS, BIDS, offsets),
    "run_auction": lambda offsets: bidwise.run_auction(LOGITS.sigmoid(), BIDS, offsets),
    "auction_auc": lambda offsets: bidwise.evaluation.auction_auc(LOGITS.sigmoid(), CLICKS, offsets),
    "diagnose": lambda offsets: bidwise.diagnose(LOGITS, CLICKS, BIDS, offsets),
    "Ads": lambda offsets: Ads(LOGITS[:, None], CLICKS, BIDS, offsets),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("given", "function"),
    [
        ([0, 0, 1, 1, 1, 2], "bidwise.offsets(ids)"),
        (IDS, "bidwise.offsets(ids)"),
        ([2, 3, 1], "bidwise.offsets(sizes=sizes)"),
        ([0, 4, 2], "bidwise.offsets(sizes=sizes)"),
    ],
)
def test_losses_and_metrics_tell_ids_and_sizes_from_offsets(call, given, function):
    with pytest.raises(bidwise.InputError) as error:
        CALLS[call](torch.tensor(given))
    assert function in str(error.value)
    CALLS[call](bidwise.offsets(sizes=[2, 3, 1]))


def test_a_loss_that_meets_ids_in_numpy_names_the_function():
    with pytest.raises(TypeError, match=r"found ndarray; bidwise.offsets\(ids\) makes them"):
        CALLS["WelfareLoss"](np.array(IDS))
    with pytest.raises(TypeError, match=r"pass bidwise.offsets\(ids\)"):
        CALLS["welfare"](["a"] * 6)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=30), batch_size=st.integers(1, 12), world=st.integers(1, 4)
)
def test_a_sampler_gives_every_auction_whole_and_every_rank_equally_many_batches(sizes, batch_size, world):
    if max(sizes) <= 1:
        sizes = [*sizes, 2]
    bounds = bidwise.offsets(sizes=sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    parts = []
    for rank in range(world):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bidwise.distributed.rank", lambda rank=rank: rank)
            patch.setattr("bidwise.distributed.count", lambda: world)
            parts.append(bidwise.AuctionBatchSampler(bounds, batch_size, seed=3))
    batches = [list(part) for part in parts]
    assert {len(part) for part in parts} == {len(each) for each in batches} == {len(batches[0])}
    in_turn = [batch for turn in zip(*batches, strict=True) for batch in turn]
    for batch in in_turn:
        auctions = owner[batch]
        assert len(batch) <= batch_size or len({*auctions}) == 1
        assert len(batch) == sum(sizes[each] for each in {*auctions})  # whole, and once
        assert bidwise.offsets(auctions).diff().sum() == len(batch)  # next to each other
    once = in_turn[: len({tuple(batch) for batch in in_turn})]
    assert sorted(row for batch in once for row in batch) == list(range(sum(sizes)))
    assert len(in_turn) - len(once) < world


def test_the_order_of_a_sampler_follows_from_seed_and_epoch():
    bounds = bidwise.offsets(sizes=[3] * 50)
    sampler = bidwise.AuctionBatchSampler(bounds, 6, seed=1)
    first, again = list(sampler), list(bidwise.AuctionBatchSampler(bounds, 6, seed=1))
    sampler.set_epoch(1)
    assert first == again == [*bidwise.AuctionBatchSampler(bounds.numpy(), 6, seed=1)]
    assert len({str(each) for each in (first, list(sampler), [*bidwise.AuctionBatchSampler(bounds, 6, seed=2)])}) == 3
    plain = bidwise.AuctionBatchSampler(bounds, 6, shuffle=False)
    assert next(iter(plain)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 0, 1, 1, 2], 4), r"are these ids\? Pass bidwise.offsets\(ids\)"),
        (([5, 5, 6], 4), "offsets must rise from 0"),
        (([0, 3], 0), "batch_size must be at least 1"),
    ],
)
def test_a_sampler_refuses_what_it_cannot_use(arguments, message):
    with pytest.raises(bidwise.InputError, match=message):
        bidwise.AuctionBatchSampler(*arguments)


def test_a_plain_loader_feeds_a_loss():
    random = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 6, (40,), generator=random)
    ids = torch.arange(40).repeat_interleave(sizes) + 100
    columns = [torch.randn(len(ids), 3, generator=random), (torch.rand(len(ids), generator=random) < 0.3).long()]
    data = TensorDataset(*columns, torch.rand(len(ids), generator=random).double() + 0.1, ids)
    sampler = bidwise.AuctionBatchSampler(bidwise.offsets(ids), 16)
    total = 0
    for features, clicks, bids, auctions in DataLoader(data, batch_sampler=sampler):
        logits, offsets = features.sum(1).requires_grad_(), bidwise.offsets(auctions)
        bidwise.LOSSES["log_plus"](logits, clicks, bids, offsets).backward()
        assert torch.isfinite(logits.grad).all()
        total += len(logits)
        assert len(bidwise.welfare(logits.detach().sigmoid(), clicks, bids, offsets)) == len(offsets) - 1
    assert total == len(ids)


def test_ads_of_numpy_pandas_and_polars_columns_are_the_same():
    features, clicks, bids, teacher = np.array([[0, 4], [2, 1], [2, 0]]), [1, 0, 0], [0.5, 1.0, 2.0], [0.1, 0.2, 0.3]
    plain = Ads.of(features, clicks, bids, auction=["a", "a", "b"], teacher=teacher)
    pandas = pd.DataFrame({"c": clicks, "b": bids, "t": teacher, "a": ["a", "a", "b"]}, index=[5, 6, 7])
    frame = pl.DataFrame({"c": clicks, "b": bids, "t": teacher, "a": ["a", "a", "b"]})
    rows = {
        "pandas": Ads.of(pd.DataFrame(features), pandas["c"], pandas["b"], auction=pandas["a"], teacher=pandas["t"]),
        "polars": Ads.of(pl.DataFrame(features), frame["c"], frame["b"], auction=frame["a"], teacher=frame["t"]),
        "offsets": Ads.of(features, clicks, bids, offsets=np.array([0, 2, 3]), teacher=np.array(teacher)),
        "nullable": Ads.of(features, pandas["c"].astype("Int64"), pandas["b"], offsets=[0, 2, 3], teacher=teacher),
        "booleans": Ads.of(features, pandas["c"] == 1, pandas["b"], offsets=[0, 2, 3], teacher=teacher),
    }
    assert plain.features.dtype == plain.offsets.dtype == torch.int64
    assert plain.clicks.dtype == plain.bids.dtype == plain.teacher.dtype == torch.float32
    for name, ads in rows.items():
        for column in ("features", "clicks", "bids", "offsets", "teacher"):
            torch.testing.assert_close(getattr(ads, column), getattr(plain, column), msg=f"{name}: {column}")
    assert Ads.of(features, clicks, bids, auction_size=2).auction_size == 2
    assert Ads.of(features / 2, clicks, bids).features.dtype == torch.float32


def test_ads_of_text_or_of_two_kinds_of_auctions_are_refused():
    with pytest.raises(bidwise.InputError, match=r"features must contain numbers, found .*CTRClassifier"):
        Ads.of(pd.DataFrame({"site": ["a", "b"]}), [0, 1], [1.0, 1.0])
    with pytest.raises(bidwise.InputError, match="auction must be None if offsets are given"):
        Ads.of([[1], [2]], [0, 1], [1.0, 1.0], auction=[1, 1], offsets=[0, 2])
    with pytest.raises(bidwise.InputError, match="next to each other"):
        Ads.of([[1], [2], [3]], [0, 1, 0], [1.0, 1.0, 1.0], auction=[1, 2, 1])


def test_results_show_themselves_in_a_notebook_escaped():
    columns = {"<b>a</b>": [0.1, 0.9] * 20, "y": [0, 1] * 20, "auction": np.arange(40) // 4}
    shown = bidwise.evaluate(columns, ctr=["<b>a</b>"], click="y", bid=1.0, auction="auction")._repr_html_()
    assert shown.startswith("<pre>")
    assert "&lt;b&gt;a&lt;/b&gt;" in shown
    assert "<b>" not in shown
