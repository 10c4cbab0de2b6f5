"""Measures of matchings, on matchings whose worth is known."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.prior.correspondence import (
    NONE,
    chance_agreement,
    cycle_violations,
    in_structure,
    label_agreement,
    nearest,
    perplexity,
    relative_distance,
    through_points,
)

IMAGES, NODES, POINTS = 4, 6, 10


def some_points(seed: int) -> torch.Tensor:
    """Every image uses other points, none twice, and leaves two nodes unmatched."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(POINTS, generator=generator)[:NODES] for _ in range(IMAGES)]
    points = torch.stack(rows)
    points[:, -2:] = NONE
    return points


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_nodes_of_one_point_go_together_and_cycles_close(seed):
    points = some_points(seed)
    matches = through_points(points, POINTS)
    for i in range(IMAGES):
        for j in range(IMAGES):
            for k in range(NODES):
                partner = [l for l in range(NODES) if i != j and points[i, k] == points[j, l] != NONE]
                assert matches[i, j, k] == (partner[0] if partner else NONE)
    violations = cycle_violations(matches)
    assert violations == 0 or math.isnan(violations)


def test_the_nearest_neighbour_is_the_most_similar_real_node():
    features = torch.eye(3)[torch.tensor([[0, 1, 2], [2, 0, 1]])]
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert nearest(features, mask).tolist() == [[[-1] * 3, [1, 2, -1]], [[0, 0, 1], [-1] * 3]]


def test_neighbours_that_contradict_each_other_are_counted():
    """0 → 1 → 2 comes to node 1, 0 → 2 to node 0."""
    matches = torch.full((3, 3, 2), NONE)
    matches[0, 1] = torch.tensor([0, NONE])
    matches[1, 2] = torch.tensor([1, NONE])
    matches[0, 2] = torch.tensor([0, NONE])
    assert cycle_violations(matches) == 1.0
    matches[0, 2, 0] = 1
    assert cycle_violations(matches) == 0.0


def test_agreement_is_the_share_of_pairs_of_one_label():
    labels = torch.tensor([[1, 2], [1, 1]])
    matches = torch.tensor([[[-1, -1], [0, 1]], [[0, 1], [-1, -1]]])
    assert label_agreement(matches, labels) == 0.5
    assert math.isnan(label_agreement(torch.full((2, 2, 2), NONE), labels))


def test_chance_is_the_agreement_of_all_pairs():
    labels = torch.tensor([[1, 1, 0], [1, 2, 2], [2, 0, 0]])
    pairs = [
        labels[i, k] == labels[j, l]
        for i in range(3) for j in range(3) for k in range(3) for l in range(3)
        if i != j and labels[i, k] and labels[j, l]
    ]  # fmt: skip
    assert chance_agreement(labels) == pytest.approx(sum(map(float, pairs)) / len(pairs))


def test_perplexity_counts_the_points_in_use():
    assert perplexity(torch.tensor([[0, 1], [2, 3]]), POINTS) == pytest.approx(4)
    assert perplexity(torch.tensor([[0, NONE], [0, NONE]]), POINTS) == pytest.approx(1)


def test_places_are_seen_from_the_structure_whatever_its_place_and_size():
    masks = torch.zeros(2, 40, 40, dtype=torch.bool)
    masks[0, 10:20, 10:20] = True
    masks[1, 16:36, 4:24] = True
    corners = torch.tensor([[[10, 10], [20, 20]], [[16, 4], [36, 24]]]) / 40
    assert torch.allclose(in_structure(corners, masks), torch.tensor([[-0.5, -0.5], [0.5, 0.5]]), atol=1e-5)


def test_an_empty_structure_gives_finite_places():
    assert in_structure(torch.rand(1, 3, 2), torch.zeros(1, 8, 8, dtype=torch.bool)).isfinite().all()


def random_places(images: int = 6, nodes: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    one = torch.randn(nodes, 2)
    return one.expand(images, -1, -1), torch.arange(nodes).expand(images, -1)


def test_matched_at_the_same_place_is_distance_zero_and_at_random_is_one():
    places, points = random_places()
    labels, everywhere = torch.ones_like(points), torch.ones(6, 6, dtype=torch.bool)
    assert relative_distance(through_points(points, 40), labels, places, everywhere) == 0
    shuffled = torch.stack([torch.randperm(40) for _ in range(6)])
    found = relative_distance(through_points(shuffled, 40), labels, places, everywhere)
    assert found == pytest.approx(1, abs=0.12)


def test_only_pairs_of_one_label_among_the_chosen_images_count():
    places, points = random_places(2, 4)
    labels = torch.tensor([[1, 1, 0, 2], [1, 2, 0, 2]])
    matches = through_points(points, 4)
    away = places.clone()
    away[1, 1:3] += 100.0  # pairs of other labels, and of none
    everywhere = torch.ones(2, 2, dtype=torch.bool)
    assert relative_distance(matches, labels, away, everywhere) == 0
    assert math.isnan(relative_distance(matches, labels, away, ~everywhere))
