"""Seeds that are derived from others, and look-ups that suggest what was meant."""

import itertools

import numpy as np
import pytest
import torch

from bidwise.checks import InputError, Named, check_seed, derived_seed
from bidwise.data import WORLDS
from paper.grids import BATCHES, INITIAL, seeds_of
from paper.regimes import TEACHERS_ADS

LARGE = (4001, 2**32, 2**32 + 1, 10**17, 2**63 - 1)


def test_seeds_of_published_results_are_what_they_were():
    for seed in (0, 1, 17, 4000):
        assert seeds_of(seed, 5) == [1_000_003 * seed + 2 * repeat for repeat in range(5)]


def test_every_purpose_and_repeat_has_bits_of_its_own():
    """torch's generator of the CPU reads 32 bits of a seed."""
    for seed in (4000, *LARGE):
        purposes = [s + extra for s in seeds_of(seed, 1000) for extra in (0, BATCHES, INITIAL, TEACHERS_ADS)]
        assert len({s % 2**32 for s in purposes}) == len(purposes)
        assert all(0 <= s < 2**63 for s in purposes)
    every = [s % 2**32 for seed in (0, 1, 4000, *LARGE) for s in seeds_of(seed, 1000)]
    assert len(set(every)) == len(every)


def test_any_seed_can_be_used_by_torch_and_numpy():
    drawn = set()
    for seed in (0, 1, 4000, *LARGE):
        derived = derived_seed(seed, 3)
        drawn.add(torch.rand(1, generator=torch.Generator().manual_seed(derived)).item())
        drawn.add(np.random.default_rng(derived).random())
    assert len(drawn) == 2 * (3 + len(LARGE))


def test_parts_are_told_apart():
    parts = [(), (1,), ("a",), ("a", 1), ("b", 1), ("a", "b"), ("ab",)]
    for seed in (7, *LARGE):
        found = [derived_seed(seed, *each) for each in parts]
        assert len(set(found)) == len(found)
    assert derived_seed(5, "bids", 2) == derived_seed(5, "bids", 2)


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (-1, "seed must be at least 0, found -1"),
        (2**63, "seed must be at most 9223372036854775807, found 9223372036854775808"),
        (1.5, "seed must be a whole number, found 1.5"),
        (True, "seed must be a whole number, found True"),
    ],
)
def test_other_things_are_no_seeds(seed, words):
    for check in (lambda: check_seed("seed", seed), lambda: derived_seed(seed, 0)):
        with pytest.raises(InputError, match=words):
            check()


def test_a_name_that_is_not_there_suggests_the_nearest():
    words = "world must be one of plotted, printed, .*, found 'plotte'; did you mean 'plotted'?"
    for kind in (InputError, KeyError):
        with pytest.raises(kind, match=words):
            WORLDS["plotte"]
    assert WORLDS.get("plotte") is None
    assert "plotte" not in WORLDS
    assert list(itertools.islice(Named("letter", {"a": 1, "b": 2}), 1)) == ["a"]
