"""The spectral start: consistent affinities are synchronised exactly, and the start is a soft matching."""

import pytest
import torch

from ttdg.matching import pairwise, round_matching, soft_affinity, spectral_scores, spectral_start
from ttdg.matching.match import cosine_affinity
from ttdg.matching.spectral import _embedding


@pytest.mark.parametrize("sizes", [[6, 6, 6], [6, 4, 5, 3], [2, 6, 0]])
def test_consistent_affinities_are_synchronised_exactly(plant, sizes):
    planted = plant(0, sizes, 6)
    U = round_matching(spectral_scores(planted.pairs, planted.graphs.mask, 6), planted.graphs.mask)
    assert torch.equal(pairwise(U), planted.pairs)


def test_a_universe_larger_than_all_nodes_together_leaves_its_rest_empty(plant):
    planted = plant(1, [3, 2], 5)
    scores = spectral_scores(planted.pairs, planted.graphs.mask, 20)
    assert scores.shape == (2, 3, 20)
    assert torch.equal(pairwise(round_matching(scores, planted.graphs.mask)), planted.pairs)


def test_the_start_is_a_soft_matching(plant):
    planted = plant(2, [5, 4], 6, node_noise=1.0)
    U = spectral_start(
        soft_affinity(cosine_affinity(planted.graphs), planted.graphs.mask), planted.graphs.mask, 6
    )
    assert torch.allclose(U.sum(2), planted.graphs.mask.double(), atol=1e-6)


def test_subspace_iteration_finds_the_space_of_the_top_eigenvectors():
    basis = torch.linalg.qr(
        torch.randn(200, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ).Q
    values = torch.cat([torch.full((10,), 5.0), torch.linspace(1, 0, 190)]).double()
    M = basis * values @ basis.T
    rows = _embedding(M, 10)
    assert torch.allclose(rows @ rows.T, 5 * basis[:, :10] @ basis[:, :10].T, atol=1e-4)
