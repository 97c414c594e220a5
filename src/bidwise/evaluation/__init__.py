"""Honest measurement: metrics, calibration, paired comparison, and `evaluate`, which does all of it for a table."""

from bidwise.evaluation.auc import auc, auction_auc
from bidwise.evaluation.calibration import Platt
from bidwise.evaluation.comparison import compared
from bidwise.evaluation.intervals import Interval, level_interval, student_quantile, unit_interval
from bidwise.evaluation.metrics import Metrics

__all__ = [
    "Interval",
    "Metrics",
    "Platt",
    "auc",
    "auction_auc",
    "compared",
    "level_interval",
    "student_quantile",
    "unit_interval",
]
