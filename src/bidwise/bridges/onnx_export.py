"""A run as one ONNX graph, and the way from columns to its ids as JSON; written only if it scores as torch does."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import bidwise
from bidwise.bridges.scoring import INPUT, OUTPUT, SCORER_FORMAT, SCORER_VERSION, Scorer, pair_checksum
from bidwise.checks import InputError
from bidwise.data.columns import Bag, Categorical, Encoder
from bidwise.models.embeddings import values_and_slots
from bidwise.run_folder import whole_file, write_json
from bidwise.table.model import Model, load
from bidwise.urls import check_on_disk

PARITY = 1e-5  # the most that a CTR may differ from torch's
RELATIVE = 1e-3  # of it, if it is small
_LARGEST = 2**31 - 2**20  # bytes of an ONNX file
_ROWS = 1000
DEPRECATED = r"`isinstance\(treespec, LeafSpec\)` is deprecated"  # of torch, to itself


@dataclass(frozen=True)
class Exported:
    """The written files, and the distance of the scores from torch's."""

    file: Path
    encoder: Path
    difference: float


class _Served(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor) -> Tensor:
        return torch.sigmoid(self.network(ids).double()).float()  # that of float32 ends at 1e-8 in onnxruntime


def export_onnx(run: str | Path, out: str | Path) -> Exported:
    """Write one graph from ``ids`` (ads, columns) int64 to ``ctr`` (ads,), and the encoder as JSON next to it.

    Members of an ensemble and the calibration are part of the graph. It is compared with torch on random ids and on
    rows of values, and rejected if a CTR differs by more than 1e-5.

    Args:
        run: folder of `bidwise train`.
        out: file to write, ends in .onnx; the encoder has the same name with .json.
    """
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise InputError(f"needs {', '.join(missing)}: pip install {' '.join(missing)}", argument="out")
    check_on_disk("out", out, "a file", "copy it afterwards")
    path = Path(out)
    if path.suffix != ".onnx" or path.is_dir():
        raise InputError(f"must be a file that ends in .onnx, found {path.name!r}", argument="out")
    model = load(run)
    size = sum(x.numel() * x.element_size() for x in model.network.state_dict().values())
    if size > _LARGEST:
        raise InputError(f"{model.run} must have weights below 2 GB, the limit of an ONNX file, found {size / 1e9:.1f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path.with_suffix(".json")) as encoder, whole_file(path) as graph:
        _graph(model).save(graph, external_data=False)
        about = _description(model)
        _write_encoder(encoder, about, graph)
        difference = _difference(model, Scorer(graph, encoder=encoder))
        _write_encoder(encoder, about | {"difference": difference}, graph)
    return Exported(path, path.with_suffix(".json"), difference)


def _write_encoder(path: Path, about: dict[str, Any], graph: Path) -> None:
    """The JSON, with the checksum of the text before it and of the graph as its last key."""
    write_json(path, about | {"checksum": ""})
    write_json(path, about | {"checksum": pair_checksum(graph, path)})


def _graph(model: Model) -> Any:
    some = torch.zeros((2, model.encoder.width), dtype=torch.int64)  # torch takes a single ad for a constant
    noise = logging.getLogger("torch.onnx._internal.exporter._registration")  # names packages that are not installed
    level = noise.level
    noise.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.filterwarnings("ignore", DEPRECATED, FutureWarning)
            return torch.onnx.export(
                _Served(model.network).eval(),
                (some,),
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("ads", min=1)},),
                verbose=False,
            )
    finally:
        noise.setLevel(level)


def _description(model: Model) -> dict[str, Any]:
    """The JSON next to the graph; docs/guides/serving.md explains it."""
    return {
        "format": SCORER_FORMAT,
        "version": SCORER_VERSION,
        "bidwise": bidwise.__version__,
        "model": {
            "recipe": model.about.recipe,
            "loss": model.about.loss,
            "members": [x.model for x in model.about.members],
        },
        "columns": model.encoder.to_json()["columns"],
    }


def _difference(model: Model, scorer: Scorer) -> float:
    """The largest difference from torch's CTR; raises if it is too large."""
    random = np.random.default_rng(0)
    sizes = np.repeat(*map(np.array, values_and_slots(model.about.cardinalities)))
    ids = random.integers(0, sizes, (_ROWS, len(sizes)))
    ids[0], ids[1], ids[2] = 0, np.minimum(1, sizes - 1), sizes - 1  # all rare, all missing, all the last
    rows = _rows(model.encoder, random)
    pairs = [(scorer.ctr(part), model.ctr(part)) for part in (ids, ids[:1])]
    pairs.append((scorer.score(rows), model.predict(rows)))
    ours, torchs = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    apart = np.abs(ours - torchs)
    if not (apart <= np.minimum(PARITY, RELATIVE * torchs)).all():
        at = int(np.nanargmax(apart)) if not np.isnan(apart).all() else 0
        raise InputError(
            f"{model.run} must score in onnxruntime as in torch to {PARITY:g}, found a CTR of {ours[at]:.6g} for "
            f"{torchs[at]:.6g}; no file was written"
        )
    return float(apart.max())


def _rows(encoder: Encoder, random: np.random.Generator) -> dict[str, list[Any]]:
    """Rows of values as tables have them: frequent ones more often, unseen and missing ones too."""
    rows: dict[str, list[Any]] = {}
    for column in encoder.plain.columns:
        skewed: NDArray[np.float64] = random.random(_ROWS) ** 3
        if isinstance(column, Categorical):
            known: list[Any] = [*column.vocabulary, "never seen"]
            rows[column.name] = [known[int(x * len(known))] for x in skewed]
            if isinstance(column, Bag):  # lists of all lengths
                names, many = rows[column.name], random.integers(0, column.slots + 2, _ROWS)
                rows[column.name] = [names[at : at + count] for at, count in enumerate(many)]
        else:
            edges = [*column.edges, 0.0]
            rows[column.name] = [edges[int(x * len(edges))] * (1 + 0.01 * int(9 * x)) for x in skewed]
        for at in random.integers(0, _ROWS, _ROWS // 20):
            rows[column.name][at] = None
    return rows
