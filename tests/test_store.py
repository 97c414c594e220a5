"""The store: what is written is what is read, and what was changed, lost or cut off is found out."""

import json

import numpy as np
import pytest
import torch

from bidwise.checks import InputError
from bidwise.data.store import TYPES, Field, Store, StoreWriter

SIZES = {"train": 10, "valid": 4, "test": 5}


def column(split, name):
    draw = np.random.default_rng([len(split), len(name)])
    if name == "features":
        return draw.integers(0, 3, (SIZES[split], 2), dtype=np.int32)
    return draw.integers(0, 2, SIZES[split]) if name == "clicks" else draw.uniform(0.1, 1, SIZES[split])


@pytest.fixture
def writer(tmp_path):
    writer = StoreWriter(tmp_path, SIZES)
    for split in SIZES:
        for name in ("features", "clicks", "bids"):
            writer.column(split, name, width=2 if name == "features" else None)[:] = column(split, name)
            assert np.array_equal(writer.written(split, name), column(split, name).astype(TYPES[name]))
    return writer


@pytest.fixture
def store(writer):
    return writer.finish(fields=[Field("a", 3), Field("b", 4)], about={"note": 1})


def test_what_was_written_is_read(store):
    again = Store(store.folder)
    assert (again.cardinalities, again.splits, again.schema["note"]) == ([3, 4], SIZES, 1)
    for split in SIZES:
        assert again.columns(split) == ["features", "clicks", "bids"]
        for name, kind in (("features", np.int32), ("clicks", np.uint8), ("bids", np.float32)):
            found = again.column(split, name)
            assert found.dtype == kind
            assert np.array_equal(found, column(split, name).astype(kind))


def test_ads_know_the_size_of_their_auctions(store):
    ads = store.ads("train", auction_size=4)
    assert (len(ads), ads.offsets, ads.auction_size) == (10, None, 4)
    assert torch.equal(ads.features, torch.from_numpy(column("train", "features")))
    assert store.ads("train").auction_size is None
    with pytest.raises(InputError, match="auction_size must be at most the 4 ads, found 256"):
        store.ads("valid", auction_size=256)
    with pytest.raises(InputError, match="split must be one of train, valid, test, found 'tests'; did you mean 'test'"):
        store.ads("tests")
    with pytest.raises(InputError, match="has no column 'truth' for train; it has features, clicks, bids"):
        store.column("train", "truth")


def test_offsets_in_the_store_win_over_a_size(writer):
    writer.column("train", "offsets", length=3)[:] = [0, 3, 10]
    ads = writer.finish(fields=[Field("a", 3), Field("b", 4)], about={}).ads("train", auction_size=4)
    assert (ads.offsets.tolist(), ads.auction_size) == ([0, 3, 10], None)


def test_damage_is_found(store):
    path = store.folder / "train" / "bids.npy"
    whole = path.read_bytes()
    for damaged in (whole[:-4], b"", None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"bids\.npy must be a numpy file of numbers"):
            store.ads("train")
    np.save(path, np.ones(9, np.float32))
    with pytest.raises(InputError, match=r"bids\.npy must be float32 \(10,\), found float32 \(9,\); prepare the data"):
        store.ads("train")
    schema = json.loads((store.folder / "store.json").read_text())
    schema["columns"]["train"].remove("bids")
    (store.folder / "store.json").write_text(json.dumps(schema))
    with pytest.raises(InputError, match="has no bids of train"):
        Store(store.folder).ads("train")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, r"folder with a store, found no store\.json"),
        ("{", "must be a JSON file that bidwise wrote"),
        ("[]", "must be a JSON object that bidwise wrote"),
        (
            '{"format": "bidwise store", "version": 9}',
            "must be a store of version 3, found version 9; prepare",
        ),
        ('{"format": "bidwise store", "version": 3, "fields": [{"name": "a", "more": 1}]}', "fields of"),
    ],
)
def test_folders_that_are_no_store_are_refused(tmp_path, text, words):
    if text is not None:
        (tmp_path / "store.json").write_text(text)
    with pytest.raises(InputError, match=words):
        Store(tmp_path)


def test_columns_that_were_cut_off_are_made_anew(tmp_path):
    writer = StoreWriter(tmp_path, {"train": 5, "test": 0})
    for text in (b"", b"\x93NUMPY", b"something else"):
        (tmp_path / "train").mkdir(exist_ok=True)
        (tmp_path / "train" / "bids.npy").write_bytes(text)
        assert writer.column("train", "bids").tolist() == [0] * 5
    assert writer.column("test", "features", width=3).shape == (0, 3)


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        StoreWriter(tmp_path, {"train": 6}).column("train", "bids")
    assert not list(tmp_path.glob("*/*"))
