"""Agreement: a correlation and a mean over matches, highest at the truth."""

import numpy as np
import pytest
import torch

from ttdg.matching import agreement, centred, cosine_affinity, round_matching


def test_for_two_graphs_it_is_the_correlation_of_matched_edges_and_the_mean_affinity_of_matched_nodes(plant):
    planted = plant(0, [6, 6], 6, edge_noise=0.3, node_noise=0.5)
    graphs, M = planted.graphs, cosine_affinity(planted.graphs)
    order = planted.pairs[0, 1].argmax(1)
    A, B = graphs.edges[0], graphs.edges[1][order][:, order]
    off = ~torch.eye(6).bool()
    correlation = np.corrcoef(A[off].numpy(), B[off].numpy())[0, 1]
    expected = 2 * correlation + float(M[0, 1, range(6), order].mean())
    assert float(agreement(planted.universe, graphs.edges, M, graphs.mask)) == pytest.approx(
        expected, abs=1e-9
    )


@pytest.mark.parametrize("sizes", [[8, 8, 8], [8, 6, 7, 5]])
def test_without_noise_no_other_matching_agrees_better_than_the_truth(plant, sizes):
    for seed in range(5):
        planted = plant(seed, sizes, 8)
        graphs, M = planted.graphs, cosine_affinity(planted.graphs)
        truth = agreement(planted.universe, graphs.edges, M, graphs.mask)
        noise = torch.randn(planted.universe.shape, generator=torch.Generator().manual_seed(seed)).double()
        for amount in (0.3, 1.0, 9.0):
            other = round_matching(planted.universe + amount * noise, graphs.mask)
            if not torch.equal(other, planted.universe):
                assert agreement(other, graphs.edges, M, graphs.mask) < truth


def test_centred_edges_have_mean_zero_over_the_real_pairs_and_zeros_elsewhere(plant):
    graphs = plant(0, [6, 4, 1, 0], 6).graphs
    A = centred(graphs.edges, graphs.mask)
    assert A.sum((1, 2)).abs().max() < 1e-12
    assert (A.diagonal(dim1=1, dim2=2) == 0).all()
    assert (A[~graphs.mask] == 0).all()
