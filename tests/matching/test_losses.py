"""Losses: convexity, exact gradients, no effect of padding, and Eq. 9 and Eq. 12 as printed where defined."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.errors import UserError
from ttdg.matching import (
    assign,
    fenchel_young,
    matching_loss,
    pairwise,
    ridge_loss,
    ridge_universe,
    round_matching,
    universe_loss,
)
from ttdg.matching.sinkhorn import sinkhorn
from ttdg.matching.universe import pair_indices

TIGHT = {"tolerance": 1e-11, "max_sweeps": 3_000}


def uniform(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_problem(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, a hard target that leaves some rows unmatched, row and column masks."""
    rows, cols = torch.arange(5) < torch.tensor([[5], [4]]), torch.arange(6) < torch.tensor([[6], [5]])
    S = uniform(seed, 2, 5, 6)
    X = round_matching(uniform(seed + 1, 2, 5, 6).masked_fill(~cols[:, None], -1e30), rows)
    X[:, 1] = 0
    return S, X, rows, cols


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99))
def test_fenchel_young_has_gradient_prediction_minus_target(seed):
    S, X, rows, cols = one_problem(seed)
    S.requires_grad_()
    G = torch.autograd.grad(fenchel_young(S, X, rows, cols, 0.2, **TIGHT), S)[0]
    P = sinkhorn(S.detach(), X.sum(2), cols.double(), 0.2, **TIGHT)
    assert torch.allclose(G * rows.sum(), P - X, atol=1e-9)


def test_the_gradient_of_fenchel_young_is_the_derivative_of_its_value():
    S, X, rows, cols = one_problem(0)
    step = 1e-5 * uniform(9, *S.shape)
    value = lambda S: float(fenchel_young(S, X, rows, cols, 0.2, **TIGHT))  # noqa: E731
    S.requires_grad_()
    G = torch.autograd.grad(fenchel_young(S, X, rows, cols, 0.2, **TIGHT), S)[0]
    slope = (value(S.detach() + step) - value(S.detach() - step)) / 2
    assert slope == pytest.approx(float((G * step).sum()), rel=1e-4)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99))
def test_fenchel_young_is_tau_times_the_divergence_from_target_to_prediction(seed):
    S, X, rows, cols = one_problem(seed)
    P = sinkhorn(S, X.sum(2), cols.double(), 0.2, **TIGHT)
    both = []
    for plan in (X, P):
        slack = (cols.double() - plan.sum(1)).clamp(min=0)
        both.append(torch.cat([plan, slack[:, None]], 1))
    divergence = (torch.xlogy(both[0], both[0]) - torch.xlogy(both[0], both[1].clamp(min=1e-300))).sum()
    loss = fenchel_young(S, X, rows, cols, 0.2, **TIGHT)
    assert float(loss * rows.sum()) == pytest.approx(0.2 * float(divergence), abs=1e-7)
    assert loss > 0


def test_fenchel_young_is_zero_where_the_prediction_is_the_target():
    S, _, rows, cols = one_problem(3)
    P = assign(S, rows, cols, tau=0.2, **TIGHT)
    assert float(fenchel_young(S, P, rows, cols, 0.2, **TIGHT)) == pytest.approx(0, abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99), st.floats(0, 1))
def test_fenchel_young_is_convex_along_any_chord(seed, t):
    S, X, rows, cols = one_problem(seed)
    T = 3 * uniform(seed + 7, *S.shape)
    loss = lambda S: float(fenchel_young(S, X, rows, cols, 0.2, **TIGHT))  # noqa: E731
    assert loss(t * S + (1 - t) * T) <= t * loss(S) + (1 - t) * loss(T) + 1e-9


def universe_problem(seed: int):
    mask = torch.arange(5) < torch.tensor([[5], [3], [0]])
    nodes, universe = uniform(seed, 3, 5, 4) - 0.5, uniform(seed + 1, 6, 4) - 0.5
    return nodes, universe, round_matching(uniform(seed + 2, 3, 5, 6), mask), mask


def test_ridge_loss_is_eq_9_to_the_letter():
    nodes, universe, U, mask = universe_problem(0)
    literal = 0.3 * torch.linalg.matrix_norm(universe) ** 2
    for i, size in enumerate(mask.sum(1)):
        literal = literal + torch.linalg.matrix_norm(U[i, :size] - nodes[i, :size] @ universe.T) ** 2
    assert torch.isclose(ridge_loss(nodes, universe, U, mask, 0.3), literal)


def test_the_closed_form_universe_is_where_eq_9_has_no_gradient():
    nodes, _, U, mask = universe_problem(1)
    universe = ridge_universe(nodes, U, mask, 0.3).requires_grad_()
    G = torch.autograd.grad(ridge_loss(nodes, universe, U, mask, 0.3), universe)[0]
    assert G.abs().max() < 1e-12


def test_cross_entropy_is_the_mean_surprise_of_the_matched_points():
    nodes, universe, U, mask = universe_problem(2)
    log_p = (nodes @ universe.T / 0.1).log_softmax(2)
    surprise = -log_p[U.bool()].mean()
    assert torch.isclose(universe_loss(nodes, universe, U, mask), surprise)
    decayed = universe_loss(nodes, universe, U, mask, universe_decay=0.5)
    assert torch.isclose(decayed - surprise, 0.5 * universe.square().sum() / 6)


@pytest.mark.parametrize("form", ["cross_entropy", "fenchel_young", "squared"])
def test_universe_losses_ignore_padding_and_give_targets_no_gradient(form):
    nodes, universe, U, mask = universe_problem(3)
    U = (U + 0.1 * mask[:, :, None]).requires_grad_()
    changed = torch.where(mask[:, :, None], nodes, 50.0).requires_grad_()
    losses = [universe_loss(n, universe, U, mask, form=form) for n in (nodes, changed)]
    assert torch.isclose(losses[0], losses[1], rtol=1e-9)
    assert losses[0].grad_fn is None
    assert (torch.autograd.grad(losses[1], changed)[0][~mask] == 0).all()


def test_universe_losses_ignore_forbidden_points():
    nodes, universe, U, mask = universe_problem(4)
    allowed = torch.ones_like(U).bool()
    allowed[:, :, 0] = False
    full = universe_loss(nodes, universe[1:], U[:, :, 1:], mask)
    assert torch.isclose(universe_loss(nodes, universe, U * allowed, mask, allowed=allowed), full)


def matching_problem(seed: int, ragged):
    _, affinity, _, mask = ragged(seed, [4, 3, 0, 4], 6)
    return affinity, round_matching(uniform(seed, 4, 4, 6), mask), mask


FORMS = ["fenchel_young", "focal", "paper"]


@pytest.mark.parametrize("form", FORMS)
def test_matching_losses_ignore_padding_and_the_blocks_of_a_graph_with_itself(form, ragged):
    affinity, U, mask = matching_problem(0, ragged)
    real = mask[:, None, :, None] & mask[None, :, None, :] & ~torch.eye(4).bool()[:, :, None, None]
    changed = torch.where(real, affinity, 7.0).requires_grad_()
    losses = [matching_loss(M, U, mask, form=form) for M in (affinity, changed)]
    assert torch.isclose(losses[0], losses[1], rtol=1e-6)
    G = torch.autograd.grad(losses[1], changed)[0]
    assert (G[~real] == 0).all()
    assert G.abs().sum() > 0


@pytest.mark.parametrize("form", FORMS)
def test_the_true_affinity_costs_less_than_a_wrong_one(form, ragged):
    _, U, mask = matching_problem(1, ragged)
    X = pairwise(U)
    assert matching_loss(X, U, mask, form=form) < 0.5 * matching_loss(1 - X, U, mask, form=form)


@pytest.mark.parametrize("form", FORMS)
def test_matching_losses_give_targets_no_gradient_and_are_zero_without_matches(form, ragged):
    affinity, U, mask = matching_problem(2, ragged)
    U.requires_grad_()
    assert matching_loss(affinity, U, mask, form=form).grad_fn is None
    affinity.requires_grad_()
    empty = matching_loss(affinity, U, torch.zeros_like(mask), form=form)
    assert float(empty.detach()) == 0
    assert (torch.autograd.grad(empty, affinity)[0] == 0).all()


def test_eq_12_as_printed_is_a_squared_distance_times_the_log_of_the_clamp(ragged):
    affinity, U, mask = matching_problem(3, ragged)
    i, j = pair_indices(4)
    M = assign(affinity[i, j], mask[i], mask[j], tolerance=1e-3, max_sweeps=100)
    distance = ((M - pairwise(U)[i, j]) * mask[i][:, :, None] * mask[j][:, None, :]).square().sum()
    expected = -math.log(1e-6) * distance / mask[i].sum()
    assert torch.isclose(matching_loss(affinity, U, mask, form="paper"), expected, rtol=1e-5)


def test_only_fenchel_young_corrects_a_confident_error_in_full():
    mask, U = torch.ones(2, 3).bool(), torch.eye(3).expand(2, 3, 3).double()
    wrong = torch.eye(3).roll(1, 0).double().expand(2, 2, 3, 3).clone().requires_grad_()
    size = {
        form: float(torch.autograd.grad(matching_loss(wrong, U, mask, form=form), wrong)[0].norm())
        for form in FORMS
    }
    assert size["fenchel_young"] > 0.5
    assert size["paper"] < 1e-3


def test_an_unknown_form_raises_an_error_that_lists_the_known_ones(ragged):
    affinity, U, mask = matching_problem(4, ragged)
    with pytest.raises(UserError, match="did you mean 'focal'"):
        matching_loss(affinity, U, mask, form="fokal")
    with pytest.raises(UserError, match="cross_entropy"):
        universe_loss(
            torch.zeros(1, 1, 2), torch.zeros(3, 2), torch.zeros(1, 1, 3), torch.ones(1, 1).bool(), form="ce"
        )
