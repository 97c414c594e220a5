"""Models that return logits; with ``members`` many of them are one."""

from bidwise.models.mlp import MLP, LogisticRegression, Members

__all__ = ["MLP", "LogisticRegression", "Members"]
