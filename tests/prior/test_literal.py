"""LiteralPrior: Algorithm 1 as printed, from the nodes to L(𝒰)."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import lstsq
from torch import Tensor

from ttdg.errors import UserError
from ttdg.matching import assign, cycle_violation, pairwise, ridge_universe, round_matching, solve
from ttdg.prior import LiteralPrior, MorphologyPrior, Nodes, literal_loss, literal_prior_for, prior_from_part
from ttdg.prior.literal import CLASS_MATRICES, LiteralSpec, printed_start, universe_fit
from ttdg.types import GraphBatch

LABELS, SIDE = 3, 64
SEEDS = st.integers(0, 10_000)


def a_prior(seed: int = 0, **options) -> LiteralPrior:
    torch.manual_seed(seed)
    small = {"levels": ("e0",), "node_dim": 16, "points": 10, "per_tissue": 8}
    return literal_prior_for({"e0": 6}, LABELS, **(small | options)).eval()


def rings(b: int) -> Tensor:
    """Label maps with a rim (1) around a core (2)."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    r = torch.stack([((y - 28 - i) ** 2 + (x - 34) ** 2) ** 0.5 for i in range(b)])
    return (r < 14).long() + (r < 7).long()


def a_batch(b: int = 3, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    labels, generator = rings(b), torch.Generator().manual_seed(seed)
    means = torch.randn(LABELS, 6, generator=generator)
    maps = means[labels[:, ::2, ::2]].movedim(-1, 1)
    return {
        "input": labels[:, None].float(),
        "e0": maps + 0.3 * torch.randn(maps.shape, generator=generator),
    }, labels


@torch.no_grad()
def some_nodes(prior: LiteralPrior, seed: int = 0) -> Nodes:
    maps, labels = a_batch(seed=seed)
    return prior.nodes(prior.project(maps), labels)


def random_graphs(seed: int, definite: bool = False) -> GraphBatch:
    """Graphs of two classes; `definite` gives positive semidefinite edges, for which HiPPI is a power iteration."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.rand(3, 6, 6, generator=generator, dtype=torch.float64)
    A = A @ A.mT / 6 if definite else (A + A.mT) / 2
    labels = torch.tensor([1, 1, 1, 2, 2, 2]).expand(3, 6)
    return GraphBatch(torch.zeros(3, 6, 1), A, labels, labels > 0)


# --- the universe and its nodes


@given(SEEDS)
@settings(max_examples=10, deadline=None)
def test_the_universe_starts_at_one_over_d_plus_a_thousandth_of_noise(seed):
    U = printed_start(60, 256, torch.Generator().manual_seed(seed))
    z = (U - 1 / 60) / 1e-3
    assert abs(z.mean()) < 0.05
    assert 0.95 < z.std() < 1.05


def test_the_universe_has_the_size_of_the_papers_formula():
    prior = literal_prior_for({"e2": 4, "e3": 4, "d2": 4}, LABELS, points=40)  # s = 2.5: d = 100 · 3 / s
    assert prior.universe.shape == (120, 256)


def test_nodes_lie_in_the_foreground_and_fit_into_the_universe():
    prior = a_prior()
    nodes = some_nodes(prior)
    assert set(nodes.labels[nodes.mask].tolist()) == {1, 2}
    assert int(nodes.mask.sum(1).max()) == 2 * prior.spec.per_tissue < prior.spec.size


# --- W and HiPPI


@given(SEEDS)
@settings(max_examples=10, deadline=None)
def test_masked_edges_join_no_two_classes(seed):
    """A class whose U is zero gets a zero direction: no edge leads to the other class."""
    graphs = random_graphs(seed)
    U = torch.rand(3, 6, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    U[:, 3:] = 0
    masked, plain = (CLASS_MATRICES[name](graphs)(U) for name in ("masked", "none"))
    assert torch.all(masked[:, 3:] == 0)
    assert torch.all(plain[:, 3:] > 0)


@given(SEEDS)
@settings(max_examples=10, deadline=None)
def test_the_printed_matrix_gives_all_nodes_of_a_class_one_direction(seed):
    U = torch.rand(3, 6, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    V = CLASS_MATRICES["printed"](random_graphs(seed))(U)
    assert torch.allclose(V[:, :3], V[:1, :1].expand(3, 3, -1))
    assert not torch.allclose(V[0, 0], V[0, 3])


@given(SEEDS, st.sampled_from(sorted(CLASS_MATRICES)))
@settings(max_examples=12, deadline=None)
def test_hippi_with_an_exact_projection_never_lowers_its_objective(seed, class_matrix):
    graphs = random_graphs(seed, definite=True)
    direction = CLASS_MATRICES[class_matrix](graphs)
    start = torch.rand(3, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    U = round_matching(start, graphs.mask)

    def project(scores, mask, /, *, tau):
        return round_matching(scores, mask)

    found = [
        float(
            solve(direction, U, graphs.mask, tolerance=0.0, max_iterations=steps, project=project).objective
        )
        for steps in range(1, 6)
    ]
    values = [float((U * direction(U)).sum()), *found]
    assert all(after >= before * (1 - 1e-9) for before, after in itertools.pairwise(values))


@pytest.mark.parametrize("class_matrix", sorted(CLASS_MATRICES))
@given(SEEDS)
@settings(max_examples=5, deadline=None)
def test_every_node_is_matched_once_and_padding_never(class_matrix, seed):
    prior = a_prior(seed, class_matrix=class_matrix)
    nodes = some_nodes(prior, seed)
    mask = nodes.mask.clone()
    mask[1, 5:] = False
    nodes = replace(nodes, mask=mask, labels=nodes.labels * mask, features=nodes.features * mask[..., None])
    U = prior.match(nodes)
    assert torch.allclose(U.sum(2), mask.float(), atol=1e-5)
    assert cycle_violation(pairwise(round_matching(U, mask))) <= 0


def test_hippi_starts_from_the_universe_and_ends_at_a_fixed_point():
    prior = a_prior(class_matrix="none")
    nodes = some_nodes(prior)
    found = prior.hippi(nodes)
    direction = CLASS_MATRICES["none"](prior.graphs(nodes))
    start = assign(nodes.features @ prior.universe.detach().T, nodes.mask, tau=0.05)
    once = solve(direction, start, nodes.mask, tau=0.05, tolerance=0.0, max_iterations=found.iterations)
    assert torch.allclose(found.matching, once.matching, atol=1e-6)
    assert found.iterations < prior.spec.iterations
    again = assign(direction(found.matching), nodes.mask, tau=0.05)
    assert torch.allclose(again, found.matching, atol=1e-4)


# --- Eq. 9


def test_the_loss_is_eq_9_summed_over_nodes():
    prior = a_prior()
    maps, labels = a_batch()
    nodes = some_nodes(prior)
    U, V = prior.match(nodes), nodes.features
    expected = 1e-4 * prior.universe.square().sum()
    for i in range(len(V)):
        rows = nodes.mask[i]
        expected = expected + torch.linalg.matrix_norm(U[i, rows] - V[i, rows] @ prior.universe.T) ** 2
    assert torch.allclose(literal_loss(prior, maps, labels), expected, rtol=1e-5)


@given(SEEDS, st.sampled_from([1e-4, 0.1, 3.0]))
@settings(max_examples=15, deadline=None)
def test_the_best_universe_is_that_of_an_independent_least_squares_solver(seed, decay):
    """Ridge regression is least squares with √α I appended to the nodes and zeros to the targets."""
    generator = torch.Generator().manual_seed(seed)
    V, U = (torch.randn(2, 9, k, generator=generator, dtype=torch.float64) for k in (5, 7))
    mask = torch.rand(2, 9, generator=generator) < 0.8
    rows = torch.cat([V[mask], decay**0.5 * torch.eye(5, dtype=torch.float64)])
    targets = torch.cat([U[mask], torch.zeros(5, 7, dtype=torch.float64)])
    solution = torch.from_numpy(lstsq(rows.numpy(), targets.numpy())[0]).T
    assert torch.allclose(ridge_universe(V, U, mask, decay), solution, atol=1e-8)


def test_no_universe_fits_better_than_the_best_one():
    prior = a_prior()
    maps, labels = a_batch()
    prior.train()
    optimiser = torch.optim.Adam([prior.universe], 1e-2)
    for _ in range(8):
        optimiser.zero_grad()
        literal_loss(prior, maps, labels).backward()
        optimiser.step()
    fit = universe_fit(prior.eval(), some_nodes(prior))
    assert fit.best <= fit.trained < fit.start


def test_the_gradient_reaches_universe_and_projection_but_neither_edges_nor_affinity():
    prior = a_prior().train()
    literal_loss(prior, *a_batch()).backward()
    assert prior.universe.grad.abs().sum() > 0
    assert prior.output.weight.grad.abs().sum() > 0
    assert all(p.grad is None for part in (prior.edges, prior.affinity) for p in part.parameters())


# --- as a part


def test_a_stored_prior_comes_back_as_the_kind_it_was():
    prior = a_prior(class_matrix="masked")
    again = prior_from_part(prior.to_part())
    assert isinstance(again, LiteralPrior)
    assert again.spec == prior.spec == LiteralSpec(**vars(prior.spec))
    assert torch.equal(again.universe, prior.universe)
    with pytest.raises(UserError, match="belong to no tissue"):
        MorphologyPrior.from_part(prior.to_part())


def test_without_priors_the_universe_is_untrained():
    prior = a_prior()
    prior.universe.data.add_(5)
    fresh = prior.with_random_universe().universe
    assert torch.equal(fresh, printed_start(30, 16, torch.Generator().manual_seed(0)))
    assert not torch.equal(fresh, prior.universe)
