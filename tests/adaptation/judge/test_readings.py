"""Readings stacked in one pass are what the network says when it is asked in each mode alone."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.adaptation.judge.candidates import Candidate, candidates_of, read_batch, weigh
from ttdg.adaptation.judge.mixing import fit_mixing, set_mixing
from ttdg.adaptation.judge.readings import READINGS, Reading, stack, unmirror, use_groups
from ttdg.data import Arrays, Benchmark, Exact
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.grouped import LEARNED, distance
from ttdg.prior import MorphologyPrior, feature_maps

SIZE = 64


@pytest.fixture
def model(ready):
    source = ready("universe-gradient", labels=3)
    return source.network, MorphologyPrior.from_part(source.parts["prior"])


def some_images(b: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(b, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) + 1


@torch.no_grad()
def alone(network: nn.Module, mode: batchnorm.Mode, images: Tensor) -> Tensor:
    network = copy.deepcopy(network)
    batchnorm.use(network, mode)
    return network(images)


@torch.no_grad()
def together(network: nn.Module, images: Tensor, readings: tuple[Reading, ...], group: int = 4) -> Tensor:
    network = copy.deepcopy(network)
    stacked, rho = stack(images, readings, group)
    use_groups(network, rho)
    return unmirror(network(stacked), readings)


@pytest.mark.parametrize("rho", [0.0, 0.1, 0.5, 1.0])
def test_a_stacked_reading_is_the_network_alone_in_that_mode(model, rho):
    network, images = model[0], some_images()
    readings = (Reading("other", 0.3), Reading("this", rho))
    mode = batchnorm.MixMode(rho) if rho else batchnorm.EVAL
    assert torch.allclose(
        together(network, images, readings)[1], alone(network, mode, images), atol=1e-3, rtol=1e-3
    )


def test_the_learned_reading_mixes_each_layer_by_its_own_weight(model):
    network, images = model[0], some_images()
    layers = list(batchnorm.layers(network))
    weights = torch.linspace(0.05, 0.9, len(layers)).tolist()
    assert set_mixing(network, weights) == pytest.approx(weights)
    learned = together(network, images, (Reading("learned", LEARNED), Reading("source", 0.0)))
    by_hand = copy.deepcopy(network)
    batchnorm.use(by_hand, batchnorm.EVAL)
    for layer, rho in zip(batchnorm.layers(by_hand), weights, strict=True):
        layer.mode = batchnorm.MixMode(rho)
    with torch.no_grad():
        assert torch.allclose(learned[0], by_hand(images), atol=1e-3, rtol=1e-3)
    assert torch.allclose(learned[1], alone(network, batchnorm.EVAL, images), atol=1e-3, rtol=1e-3)


def test_a_mirrored_reading_is_the_answer_to_the_mirrored_image_turned_back(model):
    network, images = model[0], some_images()
    readings = (Reading("mirrored", 0.5, True), Reading("upright", 0.5))
    there, back = together(network, images, readings), together(network, images.flip(3), readings)
    assert torch.allclose(there[0], back[1].flip(3), atol=1e-4)
    assert torch.allclose(there[1], back[0].flip(3), atol=1e-4)


def test_groups_do_not_see_each_other(model):
    network, images = model[0], some_images()
    other = torch.cat([images[:2], 5 * some_images(2, seed=3) - 2])
    a, b = (together(network, x, READINGS[:4], group=2) for x in (images, other))
    assert torch.allclose(a[:, :2], b[:, :2], atol=1e-4)
    assert not torch.allclose(a[:, 2:], b[:, 2:], atol=1e-1)


def test_the_distance_is_zero_for_the_sources_own_statistics_and_grows_with_the_shift(model):
    network = copy.deepcopy(model[0])
    images = some_images(8)
    batchnorm.use(network, batchnorm.TrainMode(momentum=1.0))
    with torch.no_grad():
        network(images)  # its running statistics are now those of these images
        found = []
        for shift in (0.0, 0.5, 2.0):
            mode = use_groups(network, [0.0])
            network(images + shift)
            found.append(distance(mode.seen, 1)[0].unflatten(0, (3, 2)).mean(0))
    deep = found[0][0]  # layers too small for statistics keep the source's: not exactly 0
    assert deep < found[1][0] < found[2][0]
    assert deep < 0.2


def test_small_layers_say_nothing_and_every_layer_is_heard(model):
    network = copy.deepcopy(model[0])
    mode = use_groups(network, [0.0, 1.0])
    with torch.no_grad():
        network(torch.randn(2, 3, 32, 32))
    assert [told.layer for told in mode.seen] == list(batchnorm.layers(network))
    assert mode.seen[0].mean.shape == (2, mode.seen[0].layer.num_features)
    assert any(told.mean is None for told in mode.seen)


# --- candidates


def test_candidates_are_named_and_average_their_readings(model):
    network, prior = model
    set_mixing(network, [0.3] * len(list(batchnorm.layers(network))))
    images, options = some_images(), candidates_of(READINGS)
    assert [c.name for c in options][-5:-2] == ["source, both ways", "mix learned, both ways", "mean of all"]
    evidence = weigh(read_batch(network, prior, images, readings=READINGS), prior, options)
    P = together(network, images, READINGS).softmax(2)
    assert evidence.plain == len(options) - 2
    for number, candidate in enumerate(options[: evidence.plain]):
        expected = P[list(candidate.of)].mean(0)
        assert torch.allclose(evidence.logits[number].exp(), expected, atol=1e-4), candidate.name
    assert torch.allclose(evidence.projected.norm(dim=2), torch.ones(()), atol=1e-4)
    assert evidence.distance.shape == (4, 6)


def test_a_candidate_that_listens_to_the_universe_is_the_geometric_mean_of_both_readings(model):
    network, prior = model
    set_mixing(network, [0.3] * len(list(batchnorm.layers(network))))
    seen = read_batch(network, prior, some_images(), readings=READINGS)
    twin, heard, other = (
        weigh(seen, universe, [Candidate("both ways", (0, 5), listens)])
        for universe, listens in ((prior, False), (prior, True), (prior.with_random_universe(3), True))
    )
    universe = F.interpolate(
        prior.posterior(twin.projected[0]), size=seen.images.shape[2:], mode="bilinear"
    ).clamp(min=1e-4)
    expected = (twin.logits[0].exp() * universe).sqrt()
    assert torch.allclose(heard.logits[0].exp(), expected / expected.sum(1, keepdim=True), atol=1e-5)
    assert not torch.allclose(heard.logits, other.logits, atol=1e-2)
    assert torch.equal(heard.projected, twin.projected)


def test_the_projection_of_a_candidate_is_that_of_its_reading(model):
    network, prior = model
    evidence = weigh(
        read_batch(network, prior, some_images(), readings=READINGS[:1]), prior, candidates_of(READINGS[:1])
    )
    batchnorm.use(network, batchnorm.EVAL)
    with torch.no_grad():
        assert torch.allclose(
            evidence.projected[0], prior.project(feature_maps(network, some_images())[1]), atol=1e-4
        )


# --- mixing


def a_site(seed: int = 0) -> tuple[Arrays, Benchmark]:
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(4, 32, 32, dtype=torch.uint8)
    masks[:, 8:24, 8:24] = 1
    images = torch.randint(256, (4, 3, 32, 32), generator=generator).to(torch.uint8)
    benchmark = Benchmark("b", ("background", "a", "b"), Exact({0: 0, 1: 1, 2: 2}), {"a": (1,)}, "minmax", 32)
    return Arrays(images, masks, tuple("abcd")), benchmark


def test_mixing_moves_its_weights_and_nothing_of_the_network(model):
    network, (arrays, benchmark) = model[0], a_site()
    before = copy.deepcopy(network.state_dict())
    fit_mixing(network, [arrays], benchmark, steps=2, groups=1)
    weights = set_mixing(network)
    assert all(0 < rho < 1 for rho in weights)
    assert len(set(weights)) > 1
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.requires_grad for parameter in network.parameters())
