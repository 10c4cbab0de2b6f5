"""Universe matchings: soft assignment for all sizes, class-typed universes, and Lemma 1 in integers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.matching import (
    FORBIDDEN,
    assign,
    cycle_violation,
    forbid,
    pairwise,
    round_matching,
    same_class,
    same_class_pairs,
    soft_affinity,
    universe_scores,
)
from ttdg.matching.universe import of_pairs, pair_indices

CONVERGED = {"tolerance": 1e-10, "max_sweeps": 2_000}


def scores(m: int, n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(m, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 4, 6])
def test_up_to_d_nodes_are_all_matched_and_no_point_more_than_once(n):
    U = assign(scores(2, n, 6), torch.ones(2, n).bool(), **CONVERGED)
    assert torch.allclose(U.sum(2), torch.ones(2, n).double(), atol=1e-10)
    assert (U.sum(1) <= 1 + 1e-9).all()


def test_more_nodes_than_points_fill_every_point_and_match_each_node_at_most_once():
    U = assign(scores(2, 9, 6), torch.ones(2, 9).bool(), **CONVERGED)
    assert torch.allclose(U.sum(1), torch.ones(2, 6).double(), atol=1e-8)
    assert (U.sum(2) <= 1 + 1e-9).all()


def test_graphs_of_all_sizes_share_one_batch():
    mask = torch.arange(9) < torch.tensor([0, 1, 6, 9])[:, None]
    S = scores(4, 9, 6)
    together = assign(S, mask, tolerance=0.0, max_sweeps=8)
    for i, size in enumerate([0, 1, 6, 9]):
        alone = assign(S[i : i + 1, :size], mask[i : i + 1, :size], tolerance=0.0, max_sweeps=8)
        assert torch.allclose(together[i, :size], alone[0], atol=1e-10)
        assert (together[i, size:] == 0).all()


def test_at_small_temperature_assignment_is_the_best_matching():
    S, mask = scores(3, 5, 7), torch.ones(3, 5).bool()
    U = assign(S, mask, tau=0.002, tolerance=1e-6, max_sweeps=2_000)
    assert torch.equal(round_matching(U, mask), round_matching(S, mask))
    assert torch.allclose(U, round_matching(S, mask), atol=0.3)


def test_with_a_dustbin_poor_nodes_stay_unmatched_and_good_ones_do_not():
    S = torch.full((1, 3, 4), 0.1, dtype=torch.float64)
    S[0, 0, 1] = S[0, 1, 2] = 1.0
    U = assign(S, torch.ones(1, 3).bool(), outlier_score=0.5, **CONVERGED)
    assert (U.sum(2)[0, :2] > 0.99).all()
    assert U.sum(2)[0, 2] < 0.01
    assert (assign(S, torch.ones(1, 3).bool(), outlier_score=-9.0, **CONVERGED).sum(2) > 0.99).all()


def test_padding_does_not_change_an_assignment_with_a_dustbin():
    S = scores(1, 3, 4)
    padded = torch.cat([S, torch.full((1, 2, 4), 9.0).double()], 1)
    mask = torch.arange(5)[None] < 3
    alone = assign(S, mask[:, :3], outlier_score=0.5, **CONVERGED)
    assert torch.allclose(assign(padded, mask, outlier_score=0.5, **CONVERGED)[:, :3], alone, atol=1e-9)


def test_in_a_typed_universe_no_mass_crosses_classes():
    labels = torch.tensor([[1, 2, 2, 1, 0], [2, 2, 2, 0, 0]])
    allowed = same_class(labels, torch.tensor([1, 1, 1, 2, 2, 2]))
    nodes, universe = scores(2, 5, 3), scores(1, 6, 3, seed=1)[0]
    U = assign(universe_scores(nodes, universe, allowed), labels > 0, **CONVERGED)
    assert (U[~allowed] == 0).all()
    assert torch.allclose(U.sum(2), (labels > 0).double(), atol=1e-9)


def test_a_class_with_more_nodes_than_points_shares_them_evenly_and_disturbs_no_other():
    labels = torch.tensor([[1, 1, 1, 1, 1, 2, 2]])
    allowed = same_class(labels, torch.tensor([1] * 3 + [2] * 6))
    U = assign(scores(1, 7, 9).masked_fill(~allowed, FORBIDDEN), labels > 0, max_sweeps=500)
    assert torch.allclose(U.sum(2), torch.ones(1, 7).double())
    assert torch.allclose(U.sum(1)[0, :3], torch.full((3,), 5 / 3).double(), atol=1e-3)
    assert (U.sum(1)[0, 3:] <= 1 + 1e-6).all()


def test_universe_scores_are_inner_products():
    nodes, universe = scores(2, 5, 3), scores(1, 6, 3, seed=1)[0]
    assert torch.allclose(universe_scores(nodes, universe)[1, 2, 4], nodes[1, 2] @ universe[4])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=4), st.integers(1, 7), st.integers(0, 99))
def test_matchings_to_one_universe_are_cycle_consistent_to_the_bit(sizes, d, seed):
    n = max(max(sizes), 1)
    mask = torch.arange(n) < torch.tensor(sizes)[:, None]
    U = round_matching(scores(len(sizes), n, d, seed), mask)
    X = pairwise(U)
    assert cycle_violation(X) <= 0
    assert torch.equal(X, X.transpose(0, 1).mT)
    matched = torch.diag_embed(U.sum(2))
    assert torch.equal(X[range(len(sizes)), range(len(sizes))], matched)
    if max(sizes) <= d:
        assert torch.equal(U.sum(2), mask.double())


def test_pairwise_matches_that_contradict_each_other_are_found():
    X = torch.eye(2).expand(3, 3, 2, 2).clone()
    X[0, 2], X[2, 0] = torch.eye(2).flip(0), torch.eye(2).flip(0)
    assert cycle_violation(X) == 1.0


def test_a_class_masked_affinity_has_no_mass_across_classes(ragged):
    _, affinity, _, mask = ragged(0, [5, 4, 3], 6)
    labels = torch.tensor([[1, 2, 1, 2, 1], [2, 1, 1, 2, 0], [2, 2, 1, 0, 0]])
    W = same_class_pairs(labels)
    assert not W[:, 1, :, 4].any()
    M = soft_affinity(forbid(affinity, W), mask, max_sweeps=50)
    others = ~torch.eye(3).bool()[:, :, None, None]
    assert (M[~W & others] == 0).all()
    assert M[0, 1][W[0, 1]].sum() > 3


def test_soft_affinity_is_symmetric_with_the_identity_for_a_graph_and_itself(ragged):
    _, affinity, _, mask = ragged(0, [4, 2, 0, 5], 6)
    M = soft_affinity(affinity, mask, max_sweeps=200)
    assert torch.equal(M, M.transpose(0, 1).mT)
    assert torch.equal(M[0, 0], torch.diag(mask[0].double()))
    assert torch.allclose(M[0, 1].sum(0)[:2], torch.ones(2).double(), atol=0.01)
    assert (M[2] == 0).all()
    assert M.transpose(1, 2).is_contiguous()


def test_the_blocks_of_pairs_are_those_above_the_diagonal(ragged):
    _, affinity, _, _ = ragged(6, [3, 2, 3, 1], 5)
    i, j = pair_indices(4)
    assert (i < j).all()
    assert len(i) == 6
    assert torch.equal(of_pairs(affinity), affinity[i, j])


def test_indices_cached_in_inference_mode_can_be_differentiated_later():
    m = 11  # a size that no other test uses, because the indices are cached
    with torch.inference_mode():
        of_pairs(torch.rand(m, m, 2, 2))
    blocks = torch.rand(m, m, 2, 2, requires_grad=True)
    assert torch.autograd.grad(of_pairs(blocks).sum(), blocks)[0].sum() == 4 * m * (m - 1) / 2
