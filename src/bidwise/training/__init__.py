"""Training for any loss, one model or many at once."""

from bidwise.training.across_ranks import AcrossRanks
from bidwise.training.adam import Adam
from bidwise.training.loop import fit
from bidwise.training.selection import Best, Fit
from bidwise.training.validation import METRICS, Metric, predict
from bidwise.training.variants import Variants

__all__ = ["METRICS", "AcrossRanks", "Adam", "Best", "Fit", "Metric", "Variants", "fit", "predict"]
