"""Train one model on a Ray cluster: Ray Train starts the workers, and each calls `bidwise.train`, as with torchrun.

Workers are ranks: they draw the same batches and each computes a part of every one (docs/guides/scaling.md). All
machines need the same version of bidwise, and must see the table and the run folder under the same absolute paths. The
same command resumes an interrupted run. Without a cluster Ray uses the cores of this machine.

    pip install 'bidwise[ray]'
    python examples/own_table.py /shared
    python examples/ray_train.py /shared/ads.parquet /shared/runs/mine 2
"""

import os
import sys

from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device

OPTIONS = {"click": "click", "bid": "bid", "auction": "auction", "time": "time", "truth": "truth"}
OPTIONS |= {"model": "deepfm", "loss": "log_plus"}
PATIENCE = 24 * 3600  # seconds that workers wait for the first one, which reads the table


def work(settings):
    """Runs on every worker, in the process group that Ray has started."""
    import bidwise

    bidwise.train(**settings, device=str(get_device()))


def main(table, out, workers=2, gpus=False, **options):
    settings = {**OPTIONS, **options, "table": os.path.abspath(table), "out": os.path.abspath(out)}
    TorchTrainer(
        work,
        train_loop_config=settings,
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if gpus else "gloo", timeout_s=PATIENCE),
        scaling_config=ScalingConfig(num_workers=int(workers), use_gpu=bool(gpus)),
        run_config=RunConfig(storage_path=f"{settings['out']}-ray"),  # Ray's own files
    ).fit()
    print(f"Written to {out}: report.html; evaluation/report.html, the test in detail; test.parquet, predictions")


if __name__ == "__main__":
    main(*sys.argv[1:])
