"""A model on one's own table: columns inferred, rows split by time, losses compared, predictions for new rows."""

from bidwise.table.config import Config
from bidwise.table.pipeline import train
from bidwise.table.predict import predict

__all__ = ["Config", "predict", "train"]
