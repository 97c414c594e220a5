"""The Lightning callback in a real trainer: what it logs is what `bidwise.evaluate` finds."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bidwise

lightning = pytest.importorskip("lightning.pytorch", reason="make test-long installs Lightning")
pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

ADS, SIZE = 12_000, 20


class Model(lightning.LightningModule):
    def __init__(self, *, baseline=True, auction=True):
        super().__init__()
        self.net = nn.Linear(3, 1)
        self.loss = bidwise.LOSSES["log_plus"]
        self.baseline, self.auction = baseline, auction

    def training_step(self, batch, _):
        features, clicks, bids, _ = batch
        return self.loss(self.net(features).squeeze(1), clicks, bids)

    def validation_step(self, batch, _):
        features, clicks, bids, auction = batch
        found = {"logits": self.net(features).squeeze(1), "clicks": clicks, "bids": bids}
        found |= {"auction": auction} if self.auction else {}
        return found | ({"baseline": torch.full_like(clicks, 0.3)} if self.baseline else {})

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.03)


def loader():
    random = torch.Generator().manual_seed(0)
    features = torch.randn(ADS, 3, generator=random)
    clicks = (torch.rand(ADS, generator=random) < torch.sigmoid(features.sum(1) - 1)).float()
    bids = torch.rand(ADS, generator=random) + 0.5
    return DataLoader(TensorDataset(features, clicks, bids, torch.arange(ADS) // SIZE), batch_size=SIZE * 30)


QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def trained(tmp_path, callback, model, epochs=2):
    options = QUIET | {"max_epochs": epochs, "enable_checkpointing": False, "default_root_dir": tmp_path}
    trainer = lightning.Trainer(callbacks=[callback], **options)
    trainer.fit(model, loader(), loader())
    return trainer


def test_what_is_logged_is_what_evaluate_finds(tmp_path, capsys):
    callback, model = bidwise.WelfareCallback(), Model()
    trainer = trained(tmp_path, callback, model)
    features, clicks, bids, _ = loader().dataset.tensors
    with torch.no_grad():
        ctr = torch.sigmoid(model.net(features).squeeze(1).double())
    expected = bidwise.welfare(ctr, clicks, bids, torch.arange(0, ADS + 1, SIZE)).mean()
    assert float(trainer.callback_metrics["val_welfare"]) == pytest.approx(float(expected), rel=1e-6)
    (welfare,) = callback.evaluation.of_metric("welfare")
    assert welfare.ci_low > 0  # a model of the features beats a constant
    assert float(trainer.callback_metrics["val_welfare_ci_low"]) == pytest.approx(welfare.ci_low)
    printed = capsys.readouterr().out
    assert "Epoch 2:" in printed
    assert "model raises welfare by" in printed


def test_without_auctions_all_that_could_be_drawn_are_measured(tmp_path):
    callback, model = bidwise.WelfareCallback(auction_size=8, prefix="pooled/"), Model(baseline=False, auction=False)
    trainer = trained(tmp_path, callback, model, epochs=1)
    features, clicks, bids, _ = loader().dataset.tensors
    with torch.no_grad():
        ctr = torch.sigmoid(model.net(features).squeeze(1).double())
    expected = bidwise.pooled_welfare(ctr, clicks, bids, 8)
    assert float(trainer.callback_metrics["pooled/welfare"]) == pytest.approx(float(expected), rel=1e-6)
    assert "pooled/welfare_difference" not in trainer.callback_metrics


def test_a_missing_column_is_named(tmp_path):
    with pytest.raises(bidwise.InputError, match="auction, found logits, clicks") as raised:
        trained(tmp_path, bidwise.WelfareCallback(), Model(auction=False))
    assert raised.value.argument == "validation_step"


def test_callbacks_before_it_see_what_it_logs(tmp_path):
    stop = lightning.callbacks.EarlyStopping(monitor="val_welfare", mode="max")
    options = QUIET | {"max_epochs": 1, "val_check_interval": 0.5, "enable_checkpointing": False}
    trainer = lightning.Trainer(callbacks=[stop, bidwise.WelfareCallback(verbose=False)], **options)
    trainer.fit(Model(), loader(), loader())
    assert float(stop.best_score) > 0
