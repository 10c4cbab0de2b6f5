"""Locations of the universe points at the source, and the error of nodes at other locations."""

import math

import pytest
import torch
from torch import Tensor

from ttdg.networks import NetworkSpec, Segmenter, level_channels
from ttdg.prior import MorphologyPrior, Nodes, PriorSpec, prior_for
from ttdg.prior.locations import (
    PointLocations,
    point_locations,
    relative_radii,
)
from ttdg.prior.universe_signals import matching_signals

LABELS, POINTS = 2, 6


@pytest.fixture(scope="module")
def prior() -> MorphologyPrior:
    torch.manual_seed(0)
    return MorphologyPrior(PriorSpec(LABELS, (4,), ("e0",), 8, points=POINTS, per_tissue=5))


def nodes_at(coordinates: Tensor, tissue: int = 2) -> Nodes:
    b, n = coordinates.shape[:2]
    labels = torch.full((b, n), tissue)
    features = torch.nn.functional.normalize(
        torch.randn(b, n, 8, generator=torch.Generator().manual_seed(0)), dim=2
    )
    return Nodes(features, labels, torch.ones(b, n, dtype=torch.bool), coordinates)


def ring(n: int, radius: float, centre: tuple[float, float] = (0.5, 0.5), turn: float = 0.0) -> Tensor:
    angle = torch.arange(n) * (2 * math.pi / n) + turn
    return torch.stack([centre[0] + radius * angle.sin(), centre[1] + radius * angle.cos()], -1)[None]


def test_relative_radii_do_not_depend_on_zoom_orientation_and_position(prior):
    usual = relative_radii(prior, nodes_at(ring(8, 0.2)))
    assert torch.allclose(usual, torch.ones(1, 8), atol=1e-5)
    for other in (ring(8, 0.05), ring(8, 0.2, (0.3, 0.6)), ring(8, 0.2, turn=0.4)):
        assert torch.allclose(relative_radii(prior, nodes_at(other)), usual, atol=1e-4)


def test_the_error_is_zero_at_the_location_of_the_point_and_clipped_far_away(prior):
    nodes = nodes_at(ring(6, 0.2))
    d = len(prior.universe)
    here = PointLocations(torch.ones(d), torch.full((d,), 0.1), torch.full((d,), 1 / d))
    elsewhere = PointLocations(torch.full((d,), 1.2), torch.full((d,), 0.1), torch.full((d,), 1 / d))
    assert matching_signals(prior, here, nodes)["place"].item() == pytest.approx(0, abs=1e-6)
    assert matching_signals(prior, elsewhere, nodes)["place"].item() == pytest.approx(4, rel=1e-3)


def test_an_image_without_a_structure_has_no_location_error(prior):
    nodes = nodes_at(ring(6, 0.2), tissue=1)
    d = len(prior.universe)
    locations = PointLocations(torch.zeros(d), torch.full((d,), 0.1), torch.full((d,), 1 / d))
    assert matching_signals(prior, locations, nodes)["place"].item() == 0


def test_locations_do_not_depend_on_the_batching_of_images():
    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(LABELS, "light")).eval()
    prior = prior_for(level_channels(network), LABELS, node_dim=8, points=POINTS, per_tissue=5)
    labels = torch.zeros(3, 32, 32, dtype=torch.long)
    labels[:, 8:24, 4:20] = 1
    images = torch.randn(3, 3, 32, 32)
    together, apart = (
        point_locations(network, {"learned": prior}, batches)["learned"]
        for batches in ([(images, labels)], [(images[:1], labels[:1]), (images[1:], labels[1:])])
    )
    assert torch.allclose(together.radius, apart.radius, atol=1e-4)
    assert torch.allclose(together.use, apart.use, atol=1e-4)
    assert together.use.sum().item() == pytest.approx(1, abs=1e-5)
    assert (together.spread >= 0.1 - 1e-6).all()
    assert (together.use[POINTS : 2 * POINTS] > together.use.min()).any()
