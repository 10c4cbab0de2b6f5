"""Sampling of sites by a power of their size, and of cases uniformly within a site."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.data import balanced_indices

SIZES = (100, 400, 1600)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("power", "shares"), [(0.0, (1, 1, 1)), (0.5, (10, 20, 40)), (1.0, (100, 400, 1600))]
)
def test_sites_are_drawn_in_proportion_to_a_power_of_their_size(power: float, shares: tuple[int, ...]):
    site, _ = balanced_indices(SIZES, 20_000, generator(), power)
    drawn = torch.bincount(site, minlength=3) / 20_000
    torch.testing.assert_close(drawn, torch.tensor(shares) / sum(shares), atol=0.015, rtol=0)


def test_cases_of_a_site_are_drawn_evenly():
    _, index = balanced_indices([10], 20_000, generator())
    torch.testing.assert_close(torch.bincount(index) / 20_000, torch.full((10,), 0.1), atol=0.01, rtol=0)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any), st.floats(0, 2), st.integers(0, 2**32)
)
def test_indices_point_into_their_sites_and_never_into_empty_ones(sizes: list[int], power: float, seed: int):
    site, index = balanced_indices(sizes, 64, generator(seed), power)
    assert (index >= 0).all()
    assert (index < torch.tensor(sizes)[site]).all()


def test_the_same_seed_draws_the_same_batch():
    first, second = (torch.stack(balanced_indices(SIZES, 8, generator(3))) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, torch.stack(balanced_indices(SIZES, 8, generator(4))))
