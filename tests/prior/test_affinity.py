"""Affinities: symmetric, unaffected by padding, and the factored MLP equal to the concatenating one."""

import pytest
import torch

from ttdg.prior import Affinity, MLPAffinity
from ttdg.prior.affinity import ReluSumByChunks, relu_sum, relu_sum_by_cdist


def graphs(seed: int = 0):
    mask = torch.arange(5) < torch.tensor([[5], [3], [0], [4]])
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(4, 5, 6, generator=draw, dtype=torch.float64) * mask[:, :, None], mask


KINDS = [Affinity, MLPAffinity]


@pytest.mark.parametrize("kind", KINDS)
def test_affinities_are_symmetric_and_stored_as_one_stacked_matrix(kind):
    nodes, mask = graphs()
    M = kind(6).double()(nodes, mask)
    assert torch.equal(M, M.transpose(0, 1).mT)
    assert M.transpose(1, 2).is_contiguous()
    assert (M[range(4), range(4)] == 0).all()
    assert M[0, 1].abs().sum() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_renaming_graphs_and_nodes_renames_affinities(kind):
    nodes, mask = graphs()
    affinity, graph, node = kind(6).double(), torch.tensor([2, 0, 3, 1]), torch.tensor([4, 2, 0, 1, 3])
    renamed = affinity(nodes[graph][:, node], mask[graph][:, node])
    assert torch.allclose(renamed, affinity(nodes, mask)[graph][:, graph][:, :, node][:, :, :, node])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_affinity_and_receives_no_gradient(kind):
    nodes, mask = graphs()
    affinity = kind(6).double()
    garbage = torch.where(mask[:, :, None], nodes, 9.0).requires_grad_()
    M = affinity(garbage, mask)
    assert torch.equal(M, affinity(nodes, mask))
    assert (torch.autograd.grad(M.square().sum(), garbage)[0][~mask] == 0).all()


def test_the_bilinear_affinity_starts_as_the_inner_product():
    nodes, mask = graphs()
    assert torch.allclose(Affinity(6).double()(nodes, mask)[0, 3], nodes[0] @ nodes[3].T)


def test_the_factored_mlp_is_the_literal_concatenating_mlp():
    nodes, mask = graphs()
    affinity = MLPAffinity(6, hidden=20).double()
    W, b = torch.cat([affinity.query.weight, affinity.key.weight], 1), affinity.key.bias

    def literal(x, y):
        both = torch.cat([x[:, None].expand(-1, len(y), -1), y[None].expand(len(x), -1, -1)], 2)
        return affinity.score((both @ W.T + b).relu())[:, :, 0]

    expected = (literal(nodes[0], nodes[3]) + literal(nodes[3], nodes[0]).T) / 2 * mask[3]
    assert torch.allclose(affinity(nodes, mask)[0, 3], expected, atol=1e-12)


WAYS = {"by cdist": relu_sum_by_cdist, "by chunks": lambda x, y, w: ReluSumByChunks.apply(x, y, w, 3)}


@pytest.mark.parametrize("way", WAYS)
def test_the_factored_sum_and_its_gradient_are_those_of_the_literal_one(way):
    draw = torch.Generator().manual_seed(0)
    x, y, w = (
        torch.randn(*s, generator=draw, dtype=torch.float64, requires_grad=True)
        for s in ((2, 3, 10), (2, 4, 10), (10,))
    )
    G = torch.randn(2, 3, 4, generator=draw, dtype=torch.float64)
    literal, factored = (x[:, :, None] + y[:, None]).relu() @ w, WAYS[way](x, y, w)
    assert torch.allclose(factored, literal, atol=1e-12)
    for expected, found in zip(
        torch.autograd.grad(literal, (x, y, w), G), torch.autograd.grad(factored, (x, y, w), G), strict=True
    ):
        assert torch.allclose(found, expected, atol=1e-12)


def test_from_half_precision_features_the_sum_is_in_single_precision():
    x, w = torch.ones(1, 2, 4, dtype=torch.bfloat16), torch.ones(4)
    assert torch.equal(relu_sum(x, x, w), torch.full((1, 2, 2), 8.0))
