"""Tune a model with Optuna: every trial is a run of `bidwise.train`.

The first run trains with the default settings. Optuna minimizes the log loss on validation ads; test ads are held out
until the end. The sampler has a seed and finished runs are not trained again, so the same command resumes.

    pip install optuna
    python examples/own_table.py .
    python examples/tune.py ads.parquet runs/tune 20
"""

import sys
from pathlib import Path

import optuna

import bidwise

DATA = {"click": "click", "bid": "bid", "auction": "auction", "time": "time", "truth": "truth", "seed": 0}
MODEL = {"model": "deepfm", "loss": "log_loss"}


def settings_of(trial):
    """The settings that a trial tries; names are those of `bidwise train --set`, without the section."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 3e-4, 3e-2, log=True),
        "l2": trial.suggest_float("l2", 1e-4, 1e-1, log=True),
        "epochs": trial.suggest_int("epochs", 2, 10),
        "dropout": trial.suggest_float("dropout", 0.0, 0.5),
    }


def main(table="ads.parquet", folder="runs/tune", trials=20):
    folder = Path(folder)
    first = bidwise.train(table, out=folder / "default", **DATA, **MODEL)

    def objective(trial):
        out = folder / f"trial-{trial.number}"
        return bidwise.train(table, out=out, **DATA, **MODEL, **settings_of(trial)).validation.log_loss

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=int(trials))
    name = f"trial-{study.best_trial.number}"
    best = bidwise.train(table, out=folder / name, **DATA, **MODEL, **study.best_params)  # finished
    print(f"Best of {trials} trials: {name}, {study.best_params}")
    for run, result in {"default": first, name: best}.items():
        test = result.evaluation.models[result.chosen]
        print(f"{run}: validation log loss {result.validation.log_loss:.5f}, test welfare {test.welfare:.5f}")
    kept = name if best.validation.log_loss < first.validation.log_loss else "default"
    print(f"Next: bidwise predict {folder / kept} NEW_TABLE --out predictions.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
