"""The example of Ray Train: its workers are ranks, and train the model that one process trains."""

import os
from pathlib import Path

import polars as pl
import pytest
from run_helpers import market, program

import bidwise

ray = pytest.importorskip("ray")
pytestmark = [  # what Ray says of itself, and leaves to the garbage collector when it starts and ends its own processes
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore:unclosed file .*/dev/null:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
OPTIONS = {"epochs": 2, "batch_size": 256, "hidden": [16], "embedding": 4}


@pytest.fixture
def cluster():
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    here = {"env_vars": {"PYTHONPATH": str(Path(bidwise.__file__).parent.parent), "OMP_NUM_THREADS": "1"}}
    quiet = {"log_to_driver": False, "include_dashboard": False, "configure_logging": False}
    ray.init(address="local", num_cpus=2, runtime_env=here, **quiet)
    yield
    ray.shutdown()


def test_the_example_trains_as_one_process_does(cluster, tmp_path):
    example = program("examples/ray_train.py")
    market(400).write_parquet(tmp_path / "ads.parquet")
    example.main(tmp_path / "ads.parquet", tmp_path / "run", workers=2, **OPTIONS)
    expected = bidwise.train(tmp_path / "ads.parquet", out=tmp_path / "alone", **example.OPTIONS, **OPTIONS)
    assert (tmp_path / "run" / "report.html").is_file()
    assert '"ranks": 2' in (tmp_path / "run" / "environment.json").read_text()
    one, two = (pl.read_parquet(tmp_path / run / "test.parquet") for run in ("alone", "run"))
    assert two[expected.chosen].to_list() == pytest.approx(one[expected.chosen].to_list(), rel=1e-3)
    rows = market(400)[two["row"].to_list()]
    assert two[expected.chosen].to_list() == bidwise.load(tmp_path / "run").predict(rows).tolist()
