"""Columns as ids: learned on training rows only, the same after a round trip, forgiving of what is new."""

import json

import numpy as np
import polars as pl
import pytest

import bidwise
from bidwise.data.columns import (
    ENCODER_FILES,
    Bag,
    Categorical,
    Column,
    Encoder,
    Learner,
    Numeric,
    read_numbers,
    spelled,
)
from bidwise.data.kinds import Facts
from bidwise.data.table_files import open_table

RARE, MISSING, FIRST = 0, 1, 2


def encoder_of(values, use, **options):
    more = {key: options.pop(key) for key in ("spelling", "steps") if key in options}
    columns = [Column("x", use, 0, 0.0, "", **more)]
    return Encoder.fit({"x": values}, columns, **{"min_count": 1, "bins": 4} | options)


def ids_of(encoder, values):
    return encoder.encode(pl.DataFrame({"x": values})).ids[:, 0].tolist()


def decided(columns, *, text=False, **options):
    """What the columns of a table are, with ``text`` as if it was a text file."""
    source = open_table(columns)
    source.text = text
    return {column.name: column for column in Facts.of(source).columns([], **options)}


def test_vocabulary_goes_by_descending_count_then_by_name():
    encoder = encoder_of(["c", "b", "b", "a", "a", "d"], "categorical")
    assert ids_of(encoder, ["a", "b", "c", "d"]) == [2, 3, 4, 5]
    assert encoder.fields[0].values == 6


@pytest.mark.parametrize(
    ("learned", "options", "asked", "ids"),
    [
        (["a", "a", "b", None, ""], {"min_count": 2}, ["a", "b", "new", None, " "], [2, RARE, RARE, MISSING, MISSING]),
        *(([3, 3, 4], {"spelling": "number"}, same, [2, 3]) for same in ([3, 4], [3.0, 4.0], ["3", "4"], [" 3", "4 "])),
        *(([True, True, False], {}, same, [2, 3]) for same in (["True", "false"], [True, False])),
        ([7, 7, 8], {}, [7.0, None, float("nan")], [2, MISSING, MISSING]),  # whole numbers read with decimals
    ],
)
def test_a_value_has_its_id_however_it_is_stored(learned, options, asked, ids):
    assert ids_of(encoder_of(learned, "categorical", **options), asked) == ids


def test_numbers_are_cut_into_bins_of_equally_many_rows():
    numbers = np.random.default_rng(0).normal(size=4000)
    ids = encoder_of(numbers, "numeric", bins=8).encode(pl.DataFrame({"x": numbers})).ids[:, 0]
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
    assert np.bincount(encoder.encode(pl.DataFrame({"x": numbers})).ids[:, 0])[zero] == 900


def test_few_numbers_have_a_bin_each():
    assert ids_of(encoder_of([1.0, 2.0, 5.0] * 9, "numeric", bins=32), [1.0, 2.0, 5.0]) == [2, 3, 4]


def test_a_column_without_numbers_still_encodes():
    encoder = encoder_of([None, None], "numeric")
    assert ids_of(encoder, [None, 3.0]) == [MISSING, FIRST]


def test_numbers_may_come_as_text_and_other_text_is_missing():
    encoder = encoder_of([1.0, 2.0, 3.0], "numeric")
    assert ids_of(encoder, ["1", " 3.0", "many", "NA"]) == [*ids_of(encoder, [1.0, 3.0]), MISSING, MISSING]


MADE = [Column("b", "numeric", 3, 0.0, ""), Column("a", "categorical", 3, 0.0, "")]


def test_ids_are_below_what_the_fields_tell():
    random = np.random.default_rng(1)
    rows = pl.DataFrame({"a": random.integers(0, 50, 500), "b": random.normal(size=500)})
    encoder = Encoder.fit(rows[:300], MADE, min_count=5, bins=7)
    features = encoder.encode(rows).ids
    assert (features < [field.values for field in encoder.fields]).all()
    assert features.dtype == np.int32


def test_missing_columns_are_all_named():
    encoder = Encoder((Categorical("site", ["a"]), Numeric("age", (1.0,))))
    with pytest.raises(bidwise.InputError, match=r"table has no column 'site', 'age'; it has 'other'"):
        encoder.encode(pl.DataFrame({"other": [1]}))
    with pytest.raises(bidwise.InputError, match=r"new.csv has no column 'site'; did you mean 'sites'\?"):
        encoder.check(["sites", "age"], "new.csv")


def test_bad_options():
    with pytest.raises(bidwise.InputError, match=r"bins must be at least 2, found 1"):
        encoder_of([1.0], "numeric", bins=1)


def test_an_encoder_is_written_and_read(tmp_path):
    words = ["ü", 'a "quote"', "line\n      ]", "a,\n b", *map(str, range(50)), "x" * 100]
    columns = [
        Categorical('"', words, "number", 0.25),
        Numeric("n", (1.0, 2.5), 1.0, 9.0),
    ]
    encoder = Encoder((*columns, Categorical("none", []), Bag("bag", ["é"], slots=3, separator=" ")))
    encoder.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(ENCODER_FILES)
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert Encoder.read(tmp_path).to_json() == again.to_json() == encoder.to_json()
    text = (tmp_path / "encoder.json").read_text()
    for bad in ("{}", "[]", text[:-9], text.replace('"n"', "3"), text.replace('"version": 3', '"version": 1')):
        (tmp_path / "encoder.json").write_text(bad)
        with pytest.raises(bidwise.InputError, match=r"encoder\.json.* must be"):
            Encoder.read(tmp_path)
    (tmp_path / "encoder.json").write_text(text.replace(f": {len(words)}", ": 3"))
    with pytest.raises(bidwise.InputError, match=r"must fit vocabulary\.parquet"):
        Encoder.read(tmp_path)
    (tmp_path / "encoder.json").write_text(text)
    (tmp_path / "vocabulary.parquet").write_bytes(b"PAR1")
    with pytest.raises(bidwise.InputError, match=r"vocabulary\.parquet must be"):
        Encoder.read(tmp_path)


def some(values, rows=600):
    return [values[at % len(values)] for at in range(rows)]


RANDOM = np.random.default_rng(0)
MANY = RANDOM.integers(0, 9000, 600)


@pytest.mark.parametrize(
    ("values", "use", "reason"),
    [
        (some([*"abc"]), "categorical", "text"),
        (some([True, False]), "categorical", "true or false"),
        (some(["True", "False", ""]), "categorical", "text"),
        (some(["True", "False", "maybe"]), "categorical", "text"),
        (some([0.5, 1.5]), "numeric", "decimals"),
        (some([*range(24)]), "numeric", "24 different whole numbers, a bin for each"),
        (some([f"{hour}.0" for hour in range(24)]), "numeric", "24 different whole numbers, a bin for each"),
        (MANY, "numeric", "different whole numbers"),
        (some([10_000 + 7 * k for k in range(20)]), "categorical", "5 digits each look like codes"),
        (some(["02139", "90210", "10001"]), "categorical", "text"),
        (["02139"] * 3 + some(["90210", "10001"], 597), "categorical", "text"),
        (some(["30903e74", "12345678", "00aa11bb"]), "categorical", "text"),
        (some(["30903e74", "12345678", "12345679"]), "categorical", "text"),
        (some(["1.5", "2e5", "2.5"]), "numeric", "decimals"),
        (some(["1e-07", "2e-07"]), "numeric", "decimals"),
        (some(["1,5", "2,25", "3"]), "dropped", "thousands without a comma"),
        (some(["1,500", "2,250"]), "dropped", "thousands without a comma"),
        (some(["1,500.25", "2,250.5", "300.75"]), "dropped", "thousands without a comma"),
        (some(["1.500,25", "2.250,5", "300,75"]), "categorical", "text"),
        (some(["560 001", "110 002"]), "categorical", "text"),
        (some(["2024-05-01", "2024-05-02 13:00:01"]), "dropped", "a date or time; name it as --time"),
        (some(["13:00", "7:15"]), "dropped", "a date or time; name it as --time"),
        (some(["01/02/2024", "25/12/2024"]), "dropped", "a date or time; name it as --time"),
        ([f"user {at}" for at in range(600)], "dropped", "a value of its own"),
        (some(["NA", "-", "", None]), "dropped", "missing in all rows"),
        (some(["7", "7"]), "dropped", "the same in all rows"),
    ],
)
def test_what_text_and_typed_columns_are(values, use, reason):
    column = decided({"x": pl.Series(values, strict=False), "y": some([0, 1])}, text=True)["x"]
    assert column.use == use
    assert reason in column.reason


@pytest.mark.parametrize("name", ["site_id", "ID", "userId", "zip", "country code", "postalCode", "device_type"])
def test_whole_numbers_with_the_name_of_a_code_are_categories(name):
    column = decided({name: some([*range(24)])})[name]
    assert (column.use, column.spelling) == ("categorical", "number")


def test_whole_numbers_that_a_typed_table_has_as_text_are_categories():
    column = decided({"campaign": some(["17", "18", "19"])})["campaign"]
    assert (column.use, column.spelling) == ("categorical", "number")


def test_cells_that_are_no_numbers_are_counted_and_named(tmp_path):
    values = [str(at / 4) for at in range(1000)]
    values[7], values[500] = "abc", "1.5.1"
    pl.DataFrame({"x": values, "y": some([0, 1], 1000)}).write_csv(tmp_path / "ads.csv")
    column = Facts.of(open_table(tmp_path / "ads.csv")).columns([])[0]
    assert column.use == "numeric"
    assert "2 values are no number and missing, such as '1.5.1'" in column.reason
    values[8:20] = ["abc"] * 12
    assert decided({"x": values})["x"].use == "categorical"
    values[20:600] = ["abc"] * 580
    with pytest.raises(bidwise.InputError, match=r"'x' must contain numbers to be numeric, found 593 of 1,000"):
        decided({"x": values}, numeric=["x"])


def test_text_in_a_column_named_numeric_is_missing():
    table = {"x": ["?", "2.5", "NA"] * 30, "y": some([0, 1], 90)}
    columns = Facts.of(open_table(table)).columns([], numeric=["x"])
    assert columns[0].use == "numeric"
    assert columns[0].reason == "named as numeric; 30 values are no number and missing, such as '?'"
    encoder = Encoder.fit(table, columns, min_count=1, bins=4)
    assert encoder.encode(pl.DataFrame(table)[:3]).ids[:, 0].tolist() == [1, 2, 1]


def test_the_kind_is_that_of_the_run_before():
    before = encoder_of(some(["02139", "90210"]), "categorical")
    table = {"x": [1, 2] * 300, "new": some(["a", "b"])}
    columns = {c.name: c for c in Facts.of(open_table(table)).columns([], previous=before)}
    assert (columns["x"].use, columns["x"].spelling, columns["new"].use) == ("categorical", "text", "dropped")
    longer = before.extended(Encoder.fit(table, list(columns.values()), min_count=1, bins=4))
    assert longer.columns[0].vocabulary.to_list() == ["02139", "90210", "1", "2"]
    with pytest.raises(bidwise.InputError, match="has no column 'x'"):
        Facts.of(open_table({"new": ["a", "b"]})).columns([], previous=before)


def test_whole_numbers_have_a_bin_each_and_rare_ones_share_it_with_a_neighbour():
    encoder = encoder_of([1, 1, 2, 3, 3, 9], "numeric", steps="values", min_count=2)
    assert encoder.columns[0].edges == (1.0, 3.0)


def test_unknown_values_are_counted():
    table = {"site": ["a", "a", "b", None], "x": [1.0, 2.0, 3.0, 4.0]}
    encoder = Encoder.fit(table, [Column("site", "categorical", 2, 0, ""), Column("x", "numeric", 4, 0, "")],
                          min_count=2, bins=2)  # fmt: skip
    assert encoder.columns[0].unknown == pytest.approx(1 / 3)
    found = encoder.encode(pl.DataFrame({"site": ["a", "A", "", "b"], "x": ["100", "2", "bad", "NA"]}))
    assert found.filled.tolist() == [3, 3]
    assert found.unknown.tolist() == [2, 2]


def test_many_values_are_learned_in_blocks_as_at_once(monkeypatch):
    monkeypatch.setattr("bidwise.data.columns.PENDING", 50)
    random = np.random.default_rng(2)
    frame = pl.DataFrame({"a": random.integers(0, 200, 2000).astype(str), "b": random.normal(size=2000)})
    learner = Learner(MADE)
    for part in frame.iter_slices(70):
        learner.add(learner.counted(part))
    whole = Encoder.fit(frame, MADE, min_count=3, bins=8)
    assert learner.encoder(min_count=3, bins=8).to_json() == whole.to_json()


def test_the_number_of_many_different_values_is_nearly_known(monkeypatch):
    monkeypatch.setattr("bidwise.data.kinds._KEPT", 1000)
    column = decided({"x": np.arange(100_000) % 30_000, "y": [0, 1] * 50_000})["x"]
    assert abs(column.values / 30_000 - 1) < 0.1


def test_odd_types_are_no_error_at_serving():
    encoder = Encoder((Categorical("a", ["x"]), Numeric("b", (1.0,)), Bag("c", ["x"], slots=2)))
    rows = pl.DataFrame({"a": [[1]], "b": [[1]], "c": [3]})
    assert encoder.encode(rows).ids.tolist() == [[RARE, MISSING, RARE, MISSING]]
    assert encoder.encode(pl.DataFrame({"a": [None], "b": [None], "c": [None]})).ids.tolist() == [[1, 1, 1, 1]]
    assert spelled(pl.Series([None])).to_list() == [None]
    np.testing.assert_array_equal(read_numbers(pl.Series([True, None]))[0], [1, np.nan])
    np.testing.assert_array_equal(read_numbers(pl.Series(["7", "x"], dtype=pl.Categorical))[0], [7, np.nan])
    for dtype in (pl.Categorical, pl.Enum([" a", "7.0"])):  # as in text
        assert spelled(pl.Series([" a", "7.0"], dtype=dtype), "number").to_list() == ["a", "7"]


def test_categories_of_a_typed_table_are_read_as_text():
    column = decided({"x": pl.Series(some(["7", " a", "NA"]), dtype=pl.Categorical)})["x"]
    assert (column.use, column.values, column.missing) == ("categorical", 2, 1 / 3)
