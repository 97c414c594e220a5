"""``bidwise export``: a model outside of torch."""

from __future__ import annotations

from pathlib import Path


def export(run: Path, /, *, onnx: Path) -> None:
    """Write the model of a run as one ONNX graph, and its encoder as JSON beside it.

    The graph maps ids to CTR; ensembles and the calibration are part of it. Writes nothing unless onnxruntime scores as
    torch does, to 1e-5. Needs onnx, onnxscript and onnxruntime. Example:

    bidwise export runs/mine --onnx ctr.onnx

    Parameters
    ----------
    run:
        Folder of bidwise train.
    onnx:
        File to write; ends in .onnx. The encoder gets the same name with .json.
    """
    from bidwise.bridges.onnx_export import export_onnx

    written = export_onnx(run, onnx)
    print(f"Written: {written.file} and {written.encoder}; scores differ from torch's by {written.difference:.1e}")
    print(f"Next: bidwise.Scorer({str(written.file)!r}) in Python, without torch")
