"""A row means the same wherever it comes from: alone, in any subset and order, in any file."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidwise.bridges.onnx_export import export_onnx
from bidwise.bridges.scoring import Scorer
from bidwise.data import columns as columns_module
from bidwise.data.columns import Learner
from bidwise.data.kinds import Facts
from bidwise.data.table_files import open_table
from bidwise.table import train
from bidwise.table.model import load

HASHES = st.one_of(
    st.sampled_from(["30903e74", "12345678", "0a1b2c3d", "00000001", "1e5", "9e999"]),
    st.text("0123456789abcdef", min_size=8, max_size=8),
)
ZIPS = st.sampled_from(["02139", "90210", "00501", "10001", "2139"])
WORDS = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters='"\n\r\x85\u2028\u2029'),
    min_size=1,
    max_size=6,
)
MADE = {
    "hash": (HASHES, pl.String),
    "zip": (ZIPS, pl.String),
    "word": (WORDS, pl.String),
    "price": (st.floats(allow_nan=False, allow_infinity=False), pl.Float64),
    "narrow": (st.floats(width=32, allow_nan=False, allow_infinity=False), pl.Float32),
    "count": (st.integers(-(2**63), 2**63 - 1), pl.Int64),
    "hour": (st.integers(0, 23), pl.Int8),
    "user_id": (st.integers(2**53 - 2, 2**53 + 2), pl.Int64),
    "flag": (st.booleans(), pl.Boolean),
}


@st.composite
def tables(draw):
    rows = draw(st.integers(2, 30))
    made = {}
    for name, (values, dtype) in MADE.items():
        few = draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=8))
        made[name] = pl.Series(name, draw(st.lists(st.sampled_from(few), min_size=rows, max_size=rows)), dtype=dtype)
    return pl.DataFrame(made)


def pandas_of(frame):
    """The same values in pandas, of whose types those with a word for missing keep whole numbers whole."""
    kinds = {pl.Int64: "Int64", pl.Int8: "Int8", pl.Boolean: "boolean", pl.Float32: "float32", pl.Float64: "float64"}
    kinds |= {pl.String: "object"}
    return pd.DataFrame({column.name: pd.Series(column.to_list(), dtype=kinds[column.dtype]) for column in frame})


def sources(frame, folder):
    """The same rows in every kind of file and frame."""
    frame.write_csv(folder / "polars.csv")
    pandas_of(frame).to_csv(folder / "pandas.csv", index=False)
    pandas_of(frame).to_csv(folder / "pandas.tsv", index=False, sep="\t")
    (folder / "zipped.csv.gz").write_bytes(gzip.compress(frame.write_csv(line_terminator="\r\n").encode()))
    frame.write_parquet(folder / "table.parquet")
    yield from (folder / name for name in ("polars.csv", "pandas.csv", "pandas.tsv", "zipped.csv.gz", "table.parquet"))
    yield frame
    yield pandas_of(frame)
    # a number of 32 bits is another one as Python's float
    yield {c.name: c.to_numpy() if c.dtype == pl.Float32 else c.to_list() for c in frame}


def fitted(table, **options):
    source = open_table(table)
    columns = Facts.of(source).columns([], **options)
    learner = Learner(columns)
    for block in source.blocks(learner.names):
        learner.add(learner.counted(block.frame))
    return learner.encoder(min_count=1, bins=4)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(tables(), st.randoms(use_true_random=False), st.integers(0, 7), st.booleans())
def test_the_ids_of_a_row_are_the_same_alone_in_any_order_and_in_any_file(tmp_path, frame, random, trained_on, python):
    try:
        encoder = fitted(list(sources(frame, tmp_path))[trained_on])
    except columns_module.InputError:  # a column in which every row is alike
        return
    order = random.sample(range(len(frame)), random.randint(1, len(frame)))
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(columns_module, "_SHORT", 4000 if python else 0)
        whole = encoder.encode(open_table(frame).frame())
        for table in sources(frame[order], tmp_path):
            some = encoder.encode(open_table(table).frame())
            for at, column in zip(encoder.spans, encoder.columns, strict=True):
                apart = (some.ids[:, at] != whole.ids[order, at]).any(axis=1).nonzero()[0]
                cells = frame[column.name][order].gather(apart).to_list()
                assert (column.name, type(table), cells) == (column.name, type(table), [])


def dirty(rows=3000, seed=0):
    """Logged ads of real shape, as text: skewed hashes, counts with long tails, zips, prices, flags, words, and cells
    that are empty, missing by a word, or not what the column is."""
    random = np.random.default_rng(seed)

    def skewed(values):
        return values[(len(values) * random.random(rows) ** 4).astype(int)]

    def with_gaps(values, share, words=("",)):
        return np.where(random.random(rows) < share, random.choice(words, rows), values)

    hashes = np.array(
        [f"{value:08x}" for value in random.integers(0, 2**32, 400)] + ["30903e74", "12345678", "00000017"]
    )
    taste = skewed(np.arange(len(hashes)))
    counts = random.lognormal(1, 2, rows).astype(int) - 1
    ctr = 1 / (1 + np.exp(2 - 0.01 * taste - 0.2 * np.log1p(counts + 1)))
    return pl.DataFrame(
        {
            "label": (random.random(rows) < ctr).astype(int).astype(str),
            "count": with_gaps(counts.astype(str), 0.3),
            "small": with_gaps(random.integers(0, 12, rows).astype(str), 0.1, ["", "NA", "N/A", "null", "-"]),
            "price": with_gaps(random.lognormal(size=rows).round(3).astype(str), 0.005, ["free", "1.2.3"]),
            "comma": np.char.replace(random.normal(size=rows).round(2).astype(str), ".", ","),
            "tiny": [f"{value:.3g}" for value in random.lognormal(-20, 3, rows)],
            "hash": with_gaps(hashes[taste], 0.05),
            "zip": skewed(np.array(["02139", "90210", "00501", "2139", "10001"])),
            "campaign_id": skewed(random.integers(10**15, 10**16, 50)).astype(str),
            "flag": with_gaps(skewed(np.array(["true", "False", "TRUE"])), 0.02),
            "word": skewed(np.array(["ünï", "a,b", 'q"q', "日本", " trimmed ", "naïve", "NULL"])),
            "bid": random.lognormal(size=rows).round(4).astype(str),
        }
    )


def sample():
    """Rows of the raw layout, if there are some next to this checkout."""
    path = Path(__file__).parents[2] / "shared" / "data" / "criteo_sample_10k.txt.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    frame = open_table(path, separator="\t", header=False).frame()
    return frame.rename({"column_1": "label"}).with_columns(bid=pl.lit("1.5"))


@pytest.mark.parametrize("made", [dirty, sample])
def test_the_ctr_of_a_row_is_the_same_alone_in_any_order_and_in_any_file(tmp_path, made):
    frame = made()
    frame.write_csv(tmp_path / "ads.csv")
    train(
        tmp_path / "ads.csv", out=tmp_path / "run", click="label", bid="bid", model="deepfm", loss="log_loss", epochs=1
    )
    model = load(tmp_path / "run")
    whole = model.predict(tmp_path / "ads.csv")
    assert len(np.unique(whole)) > len(frame) / 4
    order = np.random.default_rng(1).permutation(len(frame))[:300]
    for table in sources(frame[order], tmp_path):
        np.testing.assert_array_equal(model.predict(table), whole[order])
    for row in order[:10].tolist():
        for table in sources(frame[row], tmp_path):
            assert model.predict(table)[0] == whole[row]
    export_onnx(tmp_path / "run", tmp_path / "ctr.onnx")
    scores = Scorer(tmp_path / "ctr.onnx").score(frame[order].to_dict(as_series=False))
    np.testing.assert_allclose(scores, whole[order], rtol=0, atol=1e-6)
