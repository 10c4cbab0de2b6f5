"""`agreement`: equal to its definition, and highest for the true matching."""

import numpy as np
import pytest
import torch

from ttdg.matching import agreement, centred_edges, cosine_affinity, round_matching


def test_agreement_of_two_graphs_is_the_evidence_from_edge_correlation_and_node_affinity(plant):
    planted = plant(0, [6, 6], 6, edge_noise=0.3, node_noise=0.5)
    graphs, M = planted.graphs, cosine_affinity(planted.graphs)
    order = planted.pairs[0, 1].argmax(1)
    A, B = graphs.edges[0], graphs.edges[1][order][:, order]
    off = ~torch.eye(6).bool()
    correlation = np.corrcoef(A[off].numpy(), B[off].numpy())[0, 1]
    z = (M[0, 1, range(6), order].mean() - M[0, 1].mean()) / M[0, 1].std(correction=0)
    expected = -30 / 2 * np.log(1 - correlation**2) + 6 / 2 * float(z) ** 2
    found = agreement(planted.universe, graphs.edges, M, graphs.mask)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_random_matchings_of_random_graphs_agree_by_less_than_chance_can_explain():
    draw = torch.Generator().manual_seed(0)
    A = torch.rand(4, 10, 10, generator=draw).triu(1)
    M, mask = torch.randn(4, 4, 10, 10, generator=draw), torch.ones(4, 10).bool()
    U = round_matching(torch.rand(4, 10, 10, generator=draw), mask)
    assert agreement(U, A + A.mT, M, mask) < torch.lgamma(torch.tensor(11.0)) / 3


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
    A = centred_edges(graphs.edges, graphs.mask)
    assert A.sum((1, 2)).abs().max() < 1e-12
    assert (A.diagonal(dim1=1, dim2=2) == 0).all()
    assert (A[~graphs.mask] == 0).all()
