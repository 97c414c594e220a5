"""The permutation that torch.randperm draws on a CPU, on a GPU: a second for 37 million ads becomes a quarter of one.

torch swaps place i with place i + r_i mod (n - i), for i = 0, 1, ..., n - 2, each r_i a number of 32 bits from the
generator: a chain of random accesses to memory, one after the other. What ends up where can be found for all places at
once. Let t_i be the place that step i swaps with. Before step i, place i holds what the last step k < i with t_k = i
has put there, which is what place k held before step k, and so on: a chain that pointers jump along in log steps. Step
i leaves in place i what place t_i held: what the last step k < i with t_k = t_i has put there, or t_i itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bidwise.kernels.gpu import side_stream

NEEDED = 100  # bytes of GPU memory for each place while a permutation is found
FROM, TO = 2**18, 2**32 // 20  # below, a GPU is no faster; from there on torch takes numbers of 64 bits


def permutations(count: int, randoms: Sequence[torch.Generator], device: torch.device) -> Tensor:
    """``torch.randperm(count)`` of each generator, ``(generators, count)``, on the CPU or, where it is worth it, the
    same on a GPU: row k is that plus k times count.

    It is waited for, on a stream of its own: a thread may draw while others train.
    """
    if device.type != "cuda" or not FROM <= count < TO:
        drawn = torch.stack([torch.randperm(count, generator=random, device="cpu") for random in randoms])
        return drawn + count * torch.arange(len(randoms), device="cpu")[:, None]
    stream = side_stream(device, "order")
    with torch.cuda.stream(stream):
        orders = torch.empty(len(randoms), count, dtype=torch.int64, device=device)
        for k, random in enumerate(randoms):
            torch.add(swapped(count, draws(count - 1, random).to(device)), k * count, out=orders[k])
        stream.synchronize()
    return orders


def draws(count: int, random: torch.Generator) -> Tensor:
    """``count`` numbers of 32 bits in pairs of 64, the one that came first in the upper half, as torch gives all bits.

    The lower half of an odd last one is not used up: the generator is where torch.randperm leaves it.
    """
    pairs = torch.empty(-(-count // 2), dtype=torch.int64)
    pairs[: count // 2].random_(-(2**63), None, generator=random)
    if count % 2:
        twin = torch.Generator().set_state(random.get_state())
        pairs[-1:].random_(-(2**63), None, generator=twin)
        torch.empty(1, dtype=torch.int32).random_(generator=random)  # goes on by one number
    return pairs


def swapped(count: int, pairs: Tensor) -> Tensor:
    """What torch's swaps by these draws make of 0, 1, ..., ``count`` - 1.

    >>> random, twin = (torch.Generator().manual_seed(1) for _ in range(2))
    >>> torch.equal(swapped(1000, draws(999, random)), torch.randperm(1000, generator=twin))
    True
    """
    place = torch.arange(count, device=pairs.device)
    number = torch.stack([pairs >> 32, pairs], dim=1).bitwise_and_(2**32 - 1).view(-1)[: count - 1]
    target = place.clone()
    target[:-1] += number.remainder_(count - place[:-1])
    del number
    by_target, step = target.sort(stable=True)
    again = by_target[1:] == by_target[:-1]
    # the step before with the same target, -1 for none, in this order and in that of steps
    earlier = torch.where(again, step[:-1], -1)
    earlier = torch.cat([earlier.new_full((1,), -1), earlier])
    before = torch.empty_like(step).scatter_(0, step, earlier)
    # the last step before p that swapped with p: the last of those with target p, but for p itself
    found = torch.where(step == by_target, torch.where(earlier < 0, by_target, earlier), step)
    ends = torch.cat([~again, again.new_ones(1)])
    held = torch.arange(count + 1, device=pairs.device)  # the last place takes what is not the end of a run
    held = held.scatter_(0, torch.where(ends, by_target, count), found)[:count]
    while not torch.equal(farther := held[held], held):
        held = farther
    return torch.where(before < 0, target, held[before.clamp_(min=0)])
