"""Click-through-rate models trained for the ad auction they serve."""

from bidwise import theory
from bidwise.auctions import welfare
from bidwise.losses import (
    LOSSES,
    BidWeightedLogLoss,
    WelfareLoss,
    diagnose,
    log_loss,
    pairwise_welfare_loss,
)

__version__ = "0.1.0"
__all__ = [
    "LOSSES",
    "BidWeightedLogLoss",
    "WelfareLoss",
    "diagnose",
    "log_loss",
    "pairwise_welfare_loss",
    "theory",
    "welfare",
]
