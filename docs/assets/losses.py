"""Draws losses.svg: the gaps and surrogates of the family."""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "bidwise", "svg.fonttype": "none", "font.size": 9})

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

x = np.linspace(-3, 3, 601)
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
gaps = {"signed": x, "positive": np.maximum(x, 0), "order": np.where(x > 0, 1.0, 0.0)}
surrogates = {"logistic": np.logaddexp(0, -x), "hinge": np.maximum(-x, 0), "indicator": np.where(x <= 0, 1.0, 0.0)}
for axes, curves, name in ((left, gaps, "gap of value, $v_i - v_j$"), (right, surrogates, "margin, $s_i - s_j$")):
    for (label, y), colour, style in zip(curves.items(), ("#00796b", "#c2410c", "#555"), ("-", "--", ":"), strict=True):
        axes.plot(x, y, style, color=colour, label=label, linewidth=2)
    axes.set_xlabel(name)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvline(0, color="#bbb", linewidth=0.8, zorder=0)
left.set_title("what is at stake: gap")
right.set_title("how far from in order: surrogate, σ = 1")
figure.savefig(Path(__file__).parent / "losses.svg", metadata={"Date": None})
