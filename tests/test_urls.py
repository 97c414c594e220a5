"""Tables in object storage and on the web: the same numbers as from a file, and errors that name the URL."""

import gzip
import io
import json
import re
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from run_helpers import SECRET, SMALL, Bucket, market
from run_helpers import bidwise_command as typed

import bidwise
from bidwise import run_folder
from bidwise.data.ad_table import read_ads
from bidwise.data.table_files import _unreadable, open_table
from bidwise.table import predict, train
from bidwise.urls import shown, url_of

ROLES = {"click": "click", "bid": "bid", "auction": "auction"}
OPTIONS = ["--click", "click", "--bid", "bid", "--auction", "auction"]
QUICK = ["--model", "logistic_regression", "--loss", "log_loss", "--set", "train.epochs=2"]


def parquet(frame):
    file = io.BytesIO()
    frame.write_parquet(file)
    return file.getvalue()


@pytest.fixture(scope="module")
def table():
    """Logged ads, with the predictions of two models."""
    ads = market(auctions=300)
    noise = np.random.default_rng(1).normal(size=len(ads))
    return ads.drop("noise").with_columns(old=(pl.col("truth") * 0.5), new=(pl.col("truth") * np.exp(-np.abs(noise))))


@pytest.fixture(scope="module")
def host(table):
    """A store that answers on this machine: bucket ``ads``."""
    tsv, half = table.write_csv(separator="\t"), len(table) // 2
    Bucket.objects = {
        "ads/log.parquet": parquet(table),
        "ads/log.csv": table.write_csv().encode(),
        "ads/my log.csv": table.write_csv().encode(),
        "ads/log.tsv.gz": gzip.compress(tsv.encode()),
        "ads/day=1/part-0.parquet": parquet(table[:half]),
        "ads/day=2/part-0.parquet": parquet(table[half:]),
        "ads/text/1.csv": table[:half].write_csv().encode(),
        "ads/text/2.csv": table[half:].write_csv().encode(),
        "ads/empty.csv": b"",
        "ads/broken.parquet": b"PAR1 no",
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("AWS_ALLOW_HTTP", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("POLARS_CLOUD_MAX_RETRIES", "0")
        yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def local(table, tmp_path_factory):
    """The same ads in a file, and a run that was trained on it."""
    folder = tmp_path_factory.mktemp("local")
    table.write_parquet(folder / "log.parquet")
    result = train(folder / "log.parquet", out=folder / "run", **ROLES, **SMALL)
    return folder, result


def numbers(result):
    """A result of training without the name of its table, and the checksum of its bytes or rows."""
    result = json.loads(json.dumps(result))
    result["config"].pop("data.table", None)
    result["table"].pop("fingerprint")
    return result


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.tsv.gz", "text/*.csv", "day=*/part-[0-9].parquet"])
def test_a_bucket_gives_the_rows_of_the_file(name, host, table):
    found = open_table(f"s3://ads/{name}").frame()
    assert found.select(table.columns).cast(table.schema).equals(table)
    columns = {"ctr": ["old", "new"], "click": "click", "bid": "bid", "auction": "auction"}
    here, there = read_ads(table, **columns), read_ads(f"s3://ads/{name}", **columns)
    np.testing.assert_array_equal(here.ctr["new"], there.ctr["new"])
    np.testing.assert_array_equal(here.offsets, there.offsets)


def test_folders_named_like_columns_are_columns(host, table, tmp_path):
    assert open_table("s3://ads/day=*/*.parquet").frame()["day"].unique().sort().to_list() == [1, 2]
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}/a.parquet").write_bytes(Bucket.objects[f"ads/day={day}/part-0.parquet"])
    assert open_table(tmp_path / "day=*/*.parquet").frame().equals(open_table("s3://ads/day=*/*.parquet").frame())


def test_train_on_a_url_is_train_on_the_file(host, local, tmp_path, monkeypatch, capsys):
    quick = [*OPTIONS, *QUICK]
    assert typed(monkeypatch, "train", local[0] / "log.parquet", "--out", tmp_path / "a", *quick) == 0
    assert typed(monkeypatch, "train", "s3://ads/log.parquet", "--out", tmp_path / "b", *quick) == 0
    here, there = (json.loads((tmp_path / run / "result.json").read_text()) for run in "ab")
    assert numbers(here) == numbers(there)
    assert there["config"]["data.table"] == "s3://ads/log.parquet"
    toml = tmp_path / "b" / "config.toml"  # names the URL, and is a configuration of the same run
    assert typed(monkeypatch, "train", toml, "--out", tmp_path / "c") == 0
    assert numbers(json.loads((tmp_path / "c" / "result.json").read_text())) == numbers(here)
    assert typed(monkeypatch, "train", "s3://ads/log.parquet", "--out", tmp_path / "b", *quick) == 0  # resumes
    assert not Path("s3:").exists()
    monkeypatch.setitem(Bucket.objects, "ads/log.parquet", parquet(pl.read_parquet(local[0] / "log.parquet")[1:]))
    capsys.readouterr()
    assert typed(monkeypatch, "train", "s3://ads/log.parquet", "--out", tmp_path / "b", *quick) == 2
    assert "which began with other rows than s3://ads/log.parquet has now" in capsys.readouterr().err


def test_predict_for_a_url(host, local, tmp_path, monkeypatch):
    run, out = local[0] / "run", tmp_path / "out.parquet"
    assert typed(monkeypatch, "predict", run, "s3://ads/text/*.csv", "--out", out) == 0
    expected = predict(run, local[0] / "log.parquet")
    assert pl.read_parquet(out)["ctr"].to_list() == pytest.approx(expected["ctr"].to_list(), abs=1e-7)


def test_evaluate_a_url_is_evaluate_the_file(host, local, tmp_path, monkeypatch):
    options = ["--ctr", "old", "new", *OPTIONS]
    sources = [str(local[0] / "log.parquet"), "s3://ads/log.csv", f"{host}/ads/log.csv"]
    found = []
    for number, source in enumerate(sources):
        assert typed(monkeypatch, "evaluate", source, *options, "--out", tmp_path / str(number)) == 0
        found.append(json.loads((tmp_path / str(number) / "result.json").read_text()))
    assert [result["options"].pop("table") for result in found] == sources
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", ["{HOST}/ads/my log.csv?{s}", "s3://a:{s}@ads/log.csv"])
def test_a_secret_is_used_and_not_written_down(name, host, tmp_path, monkeypatch, capfd):
    url = name.format(HOST=host.upper(), s=SECRET)
    assert typed(monkeypatch, "train", url, "--out", tmp_path / "run", *OPTIONS, *QUICK) == 0
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not any(SECRET.encode() in text for text in written)
    assert SECRET not in "".join(capfd.readouterr())


def test_an_evaluation_has_no_signature(host):
    found = bidwise.evaluate(f"{host}/ads/log.parquet?{SECRET}", ctr=["old", "new"], **ROLES)
    assert found.options["table"] == f"{host}/ads/log.parquet"
    assert SECRET not in found.to_json()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://ads/none.parquet", "s3://ads/none.parquet: no such file"),
        ("s3://ads/none.csv", "s3://ads/none.csv: no such file"),
        ("s3://ads/none-*.csv", "s3://ads/none-*.csv: no file has such a name"),
        ("s3://ads/empty.csv", "s3://ads/empty.csv must contain ads, found an empty file"),
        ("s3://ads/broken.parquet", "s3://ads/broken.parquet cannot be read: parquet: "),
        ("s3://ads/log.xlsx", "s3://ads/log.xlsx must end in .parquet, .csv"),
        ("s3://ads/", "for all files of a folder name a pattern, s3://ads/*.parquet"),
        ("s3://locked/a.parquet", "; check the network, the URL and the credentials (https://docs.pola.rs/"),
        ("s3://elsewhere/a.parquet", "cannot be read: "),
        ("s3://busy/a.parquet", "s3://busy/a.parquet cannot be read: Server returned non-2xx status code: 503"),
        ("az://box/a.parquet", "; check the network, the URL and the credentials"),
        ("hdfs://ads/a.parquet", "must be a file or a URL of a kind that can be read: s3://, gs://"),
        ("{host}/elsewhere/a.csv", "a.csv cannot be read: "),
        ("{host}/locked/a.csv", "; check the network, the URL and the credentials"),
        ("{host}/ads/*.csv", "must be one file, found a pattern: http:// cannot list files"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(url, words, host, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    url = url.format(host=host)
    assert typed(monkeypatch, "evaluate", url, "--ctr", "old", "new", *OPTIONS, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert words in error
    assert url in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["elsewhere/a.csv", "locked/a.csv", "ads/none.csv", "ads/none.parquet"])
def test_no_error_has_a_signature(name, host):
    with pytest.raises(bidwise.InputError) as refused:
        open_table(f"{host}/{name}?{SECRET}").frame()
    assert f"{host}/{name}" in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        "object-store error: Generic HTTP error: Error performing HEAD {url} in 2s, after 10 retries  - "
        "Server returned non-2xx status code: 503:  (location: my (1).csv?{s}) (path: http://host)",
        "object-store error: Unable parse source url. Url: {url}, Error: invalid port number (path: {url})",
        "object-store error: not supported (location: my (1).csv?{s})",
        "bytes could not be parsed at {url}",
    ],
)
def test_errors_of_polars_are_shown_without_the_url(words):
    url = f"http://host/my (1).csv?{SECRET}"
    told = str(_unreadable(shown(url), OSError(words.format(url=url, s=SECRET)), url))
    assert re.match(r"http://host/my \(1\)\.csv cannot be read: (Server returned.* 503|Unable|not su|bytes)", told)
    assert SECRET not in told


@pytest.mark.parametrize(
    "words",
    [
        ["train", "{table}", *OPTIONS, "--out", "s3://ads/runs"],
        ["evaluate", "{table}", "--ctr", "old", "new", *OPTIONS, "--out", "gs://ads/runs"],
        ["predict", "{run}", "{table}", "--out", "s3://ads/out.parquet"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_only_tables_may_be_urls(words, local, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = [word.format(table=local[0] / "log.parquet", run=local[0] / "run") for word in words]
    url = next(word for word in said if "://" in word)
    assert typed(monkeypatch, *said) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(rf"bidwise: .*must be .* on a file system, found {url}; mount the bucket or copy .*\n", error)
    assert not list(tmp_path.iterdir())


def test_a_pattern_on_disk_and_a_file_with_the_marks_of_one(table, tmp_path):
    for name, rows in {"a[1].csv": table[:9], "a1.csv": table[9:20], "a2.csv": table[20:]}.items():
        rows.write_csv(tmp_path / name)
    assert open_table(tmp_path / "a[1].csv").frame().height == 9  # the file of that name
    assert open_table(tmp_path / "a[0-9].csv").frame().equals(table[9:].cast(pl.String))
    assert open_table(f"file://{tmp_path}/a1.csv").frame().equals(table[9:20].cast(pl.String))
    with pytest.raises(bidwise.InputError, match=r"b\*.csv: no file has such a name"):
        open_table(tmp_path / "b*.csv").frame()
    parts = [table[9:20], table[20:], table[:9]]  # by name: a1, a2, a[1]
    assert open_table(tmp_path).frame().equals(pl.concat(parts).cast(pl.String))
    table.write_parquet(tmp_path / "b.parquet")
    with pytest.raises(
        bidwise.InputError, match=r"found .csv and .parquet in it; select files of one kind by a pattern"
    ):
        open_table(tmp_path).frame()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://key:SEC/RET@ads/log.csv", "s3://ads/log.csv"),
        ("S3:/key:SECRET@ads/log.csv", "s3://ads/log.csv"),
        ("gs://SECRET@ads/log@2.csv", "gs://ads/log@2.csv"),
        ("hf://datasets/us/ads@main/log.csv", "hf://datasets/us/ads@main/log.csv"),
        ("abfss://box@account.dfs.core.windows.net/log.csv", "abfss://box@account.dfs.core.windows.net/log.csv"),
        ("HTTP://host:81/log@2.csv?sig=SECRET", "http://host:81/log@2.csv"),
        ("http:///me:SECRET@host/log.csv", "http://host/log.csv"),
        ("https://me:SEC/RET@host/log.csv#SECRET", "https://host/log.csv"),
        ("http://[::1]:81/log@2.csv", "http://[::1]:81/log@2.csv"),
        ("http://host/my file.csv?sig=SECRET", "http://host/my file.csv"),
        ("ads/day=1@2/log.csv", "ads/day=1@2/log.csv"),
    ],
)
def test_no_name_has_a_secret(url, name, monkeypatch):
    assert shown(url) == name
    monkeypatch.setattr("sys.argv", ["bidwise", "train", url, f"--table={url}", "--set", f"data.table={url}", "a b"])
    words = ["bidwise", "train", name, f"--table={name}", "--set", f"data.table={name}", "a b"]
    typed_again = [f"'{word}'" if " " in word else word for word in words]
    assert run_folder.environment()["command"] == " ".join(typed_again)


def test_names_of_places():
    assert url_of(Path("S3://bucket/a.csv")) == "s3://bucket/a.csv"
