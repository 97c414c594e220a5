"""scikit-learn: `CTRClassifier`, a CTR model as an estimator, and `welfare_scorer`, which selects models by welfare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray

from bidwise.auctions import welfare
from bidwise.checks import InputError, check_bids, check_name
from bidwise.data.ad_table import auction_ids
from bidwise.data.ads import Ads
from bidwise.data.columns import Encoder, least_count
from bidwise.data.groups import offsets
from bidwise.data.kinds import Facts
from bidwise.data.table_files import Block, open_table
from bidwise.evaluation.pooled import pooled_welfare
from bidwise.losses.definition import ctr_of
from bidwise.losses.named import LOSSES
from bidwise.study.search import budget, searched
from bidwise.study.served import Served, trained
from bidwise.table.config import Config, resolved
from bidwise.table.crosses import with_crosses
from bidwise.table.model import logits_in_blocks
from bidwise.table.plan import candidates, combines, recipes
from bidwise.table.prepare import CAP
from bidwise.values import Floats

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.metrics import make_scorer
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "bidwise.CTRClassifier and bidwise.welfare_scorer need scikit-learn 1.6 or later; pip install scikit-learn"
    ) from error

_RECIPES = ("auto", "ensemble", *LOSSES)
WITHOUT_BIDS = ("log_loss", "distilled")  # losses
OF_SEVERAL = ("auto", "ensemble", "distilled")  # several models; other names are losses of one
OF_MODEL = ("embedding", "hidden", "dropout", "cross")
OF_TRAINING = ("lam", "members", "epochs", "batch_size", "learning_rate", "l2")
_LEAST = 10  # clicks, and other ads, that validation rows need


class CTRClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A click-through-rate model on rows of strings and numbers, as scikit-learn expects a classifier.

    Columns become features as in ``bidwise train``, by the same encoder, which drops dates. Settings that are not
    given, such as the L2 penalty, follow from the number of rows. A tenth of the rows chooses the best epoch and
    calibrates the CTR.

    Args:
        model: ``deepfm``, ``dcnv2`` or ``logistic_regression``; ``None``: DeepFM, and with
            ``recipe="auto"`` whichever is best.
        recipe: ``auto``, the search of ``bidwise train``: it tries several settings of the log loss and keeps the best
            on validation rows, or takes the first if they have too few clicks. The name of a loss in
            :data:`bidwise.LOSSES` trains one model with it, ``ensemble`` serves the mean of several models, and
            ``distilled`` one that learned from them.
        embedding, hidden, dropout, cross: options of the model.
        lam: of a loss over pairs; ``members``: of an ensemble.
        epochs, batch_size, learning_rate, l2: of the training.
        numeric, categorical: columns with a given kind, ``x0``, ``x1`` and so on in an array. Whole numbers, such as an
            OrdinalEncoder's, are numbers in order, up to 1,000 different ones with a bin each: name codes here.
        bins: most bins of other columns of numbers.
        validation_fraction: of the rows, or of the auctions; if it has too few clicks the last weights are kept.
        device: ``cpu`` or ``cuda``.
        random_state: a number makes training repeatable.

    Attributes:
        classes_: the two labels; the second is the click.
        columns_: the type of each column, and the reason.
        recipe_: the settings of the model that is served.

    >>> random = np.random.default_rng(0)
    >>> rows = pl.DataFrame({"site": random.choice(["news", "shop"], 400), "price": random.uniform(1, 9, 400)})
    >>> clicks = (rows["site"] == "shop").to_numpy() & (random.random(400) < 0.8)
    >>> ctr = CTRClassifier("logistic_regression", epochs=5, random_state=0).fit(rows, clicks).predict_proba(rows)[:, 1]
    >>> bool(ctr[rows["site"] == "shop"].min() > ctr[rows["site"] == "news"].max())
    True
    """

    __metadata_request__fit = {"bid": True, "auction": True}  # noqa: RUF012 (scikit-learn reads it)

    def __init__(
        self,
        model: str | None = None,
        recipe: str = "auto",
        *,
        embedding: int | None = None,
        hidden: Sequence[int] | None = None,
        dropout: float | None = None,
        cross: int | None = None,
        lam: float | None = None,
        members: int | None = None,
        epochs: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        l2: float | None = None,
        numeric: Sequence[str] = (),
        categorical: Sequence[str] = (),
        bins: int = 32,
        validation_fraction: float = 0.1,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.embedding = embedding
        self.hidden = hidden
        self.dropout = dropout
        self.cross = cross
        self.lam = lam
        self.members = members
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.l2 = l2
        self.numeric = numeric
        self.categorical = categorical
        self.bins = bins
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, bid: Any = None, auction: Any = None, sample_weight: Any = None) -> Self:
        """Train on logged ads.

        Args:
            X: one row per ad: a pandas or polars frame, or an array.
            y: whether it was clicked, two labels.
            bid: its cost-per-click bid, which losses over pairs weigh by; all alike by default.
            auction: the id of its auction, in any order; by default ads are not in auctions, and any may compete.
            sample_weight: how much it counts, 0 or more.
        """
        config = self._config()
        if bid is None and self.recipe in LOSSES and self.recipe not in WITHOUT_BIDS:
            raise InputError(f"must be given for {self.recipe!r}, a loss of welfare, found None", argument="bid")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        frame = self._frame(X, y, reset=True)
        clicks, bids, weights = self._clicks(y), _bids_of(bid, len(frame)), None
        auctions = _auctions_of(auction, len(frame))
        rows = np.arange(len(frame))
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
            rows = rows[weights > 0]
            weights = None if (weights[rows] == weights[rows][0]).all() else weights / weights[rows].mean()
        if len({*clicks[rows]}) < 2:
            raise InputError(f"y must have two classes, found one class in {len(rows)} rows (n_samples = {len(rows)})")

        def ads(part: NDArray[Any]) -> Ads:
            features = torch.from_numpy(self.encoder_.encode(frame[part]).ids)
            bounds = None if auctions is None else offsets(auctions[part])
            more = {} if weights is None else {"weights": weights[part]}
            return Ads.of(features, clicks[part], bids[part], offsets=bounds, **more)

        train, valid = _split(rows, clicks, auctions, self.validation_fraction, seed)
        facts = Facts.of(open_table(frame, name="X"))
        columns = facts.columns([], numeric=self.numeric, categorical=self.categorical)
        self.columns_ = {column.name: f"{column.use}: {column.reason}" for column in columns}
        least = least_count(len(train))
        self.encoder_ = Encoder.fit(frame[train], columns, min_count=least, bins=self.bins)
        plain = len(self.encoder_.names)
        if valid is not None and combines(config):
            self.encoder_ = with_crosses(self.encoder_, ads(train), ads(valid), least)
        cardinalities = [field.cardinality for field in self.encoder_.fields]
        known = {"cardinalities": cardinalities, "plain": plain, "seed": seed, "device": self.device}
        served = _served(config, ads(train), None if valid is None else ads(valid), metric="log_loss", **known)
        self.recipe_, self.model_ = served.recipe, served.model.cpu().double().eval()
        return self

    def decision_function(self, X: Any) -> Floats:
        """Logits of the click, calibrated."""
        check_is_fitted(self)
        features = torch.from_numpy(self.encoder_.encode(self._frame(X, reset=False)).ids)
        return logits_in_blocks(self.model_, features).numpy()

    def predict_proba(self, X: Any) -> Floats:
        """One minus CTR, and CTR, ``(rows, 2)``."""
        logits = self.decision_function(X)
        return ctr_of(torch.from_numpy(np.stack([-logits, logits], axis=1))).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The likelier label, which for clicks is nearly always the first: see :meth:`predict_proba`."""
        likelier = (self.decision_function(X) > 0).astype(int)
        return np.asarray(self.classes_[likelier])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = tags.input_tags.string = True
        return tags

    def _config(self) -> Config:
        """The same settings as in ``bidwise train``, which checks them."""
        check_name("recipe", self.recipe, _RECIPES)
        named: dict[str, Any] = {"train.recipe" if self.recipe in OF_SEVERAL else "train.loss": self.recipe}
        named |= {"model.name": self.model or (None if self.recipe == "auto" else "deepfm")}
        named |= {f"model.{name}": getattr(self, name) for name in OF_MODEL}
        named |= {f"train.{name}": getattr(self, name) for name in OF_TRAINING}
        plain = {name: x.item() if isinstance(x, np.generic) else x for name, x in named.items() if x is not None}
        if not 0 <= self.validation_fraction < 1:
            raise InputError(f"must be in [0, 1), found {self.validation_fraction}", argument="validation_fraction")
        return resolved({"data": {"click": "y", "bid": "bid"}}, plain)

    def _frame(self, X: Any, *y: Any, reset: bool) -> pl.DataFrame:
        """The rows, checked as scikit-learn checks them."""
        given = {"y": y[0]} if y else {}
        if hasattr(X, "columns"):
            validate_data(self, X, **given, reset=reset, skip_check_array=True)
            check_consistent_length(X, *y)
            table = X
        else:
            checked = validate_data(self, X, **given, reset=reset, dtype=None, ensure_all_finite="allow-nan")
            array = checked[0] if y else checked
            table = {f"x{at}": array[:, at] for at in range(array.shape[1])}
        return open_table(table, name="X").frame()

    def _clicks(self, y: Any) -> Floats:
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        kind = type_of_target(labels, input_name="y")
        if kind != "binary":
            raise InputError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_, clicked = np.unique(labels, return_inverse=True)
        return clicked.astype(np.float64)


def _served(config: Config, ads: Ads, valid: Ads | None, **options: Any) -> Served:
    """The model that a recipe leads to: teachers are trained before it, and ``auto`` tries several settings."""
    tried = candidates(config, len(ads))
    if config.train.recipe == "auto":  # with too few validation rows to choose by, the first setting
        if valid is None:
            return trained(tried[0], ads, None, **options)
        return searched(tried, ads, valid, limit=budget(len(ads), options["plain"]), **options)[1][0]
    models: dict[str, Served] = {}
    for name, recipe in recipes(config, tried[0]).items():
        teacher = None if recipe.teacher is None else models[recipe.teacher].model
        models[name] = trained(recipe, ads, valid, teacher=teacher, **options)
    return models[config.train.name]


def _split(
    rows: NDArray[Any], clicks: Floats, auctions: NDArray[np.int64] | None, share: float, seed: int
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Rows to train on and to validate by, whole auctions; no validation rows if they would be too few."""
    groups = rows if auctions is None else auctions[rows]
    order = np.argsort(groups, kind="stable")
    rows, which = rows[order], np.unique(groups)
    some = np.random.default_rng(seed).permutation(which)[: round(share * len(which))]
    held_out = np.isin(groups[order], some)
    tested, left = clicks[rows[held_out]], clicks[rows[~held_out]]
    if min(tested.sum(), (1 - tested).sum()) < _LEAST or not 0 < left.sum() < len(left):
        return rows, None
    return rows[~held_out], rows[held_out]


def _bids_of(bid: Any, rows: int) -> Floats:
    """In units of their mean and with the cap of ``bidwise train``, so that learning rates suit all currencies."""
    bids = np.ones(rows) if bid is None else np.array(bid, dtype=np.float64)
    if bids.shape != (rows,):
        raise InputError(f"must be one number for each of the {rows:,} rows, found shape {bids.shape}", argument="bid")
    check_bids(torch.from_numpy(bids), "bid")
    bids = np.minimum(bids, CAP * np.median(bids))
    return np.asarray(bids / bids.mean())


def _auctions_of(auction: Any, rows: int) -> NDArray[np.int64] | None:
    """The auction of every row by number; of a frame all columns name it."""
    if auction is None:
        return None
    source = open_table(auction if hasattr(auction, "columns") else {"auction": auction}, name="auction")
    with Block(source, frame := source.frame(), 0).located():
        ids = auction_ids(frame)
    if len(ids) != rows:
        raise InputError(f"must have an id for each of the {rows:,} rows, found {len(ids):,}", argument="auction")
    return ids


def welfare_scorer(*, auction_size: int | None = None, slots: Sequence[float] = (1.0,), pos_label: Any = 1) -> Any:
    """Mean welfare of the auctions that a classifier's CTR would decide, to select models by: higher is better.

    Bids, and ids of auctions if there are any, travel with the rows through ``cross_validate`` or ``GridSearchCV``, as
    ``params={"bid": bids, "auction": ids}`` or ``fit(X, y, bid=bids, auction=ids)``; metadata routing must be on. Any
    classifier with ``predict_proba`` will do.

    Args:
        auction_size: averages over every possible auction of so many ads; without it ``auction`` is needed.
        slots: position multipliers, the first 1.
        pos_label: the label of a click.
    """
    scorer = make_scorer(
        _welfare, response_method="predict_proba", auction_size=auction_size, slots=tuple(slots), pos_label=pos_label
    )
    return scorer.set_score_request(bid=True, auction=True)


def _welfare(
    y_true: ArrayLike,
    y_score: Floats,
    *,
    bid: Any = None,
    auction: Any = None,
    auction_size: int | None = None,
    slots: Sequence[float] = (1.0,),
    pos_label: Any = 1,
) -> float:
    if bid is None:
        raise InputError('welfare needs the bid of every row, found none; pass params={"bid": bids}')
    clicks, bids = (np.asarray(y_true) == pos_label).astype(np.float64), np.asarray(bid, dtype=np.float64)
    ids = _auctions_of(auction, len(clicks))
    if auction_size is not None:
        return pooled_welfare(y_score, clicks, bids, auction_size, slots=slots)
    if ids is None:
        raise InputError("welfare needs auctions, found neither auction (an id for each row) nor auction_size")
    order = np.argsort(ids, kind="stable")
    return float(welfare(y_score[order], clicks[order], bids[order], offsets(ids[order]), slots=slots).mean())
