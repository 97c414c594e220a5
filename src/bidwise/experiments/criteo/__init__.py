"""The paper's experiment on Criteo."""

from bidwise.experiments.criteo.experiment import run
from bidwise.experiments.criteo.plan import Config

__all__ = ["Config", "run"]
