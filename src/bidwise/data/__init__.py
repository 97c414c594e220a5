"""Where ads come from."""

from bidwise.data.ads import Ads, stack
from bidwise.data.synthetic import WORLDS, Market, World

__all__ = ["WORLDS", "Ads", "Market", "World", "stack"]
