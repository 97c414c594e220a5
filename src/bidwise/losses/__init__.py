"""Losses: log loss, the pairwise family and their sum."""

from bidwise.losses.api import log_loss, pairwise_welfare_loss
from bidwise.losses.named import LOSSES, BidWeightedLogLoss, WelfareLoss

__all__ = ["LOSSES", "BidWeightedLogLoss", "WelfareLoss", "log_loss", "pairwise_welfare_loss"]
