"""`bidwise train` and what others would use: each on the same training, validation and test rows of the same tables.

Every method is tuned on validation log loss and measured on test rows: pooled welfare by the true CTR in % of what the
true CTR itself reaches, AUC and log loss. Seconds are CPU seconds of one thread, from the frame to the CTR of test
rows: encoding, all fits of the tuning, prediction. Rows measured before are kept: a run that was cut off resumes.

    pip install -c constraints.txt -e '.[rivals]'
    python -m benchmarks.rivals [METHODS] [SEEDS] [WORLDS]      # such as: logistic,lightgbm 0,1,2 tail
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import bidwise
from benchmarks.harness import RESULTS, Machine, peak_mb, read, write
from benchmarks.made_tables import COLUMNS, NUMBERS, WORLDS, make_table
from bidwise.data.splits import split
from bidwise.evaluation.auc import auc
from bidwise.evaluation.metrics import log_losses

SEEDS = (0, 1, 2)
ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1")

CTR = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """A table, split as `bidwise train` splits it with the same seed."""

    table: pl.DataFrame
    train: pl.DataFrame
    valid: pl.DataFrame
    test: pl.DataFrame
    size: int  # ads of an auction
    seed: int

    @classmethod
    def of(cls, world: str, seed: int) -> Rows:
        table = make_table(world, seed)
        parts = split(len(table), auction=None, time=None, seed=seed)
        return cls(table, *(table[part.rows] for part in parts.values()), WORLDS[world].size, seed)

    @property
    def clicks(self) -> NDArray[np.int8]:
        return self.train["click"].to_numpy()

    def log_loss(self, ctr: CTR) -> float:
        return float(log_losses(ctr, self.valid["click"].to_numpy()).mean())


@dataclass(frozen=True)
class Fitted:
    """What one setting of a method predicts."""

    setting: str
    valid: CTR
    test: CTR


def logistic(rows: Rows) -> Iterator[Fitted]:
    """Logistic regression over hashed column=value, numbers in 32 quantile bins; four values of C."""
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.linear_model import LogisticRegression

    bounds = {name: np.quantile(rows.train[name].to_numpy(), np.linspace(0, 1, 33)[1:-1]) for name in NUMBERS}

    def hashed(frame: pl.DataFrame) -> Any:
        columns = [frame[name].to_list() for name in COLUMNS]
        columns += [np.searchsorted(bounds[name], frame[name].to_numpy()).tolist() for name in NUMBERS]
        names = [*COLUMNS, *NUMBERS]
        tokens = ([f"{n}={x}" for n, x in zip(names, row, strict=True)] for row in zip(*columns, strict=True))
        return FeatureHasher(2**20, input_type="string").transform(tokens)

    train, valid, test = map(hashed, (rows.train, rows.valid, rows.test))
    for c in (0.01, 0.03, 0.1, 0.3):
        model = LogisticRegression(C=c, solver="liblinear").fit(train, rows.clicks)
        yield Fitted(f"C={c}", model.predict_proba(valid)[:, 1], model.predict_proba(test)[:, 1])


def codes_of(frame: pl.DataFrame) -> pl.DataFrame:
    """The categories as whole numbers: 12 for s12."""
    return frame.select(pl.col(COLUMNS.keys()).str.slice(1).cast(pl.Int32))


def target_encoded(rows: Rows) -> Iterator[tuple[str, list[NDArray[np.float64]]]]:
    """Training, validation and test rows: the smoothed click rate of every value, out of fold in training; numbers."""
    from sklearn.preprocessing import TargetEncoder

    frames = [rows.train, rows.valid, rows.test]
    codes = [codes_of(frame).to_numpy() for frame in frames]
    numbers = [frame.select(NUMBERS).to_numpy() for frame in frames]
    for smooth in (20, 100):
        encoder = TargetEncoder(smooth=smooth, target_type="binary", random_state=rows.seed)
        rates = [encoder.fit_transform(codes[0], rows.clicks), *map(encoder.transform, codes[1:])]
        yield f"smooth={smooth}", [np.hstack(pair) for pair in zip(rates, numbers, strict=True)]


def lightgbm(rows: Rows) -> Iterator[Fitted]:
    """LightGBM over target encodings, stopped early."""
    import lightgbm

    fixed = {"objective": "binary", "learning_rate": 0.05, "min_data_in_leaf": 100, "num_threads": 1, "verbose": -1}
    for encoding, (train, valid, test) in target_encoded(rows):
        data = lightgbm.Dataset(train, rows.clicks)
        held_out = lightgbm.Dataset(valid, rows.valid["click"].to_numpy(), reference=data)
        for leaves in (4, 8, 16, 32):
            options = fixed | {"num_leaves": leaves, "seed": rows.seed}
            stop = lightgbm.early_stopping(30, verbose=False)
            model = lightgbm.train(options, data, 2000, valid_sets=[held_out], callbacks=[stop])
            setting = f"{encoding}, leaves={leaves}, trees={model.best_iteration}"
            yield Fitted(setting, model.predict(valid), model.predict(test))


def xgboost(rows: Rows) -> Iterator[Fitted]:
    """XGBoost over target encodings, stopped early."""
    from xgboost import XGBClassifier

    fixed = {"n_estimators": 2000, "learning_rate": 0.05, "early_stopping_rounds": 30, "n_jobs": 1}
    for encoding, (train, valid, test) in target_encoded(rows):
        for depth in (2, 3, 4, 6):
            model = XGBClassifier(**fixed, max_depth=depth, min_child_weight=5, random_state=rows.seed)
            model.fit(train, rows.clicks, eval_set=[(valid, rows.valid["click"].to_numpy())], verbose=False)
            setting = f"{encoding}, depth={depth}, trees={model.best_iteration + 1}"
            yield Fitted(setting, model.predict_proba(valid)[:, 1], model.predict_proba(test)[:, 1])


def deepfm(rows: Rows, l2: tuple[float, ...] = (1e-5,)) -> Iterator[Fitted]:
    """DeepCTR-Torch's DeepFM with its defaults, an epoch at a time until validation log loss has risen twice."""
    import torch
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import DeepFM

    logs = {name: np.log1p(rows.train[name].to_numpy()) for name in NUMBERS}
    sizes = {column.name: int(column.max()) + 1 for column in codes_of(rows.table)}
    features = [SparseFeat(name, size, embedding_dim=4) for name, size in sizes.items()]
    features += [DenseFeat(name, 1) for name in NUMBERS]

    def inputs(frame: pl.DataFrame) -> dict[str, NDArray[Any]]:
        codes = {column.name: column.to_numpy() for column in codes_of(frame)}
        scaled = {n: (np.log1p(frame[n].to_numpy()) - x.mean()) / x.std() for n, x in logs.items()}
        return codes | {name: x.astype(np.float32) for name, x in scaled.items()}

    train, valid, test = map(inputs, (rows.train, rows.valid, rows.test))
    for strength in l2:
        model = DeepFM(features, features, l2_reg_linear=strength, l2_reg_embedding=strength, seed=rows.seed)
        model.compile("adam", "binary_crossentropy")
        best, risen, epoch = np.inf, 0, 0
        while risen < 2 and epoch < 10:
            epoch += 1
            torch.manual_seed(1000 * rows.seed + epoch)  # the order of rows
            model.fit(train, rows.clicks, batch_size=256, epochs=1, verbose=0)
            found = Fitted(f"l2={strength:g}, epochs={epoch}", *(model.predict(x)[:, 0] for x in (valid, test)))
            risen = 0 if rows.log_loss(found.valid) < best else risen + 1
            best = min(best, rows.log_loss(found.valid))
            yield found


def deepfm_l2(rows: Rows) -> Iterator[Fitted]:
    """The same with four strengths of L2; it is added to the sum over a batch of 256 ads."""
    yield from deepfm(rows, (0.01, 0.03, 0.1, 0.3))


def ours(rows: Rows) -> Iterator[Fitted]:
    """`bidwise train` as it is; of the table it knows neither the true CTR nor the clicks of test rows."""
    with tempfile.TemporaryDirectory() as folder:
        table = rows.table.drop("truth")
        options = {"click": "click", "bid": "bid", "auction_size": rows.size, "seed": rows.seed}
        result = bidwise.table.train(table, out=f"{folder}/run", **options)
        for part, frame in (("valid", rows.valid), ("test", rows.test)):  # the same rows as the others have
            assert abs(result.table.splits[part].click_rate - frame["click"].mean()) < 1e-9
        frames = [bidwise.table.predict(f"{folder}/run", frame.drop("truth")) for frame in (rows.valid, rows.test)]
        yield Fitted(result.chosen, *(frame["ctr"].to_numpy() for frame in frames))


@dataclass(frozen=True)
class Method:
    """A way to predict CTR, and the package that it is of."""

    settings: Callable[[Rows], Iterator[Fitted]]
    package: str
    title: str


METHODS = {
    "logistic": Method(logistic, "scikit-learn", "hashed logistic regression"),
    "lightgbm": Method(lightgbm, "lightgbm", "LightGBM, target encoding"),
    "xgboost": Method(xgboost, "xgboost-cpu", "XGBoost, target encoding"),
    "deepfm": Method(deepfm, "deepctr-torch", "DeepCTR-Torch DeepFM"),
    "deepfm_l2": Method(deepfm_l2, "deepctr-torch", "DeepCTR-Torch DeepFM, L2 tuned"),
    "bidwise": Method(ours, "bidwise", "`bidwise train`"),
}


def measured(method: str, world: str, seed: int) -> dict[str, str]:
    """One row of the results: the setting with the least validation log loss, on test rows."""
    rows = Rows.of(world, seed)
    kept: list[Fitted] = []
    spent: list[float] = []

    def step() -> None:
        wall, start = time.perf_counter(), time.process_time()
        kept.append(min(METHODS[method].settings(rows), key=lambda fitted: rows.log_loss(fitted.valid)))
        spent.extend([time.process_time() - start, time.perf_counter() - wall])

    memory = peak_mb(step)
    clicks, truth, bids = (rows.test[name].to_numpy() for name in ("click", "truth", "bid"))
    welfare = [bidwise.pooled_welfare(ctr, truth, bids, rows.size) for ctr in (kept[0].test, truth)]
    return {
        "world": world,
        "seed": f"{seed}",
        "method": method,
        "welfare": f"{100 * welfare[0] / welfare[1]:.2f}",
        "auc": f"{auc(kept[0].test, clicks):.4f}",
        "log_loss": f"{log_losses(kept[0].test, clicks).mean():.5f}",
        "valid_log_loss": f"{rows.log_loss(kept[0].valid):.5f}",
        "seconds": f"{spent[0]:.1f}",
        "wall_seconds": f"{spent[1]:.1f}",
        "peak_mb": f"{memory:.0f}",
        "setting": kept[0].setting,
        "rows": f"{len(rows.table)}",
        "size": f"{rows.size}",
        "package": f"{METHODS[method].package} {version(METHODS[method].package)}",
        **{name: f"{value}" for name, value in asdict(Machine()).items()},
    }


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        warnings.simplefilter("ignore")
        print(json.dumps(measured(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        return
    asked = [text.split(",") for text in sys.argv[1:]]
    methods, seeds, worlds = (asked + [[*METHODS], [*map(str, SEEDS)], [*WORLDS]][len(asked) :])[:3]
    for seed, world, method in ((s, w, m) for s in seeds for w in worlds for m in methods):
        if any((row["method"], row["world"], row["seed"]) == (method, world, seed) for row in known()):
            continue
        command = [sys.executable, "-m", "benchmarks.rivals", "one", method, world, seed]
        said = subprocess.run(command, env=os.environ | ONE_CORE, stdout=subprocess.PIPE, text=True, check=True).stdout
        row = json.loads(next(line for line in said.splitlines() if line.startswith("{")))  # DeepCTR-Torch prints, too
        print("  ".join(f"{key} {row[key]}" for key in [*row][: [*row].index("rows")]), flush=True)
        write("rivals", [*known(), row])


def known() -> list[dict[str, str]]:
    """The rows measured before."""
    return read("rivals") if (RESULTS / "rivals.csv").exists() else []


if __name__ == "__main__":
    main()
