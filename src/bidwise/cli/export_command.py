"""``bidwise export``: a model outside of torch."""

from __future__ import annotations

from pathlib import Path

from bidwise.cli.terminal import check_run


def export(run: Path, /, *, out: Path) -> None:
    """Write the model of a run as one ONNX graph, and its encoder as JSON next to it.

    The graph maps ids to CTR and includes ensembles and the calibration. No file is written unless onnxruntime scores
    as torch does, to 1e-5. Needs onnx, onnxscript and onnxruntime; `bidwise.Scorer` reads the files without torch.

    `bidwise export runs/mine --out ctr.onnx`

    Parameters
    ----------
    run:
        Folder of bidwise train.
    out:
        File to write; ends in .onnx. The encoder gets the same name with .json.
    """
    check_run(run)

    from bidwise.bridges.onnx_export import export_onnx

    written = export_onnx(run, out)
    print(f"Written: {written.file} and {written.encoder}; scores differ from torch's by {written.difference:.1e}")
