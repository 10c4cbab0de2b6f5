"""`solve`: recovers planted matchings, increases its Lyapunov function, and stops at convergence."""

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.matching import (
    annealing,
    assign,
    cosine_affinity,
    edge_direction,
    pairwise,
    qap_direction,
    round_matching,
    same_class,
    scale_by_mean_gain,
    soft_affinity,
    solve,
    spectral_start,
)
from ttdg.matching.sinkhorn import sinkhorn
from ttdg.matching.universe import forbid

exactly = partial(assign, tolerance=1e-9, max_sweeps=2_000)


def random_start(seed: int, mask: torch.Tensor, d: int) -> torch.Tensor:
    noise = torch.randn(*mask.shape, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return assign(noise, mask, tau=1.0, max_sweeps=50)


def psd(m: int, n: int, seed: int) -> torch.Tensor:
    root = torch.randn(m, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.mT / n


def entropy(U: torch.Tensor) -> torch.Tensor:
    """Entropy of the matching and its slack row, which holds the unused universe points."""
    slack = (1 - U.sum(1)).clamp(min=0)
    return -torch.xlogy(U, U).sum() - torch.xlogy(slack, slack).sum()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 999), st.sampled_from([0.3, 1.0]))
def test_hippi_climbs_its_objective_plus_four_tau_entropy(seed, tau):
    edges, mask = psd(3, 4, seed), torch.ones(3, 4).bool()
    U = random_start(seed, mask, 6)
    values = []
    for _ in range(5):
        values.append(float((U * edge_direction(edges, U)).sum() + 4 * tau * entropy(U)))
        U = exactly(edge_direction(edges, U), mask, tau=tau)
    assert all(later >= earlier - 1e-7 for earlier, later in itertools.pairwise(values))
    assert values[-1] > values[0] + 1e-6


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 999))
def test_with_exact_projection_and_positive_semidefinite_edges_hippi_never_loses(seed):
    edges, mask = psd(3, 5, seed), torch.ones(3, 5).bool()
    U = round_matching(random_start(seed, mask, 6), mask)
    before = float((U * edge_direction(edges, U)).sum())
    hungarian = lambda scores, mask, *, tau: round_matching(scores, mask)  # noqa: E731
    for _ in range(6):
        solution = solve(partial(edge_direction, edges), U, mask, max_iterations=1, project=hungarian)
        U, after = solution.matching, float(solution.objective)
        assert after >= before - 1e-9
        before = after


def test_consistent_affinities_are_recovered_exactly_from_a_rough_start(plant):
    planted = plant(0, [6, 5, 6, 3], 6)
    mask, M = planted.graphs.mask, planted.pairs
    U = solve(
        lambda U: qap_direction(planted.graphs.edges, M, U, edge_weight=0.0), spectral_start(M, mask, 6), mask
    )
    assert torch.equal(pairwise(round_matching(U.matching, mask)), M)


def test_isomorphic_graphs_are_recovered_exactly_from_their_edges_and_nodes(plant):
    planted = plant(1, [8, 8, 8], 8)
    graphs = planted.graphs
    M = soft_affinity(cosine_affinity(graphs), graphs.mask)
    direction = lambda U: scale_by_mean_gain(qap_direction(graphs.edges, M, U), graphs.mask)  # noqa: E731
    U = solve(direction, spectral_start(M, graphs.mask, 8), graphs.mask, tau=annealing(0.1, 0.02))
    assert torch.equal(pairwise(round_matching(U.matching, graphs.mask)), planted.pairs)


def problem(ragged, sizes, d=6):
    edges, affinity, _, mask = ragged(3, sizes, d)
    return edges, affinity, random_start(0, mask, d), mask


def four_steps(edges, affinity, U, mask):
    direction = lambda U: qap_direction(edges, affinity, U)  # noqa: E731
    return solve(direction, U, mask, tau=2.0, max_iterations=4, tolerance=0.0).matching


def test_renaming_nodes_graphs_and_universe_points_renames_the_matching(ragged):
    edges, affinity, U, mask = problem(ragged, [5, 5, 5])
    nodes, graphs, points = torch.tensor([3, 1, 4, 0, 2]), torch.tensor([2, 0, 1]), torch.randperm(6)
    renamed = four_steps(
        edges[graphs][:, nodes][:, :, nodes],
        affinity[graphs][:, graphs][:, :, nodes][:, :, :, nodes],
        U[graphs][:, nodes][:, :, points],
        mask,
    )
    assert torch.allclose(
        renamed, four_steps(edges, affinity, U, mask)[graphs][:, nodes][:, :, points], atol=1e-10
    )


def test_padding_changes_no_step(ragged):
    edges, affinity, U, mask = problem(ragged, [5, 4, 2])
    wide = torch.nn.functional.pad
    padded = four_steps(
        wide(edges, (0, 3, 0, 3)),
        wide(affinity, (0, 3, 0, 3)),
        wide(U, (0, 0, 0, 3), value=0.0),
        wide(mask, (0, 3)),
    )
    assert torch.allclose(padded[:, :5], four_steps(edges, affinity, U, mask), atol=1e-10)
    assert (padded[:, 5:] == 0).all()


def test_an_empty_and_a_single_node_graph_give_finite_matchings(ragged):
    edges, affinity, U, mask = problem(ragged, [5, 0, 1])
    result = four_steps(edges, affinity, U, mask)
    assert result.isfinite().all()
    assert (result[1] == 0).all()
    assert torch.allclose(result.sum(2), mask.double(), atol=1e-9)


def test_it_stops_when_every_graph_is_at_rest_relative_to_its_size(ragged):
    edges, affinity, U, mask = problem(ragged, [5, 4, 2])
    direction = lambda U: qap_direction(edges, affinity, U)  # noqa: E731
    solution = solve(direction, U, mask, tau=5.0, tolerance=1e-3, max_iterations=500)
    assert solution.iterations < 500
    assert (solution.residual <= 1e-3).all()
    again = solve(direction, solution.matching, mask, tau=5.0, tolerance=1e-3, max_iterations=500)
    assert again.iterations == 1


def test_each_temperature_of_a_schedule_has_its_own_iterations(ragged):
    edges, affinity, U, mask = problem(ragged, [5, 4])
    direction = lambda U: qap_direction(edges, affinity, U)  # noqa: E731
    assert solve(direction, U, mask, tau=(2.0, 1.0, 0.5), tolerance=0.0, max_iterations=3).iterations == 9


def test_annealing_ends_at_the_last_temperature_above_the_stop():
    assert annealing(0.1, 0.00625) == pytest.approx((0.1, 0.05, 0.025, 0.0125, 0.00625))
    assert annealing(0.1, 0.03) == pytest.approx((0.1, 0.05))


def test_the_objective_is_that_of_the_returned_matching(ragged):
    edges, _affinity, U, mask = problem(ragged, [5, 4])
    solution = solve(partial(edge_direction, edges), U, mask, max_iterations=3)
    assert torch.isclose(
        solution.objective, (solution.matching * edge_direction(edges, solution.matching)).sum()
    )
    chosen = solve(partial(edge_direction, edges), U, mask, max_iterations=3, objective=lambda U: U.sum())
    assert torch.isclose(chosen.objective, torch.tensor(9.0).double())


def test_the_objective_is_computed_only_on_access(ragged):
    edges, _affinity, U, mask = problem(ragged, [5, 4])
    calls = []

    def objective(U):
        calls.append(U)
        return U.sum()

    solution = solve(partial(edge_direction, edges), U, mask, max_iterations=3, objective=objective)
    assert not calls
    assert torch.isclose(solution.objective, torch.tensor(9.0).double())
    assert [U is solution.matching for U in calls] == [True]


def test_without_an_iteration_the_residual_is_infinite(ragged):
    edges, _affinity, U, mask = problem(ragged, [5, 4])
    solution = solve(partial(edge_direction, edges), U, mask, max_iterations=0)
    assert solution.matching is U
    assert solution.residual.isinf().all()


def test_no_gradient_is_kept_unless_asked_for(ragged):
    edges, affinity, U, mask = problem(ragged, [5, 4])
    affinity.requires_grad_()
    direction = lambda U: qap_direction(edges, affinity, U)  # noqa: E731
    plain = solve(direction, U, mask, max_iterations=2)
    assert not plain.matching.requires_grad
    assert not plain.objective.requires_grad
    soft = solve(direction, U, mask, tau=3.0, max_iterations=2, differentiable=True).matching
    assert torch.autograd.grad(soft.square().sum(), affinity)[0].abs().sum() > 0


def test_in_a_typed_universe_classes_stay_apart_through_every_step(ragged):
    edges, affinity, _, mask = ragged(4, [5, 4, 5], 6)
    labels = torch.randint(1, 3, mask.shape, generator=torch.Generator().manual_seed(0)) * mask
    allowed = same_class(labels, torch.tensor([1] * 5 + [2] * 5))
    start = sinkhorn(
        forbid(torch.zeros(3, 5, 10).double(), allowed), mask.double(), torch.ones(3, 10).double(), 1.0
    )
    direction = lambda U: forbid(qap_direction(edges, affinity, U), allowed)  # noqa: E731
    U = solve(direction, start, mask, tau=1.0, max_iterations=5).matching
    assert (U[~allowed] == 0).all()
    assert torch.allclose(U.sum(2), mask.double(), atol=1e-9)
