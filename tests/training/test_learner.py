"""The objective L_sup + w · L(𝒰), and which parameters its gradient reaches."""

import pytest
import torch
from torch import Tensor

from ttdg.matching import universe_loss
from ttdg.networks import NetworkSpec, Segmenter, feature_maps, level_channels
from ttdg.networks.losses import LOSSES
from ttdg.prior import MorphologyPrior, literal_loss, literal_prior_for, prior_for, prior_loss
from ttdg.prior.loss import gather_nodes
from ttdg.training.learner import Learner


@pytest.fixture
def network() -> Segmenter:
    torch.manual_seed(0)
    return Segmenter(NetworkSpec(2, "light")).eval()


def a_prior(network: Segmenter) -> MorphologyPrior:
    torch.manual_seed(1)
    return prior_for(level_channels(network), 2, node_dim=16, points=8, per_tissue=6)


def a_batch(side: int = 32) -> tuple[Tensor, Tensor]:
    labels = torch.zeros(2, side, side, dtype=torch.long)
    labels[:, 8:20, 6:18] = 1
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0)), labels


def gradients(learner: Learner, *batch: Tensor) -> dict[str, Tensor]:
    learner.zero_grad()
    learner(*batch).backward()
    return {name: p.grad.clone() for name, p in learner.named_parameters() if p.grad is not None}


def test_without_a_prior_the_loss_is_the_supervised_one(network):
    images, labels = a_batch()
    learner = Learner(network, None, "dice+ce", 0.0)
    assert torch.equal(learner(images, labels), LOSSES["dice+ce"](network(images), labels))


@pytest.mark.parametrize("weight", [0.0, 0.1, 2.0])
def test_the_loss_is_the_weighted_sum(network, weight):
    images, labels = a_batch()
    prior = a_prior(network)
    logits, maps = feature_maps(network, images)
    expected = LOSSES["dice+ce"](logits, labels) + weight * prior_loss(prior, maps, labels)
    assert torch.allclose(Learner(network, prior, "dice+ce", weight)(images, labels), expected, atol=1e-5)


def test_with_a_literal_prior_the_loss_is_that_of_algorithm_1(network):
    images, labels = a_batch()
    prior = literal_prior_for(level_channels(network), 2, node_dim=16, points=8, per_tissue=6).eval()
    logits, maps = feature_maps(network, images)
    expected = LOSSES["ce"](logits, labels) + literal_loss(prior, maps, labels)
    assert torch.allclose(Learner(network, prior, "ce", 1.0)(images, labels), expected, rtol=1e-5)


def test_the_prior_loss_has_gradients_on_the_encoder_but_not_on_the_head(network):
    batch = a_batch()
    without, with_it = (gradients(Learner(network, a_prior(network), "ce", w), *batch) for w in (0.0, 1.0))
    early, head = "network.unet.encoder", "network.unet.segmentation_head"
    assert any(not torch.allclose(g, with_it[k]) for k, g in without.items() if k.startswith(early))
    assert all(torch.allclose(g, with_it[k]) for k, g in without.items() if k.startswith(head))


def test_projection_and_universe_are_trained_but_edges_and_affinity_are_not(network):
    found = gradients(Learner(network, a_prior(network), "ce", 0.1), *a_batch())
    assert found["prior.universe"].abs().sum() > 0
    assert found["prior.output.weight"].abs().sum() > 0
    assert not any(name.startswith(("prior.edges", "prior.affinity")) for name in found)


def test_image_sides_need_not_be_multiples_of_the_stride(network):
    loss = Learner(network, a_prior(network), "dice+ce", 0.1)(*a_batch(side=40))
    assert loss.isfinite()


def test_a_single_process_gathers_its_own_nodes_only(network):
    images, labels = a_batch()
    prior = a_prior(network)
    maps = feature_maps(network, images)[1]
    nodes = prior.nodes(prior.project(maps), labels)
    together, mine = gather_nodes(nodes)
    assert together is nodes
    assert torch.equal(nodes.mask[mine], nodes.mask)
    U = prior.match(nodes)
    plain = universe_loss(nodes.features, prior.universe_points(), U, nodes.mask, tau=prior.spec.tau)
    assert torch.allclose(prior_loss(prior, maps, labels), plain)
