"""CTRClassifier and welfare_scorer, with scikit-learn itself."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import bidwise
from bidwise import CTRClassifier, welfare_scorer

SMALL = {"model": "logistic_regression", "epochs": 3, "random_state": 0}
FAILS = {
    "check_sample_weight_equivalence_on_dense_data": "batches of shuffled rows: a repeated row is in several of them, "
    "one of weight 2 in one"
}


@parametrize_with_checks(
    [CTRClassifier("logistic_regression", epochs=10), CTRClassifier(epochs=10, hidden=(8,), embedding=4)],
    expected_failed_checks=lambda estimator: FAILS,
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


class Log:
    """Ads of ten an auction with strings, numbers and a date, some of them missing, in which brand and hour matter."""

    def __init__(self, auctions=300, seed=0):
        random = np.random.default_rng(seed)
        n = 10 * auctions
        self.auction = np.repeat([f"request {k}" for k in range(auctions)], 10)
        time = pd.Timestamp("2026-01-01") + pd.to_timedelta(random.integers(0, 30 * 24, auctions), unit="h")
        brand = random.integers(0, 20, n)
        self.X = pd.DataFrame(
            {
                "brand": [f"brand {k}" for k in brand],
                "device": np.repeat(random.choice(["phone", "desktop", None], auctions), 10),
                "price": np.where(random.random(n) < 0.1, np.nan, random.lognormal(size=n)),
                "hour": np.repeat(time.hour, 10),
                "time": np.repeat(time, 10),
            }
        )
        logits = np.linspace(-3, 1, 20)[brand] + (self.X["hour"] > 12)
        self.ctr = 1 / (1 + np.exp(-logits.to_numpy()))
        self.y = (random.random(n) < self.ctr).astype(int)
        self.bid = random.lognormal(size=n)

    @property
    def polars(self):
        lists = {name: [None if x != x else x for x in self.X[name].tolist()] for name in ("brand", "device", "price")}
        return pl.DataFrame(lists | {"hour": self.X["hour"].to_numpy(), "time": self.X["time"].to_numpy()})


@pytest.fixture(scope="module")
def log():
    return Log()


@pytest.mark.parametrize("name", ["logistic_regression", "deepfm", "dcnv2"])
def test_a_row_alone_has_the_ctr_that_it_has_among_others(log, name):
    model = CTRClassifier(name, recipe="log_loss", epochs=1, random_state=0).fit(log.X, log.y)
    ctr = model.predict_proba(log.X[:50])
    assert all(model.predict_proba(log.X[at : at + 1])[0].tolist() == ctr[at].tolist() for at in range(50))


def test_it_learns_from_strings_and_numbers(log):
    new = Log(seed=1)
    model = CTRClassifier(random_state=0).fit(log.X, log.y)
    assert model.feature_names_in_.tolist() == [*model.columns_] == ["brand", "device", "price", "hour", "time"]
    assert model.columns_["time"].startswith("dropped: a date or time")
    assert model.columns_["price"] == "numeric: numbers with decimals"
    ctr = model.predict_proba(new.X)
    np.testing.assert_allclose(ctr.sum(1), 1)
    np.testing.assert_allclose(np.log(ctr[:, 1] / ctr[:, 0]), model.decision_function(new.X), atol=1e-6)
    best = roc_auc_score(new.y, new.ctr)
    assert roc_auc_score(new.y, ctr[:, 1]) > best - 0.03
    assert abs(ctr[:, 1].mean() - new.ctr.mean()) < 0.03
    assert np.mean((ctr[:, 1] - new.ctr) ** 2) < 0.3 * new.ctr.var()


def test_pandas_polars_and_shuffled_columns_of_bids_agree(log):
    first = CTRClassifier(**SMALL).fit(log.X, log.y, bid=pd.Series(log.bid), auction=pd.Series(log.auction))
    again = CTRClassifier(**SMALL).fit(log.polars, pl.Series(log.y), bid=log.bid, auction=pl.Series(log.auction))
    np.testing.assert_array_equal(first.predict_proba(log.X), again.predict_proba(log.polars))
    np.testing.assert_array_equal(first.predict_proba(log.X), first.predict_proba(log.polars))


def test_the_second_class_is_the_click_whatever_it_is_called(log):
    numbers = CTRClassifier(**SMALL).fit(log.X, log.y)
    words = CTRClassifier(**SMALL).fit(log.X, np.where(log.y == 1, "yes", "no"))
    assert words.classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(numbers.predict_proba(log.X), words.predict_proba(log.X))
    assert (words.predict(log.X) == "yes").tolist() == (numbers.predict_proba(log.X)[:, 1] > 0.5).tolist()


def test_rows_of_weight_0_are_left_out_and_equal_weights_change_nothing(log):
    kept = np.arange(len(log.y)) % 3 > 0
    weighed = CTRClassifier(**SMALL).fit(log.X, log.y, sample_weight=4.0 * kept)
    removed = CTRClassifier(**SMALL, validation_fraction=0.0).fit(log.X[kept], log.y[kept])
    without = CTRClassifier(**SMALL, validation_fraction=0.0).fit(log.X, log.y, sample_weight=4.0 * kept)
    np.testing.assert_array_equal(removed.predict_proba(log.X), without.predict_proba(log.X))
    assert np.isfinite(weighed.predict_proba(log.X)).all()
    heavy = CTRClassifier(**SMALL).fit(log.X, log.y, sample_weight=1 + 9.0 * log.y)
    assert heavy.predict_proba(log.X)[:, 1].mean() > weighed.predict_proba(log.X)[:, 1].mean() + 0.2


@pytest.mark.parametrize("recipe", ["bid_weighted", "log_plus", "log_plus_teacher", "ensemble", "distilled"])
def test_every_kind_of_recipe_learns_and_can_be_pickled(log, recipe):
    members = {"members": 2} if recipe in ("ensemble", "distilled") else {}
    rows = np.random.default_rng(0).permutation(len(log.y))  # auctions are brought together
    model = CTRClassifier(**SMALL, recipe=recipe, **members)
    model.fit(log.X.iloc[rows], log.y[rows], bid=log.bid[rows], auction=log.auction[rows])
    assert roc_auc_score(log.y, model.predict_proba(log.X)[:, 1]) > 0.7
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict_proba(log.X), again.predict_proba(log.X))
    assert model.recipe_.members == len(model.model_.models) == (2 if recipe == "ensemble" else 1)
    with pytest.raises(NotFittedError):
        clone(model).predict_proba(log.X)


def test_bids_and_auctions_change_what_losses_over_pairs_learn(log):
    plain = CTRClassifier(**SMALL, recipe="log_plus")
    told = [
        plain.fit(log.X, log.y, **more).predict_proba(log.X)
        for more in ({"bid": np.ones(len(log.y))}, {"bid": log.bid}, {"bid": log.bid, "auction": log.auction})
    ]
    assert len({each.tobytes() for each in told}) == 3


def test_auto_searches_model_and_settings(log):
    model = CTRClassifier(recipe="auto", epochs=1, random_state=0).fit(log.X, log.y)
    assert model.recipe_.model in bidwise.models.MODELS
    assert roc_auc_score(log.y, model.predict_proba(log.X)[:, 1]) > 0.6
    only = CTRClassifier("logistic_regression", recipe="auto", epochs=1, random_state=0).fit(log.X, log.y)
    assert only.recipe_.model == "logistic_regression"


def test_few_clicks_are_not_held_out():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(40, 2)), np.arange(40) % 2
    model = CTRClassifier(**SMALL).fit(X, y)
    assert (float(model.model_.slope), float(model.model_.intercept)) == (1, 0)
    assert np.isfinite(CTRClassifier(epochs=1).fit(X, y).predict_proba(X)).all()  # the first setting of the search


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"recipe": "log_pluss"}, {}, "recipe must be one of .* did you mean 'log_plus'"),
        ({"model": "deepfn"}, {}, "model must be one of .* did you mean 'deepfm'"),
        ({"l2": -1.0}, {}, "l2 must be finite and no less than 0"),
        ({"lam": 1.0}, {}, "lam is of losses over pairs"),
        ({"validation_fraction": 1.0}, {}, r"validation_fraction must be in \[0, 1\), found 1.0"),
        ({"numeric": ["brand"]}, {}, "column 'brand' must contain numbers to be numeric"),
        ({"recipe": "log_plus"}, {}, "bid must be given for 'log_plus'"),
        ({}, {"bid": [1.0]}, r"bid must be one number for each of the 3,000 rows, found shape \(1,\)"),
        ({}, {"bid": np.zeros(3000)}, r"bid must be finite and above 0, found 0 at \[0\]"),
        ({}, {"auction": ["a"]}, "auction must have an id for each of the 3,000 rows, found 1"),
        ({}, {"auction": [None] * 3000}, "every ad needs an auction"),
    ],
)
def test_errors_name_the_argument(log, options, given, message):
    with pytest.raises(ValueError, match=message):
        CTRClassifier(**options).fit(log.X, log.y, **given)


@pytest.mark.usefixtures("routing")
def test_the_scorer_is_the_mean_welfare_of_held_out_auctions(log):
    model = CTRClassifier(**SMALL).fit(log.X, log.y)
    ctr = model.predict_proba(log.X)[:, 1]
    expected = float(bidwise.welfare(ctr, log.y, log.bid, bidwise.offsets(log.auction)).mean())
    assert welfare_scorer()(model, log.X, log.y, bid=log.bid, auction=log.auction) == pytest.approx(expected)
    order = np.random.default_rng(0).permutation(len(ctr))
    mixed = {"bid": log.bid[order], "auction": log.auction[order]}
    assert welfare_scorer()(model, log.X.iloc[order], log.y[order], **mixed) == pytest.approx(expected)
    pooled = welfare_scorer(auction_size=5, slots=(1, 0.5))(model, log.X, log.y, bid=log.bid)
    assert pooled == pytest.approx(bidwise.pooled_welfare(ctr, log.y, log.bid, 5, slots=(1, 0.5)))
    words = np.where(log.y == 1, "yes", "no")
    named = welfare_scorer(pos_label="yes")(
        clone(model).fit(log.X, words), log.X, words, bid=log.bid, auction=log.auction
    )
    assert named == pytest.approx(expected)


@pytest.mark.usefixtures("routing")
def test_a_grid_over_a_pipeline_routes_bids_and_auctions_to_the_model(log):
    seen = []

    class Watched(CTRClassifier):
        def fit(self, X, y, bid=None, auction=None, sample_weight=None):
            seen.append((len(X), bid is not None, auction is not None, sample_weight is not None))
            return super().fit(X, y, bid=bid, auction=auction, sample_weight=sample_weight)

    pipeline = make_pipeline(FunctionTransformer(lambda frame: frame.drop(columns="price")), Watched(**SMALL))
    grid = GridSearchCV(pipeline, {"watched__l2": [1e-4, 10.0]}, scoring=welfare_scorer(), cv=GroupKFold(2))
    grid.fit(log.X, log.y, bid=log.bid, auction=log.auction, groups=log.auction)
    assert seen == [*[(1500, True, True, False)] * 4, (3000, True, True, False)]
    assert "price" not in grid.best_estimator_[-1].columns_
    assert set(grid.best_params_) == {"watched__l2"}


@pytest.mark.usefixtures("routing")
def test_the_scorer_says_what_it_lacks(log):
    model = LogisticRegression().fit(log.X[["price"]].fillna(0), log.y)
    with pytest.raises(bidwise.InputError, match="welfare needs the bid of every row"):
        welfare_scorer()(model, log.X[["price"]].fillna(0), log.y)
    with pytest.raises(bidwise.InputError, match=r"found neither auction .* nor auction_size"):
        welfare_scorer()(model, log.X[["price"]].fillna(0), log.y, bid=log.bid)


def test_scikit_learn_is_imported_late_and_its_absence_explained():
    code = "import sys, bidwise; bidwise.offsets([1]); bidwise.fit; print('sklearn' in sys.modules)\n"
    code += "sys.modules['sklearn'] = None\ntry: bidwise.CTRClassifier\nexcept ImportError as error: print(error)\n"
    code += "from bidwise import *\nprint('CTRClassifier' in dir(bidwise))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [shown[0], shown[2]] == ["False", "True"]
    assert shown[1].endswith("need scikit-learn 1.6 or later; pip install scikit-learn")


def test_the_page_runs():
    page = Path(__file__).parent.parent / "docs" / "guides" / "sklearn.md"
    names = {}
    with sklearn.config_context():
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
            exec(block, names)  # the documents are ours
    best = roc_auc_score(names["click"], names["truth"])
    assert roc_auc_score(names["click"], names["ctr"]) > best - 0.05
    learned = names["table"].weight.detach().squeeze(-1).numpy()[names["brand"].numpy()]
    assert roc_auc_score(names["click"], learned) > 0.6
