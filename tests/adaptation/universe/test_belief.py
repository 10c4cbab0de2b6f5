"""Tests of the belief in carried labels."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ttdg.adaptation.universe.belief import FULL, NONE, belief

REGIONS = {"disc": (1, 2), "cup": (2,)}


def one_hot(labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(labels, 3).permute(0, 3, 1, 2).float()


def random_labels(seed: int) -> torch.Tensor:
    return one_hot(torch.randint(3, (4, 6, 5), generator=torch.Generator().manual_seed(seed)))


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_belief_is_a_ramp_of_the_mean_dice_of_the_regions(a: int, b: int) -> None:
    carried, own = random_labels(a), random_labels(b)
    expected = []
    for c, o in zip(carried.argmax(1).numpy(), own.argmax(1).numpy(), strict=True):
        pairs = [(np.isin(c, labels), np.isin(o, labels)) for labels in REGIONS.values()]
        mean = np.mean([2 * (p & q).sum() / max(1, p.sum() + q.sum()) for p, q in pairs])
        expected.append(np.clip((mean - NONE) / (FULL - NONE), 0, 1))
    np.testing.assert_allclose(belief(carried, own, REGIONS).numpy(), expected, atol=1e-5)


@given(st.integers(0, 10_000))
def test_labels_that_equal_the_networks_are_fully_believed(seed: int) -> None:
    labels = random_labels(seed)
    assert belief(labels, labels, REGIONS).tolist() == [1.0] * 4


def test_a_structure_at_another_place_is_not_believed() -> None:
    here, there = torch.zeros(1, 8, 8, dtype=torch.long), torch.zeros(1, 8, 8, dtype=torch.long)
    here[:, :3, :3], there[:, 5:, 5:] = 2, 2
    assert belief(one_hot(here), one_hot(there), REGIONS).tolist() == [0.0]


@pytest.mark.parametrize("empty", [0, 1])
def test_an_image_without_structures_is_believed_if_both_say_so(empty: int) -> None:
    nothing = torch.zeros(1, 8, 8, dtype=torch.long)
    other = nothing.clone()
    other[:, 2:5, 2:5] = 2 * (1 - empty)
    assert belief(one_hot(nothing), one_hot(other), REGIONS).tolist() == [float(empty)]
