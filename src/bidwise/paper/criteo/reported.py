"""What the paper reports of its Criteo experiment: means of ten repeats, and what an epoch takes."""

from __future__ import annotations

Measured = dict[str, tuple[float, float]]

#: Model -> loss -> measure -> (mean, standard error over repeats); ``seconds`` of an epoch: (mean, standard deviation
#: over 15 epochs). The paper heads both tables of run times DCN; the first one is DeepFM's.
PAPER: dict[str, dict[str, Measured]] = {
    "deepfm": {
        "log_loss": {
            "welfare": (1.4448, 0.0025),
            "auc_loss": (0.2200, 0.0004),
            "log_loss": (0.4706, 0.0005),
            "seconds": (2635.13, 10.86),
        },
        "log_weighted": {
            "welfare": (1.4622, 0.0021),
            "auc_loss": (0.2169, 0.0003),
            "log_loss": (0.4723, 0.0009),
            "seconds": (2700.87, 8.91),
        },
        "log_teacher": {
            "welfare": (1.4660, 0.0022),
            "auc_loss": (0.2229, 0.0004),
            "log_loss": (0.4795, 0.0009),
            "seconds": (2700.4, 6.59),
        },
    },
    "dcn": {
        "log_loss": {
            "welfare": (1.4622, 0.0026),
            "auc_loss": (0.2173, 0.0004),
            "log_loss": (0.4840, 0.0015),
            "seconds": (5292.2, 57.39),
        },
        "log_weighted": {
            "welfare": (1.4663, 0.0028),
            "auc_loss": (0.2146, 0.0005),
            "log_loss": (0.4934, 0.0020),
            "seconds": (5333.67, 56.62),
        },
        "log_teacher": {
            "welfare": (1.4650, 0.0027),
            "auc_loss": (0.2115, 0.0007),
            "log_loss": (0.4922, 0.0048),
            "seconds": (5330.0, 48.11),
        },
    },
}

#: Model -> loss -> seconds of an epoch (mean, standard deviation).
PAPER_RUNTIME = {model: {loss: found["seconds"] for loss, found in losses.items()} for model, losses in PAPER.items()}
