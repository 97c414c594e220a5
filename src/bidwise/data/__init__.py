"""Where ads come from."""

from bidwise.data.ads import Ads, stack
from bidwise.data.store import Store
from bidwise.data.worlds import WORLDS, Market, World

__all__ = ["WORLDS", "Ads", "Market", "Store", "World", "stack"]
