"""Ads: rows that stay together, and fingerprints that tell ads apart."""

import dataclasses
import zlib

import pytest
import torch

from bidwise.checks import InputError
from bidwise.data.ads import Ads, fingerprint, stack
from bidwise.run_folder import checksum


def some_ads(ads=23, **changes):
    draw = torch.Generator().manual_seed(0)
    columns = {name: torch.rand(ads, generator=draw) for name in ("clicks", "teacher", "truth", "weights")}
    features = torch.arange(2.0 * ads).view(ads, 2)
    return Ads(features, **{"bids": 1 + torch.arange(float(ads))} | columns | changes)


@pytest.mark.parametrize("repeats", [0, 2])
def test_taken_ads_keep_their_columns_together(repeats):
    ads = some_ads(auction_size=5)
    ads = stack([ads, ads]) if repeats else ads
    order = torch.randperm(23, generator=torch.Generator().manual_seed(1))[:20]
    taken = ads.take(order)
    rows = (taken.bids - 1).long()
    assert torch.equal(rows, order.expand_as(rows))
    assert (len(taken), taken.offsets, taken.auction_size) == (20, None, 5)
    assert torch.equal(taken.features[..., 0], 2.0 * rows)
    for name in ("clicks", "teacher", "truth", "weights"):
        assert torch.equal(getattr(taken, name), getattr(ads, name).gather(-1, rows))
    assert taken.exposure is None
    inside = some_ads().take(order, torch.tensor([0, 5, 20]))
    assert inside.offsets.tolist() == [0, 5, 20]


def test_neighbours_are_a_slice_so_that_nothing_is_copied():
    ads = some_ads()
    taken = ads.take(slice(3, 20))
    assert taken.features.data_ptr() == ads.features[3:].data_ptr()
    assert taken.bids.tolist() == ads.bids[3:20].tolist()


def test_the_size_of_auctions_goes_where_the_ads_go():
    ads = some_ads(auction_size=5)
    assert ads.to(torch.float64).auction_size == ads.with_teacher(ads.truth).auction_size == 5
    assert stack([ads, ads]).auction_size == 5


def test_impossible_auctions_are_refused():
    with pytest.raises(InputError, match="auction_size must be at most the 23 ads, found 24"):
        some_ads(auction_size=24)
    with pytest.raises(InputError, match="auction_size must be None for ads in auctions: their offsets are known"):
        some_ads(auction_size=5, offsets=torch.tensor([0, 23]))
    with pytest.raises(InputError, match="auction_size must be at least 1, found 0"):
        some_ads(auction_size=0)
    with pytest.raises(InputError, match=r"auction_size must be a whole number, found 2\.5"):
        some_ads(auction_size=2.5)


def test_every_column_is_in_the_fingerprint():
    ads = some_ads()
    same = fingerprint(some_ads())
    assert fingerprint(ads) == same
    assert same.startswith("(23, 2) ads, checksum ")
    others = {"offsets": torch.tensor([0, 23]), "auction_size": 5, "exposure": torch.ones(23)}
    for field in dataclasses.fields(ads):
        if field.name in others:
            changed = others[field.name]
        else:
            changed = getattr(ads, field.name).clone()
            changed[-1] *= 0.5
        assert fingerprint(dataclasses.replace(ads, **{field.name: changed})) != same


def test_some_rows_are_enough_to_tell_large_ads_apart():
    few = [fingerprint(some_ads(bids=torch.full((23,), bid)), rows=4) for bid in (1.0, 1.0, 2.0)]
    assert few[0] == few[1] != few[2]


def test_a_checksum_is_that_of_all_bytes(tmp_path):
    numbers = torch.arange(6.0).view(2, 3)
    (tmp_path / "file").write_bytes(b"some bytes")
    whole = zlib.crc32("wörds".encode() + b"more" + b"some bytes" + numbers.T.contiguous().numpy().tobytes())
    assert checksum("wörds", b"more", tmp_path / "file", numbers.T) == f"{whole:08x}"
    assert checksum(numbers.bfloat16()) == checksum(numbers.bfloat16().view(torch.uint8))
