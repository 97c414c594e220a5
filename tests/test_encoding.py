"""Columns as ids: learnt on training rows alone, the same after a round trip, forgiving of what is new."""

import json

import numpy as np
import polars as pl
import pytest

import bidwise
from bidwise.data import encoder_file
from bidwise.data.encoder_file import read_encoder, write_encoder
from bidwise.data.encoding import Categorical, Encoder, Numeric, least_count
from bidwise.run_folder import write_json

RARE, MISSING, FIRST = 0, 1, 2


def encoder_of(values, kind, **options):
    return Encoder.fit(pl.DataFrame({"x": values}), {"x": kind}, **{"min_count": 1, "bins": 4} | options)


def ids_of(encoder, values):
    return encoder.encode(pl.DataFrame({"x": values}))[:, 0].tolist()


def test_vocabulary_goes_by_descending_count_then_by_name():
    encoder = encoder_of(["c", "b", "b", "a", "a", "d"], "categorical")
    assert ids_of(encoder, ["a", "b", "c", "d"]) == [2, 3, 4, 5]
    assert encoder.fields[0].values == 6


def test_rare_unseen_and_missing_values_have_ids_of_their_own():
    encoder = encoder_of(["a", "a", "b", None, ""], "categorical", min_count=2)
    assert ids_of(encoder, ["a", "b", "new", None, " "]) == [FIRST, RARE, RARE, MISSING, MISSING]


@pytest.mark.parametrize("values", [[3, 4], [3.0, 4.0], ["3", "4"], [" 3", "4 "]])
def test_the_same_value_has_the_same_id_however_it_is_stored(values):
    assert ids_of(encoder_of([3, 3, 4], "categorical"), values) == [2, 3]


def test_booleans_are_the_same_from_any_file():
    encoder = encoder_of([True, True, False], "categorical")
    assert ids_of(encoder, ["True", "false"]) == ids_of(encoder, [True, False]) == [2, 3]


def test_missing_integers_read_as_floats_keep_their_names():
    assert ids_of(encoder_of([7, 7, 8], "categorical"), [7.0, None, float("nan")]) == [2, MISSING, MISSING]


def test_numbers_are_cut_into_bins_of_equally_many_rows():
    numbers = np.random.default_rng(0).normal(size=4000)
    ids = encoder_of(numbers, "numeric", bins=8).encode(pl.DataFrame({"x": numbers}))[:, 0]
    assert np.bincount(ids)[FIRST:].tolist() == [500] * 8


def test_bins_keep_the_order_and_never_fail_beyond_what_was_seen():
    encoder = encoder_of(np.arange(100.0), "numeric", bins=5)
    ids = ids_of(encoder, [-np.inf, -5.0, 0.0, 30.0, 70.0, 99.0, 1e9, np.inf])
    assert ids == sorted(ids)
    assert (ids[0], ids[-1]) == (FIRST, FIRST + 4)
    assert ids_of(encoder, [None, float("nan")]) == [MISSING, MISSING]


def test_ties_are_merged_and_a_frequent_value_has_a_bin_of_its_own():
    numbers = [0.0] * 900 + [float(k) for k in range(1, 101)]
    encoder = encoder_of(numbers, "numeric", bins=10)
    zero, one = ids_of(encoder, [0.0, 1.0])
    assert zero != one
    assert encoder.fields[0].values <= FIRST + 10
    assert np.bincount(encoder.encode(pl.DataFrame({"x": numbers}))[:, 0])[zero] == 900


def test_few_numbers_have_a_bin_each():
    assert ids_of(encoder_of([1.0, 2.0, 5.0] * 9, "numeric", bins=32), [1.0, 2.0, 5.0]) == [2, 3, 4]


def test_a_column_without_numbers_still_encodes():
    encoder = encoder_of([None, None], "numeric")
    assert ids_of(encoder, [None, 3.0]) == [MISSING, FIRST]


def test_numbers_may_come_as_text_and_other_text_is_refused_with_its_row():
    encoder = encoder_of([1.0, 2.0, 3.0], "numeric")
    assert ids_of(encoder, ["1", " 3.0"]) == ids_of(encoder, [1.0, 3.0])
    with pytest.raises(bidwise.InputError, match=r"column 'x', row 1: found 'many', which is not a number"):
        ids_of(encoder, ["1", "many"])


def test_round_trip_through_json():
    rows = pl.DataFrame({"a": ["x", "ü", 'q"', None] * 5, "b": [0.1, 1 / 3, None, 2e300] * 5})
    encoder = Encoder.fit(rows, {"b": "numeric", "a": "categorical"}, min_count=1, bins=3)
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again == encoder
    assert np.array_equal(again.encode(rows), encoder.encode(rows))
    assert again.names == ["b", "a"]


def test_ids_are_below_what_the_fields_tell():
    random = np.random.default_rng(1)
    rows = pl.DataFrame({"a": random.integers(0, 50, 500), "b": random.normal(size=500)})
    encoder = Encoder.fit(rows[:300], {"a": "categorical", "b": "numeric"}, min_count=5, bins=7)
    features = encoder.encode(rows)
    assert (features < [field.values for field in encoder.fields]).all()
    assert features.dtype == np.int32


def test_missing_columns_are_all_named():
    encoder = Encoder.fit(pl.DataFrame({"site": ["a"], "age": [1.0]}), {"site": "categorical", "age": "numeric"},
                          min_count=1, bins=2)  # fmt: skip
    with pytest.raises(bidwise.InputError, match=r"table has no column 'site', 'age'; the model needs them"):
        encoder.encode(pl.DataFrame({"other": [1]}))
    with pytest.raises(bidwise.InputError, match=r"new.csv has no column 'site'; is it 'sites' now\?"):
        encoder.check(["sites", "age"], "new.csv")


def test_damaged_encoders_are_refused():
    for found in ({}, [], {"format": "bidwise encoder", "version": 2}):
        with pytest.raises(bidwise.InputError, match=r"encoder.json must be an encoder of version 1"):
            Encoder.from_json(found)
    with pytest.raises(bidwise.InputError, match="must be whole"):
        Encoder.from_json({"format": "bidwise encoder", "version": 1, "columns": [{"name": "a"}]})


def test_bad_options():
    with pytest.raises(bidwise.InputError, match=r"bins must be at least 2, found 1"):
        encoder_of([1.0], "numeric", bins=1)
    with pytest.raises(bidwise.InputError, match="did you mean 'numeric'"):
        encoder_of([1.0], "numerical")


def test_small_tables_keep_more_values():
    assert [least_count(rows) for rows in (10, 300_000, 10**7)] == [2, 3, 10]
    assert Numeric("x", (1.0,)).field.values == FIRST + 2


def test_the_file_of_an_encoder_is_its_json(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_file, "AT_ONCE", 3)
    monkeypatch.setattr(encoder_file, "STRETCH", 40)
    words = ["ü", 'a "quote"', "line\n      ]", "", "a,\n b", '"vocabulary": [', *map(str, range(50)), "x" * 100]
    columns = (Categorical('"vocabulary": []', words), Numeric("age", (1.0, 2.5)), Categorical("none", []))
    encoder, path = Encoder((*columns, Categorical("one", ["é"]))), tmp_path / "encoder.json"
    write_json(tmp_path / "plain.json", encoder.to_json())
    write_encoder(path, encoder)
    assert path.read_bytes() == (tmp_path / "plain.json").read_bytes()
    assert read_encoder(path) == encoder
    for indent in (None, 4):  # laid out otherwise
        path.write_text(json.dumps(encoder.to_json(), indent=indent))
        assert read_encoder(path) == encoder
    text = (tmp_path / "plain.json").read_text()
    for bad in (
        text.replace('"49"', "49"),
        text.replace('"49"', "null"),
        text[:-9],
    ):
        path.write_text(bad)
        with pytest.raises(bidwise.InputError, match=r"encoder\.json must be"):
            read_encoder(path)
