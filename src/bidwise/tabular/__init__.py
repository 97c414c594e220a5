"""A model on one's own table: columns inferred, rows split by time, losses compared, predictions for new rows."""

from bidwise.tabular.config import Config
from bidwise.tabular.pipeline import train
from bidwise.tabular.predict import predict

__all__ = ["Config", "predict", "train"]
