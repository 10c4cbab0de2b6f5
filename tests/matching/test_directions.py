"""Directions: equal to the paper's double sums, and half the gradient of their objectives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.matching import (
    edge_direction,
    label_gram_direction,
    node_direction,
    qap_direction,
    qap_objective,
    scale_by_mean_gain,
    stacked,
    within_class,
)

SIZES = [4, 0, 1, 5]


def gradient(objective, U):
    U = U.clone().requires_grad_()
    return torch.autograd.grad(objective(U), U)[0]


def close(x, y):
    return torch.allclose(x, y, atol=1e-10 * max(1.0, float(y.abs().max())))


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_the_edge_direction_is_the_double_sum_of_eq_6(ragged, weight):
    edges, _, U, _ = ragged(0, SIZES, 6)
    m = len(U)
    for i in range(m):
        terms = [edges[i] @ U[i] @ U[j].T @ edges[j] @ U[j] * (weight if i == j else 1.0) for j in range(m)]
        assert close(edge_direction(edges, U, self_weight=weight)[i], sum(terms))


def test_the_edge_direction_is_a_quarter_of_the_gradient_of_eq_6(ragged):
    edges, _, U, _ = ragged(1, SIZES, 6)
    A = torch.block_diag(*edges)

    def f(U):
        W = U.flatten(0, 1)
        return torch.trace(W.T @ A @ W @ W.T @ A @ W)

    assert close(edge_direction(edges, U), gradient(f, U) / 4)


def test_the_qap_direction_is_eq_11_with_twice_the_edge_weight(ragged):
    edges, affinity, U, _ = ragged(2, SIZES, 6)
    V = qap_direction(edges, affinity, U, edge_weight=0.7)
    for i in range(len(U)):
        terms = [
            1.4 * edges[i] @ U[i] @ U[j].T @ edges[j] @ U[j] + affinity[i, j] @ U[j] for j in range(len(U))
        ]
        assert close(V[i], sum(terms))


def test_the_objective_is_the_double_sum_of_eq_4(ragged):
    edges, affinity, U, _ = ragged(3, SIZES, 6)
    J = 0.0
    for i in range(len(U)):
        for j in range(len(U)):
            X = U[i] @ U[j].T
            J += 0.7 * torch.trace(X.T @ edges[i] @ X @ edges[j]) + torch.trace(X.T @ affinity[i, j])
    assert close(qap_objective(edges, affinity, U, edge_weight=0.7), J)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99), st.booleans(), st.booleans())
def test_the_qap_direction_is_half_the_gradient_of_the_objective(seed, with_affinity, with_unary):
    draw = torch.Generator().manual_seed(seed)
    edges = torch.rand(3, 4, 4, generator=draw, dtype=torch.float64)
    edges = edges + edges.mT
    M = torch.rand(3, 4, 3, 4, generator=draw, dtype=torch.float64)
    M = (M + M.permute(2, 3, 0, 1)).transpose(1, 2) if with_affinity else None
    E = torch.rand(3, 4, 5, generator=draw, dtype=torch.float64) if with_unary else None
    U = torch.rand(3, 4, 5, generator=draw, dtype=torch.float64)
    V = qap_direction(edges, M, U, edge_weight=0.3, unary=E)
    assert close(V, gradient(lambda U: qap_objective(edges, M, U, edge_weight=0.3, unary=E), U) / 2)


@pytest.mark.parametrize("with_unary", [False, True])
@pytest.mark.parametrize("with_affinity", [False, True])
@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_the_qap_direction_is_the_sum_of_the_terms_that_are_given(ragged, weight, with_affinity, with_unary):
    edges, affinity, U, _ = ragged(10, SIZES, 6)
    E = torch.rand(U.shape, generator=torch.Generator().manual_seed(0), dtype=U.dtype)
    M, unary = affinity if with_affinity else None, E if with_unary else None
    expected = 2 * weight * edge_direction(edges, U, self_weight=0.25) + with_unary * E
    expected = expected + with_affinity * node_direction(affinity, U)
    kept = E.clone()
    V = qap_direction(edges, M, U, edge_weight=weight, unary=unary, self_weight=0.25)
    assert close(V, expected)
    assert torch.equal(E, kept)


def test_padded_rows_have_no_direction(ragged):
    edges, affinity, U, mask = ragged(4, SIZES, 6)
    assert (qap_direction(edges, affinity, U)[~mask] == 0).all()


def labelled(seed, ragged):
    edges, _, U, mask = ragged(seed, SIZES, 6)
    labels = torch.randint(1, 4, mask.shape, generator=torch.Generator().manual_seed(seed)) * mask
    return edges, labels, U


def test_the_low_rank_class_direction_is_hippi_on_the_dense_matrix_of_eq_7(ragged):
    edges, labels, U = labelled(5, ragged)
    flat = labels.flatten()
    W = ((flat[:, None] == flat) & (flat > 0)).double()
    A, u = W.T @ torch.block_diag(*edges) @ W, U.flatten(0, 1)
    assert close(label_gram_direction(edges, labels, U).flatten(0, 1), A @ u @ u.T @ A @ u)


def test_eq_7_as_printed_cannot_tell_nodes_of_a_class_apart(ragged):
    edges, labels, U = labelled(6, ragged)
    V = label_gram_direction(edges, labels, U)
    rows = V[labels == 2]
    assert len(rows) > 1
    assert close(rows, rows[:1].expand_as(rows))


def test_the_recommended_class_form_keeps_edges_within_a_class_only(ragged):
    edges, labels, _ = labelled(7, ragged)
    masked = within_class(edges, labels)
    same = labels[:, :, None] == labels[:, None, :]
    assert torch.equal(masked[same], edges[same])
    assert (masked[~same] == 0).all()


def test_the_stacked_layout_holds_the_same_blocks_in_one_matrix(ragged):
    _, affinity, U, _ = ragged(8, SIZES, 6)
    other = stacked(affinity.contiguous())
    assert torch.equal(other, affinity)
    assert other.transpose(1, 2).is_contiguous()
    assert torch.equal(node_direction(other, U), node_direction(affinity.contiguous(), U))


def test_after_scaling_by_mean_gain_every_graph_has_mean_gain_one(ragged):
    _, _, V, mask = ragged(9, SIZES, 6)
    scaled = scale_by_mean_gain(1e6 * V, mask)
    gain = ((scaled.amax(2) - scaled.mean(2)) * mask).sum(1) / mask.sum(1).clamp(min=1)
    assert torch.allclose(gain, torch.tensor([1.0, 0.0, 1.0, 1.0]).double())
