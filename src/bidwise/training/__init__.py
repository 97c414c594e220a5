"""Training for any loss, one model or many at once."""

from bidwise.distributed import AcrossRanks
from bidwise.losses.named import Variants
from bidwise.training.adam import Adam
from bidwise.training.loop import fit
from bidwise.training.validation import METRICS, Best, Fit, Metric, predict

__all__ = ["METRICS", "AcrossRanks", "Adam", "Best", "Fit", "Metric", "Variants", "fit", "predict"]
