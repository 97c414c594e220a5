"""What tests of losses and kernels share: seeded auctions, the members of the loss family, a measure of error.

Kernels run on a GPU, or in Triton's interpreter on the CPU (TRITON_INTERPRET=1).
"""

import os
from dataclasses import dataclass, fields, replace
from itertools import pairwise as neighbours
from itertools import product
from typing import NamedTuple

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

import bidwise

PROPERTY = settings(max_examples=120, deadline=None, derandomize=True, database=None)


class Member(NamedTuple):
    """One loss of the family, as the keyword arguments that ask for it."""

    value: str
    gap: str
    surrogate: str
    weighting: float | None

    def __str__(self):
        return "-".join((*self[:3], "weighted" if self.weighting else "plain"))


MEMBERS = [
    Member(*choice)
    for choice in product(
        ("clicks", "teacher"), ("signed", "positive", "order"), ("logistic", "hinge", "indicator"), (None, 3.0)
    )
]


@dataclass(frozen=True)
class Ads:
    """A batch: per-ad tensors of shape ``(..., ads)`` and the auctions' offsets."""

    logits: Tensor
    clicks: Tensor
    bids: Tensor
    offsets: Tensor | None
    teacher: Tensor

    def but(self, **changes):
        return replace(self, **changes)

    def map(self, change):
        """The batch with ``change`` applied to every per-ad tensor."""
        names = [field.name for field in fields(self) if field.name != "offsets"]
        return self.but(**{name: change(getattr(self, name)) for name in names})

    def split(self):
        """Every auction as a batch of its own."""
        return [self.map(lambda x, a=a, b=b: x[..., a:b]).but(offsets=None) for a, b in self.bounds()]

    def bounds(self):
        ads = self.logits.shape[-1]
        return list(neighbours([0, ads] if self.offsets is None else self.offsets.tolist()))

    def positional(self):
        return self.logits, self.clicks, self.bids, self.offsets

    def lists(self):
        """The batch as the reference takes it."""
        offsets = None if self.offsets is None else self.offsets.tolist()
        numbers = [x.double().tolist() for x in (self.logits, self.clicks, self.bids, self.teacher)]
        return (*numbers[:3], offsets, numbers[3])


def random_auctions(seed, sizes=(5, 1, 3, 0, 4), dtype=torch.float64, ties=False, heavy=False):
    """Seeded ads in auctions of ``sizes``.

    ``ties``: nine ads of ten are copies of three, so most pairs tie in eCPM, in value or in both.
    ``heavy``: bids spread evenly over the magnitudes 1e-6 to 1e8 instead of around 1.

    >>> random_auctions(seed=0, sizes=[2, 3]).offsets
    tensor([0, 2, 5])
    """
    generator = torch.Generator().manual_seed(seed)
    ads = sum(sizes)

    def draw(draws=torch.randn):
        return draws(ads, generator=generator, dtype=torch.float64)

    logits, noise, size_of_bid, luck = draw(), draw(), draw(), draw(torch.rand)
    bids = 10 ** (14 * draw(torch.rand) - 6) if heavy else torch.exp(0.7 * size_of_bid)
    if ties and ads:
        kind = torch.randint(0, min(3, ads), (ads,), generator=generator)
        source = torch.where(draw(torch.rand) < 0.9, kind, torch.arange(ads))
        logits, noise, bids = logits[source], noise[source], bids[source]
    clicks = (luck < 0.4).double()
    teacher = torch.sigmoid(logits + 0.5 * noise)
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    return Ads(logits, clicks, bids, offsets, teacher).map(lambda x: x.to(dtype))


def stack(*batches):
    """Batches of equal offsets as one with a leading dimension."""
    columns = zip(*([x.logits, x.clicks, x.bids, x.teacher] for x in batches), strict=True)
    logits, clicks, bids, teacher = map(torch.stack, columns)
    return Ads(logits, clicks, bids, batches[0].offsets, teacher)


def pairwise(ads, member, **options):
    """`bidwise.pairwise_welfare_loss` of a batch."""
    return bidwise.pairwise_welfare_loss(*ads.positional(), **({"teacher": ads.teacher} | member._asdict() | options))


def loss_and_gradient(ads, member, **options):
    """Loss and the gradient of its sum with respect to the logits."""
    logits = ads.logits.detach().clone().requires_grad_()
    loss = pairwise(ads.but(logits=logits), member, **options)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach(), gradient


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def some_weights(*shape, seed=0):
    return 0.2 + 3 * torch.rand(*shape, generator=seeded(seed), dtype=torch.float64)


def of_named_loss(loss, ads, weights=None):
    """What a loss called as `bidwise.LOSSES` are gives, and the gradient of its sum with respect to the logits."""
    logits = ads.logits.detach().clone().requires_grad_()
    found = loss(
        logits, ads.clicks, ads.bids, ads.offsets, ads.teacher, **({} if weights is None else {"weights": weights})
    )
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    return found.detach(), gradient


def equal(left, right):
    """Whether two states of a model have the same bits."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def worst(found, expected, scale):
    """Largest error of ``found`` in units of ``scale``; infinite where one is owed exactly 0 and is not."""
    found, expected, scale = (torch.as_tensor(x, dtype=torch.float64) for x in (found, expected, scale))
    error = (found - expected).abs()
    relative = torch.where(error == 0, 0.0, error / scale)  # 0 / 0 is no error
    return relative.nan_to_num(nan=float("inf")).max().item() if relative.numel() else 0.0


def largest(x):
    """Max norm, 0 for nothing."""
    return x.abs().max().item() if x.numel() else 0.0


seeds = st.integers(0, 2**20)
members = st.sampled_from(MEMBERS)
auctions = st.builds(
    random_auctions, seed=seeds, sizes=st.lists(st.integers(0, 6), min_size=1, max_size=5), ties=st.booleans()
)


CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
needs_gpu = pytest.mark.skipif(not CUDA, reason="needs a GPU")
gpu_or_interpreter = [
    pytest.mark.skipif(
        not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="needs a GPU or TRITON_INTERPRET=1"
    ),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy, in the interpreter, tells of every overflow to inf
]


def read_bounds_of_loops(monkeypatch):
    """Triton 3.6 interprets bounds of loops by ``int(array)``, which numpy 2.4 does not do for arrays of shape (1,)."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_with_index)
