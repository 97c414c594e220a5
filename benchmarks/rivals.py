"""`bidwise train` and what others would use: each on the same rows of the same tables, tuned, then fitted to all rows.

The newest fifth of a table is for testing only. Of the other rows the oldest 80 % train and the rest choose the setting
by log loss; with it the method is fitted once more to all of them. It is measured on test rows: pooled welfare by the
true CTR in % of what the true CTR itself reaches, AUC and log loss. Seconds are CPU seconds, from the frame to the CTR
of test rows: encoding, all fits, prediction. Rows measured before are kept: a run that was cut off resumes.

    pip install -c constraints.txt -e '.[rivals]'
    python -m benchmarks.rivals [METHODS] [KINDS] [SEEDS]      # such as: logistic,lightgbm b,c15 0-9
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import bidwise
from benchmarks.harness import RESULTS, Machine, peak_mb, read, write
from benchmarks.made_tables import KINDS, make_table
from bidwise.evaluation.auc import auc
from bidwise.evaluation.metrics import log_losses

# `bidwise train` was developed with tables of these kinds in view, its settings chosen on other seeds
CHOSEN_ON = ("b", "c1", "c15", "arrivals", "numbers", "bags")
NEW = ("boxes", "tastes", "idle")  # drawn when all settings had been chosen, and measured once
LONG = ("c15_long",)
SEEDS = "10-19"
ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
ROLES = ("click", "bid", "truth", "time")

CTR = NDArray[np.float64]
Setting = Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """A table, cut into the rows that train, choose and test; with times, in their order."""

    table: pl.DataFrame
    train: pl.DataFrame
    valid: pl.DataFrame
    test: pl.DataFrame
    size: int  # ads of an auction
    seed: int

    @classmethod
    def of(cls, kind: str, seed: int) -> Rows:
        table = make_table(kind, seed)
        first, second = len(table) * 64 // 100, len(table) * 80 // 100
        return cls(table, table[:first], table[first:second], table[second:], KINDS[kind].size, seed)

    @property
    def known(self) -> pl.DataFrame:
        """Training and validation rows."""
        return pl.concat([self.train, self.valid])

    @property
    def clicks(self) -> NDArray[np.int8]:
        return self.train["click"].to_numpy()


def categories(frame: pl.DataFrame) -> pl.DataFrame:
    """The categories as whole numbers: 12 for s12."""
    return frame.select(pl.col(pl.String).str.slice(1).cast(pl.Int32))


def numbers(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.drop(ROLES, strict=False).select(pl.col(pl.Float64))


def bags(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col(pl.List(pl.String)))


def logistic(train: pl.DataFrame, other: pl.DataFrame, seed: int, c: float) -> tuple[CTR, Setting]:
    """Logistic regression, one-hot: values in 10 rows or more, 32 quantile bins of numbers, the entries of bags."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import OneHotEncoder

    bounds = {x.name: np.quantile(x.to_numpy(), np.linspace(0, 1, 33)[1:-1]) for x in numbers(train)}
    columns = OneHotEncoder(min_frequency=10, handle_unknown="infrequent_if_exist")
    entries = {x.name: CountVectorizer(analyzer=list, min_df=10, binary=True) for x in bags(train)}

    def encoded(frame: pl.DataFrame, step: str) -> Any:
        bins = [np.searchsorted(bounds[x.name], x.to_numpy())[:, None] for x in numbers(frame)]
        parts = [getattr(columns, step)(np.hstack([categories(frame).to_numpy().reshape(len(frame), -1), *bins]))]
        return hstack([*parts, *(getattr(entries[x.name], step)(x.to_list()) for x in bags(frame))]).tocsr()

    model = LogisticRegression(C=c, max_iter=300).fit(encoded(train, "fit_transform"), train["click"].to_numpy())
    return model.predict_proba(encoded(other, "transform"))[:, 1], {"c": c}


def target_encoded(
    train: pl.DataFrame, others: list[pl.DataFrame], smooth: float, seed: int
) -> list[NDArray[np.float64]]:
    """Training rows and others: the smoothed click rate of every value, out of fold in training; numbers.

    Of a bag, the mean of the rates of its entries and their number.
    """
    from sklearn.model_selection import StratifiedKFold
    from sklearn.preprocessing import TargetEncoder

    frames, clicks = [train, *others], train["click"].to_numpy()
    features = [[numbers(frame).to_numpy()] for frame in frames]

    def add(columns: list[NDArray[Any]], rows: list[NDArray[np.int64]] | None = None) -> None:
        folds = StratifiedKFold(5, shuffle=True, random_state=seed)
        encoder = TargetEncoder(smooth=smooth, target_type="binary", cv=folds)
        rates = [encoder.fit_transform(columns[0], clicks if rows is None else clicks[rows[0]])]
        rates += [encoder.transform(column) for column in columns[1:]]
        for k, rate in enumerate(rates):
            if rows is not None:
                entries = np.bincount(rows[k], minlength=len(frames[k]))
                mean = np.bincount(rows[k], rate[:, 0], len(frames[k])) / np.maximum(entries, 1)
                rate = np.column_stack([np.where(entries, mean, clicks.mean()), entries])
            features[k].insert(0, rate)

    for name in bags(train).columns:
        long = [f.select(name).with_row_index().explode(name).drop_nulls() for f in frames]
        add(
            [x[name].str.slice(1).cast(pl.Int32).to_numpy()[:, None] for x in long],
            [x["index"].to_numpy() for x in long],
        )
    if categories(train).width:
        add([categories(frame).to_numpy() for frame in frames])
    return [np.hstack(parts) for parts in features]


def lightgbm(
    train: pl.DataFrame, other: pl.DataFrame, seed: int, smooth: int, leaves: int, trees: int | None = None
) -> tuple[CTR, Setting]:
    """LightGBM over target encodings; without ``trees`` it stops early on the other rows."""
    import lightgbm

    features, others = target_encoded(train, [other], smooth, seed)
    data = lightgbm.Dataset(features, train["click"].to_numpy())
    held_out = lightgbm.Dataset(others, other["click"].to_numpy(), reference=data)
    options = {"objective": "binary", "learning_rate": 0.05, "min_data_in_leaf": 100, "num_leaves": leaves}
    options |= {"num_threads": 1, "verbose": -1, "seed": seed}
    stop = {} if trees else {"valid_sets": [held_out], "callbacks": [lightgbm.early_stopping(30, verbose=False)]}
    model = lightgbm.train(options, data, trees or 2000, **stop)
    return model.predict(others), {"smooth": smooth, "leaves": leaves, "trees": trees or model.best_iteration}


def xgboost(
    train: pl.DataFrame, other: pl.DataFrame, seed: int, smooth: int, depth: int, trees: int | None = None
) -> tuple[CTR, Setting]:
    """XGBoost over target encodings; without ``trees`` it stops early on the other rows."""
    from xgboost import XGBClassifier

    features, others = target_encoded(train, [other], smooth, seed)
    options = {"learning_rate": 0.05, "max_depth": depth, "min_child_weight": 5, "n_jobs": 1, "random_state": seed}
    model = XGBClassifier(**options, n_estimators=trees or 2000, early_stopping_rounds=None if trees else 30)
    model.fit(features, train["click"].to_numpy(), eval_set=[(others, other["click"].to_numpy())], verbose=False)
    setting = {"smooth": smooth, "depth": depth, "trees": trees or model.best_iteration + 1}
    return model.predict_proba(others)[:, 1], setting


def catboost(train: pl.DataFrame, other: pl.DataFrame, seed: int, trees: int | None = None) -> tuple[CTR, Setting]:
    """CatBoost with its defaults, bags as text; without ``trees`` it stops early on the other rows."""
    import pandas
    from catboost import CatBoostClassifier, Pool

    texts = bags(train).columns
    names = {"cat_features": categories(train).columns, "text_features": texts}

    def pool(frame: pl.DataFrame) -> Pool:
        features = frame.drop(ROLES, strict=False).with_columns(pl.col(texts).list.join(" "))
        return Pool(pandas.DataFrame(features.to_dict(as_series=False)), frame["click"].to_numpy(), **names)

    options = {"random_seed": seed, "thread_count": 1, "verbose": 0, "allow_writing_files": False}
    model = CatBoostClassifier(iterations=trees or 1000, early_stopping_rounds=None if trees else 50, **options)
    model.fit(pool(train), eval_set=None if trees else pool(other))
    return model.predict_proba(pool(other))[:, 1], {"trees": trees or model.tree_count_}


def deepfm(
    train: pl.DataFrame, other: pl.DataFrame, seed: int, l2: float, epochs: int | None = None
) -> tuple[CTR, Setting]:
    """DeepCTR-Torch's DeepFM; L2 is added to the sum over a batch of 256 ads. Without ``epochs`` it stops early."""
    import torch
    from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat, get_feature_names
    from deepctr_torch.models import DeepFM

    sizes = {
        x.name: int(pl.concat([x, y]).max()) + 2 for x, y in zip(categories(train), categories(other), strict=True)
    }
    features = [SparseFeat(name, size, embedding_dim=4) for name, size in sizes.items()]
    features += [DenseFeat(x.name, 1) for x in numbers(train)]
    logs = {x.name: np.log(x.to_numpy()) for x in numbers(train)}
    longest = 16
    for x in bags(train):
        size = int(pl.concat([x, other[x.name]]).explode().str.slice(1).cast(pl.Int32).max()) + 2
        features.append(VarLenSparseFeat(SparseFeat(x.name, size, embedding_dim=4), maxlen=longest, combiner="mean"))

    def inputs(frame: pl.DataFrame) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {x.name: x.to_numpy() for x in categories(frame)}
        for x in numbers(frame):
            found[x.name] = ((np.log(x.to_numpy()) - logs[x.name].mean()) / logs[x.name].std()).astype(np.float32)
        for x in bags(frame):
            ids = [[int(entry[1:]) + 1 for entry in entries[:longest]] for entries in x.to_list()]  # 0 fills the rest
            found[x.name] = np.array([row + [0] * (longest - len(row)) for row in ids])
        return {name: found[name] for name in get_feature_names(features)}

    model = DeepFM(features, features, l2_reg_linear=l2, l2_reg_embedding=l2, seed=seed)
    model.compile("adam", "binary_crossentropy")
    rows, others, kept, best = inputs(train), inputs(other), np.zeros(len(other)), (np.inf, 0)
    for epoch in range(1, (epochs or 10) + 1):
        torch.manual_seed(1000 * seed + epoch)  # the order of rows
        model.fit(rows, train["click"].to_numpy(), batch_size=256, epochs=1, verbose=0)
        ctr = model.predict(others, 4096)[:, 0].astype(float)
        loss = float(log_losses(ctr, other["click"].to_numpy()).mean()) if epochs is None else -epoch
        if loss < best[0]:
            kept, best = ctr, (loss, epoch)
        elif epoch - best[1] == 2:
            break
    return kept, {"l2": l2, "epochs": best[1]}


def ours(train: pl.DataFrame, other: pl.DataFrame, seed: int, size: int) -> tuple[CTR, Setting]:
    """`bidwise train`, which splits its rows itself."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"click": "click", "bid": "bid", "auction_size": size, "seed": seed}
        options |= {"time": "time"} if "time" in train.columns else {}
        result = bidwise.table.train(train.drop("truth"), out=f"{folder}/run", **options)
        ctr = bidwise.table.predict(f"{folder}/run", other.drop("click", "bid", "truth"))["ctr"]
    return ctr.to_numpy(), {"chosen": result.chosen}


@dataclass(frozen=True)
class Method:
    """A way to predict CTR, the settings that it tries, and the package that it is of.

    ``fit(train, other, seed, **setting)`` returns the CTR of the other rows and the setting that fits it again.
    """

    title: str
    package: str
    fit: Callable[..., tuple[CTR, Setting]]
    settings: tuple[Setting, ...] = ({},)


ENCODINGS = (20, 100)
METHODS = {
    "logistic": Method(
        "logistic regression, one-hot", "scikit-learn", logistic, tuple({"c": c} for c in (0.02, 0.05, 0.1, 0.2, 0.4))
    ),
    "lightgbm": Method(
        "LightGBM, target encoding",
        "lightgbm",
        lightgbm,
        tuple({"smooth": s, "leaves": n} for s in ENCODINGS for n in (4, 8, 16, 32)),
    ),
    "xgboost": Method(
        "XGBoost, target encoding",
        "xgboost-cpu",
        xgboost,
        tuple({"smooth": s, "depth": n} for s in ENCODINGS for n in (2, 3, 4, 6)),
    ),
    "catboost": Method("CatBoost, default (1,000 trees)", "catboost", catboost, ({"trees": 1000},)),
    "catboost_stopped": Method("CatBoost, trees chosen", "catboost", catboost),
    "deepfm": Method(
        "DeepCTR-Torch DeepFM, L2 and epochs tuned",
        "deepctr-torch",
        deepfm,
        tuple({"l2": x} for x in (1e-5, 0.01, 0.03, 0.1)),
    ),
    "bidwise": Method("`bidwise train`", "bidwise", ours),
}


def fitted(method: Method, rows: Rows) -> tuple[CTR, Setting]:
    """The CTR of test rows by the setting with the least validation log loss, and that setting."""
    if method.fit is ours:
        return ours(rows.known, rows.test, rows.seed, rows.size)
    best = method.settings[0]
    if len(method.settings) > 1 or not best:
        tries = [method.fit(rows.train, rows.valid, rows.seed, **setting) for setting in method.settings]
        clicks = rows.valid["click"].to_numpy()
        best = min(tries, key=lambda found: float(log_losses(found[0], clicks).mean()))[1]
    return method.fit(rows.known, rows.test, rows.seed, **best)


def measured(name: str, kind: str, seed: int) -> dict[str, str]:
    """One row of the results."""
    rows, method = Rows.of(kind, seed), METHODS[name]
    spent: list[Any] = []

    def step() -> None:
        start = time.process_time()
        spent.extend([*fitted(method, rows), time.process_time() - start])

    memory = peak_mb(step)
    ctr, setting, seconds = spent
    clicks, truth, bids = (rows.test[column].to_numpy() for column in ("click", "truth", "bid"))
    welfare = [bidwise.pooled_welfare(x, truth, bids, rows.size) for x in (ctr.astype(float), truth)]
    return {
        "kind": kind,
        "seed": f"{seed}",
        "method": name,
        "welfare": f"{100 * welfare[0] / welfare[1]:.2f}",
        "auc": f"{auc(ctr, clicks):.4f}",
        "log_loss": f"{log_losses(ctr, clicks).mean():.5f}",
        "seconds": f"{seconds:.1f}",
        "peak_mb": f"{memory:.0f}",
        "setting": ", ".join(f"{key}={value}" for key, value in setting.items()),
        "rows": f"{len(rows.known)}",
        "size": f"{rows.size}",
        "package": f"{method.package} {version(method.package)}",
        **{name: f"{value}" for name, value in asdict(Machine()).items()},
    }


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        warnings.simplefilter("ignore")
        print(json.dumps(measured(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        return
    asked = [*sys.argv[1:], *(",".join(METHODS), ",".join(CHOSEN_ON + NEW), SEEDS)[len(sys.argv) - 1 :]]
    methods, kinds = (text.split(",") for text in asked[:2])
    first, last = (asked[2].split("-") * 2)[:2]
    for seed, kind, method in ((s, k, m) for s in range(int(first), int(last) + 1) for k in kinds for m in methods):
        if any((row["method"], row["kind"], row["seed"]) == (method, kind, f"{seed}") for row in known()):
            continue
        command = [sys.executable, "-m", "benchmarks.rivals", "one", method, kind, f"{seed}"]
        said = subprocess.run(command, env=os.environ | ONE_CORE, stdout=subprocess.PIPE, text=True, check=True).stdout
        row = json.loads(next(line for line in said.splitlines() if line.startswith("{")))  # DeepCTR-Torch prints, too
        print("  ".join(f"{key} {row[key]}" for key in [*row][: [*row].index("rows")]), flush=True)
        write("rivals", [*known(), row])


def known() -> list[dict[str, str]]:
    """The rows measured before."""
    return read("rivals") if (RESULTS / "rivals.csv").exists() else []


def compared(rows: list[dict[str, str]], kinds: tuple[str, ...] = CHOSEN_ON + NEW) -> list[dict[str, str]]:
    """The rows of tables that `bidwise train` was measured on, by kind."""
    tables = {(row["kind"], row["seed"]) for row in rows if row["method"] == "bidwise"}
    return [row for kind in kinds for row in rows if row["kind"] == kind and (kind, row["seed"]) in tables]


if __name__ == "__main__":
    main()
