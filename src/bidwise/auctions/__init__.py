"""Auctions: the ads shown, their prices, and their welfare.

Numbers per ad are tensors, arrays or anything numpy reads; all arithmetic is float64.
"""

from bidwise.auctions.measures import optimal_welfare, regret, revenue, surplus, welfare
from bidwise.auctions.outcome import PRICINGS, Outcome, ad_numbers, auctions_of, run_auction, slot_multipliers

__all__ = [
    "PRICINGS",
    "Outcome",
    "ad_numbers",
    "auctions_of",
    "optimal_welfare",
    "regret",
    "revenue",
    "run_auction",
    "slot_multipliers",
    "surplus",
    "welfare",
]
