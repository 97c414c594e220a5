"""Tables as users have them: formats, scattered auctions, and errors that say where."""

import gzip
from datetime import date, time

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers import PROPERTY
from hypothesis import given
from hypothesis import strategies as st

from bidwise.data.ad_table import group_ids, read_ads
from bidwise.data.splits import shown_times, times_of
from bidwise.data.table_files import open_table
from bidwise.errors import InputError

COLUMNS = {
    "model": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    "click": [0, 1, 0, 0, 1, 0],
    "bid": [1.0, 2.0, 3.0, 1.5, 2.5, 3.5],
    "auction": ["x", "x", "y", "z", "z", "z"],
    "slot": [1, 2, 1, 1, 2, 3],
    "spare": ["not", "a", "number", "at", "all", "!"],
}


def read(table, **options):
    return read_ads(table, **({"ctr": ["model"], "click": "click", "bid": "bid", "auction": "auction"} | options))


def changed(column, row, value):
    return COLUMNS | {column: [value if at == row else x for at, x in enumerate(COLUMNS[column])]}


def saved(folder, kind, columns=COLUMNS):
    frame = pl.DataFrame(columns, strict=False)
    path = folder / f"ads.{kind}"
    if kind == "parquet":
        frame.write_parquet(path)
        return path
    text = frame.write_csv(separator="\t" if kind.startswith("tsv") else ",").encode()
    path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    return path


@pytest.mark.parametrize("kind", ["parquet", "csv", "tsv", "csv.gz", "tsv.gz"])
def test_files_of_every_kind_hold_the_same_ads(tmp_path, kind):
    ads = read(saved(tmp_path, kind), position="slot", slots=3)
    assert ads.ctr["model"].tolist() == COLUMNS["model"]
    assert ads.clicks.tolist() == COLUMNS["click"]
    assert ads.bids.tolist() == COLUMNS["bid"]
    assert ads.position.tolist() == COLUMNS["slot"]
    assert ads.offsets.tolist() == [0, 2, 3, 6]


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame(COLUMNS),
        pl.LazyFrame(COLUMNS),
        pd.DataFrame(COLUMNS),
        COLUMNS,
        {name: np.array(column) for name, column in COLUMNS.items()},
        COLUMNS | {"model": torch.tensor(COLUMNS["model"], dtype=torch.float64, requires_grad=True)},
    ],
    ids=["polars", "lazy", "pandas", "lists", "numpy", "tensor"],
)
def test_frames_and_columns_in_memory(frame):
    ads = read(frame)
    assert ads.ctr["model"].tolist() == COLUMNS["model"]
    assert ads.offsets.tolist() == [0, 2, 3, 6]


def test_auctions_may_be_named_by_anything(tmp_path):
    """A column whose first rows look like numbers."""
    names = ["1", "1", "2", "02", "02", "02"]
    assert read(saved(tmp_path, "csv", COLUMNS | {"auction": names})).offsets.tolist() == [0, 2, 3, 6]


@pytest.mark.parametrize("clicks", [[True, False] * 3, ["true", "False"] * 3, ["1", " 0"] * 3, [1.0, 0.0] * 3])
def test_clicks_as_other_tools_write_them(tmp_path, clicks):
    table = COLUMNS | {"click": clicks}
    assert read(table).clicks.tolist() == [1, 0] * 3
    assert read(saved(tmp_path, "csv", table)).clicks.tolist() == [1, 0] * 3


@pytest.mark.parametrize("kind", ["memory", "csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("model", 3, 1.5, r"found 1.5; a CTR must be in \[0, 1\]"),
        ("model", 2, -0.1, r"found -0.1; a CTR must be in \[0, 1\]"),
        ("model", 4, float("nan"), "found no value"),
        ("model", 1, None, "found no value; fill in all of them, or drop the rows"),
        ("click", 5, 2, "found 2; a click must be 0 or 1"),
        ("bid", 0, 0.0, "found 0; a bid must be above 0, from 1e-100 to 1e100"),
        ("bid", 2, float("inf"), "found inf; a bid must be above 0"),
        ("bid", 2, "free", "found 'free', which is no number"),
        ("auction", 3, None, "found no value; every ad needs an auction"),
        ("slot", 1, 4, "found 4; a position must be a whole number from 1 to 3, the number of slots"),
        ("slot", 1, 0, "found 0; a position must"),
        ("slot", 1, 1.5, "found 1.5; a position must"),
        ("auction", 1, "  ", "found no value"),
        ("bid", 3, 1e-310, "found .*; a bid must be above 0, from 1e-100 to 1e100"),
        ("bid", 3, 1e200, "found .*; a bid must be above 0, from 1e-100 to 1e100"),
    ],
)
def test_bad_values_are_named_by_column_and_row(tmp_path, kind, column, row, value, message):
    table = changed(column, row, value)
    source = table if kind == "memory" else saved(tmp_path, kind, table)
    place = f"line {row + 2}" if kind == "csv" else rf"row {row} \(rows count from 0\)"
    with pytest.raises(InputError, match=f"{place}: column '{column}': {message}"):
        read(source, position="slot", slots=3)


def test_file_names_and_columns_are_no_patterns(tmp_path):
    for name in ("a?.csv", "ab.csv", "x[1].csv", "x[1].parquet"):
        saved(tmp_path, name.rpartition(".")[2]).rename(tmp_path / name)
    assert [read(tmp_path / name).ads for name in ("a?.csv", "x[1].csv", "x[1].parquet")] == [6, 6, 6]
    with pytest.raises(InputError, match="has no column"):
        read(COLUMNS, ctr=["^m.*$"])
    strange = COLUMNS | {"^m.*$": [0.9] * 6}
    assert read(saved(tmp_path, "parquet", strange), ctr=["^m.*$"]).ctr["^m.*$"].tolist() == [0.9] * 6


def test_rows_with_other_columns_are_not_empty(tmp_path):
    (tmp_path / "ads.csv").write_text("id,auction,model,click,bid\n1,1,0.5,1,2\n2,,,,\n")
    with pytest.raises(InputError, match="line 3: column 'model': found no value"):
        read(tmp_path / "ads.csv")


@pytest.mark.parametrize("weight", [1e-200, 0.0, 1e160])
def test_weights_are_of_usual_size(weight):
    table = COLUMNS | {"w": [1.0, 1.0, weight, 1.0, 1.0, 1.0]}
    with pytest.raises(InputError, match=r"row 2 .*: column 'w': .*; a weight must be above 0"):
        read(table, weight="w")


def test_only_ratios_of_weights_matter():
    one, other = (read(COLUMNS | {"w": scale * np.arange(1.0, 7)}, weight="w").weights for scale in (1.0, 1e50))
    np.testing.assert_allclose(one, other)


def test_files_as_other_tools_leave_them(tmp_path):
    path = tmp_path / "ADS.CSV"
    lines = ["auction,model,click,bid", "1,0.5,1,2", " 1,0.4,0,1", "2,0.1,0,1", "", ""]
    path.write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    ads = read(path)
    assert ads.offsets.tolist() == [0, 2, 3]
    assert ads.bids.tolist() == [2.0, 1.0, 1.0]


def test_a_folder_without_tables_is_none(tmp_path):
    with pytest.raises(InputError, match=r"or a folder of files of one kind, found no file that ends in \.parquet"):
        read(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_predictions_as_models_give_them(dtype):
    halves = torch.tensor([0.5, 0.25, 0.125, 0.5, 0.25, 0.125], dtype=dtype)
    assert read(COLUMNS | {"model": halves}).ctr["model"].tolist() == halves.double().tolist()


@pytest.mark.parametrize(
    ("ctr", "hint"), [([50.0, 12.0], "per cent? divide by 100"), ([-1.2, 0.3], "logits? apply the sigmoid first")]
)
def test_usual_mistakes_get_a_hint(ctr, hint):
    with pytest.raises(InputError, match=hint.replace("?", r"\?")):
        read(COLUMNS | {"model": ctr * 3})


@pytest.mark.parametrize("role", ["click", "bid", "auction", "weight"])
def test_columns_are_named_not_passed(role):
    with pytest.raises(InputError, match="columns must be named by text, found Series"):
        read(pd.DataFrame(COLUMNS), **{role: pd.Series([1.0] * 6)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ctr": ["modle"]}, "has no column 'modle'; did you mean 'model'?"),
        ({"click": "clicked"}, "has no column 'clicked'; did you mean 'click'?"),
        ({"bid": "zzz"}, "has no column 'zzz'; it has 'model', 'click', 'bid'"),
        ({"ctr": ["spare"]}, "column 'spare': found 'not', which is no number"),
        ({"ctr": ["model", "model"]}, "ctr must name every column once, found 'model' twice"),
        ({"auction": "bid"}, "auction must be a column of its own, not also bid, found 'bid'"),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "csv", "parquet"])
def test_bad_columns_are_named(tmp_path, options, message, kind):
    with pytest.raises(InputError, match=message):
        read(COLUMNS if kind == "memory" else saved(tmp_path, kind), **options)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", None, "none.csv: no such file"),
        ("empty.csv", b"", "found an empty file"),
        ("header.csv", b"model,click,bid,auction\n", "must contain ads, found no rows"),
        ("ads.xlsx", b"PK", "must end in .parquet, .csv"),
        ("noise.csv.gz", b"not gzip at all", "noise.csv.gz "),
    ],
)
def test_unreadable_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(path)


def test_other_things_are_no_tables():
    with pytest.raises(
        InputError, match="table must be a file, a polars or pandas frame, or a mapping of columns, found list"
    ):
        read([1, 2])
    with pytest.raises(InputError, match="table must have columns of one length"):
        read(COLUMNS | {"bid": [1.0]})
    with pytest.raises(InputError, match="column 'bid' must have one value per ad, found"):
        read(COLUMNS | {"bid": np.ones((6, 1))})
    with pytest.raises(InputError, match="column 'bid' must have one value per ad, found"):
        read(COLUMNS | {"bid": 1.0})
    with pytest.raises(InputError, match="columns must be named by text, found int"):
        read(pd.DataFrame({0: [0.5]}), ctr=[0])


def test_the_ways_of_pandas_to_say_that_a_value_is_missing():
    frame = pd.DataFrame(
        {
            "site": pd.Series(["a", None, "b"], dtype="string"),
            "count": pd.Series([1, None, 3], dtype="Int64"),
            "kind": pd.Series(["x", None, "x"], dtype="category"),
            "any": pd.Series([1.5, float("nan"), None], dtype="object"),
            "day": pd.to_datetime(["2024-01-01", None, "2024-01-02"]),
        }
    )
    table = open_table(frame).frame()
    assert table.fill_nan(None).null_count().row(0) == (1, 1, 1, 2, 1)
    assert table["count"].fill_nan(None).to_list() == [1, None, 3]


@pytest.mark.parametrize("dtype", ["Int64", "UInt64"])
def test_nullable_ids_of_pandas_keep_their_digits(dtype):
    read = open_table(pd.DataFrame({"user": pd.Series([2**53 + 1, None, 3], dtype=dtype)})).frame()["user"]
    assert str(read.dtype) == dtype
    assert read.to_list() == [2**53 + 1, None, 3]


@pytest.mark.parametrize("made", [pd.Categorical, pd.CategoricalIndex, lambda ids: pd.Series(ids, dtype="category")])
def test_categories_of_pandas_are_text(made):
    read = open_table({"hour": made([7, 7, 2**53 + 1])}).frame()["hour"]
    assert read.to_list() == ["7", "7", str(2**53 + 1)]
    missing = pd.Categorical.from_codes([1, -1, 0], categories=[2**53 + 1, 7])
    assert open_table({"hour": missing}).frame()["hour"].to_list() == ["7", None, str(2**53 + 1)]


@pytest.mark.parametrize("unit", ["s", "m", "h", "ms", "us", "ns"])
def test_times_of_any_unit(unit):
    days = np.array(["2026-01-01", "NaT"], dtype=f"datetime64[{unit}]")
    found = open_table({"day": days, "ago": days - days[0]}).frame()
    assert found["day"].dt.year().to_list() == [2026, None]
    assert found["ago"].dt.total_days().to_list() == [0, None]
    pandas = open_table(pd.DataFrame({"day": pd.Series(days)})).frame()
    assert pandas["day"].dt.year().to_list() == [2026, None]


def test_all_columns_are_read_where_none_is_named(tmp_path):
    nested = COLUMNS | {"tags": [[1, 2]] * 6}
    assert open_table(nested).frame().columns == list(nested)
    assert open_table(saved(tmp_path, "csv")).frame().equals(pl.DataFrame(COLUMNS).cast(pl.String))


@PROPERTY
@given(rows=st.lists(st.tuples(st.sampled_from(["a", "b", " a", "", None]), st.sampled_from([1, 2, None])), min_size=1))
def test_groups_count_from_0_in_the_order_of_their_first_rows(rows):
    frame = pl.DataFrame({"word": [word for word, _ in rows], "row": pl.Series([k for _, k in rows], dtype=pl.Int64)})
    ids, labels = group_ids(frame)
    known = {}
    for word, k in rows:
        known.setdefault(((word or "").strip() or None, k), len(known))
    assert ids.tolist() == [known[(word or "").strip() or None, k] for word, k in rows]
    assert labels == [", ".join("(missing)" if x is None else str(x) for x in key) for key in known]


def test_labels_of_numbers_are_as_a_person_writes_them():
    _, labels = group_ids(pl.DataFrame({"level": [1.0, 2.5, float("nan")], "flag": [True, False, None]}))
    assert labels == ["1, true", "2.5, false", "(missing), (missing)"]
    with pytest.raises(InputError, match="column 'tags' must have one value per ad, found List"):
        read(COLUMNS | {"tags": [[1]] * 6}, keys={"tags": ["tags"]})


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_several_columns_name_an_auction(tmp_path, kind):
    day, request = [1, 1, 1, 2, 2, 1], ["r", "r", "s", "r", "r", "s"]
    table = COLUMNS | {"day": day, "request": request}
    ads = read(saved(tmp_path, kind, table), auction=["day", "request"], position="slot", slots=3)
    joined = read(COLUMNS | {"auction": [f"{d} {r}" for d, r in zip(day, request, strict=True)]})
    assert ads.offsets.tolist() == joined.offsets.tolist() == [0, 2, 4, 6]
    assert ads.ctr["model"].tolist() == joined.ctr["model"].tolist() == [0.1, 0.2, 0.3, 0.6, 0.4, 0.5]
    missing = table | {"request": ["r", "r", None, "r", "r", "s"]}
    with pytest.raises(InputError, match="column 'request': found no value; every ad needs an auction"):
        read(saved(tmp_path, kind, missing), auction=["day", "request"])
    with pytest.raises(InputError, match="auction must be a column of its own, not also bid, found 'bid'"):
        read(table, auction=["day", "bid"])


def test_keys_group_the_ads_and_stay_with_them():
    device = ["phone", "desk", "phone", None, "desk", "phone"]
    keys = {"pool": ["slot", "device"], "device": ["device"], "slot": ["slot"]}
    ads = read(COLUMNS | {"device": device, "auction": list("xyxzzz")}, position="slot", slots=3, keys=keys)
    assert ads.labels["device"] == ["phone", "desk", "(missing)"]
    assert ads.labels["slot"] == ["1", "2", "3"]  # a column may have a role as well
    seen = [ads.labels["device"][group] for group in ads.groups["device"]]
    assert dict(zip(ads.ctr["model"].tolist(), seen, strict=True)) == {
        ctr: name or "(missing)" for ctr, name in zip(COLUMNS["model"], device, strict=True)
    }
    assert [ads.labels["pool"][group] for group in ads.groups["pool"]][:2] == ["1, phone", "1, phone"]
    again = ads.rows(np.array([5, 0]), np.array([0, 2]))
    assert again.groups["slot"].tolist() == ads.groups["slot"][[5, 0]].tolist()


@pytest.mark.parametrize("kind", ["parquet", "csv", None])
def test_a_number_is_what_all_ads_bid_unless_a_column_is_called_so(tmp_path, kind):
    def table(columns):
        return columns if kind is None else saved(tmp_path, kind, columns)

    for number in ("1.5", 1.5, np.float32(1.5)):
        assert read(table(COLUMNS), bid=number).bids.tolist() == [1.5] * 6
    assert read(table(COLUMNS | {"1": COLUMNS["bid"]}), bid="1").bids.tolist() == COLUMNS["bid"]
    assert read(table(COLUMNS | {"1": COLUMNS["bid"]}), bid=1).bids.tolist() == [1.0] * 6
    for wrong in ("0", -1, float("nan"), "inf"):
        with pytest.raises(InputError, match=f"bid must be a column or a number above 0, .* found {wrong}"):
            read(table(COLUMNS), bid=wrong)
    with pytest.raises(InputError, match="has no column 'bids'; did you mean 'bid'"):
        read(table(COLUMNS), bid="bids")


def test_text_may_have_another_separator_and_no_header(tmp_path):
    frame = pl.DataFrame(COLUMNS)
    frame.write_csv(tmp_path / "named.csv", separator=";")
    frame.write_csv(tmp_path / "bare.tsv", separator="|", include_header=False)
    frame.write_csv(tmp_path / "tabs.csv", separator="\t")
    named = read(open_table(tmp_path / "named.csv", separator=";"))
    columns = {"ctr": ["column_1"], "click": "column_2", "bid": "column_3", "auction": "column_4"}
    bare = read(open_table(tmp_path / "bare.tsv", separator="|", header=False), **columns)
    tabs = read(open_table(str(tmp_path / "tabs.csv"), separator="\\t"))
    for ads in (named, bare, tabs):
        assert ads.bids.tolist() == COLUMNS["bid"]
        assert ads.offsets.tolist() == [0, 2, 3, 6]
    assert open_table(tmp_path / "bare.tsv", separator="|", header=False).columns[-1] == "column_6"
    assert open_table(tmp_path / "named.csv", separator=";").frame().equals(frame.cast(pl.String))
    with pytest.raises(InputError, match=r"must have columns, found one column, .*Name it: --separator"):
        read(tmp_path / "named.csv")
    for wrong in ("", ";;", "\n", "é"):
        with pytest.raises(InputError, match=r"separator must be one character, or .*t for a tab, found"):
            open_table(tmp_path / "named.csv", separator=wrong)
    with pytest.raises(InputError, match=r"separator is for text, .csv or .tsv, found"):
        open_table(saved(tmp_path, "parquet"), separator=";")
    with pytest.raises(InputError, match="header is for files, found a table in memory"):
        open_table(COLUMNS, header=False)


def test_columns_that_are_not_named_are_not_read(tmp_path):
    frame, path = pl.DataFrame(COLUMNS | {"broken": ["unreadable"] * 6}), tmp_path / "ads.parquet"
    frame.write_parquet(path, compression="uncompressed", statistics=False)
    path.write_bytes(path.read_bytes().replace(b"unreadable", b"\xff" * 10))  # no text that there is
    with pytest.raises(InputError, match="invalid UTF-8"):
        open_table(path).frame()
    assert read(path).bids.tolist() == COLUMNS["bid"]


def test_a_file_without_a_line_of_names_is_noticed(tmp_path):
    (tmp_path / "ads.csv").write_text("0.1,0\n0.2,1\n")
    with pytest.raises(InputError, match=r"has no column 'y'.* --no-header"):
        read_ads(tmp_path / "ads.csv", ctr=[], click="y")


# Text


def written(folder, content, name="ads.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture(params=[7, 2**22], ids=["small", "large"])
def blocks(request, monkeypatch):
    """Bytes that are read at once."""
    monkeypatch.setattr("bidwise.data.table_files.BYTES", request.param)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("a,b\n1,2\n3,4", [("1", "2"), ("3", "4")]),
        (b"\xef\xbb\xbfa,b\r\n1,2\r\n3,4\r\n\r\n\r\n", [("1", "2"), ("3", "4")]),
        ('a,"b"\n"1,5","x\ny"\n,\n"","q""q"\n', [("1,5", "x\ny"), (None, None), ("", 'q"q')]),
        ("a\n\n1\n\n2\n\n\n", [(None,), ("1",), (None,), ("2",)]),
        ('"a\nb"\n1\n', [("1",)]),
    ],
)
def test_text_is_text(tmp_path, content, rows):
    source = open_table(written(tmp_path, content))
    assert source.frame().rows() == rows
    assert source.frame(source.columns[-1:]).rows() == [row[-1:] for row in rows]
    assert source.text
    zipped = written(tmp_path, gzip.compress(source.files[0].read_bytes()), "ads.tsv.gz")
    assert open_table(zipped, separator=",").frame().rows() == rows


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,2\n\n3,4\n", "line 3: must have 2 cells, .* found an empty line"),
        ("a,b\n1,2\n1,2,3\n3\n", "line 3: must have 2 cells, .* found 3"),
        ("a,b\n1,2\n3\n", "line 3: must have 2 cells, .* found 1"),
        ('a,b\n1,"2\n3"\n3\n', "line 4: must have 2 cells, .* found 1"),
        (b"a,b\n1,\xe9\n", "line 2: must be UTF-8, found the byte 0xe9; .* iconv -f latin1"),
        (b"\xe9,b\n1,2\n", "line 1: must be UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "line 1: must be UTF-8, found the byte 0xff"),
        ("a,b\n1,2\n".encode("utf-16-le"), "found bytes that are 0"),
        ("\n\na,b\n", "found an empty line"),
        ('a,b\n1,5" pipe\n2,3\n', "line 2: found a quote that is not closed, or inside of a cell"),
        ('a,b\n1,5" pipe\n2,3" x\n', "line 2: found a quote that is not closed, or inside of a cell"),
        ('a,b\n1,2\n1,"2\n3,4\n\n', "line 3: found a quote that is not closed"),
        ('a,b\n1,2\n1,"2" x\n', "line 3: found a quote"),
        ('a,b\n1,2\n"","\n"x","1"\n', "line 3: found a quote"),
        ("a,a\n1,2\n", "every column once"),
    ],
)
def test_confusing_text_is_rejected_with_its_line(tmp_path, content, words):
    path = written(tmp_path, content)
    for columns in (None, ["b"]):
        with pytest.raises(InputError, match=words) as error:
            open_table(path).frame(columns)
        assert str(path) in str(error.value)


def test_endings_and_separators(tmp_path):
    assert open_table(written(tmp_path, "a\tb\n1,5\t2\n", "ads.txt")).frame().rows() == [("1,5", "2")]
    assert open_table(written(tmp_path, "a,b\n1,2\n", "other.txt")).frame().rows() == [("1", "2")]
    assert open_table(written(tmp_path, "a b\n1 2\n", "ads.data"), separator=" ").frame().rows() == [("1", "2")]
    with pytest.raises(InputError, match="--separator"):
        open_table(tmp_path / "ads.data")


def test_files_of_a_folder_have_the_same_columns(tmp_path):
    for name, content in {"a.csv": "a,b\n1,2\n", "b.csv": "a,b\n3,4\nx,\n"}.items():
        written(tmp_path, content, name)
    source = open_table(tmp_path)
    assert source.frame().rows() == [("1", "2"), ("3", "4"), ("x", None)]
    assert source.reads(tmp_path / "new.csv")
    assert source.reads(tmp_path / "new.parquet")  # two kinds in one folder cannot be read
    assert open_table(tmp_path / "*.csv").reads(tmp_path / "new.csv")
    assert not open_table(tmp_path / "*.csv").reads(tmp_path / "new.parquet")
    assert not source.reads(tmp_path.parent / "new.csv")
    written(tmp_path, "b,a\n3,4\n", "c.csv")
    with pytest.raises(InputError, match=r"c\.csv must have the columns of .*a\.csv"):
        source = open_table(tmp_path).frame()


def test_tables_that_can_be_read_again_are_not_copied(tmp_path):
    for table in (tmp_path / "ads.parquet", COLUMNS):
        pl.DataFrame(COLUMNS).write_parquet(tmp_path / "ads.parquet")
        source = open_table(table)
        assert source.local(tmp_path) is source
        assert open_table(source) is source
    assert len({open_table(x).fingerprint() for x in (COLUMNS, pl.DataFrame(COLUMNS), pl.LazyFrame(COLUMNS))}) == 1


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (["2024-05-01 13:00", "2024-05-01T13:00:01Z", "2024/05/01"], "2024-05-01 13:00:00"),
        (["2024-05-01 13:00:00+02:00"], "2024-05-01 11:00:00"),
        (["1700000000", "1700000001"], "2023-11-14 22:13:20"),
        ([1_700_000_000_000], "2023-11-14 22:13:20"),
        ([14102100, 14102101], "14102100"),
        ([date(2024, 5, 1)], "2024-05-01 00:00:00"),
    ],
)
def test_times(values, shown):
    assert shown_times(times_of(pl.Series("t", values)))[0] == shown


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["25.02.2024"], "must begin with the year, .* or have a --time-format"),
        (["2024-05-01", "13:00"], "row 1 .* found '13:00'"),
        ([time(13)], "found a time of day"),
        (["soon"], "must begin with the year"),
        (["2024-05-01", "NA"], "row 1 .*: found no value; every ad needs a time"),
        ([1.0, None], "row 1 .*: found no value"),
        ([[1]], "must contain dates"),
    ],
)
def test_times_that_cannot_be_told(values, words):
    with pytest.raises(InputError, match=words):
        times_of(pl.Series("t", values))


def test_times_in_a_format():
    days = times_of(pl.Series("t", ["01/02/2024"]), "%d/%m/%Y")
    assert shown_times(days).to_list() == ["2024-02-01 00:00:00"]
    with pytest.raises(InputError, match="must be in the format %d/%m/%Y"):
        times_of(pl.Series("t", ["2024-02-01"]), "%d/%m/%Y")
    with pytest.raises(InputError, match="time_format must have a year"):
        times_of(pl.Series("t", ["13:00"]), "%H:%M")
