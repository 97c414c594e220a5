"""Ads and their cuts into auctions: rows that stay together, and fingerprints that tell ads apart."""

import dataclasses
import zlib

import numpy as np
import pytest
import torch

from bidwise.checks import InputError
from bidwise.data.ads import Ads, AuctionCuts, fingerprint, stack
from bidwise.run_folder import checksum


def some_ads(ads=23, **changes):
    draw = torch.Generator().manual_seed(0)
    columns = {name: torch.rand(ads, generator=draw) for name in ("clicks", "teacher", "truth", "weights")}
    features = torch.arange(2.0 * ads).view(ads, 2)
    return Ads(features, **{"bids": 1 + torch.arange(float(ads))} | columns | changes)


def test_random_cuts_are_permutations_without_their_ends():
    cuts = AuctionCuts.at_random(23, 5, cuts=3, seed=4)
    draw = np.random.default_rng(4)  # part of what a seed means: published results were drawn so
    expected = np.concatenate([draw.permutation(23)[:20] for _ in range(3)])
    assert cuts.rows.tolist() == expected.tolist()
    assert cuts.offsets.tolist() == list(range(0, 61, 5))
    assert (cuts.auctions, cuts.left_out) == (12, 3)


@pytest.mark.parametrize("repeats", [0, 2])
def test_cut_ads_keep_their_columns_together(repeats):
    ads = some_ads() if not repeats else stack([some_ads(), some_ads()])
    for cuts in (AuctionCuts.at_random(23, 5), AuctionCuts.of_neighbours(23, 5)):
        cut = cuts.of(ads)
        rows = (cut.bids - 1).long()
        assert len(cut) == 20
        assert cut.offsets.tolist() == [0, 5, 10, 15, 20]
        assert torch.equal(cut.features[..., 0], 2.0 * rows)
        for name in ("clicks", "teacher", "truth", "weights"):
            assert torch.equal(getattr(cut, name), getattr(ads, name).gather(-1, rows))
        assert cut.exposure is None


def test_neighbours_are_a_slice_so_that_nothing_is_copied():
    ads = some_ads()
    cut = AuctionCuts.of_neighbours(23, 5).of(ads)
    assert cut.features.data_ptr() == ads.features.data_ptr()
    assert cut.bids.tolist() == ads.bids[:20].tolist()


def test_impossible_cuts_are_refused():
    with pytest.raises(InputError, match="auction_size must be at most the 4 ads of valid, found 5"):
        AuctionCuts.of_neighbours(4, 5, "valid")
    with pytest.raises(InputError, match="auction_size must be at most the 4 ads, found 5"):
        AuctionCuts.at_random(4, 5)
    with pytest.raises(InputError, match="seed must be at least 0"):
        AuctionCuts.at_random(4, 2, seed=-1)


def test_every_column_is_in_the_fingerprint():
    ads = some_ads()
    same = fingerprint(some_ads())
    assert fingerprint(ads) == same
    assert same.startswith("(23, 2) ads, checksum ")
    for field in dataclasses.fields(ads):
        if field.name in ("offsets", "exposure"):
            changed = {"offsets": torch.tensor([0, 23]), "exposure": torch.ones(23)}[field.name]
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
