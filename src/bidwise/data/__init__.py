"""Sources of ads. Names are imported when they are first used: tables are read without torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bidwise.data.ads import Ads, stack
    from bidwise.data.store import Store
    from bidwise.data.worlds import WORLDS, Market, World

__all__ = ["WORLDS", "Ads", "Market", "Store", "World", "stack"]
_HOMES = {"ads": ("Ads", "stack"), "store": ("Store",), "worlds": ("WORLDS", "Market", "World")}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"bidwise.data.{home}"), name)
    raise AttributeError(f"module 'bidwise.data' has no attribute {name!r}")
