"""universe-literal: the printed loss, its update, and the named ablations."""

import copy
from dataclasses import replace
from itertools import combinations
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ttdg.adaptation.universe.gradient import Variant
from ttdg.errors import UserError
from ttdg.matching import cycle_violation, matching_loss, pairwise, round_matching, soft_affinity
from ttdg.matching.sinkhorn import sinkhorn_log
from ttdg.matching.universe import from_pairs, pair_indices
from ttdg.networks import feature_maps, level_channels
from ttdg.prior import LiteralPrior, MorphologyPrior, literal_prior_for

VARIANTS = get_args(Variant)


def some_images(b: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(b, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) + 1


def nodes_of(adapter, images: Tensor):
    logits, maps = feature_maps(adapter.network, images)
    return adapter.prior.nodes(adapter.prior.project(maps), logits.argmax(1))


def test_the_loss_is_the_printed_one_and_finite(ready):
    adapter = ready("universe-literal", labels=3).adapt("universe-literal")
    nodes = nodes_of(adapter, some_images())
    M = adapter.prior.affinity(nodes.features, nodes.mask)
    expected = matching_loss(M, adapter._match(nodes, M), nodes.mask, form="paper", tau=adapter.tau)
    assert adapter.objective(nodes).isfinite()
    assert torch.equal(adapter.objective(nodes), expected)


def test_one_step_lowers_the_loss_for_the_matching_it_was_taken_on(ready):
    adapter = ready("universe-literal").adapt("universe-literal", lr=1e-3)
    with torch.no_grad():
        nodes = nodes_of(adapter, some_images())
        U = adapter._match(nodes, adapter.prior.affinity(nodes.features, nodes.mask))

    @torch.no_grad()
    def loss() -> float:
        nodes = nodes_of(adapter, some_images())
        M = adapter.prior.affinity(nodes.features, nodes.mask)
        return float(matching_loss(M, U, nodes.mask, form="paper", tau=adapter.tau))

    before = loss()
    adapter(some_images())
    assert loss() < before


def test_a_single_image_is_predicted_by_the_source_network(ready):
    source = ready("universe-literal")
    adapter, images = source.adapt("universe-literal", lr=1.0), some_images(1)
    with torch.no_grad():
        plain = copy.deepcopy(source.network).eval()(images)
    assert torch.allclose(adapter(images), plain, atol=1e-5)
    assert all(
        torch.equal(v, source.network.state_dict()[k]) for k, v in adapter.network.state_dict().items()
    )


def test_weights_that_diverged_are_reset(ready):
    source = ready("universe-literal")
    adapter, images = source.adapt("universe-literal"), some_images()
    with torch.no_grad():
        next(adapter.network.parameters()).fill_(float("inf"))
    assert adapter(images).isfinite().all()
    assert all(
        torch.equal(v, source.network.state_dict()[k]) for k, v in adapter.network.state_dict().items()
    )


def test_an_image_that_is_not_finite_does_not_reset_the_weights(ready):
    adapter, images = ready("universe-literal").adapt("universe-literal"), some_images()
    adapter(images)
    learned = weights(adapter)
    images[0, 0, 0, 0] = torch.inf
    with pytest.warns(RuntimeWarning, match="not finite"):
        adapter(images[:1])
    assert torch.equal(weights(adapter), learned)


def built(ready, variant: str, **options):
    return ready("universe-literal", labels=3).adapt("universe-literal", variant=variant, **options)


def weights(adapter) -> Tensor:
    return torch.cat([p.detach().flatten() for p in adapter.network.parameters()])


def step(adapter, calls: int = 1) -> Tensor:
    """Change of the weights after `calls` batches."""
    before = weights(adapter)
    for seed in range(calls):
        assert adapter(some_images(seed=seed)).isfinite().all()
    return weights(adapter) - before


@torch.no_grad()
def graphs_of(adapter):
    nodes = nodes_of(adapter, some_images())
    return nodes, adapter.prior.affinity(nodes.features, nodes.mask)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_learns_something_finite_from_its_batch(variant, ready):
    adapter = built(ready, variant)
    moved = step(adapter)
    assert adapter.loss.isfinite()
    assert moved.isfinite().all()
    assert moved.any()


def test_no_two_ablations_update_the_weights_alike(ready):
    moved = {variant: step(built(ready, variant)) for variant in VARIANTS if variant != "no-class-mask"}
    for a, b in combinations(moved.values(), 2):
        assert (a - b).norm() > 0.01 * max(a.norm(), b.norm())


def test_there_is_no_class_mask_to_leave_out(ready):
    full = built(ready, "full")
    nodes, M = graphs_of(full)
    renamed = replace(nodes, labels=nodes.labels.roll(3, 1) * nodes.mask)
    assert not torch.equal(renamed.labels, nodes.labels)
    assert torch.equal(full._match(renamed, M), full._match(nodes, M))
    assert torch.equal(step(full, 2), step(built(ready, "no-class-mask"), 2))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_deterministic_also_after_a_reset(variant, ready):
    adapter = built(ready, variant)
    first = step(adapter, 2)
    torch.rand(7)  # nothing is drawn from the global generator
    adapter.reset()
    assert torch.equal(step(adapter, 2), first)
    assert torch.equal(step(built(ready, variant), 2), first)


def test_a_random_universe_is_the_priors_own_control(ready):
    source = ready("universe-literal", labels=3)
    prior = MorphologyPrior.from_part(source.parts["prior"])
    random = source.adapt("universe-literal", variant="random-universe").prior
    assert torch.equal(random.universe, prior.with_random_universe().universe)
    assert not torch.equal(random.universe, prior.universe)


def test_without_a_universe_no_universe_matters(ready):
    adapter = built(ready, "no-universe")
    nodes, M = graphs_of(adapter)
    U = adapter._initial_matching(nodes)
    assert torch.all(U[~nodes.mask] == 0)
    assert torch.allclose(U[nodes.mask], torch.full_like(U[nodes.mask], 1 / U.shape[2]), atol=6e-3)
    assert 0.5e-3 < U[nodes.mask].std() < 2e-3
    X = adapter._match(nodes, M)
    adapter.prior.universe.data.neg_()
    assert torch.equal(adapter._match(nodes, M), X)


def test_without_consensus_a_graph_does_not_depend_on_the_others(ready):
    alone, full = built(ready, "no-consensus"), built(ready, "full")
    nodes, M = graphs_of(alone)
    features = nodes.features.clone()
    features[1:] = features[1:].flip(-1)
    others = replace(nodes, features=features)
    M_others = alone.prior.affinity(features, nodes.mask).detach()
    assert torch.equal(alone._match(nodes, M)[0], alone._match(others, M_others)[0])
    assert not torch.allclose(full._match(nodes, M)[0], full._match(others, M_others)[0], atol=1e-4)


def test_pairs_are_matched_by_the_objective_of_two_graphs_alone(ready):
    """Compares with an unbatched implementation, pair by pair."""
    adapter = built(ready, "pairwise")
    nodes, M = graphs_of(adapter)
    seeded = torch.Generator().manual_seed(0)
    M = 0.1 * torch.randn(M.shape, generator=seeded)
    nodes = replace(nodes, features=F.normalize(torch.randn(nodes.features.shape, generator=seeded), dim=2))
    X, edges, mask = adapter._match_pairs(nodes, M), adapter.prior.graphs(nodes).edges, nodes.mask.float()
    M_hat = soft_affinity(M, nodes.mask, tau=adapter.tau)
    for p, (i, j) in enumerate([(0, 1), (0, 2), (1, 2)]):
        Y = M_hat[i, j]
        for _ in range(50):
            V = 2 * adapter.edge_weight * edges[i] @ Y @ edges[j] + M_hat[i, j]
            Y = sinkhorn_log(V[None], mask[None, i], mask[None, j], adapter.tau, sweeps=10)[0]
        assert torch.allclose(X[p], Y, atol=1e-4)


def test_only_pairs_matched_alone_break_cycles(ready):
    """U Uᵀ of hard matchings is cycle-consistent; separately matched pairs need not be."""
    alone, full = built(ready, "pairwise"), built(ready, "full")
    nodes, M = graphs_of(full)
    M = torch.randn(M.shape, generator=torch.Generator().manual_seed(1))
    U = round_matching(full._match(nodes, M), nodes.mask)
    X = alone._match_pairs(nodes, M)
    X = round_matching(X, nodes.mask[pair_indices(3)[0]]) * (X > 0)
    assert cycle_violation(pairwise(U)) <= 0
    assert cycle_violation(from_pairs(X, torch.diag_embed(nodes.mask.float()))) == 1


def literal_source(ready):
    """The source model with a universe of the paper's own training."""
    source = ready("universe-literal", labels=3)
    torch.manual_seed(0)
    prior = literal_prior_for(level_channels(source.network), 3, node_dim=16, points=8, per_tissue=6)
    prior.universe.data.normal_()
    return replace(source, parts={**source.parts, "prior": prior.to_part()})


def test_it_says_if_the_universe_was_not_trained_by_algorithm_1(ready):
    (remark,) = built(ready, "full").remarks()
    assert "not trained by the paper's Algorithm 1" in remark
    assert literal_source(ready).adapt("universe-literal").remarks() == ()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_runs_on_the_universe_of_algorithm_1(variant, ready):
    adapter = literal_source(ready).adapt("universe-literal", variant=variant)
    assert isinstance(adapter.prior, LiteralPrior)
    moved = step(adapter)
    assert moved.isfinite().all()
    assert moved.any()
    nodes, _ = graphs_of(adapter)
    assert set(nodes.labels[nodes.mask].tolist()) <= {1, 2}  # foreground only


def test_on_the_universe_of_algorithm_1_the_matching_is_cycle_consistent(ready):
    adapter = literal_source(ready).adapt("universe-literal")
    nodes, M = graphs_of(adapter)
    assert cycle_violation(pairwise(round_matching(adapter._match(nodes, M), nodes.mask))) <= 0


@pytest.mark.parametrize("method", ["universe-gradient", "judge"])
def test_methods_that_need_tissues_refuse_the_universe_of_algorithm_1(method, ready):
    literal = literal_source(ready).parts["prior"]
    source = ready(method, labels=3)
    with pytest.raises(UserError, match="belong to no tissue"):
        replace(source, parts={**source.parts, "prior": literal}).adapt(method)


def test_the_variants_names_are_checked(ready):
    with pytest.raises(ValueError, match="no-universe"):
        built(ready, "without-universe")
