"""`match`: exact without noise, better than pygmtools with noise, and clear errors for wrong input."""

import pygmtools
import pytest
import torch
from torch import Tensor

from ttdg.errors import UserError
from ttdg.matching import cycle_violation, graph_batch, match
from ttdg.types import GraphBatch

METHODS = ["ga", "hippi", "spectral", "pairwise"]


def recall(found: Tensor, true: Tensor) -> float:
    other = ~torch.eye(len(true)).bool()
    return float(found[other][true[other] == 1].mean())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(3))
def test_isomorphic_graphs_are_matched_exactly(plant, method, seed):
    planted = plant(seed, [12, 12, 12], 12)
    assert torch.equal(match(planted.graphs, universe_size=12, method=method).pairs, planted.pairs)


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_one_graph_are_matched_exactly_from_their_nodes(plant, seed):
    planted = plant(seed, [12, 7, 9, 10], 12)
    assert torch.equal(match(planted.graphs, universe_size=12, method="spectral").pairs, planted.pairs)
    assert recall(match(planted.graphs, universe_size=12).pairs, planted.pairs) > 0.9


@pytest.mark.parametrize("method", ["ga", "hippi", "spectral"])
def test_matches_agree_round_every_cycle(plant, method):
    planted = plant(1, [7, 5, 6, 6], 8, edge_noise=0.2, node_noise=1.5)
    assert cycle_violation(match(planted.graphs, universe_size=8, method=method).pairs) <= 0


def test_pairwise_matches_need_not_be_cycle_consistent_and_have_no_universe(plant):
    planted = plant(1, [7, 7, 7, 7], 7, node_noise=1.5)
    matches = match(planted.graphs, universe_size=7, method="pairwise")
    assert matches.universe is None
    assert cycle_violation(matches.pairs) == 1


@pytest.mark.parametrize("method", METHODS)
def test_renaming_nodes_and_graphs_renames_the_matches(plant, method):
    planted = plant(2, [6, 6, 6], 6, edge_noise=0.05, node_noise=0.3)
    nodes, graphs = torch.tensor([5, 0, 3, 1, 4, 2]), torch.tensor([1, 2, 0])
    old = planted.graphs
    new = GraphBatch(
        old.nodes[graphs][:, nodes], old.edges[graphs][:, nodes][:, :, nodes], old.labels, old.mask
    )
    expected = match(old, universe_size=6, method=method).pairs[graphs][:, graphs][:, :, nodes][
        :, :, :, nodes
    ]
    assert torch.equal(match(new, universe_size=6, method=method).pairs, expected)


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")  # raised inside pygmtools
@pytest.mark.parametrize("sizes", [[10, 10, 10, 10], [8, 8, 8, 8]])
def test_recall_under_noise_is_not_below_pygmtools_at_its_better_schedule(plant, sizes, thorough):
    ours, theirs, seeds = [], [], range(5 if thorough else 3)
    for seed in seeds:
        planted = plant(seed, sizes, 10, edge_noise=0.1, node_noise=0.8)
        graphs = planted.graphs
        ours.append(recall(match(graphs, universe_size=10).pairs, planted.pairs))
        unit = torch.nn.functional.normalize(graphs.nodes, dim=2)
        affinity = torch.einsum("inh,jph->ijnp", unit, unit)
        torch.manual_seed(seed)
        found = pygmtools.gamgm(
            graphs.edges, affinity, graphs.mask.sum(1), 10, param_lambda=0.1,
            sk_init_tau=0.1, sk_min_tau=0.006, sk_gamma=0.5, max_iter=50, backend="pytorch",
        )  # fmt: skip
        X = torch.stack([torch.stack([found[i, j] for j in range(4)]) for i in range(4)])
        theirs.append(recall(X, planted.pairs))
    assert sum(ours) >= sum(theirs) - len(seeds) * 0.02
    assert sum(ours) / len(seeds) > 0.7


def test_two_graphs_are_matched_alike_in_either_order(plant):
    for seed in range(3):
        old = plant(seed, [8, 7], 10, edge_noise=0.05, node_noise=0.5).graphs
        new = GraphBatch(old.nodes.flip(0), old.edges.flip(0), old.labels.flip(0), old.mask.flip(0))
        there, back = match(old, universe_size=10).pairs[0, 1], match(new, universe_size=10).pairs[0, 1]
        assert torch.equal(there, back.T)


def test_two_graphs_are_matched_when_both_have_nodes_without_a_partner(plant):
    for seed in range(5):
        planted = plant(seed, [9, 8], 12)
        assert recall(match(planted.graphs, universe_size=12).pairs, planted.pairs) > 0.99


def links(seed: int, m: int, n: int, d: int) -> tuple[GraphBatch, Tensor]:
    """Graphs with present or absent edges, some flipped: a family not used to choose the constants of `match`."""
    draw = torch.Generator().manual_seed(seed)
    points, linked = torch.randn(d, 8, generator=draw), torch.rand(d, d, generator=draw).triu(1) > 0.7
    truth = torch.stack([torch.randperm(d, generator=draw)[:n] for _ in range(m)])
    clean = (linked | linked.T)[truth[:, :, None], truth[:, None, :]]
    edges = (clean ^ (torch.rand(m, n, n, generator=draw) < 0.03)).float().triu(1)
    nodes = points[truth] + torch.randn(m, n, 8, generator=draw)
    mask = torch.ones(m, n).bool()
    true = (truth[:, None, :, None] == truth[None, :, None, :]).float()
    return GraphBatch(nodes, edges + edges.mT, mask.long(), mask), true


@pytest.mark.parametrize("m", [2, 5])
def test_refining_by_edges_helps_in_a_family_on_which_nothing_was_chosen(m, thorough):
    found = {"ga": 0.0, "spectral": 0.0, "pairwise": 0.0}
    seeds = range(4 if thorough else 2)
    for seed in seeds:
        graphs, true = links(seed, m, 14, 18)
        for method in found:
            found[method] += recall(match(graphs, universe_size=18, method=method).pairs, true) / len(seeds)
    assert found["ga"] > max(found["spectral"], found["pairwise"]) + 0.1


def test_empty_and_single_node_graphs_are_matched_to_what_there_is(plant):
    planted = plant(3, [5, 0, 1], 6)
    matches = match(planted.graphs, universe_size=6)
    assert matches.pairs.isfinite().all()
    assert (matches.pairs[1] == 0).all()
    assert torch.equal(matches.universe.sum(2), planted.graphs.mask.double())


def test_more_nodes_than_universe_points_leaves_some_unmatched(plant):
    planted = plant(4, [6, 6], 6)
    assert torch.equal(
        match(planted.graphs, universe_size=4).universe.sum((1, 2)), torch.tensor([4.0, 4.0]).double()
    )


def test_graphs_of_unequal_sizes_become_one_padded_batch():
    batch = graph_batch([(torch.ones(3, 2), torch.ones(3, 3)), (torch.ones(1, 2), torch.ones(1, 1))])
    assert torch.equal(batch.mask, torch.tensor([[1, 1, 1], [1, 0, 0]]).bool())
    assert torch.equal(batch.edges[0], 1 - torch.eye(3))
    assert (batch.edges[1] == 0).all()
    assert (batch.nodes[1, 1:] == 0).all()


def test_edges_of_the_wrong_shape_raise_an_error_that_names_the_graph():
    with pytest.raises(UserError, match=r"graph 1 has 2 nodes but edges of shape \(3, 3\)"):
        graph_batch([(torch.ones(3, 2), torch.ones(3, 3)), (torch.ones(2, 2), torch.ones(3, 3))])


def test_a_single_graph_is_matched_to_the_universe_alone(plant):
    assert match(plant(0, [4], 5).graphs, universe_size=5).universe.sum() == 4


def test_an_unknown_method_raises_an_error_that_lists_the_known_ones(plant):
    with pytest.raises(UserError, match=r"did you mean 'hippi'.*known: ga, hippi, pairwise, spectral"):
        match(plant(0, [3, 3], 3).graphs, universe_size=3, method="hipi")
