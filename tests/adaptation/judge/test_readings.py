"""Readings stacked in one pass equal separate passes in the corresponding BatchNorm modes."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.adaptation.judge import reading_passes
from ttdg.adaptation.judge.candidates import (
    THREE_SIZES,
    Candidate,
    candidates_of,
    describe_candidate,
    predict_candidates,
)
from ttdg.adaptation.judge.method import fallback_of
from ttdg.adaptation.judge.mixing import INITIAL_RHO, fit_mixing, layer_weights, sample_groups
from ttdg.adaptation.judge.reading_passes import predict_readings
from ttdg.adaptation.judge.readings import (
    READING_SETS,
    READINGS,
    Reading,
    stack_readings,
    unstack_readings,
    use_groups,
)
from ttdg.data import Arrays, Benchmark, Exact, normalise
from ttdg.data.shifts import simulate
from ttdg.networks import batchnorm, feature_maps
from ttdg.networks.batchnorm.grouped import LEARNED, statistics_distance
from ttdg.networks.losses import soft_dice_loss
from ttdg.prior import MorphologyPrior
from ttdg.prior.universe_signals import label_weights

SIZE = 64


def test_every_candidate_has_a_description_of_its_own():
    names = [candidate.name for candidate in candidates_of(READINGS, fused=True)]
    words = [describe_candidate(name) for name in names]
    assert len(set(words)) == len(names)
    assert not set(words) & set(names)
    assert describe_candidate("adapted") == "adapted"


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
def together(
    network: nn.Module,
    images: Tensor,
    readings: tuple[Reading, ...],
    group: int = 4,
    weights: list[float] | None = None,
) -> Tensor:
    network = copy.deepcopy(network)
    stacked, rho = stack_readings(images, readings, group)
    use_groups(network, rho, layer_weights(network, weights) if weights else None)
    return unstack_readings(network(stacked), readings)


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
    readings = (Reading("learned", LEARNED), Reading("source", 0.0))
    learned = together(network, images, readings, weights=weights)
    by_hand = copy.deepcopy(network)
    batchnorm.use(by_hand, batchnorm.EVAL)
    for layer, rho in zip(batchnorm.layers(by_hand), weights, strict=True):
        layer.mode = batchnorm.MixMode(rho)
    with torch.no_grad():
        assert torch.allclose(learned[0], by_hand(images), atol=1e-3, rtol=1e-3)
    assert torch.allclose(learned[1], alone(network, batchnorm.EVAL, images), atol=1e-3, rtol=1e-3)


def test_a_mirrored_reading_is_the_flipped_prediction_of_the_flipped_image(model):
    network, images = model[0], some_images()
    readings = (Reading("mirrored", 0.5, True), Reading("upright", 0.5))
    there, back = together(network, images, readings), together(network, images.flip(3), readings)
    assert torch.allclose(there[0], back[1].flip(3), atol=1e-4)
    assert torch.allclose(there[1], back[0].flip(3), atol=1e-4)


def test_learned_readings_require_the_weights_of_the_layers(model):
    with pytest.raises(ValueError, match="weights of the layers"):
        together(model[0], some_images(), (Reading("learned", LEARNED),))


def test_groups_do_not_influence_each_other(model):
    network, images = model[0], some_images()
    other = torch.cat([images[:2], 5 * some_images(2, seed=3) - 2])
    a, b = (together(network, x, READINGS[:4], group=2) for x in (images, other))
    assert torch.allclose(a[:, :2], b[:, :2], atol=1e-4)
    assert not torch.allclose(a[:, 2:], b[:, 2:], atol=1e-1)


def test_the_distance_is_near_zero_for_the_source_statistics_and_grows_with_the_shift(model):
    network = copy.deepcopy(model[0])
    images = some_images(8)
    batchnorm.use(network, batchnorm.TrainMode(momentum=1.0))
    with torch.no_grad():
        network(images)  # its running statistics are now those of these images
        found = []
        for shift in (0.0, 0.5, 2.0):
            mode = use_groups(network, [0.0])
            network(images + shift)
            found.append(statistics_distance(mode.seen, 1)[0].unflatten(0, (3, 2)).mean(0))
    deep = found[0][0]  # not exactly 0: layers too small for statistics keep those of the source
    assert deep < found[1][0] < found[2][0]
    assert deep < 0.2


def test_every_layer_is_listed_and_small_layers_have_no_statistics(model):
    network = copy.deepcopy(model[0])
    mode = use_groups(network, [0.0, 1.0])
    with torch.no_grad():
        network(torch.randn(2, 3, 32, 32))
    assert [statistics.layer for statistics in mode.seen] == list(batchnorm.layers(network))
    assert mode.seen[0].mean.shape == (2, mode.seen[0].layer.num_features)
    assert any(statistics.mean is None for statistics in mode.seen)


# --- candidates


def test_candidates_are_named_and_average_their_readings(model):
    network, prior = model
    weights = [0.3] * len(list(batchnorm.layers(network)))
    images, chosen = some_images(), candidates_of(READINGS)
    assert [c.name for c in chosen][-5:-2] == [
        "source, both ways",
        "mix learned, both ways",
        "mean of all",
    ]
    read = predict_readings(network, prior, images, readings=READINGS, mixing=layer_weights(network, weights))
    predictions = predict_candidates(read, prior, chosen)
    P = together(network, images, READINGS, weights=weights).softmax(2)
    assert predictions.unfused == len(chosen) - 2
    for number, candidate in enumerate(chosen[: predictions.unfused]):
        expected = P[list(candidate.readings)].mean(0)
        assert torch.allclose(predictions.logits[number].exp(), expected, atol=1e-4), candidate.name
    assert torch.allclose(predictions.projected.norm(dim=2), torch.ones(()), atol=1e-4)
    assert predictions.distance.shape == (4, 6)


def test_a_fused_candidate_is_the_geometric_mean_of_the_network_and_the_universe(model):
    network, prior = model
    weights = layer_weights(network, [0.3] * len(list(batchnorm.layers(network))))
    read = predict_readings(network, prior, some_images(), readings=READINGS, mixing=weights)
    plain, fused, other = (
        predict_candidates(read, universe, [Candidate("both ways", (0, 5), is_fused)])
        for universe, is_fused in ((prior, False), (prior, True), (prior.with_random_universe(3), True))
    )
    universe = F.interpolate(
        prior.posterior(plain.projected[0]), size=read.images.shape[2:], mode="bilinear"
    ).clamp(min=1e-4)
    expected = (plain.logits[0].exp() * universe).sqrt()
    assert torch.allclose(fused.logits[0].exp(), expected / expected.sum(1, keepdim=True), atol=1e-5)
    assert not torch.allclose(fused.logits, other.logits, atol=1e-2)
    assert torch.equal(fused.projected, plain.projected)


def test_the_projection_of_a_candidate_is_that_of_its_reading(model):
    network, prior = model
    evidence = predict_candidates(
        predict_readings(network, prior, some_images(), readings=READINGS[:1]),
        prior,
        candidates_of(READINGS[:1]),
    )
    batchnorm.use(network, batchnorm.EVAL)
    with torch.no_grad():
        assert torch.allclose(
            evidence.projected[0], prior.project(feature_maps(network, some_images())[1]), atol=1e-4
        )


def test_readings_in_several_passes_equal_those_of_one_pass(model, monkeypatch):
    network, prior = model
    weights = layer_weights(network, [0.3] * len(list(batchnorm.layers(network))))
    found = []
    for pixels in (1, 3 * SIZE**2, 100 * SIZE**2):  # one group, one and a half groups, all groups
        monkeypatch.setattr(reading_passes, "CPU_PIXELS", pixels)
        found.append(
            predict_readings(network, prior, some_images(), readings=READINGS, mixing=weights, group=2)
        )
    for other in found[1:]:
        assert torch.allclose(found[0].P, other.P, atol=1e-4)
        assert torch.allclose(found[0].V, other.V, atol=1e-3)
        assert torch.allclose(found[0].distance, other.distance, atol=1e-4)


def test_candidates_of_the_same_readings_share_their_label_weights(model):
    network, prior = model
    read = predict_readings(network, prior, some_images(), readings=READINGS[:1])
    fused = [Candidate("a", (0,)), Candidate("b", (0,), True), Candidate("c", (0,), True)]
    weight = predict_candidates(read, prior, fused).weight
    assert torch.equal(weight[0], weight[1])
    assert torch.equal(weight[0], weight[2])
    everything = predict_candidates(read, prior, fused)
    assert torch.allclose(weight, label_weights(prior, everything.projected), rtol=1e-4)
    assert predict_candidates(read, prior, fused[:1]).weight is None


# --- sizes


def test_the_average_over_three_sizes_is_that_of_six_passes_of_the_source(model):
    network, prior = model
    images, readings = some_images(), READING_SETS["eight"]
    chosen = candidates_of(readings)
    weights = layer_weights(network, [0.3] * len(list(batchnorm.layers(network))))
    read = predict_readings(network, prior, images, readings=readings, mixing=weights)
    predictions = predict_candidates(read, prior, chosen)
    expected = []
    for side in (SIZE, 48, 80):  # scales 1, 0.75 and 1.25
        scaled = F.interpolate(images, (side, side), mode="bilinear", antialias=side < SIZE)
        for flipped in (False, True):
            P = alone(network, batchnorm.EVAL, scaled.flip(3) if flipped else scaled).softmax(1)
            expected.append(F.interpolate(P.flip(3) if flipped else P, (SIZE, SIZE), mode="bilinear"))
    index = [candidate.name for candidate in chosen].index(THREE_SIZES)
    assert torch.allclose(predictions.logits[index].exp(), torch.stack(expected).mean(0), atol=1e-3)
    assert torch.allclose(predictions.projected.norm(dim=2), torch.ones(()), atol=1e-4)


def test_other_sizes_change_no_candidate_of_the_readings_at_the_size_of_the_image(model):
    network, prior = model
    weights = layer_weights(network, [0.3] * len(list(batchnorm.layers(network))))
    found = {}
    for name in ("four", "eight"):
        chosen = candidates_of(READING_SETS[name])
        read = predict_readings(network, prior, some_images(), readings=READING_SETS[name], mixing=weights)
        logits = predict_candidates(read, prior, chosen).logits
        found[name] = dict(zip((candidate.name for candidate in chosen), logits, strict=True))
    assert found["eight"].keys() == found["four"].keys() | {THREE_SIZES}
    for name in found["four"].keys() - {"mean of all"}:
        assert torch.allclose(found["four"][name], found["eight"][name], atol=1e-5), name


@pytest.mark.parametrize(
    ("readings", "fallback"),
    [("two", "source, both ways"), ("four", "source, both ways"), ("eight", THREE_SIZES)],
)
def test_the_fallback_is_the_average_over_three_sizes_where_there_is_one(readings, fallback):
    names = [candidate.name for candidate in candidates_of(READING_SETS[readings])]
    assert names[fallback_of(names)] == fallback


# --- mixing


def a_site(seed: int = 0) -> tuple[Arrays, Benchmark]:
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(4, 32, 32, dtype=torch.uint8)
    masks[:, 8:24, 8:24] = 1
    images = torch.randint(256, (4, 3, 32, 32), generator=generator).to(torch.uint8)
    benchmark = Benchmark("b", ("background", "a", "b"), Exact({0: 0, 1: 1, 2: 2}), {"a": (1,)}, "minmax", 32)
    return Arrays(images, masks, tuple("abcd")), benchmark


def test_fitting_the_mixing_weights_leaves_the_network_unchanged(model):
    network, (arrays, benchmark) = model[0], a_site()
    before = copy.deepcopy(network.state_dict())
    weights = fit_mixing(network, [arrays], benchmark, steps=2, groups=1)
    assert list(weights) == list(batchnorm.layers(network))
    values = [float(rho) for rho in weights.values()]
    assert all(0 < rho < 1 for rho in values)
    assert len(set(values)) > 1
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_the_mixing_weights_are_those_of_a_descent_on_all_groups_at_once(model):
    network, (arrays, benchmark) = model[0], a_site()
    steps, groups, group, lr = 3, 2, 2, 0.1
    found = fit_mixing(network, [arrays], benchmark, steps=steps, lr=lr, group=group, groups=groups, seed=5)
    reference, layers = copy.deepcopy(network).requires_grad_(False).eval(), len(found)
    logit = torch.full((layers, 1), math.log(INITIAL_RHO / (1 - INITIAL_RHO)), requires_grad=True)
    optimiser, generator = torch.optim.Adam([logit], lr), torch.Generator().manual_seed(5)
    for _ in range(steps):
        images, labels = sample_groups([arrays], groups, group, generator, torch.device("cpu"))
        images, labels = simulate(images, labels, generator, group=group)
        weights = dict(zip(batchnorm.layers(reference), logit.sigmoid(), strict=True))
        use_groups(reference, [LEARNED] * groups, weights)
        logits = reference(normalise(images, benchmark.normalisation))
        optimiser.zero_grad()
        (F.cross_entropy(logits, labels) + soft_dice_loss(logits, labels)).backward()
        optimiser.step()
    assert torch.allclose(torch.cat([*found.values()]), logit.sigmoid()[:, 0], atol=1e-4)
