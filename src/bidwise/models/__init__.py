"""Models that return logits: over numbers (with ``members`` many of them are one), and over ids of categories."""

from collections.abc import Callable

from torch import nn

from bidwise.models.categorical import DCNv2, DeepFM, Ensemble, SparseLogisticRegression
from bidwise.models.layers import BatchNorm
from bidwise.models.mlp import MLP, LogisticRegression

#: Models over categories by name, each called as ``MODELS[name](cardinalities, seed=0)``.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "deepfm": DeepFM,
    "dcnv2": DCNv2,
    "logistic_regression": SparseLogisticRegression,
}

__all__ = [
    "MLP",
    "MODELS",
    "BatchNorm",
    "DCNv2",
    "DeepFM",
    "Ensemble",
    "LogisticRegression",
    "SparseLogisticRegression",
]
