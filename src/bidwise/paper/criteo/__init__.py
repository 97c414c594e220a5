"""The paper's experiment on Criteo."""

from bidwise.paper.criteo.experiment import run
from bidwise.paper.criteo.plan import Config

__all__ = ["Config", "run"]
