"""Ray, for those who have it: the same tasks on many machines. Nothing else of bidwise imports ray."""

from __future__ import annotations

import os
from typing import Any

from bidwise.checks import InputError

ENGINES = ("local", "ray")


def started_ray() -> Any:
    """The module ray, connected: to the cluster that RAY_ADDRESS names or this machine belongs to, else to a local one
    of this machine's cores that ends with the process."""
    try:
        import ray
    except ImportError:
        raise InputError(
            "engine must be local here, found ray, which is not installed; pip install 'bidwise[ray]'"
        ) from None
    if not ray.is_initialized():
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    return ray
