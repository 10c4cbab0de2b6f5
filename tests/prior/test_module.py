"""MorphologyPrior: padding has no effect, tissues are matched separately, and 𝒰 can be learned."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ttdg.checkpoints import load_parts, save_part
from ttdg.errors import UserError
from ttdg.networks import NetworkSpec, Segmenter, feature_maps, level_channels
from ttdg.prior import RING_CELLS, MorphologyPrior, Nodes, PriorSpec, add_ring_label, prior_for, prior_loss
from ttdg.types import Part

LABELS, SIDE = 3, 64


def a_prior(seed: int = 0, **settings) -> MorphologyPrior:
    torch.manual_seed(seed)
    small = {"levels": ("e0",), "node_dim": 16, "points": 10, "per_tissue": 8}
    return MorphologyPrior(PriorSpec(LABELS, (6,), **(small | settings)))


def rings(b: int, seed: int = 0) -> Tensor:
    """Label maps with a rim (1) around a core (2) at random positions."""
    at = 24 + 16 * torch.rand(b, 2, 1, 1, generator=torch.Generator().manual_seed(seed))
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    r = ((y - at[:, 0]) ** 2 + (x - at[:, 1]) ** 2).sqrt()
    return (r < 14).long() + (r < 7).long()


def features_of(labels: Tensor, noise: float, seed: int = 0) -> dict[str, Tensor]:
    """The input, and stride-2 maps in which each label has its own mean feature."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(LABELS, 6, generator=torch.Generator().manual_seed(99))
    clean = means[labels[:, ::2, ::2]].movedim(-1, 1)
    return {
        "input": labels[:, None].float(),
        "e0": clean + noise * torch.randn(clean.shape, generator=generator),
    }


def some_nodes(prior: MorphologyPrior, b: int = 3, seed: int = 0) -> Nodes:
    labels = rings(b, seed)
    with torch.no_grad():
        return prior.nodes(prior.project(features_of(labels, 0.5, seed)), labels)


def purity(prior: MorphologyPrior, nodes: Nodes) -> float:
    nearest = prior.tissue_of[prior.scores(nodes, typed=False).argmax(2)]
    return float((nearest == nodes.labels)[nodes.mask].float().mean())


# --- matching


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 100), b=st.integers(1, 4))
def test_every_node_is_matched_once_and_every_point_at_most_once(seed, b):
    prior = a_prior(seed, sweeps=300)
    nodes = some_nodes(prior, b, seed)
    U = prior.match(nodes)
    assert torch.allclose(U.sum(2), nodes.mask.float(), atol=1e-4)
    assert (U.sum(1) <= 1.02).all()
    assert (U >= 0).all()


def test_points_of_other_tissues_are_impossible():
    prior = a_prior()
    nodes = some_nodes(prior)
    other = nodes.labels[:, :, None] != prior.tissue_of
    assert (prior.match(nodes)[other] == 0).all()


def test_padding_changes_nothing():
    prior = a_prior()
    nodes = some_nodes(prior)
    loud = replace(nodes, features=torch.where(nodes.mask[..., None], nodes.features, 7.0))
    more = Nodes(*(torch.cat([x, torch.zeros_like(x[:, :5])], 1) for x in vars(nodes).values()))
    U, n = prior.match(nodes), nodes.mask.shape[1]
    assert torch.allclose(prior.match(more)[:, :n], U, atol=1e-5)
    assert torch.allclose(prior.match(loud) * nodes.mask[..., None], U, atol=1e-5)
    assert torch.allclose(prior.energy(more), prior.energy(nodes), atol=1e-5)


def test_other_graphs_affect_a_matching_only_with_consensus():
    prior = a_prior()
    nodes = some_nodes(prior)
    alone = Nodes(*(x[:1] for x in vars(nodes).values()))
    assert not torch.allclose(prior.match(nodes)[:1], prior.match(alone), atol=1e-3)
    prior.spec = replace(prior.spec, consensus=0.0)
    assert torch.allclose(prior.match(nodes)[:1], prior.match(alone), atol=1e-6)


def test_the_energy_of_universe_points_is_near_zero_and_of_opposite_features_large():
    prior = a_prior(consensus=0.0)
    points = prior.universe_points().detach().unflatten(0, (prior.spec.tissues, -1))[:, :4].flatten(0, 1)
    labels = torch.arange(1, prior.spec.tissues + 1).repeat_interleave(4)[None]
    nodes = Nodes(points[None], labels, labels > 0, torch.zeros(1, len(points), 2))
    assert prior.energy(nodes) < 0.02
    assert prior.energy(replace(nodes, features=-nodes.features)) > 0.5


def test_an_empty_graph_has_no_matches_and_no_nan():
    prior = a_prior()
    nodes = some_nodes(prior)
    empty = Nodes(*(torch.zeros_like(x) for x in vars(nodes).values()))
    assert (prior.match(empty) == 0).all()
    assert (prior.energy(empty) == 0).all()


def test_an_image_without_structures_gives_finite_loss_and_gradients():
    prior = a_prior()
    labels = torch.zeros(2, SIDE, SIDE, dtype=torch.long)
    loss = prior_loss(prior, features_of(labels, 0.5), labels)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in prior.parameters())


# --- posterior and tissues


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 100))
def test_the_posterior_is_a_distribution_over_labels(seed):
    prior = a_prior(seed)
    P = prior.posterior(prior.project(features_of(rings(2, seed), 1.0, seed)))
    assert P.shape == (2, LABELS, SIDE // 4, SIDE // 4)
    assert torch.allclose(P.sum(1), torch.ones(()), atol=1e-5)
    assert (P >= 0).all()


def test_the_ring_counts_as_background():
    prior = a_prior()
    shares = torch.zeros(1, prior.spec.tissues * prior.spec.points)
    shares[0, -1] = 1.0  # the last point is one of the ring
    assert prior.by_label(shares).tolist() == [[1.0, 0.0, 0.0]]


def test_the_ring_is_the_background_near_a_structure():
    labels = torch.zeros(1, SIDE, SIDE, dtype=torch.long)
    labels[0, 30, 30] = 2
    tissues = add_ring_label(labels, LABELS, (SIDE // 4, SIDE // 4))
    reach = 4 * RING_CELLS
    assert tissues[0, 30, 30] == 2
    assert (tissues[0, 28:32, 28 - reach : 28] == LABELS).all()
    assert (tissues[0, : 28 - reach] == 0).all()
    assert (tissues[0, 32 + reach :] == 0).all()


def test_without_structures_there_is_no_ring():
    nothing = torch.zeros(2, SIDE, SIDE, dtype=torch.long)
    assert torch.equal(add_ring_label(nothing, LABELS, (16, 16)), nothing)


# --- learning


def test_the_universe_is_learned():
    prior = a_prior()
    optimiser = torch.optim.Adam(prior.parameters(), 1e-2)
    before = purity(prior, some_nodes(prior, seed=50))
    losses = []
    for step in range(25):
        labels = rings(3, step)
        loss = prior_loss(prior, features_of(labels, 0.5, step), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    fresh = some_nodes(prior, seed=50)
    assert losses[-1] < losses[0] - 0.5
    assert purity(prior, fresh) > max(0.6, before + 0.2)
    assert purity(prior.with_random_universe(), fresh) < 0.5


# --- values


def test_a_stored_prior_is_restored_bit_for_bit(tmp_path):
    prior = a_prior()
    save_part(tmp_path, "prior", prior.to_part(), "abc")
    again = MorphologyPrior.from_part(load_parts(tmp_path, "abc")["prior"])
    assert again.spec == prior.spec
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in prior.state_dict().items())
    assert again.to_part().digest == prior.to_part().digest
    nodes = some_nodes(prior)
    assert torch.equal(again.match(nodes), prior.match(nodes))


def test_a_digest_changes_with_any_tensor():
    a, b = a_prior(0), a_prior(0)
    with torch.no_grad():
        b.universe[0, 0] += 1e-3
    assert a.to_part().digest != b.to_part().digest


def test_a_random_universe_keeps_the_projection_and_nothing_else():
    prior = a_prior()
    before = prior.to_part().digest
    a, b, c = prior.with_random_universe(), prior.with_random_universe(), prior.with_random_universe(1)
    assert torch.equal(a.universe, b.universe)
    assert not torch.equal(a.universe, c.universe)
    assert not torch.equal(a.universe, prior.universe)
    assert torch.equal(a.output.weight, prior.output.weight)
    assert torch.allclose(a.universe.norm(dim=1), torch.ones(()), atol=1e-5)
    assert prior.to_part().digest == before


def test_more_nodes_than_points_are_refused():
    with pytest.raises(UserError, match="raise `points`"):
        a_prior(points=4, per_tissue=8)


# --- from networks


@pytest.fixture(scope="module")
def network() -> Segmenter:
    torch.manual_seed(0)
    return Segmenter(NetworkSpec(LABELS, "light")).eval()


@torch.no_grad()
@pytest.mark.parametrize("size", [(32, 64), (20, 45), (1, 1)])
def test_feature_maps_also_returns_the_networks_logits_for_any_size(network, size):
    images = torch.randn(2, 3, *size)
    logits, maps = feature_maps(network, images)
    prior = prior_for(level_channels(network), LABELS)
    assert torch.allclose(logits, network(images), atol=1e-6)
    assert prior.project(maps, size).shape[2:] == (-(-size[0] // 4), -(-size[1] // 4))
    assert torch.allclose(prior.project(maps, size).norm(dim=1), torch.ones(()), atol=1e-5)


@torch.no_grad()
def test_nodes_are_at_positions_of_their_label(network):
    prior, labels = prior_for(level_channels(network), LABELS), rings(2)
    nodes = prior.nodes(prior.project(feature_maps(network, torch.randn(2, 3, SIDE, SIDE))[1]), labels)
    y, x = (nodes.coordinates * SIDE).long().clamp(max=SIDE - 1).unbind(2)
    seen = add_ring_label(labels, LABELS, (SIDE // 4, SIDE // 4))[torch.arange(2)[:, None], y, x]
    assert ((seen + 1 == nodes.labels) | ~nodes.mask).all()
    assert nodes.mask.unflatten(1, (prior.spec.tissues, -1)).any(2).all()


def test_the_network_is_left_in_the_mode_it_was_in(network):
    prior_for(level_channels(network.train()), LABELS)
    assert network.training
    network.eval()


def test_for_a_network_without_a_level_the_message_names_it():
    with pytest.raises(UserError, match="Conv2d has no module 'e2'"):
        feature_maps(nn.Conv2d(3, 2, 1), torch.zeros(1, 3, 8, 8), ["e2"])


@pytest.mark.parametrize(
    "odd",
    [
        {"labels": "three"}, {"labels": 0}, {"points": 2**40}, {"channels": [8, 2**40]}, {"channels": None},
        {"levels": [3]}, {"node_dim": True}, {"tau": "x"}, {"iterations": None}, {"stride": 0}, {"another": 1},
        {"points": 41},
    ],
)  # fmt: skip
def test_settings_of_another_kind_or_size_are_refused_in_a_sentence(odd):
    part = prior_for({"e2": 8, "e3": 8, "d2": 8}, 2, node_dim=8, points=8, per_tissue=4).to_part()
    assert MorphologyPrior.from_part(part).spec.points == 8
    with pytest.raises(UserError, match="fit the part 'prior' again"):
        MorphologyPrior.from_part(Part(part.tensors, {**part.settings, **odd}))
