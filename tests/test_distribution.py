"""What `make dist` builds, in an empty environment. Run by `make test-long`."""

import os
import subprocess
import sys
import time
import venv
from pathlib import Path

import polars as pl
import pytest

ROOT = Path(__file__).parent.parent
long = pytest.mark.skipif("BIDWISE_LONG" not in os.environ, reason="takes minutes: make test-long")


def run(*command, cwd, **environment):
    outside = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=outside | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@long
def test_the_wheel_works_in_an_empty_environment(tmp_path, capsys):
    """From the built wheel to a verdict and a trained model on a CSV, in less than three minutes."""
    run(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path,
        PIP_CONSTRAINT=str(ROOT / "constraints.txt"))  # fmt: skip
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert list((tmp_path / "dist").glob("*.tar.gz"))
    started = time.perf_counter()
    venv.create(tmp_path / "empty", with_pip=True)
    binaries, empty = tmp_path / "empty" / "bin", tmp_path / "elsewhere"
    empty.mkdir()
    run(binaries / "pip", "install", "--quiet", wheel, cwd=empty, PIP_CONSTRAINT=str(ROOT / "constraints.txt"))
    installed = time.perf_counter() - started
    where = run(binaries / "python", "-c", "import bidwise; print(bidwise.__file__)", cwd=empty)
    assert str(tmp_path / "empty") in where
    assert "new raises welfare by" in run(binaries / "bidwise", "try", cwd=empty)
    verdict = time.perf_counter() - started
    text = (ROOT / "docs" / "start" / "tutorial.md").read_text()
    exec(text.split("```python\n")[1].split("```")[0].replace('"ads.csv"', f'"{empty}/ads.csv"')
         .replace('"new_ads.csv"', f'"{empty}/new_ads.csv"').replace("3_000, 10", "600, 10"), {})  # fmt: skip
    roles = ["--click", "click", "--bid", "bid", "--auction", "auction", "--time", "day"]
    run(binaries / "bidwise", "train", "ads.csv", *roles, "--budget-seconds", "0", "--out", "run", cwd=empty)
    run(binaries / "bidwise", "predict", "run", "new_ads.csv", "--out", "predictions.csv", cwd=empty)
    assert pl.read_csv(empty / "predictions.csv")["ctr"].is_between(0, 1).all()
    assert (empty / "run" / "report.html").is_file()
    assert (empty / "bidwise-try" / "report.html").is_file()
    with capsys.disabled():
        print(f"\nFrom the wheel: installed after {installed:.0f} s, first verdict after {verdict:.0f} s")
    assert verdict < 180
