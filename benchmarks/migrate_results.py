"""Rewrite ``result.json`` of format 1, which held sentences, as format 2, which holds numbers alone.

    python -m benchmarks.migrate_results RUN [RUN ...]

Runs of the current format, and kinds that are not listed below, are left alone.
"""

import argparse
from pathlib import Path

from bidwise.report.build import typed_result
from bidwise.run_folder import read_json, write_result

SENTENCES = ("claims", "verdict", "notes")


def synthetic(old):
    """`reproduce synthetic`: the learning rate has its whole name, and curves stand with their protocol."""
    new = {key: value for key, value in old.items() if key not in (*SENTENCES, "curves")}
    config = {"learning_rate" if key == "rate" else key: value for key, value in old["config"].items()}
    protocols = {name: {**found, "curves": old["curves"][name]} for name, found in old["protocols"].items()}
    return {**new, "config": config, "protocols": protocols}


def regimes(old):
    """`reproduce regimes`: titles and the meaning of axes are made when shown."""
    new = {key: value for key, value in old.items() if key not in SENTENCES}
    maps = [
        {key: value for key, value in each.items() if key not in ("title", "x", "y")}
        | {axis: {"name": each[axis]["name"], "levels": each[axis]["levels"]} for axis in ("x", "y")}
        for each in old["maps"]
    ]
    return {**new, "maps": maps}


def criteo(old):
    """`reproduce criteo`: AUC in place of AUC loss, differences with the interval that decides, none of the paper."""

    def without(entry, *names):
        return {name: value for name, value in entry.items() if name not in names}

    def levels(entry):
        kept = without(entry, "auc_loss", "auc_loss_error", "relative")
        kept["auc"] = entry.get("auc", 1 - entry["auc_loss"])
        return kept | {"auc_error": entry.get("auc_loss_error")}

    def difference(entry):
        if entry is None:
            return None
        sources = (entry["repeats"], entry["auctions"])
        lows, highs = ([source[end] for source in sources] for end in ("ci_low", "ci_high"))
        known = None not in lows + highs
        ends = {"ci_low": min(lows) if known else None, "ci_high": max(highs) if known else None}
        return {"difference": sources[0]["difference"], **ends, "repeats": sources[0], "auctions": sources[1]}

    def selected(entry):
        return levels(entry) | {"difference": difference(entry["difference"])}

    def loss(entry):
        new = selected(entry) | {"difference_realised": difference(entry["difference_realised"])}
        new["repeats"] = {name: values or [] for name, values in entry["repeats"].items()}
        return new | {by: selected(entry[by]) for by in ("by_log_loss", "by_truth") if entry.get(by)}

    def model(entry):
        protocols = {
            name: {"losses": {key: loss(value) for key, value in protocol["losses"].items()}}
            for name, protocol in entry["protocols"].items()
        }
        grid = {key: [levels(row) for row in rows] for key, rows in (entry.get("grid") or {}).items()}
        new = without(entry, "grid_log_loss") | {"protocols": protocols, "grid": grid}
        if grid:
            base = entry.get("grid_log_loss") or entry["protocols"]["tuned"]["losses"]["log_loss"]
            names = ("welfare", "expected_welfare", "auc_loss", "log_loss")
            new["grid_log_loss"] = levels({key: base[key] for name in names for key in (name, f"{name}_error")})
        curves = entry.get("curves") or {}
        return new | {"curves": {k: v | {"expected_welfare": v["expected_welfare"] or []} for k, v in curves.items()}}

    return {
        "kind": "criteo",
        "version": old["version"],
        "config": without(old["config"], "data", "lams", "lam", "sigma", "rate"),
        "data": without(old["data"], "known_ctr") | {"name": old["config"]["data"]},
        "models": {name: model(entry) for name, entry in old["models"].items()},
    }


MIGRATIONS = {"synthetic": synthetic, "regimes": regimes, "criteo": criteo}  # kind -> from format 1 to format 2


def migrate(folder):
    """Whether the run in a folder was rewritten."""
    old = read_json(folder / "result.json")
    kind = old.get("kind", "evaluation")
    if old.get("format", 1) > 1 or kind not in MIGRATIONS:
        return False
    write_result(folder, typed_result({**MIGRATIONS[kind](old), "format": 2}, str(folder / "result.json")))
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    for folder in parser.parse_args().runs:
        print(f"{folder}: {'migrated' if migrate(folder) else 'left alone'}")


if __name__ == "__main__":
    main()
