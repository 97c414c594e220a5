"""Losses: log loss, the pairwise family, their sum, and a doctor for them."""

from bidwise.losses.diagnosis import Diagnosis, diagnose
from bidwise.losses.methods import pairwise_welfare_loss
from bidwise.losses.pointwise import log_loss
from bidwise.losses.welfare_loss import LOSSES, BidWeightedLogLoss, WelfareLoss

__all__ = [
    "LOSSES",
    "BidWeightedLogLoss",
    "Diagnosis",
    "WelfareLoss",
    "diagnose",
    "log_loss",
    "pairwise_welfare_loss",
]
