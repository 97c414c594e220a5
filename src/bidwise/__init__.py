"""Click-through-rate models trained for the ad auction they serve.

Names are imported when they are first used: torch takes seconds, and ``bidwise --help`` should not wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bidwise import data, evaluation, models, table, training
    from bidwise.auctions import Outcome, optimal_welfare, regret, revenue, run_auction, surplus, welfare
    from bidwise.bridges.boosting import boosted_ctr, welfare_metric, welfare_objective
    from bidwise.bridges.estimator import CTRClassifier as CTRClassifier
    from bidwise.bridges.estimator import welfare_scorer as welfare_scorer
    from bidwise.bridges.lightning import WelfareCallback as WelfareCallback
    from bidwise.bridges.scoring import Scorer as Scorer
    from bidwise.data.groups import AuctionBatchSampler, offsets
    from bidwise.diagnosis import diagnose
    from bidwise.errors import InputError
    from bidwise.evaluation.evaluate import evaluate
    from bidwise.evaluation.pooled import pooled_revenue, pooled_welfare
    from bidwise.evaluation.result import Evaluation
    from bidwise.losses import LOSSES, BidWeightedLogLoss, WelfareLoss, log_loss, pairwise_welfare_loss
    from bidwise.table import train
    from bidwise.table.model import load
    from bidwise.training import fit, predict

__version__ = "0.1.0"

_HOMES = {
    "bidwise.auctions": ("Outcome", "optimal_welfare", "regret", "revenue", "run_auction", "surplus", "welfare"),
    "bidwise.bridges.lightning": ("WelfareCallback",),
    "bidwise.bridges.scoring": ("Scorer",),
    "bidwise.bridges.estimator": ("CTRClassifier", "welfare_scorer"),
    "bidwise.data.groups": ("AuctionBatchSampler", "offsets"),
    "bidwise.bridges.boosting": ("boosted_ctr", "welfare_metric", "welfare_objective"),
    "bidwise.diagnosis": ("diagnose",),
    "bidwise.errors": ("InputError",),
    "bidwise.evaluation.evaluate": ("evaluate",),
    "bidwise.evaluation.pooled": ("pooled_revenue", "pooled_welfare"),
    "bidwise.evaluation.result": ("Evaluation",),
    "bidwise.losses": ("LOSSES", "BidWeightedLogLoss", "WelfareLoss", "log_loss", "pairwise_welfare_loss"),
    "bidwise.table": ("train",),
    "bidwise.table.model": ("load",),
    "bidwise.training": ("fit", "predict"),
}
_PACKAGES = ("auctions", "data", "evaluation", "losses", "models", "table", "training")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# without CTRClassifier, welfare_scorer, WelfareCallback and Scorer, which need other libraries: star imports need torch
__all__ = ["LOSSES", "BidWeightedLogLoss", "Evaluation", "InputError", "Outcome", "WelfareLoss", "log_loss"]
__all__ += ["data", "evaluation", "models", "table", "training"]
__all__ += ["AuctionBatchSampler", "boosted_ctr", "load", "offsets", "welfare_metric"]
__all__ += ["diagnose", "evaluate", "fit", "pairwise_welfare_loss", "pooled_revenue", "pooled_welfare", "predict"]
__all__ += ["optimal_welfare", "regret", "revenue", "run_auction", "surplus", "train", "welfare", "welfare_objective"]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"bidwise.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bidwise' has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_HOME_OF})
