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


MIGRATIONS = {"synthetic": synthetic, "regimes": regimes}  # kind -> from format 1 to format 2


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
