"""Measures of matchings, on matchings with known quality."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.prior.correspondence import (
    UNMATCHED,
    chance_agreement,
    cycle_violations,
    label_agreement,
    matches_through_universe,
    nearest_neighbour_matches,
    perplexity,
    relative_distance,
    structure_coordinates,
)

IMAGES, NODES, POINTS = 4, 6, 10


def some_points(seed: int) -> torch.Tensor:
    """Each image uses random points, none twice, and has two unmatched nodes."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(POINTS, generator=generator)[:NODES] for _ in range(IMAGES)]
    points = torch.stack(rows)
    points[:, -2:] = UNMATCHED
    return points


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_nodes_of_the_same_point_are_matched_and_cycles_are_consistent(seed):
    points = some_points(seed)
    matches = matches_through_universe(points, POINTS)
    for i in range(IMAGES):
        for j in range(IMAGES):
            for k in range(NODES):
                partner = [l for l in range(NODES) if i != j and points[i, k] == points[j, l] != UNMATCHED]
                assert matches[i, j, k] == (partner[0] if partner else UNMATCHED)
    violations = cycle_violations(matches)
    assert violations == 0 or math.isnan(violations)


def test_the_nearest_neighbour_is_the_most_similar_real_node():
    features = torch.eye(3)[torch.tensor([[0, 1, 2], [2, 0, 1]])]
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert nearest_neighbour_matches(features, mask).tolist() == [
        [[-1] * 3, [1, 2, -1]],
        [[0, 0, 1], [-1] * 3],
    ]


def test_inconsistent_cycles_are_counted():
    """0 → 1 → 2 ends at node 1, 0 → 2 at node 0."""
    matches = torch.full((3, 3, 2), UNMATCHED)
    matches[0, 1] = torch.tensor([0, UNMATCHED])
    matches[1, 2] = torch.tensor([1, UNMATCHED])
    matches[0, 2] = torch.tensor([0, UNMATCHED])
    assert cycle_violations(matches) == 1.0
    matches[0, 2, 0] = 1
    assert cycle_violations(matches) == 0.0


def test_agreement_is_the_share_of_pairs_of_one_label():
    labels = torch.tensor([[1, 2], [1, 1]])
    matches = torch.tensor([[[-1, -1], [0, 1]], [[0, 1], [-1, -1]]])
    assert label_agreement(matches, labels) == 0.5
    assert math.isnan(label_agreement(torch.full((2, 2, 2), UNMATCHED), labels))


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
    assert perplexity(torch.tensor([[0, UNMATCHED], [0, UNMATCHED]]), POINTS) == pytest.approx(1)


def test_structure_coordinates_do_not_depend_on_its_position_and_size():
    masks = torch.zeros(2, 40, 40, dtype=torch.bool)
    masks[0, 10:20, 10:20] = True
    masks[1, 16:36, 4:24] = True
    corners = torch.tensor([[[10, 10], [20, 20]], [[16, 4], [36, 24]]]) / 40
    assert torch.allclose(
        structure_coordinates(corners, masks), torch.tensor([[-0.5, -0.5], [0.5, 0.5]]), atol=1e-5
    )


def test_an_empty_structure_gives_finite_coordinates():
    assert structure_coordinates(torch.rand(1, 3, 2), torch.zeros(1, 8, 8, dtype=torch.bool)).isfinite().all()


def random_coordinates(images: int = 6, nodes: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    one = torch.randn(nodes, 2)
    return one.expand(images, -1, -1), torch.arange(nodes).expand(images, -1)


def test_the_relative_distance_is_zero_at_equal_positions_and_one_at_random():
    coordinates, points = random_coordinates()
    labels, all_pairs = torch.ones_like(points), torch.ones(6, 6, dtype=torch.bool)
    assert relative_distance(matches_through_universe(points, 40), labels, coordinates, all_pairs) == 0
    shuffled = torch.stack([torch.randperm(40) for _ in range(6)])
    found = relative_distance(matches_through_universe(shuffled, 40), labels, coordinates, all_pairs)
    assert found == pytest.approx(1, abs=0.12)


def test_only_pairs_of_one_label_among_the_chosen_images_count():
    coordinates, points = random_coordinates(2, 4)
    labels = torch.tensor([[1, 1, 0, 2], [1, 2, 0, 2]])
    matches = matches_through_universe(points, 4)
    away = coordinates.clone()
    away[1, 1:3] += 100.0  # pairs of other labels, and of none
    all_pairs = torch.ones(2, 2, dtype=torch.bool)
    assert relative_distance(matches, labels, away, all_pairs) == 0
    assert math.isnan(relative_distance(matches, labels, away, ~all_pairs))
