"""Rounding: the best hard matching, without forbidden pairs."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.matching import FORBIDDEN, round_matching


def scores(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 999))
def test_no_matching_scores_higher(n, d, seed):
    S = scores(seed, 1, n, d)
    U = round_matching(S, torch.ones(1, n).bool())
    small, large = (S[0], d) if n <= d else (S[0].T, n)
    best = max(
        sum(float(small[row, col]) for row, col in enumerate(order))
        for order in permutations(range(large), min(n, d))
    )
    assert float((U * S).sum()) == pytest.approx(best)
    assert (U.sum(1) <= 1).all()
    assert (U.sum(2) <= 1).all()
    assert U.sum() == min(n, d)


def test_rounding_twice_is_rounding_once():
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    U = round_matching(scores(0, 2, 5, 7), mask)
    assert torch.equal(round_matching(U, mask), U)


def test_padding_is_never_matched():
    mask = torch.arange(5) < torch.tensor([[5], [3], [0]])
    assert torch.equal(round_matching(scores(1, 3, 5, 7), mask).sum(2), mask.double())


def test_more_nodes_than_points_leave_the_worst_unmatched():
    S = torch.tensor([[[3.0, 0], [0, 3], [1, 1]]])
    assert torch.equal(round_matching(S, torch.ones(1, 3).bool())[0].sum(1), torch.tensor([1.0, 1, 0]))


def test_a_forbidden_pair_is_not_matched_even_where_nothing_else_is_left():
    S = scores(2, 1, 3, 3)
    S[0, 0] = FORBIDDEN
    S[0, 1, 1:] = FORBIDDEN
    U = round_matching(S, torch.ones(1, 3).bool())
    assert (U[S == FORBIDDEN] == 0).all()
    assert torch.equal(U[0].sum(1), torch.tensor([0.0, 1, 1]).double())


def test_forbidden_pairs_do_not_reduce_the_precision_of_the_others():
    S = torch.tensor([[[1.0, 1.0 + 1e-6, FORBIDDEN], [1.0 + 1e-6, 1.0, FORBIDDEN]]], dtype=torch.float64)
    assert torch.equal(round_matching(S, torch.ones(1, 2).bool())[0, :, :2], torch.eye(2).flip(0).double())


def test_a_node_worth_more_as_an_outlier_stays_unmatched():
    S = torch.tensor([[[0.9, 0.1], [0.2, 0.3]]])
    U = round_matching(S, torch.ones(1, 2).bool(), outlier_score=torch.full((1, 2), 0.5))
    assert torch.equal(U[0], torch.tensor([[1.0, 0], [0, 0]]))
