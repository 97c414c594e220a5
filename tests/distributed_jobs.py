"""What tests of several ranks do on every rank; each job returns what the same job on one rank must return too."""

import io
import os
import socket
import sys
from contextlib import redirect_stderr
from dataclasses import replace

import pytest
import torch
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import bidwise
from bidwise import InputError, distributed
from bidwise.cli import main
from bidwise.data import Ads, stack
from bidwise.models import MLP, BatchNorm, DCNv2, DeepFM, SparseLogisticRegression
from bidwise.training import AcrossRanks, fit
from bidwise.training.arguments import Options
from bidwise.training.run import Run
from paper.dcn import DCN

FIELDS = [20] * 5
MODELS = {
    "deepfm": lambda: DeepFM(FIELDS, hidden=(16, 16), std=0.1),
    "dcn": lambda: DCN(FIELDS, hidden=(16, 16), cross=2, dropout=0.5, std=0.1),
    "dcnv2": lambda: DCNv2(FIELDS, hidden=(16,), cross=1, std=0.1),
    "logistic_regression": lambda: SparseLogisticRegression(FIELDS),
    "bag": lambda: DeepFM([20, (20, 4)], hidden=(16,), std=0.1),
}
AUCTIONS = ("one", "equal", "ragged")


def ads_of(count, seed, auctions="one", weighted=False):
    """Ads of five fields, with a teacher and perhaps weights."""
    random = torch.Generator().manual_seed(seed)
    offsets = torch.arange(count + 1) if auctions == "single" else None
    if auctions == "equal":
        offsets = torch.arange(0, count + 1, 8)
    if auctions == "ragged":
        sizes = torch.randint(0, 13, (count // 6,), generator=random)
        offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    count = count if offsets is None else int(offsets[-1])
    features = torch.randint(0, 20, (count, 5), generator=random, dtype=torch.int32)
    ctr = torch.sigmoid((features.float() - 10) @ torch.tensor([0.1, -0.1, 0.05, 0.2, 0.0]) - 0.5)
    clicks = (torch.rand(count, generator=random) < ctr).float()
    weights = 0.5 + torch.rand(count, generator=random)
    bids = 0.5 + torch.rand(count, generator=random)
    weights = weights / weights.mean() if weighted else None
    return Ads(features, clicks, bids, offsets=offsets, teacher=ctr, weights=weights)


def gradients(model, loss, auctions, *, ads=64, embeddings="lazy", weighted=False):
    """Gradients of the first batch, as the optimizer gets them."""
    options = Options(1, ads, 1e-3, "constant", None, 1, embeddings)
    train = ads_of(max(200, ads), 1, auctions, weighted)
    run = Run(MODELS[model](), train, None, bidwise.LOSSES[loss], {}, options, 0)
    found = {}

    def keep():
        for name, parameter in run.model.named_parameters():
            grad = parameter.grad
            found[name] = grad.to_dense().clone() if grad.is_sparse else grad.clone()

    run.optimizer.step = keep
    run.take_step()
    return {"loss": run.position.total, **found}


def trained(model, loss, auctions, *, count=500, batch_size=64, device="cpu", weighted=False, **options):
    """A whole run: its measures and its weights."""
    valid = ads_of(600, 2, "equal")
    fitted = fit(
        MODELS[model]().to(device),
        ads_of(count, 1, auctions, weighted),
        loss=loss,
        valid=valid,
        metric=["welfare", "log_loss", "auc"],
        **{"epochs": 2, "every": 0.5, "learning_rate": 0.01, "l2": 1e-4} | options,
        batch_size=batch_size,
    )
    state = {name: tensor.cpu() for name, tensor in fitted.last.items()}
    distributed.check_ranks_agree(weights=[state[name].double().sum().item() for name in state])
    return {"history": fitted.history, "last": state, "best": fitted.best["welfare"].epoch}


def members():
    """Two repeats of three models each, over numbers."""
    both = stack([_numbers(seed) for seed in (1, 2)])
    model = MLP(4, (8,), members=(3, 2), seed=[1, 2])
    valid = replace(both, offsets=torch.arange(0, 101, 10))
    fitted = fit(model, both, loss="log_plus", valid=valid, epochs=2, batch_size=32, seed=[3, 4])
    return {"history": fitted.history, "last": fitted.last}


def _numbers(seed):
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(100, 4, generator=random)
    clicks = (torch.rand(100, generator=random) < torch.sigmoid(features[:, 0])).float()
    return Ads(features, clicks, 0.5 + torch.rand(100, generator=random))


class Normed(nn.Module):
    def __init__(self, width=4, norm=BatchNorm):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(width, 8, bias=False), norm(8), nn.Linear(8, 1)

    def forward(self, features):
        return self.last(self.norm(self.first(features)).relu()).squeeze(-1)


def own_model():
    """A model of a user, with batch norm, whose initial weights differ between ranks: those of rank 0 count."""
    torch.manual_seed(7 + distributed.rank())
    fitted = fit(Normed(), _numbers(1), loss="log", epochs=2, batch_size=33)
    return {"last": fitted.last}


class Odd(nn.Module):
    """What others do: a transposed weight, one that some batches do without, a buffer, a table used twice over."""

    def __init__(self):
        super().__init__()
        self.turned = nn.Parameter(torch.randn(8, 4).t())
        self.sometimes = nn.Parameter(torch.ones(8))
        self.last = nn.Linear(8, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, features):
        if self.training:
            self.calls += 1
        hidden = features @ self.turned
        if int(self.calls) % 2:
            hidden = hidden * self.sometimes
        return self.last(hidden.tanh()).squeeze(-1)


def odd_model():
    torch.manual_seed(3)
    return {"last": fit(Odd(), _numbers(1), loss="log", epochs=3, batch_size=20, learning_rate=0.01).last}


def own_loop_normed():
    """Batch norm and dropout of bidwise in a loop of one's own: equal parts are parts of the whole batch."""
    model = MODELS["dcn"]()
    wrapped = DistributedDataParallel(model) if distributed.count() > 1 else model
    ads = ads_of(60, 1)
    each = 60 // distributed.count()
    part = slice(each * distributed.rank(), each * (distributed.rank() + 1))
    found = AcrossRanks(bidwise.WelfareLoss())(wrapped(ads.features[part]), ads.clicks[part], ads.bids[part])
    found.backward()
    return {"loss": found.detach(), **{name: p.grad.clone() for name, p in model.named_parameters()}}


def own_loop(auctions):
    """DistributedDataParallel and a loss across ranks, where ranks have different numbers of ads."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))
    wrapped = DistributedDataParallel(model) if distributed.count() > 1 else model
    ads = _numbers(1)
    bounds = [0, 10, 40, 60, 100]
    here = bounds if distributed.count() == 1 else _own_part(bounds)
    part = slice(here[0], here[-1])
    offsets = torch.tensor(here) - here[0] if auctions else None
    loss = AcrossRanks(bidwise.WelfareLoss(lam=2.0))
    found = loss(wrapped(ads.features[part]), ads.clicks[part], ads.bids[part], offsets)
    found.backward()
    return {"loss": found.detach(), **{name: p.grad.clone() for name, p in model.named_parameters()}}


class Logits(nn.Module):
    """A logit per ad, in half precision."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, rows):
        return self.logits[rows].bfloat16()


def autocast(loss):
    """The loss and gradient of 8,192 ads under autocast, of which ranks have different numbers."""
    ads, ranks, rank = ads_of(8192, 1), distributed.count(), distributed.rank()
    rows = slice(8192 * rank**2 // ranks**2, 8192 * (rank + 1) ** 2 // ranks**2)
    model = Logits(torch.randn(8192, generator=torch.Generator().manual_seed(0)))
    wrapped = DistributedDataParallel(model) if ranks > 1 else model
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = wrapped(torch.arange(8192)[rows])
        found = AcrossRanks(bidwise.LOSSES[loss])(logits, ads.clicks[rows], ads.bids[rows], None, ads.teacher[rows])
        found.backward()
    return {"loss": found.detach(), "logits": model.logits.grad}


def _own_part(bounds):
    auctions = len(bounds) - 1
    first, last = (auctions * k // distributed.count() for k in (distributed.rank(), distributed.rank() + 1))
    return bounds[first : last + 1]


def cut_off(folder, stop):
    """A run in a folder, which ends by an error after ``stop`` epochs; ``None``: goes on to its end."""
    began = []

    def progress(epochs):
        began.append(epochs)
        if stop is not None and epochs >= stop:
            raise KeyboardInterrupt

    try:
        found = trained("dcn", "log_plus", "one", epochs=3, out=folder, progress=progress)
    except KeyboardInterrupt:
        return None
    return found | {"began": began[0]}


def refused():
    """What every rank is told when ranks disagree, or the model cannot be trained together."""
    told = {}
    for name, work in {
        "seed": lambda: fit(Normed(), _numbers(1), seed=distributed.rank(), epochs=1),
        "train": lambda: fit(Normed(), _numbers(1 + distributed.rank()), epochs=1),
        "norm": lambda: fit(Normed(norm=nn.BatchNorm1d), _numbers(1), epochs=1),
        "graph": lambda: fit(Normed(), _numbers(1), epochs=1, graph=True),
        "valid": lambda: fit(
            Normed(),
            _numbers(1),
            valid=_numbers(1 + distributed.rank()),
            metric="auc" if distributed.rank() else "log_loss",
            epochs=1,
        ),
        "out on some": lambda: fit(Normed(), _numbers(1), epochs=1, out=None if distributed.rank() else "somewhere"),
        "out": lambda: fit(Normed(), _numbers(1), epochs=1, out=__file__),
        "offsets": lambda: AcrossRanks(bidwise.WelfareLoss())(
            torch.zeros(2), torch.ones(2), torch.ones(2), torch.tensor([0, 2]) if distributed.rank() else None
        ),
    }.items():
        try:
            work()
        except InputError as error:
            told[name] = (type(error).__name__, str(error))
    return told


def command(*words):
    """The exit code of `bidwise` with these words, and what it says to the error stream."""
    sys.argv = ["bidwise", *words]
    said = io.StringIO()
    with redirect_stderr(said), pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, said.getvalue()


def unseen(folder):
    """What is said where ranks mean different folders by the same name."""
    os.makedirs(f"{folder}/{distributed.rank()}")
    os.chdir(f"{folder}/{distributed.rank()}")
    ads = ads_of(600, 1)
    table = {f"f{k}": ads.features[:, k].numpy() for k in range(5)}
    table |= {"click": ads.clicks.numpy(), "bid": ads.bids.numpy()}
    try:
        bidwise.table.train(table, out="run", click="click", bid="bid", loss="log_loss")
    except InputError as error:
        return type(error).__name__, str(error)


def on_rank(rank, number, port, jobs, folder):
    """One rank: all jobs, and what each gave in a file."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with distributed.launched("cpu"):
        found = {name: globals()[function](*given, **more) for name, (function, given, more) in jobs.items()}
    torch.save(found, f"{folder}/{rank}.pt")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def on_ranks(number, work, folder):
    """What each of ``number`` ranks found."""
    folder.mkdir()
    given = (number, free_port(), work, folder)
    multiprocessing.start_processes(on_rank, given, nprocs=number, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(number)]
