"""Ray Train calls the same `fit`: its workers are ranks."""

import os

import distributed_jobs as jobs
import pytest
import torch

ray = pytest.importorskip("ray")
pytestmark = [  # what Ray says of itself, and leaves to the garbage collector when it starts and ends its own processes
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore:unclosed file .*/dev/null:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    modules = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    here = {"env_vars": {"PYTHONPATH": modules, "OMP_NUM_THREADS": "1"}}
    ray.init(
        address="local",
        num_cpus=2,
        log_to_driver=False,
        include_dashboard=False,
        configure_logging=False,
        runtime_env=here,
    )
    yield
    ray.shutdown()


def work(options):
    from bidwise import distributed

    found = jobs.trained("dcn", "log_plus", "one", out=f"{options['folder']}/run")
    torch.save((distributed.count(), found), f"{options['folder']}/{distributed.rank()}.pt")


def test_ray_train_workers_are_ranks(tmp_path):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(
        work,
        train_loop_config={"folder": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=str(tmp_path / "ray")),
    )
    trainer.fit()
    expected = jobs.trained("dcn", "log_plus", "one")
    assert (tmp_path / "run" / "result.json").is_file()
    for rank in range(2):
        count, found = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert count == 2
        for key, x in expected["last"].items():
            torch.testing.assert_close(found["last"][key], x, rtol=1e-4, atol=2e-5)
        assert [e["welfare"].item() for e in found["history"]] == pytest.approx(
            [e["welfare"].item() for e in expected["history"]], rel=1e-5
        )
