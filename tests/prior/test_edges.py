"""Edges: symmetric, zero diagonal, bounded, unaffected by padding, and dropped in training only."""

import pytest
import torch

from ttdg.prior import Edges, cosine_distance


def graphs(seed: int = 0):
    mask = torch.arange(6) < torch.tensor([[6], [4], [1], [0]])
    nodes = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(seed)) * mask[:, :, None]
    return nodes, mask, torch.rand(4, 6, 2, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("reach", [None, 0.2])
def test_edges_are_symmetric_without_loops_and_rows_sum_to_at_most_one(training, reach):
    nodes, mask, places = graphs()
    A = Edges(8, reach=reach).train(training)(nodes, mask, places)
    assert torch.allclose(A, A.mT)
    assert (A.diagonal(dim1=1, dim2=2) == 0).all()
    assert (A >= 0).all()
    assert (A.sum(2) <= 1 + 1e-5).all()
    assert (A[~mask] == 0).all()


def test_different_nodes_are_apart_and_equal_ones_are_not():
    nodes, _, _ = graphs()
    D = cosine_distance(nodes)
    assert (D[0][~torch.eye(6).bool()] > 0.01).all()
    assert D[0].diagonal().abs().max() < 1e-6
    assert (D <= 2 + 1e-6).all()


def test_padding_changes_no_edge_and_receives_no_gradient():
    nodes, mask, _ = graphs()
    edges = Edges(8).eval()
    garbage = torch.where(mask[:, :, None], nodes, 1e3).requires_grad_()
    A = edges(garbage, mask)
    assert torch.allclose(A, edges(nodes, mask), atol=1e-6)
    assert (torch.autograd.grad(A.square().sum(), garbage)[0][~mask] == 0).all()


def test_renaming_nodes_renames_edges():
    nodes, mask, places = graphs()
    edges, order = Edges(8, reach=0.3).eval(), torch.tensor([3, 1, 5, 0, 4, 2])
    A = edges(nodes[:1], mask[:1], places[:1])
    assert torch.allclose(
        edges(nodes[:1, order], mask[:1, order], places[:1, order]), A[:, order][:, :, order], atol=1e-6
    )


def test_in_training_a_tenth_of_the_edges_is_dropped_in_both_directions_and_the_rest_unchanged():
    nodes = torch.randn(1, 80, 8, generator=torch.Generator().manual_seed(0))
    mask, edges = torch.ones(1, 80).bool(), Edges(8, drop=0.1)
    torch.manual_seed(0)
    dropped, whole = edges.train()(nodes, mask), edges.eval()(nodes, mask)
    kept = dropped > 0
    assert 0.07 < 1 - kept.sum() / (80 * 79) < 0.13
    assert torch.equal(dropped[kept], whole[kept])
    assert torch.equal(edges(nodes, mask), whole)


def test_nodes_near_each_other_have_heavier_edges_with_a_reach():
    nodes, mask = torch.ones(1, 3, 8), torch.ones(1, 3).bool()
    places = torch.tensor([[[0.1, 0.1], [0.15, 0.1], [0.9, 0.9]]])
    A = Edges(8, reach=0.2).eval()(nodes, mask, places)
    assert A[0, 0, 1] > 5 * A[0, 0, 2]


def test_gradients_are_finite_for_empty_graphs_and_for_nodes_that_are_zero():
    nodes, mask, places = graphs()
    nodes = (nodes * 0).requires_grad_()
    A = Edges(8, reach=0.2)(nodes, mask, places * 0)
    assert torch.autograd.grad(A.sum(), nodes)[0].isfinite().all()
