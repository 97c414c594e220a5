"""Losses: log loss, the pairwise family, and their sum."""

from bidwise.losses.methods import pairwise_welfare_loss
from bidwise.losses.pointwise import log_loss
from bidwise.losses.welfare_loss import LOSSES, BidWeightedLogLoss, WelfareLoss

__all__ = ["LOSSES", "BidWeightedLogLoss", "WelfareLoss", "log_loss", "pairwise_welfare_loss"]
