"""Evidence does not depend on how its computation is divided, and universes share only what is common to them."""

import pytest
import torch

from ttdg.adaptation.judge import evidence
from ttdg.adaptation.judge.candidates import candidates_of, predict_candidates
from ttdg.adaptation.judge.evidence import candidate_dice, collect_evidence, evidence_setup, region_maps
from ttdg.adaptation.judge.mixing import layer_weights
from ttdg.adaptation.judge.reading_passes import predict_readings
from ttdg.adaptation.judge.readings import READING_SETS
from ttdg.data import Arrays, Benchmark, Exact, normalise
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.networks import batchnorm
from ttdg.prior import MorphologyPrior
from ttdg.prior.universe_signals import universe_signals

REGIONS = {"disc": (1, 2), "cup": (2,)}
BENCHMARK = Benchmark("b", ("background", "rim", "cup"), Exact({0: 0, 1: 1, 2: 2}), REGIONS, "minmax", 64)


def a_site(count: int = 9) -> Arrays:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 64, 64), generator=generator).to(torch.uint8)
    masks = torch.zeros(count, 64, 64, dtype=torch.uint8)
    masks[:, 16:48, 16:48], masks[:, 24:40, 24:40] = 1, 2
    return Arrays(images, masks, tuple(map(str, range(count))))


@pytest.fixture
def setup(ready):
    source = ready("universe-gradient", labels=3)
    weights = layer_weights(source.network, [0.3] * len(list(batchnorm.layers(source.network))))
    prior = MorphologyPrior.from_part(source.parts["prior"])
    return evidence_setup(source.network, weights, prior, {"site": a_site()}, BENCHMARK, controls=True)


@pytest.mark.parametrize(("group", "seed"), [(4, 3), (1, 3), (4, None)])
def test_the_evidence_does_not_depend_on_how_many_images_are_computed_together(
    setup, monkeypatch, group, seed
):
    tables = []
    for images in (4, 8):
        monkeypatch.setattr(evidence, "CPU_IMAGES", images)
        tables.append(collect_evidence(setup, a_site(), group, seed))
    few, many = tables
    for universe, table in many.items():
        assert torch.equal(few[universe].hospital, table.hospital)
        assert torch.allclose(few[universe].dice, table.dice, atol=1e-3)
        for name, value in table.signals.items():
            assert torch.allclose(few[universe].signals[name], value, atol=1e-3, rtol=1e-3), name


def test_the_point_locations_do_not_depend_on_how_many_images_are_computed_together(setup, monkeypatch):
    monkeypatch.setattr(evidence, "CPU_IMAGES", 2)
    prior = setup.priors["learned"]
    other = evidence_setup(setup.network, setup.mixing, prior, {"site": a_site()}, BENCHMARK)
    found, expected = other.locations["learned"], setup.locations["learned"]
    assert torch.allclose(found.radius, expected.radius, atol=1e-3)
    assert torch.allclose(found.use, expected.use, atol=1e-3)


@torch.no_grad()
def test_each_universe_has_the_evidence_that_it_would_have_alone(setup):
    site, readings = a_site(4), READING_SETS["four"]
    tables = collect_evidence(setup, site, 4, None)
    images = normalise(site.images.float() / 255, BENCHMARK.normalisation)
    read = predict_readings(
        setup.network, setup.priors["learned"], images, readings=readings, mixing=setup.mixing
    )
    for universe, prior in setup.priors.items():
        predictions = predict_candidates(read, prior, candidates_of(readings))
        P = predictions.logits.softmax(2)
        expected = universe_signals(prior, setup.locations[universe], predictions.projected, P, REGIONS)
        for name, value in expected.items():
            assert torch.allclose(tables[universe].signals[name], value, atol=1e-4), (universe, name)
        truth = region_masks(site.masks.long(), REGIONS)
        assert torch.allclose(tables[universe].dice, candidate_dice(region_maps(P, REGIONS), truth))


def test_hospitals_are_numbered_through_and_share_a_shift(setup):
    shifted = collect_evidence(setup, a_site(), 4, 0, chunk=4)["learned"]
    assert shifted.hospital.tolist() == [0] * 4 + [1] * 4
    unshifted = collect_evidence(setup, a_site(), 1, None, chunk=8)["learned"]
    assert unshifted.hospital.tolist() == [0] * 8 + [1]


def test_dice_of_candidates_is_that_of_the_metrics():
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 2, 3, 8, 8), torch.randint(3, (2, 8, 8))
    logits[2, 0, 0] += 100.0  # an empty prediction
    labels[0] = 0  # an empty truth
    truth = region_masks(labels, REGIONS)
    found = candidate_dice(region_maps(logits.softmax(2), REGIONS), truth)
    assert found.shape == (2, 3, 2)
    for number, one in enumerate(logits):
        assert torch.equal(found[:, number], dice(region_probabilities(one, REGIONS), truth))
