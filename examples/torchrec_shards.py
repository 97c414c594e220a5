"""A TorchRec model whose embeddings are spread over two processes, trained with a welfare loss over the ads of both.

TorchRec is not among bidwise's dependencies. On a CPU (torch 2.13, torchrec and fbgemm-gpu-cpu 1.8, which were run):

    pip install torchmetrics==1.0.3 tensordict pyre-extensions iopath tqdm psutil
    pip install --no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0   # with dependencies it takes the build for CUDA
    torchrun --standalone --nproc-per-node 2 examples/torchrec_shards.py
    python examples/torchrec_shards.py   # one process; prints the same losses
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan

import bidwise
from bidwise import distributed
from bidwise.training import AcrossRanks

ADS, STEPS, WIDTH, RATE = 64, 8, 8, 0.5  # ads of a batch over all ranks
FIELDS = {"site": 100, "ad": 500, "user": 300, "hour": 24}  # values of each


class Model(nn.Module):
    """Embeddings of the fields, then a perceptron: one logit for each ad."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=name, embedding_dim=WIDTH, num_embeddings=values, feature_names=[name], pooling=PoolingType.SUM
            )
            for name, values in FIELDS.items()
        ]
        self.bags = EmbeddingBagCollection(tables=tables, device=torch.device("cpu"))
        self.top = nn.Sequential(nn.Linear(len(FIELDS) * WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.bags(features)  # by name: sharding changes the order of the columns
        return self.top(torch.cat([found[name] for name in FIELDS], dim=1)).squeeze(-1)


def fresh() -> Model:
    torch.manual_seed(0)
    model = Model()
    apply_optimizer_in_backward(torch.optim.SGD, model.bags.parameters(), {"lr": RATE})  # rows step in the backward
    return model


def sharded() -> nn.Module:
    """The model with one table by rows over all ranks and the others whole on some rank."""
    number = distributed.count()
    ways = {name: table_wise(rank=k % number, compute_kernel="fused") for k, name in enumerate(FIELDS)}
    ways["ad"] = row_wise(compute_kernel="fused")
    model = fresh()
    plan = construct_module_sharding_plan(
        model.bags, per_param_sharding=ways, world_size=number, local_size=number, device_type="cpu"
    )
    parallel = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=ShardingPlan({"bags": plan}),
        sharders=[EmbeddingBagCollectionSharder()],
    )
    weights = fresh().state_dict()
    for name, x in parallel.state_dict().items():  # the numbers of one process, to compare with it
        for shard in x.local_shards() if hasattr(x, "local_shards") else []:
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.detach().copy_(weights[name][row : row + rows, column : column + columns])
    return parallel


def batch_of(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids ``(fields, ads)``, clicks and bids of all ranks."""
    random = torch.Generator().manual_seed(step)
    ids = torch.stack([torch.randint(0, values, (ADS,), generator=random) for values in FIELDS.values()])
    clicks = (torch.rand(ADS, generator=random) < 0.1 + 0.6 * (ids[0] < 40)).float()
    return ids, clicks, torch.randn(ADS, generator=random).exp()


def main() -> None:
    with distributed.launched("cpu"):
        model = sharded() if distributed.count() > 1 else fresh()
        loss = AcrossRanks(bidwise.WelfareLoss(gap="positive"))
        dense = torch.optim.SGD([x for name, x in model.named_parameters() if "bags" not in name], lr=RATE)
        rank, ranks = distributed.rank(), distributed.count()
        here = slice(rank * ADS // ranks, (rank + 1) * ADS // ranks)
        for step in range(STEPS):
            ids, clicks, bids = (x[..., here] for x in batch_of(step))
            features = KeyedJaggedTensor(
                keys=list(FIELDS), values=ids.flatten(), lengths=torch.ones_like(ids).flatten()
            )
            dense.zero_grad()
            found = loss(model(features), clicks, bids)
            found.backward()
            dense.step()
            if distributed.rank() == 0:
                print(f"step {step}: loss {found.item():.6f} over {ADS} ads on {ranks} rank(s)", flush=True)


if __name__ == "__main__":
    main()
