"""The order of an epoch, found at once, is torch's."""

import pytest
import torch
from helpers import DEVICE, needs_gpu

from bidwise.training.permutation import draws, permutations, swapped


@pytest.mark.parametrize("count", [2, 3, 10, 1000, 100_003])
def test_swaps_found_at_once_are_those_of_torch(count):
    for seed in range(3):
        random, twin = (torch.Generator().manual_seed(seed) for _ in range(2))
        assert torch.equal(swapped(count, draws(count - 1, random)), torch.randperm(count, generator=twin))
        assert torch.equal(random.get_state(), twin.get_state())  # the next epoch is the same, too


@needs_gpu
def test_order_is_the_same_on_a_gpu():
    count = 1_000_003
    there, here = ([torch.Generator().manual_seed(k) for k in (5, 6)] for _ in range(2))
    found = permutations(count, there, torch.device(DEVICE))
    assert found.is_cuda
    assert torch.equal(found.cpu(), permutations(count, here, torch.device("cpu")))
